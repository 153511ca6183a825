//! Loops over elementwise expressions: terms become steps of a program, data movement becomes the
//! way in which arrays are read.
//!
//! A nest's dimensions start as those of an array. If a reshape requires it, one is split
//! ([`Halt::Cut`]); if an expression cannot be read along the loop, or would be recomputed, the
//! term must be materialised first ([`Halt::Make`]). The planner does so and starts over.

use std::collections::HashMap;

use halflap_hlo::Opcode;

use super::block::{self, RotateKind};
use super::error::Gap;
use super::formula::{Op, Padding, TermId};
use super::plan::{ArraySlot, Planner};
use super::program::{ProgramDraft, Register, computed};
use super::region::{IndexSeen, LoopRegion, RegionCut, Span};
use super::walk::{IndexRow, LoopWalk, MOST_DIMS, Map, common_pieces, linear, strides};
use crate::tensor::DType;

/// A value shifted both ways and joined: the terms of the shifts.
#[derive(Clone, Copy)]
struct BitRotation {
    left: TermId,
    right: TermId,
}

/// Why an expression is not ready yet.
pub(super) enum Halt {
    /// A loop must be split: the inner one gets this many iterations.
    Cut { dim: usize, inner: usize },
    /// A term must be materialised first.
    Make(TermId),
    /// An operand that would be read with a large stride must be transposed first.
    Turn(Turned),
    /// A term is another one only along some of the loop, or its padding: the loop must be cut, or
    /// the term materialised.
    Part { term: TermId, cut: Option<RegionCut> },
    /// It cannot be computed.
    Fail(TermId, Gap),
}

/// An array in the order of a loop that would read it with a large stride.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Turned {
    pub(super) slot: ArraySlot,
    pub(super) walk: LoopWalk,
    pub(super) size: usize,
}

/// A loop: it adds `by` times its index to an index of the array that is walked.
#[derive(Clone, Debug)]
pub(super) struct LoopDim {
    pub(super) root: usize,
    pub(super) by: i64,
    pub(super) extent: usize,
}

/// Loops over all indices of an array.
pub(super) fn loops_of(dims: &[usize]) -> Vec<LoopDim> {
    let dim = |(root, &extent): (usize, &usize)| LoopDim { root, by: 1, extent };
    dims.iter().enumerate().map(dim).filter(|dim| dim.extent != 1).collect()
}

/// Cuts a loop in two.
pub(super) fn cut(loops: &mut Vec<LoopDim>, dim: usize, inner: usize) {
    let LoopDim { root, by, extent } = loops[dim];
    loops[dim] = LoopDim { root, by: by * inner as i64, extent: extent / inner };
    loops.insert(dim + 1, LoopDim { root, by, extent: inner });
}

/// What fills a register, or moves along memory.
#[derive(Clone, Debug)]
pub(super) struct Fetch {
    pub(super) slot: Option<ArraySlot>,
    pub(super) walk: LoopWalk,
    pub(super) size: usize,
    pub(super) place: Register,
    pub(super) way: FetchWay,
}

/// How a fetch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FetchWay {
    /// Not at all: the pointer moves along the memory.
    Dense,
    /// Always the same element.
    Scalar,
    /// Element by element.
    Gathered,
    /// The loop's own indices.
    Counted,
}

/// An expression as it is being made.
pub(super) struct Nest<'p, 'f> {
    planner: &'p Planner<'f>,
    pub(super) loops: Vec<LoopDim>,
    /// Where each dimension of the array that is walked begins; at 0, if it is all of it.
    starts: Vec<i64>,
    /// The loop's own term.
    root: Option<TermId>,
    pub(super) draft: ProgramDraft,
    pub(super) fetches: Vec<Fetch>,
    known: HashMap<(TermId, Map), Register>,
    /// The maps of each term that computes.
    maps: HashMap<TermId, Vec<Map>>,
    /// The terms that it computes, each once for every map.
    pub(super) computes: Vec<TermId>,
}

type FoundPlace = Result<Register, Halt>;

impl<'p, 'f> Nest<'p, 'f> {
    pub(super) fn new(planner: &'p Planner<'f>, region: LoopRegion) -> Nest<'p, 'f> {
        Nest {
            planner,
            loops: region.loops,
            starts: region.starts,
            root: None,
            draft: ProgramDraft::default(),
            fetches: Vec::new(),
            known: HashMap::new(),
            maps: HashMap::new(),
            computes: Vec::new(),
        }
    }

    /// The map of the array that is walked.
    pub(super) fn root_map(&self, rank: usize) -> Map {
        let count = self.loops.len();
        let mut map = vec![IndexRow::constant(0, count); rank];
        self.starts.iter().zip(&mut map).for_each(|(&start, row)| row.base = start);
        self.loops.iter().enumerate().for_each(|(index, dim)| map[dim.root].by[index] = dim.by);
        map
    }

    fn extents(&self) -> Vec<usize> {
        self.loops.iter().map(|dim| dim.extent).collect()
    }

    /// The place that has the computed elements of a term along a map.
    pub(super) fn value(&mut self, id: TermId, map: Map) -> FoundPlace {
        let key = (id, map);
        if let Some(&place) = self.known.get(&key) {
            return Ok(place);
        }
        let place = self.fresh(id, &key.1)?;
        self.known.insert(key, place);
        Ok(place)
    }

    fn fresh(&mut self, id: TermId, map: &Map) -> FoundPlace {
        if self.loops.len() > MOST_DIMS {
            return Err(Halt::Fail(id, Gap::Shape));
        }
        let term = self.planner.formula.term(id);
        if let Op::Constant(bytes) = &term.op {
            let size = term.dtype.size();
            let is_same = bytes.len() >= size
                && bytes.chunks_exact(size).all(|other| *other == bytes[..size]);
            if is_same {
                return Ok(self.draft.splat(&computed(term.dtype, &bytes[..size])));
            }
        }
        if let Some(slot) = self.planner.memory(id) {
            return self.load(slot, term.dtype, linear(map, &term.dims, self.loops.len()));
        }
        let arg = term.args.first().copied();
        match (&term.op, arg) {
            (Op::Iota(dim), _) => Ok(self.iota(term.dtype, map[*dim].clone())),
            (Op::Broadcast(dims), Some(arg)) => {
                let is_grown = self.planner.formula.term(arg).len() < term.len();
                if is_grown && self.planner.computes(arg) {
                    return Err(Halt::Make(arg));
                }
                self.value(arg, dims.iter().map(|&dim| map[dim].clone()).collect())
            }
            (Op::Transpose(order), Some(arg)) => {
                let mut rows = vec![IndexRow::constant(0, 0); order.len()];
                order.iter().zip(map).for_each(|(&dim, row)| rows[dim] = row.clone());
                self.value(arg, rows)
            }
            (Op::Slice { start, stride }, Some(arg)) => {
                let steps = start.iter().zip(stride);
                self.value(
                    arg,
                    map.iter()
                        .zip(steps)
                        .map(|(row, (&s, &by))| row.scaled(by as i64, s as i64))
                        .collect(),
                )
            }
            (Op::Reverse(dims), Some(arg)) => {
                let mut rows = map.clone();
                dims.iter()
                    .for_each(|&dim| rows[dim] = map[dim].scaled(-1, term.dims[dim] as i64 - 1));
                self.value(arg, rows)
            }
            (Op::Reshape, Some(arg)) => {
                let rows = self.reshaped(arg, map, &term.dims)?;
                self.value(arg, rows)
            }
            (Op::Pad(_) | Op::Concatenate(_), _)
                if self.root != Some(id) && self.planner.is_forced(id) =>
            {
                Err(Halt::Make(id))
            }
            (Op::Pad(padding), Some(_)) => self.padded(id, padding, map),
            (Op::Concatenate(dim), Some(_)) => self.concatenated(id, *dim, map),
            (op, Some(_)) if is_elementwise(op, term.dtype) => self.checked(id, map),
            _ => Err(Halt::Make(id)),
        }
    }

    /// The position of the loop's own term: computed here, even if it must be materialised for
    /// other readers.
    pub(super) fn root(&mut self, id: TermId, map: Map) -> FoundPlace {
        self.root = Some(id);
        match is_elementwise(&self.planner.formula.term(id).op, DType::F32) {
            true => self.compute(id, &map),
            false => self.value(id, map),
        }
    }

    fn checked(&mut self, id: TermId, map: &Map) -> FoundPlace {
        match self.planner.is_forced(id) {
            true => Err(Halt::Make(id)),
            false => self.compute(id, map),
        }
    }

    fn compute(&mut self, id: TermId, map: &Map) -> FoundPlace {
        let formula = self.planner.formula;
        let arg = formula.term(id).args[0];
        // A term's bytes can be reinterpreted in a register only if both types are computed as they
        // are stored.
        if matches!(formula.term(id).op, Op::Reinterpret)
            && !is_same_register(formula.term(arg).dtype, formula.term(id).dtype)
        {
            return Err(Halt::Make(id));
        }
        self.note_map(id, map)?;
        if let Some(rotation) = self.rotation(id) {
            return self.rotate(id, rotation, map);
        }
        if let Some((rotated, other)) = self.rotated_xor(id) {
            return self.rotate_xor(id, [rotated, other], map);
        }
        if let Some((product, other)) = self.added_product(id) {
            return self.multiply_add(id, [product, other], map);
        }
        let args = formula.term(id).args.clone();
        let places = args
            .into_iter()
            .map(|arg| self.value(arg, map.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        self.computes.push(id);
        self.draft.apply(formula, id, &places).map_err(|what| Halt::Fail(id, what))
    }

    /// The two shifts of a rotation, if a term is one: nothing else reads them.
    fn rotation(&self, id: TermId) -> Option<BitRotation> {
        let term = |id: TermId| self.planner.formula.term(id);
        let Op::Binary(Opcode::Or) = term(id).op else { return None };
        block::rotate(term(id).dtype, RotateKind::Each)?;
        let is = |id: TermId, opcode| matches!(term(id).op, Op::Binary(other) if other == opcode);
        let (left, right) = match term(id).args[..] {
            [one, other] if is(one, Opcode::ShiftLeft) => (one, other),
            [one, other] => (other, one),
            _ => return None,
        };
        let is_rotation = is(left, Opcode::ShiftLeft)
            && is(right, Opcode::ShiftRightLogical)
            && term(left).args[0] == term(right).args[0];
        let is_inner = self.is_inner(left) && self.is_inner(right);
        (is_rotation && is_inner).then_some(BitRotation { left, right })
    }

    /// Whether a term is computed for its only reader alone.
    fn is_inner(&self, id: TermId) -> bool {
        self.planner.is_read_once(id)
            && !self.planner.is_forced(id)
            && self.planner.memory(id).is_none()
    }

    /// The rotation, and the other argument, if a term is a rotation that is combined by `xor`.
    fn rotated_xor(&self, id: TermId) -> Option<(TermId, TermId)> {
        let term = self.planner.formula.term(id);
        let (Op::Binary(Opcode::Xor), &[one, other]) = (&term.op, &term.args[..]) else {
            return None;
        };
        let is_inner = |id: TermId| self.is_inner(id) && self.rotation(id).is_some();
        match () {
            () if one == other => None,
            () if is_inner(other) => Some((other, one)),
            () => is_inner(one).then_some((one, other)),
        }
    }

    /// A rotation that is combined with another term: in one step, if all elements are rotated by
    /// the same number of bits.
    fn rotate_xor(&mut self, id: TermId, [rotated, other]: [TermId; 2], map: &Map) -> FoundPlace {
        let formula = self.planner.formula;
        let Some(rotation) = self.rotation(rotated) else {
            return Err(Halt::Fail(id, Gap::Operation));
        };
        self.note_map(rotated, map)?;
        let other = self.value(other, map.clone())?;
        let [value, by, back] = self.rotation_places(rotation, map)?;
        self.computes.extend([rotation.left, rotation.right, rotated, id]);
        let (dtype, size) = (formula.term(id).dtype, formula.term(id).dtype.size());
        let is_same = [by, back].iter().all(|&place| self.draft.is_same_everywhere(place));
        let kind = if is_same { RotateKind::SameXor } else { RotateKind::Each };
        let run = block::rotate(dtype, kind).ok_or(Halt::Fail(id, Gap::OfType(dtype)))?;
        if is_same {
            return Ok(self.draft.call(run, &[value, by, back, other], size));
        }
        let turned = self.draft.call(run, &[value, by, back], size);
        self.draft.apply(formula, id, &[turned, other]).map_err(|what| Halt::Fail(id, what))
    }

    /// The product, and the other argument, if a term adds a product that nothing else reads.
    fn added_product(&self, id: TermId) -> Option<(TermId, TermId)> {
        let term = self.planner.formula.term(id);
        let (Op::Binary(Opcode::Add), &[one, other]) = (&term.op, &term.args[..]) else {
            return None;
        };
        block::multiply_add(term.dtype)?;
        let is_product = |id: TermId| {
            matches!(self.planner.formula.term(id).op, Op::Binary(Opcode::Multiply))
                && self.is_inner(id)
        };
        match () {
            () if is_product(one) => Some((one, other)),
            () => is_product(other).then_some((other, one)),
        }
    }

    fn multiply_add(&mut self, id: TermId, [product, other]: [TermId; 2], map: &Map) -> FoundPlace {
        let formula = self.planner.formula;
        let dtype = formula.term(id).dtype;
        let run = block::multiply_add(dtype).ok_or(Halt::Fail(id, Gap::OfType(dtype)))?;
        self.note_map(product, map)?;
        let places = [formula.term(product).args[0], formula.term(product).args[1], other]
            .into_iter()
            .map(|arg| self.value(arg, map.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        self.computes.extend([product, id]);
        Ok(self.draft.call(run, &places, dtype.size()))
    }

    /// Where what is rotated is, and by how many bits in both directions.
    fn rotation_places(&mut self, rotation: BitRotation, map: &Map) -> Result<[Register; 3], Halt> {
        let formula = self.planner.formula;
        let BitRotation { left, right } = rotation;
        let value = self.value(formula.term(left).args[0], map.clone())?;
        let by = self.value(formula.term(left).args[1], map.clone())?;
        let back = self.value(formula.term(right).args[1], map.clone())?;
        Ok([value, by, back])
    }

    fn rotate(&mut self, id: TermId, rotation: BitRotation, map: &Map) -> FoundPlace {
        let places = self.rotation_places(rotation, map)?;
        self.computes.extend([rotation.left, rotation.right, id]);
        let dtype = self.planner.formula.term(id).dtype;
        let is_same = places[1..].iter().all(|&place| self.draft.is_same_everywhere(place));
        let kind = if is_same { RotateKind::Same } else { RotateKind::Each };
        let run = block::rotate(dtype, kind).ok_or(Halt::Fail(id, Gap::OfType(dtype)))?;
        Ok(self.draft.call(run, &places, dtype.size()))
    }

    /// Records that a term is computed along a map. Several maps are different elements of it
    /// (every other one, for instance), unless together they have more than it has: then it is
    /// materialised.
    fn note_map(&mut self, id: TermId, map: &Map) -> Result<(), Halt> {
        const MOST_STEPS: usize = 192;
        let len = self.planner.formula.term(id).len();
        let total: usize = self.loops.iter().map(|dim| dim.extent).product();
        let known = self.maps.entry(id).or_default();
        if known.contains(map) {
            return Ok(());
        }
        let is_more = (known.len() + 1) * total > len || self.draft.steps.len() > MOST_STEPS;
        if !known.is_empty() && is_more {
            return Err(Halt::Make(id));
        }
        known.push(map.clone());
        Ok(())
    }

    /// A padded array along a map that is all padding, or has none.
    fn padded(&mut self, id: TermId, padding: &[Padding], map: &Map) -> FoundPlace {
        let formula = self.planner.formula;
        let [arg, value] = formula.term(id).args[..] else {
            return Err(Halt::Fail(id, Gap::Shape));
        };
        let extents = self.extents();
        let (mut rows, mut cut) = (Vec::with_capacity(map.len()), None);
        let dims = &formula.term(arg).dims;
        for ((row, padding), &dim) in map.iter().zip(padding).zip(dims) {
            let (low, step) = (padding.low, padding.interior + 1);
            match (Span { low, step, count: dim as i64 }).see(row, &extents) {
                IndexSeen::Inside(row) => rows.push(row),
                // Along which no dimension counts any more.
                IndexSeen::Outside if self.planner.computes(value) => {
                    return Err(Halt::Make(value));
                }
                IndexSeen::Outside => return self.value(value, Vec::new()),
                IndexSeen::Cut(at) => cut = cut.or(Some(Some(at))),
                IndexSeen::Mixed => cut = cut.or(Some(None)),
            }
        }
        match cut {
            Some(cut) => Err(Halt::Part { term: id, cut }),
            None => self.value(arg, rows),
        }
    }

    /// A concatenated array along a map that stays in one of its pieces.
    fn concatenated(&mut self, id: TermId, dim: usize, map: &Map) -> FoundPlace {
        let formula = self.planner.formula;
        let (extents, mut low) = (self.extents(), 0);
        for &arg in &formula.term(id).args {
            let count = formula.term(arg).dims[dim] as i64;
            match (Span { low, step: 1, count }).see(&map[dim], &extents) {
                IndexSeen::Inside(row) => {
                    let mut rows = map.clone();
                    rows[dim] = row;
                    return self.value(arg, rows);
                }
                IndexSeen::Outside => low += count,
                IndexSeen::Cut(cut) => return Err(Halt::Part { term: id, cut: Some(cut) }),
                IndexSeen::Mixed => return Err(Halt::Part { term: id, cut: None }),
            }
        }
        Err(Halt::Fail(id, Gap::Shape))
    }

    fn load(&mut self, slot: ArraySlot, dtype: DType, row: IndexRow) -> FoundPlace {
        let mut walk = LoopWalk { dims: self.extents(), base: row.base, by: row.by };
        let mut slot = slot;
        if walk.is_across() {
            let turned = Turned { slot, walk: walk.clone(), size: dtype.size() };
            slot = self.planner.turned(&turned).ok_or(Halt::Turn(turned))?;
            walk = LoopWalk { by: strides(&walk.dims), base: 0, dims: walk.dims };
        }
        let way = match () {
            () if walk.is_scalar() && !walk.dims.is_empty() => FetchWay::Scalar,
            () if walk.is_dense() => FetchWay::Dense,
            () => FetchWay::Gathered,
        };
        let number = self.fetches.len();
        let place = match way {
            FetchWay::Gathered => self.draft.fetch(number, dtype.size()),
            // One element is read before the loop, as a number would be.
            FetchWay::Scalar => self.draft.reserve(block::computed_as(dtype).size()),
            _ => self.draft.outside(),
        };
        self.fetches.push(Fetch { slot: Some(slot), walk, size: dtype.size(), place, way });
        Ok(match block::widen(dtype) {
            Some(widen) => self.draft.call(widen, &[place], 4),
            None => place,
        })
    }

    fn iota(&mut self, dtype: DType, row: IndexRow) -> Register {
        let walk = LoopWalk { dims: self.extents(), base: row.base, by: row.by };
        let place = self.draft.fetch(self.fetches.len(), 8);
        self.fetches.push(Fetch { slot: None, walk, size: 8, place, way: FetchWay::Counted });
        let size = block::computed_as(dtype).size();
        let value = self.draft.call(block::convert(DType::S64, dtype), &[place], size);
        match block::round(dtype) {
            Some(round) => self.draft.call(round, &[value], 4),
            None => value,
        }
    }

    /// The map of a reshape's argument.
    fn reshaped(&self, arg: TermId, map: &Map, dims: &[usize]) -> Result<Map, Halt> {
        let arg_dims = &self.planner.formula.term(arg).dims;
        let count = self.loops.len();
        let mut rows = Vec::with_capacity(arg_dims.len());
        for (outer, inner) in common_pieces(dims, arg_dims) {
            let row = linear(&map[outer.clone()].to_vec(), &dims[outer], count);
            let mut rest = self.digits(&row).ok_or(Halt::Make(arg));
            let wide = arg_dims[inner.clone()].iter().filter(|&&dim| dim != 1).count();
            for &dim in &arg_dims[inner] {
                rows.push(match dim {
                    1 => IndexRow::constant(0, count),
                    _ if wide == 1 => row.clone(),
                    _ => {
                        let digits = rest.as_mut().map_err(|halt| Halt::Make(halt.term()))?;
                        self.take_digits(digits, dim, arg)?
                    }
                });
            }
        }
        Ok(rows)
    }

    /// The loops of a row that counts from 0 without gaps, outermost first: each with its extent.
    fn digits(&self, row: &IndexRow) -> Option<Vec<usize>> {
        let mut digits: Vec<usize> =
            (0..self.loops.len()).filter(|&dim| row.by[dim] != 0).collect();
        digits.sort_by_key(|&dim| std::cmp::Reverse(row.by[dim]));
        let mut stride = 1;
        for &dim in digits.iter().rev() {
            if row.by[dim] != stride {
                return None;
            }
            stride *= self.loops[dim].extent as i64;
        }
        digits.reverse();
        // The innermost first, so that the outermost is taken from the end.
        (row.base == 0).then_some(digits)
    }

    /// Takes the outermost loops that make a dimension together.
    fn take_digits(
        &self,
        digits: &mut Vec<usize>,
        dim: usize,
        arg: TermId,
    ) -> Result<IndexRow, Halt> {
        let mut row = IndexRow::constant(0, self.loops.len());
        let mut left = dim;
        while left > 1 {
            let digit = digits.pop().ok_or(Halt::Make(arg))?;
            let extent = self.loops[digit].extent;
            if left.is_multiple_of(extent) {
                left /= extent;
                row.by[digit] = left as i64;
            } else if extent.is_multiple_of(left) {
                return Err(Halt::Cut { dim: digit, inner: extent / left });
            } else {
                return Err(Halt::Make(arg));
            }
        }
        Ok(row)
    }
}

impl Halt {
    fn term(&self) -> TermId {
        match self {
            Halt::Make(term) | Halt::Fail(term, _) | Halt::Part { term, .. } => *term,
            Halt::Cut { .. } | Halt::Turn(_) => TermId(u32::MAX),
        }
    }
}

/// Whether both types are held in registers as they are stored, at the same size.
fn is_same_register(a: DType, b: DType) -> bool {
    let is_stored = |dtype| block::computed_as(dtype) == dtype;
    is_stored(a) && is_stored(b) && a.size() == b.size()
}

/// Whether a program can have it as a step.
pub(super) fn is_elementwise(op: &Op, _: DType) -> bool {
    matches!(
        op,
        Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare { .. }
            | Op::Select
            | Op::Clamp
            | Op::Convert
            | Op::ReducePrecision(_)
            | Op::Reinterpret
    )
}

/// Joins loops that every fetch walks as one. Loops of different classes stay apart.
pub(super) fn join(extents: &mut Vec<usize>, classes: &mut Vec<u8>, fetches: &mut [Fetch]) {
    let mut dim = extents.len();
    while dim > 1 {
        dim -= 1;
        let inner = extents[dim] as i64;
        let is_one = |fetch: &Fetch| fetch.walk.by[dim - 1] == fetch.walk.by[dim] * inner;
        if classes[dim - 1] != classes[dim] || !fetches.iter().all(is_one) {
            continue;
        }
        extents[dim - 1] *= extents[dim];
        extents.remove(dim);
        classes.remove(dim);
        for fetch in fetches.iter_mut() {
            fetch.walk.by[dim - 1] = fetch.walk.by[dim];
            fetch.walk.by.remove(dim);
        }
    }
    fetches.iter_mut().for_each(|fetch| fetch.walk.dims = extents.clone());
}
