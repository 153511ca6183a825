//! The verifier of rewritten programs: proves that both compute the same, or says where they
//! differ.
//!
//! It shares nothing with [`rewrite`](crate::rewrite) except the data that it judges: two graphs
//! and the claim which operation comes from which. Paths, sums and lifetimes are computed here
//! again, in the simplest way.
//!
//! What is proved: every operation of the old program is in the new one unchanged, or is a member
//! of a merged collective, or is a wait that a copy replaced. Members may be merged: they are of
//! one kind, group, reduction and type, and none depends on another. Every value is computed from
//! the same values, and lives until its last user. Or an operation was split into pieces: then
//! these have its work between them, and if a piece reads only one piece of another result, it
//! needs no other ([`rows`]). Or it repeats another one, whose result stands in for its own
//! ([`keep`]). Or it is on a second communicator of its process group ([`groups`]). There is
//! nothing else in the new program.

mod groups;
mod keep;
mod pieces;
mod rows;

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::collective::{CollectiveKind, Reduction};
use crate::graph::{Collective, DepKinds, Graph, OpKind};
use crate::ids::{BufId, Id, IdVec, OpId};
use crate::origin::{Origin, Part};
use crate::units::Bytes;

/// Why a changed program is rejected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum RewriteViolation {
    #[error(
        "the origin of '{node}' names no operations of the old program that it could stand for"
    )]
    BadOrigin { node: String },
    #[error("'{node}' of the old program is not in the new one")]
    Lost { node: String },
    #[error("'{node}' of the old program is more than once in the new one")]
    Twice { node: String },
    #[error("'{node}' of the new program has no reason to be there")]
    Invented { node: String },
    #[error("buffer '{buffer}' of the old program is not in the new one")]
    BufferLost { buffer: String },
    #[error("buffer '{buffer}' of the new program has no reason to be there")]
    BufferInvented { buffer: String },
    #[error("'{node}' differs in {what}")]
    Changed { node: String, what: &'static str },
    #[error("'{node}' does not come after the maker of '{buffer}', as it did")]
    DependencyLost { node: String, buffer: String },
    #[error("'{node}' reads '{buffer}', which it did not")]
    DependencyInvented { node: String, buffer: String },
    #[error("'{node}' cannot be merged")]
    NotMergeable { node: String },
    #[error("'{first}' and '{second}' are merged and differ in {what}")]
    Unequal { first: String, second: String, what: &'static str },
    #[error("'{first}' and '{second}' are merged, and the second depends on the first")]
    Dependent { first: String, second: String },
    #[error("buffer '{buffer}' has {} bytes; it must have {}", is.0, should.0)]
    WrongSize { buffer: String, is: Bytes, should: Bytes },
    #[error("buffer '{buffer}' is no slice of the bucket that its values come out of")]
    NotASlice { buffer: String },
    #[error("buffer '{buffer}' may be freed before '{user}' has used it")]
    NotAlive { buffer: String, user: String },
    #[error("buffer '{buffer}' is a result of only one of the programs")]
    ResultChanged { buffer: String },
    #[error("the pieces of '{node}' are not all there, or not once")]
    WrongPieces { node: String },
    #[error("the pieces of '{node}' do not add up to {what}")]
    WrongShares { node: String, what: &'static str },
    #[error("'{node}' is cut, and nothing shows that its rows are independent")]
    NotRows { node: String },
    #[error("'{node}' is left out, and nothing shows that its stand-in has the same results")]
    NotRepeated { node: String },
    #[error("process group '{group}' of the old program is not in the new one as it was")]
    GroupChanged { group: String },
    #[error(
        "process group '{group}' of the new program is no second communicator of an old one, with \
         its ranks"
    )]
    GroupInvented { group: String },
    #[error("'{node}' may write to '{buffer}', whose content is to stay for others")]
    MayWrite { node: String, buffer: String },
}

type Checked = Result<(), RewriteViolation>;

/// Proves that a program computes what another does.
pub fn verify_rewrite(before: &Graph, after: &Graph, origin: &Origin) -> Checked {
    if before.groups() != after.groups() {
        let after = groups::without_seconds(before, after)?;
        return verify_rewrite(before, &after, origin);
    }
    if !origin.dropped.is_empty() {
        let without = keep::without_repeats(before, origin)?;
        return verify_rewrite(&without.graph, after, &without.origin);
    }
    let claims = Claims::read(before, after, origin)?;
    let judge = Judge { before, after, origin, claims };
    for set in judge.claims.sets.values() {
        judge.members_may_merge(set)?;
        judge.bucket_is_filled(set)?;
        judge.merged_carries(set)?;
        set.members.iter().try_for_each(|&member| judge.result_is_had(set, member))?;
    }
    for op in before.ops() {
        if let Some(new) = judge.claims.kept[op] {
            judge.is_as_it_was(op, new)?;
        }
    }
    judge.pieces_are_right()?;
    before.buffers().try_for_each(|buffer| judge.lives_as_long(buffer))
}

/// What an origin says, sorted.
struct Claims {
    /// For each old operation that stayed, the new one.
    kept: IdVec<OpId, Option<OpId>>,
    /// For each old operation, the copy out of a bucket that replaces it.
    copy_out: IdVec<OpId, Option<OpId>>,
    /// For each old operation, the collective that it was merged into.
    merged: IdVec<OpId, Option<OpId>>,
    /// For each old operation that was split, its pieces in order.
    pieces: IdVec<OpId, Vec<OpId>>,
    /// For each old buffer, the new one; the first if it has become several.
    image: IdVec<BufId, BufId>,
    /// For each old buffer that was split, its pieces in order.
    parts: IdVec<BufId, Vec<BufId>>,
    /// By the merged collective.
    sets: BTreeMap<OpId, MergedSet>,
}

/// One merged collective with what belongs to it.
struct MergedSet {
    merged: OpId,
    copy_in: OpId,
    /// The operation that waits for all, if copies need one.
    wait: Option<OpId>,
    members: Vec<OpId>,
    input: BufId,
    output: BufId,
}

impl Claims {
    fn read(before: &Graph, after: &Graph, origin: &Origin) -> Result<Claims, RewriteViolation> {
        if origin.ops.len() != after.len() || origin.buffers.len() != after.buffers().len() {
            return Err(RewriteViolation::BadOrigin { node: "the program".to_owned() });
        }
        let none = || IdVec::filled(None, before.len());
        let pieces = pieces::pieces_of(before, origin)?;
        let parts = pieces::parts_of([before, after], origin, &pieces)?;
        let image = images(before, after, origin, &parts)?;
        let (kept, copy_out, merged) = (none(), none(), none());
        let sets = BTreeMap::new();
        let mut claims = Claims { kept, copy_out, merged, pieces, image, parts, sets };
        for (new, source) in origin.ops.iter() {
            let is_known = source.of.iter().all(|op| op.index() < before.len());
            let is_right = match source.part {
                Part::Kept | Part::Piece { .. } => source.of.len() == 1,
                Part::CopyOut => matches!(source.of.len(), 1 | 2),
                Part::CopyIn | Part::Merged => source.of.len() >= 2,
                Part::Wait => !source.of.is_empty(),
            };
            if !is_known || !is_right {
                return Err(RewriteViolation::BadOrigin { node: after.name(new).to_owned() });
            }
            let table = match source.part {
                Part::Kept => &mut claims.kept,
                Part::CopyOut => &mut claims.copy_out,
                Part::Merged => &mut claims.merged,
                Part::CopyIn | Part::Wait | Part::Piece { .. } => continue,
            };
            for &op in &source.of {
                if table[op].replace(new).is_some() {
                    return Err(RewriteViolation::Twice { node: before.name(op).to_owned() });
                }
            }
        }
        claims.account(before)?;
        claims.find_sets(after, origin)?;
        Ok(claims)
    }

    /// Every old operation is present in exactly one form.
    fn account(&self, before: &Graph) -> Checked {
        for op in before.ops() {
            let node = || before.name(op).to_owned();
            let (copied, merged) = (self.copy_out[op], self.merged[op]);
            let is_cut = !self.pieces[op].is_empty();
            if is_cut && self.kept[op].is_some() {
                return Err(RewriteViolation::Twice { node: node() });
            }
            let is_there = is_cut || self.kept[op].is_some();
            match (is_there, merged.is_some(), copied.is_some()) {
                (true, false, false) | (false, true, _) => {}
                // A copy replaces the wait of a member, and nothing else.
                (false, false, true) if before.kind(op) == OpKind::Wait => {}
                (false, false, false) => return Err(RewriteViolation::Lost { node: node() }),
                _ => return Err(RewriteViolation::Twice { node: node() }),
            }
        }
        Ok(())
    }

    fn find_sets(&mut self, after: &Graph, origin: &Origin) -> Checked {
        let invented = |op: OpId| RewriteViolation::Invented { node: after.name(op).to_owned() };
        let of_part = |part: Part| origin.ops.iter().filter(move |(_, source)| source.part == part);
        let parts = self.parts.as_slice().iter().flatten();
        let images: BTreeSet<BufId> = self.image.as_slice().iter().chain(parts).copied().collect();
        let new_output = |op: OpId| {
            let new: Vec<BufId> = after
                .outputs(op)
                .iter()
                .copied()
                .filter(|buffer| !images.contains(buffer))
                .collect();
            if let [bucket] = new[..] { Ok(bucket) } else { Err(invented(op)) }
        };
        let mut used = BTreeSet::new();
        for (merged, source) in of_part(Part::Merged) {
            let copies: Vec<OpId> = of_part(Part::CopyIn)
                .filter(|(_, other)| other.of == source.of)
                .map(|(op, _)| op)
                .collect();
            let [copy_in] = copies[..] else { return Err(invented(merged)) };
            let (input, output) = (new_output(copy_in)?, new_output(merged)?);
            let waits_for = |wait: &OpId| {
                let awaited =
                    after.deps(*wait).iter().any(|&(buffer, kinds)| buffer == output && kinds.data);
                awaited && after.kind(*wait) == OpKind::Wait
            };
            let wait = of_part(Part::Wait).map(|(op, _)| op).find(waits_for);
            used.extend([Some(merged), Some(copy_in), wait].into_iter().flatten());
            let members = source.of.clone();
            self.sets.insert(merged, MergedSet { merged, copy_in, wait, members, input, output });
        }
        for (op, source) in origin.ops.iter() {
            let is_used = match source.part {
                Part::Kept | Part::Piece { .. } => true,
                Part::CopyOut => {
                    source.of.iter().filter(|&&op| self.merged[op].is_some()).count() == 1
                }
                Part::CopyIn | Part::Merged | Part::Wait => used.contains(&op),
            };
            if !is_used {
                return Err(invented(op));
            }
        }
        self.only_buckets_are_new(after, &images)
    }

    fn only_buckets_are_new(&self, after: &Graph, images: &BTreeSet<BufId>) -> Checked {
        let mut known = images.clone();
        for set in self.sets.values() {
            known.extend([set.input, set.output]);
            known.extend(set.wait.into_iter().flat_map(|wait| after.outputs(wait).iter().copied()));
        }
        match after.buffers().find(|buffer| !known.contains(buffer)) {
            Some(buffer) => Err(RewriteViolation::BufferInvented {
                buffer: after.buffer_name(buffer).to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// For each old buffer the new one: by its origin, with the same name; or else its first piece.
fn images(
    before: &Graph,
    after: &Graph,
    origin: &Origin,
    parts: &IdVec<BufId, Vec<BufId>>,
) -> Result<IdVec<BufId, BufId>, RewriteViolation> {
    let mut images: IdVec<BufId, Option<BufId>> = IdVec::filled(None, before.buffers().len());
    for (new, of) in origin.buffers.iter() {
        let &[old] = &of[..] else { continue };
        let is_same =
            old.index() < images.len() && before.buffer_name(old) == after.buffer_name(new);
        if is_same && images[old].replace(new).is_some() {
            return Err(RewriteViolation::BufferInvented {
                buffer: after.buffer_name(new).to_owned(),
            });
        }
    }
    let found = |(old, image): (BufId, &Option<BufId>)| {
        let found = image.or_else(|| parts[old].first().copied());
        found.ok_or_else(|| RewriteViolation::BufferLost {
            buffer: before.buffer_name(old).to_owned(),
        })
    };
    images.iter().map(found).collect()
}

struct Judge<'a> {
    before: &'a Graph,
    after: &'a Graph,
    origin: &'a Origin,
    claims: Claims,
}

impl Judge<'_> {
    /// Members are alike, and none depends on another.
    fn members_may_merge(&self, set: &MergedSet) -> Checked {
        let name = |op: OpId| self.before.name(op).to_owned();
        let of = |op: OpId| {
            let collective = self.before.collective(op);
            let merges = |collective: &&Collective| {
                use CollectiveKind as K;
                matches!(collective.kind, K::AllReduce | K::AllGather | K::ReduceScatter)
                    && collective.reduction != Some(Reduction::Other)
            };
            collective
                .filter(merges)
                .ok_or_else(|| RewriteViolation::NotMergeable { node: name(op) })
        };
        let first = set.members[0];
        let a = of(first)?;
        for &member in &set.members[1..] {
            let b = of(member)?;
            let what = match () {
                () if a.kind != b.kind => "kind",
                () if a.group != b.group || a.group_size != b.group_size => "group",
                () if a.reduction != b.reduction => "reduction",
                () if a.payload.dtype != b.payload.dtype => "type of elements",
                () if self.before.kind(first) != self.before.kind(member) => "how they run",
                () => continue,
            };
            return Err(RewriteViolation::Unequal {
                first: name(first),
                second: name(member),
                what,
            });
        }
        match self.dependent(&set.members) {
            Some((first, second)) => {
                Err(RewriteViolation::Dependent { first: name(first), second: name(second) })
            }
            None => Ok(()),
        }
    }

    /// Two of some old operations, the second of which depends on the first, directly or through
    /// others. Goes back from all of them at once, but not beyond the first of them: what comes
    /// before it in the old program depends on none.
    fn dependent(&self, members: &[OpId]) -> Option<(OpId, OpId)> {
        let first = members.iter().min()?;
        let mut seen = BTreeSet::new();
        let mut open: Vec<(OpId, OpId)> = members.iter().map(|&member| (member, member)).collect();
        while let Some((op, member)) = open.pop() {
            for &(buffer, kinds) in self.before.deps(op) {
                let binds = kinds.data || kinds.weak || kinds.issued;
                let maker = self.before.maker(buffer).filter(|maker| binds && maker >= first);
                match maker {
                    Some(maker) if members.contains(&maker) => return Some((maker, member)),
                    Some(maker) if seen.insert(maker) => open.push((maker, member)),
                    _ => {}
                }
            }
        }
        None
    }

    /// The copy reads what the members read, after all that they had to come after, into a bucket
    /// of the right size.
    fn bucket_is_filled(&self, set: &MergedSet) -> Checked {
        self.computes(set.copy_in)?;
        let mut reads = BTreeSet::new();
        for &member in &set.members {
            for &(buffer, kinds) in self.before.deps(member) {
                if kinds.data {
                    reads.extend(self.places(buffer));
                }
                if !self.comes_after(set.copy_in, buffer, kinds) {
                    return Err(self.dependency_lost(set.copy_in, buffer));
                }
            }
        }
        self.reads_only(set.copy_in, &reads)?;
        let size = |member: &OpId| {
            self.before.collective(*member).map_or(Bytes::ZERO, |of| of.payload.input)
        };
        self.has_size(set.input, set.members.iter().map(size).sum())
    }

    /// The merged collective does what the members do, on the bucket and nothing else.
    fn merged_carries(&self, set: &MergedSet) -> Checked {
        let changed = |what| {
            Err(RewriteViolation::Changed { node: self.after.name(set.merged).to_owned(), what })
        };
        let (Some(first), Some(merged)) =
            (self.before.collective(set.members[0]), self.after.collective(set.merged))
        else {
            return changed("what it does");
        };
        if self.after.kind(set.merged) != self.before.kind(set.members[0]) {
            return changed("how it runs");
        }
        let payload = |of: fn(&Collective) -> Bytes| -> Bytes {
            set.members.iter().filter_map(|&member| self.before.collective(member)).map(of).sum()
        };
        let (input, output) = (payload(|of| of.payload.input), payload(|of| of.payload.output));
        let same = |a: &Collective, b: &Collective| {
            (a.kind, a.reduction, a.group, a.group_size)
                == (b.kind, b.reduction, b.group, b.group_size)
                && a.payload.dtype == b.payload.dtype
        };
        if !same(first, merged) || self.before.groups() != self.after.groups() {
            return changed("what it does, and among whom");
        }
        if (merged.payload.input, merged.payload.output) != (input, output) {
            return changed("how much it carries");
        }
        if !self.reads(set.merged, set.input) {
            let (node, buffer) = (
                self.after.name(set.merged).to_owned(),
                self.after.buffer_name(set.input).to_owned(),
            );
            return Err(RewriteViolation::DependencyLost { node, buffer });
        }
        self.reads_only(set.merged, &BTreeSet::from([set.input]))?;
        self.has_size(set.output, output)?;
        self.buckets_are_plain(set)?;
        self.bucket_is_held(set)
    }

    /// Buckets are not views, and results only if they are slices; what a wait produces takes no
    /// memory.
    fn buckets_are_plain(&self, set: &MergedSet) -> Checked {
        let after = self.after;
        let name = |buffer: BufId| after.buffer_name(buffer).to_owned();
        for bucket in [set.input, set.output] {
            if after.view_of(bucket).is_some() {
                return Err(RewriteViolation::NotASlice { buffer: name(bucket) });
            }
            let is_slice_a_result = after
                .buffers()
                .any(|part| after.view_of(part) == Some(bucket) && after.is_output(part));
            if after.is_output(bucket) != is_slice_a_result {
                return Err(RewriteViolation::ResultChanged { buffer: name(bucket) });
            }
        }
        let made = set.wait.into_iter().flat_map(|wait| after.outputs(wait).iter().copied());
        made.into_iter().try_for_each(|buffer| self.has_size(buffer, Bytes::ZERO))
    }

    /// What an asynchronous collective reads lives until something that reads its result has
    /// waited.
    fn bucket_is_held(&self, set: &MergedSet) -> Checked {
        let made = self.after.outputs(set.merged);
        let reads = |wait: &&OpId| made.iter().any(|&buffer| self.reads(**wait, buffer));
        let waits: Vec<OpId> =
            self.after.waited_by(set.merged).iter().filter(reads).copied().collect();
        let users = self.after.users(set.input);
        match waits.first() {
            Some(&wait) if !waits.iter().any(|wait| users.contains(wait)) => {
                Err(self.not_alive(set.input, wait))
            }
            _ => Ok(()),
        }
    }

    /// A member's result is a slice of the bucket, or copied out of it.
    fn result_is_had(&self, set: &MergedSet, member: OpId) -> Checked {
        match self.claims.copy_out[member] {
            Some(copy) => self.is_copied(set, member, copy),
            None => self.is_sliced(set, member),
        }
    }

    fn is_sliced(&self, set: &MergedSet, member: OpId) -> Checked {
        let payload = self.before.collective(member).map_or(Bytes::ZERO, |of| of.payload.output);
        let is_whole =
            self.before.collective(member).is_some_and(|of| of.kind != CollectiveKind::AllGather);
        let mut sum = Bytes::ZERO;
        for &old in self.before.outputs(member) {
            let new = self.claims.image[old];
            let no_slice =
                || RewriteViolation::NotASlice { buffer: self.after.buffer_name(new).to_owned() };
            if self.after.maker(new) != Some(set.merged) {
                return Err(no_slice());
            }
            let size = self.before.size_alloc(old);
            sum += size;
            if size > Bytes::ZERO && (self.after.view_of(new) != Some(set.output) || !is_whole) {
                return Err(no_slice());
            }
            self.has_size(new, Bytes::ZERO)?;
        }
        match sum == payload {
            true => Ok(()),
            false => {
                let buffer = self.after.buffer_name(set.output).to_owned();
                Err(RewriteViolation::WrongSize { buffer, is: sum, should: payload })
            }
        }
    }

    fn is_copied(&self, set: &MergedSet, member: OpId, copy: OpId) -> Checked {
        self.computes(copy)?;
        let wait = self.origin.ops[copy].of.iter().copied().find(|&op| op != member);
        let mut reads = BTreeSet::from([set.output]);
        let mut made: Vec<BufId> = self.before.outputs(member).to_vec();
        if let Some(wait) = wait {
            let ends = |&(buffer, kinds): &(BufId, DepKinds)| {
                kinds.data && self.before.maker(buffer) == Some(member)
            };
            if self.before.kind(wait) != OpKind::Wait || !self.before.deps(wait).iter().any(ends) {
                return Err(RewriteViolation::BadOrigin { node: self.after.name(copy).to_owned() });
            }
            made.extend(self.before.outputs(wait));
            for &(buffer, kinds) in self.before.deps(wait) {
                if self.before.maker(buffer) == Some(member) {
                    continue;
                }
                if kinds.data {
                    reads.extend(self.places(buffer));
                }
                if !self.comes_after(copy, buffer, kinds) {
                    return Err(self.dependency_lost(copy, buffer));
                }
            }
        }
        for old in made {
            let new = self.claims.image[old];
            if self.after.maker(new) != Some(copy)
                || self.after.view_of(new) != self.view_before(old)
            {
                return Err(RewriteViolation::BufferLost {
                    buffer: self.before.buffer_name(old).to_owned(),
                });
            }
        }
        let waited: Vec<BufId> = set
            .wait
            .into_iter()
            .flat_map(|wait| self.after.outputs(wait).iter().copied())
            .collect();
        let is_async = self.after.kind(set.merged) == OpKind::AsyncCollective;
        let has_waited = waited.iter().any(|&buffer| self.reads(copy, buffer));
        if !self.reads(copy, set.output) || is_async && !has_waited {
            let (node, buffer) =
                (self.after.name(copy).to_owned(), self.after.buffer_name(set.output).to_owned());
            return Err(RewriteViolation::DependencyLost { node, buffer });
        }
        if let Some(wait) = set.wait {
            self.reads_only(wait, &BTreeSet::from([set.output]))?;
        }
        reads.extend(waited);
        self.reads_only(copy, &reads)
    }

    /// An unchanged operation has the same properties, results and dependencies.
    fn is_as_it_was(&self, old: OpId, new: OpId) -> Checked {
        let (before, after) = (self.before, self.after);
        let changed =
            |what| Err(RewriteViolation::Changed { node: before.name(old).to_owned(), what });
        let time = |graph: &Graph, op| graph.has_runtime(op).then(|| graph.runtime(op).0.to_bits());
        match () {
            () if before.name(old) != after.name(new) => return changed("its name"),
            () if before.kind(old) != after.kind(new) => return changed("what it is"),
            () if time(before, old) != time(after, new) => return changed("its run time"),
            () if before.flops(old) != after.flops(new)
                || before.bytes(old) != after.bytes(new) =>
            {
                return changed("its work");
            }
            () if before.collective(old) != after.collective(new) => {
                return changed("what it communicates");
            }
            () if before.is_gemm_like(old) != after.is_gemm_like(new)
                || before.fused(old) != after.fused(new) =>
            {
                return changed("what was fused into it");
            }
            () if before.provenance(old) != after.provenance(new)
                || before.kernel(old) != after.kernel(new) =>
            {
                return changed("where it comes from");
            }
            () => {}
        }
        let made: Vec<BufId> =
            before.outputs(old).iter().map(|&buffer| self.claims.image[buffer]).collect();
        if made != after.outputs(new) {
            return changed("what it makes");
        }
        let mut reads = BTreeSet::new();
        for &(buffer, kinds) in before.deps(old) {
            if kinds.data {
                reads.extend(self.places(buffer));
            }
            if !self.comes_after(new, buffer, kinds) {
                return Err(self.dependency_lost(new, buffer));
            }
        }
        self.reads_only(new, &reads)
    }

    /// Whether a new operation needs what an old one did: for data and after an end, the buffer
    /// itself; after a launch, also the bucket that the launched collective makes now. Order-only
    /// edges do not matter here.
    fn comes_after(&self, new: OpId, buffer: BufId, kinds: DepKinds) -> bool {
        let launched = || {
            let merged = self.before.maker(buffer).and_then(|maker| self.claims.merged[maker]);
            let bucket =
                merged.and_then(|merged| self.claims.sets.get(&merged)).map(|set| set.output);
            bucket.is_some_and(|bucket| self.needed(new, bucket).is_real())
        };
        self.places(buffer).into_iter().all(|place| {
            let found = self.needed(new, place);
            (!kinds.data || found.data)
                && (!kinds.weak || found.is_awaited())
                && (!kinds.issued || kinds.is_awaited() || found.is_real() || launched())
        })
    }

    /// Why a new operation needs a new buffer, if it does.
    fn needed(&self, new: OpId, buffer: BufId) -> DepKinds {
        let mut deps = self.after.deps(new).iter();
        deps.find(|(needed, _)| *needed == buffer).map(|(_, kinds)| *kinds).unwrap_or_default()
    }

    /// The new buffers that hold what an old one did.
    fn places(&self, old: BufId) -> Vec<BufId> {
        let (image, parts) = (self.claims.image[old], &self.claims.parts[old]);
        let whole = Some(image).filter(|image| !parts.contains(image));
        whole.into_iter().chain(parts.iter().copied()).collect()
    }

    /// A buffer has its old size, is a result if it was one, and lives until everything that kept
    /// it alive has run.
    fn lives_as_long(&self, old: BufId) -> Checked {
        if !self.claims.parts[old].is_empty() {
            return self.pieces_live_as_long(old);
        }
        let (before, after) = (self.before, self.after);
        let new = self.claims.image[old];
        let is_new_slice = after.view_of(new).is_some() && self.view_before(old).is_none();
        let sliced = |maker: OpId| {
            self.claims.merged[maker].is_some() && self.claims.copy_out[maker].is_none()
        };
        if is_new_slice && !before.maker(old).is_some_and(sliced) {
            return Err(RewriteViolation::NotASlice { buffer: after.buffer_name(new).to_owned() });
        }
        if !is_new_slice {
            self.has_sizes(new, before.size_alloc(old), before.size_free(old))?;
        }
        let root = after.view_of(new).unwrap_or(new);
        if let Some(whole) = self.view_before(old)
            && after.view_of(whole).unwrap_or(whole) != root
        {
            return Err(RewriteViolation::NotASlice { buffer: after.buffer_name(new).to_owned() });
        }
        if before.is_output(old) != after.is_output(new)
            || after.is_output(new) && !after.is_output(root)
        {
            return Err(RewriteViolation::ResultChanged {
                buffer: after.buffer_name(new).to_owned(),
            });
        }
        for &user in before.users(old) {
            for user in self.stand_ins(user, old) {
                let keeps = |buffer: BufId| after.users(buffer).binary_search(&user).is_ok();
                if after.maker(new) != Some(user) && !(keeps(new) && keeps(root)) {
                    return Err(self.not_alive(new, user));
                }
            }
        }
        Ok(())
    }

    /// The new operations that use a buffer where an old one did.
    fn stand_ins(&self, user: OpId, buffer: BufId) -> Vec<OpId> {
        let claims = &self.claims;
        if let Some(merged) = claims.merged[user] {
            let copy_in = claims.sets.get(&merged).map(|set| set.copy_in);
            // In-place operations write where they read.
            let back = claims.copy_out[user].filter(|_| self.is_in_place(user));
            return copy_in.into_iter().chain(back).collect();
        }
        if !claims.pieces[user].is_empty() {
            return claims.pieces[user].clone();
        }
        match claims.kept[user].or(claims.copy_out[user]) {
            Some(_) if self.only_held(user, buffer) => Vec::new(),
            found => found.into_iter().collect(),
        }
    }

    /// Whether a wait kept a buffer alive for a member that read it: the copy has read it by then.
    fn only_held(&self, wait: OpId, buffer: BufId) -> bool {
        let before = self.before;
        let needs = before.deps(wait).iter().any(|(needed, _)| *needed == buffer);
        let reads = |member: OpId| {
            before
                .deps(wait)
                .iter()
                .any(|&(buffer, kinds)| kinds.data && before.maker(buffer) == Some(member))
        };
        let held_for = |&member: &OpId| {
            self.claims.merged[member].is_some()
                && reads(member)
                && !self.is_in_place(member)
                && before.users(buffer).binary_search(&member).is_ok()
        };
        before.kind(wait) == OpKind::Wait && !needs && before.waits_for(wait).iter().any(held_for)
    }

    fn is_in_place(&self, member: OpId) -> bool {
        let made: Bytes =
            self.before.outputs(member).iter().map(|&buffer| self.before.size_alloc(buffer)).sum();
        made == Bytes::ZERO
            && self.before.collective(member).is_some_and(|of| of.payload.output > Bytes::ZERO)
    }

    /// What a buffer was a slice of in the old program, in the new program.
    fn view_before(&self, old: BufId) -> Option<BufId> {
        self.before.view_of(old).map(|of| self.claims.image[of])
    }

    fn computes(&self, op: OpId) -> Checked {
        match self.after.kind(op) == OpKind::Compute {
            true => Ok(()),
            false => Err(RewriteViolation::Changed {
                node: self.after.name(op).to_owned(),
                what: "what it is",
            }),
        }
    }

    fn reads(&self, op: OpId, buffer: BufId) -> bool {
        self.after.deps(op).iter().any(|&(needed, kinds)| needed == buffer && kinds.data)
    }

    fn reads_only(&self, op: OpId, allowed: &BTreeSet<BufId>) -> Checked {
        let mut read = self.after.deps(op).iter().filter(|(_, kinds)| kinds.data);
        match read.find(|(buffer, _)| !allowed.contains(buffer)) {
            Some(&(buffer, _)) => {
                let (node, buffer) =
                    (self.after.name(op).to_owned(), self.after.buffer_name(buffer).to_owned());
                Err(RewriteViolation::DependencyInvented { node, buffer })
            }
            None => Ok(()),
        }
    }

    fn has_size(&self, buffer: BufId, should: Bytes) -> Checked {
        self.has_sizes(buffer, should, should)
    }

    fn has_sizes(&self, buffer: BufId, alloc: Bytes, free: Bytes) -> Checked {
        let pairs = [(self.after.size_alloc(buffer), alloc), (self.after.size_free(buffer), free)];
        match pairs.into_iter().find(|(is, should)| is != should) {
            Some((is, should)) => Err(RewriteViolation::WrongSize {
                buffer: self.after.buffer_name(buffer).to_owned(),
                is,
                should,
            }),
            None => Ok(()),
        }
    }

    fn dependency_lost(&self, op: OpId, buffer: BufId) -> RewriteViolation {
        let (node, buffer) =
            (self.after.name(op).to_owned(), self.before.buffer_name(buffer).to_owned());
        RewriteViolation::DependencyLost { node, buffer }
    }

    fn not_alive(&self, buffer: BufId, user: OpId) -> RewriteViolation {
        let (buffer, user) =
            (self.after.buffer_name(buffer).to_owned(), self.after.name(user).to_owned());
        RewriteViolation::NotAlive { buffer, user }
    }
}
