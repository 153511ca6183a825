//! Checks that find faults while a program runs.
//!
//! All checks are off unless enabled by [`Checks`], and then cost nothing: a rank without checks
//! has no [`TaskProbe`], and its tasks test once that there is none.
//!
//! | part | what it does |
//! | --- | --- |
//! | `guard`, `regions`, `fault` | buffers between guard pages, and reports of invalid accesses |
//! | `departure` | a second process, which reports that the first one ended silently |
//! | `post` | what every rank is doing, for the report of a crash |
//! | `heap` | what custom calls leave allocated |
//! | `finite` | arrays with NaN or infinities |
//! | `origin` | the launches that produced the NaN and infinities of results |
//! | `lifetimes` | whether buffers are allocated and freed as planned |
//! | `recorder` | the last collectives of every rank, and which rank diverged |
//! | `inject` | injected faults |
//! | `values`, `stats`, `index` | arrays before and after every launch: saved, printed, and read again |

pub use crate::failure::{
    Account, Beyond, Deviation, FAULT_FORMAT, FirstInfinity, LifetimeViolation, NotFinite, Overrun,
    Side, Stray,
};

mod departure;
pub(crate) mod fault;
mod filter;
mod finite;
mod guard;
mod heap;
mod index;
mod inject;
mod lifetimes;
mod origin;
pub(crate) mod post;
mod probe;
mod recorder;
mod regions;
pub(crate) mod said;
mod stats;
mod values;

pub use departure::{Departure, EndRecorder, Split, split};
pub use fault::{EXIT_CODE, catch_faults};
pub use filter::Filter;
pub(crate) use guard::{GuardedMemory, Opened, Owner, Resting, broken, mark, seal};
pub use index::{Entry, FORMAT as VALUES_FORMAT, IndexError, RankValues, read_values};
pub use inject::Fault;
pub(crate) use lifetimes::Tracker;
pub(crate) use origin::{Again, Taken};
pub use origin::{FORMAT as ORIGINS_FORMAT, Origins};
pub(crate) use probe::{LaunchOutcome, TaskProbe};
pub use recorder::{CollectiveState, FORMAT as FLIGHT_FORMAT, Flight, Record, account, dump};
pub(crate) use regions::{Freed, RegionId};
pub use stats::Stats;
pub use values::{ValueLevel, ValueOptions};

use std::path::PathBuf;

/// How to react to a deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// It is not checked.
    #[default]
    Off,
    /// It is logged to standard error.
    Log,
    /// It ends the run.
    Assert,
}

/// Values that no kernel may read or produce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forbidden {
    /// NaN.
    Nan,
    /// NaN and infinities.
    Infinity,
}

/// Where memory comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemorySource {
    /// Freed memory is reused.
    #[default]
    Cached,
    /// The same, with canary bytes around every buffer, which are checked after each run.
    Marked,
    /// Every buffer has its own pages, aligned to one of their ends and surrounded by guard pages,
    /// which become inaccessible when it is freed.
    Guarded(Side),
}

/// What is checked. Nothing, by default.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// Arrays before and after every launch.
    pub values: Option<ValueOptions>,
    /// Whether buffer lifetimes are checked against the plan.
    pub lifetimes: Strictness,
    /// Values that no kernel may read or produce.
    pub forbidden: Option<Forbidden>,
    /// Where memory comes from.
    pub memory: MemorySource,
    /// Whether the issuing thread waits for each kernel and collective.
    pub launch_blocking: bool,
    /// Whether ranks remember their last collectives, and the file that they go to when ranks
    /// diverged.
    pub recorder: Option<PathBuf>,
    /// Records what produced the NaN and infinities of results.
    pub origins: Option<Origins>,
    /// Faults to inject.
    pub faults: Vec<Fault>,
}

impl Checks {
    /// The access to guarded memory that no task works on; `None` if memory is not guarded.
    pub(crate) fn resting(&self) -> Option<Resting> {
        let resting = if self.launch_blocking { Resting::Closed } else { Resting::Open };
        matches!(self.memory, MemorySource::Guarded(_)).then_some(resting)
    }

    /// Whether tasks are checked.
    fn watches_tasks(&self) -> bool {
        self.values.is_some()
            || self.forbidden.is_some()
            || self.recorder.is_some()
            || self.origins.is_some()
    }
}
