//! A measured step, and its simulation, as lanes to be drawn.

use std::ops::Range;

use super::comparison::op_name;
use super::ran::{Ran, RanKind, RanLane, RanSlice};
use crate::measured::{Comparison, Part, RankStep, Step};
use halflap::graph::OpKind;
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

/// Lanes that are filled slice by slice: compute, and a stream for each that any part has.
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
    fn compute(&mut self, name: String, kind: RanKind, time: Range<Nanos>) {
        let Range { start, end } = time;
        if end > start {
            self.lanes[0].slices.push(RanSlice { name, kind, start, end, among: None });
        }
    }

    /// Something that no compiled graph does.
    fn outside(&mut self, time: Range<Nanos>) {
        self.compute(OUTSIDE.to_owned(), RanKind::Compute, time);
    }

    /// A collective on its stream.
    fn transfer(&mut self, part: &Part, op: OpId, time: Range<Nanos>) {
        let Some(stream) = part.machine.streams.of(op) else { return };
        let Some(collective) = part.graph.collective(op) else { return };
        let group = &part.graph.groups()[collective.group];
        let slices = &mut self.lanes[1 + stream.index()].slices;
        // Two of one stream are drawn one after the other.
        let start = slices.last().map_or(time.start, |before| time.start.max(before.end));
        if time.end > start {
            let end = time.end;
            let name = op_name(self.step, part, op);
            let among = Some((group.name.clone(), collective.bytes()));
            slices.push(RanSlice { name, kind: RanKind::Collective, start, end, among });
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
            let name = op_name(step, part, span.op);
            let times = span.start..span.end;
            match part.graph.kind(span.op) {
                OpKind::Compute | OpKind::MultiOutput => lanes.compute(name, RanKind::Compute, times),
                OpKind::AsyncCollective => lanes.compute(format!("issue {name}"), RanKind::Copy, times),
                OpKind::Wait | OpKind::SyncCollective => {
                    let of = part.graph.waits_for(span.op).last().copied().unwrap_or(span.op);
                    lanes.compute(op_name(step, part, of), RanKind::Wait, times);
                }
            }
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

/// Parts one after the other; what lies outside of them is before, between and after, as on the first rank.
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

/// What lies before each part, and after the last.
fn gaps(run: &RankStep) -> Vec<Nanos> {
    let ends = std::iter::once(Nanos::ZERO).chain(run.parts.iter().map(|part| part.end));
    let begins = run.parts.iter().map(|part| part.begin).chain([run.time]);
    ends.zip(begins).map(|(end, begin)| begin - end).collect()
}

fn simulated_part(lanes: &mut Lanes<'_>, part: &Part, simulation: &Simulation, begin: Nanos) {
    let mut stretches: Vec<Stretch> = Vec::new();
    for &op in part.order.as_slice() {
        let time = begin + simulation.start[op]..begin + simulation.end[op];
        match part.graph.kind(op) {
            OpKind::Compute => stretches.push(Stretch { op, kind: RanKind::Compute, time }),
            OpKind::AsyncCollective => lanes.transfer(part, op, time),
            OpKind::SyncCollective | OpKind::Wait | OpKind::MultiOutput => {}
        }
    }
    for stall in &simulation.exposures {
        let time = begin + stall.start..begin + stall.start + stall.time;
        stretches.push(Stretch { op: stall.of, kind: RanKind::Wait, time });
    }
    stretches.sort_by(|a, b| a.time.start.0.total_cmp(&b.time.start.0));
    for Stretch { op, kind, time } in stretches {
        lanes.compute(op_name(lanes.step, part, op), kind, time);
    }
}

/// What the compute stream does, or stands still for.
struct Stretch {
    op: OpId,
    kind: RanKind,
    time: Range<Nanos>,
}
