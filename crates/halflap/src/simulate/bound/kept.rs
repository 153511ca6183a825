//! What every order keeps that the bound is for: edges of the graph, and what memory puts in order.

use super::implied::Precedence;
use crate::graph::{Edges, Graph};
use crate::ids::{Csr, OpId};

/// See the head of this file.
pub(super) struct Kept {
    pub(super) edges: Edges,
    preds: Csr<OpId, OpId>,
    succs: Csr<OpId, OpId>,
}

impl Kept {
    /// The graph's own edges, and pairs of which one comes first.
    pub(super) fn new(graph: &Graph, edges: Edges, implied: &[Precedence]) -> Kept {
        let preds = implied.iter().map(|pair| (pair.then, pair.first));
        let succs = implied.iter().map(|pair| (pair.first, pair.then));
        Kept {
            edges,
            preds: Csr::from_pairs(graph.len(), preds),
            succs: Csr::from_pairs(graph.len(), succs),
        }
    }

    /// What comes before an operation, ascending.
    pub(super) fn preds(&self, graph: &Graph, op: OpId) -> Vec<OpId> {
        merged(graph.preds(op, self.edges), self.preds.of(op))
    }

    /// What comes after it, ascending.
    pub(super) fn succs(&self, graph: &Graph, op: OpId) -> Vec<OpId> {
        merged(graph.succs(op, self.edges), self.succs.of(op))
    }
}

fn merged(own: &[OpId], more: &[OpId]) -> Vec<OpId> {
    let mut all = [own, more].concat();
    if !more.is_empty() {
        all.sort_unstable();
        all.dedup();
    }
    all
}
