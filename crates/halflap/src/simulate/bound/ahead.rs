//! What a stream must have finished, because it runs collectives in the order of issue.

use crate::graph::Streams;
use crate::ids::{Id, IdVec, OpId};

/// Which collectives are ahead of others on their streams.
pub(super) struct Ahead<'a> {
    streams: &'a Streams,
    /// The last collective of each stream that is known to come no later than an operation.
    last: IdVec<OpId, Vec<Option<OpId>>>,
}

impl Ahead<'_> {
    /// For this many operations.
    pub(super) fn new(streams: &Streams, len: usize) -> Ahead<'_> {
        Ahead { streams, last: IdVec::filled(Vec::new(), len) }
    }

    /// The collectives that must have ended when an operation starts, because they were issued
    /// before it on its stream; `in_front` is what comes before it, and must be computed first.
    pub(super) fn of(&mut self, op: OpId, in_front: &[OpId]) -> Vec<OpId> {
        let mut last = vec![None; self.streams.len()];
        for &pred in in_front {
            last.iter_mut()
                .zip(&self.last[pred])
                .for_each(|(last, &other)| *last = other.max(*last));
        }
        let mut ahead = Vec::new();
        if let Some(stream) = self.streams.of(op) {
            ahead.extend(in_front.iter().filter_map(|&pred| self.last[pred][stream.index()]));
            last[stream.index()] = Some(op);
        }
        self.last[op] = last;
        ahead
    }
}
