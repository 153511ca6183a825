//! Operations that were split: their pieces do the same, on the same inputs.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::{Component, content};
use super::{Checked, Judge, RewriteViolation};
use crate::graph::{Collective, Graph};
use crate::ids::{BufId, Id, IdVec, OpId};
use crate::origin::{Origin, Part};
use crate::units::Bytes;

/// For each old operation its pieces: numbered without a gap, the same number for all.
pub(super) fn pieces_of(
    before: &Graph,
    origin: &Origin,
) -> Result<IdVec<OpId, Vec<OpId>>, RewriteViolation> {
    let mut numbered: BTreeMap<OpId, BTreeMap<u32, (OpId, u32)>> = BTreeMap::new();
    let mut pieces = IdVec::filled(Vec::new(), before.len());
    let wrong = |op: OpId| RewriteViolation::WrongPieces { node: before.name(op).to_owned() };
    for (new, source) in origin.ops.iter() {
        let (Part::Piece { number, of }, &[old]) = (source.part, &source.of[..]) else { continue };
        if old.index() >= before.len() {
            let node = "a piece".to_owned();
            return Err(RewriteViolation::BadOrigin { node });
        }
        if numbered.entry(old).or_default().insert(number, (new, of)).is_some() {
            return Err(wrong(old));
        }
    }
    for (old, found) in numbered {
        let count = found.len() as u32;
        let is_whole = count >= 2
            && found.iter().zip(0..).all(|((number, (_, of)), at)| *number == at && *of == count);
        if !is_whole {
            return Err(wrong(old));
        }
        pieces[old] = found.into_values().map(|(new, _)| new).collect();
    }
    Ok(pieces)
}

/// For each old buffer whose producer was split, its pieces, one from each piece.
pub(super) fn parts_of(
    [before, after]: [&Graph; 2],
    origin: &Origin,
    pieces: &IdVec<OpId, Vec<OpId>>,
) -> Result<IdVec<BufId, Vec<BufId>>, RewriteViolation> {
    let mut parts = IdVec::filled(Vec::new(), before.buffers().len());
    for old in before.buffers() {
        let Some(maker) = before.maker(old) else { continue };
        for &piece in &pieces[maker] {
            let is_part = |new: &BufId| {
                origin.buffers[*new] == [old] && after.buffer_name(*new) != before.buffer_name(old)
            };
            let found: Vec<BufId> = after.outputs(piece).iter().copied().filter(is_part).collect();
            let [part] = found[..] else {
                let buffer = before.buffer_name(old).to_owned();
                return Err(RewriteViolation::BufferLost { buffer });
            };
            parts[old].push(part);
        }
    }
    Ok(parts)
}

impl Judge<'_> {
    /// Every split operation has pieces that do its work, and reading single pieces is enough.
    pub(super) fn pieces_are_right(&self) -> Checked {
        let cut: Vec<OpId> =
            self.before.ops().filter(|&op| !self.claims.pieces[op].is_empty()).collect();
        for &op in &cut {
            self.pieces_share(op)?;
            self.pieces_make(op)?;
            for number in 0..self.claims.pieces[op].len() {
                self.piece_reads(op, number)?;
            }
        }
        for ops in self.components(&cut) {
            let own = |op: OpId, buffer: BufId| self.reads_own(op, buffer);
            Component { graph: self.before, ops: &ops, reads_own: &own }.has_rows()?;
        }
        Ok(())
    }

    /// Pieces are what the operation was, and have its work and its messages between them.
    fn pieces_share(&self, op: OpId) -> Checked {
        let (before, after) = (self.before, self.after);
        let changed =
            |what| Err(RewriteViolation::Changed { node: before.name(op).to_owned(), what });
        let pieces = &self.claims.pieces[op];
        for &piece in pieces {
            match () {
                () if before.kind(op) != after.kind(piece) => return changed("what it is"),
                () if before.is_gemm_like(op) != after.is_gemm_like(piece)
                    || before.fused(op) != after.fused(piece) =>
                {
                    return changed("what was fused into it");
                }
                () if before.provenance(op) != after.provenance(piece) => {
                    return changed("where it comes from");
                }
                () if !same_but_size(before.collective(op), after.collective(piece)) => {
                    return changed("what it communicates");
                }
                () => {}
            }
        }
        let wrong =
            |what| Err(RewriteViolation::WrongShares { node: before.name(op).to_owned(), what });
        let work: f64 = pieces.iter().filter_map(|&one| after.flops(one)).map(|one| one.0).sum();
        let had = before.flops(op).map_or(0.0, |flops| flops.0);
        if (work - had).abs() > 1e-9 * had {
            return wrong("its work");
        }
        let payload = |of: fn(&Collective) -> Bytes| {
            let shares = pieces.iter().filter_map(|&one| after.collective(one)).map(of);
            before.collective(op).is_none_or(|whole| adds_up(shares.collect(), of(whole)))
        };
        match payload(|of| of.payload.input) && payload(|of| of.payload.output) {
            true => Ok(()),
            false => wrong("what it carries"),
        }
    }

    /// A piece produces its part of every result, and the first also the buffer that holds all
    /// parts.
    fn pieces_make(&self, op: OpId) -> Checked {
        for (number, &piece) in self.claims.pieces[op].iter().enumerate() {
            let mut made: Vec<BufId> = Vec::new();
            for &old in self.before.outputs(op) {
                made.extend(self.whole(old).filter(|_| number == 0));
                made.push(self.claims.parts[old][number]);
            }
            if made != self.after.outputs(piece) {
                let node = self.before.name(op).to_owned();
                return Err(RewriteViolation::Changed { node, what: "what it makes" });
            }
        }
        Ok(())
    }

    /// The buffer that holds all parts of a split buffer, if there is one.
    fn whole(&self, old: BufId) -> Option<BufId> {
        let image = self.claims.image[old];
        Some(image).filter(|image| !self.claims.parts[old].contains(image))
    }

    /// Whether each piece of an operation reads only its own part of a buffer.
    fn reads_own(&self, op: OpId, old: BufId) -> bool {
        let (pieces, parts) = (&self.claims.pieces[op], &self.claims.parts[old]);
        let reads = |piece: OpId, part: BufId| self.needed(piece, part).data;
        pieces.len() == parts.len()
            && pieces.iter().enumerate().all(|(number, &piece)| {
                let others = parts.iter().enumerate().filter(|(other, _)| *other != number);
                reads(piece, parts[number]) && others.clone().all(|(_, &part)| !reads(piece, part))
            })
    }

    fn piece_reads(&self, op: OpId, number: usize) -> Checked {
        let piece = self.claims.pieces[op][number];
        let mut reads = BTreeSet::new();
        for &(buffer, kinds) in self.before.deps(op) {
            let is_own = self.reads_own(op, buffer) && !kinds.weak && !kinds.issued;
            if kinds.data && is_own {
                reads.insert(self.claims.parts[buffer][number]);
                continue;
            }
            if kinds.data {
                reads.extend(self.places(buffer));
            }
            if !self.comes_after(piece, buffer, kinds) {
                return Err(self.dependency_lost(piece, buffer));
            }
        }
        for whole in self.before.outputs(op).iter().filter_map(|&old| self.whole(old)) {
            if number > 0 && !self.needed(piece, whole).is_real() {
                let node = self.after.name(piece).to_owned();
                let buffer = self.after.buffer_name(whole).to_owned();
                return Err(RewriteViolation::DependencyLost { node, buffer });
            }
        }
        self.reads_only(piece, &reads)
    }

    /// Split operations, connected by reads of single pieces.
    fn components(&self, cut: &[OpId]) -> Vec<Vec<OpId>> {
        let mut beside: BTreeMap<OpId, Vec<OpId>> = cut.iter().map(|&op| (op, vec![])).collect();
        for &op in cut {
            for &(buffer, kinds) in self.before.deps(op) {
                let maker = self.before.maker(buffer).filter(|_| kinds.data);
                if let Some(maker) = maker.filter(|_| self.reads_own(op, buffer)) {
                    beside.entry(op).or_default().push(maker);
                    beside.entry(maker).or_default().push(op);
                }
            }
        }
        let (mut seen, mut components) = (BTreeSet::new(), Vec::new());
        for &first in cut {
            let (mut open, mut ops) = (vec![first], Vec::new());
            while let Some(op) = open.pop() {
                if seen.insert(op) {
                    ops.push(op);
                    open.extend(&beside[&op]);
                }
            }
            if !ops.is_empty() {
                components.push(ops);
            }
        }
        components
    }

    /// The parts of a buffer take its memory, or are slices of it, and live until their users have
    /// run.
    pub(super) fn pieces_live_as_long(&self, old: BufId) -> Checked {
        let (before, after) = (self.before, self.after);
        let (parts, whole) = (&self.claims.parts[old], self.whole(old));
        let name = |buffer: BufId| after.buffer_name(buffer).to_owned();
        let is_viewed = before.buffers().any(|other| before.view_of(other) == Some(old));
        if before.view_of(old).is_some() || is_viewed {
            return Err(RewriteViolation::NotASlice { buffer: name(parts[0]) });
        }
        for &part in parts {
            if after.view_of(part) != whole {
                return Err(RewriteViolation::NotASlice { buffer: name(part) });
            }
            if after.is_output(part) || before.is_output(old) && whole.is_none() {
                return Err(RewriteViolation::ResultChanged { buffer: name(part) });
            }
        }
        match whole {
            Some(whole) => {
                self.has_sizes(whole, before.size_alloc(old), before.size_free(old))?;
                parts.iter().try_for_each(|&part| self.has_size(part, Bytes::ZERO))?;
                if before.is_output(old) != after.is_output(whole) {
                    return Err(RewriteViolation::ResultChanged { buffer: name(whole) });
                }
            }
            None => {
                let sizes = |of: fn(&Graph, BufId) -> Bytes| {
                    adds_up(parts.iter().map(|&part| of(after, part)).collect(), of(before, old))
                };
                if !sizes(Graph::size_alloc) || !sizes(Graph::size_free) {
                    let (is, should) = (after.size_alloc(parts[0]), before.size_alloc(old));
                    return Err(RewriteViolation::WrongSize { buffer: name(parts[0]), is, should });
                }
            }
        }
        self.parts_are_held(old)
    }

    fn parts_are_held(&self, old: BufId) -> Checked {
        let (parts, whole) = (&self.claims.parts[old], self.whole(old));
        let holds = |part: BufId, user: OpId| {
            let held = whole.unwrap_or(part);
            self.after.users(held).binary_search(&user).is_ok()
                || self.after.maker(held) == Some(user)
        };
        for &user in self.before.users(old) {
            let own = self.uses_own(user, old);
            for (at, stand_in) in self.stand_ins(user, old).into_iter().enumerate() {
                for (number, &part) in parts.iter().enumerate() {
                    if (!own || at == number) && !holds(part, stand_in) {
                        return Err(self.not_alive(part, stand_in));
                    }
                }
            }
        }
        // What writes into a whole keeps it.
        for (&part, &maker) in parts.iter().zip(self.maker_pieces(old)) {
            if whole.is_some() && !holds(part, maker) {
                return Err(self.not_alive(part, maker));
            }
        }
        Ok(())
    }

    fn maker_pieces(&self, old: BufId) -> &[OpId] {
        self.before.maker(old).map_or(&[], |maker| &self.claims.pieces[maker])
    }

    /// Whether a split operation reads only its own part of a buffer, under any name.
    fn uses_own(&self, user: OpId, old: BufId) -> bool {
        let held = content(self.before, old);
        let mut reads = self
            .before
            .deps(user)
            .iter()
            .filter(|&&(buffer, kinds)| kinds.data && content(self.before, buffer) == held);
        let mut any = false;
        let own = reads.all(|&(buffer, _)| {
            any = true;
            self.reads_own(user, buffer)
        });
        any && own && !self.claims.pieces[user].is_empty()
    }
}

fn same_but_size(a: Option<&Collective>, b: Option<&Collective>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => {
            let of = |of: &Collective| (of.kind, of.reduction, of.group, of.group_size);
            of(a) == of(b) && a.op == b.op && a.payload.dtype == b.payload.dtype
        }
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// Whether shares are as equal as possible, and add up to the whole.
fn adds_up(shares: Vec<Bytes>, whole: Bytes) -> bool {
    let (least, most) =
        (shares.iter().map(|one| one.0).min(), shares.iter().map(|one| one.0).max());
    let is_even = least.zip(most).is_none_or(|(least, most)| most - least <= 1);
    is_even && shares.into_iter().sum::<Bytes>() == whole
}
