//! A page of a run of ours: a view for each rank.

use std::collections::BTreeMap;

use super::model::{
    Figure, LaneKind, Maybe, Ops, Page, PageBudget, PageCell, PageColumn, PageGroup, PageLane,
    PageOpKind, PageSlice, PageStall, PageTable, PageUnit, PageView, StallCause, StallColumns,
    Time,
};
use crate::comparison::{does, op_from, op_name};
use crate::measured::{Comparison, Step};
use crate::ran::{Ran, RanKind, RanSlice, RankWait, outside};
use crate::text::{named_by, printable, printable_end, printable_up_to};
use halflap::units::Nanos;

/// Names are truncated to this many characters: enough to distinguish them.
const NAME: usize = 160;

/// A table has this many rows at most.
const ROWS: usize = 2000;

/// The page of one step of a run.
pub fn measured_page(title: &str, facts: Vec<(&'static str, String)>, ranks: &[Ran]) -> Page {
    let mut numbers = RunNumbers::default();
    let views = ranks.iter().map(|ran| view(&mut numbers, ran)).collect();
    let tables = vec![collectives(&mut numbers, ranks)];
    Page {
        title: printable_up_to(title, NAME),
        command: "run",
        facts,
        views,
        tables,
        groups: numbers.groups,
        ops: numbers.ops,
        ..Page::default()
    }
}

/// The page of a measured step and its simulation, which is the first of `lanes`.
pub fn compared_page(title: &str, step: &Step, found: &Comparison, lanes: &[Ran]) -> Page {
    let mut page = measured_page(title, Vec::new(), lanes);
    page.command = "timeline";
    let ops: BTreeMap<&str, u64> = page.ops.name.iter().map(String::as_str).zip(0..).collect();
    page.tables.insert(0, differences(step, found, &ops));
    if let Some(figure) = page.views.first_mut().and_then(|view| view.headline.first_mut()) {
        figure.note = "simulated".to_owned();
    }
    page
}

fn differences(step: &Step, found: &Comparison, ops: &BTreeMap<&str, u64>) -> PageTable {
    let column = |title, unit, bar| PageColumn { title, unit, bar };
    let mut table = PageTable {
        title: "differences",
        columns: vec![
            column("operation", PageUnit::Text, false),
            column("what", PageUnit::Text, false),
            column("apart", PageUnit::Ns, true),
            column("measured", PageUnit::Ns, true),
            column("simulated", PageUnit::Ns, true),
            column("does", PageUnit::Text, false),
        ],
        rows: Vec::new(),
        op: Vec::new(),
        details: None,
        view: None,
        cut: (found.differences.len() > ROWS).then_some((found.differences.len(), "the largest")),
    };
    for one in found.differences.iter().take(ROWS) {
        let part = &step.parts[one.part];
        let drawn = part.graph.waits_for(one.op).last().copied().unwrap_or(one.op);
        let name = printable_up_to(&op_name(step, part, drawn), NAME);
        table.op.push(Maybe(ops.get(name.as_str()).copied()));
        let from = op_from(step, part, one.op);
        let own = || printable_up_to(&op_name(step, part, one.op), NAME);
        let label = named_by(&from).map_or_else(own, |text| printable_end(text, NAME));
        table.rows.push(vec![
            PageCell::Text(label),
            PageCell::Text(one.what.name().to_owned()),
            PageCell::Time(Time(Nanos(one.excess().0.abs()))),
            PageCell::Time(Time(one.measured)),
            PageCell::Time(Time(one.simulated)),
            PageCell::Text(printable_up_to(&does(&part.graph, one.op), NAME)),
        ]);
    }
    table
}

/// Numbers for operations and groups, given when first needed.
#[derive(Default)]
struct RunNumbers {
    of: BTreeMap<String, u32>,
    ops: Ops,
    groups: Vec<PageGroup>,
}

impl RunNumbers {
    fn op(&mut self, slice: &RanSlice) -> u32 {
        // A wait is drawn as what it waits for.
        if let Some(&number) = self.of.get(&slice.name) {
            return number;
        }
        let group = slice.among.as_ref().map(|(among, _)| self.group(among));
        let number = self.ops.name.len() as u32;
        self.of.insert(slice.name.clone(), number);
        self.ops.name.push(printable_up_to(&slice.name, NAME));
        self.ops.label.push(slice.label());
        self.ops.kind.push(match slice.kind {
            RanKind::Compute => PageOpKind::Compute,
            RanKind::Copy => PageOpKind::Memory,
            RanKind::Wait | RanKind::Collective => PageOpKind::Collective,
        });
        self.ops.what.push(String::new());
        self.ops.group.push(Maybe(group));
        self.ops.bytes.push(Maybe(slice.among.as_ref().map(|(_, bytes)| bytes.0.unsigned_abs())));
        self.ops.flops.push(Maybe(None));
        self.ops.source.push(printable_end(&slice.from.source, NAME));
        self.ops.deps.push(Vec::new());
        self.ops.waits.push(Vec::new());
        number
    }

    fn group(&mut self, among: &str) -> u64 {
        let name = printable(among);
        let known = self.groups.iter().position(|group| group.name == name);
        known.unwrap_or_else(|| {
            self.groups.push(PageGroup { ranks: name.clone(), name });
            self.groups.len() - 1
        }) as u64
    }
}

fn view(numbers: &mut RunNumbers, ran: &Ran) -> PageView {
    let mut view = PageView {
        name: printable(&ran.name),
        length: Time(ran.step_time),
        headline: headline(ran),
        spent: Some(PageBudget {
            compute: Time(ran.compute()),
            exposed: Time(ran.waited().total()),
            copies: Time(Nanos::ZERO),
        }),
        ..PageView::default()
    };
    // Collectives before waits, so that an operation is first met as what it is.
    for (place, lane) in ran.lanes.iter().enumerate().rev() {
        for slice in &lane.slices {
            numbers.op(slice);
        }
        let kind = if place == 0 { LaneKind::Compute } else { LaneKind::Communication };
        view.lanes.push(PageLane { name: printable(&lane.name), kind, note: String::new() });
    }
    view.lanes.reverse();
    let waited = waited_by_slice(ran);
    for (lane, of) in ran.lanes.iter().enumerate() {
        let slices = of.slices.iter().enumerate();
        for (place, slice) in slices.filter(|(_, slice)| slice.kind != RanKind::Wait) {
            let exposed = waited.get(&(lane, place)).map_or(Nanos::ZERO, RankWait::total);
            let (op, time) = (numbers.op(slice), slice.time());
            view.slices.push(PageSlice { lane, op, time, exposed });
        }
    }
    view.stalls = stalls(numbers, ran);
    view
}

fn headline(ran: &Ran) -> Vec<Figure> {
    let share = |part: Nanos| match ran.step_time {
        Nanos::ZERO => String::new(),
        whole => format!("{:.1}% of the step", 100.0 * part.0 / whole.0),
    };
    let figure = |label, value: Nanos, note| Figure {
        label,
        value: value.0,
        unit: PageUnit::Ns,
        note,
        better: "less",
    };
    let (compute, exposed) = (ran.compute(), ran.waited().total());
    let idle = (ran.step_time - compute - exposed).max(Nanos::ZERO);
    vec![
        figure("step time", ran.step_time, "measured".to_owned()),
        figure("compute", compute, share(compute)),
        figure("exposed communication", exposed, share(exposed)),
        figure("idle", idle, share(idle)),
    ]
}

/// The stalls of compute, each in its parts.
fn stalls(numbers: &mut RunNumbers, ran: &Ran) -> StallColumns {
    let causes = [StallCause::Queued, StallCause::Transfer, StallCause::WakeUp];
    let mut stalls = StallColumns::default();
    for wait in ran.waits() {
        let of = Maybe(Some(u64::from(numbers.op(wait.slice))));
        for (time, cause) in wait.parts.into_iter().zip(causes) {
            if time.end > time.start {
                stalls.push(PageStall { time, of, at: Maybe(None), cause });
            }
        }
    }
    stalls
}

/// How long compute stalled on each slice, by its lane and place.
fn waited_by_slice(ran: &Ran) -> BTreeMap<(usize, usize), RankWait> {
    let mut waited: BTreeMap<(usize, usize), RankWait> = BTreeMap::new();
    for wait in ran.waits() {
        if let Some(of) = wait.of {
            let sum = waited.entry(of).or_default();
            *sum = sum.and(wait.waited());
        }
    }
    waited
}

/// Every collective and transfer: `exposed` is how long compute stalled on it, which is the sum of
/// `queued`, `transfer` and `wake-up`.
fn collectives(numbers: &mut RunNumbers, ranks: &[Ran]) -> PageTable {
    let column = |title, unit| PageColumn { title, unit, bar: title == "exposed" };
    let mut table = PageTable {
        title: "collectives",
        columns: vec![
            column("collective", PageUnit::Text),
            column("rank", PageUnit::Text),
            column("group", PageUnit::Text),
            column("size", PageUnit::Bytes),
            column("start", PageUnit::Ns),
            column("time", PageUnit::Ns),
            column("exposed", PageUnit::Ns),
            column("queued", PageUnit::Ns),
            column("transfer", PageUnit::Ns),
            column("wake-up", PageUnit::Ns),
            column("hidden", PageUnit::Ns),
        ],
        rows: Vec::new(),
        op: Vec::new(),
        details: None,
        view: None,
        cut: None,
    };
    for ran in ranks {
        let (busy, waited) = (ran.busy(), waited_by_slice(ran));
        for (lane, of) in ran.lanes.iter().enumerate().skip(1) {
            for (place, slice) in of.slices.iter().enumerate() {
                let own = waited.get(&(lane, place)).copied().unwrap_or_default();
                let hidden = slice.end - slice.start - outside(slice.time(), &busy);
                table.op.push(Maybe(Some(u64::from(numbers.op(slice)))));
                table.rows.push(collective_row(ran, slice, own, hidden));
            }
        }
    }
    table
}

fn collective_row(ran: &Ran, slice: &RanSlice, waited: RankWait, hidden: Nanos) -> Vec<PageCell> {
    let (among, bytes) = slice.among.clone().unwrap_or_default();
    let time = |time: Nanos| PageCell::Time(Time(time));
    vec![
        PageCell::Text(slice.called()),
        PageCell::Text(printable(&ran.name)),
        PageCell::Text(printable(&among)),
        PageCell::Size(bytes),
        time(slice.start),
        time(slice.end - slice.start),
        time(waited.total()),
        time(waited.queued),
        time(waited.transfer),
        time(waited.wake_up),
        time(hidden),
    ]
}
