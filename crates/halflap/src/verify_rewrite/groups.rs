//! Second communicators of the new program.
//!
//! A collective has the same results on any communicator of the same ranks in the same sequence.
//! All ranks run the same program, so on each communicator they issue the same collectives in one
//! order. The rest of the proof compares the old program with the new one on the first
//! communicators alone.

use super::RewriteViolation;
use crate::graph::{Graph, GroupParts};
use crate::ids::{GroupId, Id};

/// The new program with the process groups of the old one.
pub(super) fn without_seconds(before: &Graph, after: &Graph) -> Result<Graph, RewriteViolation> {
    let (old, new) = (before.groups().as_slice(), after.groups().as_slice());
    if let Some(lost) = (0..old.len()).find(|&at| new.get(at) != Some(&old[at])) {
        return Err(RewriteViolation::GroupChanged { group: old[lost].name.clone() });
    }
    let first = |group: &GroupParts| -> Result<GroupId, RewriteViolation> {
        let is_same = |id: &GroupId| {
            let of = old.get(id.index());
            of.is_some_and(|of| {
                (&of.ranks, &of.sets, of.kind) == (&group.ranks, &group.sets, group.kind)
                    && of.second_of.is_none()
            })
        };
        let of = group.second_of.filter(is_same);
        of.ok_or_else(|| RewriteViolation::GroupInvented { group: group.name.clone() })
    };
    let firsts = new[old.len()..].iter().map(first).collect::<Result<Vec<_>, _>>()?;
    let mut parts = after.clone().into_parts();
    parts.groups = before.groups().clone();
    for op in parts.ops.ids() {
        if let Some(of) = &mut parts.ops[op].collective
            && let Some(place) = of.group.index().checked_sub(old.len())
        {
            of.group = firsts[place];
        }
    }
    Graph::new(parts).map_err(|_| RewriteViolation::BadOrigin { node: "the program".to_owned() })
}
