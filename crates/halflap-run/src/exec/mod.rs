//! Runs plans as an accelerator does.
//!
//! Each rank has a thread that issues steps, one that computes and one for each communication
//! stream. The issuing thread walks the plan ([`halflap::plan`]) ahead of the others: it allocates
//! memory, queues kernels and collectives with their addresses, and blocks only where control flow
//! depends on data. A collective starts when all compute issued before it is done; whatever comes
//! after its wait runs after it. Requested bytes are counted as steps are issued, so that the peak
//! depends only on the plan.
//!
//! | part | what it does |
//! | --- | --- |
//! | `memory` | the caching allocator |
//! | `stream`, `task` | queues, events, and what runs on them |
//! | `issue` | the walk |
//! | `float` | how a thread rounds, which custom calls must not change |
//! | `turns` | loops that the compute stream repeats on its own |
//! | `session` | all ranks of a process, and their watchdog |
//! | `mpi` | one rank as a separate process |
//! | `report` | the outcome of a run |
//!
//! The first failure of a rank ends all: waiting threads check for it every 20 ms. A kernel cannot
//! be stopped, so a failed run leaves threads that hang; the caller should end the process.

mod float;
mod invariant;
mod issue;
mod memory;
mod mpi;
mod report;
mod session;
mod stream;
mod task;
mod turns;

pub use crate::failure::{Endless, Failure, Finding, RaggedProblem, Stopped, Stuck, WrongWay};
pub use crate::prepare::{Argument, Label, LabelKind, PrepareError, Prepared, fits};
pub use report::{Outcome, RankOutcome, RunLane, RunSpan};
pub use session::{Options, run, run_shown};
