//! What rewrites of a module did, and what each gains.

use std::collections::{BTreeMap, BTreeSet};

use halflap::evaluate::Change;
use halflap::units::{Bytes, Nanos};
use halflap::workload::Decided;
use halflap_hlo::change::{Recipe, RecipeKind};
use halflap_hlo::{Module, Sameness};
use halflap_report::{exposed_by_collective, printable, printable_end};
use serde_json::{Value, json};

use crate::show::{ROWS, Was};
use crate::source::Subject;

/// What was changed, and what it gains.
pub struct ModuleChanges {
    /// The computations of the module as it was, in its own orders, by name.
    pub was: BTreeMap<String, Was>,
    pub(super) order_alone: OrderAlone,
    pub(super) recipes: Vec<Applied>,
    /// Why nothing was changed, if nothing was.
    pub(super) kept_because: &'static str,
    pub(super) sameness: Sameness,
    /// The loops that communicate and are not pipelined, with the reason; none where pipelines were
    /// not allowed or nothing was tried.
    pub(super) loops: Vec<(String, String)>,
}

/// The best orders of the module as it was.
#[derive(Clone, Copy)]
pub(super) enum OrderAlone {
    /// Recipes were given.
    NotSought,
    /// None fits into the memory limit.
    NoneFits,
    Takes(Nanos),
}

impl OrderAlone {
    pub(super) fn step_time(&mut self) -> Option<&mut Nanos> {
        match self {
            OrderAlone::Takes(time) => Some(time),
            OrderAlone::NotSought | OrderAlone::NoneFits => None,
        }
    }

    fn nanos(mut self) -> Option<f64> {
        self.step_time().map(|time| time.0)
    }

    fn described(self) -> Option<String> {
        match self {
            OrderAlone::NotSought => None,
            OrderAlone::NoneFits => Some("none fits into the memory limit".to_owned()),
            OrderAlone::Takes(time) => Some(time.to_string()),
        }
    }
}

/// A recipe that was applied.
pub(super) struct Applied {
    name: String,
    recipe: Recipe,
    /// The collective that it made.
    into: String,
    /// Where the first collective that it changed comes from.
    place: String,
    before: Spent,
    after: Option<Spent>,
    /// The result of a gather that stays, or no longer stays, in memory.
    size: Bytes,
}

/// The time of collectives in a step, and how much of it is exposed.
#[derive(Clone, Copy, Default)]
pub(super) struct Spent {
    pub(super) time: Nanos,
    pub(super) exposed: Nanos,
    /// What one takes or gives, whichever is larger.
    size: Bytes,
}

/// What every collective takes, by name.
pub(super) type CollectiveTimes = BTreeMap<String, Spent>;

/// The names of recipes: `merge:3` is the third merge.
pub(super) fn numbered<'r>(recipes: impl Iterator<Item = &'r Recipe>) -> Vec<String> {
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
pub(super) fn spent<T>(subject: &Subject, all: &[Decided<T>]) -> CollectiveTimes {
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
pub(super) fn named(
    recipes: Vec<(Recipe, String)>,
    [old, new]: [&Module; 2],
    Change { before, after }: &Change<CollectiveTimes>,
) -> Vec<Applied> {
    let places: BTreeMap<&str, String> = old
        .computations()
        .flat_map(|computation| old.instructions(computation))
        .filter(|&instr| before.contains_key(old.instruction_name(instr)))
        .map(|instr| (old.instruction_name(instr), old.source(instr)))
        .collect();
    let names = numbered(recipes.iter().map(|(recipe, _)| recipe));
    let sizes = sizes_of_kept(new, &recipes);
    // What the collectives that a recipe made took before it made them, in equal parts.
    let mut made: BTreeMap<String, Spent> = BTreeMap::new();
    let one = |((recipe, into), name): ((Recipe, String), String)| {
        let members = recipe.members().iter();
        let spent = members.filter_map(|member| made.get(member).or_else(|| before.get(member)));
        let total = spent.fold(Spent::default(), |sum, &spent| sum.and(spent));
        let share = 1.0 / into.split(", ").count() as f64;
        let part = Spent { time: total.time * share, exposed: total.exposed * share, ..total };
        made.extend(into.split(", ").map(|name| (name.to_owned(), part)));
        let one = recipe.members().first().and_then(|member| before.get(member));
        let size = match &recipe {
            Recipe::Keep { kept, .. } => {
                kept.iter().filter_map(|name| sizes.get(name)).copied().sum()
            }
            _ => one.or_else(|| after.get(&into)).map_or(Bytes::ZERO, |spent| spent.size),
        };
        let first = recipe.members().first().and_then(|member| places.get(member.as_str()));
        Applied {
            name,
            place: first.cloned().unwrap_or_default(),
            before: total,
            after: total_of(after, &into),
            size,
            recipe,
            into,
        }
    };
    recipes.into_iter().zip(names).map(one).collect()
}

/// The sizes of what is kept, by name: it keeps its name, whatever else changes it.
fn sizes_of_kept(new: &Module, recipes: &[(Recipe, String)]) -> BTreeMap<String, Bytes> {
    let kept = |recipe: &Recipe| match recipe {
        Recipe::Keep { kept, .. } => kept.clone(),
        _ => Vec::new(),
    };
    let names: BTreeSet<String> = recipes.iter().flat_map(|(recipe, _)| kept(recipe)).collect();
    let all = new.computations().flat_map(|computation| new.instructions(computation));
    all.map(|instr| (new.instruction_name(instr).to_owned(), instr))
        .filter(|(name, _)| names.contains(name))
        .map(|(name, instr)| (name, new.size_in(&new.instruction(instr).shape, 0)))
        .collect()
}

impl Spent {
    fn and(self, other: Spent) -> Spent {
        Spent {
            time: self.time + other.time,
            exposed: self.exposed + other.exposed,
            size: self.size + other.size,
        }
    }
}

/// What collectives take together, of those that are still there; their names are given as one.
pub(super) fn total_of(after: &CollectiveTimes, names: &str) -> Option<Spent> {
    names.split(", ").filter_map(|name| after.get(name)).copied().reduce(Spent::and)
}

impl ModuleChanges {
    /// The step of the best orders of the module as it was, if some fit.
    pub fn order_alone(&self) -> Option<Nanos> {
        self.order_alone.nanos().map(Nanos)
    }

    /// Whether anything was changed.
    pub fn is_any(&self) -> bool {
        !self.recipes.is_empty()
    }

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
            ("not pipelined", format!("{}: {}", printable(name), printable_end(why, 240)))
        };
        facts.extend(self.loops.iter().take(ROWS).map(stays));
        facts.extend(self.order_alone.described().map(|text| ("order alone", text)));
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
            // Of what was merged further, the merge has the gain.
            let gain = applied.after.map(|after| applied.before.exposed - after.exposed);
            json!({
                "name": applied.name,
                "kind": applied.recipe.kind().name(),
                "members": applied.recipe.members(),
                "into": applied.into,
                "source": applied.place,
                "communication_before": applied.before.time.0,
                "communication": applied.after.map(|after| after.time.0),
                "exposed_before": applied.before.exposed.0,
                "exposed": applied.after.map_or(0.0, |after| after.exposed.0),
                "gain": gain.map_or(0.0, |gain| gain.0),
                "kept": applied.kept(),
                "kept_bytes": applied.size_if(RecipeKind::Keep).map(|size| size.0),
                "freed_bytes": applied.size_if(RecipeKind::Again).map(|size| size.0),
            })
        };
        let stays = |(name, why): &(String, String)| json!({ "loop": name, "reason": why });
        json!({
            "order_alone": self.order_alone.nanos(),
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
        let memory = match self.recipe.kind() {
            RecipeKind::Keep => format!(", {}{} kept between them", self.size, self.parts()),
            RecipeKind::Again => format!(", {} freed between them", self.size),
            _ => String::new(),
        };
        format!("{} {members} into {}: {time}{memory}{place}", self.name, printable(&self.into))
    }

    /// Of what something is kept, if it is not what was gathered.
    fn parts(&self) -> String {
        match self.kept() {
            Some([first, more @ ..]) if *first != self.into => match more.len() {
                0 => format!(" of {}", printable(first)),
                more => format!(" of {} and {more} more", printable(first)),
            },
            _ => String::new(),
        }
    }

    fn kept(&self) -> Option<&[String]> {
        match &self.recipe {
            Recipe::Keep { kept, .. } => Some(kept),
            _ => None,
        }
    }

    fn size_if(&self, kind: RecipeKind) -> Option<Bytes> {
        (self.recipe.kind() == kind).then_some(self.size)
    }
}
