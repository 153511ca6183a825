//! What was measured: medians of what everything took.

use std::collections::BTreeMap;

use halflap::units::Nanos;
use halflap_run::exec::{LabelKind, Lane, Outcome, Prepared, RankOutcome, Span};

/// The steps that count: all but the first, which warms up, unless it is the only one.
pub(super) fn counted<T>(steps: &[T]) -> &[T] {
    if steps.len() > 1 { &steps[1..] } else { steps }
}

/// The lower median.
pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// The time of every step: that of the slowest rank.
pub(super) fn step_times(outcome: &Outcome) -> Vec<f64> {
    let steps = outcome.ranks.first().map_or(0, |rank| rank.steps.len());
    let slowest = |step: usize| outcome.ranks.iter().map(|rank| rank.steps[step].0).fold(0.0, f64::max);
    counted(&(0..steps).map(slowest).collect::<Vec<_>>()).to_vec()
}

/// What a step's time went to, each in the median of steps and ranks.
pub(super) struct Totals {
    /// All kernels.
    pub(super) compute: Nanos,
    /// All collectives, from the time when all ranks had come, as far as that is known.
    pub(super) communication: Nanos,
    /// How long compute stood still for others.
    pub(super) exposed: Nanos,
}

impl Totals {
    pub(super) fn of(program: &Prepared, outcome: &Outcome) -> Totals {
        let total = |is: LabelKind| {
            let sum = |spans: &Vec<Span>| {
                let own = spans.iter().filter(|span| program.labels[span.label as usize].kind == is);
                own.map(time).fold(0.0, |sum, time| sum + time)
            };
            let each = |rank: &RankOutcome| counted(&rank.spans).iter().map(sum).collect::<Vec<_>>();
            Nanos(median(outcome.ranks.iter().flat_map(each).collect()))
        };
        Totals {
            compute: total(LabelKind::Kernel),
            communication: total(LabelKind::Collective),
            exposed: total(LabelKind::Wait),
        }
    }
}

/// How long something took; a collective, from the time when all had come.
fn time(span: &Span) -> f64 {
    span.end.0 - met(span).0
}

/// When something began; a collective, when all had come, as far as that is known.
pub(super) fn met(span: &Span) -> Nanos {
    span.met.map_or(span.start, |met| met.max(span.start))
}

/// The median time of every kernel and collective, by the name of its instruction; that of a kernel
/// that computes several is shared out among them. Of a collective it is what it
/// takes when all have come: where that is not known, the least that it took on any rank.
pub(super) fn profile(runs: &[(&Prepared, &Outcome)]) -> BTreeMap<String, Nanos> {
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (program, outcome) in runs {
        add_kernels(program, outcome, &mut times);
        add_collectives(program, outcome, &mut times);
    }
    times.into_iter().map(|(name, times)| (name, Nanos(median(times)))).collect()
}

fn add_kernels(program: &Prepared, outcome: &Outcome, times: &mut BTreeMap<String, Vec<f64>>) {
    let spans = outcome.ranks.iter().flat_map(|rank| counted(&rank.spans)).flatten();
    for span in spans {
        let label = &program.labels[span.label as usize];
        if !matches!(label.kind, LabelKind::Kernel | LabelKind::Transfer) {
            continue;
        }
        let time = time(span);
        match label.shares.is_empty() {
            true => times.entry(label.name.clone()).or_default().push(time),
            false => {
                let each = label.shares.iter();
                each.for_each(|(name, share)| times.entry(name.clone()).or_default().push(time * share));
            }
        }
    }
}

fn add_collectives(program: &Prepared, outcome: &Outcome, times: &mut BTreeMap<String, Vec<f64>>) {
    // A label's spans in one step, in sequence: those of a loop's runs.
    let mut least: BTreeMap<(u32, usize, usize), f64> = BTreeMap::new();
    for rank in &outcome.ranks {
        for (step, spans) in counted(&rank.spans).iter().enumerate() {
            let mut runs: BTreeMap<u32, usize> = BTreeMap::new();
            for span in spans.iter().filter(|span| matches!(span.lane, Lane::Stream(_))) {
                if program.labels[span.label as usize].kind != LabelKind::Collective {
                    continue;
                }
                let run = runs.entry(span.label).or_default();
                let time = time(span);
                let known = least.entry((span.label, step, *run)).or_insert(f64::INFINITY);
                *known = known.min(time);
                *run += 1;
            }
        }
    }
    for ((label, ..), time) in least {
        times.entry(program.labels[label as usize].name.clone()).or_default().push(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_warms_up() {
        assert_eq!((counted(&[9, 1, 2]), counted(&[9])), (&[1, 2][..], &[9][..]));
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![2.0, 1.0]), median(vec![])), (2.0, 1.0, 0.0));
    }
}
