//! Compute and communication that slow each other.
//!
//! While an operation computes, what communicates beside it makes less progress, and the other way
//! round. Time is cut at every end and every start, and between two cuts all rates are constant.

use std::collections::VecDeque;

use super::Machine;
use crate::ids::{IdVec, OpId, StreamId};
use crate::units::Nanos;

/// A collective that has not ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenTransfer {
    pub op: OpId,
    /// The earliest start, whatever is ahead of it on its stream.
    pub ready: Nanos,
    /// The remaining time if it ran alone.
    pub left: Nanos,
}

/// The collectives of each stream that have not ended, in the order in which they were issued.
#[derive(Clone, Debug)]
pub(super) struct UnderWay {
    streams: IdVec<StreamId, OpenStream>,
    /// The time up to which they have been simulated.
    at: Nanos,
}

/// When a collective starts and ends.
pub(super) type Placed = (OpId, Nanos, Nanos);

#[derive(Clone, Debug, Default)]
struct OpenStream {
    transfers: VecDeque<OpenTransfer>,
    /// Those that have ended since the last query.
    ended: Vec<Placed>,
    /// When the first one started, or will.
    start: Nanos,
}

impl UnderWay {
    pub fn new(streams: usize) -> UnderWay {
        UnderWay { streams: IdVec::filled(OpenStream::default(), streams), at: Nanos::ZERO }
    }

    /// Adds a collective that is issued now.
    pub fn add(&mut self, stream: StreamId, transfer: OpenTransfer) {
        let stream = &mut self.streams[stream];
        if stream.transfers.is_empty() {
            stream.start = stream.start.max(transfer.ready);
        }
        stream.transfers.push_back(transfer);
    }

    /// Simulates them while compute runs from `start` on, and returns its end.
    pub fn run_beside(&mut self, start: Nanos, time: Nanos, machine: &Machine) -> Nanos {
        self.advance(start, 1.0);
        let mut left = time;
        while left > Nanos::ZERO {
            let runs = self.streams.as_slice().iter().any(|stream| stream.runs_at(self.at));
            let slowdown = if runs { machine.slowdown } else { 1.0 };
            let done = self.at + left * slowdown;
            let until = self.next_change(machine.comm_slowdown).min(done);
            left = if until < done {
                left - (until - self.at) * (1.0 / slowdown)
            } else {
                Nanos::ZERO
            };
            self.advance(until, machine.comm_slowdown);
        }
        self.at
    }

    /// The ends of those that ended since the last call, and of those in flight if nothing else
    /// computes.
    pub fn placed(&mut self) -> impl Iterator<Item = (StreamId, Vec<Placed>)> {
        let at = self.at;
        let ids = self.streams.ids();
        ids.zip(self.streams.as_mut_slice()).map(move |(id, stream)| (id, stream.placed(at)))
    }

    /// When the next one of them starts or ends, after now.
    fn next_change(&self, comm_slowdown: f64) -> Nanos {
        let changes = self.streams.as_slice().iter().filter_map(|stream| {
            let first = stream.transfers.front()?;
            let end = self.at + first.left * comm_slowdown;
            Some(if stream.start > self.at { stream.start } else { end })
        });
        changes.fold(Nanos(f64::INFINITY), Nanos::min)
    }

    /// Advances time, during which they are this many times slower than alone.
    fn advance(&mut self, until: Nanos, slowdown: f64) {
        for stream in self.streams.as_mut_slice() {
            stream.advance(self.at, until, slowdown);
        }
        self.at = self.at.max(until);
    }
}

impl OpenStream {
    fn runs_at(&self, at: Nanos) -> bool {
        !self.transfers.is_empty() && self.start <= at
    }

    fn advance(&mut self, from: Nanos, until: Nanos, slowdown: f64) {
        let mut at = from.max(self.start);
        while let Some(first) = self.transfers.front_mut() {
            let end = at + first.left * slowdown;
            if end > until {
                if until > at {
                    first.left -= (until - at) * (1.0 / slowdown);
                }
                return;
            }
            self.ended.push((first.op, self.start, end));
            self.transfers.pop_front();
            self.start = self.transfers.front().map_or(end, |next| next.ready.max(end));
            at = self.start;
        }
    }

    fn placed(&mut self, now: Nanos) -> Vec<Placed> {
        let mut placed = std::mem::take(&mut self.ended);
        let mut start = self.start;
        for (place, transfer) in self.transfers.iter().enumerate() {
            if place > 0 {
                start = start.max(transfer.ready);
            }
            // The first may have run for some time.
            let end = start.max(now) + transfer.left;
            placed.push((transfer.op, start, end));
            start = end;
        }
        placed
    }
}
