//! The verifier: proves an order, or says what is wrong with it.
//!
//! It shares nothing with the passes but the graph: edges, lifetimes and the peak are computed
//! again here, from the graph's own tables, in the simplest way. Cost: linear in the size of the
//! graph.

use thiserror::Error;

use crate::graph::{DepKinds, Graph};
use crate::ids::{BufId, Id, IdVec, OpId};
use crate::units::Bytes;

/// Demands on an order, beyond what every order must satisfy.
///
/// ```
/// use halflap::units::Bytes;
/// use halflap::verify::{Demands, Violation, verify};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bytes = std::fs::read("../../tests/corpus/ddp_mlp_4.graph.json.gz")?;
/// let graph = halflap::import::read_graph(&bytes)?;
/// let order: Vec<_> = graph.ops().collect();
/// let proof = verify(&graph, &order, &Demands::default())?;
/// let less = Demands { memory_limit: Some(proof.peak - Bytes(1)), ..Demands::default() };
/// assert!(matches!(verify(&graph, &order, &less), Err(Violation::PeakAboveLimit { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Demands<'a> {
    /// Order-only edges.
    pub order_edges: OrderEdges<'a>,
    /// The most that may be alive.
    pub memory_limit: Option<Bytes>,
}

/// Which order-only edges must be kept.
#[derive(Clone, Debug, Default)]
pub enum OrderEdges<'a> {
    /// None.
    #[default]
    Free,
    /// All.
    Kept,
    /// Those that this order kept: a pass is not responsible for violations in its input.
    KeptSince(&'a [OpId]),
}

/// What was proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Proof {
    /// The most that is ever alive.
    pub peak: Bytes,
}

/// What is wrong with an order.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Violation {
    #[error("'{name}' is not a node of the graph")]
    UnknownNode { name: String },
    #[error("node '{node}' appears twice")]
    Twice { node: String },
    #[error("node '{node}' is missing")]
    Missing { node: String },
    #[error("node '{node}' runs before '{needs}', whose buffer '{buffer}' it needs ({kind})")]
    EdgeBroken { node: String, needs: String, buffer: String, kind: &'static str },
    #[error("wait '{wait}' runs before its collective '{collective}'")]
    WaitTooEarly { wait: String, collective: String },
    #[error(
        "peak memory is {} bytes, at node '{node}': {} bytes over the limit of {}",
        peak.0, peak.0 - limit.0, limit.0
    )]
    PeakAboveLimit { peak: Bytes, limit: Bytes, node: String },
}

/// Proves an order that is given by node names.
pub fn verify_names(
    graph: &Graph,
    names: &[String],
    demands: &Demands<'_>,
) -> Result<Proof, Violation> {
    let find = |name: &String| {
        graph.find(name).ok_or_else(|| Violation::UnknownNode { name: name.clone() })
    };
    let ops = names.iter().map(find).collect::<Result<Vec<OpId>, _>>()?;
    verify(graph, &ops, demands)
}

/// Proves an order.
pub fn verify(graph: &Graph, order: &[OpId], demands: &Demands<'_>) -> Result<Proof, Violation> {
    let places = places(graph, order)?;
    check_edges(graph, &places, &demands.order_edges)?;
    check_waits(graph, &places)?;
    let (peak, at) = peak(graph, order, &places);
    match demands.memory_limit {
        Some(limit) if peak > limit => {
            let node = at.map_or(String::from("(none)"), |op| graph.name(op).to_owned());
            Err(Violation::PeakAboveLimit { peak, limit, node })
        }
        _ => Ok(Proof { peak }),
    }
}

/// The position of each operation; each must occur exactly once.
fn places(graph: &Graph, order: &[OpId]) -> Result<IdVec<OpId, usize>, Violation> {
    let mut places: IdVec<OpId, Option<usize>> = IdVec::filled(None, graph.len());
    for (place, &op) in order.iter().enumerate() {
        if op.index() >= graph.len() {
            return Err(Violation::UnknownNode { name: format!("{op:?}") });
        }
        if places[op].replace(place).is_some() {
            return Err(Violation::Twice { node: graph.name(op).to_owned() });
        }
    }
    let placed = |(op, place): (OpId, &Option<usize>)| {
        place.ok_or(Violation::Missing { node: graph.name(op).to_owned() })
    };
    places.iter().map(placed).collect()
}

fn check_edges(
    graph: &Graph,
    places: &IdVec<OpId, usize>,
    order_edges: &OrderEdges<'_>,
) -> Result<(), Violation> {
    let before: Option<IdVec<OpId, usize>> = match order_edges {
        OrderEdges::KeptSince(order) => Some(self::places(graph, order)?),
        OrderEdges::Free | OrderEdges::Kept => None,
    };
    let binds = |kinds: DepKinds, maker: OpId, op: OpId| {
        kinds.data
            || kinds.weak
            || kinds.issued
            || match (order_edges, &before) {
                (OrderEdges::Kept, _) => true,
                (OrderEdges::KeptSince(_), Some(before)) => before[maker] < before[op],
                _ => false,
            }
    };
    for op in graph.ops() {
        for &(buffer, kinds) in graph.deps(op) {
            let Some(maker) = graph.maker(buffer) else { continue };
            if places[maker] > places[op] && binds(kinds, maker, op) {
                return Err(broken(graph, op, buffer, describe(kinds)));
            }
        }
    }
    for buffer in graph.buffers() {
        let Some(maker) = graph.maker(buffer) else { continue };
        if let Some(&user) = graph.users(buffer).iter().find(|&&user| places[user] < places[maker])
        {
            return Err(broken(graph, user, buffer, "it is among the buffer's users"));
        }
    }
    Ok(())
}

fn broken(graph: &Graph, op: OpId, buffer: BufId, kind: &'static str) -> Violation {
    Violation::EdgeBroken {
        node: graph.name(op).to_owned(),
        needs: graph.maker(buffer).map_or(String::new(), |maker| graph.name(maker).to_owned()),
        buffer: graph.buffer_name(buffer).to_owned(),
        kind,
    }
}

fn describe(kinds: DepKinds) -> &'static str {
    match kinds {
        DepKinds { data: true, .. } => "data",
        DepKinds { weak: true, .. } => "weak",
        DepKinds { issued: true, .. } => "issued",
        _ => "order of collectives",
    }
}

fn check_waits(graph: &Graph, places: &IdVec<OpId, usize>) -> Result<(), Violation> {
    for wait in graph.ops() {
        if let Some(&collective) =
            graph.waits_for(wait).iter().find(|&&collective| places[collective] > places[wait])
        {
            let name = |op: OpId| graph.name(op).to_owned();
            return Err(Violation::WaitTooEarly { wait: name(wait), collective: name(collective) });
        }
    }
    Ok(())
}

/// The largest amount alive after an operation's allocations, at least zero, and where it is.
fn peak(graph: &Graph, order: &[OpId], places: &IdVec<OpId, usize>) -> (Bytes, Option<OpId>) {
    let mut born = vec![Bytes::ZERO; order.len()];
    let mut gone = vec![Bytes::ZERO; order.len()];
    let mut alive = Bytes::ZERO;
    for buffer in graph.buffers() {
        let made = graph.maker(buffer).map(|maker| places[maker]);
        match made {
            Some(place) => born[place] += graph.size_alloc(buffer),
            None => alive += graph.size_alloc(buffer),
        }
        let used = graph.users(buffer).iter().map(|&user| places[user]).max();
        if let (false, Some(place)) = (graph.is_output(buffer), used.or(made)) {
            gone[place] += graph.size_free(buffer);
        }
    }
    if order.is_empty() {
        return (alive, None);
    }
    let mut peak = (Bytes::ZERO, None);
    for (place, &op) in order.iter().enumerate() {
        alive += born[place];
        if alive > peak.0 {
            peak = (alive, Some(op));
        }
        alive -= gone[place];
    }
    peak
}
