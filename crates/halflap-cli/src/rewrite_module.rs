//! `halflap schedule MODULE --rewrite` and `--merge`: recipes and orders of an HLO module, chosen
//! together.
//!
//! Every set of recipes is judged by the orders that are found for the changed module: quickly to
//! choose between sets, and with the requested effort between the chosen one and the module as it
//! is.

mod agains;
mod keeps;
mod levels;
mod pipelines;
mod report;
mod splits;

use halflap::cost::{Device, Link};
use halflap::evaluate::Change;
use halflap::nearest;
use halflap::units::{Bandwidth, Bytes, FlopRate, Nanos};
use halflap::workload::{Decided, Model};
use halflap_hlo::change::{
    self, CarriedBuffers, ChangeError, Found, MergeClass, Recipe, RecipeKind, Shift,
};
use halflap_hlo::{Module, Sameness, same};

use crate::args::{self, AllowedRecipes};
use crate::equivalence::unproved;
use crate::exit::Failed;
use crate::search::{ChosenProgram, ProgramLimits, Rung, best_choice};
use crate::show::Was;
use crate::source::{Hlo, Subject};
pub use report::ModuleChanges;
use report::{OrderAlone, named, numbered, spent};

/// A search for orders of a module's computations.
pub trait OrderSearch<T> {
    fn search(
        &self,
        subject: &Subject,
        rung: Rung,
        limits: &ProgramLimits,
    ) -> Result<Vec<Decided<T>>, Failed>;
}

impl<T, F> OrderSearch<T> for F
where
    F: Fn(&Subject, Rung, &ProgramLimits) -> Result<Vec<Decided<T>>, Failed>,
{
    fn search(
        &self,
        subject: &Subject,
        rung: Rung,
        limits: &ProgramLimits,
    ) -> Result<Vec<Decided<T>>, Failed> {
        self(subject, rung, limits)
    }
}

/// A module in its orders, changed or not.
pub struct ImprovedModule<T> {
    pub subject: Subject,
    pub all: Vec<Decided<T>>,
    pub changed: ModuleChanges,
}

/// The minimum gain, as a fraction of the step: less is within the model's own error.
const LEAST: f64 = 1e-3;

/// Up to how many bytes collectives are merged: small ones, then as large as makes the step
/// shorter.
const CAPS: [Bytes; 3] = [Bytes(1 << 25), Bytes(1 << 28), Bytes(i64::MAX / 2)];

/// The same where larger ones make it longer: latency alone.
const LEAST_CAP: Bytes = Bytes(1 << 20);

/// Changes a module where that makes its step shorter, or as recipes of the command line say.
pub fn improve<T>(
    subject: Subject,
    args: &args::Schedule,
    search: &dyn OrderSearch<T>,
) -> Result<ImprovedModule<T>, Failed> {
    let hlo = subject.hlo.as_ref().ok_or_else(no_module)?;
    let own = subject.source.walk(|priced| Ok((priced.input.order.clone(), ())))?;
    let was = |unit: &Decided<()>| {
        let name = subject.source.name_of(unit.priced.unit).to_owned();
        (name, Was::of(&unit.result, unit.exposed_in_all.after))
    };
    let was = own.iter().map(was).collect();
    let maker = |rung: Rung| {
        let limits = ProgramLimits::of_input(&subject.source, &own, &args.search);
        Maker { subject: &subject, hlo, args, search, rung, limits }
    };
    let (rung, chosen) = match args.allowed_recipes() {
        Some(allowed) => {
            let choose = |rung| maker(rung).chosen(allowed, &[]);
            let peak_before = own.last().map_or(Bytes::ZERO, |entry| entry.priced.peak_before());
            let (rung, best) = best_choice(&args.search, peak_before, choose)?;
            match &args.without[..] {
                [] => (rung, best),
                without => (rung, maker(rung).chosen(allowed, without)?),
            }
        }
        None => {
            let asked = Rung::asked(&args.search);
            (asked, maker(asked).given()?)
        }
    };
    let maker = maker(rung);
    let loops = maker.loops(&chosen);
    let Chosen { recipes, changed, order_alone, alone, kept_because, sameness, .. } = chosen;
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
    let recipes = named(recipes, [&hlo.module, module_of(&new, hlo)], &spent);
    let changed = ModuleChanges { was, order_alone, recipes, kept_because, sameness, loops };
    Ok(ImprovedModule { subject: new, all, changed })
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

/// The best sets of recipes, by a quick search.
struct BestSets<T> {
    /// Without gathers that are done again.
    without: Option<Tried<T>>,
    /// With them, if that is shorter.
    with: Option<Tried<T>>,
}

/// A module, and the recipes that led to it.
struct RewriteBase<'a> {
    module: &'a Module,
    recipes: &'a [(Recipe, String)],
}

/// What is kept of what was tried.
struct Chosen<T> {
    recipes: Vec<(Recipe, String)>,
    changed: Option<(Subject, Vec<Decided<T>>)>,
    order_alone: OrderAlone,
    /// The orders of the module as it is.
    alone: Option<Vec<Decided<T>>>,
    kept_because: &'static str,
    sameness: Sameness,
    /// Whether anything was tried.
    is_tried: bool,
    /// Whether rewrites apply that also save compute, so that they help where nothing is exposed.
    saves_compute: bool,
}

impl<T> Chosen<T> {
    fn entry(&self) -> Option<&Decided<T>> {
        let changed = self.changed.as_ref().map(|(_, all)| all);
        changed.or(self.alone.as_ref())?.last()
    }
}

impl<T> ChosenProgram for Chosen<T> {
    fn step_time(&self) -> Nanos {
        self.entry().map_or(Nanos::ZERO, |entry| entry.result.step_time())
    }

    fn is_shortest(&self) -> bool {
        let exposed = self.entry().map_or(Nanos::ZERO, |entry| entry.exposed_in_all.after);
        exposed == Nanos::ZERO && !self.saves_compute
    }

    fn order_alone(&mut self) -> Option<&mut Nanos> {
        self.order_alone.step_time()
    }
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
    rung: Rung,
    limits: ProgramLimits,
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
                ChangeError::Unknown { ref name } => {
                    let meant = meant(&self.hlo.module, name);
                    Failed::in_file(file, format!("--merge: {error}{meant}"))
                }
                error => Failed::in_file(file, format!("--merge: {error}")),
            })?;
        let subject = self.subject.changed_to(module)?;
        let all = self.search.search(&subject, self.rung, &self.limits)?;
        let recipes = recipes.into_iter().zip(into).collect();
        let module = module_of(&subject, self.hlo);
        let sameness = same(&self.hlo.module, module).map_err(|different| unproved(&different))?;
        Ok(Chosen {
            recipes,
            changed: Some((subject, all)),
            order_alone: OrderAlone::NotSought,
            alone: None,
            kept_because: "",
            sameness,
            is_tried: false,
            saves_compute: false,
        })
    }

    /// The recipes that make the step shorter, but for those that are left out.
    fn chosen(&self, allowed: &AllowedRecipes, without: &[String]) -> Result<Chosen<T>, Failed> {
        let alone = match self.search.search(self.subject, self.rung, &self.limits) {
            Ok(alone) => alone,
            Err(none_fits @ Failed::NothingFits(_)) => {
                return self.fitting(allowed, without)?.ok_or(none_fits);
            }
            Err(failed) => return Err(failed),
        };
        let exposed = alone.last().map_or(Nanos::ZERO, |entry| entry.exposed_in_all.after);
        let order_alone = OrderAlone::Takes(step(&alone));
        let saves_compute = self.can_save_compute(allowed);
        let kept = |because, alone| Chosen {
            recipes: Vec::new(),
            changed: None,
            order_alone,
            alone: Some(alone),
            kept_because: because,
            sameness: Sameness::Exact,
            is_tried: true,
            saves_compute,
        };
        if exposed < step(&alone) * LEAST && !saves_compute {
            let kept = kept("communication is hidden by the order alone", alone);
            return Ok(Chosen { is_tried: false, ..kept });
        }
        let (tried, sameness) = match self.best_of_both(allowed, Some(&alone))? {
            Some(tried) if !self.is_promising(&tried)? => {
                return Ok(kept("none that was tried makes the step shorter", alone));
            }
            Some(tried) => match self.proved_part(self.without(tried, without)?, allowed)? {
                Some(proved) => proved,
                None => return Ok(kept("none of those that help could be proved", alone)),
            },
            None if self.has_any(allowed) => {
                return Ok(kept("none makes the step shorter within the memory limit", alone));
            }
            None => return Ok(kept("none of those that are allowed applies to it", alone)),
        };
        let Tried { recipes, subject, all, .. } = self.searched(tried)?;
        if step(&all).0 > step(&alone).0 * (1.0 - LEAST) {
            return Ok(kept("none that was tried makes the step shorter", alone));
        }
        let before = InOrder { subject: self.subject, all: &alone };
        if self.is_lost(&before, &InOrder { subject: &subject, all: &all })? {
            return Ok(kept("with other run times the step is longer in most cases", alone));
        }
        Ok(Chosen {
            recipes,
            changed: Some((subject, all)),
            order_alone,
            alone: None,
            kept_because: "",
            sameness,
            is_tried: true,
            saves_compute,
        })
    }

    /// Whether rewrites apply that also save compute: elementwise operations then run on slices, or
    /// on what is narrower.
    fn can_save_compute(&self, allowed: &AllowedRecipes) -> bool {
        let module = &self.hlo.module;
        let mut found = change::find(module).into_iter().chain(change::find_shards(module));
        found.any(|found| allowed.has(&found))
    }

    /// Whether a quick search finds an order at least as short as that for the module as it is: if
    /// not, more effort for both finds none either.
    fn is_promising(&self, tried: &Tried<T>) -> Result<bool, Failed> {
        let quick = |subject: &Subject| match self.search.search(
            subject,
            self.rung.quick(),
            &self.limits,
        ) {
            Ok(all) => Ok(step(&all).0),
            Err(failed) if failed.is_bad_input() => Ok(f64::INFINITY),
            Err(failed) => Err(failed),
        };
        Ok(quick(&tried.subject)? <= quick(self.subject)?)
    }

    /// The recipes with which a module fits into memory that does not fit as it is: the shortest
    /// step of those that do.
    fn fitting(
        &self,
        allowed: &AllowedRecipes,
        without: &[String],
    ) -> Result<Option<Chosen<T>>, Failed> {
        let Some(tried) = self.best_of_both(allowed, None)? else { return Ok(None) };
        let Some((tried, sameness)) = self.proved_part(self.without(tried, without)?, allowed)?
        else {
            return Ok(None);
        };
        let Tried { recipes, subject, all, .. } = self.searched(tried)?;
        Ok(Some(Chosen {
            recipes,
            changed: Some((subject, all)),
            order_alone: OrderAlone::NoneFits,
            alone: None,
            kept_because: "",
            sameness,
            is_tried: true,
            saves_compute: self.can_save_compute(allowed),
        }))
    }

    /// The same with orders of the requested effort.
    fn searched(&self, tried: Tried<T>) -> Result<Tried<T>, Failed> {
        self.searched_at(self.rung, tried)
    }

    fn searched_at(&self, rung: Rung, tried: Tried<T>) -> Result<Tried<T>, Failed> {
        match self.search.search(&tried.subject, rung, &self.limits) {
            Ok(all) => Ok(Tried { all, ..tried }),
            // The first search found orders that fit.
            Err(failed) if failed.is_bad_input() => Ok(tried),
            Err(failed) => Err(failed),
        }
    }

    /// The best set of recipes, with gathers that are done again only if these are shorter than
    /// without, by a quick search and not only by half of one: they add communication, which such
    /// searches hide worse or better than others do.
    fn best_of_both(
        &self,
        allowed: &AllowedRecipes,
        in_order: Option<&[Decided<T>]>,
    ) -> Result<Option<Tried<T>>, Failed> {
        let BestSets { without, with } = self.best(allowed, in_order)?;
        let is_shorter = |with: &Tried<T>, without: &Tried<T>| {
            step(&with.all).0 < step(&without.all).0 * (1.0 - LEAST)
        };
        let (without, with) = match (without, with) {
            // What adds no communication stays, without longer searches that would say the same.
            (Some(without), Some(with)) if !is_shorter(&with, &without) => {
                return Ok(Some(without));
            }
            (Some(without), Some(with)) => {
                let search = |tried| self.searched_at(self.rung.quick(), tried);
                (search(without)?, search(with)?)
            }
            (without, with) => return Ok(without.or(with)),
        };
        Ok(Some(if is_shorter(&with, &without) { with } else { without }))
    }

    /// The best sets of recipes, by a quick search: scatters and narrowings first, each kind alone
    /// if both together are no better than the module as it is, then gathers that are kept,
    /// pipelines, gathers that are done again or collectives on two levels, merges and splits on
    /// top. There are no orders of the module as it is if none fits into memory.
    fn best(
        &self,
        allowed: &AllowedRecipes,
        in_order: Option<&[Decided<T>]>,
    ) -> Result<BestSets<T>, Failed> {
        let alone = in_order.map_or(Nanos(f64::INFINITY), step);
        let found = change::find(&self.hlo.module).into_iter();
        let found: Vec<Recipe> =
            found.filter(|found| allowed.has(found)).map(|found| found.recipe).collect();
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
        if allowed.kinds.contains(&RecipeKind::Scatter) {
            best = self.sharded(best, allowed, alone)?;
        }
        if allowed.kinds.contains(&RecipeKind::Keep) {
            best = self.kept(best, alone)?;
        }
        if allowed.kinds.contains(&RecipeKind::Pipeline) {
            best = self.pipelined(best, alone)?;
        }
        let again = match allowed.kinds.contains(&RecipeKind::Again) {
            true => self.gathered_again(best.as_ref(), alone)?,
            false => Vec::new(),
        };
        let leveled = match allowed.kinds.contains(&RecipeKind::Levels) {
            true => self.on_two_levels(best.as_ref(), allowed)?,
            false => None,
        };
        let merged = |tried| match allowed.kinds.contains(&RecipeKind::Merge) {
            true => self.with_merges(tried, allowed, alone),
            false => Ok(tried),
        };
        best = merged(best)?;
        // Merged collectives pay for fewer hops, too: both are tried.
        if leveled.is_some() {
            best = self.shorter(best, merged(leveled)?);
        }
        // They also take the memory that was freed.
        let mut with = None;
        for again in again {
            with = self.shorter(with, merged(Some(again))?);
        }
        let shortest = best.as_ref().map_or(alone, |best| step(&best.all));
        let with = with.filter(|with| step(&with.all) < shortest);
        if !allowed.kinds.contains(&RecipeKind::Split) {
            return Ok(BestSets { without: best, with });
        }
        let with = match with {
            Some(_) => self.with_splits(with, allowed, in_order)?,
            None => None,
        };
        Ok(BestSets { without: self.with_splits(best, allowed, in_order)?, with })
    }

    /// The best set with merges on top: larger ones as long as they make the step shorter.
    fn with_merges(
        &self,
        mut best: Option<Tried<T>>,
        allowed: &AllowedRecipes,
        alone: Nanos,
    ) -> Result<Option<Tried<T>>, Failed> {
        // Merges of one size replace those of another.
        let module = self.module_after(best.as_ref()).clone();
        let recipes = best.as_ref().map_or(Vec::new(), |best| best.recipes.clone());
        let base = RewriteBase { module: &module, recipes: &recipes };
        let mut classes = change::merge_classes(&module);
        classes.retain(|class| class.is_exact || !allowed.exact_only);
        let of_cap = |cap: Bytes| -> Vec<Recipe> {
            classes.iter().flat_map(|class| class.sets(cap)).collect()
        };
        let mut sets: Vec<Vec<Recipe>> = CAPS.into_iter().map(&of_cap).collect();
        sets.dedup();
        let mut shorter = 0;
        for set in sets.iter().filter(|set| !set.is_empty()) {
            let shortest = best.as_ref().map_or(alone, |best| step(&best.all));
            let tried = self.tried_on(&base, set.clone())?;
            let is_shorter = tried.as_ref().is_some_and(|tried| step(&tried.all) < shortest);
            best = self.shorter(best, tried);
            if !is_shorter {
                break;
            }
            shorter += 1;
        }
        let least = of_cap(LEAST_CAP);
        if shorter < 2 && !least.is_empty() && !sets.contains(&least) {
            let tried = self.tried_on(&base, least)?;
            best = self.shorter(best, tried);
        }
        Ok(best)
    }

    /// Whether a rewrite applies at all.
    fn has_any(&self, allowed: &AllowedRecipes) -> bool {
        let module = &self.hlo.module;
        let is_allowed = |kind: RecipeKind| allowed.kinds.contains(&kind);
        let is_fit = |is_exact: bool| is_exact || !allowed.exact_only;
        self.can_save_compute(allowed)
            || is_allowed(RecipeKind::Keep) && !change::find_keeps(module).is_empty()
            || is_allowed(RecipeKind::Again) && !change::find_agains(module).is_empty()
            || is_allowed(RecipeKind::Pipeline)
                && !change::find_pipelines(module, CarriedBuffers::One, &Shift::ALL).is_empty()
            || is_allowed(RecipeKind::Split)
                && splits::found_any(module).iter().any(|of| is_fit(of.is_exact))
            || is_allowed(RecipeKind::Levels)
                && self.leveled(module).iter().any(|of| is_fit(of.is_exact))
            || is_allowed(RecipeKind::Merge)
                && change::merge_classes(module).iter().any(|class| is_fit(class.is_exact))
    }

    fn module_after<'s>(&'s self, tried: Option<&'s Tried<T>>) -> &'s Module {
        tried.map_or(&self.hlo.module, |tried| module_of(&tried.subject, self.hlo))
    }

    /// The same with all-reduces that are scattered and gathered again, if that is shorter.
    fn sharded(
        &self,
        best: Option<Tried<T>>,
        allowed: &AllowedRecipes,
        alone: Nanos,
    ) -> Result<Option<Tried<T>>, Failed> {
        let found = change::find_shards(self.module_after(best.as_ref())).into_iter();
        let found = found.filter(|found| found.is_exact || !allowed.exact_only);
        let set: Vec<Recipe> = found.map(|found| found.recipe).collect();
        if set.is_empty() {
            return Ok(best);
        }
        let shortest = best.as_ref().map_or(alone, |best| step(&best.all));
        let with = self.tried(best.as_ref(), set)?;
        Ok(with.filter(|with| step(&with.all) < shortest).or(best))
    }

    /// The same with gathers that are kept instead of repeated: fewer, as long as that makes the
    /// step shorter.
    fn kept(&self, best: Option<Tried<T>>, alone: Nanos) -> Result<Option<Tried<T>>, Failed> {
        let subject = best.as_ref().map_or(self.subject, |best| &best.subject);
        let limits = keeps::KeepLimits { of: &self.limits, rung: self.rung };
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
        let recipes = on.map_or(&[][..], |on| &on.recipes);
        self.tried_on(&RewriteBase { module: self.module_after(on), recipes }, set)
    }

    fn tried_on(
        &self,
        base: &RewriteBase<'_>,
        set: Vec<Recipe>,
    ) -> Result<Option<Tried<T>>, Failed> {
        let (module, into) =
            change::apply(base.module, &set).map_err(|error| Failed::OurBug(error.to_string()))?;
        let recipes = base.recipes.iter().cloned().chain(set.into_iter().zip(into)).collect();
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
        match self.search.search(&subject, self.rung.sketched(), &self.limits) {
            Ok(all) => Ok(Some(Tried { recipes, subject, all })),
            // There is no order within the limit.
            Err(failed) if failed.is_bad_input() => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// The same without the recipes that are left out.
    fn without(&self, tried: Tried<T>, without: &[String]) -> Result<Tried<T>, Failed> {
        if without.is_empty() {
            return Ok(tried);
        }
        let names = numbered(tried.recipes.iter().map(|(recipe, _)| recipe));
        if let Some(unknown) = without.iter().find(|name| !names.contains(name)) {
            let there = match &names[..] {
                [] => "none was chosen".to_owned(),
                [only] => format!("only {only} was chosen"),
                [first, .., last] => format!("chosen were {} from {first} to {last}", names.len()),
            };
            let file = self.args.graph.name();
            return Err(Failed::in_file(file, format!("--without {unknown}: {there}")));
        }
        let kept: Vec<Recipe> = tried
            .recipes
            .iter()
            .zip(&names)
            .filter(|(_, name)| !without.contains(name))
            .map(|((recipe, _), _)| recipe.clone())
            .collect();
        let mut sets: Vec<Vec<Recipe>> = Vec::new();
        for stage in stages(kept) {
            let (_, module) = self.applied(&sets)?;
            sets.push(still_there(&module, stage));
        }
        let (recipes, module) = self.applied(&sets)?;
        let found = self.ordered(recipes, module)?;
        found.ok_or_else(|| {
            Failed::NothingFits("--without: the rest does not fit into the memory limit".to_owned())
        })
    }

    /// The recipes that the proof accepts, and how the result is the same: all of them, or else
    /// those stages with which it still does.
    fn proved_part(
        &self,
        tried: Tried<T>,
        allowed: &AllowedRecipes,
    ) -> Result<Option<(Tried<T>, Sameness)>, Failed> {
        let is_fit = |how: &Sameness| *how == Sameness::Exact || !allowed.exact_only;
        let proof = |module: &Module| same(&self.hlo.module, module).ok().filter(is_fit);
        if let Some(how) = proof(module_of(&tried.subject, self.hlo)) {
            return Ok(Some((tried, how)));
        }
        let all: Vec<Recipe> = tried.recipes.into_iter().map(|(recipe, _)| recipe).collect();
        let (mut sets, mut last): (Vec<Vec<Recipe>>, _) = (Vec::new(), Sameness::Exact);
        for stage in stages(all) {
            let (_, module) = self.applied(&sets)?;
            sets.push(still_there(&module, stage));
            match proof(&self.applied(&sets)?.1) {
                Some(how) => last = how,
                None => sets.truncate(sets.len() - 1),
            }
        }
        let (recipes, module) = self.applied(&sets)?;
        let found = if recipes.is_empty() { None } else { self.ordered(recipes, module)? };
        Ok(found.map(|tried| (tried, last)))
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
}

fn module_of<'s>(subject: &'s Subject, old: &'s Hlo) -> &'s Module {
    subject.hlo.as_ref().map_or(&old.module, |hlo| &hlo.module)
}

/// The collective that may have been meant by a name.
fn meant(module: &Module, name: &str) -> String {
    let instrs = module.computations().flat_map(|of| module.instructions(of));
    let is_sent = |instr: &_| module.instruction(*instr).opcode.collective_kind().is_some();
    let near = nearest(name, instrs.filter(is_sent).map(|instr| module.instruction_name(instr)));
    near.map_or(String::new(), |near| format!("; did you mean '{near}'?"))
}

/// Those of a stage that still apply to a module.
fn still_there(module: &Module, stage: Vec<Recipe>) -> Vec<Recipe> {
    let Some(kind) = stage.first().map(Recipe::kind) else { return stage };
    let names = |found: Vec<Found>| found.into_iter().map(|found| found.recipe).collect();
    let there: Vec<Recipe> = match (kind, &stage[0]) {
        (_, Recipe::Shard { .. }) => names(change::find_shards(module)),
        (RecipeKind::Scatter | RecipeKind::Narrow, _) => return stage,
        (RecipeKind::Merge, _) => {
            let classes = change::merge_classes(module);
            return stage.into_iter().filter_map(|merge| still(&merge, &classes)).collect();
        }
        (RecipeKind::Keep, _) => return change::compatible_keeps(module, stage),
        (RecipeKind::Pipeline, _) => {
            change::find_pipelines(module, CarriedBuffers::One, &Shift::ALL)
        }
        (_, &Recipe::Levels { ranks_per_node, .. }) => {
            names(change::find_levels(module, ranks_per_node))
        }
        _ => return stage.into_iter().filter(|recipe| splits::is_there(module, recipe)).collect(),
    };
    let has_all = |recipe: &Recipe, other: &Recipe| {
        recipe.members().iter().all(|member| other.members().contains(member))
    };
    let is_there = |recipe: &Recipe| match (kind, recipe) {
        (RecipeKind::Pipeline, _) => there.iter().any(|of| has_all(recipe, of)),
        _ => there.contains(recipe),
    };
    stage.into_iter().filter(is_there).collect()
}

/// Recipes in the sequence in which they are applied, those of a set to the same module.
fn stages(recipes: Vec<Recipe>) -> [Vec<Recipe>; 8] {
    let mut stages = [const { Vec::new() }; 8];
    for recipe in recipes {
        let stage = match recipe {
            Recipe::Scatter { .. } | Recipe::Narrow { .. } => 0,
            Recipe::Shard { .. } => 1,
            Recipe::Keep { .. } => 2,
            Recipe::Pipeline { .. } => 3,
            Recipe::Again { .. } => 4,
            Recipe::Levels { .. } => 5,
            Recipe::Merge { .. } => 6,
            Recipe::Split { .. } | Recipe::Region { .. } => 7,
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
