//! Chaining of collectives: each must follow the one before it.

use super::{DepKinds, Graph, Parts};
use crate::ids::{BufId, GroupId, IdVec, OpId};

/// Which collectives are chained to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// Those of the same process group: what ranks must agree on.
    EachGroup,
    /// All of them, as torch does.
    AllGroups,
}

impl Graph {
    /// The same program with order-only edges from every output of a collective to the next
    /// collective in input order, so that passes that keep such edges keep the order of
    /// collectives. An edge needs a buffer: a collective without outputs is bridged.
    pub fn order_collectives(self, chain: Chain) -> Graph {
        let mut parts = self.into_parts();
        let mut last: IdVec<GroupId, Option<OpId>> = IdVec::filled(None, parts.groups.len());
        let mut last_of_all = None;
        for op in parts.ops.ids() {
            let Some(group) = parts.ops[op].collective.as_ref().map(|collective| collective.group)
            else {
                continue;
            };
            let last = match chain {
                Chain::EachGroup => &mut last[group],
                Chain::AllGroups => &mut last_of_all,
            };
            if let Some(previous) = *last {
                add_order_edges(&mut parts, previous, op);
            }
            if !parts.ops[op].outputs.is_empty() {
                *last = Some(op);
            }
        }
        // Edges from earlier to later operations keep input order a topological order.
        Graph::new(parts).expect("order-only edges along the input order leave a valid graph valid")
    }
}

fn add_order_edges(parts: &mut Parts, previous: OpId, op: OpId) {
    let kinds = DepKinds { order: true, ..DepKinds::default() };
    let outputs: Vec<BufId> = parts.ops[previous].outputs.clone();
    parts.ops[op].deps.extend(outputs.into_iter().map(|buffer| (buffer, kinds)));
}
