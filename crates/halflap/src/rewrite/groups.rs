//! A second communicator for the all-gathers of a process group, so that they do not queue behind
//! its other collectives.

use super::{RewriteError, Rewritten};
use crate::collective::CollectiveKind;
use crate::graph::{Graph, GroupKind, GroupParts};
use crate::ids::{GroupId, OpId};
use crate::origin::Origin;

/// Why a process group gets no second communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undoubled {
    /// It has one, or is one.
    IsDouble,
    /// It stands for transfers that a device makes by itself.
    IsTransfer,
    /// All of its collectives would move, so that none runs beside another.
    NothingLeft,
}

impl Undoubled {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Undoubled::IsDouble => "it has one, or is one",
            Undoubled::IsTransfer => "it is of kind transfer",
            Undoubled::NothingLeft => "no other collective would be left on it",
        }
    }
}

/// The all-gathers of each process group that has other collectives, too, and could have a second
/// communicator.
pub fn divisible(graph: &Graph) -> Vec<Vec<OpId>> {
    let gathers = |group: GroupId| -> Vec<OpId> {
        let is_gather = |op: &OpId| {
            let of = graph.collective(*op);
            of.is_some_and(|of| of.group == group && of.kind == CollectiveKind::AllGather)
        };
        graph.ops().filter(is_gather).collect()
    };
    let sets = graph.groups().ids().map(gathers);
    sets.filter(|set| !set.is_empty() && group_of(graph, set).is_ok()).collect()
}

/// Moves each set of collectives to a second communicator of its process group.
pub(super) fn double(graph: &Graph, sets: &[Vec<OpId>]) -> Result<Rewritten, RewriteError> {
    let mut parts = graph.clone().into_parts();
    for members in sets {
        let first = group_of(graph, members)?;
        if parts.groups.iter().any(|(_, group)| group.second_of == Some(first)) {
            let (group, why) = (graph.groups()[first].name.clone(), Undoubled::IsDouble);
            return Err(RewriteError::NotDoubled { group, why });
        }
        let is_free = |name: &String| parts.groups.iter().all(|(_, group)| group.name != *name);
        let name = (2..).map(|number| format!("{}.{number}", graph.groups()[first].name));
        let name = name.clone().find(is_free).unwrap_or_default();
        let like = graph.groups()[first].clone();
        let second = parts.groups.push(GroupParts { name, second_of: Some(first), ..like });
        for &member in members {
            if let Some(of) = &mut parts.ops[member].collective {
                of.group = second;
            }
        }
    }
    Ok(Rewritten { graph: Graph::new(parts)?, origin: Origin::unchanged(graph) })
}

/// The process group of some of its collectives, if they can have a second communicator.
fn group_of(graph: &Graph, members: &[OpId]) -> Result<GroupId, RewriteError> {
    let name = |op: OpId| graph.name(op).to_owned();
    let of = |op: OpId| {
        let of = graph.collective(op).map(|of| of.group);
        of.ok_or_else(|| RewriteError::NotACollective { member: name(op) })
    };
    let &[first, ..] = members else { return Err(RewriteError::TooFew { count: 0 }) };
    let group = of(first)?;
    for &member in members {
        let other = of(member)?;
        if other != group {
            let names = [group, other].map(|id| graph.groups()[id].name.as_str());
            let (first, second) = (name(first), name(member));
            let values = names.join(" and ");
            return Err(RewriteError::Differs { first, second, what: "process group", values });
        }
    }
    let is_left = |op: OpId| {
        graph.collective(op).is_some_and(|of| of.group == group) && !members.contains(&op)
    };
    let parts = &graph.groups()[group];
    let is_double = parts.second_of.is_some()
        || graph.groups().iter().any(|(_, other)| other.second_of == Some(group));
    let why = match () {
        () if is_double => Undoubled::IsDouble,
        () if parts.kind == GroupKind::Transfer => Undoubled::IsTransfer,
        () if !graph.ops().any(is_left) => Undoubled::NothingLeft,
        () => return Ok(group),
    };
    Err(RewriteError::NotDoubled { group: parts.name.clone(), why })
}
