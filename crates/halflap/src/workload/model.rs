//! What a workload is simulated with.

use super::{Naming, Unit};
use crate::cost::{CostError, Costs, Profile, Times};
use crate::graph::{Assignment, Graph, Streams};
use crate::simulate::{Machine, Sharing};
use crate::units::Nanos;

/// Where run times come from, and how concurrent operations slow each other down.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Run times.
    pub costs: Costs,
    /// Which collectives share a stream.
    pub streams: Assignment,
    /// The factor on compute while communication runs: 1 is no slowdown.
    pub slowdown: f64,
    /// The factor on communication while compute runs: 1 is no slowdown.
    pub comm_slowdown: f64,
    /// The time that the host needs to issue an operation.
    pub launch: Nanos,
}

impl Default for Model {
    /// The graph's own times, streams by shared ranks, no contention, no host time.
    fn default() -> Model {
        Model {
            costs: Costs::default(),
            streams: Assignment::SharedRanks,
            slowdown: 1.0,
            comm_slowdown: 1.0,
            launch: Nanos::ZERO,
        }
    }
}

impl Model {
    /// The machine for a graph with these times.
    pub fn machine(&self, graph: &Graph, times: Times) -> Machine {
        let streams = Streams::assign(graph, self.streams);
        Machine {
            sharing: Sharing::of(graph, &streams, &times),
            streams,
            times,
            slowdown: self.slowdown,
            comm_slowdown: self.comm_slowdown,
            launch: self.launch,
            peers: None,
        }
    }

    /// The run times of a unit. Calls have the times of the graph, which are zero.
    pub(super) fn times(&self, unit: &Unit) -> Result<Times, CostError> {
        match (&unit.naming, &self.costs.profile) {
            (Naming::Shared { split_ends }, Some(profile)) => {
                let own = own_part(&unit.graph, split_ends, profile);
                Costs { profile: Some(own), ..self.costs.clone() }.times(&unit.graph)
            }
            _ => self.costs.times(&unit.graph),
        }
    }
}

/// Which of the measured times belong to a unit's operations. A collective that is split here was
/// measured as a whole: its start has that time. The measured time of another end is waiting, which
/// depends on the order.
fn own_part(graph: &Graph, split_ends: &[crate::ids::OpId], profile: &Profile) -> Profile {
    profile.select(|name| {
        let op = graph.find(name.trim_start_matches('%'))?;
        match graph.waits_for(op).first() {
            Some(&start) if split_ends.binary_search(&op).is_ok() => {
                Some(graph.name(start).to_owned())
            }
            Some(_) => None,
            None => Some(graph.name(op).to_owned()),
        }
    })
}
