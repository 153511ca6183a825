//! Why communication is still exposed, and who owns the peak.

use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{BufId, Id, IdVec, OpId};
use crate::memory::Timeline;
use crate::order::Order;
use crate::simulate::{Machine, Simulation, lower_bound, simulate};
use crate::units::{Bytes, Nanos};

/// An order explained.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The order in time.
    pub simulation: Simulation,
    /// What no order can beat.
    pub bound: Nanos,
    /// The exposed collectives, the most exposed first.
    pub held: Vec<Held>,
    /// Where most memory is alive.
    pub peak: Peak,
}

/// A collective that the compute stream waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// The collective.
    pub collective: OpId,
    /// For how long it is waited for.
    pub exposed: Nanos,
    /// Who waits for it; the collective itself if it ends the step or is synchronous.
    pub at: OpId,
    /// What holds it.
    pub by: Holder,
}

/// What keeps a collective from ending earlier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Holder {
    /// The step is as short as any can be: its exposure costs nothing that could be saved.
    Optimal,
    /// It starts as soon as this operation, which it needs, has run.
    Operation(OpId),
    /// Its stream is busy with this collective until it starts.
    Stream(OpId),
    /// It could be issued earlier, but so many bytes more than the limit would then be alive.
    Memory(Bytes),
    /// It blocks: no wait belongs to it.
    Synchronous,
    /// It could be issued earlier, and the step would not be shorter.
    NothingGained,
    /// It could be issued earlier, and the step would be shorter by so much.
    Misplaced(Nanos),
}

/// The place with the most memory alive.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// How much is alive.
    pub bytes: Bytes,
    /// While which operation runs; `None` for an empty program.
    pub at: Option<OpId>,
    /// The largest buffers alive there, the largest first.
    pub owners: Vec<BufId>,
}

/// How many buffers are named as owners of the peak.
const OWNERS: usize = 5;

/// Explains an order that may use up to `limit`.
pub fn explain(graph: &Graph, machine: &Machine, order: &Order, limit: Bytes) -> Explanation {
    let simulation = simulate(graph, order.as_slice(), machine);
    let bound = lower_bound(graph, machine);
    let case = Case { graph, machine, order, limit, simulation: &simulation };
    let is_optimal = simulation.step_time.0 <= bound.0 * (1.0 + 1e-9);
    let mut exposed: IdVec<OpId, (Nanos, Option<OpId>)> = IdVec::filled((Nanos::ZERO, None), graph.len());
    for exposure in simulation.exposures.iter().filter(|exposure| graph.kind(exposure.of).is_collective()) {
        let entry = &mut exposed[exposure.of];
        *entry = (entry.0 + exposure.time, entry.1.or(Some(exposure.at)));
    }
    let waited = exposed.iter().filter_map(|(op, (time, at))| Some((op, *time, (*at)?)));
    let mut held: Vec<Held> = waited
        .filter(|(_, time, _)| *time > Nanos::ZERO)
        .map(|(collective, exposed, at)| {
            let by = if is_optimal { Holder::Optimal } else { case.holder(collective) };
            Held { collective, exposed, at, by }
        })
        .collect();
    held.sort_by(|a, b| b.exposed.0.total_cmp(&a.exposed.0).then(a.collective.cmp(&b.collective)));
    let peak = find_peak(graph, order);
    Explanation { simulation, bound, held, peak }
}

struct Case<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    order: &'a Order,
    limit: Bytes,
    simulation: &'a Simulation,
}

impl Case<'_> {
    fn holder(&self, collective: OpId) -> Holder {
        let Case { graph, order, simulation, .. } = *self;
        if graph.kind(collective) == OpKind::SyncCollective {
            return Holder::Synchronous;
        }
        let start = simulation.start[collective];
        if let Some(other) = self.stream_busy_until(start, collective) {
            return Holder::Stream(other);
        }
        let preds = graph.preds(collective, Edges::Real);
        let last = preds.iter().copied().max_by_key(|&pred| (order.pos(pred), pred));
        let until_start = preds.iter().copied().find(|&pred| simulation.end[pred] == start);
        match (until_start, last) {
            (Some(pred), _) => Holder::Operation(pred),
            (None, last) => self.issued_earlier(collective, last),
        }
    }

    /// The collective on the same stream that ends just when this one starts.
    fn stream_busy_until(&self, start: Nanos, collective: OpId) -> Option<OpId> {
        let streams = &self.machine.streams;
        let before = &self.order.as_slice()[..self.order.pos(collective).index()];
        let same_stream = |&&op: &&OpId| streams.of(op) == streams.of(collective);
        let busy = before.iter().rev().filter(same_stream).find(|&&op| self.graph.kind(op).is_collective());
        busy.copied().filter(|&op| start > Nanos::ZERO && self.simulation.end[op] == start)
    }

    /// What would become of it if it were issued right after the last operation that it needs.
    fn issued_earlier(&self, collective: OpId, last: Option<OpId>) -> Holder {
        let from = self.order.pos(collective).index();
        let to = last.map_or(0, |last| self.order.pos(last).index() + 1);
        let mut ops = self.order.as_slice().to_vec();
        ops[to..=from].rotate_right(1);
        let step_time = simulate(self.graph, &ops, self.machine).step_time;
        let Some(earlier) = Order::from_ops(self.graph.len(), ops) else { return Holder::NothingGained };
        let peak = Timeline::of(self.graph, &earlier).peak;
        match self.simulation.step_time - step_time {
            _ if peak > self.limit => Holder::Memory(peak - self.limit),
            saved if saved > Nanos::ZERO => Holder::Misplaced(saved),
            _ => Holder::NothingGained,
        }
    }
}

fn find_peak(graph: &Graph, order: &Order) -> Peak {
    let timeline = Timeline::of(graph, order);
    let at = order
        .as_slice()
        .iter()
        .copied()
        .max_by_key(|&op| (timeline.levels[op].post_alloc, std::cmp::Reverse(order.pos(op))));
    let Some(op) = at else { return Peak { bytes: timeline.peak, at: None, owners: Vec::new() } };
    let place = order.pos(op);
    let is_alive = |buffer: &BufId| {
        let made = graph.maker(*buffer).is_none_or(|maker| order.pos(maker) <= place);
        made && timeline.freed_by[*buffer].is_none_or(|last| order.pos(last) >= place)
    };
    let mut owners: Vec<BufId> = graph.buffers().filter(is_alive).collect();
    owners.sort_by_key(|&buffer| (std::cmp::Reverse(graph.size_alloc(buffer)), buffer));
    owners.truncate(OWNERS);
    Peak { bytes: timeline.peak, at: Some(op), owners }
}
