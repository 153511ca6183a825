//! Which of the orders that were measured is used.

use halflap::units::{Bytes, Nanos};

use crate::execution::run::measure::median;

/// No more rounds than this are run.
pub(super) const MOST_ROUNDS: usize = 61;
/// Ratios this close to each other count as equal.
const NARROW: f64 = 0.01;
/// The chance that an interval does not have the true ratio, for all candidates together.
const DOUBT: f64 = 0.05;

/// Nanoseconds of each candidate's step in one round; the first is the module's own order.
pub(super) type Round = Vec<f64>;

/// How a candidate did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) step_time: Nanos,
    /// The median of its ratios to the module's own order, each within a round.
    pub(super) ratio: f64,
    /// The confidence interval of the ratio, if there were enough rounds.
    pub(super) interval: Option<(f64, f64)>,
}

/// How each candidate did in all rounds.
pub(super) fn measured(rounds: &[Round]) -> Vec<Measured> {
    let count = rounds.first().map_or(0, Vec::len);
    let of = |candidate: usize| {
        let ratios: Vec<f64> = rounds.iter().map(|round| round[candidate] / round[0]).collect();
        Measured {
            step_time: Nanos(median(rounds.iter().map(|round| round[candidate]).collect())),
            ratio: median(ratios.clone()),
            interval: match candidate {
                0 => Some((1.0, 1.0)),
                _ => interval(ratios, count - 1),
            },
        }
    };
    (0..count).map(of).collect()
}

/// Whether more rounds would hardly change the result.
pub(super) fn is_clear(rounds: &[Round]) -> bool {
    let is_narrow = |(low, high): (f64, f64)| high - low <= 2.0 * NARROW;
    measured(rounds).iter().skip(1).all(|one| one.interval.is_some_and(is_narrow))
}

/// The chosen candidate: the fastest of those that are faster than the first with confidence, or
/// else the first. Among those that count as equal to it, the one with the smallest peak.
pub(super) fn choice(measured: &[Measured], peaks: &[Bytes]) -> usize {
    let is_faster = |one: &Measured| one.interval.is_some_and(|(_, high)| high < 1.0);
    let faster = || measured.iter().enumerate().skip(1).filter(|(_, one)| is_faster(one));
    let best = faster().map(|(_, one)| one.ratio).fold(f64::INFINITY, f64::min);
    let near = faster().filter(|(_, one)| one.ratio <= best + NARROW);
    let chosen = near.min_by(|(a, one), (b, other)| {
        peaks[*a].cmp(&peaks[*b]).then(one.ratio.total_cmp(&other.ratio))
    });
    chosen.map_or(0, |(index, _)| index)
}

/// Two of the values that the median of their distribution lies between: how many of them are below
/// it is binomial. With `candidates` such intervals, all hold at once with 95% probability.
fn interval(mut values: Vec<f64>, candidates: usize) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let (count, allowed) = (values.len(), DOUBT / 2.0 / candidates.max(1) as f64);
    let (mut depth, mut tail, mut chance) = (0, 0.0, 0.5f64.powi(count as i32));
    while tail + chance <= allowed {
        tail += chance;
        depth += 1;
        chance *= (count - depth + 1) as f64 / depth as f64;
    }
    (depth > 0).then(|| (values[depth - 1], values[count - depth]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of an own order that takes 100, more and less, and of candidates with these ratios to
    /// it.
    fn rounds(count: usize, ratios: &[f64]) -> Vec<Round> {
        let round = |number: usize| {
            let own = 100.0 + 10.0 * (number % 3) as f64;
            let wobble = 0.002 * (number % 5) as f64 - 0.004;
            std::iter::once(own).chain(ratios.iter().map(|ratio| own * (ratio + wobble))).collect()
        };
        (0..count).map(round).collect()
    }

    fn chosen(rounds: &[Round], peaks: &[i64]) -> usize {
        choice(&measured(rounds), &peaks.iter().copied().map(Bytes).collect::<Vec<_>>())
    }

    #[test]
    fn intervals_are_of_order_statistics() {
        let values = |count: usize| (1..=count).map(|value| value as f64).collect::<Vec<_>>();
        // Of one candidate: 2 * 0.5^6 < 5%; and of 10, the second and the ninth value (97.9%).
        assert_eq!((interval(values(5), 1), interval(values(6), 1)), (None, Some((1.0, 6.0))));
        assert_eq!(interval(values(10), 1), Some((2.0, 9.0)));
        // Of four candidates at once each must be surer.
        assert_eq!((interval(values(7), 4), interval(values(8), 4)), (None, Some((1.0, 8.0))));
        assert_eq!(interval(Vec::new(), 1), None);
    }

    #[test]
    fn the_fastest_is_chosen_if_it_is_faster_beyond_doubt() {
        assert_eq!(chosen(&rounds(9, &[0.9, 0.8]), &[1, 1, 1]), 2);
        assert_eq!(chosen(&rounds(9, &[1.1, 1.2]), &[1, 1, 1]), 0);
        // Faster by less than it wobbles.
        assert_eq!(chosen(&rounds(9, &[0.999]), &[1, 1]), 0);
        // One that is sure comes before one that is faster in the median alone.
        let mut unsure = rounds(9, &[0.9, 0.5]);
        unsure.iter_mut().step_by(3).for_each(|round| round[2] = 2.0 * round[0]);
        assert_eq!(chosen(&unsure, &[1, 1, 1]), 1);
    }

    #[test]
    fn too_few_rounds_change_nothing() {
        assert_eq!(chosen(&rounds(5, &[0.5]), &[1, 1]), 0);
        assert_eq!(chosen(&rounds(6, &[0.5]), &[1, 1]), 1);
        assert!(!is_clear(&rounds(5, &[0.5])) && is_clear(&rounds(6, &[0.5])));
        assert_eq!(chosen(&[], &[1]), 0);
        // Nothing to compare with.
        assert!(is_clear(&rounds(1, &[])) && chosen(&rounds(1, &[]), &[1]) == 0);
    }

    #[test]
    fn of_equals_the_one_with_less_memory() {
        assert_eq!(chosen(&rounds(9, &[0.805, 0.8]), &[1, 1, 2]), 1);
        assert_eq!(chosen(&rounds(9, &[0.85, 0.8]), &[1, 1, 2]), 2);
    }

    #[test]
    fn a_machine_that_slows_down_slows_all() {
        let mut slower = rounds(9, &[0.9]);
        for (number, round) in slower.iter_mut().enumerate() {
            round.iter_mut().for_each(|time| *time *= 1.0 + number as f64);
        }
        let found = measured(&slower)[1];
        assert!((found.ratio - 0.9).abs() < 0.005 && is_clear(&slower), "{found:?}");
    }
}
