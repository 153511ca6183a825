//! Precedences that the memory limit implies: one operation cannot come before another, because
//! what would be alive then exceeds the limit.
//!
//! At the start of an operation the least that can be alive, over all closed sets without another
//! operation, is a minimum cut. Where even that does not fit, the other one comes first in every
//! order within the limit.

use super::event::Event;
use super::network::Network;
use crate::graph::{Graph, OpKind};
use crate::ids::{Id, OpId};

/// One operation that comes before another in every order within the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Precedence {
    pub(super) first: OpId,
    pub(super) then: OpId,
}

/// How many operations are tested, those that take longest, and against how many of the path.
const TESTED: usize = 32;
const PLACES: usize = 256;
/// At how many places of the path, those with the least memory left, others are tested.
const TIGHT: usize = 4;

/// Finds such pairs: of an operation of a path, and one that is not on it.
pub(super) fn find(graph: &Graph, network: &Network, path: &[OpId], limit: f64) -> Vec<Precedence> {
    let places = path.len().min(PLACES);
    let path: Vec<OpId> = (0..places).map(|place| path[place * path.len() / places]).collect();
    let search = PrecedenceSearch { network, path: &path, limit };
    let tight = search.tightest();
    let mut others: Vec<OpId> =
        graph.ops().filter(|&op| is_run(graph, op) && !path.contains(&op)).collect();
    let time = |op: OpId| network.work[op.index()].time;
    others.sort_by(|&a, &b| time(b).total_cmp(&time(a)).then(a.cmp(&b)));
    let mut found = Vec::new();
    for op in others.into_iter().take(TESTED) {
        found.extend(search.last_before(op).map(|first| Precedence { first, then: op }));
        found.extend(search.first_after(op, &tight).map(|then| Precedence { first: op, then }));
    }
    found.sort_unstable();
    found
}

fn is_run(graph: &Graph, op: OpId) -> bool {
    graph.kind(op) != OpKind::MultiOutput
}

struct PrecedenceSearch<'a> {
    network: &'a Network,
    path: &'a [OpId],
    limit: f64,
}

impl PrecedenceSearch<'_> {
    /// Whether an operation cannot start before another one has come.
    fn needs(&self, op: OpId, other: OpId) -> bool {
        let event = Event::without(self.network, op, other, self.limit);
        event.is_none_or(|event| event.least_memory() > event.room)
    }

    /// The places of the path where least memory is left, ascending.
    fn tightest(&self) -> Vec<usize> {
        let left = |&op: &OpId| {
            let event = Event::new(self.network, op, self.limit);
            event.room - event.least_memory()
        };
        let left: Vec<f64> = self.path.iter().map(left).collect();
        let mut places: Vec<usize> = (0..self.path.len()).collect();
        places.sort_by(|&a, &b| left[a].total_cmp(&left[b]).then(a.cmp(&b)));
        places.truncate(TIGHT);
        places.sort_unstable();
        places
    }

    /// The last operation of the path that must come before another one. What must come before the
    /// last one must come before that one, too.
    fn last_before(&self, op: OpId) -> Option<OpId> {
        let (mut low, mut high) = (0, self.path.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.needs(op, self.path[middle]) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low.checked_sub(1).map(|place| self.path[place])
    }

    /// The first of some operations of the path that another one must come before.
    fn first_after(&self, op: OpId, places: &[usize]) -> Option<OpId> {
        places.iter().map(|&place| self.path[place]).find(|&then| self.needs(then, op))
    }
}
