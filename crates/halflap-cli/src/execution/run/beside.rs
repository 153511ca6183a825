//! What actually ran, as a step to compare with its simulation.

use halflap::graph::{Graph, OpKind};
use halflap::ids::OpId;
use halflap::units::Nanos;
use halflap_report::measured::{MeasuredSpan, PartRun, RankStep, Step};
use halflap_run::exec::{Label, LabelKind, Prepared, RankOutcome, RunLane, RunSpan as Ran};

use super::measure::{Typical, met};
use super::show::Finished;
use super::{RunJob, profile};
use crate::exit::Failed;

/// The median step of every rank, with the times that were measured. `None` for a module with loops
/// or branches: their bodies have no position in a single order.
pub(super) fn step(job: &RunJob<'_>, finished: &Finished<'_>) -> Result<Option<Step>, Failed> {
    let times = profile(finished.program, finished.outcome)?;
    let Some(part) = job.source.only_part(finished.orders, times)? else { return Ok(None) };
    let Finished { program, outcome, .. } = finished;
    let shown = Typical::of(outcome);
    let of_rank = |rank: &RankOutcome| {
        rank_step(&part.graph, program, &shown.spans(program, rank), shown.time(rank))
    };
    let ranks = outcome.ranks.iter().map(of_rank).collect();
    Ok(Some(Step { parts: vec![part], ranks, outside: None }))
}

fn rank_step(graph: &Graph, program: &Prepared, spans: &[Ran], time: Nanos) -> RankStep {
    let mut run = PartRun { begin: Nanos::ZERO, end: time, ran: Vec::new(), transfers: Vec::new() };
    for span in spans {
        let label = &program.labels[span.label as usize];
        match (label.kind, span.lane) {
            (LabelKind::Collective, _) | (LabelKind::Transfer, RunLane::Stream(_)) => {
                run.transfers.extend(transfer(graph, label, span))
            }
            (LabelKind::Wait, _) => run.ran.extend(wait(graph, label, span)),
            (LabelKind::Kernel | LabelKind::Transfer | LabelKind::Copy | LabelKind::Loop, _) => {
                run.ran.extend(kernels(graph, label, span))
            }
        }
    }
    RankStep { time, parts: vec![run] }
}

/// A collective, from when all ranks had arrived, if known.
fn transfer(graph: &Graph, label: &Label, span: &Ran) -> Option<MeasuredSpan> {
    let op = collective(graph, label)?;
    let start = met(span);
    Some(MeasuredSpan { op, start, end: span.end.max(start) })
}

/// The collective that a label names: itself or, if it is a single instruction, its wait.
fn collective(graph: &Graph, label: &Label) -> Option<OpId> {
    let op = graph.find(&label.name)?;
    Some(graph.waits_for(op).last().copied().unwrap_or(op))
}

/// The wait of a collective.
fn wait(graph: &Graph, label: &Label, span: &Ran) -> Option<MeasuredSpan> {
    let collective = collective(graph, label)?;
    let op = graph.waited_by(collective).first().copied();
    // One that is synchronous is its own wait.
    let op = op.or((graph.kind(collective) == OpKind::SyncCollective).then_some(collective))?;
    Some(MeasuredSpan { op, start: span.start, end: span.end })
}

/// What a kernel computes: each instruction in turn, for its share of the time.
fn kernels(graph: &Graph, label: &Label, span: &Ran) -> Vec<MeasuredSpan> {
    let whole = [(label.name.clone(), 1.0)];
    let shares = if label.shares.is_empty() { &whole[..] } else { &label.shares };
    let mut now = span.start;
    let mut each = Vec::new();
    for (name, share) in shares {
        let end = now + (span.end - span.start) * *share;
        each.extend(graph.find(name).map(|op| MeasuredSpan { op, start: now, end }));
        now = end;
    }
    each
}
