//! Precedences that hold in every order that is faster than a known one.
//!
//! If all orders with one operation before another take at least as long as the known one, every
//! faster order has them the other way round. Each such pair lengthens heads and tails, so that
//! others can be ruled out in turn. A bound that is proved for the remaining orders holds for all
//! orders, up to the step of the known one.

use super::implied::Precedence;
use super::{Bounded, Ready};
use crate::graph::OpKind;
use crate::ids::OpId;
use crate::units::Nanos;

/// How many tests are made, times the square of the program's length, and at most.
const TESTS: usize = 20_000_000;
const MOST_TESTS: usize = 2_000;
/// How many operations are placed, the longest first.
const PLACED: usize = 64;

/// The pairs that hold in every order that is faster than `step`, beside those that are known.
pub(super) fn shave(case: &Bounded<'_>, known: &[Precedence], step: Nanos) -> Vec<Precedence> {
    let Some(ready) = case.ready(known) else { return known.to_vec() };
    let len = case.graph.len().max(1);
    let left = (TESTS / (len * len)).min(MOST_TESTS);
    let mut shave = Shave { case, path: &ready.path, step, pairs: known.to_vec(), left };
    let mut open: Vec<Open> = shave.to_place(&ready).collect();
    let mut is_new = true;
    while is_new && shave.left > 0 && !shave.is_over() {
        is_new = false;
        for op in &mut open {
            is_new |= shave.narrow(op);
        }
    }
    shave.pairs
}

struct Shave<'a> {
    case: &'a Bounded<'a>,
    path: &'a [OpId],
    step: Nanos,
    pairs: Vec<Precedence>,
    /// How many tests are left.
    left: usize,
}

/// An operation, and the places of the path between which it may come.
struct Open {
    op: OpId,
    /// How many operations of the path come before it.
    after: usize,
    /// The first that comes after it; the path's length if none does.
    before: usize,
}

impl Shave<'_> {
    /// The longest operations of the compute stream that are not on the path.
    fn to_place(&self, ready: &Ready) -> impl Iterator<Item = Open> + use<> {
        let graph = self.case.graph;
        let time = |op: OpId| self.case.machine.times.of(op).0;
        let is_placed = |op: &OpId| {
            graph.kind(*op) == OpKind::Compute && time(*op) > 0.0 && !ready.path.contains(op)
        };
        let mut ops: Vec<OpId> = graph.ops().filter(is_placed).collect();
        ops.sort_by(|&a, &b| time(b).total_cmp(&time(a)).then(a.cmp(&b)));
        ops.truncate(PLACED);
        let len = self.path.len();
        ops.into_iter().map(move |op| Open { op, after: 0, before: len })
    }

    /// Searches for the places that an operation cannot come before or after; returns whether it
    /// found new ones.
    fn narrow(&mut self, open: &mut Open) -> bool {
        let Open { op, after, before } = *open;
        let path = self.path;
        // What cannot come before an operation of the path cannot come before an earlier one,
        // either.
        open.after = self.first(after..before, |shave, place| {
            !shave.is_ruled_out(Precedence { first: op, then: path[place] })
        });
        if open.after > after {
            self.pairs.push(Precedence { first: path[open.after - 1], then: op });
        }
        open.before = self.first(open.after..before, |shave, place| {
            shave.is_ruled_out(Precedence { first: path[place], then: op })
        });
        if open.before < before {
            self.pairs.push(Precedence { first: op, then: path[open.before] });
        }
        open.after > after || open.before < before
    }

    /// The first place from which on a predicate holds, found by bisection.
    fn first(
        &mut self,
        places: std::ops::Range<usize>,
        is_so: impl Fn(&mut Self, usize) -> bool,
    ) -> usize {
        let (mut low, mut high) = (places.start, places.end);
        while low < high {
            let middle = low.midpoint(high);
            match is_so(self, middle) {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        low
    }

    /// Whether no faster order has one operation before another.
    fn is_ruled_out(&mut self, pair: Precedence) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.pairs.push(pair);
        let is_over = self.is_over();
        self.pairs.pop();
        is_over
    }

    /// Whether no order that keeps all pairs is faster.
    fn is_over(&self) -> bool {
        self.case.one_machine(&self.pairs).is_none_or(|(time, _)| time >= self.step.0)
    }
}
