//! What ranks actually did in one step: the input for pictures of a run.

use std::collections::BTreeMap;
use std::ops::Range;

use halflap::graph::Provenance;
use halflap::units::{Bytes, Nanos};

use super::text::{named_by, printable_end, printable_up_to};

/// Names have at most this many characters.
const LABEL: usize = 160;

/// One rank.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What to call it: `rank 0`.
    pub name: String,
    /// How long the step took.
    pub step_time: Nanos,
    /// The compute stream first, then those of communication.
    pub lanes: Vec<RanLane>,
}

/// One stream. Its slices are sorted by time and do not overlap.
#[derive(Clone, Debug)]
pub struct RanLane {
    /// What to call it.
    pub name: String,
    /// What ran.
    pub slices: Vec<RanSlice>,
}

/// A time in which something ran.
#[derive(Clone, Debug)]
pub struct RanSlice {
    /// The node or instruction: what tells it apart from others.
    pub name: String,
    /// Where it comes from in the user's program, as far as that is known.
    pub from: Provenance,
    /// What it is.
    pub kind: RanKind,
    /// From when, counted from the step's beginning.
    pub start: Nanos,
    /// Until when.
    pub end: Nanos,
    /// For a collective, the participants and the bytes.
    pub among: Option<(String, Bytes)>,
}

impl RanSlice {
    /// Its parameter or its module; empty where neither is known.
    pub(super) fn label(&self) -> String {
        named_by(&self.from).map_or_else(String::new, |text| printable_end(text, LABEL))
    }

    /// What people call it: its label, or its name.
    pub(super) fn called(&self) -> String {
        Some(self.label())
            .filter(|label| !label.is_empty())
            .unwrap_or_else(|| printable_up_to(&self.name, LABEL))
    }

    /// When it ran.
    pub fn time(&self) -> Range<Nanos> {
        self.start..self.end
    }
}

/// What something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanKind {
    /// It computes.
    Compute,
    /// It copies.
    Copy,
    /// Compute is stalled until the named collective ends.
    Wait,
    /// It communicates.
    Collective,
}

/// How long compute stalled on collectives, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RankWait {
    /// The collective had not begun: others were before it, or a rank had not arrived.
    pub queued: Nanos,
    /// Its data were on their way.
    pub transfer: Nanos,
    /// They were there, and compute had not gone on yet.
    pub wake_up: Nanos,
}

impl RankWait {
    /// The total: what is exposed.
    pub fn total(&self) -> Nanos {
        self.queued + self.transfer + self.wake_up
    }

    /// Each part with its name in reports.
    pub fn parts(&self) -> [(&'static str, Nanos); 3] {
        [("queued", self.queued), ("transfer", self.transfer), ("wake-up", self.wake_up)]
    }

    /// The sum of two.
    pub(super) fn and(self, other: RankWait) -> RankWait {
        RankWait {
            queued: self.queued + other.queued,
            transfer: self.transfer + other.transfer,
            wake_up: self.wake_up + other.wake_up,
        }
    }
}

/// A stall of compute on a collective.
pub(super) struct RanWait<'a> {
    /// As on the compute stream.
    pub(super) slice: &'a RanSlice,
    /// The lane of the collective and its place there, if it is drawn.
    pub(super) of: Option<(usize, usize)>,
    /// When the collective was queued, in flight, and complete, in sequence.
    pub(super) parts: [Range<Nanos>; 3],
}

impl RanWait<'_> {
    pub(super) fn waited(&self) -> RankWait {
        let [queued, transfer, wake_up] = self.parts.clone().map(|part| part.end - part.start);
        RankWait { queued, transfer, wake_up }
    }
}

impl Ran {
    /// How long something computes or copies on the compute stream.
    pub fn compute(&self) -> Nanos {
        self.busy().iter().map(|time| time.end - time.start).sum()
    }

    /// What ran on the streams of communication.
    pub fn collectives(&self) -> impl Iterator<Item = &RanSlice> {
        self.lanes.iter().skip(1).flat_map(|lane| &lane.slices)
    }

    /// How long compute stalled on collectives.
    pub fn waited(&self) -> RankWait {
        self.waits().iter().map(RanWait::waited).fold(RankWait::default(), RankWait::and)
    }

    /// The stalls of compute, each with its cause.
    pub(super) fn waits(&self) -> Vec<RanWait<'_>> {
        let mut places: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
        for (lane, of) in self.lanes.iter().enumerate().skip(1) {
            for (place, slice) in of.slices.iter().enumerate() {
                places.entry(&slice.name).or_default().push((lane, place));
            }
        }
        let at = |&(lane, place): &(usize, usize)| &self.lanes[lane].slices[place];
        let compute = self.lanes.first().map_or(&[][..], |lane| &lane.slices);
        let waits = compute.iter().filter(|slice| slice.kind == RanKind::Wait);
        waits
            .map(|slice| {
                // In a loop a collective runs more than once: the last one that had begun is meant.
                let own = places.get(slice.name.as_str()).map_or(&[][..], Vec::as_slice);
                let of = own.iter().rfind(|own| at(own).start < slice.end).or(own.first());
                let Range { start, end } = slice.time();
                let ran = of.map_or(start..end, |of| at(of).time());
                let (begun, done) = (ran.start.max(start).min(end), ran.end.max(start).min(end));
                let parts = [start..begun, begun..done, done..end];
                RanWait { slice, of: of.copied(), parts }
            })
            .collect()
    }

    /// The times in which something computes or copies on the compute stream, ascending and apart.
    pub fn busy(&self) -> Vec<Range<Nanos>> {
        let compute = self.lanes.first().map_or(&[][..], |lane| &lane.slices);
        compute.iter().filter(|slice| slice.kind != RanKind::Wait).map(RanSlice::time).collect()
    }
}

/// How much of a time lies outside of intervals that are ascending and apart.
pub(super) fn outside(time: Range<Nanos>, busy: &[Range<Nanos>]) -> Nanos {
    let Range { start, end } = time;
    let first = busy.partition_point(|within| within.end <= start);
    let inside = busy[first..].iter().take_while(|within| within.start < end);
    let hidden: Nanos = inside.map(|within| within.end.min(end) - within.start.max(start)).sum();
    (end - start - hidden).max(Nanos::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, kind: RanKind, start: f64, end: f64) -> RanSlice {
        let (start, end) = (Nanos(start), Nanos(end));
        let from = Provenance::default();
        RanSlice { name: name.to_owned(), from, kind, start, end, among: None }
    }

    #[test]
    fn a_wait_is_queued_then_transferred_then_woken_up() {
        let compute = vec![
            slice("k", RanKind::Compute, 0.0, 10.0),
            // It begins at 12, ends at 20 and is noticed at 23.
            slice("a", RanKind::Wait, 10.0, 23.0),
            slice("k", RanKind::Compute, 23.0, 30.0),
            // The second run of the same: all of it is on the wire.
            slice("a", RanKind::Wait, 30.0, 34.0),
            // It had ended before.
            slice("b", RanKind::Wait, 34.0, 35.0),
        ];
        let streams = vec![
            slice("a", RanKind::Collective, 12.0, 20.0),
            slice("b", RanKind::Collective, 20.0, 22.0),
            slice("a", RanKind::Collective, 25.0, 34.0),
        ];
        let lane = |slices| RanLane { name: String::new(), slices };
        let lanes = vec![lane(compute), lane(streams)];
        let ran = Ran { name: String::new(), step_time: Nanos(35.0), lanes };
        let waited = ran.waited();
        assert_eq!(waited.parts().map(|(_, time)| time.0), [2.0, 8.0 + 4.0, 3.0 + 1.0]);
        assert_eq!(waited.total() + ran.compute(), ran.step_time);
        let places: Vec<_> = ran.waits().iter().map(|wait| wait.of).collect();
        assert_eq!(places, [Some((1, 0)), Some((1, 2)), Some((1, 1))]);
    }

    #[test]
    fn what_nothing_hides() {
        let busy = [0.0..2.0, 3.0..4.0, 6.0..9.0].map(|time| Nanos(time.start)..Nanos(time.end));
        let outside = |start, end| outside(Nanos(start)..Nanos(end), &busy).0;
        assert_eq!((outside(1.0, 7.0), outside(2.0, 3.0)), (3.0, 1.0));
        assert_eq!((outside(7.0, 8.0), outside(9.0, 11.0)), (0.0, 2.0));
    }
}
