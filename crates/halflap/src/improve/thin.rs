//! What is left of a plan that does not fit.

use crate::ids::{Id, OpId};
use crate::memory::Timeline;
use crate::order::Order;
use crate::origin::Part;
use crate::rewrite::{Recipe, Rewritten};
use crate::units::Bytes;

/// The merges whose buckets are not alive where the changed program, in its own order, needs more than
/// the limit.
pub(super) fn thinned(recipes: &[Recipe], rewritten: &Rewritten, limit: Bytes) -> Vec<Recipe> {
    let Rewritten { graph, origin } = rewritten;
    let memory = Timeline::of(graph, &Order::of_input(graph));
    let mut alive = memory.baseline;
    let mut full: Vec<usize> = Vec::new();
    for op in graph.ops() {
        let level = memory.levels[op];
        alive += level.alloc;
        if alive > limit {
            full.push(op.index());
        }
        alive = alive - level.free;
    }
    let is_dropped = |merged: OpId| {
        let made_for = graph.deps(merged).iter().filter(|(_, kinds)| kinds.data);
        let first = made_for.filter_map(|(bucket, _)| graph.maker(*bucket)).min().unwrap_or(merged);
        let freed = graph.outputs(merged).iter().filter_map(|&bucket| memory.freed_by[bucket]);
        let last = freed.max().unwrap_or(merged);
        full.iter().any(|&at| (first.index()..=last.index()).contains(&at))
    };
    let merged = origin.ops.iter().filter(|(_, source)| source.part == Part::Merged);
    let dropped: Vec<&[OpId]> =
        merged.filter(|(op, _)| is_dropped(*op)).map(|(_, source)| source.of.as_slice()).collect();
    let is_left = |Recipe::Merge { members }: &&Recipe| !dropped.contains(&members.as_slice());
    recipes.iter().filter(is_left).cloned().collect()
}
