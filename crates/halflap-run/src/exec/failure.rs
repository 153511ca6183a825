//! How a run ends before its time: the first thing that goes wrong on any rank, told to all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use thiserror::Error;

/// What ended a run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Failure {
    #[error("rank {rank} panicked at '{at}': {message}")]
    Panicked { rank: usize, at: String, message: String },
    #[error("nothing was completed for {seconds} s. {}", listed(.ranks))]
    TimedOut { seconds: String, ranks: Vec<String> },
    #[error("rank {rank} came to '{own}', and rank {other} at the same place to '{theirs}': they took different ways")]
    Diverged { rank: usize, own: String, other: usize, theirs: String },
    #[error(
        "the plans of the ranks differ, so that they would wait for each other forever. Rank {first} and rank {second} first differ at step\n  rank {first}: {of_first}\n  rank {second}: {of_second}"
    )]
    PlansDiffer { first: usize, second: usize, of_first: String, of_second: String },
    #[error("rank {rank} requested {requested} bytes at most, and the plan says {planned}")]
    MemoryDiffers { rank: usize, requested: i64, planned: i64 },
    #[error("a thread of rank {rank} could not be started: {message}")]
    Thread { rank: usize, message: String },
    #[error("MPI: {0}")]
    Mpi(String),
}

fn listed(ranks: &[String]) -> String {
    let lines: Vec<String> = ranks.iter().map(|line| format!("\n  {line}")).collect();
    format!("Each rank and what it was at:{}", lines.concat())
}

/// Somebody failed, and whoever hears of it stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped;

/// Whether a run still goes on.
#[derive(Debug, Default)]
pub struct Fate {
    has_failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

/// Whoever waits looks after so long whether somebody failed.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

impl Fate {
    /// Ends the run. What came first is what is told.
    pub fn fail(&self, failure: Failure) -> Stopped {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.has_failed.store(true, Ordering::Release);
        Stopped
    }

    /// An error as soon as somebody failed.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.has_failed.load(Ordering::Acquire) { Err(Stopped) } else { Ok(()) }
    }

    /// What ended the run, if something did.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
