//! How robust a gain is: both orders simulated again under variations.
//!
//! Estimates are off, communication slows compute down, and ranks drift apart. An order that wins
//! only if all estimates are exact is not worth having.

use crate::evaluate::Side;
use crate::graph::{Graph, OpKind};
use crate::ids::{IdVec, OpId};
use crate::origin::Origin;
use crate::random::Random;
use crate::simulate::{Machine, simulate};
use crate::units::Nanos;

/// What a trial varies.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Variation {
    /// Every run time is up to 30% longer or shorter, drawn from a seed.
    Times(u64),
    /// Compute is this many times slower while communication runs beside it.
    Slowdown(f64),
    /// One other rank's compute takes this much longer, and collectives wait for it.
    Skew(f64),
}

/// Both orders in one variation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RobustnessTrial {
    /// What is varied.
    pub variation: Variation,
    /// The step time of the order before.
    pub before: Nanos,
    /// The step time of the order after.
    pub after: Nanos,
}

/// All trials.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Robustness {
    /// One for each variation.
    pub trials: Vec<RobustnessTrial>,
}

const SEEDS: u64 = 16;
const SLOWDOWNS: [f64; 4] = [1.1, 1.2, 1.3, 1.4];
const SKEWS: [f64; 3] = [0.05, 0.1, 0.2];

impl Robustness {
    /// Tries two orders in every variation.
    pub fn of(graph: &Graph, machine: &Machine, before: &[OpId], after: &[OpId]) -> Robustness {
        let factors = |seed| factors(seed, graph.len());
        let before = TriedOrder { graph, machine, order: before, factors: &factors };
        Robustness::tried(&before, &TriedOrder { order: after, ..before })
    }

    /// Compares a changed program with the one before: an operation that stands for others varies
    /// as they do.
    pub fn between(before: Side<'_>, after: Side<'_>, origin: &Origin) -> Robustness {
        let old = |seed| factors(seed, before.setup.graph.len());
        let new = |seed| {
            let old = old(seed);
            let mean = |of: &[OpId]| of.iter().map(|&op| old[op]).sum::<f64>() / of.len() as f64;
            origin.ops.iter().map(|(_, source)| mean(&source.of)).collect()
        };
        Robustness::tried(&TriedOrder::of(before, &old), &TriedOrder::of(after, &new))
    }

    fn tried(before: &TriedOrder<'_>, after: &TriedOrder<'_>) -> Robustness {
        let times = (0..SEEDS).map(Variation::Times);
        let slowdowns = SLOWDOWNS.into_iter().map(Variation::Slowdown);
        let variations = times.chain(slowdowns).chain(SKEWS.into_iter().map(Variation::Skew));
        let trial = |variation| RobustnessTrial {
            variation,
            before: before.step(variation),
            after: after.step(variation),
        };
        Robustness { trials: variations.map(trial).collect() }
    }

    /// The smallest and the largest fraction of the step that is saved; negative if lost.
    pub fn range(&self) -> (f64, f64) {
        let saved = |trial: &RobustnessTrial| match 1.0 - trial.after.0 / trial.before.0 {
            saved if saved.abs() > 1e-9 => saved,
            _ => 0.0,
        };
        let all = self.trials.iter().map(saved);
        all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), saved| {
            (low.min(saved), high.max(saved))
        })
    }

    /// In how many trials the order before is better, by more than rounding.
    pub fn lost(&self) -> usize {
        self.trials.iter().filter(|trial| trial.after.0 > trial.before.0 * (1.0 + 1e-9)).count()
    }

    /// Whether the order before is better in most.
    pub fn is_lost(&self) -> bool {
        2 * self.lost() > self.trials.len()
    }
}

/// An order that is tried.
#[derive(Clone, Copy)]
struct TriedOrder<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    order: &'a [OpId],
    /// How much longer every operation takes, by a seed.
    factors: &'a dyn Fn(u64) -> IdVec<OpId, f64>,
}

impl<'a> TriedOrder<'a> {
    fn of(side: Side<'a>, factors: &'a dyn Fn(u64) -> IdVec<OpId, f64>) -> TriedOrder<'a> {
        let Side { setup, evaluation } = side;
        TriedOrder {
            graph: setup.graph,
            machine: setup.machine,
            order: evaluation.order.as_slice(),
            factors,
        }
    }

    fn step(&self, variation: Variation) -> Nanos {
        simulate(self.graph, self.order, &self.varied(variation)).step_time
    }

    fn varied(&self, variation: Variation) -> Machine {
        let TriedOrder { graph, machine, order, .. } = *self;
        let mut varied = machine.clone();
        match variation {
            Variation::Times(seed) => {
                let factors = (self.factors)(seed);
                varied.times = machine.times.map(|op, time| time * factors[op]);
            }
            Variation::Slowdown(slowdown) => varied.slowdown = slowdown,
            Variation::Skew(skew) => {
                let compute = |op| matches!(graph.kind(op), OpKind::Compute);
                let mut peer = machine.clone();
                peer.times = machine
                    .times
                    .map(|op, time| if compute(op) { time * (1.0 + skew) } else { time });
                varied.peers = Some(simulate(graph, order, &peer).start);
            }
        }
        varied
    }
}

fn factors(seed: u64, ops: usize) -> IdVec<OpId, f64> {
    let mut random = Random::new(seed);
    (0..ops).map(|_| 0.7 + 0.6 * random.unit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn robustness(steps: &[(f64, f64)]) -> Robustness {
        let trial = |(seed, &(before, after)): (usize, &(f64, f64))| RobustnessTrial {
            variation: Variation::Times(seed as u64),
            before: Nanos(before),
            after: Nanos(after),
        };
        Robustness { trials: steps.iter().enumerate().map(trial).collect() }
    }

    #[test]
    fn an_order_is_lost_where_it_is_slower_in_most_variations() {
        let mixed = robustness(&[(100.0, 80.0), (100.0, 110.0), (200.0, 150.0)]);
        assert_eq!((mixed.lost(), mixed.is_lost()), (1, false));
        let (low, high) = mixed.range();
        assert!((low + 0.1).abs() < 1e-12 && (high - 0.25).abs() < 1e-12, "{low} {high}");
        assert!(robustness(&[(100.0, 101.0), (100.0, 90.0), (100.0, 100.1)]).is_lost());
        assert!(!robustness(&[(100.0, 101.0), (100.0, 90.0)]).is_lost(), "half is not most");
    }
}
