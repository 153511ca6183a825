//! Measurements: medians of all times.

use std::collections::BTreeMap;

use halflap::units::Nanos;
use halflap_run::exec::{LabelKind, Outcome, Prepared, RankOutcome, RunLane, RunSpan};

use super::stalls::with_stalls;

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
    let slowest =
        |step: usize| outcome.ranks.iter().map(|rank| rank.steps[step].0).fold(0.0, f64::max);
    counted(&(0..steps).map(slowest).collect::<Vec<_>>()).to_vec()
}

/// The step that represents all others, and its slowest rank: summaries, files and pictures all
/// show this one, so that they agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Typical {
    /// How many steps came after it.
    after: usize,
    /// The rank that took longest.
    pub(super) rank: usize,
}

impl Typical {
    /// The step with the median time or, if its records were not kept, the nearest to it.
    pub(super) fn of(outcome: &Outcome) -> Typical {
        let times = step_times(outcome);
        let middle = median(times.clone());
        let kept = outcome.ranks.iter().map(|rank| rank.spans.len()).min().unwrap_or(0);
        let recent = times.iter().rev().enumerate().take(kept.max(1));
        let apart = |time: &f64| (time - middle).abs();
        let after = recent.min_by(|(_, a), (_, b)| apart(a).total_cmp(&apart(b)));
        let after = after.map_or(0, |(after, _)| after);
        let ranks = outcome.ranks.iter().enumerate();
        let time = |rank: &RankOutcome| Typical { after, rank: 0 }.time(rank).0;
        let slowest = ranks.rev().max_by(|(_, a), (_, b)| time(a).total_cmp(&time(b)));
        Typical { after, rank: slowest.map_or(0, |(rank, _)| rank) }
    }

    /// How long it took on a rank.
    pub(super) fn time(self, rank: &RankOutcome) -> Nanos {
        rank.steps.iter().rev().nth(self.after).copied().unwrap_or(Nanos::ZERO)
    }

    /// What ran in it on a rank, and when compute stalled.
    pub(super) fn spans(self, program: &Prepared, rank: &RankOutcome) -> Vec<RunSpan> {
        let spans = rank.spans.iter().rev().nth(self.after);
        with_stalls(program, spans.map_or(&[][..], Vec::as_slice))
    }
}

/// How long a task took; a collective, from when all ranks had arrived.
fn time(span: &RunSpan) -> f64 {
    span.end.0 - met(span).0
}

/// When a task began; a collective, when all ranks had arrived, if known.
pub(super) fn met(span: &RunSpan) -> Nanos {
    span.met.map_or(span.start, |met| met.max(span.start))
}

/// The median time of every kernel and collective, by the name of its instruction; that of a kernel
/// with several is divided among them. A collective's time starts when all ranks have arrived.
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
                each.for_each(|(name, share)| {
                    times.entry(name.clone()).or_default().push(time * share)
                });
            }
        }
    }
}

/// One run of a collective in one step, on one of its sets of ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Meeting {
    label: u32,
    step: usize,
    run: usize,
    set: usize,
}

/// The times of one collective.
#[derive(Clone, Copy)]
struct Met {
    /// When the last rank arrived, and when the last one left, relative to the common start of the
    /// step.
    all_came: f64,
    all_left: f64,
    /// The minimum over ranks of its time since all had arrived, if known.
    least: Option<f64>,
}

impl Met {
    fn join(&mut self, span: &RunSpan) {
        self.all_came = self.all_came.max(span.start.0);
        self.all_left = self.all_left.max(span.end.0);
        if span.met.is_some() {
            self.least = Some(self.least.map_or(time(span), |least| least.min(time(span))));
        }
    }

    fn time(&self) -> f64 {
        self.least.unwrap_or_else(|| (self.all_left - self.all_came).max(0.0))
    }
}

fn add_collectives(program: &Prepared, outcome: &Outcome, times: &mut BTreeMap<String, Vec<f64>>) {
    const NONE: Met = Met { all_came: 0.0, all_left: 0.0, least: None };
    let mut meetings: BTreeMap<Meeting, Met> = BTreeMap::new();
    for (rank, ran) in outcome.ranks.iter().enumerate() {
        for (step, spans) in counted(&ran.spans).iter().enumerate() {
            // A label's spans in one step, in sequence: those of a loop's runs.
            let mut runs: BTreeMap<u32, usize> = BTreeMap::new();
            for span in spans.iter().filter(|span| matches!(span.lane, RunLane::Stream(_))) {
                let label = &program.labels[span.label as usize];
                let Some(set) = label.set_of(rank) else { continue };
                let run = runs.entry(span.label).or_default();
                let meeting = Meeting { label: span.label, step, run: *run, set };
                meetings.entry(meeting).or_insert(NONE).join(span);
                *run += 1;
            }
        }
    }
    for (Meeting { label, .. }, met) in meetings {
        times.entry(program.labels[label as usize].name.clone()).or_default().push(met.time());
    }
}

#[cfg(test)]
mod tests {
    use halflap::ids::{Id, StreamId};

    use super::*;

    fn span(start: f64, met: Option<f64>, end: f64) -> RunSpan {
        let lane = RunLane::Stream(StreamId::from_index(0));
        RunSpan { label: 0, lane, start: Nanos(start), met: met.map(Nanos), end: Nanos(end) }
    }

    fn taken(spans: &[RunSpan]) -> f64 {
        let mut met = Met { all_came: 0.0, all_left: 0.0, least: None };
        spans.iter().for_each(|span| met.join(span));
        met.time()
    }

    #[test]
    fn a_collective_takes_what_is_left_when_the_last_rank_has_come() {
        // The second rank finds what the first sent before; the first waits for what the second
        // sends.
        assert_eq!(taken(&[span(0.0, None, 50.0), span(30.0, None, 35.0)]), 20.0);
        // A transport that knows when all ranks had arrived.
        assert_eq!(taken(&[span(0.0, Some(30.0), 50.0), span(30.0, Some(30.0), 45.0)]), 15.0);
    }

    #[test]
    fn the_first_step_warms_up() {
        assert_eq!((counted(&[9, 1, 2]), counted(&[9])), (&[1, 2][..], &[9][..]));
        assert_eq!(
            (median(vec![3.0, 1.0, 2.0]), median(vec![2.0, 1.0]), median(vec![])),
            (2.0, 1.0, 0.0)
        );
    }
}
