//! Which gathers are done again for their later readers: those whose results are in memory where
//! the module's own orders need the most, starting with those that free the most for their time.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use halflap::ids::{BufId, Id, OpId};
use halflap::units::{Bytes, Nanos};
use halflap::workload::Decided;
use halflap_hlo::change::{self, FoundAgain, Recipe};
use halflap_hlo::ids::InstrId;

use super::keeps::levels;
use super::{Maker, Tried, step};
use crate::exit::Failed;
use crate::source::{Hlo, Subject};

/// What is aimed at where the module fits as it is, as parts of what it needs: memory that is free
/// hides collectives and lets them be merged.
const PARTS: [f64; 3] = [0.99, 0.85, 0.6];

/// The same where it does not, as parts of the way from what it needs to the limit. Orders that
/// need less than the module's own may be enough with fewer gathers; others need more of them.
const WAYS: [f64; 3] = [0.5, 1.0, 1.25];

/// A step that is longer than without by more than this is not made shorter by merges.
const MOST_LONGER: f64 = 1.1;

/// A gather whose result is in memory between two of its readers.
struct LongGather {
    recipe: Recipe,
    /// Which of the computations in their own orders.
    unit: usize,
    /// Where in the order nothing reads it.
    gap: Range<usize>,
    /// What would be free there.
    freed: Bytes,
    /// What the second gather takes.
    time: Nanos,
}

impl LongGather {
    /// Which of two frees more bytes for each nanosecond of gathering or, of equals, for longer.
    fn cmp_worth(&self, other: &LongGather) -> Ordering {
        let worth = |of: &LongGather| of.freed.0 as f64 / of.time.0.max(1.0);
        worth(self).total_cmp(&worth(other)).then(self.gap.len().cmp(&other.gap.len()))
    }
}

/// What a set of gathers is to achieve: the most that each computation may need.
type Aims = Vec<Bytes>;

impl<T> Maker<'_, T> {
    /// The best set with gathers that are done again on top: with those of the shortest step, if it
    /// is shorter than without, and with the most that are not much longer, which leave the most
    /// memory to others.
    pub(super) fn gathered_again(
        &self,
        best: Option<&Tried<T>>,
        alone: Nanos,
    ) -> Result<Vec<Tried<T>>, Failed> {
        let subject = best.map_or(self.subject, |best| &best.subject);
        let without = best.map_or(alone, |best| step(&best.all));
        let mut found: Vec<Tried<T>> = Vec::new();
        for set in self.again_sets(subject, without.0.is_finite())? {
            let Some(tried) = self.tried(best, set)? else { continue };
            if step(&tried.all).0 > without.0 * MOST_LONGER {
                break;
            }
            found.push(tried);
        }
        let Some(most) = found.pop() else { return Ok(found) };
        let shortest = found.into_iter().fold(None, |best, other| self.shorter(best, Some(other)));
        let is_short = |of: &Tried<T>| step(&of.all) < without && step(&of.all) <= step(&most.all);
        let shortest = shortest.filter(is_short);
        Ok(shortest.into_iter().chain([most]).collect())
    }

    /// Sets of gathers to do again, the smallest first.
    fn again_sets(&self, subject: &Subject, fits: bool) -> Result<Vec<Vec<Recipe>>, Failed> {
        let hlo = subject.hlo.as_ref().unwrap_or(self.hlo);
        let found = change::find_agains(&hlo.module);
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let own = subject.source.walk(|priced| Ok((priced.input.order.clone(), ())))?;
        let gathers = long_gathers(&found, hlo, &own);
        let levels: Vec<Vec<Bytes>> = own.iter().map(levels).collect();
        let mut sets: Vec<Vec<Recipe>> = Vec::new();
        for aims in self.aims(subject, &own, fits) {
            let set = chosen(&gathers, levels.clone(), &aims);
            if !set.is_empty() && sets.last() != Some(&set) {
                sets.push(set);
            }
        }
        Ok(sets)
    }

    fn aims(&self, subject: &Subject, own: &[Decided<()>], fits: bool) -> Vec<Aims> {
        let aim = |unit: &Decided<()>, at: usize| {
            let name = subject.source.name_of(unit.priced.unit);
            let needed = unit.result.peak();
            let limit = self.limits.on(self.rung, name).unwrap_or(needed);
            Bytes(match fits {
                true => (needed.min(limit).0 as f64 * PARTS[at]) as i64,
                false => needed.0 - ((needed - limit).0.max(0) as f64 * WAYS[at]) as i64,
            })
        };
        let steps = if fits { PARTS.len() } else { WAYS.len() };
        (0..steps).map(|at| own.iter().map(|unit| aim(unit, at)).collect()).collect()
    }
}

/// Gathers that free something, in text order.
fn long_gathers(found: &[FoundAgain], hlo: &Hlo, own: &[Decided<()>]) -> Vec<LongGather> {
    // Looked up only.
    let mut units: BTreeMap<InstrId, (usize, Vec<OpId>)> = BTreeMap::new();
    for (at, unit) in own.iter().enumerate() {
        let places = &hlo.units[unit.priced.unit].lowered.places;
        for op in unit.priced.graph.ops() {
            units.entry(places[op].instr).or_insert_with(|| (at, Vec::new())).1.push(op);
        }
    }
    let gather = |found: &FoundAgain| {
        let &(unit, _) = units.get(found.values.first()?)?;
        let places = &hlo.units[own[unit].priced.unit].lowered.places;
        let order = own[unit].result.order.as_slice();
        let before =
            |end: &dyn Fn(InstrId) -> bool| order.iter().position(|&op| end(places[op].instr));
        let gap =
            before(&|instr| instr > found.last_early)?..before(&|instr| instr >= found.first_late)?;
        let ops = found.values.iter().filter_map(|value| units.get(value));
        let ops: Vec<OpId> = ops.flat_map(|(_, ops)| ops.iter().copied()).collect();
        let freed = freed(&own[unit], &ops, &gap);
        let times = &own[unit].priced.machine.times;
        let time = ops.iter().map(|&op| times.of(op)).fold(Nanos::ZERO, |a, b| a + b);
        let recipe = found.recipe.clone();
        Some(LongGather { recipe, unit, gap, freed, time })
    };
    found
        .iter()
        .filter_map(gather)
        .filter(|of| of.freed > Bytes::ZERO && !of.gap.is_empty())
        .collect()
}

/// What is alive in a part of the order only because these operations are not run again after it.
fn freed(unit: &Decided<()>, ops: &[OpId], gap: &Range<usize>) -> Bytes {
    let graph = &unit.priced.graph;
    let at = |op: OpId| unit.result.order.pos(op).index();
    let lasts = |&buffer: &BufId| {
        graph.is_output(buffer) || graph.users(buffer).iter().any(|&user| at(user) >= gap.end)
    };
    let made = ops.iter().filter(|&&op| at(op) < gap.start).flat_map(|&op| graph.outputs(op));
    let held: Bytes = made.filter(|buffer| lasts(buffer)).map(|&of| graph.size_alloc(of)).sum();
    // What is gathered must stay instead, if nothing else needs it.
    let own: BTreeSet<OpId> = ops.iter().copied().collect();
    let is_read = |buffer: &BufId| graph.maker(*buffer).is_some_and(|of| !own.contains(&of));
    let read: BTreeSet<_> = ops.iter().flat_map(|&op| graph.uses(op)).copied().collect();
    let kept: Bytes = read
        .iter()
        .filter(|buffer| is_read(buffer) && !lasts(buffer))
        .map(|&buffer| graph.size_alloc(buffer))
        .sum();
    held - kept
}

/// Gathers that lower the highest levels of memory, one after the other, as far as is aimed at or
/// possible, in text order.
fn chosen(gathers: &[LongGather], mut levels: Vec<Vec<Bytes>>, aims: &Aims) -> Vec<Recipe> {
    let mut taken: BTreeSet<usize> = BTreeSet::new();
    let mut names: BTreeSet<&[String]> = BTreeSet::new();
    for (unit, levels) in levels.iter_mut().enumerate() {
        loop {
            let top = (0..levels.len()).max_by_key(|&at| levels[at]);
            let Some(top) = top.filter(|&top| levels[top] > aims[unit]) else { break };
            let is_free = |&(_, of): &(usize, &LongGather)| {
                let is_there = of.unit == unit && of.gap.contains(&top);
                is_there && !names.contains(of.recipe.members())
            };
            let best = gathers.iter().enumerate().filter(is_free);
            let best = best.max_by(|(_, a), (_, b)| a.cmp_worth(b));
            let Some((at, gather)) = best else { break };
            levels[gather.gap.clone()].iter_mut().for_each(|level| *level -= gather.freed);
            taken.insert(at);
            names.insert(gather.recipe.members());
        }
    }
    taken.into_iter().map(|at| gathers[at].recipe.clone()).collect()
}
