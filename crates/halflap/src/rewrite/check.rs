//! Whether collectives can be merged, and what each of them brings along.

use super::RewriteError;
use crate::collective::{CollectiveKind, Reduction};
use crate::graph::{Collective, Edges, Graph, OpKind};
use crate::ids::{BufId, Id, IdVec, OpId};
use crate::units::Bytes;

/// A collective that is to be merged.
pub(super) struct Member<'a> {
    pub(super) op: OpId,
    pub(super) collective: &'a Collective,
    /// The waits that read its results themselves, ascending.
    pub(super) waits: Vec<OpId>,
    pub(super) result: ResultAs,
    /// The wait whose place the copy of the result takes: the first, if it needs nothing else, so that
    /// what reads the result without waiting does not come after more than it did.
    pub(super) replaced: Option<OpId>,
}

/// How a member's result is had from the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultAs {
    /// It is a slice of the bucket.
    View,
    /// It is copied out, because its parts lie apart in the bucket.
    Copy,
    /// It is copied back to where the input was.
    InPlace,
}

impl ResultAs {
    pub(super) fn is_copied(self) -> bool {
        self != ResultAs::View
    }
}

/// The members, ascending, if they can be merged.
pub(super) fn members<'a>(graph: &'a Graph, named: &[OpId]) -> Result<Vec<Member<'a>>, RewriteError> {
    let mut ops = named.to_vec();
    ops.sort_unstable();
    let name = |op: OpId| graph.name(op).to_owned();
    if let Some(same) = ops.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(RewriteError::Twice { member: name(same[0]) });
    }
    if ops.len() < 2 {
        return Err(RewriteError::TooFew { count: ops.len() });
    }
    let members = ops.iter().map(|&op| member(graph, op)).collect::<Result<Vec<_>, _>>()?;
    for other in &members[1..] {
        same(graph, &members[0], other)?;
    }
    no_path(graph, &ops)?;
    Ok(members)
}

fn member(graph: &Graph, op: OpId) -> Result<Member<'_>, RewriteError> {
    let name = |op: OpId| graph.name(op).to_owned();
    let collective = graph.collective(op).ok_or_else(|| RewriteError::NotACollective { member: name(op) })?;
    let kind = collective.kind;
    if !matches!(kind, CollectiveKind::AllReduce | CollectiveKind::AllGather | CollectiveKind::ReduceScatter) {
        return Err(RewriteError::NotMergeable { member: name(op), kind });
    }
    if collective.reduction == Some(Reduction::Other) {
        return Err(RewriteError::UnknownReduction { member: name(op) });
    }
    let reads =
        |reader: OpId| graph.deps(reader).iter().any(|&(buffer, kinds)| kinds.data && graph.maker(buffer) == Some(op));
    let readers = graph.succs(op, Edges::Awaited).iter().copied().filter(|&reader| reads(reader));
    if let Some(through) = readers.clone().find(|&reader| graph.kind(reader) == OpKind::MultiOutput) {
        return Err(RewriteError::HandsOut { member: name(op), through: name(through) });
    }
    if let Some(&wait) = graph.waited_by(op).iter().find(|&&wait| graph.waits_for(wait) != [op]) {
        return Err(RewriteError::SharedWait { wait: name(wait), member: name(op) });
    }
    let waits: Vec<OpId> = readers.filter(|&reader| graph.kind(reader) == OpKind::Wait).collect();
    let result = result_as(graph, op, collective);
    let only_waits = |wait: &OpId| {
        let mut real = graph.deps(*wait).iter().filter(|(_, kinds)| kinds.is_real());
        real.all(|&(buffer, _)| graph.maker(buffer) == Some(op))
    };
    let replaced = waits.first().copied().filter(|wait| result.is_copied() && only_waits(wait));
    Ok(Member { op, collective, waits, result, replaced })
}

fn result_as(graph: &Graph, op: OpId, collective: &Collective) -> ResultAs {
    let outputs = graph.outputs(op).iter();
    let sized: Vec<BufId> = outputs.copied().filter(|&buffer| graph.size_alloc(buffer) > Bytes::ZERO).collect();
    let whole: Bytes = sized.iter().map(|&buffer| graph.size_alloc(buffer)).sum();
    let is_plain = |&buffer: &BufId| graph.size_alloc(buffer) == graph.size_free(buffer);
    match collective.kind {
        _ if sized.is_empty() && collective.payload.output > Bytes::ZERO => ResultAs::InPlace,
        // Every rank's part of the bucket holds a piece of each member.
        CollectiveKind::AllGather => ResultAs::Copy,
        _ if whole == collective.payload.output && graph.outputs(op).iter().all(is_plain) => ResultAs::View,
        _ => ResultAs::Copy,
    }
}

/// Whether two may be in one bucket.
fn same(graph: &Graph, a: &Member<'_>, b: &Member<'_>) -> Result<(), RewriteError> {
    let (x, y) = (a.collective, b.collective);
    let group = |of: &Collective| graph.groups()[of.group].name.clone();
    let reduction = |of: &Collective| of.reduction.map_or("not known", Reduction::name).to_owned();
    let dtype = |of: &Collective| of.payload.dtype.as_ref().map_or("not known".to_owned(), |dtype| dtype.to_string());
    let runs = |of: &Member<'_>| graph.kind(of.op).name().to_owned();
    let pairs = [
        ("kind", x.kind.name().to_owned(), y.kind.name().to_owned()),
        ("group", group(x), group(y)),
        ("group size", x.group_size.to_string(), y.group_size.to_string()),
        ("reduction", reduction(x), reduction(y)),
        ("type of elements", dtype(x), dtype(y)),
        ("how they run", runs(a), runs(b)),
    ];
    match pairs.into_iter().find(|(_, x, y)| x != y) {
        Some((what, x, y)) => Err(RewriteError::Differs {
            first: graph.name(a.op).to_owned(),
            second: graph.name(b.op).to_owned(),
            what,
            values: format!("{x} and {y}"),
        }),
        None => Ok(()),
    }
}

/// Between no two members may there be a path of real edges.
fn no_path(graph: &Graph, members: &[OpId]) -> Result<(), RewriteError> {
    let Some(&last) = members.last() else { return Ok(()) };
    // From which member an operation can be reached; ids are in a topological order.
    let mut from: IdVec<OpId, Option<OpId>> = IdVec::filled(None, graph.len());
    for op in graph.ops().take(last.index() + 1) {
        let reached = graph.preds(op, Edges::Real).iter().find_map(|&pred| from[pred]);
        let is_member = members.binary_search(&op).is_ok();
        if let (true, Some(first)) = (is_member, reached) {
            let name = |op: OpId| graph.name(op).to_owned();
            return Err(RewriteError::Dependent { first: name(first), second: name(op) });
        }
        from[op] = if is_member { Some(op) } else { reached };
    }
    Ok(())
}
