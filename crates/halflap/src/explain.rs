//! Why communication is still exposed, and what makes up the peak.

use crate::evaluate::{Evaluation, Setup};
use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{BufId, Id, OpId};
use crate::optimize::{Probe, Program, Side};
use crate::order::Order;
use crate::simulate::{Bound, Machine, Simulation, Waited};
use crate::units::{Bytes, Nanos};

/// An order explained.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The lower bound for orders that keep the same edges.
    pub bound: Bound,
    /// The exposed collectives, the most exposed first.
    pub held: Vec<Held>,
    /// The memory peak.
    pub peak: Peak,
}

/// A collective that the compute stream waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Held {
    /// The collective.
    pub collective: OpId,
    /// How long compute waits for it.
    pub exposed: Nanos,
    /// The operation that waits; the collective itself if it ends the step or is synchronous.
    pub at: OpId,
    /// What holds it.
    pub by: Holder,
}

/// What keeps a collective from being hidden.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Holder {
    /// The step is at its lower bound: this exposure costs nothing that could be saved.
    Optimal,
    /// Issued elsewhere, within the limit, it would shorten the step by this much.
    Misplaced(Nanos),
    /// Waited for later, within the limit, it would shorten the step by this much.
    WaitMisplaced(OpId, Nanos),
    /// Issued earlier it would cost less, but would exceed the limit by this much.
    Memory(Bytes),
    /// Its stream is busy with this collective until it starts.
    Stream(OpId),
    /// It starts as soon as this operation, which it needs, has run.
    Operation(OpId),
    /// It blocks: no wait belongs to it.
    Synchronous,
    /// The order of collectives is kept. Moving it or its wait alone helps only where that breaks
    /// the order, and then makes the step shorter by this much, within the limit.
    KeptOrder(Nanos),
    /// Moving it earlier, or its wait later, gains nothing with all else unchanged.
    NothingGained,
    /// Not examined: many others are more exposed.
    NotExamined,
}

/// The place with the most memory alive.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Peak {
    /// The bytes alive.
    pub bytes: Bytes,
    /// The operation that runs then; `None` for an empty program.
    pub at: Option<OpId>,
    /// The largest buffers alive there, the largest first.
    pub owners: Vec<BufId>,
}

/// How many of the largest buffers at the peak are named.
const OWNERS: usize = 5;

/// How many collectives are examined, times the length of the program: examining one takes time in
/// proportion to that, and nobody reads thousands of explanations.
const WORK: usize = 20_000_000;

/// At least this many are examined, however long the program is.
const LEAST_EXAMINED: usize = 20;

/// The limits that an order is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The memory limit.
    pub memory: Bytes,
    /// The lower bound ([`crate::simulate::lower_bound`]), which is expensive. It is for the edges
    /// that the order keeps; only places that keep these edges are tried.
    pub bound: Bound,
}

/// Explains an order. The bound is an argument because it is expensive and can be reused.
///
/// ```
/// use halflap::cost::Times;
/// use halflap::evaluate::{Evaluation, Setup};
/// use halflap::explain::{Limits, explain};
/// use halflap::graph::Edges;
/// use halflap::simulate::{Machine, lower_bound};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bytes = std::fs::read("../../tests/corpus/ddp_mlp_4.graph.json.gz")?;
/// let graph = halflap::import::read_graph(&bytes)?;
/// let machine = Machine::new(&graph, Times::given(&graph)?);
/// let setup = Setup { graph: &graph, machine: &machine };
/// let input = Evaluation::of(setup, halflap::order::Order::of_input(&graph));
/// let memory = input.peak();
/// let bound = lower_bound(&graph, &machine, Edges::Real, memory);
/// for held in explain(setup, &input, Limits { memory, bound }).held {
///     println!("{} is exposed for {}", graph.name(held.collective), held.exposed);
/// }
/// # Ok(())
/// # }
/// ```
pub fn explain(setup: Setup<'_>, evaluation: &Evaluation, limits: Limits) -> Explanation {
    let Setup { graph, machine } = setup;
    let Evaluation { order, simulation, .. } = evaluation;
    let waited = simulation.waited_for().into_iter();
    let mut held: Vec<Held> = waited
        .map(|Waited { collective, exposed, at }| Held {
            collective,
            exposed,
            at,
            by: Holder::Optimal,
        })
        .collect();
    let program = Program::new(graph, machine, Edges::Real);
    let mut probe = Probe::new(&program, graph, order, limits.memory);
    let case = Inquiry { graph, machine, order, simulation };
    let examined = (WORK / graph.len().max(1)).max(LEAST_EXAMINED);
    for held in held.iter_mut().skip(examined) {
        held.by = Holder::NotExamined;
    }
    for held in held.iter_mut().take(examined) {
        if !limits.bound.is_reached_by(simulation.step_time) {
            held.by = case.holder(&mut probe, held, limits.bound.edges);
        }
        if limits.bound.edges == Edges::All && held.by.is_stuck() {
            held.by = free_would_save(&mut probe, held).map_or(held.by, Holder::KeptOrder);
        }
    }
    Explanation { bound: limits.bound, held, peak: find_peak(graph, evaluation) }
}

struct Inquiry<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    order: &'a Order,
    simulation: &'a Simulation,
}

impl Inquiry<'_> {
    /// Tries the collective earlier and its wait later; if neither helps, says what delays its
    /// start.
    fn holder(&self, probe: &mut Probe<'_>, held: &Held, edges: Edges) -> Holder {
        if self.graph.kind(held.collective) == OpKind::SyncCollective {
            return Holder::Synchronous;
        }
        let earlier = probe.worth(held.collective, Side::Earlier, edges);
        if earlier.saved > Nanos::ZERO {
            return Holder::Misplaced(earlier.saved);
        }
        let wait = held.wait().map(|wait| (wait, probe.worth(wait, Side::Later, edges).saved));
        match (wait.filter(|(_, saved)| *saved > Nanos::ZERO), earlier.barred_by) {
            (Some((wait, saved)), _) => Holder::WaitMisplaced(wait, saved),
            (None, Some(bytes)) => Holder::Memory(bytes),
            (None, None) => self.starts_after(held.collective),
        }
    }

    fn starts_after(&self, collective: OpId) -> Holder {
        let start = self.simulation.start[collective];
        if let Some(other) = self.stream_busy_until(start, collective) {
            return Holder::Stream(other);
        }
        // Through a multi-output it needs another collective, not the multi-output. A collective
        // that only had to be issued before it is not waited for.
        let gated_by = self.graph.gated_by(collective).iter();
        let preds = self.graph.preds(collective, Edges::Real).iter();
        let ran = preds.filter(|&&pred| self.graph.kind(pred) != OpKind::AsyncCollective);
        let until_start =
            gated_by.chain(ran).copied().find(|&pred| self.simulation.end[pred] == start);
        until_start.map_or(Holder::NothingGained, Holder::Operation)
    }

    /// The collective on the same stream that ends when this one starts.
    fn stream_busy_until(&self, start: Nanos, collective: OpId) -> Option<OpId> {
        let streams = &self.machine.streams;
        let before = &self.order.as_slice()[..self.order.pos(collective).index()];
        let same_stream = |&&op: &&OpId| streams.of(op) == streams.of(collective);
        let busy = before
            .iter()
            .rev()
            .filter(same_stream)
            .find(|&&op| self.graph.kind(op).is_collective());
        busy.copied().filter(|&op| start > Nanos::ZERO && self.simulation.end[op] == start)
    }
}

/// What moving a collective or its wait would save where only the order of collectives forbids it.
fn free_would_save(probe: &mut Probe<'_>, held: &Held) -> Option<Nanos> {
    let by_wait = held.wait().map_or(Nanos::ZERO, |wait| probe.worth_free(wait, Side::Later).saved);
    let saved = probe.worth_free(held.collective, Side::Earlier).saved.max(by_wait);
    (saved > Nanos::ZERO).then_some(saved)
}

impl Held {
    /// The operation that waits for it, unless it merely ends the step.
    fn wait(&self) -> Option<OpId> {
        Some(self.at).filter(|&at| at != self.collective)
    }
}

impl Holder {
    /// Whether no move of the collective or of its wait was found to help.
    fn is_stuck(self) -> bool {
        match self {
            Holder::Optimal | Holder::Stream(_) | Holder::Operation(_) | Holder::NothingGained => {
                true
            }
            Holder::Misplaced(_) | Holder::WaitMisplaced(..) | Holder::Memory(_) => false,
            Holder::Synchronous | Holder::KeptOrder(_) | Holder::NotExamined => false,
        }
    }
}

fn find_peak(graph: &Graph, evaluation: &Evaluation) -> Peak {
    let Evaluation { order, memory: timeline, .. } = evaluation;
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
