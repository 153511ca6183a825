//! Changes that would help and that only the program's author can make.

use crate::collective::CollectiveKind;
use crate::evaluate::Setup;
use crate::graph::{Collective, Graph, OpKind};
use crate::ids::OpId;
use crate::rewrite::Prices;
use crate::simulate::Simulation;
use crate::units::{Bytes, Nanos};

/// A weight that is gathered whole although only some of its rows are looked up: ranks could
/// exchange these instead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookedUp {
    /// The all-gather.
    pub gather: OpId,
    /// What is looked up.
    pub rows: Bytes,
    /// What it would save, by an order's own exposure, including the reduce-scatter of its
    /// gradient.
    pub saved: Nanos,
}

/// The gathered weights of which only rows are looked up, in input order.
pub fn looked_up(setup: Setup<'_>, simulation: &Simulation, prices: &Prices<'_>) -> Vec<LookedUp> {
    let graph = setup.graph;
    let exposed = super::cuts::exposed(graph, simulation);
    let of_kind = |kind: CollectiveKind| {
        graph.ops().filter_map(move |op| {
            graph.collective(op).filter(|of| of.kind == kind).map(|of| (op, of))
        })
    };
    let advice = |(gather, of): (OpId, &Collective)| {
        let rows = rows_read(graph, gather)?;
        let exchange = prices.line(graph, of)?.time(rows);
        let is_gradient = |other: &Collective| {
            let apart = (other.bytes().0 - of.bytes().0).abs();
            other.group == of.group && apart <= of.bytes().0 / 100
        };
        let gradients = of_kind(CollectiveKind::ReduceScatter).filter(|(_, one)| is_gradient(one));
        let gradient = gradients.map(|(op, _)| exposed[op]).fold(Nanos::ZERO, Nanos::max);
        let left = |time: Nanos| (time - exchange).max(Nanos::ZERO);
        let saved = left(exposed[gather]) + left(gradient);
        (saved > Nanos::ZERO).then_some(LookedUp { gather, rows, saved })
    };
    of_kind(CollectiveKind::AllGather).filter_map(advice).collect()
}

/// What is looked up in a gathered buffer, if nothing else reads it and the rows are fewer than it
/// has.
fn rows_read(graph: &Graph, gather: OpId) -> Option<Bytes> {
    let &[gathered] = graph.outputs(gather) else { return None };
    let readers: Vec<OpId> = graph
        .users(gathered)
        .iter()
        .copied()
        .filter(|&op| graph.kind(op) != OpKind::Wait)
        .collect();
    let looks_up = |op: &OpId| {
        let names = graph.fused(*op);
        !graph.is_gemm_like(*op) && names.iter().any(|name| name == "embedding")
    };
    let made = |op: &OpId| graph.outputs(*op).iter().map(|&one| graph.size_alloc(one)).max();
    let rows = readers.iter().filter_map(made).max()?;
    (readers.iter().all(looks_up) && rows < graph.size_alloc(gathered)).then_some(rows)
}
