//! Recipes and order, chosen together.
//!
//! A rewrite is worth what the best order of the rewritten program gains, so every plan of rewrites
//! that its bound does not rule out is judged by a search of its own: a quick one to choose between
//! plans, and one with the requested effort between the chosen plan and the program as it is. A
//! plan stays only if its step is shorter, at the nominal times and over the variations of
//! [`Robustness`].

mod advice;
mod carry;
mod cuts;
mod groups;
mod keeps;
mod plans;
mod search;
mod thin;

use std::ops::ControlFlow;

use crate::collective::CollectiveKind;
use crate::evaluate::{Evaluation, Setup};
use crate::graph::{Graph, OpKind};
use crate::ids::OpId;
use crate::optimize::{OptimizeError, Optimized, Task, optimize, proved_order};
use crate::order::Order;
use crate::rewrite::{Prices, Recipe, RewriteError, RewriteKind, Rewritten};
use crate::robustness::Robustness;
use crate::simulate::simulate;
use crate::units::{Bytes, Nanos};
use crate::workload::Model;
pub use advice::{LookedUp, looked_up};
use cuts::Cuts;
pub use cuts::cuttable_exposure;
pub use groups::OneCommunicator;
use keeps::Keeps;
use plans::{Levels, Plans, SizeLevel};
use search::{Choices, PlanSearch, TriedPlan};
use thiserror::Error;

/// Which rewrites may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Their kinds.
    pub kinds: Vec<RewriteKind>,
    /// Whether only those that keep every bit: others change the order of summation.
    pub exact_only: bool,
}

impl Allowed {
    /// All that keep every bit, without those that must be named.
    pub fn exact() -> Allowed {
        let kinds = RewriteKind::ALL.into_iter().filter(|kind| !kind.is_on_request());
        Allowed { kinds: kinds.collect(), exact_only: true }
    }
}

/// What to improve.
pub struct Request<'a> {
    /// The program, which gives all its run times itself, and the requirements on its order.
    pub task: &'a Task<'a>,
    /// What a changed program is simulated with; its times come from the program.
    pub model: &'a Model,
    /// Where the times of new operations come from.
    pub prices: &'a Prices<'a>,
    /// Which rewrites may be used.
    pub allowed: &'a Allowed,
    /// Chosen recipes to leave out, by their number in the choice.
    pub left_out: &'a [usize],
    /// Where the order of the changed program comes from.
    pub plan_order: PlanOrder,
    /// The best order of the program as it is, if it is known: none is then searched for.
    pub alone: Option<&'a Order>,
}

/// How the chosen plan is ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlanOrder {
    /// By a search with the task's effort.
    #[default]
    Searched,
    /// As it was when plans were compared: for callers that carry recipes out themselves, and have
    /// the result ordered.
    Sketched,
}

/// The best that was found.
pub struct Improved {
    /// The order of the program as it is.
    pub unchanged: Optimized,
    /// A changed program with its order, if that is better.
    pub changed: Option<Changed>,
    /// The kinds of the recipes that were chosen, with those that were left out again.
    pub chosen: Vec<RewriteKind>,
    /// Why the program is not changed, if it is not.
    pub kept_because: KeptBecause,
    /// Why process groups have no second communicator, if they were allowed one.
    pub one_communicator: Option<OneCommunicator>,
}

/// Why a program stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeptBecause {
    /// Nothing exposed can be merged, split or kept, or there is too little to save.
    NothingToSave,
    /// The time of merged collectives is unknown: all have one size, and no link is given.
    LatencyUnknown,
    /// Of the plans that were tried, none is within the memory limit.
    NothingFits,
    /// No plan that was tried makes the step shorter.
    NothingShorter,
}

/// A changed program and its order, both proved.
pub struct Changed {
    /// What was done.
    pub recipes: Vec<Recipe>,
    /// The new program.
    pub rewritten: Rewritten,
    /// Its order.
    pub optimized: Optimized,
    /// The new program and order against the old program in its own best order.
    pub robustness: Robustness,
}

/// Why there is no result.
#[derive(Debug, Error)]
pub enum ImproveError {
    /// The program has no order.
    #[error(transparent)]
    Optimize(#[from] OptimizeError),
    /// A chosen recipe cannot be applied, or its result is not proved: our own bug.
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
}

/// The minimum gain, as a fraction of the step: less is within the model's own error.
const LEAST: f64 = 1e-3;

/// Finds recipes and an order. Where recipes may change the order of summation, those that do not
/// are also chosen for themselves: which plans are tried depends on what is allowed, and a longer
/// list never leads to a longer step.
pub fn improve(request: &Request<'_>) -> Result<Improved, ImproveError> {
    let task = request.task;
    let first = part_of(task, 0.0, 1.0 / 3.0);
    let unchanged = match request.alone {
        Some(order) => proved_order(task, order)?,
        None => optimize(&Task { progress: &first, ..*task })?,
    };
    if request.allowed.exact_only || !task.graph.ops().any(|op| is_summed(task.graph, op)) {
        let last = part_of(task, 1.0 / 3.0, 1.0);
        let task = Task { progress: &last, ..*task };
        return improve_beyond(&Request { task: &task, ..*request }, unchanged, None);
    }
    either(request, unchanged)
}

/// The better of what is chosen from all that is allowed, and from what keeps every bit of that.
fn either(request: &Request<'_>, unchanged: Optimized) -> Result<Improved, ImproveError> {
    let task = request.task;
    let (middle, last) = (part_of(task, 1.0 / 3.0, 2.0 / 3.0), part_of(task, 2.0 / 3.0, 1.0));
    let (middle, last) = (Task { progress: &middle, ..*task }, Task { progress: &last, ..*task });
    let exact = Allowed { exact_only: true, ..request.allowed.clone() };
    // What is left out has numbers of the whole choice.
    let any = Request { task: &middle, left_out: &[], ..*request };
    let exact = Request { task: &last, allowed: &exact, ..any };
    let with_any = improve_beyond(&any, unchanged.clone(), None)?;
    let known = with_any.changed.as_ref().map(|changed| changed.optimized.step_time);
    let with_exact = improve_beyond(&exact, unchanged.clone(), known)?;
    let step = |of: &Improved| of.changed.as_ref().map(|changed| changed.optimized.step_time.0);
    let is_exact_shorter =
        step(&with_exact).is_some_and(|exact| step(&with_any).is_none_or(|any| exact < any));
    let (best, allowed) = match is_exact_shorter {
        true => (with_exact, exact.allowed),
        false => (with_any, any.allowed),
    };
    match request.left_out {
        [] => Ok(best),
        _ => improve_beyond(&Request { allowed, task: &last, ..*request }, unchanged, None),
    }
}

/// Whether merging or cutting a collective changes the order of summation.
fn is_summed(graph: &Graph, op: OpId) -> bool {
    graph.collective(op).is_some_and(|of| of.kind == CollectiveKind::AllReduce)
}

/// The same for one choice of what is allowed. Second communicators are judged on top of all
/// others. What is not shorter than a step that is known need not be found.
fn improve_beyond(
    request: &Request<'_>,
    unchanged: Optimized,
    known: Option<Nanos>,
) -> Result<Improved, ImproveError> {
    if !request.allowed.kinds.contains(&RewriteKind::Groups) {
        return improve_on_one(request, unchanged, known);
    }
    let (first, last) =
        (part_of(request.task, 0.0, 2.0 / 3.0), part_of(request.task, 2.0 / 3.0, 1.0));
    let task = Task { progress: &first, ..*request.task };
    // A second communicator may make more of a longer step.
    let improved = improve_on_one(&Request { task: &task, ..*request }, unchanged, None)?;
    let task = Task { progress: &last, ..*request.task };
    groups::on_two(&Request { task: &task, ..*request }, improved)
}

/// The same with one communicator for each process group.
fn improve_on_one(
    request: &Request<'_>,
    unchanged: Optimized,
    known: Option<Nanos>,
) -> Result<Improved, ImproveError> {
    let task = request.task;
    let plans = Plans::new(task.graph, request.prices, request.allowed);
    let left = idle(task, &unchanged);
    let is_idle = left > unchanged.step_time * LEAST;
    let merges = is_idle && plans.most_saved() > unchanged.step_time * LEAST;
    let setup = Setup { graph: task.graph, machine: task.machine };
    let played = Evaluation::of(setup, unchanged.order.clone());
    let cuts = Cuts::new(setup, &played.simulation, request.allowed);
    let keeps = Keeps::new(request);
    if !is_idle || !merges && cuts.is_empty() && keeps.is_empty() {
        let unknown = plans.has_unknown && is_idle;
        let kept_because =
            if unknown { KeptBecause::LatencyUnknown } else { KeptBecause::NothingToSave };
        let (changed, chosen, one_communicator) = (None, vec![], None);
        return Ok(Improved { unchanged, changed, chosen, kept_because, one_communicator });
    }
    let mut search = PlanSearch::new(request, &unchanged.order, unchanged.step_time);
    search.run(&Choices { merges: merges.then_some(&plans), cuts: &cuts, keeps: &keeps });
    let best = search.take_best();
    // A plan that was stopped looks like one that does not fit.
    if (task.progress)(0.5).is_break() {
        return Err(OptimizeError::Stopped.into());
    }
    let kept_because =
        if search.fits { KeptBecause::NothingShorter } else { KeptBecause::NothingFits };
    let chosen = best.iter().flat_map(TriedPlan::recipes).map(Recipe::kind).collect();
    let left = best.map(|best| search.leave_out(best)).transpose()?.flatten();
    let left = left.filter(|left| known.is_none_or(|known| search.could_beat(left, known)));
    let changed = left.map(|left| search.decided(left)).transpose()?.flatten();
    Ok(Improved { unchanged, changed, chosen, kept_because, one_communicator: None })
}

/// What merging collectives would gain, by a quick estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// The step then.
    pub step_time: Nanos,
    /// How many collectives are merged.
    pub collectives: usize,
    /// Into how many.
    pub into: usize,
    /// The bytes of all of them.
    pub bytes: Bytes,
}

/// The best of three plans, each with a quick search, from an order of the program as it is; `None`
/// if nothing can be merged, or no merge could make the step shorter.
pub fn estimate(request: &Request<'_>, order: &Order) -> Option<Estimate> {
    let task = request.task;
    let plans = Plans::new(task.graph, request.prices, request.allowed);
    let step_time = simulate(task.graph, order.as_slice(), task.machine).step_time;
    if plans.most_saved() < step_time * LEAST {
        return None;
    }
    let mut search = PlanSearch::new(request, order, step_time);
    for level in [SizeLevel::MIDDLE, SizeLevel::LARGE, SizeLevel::SMALL] {
        search.consider(plans.recipes(&Levels::all(&plans, level)), 0.5);
    }
    let best = search.take_best()?;
    let members = best.recipes().iter().flat_map(Recipe::members);
    let size = |op: &OpId| task.graph.collective(*op).map_or(Bytes::ZERO, |of| of.bytes());
    Some(Estimate {
        step_time: best.step_time(),
        collectives: members.clone().count(),
        into: best.recipes().len(),
        bytes: members.map(size).sum(),
    })
}

/// A part of the progress of a task.
fn part_of<'a>(
    task: &'a Task<'a>,
    from: f64,
    to: f64,
) -> impl Fn(f64) -> ControlFlow<()> + Sync + 'a {
    move |part| (task.progress)(from + (to - from) * part)
}

/// What a step takes beyond compute: no rewrite here makes compute shorter.
fn idle(task: &Task<'_>, found: &Optimized) -> Nanos {
    let ops = task.graph.ops().filter(|&op| task.graph.kind(op) == OpKind::Compute);
    found.step_time - ops.map(|op| task.machine.times.of(op)).sum()
}
