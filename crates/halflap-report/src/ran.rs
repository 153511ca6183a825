//! What ranks actually did in one step: the input for pictures of a run.

use std::ops::Range;

use halflap::units::{Bytes, Nanos};

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
    /// The instruction.
    pub name: String,
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

impl Ran {
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

    #[test]
    fn what_nothing_hides() {
        let busy = [0.0..2.0, 3.0..4.0, 6.0..9.0].map(|time| Nanos(time.start)..Nanos(time.end));
        let outside = |start, end| outside(Nanos(start)..Nanos(end), &busy).0;
        assert_eq!((outside(1.0, 7.0), outside(2.0, 3.0)), (3.0, 1.0));
        assert_eq!((outside(7.0, 8.0), outside(9.0, 11.0)), (0.0, 2.0));
    }
}
