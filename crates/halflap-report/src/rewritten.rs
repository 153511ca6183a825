//! A result whose graph differs from its input's: the old one seen through the origin of the new.

use serde::Serialize;
use serde_json::{Value, json};

use super::Timed;
use super::timing::exposed_by_collective;
use halflap::graph::Graph;
use halflap::ids::{IdVec, OpId};
use halflap::origin::{Origin, Part, Source};
use halflap::rewrite::Recipe;
use halflap::simulate::Simulation;
use halflap::units::{Bytes, Nanos};

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

/// The operations of the new program that do what a recipe's members did: the merged collective,
/// all pieces, the one that stays, or those on the second communicator.
pub fn became(origin: &Origin, recipe: &Recipe) -> Vec<OpId> {
    let is_made_of = |source: &Source| match (recipe, source.part) {
        (Recipe::Merge { members }, Part::Merged) => source.of == *members,
        (Recipe::Split { members, .. }, Part::Piece { .. }) => members.contains(&source.of[0]),
        (Recipe::Keep { members }, Part::Kept | Part::Merged) => source.of.contains(&members[0]),
        (Recipe::Groups { members }, Part::Kept | Part::Merged) => members.contains(&source.of[0]),
        _ => false,
    };
    let made = origin.ops.iter().filter(|(_, source)| is_made_of(source));
    made.map(|(op, _)| op).collect()
}

/// The memory that an operation's results take.
pub fn result_size(graph: &Graph, op: OpId) -> Bytes {
    graph.outputs(op).iter().map(|&buffer| graph.size_alloc(buffer)).sum()
}

/// The name of a collective's process group.
pub fn group_name(graph: &Graph, op: OpId) -> &str {
    graph.collective(op).map_or("", |of| &graph.groups()[of.group].name)
}

/// A schedule of a changed program, for machines: `halflap.schedule/1` with what was changed.
pub struct TimedRewrite<'a> {
    /// The schedule, of the new program.
    pub timed: Timed<'a>,
    /// The old program.
    pub before: &'a Graph,
    /// What became of it.
    pub origin: &'a Origin,
    /// What was done, in the sequence that numbers it.
    pub recipes: &'a [Recipe],
    /// The old program's order in time.
    pub simulated_before: &'a Simulation,
    /// The new one's.
    pub simulated: &'a Simulation,
    /// The step of the best order of the old program, if rewrites were searched.
    pub order_alone: Option<Nanos>,
    /// Why process groups have no second communicator, if they were allowed one.
    pub one_communicator: Option<Value>,
}

impl Serialize for TimedRewrite<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a, 'b> {
            #[serde(flatten)]
            timed: &'a Timed<'b>,
            #[serde(skip_serializing_if = "Option::is_none")]
            order_alone: Option<f64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            one_communicator: Option<&'a Value>,
            recipes: Vec<Value>,
            origin: Vec<Value>,
        }
        let order_alone = self.order_alone.map(|time| time.0);
        let (recipes, origin) = (self.recipes(), self.origin());
        let (timed, one_communicator) = (&self.timed, self.one_communicator.as_ref());
        Fields { timed, order_alone, one_communicator, recipes, origin }.serialize(serializer)
    }
}

impl TimedRewrite<'_> {
    fn names(&self, ops: &[OpId]) -> Vec<&str> {
        ops.iter().map(|&op| self.before.name(op)).collect()
    }

    /// What was done, and what it gained according to the simulation: what members exposed minus
    /// what is exposed now.
    fn recipes(&self) -> Vec<Value> {
        let (before, after) =
            (exposed_by_collective(self.simulated_before), exposed_by_collective(self.simulated));
        let recipe = |(number, recipe): (usize, &Recipe)| {
            let was: Nanos = recipe.members().iter().map(|&member| before[member]).sum();
            let made = became(self.origin, recipe);
            let is: Nanos = made.iter().map(|&op| after[op]).sum();
            let kind = recipe.kind().name();
            let mut value = json!({
                "name": format!("{kind}:{}", number + 1),
                "kind": kind,
                "members": self.names(recipe.members()),
                "exposed_before": was.0,
                "exposed": is.0,
                "gain": (was - is).0,
                "exact": recipe.is_exact(self.before),
            });
            match (recipe, made.first()) {
                (Recipe::Split { pieces, .. }, _) => value["pieces"] = json!(pieces),
                (Recipe::Merge { .. }, Some(&op)) => {
                    value["into"] = json!(self.timed.graph.name(op));
                }
                (Recipe::Keep { members }, _) => {
                    value["kept_bytes"] = json!(result_size(self.before, members[0]).0);
                }
                (Recipe::Groups { members }, Some(&op)) => {
                    value["group"] = json!(group_name(self.before, members[0]));
                    value["into"] = json!(group_name(self.timed.graph, op));
                }
                (Recipe::Merge { .. } | Recipe::Groups { .. }, None) => {}
            }
            value
        };
        self.recipes.iter().enumerate().map(recipe).collect()
    }

    /// The origin of every operation that is not an old one.
    fn origin(&self) -> Vec<Value> {
        let new = self.origin.ops.iter().filter(|(_, source)| source.part != Part::Kept);
        let entry = |(op, source): (OpId, &Source)| {
            let (node, part) = (self.timed.graph.name(op), source.part.name());
            json!({ "node": node, "part": part, "of": self.names(&source.of) })
        };
        new.map(entry).collect()
    }
}
