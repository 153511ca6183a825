//! From a program to kernels: all work that can be done before it runs, and why some cannot run.

mod constants;
mod label;
mod layout;

use std::collections::BTreeSet;
use std::sync::Arc;

use halflap::ids::{IdVec, StreamId};
use halflap::units::Bytes;
use halflap_hlo::ids::{CommId, InstrId, PlanId, SlotId};
use halflap_hlo::plan::{
    Check, Loop, Plan, PlanStep, PlannedCall, PlannedWork, Program, Text, only_finds,
};
use halflap_hlo::{
    Devices, Module, Opcode, Shape, SlotOrigin, TypeError, check, deciding_elements, started,
};
use thiserror::Error;

use crate::comm::{CollectiveSpec, MessageSpec};
use crate::kernel::{
    ArrayType, FusedGroup, Gap, Kernel, Libraries, ResultLeaf, Scratch, Unsupported, leaf_kinds,
    made_leaves, operand_leaves,
};
use crate::tensor::Tensor;
use constants::of_constants;
pub use label::{Argument, Label, LabelKind};
pub(crate) use label::{Bounds, IssuedTask};
use layout::{SlotContent, bitcasts, slot_arrays};

/// Why a program cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum PrepareError {
    #[error(transparent)]
    Type(#[from] TypeError),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error("'{instruction}' is given a bitcast to another layout, which is not supported there")]
    Layout { instruction: String },
}

/// A kernel and its memory: the slot of each input and output.
pub(crate) struct KernelLaunch {
    pub(crate) kernel: Kernel,
    pub(crate) ins: Vec<SlotId>,
    pub(crate) outs: Vec<SlotId>,
    /// For each input, whether it must be put aside, because an output is written where it is.
    pub(crate) aside: Vec<bool>,
}

/// A launch, and whose arrays it works on.
struct PreparedLaunch {
    launch: KernelLaunch,
    /// Where each array that it takes comes from.
    leaves: Vec<ResultLeaf>,
    /// The instruction whose value it computes.
    instr: InstrId,
}

/// An array that is read through bitcasts: the kernel that applies them to a slot.
pub(crate) struct Cast {
    pub(crate) kernel: Kernel,
    pub(crate) from: SlotId,
}

/// An array of a slot, as a step reads it.
pub(crate) enum Read {
    Slot(SlotId),
    Cast(Box<Cast>),
}

/// A call, and the arrays that it is given.
pub(crate) struct Called {
    pub(crate) call: PlannedCall,
    pub(crate) arguments: Vec<Read>,
}

/// The action for a step.
pub(crate) enum Action {
    Alloc {
        slot: SlotId,
    },
    Free {
        slot: SlotId,
        size: i64,
    },
    Launch {
        label: u32,
        launch: KernelLaunch,
        casts: Vec<(usize, Cast)>,
    },
    Collective {
        label: u32,
        stream: StreamId,
        collective: CollectiveSpec,
        ins: Vec<Read>,
        outs: Vec<SlotId>,
    },
    Transfer {
        label: u32,
        stream: StreamId,
        launch: KernelLaunch,
    },
    /// A send or a recv, and where what it carries is.
    Message {
        label: u32,
        stream: StreamId,
        arrays: Vec<SlotId>,
    },
    Wait {
        label: u32,
        start: usize,
    },
    Call {
        label: u32,
        called: Called,
    },
    Loop {
        label: u32,
        repeat: Loop,
        decides: Option<Vec<usize>>,
    },
    Branch {
        label: u32,
        selector: SlotId,
        selector_bytes: usize,
        branches: Vec<Called>,
    },
}

/// A computation that can run.
pub(crate) struct PlanReady {
    pub(crate) actions: Vec<Action>,
    pub(crate) held: IdVec<SlotId, SlotContent>,
    pub(crate) parameters: Vec<SlotId>,
    pub(crate) results: Vec<SlotId>,
    /// Slots of constants, and their values.
    pub(crate) constants: Vec<(SlotId, Tensor)>,
    /// The bytes of all constants.
    pub(crate) constant_size: i64,
    /// The size of each slot.
    pub(crate) sizes: IdVec<SlotId, i64>,
    /// The names of slots.
    pub(crate) names: IdVec<SlotId, String>,
    pub(crate) computation: String,
    /// The expected allocations and frees, and the node after which each is checked.
    pub(crate) checks: Vec<(Check, NodeLabel)>,
    /// Whether nothing in it, or in what it calls, is asynchronous.
    pub(crate) is_synchronous: bool,
}

/// A node of a computation, for people.
pub(crate) struct NodeLabel {
    pub(crate) name: String,
    pub(crate) source: Option<String>,
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
    /// Whether data decide what runs, so that less may be requested.
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

    /// Makes kernels of everything in a program.
    pub fn new(
        module: &Module,
        program: &Program,
        libraries: &Libraries,
    ) -> Result<Prepared, PrepareError> {
        // Kernels rely on shapes.
        check(module)?;
        let constants = of_constants(module);
        let (labels, messages) = (Vec::new(), Vec::new());
        let mut preparer = Preparer { module, program, libraries, constants, labels, messages };
        let mut plans: IdVec<PlanId, PlanReady> = IdVec::default();
        for (id, plan) in program.plans.iter() {
            let mut ready = preparer.plan(id, plan)?;
            ready.is_synchronous = is_synchronous(&ready, &plans);
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
}

impl Prepared {
    /// The collectives that every rank reaches in this many runs; nothing, if that depends on data.
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

/// What runs otherwise than where the module comes from: no host feeds it, or listens.
fn notes(module: &Module, program: &Program) -> Vec<String> {
    let plans = program.plans.iter();
    let instrs = plans.flat_map(|(_, plan)| module.instructions(plan.computation));
    let note = |instr: InstrId| {
        let name = module.instruction_name(instr);
        match module.instruction(instr).opcode {
            Opcode::Infeed => Some(format!("no host feeds infeed '{name}', which gives zeros")),
            Opcode::Outfeed => {
                Some(format!("no host listens to outfeed '{name}': what it takes is dropped"))
            }
            _ => None,
        }
    };
    instrs.filter_map(note).collect()
}

/// Instructions and the bitcasts that they read, in a sequence in which they can run.
fn with_bitcasts(module: &Module, mut instrs: Vec<InstrId>) -> Vec<InstrId> {
    let mut next = 0;
    while let Some(&instr) = instrs.get(next) {
        for operand in module.operands(instr) {
            if module.instruction(operand.of).opcode == Opcode::Bitcast
                && !instrs.contains(&operand.of)
            {
                instrs.push(operand.of);
            }
        }
        next += 1;
    }
    // Instructions of a computation are numbered in such a sequence.
    instrs.sort_unstable();
    instrs
}

/// Whether instructions, the last of which is the result, form one kernel without intermediate
/// values in memory; used by [`halflap_hlo::plan::fuse`].
pub fn fits(module: &Module, instrs: &[InstrId]) -> bool {
    let Some(&last) = instrs.last() else { return false };
    let kernel = |instrs: &[InstrId]| {
        let instrs = with_bitcasts(module, instrs.to_vec());
        let group = FusedGroup { instrs: &instrs, outputs: &[last] };
        Kernel::compile_group(module, group, &Libraries::default())
            .ok()
            .filter(|(kernel, _)| kernel.is_one_stage())
    };
    // Not fused if a multiplication would then have to copy its operands.
    let copies =
        |alone: &Kernel, all: &Kernel| all.scratch_bytes() > alone.scratch_bytes() + REGISTERS;
    let alone = kernel(&[last]);
    alone.zip(kernel(instrs)).is_some_and(|(alone, all)| !copies(&alone.0, &all.0))
}

/// The register limit of a fused kernel.
const REGISTERS: usize = 128 * 1024;

/// The kernel that converts a slot's content to a value; nothing, if it already is the value.
fn cast_of(
    module: &Module,
    libraries: &Libraries,
    leaf: ResultLeaf,
) -> Result<Option<Kernel>, Unsupported> {
    let chain = bitcasts(module, leaf);
    let Some(&last) = chain.last() else { return Ok(None) };
    let group = FusedGroup { instrs: &chain, outputs: &[last] };
    let (kernel, leaves) = Kernel::compile_group(module, group, libraries)?;
    // An instruction that only passes values on may lie between two of them: then it has several
    // inputs.
    match leaves[..] {
        [_] => Ok(Some(kernel)),
        _ => Err(Unsupported::new(module, last, Gap::Operation)),
    }
}

/// Each instruction's share of a kernel's time: in proportion to the bytes that it would read and
/// write as its own kernel. One that only remaps indices gets none, because several kernels may do
/// it.
fn shares(module: &Module, work: &PlannedWork) -> Vec<(String, f64)> {
    let size = |shape: &Shape| {
        shape.array().map_or(Bytes::ZERO, |array| array.size(&module.layout(array)))
    };
    let bytes = |instr: InstrId| {
        let operands = module.operands(instr).iter().map(|operand| module.operand_shape(operand));
        let all: Bytes = operands.chain([&module.instruction(instr).shape]).map(size).sum();
        all.0 as f64
    };
    let counts =
        |instr: InstrId| instr == work.instr || !only_finds(module.instruction(instr).opcode);
    let instrs = work.instrs().into_iter();
    let each: Vec<(InstrId, f64)> = instrs
        .map(|instr| (instr, if counts(instr) { bytes(instr).max(1.0) } else { 0.0 }))
        .collect();
    let all: f64 = each.iter().map(|(_, bytes)| bytes).sum();
    each.into_iter()
        .map(|(instr, bytes)| (module.instruction_name(instr).to_owned(), bytes / all))
        .collect()
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
    program: &'a Program,
    libraries: &'a Libraries,
    /// Values computed from constants alone.
    constants: BTreeSet<InstrId>,
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
            is_synchronous: false,
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

    fn label(&mut self, label: Label) -> u32 {
        self.labels.push(label);
        self.labels.len() as u32 - 1
    }

    /// The name of a step's instruction.
    fn named(&self, instr: InstrId, kind: LabelKind, of: Planned<'_>) -> Label {
        let computation = self.module.computation_name(of.plan.computation).to_owned();
        Label {
            name: self.module.instruction_name(instr).to_owned(),
            kind,
            place: (computation, of.place),
            at: (of.id, of.place),
            source: self.module.place(instr),
            ins: Vec::new(),
            outs: Vec::new(),
            among: String::new(),
            shares: Vec::new(),
            target: self.target(instr),
            collective: None,
            message: None,
            bounds: Vec::new(),
        }
    }

    fn target(&self, instr: InstrId) -> Option<String> {
        let is_custom = self.module.instruction(instr).opcode == Opcode::CustomCall;
        let target = self.module.attribute(instr, "custom_call_target").filter(|_| is_custom)?;
        Some(target.trim_matches('"').to_owned())
    }

    /// The name of a kernel, and its instructions' shares of the time, if it has several.
    fn kernel(&self, work: &PlannedWork, of: Planned<'_>) -> Label {
        let label = self.named(work.instr, LabelKind::Kernel, of);
        match work.fused {
            Some(_) => {
                let target = work.instrs().into_iter().find_map(|instr| self.target(instr));
                let name = work.name(self.module).to_owned();
                Label { name, target, shares: shares(self.module, work), ..label }
            }
            None => label,
        }
    }

    /// A label of what is only passed on, or waited for.
    fn plain(&mut self, instr: InstrId, kind: LabelKind, of: Planned<'_>) -> u32 {
        let label = self.named(instr, kind, of);
        self.label(label)
    }

    /// A label of a kernel, with its arrays.
    fn launched(&mut self, label: Label, plan: &Plan, made: &PreparedLaunch) -> u32 {
        let PreparedLaunch { launch, leaves, instr } = made;
        let ins = self
            .made_by(leaves.iter().copied(), arguments(plan, &launch.ins, launch.kernel.inputs()));
        let made = (0..).map(|index| ResultLeaf { instr: *instr, index });
        let outs = self.made_by(made, arguments(plan, &launch.outs, launch.kernel.outputs()));
        self.label(Label { ins, outs, bounds: bounds(self.module, *instr, leaves), ..label })
    }

    /// Arrays, once the producer of each is known.
    fn made_by(
        &self,
        makers: impl Iterator<Item = ResultLeaf>,
        arrays: Vec<Argument>,
    ) -> Vec<Argument> {
        let known = |(array, leaf): (Argument, ResultLeaf)| {
            let name = self.module.instruction_name(leaf.instr);
            let is_array = self.module.instruction(leaf.instr).shape.array().is_some();
            let value =
                if is_array { name.to_owned() } else { format!("{name}{{{}}}", leaf.index) };
            Argument { is_constant: self.constants.contains(&leaf.instr), value, ..array }
        };
        arrays.into_iter().zip(makers).map(known).collect()
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

    fn operand_leaves_of(&self, instr: InstrId) -> Vec<ResultLeaf> {
        let operands = self.module.operands(instr).iter();
        let leaves = |operand: &halflap_hlo::Operand| {
            let of = operand.of;
            operand_leaves(self.module, operand).map(move |index| ResultLeaf { instr: of, index })
        };
        operands.flat_map(leaves).collect()
    }

    /// The arrays read from slots, through bitcasts if there are any.
    fn reads(&self, plan: &Plan, leaves: &[ResultLeaf]) -> Result<Vec<Read>, PrepareError> {
        let read = |leaf: &ResultLeaf| {
            let from = plan.storage.of(leaf.instr)[leaf.index];
            let cast = cast_of(self.module, self.libraries, *leaf)?;
            Ok(cast.map_or(Read::Slot(from), |kernel| Read::Cast(Box::new(Cast { kernel, from }))))
        };
        leaves.iter().map(read).collect()
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
        PrepareError::Layout { instruction: self.module.instruction_name(instr).to_owned() }
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
        let label = self.plain(repeat.instr, LabelKind::Copy, of);
        let decides = deciding_elements(self.module, repeat.instr);
        Ok(Action::Loop { label, repeat: repeat.clone(), decides })
    }

    /// A kernel: bitcasts that it reads directly are part of it.
    fn launch(
        &self,
        plan: &Plan,
        work: &PlannedWork,
    ) -> Result<(PreparedLaunch, Vec<(usize, Cast)>), PrepareError> {
        let module = self.module;
        let instrs = with_bitcasts(module, work.instrs());
        let group = FusedGroup { instrs: &instrs, outputs: &[work.instr] };
        let (kernel, leaves) = Kernel::compile_group(module, group, self.libraries)?;
        let mut casts = Vec::new();
        for (index, &leaf) in leaves.iter().enumerate() {
            if let Some(kernel) = cast_of(module, self.libraries, leaf)? {
                casts.push((index, Cast { kernel, from: plan.storage.of(leaf.instr)[leaf.index] }));
            }
        }
        let ins = leaves.iter().map(|leaf| plan.storage.of(leaf.instr)[leaf.index]).collect();
        let launch = KernelLaunch::new(kernel, ins, work.writes.clone());
        Ok((PreparedLaunch { launch, leaves, instr: work.instr }, casts))
    }

    /// An asynchronous operation that is not communication: a copy, a slice, or a computation.
    fn transfer(&self, plan: &Plan, work: &PlannedWork) -> Result<PreparedLaunch, PrepareError> {
        let instr = work.instr;
        let leaves = self.operand_leaves_of(work.instr);
        if leaves.iter().any(|&leaf| !bitcasts(self.module, leaf).is_empty()) {
            return Err(self.layout(instr));
        }
        let kernel = Kernel::compile_with(self.module, instr, self.libraries)?;
        let ins: Vec<SlotId> =
            leaves.iter().map(|leaf| plan.storage.of(leaf.instr)[leaf.index]).collect();
        let outs = plan.storage.of(instr)[made_leaves(self.module, instr)].to_vec();
        let is_written = outs.iter().all(|slot| work.writes.contains(slot));
        if kernel.inputs().len() != ins.len() || kernel.outputs().len() != outs.len() || !is_written
        {
            return Err(Unsupported::new(self.module, instr, Gap::Operation).into());
        }
        Ok(PreparedLaunch { launch: KernelLaunch::new(kernel, ins, outs), leaves, instr })
    }

    fn is_message(&self, instr: InstrId) -> bool {
        matches!(self.module.instruction(instr).opcode, Opcode::Send | Opcode::Recv)
    }

    /// One half of a message. A send takes what it carries and a token, a recv gives it.
    fn message(
        &mut self,
        of: Planned<'_>,
        work: &PlannedWork,
        stream: StreamId,
    ) -> Result<Action, PrepareError> {
        let instr = work.instr;
        let is_send = self.module.instruction(instr).opcode == Opcode::Send;
        let leaves = match is_send {
            true => {
                let all = self.operand_leaves_of(instr).into_iter();
                all.filter(|leaf| !self.is_token(leaf)).collect()
            }
            false => {
                let made = made_leaves(self.module, instr);
                made.map(|index| ResultLeaf { instr, index }).collect::<Vec<_>>()
            }
        };
        if leaves.iter().any(|&leaf| !bitcasts(self.module, leaf).is_empty()) {
            return Err(self.layout(instr));
        }
        let slots: Vec<SlotId> =
            leaves.iter().map(|leaf| of.plan.storage.of(leaf.instr)[leaf.index]).collect();
        let kinds = self.kinds(&leaves)?;
        let arrays = self.made_by(leaves.into_iter(), arguments(of.plan, &slots, &kinds));
        let message = MessageSpec::of(self.module, instr, kinds)?;
        self.messages.push((instr, message.clone()));
        let (ins, outs) = if is_send { (arrays, Vec::new()) } else { (Vec::new(), arrays) };
        let label = self.named(instr, LabelKind::Transfer, of);
        let label = self.label(Label { ins, outs, message: Some(message), ..label });
        Ok(Action::Message { label, stream, arrays: slots })
    }

    /// Every half of a message has another one, which carries the same.
    fn check_messages(&self) -> Result<(), Unsupported> {
        for (instr, message) in &self.messages {
            let mut others = self
                .messages
                .iter()
                .filter(|(_, other)| other.channel == message.channel && other.end != message.end);
            let differs = |(_, other): &&(InstrId, MessageSpec)| other.arrays != message.arrays;
            let gap = match (others.clone().next(), others.find(differs)) {
                (None, _) => Gap::NoOtherHalf(message.end.other().name()),
                (_, Some((other, _))) => {
                    Gap::OtherHalf(self.module.instruction_name(*other).to_owned())
                }
                _ => continue,
            };
            return Err(Unsupported::new(self.module, *instr, gap));
        }
        Ok(())
    }

    fn is_token(&self, leaf: &ResultLeaf) -> bool {
        let mut leaves = Vec::new();
        self.module.instruction(leaf.instr).shape.leaves(&mut leaves);
        leaves.get(leaf.index).is_some_and(|shape| shape.array().is_none())
    }

    /// The types of some results.
    fn kinds(&self, leaves: &[ResultLeaf]) -> Result<Vec<ArrayType>, Unsupported> {
        let kind = |leaf: &ResultLeaf| Ok(leaf_kinds(self.module, leaf.instr)?[leaf.index].clone());
        leaves.iter().map(kind).collect()
    }

    fn collective(
        &mut self,
        of: Planned<'_>,
        work: &PlannedWork,
        (stream, comm): (StreamId, CommId),
    ) -> Result<Action, PrepareError> {
        let (inner, _) = started(self.module, work.instr);
        let collective = CollectiveSpec::of(self.module, inner, comm)?;
        let leaves = self.operand_leaves_of(work.instr);
        let ins = self.reads(of.plan, &leaves)?;
        if collective.arrays.len() != work.writes.len() || ins.len() != collective.takes() {
            return Err(Unsupported::new(self.module, inner, Gap::Shape).into());
        }
        let slots: Vec<SlotId> =
            leaves.iter().map(|leaf| of.plan.storage.of(leaf.instr)[leaf.index]).collect();
        let taken = self.kinds(&leaves)?;
        let given = self.given(of.plan, work)?;
        let made = (0..).map(|index| ResultLeaf { instr: work.instr, index });
        let label = Label {
            ins: self.made_by(leaves.iter().copied(), arguments(of.plan, &slots, &taken)),
            outs: self.made_by(made, arguments(of.plan, &work.writes, &given)),
            among: self.program.comms[comm].describe(),
            shares: Vec::new(),
            collective: Some(collective.clone()),
            ..self.named(work.instr, LabelKind::Collective, of)
        };
        let label = self.label(label);
        Ok(Action::Collective { label, stream, collective, ins, outs: work.writes.clone() })
    }

    /// The types of what a start writes.
    fn given(&self, plan: &Plan, work: &PlannedWork) -> Result<Vec<ArrayType>, Unsupported> {
        let kinds = leaf_kinds(self.module, work.instr)?;
        let slots = plan.storage.of(work.instr);
        // A start's inputs come before its outputs.
        let kind_of = |slot: &SlotId| {
            slots.iter().rposition(|other| other == slot).map(|leaf| kinds[leaf].clone())
        };
        let misshapen = || Unsupported::new(self.module, work.instr, Gap::Shape);
        work.writes.iter().map(|slot| kind_of(slot).ok_or_else(misshapen)).collect()
    }
}

/// The indices of a gather, a slice or an update, among what its kernel takes.
fn bounds(module: &Module, instr: InstrId, leaves: &[ResultLeaf]) -> Vec<Bounds> {
    let operands = module.operands(instr);
    let dims = |operand: usize| -> Vec<i64> {
        let array = operands.get(operand).and_then(|operand| module.operand_shape(operand).array());
        array.map_or(Vec::new(), |array| array.dims.iter().map(|&dim| dim as i64).collect())
    };
    let input = |operand: usize| {
        let of = operands.get(operand)?.of;
        leaves.iter().position(|leaf| leaf.instr == of && leaf.index == 0)
    };
    let single = |first: usize, sizes: Vec<i64>| {
        let room = dims(0).into_iter().zip(sizes).map(|(dim, size)| dim - size).enumerate();
        let one = room.filter_map(|(dimension, most)| {
            Some(Bounds {
                input: input(first + dimension)?,
                stride: 1,
                most: vec![(dimension, most)],
            })
        });
        one.collect()
    };
    match module.instruction(instr).opcode {
        Opcode::DynamicSlice => single(1, module.numbers(instr, "dynamic_slice_sizes")),
        Opcode::DynamicUpdateSlice => single(2, dims(1)),
        Opcode::Gather => {
            let (table, sizes) = (dims(0), module.numbers(instr, "slice_sizes"));
            let along =
                module.numbers(instr, "index_vector_dim").first().map_or(0, |&dim| dim as usize);
            let most = |&dim: &i64| {
                let dim = dim as usize;
                Some((dim, table.get(dim)? - sizes.get(dim)?))
            };
            let most: Option<Vec<_>> =
                module.numbers(instr, "start_index_map").iter().map(most).collect();
            let stride = dims(1).iter().skip(along + 1).product::<i64>() as usize;
            let bounds = most.zip(input(1)).map(|(most, input)| Bounds { input, stride, most });
            bounds.into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// Whether nothing in a plan is asynchronous, given those of its callees.
fn is_synchronous(plan: &PlanReady, plans: &IdVec<PlanId, PlanReady>) -> bool {
    let is_one = |call: &PlannedCall| plans[call.plan].is_synchronous;
    plan.actions.iter().all(|action| match action {
        Action::Alloc { .. } | Action::Free { .. } | Action::Launch { .. } => true,
        Action::Collective { .. }
        | Action::Transfer { .. }
        | Action::Message { .. }
        | Action::Wait { .. } => false,
        Action::Call { called, .. } => is_one(&called.call),
        Action::Loop { repeat, .. } => {
            plans[repeat.condition].is_synchronous && plans[repeat.body].is_synchronous
        }
        Action::Branch { branches, .. } => {
            branches.iter().all(|branch| is_one(&branch.call))
                && have_same_room(plan, branches, plans)
        }
    })
}

/// Whether the results that branches leave to their caller need as much memory as it has for them.
fn have_same_room(plan: &PlanReady, branches: &[Called], plans: &IdVec<PlanId, PlanReady>) -> bool {
    let fits = |call: &PlannedCall| {
        let is_alike = |(theirs, own): &(SlotId, SlotId)| {
            plans[call.plan].held[*theirs].bytes == plan.held[*own].bytes
        };
        call.adopted.iter().all(is_alike)
    };
    branches.iter().all(|branch| fits(&branch.call))
}

/// Arrays in slots.
fn arguments(plan: &Plan, slots: &[SlotId], kinds: &[ArrayType]) -> Vec<Argument> {
    let name = |slot: SlotId| plan.storage.slots[slot].name.clone();
    let argument = |(&slot, kind): (&SlotId, &ArrayType)| Argument {
        buffer: name(slot),
        value: String::new(),
        kind: kind.clone(),
        is_constant: false,
    };
    slots.iter().zip(kinds).map(argument).collect()
}

impl KernelLaunch {
    fn new(kernel: Kernel, ins: Vec<SlotId>, outs: Vec<SlotId>) -> KernelLaunch {
        let shares = |input: usize| {
            let here = |(output, slot): (usize, &SlotId)| {
                *slot == ins[input] && !kernel.can_share(output, input)
            };
            outs.iter().enumerate().any(here)
        };
        let aside = (0..ins.len()).map(shares).collect();
        KernelLaunch { kernel, ins, outs, aside }
    }
}

/// A program that ranks share.
pub(crate) type Shared = Arc<Prepared>;
