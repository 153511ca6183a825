//! A collective and the product of matrices that feeds or reads it, in pieces: while one piece
//! travels, the next is computed.

use super::piece::{PieceMark, piece_attributes, slice_text, whole_text};
use super::{RecipeSubject, Refusal};
use crate::draft::{Draft, array_text};
use crate::ids::InstrId;
use crate::{Array, Module, Opcode, Operand};
use halflap::units::Bytes;

/// Where a product is cut.
#[derive(Clone, Copy)]
struct PieceCut {
    /// The operand that is cut; every piece reads the whole of the other one.
    operand: usize,
    /// Along which dimension of it.
    dim: usize,
    /// The same dimension of the product.
    result_dim: usize,
}

/// A product whose operand is gathered, or whose result is reduced, in pieces.
pub(super) struct SplitPlan<'s, 'm> {
    subject: &'s RecipeSubject<'m>,
    collective: InstrId,
    dot: InstrId,
    cut: PieceCut,
    pieces: u64,
    tail: Option<Bytes>,
}

/// The change to a collective, or why there is none.
pub(super) fn plan<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    collective: InstrId,
    pieces: u64,
) -> Result<SplitPlan<'s, 'm>, Refusal> {
    let module = subject.module;
    let [operand] = module.operands(collective) else { return Err(Refusal::Variadic) };
    let (dot, reader) = match subject.opcode(collective) {
        Opcode::AllReduce => (operand.of, collective),
        Opcode::AllGather => {
            let [dot] = subject.users[collective][..] else { return Err(Refusal::WholeUsed) };
            (dot, dot)
        }
        _ => return Err(Refusal::Kind),
    };
    let first = if reader == dot { collective } else { dot };
    if subject.opcode(dot) != Opcode::Dot {
        return Err(Refusal::NoProduct);
    }
    if subject.is_root(first) || subject.users[first] != [reader] {
        return Err(Refusal::WholeUsed);
    }
    subject.changeable(collective)?;
    subject.changeable(dot)?;
    for instr in [collective, dot] {
        subject.array(instr)?;
    }
    let gathered = (reader == dot).then_some(collective);
    let cut = cut_of(module, dot, gathered, pieces).ok_or(Refusal::NoPieces)?;
    Ok(SplitPlan { subject, collective, dot, cut, pieces, tail: None })
}

/// The longest dimension of a product that can be cut evenly; of what is gathered, if something is.
fn cut_of(
    module: &Module,
    dot: InstrId,
    gathered: Option<InstrId>,
    pieces: u64,
) -> Option<PieceCut> {
    let is_gathered = |operand: &Operand| gathered.is_none_or(|gather| operand.of == gather);
    let along = gathered.map(|gather| module.numbers(gather, "dimensions"));
    let mut best: Option<(u64, PieceCut)> = None;
    for cut in free_dims(module, dot)? {
        let operand = &module.operands(dot)[cut.operand];
        let array = module.operand_shape(operand).array().filter(|array| !array.dynamic)?;
        let is_along = along.as_ref().is_some_and(|dims| dims.contains(&(cut.dim as i64)));
        let extent = array.dims[cut.dim];
        let is_even = extent.is_multiple_of(pieces) && extent > pieces;
        let is_longer = best.is_none_or(|(longest, _)| extent > longest);
        if is_gathered(operand) && !is_along && is_even && is_longer {
            best = Some((extent, cut));
        }
    }
    // What is gathered may be both operands.
    let reads = module.operands(dot).iter().filter(|operand| is_gathered(operand)).count();
    best.filter(|_| gathered.is_none() || reads == 1).map(|(_, cut)| cut)
}

/// The dimensions of both operands that are dimensions of the product as well, each once.
fn free_dims(module: &Module, dot: InstrId) -> Option<Vec<PieceCut>> {
    let dims_of = |key: &str| module.numbers(dot, key);
    let batch = dims_of("lhs_batch_dims").len();
    let mut found = Vec::new();
    for (operand, side) in ["lhs", "rhs"].into_iter().enumerate() {
        let rank = module.operand_shape(module.operands(dot).get(operand)?).array()?.dims.len();
        let mut taken = dims_of(&format!("{side}_contracting_dims"));
        taken.extend(dims_of(&format!("{side}_batch_dims")));
        for dim in (0..rank).filter(|&dim| !taken.contains(&(dim as i64))) {
            found.push(PieceCut { operand, dim, result_dim: batch + found.len() });
        }
    }
    let rank = module.instruction(dot).shape.array()?.dims.len();
    (batch + found.len() == rank).then_some(found)
}

impl SplitPlan<'_, '_> {
    /// The same, with another tail of each piece of the product.
    pub(super) fn with_tail(self, tail: Option<Bytes>) -> Self {
        SplitPlan { tail, ..self }
    }

    /// Writes it; returns the names of the pieces of the collective.
    pub(super) fn write(self, draft: &mut Draft<'_>) -> Result<String, Refusal> {
        if ![self.collective, self.dot].iter().all(|&instr| draft.is_untouched(instr)) {
            return Err(Refusal::Changed);
        }
        let module = self.subject.module;
        let (gathers, place) = (self.gathers(), self.place());
        let (mut names, mut parts) = (Vec::new(), Vec::new());
        for piece in 0..self.pieces {
            let operand = &module.operands(self.dot)[self.cut.operand];
            let sent = if gathers { &module.operands(self.collective)[0] } else { operand };
            let slice = self.slice(draft, sent, piece);
            let (result, name) = match gathers {
                true => {
                    let gathered = self.communicate(draft, &slice, piece);
                    (self.product(draft, &gathered), gathered)
                }
                false => {
                    let product = self.product(draft, &slice);
                    let reduced = self.communicate(draft, &product, piece);
                    (reduced.clone(), reduced)
                }
            };
            names.push(name.trim_start_matches('%').to_owned());
            parts.push(result);
        }
        let text = whole_text(module, place, &parts, self.cut.result_dim);
        let shape = self.shape_of(place, None);
        draft.write_line(place, module.instruction_name(place).to_owned(), (&shape, &text));
        draft.remove(if gathers { self.collective } else { self.dot });
        Ok(names.join(", "))
    }

    fn gathers(&self) -> bool {
        self.subject.opcode(self.collective) == Opcode::AllGather
    }

    /// The last of both, in whose place the pieces are written.
    fn place(&self) -> InstrId {
        if self.gathers() { self.dot } else { self.collective }
    }

    /// The rows of a piece.
    fn slice(&self, draft: &mut Draft<'_>, of: &Operand, piece: u64) -> String {
        let module = self.subject.module;
        // The plan has looked at it.
        let Some(array) = module.operand_shape(of).array() else { return draft.operand(of) };
        let mark = self.mark(piece, self.cut.dim);
        let text = slice_text(&draft.operand(of), &array.dims, mark);
        let shape = self.shape(array, Some(self.cut.dim));
        draft.add(self.place(), &format!("{}.p", module.instruction_name(of.of)), (&shape, &text))
    }

    /// A piece of the product.
    fn product(&self, draft: &mut Draft<'_>, piece: &str) -> String {
        let module = self.subject.module;
        let operands = module.operands(self.dot).iter().enumerate();
        let operands: Vec<String> = operands
            .map(|(place, operand)| match place == self.cut.operand {
                true => piece.to_owned(),
                false => draft.operand(operand),
            })
            .collect();
        let mark = self.mark(0, self.cut.result_dim);
        let attributes = piece_attributes(module, draft, self.dot, mark);
        let text = format!("dot({}){attributes}", operands.join(", "));
        let shape = self.shape_of(self.dot, Some(self.cut.result_dim));
        draft.add(
            self.place(),
            &format!("{}.p", module.instruction_name(self.dot)),
            (&shape, &text),
        )
    }

    /// A piece of the collective.
    fn communicate(&self, draft: &mut Draft<'_>, of: &str, piece: u64) -> String {
        let module = self.subject.module;
        let dim = if self.gathers() { self.cut.dim } else { self.cut.result_dim };
        let attributes = piece_attributes(module, draft, self.collective, self.mark(piece, dim));
        let text = format!("{}({of}){attributes}", module.opcode_name(self.collective));
        let shape = self.shape_of(self.collective, Some(dim));
        draft.add(
            self.place(),
            &format!("{}.p", module.instruction_name(self.collective)),
            (&shape, &text),
        )
    }

    fn mark(&self, piece: u64, dim: usize) -> PieceMark {
        PieceMark { piece, pieces: self.pieces, tail: self.tail, dim }
    }

    fn shape_of(&self, instr: InstrId, cut: Option<usize>) -> String {
        let array = self.subject.module.instruction(instr).shape.array();
        array.map_or(String::new(), |array| self.shape(array, cut))
    }

    /// A shape, of a piece if it is cut along a dimension.
    fn shape(&self, array: &Array, cut: Option<usize>) -> String {
        let module = self.subject.module;
        match cut {
            Some(dim) => array_text(module, &array.with_extent(dim, array.dims[dim] / self.pieces)),
            None => array_text(module, array),
        }
    }
}
