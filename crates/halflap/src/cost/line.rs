//! Latency and bandwidth, as the run times of a program's own collectives say.

use std::collections::BTreeMap;

use crate::collective::CollectiveKind;
use crate::graph::{Collective, Graph};
use crate::ids::{GroupId, OpId};
use crate::units::{Bytes, Nanos};

/// What a program's own collectives say of their times, by group and kind.
#[derive(Clone, Debug, PartialEq)]
pub struct CostLines {
    fits: BTreeMap<(GroupId, CollectiveKind), CostLine>,
}

impl CostLines {
    /// Fitted to run times, where they are known.
    pub fn fitted(graph: &Graph, time: impl Fn(OpId) -> Option<Nanos>) -> CostLines {
        let mut points: BTreeMap<_, Vec<(f64, f64)>> = BTreeMap::new();
        for op in graph.ops() {
            if let Some(of) = graph.collective(op)
                && let Some(time) = time(op)
            {
                let point = (of.bytes().0 as f64, time.0);
                points.entry((of.group, of.kind)).or_default().push(point);
            }
        }
        let fit = |(class, points): (_, Vec<(f64, f64)>)| Some((class, fitted(&points)?));
        CostLines { fits: points.into_iter().filter_map(fit).collect() }
    }

    /// Of collectives of the same group and kind, if these have different sizes.
    pub fn of(&self, like: &Collective) -> Option<CostLine> {
        self.fits.get(&(like.group, like.kind)).copied()
    }

    /// Of all kinds in a group.
    pub fn in_group(&self, group: GroupId) -> impl Iterator<Item = CostLine> {
        self.fits.iter().filter(move |((of, _), _)| *of == group).map(|(_, line)| *line)
    }
}

/// A collective's time by its size: latency + bytes / bandwidth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostLine {
    /// What the smallest takes.
    pub latency: Nanos,
    /// The nanoseconds of each byte, of the larger of input and output.
    pub per_byte: f64,
}

impl CostLine {
    /// How long this much takes.
    pub fn time(&self, bytes: Bytes) -> Nanos {
        self.latency + Nanos(self.per_byte * bytes.0 as f64)
    }

    /// The size at which half of the time is latency.
    pub fn half(&self) -> Bytes {
        Bytes((self.latency.0 / self.per_byte).min(1e15) as i64)
    }
}

/// How many times as large as the smallest size the largest must be for a fit.
const SPREAD: f64 = 1.5;

/// Latency and bandwidth, fitted by least squares to the sizes and times of collectives of one kind
/// and group. `None` if sizes are nearly the same, or larger ones take no longer.
fn fitted(points: &[(f64, f64)]) -> Option<CostLine> {
    let (least, most) = points
        .iter()
        .fold((f64::MAX, f64::MIN), |(low, high), (size, _)| (low.min(*size), high.max(*size)));
    // With nearly equal sizes, rounding would decide what is latency.
    if points.is_empty() || most < SPREAD * least {
        return None;
    }
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (size, time) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - size) * (point.0 - size)).sum();
    let slope =
        points.iter().map(|point| (point.0 - size) * (point.1 - time)).sum::<f64>() / spread;
    if !slope.is_finite() || slope <= 0.0 {
        return None;
    }
    // A line below zero would give small ones a negative time: then there is no latency to save.
    let latency = time - slope * size;
    Some(match latency > 0.0 {
        true => CostLine { latency: Nanos(latency), per_byte: slope },
        false => CostLine { latency: Nanos::ZERO, per_byte: time / size },
    })
}
