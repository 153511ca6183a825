//! A page of a run of ours: a view for each rank.

use std::collections::BTreeMap;

use super::model::{
    Figure, Kind, LaneKind, Maybe, Ops, Page, PageBudget, PageCell, PageColumn, PageGroup,
    PageLane, PageSlice, PageStall, PageTable, PageUnit, Slices, Stalls, Time, View,
};
use crate::comparison::op_name;
use crate::measured::{Comparison, Step};
use crate::ran::{Ran, RanKind, RanSlice, outside};
use crate::text::{printable, printable_up_to};
use halflap::simulate::Cause;
use halflap::units::Nanos;

/// Names are truncated to this many characters: enough to distinguish them.
const NAME: usize = 160;

/// A table has so many rows at most.
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
        table.rows.push(vec![
            PageCell::Text(printable_up_to(&op_name(step, part, one.op), NAME)),
            PageCell::Text(one.what.name().to_owned()),
            PageCell::Time(Time(Nanos(one.excess().0.abs()))),
            PageCell::Time(Time(one.measured)),
            PageCell::Time(Time(one.simulated)),
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
        self.ops.kind.push(match slice.kind {
            RanKind::Compute => Kind::Compute,
            RanKind::Copy => Kind::Memory,
            RanKind::Wait | RanKind::Collective => Kind::Collective,
        });
        self.ops.what.push(String::new());
        self.ops.group.push(Maybe(group));
        self.ops.bytes.push(Maybe(slice.among.as_ref().map(|(_, bytes)| bytes.0.unsigned_abs())));
        self.ops.flops.push(Maybe(None));
        self.ops.source.push(String::new());
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

fn view(numbers: &mut RunNumbers, ran: &Ran) -> View {
    let busy = ran.busy();
    let compute: Nanos = busy.iter().map(|time| time.end - time.start).sum();
    let mut view = View {
        name: printable(&ran.name),
        length: Time(ran.step_time),
        slices: Slices::default(),
        stalls: Stalls::default(),
        ..View::default()
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
    for (place, lane) in ran.lanes.iter().enumerate() {
        for slice in &lane.slices {
            let (op, time) = (numbers.op(slice), slice.time());
            if slice.kind == RanKind::Wait {
                let of = Maybe(Some(u64::from(op)));
                view.stalls.push(PageStall { time, of, at: Maybe(None), cause: Cause::Needed });
                continue;
            }
            // What compute does is not exposed.
            let exposed = if place == 0 { Nanos::ZERO } else { outside(slice.time(), &busy) };
            view.slices.push(PageSlice { lane: place, op, time, exposed });
        }
    }
    let exposed: Nanos =
        view.stalls.start.iter().zip(&view.stalls.end).map(|(from, until)| until.0 - from.0).sum();
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
    view.headline = vec![
        figure("step time", ran.step_time, "measured".to_owned()),
        figure("compute", compute, share(compute)),
        figure("waiting for communication", exposed, share(exposed)),
    ];
    view.spent = Some(PageBudget {
        compute: Time(compute),
        exposed: Time(exposed),
        copies: Time(Nanos::ZERO),
    });
    view
}

fn collectives(numbers: &mut RunNumbers, ranks: &[Ran]) -> PageTable {
    let column = |title, unit, bar| PageColumn { title, unit, bar };
    let mut table = PageTable {
        title: "collectives",
        columns: vec![
            column("collective", PageUnit::Text, false),
            column("rank", PageUnit::Text, false),
            column("group", PageUnit::Text, false),
            column("bytes", PageUnit::Bytes, false),
            column("start", PageUnit::Ns, false),
            column("time", PageUnit::Ns, true),
            column("exposed", PageUnit::Ns, true),
        ],
        rows: Vec::new(),
        op: Vec::new(),
        details: None,
        view: None,
        cut: None,
    };
    for ran in ranks {
        let busy = ran.busy();
        let all = ran.lanes.iter().skip(1).flat_map(|lane| &lane.slices);
        for slice in all.filter(|slice| slice.kind == RanKind::Collective) {
            let (among, bytes) = slice.among.clone().unwrap_or_default();
            table.op.push(Maybe(Some(u64::from(numbers.op(slice)))));
            table.rows.push(vec![
                PageCell::Text(printable_up_to(&slice.name, NAME)),
                PageCell::Text(printable(&ran.name)),
                PageCell::Text(printable(&among)),
                PageCell::Size(bytes),
                PageCell::Time(Time(slice.start)),
                PageCell::Time(Time(slice.end - slice.start)),
                PageCell::Time(Time(outside(slice.time(), &busy))),
            ]);
        }
    }
    table
}
