//! The search for a plan.
//!
//! Every plan gets a first look: its bound and, if that leaves room for a gain, a short search from
//! the order of the program as it is. With quick effort there are few such looks, at the plans that
//! seem best in that order.

use std::collections::BTreeSet;

use super::carry::carried_order;
use super::cuts::{Cuts, DEPTHS};
use super::keeps::{Keeps, PARTS};
use super::plans::{Levels, Plans, SizeLevel};
use super::thin::thinned;
use super::{Changed, ImproveError, LEAST, PlanOrder, Request, part_of};
use crate::cost::Costs;
use crate::evaluate::{Evaluation, Setup, Side};
use crate::ids::OpId;
use crate::memory::Timeline;
use crate::optimize::{
    Effort, FirstLook, OptimizeError, Optimized, Sketch, Task, optimize, proved_order, sketch,
};
use crate::order::Order;
use crate::origin::{Part, Source};
use crate::rewrite::{Recipe, RewriteError, RewriteKind, Rewritten, apply};
use crate::robustness::Robustness;
use crate::simulate::{Machine, lower_bound, simulate};
use crate::units::{Bytes, Nanos};
use crate::verify_rewrite::verify_rewrite;

/// How many plans of merges are compared; together with the two searches that decide this takes
/// less than three times as long as an order alone.
const TRIALS: usize = 10;

/// The same for all plans with quick effort, where each takes half as long as the order alone.
const QUICK_TRIALS: usize = 2;

/// How large merged collectives become first: in the middle, then to both sides while the step
/// becomes shorter.
const LEVELS: [SizeLevel; 5] = [
    SizeLevel::MIDDLE,
    SizeLevel::LARGE,
    SizeLevel::SMALL,
    SizeLevel::LARGEST,
    SizeLevel::SMALLEST,
];

/// What plans are made of.
pub(super) struct Choices<'a> {
    /// What can be merged, if that could save enough.
    pub(super) merges: Option<&'a Plans<'a>>,
    pub(super) cuts: &'a Cuts<'a>,
    pub(super) keeps: &'a Keeps,
}

/// A changed program that was not ordered yet.
struct PlannedProgram {
    recipes: Vec<Recipe>,
    rewritten: Rewritten,
    machine: Machine,
    /// The order of the program as it is, for this one.
    order: Order,
}

impl PlannedProgram {
    /// A task for this program.
    fn task<'a>(&'a self, task: &Task<'a>, known: &'a [Order]) -> Task<'a> {
        Task { graph: &self.rewritten.graph, machine: &self.machine, known, ..*task }
    }
}

/// A plan, and its figures in the carried-over order.
struct LikelyPlan {
    /// What it needs beyond the memory limit.
    excess: Bytes,
    step_time: Nanos,
    planned: PlannedProgram,
}

/// A plan that was tried.
pub(super) struct TriedPlan {
    planned: PlannedProgram,
    sketch: Sketch,
}

impl TriedPlan {
    pub(super) fn recipes(&self) -> &[Recipe] {
        &self.planned.recipes
    }

    pub(super) fn step_time(&self) -> Nanos {
        self.sketch.step_time
    }

    /// The same with recipes in the order of the new program, which numbers them for display.
    fn in_sequence(mut self) -> TriedPlan {
        let origin = &self.planned.rewritten.origin;
        let place = |recipe: &Recipe| {
            let of = recipe.members();
            let is_made_of = |source: &Source| match source.part {
                Part::Merged if is_merge(recipe) => source.of == of,
                Part::Piece { .. } => of.contains(&source.of[0]),
                _ => recipe.kind() == RewriteKind::Keep && source.of.contains(&of[0]),
            };
            origin.ops.iter().position(|(_, source)| is_made_of(source))
        };
        self.planned.recipes.sort_by_cached_key(place);
        self
    }
}

/// The result of a plan.
enum PlanTrial {
    Found(Box<TriedPlan>),
    /// No order of it is shorter than the best known; with its lower bound.
    TooLong(Nanos),
    /// It does not fit into memory, or is not a valid program.
    NotWithin,
}

/// A search for plans that are better than an order of the program as it is.
pub(super) struct PlanSearch<'a> {
    request: &'a Request<'a>,
    order: &'a Order,
    step_time: Nanos,
    /// The shortest so far.
    best: Option<TriedPlan>,
    /// Whether any plan is within the memory limit.
    pub(super) fits: bool,
    seen: Vec<Vec<Recipe>>,
}

impl<'a> PlanSearch<'a> {
    /// From an order of the program as it is, and how long its step is.
    pub(super) fn new(
        request: &'a Request<'a>,
        order: &'a Order,
        step_time: Nanos,
    ) -> PlanSearch<'a> {
        PlanSearch { request, order, step_time, best: None, fits: false, seen: Vec::new() }
    }

    /// The best plan of all that were tried.
    pub(super) fn take_best(&mut self) -> Option<TriedPlan> {
        self.best.take().map(TriedPlan::in_sequence)
    }

    /// Tries plans of what is kept, then of merges on top of the best, and then of cuts.
    pub(super) fn run(&mut self, choices: &Choices<'_>) {
        let Choices { merges, cuts, keeps } = choices;
        let is_quick = self.request.task.effort == Effort::Quick;
        self.keep_results(keeps);
        let kept = self.shorter();
        match merges {
            Some(plans) if is_quick => {
                let levels = LEVELS.iter().map(|&level| plans.recipes(&Levels::all(plans, level)));
                let levels = levels.map(|merges| together(&kept, &merges)).collect();
                let left = QUICK_TRIALS.saturating_sub(self.seen.len());
                self.consider_likely(levels, if cuts.is_empty() { left } else { left.min(1) });
            }
            Some(plans) => self.climb(plans, &kept),
            None => {}
        }
        let best = self.shorter();
        let splits = DEPTHS.iter().map(|&depth| cuts.recipes(depth));
        let splits = splits.filter(|splits| !splits.is_empty());
        let both: Vec<Vec<Recipe>> = splits.map(|splits| together(&best, &splits)).collect();
        if is_quick {
            return self.consider_likely(both, QUICK_TRIALS.saturating_sub(self.seen.len()));
        }
        for plan in both {
            self.consider(plan, 0.5);
        }
    }

    /// The recipes of the best plan, if it makes the step shorter.
    fn shorter(&self) -> Vec<Recipe> {
        let shorter = self.best.as_ref().filter(|best| best.step_time() < self.step_time);
        shorter.map_or(vec![], |best| best.recipes().to_vec())
    }

    /// Tries to keep what fits into the free memory, then into less of it as long as that makes the
    /// step shorter.
    fn keep_results(&mut self, keeps: &Keeps) {
        if self.request.task.effort == Effort::Quick {
            return self.consider_likely(PARTS.map(|part| keeps.recipes(part)).to_vec(), 1);
        }
        let mut last: Option<Nanos> = None;
        for part in PARTS {
            let step = self.consider(keeps.recipes(part), 0.0);
            if let (Some(last), Some(step)) = (last, step)
                && step >= last
            {
                break;
            }
            last = step.or(last);
        }
    }

    /// Tries few plans, by the order of the program as it is, carried over: the one that exceeds
    /// the memory limit least there, and those with the shortest steps.
    fn consider_likely(&mut self, plans: Vec<Vec<Recipe>>, most: usize) {
        let mut likely: Vec<LikelyPlan> = Vec::new();
        for recipes in plans.into_iter().filter(|plan| !plan.is_empty()) {
            if !likely.iter().any(|other| other.planned.recipes == recipes) {
                likely.extend(self.planned(recipes).map(|planned| self.likely(planned)));
            }
        }
        likely.sort_by(|a, b| a.step_time.0.total_cmp(&b.step_time.0));
        // Among several that exceed it equally, the first, which is the shortest.
        if let Some(least) = (0..likely.len()).min_by_key(|&index| likely[index].excess) {
            likely[..=least].rotate_right(1);
        }
        for LikelyPlan { planned, .. } in likely.into_iter().take(most) {
            self.seen.push(planned.recipes.clone());
            let trial = self.try_out(planned, 0.25);
            self.keep(trial);
        }
    }

    fn likely(&self, planned: PlannedProgram) -> LikelyPlan {
        let PlannedProgram { rewritten: Rewritten { graph, .. }, machine, order, .. } = &planned;
        let step_time = simulate(graph, order.as_slice(), machine).step_time;
        let over = Timeline::of(graph, order).peak - self.request.task.memory_limit;
        LikelyPlan { excess: over.max(Bytes::ZERO), step_time, planned }
    }

    /// Tries merges: first all classes alike, then class by class.
    fn climb(&mut self, plans: &Plans<'_>, kept: &[Recipe]) {
        let on_top = |levels: &Levels| together(kept, &plans.recipes(levels));
        let mut best: Option<Levels> = None;
        let mut steps: Vec<(SizeLevel, Option<Nanos>)> = Vec::new();
        for level in LEVELS {
            if is_promising(level, &steps) {
                let levels = Levels::all(plans, level);
                steps.push((level, self.consider_levels(&on_top, levels, &mut best)));
            }
        }
        let shortest = steps.iter().filter_map(|(level, step)| Some((*level, (*step)?)));
        if let Some((level, _)) = shortest.min_by(|(_, a), (_, b)| a.0.total_cmp(&b.0)) {
            for near in level.near() {
                self.consider_levels(&on_top, Levels::all(plans, near), &mut best);
            }
        }
        for class in plans.by_saving() {
            let others = match &best {
                Some(levels) => levels.neighbours(class),
                None => vec![
                    Levels::only(plans, class, SizeLevel::SMALLEST),
                    Levels::only(plans, class, SizeLevel::MIDDLE),
                ],
            };
            for other in others {
                self.consider_levels(&on_top, other, &mut best);
            }
        }
    }

    /// Tries the merges of levels, unless enough plans were tried; keeps them if they are the best.
    fn consider_levels(
        &mut self,
        recipes: &dyn Fn(&Levels) -> Vec<Recipe>,
        levels: Levels,
        best: &mut Option<Levels>,
    ) -> Option<Nanos> {
        if self.seen.len() >= TRIALS {
            return None;
        }
        let known = self.best.as_ref().map(TriedPlan::step_time);
        let done = self.seen.len() as f64 / (2.0 * TRIALS as f64);
        let step = self.consider(recipes(&levels), done)?;
        if self.best.as_ref().map(TriedPlan::step_time) != known {
            *best = Some(levels);
        }
        Some(step)
    }

    /// Tries a plan, unless it was tried before. Returns its step, or its lower bound if that is
    /// too long; `None` if it does not fit.
    pub(super) fn consider(&mut self, recipes: Vec<Recipe>, done: f64) -> Option<Nanos> {
        if recipes.is_empty() || self.seen.contains(&recipes) {
            return None;
        }
        self.seen.push(recipes.clone());
        let trial = match self.planned(recipes) {
            Some(planned) => self.try_out(planned, done),
            None => PlanTrial::NotWithin,
        };
        self.keep(trial)
    }

    /// Keeps a plan if it is the best.
    fn keep(&mut self, trial: PlanTrial) -> Option<Nanos> {
        self.fits |= !matches!(trial, PlanTrial::NotWithin);
        match trial {
            PlanTrial::Found(tried) => {
                let step = tried.step_time();
                if self.best.as_ref().is_none_or(|best| step < best.step_time()) {
                    self.best = Some(*tried);
                }
                Some(step)
            }
            PlanTrial::TooLong(least) => Some(least),
            PlanTrial::NotWithin => None,
        }
    }

    /// What a plan's step must stay below to be useful.
    fn target(&self) -> Nanos {
        let alone = self.step_time * (1.0 - LEAST);
        self.best.as_ref().map_or(alone, |best| alone.min(best.step_time()))
    }

    fn planned(&self, recipes: Vec<Recipe>) -> Option<PlannedProgram> {
        let rewritten = apply(self.request.task.graph, &recipes, self.request.prices).ok()?;
        self.prepared(recipes, rewritten)
    }

    fn prepared(&self, recipes: Vec<Recipe>, rewritten: Rewritten) -> Option<PlannedProgram> {
        let times = Costs::default().times(&rewritten.graph).ok()?;
        let machine = self.request.model.machine(&rewritten.graph, times);
        let order = carried_order(&rewritten, self.order);
        Some(PlannedProgram { recipes, rewritten, machine, order })
    }

    /// A first look at a plan. Where there is no order within the limit, or none that is short,
    /// buckets become smaller until the program's own order is within it.
    fn try_out(&self, mut planned: PlannedProgram, done: f64) -> PlanTrial {
        let mut found = self.look(&planned, done);
        let is_short_of_memory = matches!(
            found,
            Ok(FirstLook::TooLong { memory: true, .. }) | Err(OptimizeError::NoOrderWithin { .. })
        );
        if is_short_of_memory && let Some(smaller) = self.smaller(&planned) {
            found = self.look(&smaller, done);
            planned = smaller;
        }
        match found {
            Ok(FirstLook::Found(sketch)) => {
                PlanTrial::Found(Box::new(TriedPlan { planned, sketch }))
            }
            Ok(FirstLook::TooLong { least, memory: false }) => PlanTrial::TooLong(least),
            Ok(FirstLook::TooLong { memory: true, .. }) | Err(_) => PlanTrial::NotWithin,
        }
    }

    /// The same with smaller buckets; `None` if that is not needed or nothing is left.
    fn smaller(&self, planned: &PlannedProgram) -> Option<PlannedProgram> {
        let Request { task, prices, .. } = self.request;
        let thin = |recipes: &[Recipe], rewritten: &Rewritten| {
            let thinner = thinned(recipes, rewritten, task.memory_limit)?;
            (thinner != recipes).then_some(thinner)
        };
        let mut recipes = thin(&planned.recipes, &planned.rewritten)?;
        loop {
            let rewritten =
                apply(task.graph, &recipes, prices).ok().filter(|_| !recipes.is_empty())?;
            match thin(&recipes, &rewritten) {
                Some(thinner) => recipes = thinner,
                None => return self.prepared(recipes, rewritten),
            }
        }
    }

    fn look(&self, planned: &PlannedProgram, done: f64) -> Result<FirstLook, OptimizeError> {
        let progress = |_: f64| (self.request.task.progress)(done);
        let task = Task { progress: &progress, ..*self.request.task };
        sketch(&planned.task(&task, std::slice::from_ref(&planned.order)), self.target())
    }

    /// A plan without the recipes that are left out; `None` if it is then useless.
    pub(super) fn leave_out(&self, tried: TriedPlan) -> Result<Option<TriedPlan>, ImproveError> {
        let Request { task, prices, left_out, .. } = self.request;
        if left_out.is_empty() {
            return Ok(Some(tried));
        }
        let all = tried.planned.recipes.into_iter().enumerate();
        let kept = all.filter(|(number, _)| !left_out.contains(number));
        let recipes: Vec<Recipe> = kept.map(|(_, recipe)| recipe).collect();
        let rewritten = apply(task.graph, &recipes, prices)?;
        let Some(planned) = self.prepared(recipes, rewritten) else { return Ok(None) };
        match self.look(&planned, 0.5) {
            Ok(FirstLook::Found(sketch)) => Ok(Some(TriedPlan { planned, sketch })),
            // Without a recipe, others may need more memory.
            Ok(FirstLook::TooLong { .. }) | Err(OptimizeError::NoOrderWithin { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether an order of a plan may be shorter than a step that is known.
    pub(super) fn could_beat(&self, tried: &TriedPlan, known: Nanos) -> bool {
        let PlannedProgram { rewritten, machine, .. } = &tried.planned;
        let Task { edges, memory_limit, .. } = *self.request.task;
        lower_bound(&rewritten.graph, machine, edges, memory_limit).time < known
    }

    /// The plan searched with the requested effort, if it is better than the program as it is.
    pub(super) fn decided(&self, tried: TriedPlan) -> Result<Option<Changed>, ImproveError> {
        let TriedPlan { planned, sketch } = tried;
        let progress = part_of(self.request.task, 0.5, 1.0);
        let task = Task { progress: &progress, ..*self.request.task };
        let found = match self.request.plan_order {
            PlanOrder::Searched => optimize(&planned.task(&task, &[sketch.order]))?,
            PlanOrder::Sketched => proved_order(&planned.task(&task, &[]), &sketch.order)?,
        };
        if found.step_time.0 > self.step_time.0 * (1.0 - LEAST) {
            return Ok(None);
        }
        verify_rewrite(task.graph, &planned.rewritten.graph, &planned.rewritten.origin)
            .map_err(RewriteError::Unproved)?;
        let robustness = self.robustness(&planned, &found);
        let PlannedProgram { recipes, rewritten, .. } = planned;
        let kept = !robustness.is_lost();
        Ok(kept.then_some(Changed { recipes, rewritten, optimized: found, robustness }))
    }

    /// Both programs in their orders, with everything a little different.
    fn robustness(&self, planned: &PlannedProgram, found: &Optimized) -> Robustness {
        let Task { graph, machine, .. } = *self.request.task;
        let old = Setup { graph, machine };
        let new = Setup { graph: &planned.rewritten.graph, machine: &planned.machine };
        let before = Evaluation::of(old, self.order.clone());
        let after = Evaluation::of(new, found.order.clone());
        let side = |setup, evaluation| Side { setup, evaluation };
        let origin = &planned.rewritten.origin;
        Robustness::between(side(old, &before), side(new, &after), origin)
    }
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

/// Recipes and more of them: what is split or left out is not merged.
fn together(recipes: &[Recipe], more: &[Recipe]) -> Vec<Recipe> {
    let all = || recipes.iter().chain(more);
    let taken = |recipe: &Recipe| match recipe {
        Recipe::Merge { .. } | Recipe::Groups { .. } => Vec::new(),
        Recipe::Split { members, .. } => members.clone(),
        Recipe::Keep { members } => members[1..].to_vec(),
    };
    let taken: BTreeSet<OpId> = all().flat_map(taken).collect();
    let rest = |recipe: &Recipe| match recipe {
        Recipe::Merge { members } => {
            let members = members.iter().copied().filter(|op| !taken.contains(op)).collect();
            Recipe::Merge { members }
        }
        other => other.clone(),
    };
    all().map(rest).filter(|recipe| recipe.members().len() > 1 || !is_merge(recipe)).collect()
}

fn is_merge(recipe: &Recipe) -> bool {
    recipe.kind() == RewriteKind::Merge
}
