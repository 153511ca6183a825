//! A measured step, and its simulation, as lanes to be drawn.

use std::ops::Range;

use super::comparison::{op_from, op_name};
use super::ran::{Ran, RanKind, RanLane, RanSlice};
use crate::measured::{Comparison, RankStep, Step, StepPart};
use halflap::graph::{OpKind, Provenance};
use halflap::ids::{Id, OpId};
use halflap::simulate::Simulation;
use halflap::units::Nanos;

/// Everything outside of compiled graphs: autograd, the optimizer, Python.
const OUTSIDE: &str = "outside of compiled graphs";

/// The simulated step first, then each rank.
pub fn lanes_of(step: &Step, found: &Comparison) -> Vec<Ran> {
    let ranks = step.ranks.iter().enumerate();
    let measured = ranks.map(|(rank, run)| measured_lanes(step, rank, run));
    std::iter::once(simulated_lanes(step, found)).chain(measured).collect()
}

/// Lanes that are filled slice by slice: compute, and one for every communication stream.
struct Lanes<'a> {
    step: &'a Step,
    lanes: Vec<RanLane>,
}

impl<'a> Lanes<'a> {
    fn new(step: &'a Step) -> Lanes<'a> {
        let streams = step.parts.iter().map(|part| part.machine.streams.len()).max().unwrap_or(0);
        let names = std::iter::once("compute".to_owned());
        let names = names.chain((0..streams).map(|stream| format!("stream {stream}")));
        Lanes { step, lanes: names.map(|name| RanLane { name, slices: Vec::new() }).collect() }
    }

    /// Something on the compute stream.
    fn compute(&mut self, slice: RanSlice) {
        if slice.end > slice.start {
            self.lanes[0].slices.push(slice);
        }
    }

    /// Something outside of compiled graphs.
    fn outside(&mut self, time: Range<Nanos>) {
        let Range { start, end } = time;
        let (name, kind) = (OUTSIDE.to_owned(), RanKind::Compute);
        let from = Provenance::default();
        self.compute(RanSlice { name, from, kind, start, end, among: None });
    }

    /// A collective on its stream.
    fn transfer(&mut self, part: &StepPart, op: OpId, time: Range<Nanos>) {
        let Some(stream) = part.machine.streams.of(op) else { return };
        let Some(collective) = part.graph.collective(op) else { return };
        let group = &part.graph.groups()[collective.group];
        let slices = &mut self.lanes[1 + stream.index()].slices;
        // Two on the same stream are drawn one after the other.
        let start = slices.last().map_or(time.start, |before| time.start.max(before.end));
        if time.end > start {
            let end = time.end;
            let (name, from) = (op_name(self.step, part, op), op_from(self.step, part, op));
            let among = Some((group.name.clone(), collective.bytes()));
            slices.push(RanSlice { name, from, kind: RanKind::Collective, start, end, among });
        }
    }

    fn done(self, name: String, step_time: Nanos) -> Ran {
        Ran { name, step_time, lanes: self.lanes }
    }
}

fn measured_lanes(step: &Step, rank: usize, run: &RankStep) -> Ran {
    let mut lanes = Lanes::new(step);
    let mut until = Nanos::ZERO;
    for (part, run) in step.parts.iter().zip(&run.parts) {
        lanes.outside(until..run.begin);
        for span in &run.ran {
            let (op, kind) = match part.graph.kind(span.op) {
                OpKind::Compute | OpKind::MultiOutput => (span.op, RanKind::Compute),
                OpKind::AsyncCollective => (span.op, RanKind::Copy),
                OpKind::Wait | OpKind::SyncCollective => {
                    let of = part.graph.waits_for(span.op).last().copied().unwrap_or(span.op);
                    (of, RanKind::Wait)
                }
            };
            let (name, from) = (op_name(step, part, op), op_from(step, part, op));
            let (start, end) = (span.start, span.end);
            let slice = RanSlice { name, from, kind, start, end, among: None };
            lanes.compute(if kind == RanKind::Copy { issuing(slice) } else { slice });
        }
        let mut transfers = run.transfers.clone();
        transfers.sort_by(|a, b| a.end.0.total_cmp(&b.end.0));
        for span in transfers {
            lanes.transfer(part, span.op, span.start..span.end);
        }
        until = run.end;
    }
    lanes.outside(until..run.time);
    lanes.done(format!("rank {rank}"), run.time)
}

/// The same, of what only issues its operation.
fn issuing(slice: RanSlice) -> RanSlice {
    let issue = |text: String| match text.is_empty() {
        true => text,
        false => format!("issue {text}"),
    };
    let Provenance { source, module, parameter } = slice.from;
    let from = Provenance { source, module: issue(module), parameter: issue(parameter) };
    RanSlice { name: issue(slice.name), from, ..slice }
}

/// Parts in sequence; what lies outside of them is drawn before, between and after them, as on the
/// first rank.
fn simulated_lanes(step: &Step, found: &Comparison) -> Ran {
    let mut lanes = Lanes::new(step);
    let gaps = gaps(&step.ranks[0]);
    let measured: Nanos = gaps.iter().copied().sum();
    // The known time outside is distributed in proportion.
    let share = if measured > Nanos::ZERO { found.simulated.outside.0 / measured.0 } else { 0.0 };
    let mut now = Nanos::ZERO;
    for ((part, simulation), gap) in step.parts.iter().zip(&found.simulations).zip(&gaps) {
        let begin = now + *gap * share;
        lanes.outside(now..begin);
        simulated_part(&mut lanes, part, simulation, begin);
        now = begin + simulation.step_time;
    }
    let total = found.simulated.total().max(now);
    lanes.outside(now..total);
    lanes.done("simulated".to_owned(), total)
}

/// The time before each part, and after the last.
fn gaps(run: &RankStep) -> Vec<Nanos> {
    let ends = std::iter::once(Nanos::ZERO).chain(run.parts.iter().map(|part| part.end));
    let begins = run.parts.iter().map(|part| part.begin).chain([run.time]);
    ends.zip(begins).map(|(end, begin)| begin - end).collect()
}

fn simulated_part(lanes: &mut Lanes<'_>, part: &StepPart, simulation: &Simulation, begin: Nanos) {
    let slice = |op: OpId, kind: RanKind, time: Range<Nanos>| {
        let (name, from) = (op_name(lanes.step, part, op), op_from(lanes.step, part, op));
        RanSlice { name, from, kind, start: time.start, end: time.end, among: None }
    };
    let mut compute: Vec<RanSlice> = Vec::new();
    let mut transfers = Vec::new();
    for &op in part.order.as_slice() {
        let time = begin + simulation.start[op]..begin + simulation.end[op];
        match part.graph.kind(op) {
            OpKind::Compute => compute.push(slice(op, RanKind::Compute, time)),
            OpKind::AsyncCollective => transfers.push((op, time)),
            OpKind::SyncCollective | OpKind::Wait | OpKind::MultiOutput => {}
        }
    }
    for stall in &simulation.exposures {
        let time = begin + stall.start..begin + stall.start + stall.time;
        compute.push(slice(stall.of, RanKind::Wait, time));
    }
    compute.sort_by(|a, b| a.start.0.total_cmp(&b.start.0));
    compute.into_iter().for_each(|slice| lanes.compute(slice));
    transfers.into_iter().for_each(|(op, time)| lanes.transfer(part, op, time));
}
