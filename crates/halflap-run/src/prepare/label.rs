//! What kernels, collectives and their arrays are called.

use std::sync::Arc;

use halflap_hlo::ids::PlanId;

use crate::comm::{CollectiveSpec, MessageSpec};
use crate::failure::Stuck;
use crate::kernel::ArrayType;

/// The subject of a span or a status.
#[derive(Clone, Debug)]
pub struct Label {
    /// The node's name in the graph and in profiles: of a collective, that of its start.
    pub name: String,
    /// What it is.
    pub kind: LabelKind,
    /// The computation, and the step in it.
    pub place: (String, usize),
    /// The same as ids.
    pub(crate) at: (PlanId, usize),
    /// Its source line in the user's program, if the module has it.
    pub source: Option<String>,
    /// The arrays that it takes.
    pub ins: Vec<Argument>,
    /// Its outputs.
    pub outs: Vec<Argument>,
    /// The participants of a collective.
    pub among: String,
    /// Of a kernel that computes several instructions: their names, and how much of its time is theirs.
    pub shares: Vec<(String, f64)>,
    /// The function that a custom call calls.
    pub target: Option<String>,
    /// The program's own collective, to report missing ranks.
    pub(crate) collective: Option<CollectiveSpec>,
    /// The program's own message.
    pub(crate) message: Option<MessageSpec>,
    /// The indices that it takes, which HLO moves into the array where they are out of range.
    pub(crate) bounds: Vec<Bounds>,
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
}

/// The index arrays of a launch, and how large each index may be.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Which input.
    pub(crate) input: usize,
    /// How many numbers lie between those of one index vector; 1 for a single number.
    pub(crate) stride: usize,
    /// For each number of a vector, the dimension and the most that it may be.
    pub(crate) most: Vec<(usize, i64)>,
}

/// The purpose of a task.
#[derive(Clone, Debug)]
pub(crate) struct IssuedTask {
    pub(crate) label: u32,
    /// Which of all tasks of the rank it is, in the order of the plan. Of two ranks that diverge
    /// between collectives, all of one's tasks before a collective still have lower numbers than
    /// what the other does after it.
    pub(crate) number: u64,
    /// The same, counted on this rank alone.
    pub(crate) count: u64,
    /// The iteration of each enclosing loop, the outermost first. Empty if not needed.
    pub(crate) scope: Option<Arc<[u32]>>,
}
