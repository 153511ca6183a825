//! The costs of a rewritten program: copies, and collectives of unmeasured sizes.

use crate::cost::{Costs, Device};
use crate::graph::{Collective, Graph};
use crate::ids::OpId;
use crate::units::{Bandwidth, Bytes, Nanos};

/// What a copy from memory to memory takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyCost {
    /// What is read and written in a second, together.
    pub bandwidth: Bandwidth,
    /// What a copy takes besides.
    pub launch: Nanos,
}

impl Default for CopyCost {
    /// An a100's.
    fn default() -> CopyCost {
        CopyCost { bandwidth: Bandwidth::gigas(2039.0), launch: Nanos::micros(2.5) }
    }
}

impl CopyCost {
    /// Those of a device.
    pub fn of(device: &Device) -> CopyCost {
        CopyCost { bandwidth: device.memory, launch: device.launch }
    }

    /// How long it takes to copy so much: it is read and written.
    pub fn time(&self, bytes: Bytes) -> Nanos {
        self.launch + Bytes(bytes.0.saturating_mul(2)) / self.bandwidth
    }
}

/// Where the times of new operations come from.
#[derive(Clone, Copy, Debug)]
pub struct Prices<'a> {
    /// Of copies.
    pub copy: CopyCost,
    /// The model of links, where the graph's own collectives say too little.
    pub costs: &'a Costs,
}

impl Prices<'_> {
    /// How long a merged collective takes: as the graph's own collectives of that kind and group say,
    /// else as the model of links does, else as long as its members together. `None` where a member
    /// has no time.
    pub(super) fn merged(&self, graph: &Graph, members: &[OpId], merged: &Collective) -> Option<Nanos> {
        if members.iter().any(|&member| !graph.has_runtime(member)) {
            return None;
        }
        let ranks = &graph.groups()[merged.group].ranks;
        let modelled = || self.costs.collective(merged, ranks);
        let longest = members.iter().map(|&member| graph.runtime(member)).fold(Nanos::ZERO, Nanos::max);
        let time = match fitted(graph, merged).or_else(modelled) {
            Some(time) => time.max(longest),
            None => members.iter().map(|&member| graph.runtime(member)).sum(),
        };
        Some(time.min(Nanos::LONGEST))
    }
}

/// Latency and bandwidth, fitted by least squares to the graph's collectives of the same kind and
/// group. `None` where there are fewer than two sizes, or larger ones take no longer.
fn fitted(graph: &Graph, merged: &Collective) -> Option<Nanos> {
    let is_like = |other: &&Collective| other.kind == merged.kind && other.group == merged.group;
    let timed = graph.ops().filter(|&op| graph.has_runtime(op));
    let like = timed.filter_map(|op| Some((graph.collective(op).filter(is_like)?.bytes(), graph.runtime(op))));
    let points: Vec<(f64, f64)> = like.map(|(bytes, time)| (bytes.0 as f64, time.0)).collect();
    let (least, most) =
        points.iter().fold((f64::MAX, f64::MIN), |(low, high), (size, _)| (low.min(*size), high.max(*size)));
    if points.is_empty() || least >= most {
        return None;
    }
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (size, time) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - size) * (point.0 - size)).sum();
    let slope = points.iter().map(|point| (point.0 - size) * (point.1 - time)).sum::<f64>() / spread;
    if !slope.is_finite() || slope <= 0.0 {
        return None;
    }
    // A line below zero would give small ones a negative time: then there is no latency to save.
    let latency = time - slope * size;
    let bytes = merged.bytes().0 as f64;
    Some(match latency > 0.0 {
        true => Nanos(latency + slope * bytes),
        false => Nanos(bytes * time / size),
    })
}
