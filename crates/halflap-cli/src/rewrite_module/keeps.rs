//! Which gathers are kept instead of being repeated: as many as fit into a part of the memory that
//! the module's own orders leave free, starting with those that save the most for it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use halflap::ids::{Id, OpId};
use halflap::memory::Timeline;
use halflap::units::{Bytes, Nanos};
use halflap::workload::Decided;
use halflap_hlo::change::{self, FoundKeep, Recipe};
use halflap_hlo::ids::InstrId;

use crate::exit::Failed;
use crate::search::{ProgramLimits, Rung};
use crate::source::{Hlo, Subject};

/// Parts of the free memory; what is left hides other collectives.
const PARTS: [f64; 3] = [1.0, 0.5, 0.25];

/// The memory that computations may need.
pub struct KeepLimits<'a> {
    pub of: &'a ProgramLimits,
    pub rung: Rung,
}

/// A gather that is repeated in one computation, and what can be kept for it.
struct RepeatedGather {
    recipe: Recipe,
    /// Those that are left out.
    again: Vec<InstrId>,
    /// Which of the computations in their own orders.
    unit: usize,
    /// Where the first of what is kept is.
    at: usize,
    gaps: Vec<KeptGap>,
    /// Time of gathers saved for each byte and operation that something is alive for.
    worth: f64,
}

/// Where in the order something would be alive but is not now.
struct KeptGap {
    at: Range<usize>,
    size: Bytes,
}

/// Sets of gathers to keep, the largest first.
pub fn sets(
    subject: &Subject,
    hlo: &Hlo,
    limits: &KeepLimits<'_>,
) -> Result<Vec<Vec<Recipe>>, Failed> {
    let found = change::find_keeps(&hlo.module);
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let own = subject.source.walk(|priced| Ok((priced.input.order.clone(), ())))?;
    let repeated = ranked(found, hlo, &own);
    let every: BTreeSet<InstrId> = repeated.iter().flat_map(|one| one.again.clone()).collect();
    let levels: Vec<Vec<Bytes>> = own.iter().map(levels).collect();
    let room: Vec<Bytes> = own
        .iter()
        .map(|unit| {
            let name = subject.source.name_of(unit.priced.unit);
            limits.of.on(limits.rung, name).unwrap_or_else(|| unit.result.peak())
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
        // Of several choices for a gather, the most valuable that fits.
        let mut left_out: BTreeSet<InstrId> = BTreeSet::new();
        let mut set: Vec<&RepeatedGather> = Vec::new();
        for one in &repeated {
            let is_new = one.again.iter().all(|again| !left_out.contains(again));
            if is_new && one.fits(&mut free[one.unit]) {
                left_out.extend(&one.again);
                set.push(one);
            }
        }
        // In the text's sequence, as recipes are named.
        set.sort_by_key(|one| (one.unit, one.at));
        let set = set.into_iter().map(|one| one.recipe.clone()).collect();
        let set = change::compatible_keeps(&hlo.module, set);
        let is_all = left_out == every;
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
fn ranked(found: Vec<FoundKeep>, hlo: &Hlo, own: &[Decided<()>]) -> Vec<RepeatedGather> {
    // Looked up only.
    let mut ops: BTreeMap<InstrId, (usize, Vec<OpId>)> = BTreeMap::new();
    for (at, unit) in own.iter().enumerate() {
        let places = &hlo.units[unit.priced.unit].lowered.places;
        for op in unit.priced.graph.ops() {
            ops.entry(places[op].instr).or_insert_with(|| (at, Vec::new())).1.push(op);
        }
    }
    let gather = |found: FoundKeep| {
        let &(unit, _) = ops.get(found.again.first()?)?;
        Lives { of: &own[unit], ops: &ops }.gather(found, unit)
    };
    let mut all: Vec<RepeatedGather> = found.into_iter().filter_map(gather).collect();
    all.sort_by(|a, b| b.worth.total_cmp(&a.worth));
    all
}

/// When the values of a computation in its own order are alive.
struct Lives<'a> {
    of: &'a Decided<()>,
    ops: &'a BTreeMap<InstrId, (usize, Vec<OpId>)>,
}

impl Lives<'_> {
    /// `None` if not all of it runs.
    fn gather(&self, found: FoundKeep, unit: usize) -> Option<RepeatedGather> {
        let ops = |&instr: &InstrId| self.ops.get(&instr).map(|(_, ops)| &ops[..]);
        let again = found.again.iter().map(ops).collect::<Option<Vec<_>>>()?;
        let starts: Vec<usize> = again.iter().map(|ops| self.span(ops).start).collect();
        let (mut gaps, mut at) = (Vec::new(), usize::MAX);
        for kept in &found.kept {
            let runs = std::iter::once(&kept.value).chain(&kept.instead_of);
            let runs = runs.map(ops).collect::<Option<Vec<_>>>()?;
            let spans: Vec<Range<usize>> = runs.iter().map(|ops| self.span(ops)).collect();
            let size = self.size(runs[0]);
            at = at.min(spans[0].start);
            // From the gather on, what is gathered and left out took more.
            let gather = |of: usize| starts.iter().copied().filter(|&at| at <= of).max();
            let until = |of: usize| gather(of).unwrap_or(of);
            let between =
                |pair: &[Range<usize>]| pair[0].end..until(pair[1].start).max(pair[0].end);
            gaps.extend(spans.windows(2).map(|pair| KeptGap { at: between(pair), size }));
        }
        let times = &self.of.priced.machine.times;
        let again = again.into_iter().flatten();
        let saved: Nanos = again.map(|&op| times.of(op)).fold(Nanos::ZERO, |a, b| a + b);
        let held = |gap: &KeptGap| (gap.size.0 as f64 + 1.0) * (gap.at.len() as f64 + 1.0);
        let worth = saved.0 / gaps.iter().map(held).sum::<f64>();
        Some(RepeatedGather { recipe: found.recipe, again: found.again, unit, at, gaps, worth })
    }

    /// From where to where in the order what operations give is alive.
    fn span(&self, ops: &[OpId]) -> Range<usize> {
        let graph = &self.of.priced.graph;
        let at = |op: OpId| self.of.result.order.pos(op).index();
        let made = ops.iter().flat_map(|&op| graph.outputs(op));
        let used = made.flat_map(|&buffer| graph.users(buffer));
        let first = ops.iter().map(|&op| at(op)).min().unwrap_or(0);
        let last = used.chain(ops).map(|&op| at(op)).max().unwrap_or(first);
        first..last + 1
    }

    fn size(&self, ops: &[OpId]) -> Bytes {
        let graph = &self.of.priced.graph;
        let made = ops.iter().flat_map(|&op| graph.outputs(op));
        made.map(|&buffer| graph.size_alloc(buffer)).sum()
    }
}

impl RepeatedGather {
    /// Takes memory where it would be alive, if there is enough.
    fn fits(&self, free: &mut [Bytes]) -> bool {
        let mut left = free.to_vec();
        for gap in &self.gaps {
            left[gap.at.clone()].iter_mut().for_each(|free| *free -= gap.size);
        }
        let is_enough = self
            .gaps
            .iter()
            .all(|gap| left[gap.at.clone()].iter().all(|&left| left >= Bytes::ZERO));
        if is_enough {
            free.copy_from_slice(&left);
        }
        is_enough
    }
}
