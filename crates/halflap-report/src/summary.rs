//! What a schedule changed, as rows: one for each collective.

use super::rewritten::carried;
use super::timing::exposed_by_collective;
use halflap::evaluate::{Setup, Side};
use halflap::graph::{Graph, OpKind};
use halflap::ids::{Id, IdVec, OpId};
use halflap::order::Order;
use halflap::origin::Origin;
use halflap::overlap::{Fidelity, Overlap};
use halflap::pass::Limit;
use halflap::schedule::PassRun;
use halflap::simulate::Bound;
use halflap::units::{Bytes, Nanos};

/// A schedule compared with the input order. Exposed time is how long compute stalls in the
/// simulation; the passes estimate it by the rule of [`halflap::overlap`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// How many operations there are.
    pub nodes: usize,
    /// The run time of all collectives.
    pub communication: Nanos,
    /// How long compute stalled in the input order.
    pub exposed_before: Nanos,
    /// How long compute stalls now.
    pub exposed: Nanos,
    /// What the passes' rule says was exposed in the input order.
    pub estimated_before: Nanos,
    /// What the passes' rule says is exposed now.
    pub estimated: Nanos,
    /// The input order's simulated step time.
    pub step_time_before: Nanos,
    /// The simulated step time now.
    pub step_time: Nanos,
    /// The lower bound for orders that keep the same edges.
    pub bound: Bound,
    /// The input order's peak.
    pub peak_before: Bytes,
    /// The peak now.
    pub peak: Bytes,
    /// Swaps made by all passes.
    pub moves: usize,
    /// The collectives, the most exposed first.
    pub rows: Vec<Row>,
}

/// One collective.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Row {
    /// The collective.
    pub op: OpId,
    /// Its run time.
    pub time: Nanos,
    /// How long compute stalled on it in the input order.
    pub exposed_before: Nanos,
    /// How long compute stalls on it now.
    pub exposed: Nanos,
    /// What the passes' rule says was exposed in the input order.
    pub estimated_before: Nanos,
    /// What the passes' rule says is exposed now.
    pub estimated: Nanos,
    /// How many places it moved: negative is earlier.
    pub shift: i64,
    /// Why it stopped where it is.
    pub stop: Stop,
}

/// Why a collective, and its wait, stopped: according to the last pass that slid each.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stop {
    /// Of the collective.
    pub collective: Option<Limit>,
    /// Of its first wait.
    pub wait: Option<Limit>,
}

/// What a summary compares.
#[derive(Clone, Copy)]
pub struct Compared<'a> {
    /// The input order.
    pub before: Side<'a>,
    /// The order now.
    pub after: Side<'a>,
    /// How the current program was made from the one before, if it is another.
    pub origin: Option<&'a Origin>,
    /// What passes did, if passes ran.
    pub passes: &'a [PassRun],
}

impl Compared<'_> {
    /// The old operations that a new one represents, with those whose results it stands in for.
    fn stands_for(&self, op: OpId) -> Vec<OpId> {
        let Some(origin) = self.origin else { return vec![op] };
        let of = &origin.ops[op].of;
        let dropped = origin.dropped.iter().filter(|(_, stays)| of.contains(stays));
        of.iter().copied().chain(dropped.map(|(&gone, _)| gone)).collect()
    }
}

impl Summary {
    /// Compares orders; `bound` is the lower bound for orders that keep the same edges. In a
    /// rewritten program an operation that represents several is compared with their sum.
    pub fn of(compared: &Compared<'_>, bound: Bound) -> Summary {
        let Compared { before, after, passes, .. } = *compared;
        let Setup { graph, machine } = after.setup;
        let overlap = Overlap::new(graph, &machine.times, Fidelity::Fixed);
        let old = before.setup;
        let overlap_before = Overlap::new(old.graph, &old.machine.times, Fidelity::Fixed);
        let limits = last_limits(graph, passes);
        let simulated = exposed_by_collective(&after.evaluation.simulation);
        let simulated_before = match compared.origin {
            Some(origin) => exposed_by_collective(&carried(origin, &before.evaluation.simulation)),
            None => exposed_by_collective(&before.evaluation.simulation),
        };
        let was = |op: OpId| {
            let members = compared
                .stands_for(op)
                .into_iter()
                .filter(|&member| old.graph.kind(member).is_collective());
            members
                .map(|member| {
                    estimated(old.graph, &overlap_before, &before.evaluation.order, member)
                })
                .sum()
        };
        let place = |op: OpId| {
            let places = compared
                .stands_for(op)
                .into_iter()
                .map(|old| before.evaluation.order.pos(old).index());
            places.min().unwrap_or(0)
        };
        let collectives = graph.ops().filter(|&op| graph.kind(op).is_collective());
        let mut rows: Vec<Row> = collectives
            .map(|op| Row {
                op,
                time: machine.times.of(op),
                exposed_before: simulated_before[op],
                exposed: simulated[op],
                estimated_before: was(op),
                estimated: estimated(graph, &overlap, &after.evaluation.order, op),
                shift: after.evaluation.order.pos(op).index() as i64 - place(op) as i64,
                stop: Stop {
                    collective: limits[op],
                    wait: graph.waited_by(op).first().and_then(|&wait| limits[wait]),
                },
            })
            .collect();
        rows.sort_by(|a, b| b.exposed.0.total_cmp(&a.exposed.0).then(a.op.cmp(&b.op)));
        let (before, after) = (before.evaluation, after.evaluation);
        let total = |of: fn(&Row) -> Nanos| rows.iter().map(of).sum();
        Summary {
            nodes: graph.len(),
            communication: total(|row| row.time),
            exposed_before: before.exposed(),
            exposed: after.exposed(),
            estimated_before: total(|row| row.estimated_before),
            estimated: total(|row| row.estimated),
            step_time_before: before.step_time(),
            step_time: after.step_time(),
            bound,
            peak_before: before.peak(),
            peak: after.peak(),
            moves: passes.iter().map(|run| run.moves).sum(),
            rows,
        }
    }
}

/// The exposed part of a collective by the passes' rule; all of it, if it is synchronous.
fn estimated(graph: &Graph, overlap: &Overlap<'_>, order: &Order, op: OpId) -> Nanos {
    match graph.kind(op) {
        OpKind::SyncCollective => overlap.time(op),
        _ => overlap.of_collective(order, op).exposed().max(Nanos::ZERO),
    }
}

fn last_limits(graph: &Graph, passes: &[PassRun]) -> IdVec<OpId, Option<Limit>> {
    let mut limits = IdVec::filled(None, graph.len());
    for slide in passes.iter().flat_map(|run| &run.slides) {
        limits[slide.op] = Some(slide.limit);
    }
    limits
}
