//! When compute stalled for collectives.
//!
//! The compute stream records a wait when it reaches it. If the issuing thread itself has waited
//! before (`--launch-blocking`, a data-dependent condition) or was late, that is too late: compute
//! has been stalled since its last kernel. So a wait begins as soon as compute has nothing else to
//! do and its collective was reached, and a collective that ran while compute did nothing at all is
//! waited for, too.

use std::collections::BTreeMap;

use halflap::units::Nanos;
use halflap_run::exec::{LabelKind, Prepared, RunLane, RunSpan};

/// The spans of a step, with all stalls of compute as waits.
pub(super) fn with_stalls(program: &Prepared, spans: &[RunSpan]) -> Vec<RunSpan> {
    let kind = |span: &RunSpan| program.labels[span.label as usize].kind;
    let name = |span: &RunSpan| program.labels[span.label as usize].name.as_str();
    let (compute, mut beside): (Vec<RunSpan>, Vec<RunSpan>) =
        spans.iter().copied().partition(|span| span.lane == RunLane::Compute);
    beside.sort_by(|a, b| a.start.0.total_cmp(&b.start.0));
    let waits: BTreeMap<&str, u32> = (0u32..)
        .zip(&program.labels)
        .filter(|(_, label)| label.kind == LabelKind::Wait)
        .map(|(index, label)| (label.name.as_str(), index))
        .collect();
    let mut shown = Vec::with_capacity(spans.len());
    let mut is_awaited = vec![false; beside.len()];
    let mut idle_since = Nanos::ZERO;
    for span in compute {
        let is_own = |of: &RunSpan| {
            kind(&span) == LabelKind::Wait && name(of) == name(&span) && of.start < span.end
        };
        let own = beside.iter().rposition(is_own);
        if own.is_some_and(|own| is_awaited[own]) {
            continue;
        }
        let reached = own.map_or(span.start, |own| beside[own].start.min(span.start));
        // Nothing that began before compute fell idle lies within its idle time.
        let first = beside.partition_point(|of| of.start < idle_since);
        let within = (first..beside.len()).take_while(|&of| beside[of].start < reached);
        for index in within {
            let of = beside[index];
            let start = of.start.max(idle_since);
            let is_within = kind(&of) == LabelKind::Collective && of.end <= reached;
            if let Some(&label) = waits.get(name(&of)).filter(|_| is_within && start < of.end) {
                let (lane, end) = (RunLane::Compute, of.end);
                shown.push(RunSpan { label, lane, start, met: None, end });
                is_awaited[index] = true;
                idle_since = end;
            }
        }
        shown.push(RunSpan { start: reached.max(idle_since).min(span.start), ..span });
        idle_since = span.end;
    }
    shown.extend(beside);
    shown
}
