//! Plans of merges: for each class of collectives that can be merged, how large they become.

use super::Allowed;
use crate::collective::CollectiveKind;
use crate::cost::CostLine;
use crate::graph::{Edges, Graph};
use crate::ids::{IdVec, OpId};
use crate::rewrite::{Prices, Recipe, RewriteKind, circle, mergeable};
use crate::units::{Bytes, Nanos};

/// Collectives of one kind, group and type, in the sequence of the input order.
struct MergeCandidates {
    ops: Vec<OpId>,
    line: CostLine,
    /// Whether merging them keeps every bit.
    is_exact: bool,
    sizes: Sizes,
}

/// Between which sizes, in bytes, merging could pay.
struct Sizes {
    /// Two of the mean size, or the size at which most of the time is latency if there are larger
    /// ones.
    least: f64,
    /// All together, or the size at which hardly any of the time is latency.
    most: f64,
}

impl Sizes {
    fn of(graph: &Graph, ops: &[OpId], line: CostLine) -> Sizes {
        let bytes = |&op: &OpId| graph.collective(op).map_or(0.0, |of| of.bytes().0 as f64);
        let half = line.half().0 as f64;
        let total: f64 = ops.iter().map(bytes).sum();
        // Where hardly anything but latency counts, a pair is as worthwhile as many.
        let least = if total > 4.0 * half { half / 4.0 } else { 2.0 * total / ops.len() as f64 };
        Sizes { least: least.max(1.0), most: total.min(64.0 * half).max(1.0) }
    }
}

impl MergeCandidates {
    /// How large a merged collective may become at a level, between the largest that could pay and
    /// the smallest. Square roots are exact to the last bit on every machine, powers are not.
    fn cap(&self, level: SizeLevel) -> f64 {
        let (top, low) = (self.sizes.most, self.sizes.least.min(self.sizes.most));
        let eighth = (low / top).sqrt().sqrt().sqrt();
        (0..level.0).fold(top, |cap, _| cap * eighth)
    }

    /// What is saved if all become one.
    fn most_saved(&self) -> Nanos {
        self.line.latency * (self.ops.len() - 1) as f64
    }
}

/// All classes of a program in which merging could save time.
pub(super) struct Plans<'a> {
    graph: &'a Graph,
    classes: Vec<MergeCandidates>,
    reach: Reachable,
    /// See [`first_readers`].
    reader: IdVec<OpId, Option<OpId>>,
    /// Whether there are collectives to merge whose latency is not known.
    pub(super) has_unknown: bool,
}

/// How large collectives become: 0 is the largest that could pay, 8 the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SizeLevel(u8);

impl SizeLevel {
    pub(super) const LARGEST: SizeLevel = SizeLevel(0);
    pub(super) const LARGE: SizeLevel = SizeLevel(2);
    pub(super) const MIDDLE: SizeLevel = SizeLevel(4);
    pub(super) const SMALL: SizeLevel = SizeLevel(6);
    pub(super) const SMALLEST: SizeLevel = SizeLevel(8);

    /// The next larger and the next smaller size.
    pub(super) fn near(self) -> impl Iterator<Item = SizeLevel> {
        let larger = self.0.checked_sub(1);
        let smaller = (self < SizeLevel::SMALLEST).then(|| self.0 + 1);
        larger.into_iter().chain(smaller).map(SizeLevel)
    }
}

/// The level of each class; `None` leaves it as it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Levels(Vec<Option<SizeLevel>>);

impl Levels {
    /// All classes alike. Inexact ones come later, if there are others: allowing them must not make
    /// the result worse.
    pub(super) fn all(plans: &Plans<'_>, level: SizeLevel) -> Levels {
        let is_any_exact = plans.classes.iter().any(|class| class.is_exact);
        let of = |class: &MergeCandidates| (class.is_exact || !is_any_exact).then_some(level);
        Levels(plans.classes.iter().map(of).collect())
    }

    /// One class alone.
    pub(super) fn only(plans: &Plans<'_>, class: usize, level: SizeLevel) -> Levels {
        Levels((0..plans.classes.len()).map(|other| (other == class).then_some(level)).collect())
    }

    /// The same with one class larger, smaller, or left as it is.
    pub(super) fn neighbours(&self, class: usize) -> Vec<Levels> {
        let with = |level: Option<SizeLevel>| {
            let mut levels = self.clone();
            levels.0[class] = level;
            levels
        };
        match self.0[class] {
            Some(own) => {
                let near = own.near().map(|level| with(Some(level)));
                [with(None)].into_iter().chain(near).collect()
            }
            None => vec![with(Some(SizeLevel::MIDDLE)), with(Some(SizeLevel::SMALLEST))],
        }
    }
}

impl<'a> Plans<'a> {
    pub(super) fn new(graph: &'a Graph, prices: &Prices<'_>, allowed: &Allowed) -> Plans<'a> {
        let merges = allowed.kinds.contains(&RewriteKind::Merge);
        let prices = prices.list(graph);
        let (mut classes, mut has_unknown) = (Vec::new(), false);
        for ops in mergeable(graph).into_iter().filter(|ops| merges && ops.len() > 1) {
            let Some(like) = ops.first().and_then(|&op| graph.collective(op)) else { continue };
            // The order of an all-reduce's sum depends on where an element stands in the message.
            let is_exact = like.kind != CollectiveKind::AllReduce;
            if !is_exact && allowed.exact_only {
                continue;
            }
            match prices.line(like) {
                Some(line) if line.latency > Nanos::ZERO => {
                    classes.push(MergeCandidates {
                        sizes: Sizes::of(graph, &ops, line),
                        ops,
                        line,
                        is_exact,
                    });
                }
                Some(_) => {}
                None => has_unknown = true,
            }
        }
        let reach =
            Reachable::new(graph, classes.iter().flat_map(|class| class.ops.iter().copied()));
        Plans { graph, classes, reach, reader: first_readers(graph), has_unknown }
    }

    /// What all merges could save at most.
    pub(super) fn most_saved(&self) -> Nanos {
        self.classes.iter().map(MergeCandidates::most_saved).sum()
    }

    /// The classes, those in which most can be saved first.
    pub(super) fn by_saving(&self) -> Vec<usize> {
        let mut classes: Vec<usize> = (0..self.classes.len()).collect();
        let saved = |class: usize| self.classes[class].most_saved().0;
        classes.sort_by(|&a, &b| saved(b).total_cmp(&saved(a)));
        classes
    }

    /// The merges of a plan, which do not depend on each other in a cycle.
    pub(super) fn recipes(&self, levels: &Levels) -> Vec<Recipe> {
        let merged = self
            .classes
            .iter()
            .zip(&levels.0)
            .filter_map(|(class, level)| Some((class, (*level)?)));
        let mut sets: Vec<Vec<OpId>> =
            merged.flat_map(|(class, level)| self.sets(class, class.cap(level))).collect();
        loop {
            let slices: Vec<&[OpId]> = sets.iter().map(Vec::as_slice).collect();
            let smallest =
                circle(self.graph, &slices).into_iter().min_by_key(|&set| (sets[set].len(), set));
            match smallest {
                Some(set) => sets.swap_remove(set),
                None => break,
            };
        }
        sets.sort_unstable();
        sets.into_iter().map(|members| Recipe::Merge { members }).collect()
    }

    /// Neighbours in the input order, as long as they fit and do not depend on each other. A set of
    /// everything that one operation reads ends there if it is at least half full, so that a layer
    /// does not wait for the next one's weights.
    fn sets(&self, class: &MergeCandidates, most: f64) -> Vec<Vec<OpId>> {
        let mut sets: Vec<Vec<OpId>> = Vec::new();
        let mut held = 0.0;
        for &op in &class.ops {
            let bytes = self.graph.collective(op).map_or(Bytes::ZERO, |of| of.bytes()).0 as f64;
            let fits = |set: &Vec<OpId>| {
                let of = |other: &OpId| self.reader[*other];
                let is_whole = set.len() > 1
                    && of(&set[0]).is_some()
                    && set.iter().all(|one| of(one) == of(&set[0]));
                held + bytes <= most
                    && !(is_whole && of(&set[0]) != of(&op) && 2.0 * held >= most)
                    && !set.iter().any(|&one| self.reach.leads(one, op))
            };
            match sets.last_mut().filter(|set| fits(set)) {
                Some(set) => {
                    set.push(op);
                    held += bytes;
                }
                None => {
                    sets.push(vec![op]);
                    held = bytes;
                }
            }
        }
        sets.retain(|set| set.len() > 1);
        sets
    }
}

/// By collective: the operation that first reads what was gathered; `None` for other kinds.
fn first_readers(graph: &Graph) -> IdVec<OpId, Option<OpId>> {
    let reader = |op: OpId| {
        graph.collective(op).filter(|of| of.kind == CollectiveKind::AllGather)?;
        let waits = graph.waited_by(op).iter();
        waits.flat_map(|&wait| graph.succs(wait, Edges::Awaited).iter().copied()).min()
    };
    graph.ops().map(reader).collect()
}

/// Which collectives depend on which.
struct Reachable {
    /// The number of a collective among those that matter.
    number: IdVec<OpId, Option<usize>>,
    /// By operation: bits of the collectives that it depends on.
    before: IdVec<OpId, Vec<u64>>,
}

impl Reachable {
    fn new(graph: &Graph, collectives: impl Iterator<Item = OpId>) -> Reachable {
        let mut number = IdVec::filled(None, graph.len());
        let count = collectives.enumerate().map(|(index, op)| number[op] = Some(index)).count();
        let words = count.div_ceil(64);
        let mut before: IdVec<OpId, Vec<u64>> = IdVec::default();
        for op in graph.ops() {
            let mut bits = vec![0_u64; words];
            for &pred in graph.preds(op, Edges::Real) {
                bits.iter_mut().zip(&before[pred]).for_each(|(bits, more)| *bits |= more);
                if let Some(index) = number[pred] {
                    bits[index / 64] |= 1 << (index % 64);
                }
            }
            before.push(bits);
        }
        Reachable { number, before }
    }

    /// Whether a collective comes before an operation.
    fn leads(&self, collective: OpId, op: OpId) -> bool {
        self.number[collective]
            .is_some_and(|index| self.before[op][index / 64] >> (index % 64) & 1 == 1)
    }
}
