//! A list scheduler: of all operations that could run next, take the one that ranks first.
//!
//! The rank is, in decreasing weight: the first collective (in the given order) that the operation
//! leads to, if collectives are raised; whether it is a wait, if waits are sunk; its place in the
//! given order. All ranks differ, so that the result does not depend on the heap.
//!
//! All edges bind, also those for the order of collectives alone. Cost: n log n.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Runner;
use crate::cost::Times;
use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{IdVec, OpId, Pos};
use crate::order::Order;
use crate::units::Nanos;

/// What is ranked, and how.
#[derive(Clone, Copy)]
pub(super) struct Goals {
    /// Collectives are raised, with everything that they need.
    pub(super) raise_comms: bool,
    /// Waits are sunk.
    pub(super) sink_waits: bool,
    /// After each collective comes compute, until it is hidden.
    pub(super) overlap: bool,
}

type ListRank = (u32, bool, Pos);

struct Scheduler<'a> {
    graph: &'a Graph,
    times: &'a Times,
    ranks: IdVec<OpId, ListRank>,
    /// How many operations each one still needs.
    missing: IdVec<OpId, u32>,
    ready_compute: BinaryHeap<Reverse<(ListRank, OpId)>>,
    ready_others: BinaryHeap<Reverse<(ListRank, OpId)>>,
    scheduled: Vec<OpId>,
}

pub(super) fn schedule(of: &Runner<'_>, order: &Order, goals: Goals) -> Vec<OpId> {
    let graph = of.graph;
    let mut scheduler = Scheduler::new(of, rank(graph, order, goals));
    while let Some(op) = scheduler.pop() {
        scheduler.take(op);
        if goals.overlap && graph.kind(op).is_collective() {
            scheduler.hide(op);
        }
    }
    scheduler.scheduled
}

fn rank(graph: &Graph, order: &Order, goals: Goals) -> IdVec<OpId, ListRank> {
    let leads_to = first_collective_led_to(graph, order, goals);
    let is_sunk = |op| goals.sink_waits && graph.kind(op) == OpKind::Wait;
    graph.ops().map(|op| (leads_to[op], is_sunk(op), order.pos(op))).collect()
}

/// For each operation, the number (in the given order) of the first collective that needs it; for a
/// collective, its own number, even if in the given order one that needs it comes before it.
fn first_collective_led_to(graph: &Graph, order: &Order, goals: Goals) -> IdVec<OpId, u32> {
    let mut number = IdVec::filled(u32::MAX, graph.len());
    if !goals.raise_comms {
        return number;
    }
    let collectives = order.as_slice().iter().filter(|&&op| graph.kind(op).is_collective());
    for (index, &op) in collectives.enumerate() {
        number[op] = index as u32;
    }
    // Input order, unlike the given one, is certain to be a topological order of all edges.
    let mut first = number.clone();
    for op in graph.ops().rev() {
        let after = graph.succs(op, Edges::All).iter().map(|&succ| first[succ]).min();
        first[op] = first[op].min(after.unwrap_or(u32::MAX));
    }
    graph
        .ops()
        .map(|op| if graph.kind(op).is_collective() { number[op] } else { first[op] })
        .collect()
}

impl<'a> Scheduler<'a> {
    fn new(of: &Runner<'a>, ranks: IdVec<OpId, ListRank>) -> Scheduler<'a> {
        let graph = of.graph;
        let missing: IdVec<OpId, u32> =
            graph.ops().map(|op| graph.preds(op, Edges::All).len() as u32).collect();
        let mut scheduler = Scheduler {
            graph,
            times: of.times,
            ranks,
            missing,
            ready_compute: BinaryHeap::new(),
            ready_others: BinaryHeap::new(),
            scheduled: Vec::with_capacity(graph.len()),
        };
        graph
            .ops()
            .filter(|&op| graph.preds(op, Edges::All).is_empty())
            .for_each(|op| scheduler.push(op));
        scheduler
    }

    fn push(&mut self, op: OpId) {
        let ready = match self.graph.kind(op) {
            OpKind::Compute | OpKind::MultiOutput => &mut self.ready_compute,
            _ => &mut self.ready_others,
        };
        ready.push(Reverse((self.ranks[op], op)));
    }

    /// The first of all that could run. `Reverse` turns the order around: the larger one ranks
    /// first.
    fn pop(&mut self) -> Option<OpId> {
        let others_first = self.ready_others.peek() > self.ready_compute.peek();
        let ready = if others_first { &mut self.ready_others } else { &mut self.ready_compute };
        ready.pop().map(|Reverse((_, op))| op)
    }

    fn take(&mut self, op: OpId) {
        self.scheduled.push(op);
        for &succ in self.graph.succs(op, Edges::All) {
            self.missing[succ] -= 1;
            if self.missing[succ] == 0 {
                self.push(succ);
            }
        }
    }

    /// Takes compute until it is as long as the collective, or none is left.
    fn hide(&mut self, collective: OpId) {
        let mut exposed = self.times.of(collective);
        while exposed > Nanos::ZERO
            && let Some(Reverse((_, op))) = self.ready_compute.pop()
        {
            self.take(op);
            exposed -= self.times.of(op);
        }
    }
}
