//! What the bound's orders keep: edges of the graph, and additional precedences.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::implied::Precedence;
use crate::graph::{Edges, Graph};
use crate::ids::{Csr, IdVec, OpId};

/// See the module's documentation.
pub(super) struct Kept {
    pub(super) edges: Edges,
    preds: Csr<OpId, OpId>,
    succs: Csr<OpId, OpId>,
    /// All operations, each after its predecessors; otherwise in input order.
    pub(super) sequence: Vec<OpId>,
}

impl Kept {
    /// The graph's own edges and some precedences; `None` if no order keeps them all.
    pub(super) fn new(graph: &Graph, edges: Edges, pairs: &[Precedence]) -> Option<Kept> {
        let preds = pairs.iter().map(|pair| (pair.then, pair.first));
        let succs = pairs.iter().map(|pair| (pair.first, pair.then));
        let mut kept = Kept {
            edges,
            preds: Csr::from_pairs(graph.len(), preds),
            succs: Csr::from_pairs(graph.len(), succs),
            sequence: Vec::new(),
        };
        kept.sequence = match pairs.iter().all(|pair| pair.first < pair.then) {
            true => graph.ops().collect(),
            false => kept.sorted(graph)?,
        };
        Some(kept)
    }

    /// Always takes the first operation in input order that has no predecessors left.
    fn sorted(&self, graph: &Graph) -> Option<Vec<OpId>> {
        let mut missing: IdVec<OpId, usize> =
            graph.ops().map(|op| self.preds(graph, op).len()).collect();
        let mut ready: BinaryHeap<Reverse<OpId>> =
            graph.ops().filter(|&op| missing[op] == 0).map(Reverse).collect();
        let mut sequence = Vec::with_capacity(graph.len());
        while let Some(Reverse(op)) = ready.pop() {
            sequence.push(op);
            for succ in self.succs(graph, op) {
                missing[succ] -= 1;
                ready.extend((missing[succ] == 0).then_some(Reverse(succ)));
            }
        }
        (sequence.len() == graph.len()).then_some(sequence)
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
