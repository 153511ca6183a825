//! Collectives that share a link.
//!
//! A second communicator's collectives run beside those of its process group, over the same link.
//! Of n that transfer at the same time each gets the n-th part of the bandwidth; latency is not
//! shared. Time is cut where one of them starts, begins to transfer or ends, and between two cuts
//! all rates are constant. What runs alone has one rate from start to end, so that its end is the
//! sum that it is on streams that share nothing, to the last bit.

use std::collections::VecDeque;

use super::Machine;
use super::beside::Placed;
use crate::cost::{CostLines, Times};
use crate::graph::{Graph, Streams};
use crate::ids::{IdVec, OpId, StreamId};
use crate::units::Nanos;

/// Which part of every collective's time is latency, where streams share links.
#[derive(Clone, Debug, PartialEq)]
pub struct Sharing {
    latency: IdVec<OpId, f64>,
}

impl Sharing {
    /// Latencies are those of a line through the times of a group's collectives of one kind. Where
    /// sizes give no such line, all of the time is shared. `None` if no streams share a link.
    pub fn of(graph: &Graph, streams: &Streams, times: &Times) -> Option<Sharing> {
        if !streams.share_links() {
            return None;
        }
        let lines = CostLines::fitted(graph, |op| Some(times.of(op)));
        let part = |op: OpId| {
            let line = graph.collective(op).and_then(|of| lines.of(of));
            let part = line.map_or(0.0, |line| line.latency.0 / times.of(op).0);
            if part.is_finite() { part.min(1.0) } else { 0.0 }
        };
        Some(Sharing { latency: graph.ops().map(part).collect() })
    }

    /// What a collective that takes this time does before it transfers.
    pub fn latency(&self, op: OpId, time: Nanos) -> Nanos {
        time * self.latency[op]
    }
}

/// The collectives of all streams that have not ended.
pub(super) struct SharedLinks<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    links: LinkQueues<'a>,
    /// The ends that nothing changes any more.
    ended: IdVec<OpId, Option<Nanos>>,
    /// Those that were not reported yet.
    news: Vec<Placed>,
}

/// A collective that has not started.
#[derive(Clone)]
struct QueuedTransfer {
    op: OpId,
    /// The earliest start, whatever is ahead of it and whatever it needs.
    ready: Nanos,
    /// What it needs that had not ended when it was issued.
    gates: Vec<OpId>,
    time: Nanos,
    /// The part of the time in which it transfers.
    shared: Nanos,
}

/// A collective that has started.
#[derive(Clone)]
struct RunningTransfer {
    op: OpId,
    start: Nanos,
    /// Since when it has its present pace.
    since: Nanos,
    /// What was left then, if it ran alone.
    left: Nanos,
    shared: Nanos,
    /// Whether its latency has passed.
    transfers: bool,
    /// How many times longer than alone it takes now.
    pace: f64,
}

impl RunningTransfer {
    fn end(&self) -> Nanos {
        self.since + self.left * self.pace
    }

    /// When it begins to transfer.
    fn latency_end(&self) -> Nanos {
        self.since + (self.left - self.shared) * self.pace
    }

    fn next_change(&self) -> Nanos {
        if self.transfers { self.end() } else { self.latency_end().min(self.end()) }
    }

    fn set_pace(&mut self, pace: f64, at: Nanos) {
        if pace != self.pace {
            self.left = (self.left - (at - self.since) * (1.0 / self.pace)).max(Nanos::ZERO);
            (self.since, self.pace) = (at, pace);
        }
    }
}

#[derive(Clone, Default)]
struct LinkQueue {
    running: Option<RunningTransfer>,
    waiting: VecDeque<QueuedTransfer>,
    /// When the last one ended.
    free: Nanos,
}

/// Everything under way at one time.
#[derive(Clone)]
struct LinkQueues<'a> {
    streams: &'a Streams,
    queues: IdVec<StreamId, LinkQueue>,
    at: Nanos,
    /// What has ended since this was last emptied.
    ended: Vec<Placed>,
}

impl<'a> SharedLinks<'a> {
    pub fn new(graph: &'a Graph, machine: &'a Machine) -> SharedLinks<'a> {
        let streams = &machine.streams;
        let queues = IdVec::filled(LinkQueue::default(), streams.len());
        SharedLinks {
            graph,
            machine,
            links: LinkQueues { streams, queues, at: Nanos::ZERO, ended: Vec::new() },
            ended: IdVec::filled(None, graph.len()),
            news: Vec::new(),
        }
    }

    /// Adds a collective that is issued at `now`; `ready` does not count what it needs.
    pub fn issue(&mut self, op: OpId, ready: Nanos, now: Nanos) {
        self.settle(now, 1.0);
        let Some(stream) = self.machine.streams.of(op) else { return };
        let time = self.machine.times.of(op);
        let latency = self.machine.sharing.as_ref().map(|sharing| sharing.latency(op, time));
        let needs = self.graph.gated_by(op);
        let known = needs.iter().filter_map(|&need| self.ended[need]);
        let transfer = QueuedTransfer {
            op,
            ready: known.fold(ready, Nanos::max),
            gates: needs.iter().copied().filter(|&need| self.ended[need].is_none()).collect(),
            time,
            shared: time - latency.unwrap_or(Nanos::ZERO),
        };
        self.links.queues[stream].waiting.push_back(transfer);
    }

    /// Whether compute and what communicates beside it slow each other.
    pub fn slows_compute(&self) -> bool {
        self.machine.slowdown > 1.0 || self.machine.comm_slowdown > 1.0
    }

    /// Runs compute from `start` on, and returns its end.
    pub fn run_beside(&mut self, start: Nanos, time: Nanos) -> Nanos {
        let Machine { slowdown, comm_slowdown, .. } = *self.machine;
        self.settle(start, 1.0);
        let mut left = time;
        while left > Nanos::ZERO {
            let slowdown = if self.links.runs() { slowdown } else { 1.0 };
            let done = self.links.at + left * slowdown;
            self.links.set_paces(comm_slowdown);
            let until = self.links.next_change().min(done);
            left = if until < done {
                left - (until - self.links.at) * (1.0 / slowdown)
            } else {
                Nanos::ZERO
            };
            self.settle(until, comm_slowdown);
        }
        self.links.at
    }

    /// The starts and ends of those that ended since the last call, and of those in flight if
    /// nothing else is issued or computes.
    pub fn placed(&mut self) -> Vec<Placed> {
        let mut placed = std::mem::take(&mut self.news);
        let mut ahead = self.links.clone();
        ahead.advance(Nanos(f64::INFINITY), 1.0);
        placed.append(&mut ahead.ended);
        placed
    }

    /// What happens until a time is final: nothing that is issued later starts before.
    fn settle(&mut self, until: Nanos, slowdown: f64) {
        self.links.advance(until, slowdown);
        for (op, start, end) in std::mem::take(&mut self.links.ended) {
            self.ended[op] = Some(end);
            self.links.open(op, end);
            self.news.push((op, start, end));
        }
    }
}

impl LinkQueues<'_> {
    fn runs(&self) -> bool {
        self.queues.as_slice().iter().any(|queue| queue.running.is_some())
    }

    /// Those that need one that has ended need not look for it any more.
    fn open(&mut self, gate: OpId, end: Nanos) {
        let queues = self.queues.as_mut_slice().iter_mut();
        for waiting in queues.flat_map(|queue| &mut queue.waiting) {
            if waiting.gates.contains(&gate) {
                waiting.gates.retain(|&op| op != gate);
                waiting.ready = waiting.ready.max(end);
            }
        }
    }

    /// Advances time, during which all take this many times longer, besides what they share.
    fn advance(&mut self, until: Nanos, slowdown: f64) {
        self.set_paces(slowdown);
        loop {
            let next = self.next_change();
            if next > until || next.0 == f64::INFINITY {
                break;
            }
            self.at = self.at.max(next);
            self.end_some();
            self.start_some();
            self.set_paces(slowdown);
        }
        self.at = self.at.max(until);
    }

    /// When the next one starts, begins to transfer or ends.
    fn next_change(&self) -> Nanos {
        let changes = self.queues.as_slice().iter().filter_map(|queue| match &queue.running {
            Some(running) => Some(running.next_change()),
            None => self.next_start(queue),
        });
        changes.fold(Nanos(f64::INFINITY), Nanos::min)
    }

    /// When the first one of a free stream starts, if all that it needs has ended.
    fn next_start(&self, queue: &LinkQueue) -> Option<Nanos> {
        let first = queue.waiting.front()?;
        let end = |gate: &OpId| {
            let ended = self.ended.iter().rev().find(|(op, ..)| op == gate);
            ended.map(|&(_, _, end)| end)
        };
        let ready = queue.free.max(first.ready);
        first.gates.iter().try_fold(ready, |ready, gate| Some(ready.max(end(gate)?)))
    }

    /// Ends what ends now, and lets transfer what has waited for its latency.
    fn end_some(&mut self) {
        for queue in self.queues.as_mut_slice() {
            let Some(running) = &mut queue.running else { continue };
            running.transfers |= running.latency_end() <= self.at;
            if running.end() <= self.at {
                queue.free = running.end();
                self.ended.push((running.op, running.start, queue.free));
                queue.running = None;
            }
        }
    }

    fn start_some(&mut self) {
        for stream in self.queues.ids() {
            let queue = &self.queues[stream];
            let start = self.next_start(queue).filter(|&start| start <= self.at);
            let Some(start) = start.filter(|_| queue.running.is_none()) else { continue };
            let queue = &mut self.queues[stream];
            queue.running = queue.waiting.pop_front().map(|first| RunningTransfer {
                op: first.op,
                start,
                since: start,
                left: first.time,
                shared: first.shared,
                transfers: first.shared >= first.time,
                pace: 1.0,
            });
        }
    }

    /// Divides every link among those that transfer over it.
    fn set_paces(&mut self, slowdown: f64) {
        let mut transferring: IdVec<StreamId, u32> = IdVec::filled(0, self.queues.len());
        for (stream, queue) in self.queues.iter() {
            let transfers = queue.running.as_ref().is_some_and(|running| running.transfers);
            transferring[self.streams.link(stream)] += u32::from(transfers);
        }
        for stream in self.queues.ids() {
            let sharers = f64::from(transferring[self.streams.link(stream)]);
            if let Some(running) = &mut self.queues[stream].running {
                let shared = if running.transfers { sharers } else { 1.0 };
                running.set_pace(slowdown * shared, self.at);
            }
        }
    }
}
