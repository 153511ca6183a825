//! Old operations that the new program does without, because others have the same results.
//!
//! If these are all-gathers of the same values among the same ranks, and their waits, the old
//! program computes the same without them. The rest of the proof compares that program with the
//! new one.

use std::collections::{BTreeMap, BTreeSet};

use super::{Checked, RewriteViolation};
use crate::collective::CollectiveKind;
use crate::graph::{BufferParts, DepKinds, Graph, OpKind, OpParts, Parts};
use crate::ids::{BufId, Id, IdVec, OpId};
use crate::origin::{Origin, Source};
use crate::units::Bytes;

/// The old program without what others stand in for.
pub(super) struct WithoutRepeats {
    pub(super) graph: Graph,
    /// What became of it.
    pub(super) origin: Origin,
}

pub(super) fn without_repeats(
    before: &Graph,
    origin: &Origin,
) -> Result<WithoutRepeats, RewriteViolation> {
    let repeats = Repeats { before, origin };
    for (&gone, &stays) in &origin.dropped {
        if gone.index() >= before.len() || !repeats.is_right(gone, stays) {
            let is_known = gone.index() < before.len();
            let node = if is_known { before.name(gone) } else { "the program" };
            return Err(RewriteViolation::NotRepeated { node: node.to_owned() });
        }
        repeats.nothing_writes(gone)?;
        repeats.nothing_writes(stays)?;
    }
    let numbers = repeats.numbers();
    let bad = || RewriteViolation::BadOrigin { node: "the program".to_owned() };
    let graph = Graph::new(repeats.rebuilt(&numbers)).map_err(|_| bad())?;
    let origin = repeats.claims(&numbers).ok_or_else(bad)?;
    Ok(WithoutRepeats { graph, origin })
}

struct Repeats<'a> {
    before: &'a Graph,
    origin: &'a Origin,
}

/// The numbers of operations and buffers in the program without repeats.
struct NewNumbers {
    ops: IdVec<OpId, Option<OpId>>,
    buffers: IdVec<BufId, Option<BufId>>,
}

impl Repeats<'_> {
    fn is_gone(&self, op: OpId) -> bool {
        self.origin.dropped.contains_key(&op)
    }

    /// Whether an earlier operation has the same results as a later one that is left out.
    fn is_right(&self, gone: OpId, stays: OpId) -> bool {
        let before = self.before;
        if stays >= gone || self.is_gone(stays) {
            return false;
        }
        let does_same = match before.kind(gone) {
            OpKind::AsyncCollective | OpKind::SyncCollective => self.gathers_same(gone, stays),
            OpKind::Wait => self.waits_for_same(gone, stays),
            OpKind::Compute | OpKind::MultiOutput => false,
        };
        does_same && before.kind(gone) == before.kind(stays) && self.makes_same(gone, stays)
    }

    /// The same values are gathered among the same ranks, and nothing is left waiting for the
    /// operation that goes.
    fn gathers_same(&self, gone: OpId, stays: OpId) -> bool {
        let sent = |op: OpId| -> BTreeSet<BufId> {
            let deps = self.before.deps(op).iter();
            deps.filter(|(_, kinds)| kinds.data).map(|(buffer, _)| *buffer).collect()
        };
        let (of, by) = (self.before.collective(gone), self.before.collective(stays));
        of == by
            && of.is_some_and(|of| of.kind == CollectiveKind::AllGather && of.content.is_some())
            && sent(gone) == sent(stays)
            && self.before.waited_by(gone).iter().all(|&wait| self.is_gone(wait))
    }

    fn waits_for_same(&self, gone: OpId, stays: OpId) -> bool {
        match (self.before.waits_for(gone), self.before.waits_for(stays)) {
            (&[of], &[by]) => self.origin.dropped.get(&of) == Some(&by),
            _ => false,
        }
    }

    /// Buffers are alike in sequence, size and what they are parts of, and none is a result of the
    /// program.
    fn makes_same(&self, gone: OpId, stays: OpId) -> bool {
        let before = self.before;
        let (made, held) = (before.outputs(gone), before.outputs(stays));
        made.len() == held.len()
            && made.iter().zip(held).all(|(&a, &b)| {
                before.size_alloc(a) == before.size_alloc(b)
                    && before.size_free(a) == before.size_free(b)
                    && !before.is_output(a)
                    && before.view_of(a).map(|whole| self.held_by(whole)) == before.view_of(b)
            })
    }

    /// Nothing but a wait that goes or stays makes a buffer without a size of what an operation
    /// makes: that is how writing in place, and views, look.
    fn nothing_writes(&self, op: OpId) -> Checked {
        let before = self.before;
        let stays = |user: OpId| self.origin.dropped.values().any(|&by| by == user);
        for &buffer in before.outputs(op) {
            for &user in before.users(buffer) {
                let is_known =
                    self.is_gone(user) || before.kind(user) == OpKind::Wait && stays(user);
                let takes_none = |made: &BufId| before.size_alloc(*made) <= Bytes::ZERO;
                let is_odd = matches!(
                    before.kind(user),
                    OpKind::Wait | OpKind::MultiOutput | OpKind::SyncCollective
                );
                if !is_known && (is_odd || before.outputs(user).iter().any(takes_none)) {
                    let (node, buffer) =
                        (before.name(user).to_owned(), before.buffer_name(buffer).to_owned());
                    return Err(RewriteViolation::MayWrite { node, buffer });
                }
            }
        }
        Ok(())
    }

    /// The buffer that holds the content of another, or itself.
    fn held_by(&self, buffer: BufId) -> BufId {
        let stand_in = || {
            let maker = self.before.maker(buffer)?;
            let stays = *self.origin.dropped.get(&maker)?;
            let place = self.before.outputs(maker).iter().position(|&one| one == buffer)?;
            self.before.outputs(stays).get(place).copied()
        };
        stand_in().unwrap_or(buffer)
    }

    fn numbers(&self) -> NewNumbers {
        let (mut ops, mut buffers) = (0, 0);
        let next = |count: &mut usize, stays: bool| {
            *count += usize::from(stays);
            stays.then(|| *count - 1)
        };
        let op = |op| next(&mut ops, !self.is_gone(op)).map(OpId::from_index);
        let ops = self.before.ops().map(op).collect();
        let buffer = |one| next(&mut buffers, self.held_by(one) == one).map(BufId::from_index);
        NewNumbers { ops, buffers: self.before.buffers().map(buffer).collect() }
    }

    fn rebuilt(&self, numbers: &NewNumbers) -> Parts {
        let old = self.before.clone().into_parts();
        let held = |buffer: BufId| numbers.buffers[self.held_by(buffer)];
        let mut parts = Parts { groups: old.groups, ..Parts::default() };
        for (buffer, made) in old.buffers.iter().filter(|(one, _)| numbers.buffers[*one].is_some())
        {
            parts.buffers.push(BufferParts {
                maker: self.before.maker(buffer).and_then(|maker| numbers.ops[maker]),
                view_of: made.view_of.and_then(held),
                users: Vec::new(),
                ..made.clone()
            });
        }
        for buffer in self.before.buffers() {
            let users = self.before.users(buffer).iter().filter_map(|&user| numbers.ops[user]);
            if let Some(new) = held(buffer) {
                parts.buffers[new].users.extend(users);
            }
        }
        for (_, op) in old.ops.iter().filter(|(op, _)| numbers.ops[*op].is_some()) {
            // The order of collectives is no part of what is proved.
            let real = |kinds: DepKinds| DepKinds { order: false, ..kinds };
            let deps = op.deps.iter().map(|&(buffer, kinds)| (buffer, real(kinds)));
            let deps = deps.filter(|(_, kinds)| kinds.is_real());
            let deps = deps.filter_map(|(buffer, kinds)| Some((held(buffer)?, kinds))).collect();
            let outputs = op.outputs.iter().filter_map(|&buffer| held(buffer)).collect();
            parts.ops.push(OpParts { deps, outputs, ..op.clone() });
        }
        parts
    }

    /// The origin, with the numbers of that program; `None` if it names what is left out.
    fn claims(&self, numbers: &NewNumbers) -> Option<Origin> {
        let known = |op: &OpId| numbers.ops.as_slice().get(op.index()).copied().flatten();
        let source = |source: &Source| {
            let of = source.of.iter().map(known).collect::<Option<_>>()?;
            Some(Source { part: source.part, of })
        };
        let named = |one: &BufId| numbers.buffers.as_slice().get(one.index()).copied().flatten();
        let of = |of: &Vec<BufId>| of.iter().map(named).collect::<Option<Vec<_>>>();
        Some(Origin {
            ops: self.origin.ops.iter().map(|(_, one)| source(one)).collect::<Option<_>>()?,
            buffers: self.origin.buffers.iter().map(|(_, one)| of(one)).collect::<Option<_>>()?,
            dropped: BTreeMap::new(),
        })
    }
}
