//! A plan that does not fit, with smaller buckets where it does not.

use crate::ids::OpId;
use crate::memory::Timeline;
use crate::order::Order;
use crate::origin::Part;
use crate::rewrite::{Recipe, Rewritten};
use crate::units::Bytes;

/// The same merges, but those whose buckets are alive where the changed program, in its own order,
/// needs more than the limit are halved, or dropped. `None` if it fits.
pub(super) fn thinned(
    recipes: &[Recipe],
    rewritten: &Rewritten,
    limit: Bytes,
) -> Option<Vec<Recipe>> {
    let Rewritten { graph, origin } = rewritten;
    let memory = Timeline::of(graph, &Order::of_input(graph));
    let is_full = |op: &OpId| memory.levels[*op].post_alloc > limit;
    let full: Vec<OpId> = graph.ops().filter(is_full).collect();
    if full.is_empty() {
        return None;
    }
    let is_in_the_way = |merged: OpId| {
        let made_for = graph.deps(merged).iter().filter(|(_, kinds)| kinds.data);
        let first = made_for.filter_map(|(bucket, _)| graph.maker(*bucket)).min().unwrap_or(merged);
        let freed = graph.outputs(merged).iter().filter_map(|&bucket| memory.freed_by[bucket]);
        let last = freed.max().unwrap_or(merged);
        full.iter().any(|at| (first..=last).contains(at))
    };
    let merged = origin.ops.iter().filter(|(_, source)| source.part == Part::Merged);
    let in_the_way: Vec<&[OpId]> = merged
        .filter(|(op, _)| is_in_the_way(*op))
        .map(|(_, source)| source.of.as_slice())
        .collect();
    let smaller = |recipe: &Recipe| match recipe {
        Recipe::Merge { members } if in_the_way.contains(&members.as_slice()) => {
            let (first, second) = members.split_at(members.len() / 2);
            let halves = [first, second].into_iter().filter(|half| half.len() > 1);
            halves.map(|half| Recipe::Merge { members: half.to_vec() }).collect()
        }
        recipe => vec![recipe.clone()],
    };
    Some(recipes.iter().flat_map(smaller).collect())
}
