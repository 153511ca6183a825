//! Several collectives as one.
//!
//! A copy gathers the members' inputs in a bucket, one collective transfers it, and results are
//! obtained in one of two ways. If a member's result is contiguous, it is a slice of the bucket,
//! and its waits wait for the merged collective. Where it does not (an all-gather's bucket holds a
//! piece of each member for every rank), or belongs where the input was, it is copied out: one wait
//! for all, and a copy in place of each member's wait.

use std::collections::BTreeSet;

use super::check::{Member, ResultAs, members};
use super::order::in_order;
use super::{Prices, RewriteError, Rewritten};
use crate::collective::Payload;
use crate::graph::{BufferParts, Collective, DepKinds, Graph, OpKind, OpParts, Parts};
use crate::ids::{BufId, Id, IdVec, OpId};
use crate::origin::{Origin, Part, Source};
use crate::units::{Bytes, Nanos};

const DATA: DepKinds = DepKinds { data: true, weak: false, issued: false, order: false };

pub(super) fn merge<'a>(graph: &'a Graph, named: &[OpId], prices: &'a Prices<'a>) -> Result<Rewritten, RewriteError> {
    let members = members(graph, named)?;
    let merged = merged_collective(&members).ok_or(RewriteError::TooLarge)?;
    let mut merge = Merge {
        graph,
        prices,
        name: unique(graph, &format!("{}_x{}", graph.name(members[0].op), members.len())),
        buckets: Buckets::default(),
        drafts: Vec::new(),
        buffers: graph.clone().into_parts().buffers,
        of_buffer: graph.buffers().map(|buffer| vec![buffer]).collect(),
        members,
    };
    merge.add_buckets(&merged);
    merge.add_merged(merged);
    merge.add_kept();
    merge.add_results();
    merge.finish()
}

/// The collective in place of all members.
fn merged_collective(members: &[Member<'_>]) -> Option<Collective> {
    let first = members.first()?.collective;
    let sum = |of: fn(&Payload) -> Bytes| {
        let sizes = members.iter().map(|member| of(&member.collective.payload).0);
        sizes.into_iter().try_fold(0_i64, i64::checked_add).map(Bytes)
    };
    let (input, output) = (sum(|payload| payload.input)?, sum(|payload| payload.output)?);
    Some(Collective { payload: Payload { dtype: first.payload.dtype.clone(), input, output }, ..first.clone() })
}

/// A name that no operation and no buffer has.
fn unique(graph: &Graph, name: &str) -> String {
    let buffers: BTreeSet<&str> = graph.buffers().map(|buffer| graph.buffer_name(buffer)).collect();
    let is_free = |name: &String| {
        let taken = |suffix: &str| {
            let name = format!("{name}{suffix}");
            graph.find(&name).is_some() || buffers.contains(name.as_str())
        };
        !["", IN, WAIT, OUT].into_iter().any(taken)
    };
    let numbered = (2_usize..).map(|number| format!("{name}.{number}"));
    // There are more numbers than operations.
    std::iter::once(name.to_owned()).chain(numbered).find(is_free).unwrap_or_default()
}

/// What the names of new operations and buffers end in.
const IN: &str = ".in";
const WAIT: &str = ".wait";
const OUT: &str = ".out";

/// An operation of the new program, before it has a number.
pub(super) struct Draft {
    /// Its place among others that could run as well, and of several with the same place the sequence.
    pub(super) place: (OpId, u8),
    pub(super) source: Source,
    pub(super) op: OpParts,
}

#[derive(Default)]
struct Buckets {
    input: Option<BufId>,
    output: Option<BufId>,
    /// Stands for the wait's having run.
    waited: Option<BufId>,
}

struct Merge<'a> {
    graph: &'a Graph,
    prices: &'a Prices<'a>,
    members: Vec<Member<'a>>,
    /// Of the merged collective.
    name: String,
    buckets: Buckets,
    drafts: Vec<Draft>,
    /// The old buffers, then the buckets; makers and users are set when operations have numbers.
    buffers: IdVec<BufId, BufferParts>,
    of_buffer: IdVec<BufId, Vec<BufId>>,
}

impl<'a> Merge<'a> {
    fn ops(&self) -> Vec<OpId> {
        self.members.iter().map(|member| member.op).collect()
    }

    fn first(&self) -> OpId {
        self.members.iter().map(|member| member.op).min().unwrap_or(OpId::from_index(0))
    }

    fn is_async(&self) -> bool {
        self.graph.kind(self.first()) == OpKind::AsyncCollective
    }

    fn member_of(&self, op: OpId) -> Option<&Member<'a>> {
        self.members.iter().find(|member| member.op == op)
    }

    /// The member whose first wait an operation is, if a copy takes that wait's place.
    fn replaced(&self, wait: OpId) -> Option<&Member<'a>> {
        self.members.iter().find(|member| member.replaced == Some(wait))
    }

    fn add_buckets(&mut self, merged: &Collective) {
        let data = |member: &Member<'_>| {
            let deps = self.graph.deps(member.op).iter();
            deps.filter(|(_, kinds)| kinds.data).map(|(buffer, _)| *buffer).collect::<Vec<_>>()
        };
        let inputs = self.members.iter().flat_map(data).collect();
        let outputs = self.members.iter().flat_map(|member| self.graph.outputs(member.op).iter().copied()).collect();
        let name = self.name.clone();
        self.buckets.input = Some(self.add_buffer(format!("{name}{IN}"), merged.payload.input, inputs));
        self.buckets.output = Some(self.add_buffer(format!("{name}{OUT}"), merged.payload.output, outputs));
        if self.is_async() && self.members.iter().any(|member| member.result.is_copied()) {
            let waits = self.members.iter().filter_map(|member| member.replaced);
            let made = waits.flat_map(|wait| self.graph.outputs(wait).iter().copied()).collect();
            self.buckets.waited = Some(self.add_buffer(format!("{name}{WAIT}"), Bytes::ZERO, made));
        }
        self.make_slices();
    }

    /// Results in one piece take no memory but the bucket's, and neither does what was a part of them.
    fn make_slices(&mut self) {
        let bucket = self.buckets.output;
        let mut sliced = BTreeSet::new();
        for member in self.members.iter().filter(|member| member.result == ResultAs::View) {
            for &buffer in self.graph.outputs(member.op) {
                let parts = &mut self.buffers[buffer];
                if parts.size_alloc > Bytes::ZERO {
                    (parts.size_alloc, parts.size_free, parts.view_of) = (Bytes::ZERO, Bytes::ZERO, bucket);
                    sliced.insert(buffer);
                }
            }
        }
        for parts in self.buffers.as_mut_slice() {
            if parts.view_of.is_some_and(|of| sliced.contains(&of)) {
                parts.view_of = bucket;
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
    fn add_merged(&mut self, merged: Collective) {
        let (ops, first) = (self.ops(), self.first());
        let real = |kinds: DepKinds| DepKinds { order: false, ..kinds };
        let others = |kinds: DepKinds| DepKinds { order: kinds.order, ..DepKinds::default() };
        let size = merged.payload.input;
        let copy = self.copy(format!("{}{IN}", self.name), size, first);
        let deps = self.deps_of(&ops, real);
        let outputs = self.buckets.input.into_iter().collect();
        let source = Source { part: Part::CopyIn, of: ops.clone() };
        self.drafts.push(Draft { place: (first, 0), source, op: OpParts { deps, outputs, ..copy } });

        let runtime = self.prices.merged(self.graph, &ops, &merged);
        let mut deps: Vec<(BufId, DepKinds)> = self.buckets.input.into_iter().map(|bucket| (bucket, DATA)).collect();
        deps.extend(self.deps_of(&ops, others));
        let slices = self.members.iter().filter(|member| member.result == ResultAs::View);
        let slices = slices.flat_map(|member| self.graph.outputs(member.op).iter().copied());
        let outputs = self.buckets.output.into_iter().chain(slices).collect();
        let like = self.parts_of(first);
        let fused = ops.iter().map(|&op| self.graph.name(op).to_owned()).collect();
        let (name, collective) = (self.name.clone(), Some(merged));
        let op = OpParts { name, runtime, collective, deps, outputs, fused, kernel: None, ..like };
        self.drafts.push(Draft { place: (first, 1), source: Source { part: Part::Merged, of: ops }, op });
        self.add_wait();
    }

    fn add_wait(&mut self) {
        let Some(waited) = self.buckets.waited else { return };
        let mut waits: Vec<OpId> = self.members.iter().filter_map(|member| member.replaced).collect();
        waits.sort_unstable();
        let longest = waits.iter().map(|&wait| self.graph.runtime(wait)).fold(Nanos::ZERO, Nanos::max);
        let first = waits.first().copied().unwrap_or(self.first());
        let op = OpParts {
            kind: OpKind::Wait,
            runtime: Some(longest),
            deps: self.buckets.output.into_iter().map(|bucket| (bucket, DATA)).collect(),
            outputs: vec![waited],
            fused: waits.iter().map(|&wait| self.graph.name(wait).to_owned()).collect(),
            provenance: self.graph.provenance(first).clone(),
            ..OpParts::compute(format!("{}{WAIT}", self.name))
        };
        let of = if waits.is_empty() { self.ops() } else { waits };
        self.drafts.push(Draft { place: (first, 2), source: Source { part: Part::Wait, of }, op });
    }

    /// All other operations, but for the waits that copies take the place of.
    fn add_kept(&mut self) {
        for op in self.graph.ops() {
            if self.member_of(op).is_some() || self.replaced(op).is_some() {
                continue;
            }
            let parts = self.parts_of(op);
            let deps = self.redirected(op);
            let source = Source { part: Part::Kept, of: vec![op] };
            self.drafts.push(Draft { place: (op, 3), source, op: OpParts { deps, ..parts } });
        }
    }

    /// The copies out of the bucket.
    fn add_results(&mut self) {
        let mut drafts = Vec::new();
        for member in self.members.iter().filter(|member| member.result.is_copied()) {
            let wait = member.replaced;
            let like = wait.unwrap_or(member.op);
            let name = match wait {
                Some(wait) => self.graph.name(wait).to_owned(),
                None => self.graph.name(member.op).to_owned(),
            };
            let made_by_member = |buffer: BufId| self.graph.outputs(member.op).contains(&buffer);
            let own = wait.into_iter().flat_map(|wait| self.redirected(wait));
            let mut deps: Vec<(BufId, DepKinds)> = own.filter(|&(buffer, _)| !made_by_member(buffer)).collect();
            deps.extend(self.buckets.waited.into_iter().chain(self.buckets.output).map(|buffer| (buffer, DATA)));
            let of_wait = wait.into_iter().flat_map(|wait| self.graph.outputs(wait).iter().copied());
            let outputs = self.graph.outputs(member.op).iter().copied().chain(of_wait).collect();
            let copy = self.copy(name, member.collective.payload.output, like);
            let of = std::iter::once(member.op).chain(wait).collect();
            let source = Source { part: Part::CopyOut, of };
            drafts.push(Draft { place: (like, 4), source, op: OpParts { deps, outputs, ..copy } });
        }
        self.drafts.extend(drafts);
    }

    /// A copy of so many bytes, for people like an old operation.
    fn copy(&self, name: String, bytes: Bytes, like: OpId) -> OpParts {
        OpParts {
            runtime: Some(self.prices.copy.time(bytes)),
            bytes: Some(Bytes(bytes.0.saturating_mul(2))),
            fused: vec!["copy".to_owned()],
            provenance: self.graph.provenance(like).clone(),
            ..OpParts::compute(name)
        }
    }

    /// What members need, for some of the reasons; what they make among themselves is left out.
    fn deps_of(&self, ops: &[OpId], reasons: impl Fn(DepKinds) -> DepKinds) -> Vec<(BufId, DepKinds)> {
        let all = ops.iter().flat_map(|&op| self.graph.deps(op).iter().copied());
        let needed = all.map(|(buffer, kinds)| (buffer, reasons(kinds)));
        let needed = needed.filter(|(_, kinds)| *kinds != DepKinds::default());
        needed
            .filter(|&(buffer, _)| self.graph.maker(buffer).is_none_or(|maker| self.member_of(maker).is_none()))
            .collect()
    }

    /// What an operation needs now. An operation that must only come after the launch of a member,
    /// and does not use its result, comes after that of the merged collective, and need not wait
    /// for a copy.
    fn redirected(&self, op: OpId) -> Vec<(BufId, DepKinds)> {
        let redirect = |&(buffer, kinds): &(BufId, DepKinds)| {
            let maker = self.graph.maker(buffer).and_then(|maker| self.member_of(maker));
            let is_copied = maker.is_some_and(|member| member.result.is_copied());
            let is_used = kinds.is_awaited() || self.graph.users(buffer).binary_search(&op).is_ok();
            match self.buckets.output {
                Some(bucket) if is_copied && !is_used => (bucket, kinds),
                _ => (buffer, kinds),
            }
        };
        self.graph.deps(op).iter().map(redirect).collect()
    }

    fn parts_of(&self, op: OpId) -> OpParts {
        let graph = self.graph;
        OpParts {
            name: graph.name(op).to_owned(),
            kind: graph.kind(op),
            runtime: graph.has_runtime(op).then(|| graph.runtime(op)),
            flops: graph.flops(op),
            bytes: graph.bytes(op),
            gemm_like: graph.is_gemm_like(op),
            collective: graph.collective(op).cloned(),
            outputs: graph.outputs(op).to_vec(),
            deps: graph.deps(op).to_vec(),
            fused: graph.fused(op).to_vec(),
            provenance: graph.provenance(op).clone(),
            kernel: graph.kernel(op).map(str::to_owned),
        }
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
        Ok(Rewritten { graph, origin: Origin { ops: sources, buffers: of_buffer } })
    }

    /// Who keeps each buffer alive, by draft.
    fn users(&self) -> IdVec<BufId, Vec<usize>> {
        let mut kept: IdVec<OpId, Option<usize>> = IdVec::filled(None, self.graph.len());
        let mut copy_out: IdVec<OpId, Option<usize>> = IdVec::filled(None, self.graph.len());
        let mut users: IdVec<BufId, Vec<usize>> = IdVec::filled(Vec::new(), self.buffers.len());
        for (index, draft) in self.drafts.iter().enumerate() {
            match draft.source.part {
                Part::Kept => draft.source.of.iter().for_each(|&op| kept[op] = Some(index)),
                Part::CopyOut => draft.source.of.iter().for_each(|&op| copy_out[op] = Some(index)),
                Part::CopyIn | Part::Merged | Part::Wait => {}
            }
            let reads = draft.op.deps.iter().filter(|(_, kinds)| kinds.data);
            reads.for_each(|&(buffer, _)| users[buffer].push(index));
        }
        let copy_in = self.drafts.iter().position(|draft| draft.source.part == Part::CopyIn);
        for buffer in self.graph.buffers() {
            let maker = self.graph.maker(buffer).and_then(|maker| copy_out[maker]);
            for &user in self.graph.users(buffer) {
                let found = match self.member_of(user) {
                    Some(member) if member.result == ResultAs::InPlace => vec![copy_in, copy_out[user]],
                    Some(_) => vec![copy_in],
                    None if self.only_holds(user, buffer) => Vec::new(),
                    None => vec![kept[user].or(copy_out[user])],
                };
                users[buffer].extend(found.into_iter().flatten().filter(|&draft| Some(draft) != maker));
            }
        }
        self.hold_bucket(&kept, &mut users);
        users
    }

    /// Whether a wait is among a buffer's users only because the collective it ends reads it: the
    /// bucket is what must live that long now.
    fn only_holds(&self, user: OpId, buffer: BufId) -> bool {
        let owner = self.members.iter().find(|member| self.is_async() && member.waits.contains(&user));
        let needs = |op: OpId| self.graph.deps(op).iter().any(|(needed, _)| *needed == buffer);
        let is_held = |member: &Member<'_>| {
            member.result != ResultAs::InPlace
                && self.graph.maker(buffer) != Some(member.op)
                && self.graph.users(buffer).binary_search(&member.op).is_ok()
        };
        owner.is_some_and(is_held) && !needs(user)
    }

    /// What the merged collective reads lives until a wait for it.
    fn hold_bucket(&self, kept: &IdVec<OpId, Option<usize>>, users: &mut IdVec<BufId, Vec<usize>>) {
        let Some(bucket) = self.buckets.input.filter(|_| self.is_async()) else { return };
        let wait = self.drafts.iter().position(|draft| draft.source.part == Part::Wait);
        let of_slice = || self.members.iter().flat_map(|member| &member.waits).min().and_then(|&wait| kept[wait]);
        users[bucket].extend(wait.or_else(of_slice));
    }
}
