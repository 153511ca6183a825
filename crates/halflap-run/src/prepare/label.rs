//! Labels of kernels, collectives and their arrays: names, types and shares of the time.

use std::sync::Arc;

use halflap::units::Bytes;
use halflap_hlo::ids::{InstrId, PlanId, SlotId};
use halflap_hlo::plan::{Plan, PlannedWork, only_finds};
use halflap_hlo::{Opcode, Shape};

use super::bounds::Bounds;
use super::constants::Handling;
use super::inside::{Inside, InsideBuilder};
use super::launch::PreparedLaunch;
use super::masks::MaskOrigin;
use super::{Planned, Preparer};
use crate::comm::{CollectiveSpec, MessageSpec};
use crate::failure::Stuck;
use crate::kernel::{ArrayType, ResultLeaf};

/// The subject of a span or a status.
#[derive(Clone, Debug)]
pub struct Label {
    /// The node's name in the graph and in profiles: for a collective, that of its start.
    pub name: String,
    /// What it is.
    pub kind: LabelKind,
    /// The computation, and the step in it.
    pub place: (String, usize),
    /// The same as ids.
    pub(crate) at: (PlanId, usize),
    /// Its source line in the user's program, if the module has it.
    pub source: Option<String>,
    /// The user's own names around it, if the module has them: `layers_3.attention`.
    pub scope: String,
    /// The argument that a collective or its wait is about, as the user names it.
    pub argument: String,
    /// The arrays that it takes.
    pub ins: Vec<Argument>,
    /// Its outputs.
    pub outs: Vec<Argument>,
    /// The participants of a collective.
    pub among: String,
    /// For a kernel that computes several instructions: their names, and their shares of its time.
    pub shares: Vec<(String, f64)>,
    /// The function that a custom call calls.
    pub target: Option<String>,
    /// The program's own collective, to report missing ranks.
    pub(crate) collective: Option<CollectiveSpec>,
    /// The program's own message.
    pub(crate) message: Option<MessageSpec>,
    /// The indices that it takes, which may be out of range.
    pub(crate) bounds: Vec<Bounds>,
    /// What becomes of its inputs' elements.
    pub(crate) handling: Handling,
    /// For the logarithm of a mask, why it is one, if checks look inside.
    pub(crate) mask: Option<MaskOrigin>,
    /// For a `select` that fills what a lookup was given no valid index for: the lookup.
    pub(crate) fills: Option<String>,
    /// Whether it compares floating-point numbers, if checks look inside.
    pub(crate) compares: bool,
    /// Whether it asks which numbers are NaN, if checks look inside.
    pub(crate) asks: bool,
    /// Whether it is a `select`, if checks look inside.
    pub(crate) selects: bool,
    /// For a fusion, its instructions, if checks look into it.
    pub(crate) inside: Option<Arc<Inside>>,
}

impl Label {
    /// The bytes of a collective: the larger of what a rank sends and receives.
    pub fn bytes(&self) -> usize {
        self.collective.as_ref().map_or(0, |collective| collective.bytes)
    }

    /// The report that it hangs on a rank.
    pub(crate) fn stuck(&self, rank: usize) -> Stuck {
        let Label { name, target, source, place, .. } = self;
        let (target, source) = (target.clone(), source.clone());
        let message = self.message.as_ref().map(|message| message.describe(rank));
        Stuck { rank, kernel: name.clone(), target, source, place: place.clone(), message }
    }

    /// Which of a collective's sets of ranks a rank is in.
    pub fn set_of(&self, rank: usize) -> Option<usize> {
        let (set, _) = self.collective.as_ref()?.set_of(u32::try_from(rank).ok()?)?;
        Some(set)
    }
}

/// An input or output of a kernel or a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The memory that it is in: the name of the slot.
    pub buffer: String,
    /// The value: the name of its instruction, with the element of a tuple (`while.1{2}`).
    pub value: String,
    /// What is in it.
    pub kind: ArrayType,
    /// Whether it is computed from constants alone.
    pub is_constant: bool,
}

/// The kind of a timed task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LabelKind {
    Kernel,
    Collective,
    Transfer,
    Wait,
    Copy,
    /// Kernels of a loop that are not recorded one by one, and copies of what it changes.
    Loop,
}

/// The purpose of a task.
#[derive(Clone, Debug)]
pub(crate) struct IssuedTask {
    pub(crate) label: u32,
    /// Which of all tasks of the rank it is, in the order of the plan. If two ranks diverge between
    /// collectives, all tasks of one before a collective still have lower numbers than those of the
    /// other after it.
    pub(crate) number: u64,
    /// The same, counted on this rank alone.
    pub(crate) count: u64,
    /// The iteration of each enclosing loop, the outermost first. Empty if not needed.
    pub(crate) scope: Option<Arc<[u32]>>,
}

impl Preparer<'_> {
    pub(super) fn label(&mut self, label: Label) -> u32 {
        self.labels.push(label);
        self.labels.len() as u32 - 1
    }

    /// The name of a step's instruction.
    pub(super) fn named(&self, instr: InstrId, kind: LabelKind, of: Planned<'_>) -> Label {
        let computation = self.module.computation_name(of.plan.computation).to_owned();
        Label {
            name: self.module.instruction_name(instr).to_owned(),
            kind,
            place: (computation, of.place),
            at: (of.id, of.place),
            source: self.module.place(instr),
            scope: self.module.scope(instr),
            argument: self.module.argument_sent(instr),
            ins: Vec::new(),
            outs: Vec::new(),
            among: String::new(),
            shares: Vec::new(),
            target: self.target(instr),
            collective: None,
            message: None,
            bounds: Vec::new(),
            handling: Handling::of(self.module, instr, &self.statuses),
            mask: None,
            fills: None,
            compares: false,
            asks: false,
            selects: false,
            inside: None,
        }
    }

    fn target(&self, instr: InstrId) -> Option<String> {
        let is_custom = self.module.instruction(instr).opcode == Opcode::CustomCall;
        let target = self.module.attribute(instr, "custom_call_target").filter(|_| is_custom)?;
        Some(target.trim_matches('"').to_owned())
    }

    /// The name of a kernel, and its instructions' shares of the time, if it has several.
    pub(super) fn kernel(&self, work: &PlannedWork, of: Planned<'_>) -> Label {
        let label = self.named(work.instr, LabelKind::Kernel, of);
        match work.fused {
            Some(_) => {
                let target = work.instrs().into_iter().find_map(|instr| self.target(instr));
                let name = work.name(self.module).to_owned();
                Label { name, target, shares: self.shares(work), ..label }
            }
            None => label,
        }
    }

    /// Each instruction's share of a kernel's time: in proportion to the bytes that it would read
    /// and write as its own kernel. One that several kernels compute gets none: its time would be
    /// taken for that of a single kernel.
    fn shares(&self, work: &PlannedWork) -> Vec<(String, f64)> {
        let module = self.module;
        let size = |shape: &Shape| {
            shape.array().map_or(Bytes::ZERO, |array| array.size(&module.layout(array)))
        };
        let bytes = |instr: InstrId| {
            let operands =
                module.operands(instr).iter().map(|operand| module.operand_shape(operand));
            let all: Bytes = operands.chain([&module.instruction(instr).shape]).map(size).sum();
            all.0 as f64
        };
        let is_own = |instr: InstrId| {
            !only_finds(module.instruction(instr).opcode) && !self.repeated.contains(&instr)
        };
        let share = |instr: InstrId| match instr == work.instr || is_own(instr) {
            true => (instr, bytes(instr).max(1.0)),
            false => (instr, 0.0),
        };
        let each: Vec<(InstrId, f64)> = work.instrs().into_iter().map(share).collect();
        let all: f64 = each.iter().map(|(_, bytes)| bytes).sum();
        each.into_iter()
            .map(|(instr, bytes)| (module.instruction_name(instr).to_owned(), bytes / all))
            .collect()
    }

    /// A label of what is only passed on, or waited for.
    pub(super) fn plain(&mut self, instr: InstrId, kind: LabelKind, of: Planned<'_>) -> u32 {
        let label = self.named(instr, kind, of);
        self.label(label)
    }

    /// A label of a kernel, with its arrays.
    pub(super) fn launched(&mut self, label: Label, plan: &Plan, made: &PreparedLaunch) -> u32 {
        let PreparedLaunch { launch, leaves, instr, instrs } = made;
        let ins = self
            .made_by(leaves.iter().copied(), arguments(plan, &launch.ins, launch.kernel.inputs()));
        let made = (0..).map(|index| ResultLeaf { instr: *instr, index });
        let outs = self.made_by(made, arguments(plan, &launch.outs, launch.kernel.outputs()));
        let label = Label { ins, outs, ..label };
        if !self.looks_inside {
            return self.label(label);
        }
        let builder = self.inside(&label);
        let inside = builder.build(instrs, leaves).map(Arc::new);
        let label = Label { inside, ..builder.looked_at(*instr, leaves, label.clone()) };
        self.label(label)
    }

    fn inside<'a>(&'a self, label: &'a Label) -> InsideBuilder<'a> {
        let Preparer { flat, fills, libraries, statuses, .. } = self;
        InsideBuilder { flat, fills, libraries, label, statuses }
    }

    /// Arrays, once the producer of each is known.
    pub(super) fn made_by(
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
}

/// Arrays in slots.
pub(super) fn arguments(plan: &Plan, slots: &[SlotId], kinds: &[ArrayType]) -> Vec<Argument> {
    let name = |slot: SlotId| plan.storage.slots[slot].name.clone();
    let argument = |(&slot, kind): (&SlotId, &ArrayType)| Argument {
        buffer: name(slot),
        value: String::new(),
        kind: kind.clone(),
        is_constant: false,
    };
    slots.iter().zip(kinds).map(argument).collect()
}
