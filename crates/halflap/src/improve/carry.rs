//! Carries an order of a program over to the rewritten program.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::graph::{Edges, OpKind};
use crate::ids::{Id, IdVec, OpId};
use crate::order::Order;
use crate::origin::{Part, Source};
use crate::rewrite::Rewritten;

/// Where an operation belongs, by the places of the operations it stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CarriedPlace {
    /// For an operation in pieces: where its run begins.
    run: usize,
    piece: u32,
    at: usize,
}

/// An order of the old program as one of the new: every operation as early as what it stands for,
/// as far as its dependencies allow. Pieces of a run of operations, which ends at a wait, come one
/// after the other: the first travels while the second is computed.
pub(super) fn carried_order(rewritten: &Rewritten, order: &Order) -> Order {
    let Rewritten { graph, origin } = rewritten;
    let mut place = vec![0_usize; order.as_slice().len()];
    order.as_slice().iter().enumerate().for_each(|(at, op)| place[op.index()] = at);
    let runs = runs(rewritten, order);
    let carried = |op: OpId| {
        let Source { part, of } = &origin.ops[op];
        let places = of.iter().map(|old| place[old.index()]);
        // A copy out of a bucket stands for a collective and its wait, and has the wait's place.
        let at = if *part == Part::CopyOut { places.max() } else { places.min() };
        let at = at.unwrap_or(0);
        match *part {
            Part::Piece { number, .. } => CarriedPlace { run: runs[at], piece: number, at },
            _ => CarriedPlace { run: at, piece: 0, at },
        }
    };
    let mut missing: IdVec<OpId, usize> =
        graph.ops().map(|op| graph.preds(op, Edges::All).len()).collect();
    let entry = |op: OpId| Reverse((carried(op), op));
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

/// By place in the old order: where a run of split operations begins. It continues past unsplit
/// collectives, and ends at unsplit compute and before a wait.
fn runs(rewritten: &Rewritten, order: &Order) -> Vec<usize> {
    let Rewritten { graph, origin } = rewritten;
    let mut steps = vec![RunStep::Between; order.as_slice().len()];
    for (op, source) in origin.ops.iter() {
        let step = match (source.part, graph.kind(op)) {
            (Part::Piece { .. }, OpKind::Wait) => RunStep::Begins,
            (Part::Piece { .. }, _) => RunStep::GoesOn,
            (Part::Kept, OpKind::Compute) => RunStep::Ends,
            _ => RunStep::Between,
        };
        source.of.iter().for_each(|old| steps[old.index()] = step);
    }
    let mut run = None;
    let begin = |(at, op): (usize, &OpId)| {
        let step = steps[op.index()];
        if matches!(step, RunStep::Begins | RunStep::Ends) {
            run = None;
        }
        match step {
            RunStep::Begins | RunStep::GoesOn => *run.get_or_insert(at),
            RunStep::Ends | RunStep::Between => at,
        }
    };
    order.as_slice().iter().enumerate().map(begin).collect()
}

/// The role of an old operation in a run.
#[derive(Clone, Copy)]
enum RunStep {
    /// A split wait begins one.
    Begins,
    /// Any other split operation continues one, or begins it.
    GoesOn,
    /// Unsplit compute ends it.
    Ends,
    /// Anything else.
    Between,
}
