//! When something ran: sets of moments, as intervals.
//!
//! Every figure of an analysis comes from unions of intervals: two kernels that run at once are one
//! stretch, so that no time counts twice. Invariant of a [`Busy`]: its stretches ascend and do not
//! touch, and none is empty. A union takes one pass over slices that are sorted by start, an
//! intersection or difference one pass over both sets, a question about an interval two binary
//! searches.

use super::trace::{Moment, Slice};
use crate::observe::ids::KernelId;
use halflap::units::Nanos;

/// An interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyStretch {
    /// When it begins.
    pub start: Moment,
    /// When it ends; later than it begins.
    pub end: Moment,
}

impl BusyStretch {
    /// How long it is.
    pub fn time(&self) -> Nanos {
        self.end - self.start
    }

    /// What two stretches share, if anything.
    pub fn shared(&self, other: &BusyStretch) -> Option<BusyStretch> {
        let shared =
            BusyStretch { start: self.start.max(other.start), end: self.end.min(other.end) };
        (shared.start < shared.end).then_some(shared)
    }
}

/// A set of moments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Busy {
    stretches: Vec<BusyStretch>,
    /// For each stretch, the nanoseconds of all before it.
    before: Vec<i64>,
    total: i64,
}

impl Busy {
    /// When at least one of the intervals runs; they must ascend by start.
    pub fn union(intervals: impl Iterator<Item = BusyStretch>) -> Busy {
        let mut busy = Busy::default();
        let mut open: Option<BusyStretch> = None;
        for next in intervals.filter(|next| next.start < next.end) {
            match &mut open {
                Some(stretch) if next.start <= stretch.end => {
                    stretch.end = stretch.end.max(next.end)
                }
                _ => busy.push(open.replace(next)),
            }
        }
        busy.push(open);
        busy
    }

    fn push(&mut self, stretch: Option<BusyStretch>) {
        let Some(stretch) = stretch else { return };
        self.before.push(self.total);
        self.total += stretch.end.0 - stretch.start.0;
        self.stretches.push(stretch);
    }

    /// The moments of this set that are not in `other`.
    pub fn without(&self, other: &Busy) -> Busy {
        let mut left = Busy::default();
        let mut next = 0;
        for &stretch in &self.stretches {
            let mut start = stretch.start;
            while other.stretches.get(next).is_some_and(|taken| taken.end <= start) {
                next += 1;
            }
            // The last one that touches this stretch may touch the next one, too.
            for taken in
                other.stretches[next..].iter().take_while(|taken| taken.start < stretch.end)
            {
                left.push((start < taken.start).then_some(BusyStretch { start, end: taken.start }));
                start = taken.end;
            }
            left.push((start < stretch.end).then_some(BusyStretch { start, end: stretch.end }));
        }
        left
    }

    /// The moments that are in both.
    pub fn and(&self, other: &Busy) -> Busy {
        let mut both = Busy::default();
        let (mut a, mut b) = (0, 0);
        while let (Some(left), Some(right)) = (self.stretches.get(a), other.stretches.get(b)) {
            both.push(left.shared(right));
            if left.end <= right.end { a += 1 } else { b += 1 }
        }
        both
    }

    /// Its total length.
    pub fn time(&self) -> Nanos {
        Nanos(self.total as f64)
    }

    /// How much of it lies between two moments.
    pub fn within(&self, range: BusyStretch) -> Nanos {
        Nanos((self.up_to(range.end) - self.up_to(range.start)).max(0) as f64)
    }

    fn up_to(&self, moment: Moment) -> i64 {
        match self.stretches.partition_point(|stretch| stretch.start < moment) {
            0 => 0,
            after => {
                self.before[after - 1]
                    + (moment.min(self.stretches[after - 1].end).0
                        - self.stretches[after - 1].start.0)
            }
        }
    }

    /// Its parts between two moments, ascending.
    pub fn parts(&self, range: BusyStretch) -> impl Iterator<Item = BusyStretch> {
        let first = self.stretches.partition_point(|stretch| stretch.end <= range.start);
        self.stretches[first..].iter().map_while(move |stretch| stretch.shared(&range))
    }

    /// All of it, ascending.
    pub fn stretches(&self) -> &[BusyStretch] {
        &self.stretches
    }
}

/// The kernels at the start and at the end of an interval of compute.
#[derive(Debug, Clone, Copy)]
struct StretchEnds {
    first: KernelId,
    last: KernelId,
}

/// When a GPU computed, and the kernels at the edges of every stall.
#[derive(Debug, Clone)]
pub(super) struct Computing {
    pub(super) busy: Busy,
    ends: Vec<StretchEnds>,
}

impl Computing {
    /// Of slices that ascend by start.
    pub(super) fn of<'a>(slices: impl Iterator<Item = &'a Slice> + Clone) -> Computing {
        let busy = Busy::union(slices.clone().map(Slice::stretch));
        let mut ends: Vec<StretchEnds> = Vec::with_capacity(busy.stretches.len());
        let mut latest = Moment(i64::MIN);
        for slice in slices.filter(|slice| slice.start < slice.end) {
            if slice.start > latest || ends.is_empty() {
                ends.push(StretchEnds { first: slice.kernel, last: slice.kernel });
            } else if let (true, Some(open)) = (slice.end > latest, ends.last_mut()) {
                open.last = slice.kernel;
            }
            latest = latest.max(slice.end);
        }
        Computing { busy, ends }
    }

    /// The last kernel before a pause that holds `moment`, and the first after it.
    pub(super) fn around(&self, moment: Moment) -> (Option<KernelId>, Option<KernelId>) {
        let after = self.busy.stretches.partition_point(|stretch| stretch.start <= moment);
        let before = after.checked_sub(1).map(|before| self.ends[before].last);
        (before, self.ends.get(after).map(|ends| ends.first))
    }
}

impl Slice {
    /// When it ran.
    pub fn stretch(&self) -> BusyStretch {
        BusyStretch { start: self.start, end: self.end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(intervals: &[(i64, i64)]) -> Busy {
        Busy::union(
            intervals
                .iter()
                .map(|&(start, end)| BusyStretch { start: Moment(start), end: Moment(end) }),
        )
    }

    fn pairs(busy: &Busy) -> Vec<(i64, i64)> {
        busy.stretches.iter().map(|stretch| (stretch.start.0, stretch.end.0)).collect()
    }

    #[test]
    fn sets_of_moments() {
        let a = busy(&[(0, 5), (2, 3), (5, 7), (9, 9), (10, 20)]);
        assert_eq!(pairs(&a), [(0, 7), (10, 20)]);
        let b = busy(&[(1, 2), (6, 11), (12, 13), (19, 30)]);
        assert_eq!(pairs(&a.without(&b)), [(0, 1), (2, 6), (11, 12), (13, 19)]);
        assert_eq!(pairs(&a.and(&b)), [(1, 2), (6, 7), (10, 11), (12, 13), (19, 20)]);
        let range = |start, end| BusyStretch { start: Moment(start), end: Moment(end) };
        assert_eq!(a.within(range(-5, 12)), Nanos(9.0));
        assert_eq!(a.within(range(3, 4)), Nanos(1.0));
        assert_eq!(a.parts(range(6, 11)).count(), 2);
        assert_eq!(Busy::default().within(range(0, 9)), Nanos::ZERO);
    }
}
