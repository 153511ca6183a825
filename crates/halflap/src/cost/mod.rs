//! Run times: given by the graph, modelled, or measured.
//!
//! Measured times ([`Profile`]) take precedence over modelled ones ([`Device`], [`Link`]), and
//! those over the graph's own. The model is a roofline for compute and, for collectives, latency
//! and bandwidth of the links that they go over. docs/costs.md says the same to users, with every
//! figure. All is plain arithmetic in a fixed order: the same figures on every machine.

mod collectives;
mod device;
mod error;
mod json;
mod line;
mod link;
mod pbtxt;
mod presets;
mod profile;
mod roofline;

pub use device::Device;
pub use error::{CostError, DeviceError, LinkError, ProfileError};
pub use line::{CostLine, CostLines};
pub use link::{Link, Reach};
pub use profile::Profile;

use crate::graph::{Collective, Graph, GroupKind, OpKind};
use crate::ids::{IdVec, OpId};
use crate::units::Nanos;
use collectives::Fabric;

/// How long every operation takes. Not part of the graph: the same program can have other times.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    of: IdVec<OpId, Nanos>,
}

impl Times {
    /// The graph's own run times, all of which must be given; a wait without one takes zero time,
    /// and a multi-output takes none.
    pub fn given(graph: &Graph) -> Result<Times, CostError> {
        Costs::default().times(graph)
    }

    /// How long an operation takes.
    #[inline]
    pub fn of(&self, op: OpId) -> Nanos {
        self.of[op]
    }

    /// Sets the time of an operation.
    pub fn set(&mut self, op: OpId, time: Nanos) {
        debug_assert!(time.0.is_finite() && time >= Nanos::ZERO);
        self.of[op] = time;
    }

    /// All times, mapped.
    pub fn map(&self, change: impl Fn(OpId, Nanos) -> Nanos) -> Times {
        Times { of: self.of.iter().map(|(op, &time)| change(op, time)).collect() }
    }
}

/// Where run times come from, besides the graph.
///
/// ```
/// use halflap::cost::{Costs, Device};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bytes = std::fs::read("../../tests/corpus/ddp_mlp_4.graph.json.gz")?;
/// let graph = halflap::import::read_graph(&bytes)?;
/// let given = Costs::default().times(&graph)?;
/// let h100 = Costs { device: Some(Device::named("h100")?), ..Costs::default() };
/// let modelled = h100.times(&graph)?;
/// for op in graph.ops() {
///     println!("{}: {} given, {} on an H100", graph.name(op), given.of(op), modelled.of(op));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    /// Models compute, and collectives over its links.
    pub device: Option<Device>,
    /// Models every collective over this link, regardless of ranks.
    pub link: Option<Link>,
    /// Measured times, which take precedence.
    pub profile: Option<Profile>,
    /// How many times as fast communication is as all of this says, if that is another program's
    /// question.
    pub speedup: Option<f64>,
}

impl Costs {
    /// A time for every operation: the measured one, else the modelled one if the model applies,
    /// else the given one.
    pub fn times(&self, graph: &Graph) -> Result<Times, CostError> {
        let measured = self.profile.as_ref().map(|profile| profile.of(graph)).transpose()?;
        let fabric = self.fabric();
        let time = |op: OpId| -> Result<Nanos, CostError> {
            if graph.kind(op) == OpKind::MultiOutput {
                return Ok(Nanos::ZERO);
            }
            if let Some(time) = measured.as_ref().and_then(|measured| measured[op]) {
                return Ok(time);
            }
            if let Some(time) = self.modelled(graph, op, fabric.as_ref()) {
                return bounded(graph, op, time);
            }
            // A wait does no work itself, so a file may omit its time.
            match graph.has_runtime(op) || graph.kind(op) == OpKind::Wait {
                true => Ok(graph.runtime(op)),
                false => Err(self.missing(graph, op)),
            }
        };
        let sped_up = |op: OpId| match graph.kind(op).is_collective() {
            true => time(op).map(|time| self.sped_up(time)),
            false => time(op),
        };
        Ok(Times { of: graph.ops().map(sped_up).collect::<Result<_, _>>()? })
    }

    fn sped_up(&self, time: Nanos) -> Nanos {
        self.speedup.map_or(time, |factor| time * (1.0 / factor))
    }

    /// How long a collective among `ranks` takes according to the model of links; `None` without
    /// one, or if it does not know the collective.
    pub fn collective(&self, collective: &Collective, ranks: &[u32]) -> Option<Nanos> {
        self.fabric()?.time(collective, ranks).map(|time| self.sped_up(time))
    }

    /// The links of modelled collectives.
    fn fabric(&self) -> Option<Fabric<'_>> {
        match (&self.link, &self.device) {
            (Some(link), _) => Some(Fabric::one(link)),
            (None, Some(device)) => Some(Fabric::of(device)),
            (None, None) => None,
        }
    }

    /// The modelled time, where the model applies.
    fn modelled(&self, graph: &Graph, op: OpId, fabric: Option<&Fabric<'_>>) -> Option<Nanos> {
        match graph.collective(op) {
            Some(collective) => {
                let group = &graph.groups()[collective.group];
                let transfer = || match group.kind {
                    GroupKind::Ranks => None,
                    GroupKind::Transfer => {
                        Some(roofline::transfer(self.device.as_ref()?, collective))
                    }
                };
                fabric?.time(collective, &group.ranks).or_else(transfer)
            }
            None if graph.kind(op) == OpKind::Wait => None,
            None => roofline::time(self.device.as_ref()?, graph.flops(op), graph.bytes(op)),
        }
    }

    /// Why an operation has no time, and what would give it one.
    fn missing(&self, graph: &Graph, op: OpId) -> CostError {
        let node = graph.name(op).to_owned();
        match graph.collective(op) {
            Some(collective) if self.fabric().is_some() => {
                CostError::UnknownCollective { node, op: collective.op.clone() }
            }
            None if self.device.is_some() => CostError::NoFigures { node },
            None if self.link.is_some() => CostError::OnlyCollectives { node },
            _ => CostError::NotGiven { node },
        }
    }
}

/// A modelled time, unless absurd figures make it too long to add up.
fn bounded(graph: &Graph, op: OpId, time: Nanos) -> Result<Nanos, CostError> {
    match time <= Nanos::LONGEST {
        true => Ok(time),
        false => Err(CostError::TooLong { node: graph.name(op).to_owned() }),
    }
}
