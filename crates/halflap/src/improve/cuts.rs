//! Plans of splits: what is split around the exposed collectives, and into how many pieces.

use std::collections::BTreeSet;

use super::Allowed;
use crate::collective::CollectiveKind;
use crate::evaluate::Setup;
use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{IdVec, OpId};
use crate::rewrite::{Recipe, RewriteKind, cuttable};
use crate::simulate::Simulation;
use crate::units::Nanos;

/// How much is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Depth {
    /// How many products on each side of a collective.
    products: u8,
    pieces: u32,
}

/// The choices that are tried: the direct neighbours of a collective into many pieces, or more
/// around it into few.
pub(super) const DEPTHS: [Depth; 4] = [
    Depth { products: 1, pieces: 4 },
    Depth { products: 1, pieces: 2 },
    Depth { products: 2, pieces: 2 },
    Depth { products: 1, pieces: 8 },
];

/// The fraction of its time that must be exposed for a collective to be worth splitting.
const NOTICEABLE: f64 = 0.1;

/// What can be split in a program, and where that could save time.
pub(super) struct Cuts<'a> {
    graph: &'a Graph,
    is_able: IdVec<OpId, bool>,
    exposed: Vec<OpId>,
}

impl<'a> Cuts<'a> {
    /// Given what an order of the program exposes.
    pub(super) fn new(setup: Setup<'a>, simulation: &Simulation, allowed: &Allowed) -> Cuts<'a> {
        let graph = setup.graph;
        let mut cuts =
            Cuts { graph, is_able: IdVec::filled(false, graph.len()), exposed: Vec::new() };
        if !allowed.kinds.contains(&RewriteKind::Split) {
            return cuts;
        }
        let is_allowed = |op: &OpId| {
            let changes = |kind: CollectiveKind| kind == CollectiveKind::AllReduce;
            !(allowed.exact_only && graph.collective(*op).is_some_and(|of| changes(of.kind)))
        };
        let ops: Vec<OpId> = graph.ops().filter(is_allowed).collect();
        cuttable(graph, &ops).into_iter().flatten().for_each(|op| cuts.is_able[op] = true);
        let exposed = exposed(graph, simulation);
        let is_seed = |op: &OpId| {
            graph.kind(*op).is_collective()
                && cuts.is_able[*op]
                && exposed[*op] > setup.machine.times.of(*op) * NOTICEABLE
        };
        cuts.exposed = graph.ops().filter(is_seed).collect();
        cuts
    }

    pub(super) fn is_empty(&self) -> bool {
        self.exposed.is_empty()
    }

    /// The splits of a depth, those whose pieces belong together as one.
    pub(super) fn recipes(&self, depth: Depth) -> Vec<Recipe> {
        let mut near: BTreeSet<OpId> = self.exposed.iter().copied().collect();
        for &collective in &self.exposed {
            for side in [CutSide::Before, CutSide::After] {
                near.extend(self.around(collective, side, depth.products));
            }
        }
        let near: Vec<OpId> = near.into_iter().collect();
        let is_worth = |part: &Vec<OpId>| {
            let kind = |op: &OpId| self.graph.kind(*op);
            part.iter().any(|op| kind(op).is_collective())
                && part.iter().any(|op| kind(op) == OpKind::Compute)
        };
        let parts = cuttable(self.graph, &near).into_iter().filter(is_worth);
        parts.map(|members| Recipe::Split { members, pieces: depth.pieces }).collect()
    }

    /// The producers and readers around a collective, up to the products, and no further than the
    /// next collective.
    fn around(&self, from: OpId, side: CutSide, products: u8) -> BTreeSet<OpId> {
        let mut open = vec![(from, products)];
        let mut seen = BTreeSet::from([from]);
        while let Some((op, left)) = open.pop() {
            let next = match side {
                CutSide::Before => self.graph.preds(op, Edges::Awaited),
                CutSide::After => self.graph.succs(op, Edges::Awaited),
            };
            for &next in next {
                let is_kernel = matches!(self.graph.kind(next), OpKind::Compute | OpKind::Wait);
                if !self.is_able[next] || !is_kernel || !seen.insert(next) {
                    continue;
                }
                match self.graph.is_gemm_like(next) {
                    true if left <= 1 => {}
                    true => open.push((next, left - 1)),
                    false => open.push((next, left)),
                }
            }
        }
        seen
    }
}

/// What an order exposes of each collective.
pub(super) fn exposed(graph: &Graph, simulation: &Simulation) -> IdVec<OpId, Nanos> {
    let mut exposed: IdVec<OpId, Nanos> = IdVec::filled(Nanos::ZERO, graph.len());
    for exposure in &simulation.exposures {
        exposed[exposure.of] += exposure.time;
    }
    exposed
}

/// The exposed time of an order that belongs to collectives that could be split.
pub fn cuttable_exposure(setup: Setup<'_>, simulation: &Simulation, allowed: &Allowed) -> Nanos {
    let exposed = exposed(setup.graph, simulation);
    let cuts = Cuts::new(setup, simulation, allowed);
    cuts.exposed.iter().map(|&op| exposed[op]).sum()
}

#[derive(Clone, Copy)]
enum CutSide {
    Before,
    After,
}
