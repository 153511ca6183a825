//! Collectives of loops that run in other iterations: which ones, and why others do not.

use halflap::units::Nanos;
use halflap_hlo::change::{self, CarriedBuffers, Recipe, RecipeKind, Shift};
use halflap_hlo::{Module, same};

use super::{Chosen, Maker, Tried, module_of, step};
use crate::exit::Failed;

/// The ways to move collectives of a loop into other iterations.
const PIPELINES: [(CarriedBuffers, &[Shift]); 6] = [
    (CarriedBuffers::One, &Shift::ALL),
    (CarriedBuffers::One, &[Shift::Ahead]),
    (CarriedBuffers::One, &[Shift::Later]),
    (CarriedBuffers::Two, &Shift::ALL),
    (CarriedBuffers::Two, &[Shift::Ahead]),
    (CarriedBuffers::Two, &[Shift::Later]),
];

/// How many loops are looked at one by one.
const MOST_LOOPS: usize = 4;

impl<T> Maker<'_, T> {
    /// The same with collectives of loops in other iterations: of one loop after the other, each in
    /// the way that makes the step the shortest, if any does; of many loops all in the same way.
    pub(super) fn pipelined(
        &self,
        mut best: Option<Tried<T>>,
        alone: Nanos,
    ) -> Result<Option<Tried<T>>, Failed> {
        let loops = pipelines(self.module_after(best.as_ref()), &PIPELINES[0], None);
        let first = |recipe: &Recipe| recipe.members().first().cloned();
        let loops: Vec<Option<String>> = match loops.len() {
            0..=MOST_LOOPS => loops.iter().map(first).collect(),
            _ => vec![None],
        };
        for of in loops {
            let mut sets: Vec<Vec<Recipe>> = Vec::new();
            for way in &PIPELINES {
                let set = pipelines(self.module_after(best.as_ref()), way, of.as_deref());
                if !set.is_empty() && !sets.contains(&set) {
                    sets.push(set);
                }
            }
            let shortest = best.as_ref().map_or(alone, |best| step(&best.all));
            let mut with: Option<Tried<T>> = None;
            for set in sets {
                with = self.shorter(with, self.tried(best.as_ref(), set)?);
            }
            let is_better = |with: &Tried<T>| step(&with.all) < shortest && self.is_proved(with);
            best = with.filter(is_better).or(best);
        }
        Ok(best)
    }

    /// Whether a loop is one of those that the proof knows; others are left as they are.
    fn is_proved(&self, tried: &Tried<T>) -> bool {
        same(&self.hlo.module, module_of(&tried.subject, self.hlo)).is_ok()
    }

    /// The loops that communicate and are not pipelined, and why.
    pub(super) fn loops(&self, chosen: &Chosen<T>) -> Vec<(String, String)> {
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
                let no_gain = "its collectives in other iterations make the step no shorter, or \
                               do not fit into the memory limit";
                let why = found.stays.map_or(no_gain.to_owned(), |why| why.to_string());
                (found.name, why)
            })
            .collect()
    }
}

/// The pipelines of a module's loops in one way; if a collective is named, of its loop alone.
fn pipelines(
    module: &Module,
    &(buffers, shifts): &(CarriedBuffers, &[Shift]),
    of: Option<&str>,
) -> Vec<Recipe> {
    let around = |name: &str| change::loop_around(module, name);
    let wanted = of.map(around);
    let is_wanted = |recipe: &Recipe| {
        let first = recipe.members().first();
        wanted.is_none() || wanted == first.map(|name| around(name))
    };
    let mut all = change::find_pipelines(module, buffers, shifts);
    all.retain(is_wanted);
    all
}
