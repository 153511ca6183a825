//! Streams: when everything would really run.
//!
//! One compute stream runs compute operations and waits, in order. Each communication stream runs
//! its collectives in the order in which they are issued. A collective starts when the compute
//! stream has come to it, what it needs is there and its stream is free; an operation that needs a
//! collective's result stops the compute stream until it is there; a synchronous collective occupies
//! both streams. The step ends when everything has.
//!
//! Two effects can be added: compute is slower while communication runs beside it, and the host
//! needs time to issue an operation, which cannot start before it was issued.

mod bound;
mod exposure;

pub use bound::{is_optimal, lower_bound};
pub use exposure::{Cause, Exposure};

use crate::cost::Times;
use crate::graph::{Assignment, Edges, Graph, OpKind, Streams};
use crate::ids::{IdVec, OpId, StreamId};
use crate::units::Nanos;

/// What orders are simulated on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Which collectives take turns.
    pub streams: Streams,
    /// How long operations take.
    pub times: Times,
    /// How much slower compute is while communication runs beside it: 1 is not at all.
    pub slowdown: f64,
    /// What the host needs to issue an operation.
    pub launch: Nanos,
    /// Before when each collective cannot start, because another rank comes later.
    pub peers: Option<IdVec<OpId, Nanos>>,
}

impl Machine {
    /// Streams by shared ranks, no contention, a host that takes no time, ranks that keep step.
    pub fn new(graph: &Graph, times: Times) -> Machine {
        let streams = Streams::assign(graph, Assignment::SharedRanks);
        Machine { streams, times, slowdown: 1.0, launch: Nanos::ZERO, peers: None }
    }
}

/// An order in time.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// When everything has ended.
    pub step_time: Nanos,
    /// When each operation starts.
    pub start: IdVec<OpId, Nanos>,
    /// When each operation ends.
    pub end: IdVec<OpId, Nanos>,
    /// Where the compute stream stood still, and why.
    pub exposures: Vec<Exposure>,
    /// How long the compute stream stood still before the step's end.
    pub compute_idle: Nanos,
    /// How long each communication stream stood still before the step's end.
    pub stream_idle: IdVec<StreamId, Nanos>,
}

/// Runs an order.
pub fn simulate(graph: &Graph, order: &[OpId], machine: &Machine) -> Simulation {
    let mut clock = Clock::new(graph, machine);
    for &op in order {
        clock.run(op);
    }
    clock.finish()
}

struct Clock<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    /// When the host has issued all so far.
    host: Nanos,
    /// When the compute stream is done with all so far.
    now: Nanos,
    free: IdVec<StreamId, Nanos>,
    busy: IdVec<StreamId, Nanos>,
    /// When communication runs, ascending and apart; only what may still lie ahead of `now`.
    communication: Vec<(Nanos, Nanos)>,
    /// The collectives of each stream, in the order in which they were issued.
    issued: IdVec<StreamId, Vec<OpId>>,
    compute_busy: Nanos,
    start: IdVec<OpId, Nanos>,
    end: IdVec<OpId, Nanos>,
    exposures: Vec<Exposure>,
}

impl<'a> Clock<'a> {
    fn new(graph: &'a Graph, machine: &'a Machine) -> Clock<'a> {
        let streams = machine.streams.len();
        Clock {
            graph,
            machine,
            host: Nanos::ZERO,
            now: Nanos::ZERO,
            free: IdVec::filled(Nanos::ZERO, streams),
            busy: IdVec::filled(Nanos::ZERO, streams),
            communication: Vec::new(),
            issued: IdVec::filled(Vec::new(), streams),
            compute_busy: Nanos::ZERO,
            start: IdVec::filled(Nanos::ZERO, graph.len()),
            end: IdVec::filled(Nanos::ZERO, graph.len()),
            exposures: Vec::new(),
        }
    }

    fn run(&mut self, op: OpId) {
        self.host += self.machine.launch;
        match self.graph.kind(op) {
            OpKind::AsyncCollective => self.start_collective(op),
            OpKind::SyncCollective => self.run_synchronous(op),
            OpKind::Compute | OpKind::Wait => self.run_compute(op),
        }
    }

    fn start_collective(&mut self, op: OpId) {
        let Some(stream) = self.machine.streams.of(op) else { return };
        let mut start = self.now.max(self.host).max(self.free[stream]).max(self.peers_ready(op));
        for &pred in self.graph.preds(op, Edges::Real) {
            start = start.max(self.end[pred]);
        }
        let end = start + self.machine.times.of(op);
        (self.start[op], self.end[op], self.free[stream]) = (start, end, end);
        self.busy[stream] += self.machine.times.of(op);
        self.issued[stream].push(op);
        if self.machine.slowdown > 1.0 && end > start {
            self.add_communication(start, end);
        }
    }

    fn run_synchronous(&mut self, op: OpId) {
        let ready = self.ready(op);
        let stream = self.machine.streams.of(op);
        let start = stream.map_or(ready, |stream| ready.max(self.free[stream])).max(self.peers_ready(op));
        let time = self.machine.times.of(op);
        self.stall(op, start);
        self.now = start + time;
        (self.start[op], self.end[op]) = (start, self.now);
        if let Some(stream) = stream {
            self.free[stream] = self.now;
            self.busy[stream] += time;
            self.issued[stream].push(op);
        }
        self.exposures.push(Exposure { at: op, of: op, start, time, cause: Cause::Synchronous });
    }

    fn run_compute(&mut self, op: OpId) {
        let start = self.ready(op);
        self.stall(op, start);
        let end = self.finish_compute(start, self.machine.times.of(op));
        self.compute_busy += end - start;
        self.now = end;
        (self.start[op], self.end[op]) = (start, end);
    }

    /// When all other ranks have come to a collective.
    fn peers_ready(&self, op: OpId) -> Nanos {
        self.machine.peers.as_ref().map_or(Nanos::ZERO, |peers| peers[op])
    }

    /// When the compute stream could go on with `op`: only collectives can make it stop, because all
    /// else ran on it before.
    fn ready(&self, op: OpId) -> Nanos {
        let preds = self.graph.preds(op, Edges::Real).iter();
        let collectives = preds.filter(|&&pred| self.graph.kind(pred).is_collective());
        collectives.fold(self.now.max(self.host), |ready, &pred| ready.max(self.end[pred]))
    }

    /// When compute that starts at `start` ends, slowed while communication runs.
    fn finish_compute(&mut self, start: Nanos, time: Nanos) -> Nanos {
        let slowdown = self.machine.slowdown;
        if slowdown <= 1.0 {
            return start + time;
        }
        self.communication.retain(|&(_, end)| end > start);
        let (mut at, mut left) = (start, time);
        for &(from, until) in &self.communication {
            let alone = (from - at).max(Nanos::ZERO);
            if left <= alone {
                break;
            }
            left -= alone;
            at = at.max(from);
            let beside = (until - at) * (1.0 / slowdown);
            if left <= beside {
                return at + left * slowdown;
            }
            left -= beside;
            at = until;
        }
        at + left
    }

    /// Merges an interval into those when communication runs.
    fn add_communication(&mut self, mut start: Nanos, mut end: Nanos) {
        self.communication.retain(|&(from, until)| {
            let apart = until < start || end < from;
            if !apart {
                (start, end) = (Nanos(start.0.min(from.0)), end.max(until));
            }
            apart
        });
        let place = self.communication.partition_point(|&(from, _)| from < start);
        self.communication.insert(place, (start, end));
    }

    fn finish(self) -> Simulation {
        let step_time = self.end.as_slice().iter().fold(Nanos::ZERO, |latest, &end| latest.max(end));
        let mut exposures = self.exposures;
        let trailing = step_time - self.now;
        if trailing > Nanos::ZERO {
            let last = self.end.iter().find(|(_, end)| **end == step_time).map(|(op, _)| op);
            let (start, time, cause) = (self.now, trailing, Cause::EndOfStep);
            exposures.extend(last.map(|op| Exposure { at: op, of: op, start, time, cause }));
        }
        Simulation {
            step_time,
            start: self.start,
            end: self.end,
            exposures,
            compute_idle: step_time - self.compute_busy,
            stream_idle: self.busy.as_slice().iter().map(|&busy| step_time - busy).collect(),
        }
    }

    /// Notes that the compute stream stands still until `until` for `op`.
    fn stall(&mut self, op: OpId, until: Nanos) {
        if until <= self.now {
            return;
        }
        let preds = self.graph.preds(op, Edges::Real).iter().copied();
        let waited = preds.filter(|&pred| self.graph.kind(pred).is_collective() && self.end[pred] >= until).min();
        match waited {
            Some(of) => self.expose(op, of, until),
            None => {
                let (start, time) = (self.now, until - self.now);
                self.exposures.push(Exposure { at: op, of: op, start, time, cause: Cause::Issued });
            }
        }
    }

    /// Charges a stall to the collectives that ran on the stream in that time: the one that is waited
    /// for, and those that it had to queue behind.
    fn expose(&mut self, at: OpId, of: OpId, until: Nanos) {
        let mut left = until;
        let issued = self.machine.streams.of(of).map_or(&[][..], |stream| self.issued[stream].as_slice());
        for &running in issued.iter().rev().skip_while(|&&op| op != of) {
            let from = self.start[running].max(self.now);
            if left > from && self.end[running] > self.now {
                let time = left - from;
                self.exposures.push(Exposure { at, of: running, start: from, time, cause: Cause::Needed });
                left = from;
            }
            if left <= self.now {
                return;
            }
        }
        self.exposures.push(Exposure { at, of, start: self.now, time: left - self.now, cause: Cause::Needed });
    }
}
