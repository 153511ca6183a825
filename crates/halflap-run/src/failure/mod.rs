//! How a run ends early: the first failure on any rank, visible to all.

mod finding;
mod json;
mod ragged;

pub use finding::{
    Account, Beyond, Deviation, FirstInfinity, LifetimeViolation, NotFinite, Overrun, Side, Stray,
};
pub use json::FAULT_FORMAT;
pub(crate) use ragged::RaggedFault;
pub use ragged::RaggedProblem;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

/// What ended a run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Failure {
    #[error("rank {rank} panicked at '{at}': {message}")]
    Panicked { rank: usize, at: String, message: String },
    #[error("nothing was completed for {seconds} s{}{}", blamed(.stuck.as_deref()), listed(.ranks))]
    TimedOut { seconds: String, stuck: Option<Box<Stuck>>, ranks: Vec<String> },
    #[error("{0}")]
    Endless(Box<Endless>),
    #[error(
        "rank {rank}: out of memory for '{buffer}' ({kind}, {bytes} bytes), step {} of {}; the plan needs {planned} bytes at once on every rank", .place.1, .place.0
    )]
    NoMemory {
        rank: usize,
        buffer: String,
        kind: String,
        bytes: usize,
        place: (String, usize),
        planned: i64,
    },
    #[error(
        "rank {rank} reached '{own}' where rank {other} reached '{theirs}': the ranks diverged"
    )]
    Diverged { rank: usize, own: String, other: usize, theirs: String },
    #[error("rank {rank}: '{collective}' {problem}, on rank {receiver}")]
    Ragged { rank: usize, receiver: usize, collective: String, problem: RaggedProblem },
    #[error(
        "rank {rank}: '{kernel}' sends to rank {receiver} on channel {channel} a message that is never received"
    )]
    Untaken { rank: usize, receiver: usize, kernel: String, channel: i64 },
    #[error(
        "the plans of the ranks differ, so they would wait for each other forever. Rank {first} and rank {second} first differ at step\n  rank {first}: {of_first}\n  rank {second}: {of_second}"
    )]
    PlansDiffer { first: usize, second: usize, of_first: String, of_second: String },
    #[error("rank {rank} requested {requested} bytes at most, and the plan says {planned}")]
    MemoryDiffers { rank: usize, requested: i64, planned: i64 },
    #[error("the run was stopped by its caller")]
    Stopped,
    #[error("a thread of rank {rank} could not be started: {message}")]
    Thread { rank: usize, message: String },
    #[error("{0}")]
    Lifetime(Box<LifetimeViolation>),
    #[error("{0}")]
    Overrun(Box<Overrun>),
    #[error("{0}")]
    NotFinite(Box<NotFinite>),
    #[error("{failure}\nflight recorder: {}", .account.text)]
    Apart { failure: Box<Failure>, account: Box<Account> },
    #[error("{path}: cannot be written: {error}")]
    Unwritable { path: String, error: String },
    #[error("MPI: {0}")]
    Mpi(String),
}

/// A kernel that hangs, for which others wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// The rank.
    pub rank: usize,
    /// The kernel.
    pub kernel: String,
    /// The function that a custom call calls.
    pub target: Option<String>,
    /// The line of the user's program.
    pub source: Option<String>,
    /// The computation, and the step in it.
    pub place: (String, usize),
    /// The other half of a message that it waits for: `gets from rank 1 on channel 3`.
    pub message: Option<String>,
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Stuck { rank, kernel, target, source, place: (computation, step), message } = self;
        let target = target.iter().map(|target| format!("custom call of '{target}'"));
        let known: Vec<String> =
            target.chain(source.clone()).chain([format!("step {step} of {computation}")]).collect();
        let known = known.join(", ");
        match message {
            Some(message) => write!(
                f,
                "rank {rank} waits in '{kernel}' ({known}), which {message}: the other half of the message does not arrive"
            ),
            None => {
                write!(f, "rank {rank} does not return from kernel '{kernel}' ({known})")?;
                match self.target {
                    Some(_) => Ok(()),
                    None => f.write_str("; if it is only slow, a longer --timeout lets it end"),
                }
            }
        }
    }
}

/// A loop that does not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endless {
    /// The rank.
    pub rank: usize,
    /// The loop.
    pub name: String,
    /// The line of the user's program.
    pub source: Option<String>,
    /// The computation, and the step in it.
    pub place: (String, usize),
    /// How often its body was run.
    pub turns: u64,
    /// How long it has run.
    pub seconds: String,
    /// If it can never end: after how many iterations everything that its condition depends on is
    /// as before.
    pub period: Option<u32>,
    /// How it counts, if that is why it does not end.
    pub counter: Option<WrongWay>,
}

impl Endless {
    /// Whether it is known not to end.
    pub fn is_proven(&self) -> bool {
        self.period.is_some() || self.counter.is_some()
    }
}

/// A loop's counter that moves away from its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongWay {
    /// The value that an iteration leaves.
    pub counter: String,
    /// Its place in the loop's state.
    pub element: usize,
    /// What it is at the beginning.
    pub start: i128,
    /// What each iteration adds to it.
    pub step: i128,
    /// While it is this, compared with its limit, the loop goes on: `less than`.
    pub goes_on: &'static str,
    /// Its limit.
    pub limit: i128,
    /// After how many iterations it wraps around; `None` if that does not end the loop either.
    pub ends_after: Option<u128>,
}

impl std::fmt::Display for WrongWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let WrongWay { counter, element, start, step, goes_on, limit, ends_after } = self;
        write!(
            f,
            "its counter '{counter}' (element {element} of its state) begins at {start} and \
             changes by {step} in each iteration, and the loop goes on while it is {goes_on} \
             {limit}: "
        )?;
        match ends_after {
            Some(turns) => {
                write!(f, "it can only end once the counter wraps around, after {turns} iterations")
            }
            None => f.write_str("it is always, even once the counter wraps around"),
        }
    }
}

impl std::fmt::Display for Endless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Endless { rank, name, source, place: (computation, step), turns, seconds, .. } = self;
        let source = source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
        write!(f, "rank {rank}: loop '{name}'{source}, step {step} of {computation}, ")?;
        if let Some(counter) = &self.counter {
            return write!(f, "counts the wrong way: {counter}");
        }
        match self.period {
            Some(1) => write!(
                f,
                "never ends: nothing that its condition depends on changes any more, after {turns} iterations in {seconds} s"
            ),
            Some(period) => write!(
                f,
                "never ends: everything that its condition depends on repeats every {period} iterations, seen after \
                 {turns} iterations in {seconds} s"
            ),
            None => write!(f, "has not ended after {turns} iterations in {seconds} s"),
        }
    }
}

/// The kernel that hangs, if any, on a separate line before the state of every rank.
fn blamed(stuck: Option<&Stuck>) -> String {
    stuck.map_or(". ".to_owned(), |stuck| format!(": {stuck}\n"))
}

fn listed(ranks: &[String]) -> String {
    let lines: Vec<String> = ranks.iter().map(|line| format!("\n  {line}")).collect();
    format!("What each rank was doing:{}", lines.concat())
}

/// A rank failed; every thread that sees this stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// A finding: what is wrong, at which task, on which rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The task, by a number that grows along the plan and at every collective is the same on all
    /// ranks.
    pub number: u64,
    /// The rank.
    pub rank: usize,
    /// What is wrong.
    pub failure: Failure,
}

/// Where in a plan something was found. A task's inputs come before its outputs: in a collective,
/// the rank that contributes a NaN is blamed, not those that receive it. What came in a message is
/// last: the rank that sent it has found it before, perhaps at a later step of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FindingPlace {
    pub(crate) is_received: bool,
    pub(crate) number: u64,
    pub(crate) is_made: bool,
}

impl Finding {
    pub(crate) fn place(&self) -> FindingPlace {
        let bad = match &self.failure {
            Failure::NotFinite(found) => Some(found),
            _ => None,
        };
        FindingPlace {
            is_received: bad.is_some_and(|found| found.is_received),
            number: self.number,
            is_made: bad.is_none_or(|found| !found.is_input),
        }
    }
}

/// Whether a run continues.
///
/// A failure ends it immediately. A *finding* does not: which of several is seen first depends on
/// timing, so all ranks continue up to the task of the earliest one, and the first by place in the
/// plan, then by rank, ends the run.
#[derive(Debug)]
pub struct Fate {
    has_failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    /// No task after this one is begun.
    horizon: AtomicU64,
    finding: Mutex<Option<Finding>>,
    /// When the first one was found.
    found: OnceLock<Instant>,
    /// Whether ranks diverged, and when that was first detected.
    parted: OnceLock<(Instant, Failure)>,
}

impl Default for Fate {
    fn default() -> Fate {
        let horizon = AtomicU64::new(u64::MAX);
        Fate {
            has_failed: AtomicBool::new(false),
            failure: Mutex::default(),
            horizon,
            finding: Mutex::default(),
            found: OnceLock::new(),
            parted: OnceLock::new(),
        }
    }
}

/// How often a waiting thread checks for failures.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

impl Fate {
    /// Ends the run. The first failure is reported.
    pub fn fail(&self, failure: Failure) -> Stopped {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.has_failed.store(true, Ordering::Release);
        Stopped
    }

    /// An error once any rank has failed.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.has_failed.load(Ordering::Acquire) { Err(Stopped) } else { Ok(()) }
    }

    /// Ranks diverged. Which one is wrong is known only once all have come as far as they can, so
    /// the caller waits until the run is ended.
    pub fn part(&self, failure: Failure) -> Stopped {
        self.parted.get_or_init(|| (Instant::now(), failure));
        while self.check().is_ok() {
            std::thread::sleep(LOOK);
        }
        Stopped
    }

    /// How long ago ranks were first seen to diverge, and which.
    pub fn parted(&self) -> Option<(Duration, &Failure)> {
        self.parted.get().map(|(seen, failure)| (seen.elapsed(), failure))
    }

    /// Records a finding; it ends the run when all ranks have come as far.
    pub fn find(&self, finding: Finding) {
        let mut known = self.finding.lock().unwrap_or_else(PoisonError::into_inner);
        self.limit(finding.number);
        let is_first =
            |other: &Finding| (finding.place(), finding.rank) < (other.place(), other.rank);
        if known.as_ref().is_none_or(is_first) {
            *known = Some(finding);
        }
    }

    /// Another process found something at a task.
    pub fn limit(&self, number: u64) {
        self.found.get_or_init(Instant::now);
        self.horizon.fetch_min(number, Ordering::SeqCst);
    }

    /// The last task that must still run, if there is a finding.
    pub fn horizon(&self) -> u64 {
        self.horizon.load(Ordering::SeqCst)
    }

    /// The first finding.
    pub fn finding(&self) -> Option<Finding> {
        self.finding.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a finding is so old that the other ranks are no longer waited for.
    pub fn is_overdue(&self, patience: Duration) -> bool {
        self.found.get().is_some_and(|found| found.elapsed() > patience)
    }

    /// The outcome of a run: findings explain later failures.
    pub fn verdict(&self) -> Option<Failure> {
        self.finding().map(|finding| finding.failure).or_else(|| self.failure())
    }

    /// What ended the run, if something did.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
