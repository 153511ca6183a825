//! A module as a workload: a unit for each computation that it runs, callees first.

use std::sync::Arc;

use super::lower::{Lowered, lower};
use super::steps::{NodePart, NodePlace};
use super::values::Callee;
use super::{Module, Opcode, WriteError, trip_count, write_proved};
use crate::ids::{ComputationId, InstrId};
use halflap::graph::{Graph, GraphError};
use halflap::ids::{IdVec, OpId, UnitId};
use halflap::order::Order;
use halflap::workload::{Naming, Unit, Workload};

/// A module's workload, and the location of its units in the module.
#[derive(Clone, Debug)]
pub struct LoweredModule {
    /// The units as graphs.
    pub workload: Workload,
    /// The same units as computations.
    pub units: IdVec<UnitId, LoweredUnit>,
}

/// A computation that is a unit.
#[derive(Clone, Debug)]
pub struct LoweredUnit {
    /// The computation.
    pub computation: ComputationId,
    /// What its nodes represent.
    pub lowered: Lowered,
    /// Its caller; `None` for the entry computation.
    pub caller: Option<Caller>,
    /// How many instructions run it.
    pub callers: usize,
}

/// The caller of a computation, the first if there are several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caller {
    /// The loop, call or conditional.
    pub instr: InstrId,
    /// The trip count, if it is a loop; `Some(None)` if unknown, and then 1 is assumed.
    pub trips: Option<Option<u64>>,
}

impl LoweredModule {
    /// Lowers all computations that a module runs.
    pub fn of(module: &Module) -> Result<LoweredModule, GraphError> {
        let mut known: IdVec<ComputationId, Option<Callee>> =
            IdVec::filled(None, module.computations().len());
        let mut units: IdVec<UnitId, Unit> = IdVec::default();
        let mut all: IdVec<UnitId, LoweredUnit> = IdVec::default();
        for stop in stops(module).into_iter().rev() {
            let lowered = lower(module, stop.computation, &|callee| known[callee].clone())?;
            let unit = units.push(unit_of(module, &stop, &lowered));
            known[stop.computation] = Some(Callee {
                unit: Some(unit),
                passed_on: lowered.passed_on.clone(),
                has_side_effects: lowered.has_side_effects,
                spaces: lowered.space_inside(),
            });
            let WalkStop { computation, caller, callers, .. } = stop;
            all.push(LoweredUnit { computation, lowered, caller, callers });
        }
        Ok(LoweredModule { workload: Workload { units }, units: all })
    }

    /// The module's text with the units in these orders.
    pub fn text<'o>(
        &self,
        module: &Module,
        order: impl Fn(UnitId) -> &'o Order,
    ) -> Result<String, WriteError> {
        let orders: Vec<_> = self.units.iter().map(|(id, unit)| unit.placed(order(id))).collect();
        write_proved(module, &orders)
    }
}

fn unit_of(module: &Module, stop: &WalkStop, lowered: &Lowered) -> Unit {
    let graph: &Graph = &lowered.graph;
    // A loop's results replace its inputs; those of others have separate memory.
    let is_loop = stop.caller.is_some_and(|caller| caller.trips.is_some());
    let is_split_end = |op: &OpId| lowered.places[*op].part == NodePart::Done;
    Unit {
        name: module.computation_name(stop.computation).to_owned(),
        graph: Arc::clone(&lowered.graph),
        calls: lowered.calls.clone(),
        runs: stop.runs,
        held_by_caller: if is_loop { lowered.inputs } else { lowered.inputs + lowered.results },
        naming: Naming::Shared { split_ends: graph.ops().filter(is_split_end).collect() },
    }
}

impl LoweredUnit {
    /// The instructions in an order of the unit's nodes.
    pub fn placed(&self, order: &Order) -> (ComputationId, Vec<NodePlace>) {
        (self.computation, order.as_slice().iter().map(|&op| self.lowered.places[op]).collect())
    }
}

#[derive(Clone, Copy, Debug)]
struct WalkStop {
    computation: ComputationId,
    runs: f64,
    caller: Option<Caller>,
    callers: usize,
}

/// All computations that run, the entry first.
fn stops(module: &Module) -> Vec<WalkStop> {
    let len = module.computations().len();
    let mut runs: IdVec<ComputationId, f64> = IdVec::filled(0.0, len);
    let mut caller: IdVec<ComputationId, Option<Caller>> = IdVec::filled(None, len);
    let mut callers: IdVec<ComputationId, usize> = IdVec::filled(0, len);
    let mut stops = Vec::new();
    runs[module.entry()] = 1.0;
    // Callers before callees: when a computation is reached, all its callers have been counted.
    for computation in module.callees_first().into_iter().rev() {
        if runs[computation] == 0.0 {
            continue;
        }
        stops.push(WalkStop {
            computation,
            runs: runs[computation],
            caller: caller[computation],
            callers: callers[computation],
        });
        for instr in module.instructions(computation) {
            let trips = match module.instruction(instr).opcode {
                Opcode::While => Some(trip_count(module, instr)),
                Opcode::Call | Opcode::Conditional => None,
                _ => continue,
            };
            let times = trips.flatten().map_or(1.0, |trips| trips as f64);
            for &callee in module.called(instr) {
                // A loop that never runs is still shown.
                runs[callee] = (runs[callee] + runs[computation] * times).max(f64::MIN_POSITIVE);
                callers[callee] += 1;
                caller[callee] = caller[callee].or(Some(Caller { instr, trips }));
            }
        }
    }
    stops
}
