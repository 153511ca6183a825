//! A whole program: units that run each other, each a graph.
//!
//! A captured graph is a workload of one unit. An HLO module has a unit for each computation that
//! runs: loop bodies, branches, callees and the entry. The time and memory of a call depend on the
//! units that it runs, so [`Workload::walk`] visits them callees first, requests an order for each,
//! and aggregates the results. Only [`Call`] defines how a loop's or a conditional's time and
//! memory add up.

mod limits;
mod model;
mod optimize;
mod walk;

pub use model::Model;
pub use optimize::{Decision, Search, SearchError};
pub use walk::{Decided, Priced, UnitError};

use std::sync::Arc;

use crate::graph::Graph;
use crate::ids::{BufId, Id, IdVec, OpId, UnitId};
use crate::units::{Bytes, Nanos};

/// A program as units, each after those that it runs; the last one is the entry.
///
/// ```
/// use halflap::order::Order;
/// use halflap::workload::{Model, UnitError, Workload};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bytes = std::fs::read("../../tests/corpus/ddp_mlp_4.graph.json.gz")?;
/// let workload = Workload::from(halflap::import::read_graph(&bytes)?);
/// // Any order, evaluated: here the one that the program has now.
/// let decided = workload.walk(&Model::default(), |priced| {
///     Ok::<_, UnitError>((Order::of_input(&priced.graph), ()))
/// })?;
/// assert_eq!(decided[0].step_time().before, decided[0].step_time().after);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Workload {
    /// The units.
    pub units: IdVec<UnitId, Unit>,
}

/// A graph, and its part in the whole.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Its name; empty for a single graph.
    pub name: String,
    /// The graph, in which a call takes no time and no memory.
    pub graph: Arc<Graph>,
    /// The operations that run other units.
    pub calls: Vec<Call>,
    /// How often it runs in a step.
    pub runs: f64,
    /// What a caller holds for it in any case: its inputs, and its results if they are other
    /// memory. The peak above that is a call's inner memory.
    pub held_by_caller: Bytes,
    /// How measured times find their operations.
    pub naming: Naming,
}

/// How names in a profile map to operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Naming {
    /// The profile is for this graph alone: an unknown name is an error.
    Whole,
    /// The profile is for all units. The time of a collective that was split here belongs to its
    /// start; the measured time of any other end is waiting, and does not count.
    Shared {
        /// The ends, ascending.
        split_ends: Vec<OpId>,
    },
}

/// An operation that runs other units.
#[derive(Clone, Debug)]
pub struct Call {
    /// The operation.
    pub op: OpId,
    /// The buffer that represents its inner memory; of size zero in the unit's graph.
    pub inside: BufId,
    /// What it runs.
    pub runs: Vec<Run>,
    /// Whether only one of them runs: a conditional.
    pub is_choice: bool,
    /// Whether it is a loop with unknown trip count, which counts as one.
    pub is_guess: bool,
}

/// A unit that a call runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The unit.
    pub unit: UnitId,
    /// How many times: a loop's trip count.
    pub times: f64,
}

impl Call {
    /// The runs that count: all of them, or the longest branch of a conditional.
    pub fn counted(&self, step_time: impl Fn(UnitId) -> Nanos) -> &[Run] {
        if !self.is_choice {
            return &self.runs;
        }
        let time = |index: &usize| step_time(self.runs[*index].unit).0;
        let longest = (0..self.runs.len()).max_by(|a, b| time(a).total_cmp(&time(b)));
        longest.map_or(&[], |index| &self.runs[index..=index])
    }

    /// How long the call takes.
    pub fn time(&self, step_time: impl Fn(UnitId) -> Nanos) -> Nanos {
        let counted = self.counted(&step_time).iter();
        counted.map(|run| step_time(run.unit) * run.times).sum::<Nanos>().min(Nanos::LONGEST)
    }

    /// The call's inner memory.
    pub fn inside(&self, need: impl Fn(UnitId) -> Bytes) -> Bytes {
        self.runs.iter().map(|run| need(run.unit)).max().unwrap_or(Bytes::ZERO)
    }
}

impl Unit {
    /// Whether something in it can overlap compute.
    pub fn communicates(&self) -> bool {
        self.graph.ops().any(|op| self.graph.kind(op).is_collective())
    }

    /// The unit's graph with the inner memory of its calls.
    fn graph_holding(&self, need: impl Fn(UnitId) -> Bytes) -> Arc<Graph> {
        if self.calls.is_empty() {
            return self.graph.clone();
        }
        let mut graph = Graph::clone(&self.graph);
        for call in &self.calls {
            graph = graph.with_size(call.inside, call.inside(&need));
        }
        Arc::new(graph)
    }
}

impl Workload {
    /// The unit that runs all others.
    pub fn entry(&self) -> Option<&Unit> {
        self.units.as_slice().last()
    }

    /// Whether a unit is the one that runs all others.
    pub fn is_entry(&self, unit: UnitId) -> bool {
        unit.index() + 1 == self.units.len()
    }

    /// The unit of that name.
    pub fn find(&self, name: &str) -> Option<UnitId> {
        self.units.ids().find(|&unit| self.units[unit].name == name)
    }
}

impl From<Graph> for Workload {
    fn from(graph: Graph) -> Workload {
        let unit = Unit {
            name: String::new(),
            graph: Arc::new(graph),
            calls: Vec::new(),
            runs: 1.0,
            held_by_caller: Bytes::ZERO,
            naming: Naming::Whole,
        };
        Workload { units: IdVec::from(vec![unit]) }
    }
}
