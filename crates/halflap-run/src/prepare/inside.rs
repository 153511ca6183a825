//! What a launch does, instruction by instruction, for checks that look into fusions.
//!
//! A kernel runs a fusion at once and leaves none of the values in between. Where a check needs
//! them, it runs the lines of an `Inside` on the launch's inputs. They are compiled only if such a
//! check is on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use halflap_hlo::Opcode;
use halflap_hlo::ids::InstrId;

use super::bounds::{Bounds, bounds};
use super::compares::{asks, compares};
use super::constants::{Handling, depends_on_operands_alone, has_marks};
use super::flat::Flat;
use super::label::{Argument, Label};
use crate::kernel::{ArrayType, Kernel, Libraries, ResultLeaf, Scratch, operand_leaves};
use crate::tensor::{Tensor, View, Worst, worst_of};

/// An array between the lines, counted from the launch's inputs on.
type InnerValue = usize;

/// All lines of a launch.
pub(crate) struct Inside {
    pub(crate) lines: Vec<InnerLine>,
    /// The launch's outputs.
    pub(crate) outputs: Vec<InnerValue>,
    /// Whether constants inside are NaN or infinite.
    pub(crate) has_marks: bool,
    /// Whether lines take logarithms of masks.
    pub(crate) has_masks: bool,
    /// Whether lines take indices.
    pub(crate) has_indices: bool,
    /// Whether lines compare floating-point numbers, or ask which are NaN.
    pub(crate) has_comparisons: bool,
}

/// An instruction.
pub(crate) struct InnerLine {
    pub(crate) kernel: Kernel,
    /// The launch's, but with the line's own arrays.
    pub(crate) label: Label,
    pub(crate) ins: Vec<InnerValue>,
    pub(crate) outs: Range<InnerValue>,
    /// What no later line takes.
    pub(crate) dead: Vec<InnerValue>,
    /// Whether an index depends on it.
    for_indices: bool,
    /// Whether what a comparison takes depends on it.
    for_comparisons: bool,
}

/// Which lines are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InnerLook {
    Indices,
    Comparisons,
}

impl InnerLine {
    /// What is looked at of what it takes.
    fn looked_at(&self, what: InnerLook) -> Vec<InnerValue> {
        match what {
            InnerLook::Indices => {
                self.label.bounds.iter().map(|bounds| self.ins[bounds.input]).collect()
            }
            InnerLook::Comparisons if self.label.compares || self.label.asks => self.ins.clone(),
            InnerLook::Comparisons => Vec::new(),
        }
    }

    fn is_needed(&self, what: InnerLook) -> bool {
        match what {
            InnerLook::Indices => self.for_indices,
            InnerLook::Comparisons => self.for_comparisons,
        }
    }
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} lines", self.lines.len())
    }
}

impl InnerLine {
    /// Runs it.
    pub(crate) fn run(&self, inputs: &[View<'_>], scratch: &mut Scratch) -> Vec<Tensor> {
        let zeros = |kind: &ArrayType| Tensor::zeros(kind.dtype, &kind.dims);
        let mut arrays: Vec<Tensor> = self.kernel.outputs().iter().map(zeros).collect();
        let mut outputs: Vec<_> = arrays.iter_mut().map(Tensor::view_mut).collect();
        self.kernel.run(inputs, &mut outputs, scratch);
        arrays
    }
}

impl Inside {
    /// Runs the lines that indices depend on, and shows all indices.
    pub(crate) fn indices(
        &self,
        inputs: &[View<'_>],
        scratch: &mut Scratch,
        mut look: impl FnMut(&Label, &Bounds, &View<'_>),
    ) {
        self.walk(InnerLook::Indices).run(inputs, scratch, |line, known| {
            for bounds in &line.label.bounds {
                known(line.ins[bounds.input], &mut |array| look(&line.label, bounds, array));
            }
        });
    }

    /// Whether a line compares NaN, or asks for it.
    pub(crate) fn compares_nan(&self, inputs: &[View<'_>], scratch: &mut Scratch) -> bool {
        let mut has_nan = false;
        self.walk(InnerLook::Comparisons).run(inputs, scratch, |line, known| {
            for value in line.looked_at(InnerLook::Comparisons) {
                known(value, &mut |array| has_nan |= worst_of(array) == Worst::Nan);
            }
        });
        has_nan
    }

    fn walk(&self, what: InnerLook) -> InnerWalk<'_> {
        InnerWalk { lines: &self.lines, what }
    }
}

/// Runs the lines that what is looked at depends on.
struct InnerWalk<'a> {
    lines: &'a [InnerLine],
    what: InnerLook,
}

impl InnerWalk<'_> {
    /// Shows each line and the arrays that it takes.
    fn run(
        &self,
        inputs: &[View<'_>],
        scratch: &mut Scratch,
        mut show: impl FnMut(&InnerLine, KnownArrays<'_>),
    ) {
        let mut made: Vec<Option<Tensor>> = Vec::new();
        made.resize_with(self.count(inputs.len()), || None);
        for line in self.lines {
            let known = |value: InnerValue| match value < inputs.len() {
                true => Some(inputs[value]),
                false => made[value - inputs.len()].as_ref().map(Tensor::view),
            };
            show(line, &|value, with| known(value).iter().for_each(with));
            let given: Option<Vec<View<'_>>> = line.ins.iter().map(|&value| known(value)).collect();
            if let Some(given) = given.filter(|_| line.is_needed(self.what)) {
                let outs = line.run(&given, scratch);
                for (value, array) in line.outs.clone().zip(outs) {
                    made[value - inputs.len()] = Some(array);
                }
            }
        }
    }

    /// How many values its lines make.
    fn count(&self, inputs: usize) -> usize {
        self.lines.last().map_or(0, |line| line.outs.end - inputs)
    }
}

/// Hands an array to what looks at it, if it is there.
type KnownArrays<'a> = &'a dyn Fn(InnerValue, &mut dyn FnMut(&View<'_>));

/// What its lines are made of.
pub(super) struct InsideBuilder<'a> {
    pub(super) flat: &'a Flat<'a>,
    /// Selects that fill what lookups were given no valid index for.
    pub(super) fills: &'a BTreeMap<InstrId, InstrId>,
    pub(super) libraries: &'a Libraries,
    /// The launch.
    pub(super) label: &'a Label,
    /// Selects whose condition is the status of a library's function.
    pub(super) statuses: &'a BTreeSet<InstrId>,
}

/// The values of the instructions in one call of a computation.
type InnerFrame = HashMap<InstrId, Vec<InnerValue>>;

/// What an instruction takes.
struct InnerOperands {
    leaves: Vec<ResultLeaf>,
    /// For each operand, its values.
    each: Vec<Vec<InnerValue>>,
}

/// Lines as they are added.
struct InnerLines {
    all: Vec<InnerLine>,
    /// For each value, whether it is computed from constants alone.
    are_constant: Vec<bool>,
    has_marks: bool,
}

impl InsideBuilder<'_> {
    /// The lines of instructions, the last of which is the launch's result, given where each array
    /// that it takes comes from; `None` if they are one, or cannot be run apart.
    pub(super) fn build(&self, instrs: &[InstrId], leaves: &[ResultLeaf]) -> Option<Inside> {
        let is_fusion = |&instr: &InstrId| self.flat.opcode(instr) == Opcode::Fusion;
        if instrs.len() == 1 && !instrs.iter().any(is_fusion) {
            return None;
        }
        let are_constant = self.label.ins.iter().map(|input| input.is_constant).collect();
        let mut lines = InnerLines { all: Vec::new(), are_constant, has_marks: false };
        let mut frame = InnerFrame::new();
        for (value, leaf) in leaves.iter().enumerate() {
            let known = frame.entry(leaf.instr).or_default();
            // Those that the launch does not take are never read.
            known.resize(known.len().max(leaf.index + 1), usize::MAX);
            known[leaf.index] = value;
        }
        for &instr in instrs {
            self.add(instr, &mut frame, &mut lines)?;
        }
        let outputs = frame.remove(instrs.last()?)?;
        let mut inside = Inside {
            has_indices: lines.all.iter().any(|line| !line.label.bounds.is_empty()),
            has_comparisons: lines.all.iter().any(|line| line.label.compares || line.label.asks),
            has_masks: lines.all.iter().any(|line| line.label.mask.is_some()),
            has_marks: lines.has_marks,
            lines: lines.all,
            outputs,
        };
        inside.mark_dead();
        inside.mark_needed(InnerLook::Indices);
        inside.mark_needed(InnerLook::Comparisons);
        Some(inside)
    }

    fn add(&self, instr: InstrId, frame: &mut InnerFrame, lines: &mut InnerLines) -> Option<()> {
        use Opcode::*;
        let module = self.flat.module;
        let opcode = module.instruction(instr).opcode;
        if opcode == Parameter {
            return frame.contains_key(&instr).then_some(());
        }
        let operands = self.operands(instr, frame)?;
        let values = match opcode {
            Fusion | Call => {
                let &[callee] = module.called(instr) else { return None };
                let parameters = module.parameters(callee).into_iter().flatten();
                let mut inner: InnerFrame = parameters.zip(operands.each).collect();
                for instr in module.instructions(callee) {
                    self.add(instr, &mut inner, lines)?;
                }
                inner.remove(&module.root(callee))?
            }
            Tuple => operands.each.concat(),
            GetTupleElement => {
                let [operand] = module.operands(instr) else { return None };
                let parts = module.operand_shape(operand).parts();
                let index = module.tuple_index(instr)? as usize;
                let first = parts.get(..index)?.iter().map(|part| part.leaf_count()).sum::<usize>();
                operands.each.concat().get(first..first + parts.get(index)?.leaf_count())?.to_vec()
            }
            // They have state, depend on the rank, or run computations.
            CustomCall | Rng | RngGetAndUpdateState | PartitionId | ReplicaId | While
            | Conditional => return None,
            _ => self.line(instr, &operands, lines)?,
        };
        frame.insert(instr, values);
        Some(())
    }

    fn operands(&self, instr: InstrId, frame: &InnerFrame) -> Option<InnerOperands> {
        let mut found = InnerOperands { leaves: Vec::new(), each: Vec::new() };
        for operand in self.flat.module.operands(instr) {
            let range = operand_leaves(self.flat.module, operand);
            let leaf = |index| ResultLeaf { instr: operand.of, index };
            found.leaves.extend(range.clone().map(leaf));
            found.each.push(frame.get(&operand.of)?.get(range)?.to_vec());
        }
        Some(found)
    }

    /// Adds an instruction; gives its values.
    fn line(
        &self,
        instr: InstrId,
        operands: &InnerOperands,
        lines: &mut InnerLines,
    ) -> Option<Vec<InnerValue>> {
        let module = self.flat.module;
        let ins = operands.each.concat();
        let kernel = Kernel::compile_with(module, instr, self.libraries).ok()?;
        let is_constant = depends_on_operands_alone(module.instruction(instr).opcode)
            && ins.iter().all(|&value| lines.are_constant[value]);
        let made = kernel.outputs().iter();
        let taken = kernel.inputs().iter().zip(&operands.leaves).zip(&ins);
        let label = Label {
            ins: taken
                .map(|((kind, leaf), &value)| Argument {
                    is_constant: lines.are_constant[value],
                    ..self.argument(leaf.instr, kind)
                })
                .collect(),
            outs: made.map(|kind| Argument { is_constant, ..self.argument(instr, kind) }).collect(),
            handling: Handling::of(module, instr, self.statuses),
            source: module.place(instr).or_else(|| self.label.source.clone()),
            ..self.label.clone()
        };
        let label = self.looked_at(instr, &operands.leaves, label);
        let first = lines.are_constant.len();
        let outs = first..first + kernel.outputs().len();
        lines.are_constant.resize(outs.end, is_constant);
        lines.has_marks |= has_marks(module, instr);
        let (dead, for_indices, for_comparisons) = (Vec::new(), false, false);
        let made = outs.clone();
        lines.all.push(InnerLine {
            kernel,
            label,
            ins,
            outs: made,
            dead,
            for_indices,
            for_comparisons,
        });
        Some(outs.collect())
    }

    /// The label of an instruction, with what checks look at.
    pub(super) fn looked_at(&self, instr: InstrId, leaves: &[ResultLeaf], label: Label) -> Label {
        let module = self.flat.module;
        let lookup = self.fills.get(&instr);
        Label {
            bounds: bounds(self.flat, instr, leaves),
            mask: self.flat.masked_log(instr),
            compares: compares(module, instr),
            asks: asks(module, instr),
            selects: module.instruction(instr).opcode == Opcode::Select,
            fills: lookup.map(|&lookup| module.instruction_name(lookup).to_owned()),
            ..label
        }
    }

    /// An array of an instruction, under the name of the launch's result.
    fn argument(&self, instr: InstrId, kind: &ArrayType) -> Argument {
        Argument {
            buffer: self.label.outs.first().map_or(String::new(), |out| out.buffer.clone()),
            value: self.flat.module.instruction_name(instr).to_owned(),
            kind: kind.clone(),
            is_constant: false,
        }
    }
}

impl Inside {
    fn mark_dead(&mut self) {
        let mut seen: BTreeSet<InnerValue> = self.outputs.iter().copied().collect();
        for line in self.lines.iter_mut().rev() {
            let all = line.ins.iter().copied().chain(line.outs.clone());
            line.dead = all.filter(|&value| seen.insert(value)).collect();
        }
    }

    fn mark_needed(&mut self, what: InnerLook) {
        let mut needed = BTreeSet::new();
        for line in self.lines.iter_mut().rev() {
            let is_needed = line.outs.clone().any(|value| needed.contains(&value));
            if is_needed {
                needed.extend(&line.ins);
            }
            needed.extend(line.looked_at(what));
            match what {
                InnerLook::Indices => line.for_indices = is_needed,
                InnerLook::Comparisons => line.for_comparisons = is_needed,
            }
        }
    }
}
