//! The last moves: what a single operation at another place would still save.
//!
//! An order that is handed on is asked what holds its collectives. Where the answer would be that
//! one was issued too late, or is waited for too early, it is moved.

use super::Task;
use super::probe::{Probe, Side};
use super::program::Program;
use crate::graph::OpKind;
use crate::order::Order;
use crate::simulate::{Bound, Simulation, simulate};

/// How many moves are made at most, and how many operations are looked at for them.
const MOVES: usize = 256;
const WORK: u64 = 10_000_000;

/// Moves single operations as long as that makes the step shorter.
pub(super) fn settled(task: &Task<'_>, program: &Program, order: Order, bound: Bound) -> Order {
    let simulation = simulate(task.graph, order.as_slice(), task.machine);
    let mut settling = Settling { task, program, order, simulation, left: WORK };
    for _ in 0..MOVES {
        if bound.is_reached_by(settling.simulation.step_time) || !settling.improve() {
            break;
        }
    }
    settling.order
}

struct Settling<'a> {
    task: &'a Task<'a>,
    program: &'a Program,
    order: Order,
    simulation: Simulation,
    left: u64,
}

impl Settling<'_> {
    /// Makes the first move that helps; says whether there is one.
    fn improve(&mut self) -> bool {
        let Task { graph, machine, edges, memory_limit, .. } = *self.task;
        let order = self.order.clone();
        let mut probe = Probe::new(self.program, graph, &order, memory_limit);
        for waited in self.simulation.waited_for() {
            if graph.kind(waited.collective) == OpKind::SyncCollective {
                continue;
            }
            let wait = (waited.at != waited.collective).then_some((waited.at, Side::Later));
            let earlier = (waited.collective, Side::Earlier);
            for (op, side) in [Some(earlier), wait].into_iter().flatten() {
                if probe.work() > self.left {
                    return false;
                }
                let Some(to) = probe.worth(op, side, edges).best else { continue };
                let moved = order.moved(op, to);
                let ran = simulate(graph, moved.as_slice(), machine);
                // The place was found without contention and launch times, which may say otherwise.
                if ran.step_time < self.simulation.step_time {
                    self.left -= probe.work();
                    (self.order, self.simulation) = (moved, ran);
                    return true;
                }
            }
        }
        false
    }
}
