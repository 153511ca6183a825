//! What actually ran, as a page and as a trace: one step of every rank, the median.

use halflap::graph::Provenance;
use halflap::ids::{Id, StreamId};
use halflap::units::{Bytes, Nanos};
use halflap_report::measured::Comparison;
use halflap_report::page::{Page, compared_page, measured_page};
use halflap_report::{Ran, RanKind, RanLane, RanSlice, lanes_of, printable};
use halflap_run::exec::{LabelKind, Prepared, RunLane, RunSpan};

use super::RunJob;
use super::beside;
use super::measure::{Typical, met};
use super::show::Finished;
use crate::exit::Failed;
use crate::pictures;

pub(super) fn draw(job: &RunJob<'_>, finished: &Finished<'_>) -> Result<(), Failed> {
    let pictures = &job.args.pictures;
    if !pictures.any() {
        return Ok(());
    }
    let ranks: Vec<Ran> =
        (0..finished.outcome.ranks.len()).map(|rank| ran(finished, rank)).collect();
    let slowest = Typical::of(finished.outcome).rank;
    let facts = vec![
        ("module", printable(job.source.module.name())),
        (
            "shown",
            format!("the median step of every rank as measured; rank {slowest} took longest"),
        ),
    ];
    let title = pictures::title(&job.args.module);
    match beside::step(job, finished)? {
        None => pictures.draw_ran(&ranks, || measured_page(&title, facts, &ranks)),
        Some(step) => {
            let found = Comparison::of(&step);
            let lanes = lanes_of(&step, &found);
            let page =
                || Page { facts, command: "run", ..compared_page(&title, &step, &found, &lanes) };
            pictures.draw_ran(&ranks, page)
        }
    }
}

/// What a rank did in the step that is shown.
pub(super) fn ran(finished: &Finished<'_>, rank: usize) -> Ran {
    let Finished { program, outcome, .. } = finished;
    let (step, outcome) = (Typical::of(outcome), &outcome.ranks[rank]);
    let spans = step.spans(program, outcome);
    let lanes = std::iter::once(RunLane::Compute)
        .chain((0..program.streams).map(|index| RunLane::Stream(StreamId::from_index(index))));
    let lane = |lane: RunLane| RanLane {
        name: match lane {
            RunLane::Compute => "compute".to_owned(),
            RunLane::Stream(stream) => format!("stream {}", stream.index()),
        },
        slices: one_by_one(spans.iter().filter(|span| span.lane == lane), program),
    };
    let step_time = step.time(outcome);
    Ran { name: format!("rank {rank}"), step_time, lanes: lanes.map(lane).collect() }
}

/// The slices of a lane: an overlapping slice starts where the previous one ends.
fn one_by_one<'a>(spans: impl Iterator<Item = &'a RunSpan>, program: &Prepared) -> Vec<RanSlice> {
    let mut slices: Vec<RanSlice> = Vec::new();
    for span in spans {
        let mut slice = slice(program, span);
        if slice.kind == RanKind::Collective {
            let before = slices.last().map_or(Nanos::ZERO, |before| before.end);
            slice.start = met(span).max(before).min(slice.end);
        }
        slices.push(slice);
    }
    slices
}

fn slice(program: &Prepared, span: &RunSpan) -> RanSlice {
    let label = &program.labels[span.label as usize];
    let kind = match label.kind {
        LabelKind::Kernel | LabelKind::Loop => RanKind::Compute,
        LabelKind::Copy | LabelKind::Transfer => RanKind::Copy,
        LabelKind::Wait => RanKind::Wait,
        LabelKind::Collective => RanKind::Collective,
    };
    let among =
        (kind == RanKind::Collective).then(|| (label.among.clone(), Bytes(label.bytes() as i64)));
    let from = Provenance {
        source: label.source.clone().unwrap_or_default(),
        module: label.scope.clone(),
        parameter: label.argument.clone(),
    };
    RanSlice { name: label.name.clone(), from, kind, start: span.start, end: span.end, among }
}
