//! Several collectives as one.
//!
//! A copy gathers the members' inputs in a bucket, one collective transfers it, and results are
//! obtained in one of two ways. If a member's result is contiguous, it is a slice of the bucket,
//! and its waits wait for the merged collective. If it is not (an all-gather's bucket holds a piece
//! of each member for every rank), or belongs where the input was, it is copied out: one wait for
//! all, and a copy in place of each member's wait.

use std::collections::{BTreeMap, BTreeSet};

use super::check::{MergeMember, ResultAs, members, no_circle};
use super::order::in_order;
use super::price::PriceList;
use super::{Prices, RewriteError, Rewritten};
use crate::collective::Payload;
use crate::graph::{BufferParts, Collective, DepKinds, Graph, OpKind, OpParts, Parts};
use crate::ids::{BufId, Id, IdVec, OpId};
use crate::origin::{Origin, Part, Source};
use crate::units::{Bytes, Nanos};

const DATA: DepKinds = DepKinds { data: true, weak: false, issued: false, order: false };

/// Merges several sets at once; no operation may be in two of them.
pub(super) fn merge<'a>(
    graph: &'a Graph,
    named: &[Vec<OpId>],
    prices: &'a Prices<'a>,
) -> Result<Rewritten, RewriteError> {
    let mut merge = Merge {
        graph,
        prices: prices.list(graph),
        sets: Vec::with_capacity(named.len()),
        of_member: IdVec::filled(None, graph.len()),
        of_wait: IdVec::filled(None, graph.len()),
        drafts: Vec::new(),
        buffers: graph.clone().into_parts().buffers,
        of_buffer: graph.buffers().map(|buffer| vec![buffer]).collect(),
    };
    let mut names = TakenNames::of(graph);
    for ops in named {
        merge.add_set(members(graph, ops)?, &mut names)?;
    }
    let sets: Vec<&[OpId]> = named.iter().map(Vec::as_slice).collect();
    no_circle(graph, &sets)?;
    for set in 0..merge.sets.len() {
        merge.add_buckets(set);
    }
    merge.make_slices();
    for set in 0..merge.sets.len() {
        merge.add_merged(set);
    }
    merge.add_kept();
    merge.add_results();
    merge.finish()
}

/// The collective in place of all members.
fn merged_collective(members: &[MergeMember<'_>]) -> Option<Collective> {
    let first = members.first()?.collective;
    let sum = |of: fn(&Payload) -> Bytes| {
        let sizes = members.iter().map(|member| of(&member.collective.payload).0);
        sizes.into_iter().try_fold(0_i64, i64::checked_add).map(Bytes)
    };
    let (input, output) = (sum(|payload| payload.input)?, sum(|payload| payload.output)?);
    Some(Collective {
        payload: Payload { dtype: first.payload.dtype.clone(), input, output },
        content: None,
        ..first.clone()
    })
}

/// The name of a merged collective: derived from its first member, unless that name is taken.
pub(super) fn result_name(graph: &Graph, first: OpId, members: usize) -> String {
    format!("{}_x{members}", graph.name(first))
}

/// All names that are taken.
struct TakenNames(BTreeSet<String>);

impl TakenNames {
    fn of(graph: &Graph) -> TakenNames {
        let ops = graph.ops().map(|op| graph.name(op).to_owned());
        TakenNames(
            ops.chain(graph.buffers().map(|buffer| graph.buffer_name(buffer).to_owned())).collect(),
        )
    }

    /// An unused name, also with the suffixes of what belongs to a merged collective.
    fn take(&mut self, name: &str) -> String {
        let with_endings =
            |name: &String| ["", IN, WAIT, OUT].map(|ending| format!("{name}{ending}"));
        let is_free = |name: &String| with_endings(name).iter().all(|name| !self.0.contains(name));
        let numbered = (2_usize..).map(|number| format!("{name}.{number}"));
        // There are more numbers than operations.
        let found =
            std::iter::once(name.to_owned()).chain(numbered).find(is_free).unwrap_or_default();
        self.0.extend(with_endings(&found));
        found
    }
}

/// What the names of new operations and buffers end in.
const IN: &str = ".in";
const WAIT: &str = ".wait";
const OUT: &str = ".out";

/// An operation of the new program, before it has a number.
pub(super) struct DraftOp {
    /// Its place among others that could run as well, and a tie-breaker.
    pub(super) place: (OpId, u8),
    pub(super) source: Source,
    pub(super) op: OpParts,
}

#[derive(Default)]
struct Buckets {
    input: Option<BufId>,
    output: Option<BufId>,
    /// Represents the completion of the wait.
    waited: Option<BufId>,
}

/// Collectives that become one.
struct MergeSet<'a> {
    members: Vec<MergeMember<'a>>,
    merged: Collective,
    /// Of the merged collective.
    name: String,
    buckets: Buckets,
}

impl MergeSet<'_> {
    /// Ascending.
    fn ops(&self) -> Vec<OpId> {
        self.members.iter().map(|member| member.op).collect()
    }

    fn first(&self) -> OpId {
        self.members.first().map_or(OpId::from_index(0), |member| member.op)
    }
}

/// Where a member is.
#[derive(Clone, Copy)]
struct MemberPlace {
    set: usize,
    member: usize,
}

struct Merge<'a> {
    graph: &'a Graph,
    prices: PriceList<'a>,
    sets: Vec<MergeSet<'a>>,
    /// For an old operation: the member that it is.
    of_member: IdVec<OpId, Option<MemberPlace>>,
    /// For an old operation: the member that it waits for.
    of_wait: IdVec<OpId, Option<MemberPlace>>,
    drafts: Vec<DraftOp>,
    /// The old buffers, then the buckets; makers and users are set when operations have numbers.
    buffers: IdVec<BufId, BufferParts>,
    of_buffer: IdVec<BufId, Vec<BufId>>,
}

impl<'a> Merge<'a> {
    fn add_set(
        &mut self,
        members: Vec<MergeMember<'a>>,
        names: &mut TakenNames,
    ) -> Result<(), RewriteError> {
        let set = self.sets.len();
        for (index, member) in members.iter().enumerate() {
            let place = Some(MemberPlace { set, member: index });
            if self.of_member[member.op].is_some() {
                return Err(RewriteError::Twice { member: self.graph.name(member.op).to_owned() });
            }
            self.of_member[member.op] = place;
            member.waits.iter().for_each(|&wait| self.of_wait[wait] = place);
        }
        let merged = merged_collective(&members).ok_or(RewriteError::TooLarge)?;
        let first = members.first().map_or(OpId::from_index(0), |member| member.op);
        let name = names.take(&result_name(self.graph, first, members.len()));
        self.sets.push(MergeSet { members, merged, name, buckets: Buckets::default() });
        Ok(())
    }

    fn is_async(&self, set: &MergeSet<'_>) -> bool {
        self.graph.kind(set.first()) == OpKind::AsyncCollective
    }

    fn at(&self, place: MemberPlace) -> &MergeMember<'a> {
        &self.sets[place.set].members[place.member]
    }

    fn member_of(&self, op: OpId) -> Option<&MergeMember<'a>> {
        self.of_member[op].map(|place| self.at(place))
    }

    /// Whether a copy takes the place of a wait.
    fn is_replaced(&self, wait: OpId) -> bool {
        self.of_wait[wait].is_some_and(|place| self.at(place).replaced == Some(wait))
    }

    fn add_buckets(&mut self, number: usize) {
        let (graph, set) = (self.graph, &self.sets[number]);
        let data = |member: &MergeMember<'_>| {
            let deps = graph.deps(member.op).iter();
            deps.filter(|(_, kinds)| kinds.data).map(|(buffer, _)| *buffer).collect::<Vec<_>>()
        };
        let inputs = set.members.iter().flat_map(data).collect();
        let outputs = set
            .members
            .iter()
            .flat_map(|member| graph.outputs(member.op).iter().copied())
            .collect();
        let needs_wait =
            self.is_async(set) && set.members.iter().any(|member| member.result.is_copied());
        let waits = set.members.iter().filter_map(|member| member.replaced);
        let made = waits.flat_map(|wait| graph.outputs(wait).iter().copied()).collect();
        let (name, payload) = (set.name.clone(), set.merged.payload.clone());
        self.sets[number].buckets = Buckets {
            input: Some(self.add_buffer(format!("{name}{IN}"), payload.input, inputs)),
            output: Some(self.add_buffer(format!("{name}{OUT}"), payload.output, outputs)),
            waited: needs_wait.then(|| self.add_buffer(format!("{name}{WAIT}"), Bytes::ZERO, made)),
        };
    }

    /// Contiguous results take no memory besides the bucket, and neither do views of them.
    fn make_slices(&mut self) {
        let mut sliced: BTreeMap<BufId, Option<BufId>> = BTreeMap::new();
        for set in &self.sets {
            let bucket = set.buckets.output;
            for member in set.members.iter().filter(|member| member.result == ResultAs::View) {
                for &buffer in self.graph.outputs(member.op) {
                    let parts = &mut self.buffers[buffer];
                    if parts.size_alloc > Bytes::ZERO {
                        (parts.size_alloc, parts.size_free, parts.view_of) =
                            (Bytes::ZERO, Bytes::ZERO, bucket);
                        sliced.insert(buffer, bucket);
                    }
                }
            }
        }
        for parts in self.buffers.as_mut_slice() {
            if let Some(bucket) = parts.view_of.and_then(|of| sliced.get(&of)) {
                parts.view_of = *bucket;
            }
        }
    }

    fn add_buffer(&mut self, name: String, size: Bytes, mut of: Vec<BufId>) -> BufId {
        of.sort_unstable();
        of.dedup();
        self.of_buffer.push(of);
        self.buffers.push(BufferParts {
            name,
            maker: None,
            size_alloc: size,
            size_free: size,
            users: Vec::new(),
            output: false,
            view_of: None,
        })
    }

    /// The copy into the bucket, the collective, and the wait if copies need one.
    fn add_merged(&mut self, number: usize) {
        let set = &self.sets[number];
        let (ops, first, merged) = (set.ops(), set.first(), set.merged.clone());
        let (bucket, result) = (set.buckets.input, set.buckets.output);
        let real = |kinds: DepKinds| DepKinds { order: false, ..kinds };
        let others = |kinds: DepKinds| DepKinds { order: kinds.order, ..DepKinds::default() };
        let size = merged.payload.input;
        let copy = self.copy(format!("{}{IN}", set.name), size, first);
        let deps = self.deps_of(&ops, real);
        let outputs = bucket.into_iter().collect();
        let source = Source { part: Part::CopyIn, of: ops.clone() };
        let copy_in = DraftOp { place: (first, 0), source, op: OpParts { deps, outputs, ..copy } };

        let runtime = self.prices.merged(&ops, &merged);
        let mut deps: Vec<(BufId, DepKinds)> =
            bucket.into_iter().map(|bucket| (bucket, DATA)).collect();
        deps.extend(self.deps_of(&ops, others));
        let slices = set.members.iter().filter(|member| member.result == ResultAs::View);
        let slices = slices.flat_map(|member| self.graph.outputs(member.op).iter().copied());
        let outputs = result.into_iter().chain(slices).collect();
        let like = OpParts::like(self.graph, first);
        let fused = ops.iter().map(|&op| self.graph.name(op).to_owned()).collect();
        let (name, collective) = (set.name.clone(), Some(merged));
        let op = OpParts { name, runtime, collective, deps, outputs, fused, kernel: None, ..like };
        let merged =
            DraftOp { place: (first, 1), source: Source { part: Part::Merged, of: ops }, op };
        let wait = self.wait_of(set);
        self.drafts.extend([copy_in, merged].into_iter().chain(wait));
    }

    fn wait_of(&self, set: &MergeSet<'a>) -> Option<DraftOp> {
        let waited = set.buckets.waited?;
        let mut waits: Vec<OpId> =
            set.members.iter().filter_map(|member| member.replaced).collect();
        waits.sort_unstable();
        let longest =
            waits.iter().map(|&wait| self.graph.runtime(wait)).fold(Nanos::ZERO, Nanos::max);
        let first = waits.first().copied().unwrap_or(set.first());
        let op = OpParts {
            kind: OpKind::Wait,
            runtime: Some(longest),
            deps: set.buckets.output.into_iter().map(|bucket| (bucket, DATA)).collect(),
            outputs: vec![waited],
            fused: waits.iter().map(|&wait| self.graph.name(wait).to_owned()).collect(),
            provenance: self.graph.provenance(first).clone(),
            ..OpParts::compute(format!("{}{WAIT}", set.name))
        };
        let of = if waits.is_empty() { set.ops() } else { waits };
        Some(DraftOp { place: (first, 2), source: Source { part: Part::Wait, of }, op })
    }

    /// All other operations, except for the waits that copies replace.
    fn add_kept(&mut self) {
        for op in self.graph.ops() {
            if self.of_member[op].is_some() || self.is_replaced(op) {
                continue;
            }
            let parts = OpParts::like(self.graph, op);
            let deps = self.redirected(op);
            let source = Source { part: Part::Kept, of: vec![op] };
            self.drafts.push(DraftOp { place: (op, 3), source, op: OpParts { deps, ..parts } });
        }
    }

    /// The copies out of the bucket.
    fn add_results(&mut self) {
        let mut drafts = Vec::new();
        for set in &self.sets {
            let copied = set.members.iter().filter(|member| member.result.is_copied());
            drafts.extend(copied.map(|member| self.copy_out(set, member)));
        }
        self.drafts.extend(drafts);
    }

    fn copy_out(&self, set: &MergeSet<'a>, member: &MergeMember<'a>) -> DraftOp {
        let wait = member.replaced;
        let like = wait.unwrap_or(member.op);
        let made_by_member = |buffer: BufId| self.graph.outputs(member.op).contains(&buffer);
        let own = wait.into_iter().flat_map(|wait| self.redirected(wait));
        let mut deps: Vec<(BufId, DepKinds)> =
            own.filter(|&(buffer, _)| !made_by_member(buffer)).collect();
        deps.extend(
            set.buckets.waited.into_iter().chain(set.buckets.output).map(|buffer| (buffer, DATA)),
        );
        let of_wait = wait.into_iter().flat_map(|wait| self.graph.outputs(wait).iter().copied());
        let outputs = self.graph.outputs(member.op).iter().copied().chain(of_wait).collect();
        let copy =
            self.copy(self.graph.name(like).to_owned(), member.collective.payload.output, like);
        let source =
            Source { part: Part::CopyOut, of: std::iter::once(member.op).chain(wait).collect() };
        DraftOp { place: (like, 4), source, op: OpParts { deps, outputs, ..copy } }
    }

    /// A copy of this many bytes, displayed like an old operation.
    fn copy(&self, name: String, bytes: Bytes, like: OpId) -> OpParts {
        OpParts {
            runtime: Some(self.prices.copy(bytes)),
            bytes: Some(Bytes(bytes.0.saturating_mul(2))),
            fused: vec!["copy".to_owned()],
            provenance: self.graph.provenance(like).clone(),
            ..OpParts::compute(name)
        }
    }

    /// What a set's members need, for some of the reasons; what they produce among themselves is
    /// left out. A member of another set is replaced by that set's collective.
    fn deps_of(
        &self,
        ops: &[OpId],
        reasons: impl Fn(DepKinds) -> DepKinds,
    ) -> Vec<(BufId, DepKinds)> {
        let all = ops.iter().flat_map(|&op| self.redirected(op));
        let needed = all.map(|(buffer, kinds)| (buffer, reasons(kinds)));
        let needed = needed.filter(|(_, kinds)| *kinds != DepKinds::default());
        let own = ops
            .first()
            .and_then(|&op| self.of_member[op])
            .map(|place| &self.sets[place.set].buckets);
        let is_own = |buffer: BufId| {
            let makes = self.graph.buffers().len() > buffer.index()
                && self.graph.maker(buffer).is_some_and(|maker| ops.binary_search(&maker).is_ok());
            makes || own.is_some_and(|own| own.output == Some(buffer))
        };
        needed.filter(|&(buffer, _)| !is_own(buffer)).collect()
    }

    /// What an operation needs now. An operation that must only come after the launch of a member,
    /// and does not use its result, comes after that of the merged collective, and need not wait
    /// for a copy.
    fn redirected(&self, op: OpId) -> Vec<(BufId, DepKinds)> {
        let redirect = |&(buffer, kinds): &(BufId, DepKinds)| {
            let place = self.graph.maker(buffer).and_then(|maker| self.of_member[maker]);
            let copied = place.filter(|&place| self.at(place).result.is_copied());
            let is_used = kinds.is_awaited() || self.graph.users(buffer).binary_search(&op).is_ok();
            match copied.and_then(|place| self.sets[place.set].buckets.output) {
                Some(bucket) if !is_used => (bucket, kinds),
                _ => (buffer, kinds),
            }
        };
        self.graph.deps(op).iter().map(redirect).collect()
    }

    /// Numbers the operations, and determines the producer and users of each buffer.
    fn finish(self) -> Result<Rewritten, RewriteError> {
        let users = self.users();
        let Merge { graph, drafts, mut buffers, of_buffer, .. } = self;
        let (drafts, new) = in_order(drafts, buffers.len());
        for (buffer, users) in users.iter() {
            buffers[buffer].users = users.iter().map(|&draft| new[draft]).collect();
            buffers[buffer].maker = None;
        }
        let mut ops: IdVec<OpId, OpParts> = IdVec::default();
        let mut sources: IdVec<OpId, Source> = IdVec::default();
        for draft in drafts {
            let id = ops.push(draft.op);
            ops[id].outputs.iter().for_each(|&buffer| buffers[buffer].maker = Some(id));
            sources.push(draft.source);
        }
        let graph = Graph::new(Parts { ops, buffers, groups: graph.groups().clone() })?;
        let origin = Origin { ops: sources, buffers: of_buffer, dropped: BTreeMap::new() };
        Ok(Rewritten { graph, origin })
    }

    /// Who keeps each buffer alive, by draft.
    fn users(&self) -> IdVec<BufId, Vec<usize>> {
        let mut kept: IdVec<OpId, Option<usize>> = IdVec::filled(None, self.graph.len());
        let (mut copy_in, mut copy_out) = (kept.clone(), kept.clone());
        let mut users: IdVec<BufId, Vec<usize>> = IdVec::filled(Vec::new(), self.buffers.len());
        for (index, draft) in self.drafts.iter().enumerate() {
            match draft.source.part {
                Part::Kept => draft.source.of.iter().for_each(|&op| kept[op] = Some(index)),
                Part::CopyOut => draft.source.of.iter().for_each(|&op| copy_out[op] = Some(index)),
                Part::CopyIn => draft.source.of.iter().for_each(|&op| copy_in[op] = Some(index)),
                Part::Merged | Part::Wait | Part::Piece { .. } => {}
            }
            let reads = draft.op.deps.iter().filter(|(_, kinds)| kinds.data);
            reads.for_each(|&(buffer, _)| users[buffer].push(index));
        }
        for buffer in self.graph.buffers() {
            let maker = self.graph.maker(buffer).and_then(|maker| copy_out[maker]);
            for &user in self.graph.users(buffer) {
                let found = match self.member_of(user) {
                    Some(member) if member.result == ResultAs::InPlace => {
                        vec![copy_in[user], copy_out[user]]
                    }
                    Some(_) => vec![copy_in[user]],
                    None if self.only_holds(user, buffer) => Vec::new(),
                    None => vec![kept[user].or(copy_out[user])],
                };
                users[buffer]
                    .extend(found.into_iter().flatten().filter(|&draft| Some(draft) != maker));
            }
        }
        self.hold_bucket(&kept, &mut users);
        users
    }

    /// Whether a wait is among a buffer's users only because the collective it ends reads it: the
    /// bucket is what must live that long now.
    fn only_holds(&self, user: OpId, buffer: BufId) -> bool {
        let of_async = |place: &MemberPlace| self.is_async(&self.sets[place.set]);
        let owner = self.of_wait[user].filter(of_async).map(|place| self.at(place));
        let needs = |op: OpId| self.graph.deps(op).iter().any(|(needed, _)| *needed == buffer);
        let is_held = |member: &MergeMember<'_>| {
            member.result != ResultAs::InPlace
                && self.graph.maker(buffer) != Some(member.op)
                && self.graph.users(buffer).binary_search(&member.op).is_ok()
        };
        owner.is_some_and(is_held) && !needs(user)
    }

    /// What the merged collectives read lives until a wait for them.
    fn hold_bucket(&self, kept: &IdVec<OpId, Option<usize>>, users: &mut IdVec<BufId, Vec<usize>>) {
        let mut waits: BTreeMap<BufId, usize> = BTreeMap::new();
        for (index, draft) in self.drafts.iter().enumerate() {
            if draft.source.part == Part::Wait {
                waits.extend(draft.op.deps.iter().map(|&(buffer, _)| (buffer, index)));
            }
        }
        for set in self.sets.iter().filter(|set| self.is_async(set)) {
            let Some(bucket) = set.buckets.input else { continue };
            let wait = set.buckets.output.and_then(|output| waits.get(&output).copied());
            let of_slice = || {
                set.members
                    .iter()
                    .flat_map(|member| &member.waits)
                    .min()
                    .and_then(|&wait| kept[wait])
            };
            users[bucket].extend(wait.or_else(of_slice));
        }
    }
}
