//! What the runtime executes: a linear program of steps for every computation that runs.
//!
//! A [`Program`] is built from a module and an order of each computation ([`build`]). It names the
//! memory of every value ([`crate::Storage`]: the graph's own buffers), and says when it is
//! allocated, written, read and freed. Loops, calls and branches run other plans; a caller takes
//! over its callees' results, so that the maximum of requested bytes, step by step, is the peak of
//! the entry's graph ([`Program::peak`]).
//!
//! Invariants: a slot is allocated once and freed at most once in a run of a plan; between a start
//! and its wait nothing that it reads or writes is freed; every start has a wait. So memory freed
//! in step order may be reused by any later step, if a start waits for all steps before it and a
//! step after a wait for the start's end.
//!
//! | part | what it does |
//! | --- | --- |
//! | `build` | a module and orders to a program |
//! | `lives` | which memory must be allocated and freed at which step |
//! | `calls` | the parameters and results of callees |
//! | `fuse` | fewer kernels: launches that join their readers |
//! | `peak` | the peak of requested memory |
//! | `text` | the program for people, line by line, and hashes of the lines |

mod build;
mod calls;
mod fuse;
mod lives;
mod peak;
mod text;

pub use build::{PlanError, build};
pub use fuse::{fuse, only_finds};
pub use lives::Check;
pub use text::{PlanLine, Text, hash_of};

use crate::ids::{CommId, ComputationId, InstrId, PlanId, SlotId};
use crate::{Module, ReplicaGroups, Storage};
use halflap::ids::{IdVec, StreamId};

/// Everything that a rank does in a step of training or inference. The same on all ranks.
#[derive(Clone, Debug)]
pub struct Program {
    /// A plan for each computation that runs, callees first.
    pub plans: IdVec<PlanId, Plan>,
    /// The one that runs first.
    pub entry: PlanId,
    /// Communicating groups: one for all collectives with the same sets.
    pub comms: IdVec<CommId, Comm>,
    /// The streams that overlap compute, each in order.
    pub streams: IdVec<StreamId, Stream>,
}

/// Sets of devices that communicate among themselves, and the stream that they do it on.
#[derive(Clone, Debug)]
pub struct Comm {
    /// The sets, each in the order of the data.
    pub sets: Vec<Vec<u32>>,
    /// The stream of its collectives, shared with groups that have more than one device in common.
    pub stream: StreamId,
}

impl Comm {
    /// For display: `{0-7}`.
    pub fn describe(&self) -> String {
        ReplicaGroups { groups: self.sets.clone(), pairs: Vec::new() }.describe()
    }

    /// The set that a device is in, and its place there.
    pub fn set_of(&self, device: u32) -> Option<(usize, usize)> {
        let place = |set: &Vec<u32>| set.iter().position(|&other| other == device);
        self.sets.iter().enumerate().find_map(|(index, set)| Some((index, place(set)?)))
    }
}

/// A stream that overlaps compute, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The devices that communicate on it, or what is transferred.
    pub name: String,
}

/// The plan of one computation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The computation.
    pub computation: ComputationId,
    /// Where its values are.
    pub storage: Storage,
    /// The slots of its parameters, leaf by leaf.
    pub parameters: Vec<SlotId>,
    /// The slots of its result, leaf by leaf.
    pub results: Vec<SlotId>,
    /// The steps, in order.
    pub steps: Vec<PlanStep>,
    /// The expected allocations and frees, one check after each node that does something, in order.
    pub checks: Vec<Check>,
}

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanStep {
    /// Allocates memory.
    Alloc(SlotId),
    /// Frees memory.
    Free(SlotId),
    /// An instruction, or several as one kernel, is computed on the compute stream.
    Launch(PlannedWork),
    /// Starts an operation on another stream, once everything before it has been computed.
    Start {
        /// Its inputs and outputs.
        work: PlannedWork,
        /// Which stream.
        stream: StreamId,
        /// The participants; none, if it is a transfer.
        comm: Option<CommId>,
    },
    /// Blocks the compute stream until the operation started by that step has ended.
    Wait(usize),
    /// A computation runs.
    Call(PlannedCall),
    /// Runs a computation while another one returns true.
    Loop(Loop),
    /// One of several computations runs.
    Branch {
        /// The conditional.
        instr: InstrId,
        /// The slot of the index, or the boolean, that selects the branch.
        selector: SlotId,
        /// The computations.
        branches: Vec<PlannedCall>,
    },
}

/// An instruction, or several that are one kernel, with their memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedWork {
    /// The instruction whose value it computes; of a start of the generic form, the start.
    pub instr: InstrId,
    /// Intermediate instructions, if there are any.
    pub fused: Option<Fused>,
    /// What it reads, each once.
    pub reads: Vec<SlotId>,
    /// What it writes.
    pub writes: Vec<SlotId>,
}

/// Intermediate instructions of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fused {
    /// The kernel's name.
    pub name: String,
    /// The instructions, in a sequence in which they can run.
    pub with: Vec<InstrId>,
}

impl PlannedWork {
    /// All instructions that are computed, in a sequence in which they can run.
    pub fn instrs(&self) -> Vec<InstrId> {
        let with = self.fused.iter().flat_map(|fused| &fused.with).copied();
        let mut instrs: Vec<InstrId> = with.chain([self.instr]).collect();
        instrs.sort_unstable();
        instrs
    }

    /// The kernel's name, or that of the one instruction.
    pub fn name<'a>(&'a self, module: &'a Module) -> &'a str {
        self.fused.as_ref().map_or(module.instruction_name(self.instr), |fused| &fused.name)
    }
}

/// A computation that is run once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCall {
    /// Its caller.
    pub instr: InstrId,
    /// What is run.
    pub plan: PlanId,
    /// The memory of its parameters, in the caller's slots.
    pub arguments: Vec<SlotId>,
    /// The caller's memory that is allocated with it, to be copied to.
    pub allocated: Vec<SlotId>,
    /// The caller's memory that it writes results to directly: its slot, the caller's.
    pub lent: Vec<(SlotId, SlotId)>,
    /// Memory that it allocates and the caller takes over: its slot, the caller's.
    pub adopted: Vec<(SlotId, SlotId)>,
    /// What is copied at its end: from its slot to the caller's.
    pub copied: Vec<(SlotId, SlotId)>,
}

/// A computation that is run again and again on the same memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The loop.
    pub instr: InstrId,
    /// Whether to go on.
    pub condition: PlanId,
    /// What is repeated.
    pub body: PlanId,
    /// The memory of what it works on, leaf by leaf.
    pub state: Vec<SlotId>,
    /// What is copied before it begins: from where, to where.
    pub copied: Vec<(SlotId, SlotId)>,
    /// What is copied after each run of the body, all at once: from one of its slots to another.
    pub moved: Vec<(SlotId, SlotId)>,
}

impl PlannedCall {
    /// All of the caller's memory that it uses.
    fn slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        let pairs = self.lent.iter().chain(&self.adopted).chain(&self.copied).map(|&(_, own)| own);
        self.arguments.iter().chain(&self.allocated).copied().chain(pairs)
    }
}

impl Loop {
    /// All of the caller's memory that it uses.
    fn slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.state.iter().copied().chain(self.copied.iter().flat_map(|&(from, to)| [from, to]))
    }
}

impl Program {
    /// How many steps there are in all plans.
    pub fn step_count(&self) -> usize {
        self.plans.iter().map(|(_, plan)| plan.steps.len()).sum()
    }
}
