//! An input order for a changed program.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::merge::DraftOp;
use crate::graph::DepKinds;
use crate::ids::{BufId, Id, IdVec, OpId};

/// Drafts in a valid order, as close to their places as possible, and the resulting number of each.
/// Order-only edges that point backwards in it are bridged: successors of their target come after
/// their source.
pub(super) fn in_order(drafts: Vec<DraftOp>, buffers: usize) -> (Vec<DraftOp>, Vec<OpId>) {
    let mut makers: IdVec<BufId, Option<usize>> = IdVec::filled(None, buffers);
    for (index, draft) in drafts.iter().enumerate() {
        draft.op.outputs.iter().for_each(|&buffer| makers[buffer] = Some(index));
    }
    let order = sorted(&drafts, &makers);
    let mut new = vec![OpId::from_index(0); drafts.len()];
    for (place, &index) in order.iter().enumerate() {
        new[index] = OpId::from_index(place);
    }
    let mut drafts: Vec<Option<DraftOp>> = drafts.into_iter().map(Some).collect();
    bridge(&mut drafts, &makers, &new);
    (order.into_iter().filter_map(|index| drafts[index].take()).collect(), new)
}

/// Smallest place first, of those whose real dependencies are met.
fn sorted(drafts: &[DraftOp], makers: &IdVec<BufId, Option<usize>>) -> Vec<usize> {
    let mut missing = vec![0_usize; drafts.len()];
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); drafts.len()];
    for (index, draft) in drafts.iter().enumerate() {
        for (buffer, _) in draft.op.deps.iter().filter(|(_, kinds)| kinds.is_real()) {
            if let Some(maker) = makers[*buffer] {
                after[maker].push(index);
                missing[index] += 1;
            }
        }
    }
    let entry = |index: usize| Reverse((drafts[index].place, index));
    let mut ready: BinaryHeap<_> =
        (0..drafts.len()).filter(|&index| missing[index] == 0).map(entry).collect();
    let mut order = Vec::with_capacity(drafts.len());
    let mut is_placed = vec![false; drafts.len()];
    while let Some(Reverse((_, index))) = ready.pop() {
        order.push(index);
        is_placed[index] = true;
        for &next in &after[index] {
            missing[next] -= 1;
            if missing[next] == 0 {
                ready.push(entry(next));
            }
        }
    }
    // Operations in a cycle come last, where the graph's own validation reports them.
    order.extend((0..drafts.len()).filter(|&index| !is_placed[index]));
    order
}

fn bridge(drafts: &mut [Option<DraftOp>], makers: &IdVec<BufId, Option<usize>>, new: &[OpId]) {
    let mut led_to: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut turned: Vec<(BufId, usize)> = Vec::new();
    for index in 0..drafts.len() {
        let Some(draft) = &mut drafts[index] else { continue };
        for (buffer, kinds) in &mut draft.op.deps {
            let Some(maker) = makers[*buffer].filter(|_| kinds.order) else { continue };
            led_to.entry(maker).or_default().push(index);
            if new[maker] >= new[index] {
                kinds.order = false;
                turned.push((*buffer, index));
            }
        }
        draft.op.deps.retain(|(_, kinds)| *kinds != DepKinds::default());
    }
    for (buffer, target) in turned {
        let Some(maker) = makers[buffer] else { continue };
        let mut open = vec![target];
        let mut seen = open.clone();
        while let Some(target) = open.pop() {
            for &next in led_to.get(&target).into_iter().flatten() {
                if seen.contains(&next) {
                    continue;
                }
                seen.push(next);
                match &mut drafts[next] {
                    Some(draft) if new[maker] < new[next] => {
                        draft
                            .op
                            .deps
                            .push((buffer, DepKinds { order: true, ..DepKinds::default() }));
                    }
                    _ => open.push(next),
                }
            }
        }
    }
}
