//! What a prepared computation is: its steps as actions, with kernels and slots.

use halflap::ids::{IdVec, StreamId};
use halflap_hlo::ids::{PlanId, SlotId};
use halflap_hlo::plan::{Check, Loop, PlannedCall};

use super::counter::LoopCounter;
use super::layout::SlotContent;
use crate::comm::CollectiveSpec;
use crate::kernel::{ArrayType, Kernel};
use crate::tensor::Tensor;

/// A kernel and its memory: the slot of each input and output.
pub(crate) struct KernelLaunch {
    pub(crate) kernel: Kernel,
    pub(crate) ins: Vec<SlotId>,
    pub(crate) outs: Vec<SlotId>,
    /// For each input, whether it must be saved first, because an output overwrites it.
    pub(crate) aside: Vec<bool>,
    /// Whether it takes less time than waking a thread.
    pub(crate) is_short: bool,
    /// Whether it takes so little that finding its arrays would count.
    pub(crate) is_brief: bool,
}

/// A kernel that works on no more elements is short.
const SHORT: usize = 8 * 1024;
/// A kernel whose arrays have no more bytes is brief, whatever it does with them; or one that does
/// little with so many elements.
const BRIEF: usize = 4 * 1024;

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
    /// A send or a recv, and the slots of its data.
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
        counter: Option<LoopCounter>,
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
    /// Whether it can be repeated without being issued again: it, and what it calls, waits for all
    /// that it starts, and needs the same memory whichever branch it takes.
    pub(crate) is_repeatable: bool,
    /// Whether it, or what it calls, runs anything on other streams than that of compute.
    pub(crate) uses_streams: bool,
}

impl PlanReady {
    /// The label of a collective's wait, if nothing runs between both that is worth a hand-over to
    /// another thread.
    pub(crate) fn awaited_at_once(&self, step: usize) -> Option<u32> {
        let is_work = |action: &&Action| match action {
            Action::Alloc { .. } | Action::Free { .. } => false,
            Action::Launch { launch, casts, .. } => !casts.is_empty() || !launch.is_short,
            _ => true,
        };
        match (&self.actions[step], self.actions[step + 1..].iter().find(is_work)) {
            (Action::Collective { .. }, Some(Action::Wait { label, start })) if *start == step => {
                Some(*label)
            }
            _ => None,
        }
    }
}

/// A node of a computation, for display.
pub(crate) struct NodeLabel {
    pub(crate) name: String,
    pub(crate) source: Option<String>,
}

impl KernelLaunch {
    pub(super) fn new(kernel: Kernel, ins: Vec<SlotId>, outs: Vec<SlotId>) -> KernelLaunch {
        let shares = |input: usize| {
            let here = |(output, slot): (usize, &SlotId)| {
                *slot == ins[input] && !kernel.can_share(output, input)
            };
            outs.iter().enumerate().any(here)
        };
        let aside: Vec<bool> = (0..ins.len()).map(shares).collect();
        let mut written = outs.iter().zip(kernel.outputs()).filter(|(slot, _)| !ins.contains(slot));
        let is_short = !aside.contains(&true)
            && kernel.elements().is_some_and(|elements| elements <= SHORT)
            && written.all(|(_, kind)| kind.bytes() <= SHORT * 4);
        let bytes = |kinds: &[ArrayType]| kinds.iter().map(ArrayType::bytes).sum::<usize>();
        let has_few = kernel.elements().is_some_and(|elements| elements <= BRIEF);
        let is_brief = is_short && has_few
            || !aside.contains(&true) && bytes(kernel.inputs()) + bytes(kernel.outputs()) <= BRIEF;
        KernelLaunch { kernel, ins, outs, aside, is_short, is_brief }
    }
}

/// Whether a plan uses other streams than that of compute, given whether its callees do.
pub(super) fn uses_streams(plan: &PlanReady, plans: &IdVec<PlanId, PlanReady>) -> bool {
    plan.actions.iter().any(|action| match action {
        Action::Collective { .. } | Action::Transfer { .. } | Action::Message { .. } => true,
        Action::Call { called, .. } => plans[called.call.plan].uses_streams,
        Action::Loop { repeat, .. } => {
            plans[repeat.condition].uses_streams || plans[repeat.body].uses_streams
        }
        Action::Branch { branches, .. } => {
            branches.iter().any(|branch| plans[branch.call.plan].uses_streams)
        }
        _ => false,
    })
}

/// Whether a plan can be repeated without being issued again, given whether its callees can.
pub(super) fn is_repeatable(plan: &PlanReady, plans: &IdVec<PlanId, PlanReady>) -> bool {
    let is_one = |call: &PlannedCall| plans[call.plan].is_repeatable;
    let waits = |step: usize| {
        let is_wait =
            |action: &Action| matches!(action, Action::Wait { start, .. } if *start == step);
        plan.actions[step..].iter().any(is_wait)
    };
    plan.actions.iter().enumerate().all(|(step, action)| match action {
        Action::Alloc { .. } | Action::Free { .. } | Action::Launch { .. } => true,
        Action::Collective { .. } | Action::Transfer { .. } | Action::Message { .. } => waits(step),
        Action::Wait { start, .. } => *start < step,
        Action::Call { called, .. } => is_one(&called.call),
        Action::Loop { repeat, .. } => is_one_loop(repeat, plans),
        Action::Branch { branches, .. } => {
            branches.iter().all(|branch| is_one(&branch.call))
                && have_same_room(plan, branches, plans)
        }
    })
}

fn is_one_loop(repeat: &Loop, plans: &IdVec<PlanId, PlanReady>) -> bool {
    plans[repeat.condition].is_repeatable && plans[repeat.body].is_repeatable
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
