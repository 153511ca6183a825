//! What a workload is simulated with.

use super::{Naming, Unit};
use crate::cost::{CostError, Costs, Profile, Times};
use crate::graph::{Assignment, Graph, Streams};
use crate::simulate::Machine;
use crate::units::Nanos;

/// Where run times come from, and how overlapping work affects each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// Run times.
    pub costs: Costs,
    /// Which collectives share a stream.
    pub streams: Assignment,
    /// How much slower compute is while communication runs: 1 is not at all.
    pub slowdown: f64,
    /// How much slower communication is while compute runs: 1 is not at all.
    pub comm_slowdown: f64,
    /// What the host needs to issue an operation.
    pub launch: Nanos,
}

impl Default for Model {
    /// The graph's own times, streams by shared ranks, no contention, a host that takes no time.
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
    /// What a graph with these times is simulated on.
    pub fn machine(&self, graph: &Graph, times: Times) -> Machine {
        Machine {
            streams: Streams::assign(graph, self.streams),
            times,
            slowdown: self.slowdown,
            comm_slowdown: self.comm_slowdown,
            launch: self.launch,
            peers: None,
        }
    }

    /// How long a unit's operations take. Calls take what the graph gives them, which is nothing.
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

/// Which of the measured times are of a unit's operations. A collective that is split here was measured
/// whole: its time is its start's. What another end was measured to take is waiting, which depends on
/// the order.
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
