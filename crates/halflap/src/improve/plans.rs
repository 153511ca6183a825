//! Plans of merges: for each class of collectives that can be merged, how large they become.

use super::Allowed;
use crate::collective::CollectiveKind;
use crate::graph::{Edges, Graph};
use crate::ids::{IdVec, OpId};
use crate::rewrite::{Line, Prices, Recipe, RewriteKind, circle, mergeable};
use crate::units::{Bytes, Nanos};

/// Collectives of one kind, group and type, in the sequence of the input order.
struct Class {
    ops: Vec<OpId>,
    line: Line,
    /// Whether merging them keeps every bit.
    is_exact: bool,
}

impl Class {
    /// What is saved if all become one.
    fn most_saved(&self) -> Nanos {
        self.line.latency * (self.ops.len() - 1) as f64
    }
}

/// All classes of a program in which merging could save time.
pub(super) struct Plans<'a> {
    graph: &'a Graph,
    classes: Vec<Class>,
    reach: Reach,
}

/// How much larger or smaller the collectives of a class are tried next.
const STEP: f64 = 4.0;

/// How large the collectives of each class become, in multiples of the size at which latency is half
/// of the time; `None` leaves a class as it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Caps(Vec<Option<f64>>);

impl Caps {
    /// All classes alike. Those that are not exact come later, if there are others: what they are
    /// allowed to change must not make the result worse.
    pub(super) fn all(plans: &Plans<'_>, factor: f64) -> Caps {
        let is_any_exact = plans.classes.iter().any(|class| class.is_exact);
        let cap = |class: &Class| (class.is_exact || !is_any_exact).then_some(factor);
        Caps(plans.classes.iter().map(cap).collect())
    }

    /// The same with one class much larger, smaller, or left as it is.
    pub(super) fn neighbours(&self, class: usize) -> Vec<Caps> {
        let with = |cap: Option<f64>| {
            let mut caps = self.clone();
            caps.0[class] = cap;
            caps
        };
        match self.0[class] {
            Some(own) => vec![with(None), with(Some(STEP * own)), with(Some(own / STEP))],
            None => vec![with(Some(STEP)), with(Some(STEP * STEP))],
        }
    }
}

impl<'a> Plans<'a> {
    pub(super) fn new(graph: &'a Graph, prices: &Prices<'_>, allowed: &Allowed) -> Plans<'a> {
        let class = |ops: Vec<OpId>| {
            let like = graph.collective(*ops.first()?)?;
            let line = prices.line(graph, like)?;
            // The order of an all-reduce's sum depends on where an element stands in the message.
            let is_exact = like.kind != CollectiveKind::AllReduce;
            let is_worth = ops.len() > 1 && line.latency > Nanos::ZERO && (is_exact || !allowed.exact_only);
            is_worth.then_some(Class { ops, line, is_exact })
        };
        let merges = allowed.kinds.contains(&RewriteKind::Merge);
        let classes = mergeable(graph).into_iter().filter(|_| merges);
        let classes: Vec<Class> = classes.filter_map(class).collect();
        let reach = Reach::new(graph, classes.iter().flat_map(|class| class.ops.iter().copied()));
        Plans { graph, classes, reach }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// What all merges could save at most.
    pub(super) fn most_saved(&self) -> Nanos {
        self.classes.iter().map(Class::most_saved).sum()
    }

    /// The classes, those in which most can be saved first.
    pub(super) fn by_saving(&self) -> Vec<usize> {
        let mut classes: Vec<usize> = (0..self.classes.len()).collect();
        let saved = |class: usize| self.classes[class].most_saved().0;
        classes.sort_by(|&a, &b| saved(b).total_cmp(&saved(a)));
        classes
    }

    /// The merges of a plan; none of them needs another in a circle.
    pub(super) fn recipes(&self, caps: &Caps) -> Vec<Recipe> {
        let capped = self.classes.iter().zip(&caps.0).filter_map(|(class, cap)| Some((class, (*cap)?)));
        let mut sets: Vec<Vec<OpId>> = capped.flat_map(|(class, cap)| self.sets(class, cap)).collect();
        loop {
            let slices: Vec<&[OpId]> = sets.iter().map(Vec::as_slice).collect();
            let smallest = circle(self.graph, &slices).into_iter().min_by_key(|&set| (sets[set].len(), set));
            match smallest {
                Some(set) => sets.swap_remove(set),
                None => break,
            };
        }
        sets.sort_unstable();
        sets.into_iter().map(|members| Recipe::Merge { members }).collect()
    }

    /// Neighbours in the input order, as long as they fit and do not depend on each other.
    fn sets(&self, class: &Class, cap: f64) -> Vec<Vec<OpId>> {
        let most = class.line.half().0 as f64 * cap;
        let mut sets: Vec<Vec<OpId>> = Vec::new();
        let mut held = 0.0;
        for &op in &class.ops {
            let bytes = self.graph.collective(op).map_or(Bytes::ZERO, |of| of.bytes()).0 as f64;
            match sets.last_mut() {
                Some(set) if held + bytes <= most && !set.iter().any(|&one| self.reach.leads(one, op)) => {
                    set.push(op);
                    held += bytes;
                }
                _ => {
                    sets.push(vec![op]);
                    held = bytes;
                }
            }
        }
        sets.retain(|set| set.len() > 1);
        sets
    }
}

/// Which collectives depend on which.
struct Reach {
    /// The number of a collective among those that matter.
    number: IdVec<OpId, Option<usize>>,
    /// By operation: bits of the collectives that it depends on.
    before: IdVec<OpId, Vec<u64>>,
}

impl Reach {
    fn new(graph: &Graph, collectives: impl Iterator<Item = OpId>) -> Reach {
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
        Reach { number, before }
    }

    /// Whether a collective comes before an operation.
    fn leads(&self, collective: OpId, op: OpId) -> bool {
        self.number[collective].is_some_and(|index| self.before[op][index / 64] >> (index % 64) & 1 == 1)
    }
}
