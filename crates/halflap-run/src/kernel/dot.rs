//! Matrix multiplications of any dimensions.
//!
//! Batch, free and contracted dimensions are each walked as one; if an operand's strides do not
//! allow that, it is copied first. bf16 and f16 are multiplied in f32 and rounded once; integers by
//! `product`, or by `pairs` if they were converted from a type of at most 16 bits.

use std::ops::Range;

use super::Buffers;
use super::block;
use super::error::Gap;
use super::formula::{Contraction, Op, TermId};
use super::matrix::{MatrixProduct, MatrixView, Multiplied};
use super::moves::{ConvertStage, CopyStage};
use super::pairs::{self, StoredMatrix};
use super::plan::{ArraySlot, KernelStage, Planner, Strided, Trouble, parts_of};
use super::product::{self, Extent, StridedMatrix};
use super::thin::{self, ThinProduct};
use super::walk::strides;
use crate::tensor::{Complex, DType};

/// One operand as a batch of matrices.
#[derive(Clone, Debug)]
struct DotOperand {
    slot: ArraySlot,
    /// The type in which it is there.
    stored: DType,
    /// The first element, counted in elements.
    base: i64,
    /// Steps between matrices, between rows (or columns) that are kept, along the contracted
    /// dimension.
    batch: i64,
    free: i64,
    contracted: i64,
}

struct Dot {
    lhs: DotOperand,
    rhs: DotOperand,
    to: ArraySlot,
    dtype: DType,
    batch: usize,
    rows: usize,
    columns: usize,
    depth: usize,
}

/// The role of each of an operand's dimensions.
struct Roles<'a> {
    batch: &'a [usize],
    contracted: &'a [usize],
}

pub(super) fn plan(planner: &mut Planner<'_>, id: TermId) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let Op::Dot(contraction) = &term.op else { return Err(planner.fail(id, Gap::Operation)) };
    let Contraction { lhs_batch, rhs_batch, lhs_contracting, rhs_contracting } = &**contraction;
    let types = [0, 1].map(|index| planner.formula.term(term.args[index]).dtype);
    let computed = [types[0], types[1], term.dtype].map(block::computed_as);
    if computed.iter().any(|other| *other != computed[0]) || computed[0] == DType::Pred {
        return Err(planner.fail(id, Gap::OfType(types[0])));
    }
    let args = small_sources(planner, id).unwrap_or([term.args[0], term.args[1]]);
    let lhs = side(planner, args[0], &Roles { batch: lhs_batch, contracted: lhs_contracting })?;
    let rhs = side(planner, args[1], &Roles { batch: rhs_batch, contracted: rhs_contracting })?;
    let dims = &planner.formula.term(term.args[0]).dims;
    let product = |of: &[usize]| of.iter().map(|&dim| dims[dim]).product::<usize>();
    let (batch, depth) = (product(lhs_batch), product(lhs_contracting));
    let rows = dims.iter().product::<usize>().checked_div(batch * depth);
    let rows = rows.unwrap_or_else(|| free(dims, lhs_batch, lhs_contracting));
    let columns = term.len() / (batch * rows).max(1);
    let to = planner.target(id);
    let (dtype, len) = (computed[0], term.len());
    let rounded = block::narrow(term.dtype);
    let made = rounded.map_or(to, |_| planner.aside(len * dtype.size()));
    planner.add(Dot { lhs, rhs, to: made, dtype, batch, rows, columns, depth });
    if let Some(function) = rounded {
        let sizes = [dtype.size(), term.dtype.size()];
        planner.add_helper(ConvertStage { from: made, to, len, sizes, function });
    }
    Ok(to)
}

/// What the operands of a product were converted from, if both were of a type of at most 16 bits.
fn small_sources(planner: &Planner<'_>, id: TermId) -> Option<[TermId; 2]> {
    let formula = planner.formula;
    let source = |arg: TermId| match (&formula.term(arg).op, &formula.term(arg).args[..]) {
        (Op::Convert, &[from]) if pairs::fits(formula.term(from).dtype) => Some(from),
        _ => None,
    };
    let &[lhs, rhs] = &formula.term(id).args[..] else { return None };
    let is_s32 = |id: TermId| formula.term(id).dtype == DType::S32;
    ([lhs, rhs, id].into_iter().all(is_s32)).then_some([source(lhs)?, source(rhs)?])
}

/// Whether it is an integer type that is stored as it is computed.
fn is_whole(dtype: DType) -> bool {
    let is_number = !dtype.is_float() && !dtype.is_complex();
    is_number && block::narrow(dtype).is_none() && dtype != DType::Pred
}

fn free(dims: &[usize], batch: &[usize], contracted: &[usize]) -> usize {
    (0..dims.len())
        .filter(|dim| !batch.contains(dim) && !contracted.contains(dim))
        .map(|dim| dims[dim])
        .product()
}

/// The step of several dimensions that are walked as one, in a given sequence; `None` where there
/// is none.
fn joined(dims: &[usize], strided: &Strided, of: &[usize]) -> Option<i64> {
    let wide: Vec<usize> = of.iter().copied().filter(|&dim| dims[dim] != 1).collect();
    let is_one = |pair: &[usize]| strided.by[pair[0]] == strided.by[pair[1]] * dims[pair[1]] as i64;
    wide.windows(2).all(is_one).then(|| wide.last().map_or(0, |&dim| strided.by[dim]))
}

fn side(planner: &mut Planner<'_>, id: TermId, roles: &Roles<'_>) -> Result<DotOperand, Trouble> {
    let dims = planner.formula.term(id).dims.clone();
    let dtype = planner.formula.term(id).dtype;
    let strided = match planner.computes(id) {
        true => None,
        false => planner.strided(id)?,
    };
    let mut strided = match strided {
        Some(strided) => strided,
        None => Strided { slot: planner.make(id)?, base: 0, by: strides(&dims) },
    };
    let kept: Vec<usize> = (0..dims.len())
        .filter(|dim| !roles.batch.contains(dim) && !roles.contracted.contains(dim))
        .collect();
    let steps = |strided: &Strided| {
        [roles.batch, &kept, roles.contracted].map(|of| joined(&dims, strided, of))
    };
    // What is converted must be all of an array. What has other neighbours is copied as well: a
    // product must not depend on whether the kernel before it is a part of this one. Only
    // transposed arrays are read as they are.
    let covers = strided.covers(&dims);
    let is_ready = covers || block::widen(dtype).is_none() && strided.is_like_dense(&dims);
    if !is_ready || steps(&strided).contains(&None) {
        let dense = Strided { slot: strided.slot, base: 0, by: strides(&dims) };
        let order: Vec<usize> = match steps(&dense).contains(&None) {
            true => [roles.batch, &kept, roles.contracted].concat(),
            false => (0..dims.len()).collect(),
        };
        let ordered: Vec<usize> = order.iter().map(|&dim| dims[dim]).collect();
        let by = order.iter().map(|&dim| strided.by[dim]).collect();
        let to = planner.aside(dims.iter().product::<usize>() * dtype.size());
        let from = Strided { slot: strided.slot, base: strided.base, by };
        planner.add_helper(CopyStage::new(&ordered, from, to, dtype.size()));
        let mut by = vec![0; dims.len()];
        order.iter().zip(strides(&ordered)).for_each(|(&dim, step)| by[dim] = step);
        strided = Strided { slot: to, base: 0, by };
    }
    let mut stored = dtype;
    if let Some(function) = block::widen(dtype) {
        stored = block::computed_as(dtype);
        let (from, len) = (strided.slot, dims.iter().product::<usize>());
        let to = planner.aside(len * stored.size());
        let sizes = [dtype.size(), stored.size()];
        planner.add_helper(ConvertStage { from, to, len, sizes, function });
        strided.slot = to;
    }
    // After the copy all of them are walked as one.
    let [batch, free, contracted] = steps(&strided).map(|step| step.unwrap_or(0));
    let Strided { slot, base, .. } = strided;
    Ok(DotOperand { slot, stored, base, batch, free, contracted })
}

impl DotOperand {
    /// Where its first element is.
    fn start(&self, buffers: &Buffers<'_>) -> *const u8 {
        let size = self.stored.size() as isize;
        buffers.read(self.slot).wrapping_offset(self.base as isize * size)
    }
}

impl KernelStage for Dot {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let (lhs, rhs) = (self.lhs.start(buffers), self.rhs.start(buffers));
        let ends = DotPointers { lhs, rhs, to: buffers.write(self.to) };
        // SAFETY: operands are laid out as planned, and local memory has the requested length.
        unsafe {
            match self.dtype {
                DType::F32 if self.is_thin() => self.thin(buffers, ends),
                DType::F32 => self.multiply::<f32>(buffers, ends),
                DType::F64 => self.multiply::<f64>(buffers, ends),
                DType::C64 => self.multiply::<Complex<f32>>(buffers, ends),
                DType::C128 => self.multiply::<Complex<f64>>(buffers, ends),
                _ if self.is_small() => self.small(buffers, ends),
                other => self.whole(other, buffers, ends),
            }
        }
    }

    /// Batches of small matrices are split into shares, and so are products with a vector; the
    /// library splits large matrices itself.
    fn parts(&self) -> usize {
        let each = self.rows * self.columns * self.depth;
        let work = self.batch * each / 16;
        match () {
            () if self.is_small() => parts_of(work / 4, self.columns / pairs::COLUMNS),
            // Each part packs the right operand again.
            () if is_whole(self.dtype) => parts_of(work, self.rows / 16),
            () if self.is_thin() => parts_of(work / 2, self.rows.max(self.columns) / STRIP),
            () if self.batch == 1 && self.is_vector() => parts_of(each / 2, self.strips() / FEWEST),
            () if self.batch >= 8 || self.batch > 1 && each < LARGE => parts_of(work, self.batch),
            () => 1,
        }
    }

    fn elements(&self) -> Option<usize> {
        Some(self.batch * self.rows * self.columns * self.depth / 4)
    }

    fn local_bytes(&self) -> usize {
        let size = self.dtype.size();
        match () {
            () if self.is_small() => pairs::room(self.rows, self.columns, self.depth),
            () if is_whole(self.dtype) => Extent::room(self.columns, self.depth, size),
            () => 0,
        }
    }
}

/// A product of this many multiplications is worth several threads.
const LARGE: usize = 1 << 22;
/// How many rows or columns of a product with a vector are computed at a time: a multiple of what
/// the library does at once, so that each sum is the same in any part.
const STRIP: usize = 64;
/// How many of them a part has at least: the library sums shorter vectors in another order.
const FEWEST: usize = 8;

impl Dot {
    /// Whether an operand is a vector.
    fn is_vector(&self) -> bool {
        self.rows == 1 || self.columns == 1
    }

    /// Into how many strips a product with a vector can be cut.
    fn strips(&self) -> usize {
        self.rows.max(self.columns).div_ceil(STRIP)
    }

    /// Whether one of two matrices has few rows, and both run along the contracted dimension.
    fn is_thin(&self) -> bool {
        let (few, many) = (self.rows.min(self.columns), self.rows.max(self.columns));
        let is_along = self.lhs.contracted == 1 && self.rhs.contracted == 1;
        let is_worth_it = self.depth >= 32 && many >= STRIP && many >= 4 * few;
        self.dtype == DType::F32
            && self.batch == 1
            && is_along
            && is_worth_it
            && (2..=thin::MOST).contains(&few)
            && thin::is_possible()
    }

    /// # Safety
    /// The pointers must hold the matrices, of f32, and `to` the result.
    unsafe fn thin(&self, buffers: &Buffers<'_>, ends: DotPointers) {
        let (lhs, rhs) = (ends.lhs.cast::<f32>(), ends.rhs.cast::<f32>());
        let (start, columns) = (ends.to.cast::<f32>(), self.columns as isize);
        let by_row = MatrixView { start, row: columns, column: 1 };
        let by_column = MatrixView { start, row: 1, column: columns };
        let is_left = self.rows <= self.columns;
        let (few, many) = match is_left {
            true => (&self.lhs, &self.rhs),
            false => (&self.rhs, &self.lhs),
        };
        let product = ThinProduct {
            few: self.rows.min(self.columns),
            few_step: few.free as isize,
            many_step: many.free as isize,
            depth: self.depth,
            from: if is_left { [lhs, rhs] } else { [rhs, lhs] },
            to: if is_left { by_row } else { by_column },
        };
        // SAFETY: the caller's promise; the machine was asked.
        unsafe { product.run(buffers.share(self.rows.max(self.columns))) };
    }

    /// Whether both operands are stored in a type of at most 16 bits.
    fn is_small(&self) -> bool {
        self.dtype == DType::S32 && pairs::fits(self.lhs.stored) && pairs::fits(self.rhs.stored)
    }

    /// # Safety
    /// The pointers must hold the matrices, of this type, and `to` the result.
    unsafe fn multiply<T: Multiplied>(&self, buffers: &Buffers<'_>, ends: DotPointers) {
        let (rows, columns) = (0..self.rows, 0..self.columns);
        if self.batch > 1 || !self.is_vector() {
            for batch in buffers.share(self.batch) {
                // SAFETY: the caller's promise.
                unsafe {
                    self.part::<T>(
                        buffers,
                        ends,
                        DotPart { batch, rows: rows.clone(), columns: columns.clone() },
                    )
                };
            }
            return;
        }
        let strips = buffers.share(self.strips());
        let long = |of: usize| strips.start * STRIP..of.min(strips.end * STRIP);
        let part = match self.rows > self.columns {
            true => DotPart { batch: 0, rows: long(self.rows), columns },
            false => DotPart { batch: 0, rows, columns: long(self.columns) },
        };
        // SAFETY: the caller's promise.
        unsafe { self.part::<T>(buffers, ends, part) };
    }

    /// # Safety
    /// As for [`Dot::multiply`].
    unsafe fn part<T: Multiplied>(&self, buffers: &Buffers<'_>, ends: DotPointers, part: DotPart) {
        let DotPart { batch, rows, columns } = part;
        let (left, right, batch) = (&self.lhs, &self.rhs, batch as isize);
        let (row, column) = (rows.start as isize, columns.start as isize);
        let lhs = ends
            .lhs
            .cast::<T>()
            .wrapping_offset(batch * left.batch as isize + row * left.free as isize);
        let rhs = ends
            .rhs
            .cast::<T>()
            .wrapping_offset(batch * right.batch as isize + column * right.free as isize);
        let to = batch * (self.rows * self.columns) as isize + row * self.columns as isize + column;
        let product = MatrixProduct {
            rows: rows.len(),
            columns: columns.len(),
            depth: self.depth,
            lhs: MatrixView {
                start: lhs,
                row: left.free as isize,
                column: left.contracted as isize,
            },
            rhs: MatrixView {
                start: rhs,
                row: right.contracted as isize,
                column: right.free as isize,
            },
            to: MatrixView {
                start: ends.to.cast::<T>().wrapping_offset(to),
                row: self.columns as isize,
                column: 1,
            },
            threads: buffers.threads(),
        };
        // SAFETY: the caller's promise; steps are those of the operands, and the result is dense.
        unsafe { product.run() };
    }

    /// # Safety
    /// The pointers must hold the matrices, of types of at most 16 bits, and `to` the result.
    unsafe fn small(&self, buffers: &Buffers<'_>, ends: DotPointers) {
        let panels = buffers.share(self.columns.div_ceil(pairs::COLUMNS));
        for batch in 0..self.batch as isize {
            let of = |side: &DotOperand, start: *const u8| {
                let place = batch * side.batch as isize * side.stored.size() as isize;
                StoredMatrix {
                    start: start.wrapping_offset(place),
                    stored: side.stored,
                    free: side.free as isize,
                    contracted: side.contracted as isize,
                }
            };
            let product = pairs::PairProduct {
                lhs: of(&self.lhs, ends.lhs),
                rhs: of(&self.rhs, ends.rhs),
                rows: self.rows,
                columns: self.columns,
                depth: self.depth,
            };
            let to = batch * (self.rows * self.columns) as isize;
            // SAFETY: local memory has the room; the caller's promise.
            unsafe {
                product.run(panels.clone(), buffers.local(), ends.to.cast::<i32>().offset(to))
            };
        }
    }

    /// # Safety
    /// The pointers must hold the matrices, of an integer type, and `to` the result.
    unsafe fn whole(&self, dtype: DType, buffers: &Buffers<'_>, ends: DotPointers) {
        // SAFETY: the caller's promise.
        unsafe {
            match dtype {
                DType::S8 => self.integers(buffers, ends, product::multiply::<i8>),
                DType::S16 => self.integers(buffers, ends, product::multiply::<i16>),
                DType::S32 => self.integers(buffers, ends, product::multiply_s32),
                DType::S64 => self.integers(buffers, ends, product::multiply::<i64>),
                DType::U8 => self.integers(buffers, ends, product::multiply::<u8>),
                DType::U16 => self.integers(buffers, ends, product::multiply::<u16>),
                DType::U32 => self.integers(buffers, ends, product::multiply::<u32>),
                _ => self.integers(buffers, ends, product::multiply::<u64>),
            }
        }
    }

    /// # Safety
    /// The pointers must hold the matrices, of this type, and `to` the result.
    unsafe fn integers<T>(
        &self,
        buffers: &Buffers<'_>,
        ends: DotPointers,
        multiply: unsafe fn(Extent, [StridedMatrix<T>; 2], *mut u8, *mut T),
    ) {
        let rows = buffers.share(self.rows);
        if rows.is_empty() || self.columns == 0 {
            return;
        }
        let room = buffers.local();
        for batch in 0..self.batch as isize {
            let extent = Extent { rows: rows.clone(), columns: self.columns, depth: self.depth };
            let of = |side: &DotOperand, start: *const u8| StridedMatrix {
                start: start.cast::<T>().wrapping_offset(batch * side.batch as isize),
                free: side.free as isize,
                contracted: side.contracted as isize,
            };
            let operands = [of(&self.lhs, ends.lhs), of(&self.rhs, ends.rhs)];
            let at = batch * (self.rows * self.columns) as isize;
            // SAFETY: local memory has the room; the caller's promise.
            unsafe { multiply(extent, operands, room, ends.to.cast::<T>().offset(at)) };
        }
    }
}

/// Some rows or columns of one of the products.
struct DotPart {
    batch: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

/// Where operands and result are.
#[derive(Clone, Copy)]
struct DotPointers {
    lhs: *const u8,
    rhs: *const u8,
    to: *mut u8,
}
