//! Why a GPU stood idle, from the calls that launched its work.
//!
//! A gap ends with a piece of work. Until the host called for that, the host is to blame: it waited
//! for the GPU, or was busy with something else. From then on the launch was under way; what takes
//! longer than launches do is waiting for data, of another stream or of a copy.

use super::busy::{Busy, BusyStretch};
use super::trace::{Moment, Slice};
use crate::observe::ids::ThreadId;
use halflap::units::Nanos;

/// The longest launch, in nanoseconds; the rest is waiting.
const LAUNCH: i64 = 20_000;

/// A piece of GPU work, and when the host launched it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Launched {
    /// When it began.
    pub(super) start: Moment,
    /// When the call began.
    pub(super) called: Moment,
    /// The thread that made it.
    pub(super) thread: ThreadId,
    /// The place of the work among the slices that it was joined with.
    pub(super) slice: u32,
}

/// A call of the host into the GPU's runtime.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostCall {
    pub(super) correlation: i64,
    pub(super) when: BusyStretch,
    pub(super) thread: ThreadId,
    /// Whether the host waits in it for the GPU.
    pub(super) is_wait: bool,
}

/// What is known of a trace's host calls.
#[derive(Debug, Clone, Default)]
pub(super) struct HostCalls {
    /// By the start of the work.
    pub(super) launched: Vec<Launched>,
    /// When the host waited for the GPU.
    pub(super) waits: Busy,
}

/// How long nothing ran, by cause. All parts add up to the idle time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Idle {
    /// The host had not launched anything: it was busy with something else.
    pub host: Nanos,
    /// The host had not launched anything: it was waiting for the GPU.
    pub synchronisation: Nanos,
    /// What was launched had not begun yet, within the time that launches take.
    pub launch: Nanos,
    /// What was launched had not begun yet, and that took longer: it waited for data.
    pub waiting: Nanos,
    /// The trace does not say who launched what came next.
    pub unknown: Nanos,
}

impl HostCalls {
    /// Joins calls with the work that they launched by correlation id; `work` has these ids with
    /// the index of each slice.
    pub(super) fn of(slices: &[Slice], work: &[(u32, i64)], mut calls: Vec<HostCall>) -> HostCalls {
        calls.sort_by_key(|call| (call.correlation, call.when.start));
        let call = |correlation: i64| {
            let first = calls.partition_point(|call| call.correlation < correlation);
            calls.get(first).filter(|call| call.correlation == correlation)
        };
        let launched = work.iter().filter_map(|&(slice, correlation)| {
            let HostCall { when, thread, .. } = *call(correlation)?;
            let start = slices[slice as usize].start;
            Some(Launched { start, called: when.start, thread, slice })
        });
        let mut launched: Vec<Launched> = launched.collect();
        launched.sort_unstable();
        let mut waits: Vec<BusyStretch> =
            calls.iter().filter(|call| call.is_wait).map(|call| call.when).collect();
        waits.sort_by_key(|wait| wait.start);
        HostCalls { launched, waits: Busy::union(waits.into_iter()) }
    }
}

impl Idle {
    /// Of the times of a span in which nothing runs. Work without any length can begin and end it.
    pub(super) fn of(span: BusyStretch, busy: &Busy, calls: &HostCalls) -> Idle {
        let mut idle = Idle::default();
        let mut since = span.start;
        let ends = busy.stretches().iter().map(|stretch| (stretch.start, stretch.end));
        for (until, end) in ends.chain([(span.end, span.end)]) {
            if since < until {
                idle.add(BusyStretch { start: since, end: until }, calls);
            }
            since = end;
        }
        idle
    }

    fn add(&mut self, gap: BusyStretch, calls: &HostCalls) {
        let next = calls.launched.partition_point(|launched| launched.start < gap.end);
        let Some(next) = calls.launched.get(next).filter(|next| next.start == gap.end) else {
            self.unknown += gap.time();
            return;
        };
        let called = next.called.clamp(gap.start, gap.end);
        let until_called = BusyStretch { start: gap.start, end: called };
        let waited = calls.waits.within(until_called);
        self.synchronisation += waited;
        self.host += called - gap.start - waited;
        let pending = gap.end - called;
        let launch = Nanos(pending.0.min(LAUNCH as f64));
        self.launch += launch;
        self.waiting += pending - launch;
    }

    /// The total.
    pub fn total(&self) -> Nanos {
        self.parts().iter().map(|(_, time)| *time).sum()
    }

    /// Each part with its name.
    pub fn parts(&self) -> [(&'static str, Nanos); 5] {
        [
            ("host-bound", self.host),
            ("synchronisation", self.synchronisation),
            ("launch gaps", self.launch),
            ("waiting for data", self.waiting),
            ("unknown", self.unknown),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::ids::{KernelId, LaneId};
    use halflap::ids::Id;

    fn stretch(start: i64, end: i64) -> BusyStretch {
        BusyStretch { start: Moment(start), end: Moment(end) }
    }

    /// Work at 0 to 100, 1,000 to 1,100 and 60,000 to 60,100 and 70,000 to 70,100: launched before
    /// the first ends; launched at 30,000 after the host waited from 1,050 to 5,000; not in the
    /// trace.
    #[test]
    fn a_gap_is_told_apart_by_when_its_end_was_launched() {
        let ran = [(0, 100), (1_000, 1_100), (60_000, 60_100), (70_000, 70_100)];
        let slices = ran.map(|(start, end)| Slice {
            start: Moment(start),
            end: Moment(end),
            kernel: KernelId::from_index(0),
            lane: LaneId::from_index(0),
            launch: None,
        });
        let work = [(0, 1), (1, 2), (2, 3), (3, 9)];
        let call = |correlation, start, end, is_wait| HostCall {
            correlation,
            when: stretch(start, end),
            thread: ThreadId::from_index(0),
            is_wait,
        };
        let calls = vec![
            call(3, 30_000, 30_010, false),
            call(1, -50, -40, false),
            call(2, 50, 60, false),
            call(77, 1_050, 5_000, true),
        ];
        let calls = HostCalls::of(&slices, &work, calls);
        let busy = Busy::union(ran.iter().map(|&(start, end)| stretch(start, end)));
        let idle = Idle::of(stretch(0, 70_100), &busy, &calls);
        assert_eq!(idle.launch, Nanos(900.0 + 20_000.0));
        assert_eq!(idle.synchronisation, Nanos(3_900.0));
        assert_eq!(idle.host, Nanos(25_000.0));
        assert_eq!(idle.waiting, Nanos(10_000.0));
        assert_eq!(idle.unknown, Nanos(9_900.0));
        assert_eq!(idle.total(), Nanos(900.0 + 58_900.0 + 9_900.0));
    }

    /// Work without any length at 0 and at 5,000, and some from 1,000 to 1,100.
    #[test]
    fn work_without_length_begins_and_ends_a_span() {
        let busy = Busy::union(
            [(0, 0), (1_000, 1_100), (5_000, 5_000)].map(|(a, b)| stretch(a, b)).into_iter(),
        );
        let idle = Idle::of(stretch(0, 5_000), &busy, &HostCalls::default());
        assert_eq!(idle.total(), Nanos(1_000.0 + 3_900.0));
    }
}
