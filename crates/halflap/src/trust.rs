//! How far a gain can be trusted: both orders once more, with everything a little different.
//!
//! Estimates are off, communication slows compute down, and ranks do not keep step. An order that
//! wins only where all estimates are right is not worth having.

use crate::graph::{Graph, OpKind};
use crate::ids::OpId;
use crate::random::Random;
use crate::simulate::{Machine, simulate};
use crate::units::Nanos;

/// What is different in a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Variation {
    /// Every run time is up to 30% longer or shorter, drawn from a seed.
    Times(u64),
    /// Compute is so many times slower while communication runs beside it.
    Slowdown(f64),
    /// One other rank's compute takes so much longer, and collectives wait for it.
    Skew(f64),
}

/// Both orders in one variation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// What is different.
    pub variation: Variation,
    /// The step time of the order before.
    pub before: Nanos,
    /// The step time of the order after.
    pub after: Nanos,
}

/// All trials.
#[derive(Clone, Debug, PartialEq)]
pub struct Trust {
    /// One for each variation.
    pub trials: Vec<Trial>,
}

const SEEDS: u64 = 16;
const SLOWDOWNS: [f64; 4] = [1.1, 1.2, 1.3, 1.4];
const SKEWS: [f64; 3] = [0.05, 0.1, 0.2];

impl Trust {
    /// Tries two orders in every variation.
    pub fn of(graph: &Graph, machine: &Machine, before: &[OpId], after: &[OpId]) -> Trust {
        let times = (0..SEEDS).map(Variation::Times);
        let slowdowns = SLOWDOWNS.into_iter().map(Variation::Slowdown);
        let variations = times.chain(slowdowns).chain(SKEWS.into_iter().map(Variation::Skew));
        let step =
            |order: &[OpId], variation| simulate(graph, order, &varied(graph, machine, order, variation)).step_time;
        let trial = |variation| Trial { variation, before: step(before, variation), after: step(after, variation) };
        Trust { trials: variations.map(trial).collect() }
    }

    /// The smallest and the largest part of the step that is saved; negative is lost.
    pub fn range(&self) -> (f64, f64) {
        let saved = |trial: &Trial| match 1.0 - trial.after.0 / trial.before.0 {
            saved if saved.abs() > 1e-9 => saved,
            _ => 0.0,
        };
        let all = self.trials.iter().map(saved);
        all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), saved| (low.min(saved), high.max(saved)))
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

fn varied(graph: &Graph, machine: &Machine, order: &[OpId], variation: Variation) -> Machine {
    let mut varied = machine.clone();
    match variation {
        Variation::Times(seed) => {
            let random = std::cell::RefCell::new(Random::new(seed));
            varied.times = machine.times.map(|_, time| time * (0.7 + 0.6 * random.borrow_mut().unit()));
        }
        Variation::Slowdown(slowdown) => varied.slowdown = slowdown,
        Variation::Skew(skew) => {
            let compute = |op| matches!(graph.kind(op), OpKind::Compute);
            let mut peer = machine.clone();
            peer.times = machine.times.map(|op, time| if compute(op) { time * (1.0 + skew) } else { time });
            varied.peers = Some(simulate(graph, order, &peer).start);
        }
    }
    varied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(steps: &[(f64, f64)]) -> Trust {
        let trial = |(seed, &(before, after)): (usize, &(f64, f64))| Trial {
            variation: Variation::Times(seed as u64),
            before: Nanos(before),
            after: Nanos(after),
        };
        Trust { trials: steps.iter().enumerate().map(trial).collect() }
    }

    #[test]
    fn an_order_is_lost_where_it_is_slower_in_most_variations() {
        let mixed = trust(&[(100.0, 80.0), (100.0, 110.0), (200.0, 150.0)]);
        assert_eq!((mixed.lost(), mixed.is_lost()), (1, false));
        let (low, high) = mixed.range();
        assert!((low + 0.1).abs() < 1e-12 && (high - 0.25).abs() < 1e-12, "{low} {high}");
        assert!(trust(&[(100.0, 101.0), (100.0, 90.0), (100.0, 100.1)]).is_lost());
        assert!(!trust(&[(100.0, 101.0), (100.0, 90.0)]).is_lost(), "half is not most");
    }
}
