//! A whole HLO module: a graph for each computation that it runs, callees first.
//!
//! What a caller's graph holds depends on what became of its callees: how long they take, and how
//! much memory they need. So [`Walk`] gives one [`Unit`] after the other, is told what became of each,
//! and gives the entry computation last. It knows nothing of how orders are found.

use crate::cost::{Profile, Times};
use crate::graph::{Graph, GraphError};
use crate::hlo::{Callee, Lowered, Module, Opcode, Part, lower, trip_count};
use crate::ids::{ComputationId, IdVec, InstrId, OpId};
use crate::units::{Bytes, Nanos};

/// A computation as a graph, and its part in the whole.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The computation.
    pub computation: ComputationId,
    /// Its graph, and what its nodes stand for.
    pub lowered: Lowered,
    /// How often it runs in a step.
    pub runs: f64,
    /// Who runs it; `None` for the entry computation.
    pub caller: Option<Caller>,
}

/// Who runs a computation. One that several run has the first here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caller {
    /// The loop, call or conditional.
    pub instr: InstrId,
    /// How often, if it is a loop; `Some(None)` where nobody knows, and once is assumed.
    pub trips: Option<Option<u64>>,
}

impl Unit {
    /// Whether something in it can run beside compute.
    pub fn communicates(&self) -> bool {
        let graph = &self.lowered.graph;
        graph.ops().any(|op| graph.kind(op).is_collective())
    }
}

/// What became of a computation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ran {
    /// How long it takes now.
    pub step_time: Nanos,
    /// How long it took in the module's own order.
    pub step_time_before: Nanos,
    /// What it needs, the more of before and now.
    pub peak: Bytes,
}

/// Goes through a module's computations, those that each runs before it.
pub struct Walk<'m> {
    module: &'m Module,
    /// Still to come, the last first.
    open: Vec<Stop>,
    callees: IdVec<ComputationId, Option<Callee>>,
    before: IdVec<ComputationId, Nanos>,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    computation: ComputationId,
    runs: f64,
    caller: Option<Caller>,
}

impl<'m> Walk<'m> {
    /// From the innermost computation to the entry.
    pub fn new(module: &'m Module) -> Walk<'m> {
        let len = module.computations().len();
        Walk { module, open: stops(module), callees: IdVec::filled(None, len), before: IdVec::filled(Nanos::ZERO, len) }
    }

    /// How many computations are still to come.
    pub fn left(&self) -> usize {
        self.open.len()
    }

    /// The next computation as a graph; `None` after the entry.
    pub fn next_unit(&mut self) -> Option<Result<Unit, GraphError>> {
        let Stop { computation, runs, caller } = self.open.pop()?;
        let lowered = lower(self.module, computation, &|callee| self.callees[callee].clone());
        Some(lowered.map(|lowered| Unit { computation, lowered, runs, caller }))
    }

    /// What became of it.
    pub fn finish(&mut self, unit: &Unit, ran: &Ran) {
        let Unit { computation, lowered, caller, .. } = unit;
        // A loop leaves its results where its inputs were; others leave them beside.
        let leaves = match caller.is_some_and(|caller| caller.trips.is_some()) {
            true => lowered.inputs,
            false => lowered.inputs + lowered.results,
        };
        self.before[*computation] = ran.step_time_before;
        self.callees[*computation] = Some(Callee {
            step_time: ran.step_time,
            transient: (ran.peak - leaves).max(Bytes::ZERO),
            passed_on: lowered.passed_on.clone(),
            has_side_effects: lowered.has_side_effects,
        });
    }

    /// The times of a unit's nodes as they were with all callees in the module's own order.
    pub fn times_before(&self, unit: &Unit, times: &Times) -> Times {
        let before = |op: OpId| {
            let call = unit.lowered.calls.iter().find(|call| call.op == op)?;
            let each = call.callees.iter().map(|&(callee, times)| self.before[callee] * times);
            Some(
                if call.is_choice { each.fold(Nanos::ZERO, Nanos::max) } else { each.sum::<Nanos>() }
                    .min(Nanos::LONGEST),
            )
        };
        times.map(|op, time| before(op).unwrap_or(time))
    }
}

/// All computations that run, the entry first.
fn stops(module: &Module) -> Vec<Stop> {
    let len = module.computations().len();
    let mut runs: IdVec<ComputationId, f64> = IdVec::filled(0.0, len);
    let mut caller: IdVec<ComputationId, Option<Caller>> = IdVec::filled(None, len);
    let mut stops = Vec::new();
    runs[module.entry()] = 1.0;
    // Callers before callees: when a computation comes, all that run it have been counted.
    for computation in module.callees_first().into_iter().rev() {
        if runs[computation] == 0.0 {
            continue;
        }
        stops.push(Stop { computation, runs: runs[computation], caller: caller[computation] });
        for instr in module.instructions(computation) {
            let trips = match module.instruction(instr).opcode {
                Opcode::While => Some(trip_count(module, instr)),
                Opcode::Call | Opcode::Conditional => None,
                _ => continue,
            };
            let times = trips.flatten().map_or(1.0, |trips| trips as f64);
            for &callee in module.called(instr) {
                // A loop that never runs is still there to be looked at.
                runs[callee] = (runs[callee] + runs[computation] * times).max(f64::MIN_POSITIVE);
                caller[callee] = caller[callee].or(Some(Caller { instr, trips }));
            }
        }
    }
    stops
}

/// Which of the measured times are of this unit's nodes. A collective that is split here was measured
/// whole: its time is its start's. What an end was measured to take is waiting, which depends on the
/// order, and does not count.
pub fn profile_of(unit: &Unit, profile: &Profile) -> Profile {
    let lowered = &unit.lowered;
    let graph: &Graph = &lowered.graph;
    profile.select(|name| {
        let op = graph.find(name.trim_start_matches('%'))?;
        let place = lowered.places[op];
        let is_end = graph.waits_for(op).first();
        match (place.part, is_end) {
            (Part::Done, Some(&start)) => Some(graph.name(start).to_owned()),
            (_, Some(_)) => None,
            _ => Some(graph.name(op).to_owned()),
        }
    })
}

/// The device that a module was compiled for, as far as its text tells: tiles of 8 by 128 are a TPU's.
pub fn likely_device(module: &Module) -> &'static str {
    let is_tpu = module.text().contains(":T(8,128)");
    if is_tpu { "tpu_v5e" } else { "h100" }
}
