//! The board in time.

use std::ops::Range;

use super::{Board, Move};
use crate::graph::OpKind;

/// How many places are searched for the collective that another one queued behind.
const FAR_AHEAD: usize = 64;

/// Scratch space for evaluating a move.
pub(super) struct Trial {
    ends: Vec<TriedEnd>,
    stamp: u32,
    free: Vec<f64>,
    /// The asynchronous collectives in the span of the move.
    launched: Vec<u32>,
}

/// The end of a collective after the move, if the stamp is current.
#[derive(Clone, Copy)]
struct TriedEnd {
    end: f64,
    stamp: u32,
}

impl Trial {
    pub(super) fn new(len: usize, streams: usize) -> Trial {
        Trial {
            ends: vec![TriedEnd { end: 0.0, stamp: 0 }; len],
            stamp: 0,
            free: vec![0.0; streams],
            launched: Vec::new(),
        }
    }

    fn begin(&mut self, free: &[f64]) {
        self.free.copy_from_slice(free);
        self.launched.clear();
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.ends.fill(TriedEnd { end: 0.0, stamp: 0 });
            self.stamp = 1;
        }
    }

    #[inline(always)]
    fn end_of(&self, op: usize, otherwise: &[f64]) -> f64 {
        let tried = self.ends[op];
        if tried.stamp == self.stamp { tried.end } else { otherwise[op] }
    }
}

/// The later of two times. None is NaN, which `f64::max` would check for.
#[inline(always)]
fn later(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

impl Board<'_> {
    /// The step time.
    pub(in super::super) fn step_time(&mut self) -> f64 {
        let place = self.region.end;
        self.reach(place, place);
        let free = &self.free[place * self.program.streams..];
        let longest = self.onward(place, self.now[place], free);
        self.across(place..place, longest, f64::INFINITY)
    }

    /// The step time after a move, if the current one is `known`.
    pub(in super::super) fn ask_time(&mut self, step: Move, known: f64) -> f64 {
        let span = step.first()..step.last() + 1;
        let moved = self.order[step.from];
        let mut now = self.begin(&span);
        if step.to < step.from {
            now = self.try_op(moved, now);
            for place in span.start..span.end - 1 {
                now = self.try_op(self.order[place], now);
            }
        } else {
            for place in span.start + 1..span.end {
                now = self.try_op(self.order[place], now);
            }
            now = self.try_op(moved, now);
        }
        self.asked(span, now, known)
    }

    /// The step time as the order is now, where times in the span of a move are out of date; it was
    /// `known` before.
    pub(in super::super) fn ask_unsettled(&mut self, step: Move, known: f64) -> f64 {
        let span = step.first()..step.last() + 1;
        let mut now = self.begin(&span);
        for place in span.clone() {
            now = self.try_op(self.order[place], now);
        }
        self.asked(span, now, known)
    }

    /// Starts evaluating a span; returns when the compute stream reaches it.
    fn begin(&mut self, span: &Range<usize>) -> f64 {
        let streams = self.program.streams;
        self.reach(span.start, span.end);
        self.work += (span.len() + self.under_way.len() / 4) as u64 + streams as u64;
        self.trial.begin(&self.free[span.start * streams..(span.start + 1) * streams]);
        self.now[span.start]
    }

    /// The step time after the operations of a span have been evaluated.
    fn asked(&self, span: Range<usize>, now: f64, known: f64) -> f64 {
        let mut longest = self.onward(span.end, now, &self.trial.free);
        for &op in &self.trial.launched {
            let ended = self.trial.ends[op as usize].end;
            longest = later(longest, self.through(op as usize, ended, span.end));
        }
        self.across(span, longest, known)
    }

    /// The longest path from the streams' state before a place.
    #[inline(always)]
    fn onward(&self, place: usize, now: f64, free: &[f64]) -> f64 {
        let streams = self.program.streams;
        let tails = &self.tail_free[place * streams..(place + 1) * streams];
        let paths = free.iter().zip(tails).map(|(free, tail)| free + tail);
        paths.fold(now + self.tail_now[place], later)
    }

    /// The longest of the paths through a collective to places from `place` on.
    #[inline(always)]
    fn through(&self, op: usize, ended: f64, place: usize) -> f64 {
        let gates = self.program.gates(&self.program.ops[op]).iter();
        let beyond = gates.filter(|&&gate| self.pos[gate as usize] as usize >= place);
        beyond.fold(0.0, |most, &gate| later(most, ended + self.tail[gate as usize]))
    }

    /// The longest of a path and of those through what is under way across all of a span. These are
    /// unchanged, and so not longer than `known`: once that is reached, they need not be examined.
    fn across(&self, span: Range<usize>, mut longest: f64, known: f64) -> f64 {
        for &op in &self.under_way {
            let op = op as usize;
            if longest >= known || self.pos[op] as usize >= span.start {
                break;
            }
            longest = later(longest, self.through(op, self.end[op], span.end));
        }
        longest
    }

    /// Runs one operation in an evaluation; returns when the compute stream is done with it.
    #[inline(always)]
    fn try_op(&mut self, op: u32, now: f64) -> f64 {
        let program = self.program;
        let row = &program.ops[op as usize];
        let gates = program.gated_by(row).iter();
        let ready = gates
            .fold(now, |ready, &gate| later(ready, self.trial.end_of(gate as usize, &self.end)));
        if !row.kind.is_collective() {
            return ready + row.time;
        }
        let free = &mut self.trial.free[row.stream as usize];
        *free = later(ready, *free) + row.time;
        self.trial.ends[op as usize] = TriedEnd { end: *free, stamp: self.trial.stamp };
        if row.kind == OpKind::SyncCollective {
            return *free;
        }
        self.trial.launched.push(op);
        now
    }

    /// Updates times for evaluating operations between two places: `now`, `free` and `end` up to
    /// the first one, tails from the second one on.
    pub(super) fn reach(&mut self, first: usize, end: usize) {
        while self.ahead < first {
            self.forward(self.ahead);
            self.ahead += 1;
        }
        while self.behind > end {
            self.behind -= 1;
            self.backward(self.behind);
        }
    }

    /// Runs the operation at a place.
    #[inline(always)]
    fn forward(&mut self, place: usize) {
        let (program, streams) = (self.program, self.program.streams);
        self.work += 2 + streams as u64 / 4;
        let op = self.order[place] as usize;
        let row = &program.ops[op];
        let now = self.now[place];
        let gates = program.gated_by(row).iter();
        let ready = gates.fold(now, |ready, &gate| later(ready, self.end[gate as usize]));
        let (before, after) = self.free.split_at_mut((place + 1) * streams);
        copy_few(&before[place * streams..], after);
        if !row.kind.is_collective() {
            self.now[place + 1] = ready + row.time;
            return;
        }
        let free = &mut after[row.stream as usize];
        *free = later(ready, *free) + row.time;
        self.end[op] = *free;
        self.now[place + 1] = if row.kind == OpKind::AsyncCollective { now } else { *free };
    }

    /// The tails of the operation at a place.
    #[inline(always)]
    fn backward(&mut self, place: usize) {
        let (program, streams) = (self.program, self.program.streams);
        self.work += 2 + streams as u64 / 4;
        let op = self.order[place] as usize;
        let row = &program.ops[op];
        let (before, after) = self.tail_free.split_at_mut((place + 1) * streams);
        let before = &mut before[place * streams..];
        copy_few(&after[..streams], before);
        let stream = row.stream as usize;
        let tail_now = self.tail_now[place + 1];
        let behind = match row.kind {
            OpKind::Compute | OpKind::Wait | OpKind::MultiOutput => tail_now,
            OpKind::SyncCollective => later(tail_now, after[stream]),
            OpKind::AsyncCollective => {
                let gates = program.gates(row).iter();
                gates.fold(after[stream], |most, &gate| later(most, self.tail[gate as usize]))
            }
        };
        let tail = row.time + behind;
        self.tail[op] = tail;
        self.tail_now[place] =
            if row.kind == OpKind::AsyncCollective { later(tail_now, tail) } else { tail };
        if row.kind.is_collective() {
            before[stream] = tail;
        }
    }

    /// Updates all times after operations in a span changed places, if they were up to date before.
    /// Returns the place from which on nothing has changed.
    pub(in super::super) fn rerun(&mut self, step: Move) -> usize {
        let streams = self.program.streams;
        let mut same_from = step.last() + 1;
        let mut place = step.first();
        while place < same_from.min(self.program.len) {
            let op = self.order[place] as usize;
            let next = (place + 1) * streams..(place + 2) * streams;
            let (now, end) = (self.now[place + 1], self.end[op]);
            self.trial.free.copy_from_slice(&self.free[next.clone()]);
            self.forward(place);
            place += 1;
            if self.now[place] != now || self.free[next] != self.trial.free {
                same_from = same_from.max(place + 1);
            }
            if self.end[op] != end {
                let gates = self.program.gates(&self.program.ops[op]).iter();
                let last = gates.map(|&gate| self.pos[gate as usize] as usize + 1).max();
                same_from = same_from.max(last.unwrap_or(0));
            }
        }
        self.ahead = self.program.len;
        place
    }
}

/// Copies the numbers of one place: so few that a library call would take longer.
#[inline(always)]
fn copy_few(from: &[f64], to: &mut [f64]) {
    match *from {
        [one] => to[0] = one,
        [one, two] => (to[0], to[1]) = (one, two),
        _ => to[..from.len()].copy_from_slice(from),
    }
}

impl Board<'_> {
    /// The collective that the operation at a place waits for, if it does, as far as is known.
    pub(in super::super) fn stall(&self, place: usize) -> Option<u32> {
        let row = &self.program.ops[self.order[place] as usize];
        if row.kind == OpKind::AsyncCollective {
            return None;
        }
        let gates = self.program.gated_by(row).iter().copied();
        let late = gates.filter(|&gate| self.end[gate as usize] > self.now[place]);
        late.max_by(|&a, &b| self.end[a as usize].total_cmp(&self.end[b as usize]))
    }

    /// The collective that another one queued behind, if it did.
    pub(in super::super) fn queued_behind(&self, op: u32) -> Option<u32> {
        let rows = &self.program.ops;
        let row = &rows[op as usize];
        let is_ahead = |&&other: &&u32| {
            let other = &rows[other as usize];
            other.kind.is_collective() && other.stream == row.stream
        };
        let ahead =
            self.order[..self.place(op)].iter().rev().take(FAR_AHEAD).find(is_ahead).copied();
        let start = self.end[op as usize] - row.time;
        ahead.filter(|&ahead| self.end[ahead as usize] >= start)
    }

    /// Where an operation is.
    pub(in super::super) fn place(&self, op: u32) -> usize {
        self.pos[op as usize] as usize
    }

    /// By how much collectives end before they are needed, each counted up to its own run time: how
    /// much inaccuracy of run times an order tolerates.
    pub(in super::super) fn slack(&mut self) -> f64 {
        self.reach(self.program.len, self.program.len);
        (0..self.program.len).map(|op| self.slack_of(op)).sum()
    }

    /// By how much an operation ends before it is needed, up to its own run time, if it is an
    /// asynchronous collective.
    pub(in super::super) fn slack_of(&self, op: usize) -> f64 {
        let row = &self.program.ops[op];
        if row.kind != OpKind::AsyncCollective {
            return 0.0;
        }
        let gates = self.program.gates(row).iter();
        let needed = gates.map(|&gate| self.now[self.pos[gate as usize] as usize]);
        let needed = needed.fold(f64::INFINITY, f64::min);
        (needed - self.end[op]).clamp(0.0, row.time)
    }
}
