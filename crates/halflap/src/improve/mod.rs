//! Recipes and order, chosen together.
//!
//! A rewrite is worth what the best order of the rewritten program gains, so every plan of rewrites
//! is judged by a search of its own: a quick one to choose between plans, and one with the effort
//! that was asked for between the chosen plan and the program as it is. A plan stays only if its
//! step is shorter, at the nominal times and over the variations of [`Robustness`].

mod advice;
mod carry;
mod cuts;
mod plans;
mod thin;

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::cost::Costs;
use crate::evaluate::{Evaluation, Setup, Side};
use crate::graph::{Graph, OpKind};
use crate::ids::OpId;
use crate::optimize::{Effort, OptimizeError, Optimized, Task, optimize};
use crate::order::Order;
use crate::origin::{Part, Source};
use crate::rewrite::{Prices, Recipe, RewriteError, RewriteKind, Rewritten, apply};
use crate::robustness::Robustness;
use crate::simulate::{Machine, simulate};
use crate::units::{Bytes, Nanos};
use crate::verify_rewrite::verify_rewrite;
use crate::workload::Model;
pub use advice::{LookedUp, looked_up};
use carry::carried_order;
pub use cuts::cuttable_exposure;
use cuts::{Cuts, DEPTHS};
use plans::{Levels, Plans, SizeLevel};
use thin::thinned;
use thiserror::Error;

/// Which rewrites may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Their kinds.
    pub kinds: Vec<RewriteKind>,
    /// Whether only those that keep every bit: others change the order in which numbers are added
    /// up.
    pub exact_only: bool,
}

impl Allowed {
    /// All that keep every bit.
    pub fn exact() -> Allowed {
        Allowed { kinds: RewriteKind::ALL.to_vec(), exact_only: true }
    }
}

/// What is to be improved.
pub struct Request<'a> {
    /// The program, which gives all its run times itself, and the requirements on its order.
    pub task: &'a Task<'a>,
    /// What a changed program is simulated with; its times come from the program.
    pub model: &'a Model,
    /// Where the times of new operations come from.
    pub prices: &'a Prices<'a>,
    /// Which rewrites may be used.
    pub allowed: &'a Allowed,
    /// Chosen recipes that are left out again, by their number in the choice.
    pub left_out: &'a [usize],
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
}

/// Why a program stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeptBecause {
    /// Nothing exposed can be merged or cut, or there is too little to save.
    NothingToSave,
    /// It is not known how long merged collectives would take: all have one size, and no link is
    /// given.
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

/// Why nothing can be said.
#[derive(Debug, Error)]
pub enum ImproveError {
    /// The program has no order.
    #[error(transparent)]
    Optimize(#[from] OptimizeError),
    /// A chosen recipe cannot be applied, or its result is not proved: our own bug.
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
}

/// What must be gained at least, as a part of the step: less is within the model's own error.
const LEAST: f64 = 1e-3;

/// How many plans are compared; together with the two searches that decide this takes about three
/// times as long as an order alone.
const TRIALS: usize = 10;

/// How large merged collectives become at first: in the middle, then to both sides as far as the
/// step becomes shorter.
const LEVELS: [SizeLevel; 5] = [
    SizeLevel::MIDDLE,
    SizeLevel::LARGE,
    SizeLevel::SMALL,
    SizeLevel::LARGEST,
    SizeLevel::SMALLEST,
];

/// Finds recipes and an order.
pub fn improve(request: &Request<'_>) -> Result<Improved, ImproveError> {
    let task = request.task;
    let unchanged = optimize(&Task { progress: &part_of(task, 0.0, 1.0 / 3.0), ..*task })?;
    let plans = Plans::new(task.graph, request.prices, request.allowed);
    let left = idle(task, &unchanged);
    let is_idle = left > unchanged.step_time * LEAST;
    let merges = is_idle && plans.most_saved() > unchanged.step_time * LEAST;
    let setup = Setup { graph: task.graph, machine: task.machine };
    let played = Evaluation::of(setup, unchanged.order.clone());
    let cuts = Cuts::new(setup, &played.simulation, request.allowed);
    if !is_idle || !merges && cuts.is_empty() {
        let unknown = plans.has_unknown && is_idle;
        let kept_because =
            if unknown { KeptBecause::LatencyUnknown } else { KeptBecause::NothingToSave };
        return Ok(Improved { unchanged, changed: None, chosen: vec![], kept_because });
    }
    let search = PlanSearch { request, order: &unchanged.order, step_time: unchanged.step_time };
    let merged = if merges { search.choose(&plans) } else { None };
    let best = search.with_cuts(&cuts, merged).map(TriedPlan::in_sequence);
    // A plan that was stopped looks like one that does not fit.
    if (task.progress)(2.0 / 3.0).is_break() {
        return Err(OptimizeError::Stopped.into());
    }
    let chosen: Vec<RewriteKind> =
        best.iter().flat_map(|best| &best.recipes).map(Recipe::kind).collect();
    let changed = match best.map(|best| search.leave_out(best)) {
        Some(best) => search.decided(best?)?,
        None => None,
    };
    let kept_because =
        if chosen.is_empty() { KeptBecause::NothingFits } else { KeptBecause::NothingShorter };
    Ok(Improved { unchanged, changed, chosen, kept_because })
}

/// What merging collectives would bring, by a quick look.
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
/// where nothing can be merged.
pub fn estimate(request: &Request<'_>, order: &Order) -> Option<Estimate> {
    let task = request.task;
    let plans = Plans::new(task.graph, request.prices, request.allowed);
    let step_time = simulate(task.graph, order.as_slice(), task.machine).step_time;
    if plans.most_saved() < step_time * LEAST {
        return None;
    }
    let search = PlanSearch { request, order, step_time };
    let levels = [SizeLevel::MIDDLE, SizeLevel::LARGE, SizeLevel::SMALL];
    let tried = levels.iter().filter_map(|&level| {
        let recipes = plans.recipes(&Levels::all(&plans, level));
        search.try_out(recipes, 0.5)
    });
    let best = tried.min_by(|a, b| a.step_time.0.total_cmp(&b.step_time.0))?;
    let members = best.recipes.iter().flat_map(Recipe::members);
    let size = |op: &OpId| task.graph.collective(*op).map_or(Bytes::ZERO, |of| of.bytes());
    Some(Estimate {
        step_time: best.step_time,
        collectives: members.clone().count(),
        into: best.recipes.len(),
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

/// Whether a level at either end is worth a try: the one next to it is better than the middle, or
/// does not fit and this one is smaller.
fn is_promising(level: SizeLevel, tried: &[(SizeLevel, Option<Nanos>)]) -> bool {
    let step =
        |of: SizeLevel| tried.iter().find(|(level, _)| *level == of).and_then(|(_, step)| *step);
    let near = match level {
        SizeLevel::LARGEST => SizeLevel::LARGE,
        SizeLevel::SMALLEST => SizeLevel::SMALL,
        _ => return true,
    };
    match (step(near), step(SizeLevel::MIDDLE)) {
        (Some(near), Some(middle)) => near.0 < middle.0,
        _ => level == SizeLevel::SMALLEST,
    }
}

/// Merges and splits: what is cut is not merged.
fn together(merges: &[Recipe], splits: Vec<Recipe>) -> Vec<Recipe> {
    let cut: BTreeSet<OpId> =
        splits.iter().flat_map(|split| split.members().iter().copied()).collect();
    let rest = |merge: &Recipe| {
        let members = merge.members().iter().copied().filter(|op| !cut.contains(op)).collect();
        Recipe::Merge { members }
    };
    let merges = merges.iter().map(rest).filter(|merge| merge.members().len() > 1);
    merges.chain(splits.iter().cloned()).collect()
}

/// A search for plans that are better than an order of the program as it is.
struct PlanSearch<'a> {
    request: &'a Request<'a>,
    order: &'a Order,
    step_time: Nanos,
}

/// A plan that was tried.
struct TriedPlan {
    recipes: Vec<Recipe>,
    rewritten: Rewritten,
    order: Order,
    step_time: Nanos,
}

impl TriedPlan {
    fn new(recipes: Vec<Recipe>, rewritten: Rewritten, found: Optimized) -> TriedPlan {
        TriedPlan { recipes, rewritten, order: found.order, step_time: found.step_time }
    }

    /// The same with recipes in the sequence of the new program, which numbers them for people.
    fn in_sequence(mut self) -> TriedPlan {
        let origin = &self.rewritten.origin;
        let place = |recipe: &Recipe| {
            let of = recipe.members();
            let is_made_of = |source: &Source| match source.part {
                Part::Merged => source.of == of,
                Part::Piece { .. } => of.contains(&source.of[0]),
                _ => false,
            };
            origin.ops.iter().position(|(_, source)| is_made_of(source))
        };
        self.recipes.sort_by_key(place);
        self
    }
}

impl PlanSearch<'_> {
    /// The best plan: first all classes alike, then class by class.
    fn choose(&self, plans: &Plans<'_>) -> Option<TriedPlan> {
        let mut best: Option<(Levels, TriedPlan)> = None;
        let mut seen: Vec<Vec<Recipe>> = Vec::new();
        let mut left = TRIALS;
        let mut consider = |levels: Levels, best: &mut Option<(Levels, TriedPlan)>| {
            let recipes = plans.recipes(&levels);
            if left == 0 || recipes.is_empty() || seen.contains(&recipes) {
                return None;
            }
            left -= 1;
            seen.push(recipes.clone());
            let part = 1.0 / 3.0 + (TRIALS - left - 1) as f64 / (3.0 * TRIALS as f64);
            let tried = self.try_out(recipes, part)?;
            let step_time = tried.step_time;
            if best.as_ref().is_none_or(|(_, held)| step_time.0 < held.step_time.0) {
                *best = Some((levels, tried));
            }
            Some(step_time)
        };
        let mut steps: Vec<(SizeLevel, Option<Nanos>)> = Vec::new();
        for level in LEVELS {
            if is_promising(level, &steps) {
                steps.push((level, consider(Levels::all(plans, level), &mut best)));
            }
        }
        let shortest = steps.iter().filter_map(|(level, step)| Some((*level, (*step)?)));
        if let Some((level, _)) = shortest.min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0)) {
            for near in level.near() {
                consider(Levels::all(plans, near), &mut best);
            }
        }
        for class in plans.by_saving() {
            let others = match &best {
                Some((levels, _)) => levels.neighbours(class),
                None => vec![
                    Levels::only(plans, class, SizeLevel::SMALLEST),
                    Levels::only(plans, class, SizeLevel::MIDDLE),
                ],
            };
            for other in others {
                consider(other, &mut best);
            }
        }
        best.map(|(_, tried)| tried)
    }

    /// The best of a plan of merges, and of the same with splits.
    fn with_cuts(&self, cuts: &Cuts<'_>, merged: Option<TriedPlan>) -> Option<TriedPlan> {
        let is_shorter = |tried: &&TriedPlan| tried.step_time.0 < self.step_time.0;
        let merges = merged.as_ref().filter(is_shorter).map_or(vec![], |one| one.recipes.clone());
        let mut best = merged;
        for depth in DEPTHS {
            let splits = cuts.recipes(depth);
            if splits.is_empty() {
                continue;
            }
            let recipes = together(&merges, splits);
            let Some(tried) = self.try_out(recipes, 2.0 / 3.0) else { continue };
            if best.as_ref().is_none_or(|held| tried.step_time.0 < held.step_time.0) {
                best = Some(tried);
            }
        }
        best
    }

    /// A quick search for the order of a plan's program. Where there is none within the limit,
    /// buckets become smaller until the program's own order is.
    fn try_out(&self, recipes: Vec<Recipe>, done: f64) -> Option<TriedPlan> {
        let apply =
            |recipes: &[Recipe]| apply(self.request.task.graph, recipes, self.request.prices).ok();
        let (mut recipes, mut rewritten) = (apply(&recipes).map(|rewritten| (recipes, rewritten)))?;
        let limit = match self.order_of(&rewritten, done) {
            Ok(found) => return Some(TriedPlan::new(recipes, rewritten, found)),
            Err(OptimizeError::NoOrderWithin { limit, .. }) => limit,
            Err(_) => return None,
        };
        while let Some(smaller) =
            thinned(&recipes, &rewritten, limit).filter(|smaller| *smaller != recipes)
        {
            rewritten = apply(&smaller).filter(|_| !smaller.is_empty())?;
            recipes = smaller;
        }
        let found = self.order_of(&rewritten, done).ok()?;
        Some(TriedPlan::new(recipes, rewritten, found))
    }

    fn order_of(&self, rewritten: &Rewritten, done: f64) -> Result<Optimized, OptimizeError> {
        let task = self.request.task;
        let Some(machine) = self.machine(&rewritten.graph) else {
            return Err(OptimizeError::Stopped);
        };
        let known = [carried_order(rewritten, self.order)];
        optimize(&Task {
            graph: &rewritten.graph,
            machine: &machine,
            known: &known,
            effort: Effort::Quick,
            progress: &|_| (task.progress)(done),
            ..*task
        })
    }

    /// A plan without the recipes that are left out.
    fn leave_out(&self, tried: TriedPlan) -> Result<TriedPlan, ImproveError> {
        let left_out = self.request.left_out;
        if left_out.is_empty() {
            return Ok(tried);
        }
        let kept =
            tried.recipes.into_iter().enumerate().filter(|(number, _)| !left_out.contains(number));
        let recipes: Vec<Recipe> = kept.map(|(_, recipe)| recipe).collect();
        let rewritten = apply(self.request.task.graph, &recipes, self.request.prices)?;
        let order = carried_order(&rewritten, self.order);
        Ok(TriedPlan { recipes, rewritten, order, step_time: tried.step_time })
    }

    /// What a changed program runs on.
    fn machine(&self, graph: &Graph) -> Option<Machine> {
        let times = Costs::default().times(graph).ok()?;
        Some(self.request.model.machine(graph, times))
    }

    /// The plan with the effort that was asked for, if it is better than the program as it is.
    fn decided(&self, tried: TriedPlan) -> Result<Option<Changed>, ImproveError> {
        let task = self.request.task;
        let TriedPlan { recipes, rewritten, order, .. } = tried;
        let Some(machine) = self.machine(&rewritten.graph) else { return Ok(None) };
        let known = [order];
        let found = optimize(&Task {
            graph: &rewritten.graph,
            machine: &machine,
            known: &known,
            progress: &part_of(task, 2.0 / 3.0, 1.0),
            ..*task
        });
        let found = match found {
            // With a recipe left out, others may need more.
            Err(OptimizeError::NoOrderWithin { .. }) => return Ok(None),
            found => found?,
        };
        if found.step_time.0 > self.step_time.0 * (1.0 - LEAST) {
            return Ok(None);
        }
        verify_rewrite(task.graph, &rewritten.graph, &rewritten.origin)
            .map_err(RewriteError::Unproved)?;
        let robustness = self.robustness(
            Setup { graph: &rewritten.graph, machine: &machine },
            &found.order,
            &rewritten,
        );
        let kept = !robustness.is_lost();
        Ok(kept.then_some(Changed { recipes, rewritten, optimized: found, robustness }))
    }

    fn robustness(&self, setup: Setup<'_>, order: &Order, rewritten: &Rewritten) -> Robustness {
        let task = self.request.task;
        let old = Setup { graph: task.graph, machine: task.machine };
        let (before, after) =
            (Evaluation::of(old, self.order.clone()), Evaluation::of(setup, order.clone()));
        let side = |setup, evaluation| Side { setup, evaluation };
        Robustness::between(side(old, &before), side(setup, &after), &rewritten.origin)
    }
}
