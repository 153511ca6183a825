//! An order of a program, for the program that it was changed to.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::graph::Edges;
use crate::ids::{Id, IdVec, OpId};
use crate::order::Order;
use crate::rewrite::Rewritten;

/// An order of the old program as one of the new: every operation as early as what it stands for,
/// as far as its dependencies allow.
pub(super) fn carried_order(rewritten: &Rewritten, order: &Order) -> Order {
    let Rewritten { graph, origin } = rewritten;
    let mut place = vec![0_usize; order.as_slice().len()];
    order.as_slice().iter().enumerate().for_each(|(at, op)| place[op.index()] = at);
    let first =
        |op: OpId| origin.ops[op].of.iter().map(|old| place[old.index()]).min().unwrap_or(0);
    let mut missing: IdVec<OpId, usize> =
        graph.ops().map(|op| graph.preds(op, Edges::All).len()).collect();
    let entry = |op: OpId| Reverse((first(op), op));
    let mut ready: BinaryHeap<_> = graph.ops().filter(|&op| missing[op] == 0).map(entry).collect();
    let mut ops = Vec::with_capacity(graph.len());
    while let Some(Reverse((_, op))) = ready.pop() {
        ops.push(op);
        for &next in graph.succs(op, Edges::All) {
            missing[next] -= 1;
            if missing[next] == 0 {
                ready.push(entry(next));
            }
        }
    }
    Order::from_ops(graph.len(), ops).unwrap_or_else(|| Order::of_input(graph))
}
