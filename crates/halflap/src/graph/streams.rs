//! Which collectives share a stream.

use super::{Graph, GroupKind};
use crate::ids::{GroupId, Id, IdVec, OpId, StreamId};

/// The communication stream of every collective. Not part of the graph: the same program can have
/// other assignments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streams {
    of: IdVec<OpId, Option<StreamId>>,
    /// For each stream, the one whose link it uses: itself, unless it is a second communicator's.
    links: IdVec<StreamId, StreamId>,
}

/// How collectives are assigned to streams. Transfers of one kind always have their own stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Assignment {
    /// One stream for all process groups that share more than one rank, directly or through others:
    /// communicators that run at the same time on the same devices can hang. Their second
    /// communicators ([`GroupParts::second_of`](super::GroupParts::second_of)) share another.
    #[default]
    SharedRanks,
    /// One stream for all, also for second communicators.
    One,
    /// One stream for each process group, whatever ranks they share; a second communicator still
    /// shares the link of its group.
    EachGroup,
}

impl Streams {
    /// Assigns every collective to a stream.
    pub fn assign(graph: &Graph, assignment: Assignment) -> Streams {
        let groups = graph.groups().len();
        let stream: IdVec<GroupId, StreamId> = match assignment {
            Assignment::SharedRanks => by_shared_ranks(graph),
            Assignment::One => one_for_all(graph),
            Assignment::EachGroup => (0..groups).map(StreamId::from_index).collect(),
        };
        let of_op = |op| graph.collective(op).map(|collective| stream[collective.group]);
        let mut links: IdVec<StreamId, StreamId> = (0..groups).map(StreamId::from_index).collect();
        for (id, group) in graph.groups().iter() {
            if let Some(first) = group.second_of {
                links[stream[id]] = stream[first];
            }
        }
        Streams { of: graph.ops().map(of_op).collect(), links }
    }

    /// Every stream's id is below this.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// The stream whose link a stream uses: itself, unless it is a second communicator's.
    #[inline]
    pub fn link(&self, stream: StreamId) -> StreamId {
        self.links[stream]
    }

    /// Whether two streams use one link.
    pub fn share_links(&self) -> bool {
        self.links.iter().any(|(stream, &link)| stream != link)
    }

    /// The stream that a collective communicates on; `None` for every other operation.
    #[inline]
    pub fn of(&self, op: OpId) -> Option<StreamId> {
        self.of[op]
    }
}

/// The first process group's stream for every one.
fn one_for_all(graph: &Graph) -> IdVec<GroupId, StreamId> {
    let is_ranks = |id: GroupId| graph.groups()[id].kind == GroupKind::Ranks;
    let first = graph.groups().ids().find(|&id| is_ranks(id)).map_or(0, GroupId::index);
    let stream = |id: GroupId| StreamId::from_index(if is_ranks(id) { first } else { id.index() });
    graph.groups().ids().map(stream).collect()
}

fn by_shared_ranks(graph: &Graph) -> IdVec<GroupId, StreamId> {
    let sets: Vec<Vec<u32>> =
        graph.groups().iter().map(|(_, group)| sorted(&group.ranks)).collect();
    let is_second = |group: usize| graph.groups()[GroupId::from_index(group)].second_of.is_some();
    let mut stream: IdVec<GroupId, StreamId> = (0..sets.len()).map(StreamId::from_index).collect();
    for a in 0..sets.len() {
        let together = |b: &usize| is_second(a) == is_second(*b) && share_two(&sets[a], &sets[*b]);
        for b in (0..a).filter(together) {
            let (old, new) = (stream[GroupId::from_index(a)], stream[GroupId::from_index(b)]);
            stream
                .as_mut_slice()
                .iter_mut()
                .filter(|stream| **stream == old)
                .for_each(|stream| *stream = new);
        }
    }
    stream
}

fn sorted(ranks: &[u32]) -> Vec<u32> {
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Whether two ascending lists have at least two numbers in common.
fn share_two(a: &[u32], b: &[u32]) -> bool {
    a.iter().filter(|rank| b.binary_search(rank).is_ok()).nth(1).is_some()
}
