//! Bitcasts to another layout as copies, where something other than a kernel takes their value.
//!
//! The runtime keeps every array with the last index fastest, so such a bitcast moves elements
//! there. Kernels and collectives apply it to what they read; a loop, a branch or a message takes
//! memory as it is.

use std::collections::{BTreeSet, HashMap};

use crate::draft::{Draft, DraftError, DraftLine, after_name};
use crate::ids::{ComputationId, InstrId};
use crate::nature::started;
use crate::{Array, Module, Opcode, Phase};

/// The same module with bitcasts to another layout copied where their value is passed on; `None` if
/// there are none.
pub fn without_passed_bitcasts(module: &Module) -> Result<Option<Module>, DraftError> {
    let mut draft = Draft::new(module);
    let mut is_any = false;
    for computation in run_by_steps(module) {
        let passing = Passing::of(module, computation);
        for instr in module.instructions(computation) {
            if module.is_moving_bitcast(instr) && passing.passes(instr) {
                write(&mut draft, module, instr);
                is_any = true;
            }
        }
    }
    if is_any { draft.finish().map(Some) } else { Ok(None) }
}

/// The computations whose instructions are steps of a plan, not parts of kernels.
fn run_by_steps(module: &Module) -> BTreeSet<ComputationId> {
    let mut found = BTreeSet::from([module.entry()]);
    let mut next = vec![module.entry()];
    while let Some(computation) = next.pop() {
        for instr in module.instructions(computation) {
            if matches!(
                module.instruction(instr).opcode,
                Opcode::While | Opcode::Conditional | Opcode::Call
            ) {
                let called = module.called(instr).iter().copied();
                next.extend(called.filter(|&callee| found.insert(callee)));
            }
        }
    }
    found
}

/// Who takes values in a computation as they are in memory.
struct Passing<'m> {
    module: &'m Module,
    computation: ComputationId,
    readers: HashMap<InstrId, Vec<InstrId>>,
}

impl<'m> Passing<'m> {
    fn of(module: &'m Module, computation: ComputationId) -> Passing<'m> {
        let mut readers: HashMap<InstrId, Vec<InstrId>> = HashMap::new();
        for instr in module.instructions(computation) {
            for operand in module.operands(instr) {
                readers.entry(operand.of).or_default().push(instr);
            }
        }
        Passing { module, computation, readers }
    }

    /// Whether a value goes where it must be in memory, directly or through other bitcasts.
    fn passes(&self, value: InstrId) -> bool {
        let readers = self.readers.get(&value).map_or(&[][..], Vec::as_slice);
        self.is_returned(value) || readers.iter().any(|&reader| self.takes(reader))
    }

    /// Whether it is the result for a caller. Results of the module are cast when they are fetched.
    fn is_returned(&self, value: InstrId) -> bool {
        value == self.module.root(self.computation) && !self.is_entry()
    }

    fn is_entry(&self) -> bool {
        self.computation == self.module.entry()
    }

    fn takes(&self, reader: InstrId) -> bool {
        match self.module.instruction(reader).opcode {
            Opcode::Bitcast => !self.module.is_moving_bitcast(reader) && self.passes(reader),
            Opcode::Tuple => {
                let is_result = reader == self.module.root(self.computation) && self.is_entry();
                !is_result || self.readers.contains_key(&reader)
            }
            Opcode::While
            | Opcode::Conditional
            | Opcode::Call
            | Opcode::Send
            | Opcode::OptimizationBarrier
            | Opcode::OptBarrierLong
            | Opcode::Domain
            | Opcode::AddDependency => true,
            opcode => {
                let (_, is_collective) = started(self.module, reader);
                opcode.phase() == Some(Phase::Start) && !is_collective
            }
        }
    }
}

/// Writes a bitcast under another name, and a copy of it under its own.
fn write(draft: &mut Draft<'_>, module: &Module, instr: InstrId) {
    let own = module.instruction_name(instr).to_owned();
    let name = draft.fresh(&own);
    let operands = module.operands(instr).iter().map(|operand| operand.of);
    let before = operands.chain(module.control_predecessors(instr));
    let reads = before.map(|before| module.instruction_name(before).to_owned()).collect();
    let text = format!("{} copy({}{name})", module.shape_text(instr), draft.percent(instr));
    let metadata = module.attribute(instr, "metadata");
    let metadata = metadata.map_or(String::new(), |text| format!(", metadata={text}"));
    let copy = DraftLine { name: own, text: text + &metadata, reads: vec![name.clone()] };
    draft.replace(
        instr,
        DraftLine { name, text: after_name(module, instr).trim_end().to_owned(), reads },
    );
    draft.replace(instr, copy);
}

impl Module {
    /// Whether an instruction is a bitcast that moves elements in arrays that are dense with the
    /// last index fastest.
    pub fn is_moving_bitcast(&self, instr: InstrId) -> bool {
        let is_bitcast = self.instruction(instr).opcode == Opcode::Bitcast;
        let operand = self.operands(instr).first().filter(|_| is_bitcast);
        let from = operand.and_then(|operand| self.operand_shape(operand).array());
        let (Some(from), Some(to)) = (from, self.instruction(instr).shape.array()) else {
            return false;
        };
        let is_same = from.dims == to.dims
            && self.layout(from).minor_to_major == self.layout(to).minor_to_major;
        !(is_same || self.is_plain(from) && self.is_plain(to))
    }

    /// Whether an instruction copies such a bitcast: [`without_passed_bitcasts`] writes these.
    pub fn is_copy_of_bitcast(&self, instr: InstrId) -> bool {
        let operand = self.operands(instr).first();
        self.instruction(instr).opcode == Opcode::Copy
            && operand.is_some_and(|operand| self.is_moving_bitcast(operand.of))
    }

    /// Whether the last index is the fastest, leaving out dimensions of one element.
    fn is_plain(&self, array: &Array) -> bool {
        let layout = self.layout(array);
        let long: Vec<u32> = layout
            .minor_to_major
            .into_iter()
            .filter(|&dim| array.dims.get(dim as usize).is_some_and(|&len| len != 1))
            .collect();
        long.is_sorted_by(|a, b| a > b)
    }
}
