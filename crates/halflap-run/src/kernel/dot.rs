//! Matrix multiplications of any dimensions.
//!
//! Batch, free and contracted dimensions are each walked as one; if an operand's strides do not
//! allow that, it is copied first. bf16 and f16 are multiplied in f32 and rounded once; integers by
//! `product`.

use super::Buffers;
use super::block;
use super::error::Gap;
use super::formula::{Contraction, Op, TermId};
use super::matrix::{MatrixProduct, MatrixView, Multiplied};
use super::plan::{ArraySlot, KernelStage, Planner, Strided, Trouble, parts_of};
use super::product::{self, Extent, StridedMatrix};
use super::walk::Transfer;
use crate::tensor::{Complex, DType};

/// One operand as a batch of matrices.
#[derive(Clone, Debug)]
struct DotOperand {
    slot: ArraySlot,
    /// The type in which it is stored.
    stored: DType,
    /// The first element, counted in elements.
    base: i64,
    /// Steps between matrices, between rows (or columns) that are kept, along the contracted
    /// dimension.
    batch: i64,
    free: i64,
    contracted: i64,
    /// If it must be copied first: how, and where to in local memory.
    copy: Option<(Transfer, usize)>,
    /// How many elements are converted first, if the type is computed in another one.
    widened: Option<(usize, usize)>,
}

struct Dot {
    lhs: DotOperand,
    rhs: DotOperand,
    to: ArraySlot,
    dtype: DType,
    out: DType,
    batch: usize,
    rows: usize,
    columns: usize,
    depth: usize,
    /// Where in local memory packed integers go.
    packed: usize,
    local: usize,
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
    let mut local = 0;
    let lhs = side(
        planner,
        term.args[0],
        &Roles { batch: lhs_batch, contracted: lhs_contracting },
        &mut local,
    )?;
    let rhs = side(
        planner,
        term.args[1],
        &Roles { batch: rhs_batch, contracted: rhs_contracting },
        &mut local,
    )?;
    let dims = &planner.formula.term(term.args[0]).dims;
    let product = |of: &[usize]| of.iter().map(|&dim| dims[dim]).product::<usize>();
    let (batch, depth) = (product(lhs_batch), product(lhs_contracting));
    let rows = dims.iter().product::<usize>().checked_div(batch * depth);
    let rows = rows.unwrap_or_else(|| free(dims, lhs_batch, lhs_contracting));
    let columns = term.len() / (batch * rows).max(1);
    let packed = local;
    if is_whole(computed[0]) {
        local += Extent::room(columns, depth, computed[0].size()).next_multiple_of(64);
    }
    if block::narrow(term.dtype).is_some() {
        local += term.len() * 4;
    }
    let to = planner.target(id);
    let (dtype, out) = (computed[0], term.dtype);
    planner.add(Dot { lhs, rhs, to, dtype, out, batch, rows, columns, depth, packed, local });
    Ok(to)
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

fn side(
    planner: &mut Planner<'_>,
    id: TermId,
    roles: &Roles<'_>,
    local: &mut usize,
) -> Result<DotOperand, Trouble> {
    let dims = planner.formula.term(id).dims.clone();
    let dtype = planner.formula.term(id).dtype;
    let strided = match planner.computes(id) {
        true => None,
        false => planner.strided(id)?,
    };
    let strided = match strided {
        Some(strided) => strided,
        None => {
            let slot = planner.make(id)?;
            Strided { slot, base: 0, by: super::walk::strides(&dims) }
        }
    };
    let kept: Vec<usize> = (0..dims.len())
        .filter(|dim| !roles.batch.contains(dim) && !roles.contracted.contains(dim))
        .collect();
    let steps = [roles.batch, &kept, roles.contracted].map(|of| joined(&dims, &strided, of));
    let len: usize = dims.iter().product();
    let size = dtype.size();
    let mut take = |bytes: usize| {
        let at = *local;
        *local += bytes.next_multiple_of(64);
        at
    };
    let is_dense = strided.base == 0 && strided.by == super::walk::strides(&dims);
    let mut side = match steps {
        // Converted operands must be contiguous.
        [Some(batch), Some(free), Some(contracted)]
            if block::widen(dtype).is_none() || is_dense =>
        {
            DotOperand {
                slot: strided.slot,
                stored: dtype,
                base: strided.base,
                batch,
                free,
                contracted,
                copy: None,
                widened: None,
            }
        }
        _ => {
            let order: Vec<usize> = [roles.batch, &kept, roles.contracted].concat();
            let ordered: Vec<usize> = order.iter().map(|&dim| dims[dim]).collect();
            let from: Vec<i64> = order.iter().map(|&dim| strided.by[dim]).collect();
            let transfer = Transfer::new(&ordered, &from, &super::walk::strides(&ordered), size);
            let depth: usize = roles.contracted.iter().map(|&dim| dims[dim]).product();
            let rows: usize = kept.iter().map(|&dim| dims[dim]).product();
            let at = take(len * size);
            let (batch, free) = ((rows * depth) as i64, depth as i64);
            DotOperand {
                slot: strided.slot,
                stored: dtype,
                base: strided.base,
                batch,
                free,
                contracted: 1,
                copy: Some((transfer, at)),
                widened: None,
            }
        }
    };
    if block::widen(dtype).is_some() {
        side.widened = Some((take(len * 4), len));
    }
    Ok(side)
}

impl DotOperand {
    /// Where its first element is, after it was copied and converted.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn ready(&self, buffers: &Buffers<'_>, local: *mut u8) -> *const u8 {
        let stored = self.stored;
        // SAFETY: elements of the slot's array and places in local memory, as planned.
        unsafe {
            let mut from =
                buffers.read(self.slot).offset(self.base as isize * stored.size() as isize);
            if let Some((transfer, at)) = &self.copy {
                transfer.run(from, local.add(*at));
                from = local.add(*at);
            }
            if let (Some((at, len)), Some(widen)) = (self.widened, block::widen(stored)) {
                widen(&[from; 3], local.add(at), len);
                from = local.add(at);
            }
            from
        }
    }
}

impl KernelStage for Dot {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let local = buffers.local();
        // SAFETY: local memory has the requested length, operands are laid out as planned.
        unsafe {
            let lhs = self.lhs.ready(buffers, local);
            let rhs = self.rhs.ready(buffers, local);
            let to = buffers.write(self.to);
            let ends = DotPointers { lhs, rhs, to };
            match (block::narrow(self.out), self.dtype) {
                (Some(narrow), dtype) => {
                    let len = self.batch * self.rows * self.columns;
                    let wide = local.add(self.local - len * 4);
                    match dtype {
                        DType::F32 => {
                            self.multiply::<f32>(buffers, DotPointers { to: wide, ..ends })
                        }
                        whole => self.whole(whole, buffers, DotPointers { to: wide, ..ends }),
                    }
                    narrow(&[wide.cast_const(); 3], to, len);
                }
                (None, DType::F32) => self.multiply::<f32>(buffers, ends),
                (None, DType::F64) => self.multiply::<f64>(buffers, ends),
                (None, DType::C64) => self.multiply::<Complex<f32>>(buffers, ends),
                (None, DType::C128) => self.multiply::<Complex<f64>>(buffers, ends),
                (None, other) => self.whole(other, buffers, ends),
            }
        }
    }

    /// Batches of small matrices are split into shares; the library splits large ones itself.
    /// Operands are copied only once.
    fn parts(&self) -> usize {
        let work = self.batch * self.rows * self.columns * self.depth;
        let is_plain = self.local == 0
            && matches!(self.dtype, DType::F32 | DType::F64 | DType::C64 | DType::C128);
        match is_plain {
            true if self.batch > 1 => parts_of(work / 16, self.batch),
            // Each part packs the right operand again.
            false if is_whole(self.out) => parts_of(work / 16, self.rows / 16),
            _ => 1,
        }
    }

    fn local_bytes(&self) -> usize {
        self.local
    }
}

impl Dot {
    /// # Safety
    /// The pointers must hold the matrices, of this type, and `to` the result.
    unsafe fn multiply<T: Multiplied>(&self, buffers: &Buffers<'_>, ends: DotPointers) {
        let (left, right) = (&self.lhs, &self.rhs);
        let (lhs, rhs, to) = (ends.lhs.cast::<T>(), ends.rhs.cast::<T>(), ends.to.cast::<T>());
        for batch in buffers.share(self.batch) {
            let batch = batch as isize;
            let product = MatrixProduct {
                rows: self.rows,
                columns: self.columns,
                depth: self.depth,
                lhs: MatrixView {
                    start: lhs.wrapping_offset(batch * left.batch as isize),
                    row: left.free as isize,
                    column: left.contracted as isize,
                },
                rhs: MatrixView {
                    start: rhs.wrapping_offset(batch * right.batch as isize),
                    row: right.contracted as isize,
                    column: right.free as isize,
                },
                to: MatrixView {
                    start: to.wrapping_offset(batch * (self.rows * self.columns) as isize),
                    row: self.columns as isize,
                    column: 1,
                },
                threads: buffers.threads(),
            };
            // SAFETY: the caller's promise; steps are those of the operands, and the result is
            // dense.
            unsafe { product.run() };
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
        let room = buffers.local().wrapping_add(self.packed);
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

/// Where operands and result are.
#[derive(Clone, Copy)]
struct DotPointers {
    lhs: *const u8,
    rhs: *const u8,
    to: *mut u8,
}
