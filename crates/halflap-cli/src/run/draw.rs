//! What actually ran, as a page and as a trace: the last step of every rank.

use halflap::ids::{Id, StreamId};
use halflap::units::{Bytes, Nanos};
use halflap_report::measured::Comparison;
use halflap_report::page::{Page, compared_page, measured_page};
use halflap_report::{Ran, RanKind, RanLane, RanSlice, lanes_of, printable};
use halflap_run::exec::{LabelKind, Lane, Prepared, RankOutcome, Span};

use super::Job;
use super::beside;
use super::show::Finished;
use crate::exit::Failed;
use crate::pictures;

pub(super) fn draw(job: &Job<'_>, finished: &Finished<'_>) -> Result<(), Failed> {
    let pictures = &job.args.pictures;
    if !pictures.any() {
        return Ok(());
    }
    let ranks = finished.outcome.ranks.iter().enumerate();
    let ranks: Vec<Ran> =
        ranks.map(|(rank, outcome)| ran(finished.program, rank, outcome)).collect();
    let facts = vec![
        ("module", printable(job.source.module.name())),
        ("shown", "the last step of every rank, as it was measured".to_owned()),
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

fn ran(program: &Prepared, rank: usize, outcome: &RankOutcome) -> Ran {
    let spans = outcome.spans.last().map_or(&[][..], Vec::as_slice);
    let lanes = std::iter::once(Lane::Compute)
        .chain((0..program.streams).map(|index| Lane::Stream(StreamId::from_index(index))));
    let lane = |lane: Lane| RanLane {
        name: match lane {
            Lane::Compute => "compute".to_owned(),
            Lane::Stream(stream) => format!("stream {}", stream.index()),
        },
        slices: spans
            .iter()
            .filter(|span| span.lane == lane)
            .map(|span| slice(program, span))
            .collect(),
    };
    let step_time = outcome.steps.last().copied().unwrap_or(Nanos::ZERO);
    Ran { name: format!("rank {rank}"), step_time, lanes: lanes.map(lane).collect() }
}

fn slice(program: &Prepared, span: &Span) -> RanSlice {
    let label = &program.labels[span.label as usize];
    let kind = match label.kind {
        LabelKind::Kernel => RanKind::Compute,
        LabelKind::Copy | LabelKind::Transfer => RanKind::Copy,
        LabelKind::Wait => RanKind::Wait,
        LabelKind::Collective => RanKind::Collective,
    };
    let among =
        (kind == RanKind::Collective).then(|| (label.among.clone(), Bytes(label.bytes() as i64)));
    RanSlice { name: label.name.clone(), kind, start: span.start, end: span.end, among }
}
