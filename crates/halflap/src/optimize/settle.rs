//! The last moves: what moving single operations would still save.
//!
//! A final order is asked what holds its collectives. If the answer is that one was issued too
//! late, or is waited for too early, it is moved.

use super::probe::{Probe, Side};
use super::program::Program;
use super::{Ranked, Task};
use crate::graph::OpKind;
use crate::ids::{Id, OpId};
use crate::order::Order;
use crate::simulate::{Bound, Simulation, simulate};

/// The maximum number of moves, and of operations visited for them.
const MOVES: usize = 256;
const WORK: u64 = 10_000_000;

/// An order after moves of single operations that make the step shorter, if there are such moves.
pub(super) fn settled(
    task: &Task<'_>,
    program: &Program,
    order: &Ranked,
    bound: Bound,
) -> Option<Vec<u32>> {
    let order = Order::from_ops(task.graph.len(), order.ops.clone())?;
    let simulation = simulate(task.graph, order.as_slice(), task.machine);
    let mut settling = Settling { task, program, bound, order, simulation, moves: 0, work: 0 };
    while !settling.is_done() {
        let before = settling.moves;
        settling.pass();
        if settling.moves == before {
            break;
        }
    }
    let ops = settling.order.as_slice().iter().map(|op| op.index() as u32);
    (settling.moves > 0).then(|| ops.collect())
}

struct Settling<'a> {
    task: &'a Task<'a>,
    program: &'a Program,
    bound: Bound,
    order: Order,
    simulation: Simulation,
    /// How many were made, and how many operations were visited for them.
    moves: usize,
    work: u64,
}

impl Settling<'_> {
    fn is_done(&self) -> bool {
        self.bound.is_reached_by(self.simulation.step_time)
            || self.moves >= MOVES
            || self.work > WORK
    }

    /// Goes through the awaited collectives, and makes the moves that help.
    fn pass(&mut self) {
        let waited = self.simulation.waited_for().into_iter();
        let asynchronous = waited
            .filter(|waited| self.task.graph.kind(waited.collective) != OpKind::SyncCollective);
        let questions = asynchronous.flat_map(|waited| {
            let wait = (waited.at != waited.collective).then_some((waited.at, Side::Later));
            [Some((waited.collective, Side::Earlier)), wait].into_iter().flatten()
        });
        let questions: Vec<(OpId, Side)> = questions.collect();
        let mut left = questions.as_slice();
        while !left.is_empty() && !self.is_done() {
            left = &left[self.improve(left)..];
        }
    }

    /// Makes the first move that helps; returns how many operations were visited.
    fn improve(&mut self, questions: &[(OpId, Side)]) -> usize {
        let Task { graph, machine, edges, memory_limit, .. } = *self.task;
        let order = self.order.clone();
        let mut probe = Probe::new(self.program, graph, &order, memory_limit);
        let already = self.work;
        for (index, &(op, side)) in questions.iter().enumerate() {
            let best = probe.worth(op, side, edges).best;
            self.work = already + probe.work();
            if self.work > WORK {
                break;
            }
            let Some(to) = best else { continue };
            let moved = order.moved(op, to);
            let ran = simulate(graph, moved.as_slice(), machine);
            // The place was found without contention and launch times, which may rule it out.
            if ran.step_time < self.simulation.step_time {
                (self.order, self.simulation) = (moved, ran);
                self.moves += 1;
                return index + 1;
            }
        }
        questions.len()
    }
}
