//! From a program to kernels: all work that can be done before it runs, and why some cannot run.

mod bounds;
mod communicate;
mod compares;
mod constants;
mod counter;
mod fills;
mod flat;
mod inside;
mod label;
mod launch;
mod layout;
mod masks;
mod ready;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use halflap::ids::IdVec;
use halflap::units::Bytes;
use halflap_hlo::ids::{InstrId, PlanId, SlotId};
use halflap_hlo::plan::{Check, Loop, Plan, PlanStep, PlannedCall, Program, Text};
use halflap_hlo::{Devices, Module, Opcode, SlotOrigin, TypeError, check, deciding_elements};
use thiserror::Error;

use crate::comm::MessageSpec;
use crate::kernel::{
    ArrayType, Gap, Kernel, Libraries, ResultLeaf, Scratch, Unsupported, leaf_kinds, operand_leaves,
};
use crate::tensor::Tensor;
pub(crate) use bounds::Bounds;
pub(crate) use constants::Handling;
use constants::{of_constants, of_status};
pub(crate) use counter::LoopCounter;
pub(crate) use fills::FilledLookup;
use flat::Flat;
pub(crate) use inside::{InnerLine, Inside};
pub(crate) use label::IssuedTask;
pub use label::{Argument, Label, LabelKind};
use launch::cast_of;
pub use launch::fits;
use layout::{SlotContent, bitcasts, slot_arrays};
pub(crate) use masks::MaskOrigin;
pub(crate) use ready::{Action, Called, Cast, KernelLaunch, PlanReady, Read};
use ready::{NodeLabel, is_repeatable, uses_streams};

/// Why a program cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum PrepareError {
    #[error(transparent)]
    Type(#[from] TypeError),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

/// A program that can run.
pub struct Prepared {
    pub(crate) plans: IdVec<PlanId, PlanReady>,
    pub(crate) entry: PlanId,
    /// How many communication streams there are.
    pub streams: usize,
    /// The communicating groups.
    pub(crate) comms: Vec<Vec<Vec<u32>>>,
    /// All names.
    pub labels: Vec<Label>,
    /// How many ranks run it.
    pub ranks: usize,
    /// How many partitions a replica has.
    pub(crate) partitions: u32,
    /// The module's name.
    pub module: String,
    /// Each rank's inputs.
    pub inputs: Vec<ArrayType>,
    /// The names of the parameters, leaf by leaf.
    pub input_names: Vec<String>,
    /// Each rank's outputs.
    pub outputs: Vec<ArrayType>,
    pub(crate) output_casts: Vec<Option<Kernel>>,
    /// The lines of the plan, which ranks compare.
    pub text: Text,
    /// What runs otherwise than where the module comes from.
    pub notes: Vec<String>,
    /// The planned peak of requested bytes.
    pub peak: i64,
    /// Whether control flow depends on data, so that less may be requested.
    is_peak_a_bound: bool,
}

impl Prepared {
    /// For how many of the last steps to keep times: up to about a million records.
    pub(crate) fn steps_kept(&self) -> usize {
        const LINES: usize = 1 << 20;
        LINES / self.labels.len().max(1) + 1
    }

    /// Whether this peak of requested bytes is consistent with the plan.
    pub fn is_planned(&self, requested: Bytes) -> bool {
        requested.0 == self.peak || self.is_peak_a_bound && requested.0 < self.peak
    }

    /// Compiles kernels for everything in a program.
    pub fn new(
        module: &Module,
        program: &Program,
        libraries: &Libraries,
    ) -> Result<Prepared, PrepareError> {
        Prepared::compile(module, program, libraries, false)
    }

    /// The same for [`Checks`](crate::check::Checks) that look into fusions, where `looks_inside`.
    pub fn compile(
        module: &Module,
        program: &Program,
        libraries: &Libraries,
        looks_inside: bool,
    ) -> Result<Prepared, PrepareError> {
        // Kernels rely on shapes.
        check(module)?;
        let mut preparer = Preparer {
            module,
            program,
            libraries,
            flat: Flat::new(module),
            fills: BTreeMap::new(),
            constants: of_constants(module),
            statuses: if looks_inside { of_status(module) } else { BTreeSet::new() },
            looks_inside,
            repeated: repeated(program),
            labels: Vec::new(),
            messages: Vec::new(),
        };
        if looks_inside {
            preparer.fills = preparer.flat.fills();
        }
        let mut plans: IdVec<PlanId, PlanReady> = IdVec::default();
        for (id, plan) in program.plans.iter() {
            let mut ready = preparer.plan(id, plan)?;
            ready.is_repeatable = is_repeatable(&ready, &plans);
            ready.uses_streams = uses_streams(&ready, &plans);
            plans.push(ready);
        }
        preparer.check_messages()?;
        let labels = preparer.labels;
        let entry = &program.plans[program.entry];
        let mut inputs = Vec::new();
        for parameter in module.parameters(entry.computation).into_iter().flatten() {
            inputs.extend(leaf_kinds(module, parameter)?);
        }
        let root = module.root(entry.computation);
        let kinds = leaf_kinds(module, root)?;
        let cast = |index: usize| cast_of(module, libraries, ResultLeaf { instr: root, index });
        let output_casts = (0..kinds.len()).map(cast).collect::<Result<Vec<_>, _>>()?;
        let Devices { replicas, partitions } = module.devices();
        let steps = program.plans.iter().flat_map(|(_, plan)| &plan.steps);
        let is_peak_a_bound = steps
            .into_iter()
            .any(|step| matches!(step, PlanStep::Branch { .. } | PlanStep::Loop(_)));
        Ok(Prepared {
            plans,
            entry: program.entry,
            streams: program.streams.len(),
            comms: program.comms.iter().map(|(_, comm)| comm.sets.clone()).collect(),
            labels,
            ranks: (replicas * partitions) as usize,
            partitions,
            module: module.name().to_owned(),
            inputs,
            input_names: entry
                .parameters
                .iter()
                .map(|&slot| entry.storage.slots[slot].name.clone())
                .collect(),
            outputs: kinds,
            output_casts,
            text: Text::of(module, program),
            notes: notes(module, program),
            peak: program.peak().0,
            is_peak_a_bound,
        })
    }

    /// The collectives that every rank reaches in this many runs; `None` if that depends on data.
    pub(crate) fn planned_collectives(&self, runs: usize) -> Option<Vec<String>> {
        let mut names = Vec::new();
        for action in &self.plans[self.entry].actions {
            match action {
                Action::Collective { label, .. } => {
                    names.push(self.labels[*label as usize].name.clone())
                }
                Action::Call { .. } | Action::Loop { .. } | Action::Branch { .. } => return None,
                _ => {}
            }
        }
        Some((0..runs).flat_map(|_| names.clone()).collect())
    }
}

/// What differs from the module's original environment: there is no host for infeeds and outfeeds.
fn notes(module: &Module, program: &Program) -> Vec<String> {
    let plans = program.plans.iter();
    let instrs = plans.flat_map(|(_, plan)| module.instructions(plan.computation));
    let note = |instr: InstrId| {
        let name = module.instruction_name(instr);
        match module.instruction(instr).opcode {
            Opcode::Infeed => Some(format!("infeed '{name}' has no host: it gives zeros")),
            Opcode::Outfeed => Some(format!("outfeed '{name}' has no host: its input is dropped")),
            _ => None,
        }
    };
    instrs.filter_map(note).collect()
}

/// The instructions that more than one launch of a plan computes.
fn repeated(program: &Program) -> BTreeSet<InstrId> {
    let mut seen = BTreeSet::new();
    let steps = program.plans.iter().flat_map(|(_, plan)| &plan.steps);
    let launched = steps.filter_map(|step| match step {
        PlanStep::Launch(work) => Some(work.instrs()),
        _ => None,
    });
    launched.flatten().filter(|&instr| !seen.insert(instr)).collect()
}

/// A step of a plan.
#[derive(Clone, Copy)]
struct Planned<'p> {
    id: PlanId,
    plan: &'p Plan,
    place: usize,
}

struct Preparer<'a> {
    module: &'a Module,
    flat: Flat<'a>,
    /// Selects that fill what lookups were given no valid index for.
    fills: BTreeMap<InstrId, InstrId>,
    program: &'a Program,
    libraries: &'a Libraries,
    /// Values computed from constants alone.
    constants: BTreeSet<InstrId>,
    /// Values computed from what a library's function says of its success.
    statuses: BTreeSet<InstrId>,
    /// Whether instructions of fusions are compiled one by one, too.
    looks_inside: bool,
    /// Instructions that more than one kernel computes.
    repeated: BTreeSet<InstrId>,
    labels: Vec<Label>,
    /// All halves of messages.
    messages: Vec<(InstrId, MessageSpec)>,
}

impl Preparer<'_> {
    fn plan(&mut self, id: PlanId, plan: &Plan) -> Result<PlanReady, PrepareError> {
        let held = slot_arrays(self.module, plan)?;
        let mut constants = Vec::new();
        for instr in self.module.instructions(plan.computation) {
            if self.module.instruction(instr).opcode == Opcode::Constant {
                constants.push((plan.storage.of(instr)[0], self.constant(instr)?));
            }
        }
        let mut actions = Vec::with_capacity(plan.steps.len());
        for place in 0..plan.steps.len() {
            let of = Planned { id, plan, place };
            actions.push(self.action(of, &held)?);
        }
        Ok(PlanReady {
            actions,
            sizes: plan.storage.slots.iter().map(|(_, slot)| slot.size.0).collect(),
            parameters: plan.parameters.clone(),
            results: plan.results.clone(),
            constants,
            constant_size: plan.size_of(SlotOrigin::Constant).0,
            held,
            names: plan.storage.slots.iter().map(|(_, slot)| slot.name.clone()).collect(),
            computation: self.module.computation_name(plan.computation).to_owned(),
            checks: self.checks(plan),
            is_repeatable: false,
            uses_streams: false,
        })
    }

    /// The checks of a plan, each with the kernel that it follows.
    fn checks(&self, plan: &Plan) -> Vec<(Check, NodeLabel)> {
        let mut from = 0;
        let named = |check: &Check| {
            let steps = plan.steps.get(from..check.before).unwrap_or_default();
            from = check.before;
            let launched = steps.iter().find_map(|step| match step {
                PlanStep::Launch(work) if work.instr == check.instr => Some(work.name(self.module)),
                _ => None,
            });
            let name =
                launched.unwrap_or_else(|| self.module.instruction_name(check.instr)).to_owned();
            (check.clone(), NodeLabel { name, source: self.module.place(check.instr) })
        };
        plan.checks.iter().map(named).collect()
    }

    fn constant(&self, instr: InstrId) -> Result<Tensor, Unsupported> {
        let kernel = Kernel::compile_with(self.module, instr, self.libraries)?;
        let kind = kernel.outputs()[0].clone();
        let mut value = Tensor::zeros(kind.dtype, &kind.dims);
        kernel.run(&[], &mut [value.view_mut()], &mut Scratch::default());
        Ok(value)
    }

    fn action(
        &mut self,
        of: Planned<'_>,
        held: &IdVec<SlotId, SlotContent>,
    ) -> Result<Action, PrepareError> {
        let Planned { plan, place, .. } = of;
        let size = |slot: SlotId| plan.storage.slots[slot].size.0;
        Ok(match &plan.steps[place] {
            PlanStep::Alloc(slot) => Action::Alloc { slot: *slot },
            PlanStep::Free(slot) => Action::Free { slot: *slot, size: size(*slot) },
            PlanStep::Launch(work) => {
                let (made, casts) = self.launch(plan, work)?;
                let label = self.launched(self.kernel(work, of), plan, &made);
                Action::Launch { label, launch: made.launch, casts }
            }
            PlanStep::Start { work, stream, comm: Some(comm) } => {
                self.collective(of, work, (*stream, *comm))?
            }
            PlanStep::Start { work, stream, comm: None } if self.is_message(work.instr) => {
                self.message(of, work, *stream)?
            }
            PlanStep::Start { work, stream, comm: None } => {
                let made = self.transfer(plan, work)?;
                let label =
                    self.launched(self.named(work.instr, LabelKind::Transfer, of), plan, &made);
                Action::Transfer { label, stream: *stream, launch: made.launch }
            }
            PlanStep::Wait(start) => {
                let instr = match &plan.steps[*start] {
                    PlanStep::Start { work, .. } => work.instr,
                    _ => self.module.root(plan.computation),
                };
                Action::Wait { label: self.plain(instr, LabelKind::Wait, of), start: *start }
            }
            PlanStep::Call(call) => {
                let label = self.plain(call.instr, LabelKind::Copy, of);
                let arguments = self.arguments(plan, call, self.operand_leaves_of(call.instr))?;
                Action::Call { label, called: Called { call: call.clone(), arguments } }
            }
            PlanStep::Loop(repeat) => self.repeat(of, repeat)?,
            PlanStep::Branch { instr, selector, branches } => {
                let label = self.plain(*instr, LabelKind::Copy, of);
                let mut each = Vec::new();
                for (index, call) in branches.iter().enumerate() {
                    let operand = &self.module.operands(*instr)[index + 1];
                    let range = operand_leaves(self.module, operand);
                    let leaves =
                        range.map(|index| ResultLeaf { instr: operand.of, index }).collect();
                    let arguments = self.arguments(plan, call, leaves)?;
                    each.push(Called { call: call.clone(), arguments });
                }
                let selector_bytes = held[*selector].bytes;
                Action::Branch { label, selector: *selector, selector_bytes, branches: each }
            }
        })
    }

    /// A call's arguments. Values that are passed on must be in the declared slots.
    fn arguments(
        &self,
        plan: &Plan,
        call: &PlannedCall,
        leaves: Vec<ResultLeaf>,
    ) -> Result<Vec<Read>, PrepareError> {
        let reads = self.reads(plan, &leaves)?;
        let callee = &self.program.plans[call.plan];
        self.refuse_results(call.instr, callee)?;
        let passes = |slot: &SlotId| callee.results.contains(slot);
        let is_cast = reads
            .iter()
            .zip(&callee.parameters)
            .any(|(read, slot)| matches!(read, Read::Cast(_)) && passes(slot));
        match is_cast {
            true => Err(self.layout(call.instr)),
            false => Ok(reads),
        }
    }

    fn layout(&self, instr: InstrId) -> PrepareError {
        Unsupported::new(self.module, instr, Gap::Layout).into()
    }

    /// A callee's result must be in its slot unchanged.
    fn refuse_results(&self, instr: InstrId, callee: &Plan) -> Result<(), PrepareError> {
        let root = self.module.root(callee.computation);
        let is_cast = (0..callee.results.len())
            .any(|index| !bitcasts(self.module, ResultLeaf { instr: root, index }).is_empty());
        if is_cast { Err(self.layout(instr)) } else { Ok(()) }
    }

    fn repeat(&mut self, of: Planned<'_>, repeat: &Loop) -> Result<Action, PrepareError> {
        for callee in [repeat.condition, repeat.body] {
            self.refuse_results(repeat.instr, &self.program.plans[callee])?;
        }
        let leaves = self.operand_leaves_of(repeat.instr);
        if leaves.iter().any(|&leaf| !bitcasts(self.module, leaf).is_empty()) {
            return Err(self.layout(repeat.instr));
        }
        let label = self.plain(repeat.instr, LabelKind::Loop, of);
        let decides = deciding_elements(self.module, repeat.instr);
        let counter = LoopCounter::of(&self.flat, repeat.instr);
        Ok(Action::Loop { label, repeat: repeat.clone(), decides, counter })
    }
}

/// A program that ranks share.
pub(crate) type Shared = Arc<Prepared>;
