//! `halflap schedule MODULE --rewrite` and `--merge`: recipes and orders of an HLO module, chosen
//! together.
//!
//! Every set of recipes is judged by the orders that are found for the changed module: quickly to
//! choose between sets, and with the requested effort between the chosen one and the module as it
//! is.

mod keeps;

use std::collections::BTreeMap;

use halflap::cost::{Device, Link};
use halflap::evaluate::Change;
use halflap::ids::{IdVec, UnitId};
use halflap::memory::{Budget, Timeline};
use halflap::units::{Bandwidth, Bytes, FlopRate, Nanos};
use halflap::workload::{Decided, Model};
use halflap_hlo::change::{
    self, CarriedBuffers, ChangeError, Found, MergeClass, Recipe, RecipeKind,
};
use halflap_hlo::{Module, Sameness, same};
use halflap_report::{count, exposed_by_collective, printable, printable_end};
use serde_json::{Value, json};

use crate::args::{self, AllowedRecipes, EffortArg, SearchArgs};
use crate::equivalence::unproved;
use crate::exit::Failed;
use crate::show::{ROWS, Was};
use crate::source::{Hlo, Subject};

/// What computations may need, by name: the base of memory limits.
pub type Peaks = BTreeMap<String, Bytes>;

/// A search for orders of a module's computations.
pub trait OrderSearch<T> {
    fn search(
        &self,
        subject: &Subject,
        args: &SearchArgs,
        peaks: &Peaks,
    ) -> Result<Vec<Decided<T>>, Failed>;
}

impl<T, F> OrderSearch<T> for F
where
    F: Fn(&Subject, &SearchArgs, &Peaks) -> Result<Vec<Decided<T>>, Failed>,
{
    fn search(
        &self,
        subject: &Subject,
        args: &SearchArgs,
        peaks: &Peaks,
    ) -> Result<Vec<Decided<T>>, Failed> {
        self(subject, args, peaks)
    }
}

/// A module in its orders, changed or not.
pub struct ImprovedModule<T> {
    pub subject: Subject,
    pub all: Vec<Decided<T>>,
    pub changed: ModuleChanges,
}

/// What was changed, and what it gains.
pub struct ModuleChanges {
    /// The module as it was, in its own orders.
    pub was: Was,
    /// The step of the best orders of the module as it was; unknown where recipes were given.
    order_alone: Option<Nanos>,
    recipes: Vec<Applied>,
    /// Why nothing was changed, if nothing was.
    kept_because: &'static str,
    sameness: Sameness,
    /// The loops that communicate and are not pipelined, with the reason; none where pipelines were
    /// not allowed or nothing was tried.
    loops: Vec<(String, String)>,
}

/// A recipe that was applied.
struct Applied {
    name: String,
    recipe: Recipe,
    /// The collective that it made.
    into: String,
    /// Where the first collective that it changed comes from.
    place: String,
    before: Spent,
    after: Option<Spent>,
    /// What stays alive for it.
    kept: Option<Bytes>,
}

/// The time of collectives in a step, and how much of it is exposed.
#[derive(Clone, Copy, Default)]
struct Spent {
    time: Nanos,
    exposed: Nanos,
    /// What one takes or gives, whichever is larger.
    size: Bytes,
}

/// The minimum gain, as a fraction of the step: less is within the model's own error.
const LEAST: f64 = 1e-3;

/// Up to how many bytes collectives are merged: small ones, then as large as makes the step
/// shorter.
const CAPS: [Bytes; 3] = [Bytes(1 << 25), Bytes(1 << 28), Bytes(i64::MAX / 2)];

/// The same where larger ones make it longer: latency alone.
const LEAST_CAP: Bytes = Bytes(1 << 20);

/// Into how many pieces a collective and its product are cut.
const PIECES: [u64; 3] = [4, 2, 8];

/// What of its time a collective must be exposed for to be cut.
const LEAST_EXPOSED: f64 = 0.1;

/// Changes a module where that makes its step shorter, or as recipes of the command line say.
pub fn improve<T>(
    subject: Subject,
    args: &args::Schedule,
    search: &dyn OrderSearch<T>,
) -> Result<ImprovedModule<T>, Failed> {
    let hlo = subject.hlo.as_ref().ok_or_else(no_module)?;
    let own = subject.source.walk(|priced| Ok((priced.input.order.clone(), ())))?;
    let peaks = peaks(&subject, &own, &args.search);
    let entry = own.last().ok_or_else(no_module)?;
    let was = Was {
        step_time: entry.result.step_time(),
        exposed: entry.exposed_in_all.after,
        peak: entry.result.peak(),
    };
    let maker = Maker { subject: &subject, hlo, args, search, peaks };
    let chosen = match args.allowed_recipes() {
        Some(allowed) => maker.chosen(allowed)?,
        None => maker.given()?,
    };
    let sameness = match &chosen.changed {
        Some((changed, _)) => maker.proved(&chosen.recipes, changed)?,
        None => Sameness::Exact,
    };
    let loops = maker.loops(&chosen);
    let Chosen { recipes, changed, order_alone, alone, kept_because, .. } = chosen;
    let before = spent(&subject, &own);
    let (new, all) = match (changed, alone) {
        (Some((changed, all)), _) => (changed, all),
        (None, Some(all)) => {
            let recipes = Vec::new();
            let changed =
                ModuleChanges { was, order_alone, recipes, kept_because, sameness, loops };
            return Ok(ImprovedModule { subject, all, changed });
        }
        (None, None) => return Err(no_module()),
    };
    let spent = Change { before, after: spent(&new, &all) };
    let recipes = named(recipes, &hlo.module, &spent);
    let changed = ModuleChanges { was, order_alone, recipes, kept_because, sameness, loops };
    Ok(ImprovedModule { subject: new, all, changed })
}

/// What each computation may need, so that the module as a whole needs no more than before: what it
/// needed, plus what was free while it ran. With any other limit, each may need what it needed
/// before.
fn peaks(subject: &Subject, own: &[Decided<()>], search: &SearchArgs) -> Peaks {
    let is_same_limit = search.memory_budget.is_none_or(|budget| budget == Budget::Times(1.0));
    let mut room: IdVec<UnitId, Option<Bytes>> = IdVec::filled(None, own.len());
    for unit in own.iter().rev() {
        let id = unit.priced.unit;
        let most = unit.result.peak() + room[id].unwrap_or(Bytes::ZERO);
        let levels = Timeline::of(&unit.priced.graph, &unit.result.order).levels;
        for call in &subject.source.workload.units[id].calls {
            let free = (most - levels[call.op].post_alloc).max(Bytes::ZERO);
            for run in &call.runs {
                let known = room[run.unit].unwrap_or(free);
                room[run.unit] = Some(known.min(free));
            }
        }
    }
    let peak = |unit: &Decided<()>| {
        let more = room[unit.priced.unit].filter(|_| is_same_limit).unwrap_or(Bytes::ZERO);
        (subject.source.name_of(unit.priced.unit).to_owned(), unit.result.peak() + more)
    };
    own.iter().map(peak).collect()
}

fn no_module() -> Failed {
    Failed::OurBug("a module without an entry was read".to_owned())
}

/// Recipes, the result of which is another module, and its orders.
struct Tried<T> {
    recipes: Vec<(Recipe, String)>,
    subject: Subject,
    all: Vec<Decided<T>>,
}

/// What is kept of what was tried.
struct Chosen<T> {
    recipes: Vec<(Recipe, String)>,
    changed: Option<(Subject, Vec<Decided<T>>)>,
    order_alone: Option<Nanos>,
    /// The orders of the module as it is.
    alone: Option<Vec<Decided<T>>>,
    kept_because: &'static str,
    /// Whether anything was tried.
    is_tried: bool,
}

fn step<T>(all: &[Decided<T>]) -> Nanos {
    all.last().map_or(Nanos::ZERO, |entry| entry.result.step_time())
}

/// A module in given orders.
struct InOrder<'a, T> {
    subject: &'a Subject,
    all: &'a [Decided<T>],
}

impl<T> InOrder<'_, T> {
    /// Its step with other run times.
    fn step_with(&self, model: &Model) -> Result<Nanos, Failed> {
        let mut orders = self.all.iter().map(|unit| unit.result.order.clone());
        let walked = self.subject.source.walk_with(model, |priced| {
            Ok((orders.next().unwrap_or_else(|| priced.input.order.clone()), ()))
        })?;
        Ok(step(&walked))
    }
}

struct Maker<'a, T> {
    subject: &'a Subject,
    hlo: &'a Hlo,
    args: &'a args::Schedule,
    search: &'a dyn OrderSearch<T>,
    peaks: Peaks,
}

impl<T> Maker<'_, T> {
    /// The recipes of the command line.
    fn given(&self) -> Result<Chosen<T>, Failed> {
        let names = |set: &String| set.split(',').map(|name| name.trim().to_owned()).collect();
        let sets: Vec<Vec<String>> = self.args.merge.iter().map(names).collect();
        let recipes: Vec<Recipe> =
            sets.into_iter().map(|members| Recipe::Merge { members }).collect();
        let file = self.args.graph.name();
        let (module, into) =
            change::apply(&self.hlo.module, &recipes).map_err(|error| match error {
                ChangeError::Draft(error) => Failed::OurBug(error.to_string()),
                error => Failed::in_file(file, format!("--merge: {error}")),
            })?;
        let subject = self.subject.changed_to(module)?;
        let all = self.search.search(&subject, &self.args.search, &self.peaks)?;
        let recipes = recipes.into_iter().zip(into).collect();
        let changed = Some((subject, all));
        let (order_alone, alone, kept_because, is_tried) = (None, None, "", false);
        Ok(Chosen { recipes, changed, order_alone, alone, kept_because, is_tried })
    }

    /// The recipes that make the step shorter.
    fn chosen(&self, allowed: &AllowedRecipes) -> Result<Chosen<T>, Failed> {
        let alone = self.search.search(self.subject, &self.args.search, &self.peaks)?;
        let exposed = alone.last().map_or(Nanos::ZERO, |entry| entry.exposed_in_all.after);
        let order_alone = Some(step(&alone));
        let kept = |because, alone| Chosen {
            recipes: Vec::new(),
            changed: None,
            order_alone,
            alone: Some(alone),
            kept_because: because,
            is_tried: true,
        };
        if exposed < step(&alone) * LEAST {
            let kept = kept("communication is hidden by the order alone", alone);
            return Ok(Chosen { is_tried: false, ..kept });
        }
        let tried = match self.best(allowed, &alone)? {
            Some(tried) => self.without(tried)?,
            None if self.has_any(allowed) => {
                return Ok(kept("none makes the step shorter within the memory limit", alone));
            }
            None => return Ok(kept("none of those that are allowed applies to it", alone)),
        };
        let (subject, recipes) = (tried.subject, tried.recipes);
        let all = match self.args.search.effort {
            Some(EffortArg::Quick) => tried.all,
            _ => self.search.search(&subject, &self.args.search, &self.peaks)?,
        };
        if step(&all).0 > step(&alone).0 * (1.0 - LEAST) {
            return Ok(kept("none that was tried makes the step shorter", alone));
        }
        let before = InOrder { subject: self.subject, all: &alone };
        if self.is_lost(&before, &InOrder { subject: &subject, all: &all })? {
            return Ok(kept("with other run times the step is longer in most cases", alone));
        }
        let changed = Some((subject, all));
        let (alone, kept_because, is_tried) = (None, "", true);
        Ok(Chosen { recipes, changed, order_alone, alone, kept_because, is_tried })
    }

    /// The best set of recipes, by a quick search: scatters and narrowings first, each kind alone
    /// if both together are no better than the module as it is, then gathers that are kept,
    /// pipelines and merges on top.
    fn best(
        &self,
        allowed: &AllowedRecipes,
        in_order: &[Decided<T>],
    ) -> Result<Option<Tried<T>>, Failed> {
        let alone = step(in_order);
        let is_allowed = |found: &Found| {
            allowed.kinds.contains(&found.recipe.kind()) && (found.is_exact || !allowed.exact_only)
        };
        let found: Vec<Recipe> = change::find(&self.hlo.module)
            .into_iter()
            .filter(is_allowed)
            .map(|found| found.recipe)
            .collect();
        let of = |kind: RecipeKind| -> Vec<Recipe> {
            found.iter().filter(|recipe| recipe.kind() == kind).cloned().collect()
        };
        let (scatters, narrowings) = (of(RecipeKind::Scatter), of(RecipeKind::Narrow));
        let mut sets = vec![found.clone()];
        if !scatters.is_empty() && !narrowings.is_empty() {
            sets.extend([scatters, narrowings]);
        }
        let mut best: Option<Tried<T>> = None;
        for set in sets.into_iter().filter(|set| !set.is_empty()) {
            best = self.shorter(best, self.tried(None, set)?);
            if best.as_ref().is_some_and(|best| step(&best.all) < alone) {
                break;
            }
        }
        if allowed.kinds.contains(&RecipeKind::Keep) {
            best = self.kept(best, alone)?;
        }
        if allowed.kinds.contains(&RecipeKind::Pipeline) {
            best = self.pipelined(best)?;
        }
        if allowed.kinds.contains(&RecipeKind::Merge) {
            best = self.with_merges(best, allowed, alone)?;
        }
        match allowed.kinds.contains(&RecipeKind::Split) {
            true => self.with_splits(best, allowed, in_order),
            false => Ok(best),
        }
    }

    /// The best set with splits on top, of what is still exposed.
    fn with_splits(
        &self,
        best: Option<Tried<T>>,
        allowed: &AllowedRecipes,
        in_order: &[Decided<T>],
    ) -> Result<Option<Tried<T>>, Failed> {
        let exposed = match &best {
            Some(best) => spent(&best.subject, &best.all),
            None => spent(self.subject, in_order),
        };
        let is_exposed = |name: &String| {
            exposed.get(name).is_some_and(|spent| spent.exposed > spent.time * LEAST_EXPOSED)
        };
        let mut with: Option<Tried<T>> = None;
        for pieces in PIECES {
            let found = change::find_splits(self.module_after(best.as_ref()), pieces).into_iter();
            let set: Vec<Recipe> = found
                .filter(|found| found.is_exact || !allowed.exact_only)
                .map(|found| found.recipe)
                .filter(|recipe| recipe.members().iter().all(is_exposed))
                .collect();
            if !set.is_empty() {
                with = self.shorter(with, self.tried(best.as_ref(), set)?);
            }
        }
        Ok(self.shorter(best, with))
    }

    /// The best set with merges on top: larger ones as long as they make the step shorter.
    fn with_merges(
        &self,
        mut best: Option<Tried<T>>,
        allowed: &AllowedRecipes,
        alone: Nanos,
    ) -> Result<Option<Tried<T>>, Failed> {
        let module = self.module_after(best.as_ref());
        let mut classes = change::merge_classes(module);
        classes.retain(|class| class.is_exact || !allowed.exact_only);
        let of_cap = |cap: Bytes| -> Vec<Recipe> {
            classes.iter().flat_map(|class| class.sets(cap)).collect()
        };
        let mut sets: Vec<Vec<Recipe>> = CAPS.into_iter().map(&of_cap).collect();
        sets.dedup();
        let mut shorter = 0;
        for set in sets.iter().filter(|set| !set.is_empty()) {
            let shortest = best.as_ref().map_or(alone, |best| step(&best.all));
            let tried = self.tried(best.as_ref(), set.clone())?;
            let is_shorter = tried.as_ref().is_some_and(|tried| step(&tried.all) < shortest);
            best = self.shorter(best, tried);
            if !is_shorter {
                break;
            }
            shorter += 1;
        }
        let least = of_cap(LEAST_CAP);
        if shorter < 2 && !least.is_empty() && !sets.contains(&least) {
            let tried = self.tried(best.as_ref(), least)?;
            best = self.shorter(best, tried);
        }
        Ok(best)
    }

    /// Whether a rewrite applies at all.
    fn has_any(&self, allowed: &AllowedRecipes) -> bool {
        let module = &self.hlo.module;
        let is_allowed = |kind: RecipeKind| allowed.kinds.contains(&kind);
        let is_fit = |is_exact: bool| is_exact || !allowed.exact_only;
        let is_found = |found: &Found| is_allowed(found.recipe.kind()) && is_fit(found.is_exact);
        change::find(module).iter().any(is_found)
            || is_allowed(RecipeKind::Keep) && !change::find_keeps(module).is_empty()
            || is_allowed(RecipeKind::Pipeline)
                && !change::find_pipelines(module, CarriedBuffers::One).is_empty()
            || is_allowed(RecipeKind::Split)
                && change::find_splits(module, PIECES[1]).iter().any(|of| is_fit(of.is_exact))
            || is_allowed(RecipeKind::Merge)
                && change::merge_classes(module).iter().any(|class| is_fit(class.is_exact))
    }

    fn module_after<'s>(&'s self, tried: Option<&'s Tried<T>>) -> &'s Module {
        tried.map_or(&self.hlo.module, |tried| module_of(&tried.subject, self.hlo))
    }

    /// The same with gathers that are kept instead of repeated: fewer, as long as that makes the
    /// step shorter.
    fn kept(&self, best: Option<Tried<T>>, alone: Nanos) -> Result<Option<Tried<T>>, Failed> {
        let subject = best.as_ref().map_or(self.subject, |best| &best.subject);
        let budget = self.args.search.memory_budget.unwrap_or(Budget::Times(1.0));
        let limits = keeps::KeepLimits { peaks: &self.peaks, budget };
        let sets = keeps::sets(subject, subject.hlo.as_ref().unwrap_or(self.hlo), &limits)?;
        let mut shortest = best.as_ref().map_or(alone, |best| step(&best.all));
        let mut with: Option<Tried<T>> = None;
        for set in sets {
            let Some(tried) = self.tried(best.as_ref(), set)? else { continue };
            if step(&tried.all) >= shortest {
                break;
            }
            shortest = step(&tried.all);
            with = Some(tried);
        }
        Ok(with.or(best))
    }

    /// The same with gathers of loops an iteration ahead: of all loops, or of one where that is
    /// better or all do not fit into memory.
    fn pipelined(&self, best: Option<Tried<T>>) -> Result<Option<Tried<T>>, Failed> {
        let module = self.module_after(best.as_ref());
        let mut sets = Vec::new();
        for buffers in [CarriedBuffers::One, CarriedBuffers::Two] {
            let all = change::find_pipelines(module, buffers);
            sets.push(all.clone());
            if all.len() > 1 {
                sets.extend(all.into_iter().map(|one| vec![one]));
            }
        }
        let mut with: Option<Tried<T>> = None;
        for set in sets.into_iter().filter(|set| !set.is_empty()) {
            with = self.shorter(with, self.tried(best.as_ref(), set)?);
        }
        Ok(self.shorter(best, with))
    }

    fn shorter(&self, best: Option<Tried<T>>, other: Option<Tried<T>>) -> Option<Tried<T>> {
        match (best, other) {
            (Some(best), Some(other)) if step(&other.all).0 < step(&best.all).0 => Some(other),
            (Some(best), _) => Some(best),
            (None, other) => other,
        }
    }

    /// Recipes on top of others, with a quick search for orders; `None` if no order fits into
    /// memory.
    fn tried(&self, on: Option<&Tried<T>>, set: Vec<Recipe>) -> Result<Option<Tried<T>>, Failed> {
        let module = self.module_after(on);
        let is_merge = |recipe: &Recipe| recipe.kind() == RecipeKind::Merge;
        let base: Vec<(Recipe, String)> = match on {
            // Merges of one size replace those of another.
            Some(on)
                if set.iter().all(is_merge) && on.recipes.iter().any(|(of, _)| is_merge(of)) =>
            {
                return self.tried_again(on, set);
            }
            Some(on) => on.recipes.clone(),
            None => Vec::new(),
        };
        let (module, into) =
            change::apply(module, &set).map_err(|error| Failed::OurBug(error.to_string()))?;
        let recipes = base.into_iter().chain(set.into_iter().zip(into)).collect();
        self.ordered(recipes, module)
    }

    /// The same with the merges of a set in place of those that are there.
    fn tried_again(&self, on: &Tried<T>, set: Vec<Recipe>) -> Result<Option<Tried<T>>, Failed> {
        let kept: Vec<Recipe> = on
            .recipes
            .iter()
            .filter(|(recipe, _)| recipe.kind() != RecipeKind::Merge)
            .map(|(recipe, _)| recipe.clone())
            .collect();
        let [first, keeps, pipelines, _, _] = stages(kept);
        let (recipes, module) = self.applied(&[first, keeps, pipelines, set])?;
        self.ordered(recipes, module)
    }

    /// Sets of recipes, one after the other.
    fn applied(&self, sets: &[Vec<Recipe>]) -> Result<(Vec<(Recipe, String)>, Module), Failed> {
        let mut module = self.hlo.module.clone();
        let mut recipes = Vec::new();
        for set in sets.iter().filter(|set| !set.is_empty()) {
            let (changed, into) =
                change::apply(&module, set).map_err(|error| Failed::OurBug(error.to_string()))?;
            recipes.extend(set.iter().cloned().zip(into));
            module = changed;
        }
        Ok((recipes, module))
    }

    fn ordered(
        &self,
        recipes: Vec<(Recipe, String)>,
        module: Module,
    ) -> Result<Option<Tried<T>>, Failed> {
        let subject = self.subject.changed_to(module)?;
        let quick = SearchArgs { effort: Some(EffortArg::Quick), ..self.args.search.clone() };
        match self.search.search(&subject, &quick, &self.peaks) {
            Ok(all) => Ok(Some(Tried { recipes, subject, all })),
            // There is no order within the limit.
            Err(Failed::BadInput(_)) => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// The same without the recipes that are left out.
    fn without(&self, tried: Tried<T>) -> Result<Tried<T>, Failed> {
        if self.args.without.is_empty() {
            return Ok(tried);
        }
        let names = numbered(tried.recipes.iter().map(|(recipe, _)| recipe));
        if let Some(unknown) = self.args.without.iter().find(|name| !names.contains(name)) {
            let there = match &names[..] {
                [] => "none was chosen".to_owned(),
                [only] => format!("only {only} was chosen"),
                [first, .., last] => format!("chosen were {} from {first} to {last}", names.len()),
            };
            return Err(Failed::BadInput(format!("--without {unknown}: {there}")));
        }
        let kept: Vec<Recipe> = tried
            .recipes
            .iter()
            .zip(&names)
            .filter(|(_, name)| !self.args.without.contains(name))
            .map(|((recipe, _), _)| recipe.clone())
            .collect();
        let [first, mut keeps, mut pipelines, merges, mut splits] = stages(kept);
        let (_, module) = self.applied(std::slice::from_ref(&first))?;
        retain_there(&mut keeps, &change::find_keeps(&module));
        let (_, module) = self.applied(&[first.clone(), keeps.clone()])?;
        retain_there(&mut pipelines, &change::find_pipelines(&module, CarriedBuffers::One));
        let (_, module) = self.applied(&[first.clone(), keeps.clone(), pipelines.clone()])?;
        let classes = change::merge_classes(&module);
        let merges: Vec<Recipe> =
            merges.into_iter().filter_map(|merge| still(&merge, &classes)).collect();
        let (_, module) =
            self.applied(&[first.clone(), keeps.clone(), pipelines.clone(), merges.clone()])?;
        let found = PIECES.into_iter().flat_map(|pieces| change::find_splits(&module, pieces));
        let there: Vec<Recipe> = found.map(|found| found.recipe).collect();
        splits.retain(|split| there.contains(split));
        let (recipes, module) = self.applied(&[first, keeps, pipelines, merges, splits])?;
        let found = self.ordered(recipes, module)?;
        found.ok_or_else(|| {
            Failed::BadInput("--without: the rest does not fit into the memory limit".to_owned())
        })
    }

    /// The loops that communicate and are not pipelined, and why.
    fn loops(&self, chosen: &Chosen<T>) -> Vec<(String, String)> {
        let is_allowed = self
            .args
            .allowed_recipes()
            .is_some_and(|allowed| allowed.kinds.contains(&RecipeKind::Pipeline));
        if !is_allowed || !chosen.is_tried {
            return Vec::new();
        }
        let changed = chosen.changed.as_ref().map(|(subject, _)| module_of(subject, self.hlo));
        let pipelined: Vec<String> = chosen
            .recipes
            .iter()
            .filter(|(recipe, _)| recipe.kind() == RecipeKind::Pipeline)
            .filter_map(|(_, into)| change::loop_around(changed?, into.split(", ").next()?))
            .collect();
        change::find_loops(&self.hlo.module)
            .into_iter()
            .filter(|found| !pipelined.contains(&found.name))
            .map(|found| {
                let no_gain = "gathers an iteration ahead make the step no shorter, or do not fit \
                               into the memory limit";
                let why = found.stays.map_or(no_gain.to_owned(), |why| why.to_string());
                (found.name, why)
            })
            .collect()
    }

    /// Whether the changed module is slower than the old one in most variations of run times.
    fn is_lost(&self, before: &InOrder<'_, T>, after: &InOrder<'_, T>) -> Result<bool, Failed> {
        let (mut longer, mut all) = (0, 0);
        for model in variations(&self.subject.source.model) {
            all += 1;
            longer += usize::from(after.step_with(&model)?.0 > before.step_with(&model)?.0);
        }
        Ok(2 * longer > all)
    }

    /// The result was proved to be the same, and as exact as its recipes claim.
    fn proved(&self, recipes: &[(Recipe, String)], subject: &Subject) -> Result<Sameness, Failed> {
        let module = module_of(subject, self.hlo);
        let sameness = same(&self.hlo.module, module).map_err(|different| unproved(&different))?;
        let is_exact_only = self.args.allowed_recipes().is_some_and(|allowed| allowed.exact_only);
        match sameness == Sameness::SumOrder && is_exact_only {
            true => Err(Failed::OurBug(format!(
                "{} should keep every bit, but do not",
                count(recipes.len(), "rewrite")
            ))),
            false => Ok(sameness),
        }
    }
}

fn module_of<'s>(subject: &'s Subject, old: &'s Hlo) -> &'s Module {
    subject.hlo.as_ref().map_or(&old.module, |hlo| &hlo.module)
}

/// Leaves those whose members can still be changed together.
fn retain_there(recipes: &mut Vec<Recipe>, there: &[Recipe]) {
    recipes.retain(|recipe| {
        let has_all =
            |other: &Recipe| recipe.members().iter().all(|member| other.members().contains(member));
        there.iter().any(has_all)
    });
}

/// Recipes in the sequence in which they are applied, those of a set to the same module: scatters
/// and narrowings, gathers that are kept, pipelines, merges, splits.
fn stages(recipes: Vec<Recipe>) -> [Vec<Recipe>; 5] {
    let mut stages = [const { Vec::new() }; 5];
    for recipe in recipes {
        let stage = match recipe.kind() {
            RecipeKind::Scatter | RecipeKind::Narrow => 0,
            RecipeKind::Keep => 1,
            RecipeKind::Pipeline => 2,
            RecipeKind::Merge => 3,
            RecipeKind::Split => 4,
        };
        stages[stage].push(recipe);
    }
    stages
}

/// A merge of those members that can still be merged; `None` if fewer than two are left.
fn still(merge: &Recipe, classes: &[MergeClass]) -> Option<Recipe> {
    let in_class = |class: &&MergeClass| {
        let is_member = |name: &&String| class.members.iter().any(|(member, _)| member == *name);
        merge.members().iter().filter(is_member).count() > 1
    };
    let class = classes.iter().find(in_class)?;
    let is_member = |name: &&String| class.members.iter().any(|(member, _)| member == *name);
    Some(Recipe::Merge { members: merge.members().iter().filter(is_member).cloned().collect() })
}

/// The model with latency, bandwidth and compute a little different.
fn variations(model: &Model) -> Vec<Model> {
    let scaled = |link: &Link, latency: f64, bandwidth: f64| Link {
        base: link.base * latency,
        hop: link.hop * latency,
        bandwidth: Bandwidth(link.bandwidth.0 * bandwidth),
        pair: Bandwidth(link.pair.0 * bandwidth),
        ..*link
    };
    let vary = |latency: f64, bandwidth: f64, compute: f64| {
        let mut varied = model.clone();
        varied.costs.link = model.costs.link.as_ref().map(|link| scaled(link, latency, bandwidth));
        varied.costs.device = model.costs.device.as_ref().map(|device| Device {
            nvlink: scaled(&device.nvlink, latency, bandwidth),
            network: scaled(&device.network, latency, bandwidth),
            peak: FlopRate(device.peak.0 * compute),
            ..*device
        });
        varied
    };
    vec![
        vary(0.5, 1.0, 1.0),
        vary(2.0, 1.0, 1.0),
        vary(1.0, 0.8, 1.0),
        vary(1.0, 1.25, 1.0),
        vary(1.0, 1.0, 0.8),
        vary(1.0, 1.0, 1.25),
    ]
}

/// The names of recipes: `merge:3` is the third merge.
fn numbered<'r>(recipes: impl Iterator<Item = &'r Recipe>) -> Vec<String> {
    let mut counts = BTreeMap::new();
    recipes
        .map(|recipe| {
            let count: &mut usize = counts.entry(recipe.kind()).or_default();
            *count += 1;
            format!("{}:{count}", recipe.kind().name())
        })
        .collect()
}

/// What every collective takes in a step, by name.
fn spent<T>(subject: &Subject, all: &[Decided<T>]) -> BTreeMap<String, Spent> {
    let Some(hlo) = &subject.hlo else { return BTreeMap::new() };
    let mut spent = BTreeMap::new();
    for unit in all {
        let runs = subject.source.workload.units[unit.priced.unit].runs;
        let exposed = exposed_by_collective(&unit.result.simulation);
        let lowered = &hlo.units[unit.priced.unit].lowered;
        for op in unit.priced.graph.ops().filter(|&op| unit.priced.graph.kind(op).is_collective()) {
            let name = hlo.module.instruction_name(lowered.places[op].instr).to_owned();
            let time = unit.priced.machine.times.of(op) * runs;
            let size = unit.priced.graph.collective(op).map_or(Bytes::ZERO, |of| of.bytes());
            spent.insert(name, Spent { time, exposed: exposed[op] * runs, size });
        }
    }
    spent
}

/// Recipes with their names and what they gain.
fn named(
    recipes: Vec<(Recipe, String)>,
    old: &Module,
    Change { before, after }: &Change<BTreeMap<String, Spent>>,
) -> Vec<Applied> {
    let places: BTreeMap<&str, String> = old
        .computations()
        .flat_map(|computation| old.instructions(computation))
        .filter(|&instr| before.contains_key(old.instruction_name(instr)))
        .map(|instr| (old.instruction_name(instr), old.source(instr)))
        .collect();
    let names = numbered(recipes.iter().map(|(recipe, _)| recipe));
    let one = |((recipe, into), name): ((Recipe, String), String)| {
        let mut total = Spent::default();
        for spent in recipe.members().iter().filter_map(|member| before.get(member)) {
            total.time += spent.time;
            total.exposed += spent.exposed;
        }
        let is_keep = recipe.kind() == RecipeKind::Keep;
        let one = recipe.members().first().and_then(|member| before.get(member));
        let kept = one.or_else(|| after.get(&into)).filter(|_| is_keep).map(|spent| spent.size);
        let first = recipe.members().first().and_then(|member| places.get(member.as_str()));
        Applied {
            name,
            place: first.cloned().unwrap_or_default(),
            before: total,
            after: total_of(after, &into),
            kept,
            recipe,
            into,
        }
    };
    recipes.into_iter().zip(names).map(one).collect()
}

/// What collectives take together, of those that are still there; their names are given as one.
fn total_of(after: &BTreeMap<String, Spent>, names: &str) -> Option<Spent> {
    let found = names.split(", ").filter_map(|name| after.get(name));
    found.copied().reduce(|a, b| Spent {
        time: a.time + b.time,
        exposed: a.exposed + b.exposed,
        size: a.size + b.size,
    })
}

impl ModuleChanges {
    /// What was changed, as text.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = Vec::new();
        if self.recipes.is_empty() {
            facts.push(("rewrites", format!("none: {}", self.kept_because)));
        } else {
            let numbers = match self.sameness {
                Sameness::Exact => "every bit stays as it was",
                Sameness::SumOrder => "the order of summation changes",
            };
            facts.push(("rewrites", format!("{}, proved; {numbers}", self.counted())));
        }
        facts.extend(self.recipes.iter().take(ROWS).map(|applied| ("rewrite", applied.line())));
        let more = self.recipes.len().saturating_sub(ROWS);
        if more > 0 {
            facts.push(("", format!("... and {more} more: --json has all")));
        }
        let stays = |(name, why): &(String, String)| {
            ("not pipelined", format!("{}: {}", printable(name), printable(why)))
        };
        facts.extend(self.loops.iter().take(ROWS).map(stays));
        facts.extend(self.order_alone.map(|time| ("order alone", time.to_string())));
        facts
    }

    /// `258 reduce-scatter, 3 merge`.
    fn counted(&self) -> String {
        let of = |kind: RecipeKind| {
            let number = self.recipes.iter().filter(|of| of.recipe.kind() == kind).count();
            (number > 0).then(|| format!("{number} {}", kind.name()))
        };
        RecipeKind::ALL.into_iter().filter_map(of).collect::<Vec<_>>().join(", ")
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        let recipe = |applied: &Applied| {
            let after = applied.after.unwrap_or_default();
            json!({
                "name": applied.name,
                "kind": applied.recipe.kind().name(),
                "members": applied.recipe.members(),
                "into": applied.into,
                "source": applied.place,
                "communication_before": applied.before.time.0,
                "communication": applied.after.map(|after| after.time.0),
                "exposed_before": applied.before.exposed.0,
                "exposed": after.exposed.0,
                "gain": (applied.before.exposed - after.exposed).0,
                "kept_bytes": applied.kept.map(|kept| kept.0),
            })
        };
        let stays = |(name, why): &(String, String)| json!({ "loop": name, "reason": why });
        json!({
            "order_alone": self.order_alone.map(|time| time.0),
            "exact": self.sameness == Sameness::Exact,
            "not_pipelined": self.loops.iter().map(stays).collect::<Vec<_>>(),
            "recipes": self.recipes.iter().map(recipe).collect::<Vec<_>>(),
        })
    }
}

impl Applied {
    /// What became what, what it saves, and where it comes from.
    fn line(&self) -> String {
        let members = match self.recipe.members() {
            [first, .., last] if self.recipe.members().len() > 3 => {
                let count = self.recipe.members().len();
                format!("{count} of {} to {}", printable(first), printable(last))
            }
            few => few.iter().map(|name| printable(name)).collect::<Vec<_>>().join(", "),
        };
        let time = match self.after {
            Some(after) => format!("{} of communication becomes {}", self.before.time, after.time),
            None => format!("{} of communication, merged below", self.before.time),
        };
        let place = match self.place.is_empty() {
            true => String::new(),
            false => format!(", {}", printable_end(&self.place, 60)),
        };
        let kept = self.kept.map(|kept| format!(", {kept} kept between them")).unwrap_or_default();
        format!("{} {members} into {}: {time}{kept}{place}", self.name, printable(&self.into))
    }
}
