//! From the innermost unit to the entry: run times, an order, and its evaluation.

use std::sync::Arc;

use thiserror::Error;

use super::{Model, Unit, Workload};
use crate::cost::{CostError, Times};
use crate::evaluate::{Change, Evaluation, Setup};
use crate::graph::Graph;
use crate::ids::{Id, UnitId};
use crate::order::Order;
use crate::simulate::Machine;
use crate::units::{Bytes, Nanos};

/// A unit that cannot be priced.
#[derive(Debug, Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct UnitError {
    /// The unit.
    pub unit: UnitId,
    /// What is missing.
    #[source]
    pub error: CostError,
}

/// A unit with run times, for which an order is searched.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Priced {
    /// The unit.
    pub unit: UnitId,
    /// Its graph, with the current inner memory of its calls.
    pub graph: Arc<Graph>,
    /// What it runs on, with the current times of its calls.
    pub machine: Machine,
    /// The input order, with all callees in theirs.
    pub input: Evaluation,
    /// Graph and machine with all callees in their input order; `None` if nothing is called.
    before: Option<Box<Before>>,
}

#[derive(Clone, Debug)]
struct Before {
    graph: Arc<Graph>,
    machine: Machine,
}

/// A unit with its order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Decided<T> {
    /// The unit.
    pub priced: Priced,
    /// The order.
    pub result: Evaluation,
    /// What is exposed in one run of it and of all that it runs.
    pub exposed_in_all: Change<Nanos>,
    /// Further results.
    pub found: T,
}

impl Priced {
    /// The unit as it is now.
    pub fn setup(&self) -> Setup<'_> {
        Setup { graph: &self.graph, machine: &self.machine }
    }

    /// The unit with all callees in their input order.
    pub fn setup_before(&self) -> Setup<'_> {
        match &self.before {
            Some(before) => Setup { graph: &before.graph, machine: &before.machine },
            None => self.setup(),
        }
    }

    /// The input order's peak, with all callees in theirs: the base of a budget.
    pub fn peak_before(&self) -> Bytes {
        self.input.peak()
    }

    /// Evaluates an order; the input order of a unit that calls nothing is not evaluated again.
    pub fn evaluate(&self, order: Order) -> Evaluation {
        match self.before.is_none() && order == self.input.order {
            true => self.input.clone(),
            false => Evaluation::of(self.setup(), order),
        }
    }
}

impl<T> Decided<T> {
    /// How long one run takes.
    pub fn step_time(&self) -> Change<Nanos> {
        Change { before: self.priced.input.step_time(), after: self.result.step_time() }
    }

    /// What is exposed in one run of it alone.
    pub fn exposed(&self) -> Change<Nanos> {
        Change { before: self.priced.input.exposed(), after: self.result.exposed() }
    }

    /// What it needs.
    pub fn peak(&self) -> Change<Bytes> {
        Change { before: self.priced.input.peak(), after: self.result.peak() }
    }

    /// The same with further results computed from it.
    pub fn map<U>(self, make: impl FnOnce(T, &Priced, &Evaluation) -> U) -> Decided<U> {
        let Decided { priced, result, exposed_in_all, found } = self;
        let found = make(found, &priced, &result);
        Decided { priced, result, exposed_in_all, found }
    }
}

impl Workload {
    /// Visits all units, callees first. `decide` returns a valid order for each, and data to keep.
    pub fn walk<T, E: From<UnitError>>(
        &self,
        model: &Model,
        mut decide: impl FnMut(&Priced) -> Result<(Order, T), E>,
    ) -> Result<Vec<Decided<T>>, E> {
        let mut done: Vec<Decided<T>> = Vec::with_capacity(self.units.len());
        for unit in self.units.ids() {
            let priced = self.price(unit, model, &done)?;
            let (order, found) = decide(&priced)?;
            let result = priced.evaluate(order);
            let exposed_in_all = self.rolled_up(&priced, &result, &done);
            done.push(Decided { priced, result, exposed_in_all, found });
        }
        Ok(done)
    }

    fn price<T>(
        &self,
        id: UnitId,
        model: &Model,
        done: &[Decided<T>],
    ) -> Result<Priced, UnitError> {
        let unit = &self.units[id];
        let times = model.times(unit).map_err(|error| UnitError { unit: id, error })?;
        let now = self.priced_with(unit, &times, |callee| &done[callee.index()].result);
        let machine = model.machine(&now.0, now.1);
        let before = (!unit.calls.is_empty()).then(|| {
            let (graph, times) =
                self.priced_with(unit, &times, |callee| &done[callee.index()].priced.input);
            Box::new(Before { machine: model.machine(&graph, times), graph })
        });
        let setup = match &before {
            Some(before) => Setup { graph: &before.graph, machine: &before.machine },
            None => Setup { graph: &now.0, machine: &machine },
        };
        let input = Evaluation::of(setup, Order::of_input(&unit.graph));
        Ok(Priced { unit: id, graph: now.0, machine, input, before })
    }

    /// A unit's graph and times with the calls' times and memory from `callee`.
    fn priced_with<'d>(
        &self,
        unit: &Unit,
        times: &Times,
        callee: impl Fn(UnitId) -> &'d Evaluation,
    ) -> (Arc<Graph>, Times) {
        let need =
            |of: UnitId| (callee(of).peak() - self.units[of].held_by_caller).max(Bytes::ZERO);
        let step_time = |of: UnitId| callee(of).step_time();
        let mut times = times.clone();
        for call in &unit.calls {
            // A call that was measured as a whole already has a time.
            if times.of(call.op) == Nanos::ZERO {
                times.set(call.op, call.time(step_time));
            }
        }
        (unit.graph_holding(need), times)
    }

    /// What is exposed in a unit and in all that it runs.
    fn rolled_up<T>(
        &self,
        priced: &Priced,
        result: &Evaluation,
        done: &[Decided<T>],
    ) -> Change<Nanos> {
        let mut all = Change { before: priced.input.exposed(), after: result.exposed() };
        for call in &self.units[priced.unit].calls {
            let callee = |of: UnitId| &done[of.index()];
            let before = call.counted(|of| callee(of).priced.input.step_time()).iter();
            all.before +=
                before.map(|run| callee(run.unit).exposed_in_all.before * run.times).sum();
            let after = call.counted(|of| callee(of).result.step_time()).iter();
            all.after += after.map(|run| callee(run.unit).exposed_in_all.after * run.times).sum();
        }
        all
    }
}
