//! What became of a program's operations and buffers.

use crate::graph::Graph;
use crate::ids::{BufId, IdVec, OpId};

/// What an operation of the new program is there for.
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
}

impl Part {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Part::Kept => "kept",
            Part::CopyIn => "copy_in",
            Part::Merged => "merged",
            Part::Wait => "wait",
            Part::CopyOut => "copy_out",
        }
    }
}

/// Where an operation of the new program comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What it is there for.
    pub part: Part,
    /// The old operations that it represents, ascending; at least one.
    pub of: Vec<OpId>,
}

/// Maps every operation and buffer of a new program to old ones, whose ids differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// By the new operation.
    pub ops: IdVec<OpId, Source>,
    /// By the new buffer: one for a buffer of the old program, several for a bucket.
    pub buffers: IdVec<BufId, Vec<BufId>>,
}

impl Origin {
    /// Of a program that is as it was.
    pub fn unchanged(graph: &Graph) -> Origin {
        Origin {
            ops: graph.ops().map(|op| Source { part: Part::Kept, of: vec![op] }).collect(),
            buffers: graph.buffers().map(|buffer| vec![buffer]).collect(),
        }
    }

    /// The origin of a program that was changed once more.
    pub fn then(&self, next: &Origin) -> Origin {
        let op = |source: &Source| {
            let mut of: Vec<OpId> = source.of.iter().flat_map(|&op| self.ops[op].of.iter().copied()).collect();
            of.sort_unstable();
            of.dedup();
            let part = match (source.part, &source.of[..]) {
                (Part::Kept, &[op]) => self.ops[op].part,
                (part, _) => part,
            };
            Source { part, of }
        };
        let buffer = |of: &Vec<BufId>| {
            let mut of: Vec<BufId> = of.iter().flat_map(|&one| self.buffers[one].iter().copied()).collect();
            of.sort_unstable();
            of.dedup();
            of
        };
        Origin {
            ops: next.ops.iter().map(|(_, source)| op(source)).collect(),
            buffers: next.buffers.iter().map(|(_, of)| buffer(of)).collect(),
        }
    }

    /// For each of so many old operations the new one that does what it did: itself, the merged
    /// collective of a member, the copy or the wait in place of a wait.
    pub fn carriers(&self, old: usize) -> IdVec<OpId, Option<OpId>> {
        let rank = |part: Part| match part {
            Part::Kept | Part::Merged => 0,
            Part::CopyOut => 1,
            Part::Wait => 2,
            Part::CopyIn => 3,
        };
        let mut carriers: IdVec<OpId, Option<OpId>> = IdVec::filled(None, old);
        for (new, source) in self.ops.iter() {
            for &op in &source.of {
                let is_better = carriers[op].is_none_or(|held| rank(source.part) < rank(self.ops[held].part));
                if is_better {
                    carriers[op] = Some(new);
                }
            }
        }
        carriers
    }
}
