//! Which gathers are kept instead of being repeated: as many as fit into a part of the memory that
//! the module's own orders leave free, starting with those that save the most for it.

use std::collections::BTreeMap;

use halflap::ids::{Id, OpId};
use halflap::memory::{Budget, Timeline};
use halflap::units::{Bytes, Nanos};
use halflap::workload::Decided;
use halflap_hlo::change::{self, Recipe};

use super::Peaks;
use crate::exit::Failed;
use crate::source::{Hlo, Subject};

/// Parts of the free memory; what is left hides other collectives.
const PARTS: [f64; 3] = [1.0, 0.5, 0.25];

/// The memory that computations may need.
pub struct KeepLimits<'a> {
    pub peaks: &'a Peaks,
    pub budget: Budget,
}

/// A gather that is repeated in one computation.
struct RepeatedGather {
    recipe: Recipe,
    /// Which of the computations in their own orders.
    unit: usize,
    /// Where the first of them is.
    at: usize,
    size: Bytes,
    /// The places in the order where it would be alive but is not now.
    gaps: Vec<std::ops::Range<usize>>,
    /// Time of gathers saved for each byte and operation that it is alive for.
    worth: f64,
}

/// Sets of gathers to keep, the largest first.
pub fn sets(
    subject: &Subject,
    hlo: &Hlo,
    limits: &KeepLimits<'_>,
) -> Result<Vec<Vec<Recipe>>, Failed> {
    let recipes = change::find_keeps(&hlo.module);
    if recipes.is_empty() {
        return Ok(Vec::new());
    }
    let own = subject.source.walk(|priced| Ok((priced.input.order.clone(), ())))?;
    let repeated = ranked(recipes, hlo, &own);
    let levels: Vec<Vec<Bytes>> = own.iter().map(levels).collect();
    let room: Vec<Bytes> = own
        .iter()
        .map(|unit| {
            let name = subject.source.name_of(unit.priced.unit);
            let peak = limits.peaks.get(name).copied().unwrap_or_else(|| unit.result.peak());
            limits.budget.limit(peak)
        })
        .collect();
    let mut sets: Vec<Vec<Recipe>> = Vec::new();
    for part in PARTS {
        let mut free: Vec<Vec<Bytes>> = levels
            .iter()
            .zip(&room)
            .map(|(levels, &most)| {
                levels.iter().map(|&level| Bytes(((most - level).0 as f64 * part) as i64)).collect()
            })
            .collect();
        let fitting = repeated.iter().filter(|one| one.fits(&mut free[one.unit]));
        let mut set: Vec<&RepeatedGather> = fitting.collect();
        // In the text's sequence, as recipes are named.
        set.sort_by_key(|one| (one.unit, one.at));
        let set: Vec<Recipe> = set.into_iter().map(|one| one.recipe.clone()).collect();
        let is_all = set.len() == repeated.len();
        if !set.is_empty() && sets.last() != Some(&set) {
            sets.push(set);
        }
        // There is enough memory for all: fewer are not worth another search.
        if is_all {
            break;
        }
    }
    Ok(sets)
}

/// What is alive while each operation of a computation runs, in its order.
pub(super) fn levels(unit: &Decided<()>) -> Vec<Bytes> {
    let levels = Timeline::of(&unit.priced.graph, &unit.result.order).levels;
    unit.result.order.as_slice().iter().map(|&op| levels[op].post_alloc).collect()
}

/// Repeated gathers, most valuable first.
fn ranked(recipes: Vec<Recipe>, hlo: &Hlo, own: &[Decided<()>]) -> Vec<RepeatedGather> {
    let mut all = Vec::new();
    // Looked up only.
    let mut ops: BTreeMap<&str, (usize, Vec<OpId>)> = BTreeMap::new();
    for (at, unit) in own.iter().enumerate() {
        let places = &hlo.units[unit.priced.unit].lowered.places;
        for op in unit.priced.graph.ops() {
            let name = hlo.module.instruction_name(places[op].instr);
            ops.entry(name).or_insert_with(|| (at, Vec::new())).1.push(op);
        }
    }
    for recipe in recipes {
        let members: Option<Vec<&(usize, Vec<OpId>)>> =
            recipe.members().iter().map(|name| ops.get(name.as_str())).collect();
        let Some(members) = members else { continue };
        let Some(&&(unit, _)) = members.first() else { continue };
        let runs: Vec<&[OpId]> = members.iter().map(|(_, ops)| &ops[..]).collect();
        all.push(RepeatedGather::new(recipe, unit, &Lives { of: &own[unit], runs }));
    }
    all.sort_by(|a, b| b.worth.total_cmp(&a.worth));
    all
}

/// The nodes of repeated gathers, and the order that they are in.
struct Lives<'a> {
    of: &'a Decided<()>,
    runs: Vec<&'a [OpId]>,
}

impl Lives<'_> {
    /// From where to where in the order what a gather gives is alive.
    fn span(&self, ops: &[OpId]) -> std::ops::Range<usize> {
        let graph = &self.of.priced.graph;
        let at = |op: OpId| self.of.result.order.pos(op).index();
        let made = ops.iter().flat_map(|&op| graph.outputs(op));
        let used = made.flat_map(|&buffer| graph.users(buffer));
        let first = ops.iter().map(|&op| at(op)).min().unwrap_or(0);
        let last = used.chain(ops).map(|&op| at(op)).max().unwrap_or(first);
        first..last + 1
    }
}

impl RepeatedGather {
    fn new(recipe: Recipe, unit: usize, lives: &Lives<'_>) -> RepeatedGather {
        let spans: Vec<_> = lives.runs.iter().map(|ops| lives.span(ops)).collect();
        let gaps = spans.windows(2).map(|pair| pair[0].end..pair[1].start.max(pair[0].end));
        let gaps: Vec<std::ops::Range<usize>> = gaps.collect();
        let graph = &lives.of.priced.graph;
        let made = lives.runs.first().into_iter().flat_map(|ops| ops.iter());
        let made = made.flat_map(|&op| graph.outputs(op));
        let size: Bytes = made.map(|&buffer| graph.size_alloc(buffer)).sum();
        let times = &lives.of.priced.machine.times;
        let again = lives.runs.iter().skip(1).flat_map(|ops| ops.iter());
        let saved: Nanos = again.map(|&op| times.of(op)).fold(Nanos::ZERO, |a, b| a + b);
        let held: usize = gaps.iter().map(std::ops::Range::len).sum();
        let worth = saved.0 / ((size.0 as f64 + 1.0) * (held as f64 + 1.0));
        let at = spans.first().map_or(0, |span| span.start);
        RepeatedGather { recipe, unit, at, size, gaps, worth }
    }

    /// Takes memory where it would be alive, if there is enough.
    fn fits(&self, free: &mut [Bytes]) -> bool {
        let gaps = || self.gaps.iter().cloned();
        if !gaps().all(|gap| free[gap].iter().all(|&free| free >= self.size)) {
            return false;
        }
        for gap in gaps() {
            free[gap].iter_mut().for_each(|free| *free -= self.size);
        }
        true
    }
}
