//! The board in time.

use super::{Board, Move};
use crate::graph::OpKind;

/// How many places a collective is looked for that another one queued behind.
const FAR_AHEAD: usize = 64;

/// Room for the question what a move would do.
pub(super) struct Trial {
    /// When a collective would end, if its stamp is this question's.
    end: Vec<f64>,
    stamps: Vec<u32>,
    stamp: u32,
    free: Vec<f64>,
}

/// Where the streams stand before a place.
struct Front<'a> {
    now: f64,
    free: &'a [f64],
}

impl Trial {
    pub(super) fn new(len: usize, streams: usize) -> Trial {
        Trial { end: vec![0.0; len], stamps: vec![0; len], stamp: 0, free: vec![0.0; streams] }
    }

    fn begin(&mut self, free: &[f64]) {
        self.free.copy_from_slice(free);
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.stamps.fill(0);
            self.stamp = 1;
        }
    }

    #[inline(always)]
    fn end_of(&self, op: usize, otherwise: &[f64]) -> f64 {
        if self.stamps[op] == self.stamp { self.end[op] } else { otherwise[op] }
    }
}

impl Board<'_> {
    /// The step time.
    pub(in super::super) fn step_time(&mut self) -> f64 {
        let (place, streams) = (self.region.1, self.program.streams);
        self.reach(place, place);
        let free = &self.free[place * streams..(place + 1) * streams];
        self.cut(place, Front { now: self.now[place], free }, |op| self.end[op])
    }

    /// The step time after a move.
    pub(in super::super) fn ask_time(&mut self, step: Move) -> f64 {
        let (first, end) = (step.first(), step.last() + 1);
        let streams = self.program.streams;
        let moved = self.order[step.from];
        self.reach(first, end);
        self.work += (end - first + self.under_way.len() / 4) as u64 + streams as u64;
        self.trial.begin(&self.free[first * streams..(first + 1) * streams]);
        let mut now = self.now[first];
        if step.to < step.from {
            now = self.try_op(moved, now);
            for place in first..end - 1 {
                now = self.try_op(self.order[place], now);
            }
        } else {
            for place in first + 1..end {
                now = self.try_op(self.order[place], now);
            }
            now = self.try_op(moved, now);
        }
        self.cut(end, Front { now, free: &self.trial.free }, |op| self.trial.end_of(op, &self.end))
    }

    /// The step time as the order is now, where times in the span of a move are out of date.
    pub(in super::super) fn ask_unsettled(&mut self, span: Move) -> f64 {
        let (first, end) = (span.first(), span.last() + 1);
        let streams = self.program.streams;
        self.reach(first, end);
        self.work += (end - first + self.under_way.len() / 4) as u64 + streams as u64;
        self.trial.begin(&self.free[first * streams..(first + 1) * streams]);
        let mut now = self.now[first];
        for place in first..end {
            now = self.try_op(self.order[place], now);
        }
        self.cut(end, Front { now, free: &self.trial.free }, |op| self.trial.end_of(op, &self.end))
    }

    /// The longest path through a cut before `place`, given what holds there.
    #[inline(always)]
    fn cut(&self, place: usize, front: Front<'_>, end_of: impl Fn(usize) -> f64) -> f64 {
        let streams = self.program.streams;
        let mut longest = front.now + self.tail_now[place];
        for (free, tail) in front.free.iter().zip(&self.tail_free[place * streams..]) {
            longest = longest.max(free + tail);
        }
        for &op in &self.under_way {
            let op = op as usize;
            if self.pos[op] as usize >= place {
                break;
            }
            for &gate in self.program.gates.of(op) {
                if self.pos[gate as usize] as usize >= place {
                    longest = longest.max(end_of(op) + self.tail[gate as usize]);
                }
            }
        }
        longest
    }

    /// Runs one operation of a question; gives when the compute stream is done with it.
    #[inline(always)]
    fn try_op(&mut self, op: u32, now: f64) -> f64 {
        let (program, op) = (self.program, op as usize);
        let gates = program.gated_by.of(op).iter();
        let ready =
            gates.fold(now, |ready, &gate| ready.max(self.trial.end_of(gate as usize, &self.end)));
        if !program.kind[op].is_collective() {
            return ready + program.time[op];
        }
        let free = &mut self.trial.free[program.stream[op] as usize];
        *free = ready.max(*free) + program.time[op];
        self.trial.end[op] = *free;
        self.trial.stamps[op] = self.trial.stamp;
        if program.kind[op] == OpKind::SyncCollective { *free } else { now }
    }

    /// Brings times up to date for a question about what stands between two places: `now`, `free` and
    /// `end` up to the first one, tails from the second one on.
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
        let now = self.now[place];
        let gates = program.gated_by.of(op).iter();
        let ready = gates.fold(now, |ready, &gate| ready.max(self.end[gate as usize]));
        let (before, after) = self.free.split_at_mut((place + 1) * streams);
        after[..streams].copy_from_slice(&before[place * streams..]);
        if !program.kind[op].is_collective() {
            self.now[place + 1] = ready + program.time[op];
            return;
        }
        let free = &mut after[program.stream[op] as usize];
        *free = ready.max(*free) + program.time[op];
        self.end[op] = *free;
        self.now[place + 1] = if program.kind[op] == OpKind::AsyncCollective { now } else { *free };
    }

    /// The tails of the operation at a place.
    #[inline(always)]
    fn backward(&mut self, place: usize) {
        let (program, streams) = (self.program, self.program.streams);
        self.work += 2 + streams as u64 / 4;
        let op = self.order[place] as usize;
        let (before, after) = self.tail_free.split_at_mut((place + 1) * streams);
        let before = &mut before[place * streams..];
        before.copy_from_slice(&after[..streams]);
        let stream = program.stream[op] as usize;
        let tail_now = self.tail_now[place + 1];
        let behind = match program.kind[op] {
            OpKind::Compute | OpKind::Wait | OpKind::MultiOutput => tail_now,
            OpKind::SyncCollective => tail_now.max(after[stream]),
            OpKind::AsyncCollective => {
                let gates = program.gates.of(op).iter();
                gates.fold(after[stream], |most, &gate| most.max(self.tail[gate as usize]))
            }
        };
        let tail = program.time[op] + behind;
        self.tail[op] = tail;
        self.tail_now[place] =
            if program.kind[op] == OpKind::AsyncCollective { tail_now.max(tail) } else { tail };
        if program.kind[op].is_collective() {
            before[stream] = tail;
        }
    }
}

impl Board<'_> {
    /// The collective that the operation at a place waits for, if it does, as far as is known.
    pub(in super::super) fn stall(&self, place: usize) -> Option<u32> {
        let op = self.order[place] as usize;
        let now = self.now[place];
        let gates = self.program.gated_by.of(op).iter().copied();
        let late = gates.filter(|&gate| self.end[gate as usize] > now);
        late.max_by(|&a, &b| self.end[a as usize].total_cmp(&self.end[b as usize]))
            .filter(|_| self.program.kind[op] != OpKind::AsyncCollective)
    }

    /// The collective that another one queued behind, if it did.
    pub(in super::super) fn queued_behind(&self, op: u32) -> Option<u32> {
        let program = self.program;
        let start = self.end[op as usize] - program.time[op as usize];
        let is_ahead = |other: &&u32| {
            let other = **other as usize;
            program.kind[other].is_collective()
                && program.stream[other] == program.stream[op as usize]
        };
        let ahead =
            self.order[..self.place(op)].iter().rev().take(FAR_AHEAD).find(is_ahead).copied();
        ahead.filter(|&ahead| self.end[ahead as usize] >= start)
    }

    /// Where an operation stands.
    pub(in super::super) fn place(&self, op: u32) -> usize {
        self.pos[op as usize] as usize
    }

    /// By how much collectives end before they are needed, each counted up to its own run time: what
    /// an order can take before times that are off cost anything.
    pub(in super::super) fn slack(&mut self) -> f64 {
        let program = self.program;
        self.reach(program.len, program.len);
        let asynchronous =
            (0..program.len).filter(|&op| program.kind[op] == OpKind::AsyncCollective);
        let spare = |op: usize| {
            let needed =
                program.gates.of(op).iter().map(|&gate| self.now[self.pos[gate as usize] as usize]);
            let needed = needed.fold(f64::INFINITY, f64::min);
            (needed - self.end[op]).clamp(0.0, program.time[op])
        };
        asynchronous.map(spare).sum()
    }
}
