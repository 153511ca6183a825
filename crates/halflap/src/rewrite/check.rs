//! Whether collectives can be merged, and what belongs to each.

use super::RewriteError;
use crate::collective::{CollectiveKind, Reduction};
use crate::graph::{Collective, Edges, Graph, OpKind};
use crate::ids::{BufId, Id, IdVec, OpId};
use crate::units::Bytes;

/// A collective to merge.
pub(super) struct MergeMember<'a> {
    pub(super) op: OpId,
    pub(super) collective: &'a Collective,
    /// The waits that read its results themselves, ascending.
    pub(super) waits: Vec<OpId>,
    pub(super) result: ResultAs,
    /// The wait that the copy of the result replaces: the first, if it needs nothing else, so that
    /// an operation that reads the result without waiting gets no further predecessors.
    pub(super) replaced: Option<OpId>,
}

/// How a member's result is obtained from the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultAs {
    /// It is a slice of the bucket.
    View,
    /// It is copied out, because its parts are not contiguous in the bucket.
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
pub(super) fn members<'a>(
    graph: &'a Graph,
    named: &[OpId],
) -> Result<Vec<MergeMember<'a>>, RewriteError> {
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

/// Collectives that may be merged judging by themselves, by what members must have in common; both
/// classes and members are in input order.
pub fn mergeable(graph: &Graph) -> Vec<Vec<OpId>> {
    let mut classes: Vec<Vec<MergeMember<'_>>> = Vec::new();
    for member in graph.ops().filter_map(|op| member(graph, op).ok()) {
        match classes.iter_mut().find(|class| same(graph, &class[0], &member).is_ok()) {
            Some(class) => class.push(member),
            None => classes.push(vec![member]),
        }
    }
    classes.iter().map(|class| class.iter().map(|member| member.op).collect()).collect()
}

fn member(graph: &Graph, op: OpId) -> Result<MergeMember<'_>, RewriteError> {
    let name = |op: OpId| graph.name(op).to_owned();
    let collective =
        graph.collective(op).ok_or_else(|| RewriteError::NotACollective { member: name(op) })?;
    let kind = collective.kind;
    if !matches!(
        kind,
        CollectiveKind::AllReduce | CollectiveKind::AllGather | CollectiveKind::ReduceScatter
    ) {
        return Err(RewriteError::NotMergeable { member: name(op), kind });
    }
    if collective.reduction == Some(Reduction::Other) {
        return Err(RewriteError::UnknownReduction { member: name(op) });
    }
    let reads = |reader: OpId| {
        graph
            .deps(reader)
            .iter()
            .any(|&(buffer, kinds)| kinds.data && graph.maker(buffer) == Some(op))
    };
    let readers = graph.succs(op, Edges::Awaited).iter().copied().filter(|&reader| reads(reader));
    if let Some(through) = readers.clone().find(|&reader| graph.kind(reader) == OpKind::MultiOutput)
    {
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
    Ok(MergeMember { op, collective, waits, result, replaced })
}

fn result_as(graph: &Graph, op: OpId, collective: &Collective) -> ResultAs {
    let outputs = graph.outputs(op).iter();
    let sized: Vec<BufId> =
        outputs.copied().filter(|&buffer| graph.size_alloc(buffer) > Bytes::ZERO).collect();
    let whole: Bytes = sized.iter().map(|&buffer| graph.size_alloc(buffer)).sum();
    let is_plain = |&buffer: &BufId| graph.size_alloc(buffer) == graph.size_free(buffer);
    match collective.kind {
        _ if sized.is_empty() && collective.payload.output > Bytes::ZERO => ResultAs::InPlace,
        // Every rank's part of the bucket holds a piece of each member.
        CollectiveKind::AllGather => ResultAs::Copy,
        _ if whole == collective.payload.output && graph.outputs(op).iter().all(is_plain) => {
            ResultAs::View
        }
        _ => ResultAs::Copy,
    }
}

/// Whether two may be in one bucket.
fn same(graph: &Graph, a: &MergeMember<'_>, b: &MergeMember<'_>) -> Result<(), RewriteError> {
    let (x, y) = (a.collective, b.collective);
    let group = |of: &Collective| graph.groups()[of.group].name.clone();
    let reduction = |of: &Collective| of.reduction.map_or("not known", Reduction::name).to_owned();
    let dtype = |of: &Collective| {
        of.payload.dtype.as_ref().map_or("not known".to_owned(), |dtype| dtype.to_string())
    };
    let runs = |of: &MergeMember<'_>| graph.kind(of.op).name().to_owned();
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

/// There must be no path of real edges between two members.
fn no_path(graph: &Graph, members: &[OpId]) -> Result<(), RewriteError> {
    let [first, .., last] = members else { return Ok(()) };
    // The member from which an operation can be reached; ids are in topological order, so nothing
    // before the first member can.
    let mut from: IdVec<OpId, Option<OpId>> = IdVec::filled(None, graph.len());
    for op in (first.index()..=last.index()).map(OpId::from_index) {
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

/// Sets whose members are independent may still depend on each other: a member of one comes before
/// a member of another, and a member of the other before one of the first.
pub(super) fn no_circle(graph: &Graph, sets: &[&[OpId]]) -> Result<(), RewriteError> {
    let circle = circle(graph, sets);
    let name = |set: usize| graph.name(sets[set][0]).to_owned();
    match circle[..] {
        [first, .., last] => Err(RewriteError::Circular { first: name(first), second: name(last) }),
        [only] => Err(RewriteError::Circular { first: name(only), second: name(only) }),
        [] => Ok(()),
    }
}

/// Sets, by number, that depend on each other in a cycle when each becomes one operation; empty if
/// there is no cycle.
pub fn circle(graph: &Graph, sets: &[&[OpId]]) -> Vec<usize> {
    let mut set_of: IdVec<OpId, Option<usize>> = IdVec::filled(None, graph.len());
    for (number, set) in sets.iter().enumerate() {
        set.iter().for_each(|&op| set_of[op] = Some(number));
    }
    // Each set is represented by its first member.
    let as_one = |op: OpId| set_of[op].map_or(op, |set| sets[set][0]);
    let mut missing: IdVec<OpId, usize> = IdVec::filled(0, graph.len());
    let edges =
        |op: OpId| graph.preds(op, Edges::Real).iter().map(move |&pred| (as_one(pred), as_one(op)));
    for (pred, op) in graph.ops().flat_map(edges) {
        missing[op] += usize::from(pred != op);
    }
    let members = |op: OpId| set_of[op].map_or(vec![op], |set| sets[set].to_vec());
    let mut open: Vec<OpId> =
        graph.ops().filter(|&op| as_one(op) == op && missing[op] == 0).collect();
    while let Some(op) = open.pop() {
        let after = members(op)
            .into_iter()
            .flat_map(|member| graph.succs(member, Edges::Real).iter().copied());
        for next in after.map(as_one).filter(|&next| next != op) {
            missing[next] -= 1;
            if missing[next] == 0 {
                open.push(next);
            }
        }
    }
    // Every remaining operation needs another remaining one, so going back from it leads into a
    // cycle.
    let Some(mut at) = graph.ops().find(|&op| missing[op] > 0) else { return Vec::new() };
    let mut path: Vec<OpId> = Vec::new();
    while !path.contains(&at) {
        path.push(at);
        let before = members(at)
            .into_iter()
            .flat_map(|member| graph.preds(member, Edges::Real).iter().copied());
        let Some(next) = before.map(as_one).find(|&pred| pred != at && missing[pred] > 0) else {
            return Vec::new();
        };
        at = next;
    }
    let start = path.iter().position(|&op| op == at).unwrap_or(0);
    path[start..].iter().filter_map(|&op| set_of[op]).collect()
}
