//! Every collective of a rank: how much of it was exposed, and what hid the rest.
//!
//! Time at which several collectives run and nothing computes is charged to the one that began
//! first; the others are charged only with what they expose beyond it. So every exposed moment is
//! charged once, and the charges add up to the rank's exposed time.

use super::busy::{Busy, BusyStretch, Computing};
use super::class::Class;
use super::trace::{Moment, Slice, Trace};
use crate::observe::ids::{KernelId, LaneId};
use halflap::collective::CollectiveKind;
use halflap::ids::{GroupId, Id};
use halflap::units::{Bytes, Nanos};

/// How many of the kernels that hid a collective are named.
const HIDERS: usize = 3;

/// A communication kernel that ran.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ObservedCollective {
    /// When.
    pub ran: BusyStretch,
    /// Its kernel.
    pub kernel: KernelId,
    /// Its stream.
    pub lane: LaneId,
    /// What it does.
    pub operation: CollectiveKind,
    /// Its process group.
    pub group: GroupId,
    /// The larger of what the rank sends and receives, if known.
    pub bytes: Option<Bytes>,
    /// Its number in the group, if known.
    pub sequence: Option<i64>,
    /// How long compute overlapped it.
    pub hidden: Nanos,
    /// The part of its time without compute that is charged to it.
    pub exposed: Nanos,
    /// The compute kernels that overlapped it, at most three, the longest first.
    pub behind: Vec<(KernelId, Nanos)>,
    /// The longest stall of compute that is charged to it.
    pub stall: Option<Stall>,
}

/// A stall of compute while a collective runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// When, as far as it is charged to the collective.
    pub when: BusyStretch,
    /// The kernel after which compute stopped, unless there was none.
    pub after: Option<KernelId>,
    /// The kernel with which compute resumed, if it did.
    pub before: Option<KernelId>,
}

impl ObservedCollective {
    /// How long it ran.
    pub fn time(&self) -> Nanos {
        self.ran.end - self.ran.start
    }
}

/// The collectives of a trace, by start. `exposed` is when communication runs and compute does not.
pub(super) fn collectives(
    trace: &Trace,
    computing: &Computing,
    exposed: &Busy,
) -> Vec<ObservedCollective> {
    let mut charged_until = Moment(i64::MIN);
    let mut hiders = Hiders::new(trace);
    let slices = trace.of_class(Class::Communication);
    let collective = |slice: &Slice| {
        let launch = slice.launch.map(|launch| trace.launches[launch])?;
        let ran = slice.stretch();
        let own = BusyStretch { start: ran.start.max(charged_until), end: ran.end };
        charged_until = charged_until.max(ran.end);
        let stall = exposed
            .parts(own)
            .max_by_key(|part| (part.end.0 - part.start.0, std::cmp::Reverse(part.start)));
        Some(ObservedCollective {
            ran,
            kernel: slice.kernel,
            lane: slice.lane,
            operation: launch.operation,
            group: launch.group,
            bytes: launch.bytes,
            sequence: launch.sequence,
            hidden: computing.busy.within(ran),
            exposed: if own.start < own.end { exposed.within(own) } else { Nanos::ZERO },
            behind: hiders.of(ran),
            stall: stall.map(|when| {
                let (after, before) = computing.around(when.start);
                Stall { when, after, before }
            }),
        })
    };
    slices.filter_map(collective).collect()
}

/// Finds the compute that overlapped each collective in turn. Invariant: `running` are the compute
/// slices before `next` that had not ended when the last queried collective began, so that a kernel
/// is revisited only by the collectives that it overlaps.
struct Hiders<'a> {
    slices: Vec<&'a Slice>,
    next: usize,
    running: Vec<&'a Slice>,
}

impl<'a> Hiders<'a> {
    fn new(trace: &'a Trace) -> Hiders<'a> {
        // Without communication, nothing is hidden.
        let any = trace.of_class(Class::Communication).next().is_some();
        let slices = if any { trace.of_class(Class::Compute).collect() } else { Vec::new() };
        Hiders { slices, next: 0, running: Vec::new() }
    }

    /// The kernels with the longest overlap with a collective; collectives must be sorted by start.
    fn of(&mut self, ran: BusyStretch) -> Vec<(KernelId, Nanos)> {
        while let Some(slice) = self.slices.get(self.next).filter(|slice| slice.start <= ran.start)
        {
            self.running.push(slice);
            self.next += 1;
        }
        self.running.retain(|slice| slice.end > ran.start);
        let later = self.slices[self.next..].iter().take_while(|slice| slice.start < ran.end);
        let beside = self.running.iter().chain(later);
        let shares = beside
            .filter_map(|slice| Some((slice.kernel, ran.shared(&slice.stretch())?.time())))
            .collect::<Vec<_>>();
        longest(shares)
    }
}

/// Sums by kernel, the longest few.
fn longest(mut shares: Vec<(KernelId, Nanos)>) -> Vec<(KernelId, Nanos)> {
    shares.sort_by_key(|(kernel, _)| kernel.index());
    let mut sums: Vec<(KernelId, Nanos)> = Vec::new();
    for (kernel, time) in shares {
        match sums.last_mut() {
            Some((last, sum)) if *last == kernel => *sum += time,
            _ => sums.push((kernel, time)),
        }
    }
    sums.sort_by(|(a, left), (b, right)| right.0.total_cmp(&left.0).then(a.cmp(b)));
    sums.truncate(HIDERS);
    sums
}
