//! Orders by chance. `modules` is beside this one wherever it is included.

use halflap::graph::{Edges, Graph};
use halflap::ids::{Id, OpId};
use halflap::order::Order;

use super::modules::Dice;

/// A random order of a graph that can run.
pub fn random_order(graph: &Graph, dice: &mut Dice) -> Order {
    let mut missing: Vec<usize> =
        graph.ops().map(|op| graph.preds(op, Edges::Real).len()).collect();
    let mut ready: Vec<OpId> = graph.ops().filter(|op| missing[op.index()] == 0).collect();
    let mut ops = Vec::new();
    while !ready.is_empty() {
        let op = ready.swap_remove(dice.below(ready.len()));
        ops.push(op);
        for &succ in graph.succs(op, Edges::Real) {
            missing[succ.index()] -= 1;
            ready.extend((missing[succ.index()] == 0).then_some(succ));
        }
    }
    Order::from_ops(graph.len(), ops).unwrap()
}
