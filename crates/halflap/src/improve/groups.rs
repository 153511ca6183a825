//! A second communicator for the all-gathers of every process group that has other collectives,
//! too; judged on top of all that was decided before.

use super::{Changed, ImproveError, Improved, LEAST, PlanOrder, Request};
use crate::cost::Costs;
use crate::evaluate::{Evaluation, Setup, Side};
use crate::graph::Graph;
use crate::optimize::{
    FirstLook, OptimizeError, Optimized, Sketch, Task, optimize, proved_order, sketch,
};
use crate::order::Order;
use crate::origin::Origin;
use crate::rewrite::{Recipe, RewriteError, RewriteKind, Rewritten, apply, divisible};
use crate::robustness::Robustness;
use crate::simulate::{Machine, simulate};
use crate::units::Nanos;
use crate::verify_rewrite::verify_rewrite;

/// Why all collectives of a process group stay on one communicator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OneCommunicator {
    /// No process group has all-gathers and other collectives.
    NothingBeside,
    /// Next to nothing is exposed.
    NothingExposed,
    /// No order was found within the memory limit.
    NothingFits,
    /// Even if links were not shared, the step would not be short enough.
    BoundTooLong {
        /// The lower bound.
        least: Nanos,
    },
    /// The step is not shorter.
    NothingShorter {
        /// The best that was found.
        step: Nanos,
    },
    /// The step is longer in most variations.
    SlowerInMost {
        /// In how many.
        lost: usize,
        /// Of how many.
        of: usize,
    },
    /// All that would move were left out by the request.
    LeftOut,
}

/// A program in its best order with one communicator for each process group.
struct OneEach<'a> {
    recipes: Vec<Recipe>,
    graph: &'a Graph,
    machine: Machine,
    order: Order,
    step_time: Nanos,
}

impl OneEach<'_> {
    fn setup(&self) -> Setup<'_> {
        Setup { graph: self.graph, machine: &self.machine }
    }
}

/// Adds second communicators to what was decided, if that makes the step shorter.
pub(super) fn on_two(
    request: &Request<'_>,
    mut improved: Improved,
) -> Result<Improved, ImproveError> {
    let sets = divisible(request.task.graph);
    let first = improved.chosen.len();
    let is_kept = |number: &usize| !request.left_out.contains(&(first + number));
    let moves: Vec<Recipe> = (0..sets.len())
        .filter(is_kept)
        .map(|number| Recipe::Groups { members: sets[number].clone() })
        .collect();
    improved.chosen.extend(sets.iter().map(|_| RewriteKind::Groups));
    let decided = match () {
        () if sets.is_empty() => Err(OneCommunicator::NothingBeside),
        () if moves.is_empty() => Err(OneCommunicator::LeftOut),
        () => tried(request, &improved, moves)?,
    };
    match decided {
        Ok(changed) => improved.changed = Some(changed),
        Err(why) => improved.one_communicator = Some(why),
    }
    Ok(improved)
}

/// What was decided before, as far as second communicators are compared with it.
fn one_each<'a>(request: &Request<'a>, improved: &'a Improved) -> Option<OneEach<'a>> {
    let Some(Changed { recipes, rewritten, optimized, .. }) = &improved.changed else {
        let Optimized { order, step_time, .. } = &improved.unchanged;
        let (graph, machine) = (request.task.graph, request.task.machine.clone());
        let (order, step_time) = (order.clone(), *step_time);
        return Some(OneEach { recipes: Vec::new(), graph, machine, order, step_time });
    };
    let graph = &rewritten.graph;
    let machine = machine_of(request, graph)?;
    let (order, step_time) = (optimized.order.clone(), optimized.step_time);
    Some(OneEach { recipes: recipes.clone(), graph, machine, order, step_time })
}

/// What a changed program is simulated with; `None` if an operation has no run time.
fn machine_of(request: &Request<'_>, graph: &Graph) -> Option<Machine> {
    let times = Costs::default().times(graph).ok()?;
    Some(request.model.machine(graph, times))
}

type Judged = Result<Changed, OneCommunicator>;

fn tried(
    request: &Request<'_>,
    improved: &Improved,
    moves: Vec<Recipe>,
) -> Result<Judged, ImproveError> {
    let task = request.task;
    let Some(one) = one_each(request, improved) else {
        return Ok(Err(OneCommunicator::NothingFits));
    };
    let before = Evaluation::of(one.setup(), one.order.clone());
    if before.exposed() <= one.step_time * LEAST {
        return Ok(Err(OneCommunicator::NothingExposed));
    }
    let recipes = [one.recipes.clone(), moves].concat();
    let rewritten = apply(task.graph, &recipes, request.prices)?;
    let Some(machine) = machine_of(request, &rewritten.graph) else {
        return Ok(Err(OneCommunicator::NothingFits));
    };
    // Moving collectives changes no id: what is an order of the one is an order of the other.
    let two = Setup { graph: &rewritten.graph, machine: &machine };
    let target = one.step_time * (1.0 - LEAST);
    let found = match searched(request, two, &one.order, target)? {
        Ok(found) => found,
        Err(why) => return Ok(Err(why)),
    };
    // What an order gains also on one communicator is no gain of the second.
    let alone = simulate(one.graph, found.order.as_slice(), &one.machine).step_time;
    if found.step_time > target.min(alone * (1.0 - LEAST)) {
        return Ok(Err(OneCommunicator::NothingShorter { step: found.step_time }));
    }
    verify_rewrite(task.graph, &rewritten.graph, &rewritten.origin)
        .map_err(RewriteError::Unproved)?;
    let after = Evaluation::of(two, found.order.clone());
    let after = Side { setup: two, evaluation: &after };
    let before = Side { setup: one.setup(), evaluation: &before };
    let beside = Robustness::between(before, after, &Origin::unchanged(one.graph));
    if beside.is_lost() {
        let (lost, of) = (beside.lost(), beside.trials.len());
        return Ok(Err(OneCommunicator::SlowerInMost { lost, of }));
    }
    let robustness = match &improved.changed {
        Some(_) => against_old(request, improved, after, &rewritten),
        None => beside,
    };
    Ok(Ok(Changed { recipes, rewritten, optimized: found, robustness }))
}

/// The best order on two communicators, with a first look at whether that can be short enough.
fn searched(
    request: &Request<'_>,
    two: Setup<'_>,
    order: &Order,
    target: Nanos,
) -> Result<Result<Optimized, OneCommunicator>, ImproveError> {
    let known = [order.clone()];
    let task = Task { graph: two.graph, machine: two.machine, known: &known, ..*request.task };
    let look: Sketch = match sketch(&task, target) {
        Ok(FirstLook::Found(sketch)) => sketch,
        Ok(FirstLook::TooLong { least, .. }) => {
            return Ok(Err(OneCommunicator::BoundTooLong { least }));
        }
        Err(OptimizeError::NoOrderWithin { .. }) => return Ok(Err(OneCommunicator::NothingFits)),
        Err(error) => return Err(error.into()),
    };
    Ok(Ok(match request.plan_order {
        PlanOrder::Searched => optimize(&Task { known: &[order.clone(), look.order], ..task })?,
        PlanOrder::Sketched => proved_order(&task, &look.order)?,
    }))
}

/// The new program against the old one in its own best order.
fn against_old(
    request: &Request<'_>,
    improved: &Improved,
    after: Side<'_>,
    rewritten: &Rewritten,
) -> Robustness {
    let setup = Setup { graph: request.task.graph, machine: request.task.machine };
    let before = Evaluation::of(setup, improved.unchanged.order.clone());
    Robustness::between(Side { setup, evaluation: &before }, after, &rewritten.origin)
}
