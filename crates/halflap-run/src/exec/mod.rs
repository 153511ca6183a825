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
//! | `prepare`, `layout` | a program to kernels and addresses of slots; what cannot be run |
//! | `constants` | which arrays are made of constants alone |
//! | `memory` | the caching allocator |
//! | `stream`, `task` | queues, events, and what runs on them |
//! | `issue` | the walk |
//! | `float` | how a thread rounds, which custom calls must not change |
//! | `turns` | loops that the compute stream repeats on its own |
//! | `session` | all ranks of a process, and who watches over them |
//! | `failure`, `report` | how a run ends, and what is known of it |
//!
//! The first failure of a rank ends all: waiting threads check for it every 20 ms. A kernel cannot
//! be stopped, so a failed run leaves threads that hang; the caller should end the process.

mod constants;
pub(crate) mod failure;
mod float;
mod issue;
mod layout;
mod memory;
mod prepare;
mod report;
mod session;
mod stream;
mod task;
mod turns;

pub use failure::{Endless, Failure, Finding, Stopped, Stuck};
pub(crate) use failure::{Fate, LOOK};
pub(crate) use issue::Rank;
pub(crate) use prepare::Shared;
pub use prepare::{Argument, Label, LabelKind, PrepareError, Prepared, fits};
pub use report::{Lane, Outcome, RankOutcome, Span};
pub use session::{Options, run, run_shown};
pub(crate) use session::{describe, late, longest_kernel, seconds, spawn, step_line, with_account};
pub(crate) use task::{Issued, Streams};
