//! Collectives and what is computed around them, in pieces along one axis: while a piece travels,
//! the next is computed, and what reads the first goes on with it. So a tensor-parallel layer, or
//! experts between two all-to-alls, works on parts of a batch one after the other.
//!
//! A region grows from its first collective over everything that works on pieces, as far as the
//! recipe says. Its pieces are put together again only where something else needs the whole.

use std::collections::{BTreeMap, BTreeSet};

use super::axes::{NeededPart, needed};
use super::piece::{PieceMark, piece_attributes, slice_text, whole_text};
use super::{RecipeSubject, Refusal};
use crate::draft::{Draft, array_text};
use crate::ids::InstrId;
use crate::{Array, Opcode, Operand};
use halflap::units::Bytes;

/// How a region is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionPieces {
    /// How many pieces.
    pub pieces: u64,
    /// How many products of matrices are between a collective and what is still cut, at most.
    pub reach: u32,
    /// The bytes of a product's result that a piece takes longer by, if not the usual ones.
    pub tail: Option<Bytes>,
}

/// A region that is cut.
pub(super) struct RegionPlan<'s, 'm> {
    subject: &'s RecipeSubject<'m>,
    cut: RegionPieces,
    /// The members, and the dimension along which the result of each is cut.
    dims: BTreeMap<InstrId, usize>,
}

/// The region that grows from the first collective over some of the others.
pub(super) fn plan<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    draft: &Draft<'_>,
    collectives: &[InstrId],
    cut: RegionPieces,
) -> Result<RegionPlan<'s, 'm>, Refusal> {
    let is_sent = |instr: &&InstrId| subject.opcode(**instr).collective_kind().is_some();
    let &first = collectives.first().filter(is_sent).ok_or(Refusal::Kind)?;
    subject.changeable(first)?;
    let rank = subject.array(first)?.dims.len();
    let soil = GrowingRegion { subject, draft, collectives, cut };
    let score = |dims: &BTreeMap<InstrId, usize>| {
        let products = dims.keys().filter(|&&instr| subject.opcode(instr) == Opcode::Dot);
        (products.count(), dims.len())
    };
    // Of equal ones the first, whose pieces are closer together in memory.
    let dims = (0..rank).rev().map(|dim| soil.grown(first, dim)).max_by_key(score);
    let dims = dims.filter(|dims| dims.keys().any(|instr| !collectives.contains(instr)));
    Ok(RegionPlan { subject, cut, dims: dims.ok_or(Refusal::NoPieces)? })
}

/// The same over those that it reaches, and as if the others were not named: a region ends at
/// collectives that are not in it.
pub(super) fn reached<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    draft: &Draft<'_>,
    collectives: &[InstrId],
    cut: RegionPieces,
) -> Result<RegionPlan<'s, 'm>, Refusal> {
    let mut named = collectives.to_vec();
    loop {
        let plan = plan(subject, draft, &named, cut)?;
        let reached = plan.collectives();
        if reached == named {
            return Ok(plan);
        }
        named = reached;
    }
}

/// What a region grows in.
struct GrowingRegion<'a, 'm> {
    subject: &'a RecipeSubject<'m>,
    draft: &'a Draft<'a>,
    collectives: &'a [InstrId],
    cut: RegionPieces,
}

/// A neighbour of a region: how many products away it is, and along which dimension it is cut.
type NextMember = (u32, InstrId, usize);

impl GrowingRegion<'_, '_> {
    /// The members of a region that begins with a collective, and how each is cut.
    fn grown(&self, first: InstrId, dim: usize) -> BTreeMap<InstrId, usize> {
        let mut dims = BTreeMap::new();
        let mut open: BTreeSet<NextMember> = BTreeSet::from([(0, first, dim)]);
        // The nearest first, so that each is as close to a collective as it can be.
        while let Some((products, instr, dim)) = open.pop_first() {
            if dims.contains_key(&instr) || !self.may_be_cut(instr, dim) {
                continue;
            }
            dims.insert(instr, dim);
            let near = if self.collectives.contains(&instr) { 0 } else { products };
            for (next, dim) in self.producers(instr, dim).into_iter().chain(self.users(instr, dim))
            {
                let away = near + u32::from(self.subject.opcode(next) == Opcode::Dot);
                if away <= self.cut.reach {
                    open.insert((away, next, dim));
                }
            }
        }
        dims
    }

    fn may_be_cut(&self, instr: InstrId, dim: usize) -> bool {
        let subject = self.subject;
        let is_other = |instr: InstrId| {
            subject.opcode(instr).collective_kind().is_some() && !self.collectives.contains(&instr)
        };
        // A sum with what others send ends the region, or it would go on along a residual stream
        // through all layers.
        let reads_other = subject.module.operands(instr).iter().any(|of| is_other(of.of));
        !is_other(instr)
            && !reads_other
            && self.differs(instr, dim)
            && subject.changeable(instr).is_ok()
            && subject.array(instr).is_ok()
            && self.draft.is_untouched(instr)
    }

    /// Whether an instruction can be cut, and its pieces differ: those of a broadcast along the
    /// dimension do not, nor what is computed of such broadcasts alone.
    fn differs(&self, instr: InstrId, dim: usize) -> bool {
        let (module, pieces) = (self.subject.module, self.cut.pieces);
        let Some(parts) = needed(module, instr, dim, pieces) else { return false };
        let is_spread = |(operand, part): (&Operand, &NeededPart)| match part {
            NeededPart::Whole => true,
            NeededPart::Piece(dim) => is_spread(self.subject, operand.of, *dim, pieces),
        };
        !module.operands(instr).iter().zip(&parts).all(is_spread)
    }

    /// What gives the pieces that a member reads.
    fn producers(&self, instr: InstrId, dim: usize) -> Vec<(InstrId, usize)> {
        let module = self.subject.module;
        let parts = needed(module, instr, dim, self.cut.pieces).unwrap_or_default();
        let cut = |(operand, part): (&Operand, NeededPart)| match part {
            NeededPart::Piece(dim) if module.path(operand).is_empty() => Some((operand.of, dim)),
            _ => None,
        };
        module.operands(instr).iter().zip(parts).filter_map(cut).collect()
    }

    /// What can go on with pieces of a member.
    fn users(&self, instr: InstrId, dim: usize) -> Vec<(InstrId, usize)> {
        let subject = self.subject;
        let mut found = Vec::new();
        for &user in &subject.users[instr] {
            let rank =
                subject.module.instruction(user).shape.array().map_or(0, |array| array.dims.len());
            let goes_on = |&of: &usize| {
                let read = subject.module.operands(user).iter().filter(|by| by.of == instr).count();
                let made = self.producers(user, of);
                read > 0 && made.iter().filter(|&&by| by == (instr, dim)).count() == read
            };
            found.extend((0..rank).find(goes_on).map(|of| (user, of)));
        }
        found
    }
}

impl RegionPlan<'_, '_> {
    /// The collectives that are cut, in text order.
    pub(super) fn collectives(&self) -> Vec<InstrId> {
        let is_sent = |instr: &InstrId| self.subject.opcode(*instr).collective_kind().is_some();
        self.dims.keys().copied().filter(is_sent).collect()
    }

    /// Writes it; returns the names of the pieces of the collectives.
    pub(super) fn write(&self, draft: &mut Draft<'_>) -> String {
        let mut writer = RegionWriter {
            plan: self,
            draft,
            pieces: BTreeMap::new(),
            others: BTreeMap::new(),
            spread: BTreeSet::new(),
        };
        for (&instr, &dim) in &self.dims {
            writer.member(instr, dim);
        }
        writer.remove_unread();
        let made = writer.pieces;
        let names = self.collectives().into_iter().flat_map(|instr| made[&instr].clone());
        let names: Vec<String> =
            names.map(|name| name.trim_start_matches('%').to_owned()).collect();
        names.join(", ")
    }

    /// Whether something reads a member's result other than in the same pieces.
    fn is_read_whole(&self, instr: InstrId, dim: usize) -> bool {
        let module = self.subject.module;
        let reads_whole = |user: &InstrId| {
            let Some(&of) = self.dims.get(user) else { return true };
            let parts = needed(module, *user, of, self.cut.pieces).unwrap_or_default();
            let mut reads = module.operands(*user).iter().zip(parts);
            reads.any(|(operand, part)| operand.of == instr && part != NeededPart::Piece(dim))
        };
        self.subject.is_root(instr) || self.subject.users[instr].iter().any(reads_whole)
    }

    /// An array's type, of a piece along a dimension.
    fn piece_shape(&self, array: &Array, dim: usize) -> String {
        let extent = array.dims[dim] / self.cut.pieces;
        array_text(self.subject.module, &array.with_extent(dim, extent))
    }
}

/// Whether all elements of a broadcast along a dimension are the same.
fn is_spread(subject: &RecipeSubject<'_>, instr: InstrId, dim: usize, pieces: u64) -> bool {
    subject.opcode(instr) == Opcode::Broadcast
        && needed(subject.module, instr, dim, pieces).as_deref() == Some(&[NeededPart::Whole])
}

/// Writes the pieces of a region.
struct RegionWriter<'w, 'd, 's, 'm> {
    plan: &'w RegionPlan<'s, 'm>,
    draft: &'w mut Draft<'d>,
    /// The pieces of members.
    pieces: BTreeMap<InstrId, Vec<String>>,
    /// The pieces of what is not a member: the operand as text, and along which dimension.
    others: BTreeMap<(String, usize), Vec<String>>,
    /// Broadcasts that were written again for pieces.
    spread: BTreeSet<InstrId>,
}

impl RegionWriter<'_, '_, '_, '_> {
    /// The pieces of a member, and all of it where that is needed.
    fn member(&mut self, instr: InstrId, dim: usize) {
        let (module, pieces) = (self.plan.subject.module, self.plan.cut.pieces);
        let Some(array) = module.instruction(instr).shape.array() else { return };
        let parts = needed(module, instr, dim, pieces).unwrap_or_default();
        let operands: Vec<Vec<String>> = module
            .operands(instr)
            .iter()
            .zip(parts)
            .map(|(operand, part)| match part {
                NeededPart::Whole => vec![self.draft.operand(operand); pieces as usize],
                NeededPart::Piece(dim) => self.pieces_of(instr, operand, dim),
            })
            .collect();
        let (shape, stem) =
            (self.plan.piece_shape(array, dim), format!("{}.p", module.instruction_name(instr)));
        let mut made = Vec::new();
        for piece in 0..pieces {
            let own = operands.iter().map(|all| all[piece as usize].as_str());
            let own = own.collect::<Vec<_>>().join(", ");
            let mark = PieceMark { piece, pieces, tail: self.plan.cut.tail, dim };
            let attributes = piece_attributes(module, self.draft, instr, mark);
            let text = format!("{}({own}){attributes}", module.opcode_name(instr));
            made.push(self.draft.add(instr, &stem, (&shape, &text)));
        }
        if self.plan.is_read_whole(instr, dim) {
            let text = whole_text(module, instr, &made, dim);
            let name = module.instruction_name(instr).to_owned();
            self.draft.write_line(instr, name, (&array_text(module, array), &text));
        }
        self.pieces.insert(instr, made);
    }

    /// The pieces of an operand: a member's own, or slices.
    fn pieces_of(&mut self, at: InstrId, operand: &Operand, dim: usize) -> Vec<String> {
        let module = self.plan.subject.module;
        let is_own = self.plan.dims.get(&operand.of) == Some(&dim);
        if let Some(own) = self.pieces.get(&operand.of).filter(|_| is_own) {
            return own.clone();
        }
        let key = (self.draft.operand(operand), dim);
        if let Some(known) = self.others.get(&key) {
            return known.clone();
        }
        let array = module.operand_shape(operand).array();
        let made = array.map_or(Vec::new(), |array| {
            self.spread_again(at, operand, dim)
                .unwrap_or_else(|| self.slices(at, operand, (array, dim)))
        });
        self.others.insert(key, made.clone());
        made
    }

    /// A broadcast that is the same for every piece, written once for all of them.
    fn spread_again(&mut self, at: InstrId, operand: &Operand, dim: usize) -> Option<Vec<String>> {
        let (module, pieces) = (self.plan.subject.module, self.plan.cut.pieces);
        let of = operand.of;
        let is_spread = is_spread(self.plan.subject, of, dim, pieces);
        let array = module.instruction(of).shape.array().filter(|_| is_spread)?;
        let mark = PieceMark { piece: 0, pieces, tail: None, dim };
        let attributes = piece_attributes(module, self.draft, of, mark);
        let from = self.draft.operand(module.operands(of).first()?);
        let (shape, text) =
            (self.plan.piece_shape(array, dim), format!("broadcast({from}){attributes}"));
        let stem = format!("{}.p", module.instruction_name(of));
        self.spread.insert(of);
        Some(vec![self.draft.add(at, &stem, (&shape, &text)); pieces as usize])
    }

    fn slices(&mut self, at: InstrId, operand: &Operand, cut: (&Array, usize)) -> Vec<String> {
        let ((array, dim), pieces) = (cut, self.plan.cut.pieces);
        let shape = self.plan.piece_shape(array, dim);
        let stem = format!("{}.p", self.plan.subject.module.instruction_name(operand.of));
        let slice = |piece: u64| {
            let mark = PieceMark { piece, pieces, tail: None, dim };
            let text = slice_text(&self.draft.operand(operand), &array.dims, mark);
            self.draft.add(at, &stem, (&shape, &text))
        };
        (0..pieces).map(slice).collect()
    }

    /// Broadcasts that nothing reads any more.
    fn remove_unread(&mut self) {
        let subject = self.plan.subject;
        for &instr in &self.spread {
            let is_read = self.draft.is_read(instr, &subject.users[instr]);
            let is_free = !subject.is_root(instr) && subject.changeable(instr).is_ok();
            if !is_read && is_free && self.draft.is_untouched(instr) {
                self.draft.remove(instr);
            }
        }
    }
}
