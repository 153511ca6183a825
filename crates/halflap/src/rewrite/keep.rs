//! All-gathers that repeat an earlier one: its result is kept for their readers.
//!
//! The first of a set stays; the others and their waits are left out, and whatever needed them
//! needs the first one or its wait. Everything else keeps its place: what a reader needs now came
//! before what it needed then.

use std::collections::BTreeMap;

use super::{RewriteError, Rewritten};
use crate::collective::CollectiveKind;
use crate::graph::{BufferParts, DepKinds, Graph, OpKind, OpParts, Parts};
use crate::ids::{BufId, GroupId, IdVec, OpId};
use crate::origin::{Origin, Part, Source};
use crate::units::Bytes;

/// Why the result of an all-gather cannot stand in for that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Unkept {
    Kind,
    Content,
    Sizes,
    Waits,
    Sequence,
    Result,
    Written,
}

impl Unkept {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Unkept::Kind => "both must be all-gathers of the same process group, type and size",
            Unkept::Content => "nothing shows that they send the same values",
            Unkept::Sizes => "their results differ in size",
            Unkept::Waits => "both need one wait, which waits for nothing else",
            Unkept::Sequence => "it and its wait must come after the other and its wait",
            Unkept::Result => "its result is one of the program's",
            Unkept::Written => "an operation that reads the result could write to it",
        }
    }
}

/// All-gathers with the same result, of which the first could stay for all; sets and members are in
/// input order.
pub fn repeated(graph: &Graph) -> Vec<Vec<OpId>> {
    let mut classes: BTreeMap<(GroupId, &str), Vec<OpId>> = BTreeMap::new();
    for op in graph.ops() {
        let gather = graph.collective(op).filter(|of| of.kind == CollectiveKind::AllGather);
        if let Some((group, content)) =
            gather.and_then(|of| Some((of.group, of.content.as_deref()?)))
        {
            classes.entry((group, content)).or_default().push(op);
        }
    }
    let set = |class: &Vec<OpId>| {
        let first = class[0];
        let others = class[1..].iter().copied().filter(|&op| repeat(graph, first, op).is_ok());
        std::iter::once(first).chain(others).collect::<Vec<OpId>>()
    };
    let mut sets: Vec<Vec<OpId>> = classes.values().map(set).filter(|set| set.len() > 1).collect();
    sets.sort_unstable();
    sets
}

/// Leaves out all but the first of each set; no operation may be in two of them.
pub(super) fn keep(graph: &Graph, sets: &[&[OpId]]) -> Result<Rewritten, RewriteError> {
    let mut stand_ins: BTreeMap<OpId, OpId> = BTreeMap::new();
    let mut seen: Vec<OpId> = sets.iter().flat_map(|set| set.iter().copied()).collect();
    seen.sort_unstable();
    let name = |op: OpId| graph.name(op).to_owned();
    if let Some(same) = seen.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(RewriteError::Twice { member: name(same[0]) });
    }
    for set in sets {
        let mut members = set.to_vec();
        members.sort_unstable();
        let [first, others @ ..] = &members[..] else {
            return Err(RewriteError::TooFew { count: 0 });
        };
        for &other in others {
            let pairs = repeat(graph, *first, other).map_err(|why| RewriteError::NotRepeated {
                first: name(*first),
                second: name(other),
                why,
            })?;
            stand_ins.extend(pairs);
        }
    }
    Keeping { graph, stand_ins }.finish()
}

/// What would be left out if an all-gather's result stood in for another's: the other and its wait,
/// each with its stand-in.
fn repeat(graph: &Graph, first: OpId, other: OpId) -> Result<Vec<(OpId, OpId)>, Unkept> {
    let (Some(a), Some(b)) = (graph.collective(first), graph.collective(other)) else {
        return Err(Unkept::Kind);
    };
    match () {
        () if a.kind != CollectiveKind::AllGather || graph.kind(first) != graph.kind(other) => {
            return Err(Unkept::Kind);
        }
        () if a.content.is_none() || a.content != b.content || reads(graph, [first, other]) => {
            return Err(Unkept::Content);
        }
        () if a != b => return Err(Unkept::Kind),
        () if first >= other => return Err(Unkept::Sequence),
        () => {}
    }
    let mut pairs = vec![(other, first)];
    if graph.kind(first) == OpKind::AsyncCollective {
        let (wait, later) = (only_wait(graph, first)?, only_wait(graph, other)?);
        if wait >= later {
            return Err(Unkept::Sequence);
        }
        pairs.push((later, wait));
    }
    for &(dropped, stays) in &pairs {
        results_match(graph, dropped, stays)?;
    }
    let involved: Vec<OpId> = pairs.iter().flat_map(|&(gone, stays)| [gone, stays]).collect();
    let is_safe = |&op: &OpId| only_read(graph, op, &involved);
    involved.iter().all(is_safe).then_some(pairs).ok_or(Unkept::Written)
}

/// Whether two operations read different buffers.
fn reads(graph: &Graph, ops: [OpId; 2]) -> bool {
    let [a, b] = ops.map(|op| {
        let data = graph.deps(op).iter().filter(|(_, kinds)| kinds.data);
        let mut buffers: Vec<BufId> = data.map(|(buffer, _)| *buffer).collect();
        buffers.sort_unstable();
        buffers
    });
    a != b
}

/// The wait of a collective, if there is one, and for it alone.
fn only_wait(graph: &Graph, collective: OpId) -> Result<OpId, Unkept> {
    match graph.waited_by(collective) {
        &[wait] if graph.waits_for(wait) == [collective] => Ok(wait),
        _ => Err(Unkept::Waits),
    }
}

/// Whether what one operation makes can stand in for what another does, buffer by buffer.
fn results_match(graph: &Graph, dropped: OpId, stays: OpId) -> Result<(), Unkept> {
    let (gone, held) = (graph.outputs(dropped), graph.outputs(stays));
    let sizes = |buffer: BufId| (graph.size_alloc(buffer), graph.size_free(buffer));
    let place = |ops: &[BufId], buffer: BufId| {
        let whole = graph.view_of(buffer)?;
        let maker = graph.maker(whole);
        Some((maker == graph.maker(buffer), ops.iter().position(|&one| one == whole)))
    };
    let is_same =
        |(&a, &b): (&BufId, &BufId)| sizes(a) == sizes(b) && place(gone, a) == place(held, b);
    match () {
        () if gone.len() != held.len() || !gone.iter().zip(held).all(is_same) => Err(Unkept::Sizes),
        () if gone.iter().any(|&buffer| graph.is_output(buffer)) => Err(Unkept::Result),
        () => Ok(()),
    }
}

/// Whether nothing writes to what an operation makes: whatever works in place makes a buffer of no
/// size, which represents the new content.
fn only_read(graph: &Graph, op: OpId, involved: &[OpId]) -> bool {
    let users = graph.outputs(op).iter().flat_map(|&buffer| graph.users(buffer));
    users.filter(|user| !involved.contains(user)).all(|&user| {
        let is_new = |buffer: &BufId| graph.size_alloc(*buffer) > Bytes::ZERO;
        matches!(graph.kind(user), OpKind::Compute | OpKind::AsyncCollective)
            && graph.outputs(user).iter().all(is_new)
    })
}

struct Keeping<'a> {
    graph: &'a Graph,
    /// For each operation that is left out, the one that stands in for it.
    stand_ins: BTreeMap<OpId, OpId>,
}

impl Keeping<'_> {
    fn finish(self) -> Result<Rewritten, RewriteError> {
        let graph = self.graph;
        let mut origin = Origin { dropped: self.stand_ins.clone(), ..Origin::default() };
        let mut parts = Parts { groups: graph.groups().clone(), ..Parts::default() };
        let images = self.images();
        let mut now: IdVec<BufId, Option<BufId>> = IdVec::filled(None, images.len());
        for (old, _) in images.iter().filter(|(old, image)| *old == **image) {
            now[old] = Some(parts.buffers.push(BufferParts {
                name: graph.buffer_name(old).to_owned(),
                maker: None,
                size_alloc: graph.size_alloc(old),
                size_free: graph.size_free(old),
                users: Vec::new(),
                output: graph.is_output(old),
                view_of: graph.view_of(old),
            }));
            origin.buffers.push(vec![old]);
        }
        let new = |old: BufId| now[images[old]];
        for buffer in parts.buffers.as_mut_slice() {
            buffer.view_of = buffer.view_of.and_then(new);
        }
        let mut ops: IdVec<OpId, Option<OpId>> = IdVec::filled(None, graph.len());
        for op in graph.ops().filter(|op| !self.stand_ins.contains_key(op)) {
            let deps = self.needs(op).into_iter();
            let deps = deps.filter_map(|(buffer, kinds)| Some((new(buffer)?, kinds))).collect();
            let outputs: Vec<BufId> =
                graph.outputs(op).iter().filter_map(|&buffer| new(buffer)).collect();
            let id = parts.ops.push(OpParts { deps, outputs, ..OpParts::like(graph, op) });
            for &buffer in &parts.ops[id].outputs {
                parts.buffers[buffer].maker = Some(id);
            }
            ops[op] = Some(id);
            origin.ops.push(Source { part: Part::Kept, of: vec![op] });
        }
        for old in graph.buffers() {
            let users = graph.users(old).iter().filter_map(|&user| ops[user]);
            if let Some(new) = new(old) {
                parts.buffers[new].users.extend(users);
            }
        }
        Ok(Rewritten { graph: Graph::new(parts)?, origin })
    }

    /// For each buffer the one that holds its content now.
    fn images(&self) -> IdVec<BufId, BufId> {
        let mut images: IdVec<BufId, BufId> = self.graph.buffers().collect();
        for (&gone, &stays) in &self.stand_ins {
            let pairs = self.graph.outputs(gone).iter().zip(self.graph.outputs(stays));
            pairs.for_each(|(&old, &new)| images[old] = new);
        }
        images
    }

    /// What an operation needs. What only keeps the order of collectives is not passed on to the
    /// stand-in, but to what the one that is left out came after.
    fn needs(&self, op: OpId) -> Vec<(BufId, DepKinds)> {
        let mut needs = Vec::new();
        let mut open: Vec<(BufId, DepKinds)> = self.graph.deps(op).to_vec();
        while let Some((buffer, kinds)) = open.pop() {
            let gone = self.graph.maker(buffer).filter(|op| self.stand_ins.contains_key(op));
            let Some(gone) = gone.filter(|_| kinds.order) else {
                needs.push((buffer, kinds));
                continue;
            };
            needs.push((buffer, DepKinds { order: false, ..kinds }));
            let before = self.graph.deps(gone).iter().filter(|(_, kinds)| kinds.order);
            let order = DepKinds { order: true, ..DepKinds::default() };
            open.extend(before.map(|&(buffer, _)| (buffer, order)));
        }
        needs.retain(|(_, kinds)| *kinds != DepKinds::default());
        needs
    }
}
