//! The best order of every unit.

use std::ops::ControlFlow;

use thiserror::Error;

use super::{Decided, Model, UnitError, Workload};
use crate::cost::CostError;
use crate::evaluate::Change;
use crate::graph::Edges;
use crate::ids::{Id, UnitId};
use crate::memory::Budget;
use crate::optimize::{Effort, OptimizeError, Optimized, Task, optimize, within_or_least};
use crate::order::Order;
use crate::units::{Bytes, Nanos};

/// The requirements on orders, and the search effort.
#[derive(Clone, Debug)]
pub struct Search {
    /// The memory limit of the whole program, relative to what its input orders need. A unit may
    /// use what is free while it runs: [`Workload::limits`].
    pub memory: Budget,
    /// Which edges are kept: with [`Edges::All`] collectives stay in order.
    pub edges: Edges,
    /// How much work is done.
    pub effort: Effort,
    /// How many threads may work; does not change the result.
    pub threads: usize,
}

impl Default for Search {
    /// The memory of the input order, collectives in any order, one thread.
    fn default() -> Search {
        Search {
            memory: Budget::Times(1.0),
            edges: Edges::Real,
            effort: Effort::Default,
            threads: 1,
        }
    }
}

/// Why a workload has no better orders.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SearchError {
    /// An operation has no run time.
    #[error("unit {unit:?}: {error}")]
    Cost {
        /// The unit that it is in.
        unit: UnitId,
        /// What is missing.
        #[source]
        error: CostError,
    },
    /// There is no order within the limit, or the search has a bug.
    #[error("unit {unit:?}: {error}")]
    Order {
        /// The unit that was searched.
        unit: UnitId,
        /// Why there is none.
        #[source]
        error: OptimizeError,
    },
}

impl From<UnitError> for SearchError {
    fn from(UnitError { unit, error }: UnitError) -> SearchError {
        SearchError::Cost { unit, error }
    }
}

/// A proved order of every unit, and the totals.
///
/// ```
/// use halflap::workload::{Model, Search, Workload};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bytes = std::fs::read("../../tests/corpus/ddp_mlp_4.graph.json.gz")?;
/// let workload = Workload::from(halflap::import::read_graph(&bytes)?);
/// let search = Search { memory: "1.2x".parse()?, ..Search::default() };
/// let decision = workload.optimize(&Model::default(), &search)?;
/// let found = decision.units[0].found.as_ref().expect("the program communicates");
/// assert!(found.bound.time <= decision.step_time().after);
/// assert!(decision.exposed().after <= decision.exposed().before);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Decision {
    /// The units, callees first. A unit without communication keeps its order where that is within
    /// its limit, and has no search result.
    pub units: Vec<Decided<Option<Optimized>>>,
}

impl Decision {
    /// A unit's order.
    pub fn order(&self, unit: UnitId) -> &Order {
        &self.units[unit.index()].result.order
    }

    /// How long a step takes.
    pub fn step_time(&self) -> Change<Nanos> {
        self.units.last().map(Decided::step_time).unwrap_or_default()
    }

    /// How long compute is stalled on communication in a step.
    pub fn exposed(&self) -> Change<Nanos> {
        self.units.last().map(|entry| entry.exposed_in_all).unwrap_or_default()
    }

    /// The peak memory.
    pub fn peak(&self) -> Change<Bytes> {
        self.units.last().map(Decided::peak).unwrap_or_default()
    }
}

impl Workload {
    /// Finds and proves the best order of every unit that communicates, or needs too much in its
    /// own order.
    pub fn optimize(&self, model: &Model, search: &Search) -> Result<Decision, SearchError> {
        let limits = self.limits_within(model, search.memory)?;
        let units = self.walk(model, |priced| {
            let memory_limit = limits[priced.unit];
            if !self.is_searched(priced, memory_limit) {
                return Ok((priced.input.order.clone(), None));
            }
            let task = Task {
                graph: &priced.graph,
                machine: &priced.machine,
                memory_limit,
                edges: search.edges,
                known: &[],
                effort: search.effort,
                threads: search.threads,
                progress: &|_| ControlFlow::Continue(()),
            };
            let found = match self.is_entry(priced.unit) {
                true => optimize(&task),
                false => within_or_least(&task, optimize),
            };
            let found = found.map_err(|error| SearchError::Order { unit: priced.unit, error })?;
            Ok::<_, SearchError>((found.order.clone(), Some(found)))
        })?;
        Ok(Decision { units })
    }
}
