//! How far a step is from the shortest one, and how that is known.

use serde_json::{Value, json};

use super::printable;
use super::text::called;
use halflap::graph::{Edges, Graph};
use halflap::ids::{GroupId, Id, OpId, StreamId};
use halflap::simulate::{Basis, Bound};
use halflap::units::Nanos;

/// `optimal`, or `within 0.48% of optimal, proved`; among orders that keep the collective order, if
/// the bound is for those.
pub fn against_bound(step_time: Nanos, bound: Bound) -> String {
    let (that, with) = match bound.edges {
        Edges::All => (" with the collective order kept", " for the kept collective order"),
        Edges::Real | Edges::Awaited => ("", ""),
    };
    if bound.is_reached_by(step_time) {
        let how = match bound.basis {
            Basis::AllOrders => ", proved by exhaustive search",
            _ => "",
        };
        return format!("optimal: no order{that} is faster{how}");
    }
    // Rounded up: the statement must hold.
    let hundredths = (1e4 * (step_time.0 / bound.time.0 - 1.0)).ceil();
    let percent = match hundredths {
        many if many >= 1000.0 => format!("{:.1}", (many / 10.0).ceil() / 10.0),
        few => format!("{:.2}", few / 100.0),
    };
    format!("within {percent}% of optimal, proved{with}")
}

/// The lower bound and its reason: `58.5 ms: what can run before mm_1 starts, ...`.
pub fn describe_bound(graph: &Graph, bound: Bound) -> String {
    let within = if bound.memory { ", within the memory limit" } else { "" };
    format!("{}: {}{within}", bound.time, describe_basis(graph, bound.basis))
}

fn describe_basis(graph: &Graph, basis: Basis) -> String {
    let name = |op: OpId| called(graph, op);
    match basis {
        Basis::Compute => {
            "the compute stream's work, and what must come before and after it".to_owned()
        }
        Basis::Stream(stream) => {
            format!(
                "the collectives of group {}, and what must come before and after them",
                group(graph, stream)
            )
        }
        Basis::Path(op) => format!("what must run before and after {}", name(op)),
        Basis::Contention(stream) => {
            format!("compute and the collectives of group {} slow each other", group(graph, stream))
        }
        Basis::Cut { first, last } => match first == last {
            true => {
                format!("a cut at {}: what can run before it and after it", name(first))
            }
            false => {
                let (first, last) = (name(first), name(last));
                format!("a cut at {first} and {last}: what can run before, between and after them")
            }
        },
        Basis::AllOrders => "every order that could be faster was tried".to_owned(),
    }
}

/// The same for machines.
pub(super) fn basis_json(graph: &Graph, bound: Bound) -> Value {
    let name = |op: OpId| graph.name(op);
    let mut basis = match bound.basis {
        Basis::Compute => json!({ "kind": "compute" }),
        Basis::Stream(stream) => json!({ "kind": "stream", "group": group(graph, stream) }),
        Basis::Path(op) => json!({ "kind": "path", "through": name(op) }),
        Basis::Contention(stream) => json!({ "kind": "contention", "group": group(graph, stream) }),
        Basis::Cut { first, last } => {
            json!({ "kind": "cut", "first": name(first), "last": name(last) })
        }
        Basis::AllOrders => json!({ "kind": "all_orders" }),
    };
    basis["memory"] = bound.memory.into();
    basis
}

/// A stream has the number of the first process group on it.
fn group(graph: &Graph, stream: StreamId) -> String {
    let group = graph.groups().get(GroupId::from_index(stream.index()));
    group.map_or(String::new(), |group| printable(&group.name))
}
