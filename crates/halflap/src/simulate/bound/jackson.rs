//! One machine that runs jobs with heads and tails, and the jobs that determine how long it takes.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) head: f64,
    pub(super) left: f64,
    pub(super) tail: f64,
}

/// Ready jobs: the longest tail first.
struct Ready(Job);

impl PartialEq for Ready {
    fn eq(&self, other: &Ready) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Ready {}
impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Ready) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ready {
    fn cmp(&self, other: &Ready) -> Ordering {
        self.0.tail.total_cmp(&other.0.tail)
    }
}

/// Jackson's preemptive schedule on one machine.
pub(super) fn jackson(mut jobs: Vec<Job>) -> f64 {
    jobs.retain(|job| job.left > 0.0);
    jobs.sort_by(|a, b| a.head.total_cmp(&b.head));
    let (mut now, mut best) = (0.0f64, 0.0f64);
    let mut coming = jobs.into_iter().peekable();
    let mut ready: BinaryHeap<Ready> = BinaryHeap::new();
    loop {
        if ready.is_empty() {
            let Some(next) = coming.peek() else { return best };
            now = now.max(next.head);
        }
        while let Some(job) = coming.next_if(|job| job.head <= now) {
            ready.push(Ready(job));
        }
        let Some(Ready(mut job)) = ready.pop() else { return best };
        let until = coming.peek().map_or(f64::INFINITY, |next| next.head);
        let run = job.left.min(until - now);
        now += run;
        job.left -= run;
        if job.left <= 1e-9 {
            best = best.max(now + job.tail);
        } else {
            ready.push(Ready(job));
        }
    }
}

/// The jobs that determine how long a machine takes: none has a shorter head or tail than these.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Core {
    pub(super) head: f64,
    pub(super) tail: f64,
}

impl Core {
    pub(super) fn has(self, job: Job) -> bool {
        job.head >= self.head && job.tail >= self.tail
    }
}

/// The jobs that maximise the sum of shortest head, work and shortest tail, given the shortest tail
/// that Jackson's schedule ends with.
pub(super) fn core(jobs: &[Job]) -> Core {
    let mut tails: Vec<f64> = jobs.iter().map(|job| job.tail).collect();
    tails.sort_by(f64::total_cmp);
    tails.dedup();
    let mut by_head = jobs.to_vec();
    by_head.sort_by(|a, b| b.head.total_cmp(&a.head));
    let mut best = (0.0, Core::default());
    let spread = tails.len().div_ceil(64).max(1);
    for &tail in tails.iter().step_by(spread) {
        let mut load = 0.0;
        for job in by_head.iter().filter(|job| job.tail >= tail && job.left > 0.0) {
            load += job.left;
            if job.head + load + tail > best.0 {
                best = (job.head + load + tail, Core { head: job.head, tail });
            }
        }
    }
    best.1
}
