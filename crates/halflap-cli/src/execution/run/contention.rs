//! How much compute and communication slow each other down, from two runs of a module.
//!
//! The first gives the time of each task alone. In the second some tasks overlap. A task that is
//! slowed by `factor` does `time / factor` of its work in a `time` of overlap, so that it takes
//! `time * (1 - 1 / factor)` longer than alone.

use std::collections::BTreeMap;

use halflap::units::Nanos;
use halflap_run::exec::{Label, LabelKind, Outcome, Prepared, RunSpan};

use super::measure::{counted, met};

/// Two tasks that share a core take twice as long, plus scheduling delays; anything beyond is other
/// load.
const MOST: f64 = 4.0;

/// By what factor each is slowed by the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Contention {
    pub(super) compute: f64,
    pub(super) communication: f64,
}

impl Contention {
    /// `alone` has the times of instructions.
    pub(super) fn of(
        alone: &BTreeMap<String, Nanos>,
        program: &Prepared,
        outcome: &Outcome,
    ) -> Contention {
        let (mut compute, mut communication) =
            (OverlapSlowdown::default(), OverlapSlowdown::default());
        for spans in outcome.ranks.iter().flat_map(|rank| counted(&rank.spans)) {
            let of = |kind: LabelKind| -> Vec<TimedRun> {
                let own =
                    spans.iter().filter(|span| program.labels[span.label as usize].kind == kind);
                own.filter_map(|span| {
                    TimedRun::of(span, &program.labels[span.label as usize], alone)
                })
                .collect()
            };
            let (kernels, sent) = (of(LabelKind::Kernel), of(LabelKind::Collective));
            compute.add(&kernels, &sent);
            communication.add(&sent, &kernels);
        }
        Contention { compute: compute.factor(), communication: communication.factor() }
    }
}

/// Something that ran, and how long it takes alone.
#[derive(Clone, Copy)]
struct TimedRun {
    start: f64,
    end: f64,
    alone: f64,
}

impl TimedRun {
    /// `None` if the other run did not measure it.
    fn of(span: &RunSpan, label: &Label, alone: &BTreeMap<String, Nanos>) -> Option<TimedRun> {
        let names: Vec<&String> = match label.shares.is_empty() {
            true => vec![&label.name],
            false => label.shares.iter().map(|(name, _)| name).collect(),
        };
        let alone =
            names.into_iter().map(|name| alone.get(name).copied()).sum::<Option<Nanos>>()?;
        Some(TimedRun { start: met(span).0, end: span.end.0, alone: alone.0 })
    }
}

/// How much a task was slowed while it overlapped others.
#[derive(Default)]
struct OverlapSlowdown {
    longer: f64,
    beside: f64,
}

impl OverlapSlowdown {
    fn add(&mut self, own: &[TimedRun], others: &[TimedRun]) {
        let others = joined(others);
        for ran in own {
            let beside = overlap(ran, &others);
            if beside > 0.0 {
                self.longer += ran.end - ran.start - ran.alone;
                self.beside += beside;
            }
        }
    }

    fn factor(&self) -> f64 {
        match self.beside > 0.0 {
            true => (1.0 / (1.0 - self.longer / self.beside).max(1.0 / MOST)).max(1.0),
            false => 1.0,
        }
    }
}

/// The times in which any of them ran, one after the other.
fn joined(all: &[TimedRun]) -> Vec<(f64, f64)> {
    let mut times: Vec<(f64, f64)> = all.iter().map(|ran| (ran.start, ran.end)).collect();
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut joined: Vec<(f64, f64)> = Vec::new();
    for (start, end) in times {
        match joined.last_mut().filter(|last| start <= last.1) {
            Some(last) => last.1 = last.1.max(end),
            None => joined.push((start, end)),
        }
    }
    joined
}

/// How long a task overlapped others.
fn overlap(ran: &TimedRun, others: &[(f64, f64)]) -> f64 {
    let first = others.partition_point(|(_, end)| *end <= ran.start);
    let beside = others[first..].iter().take_while(|(start, _)| *start < ran.end);
    beside.map(|(start, end)| end.min(ran.end) - start.max(ran.start)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(start: f64, end: f64, alone: f64) -> TimedRun {
        TimedRun { start, end, alone }
    }

    fn factor(own: &[TimedRun], others: &[TimedRun]) -> f64 {
        let mut longer = OverlapSlowdown::default();
        longer.add(own, others);
        longer.factor()
    }

    #[test]
    fn what_takes_longer_beside_others_is_slowed_by_them() {
        // Alone for 10, and overlapping another for 20, which does the work of 10 alone.
        assert_eq!(factor(&[ran(0.0, 30.0, 20.0)], &[ran(10.0, 40.0, 0.0)]), 2.0);
        // Others that overlap count once.
        let others = [ran(10.0, 25.0, 0.0), ran(20.0, 30.0, 0.0)];
        assert_eq!(factor(&[ran(0.0, 30.0, 20.0)], &others), 2.0);
        // What ran alone says nothing, however long it took.
        assert_eq!(
            factor(&[ran(0.0, 10.0, 1.0), ran(20.0, 30.0, 10.0)], &[ran(20.0, 30.0, 0.0)]),
            1.0
        );
    }

    #[test]
    fn factors_stay_within_reason() {
        assert_eq!(factor(&[ran(0.0, 10.0, 20.0)], &[ran(0.0, 10.0, 0.0)]), 1.0);
        assert_eq!(factor(&[ran(0.0, 100.0, 1.0)], &[ran(0.0, 100.0, 0.0)]), MOST);
        assert_eq!(factor(&[], &[]), 1.0);
    }
}
