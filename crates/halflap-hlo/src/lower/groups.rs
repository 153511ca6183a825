//! The process groups of a computation.

use std::collections::BTreeMap;

use crate::ReplicaGroups;
use halflap::graph::{GroupKind, GroupParts};
use halflap::ids::{GroupId, Id, IdVec};

/// The process groups and kinds of transfer found so far, each once.
#[derive(Default)]
pub(super) struct GroupTable {
    /// By display name.
    known: BTreeMap<String, Vec<GroupId>>,
    sets: IdVec<GroupId, Option<ReplicaGroups>>,
    names: IdVec<GroupId, String>,
}

impl GroupTable {
    pub(super) fn ranks(&mut self, groups: ReplicaGroups) -> GroupId {
        let name = groups.describe();
        let same = self.known.get(&name).into_iter().flatten();
        let found = same
            .copied()
            .find(|&id| self.sets[id].as_ref().is_some_and(|known| known.groups == groups.groups));
        if let Some(id) = found {
            return id;
        }
        let others = self.known.entry(name.clone()).or_default();
        let unique =
            if others.is_empty() { name } else { format!("{name} ({})", others.len() + 1) };
        let id = self.names.push(unique);
        self.sets.push(Some(groups));
        others.push(id);
        id
    }

    pub(super) fn transfer(&mut self, kind: &str) -> GroupId {
        let name = format!("{kind} transfers");
        if let Some(&[id]) = self.known.get(&name).map(Vec::as_slice) {
            return id;
        }
        let id = self.names.push(name.clone());
        self.sets.push(None);
        self.known.insert(name, vec![id]);
        id
    }

    /// A group's ranks represent all sets of devices: those of the first device, or all if the
    /// former would hide that two groups must share a stream.
    pub(super) fn into_parts(self) -> IdVec<GroupId, GroupParts> {
        let first = |groups: &ReplicaGroups| {
            groups.groups.iter().find(|set| set.contains(&0)).or(groups.groups.first()).cloned()
        };
        let ranks: Vec<Vec<u32>> = self
            .sets
            .iter()
            .map(|(_, set)| set.as_ref().and_then(first).unwrap_or_default())
            .collect();
        let mut parts: IdVec<GroupId, GroupParts> = IdVec::default();
        for (id, name) in self.names.iter() {
            let Some(set) = &self.sets[id] else {
                let kind = GroupKind::Transfer;
                parts.push(GroupParts { kind, ..GroupParts::new(name.clone(), Vec::new()) });
                continue;
            };
            let hides = |(other, there): (GroupId, &Option<ReplicaGroups>)| {
                let share = |there: &ReplicaGroups| {
                    set.share_two(there) && common(&ranks[id.index()], &ranks[other.index()]) < 2
                };
                other != id && there.as_ref().is_some_and(share)
            };
            let ranks = match self.sets.iter().any(hides) {
                true => set.groups.iter().flatten().copied().collect(),
                false => ranks[id.index()].clone(),
            };
            let sets = set.groups.clone();
            parts.push(GroupParts { sets, ..GroupParts::new(name.clone(), ranks) });
        }
        parts
    }
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().filter(|rank| b.contains(rank)).count()
}
