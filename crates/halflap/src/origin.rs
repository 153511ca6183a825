//! Which old operations and buffers those of a rewritten program stand for.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Edges, Graph, OpKind};
use crate::ids::{BufId, IdVec, OpId};

/// The role of an operation in the new program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It is an operation of the old program.
    Kept,
    /// It copies what members send into a bucket.
    CopyIn,
    /// It is the collective in place of the members.
    Merged,
    /// It waits for the merged collective.
    Wait,
    /// It copies what one member receives out of the bucket, in place of its wait.
    CopyOut,
    /// It is one of the pieces that an operation was cut into.
    Piece {
        /// Which, from zero.
        number: u32,
        /// Of how many.
        of: u32,
    },
}

impl Part {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Part::Kept => "kept",
            Part::CopyIn => "copy_in",
            Part::Merged => "merged",
            Part::Wait => "wait",
            Part::CopyOut => "copy_out",
            Part::Piece { .. } => "piece",
        }
    }
}

/// Where an operation of the new program comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its role.
    pub part: Part,
    /// The old operations that it represents, ascending; at least one.
    pub of: Vec<OpId>,
}

/// Maps every operation and buffer of a new program to old ones, whose ids differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// By the new operation.
    pub ops: IdVec<OpId, Source>,
    /// By the new buffer: one for a buffer of the old program, several for a bucket.
    pub buffers: IdVec<BufId, Vec<BufId>>,
    /// The old operations that the new program does without, each with the old one whose results
    /// stand in for its own.
    pub dropped: BTreeMap<OpId, OpId>,
}

impl Origin {
    /// For an unchanged program.
    pub fn unchanged(graph: &Graph) -> Origin {
        Origin {
            ops: graph.ops().map(|op| Source { part: Part::Kept, of: vec![op] }).collect(),
            buffers: graph.buffers().map(|buffer| vec![buffer]).collect(),
            dropped: BTreeMap::new(),
        }
    }

    /// The origin that the names in two programs claim: an operation with an old name is the old
    /// one, or a copy in place of a wait; a collective that lists old ones is made of them, and
    /// operations whose names begin with its name belong to it; `op1.p2` is the second piece of
    /// `op1`; an all-gather that is missing repeats the last one before it of the same content.
    /// It is only a claim: [`verify_rewrite`](crate::verify_rewrite) proves or refuses it.
    pub fn by_names(before: &Graph, after: &Graph) -> Origin {
        let names = MergedNames::of(before, after);
        let buffers_by_name: BTreeMap<&str, BufId> =
            before.buffers().map(|buffer| (before.buffer_name(buffer), buffer)).collect();
        let buffer = |new: BufId| {
            let name = after.buffer_name(new);
            let whole = piece_name(name).and_then(|(of, _)| buffers_by_name.get(of));
            match buffers_by_name.get(name).or(whole) {
                Some(&old) => vec![old],
                None => names.behind(name),
            }
        };
        Origin {
            ops: after.ops().map(|op| names.source(op)).collect(),
            buffers: after.buffers().map(buffer).collect(),
            dropped: names.dropped(),
        }
    }

    /// The origin of a program that was changed once more.
    pub fn then(&self, next: &Origin) -> Origin {
        let op = |source: &Source| {
            let mut of: Vec<OpId> =
                source.of.iter().flat_map(|&op| self.ops[op].of.iter().copied()).collect();
            of.sort_unstable();
            of.dedup();
            let part = match (source.part, &source.of[..]) {
                (Part::Kept, &[op]) => self.ops[op].part,
                (part, _) => part,
            };
            Source { part, of }
        };
        let buffer = |of: &Vec<BufId>| {
            let mut of: Vec<BufId> =
                of.iter().flat_map(|&one| self.buffers[one].iter().copied()).collect();
            of.sort_unstable();
            of.dedup();
            of
        };
        let first = |op: &OpId| self.ops[*op].of.first().copied();
        let later = next.dropped.iter().filter_map(|(gone, by)| Some((first(gone)?, first(by)?)));
        Origin {
            ops: next.ops.iter().map(|(_, source)| op(source)).collect(),
            buffers: next.buffers.iter().map(|(_, of)| buffer(of)).collect(),
            dropped: self.dropped.iter().map(|(&gone, &by)| (gone, by)).chain(later).collect(),
        }
    }

    /// For each of this many old operations the new one that replaces it: itself, the merged
    /// collective of a member, the copy or wait in place of a wait, or its stand-in's.
    pub fn carriers(&self, old: usize) -> IdVec<OpId, Option<OpId>> {
        let rank = |part: Part| match part {
            Part::Kept | Part::Merged | Part::Piece { .. } => 0,
            Part::CopyOut => 1,
            Part::Wait => 2,
            Part::CopyIn => 3,
        };
        let mut carriers: IdVec<OpId, Option<OpId>> = IdVec::filled(None, old);
        for (new, source) in self.ops.iter() {
            for &op in &source.of {
                let is_better =
                    carriers[op].is_none_or(|held| rank(source.part) < rank(self.ops[held].part));
                if is_better {
                    carriers[op] = Some(new);
                }
            }
        }
        for (&gone, &stays) in &self.dropped {
            carriers[gone] = carriers[stays];
        }
        carriers
    }
}

/// Two programs, and the merged collectives of the second by name.
struct MergedNames<'a> {
    before: &'a Graph,
    after: &'a Graph,
    /// The members of each, ascending.
    merged: BTreeMap<&'a str, Vec<OpId>>,
    /// Into how many pieces old operations are cut.
    pieces: BTreeMap<OpId, u32>,
}

/// What a piece is a piece of, and its number, from zero, if that is what a name says.
fn piece_name(name: &str) -> Option<(&str, u32)> {
    let (of, number) = name.rsplit_once(".p")?;
    Some((of, number.parse::<u32>().ok()?.checked_sub(1)?))
}

impl<'a> MergedNames<'a> {
    fn of(before: &'a Graph, after: &'a Graph) -> MergedNames<'a> {
        let is_new =
            |op: &OpId| after.kind(*op).is_collective() && before.find(after.name(*op)).is_none();
        let members = |op: OpId| {
            let mut members: Vec<OpId> =
                after.fused(op).iter().filter_map(|name| before.find(name)).collect();
            members.sort_unstable();
            (after.name(op), members)
        };
        let merged = after.ops().filter(is_new).map(members);
        let merged = merged.filter(|(_, members)| !members.is_empty()).collect();
        let mut names = MergedNames { before, after, merged, pieces: BTreeMap::new() };
        let found: Vec<(OpId, u32)> = after.ops().filter_map(|op| names.piece(op)).collect();
        for (old, _) in found {
            *names.pieces.entry(old).or_default() += 1;
        }
        names
    }

    /// The old operation that a new one is a piece of, and which.
    fn piece(&self, new: OpId) -> Option<(OpId, u32)> {
        let name = self.after.name(new);
        let (of, number) = piece_name(name).filter(|_| self.before.find(name).is_none())?;
        Some((self.before.find(of)?, number))
    }

    fn source(&self, new: OpId) -> Source {
        let name = self.after.name(new);
        if let Some((old, number)) = self.piece(new) {
            let of = self.pieces.get(&old).copied().unwrap_or_default();
            return Source { part: Part::Piece { number, of }, of: vec![old] };
        }
        match (self.before.find(name), self.belongs_to(name)) {
            (Some(old), _) if self.before.kind(old) == self.after.kind(new) => {
                Source { part: Part::Kept, of: vec![old] }
            }
            (Some(old), _) => Source { part: Part::CopyOut, of: self.copied(old) },
            (None, _) if self.merged.contains_key(name) => {
                Source { part: Part::Merged, of: self.merged[name].clone() }
            }
            (None, Some((members, "in"))) => Source { part: Part::CopyIn, of: members.to_vec() },
            (None, Some((members, "wait"))) => {
                let waits = self.replaced(members);
                Source {
                    part: Part::Wait,
                    of: if waits.is_empty() { members.to_vec() } else { waits },
                }
            }
            // Nothing that the verifier would accept.
            (None, _) => Source { part: Part::Kept, of: Vec::new() },
        }
    }

    /// The merged collective that a name begins with, and how it ends.
    fn belongs_to<'n>(&self, name: &'n str) -> Option<(&[OpId], &'n str)> {
        let (of, ending) = name.rsplit_once('.')?;
        self.merged.get(of).map(|members| (members.as_slice(), ending))
    }

    /// What a copy stands for: a collective, and the wait that it replaces.
    fn copied(&self, old: OpId) -> Vec<OpId> {
        if self.before.kind(old) != OpKind::Wait {
            return vec![old];
        }
        let read = self.before.deps(old).iter().filter(|(_, kinds)| kinds.data);
        let mut made_by: Vec<OpId> =
            read.filter_map(|(buffer, _)| self.before.maker(*buffer)).collect();
        made_by.retain(|op| self.before.kind(*op).is_collective());
        made_by.sort_unstable();
        made_by.dedup();
        made_by.into_iter().chain([old]).collect()
    }

    /// The waits of members that a copy replaces.
    fn replaced(&self, members: &[OpId]) -> Vec<OpId> {
        let waits = members
            .iter()
            .flat_map(|&member| self.before.succs(member, Edges::Awaited).iter().copied());
        let waits = waits.filter(|&wait| self.before.kind(wait) == OpKind::Wait);
        let is_copy = |wait: &OpId| {
            let new = self.after.find(self.before.name(*wait));
            new.is_some_and(|new| self.after.kind(new) == OpKind::Compute)
        };
        let mut waits: Vec<OpId> = waits.filter(is_copy).collect();
        waits.sort_unstable();
        waits.dedup();
        waits
    }

    /// The all-gathers that the new program does without and their waits, each with its stand-in.
    fn dropped(&self) -> BTreeMap<OpId, OpId> {
        let before = self.before;
        let merged: BTreeSet<OpId> = self.merged.values().flatten().copied().collect();
        let is_gone = |op: &OpId| {
            let is_there = self.after.find(before.name(*op)).is_some();
            !is_there && !merged.contains(op) && !self.pieces.contains_key(op)
        };
        let mut gathers: BTreeMap<&str, OpId> = BTreeMap::new();
        let mut dropped = BTreeMap::new();
        for op in before.ops() {
            let content = before.collective(op).and_then(|of| of.content.as_deref());
            let stays = match (content, before.waits_for(op)) {
                (Some(content), _) => gathers.get(content).copied(),
                (None, [of]) => {
                    dropped.get(of).and_then(|by| before.waited_by(*by).first().copied())
                }
                _ => None,
            };
            match stays.filter(|_| is_gone(&op)) {
                Some(stays) => drop(dropped.insert(op, stays)),
                None => drop(content.map(|content| gathers.insert(content, op))),
            }
        }
        dropped
    }

    /// The old buffers that a new one stands for.
    fn behind(&self, name: &str) -> Vec<BufId> {
        let Some((members, ending)) = self.belongs_to(name) else { return Vec::new() };
        let made = |ops: &[OpId]| {
            ops.iter().flat_map(|&op| self.before.outputs(op).iter().copied()).collect()
        };
        let mut buffers: Vec<BufId> = match ending {
            "in" => {
                let deps = members.iter().flat_map(|&member| self.before.deps(member));
                deps.filter(|(_, kinds)| kinds.data).map(|(buffer, _)| *buffer).collect()
            }
            "out" => made(members),
            _ => made(&self.replaced(members)),
        };
        buffers.sort_unstable();
        buffers.dedup();
        buffers
    }
}
