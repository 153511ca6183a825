//! A result whose graph is another than its input's: the old one seen through the origin of the new.

use serde::Serialize;
use serde_json::{Value, json};

use super::Timed;
use super::timing::exposed_by_collective;
use halflap::graph::Graph;
use halflap::ids::{IdVec, OpId};
use halflap::origin::{Origin, Part, Source};
use halflap::simulate::Simulation;
use halflap::units::Nanos;

/// What the old program's simulation says of the new one's operations: an operation begins with the
/// first that it stands for and ends with the last, and a collective has what its members exposed.
pub fn carried(origin: &Origin, before: &Simulation) -> Simulation {
    let over = |source: &Source, of: &IdVec<OpId, Nanos>, join: fn(Nanos, Nanos) -> Nanos| {
        source.of.iter().map(|&old| of[old]).reduce(join).unwrap_or(Nanos::ZERO)
    };
    let carriers = origin.carriers(before.start.len());
    let exposures = before.exposures.iter().filter_map(|exposure| {
        let mut exposure = *exposure;
        (exposure.of, exposure.at) = (carriers[exposure.of]?, carriers[exposure.at]?);
        Some(exposure)
    });
    let sources = || origin.ops.iter().map(|(_, source)| source);
    let mut carried = before.clone();
    carried.start = sources().map(|source| over(source, &before.start, Nanos::min)).collect();
    carried.end = sources().map(|source| over(source, &before.end, Nanos::max)).collect();
    carried.exposures = exposures.collect();
    carried
}

/// A schedule of a changed program, for machines: `halflap.schedule/1` with what was changed.
pub struct TimedRewrite<'a> {
    /// The schedule, of the new program.
    pub timed: Timed<'a>,
    /// The old program.
    pub before: &'a Graph,
    /// What became of it.
    pub origin: &'a Origin,
    /// The old program's order in time.
    pub simulated_before: &'a Simulation,
    /// The new one's.
    pub simulated: &'a Simulation,
    /// The step of the best order of the old program, where rewrites were searched.
    pub order_alone: Option<Nanos>,
}

impl Serialize for TimedRewrite<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a, 'b> {
            #[serde(flatten)]
            timed: &'a Timed<'b>,
            #[serde(skip_serializing_if = "Option::is_none")]
            order_alone: Option<f64>,
            recipes: Vec<Value>,
            origin: Vec<Value>,
        }
        let order_alone = self.order_alone.map(|time| time.0);
        let (recipes, origin) = (self.recipes(), self.origin());
        Fields { timed: &self.timed, order_alone, recipes, origin }.serialize(serializer)
    }
}

impl TimedRewrite<'_> {
    fn names(&self, source: &Source) -> Vec<&str> {
        source.of.iter().map(|&op| self.before.name(op)).collect()
    }

    /// What was done, and what it gained as far as the simulation tells: what members exposed less
    /// what is exposed now.
    fn recipes(&self) -> Vec<Value> {
        let (before, after) =
            (exposed_by_collective(self.simulated_before), exposed_by_collective(self.simulated));
        let merged = self.origin.ops.iter().filter(|(_, source)| source.part == Part::Merged);
        let recipe = |(number, (op, source)): (usize, (OpId, &Source))| {
            let was: Nanos = source.of.iter().map(|&member| before[member]).sum();
            json!({
                "name": format!("merge:{}", number + 1),
                "kind": "merge",
                "members": self.names(source),
                "into": self.timed.graph.name(op),
                "exposed_before": was.0,
                "exposed": after[op].0,
                "gain": (was - after[op]).0,
            })
        };
        merged.enumerate().map(recipe).collect()
    }

    /// Where every operation that is not an old one comes from.
    fn origin(&self) -> Vec<Value> {
        let new = self.origin.ops.iter().filter(|(_, source)| source.part != Part::Kept);
        let entry = |(op, source): (OpId, &Source)| json!({ "node": self.timed.graph.name(op), "part": source.part.name(), "of": self.names(source) });
        new.map(entry).collect()
    }
}
