//! Why communication is still exposed, and who owns the peak.

use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{BufId, Id, IdVec, OpId};
use crate::memory::Timeline;
use crate::optimize::{Probe, Side};
use crate::order::Order;
use crate::simulate::{Machine, Simulation, is_optimal, simulate};
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

/// What keeps a collective from being hidden.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Holder {
    /// The step is as short as any can be: its exposure costs nothing that could be saved.
    Optimal,
    /// Issued at another place, within the limit, the step would be shorter by so much.
    Misplaced(Nanos),
    /// Its wait at a later place, within the limit, and the step would be shorter by so much.
    WaitMisplaced(OpId, Nanos),
    /// Issued earlier it would cost less, but so many bytes more than the limit would then be alive.
    Memory(Bytes),
    /// Its stream is busy with this collective until it starts.
    Stream(OpId),
    /// It starts as soon as this operation, which it needs, has run.
    Operation(OpId),
    /// It blocks: no wait belongs to it.
    Synchronous,
    /// No other place of it or of its wait makes the step shorter.
    NothingGained,
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

/// What an order is measured against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The most that may be alive.
    pub memory: Bytes,
    /// What no order can beat: [`crate::simulate::lower_bound`], which takes its time.
    pub bound: Nanos,
}

/// Explains an order.
pub fn explain(graph: &Graph, machine: &Machine, order: &Order, limits: Limits) -> Explanation {
    let simulation = simulate(graph, order.as_slice(), machine);
    let bound = limits.bound;
    let mut held = waited_for(graph, &simulation);
    if !is_optimal(simulation.step_time, bound) {
        let probe = Probe::new(graph, machine, order, limits.memory);
        let case = Case { graph, machine, order, simulation: &simulation };
        case.find_holders(&probe, &mut held);
    }
    let peak = find_peak(graph, order);
    Explanation { simulation, bound, held, peak }
}

/// The collectives that are waited for, the longest first, with nothing known of what holds them.
fn waited_for(graph: &Graph, simulation: &Simulation) -> Vec<Held> {
    let mut exposed: IdVec<OpId, (Nanos, Option<OpId>)> = IdVec::filled((Nanos::ZERO, None), graph.len());
    for exposure in simulation.exposures.iter().filter(|exposure| exposure.is_communication()) {
        let entry = &mut exposed[exposure.of];
        *entry = (entry.0 + exposure.time, entry.1.or(Some(exposure.at)));
    }
    let waited = exposed.iter().filter_map(|(op, (time, at))| Some((op, *time, (*at)?)));
    let mut held: Vec<Held> = waited
        .filter(|(_, time, _)| *time > Nanos::ZERO)
        .map(|(collective, exposed, at)| Held { collective, exposed, at, by: Holder::Optimal })
        .collect();
    held.sort_by(|a, b| b.exposed.0.total_cmp(&a.exposed.0).then(a.collective.cmp(&b.collective)));
    held
}

struct Case<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    order: &'a Order,
    simulation: &'a Simulation,
}

impl Case<'_> {
    /// Tries each collective earlier and its wait later; where neither helps, says what it starts
    /// after.
    fn find_holders(&self, probe: &Probe, held: &mut [Held]) {
        let earlier: Vec<_> = held.iter().map(|held| (held.collective, Side::Earlier)).collect();
        let later: Vec<_> = held.iter().map(|held| (held.at, Side::Later)).collect();
        let (earlier, later) = (probe.worth(&earlier), probe.worth(&later));
        for ((held, earlier), later) in held.iter_mut().zip(earlier).zip(later) {
            let waits = held.at != held.collective;
            held.by = match earlier.barred_by {
                _ if self.graph.kind(held.collective) == OpKind::SyncCollective => Holder::Synchronous,
                _ if earlier.saved > Nanos::ZERO => Holder::Misplaced(earlier.saved),
                _ if waits && later.saved > Nanos::ZERO => Holder::WaitMisplaced(held.at, later.saved),
                Some(bytes) => Holder::Memory(bytes),
                None => self.starts_after(held.collective),
            };
        }
    }

    fn starts_after(&self, collective: OpId) -> Holder {
        let start = self.simulation.start[collective];
        if let Some(other) = self.stream_busy_until(start, collective) {
            return Holder::Stream(other);
        }
        // Through a multi-output it needs another collective, not the multi-output. A collective that
        // only had to be issued before it is not waited for.
        let gated_by = self.graph.gated_by(collective).iter();
        let preds = self.graph.preds(collective, Edges::Real).iter();
        let ran = preds.filter(|&&pred| self.graph.kind(pred) != OpKind::AsyncCollective);
        let until_start = gated_by.chain(ran).copied().find(|&pred| self.simulation.end[pred] == start);
        until_start.map_or(Holder::NothingGained, Holder::Operation)
    }

    /// The collective on the same stream that ends just when this one starts.
    fn stream_busy_until(&self, start: Nanos, collective: OpId) -> Option<OpId> {
        let streams = &self.machine.streams;
        let before = &self.order.as_slice()[..self.order.pos(collective).index()];
        let same_stream = |&&op: &&OpId| streams.of(op) == streams.of(collective);
        let busy = before.iter().rev().filter(same_stream).find(|&&op| self.graph.kind(op).is_collective());
        busy.copied().filter(|&op| start > Nanos::ZERO && self.simulation.end[op] == start)
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
