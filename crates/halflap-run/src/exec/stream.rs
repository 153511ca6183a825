//! Streams: queues of tasks, each with a thread that runs them in sequence.
//!
//! An event is a number: a stream counts completed tasks, and waiting for a task means waiting for
//! the count. A waiting thread spins a few times, then sleeps until the count changes or a rank
//! fails.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::report::Noted;
use crate::failure::{Fate, LOOK, Stopped};
use crate::sync::locked;

/// How often a waiting thread spins before it sleeps.
const LOOKS: u32 = 64;

/// The number of a task of a stream: it is done when the stream has completed this many.
pub(crate) type Sequence = u64;

/// A queue and its progress.
pub(crate) struct TaskStream<T> {
    queue: Mutex<VecDeque<T>>,
    pushed: Condvar,
    is_closed: AtomicBool,
    /// How many tasks it was given.
    given: AtomicU64,
    /// The number of the current task.
    at: AtomicU64,
    done: AtomicU64,
    pub(super) sleepers: AtomicU32,
    lock: Mutex<()>,
    advanced: Condvar,
    /// What it is doing.
    pub(crate) status: StreamStatus,
    /// What it ran.
    pub(crate) spans: Mutex<Vec<Noted>>,
}

impl<T> TaskStream<T> {
    pub(crate) fn new(epoch: Instant) -> TaskStream<T> {
        TaskStream {
            queue: Mutex::default(),
            pushed: Condvar::new(),
            is_closed: AtomicBool::new(false),
            given: AtomicU64::new(0),
            at: AtomicU64::new(0),
            done: AtomicU64::new(0),
            sleepers: AtomicU32::new(0),
            lock: Mutex::default(),
            advanced: Condvar::new(),
            status: StreamStatus::new(epoch),
            spans: Mutex::default(),
        }
    }

    /// Adds a task, and says which number it has.
    pub(crate) fn push(&self, task: T) -> Sequence {
        let mut queue = locked(&self.queue);
        let number = self.given.fetch_add(1, Ordering::SeqCst) + 1;
        queue.push_back(task);
        let was_empty = queue.len() == 1;
        drop(queue);
        if was_empty {
            self.pushed.notify_one();
        }
        number
    }

    /// Counts a task that the issuing thread runs itself, and says which number it has.
    pub(crate) fn pass_by(&self) -> Sequence {
        self.given.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether this many tasks are done.
    pub(crate) fn has_done(&self, until: Sequence) -> bool {
        self.done.load(Ordering::Acquire) >= until
    }

    /// The number of the last task that it was given.
    pub(crate) fn last(&self) -> Sequence {
        self.given.load(Ordering::SeqCst)
    }

    /// The next task; `None` once the stream is closed and empty, or a rank failed.
    pub(crate) fn next(&self, fate: &Fate) -> Option<T> {
        let mut queue = locked(&self.queue);
        loop {
            fate.check().ok()?;
            if let Some(task) = queue.pop_front() {
                return Some(task);
            }
            if self.is_closed.load(Ordering::Acquire) {
                return None;
            }
            queue = self.pushed.wait_timeout(queue, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Closes the queue: no further tasks.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.pushed.notify_one();
    }

    /// The task of this number comes next.
    pub(crate) fn come_to(&self, number: u64) {
        self.at.store(number, Ordering::SeqCst);
    }

    /// Whether everything up to a task is done, as far as it was given.
    pub(crate) fn has_passed(&self, number: u64) -> bool {
        // Read first: completed tasks were queued before.
        let done = self.done.load(Ordering::SeqCst);
        self.at.load(Ordering::SeqCst) > number || done == self.given.load(Ordering::SeqCst)
    }

    /// A task is done.
    pub(crate) fn advance(&self) {
        // Sequentially consistent, as in the waiting thread: either we see the sleeper, or it sees
        // the count.
        self.done.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(locked(&self.lock));
            self.advanced.notify_all();
        }
    }

    /// Waits until this many tasks are done.
    pub(crate) fn wait(&self, until: Sequence, fate: &Fate) -> Result<(), Stopped> {
        for _ in 0..LOOKS {
            if self.has_done(until) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut guard = locked(&self.lock);
        let mut result = fate.check();
        while result.is_ok() && self.done.load(Ordering::SeqCst) < until {
            guard =
                self.advanced.wait_timeout(guard, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            result = fate.check();
        }
        drop(guard);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

/// What a thread is doing, to report why a run hangs.
pub(crate) struct StreamStatus {
    epoch: Instant,
    /// The label's number plus one; 0 if it is idle.
    label: AtomicU32,
    /// How often a collective was done before, for collectives.
    sequence: AtomicU64,
    since: AtomicU64,
}

impl StreamStatus {
    fn new(epoch: Instant) -> StreamStatus {
        StreamStatus {
            epoch,
            label: AtomicU32::new(0),
            sequence: AtomicU64::new(0),
            since: AtomicU64::new(0),
        }
    }

    pub(crate) fn begin(&self, label: u32, sequence: u64, now: Instant) {
        self.since
            .store(now.saturating_duration_since(self.epoch).as_nanos() as u64, Ordering::Relaxed);
        self.sequence.store(sequence, Ordering::Relaxed);
        self.label.store(label + 1, Ordering::Release);
    }

    pub(crate) fn end(&self) {
        self.label.store(0, Ordering::Release);
    }

    /// How long ago something was last started.
    pub(crate) fn idle(&self) -> Duration {
        self.epoch
            .elapsed()
            .saturating_sub(Duration::from_nanos(self.since.load(Ordering::Relaxed)))
    }

    /// The label and the number of what runs, and for how long it has.
    pub(crate) fn now(&self) -> Option<(u32, u64, Duration)> {
        let label = self.label.load(Ordering::Acquire).checked_sub(1)?;
        let since = Duration::from_nanos(self.since.load(Ordering::Relaxed));
        Some((
            label,
            self.sequence.load(Ordering::Relaxed),
            self.epoch.elapsed().saturating_sub(since),
        ))
    }
}
