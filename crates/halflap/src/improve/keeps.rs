//! Plans that keep what was gathered instead of gathering it again.

use std::collections::BTreeMap;

use super::Request;
use crate::graph::Graph;
use crate::ids::{Id, OpId};
use crate::memory::Timeline;
use crate::order::Order;
use crate::rewrite::{Recipe, RewriteKind, repeated};
use crate::units::Bytes;

/// How much of the memory that the program's own order leaves free may be used. What is left hides
/// other collectives.
pub(super) const PARTS: [f64; 3] = [1.0, 0.5, 0.25];

/// A result that could stay from one all-gather to the next of the same values.
struct Stay {
    set: usize,
    /// Which of the set's members gathers it; the next one is saved.
    member: usize,
    bytes: Bytes,
    /// The places in the input order where it is not in memory now.
    gap: std::ops::Range<usize>,
    /// Saved nanoseconds for each byte and operation.
    worth: f64,
}

/// What can be kept in a program.
pub(super) struct Keeps {
    sets: Vec<Vec<OpId>>,
    /// The most worthwhile first.
    stays: Vec<Stay>,
    /// What the input order leaves free, by place.
    free: Vec<f64>,
}

impl Keeps {
    pub(super) fn new(request: &Request<'_>) -> Keeps {
        let task = request.task;
        let is_allowed = request.allowed.kinds.contains(&RewriteKind::Keep);
        let sets = if is_allowed { repeated(task.graph) } else { Vec::new() };
        if sets.is_empty() {
            return Keeps { sets, stays: Vec::new(), free: Vec::new() };
        }
        let memory = Timeline::of(task.graph, &Order::of_input(task.graph));
        let left = |op: OpId| (task.memory_limit - memory.levels[op].post_alloc).0.max(0) as f64;
        let free = task.graph.ops().map(left).collect();
        let mut stays = Vec::new();
        for (set, members) in sets.iter().enumerate() {
            for (member, pair) in members.windows(2).enumerate() {
                let [first, next] = [pair[0], pair[1]];
                let bytes = made(task.graph, first);
                let freed =
                    task.graph.outputs(first).iter().filter_map(|&one| memory.freed_by[one]);
                let from = freed.max().map_or(next.index(), |last| last.index() + 1);
                let gap = from.min(next.index())..next.index();
                let cost = bytes.0.max(1) as f64 * (gap.len() + 1) as f64;
                let worth = task.machine.times.of(next).0 / cost;
                stays.push(Stay { set, member, bytes, gap, worth });
            }
        }
        stays.sort_by(|a, b| b.worth.total_cmp(&a.worth));
        Keeps { sets, stays, free }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stays.is_empty()
    }

    /// As much as fits into a part of the free memory.
    pub(super) fn recipes(&self, part: f64) -> Vec<Recipe> {
        let mut free: Vec<f64> = self.free.iter().map(|bytes| bytes * part).collect();
        let mut chosen: BTreeMap<(usize, usize), bool> = BTreeMap::new();
        for stay in &self.stays {
            let bytes = stay.bytes.0 as f64;
            let fits = free[stay.gap.clone()].iter().all(|&left| left >= bytes);
            if fits {
                free[stay.gap.clone()].iter_mut().for_each(|left| *left -= bytes);
            }
            chosen.insert((stay.set, stay.member), fits);
        }
        let mut recipes: Vec<Recipe> = Vec::new();
        let mut run: Vec<OpId> = Vec::new();
        for (&(set, member), &is_kept) in &chosen {
            let members = &self.sets[set];
            if member == 0 {
                end(&mut run, &mut recipes);
                run.push(members[0]);
            }
            if !is_kept {
                end(&mut run, &mut recipes);
            }
            run.push(members[member + 1]);
        }
        end(&mut run, &mut recipes);
        recipes
    }
}

/// Ends a run of members whose result stays.
fn end(run: &mut Vec<OpId>, recipes: &mut Vec<Recipe>) {
    let members = std::mem::take(run);
    if members.len() > 1 {
        recipes.push(Recipe::Keep { members });
    }
}

fn made(graph: &Graph, op: OpId) -> Bytes {
    graph.outputs(op).iter().map(|&buffer| graph.size_alloc(buffer)).sum()
}
