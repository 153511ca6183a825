//! A first look at one of many candidate programs: the result of a short search from known orders,
//! without a proof, and only if there is anything to gain.

use super::anneal::Found;
use super::program::Program;
use super::{Candidates, Effort, Hunt, OptimizeError, Start, Task, ranked_starts};
use crate::order::Order;
use crate::simulate::{Bound, Bounded, Machine};
use crate::units::Nanos;

/// An order that is not proved.
pub(crate) struct Sketch {
    pub(crate) order: Order,
    pub(crate) step_time: Nanos,
}

/// What a first look shows.
pub(crate) enum FirstLook {
    /// An order within the limit.
    Found(Sketch),
    /// No order is as short as requested.
    TooLong {
        /// The lower bound.
        least: Nanos,
        /// Whether the memory limit is the reason.
        memory: bool,
    },
}

/// Searches for an order with a step below a time, at quick effort; if no more was requested, with
/// half of that work, which only refines the best known order.
pub(crate) fn sketch(task: &Task<'_>, below: Nanos) -> Result<FirstLook, OptimizeError> {
    let bound = bound_of(task, task.machine);
    if bound.time >= below {
        return Ok(FirstLook::TooLong { least: bound.time, memory: bound.memory });
    }
    let program = Program::new(task.graph, task.machine, task.edges);
    let known = [Order::of_input(task.graph)].into_iter().chain(task.known.iter().cloned());
    let starts = ranked_starts(task, known.collect());
    let mut candidates = Candidates::new(task, &program);
    candidates.extend(starts.iter().map(|order| Found::new(&program, order.clone())));
    // The search itself does not model contention.
    let bound = match task.machine.is_contended() {
        true => bound_of(task, &task.machine.uncontended()),
        false => bound,
    };
    let start = Start { orders: &starts[..1], bound };
    let stages = match task.effort {
        Effort::Quick => Effort::Quick.refining(program.len),
        _ => Effort::Quick.stages(program.len),
    };
    candidates.extend(Hunt::new(task, &program, start, 1).run(&stages));
    let Some(best) = candidates.best() else { return Err(candidates.none_within()) };
    let order = Order::from_ops(task.graph.len(), best.ops.clone())
        .unwrap_or_else(|| Order::of_input(task.graph));
    Ok(FirstLook::Found(Sketch { order, step_time: best.step_time }))
}

/// The longest programs of which a quick look proves all that can be: in longer ones that takes as
/// long as the look itself.
const LONG: usize = 1_500;

fn bound_of(task: &Task<'_>, machine: &Machine) -> Bound {
    let &Task { graph, edges, memory_limit, .. } = task;
    let bounded = Bounded { graph, machine, edges, memory_limit };
    match task.effort == Effort::Quick && graph.len() > LONG {
        true => bounded.prove_by_machines().bound,
        false => bounded.prove().bound,
    }
}
