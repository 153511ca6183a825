//! Operations with their own stage.

use super::error::Gap;
use super::formula::{Op, Padding, TermId};
use super::moves::{FillStage, transfer_share};
use super::plan::{ArraySlot, KernelStage, Planner, Trouble, parts_of};
use super::walk::{Transfer, strides};
use super::{Buffers, conv, custom, fft, index, lapack, linear, random, sort, window};
use crate::tensor::DType;

pub(super) fn plan(planner: &mut Planner<'_>, id: TermId) -> Result<ArraySlot, Trouble> {
    let formula = planner.formula;
    match &formula.term(id).op {
        Op::PartitionId | Op::ReplicaId => who(planner, id),
        Op::Pad(padding) => pad(planner, id, padding),
        Op::Concatenate(dim) => concatenate(planner, id, *dim),
        Op::DynamicSlice => dynamic_slice(planner, id),
        Op::DynamicUpdateSlice => dynamic_update_slice(planner, id),
        Op::Gather(at) => index::gather(planner, id, at),
        Op::Scatter { at, combiner } => index::scatter(planner, id, at, combiner),
        Op::Sort { dim, comparator } => sort::plan(planner, id, *dim, comparator),
        Op::TopK { count } => sort::top(planner, id, *count),
        Op::ReduceWindow { window, combiner } => window::reduce(planner, id, window, combiner),
        Op::SelectAndScatter { window, select, combiner } => {
            window::select_and_scatter(planner, id, window, [select, combiner])
        }
        Op::Convolution(numbers) => conv::plan(planner, id, numbers),
        Op::RandomBits(generator) => random::bits(planner, id, *generator),
        Op::Random { is_normal } => random::numbers(planner, id, *is_normal),
        Op::RandomState { delta } => random::state(planner, id, *delta),
        Op::Cholesky { is_lower } => linear::cholesky(planner, id, *is_lower),
        Op::TriangularSolve(solving) => linear::solve(planner, id, *solving),
        Op::Lapack(routine) => lapack::plan(planner, id, *routine),
        Op::Fft { .. } => fft::plan(planner, id),
        Op::Custom(target) => custom::plan(planner, id, target),
        _ => Err(planner.fail(id, Gap::Operation)),
    }
}

/// The number of the rank.
struct Who {
    is_partition: bool,
    to: ArraySlot,
}

fn who(planner: &mut Planner<'_>, id: TermId) -> Result<ArraySlot, Trouble> {
    let is_partition = matches!(planner.formula.term(id).op, Op::PartitionId);
    let to = planner.target(id);
    planner.add(Who { is_partition, to });
    Ok(to)
}

impl KernelStage for Who {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let number =
            if self.is_partition { buffers.context.partition } else { buffers.context.replica };
        // SAFETY: an array of one u32.
        unsafe { buffers.write(self.to).cast::<u32>().write(number) }
    }
}

/// The elements of an array that stay when it is padded.
pub(super) struct Pad {
    /// Where they are and where they go: the array, and the first byte.
    pub(super) from: (ArraySlot, usize),
    pub(super) to: (ArraySlot, usize),
    pub(super) transfer: Transfer,
}

/// The elements of a dimension that remain after padding: the first one, its position, and their
/// number.
pub(super) fn kept(dim: usize, to_dim: usize, padding: Padding) -> (i64, i64, i64) {
    let step = padding.interior + 1;
    let first = if padding.low >= 0 { 0 } else { (-padding.low + step - 1) / step };
    let place = padding.low + first * step;
    let fitting = (to_dim as i64 - place + step - 1).div_euclid(step);
    (first, place, (dim as i64 - first).min(fitting).max(0))
}

fn pad(planner: &mut Planner<'_>, id: TermId, padding: &[Padding]) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let (from, value) = (planner.make(term.args[0])?, planner.make(term.args[1])?);
    let dims = &planner.formula.term(term.args[0]).dims;
    let (from_by, to_by) = (strides(dims), strides(&term.dims));
    let (mut count, mut steps) = (Vec::new(), Vec::new());
    let (mut from_base, mut to_base) = (0, 0);
    for (dim, &padding) in padding.iter().enumerate() {
        let (first, place, len) = kept(dims[dim], term.dims[dim], padding);
        from_base += first * from_by[dim];
        to_base += place * to_by[dim];
        count.push(len as usize);
        steps.push(to_by[dim] * (padding.interior + 1));
    }
    let size = term.dtype.size();
    let to = planner.target(id);
    if count != term.dims {
        planner.add_helper(FillStage { value, to, len: term.len(), size });
    }
    if count.contains(&0) {
        return Ok(to);
    }
    planner.add(Pad {
        from: (from, from_base as usize * size),
        to: (to, to_base as usize * size),
        transfer: Transfer::new(&count, &from_by, &steps, size),
    });
    Ok(to)
}

impl KernelStage for Pad {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the transfer was planned for both arrays.
        unsafe {
            let from = buffers.read(self.from.0).add(self.from.1);
            let to = buffers.write(self.to.0).add(self.to.1);
            transfer_share(&self.transfer, buffers, from, to);
        }
    }

    fn parts(&self) -> usize {
        parts_of(self.transfer.elements(), self.transfer.slices())
    }

    fn elements(&self) -> Option<usize> {
        Some(self.transfer.elements())
    }
}

/// Arrays one after the other.
struct Concatenate {
    /// Each: where it is, its first byte there and in the output, and how it is copied.
    pieces: Vec<(ArraySlot, usize, usize, Transfer)>,
    to: ArraySlot,
}

fn concatenate(planner: &mut Planner<'_>, id: TermId, dim: usize) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let (to_by, size) = (strides(&term.dims), term.dtype.size());
    let mut pieces = Vec::new();
    let mut place = 0;
    for &arg in &term.args {
        let dims = &planner.formula.term(arg).dims;
        let strided = if planner.computes(arg) { None } else { planner.strided(arg)? };
        let (slot, base, by) = match strided {
            Some(strided) => (strided.slot, strided.base, strided.by),
            None => (planner.make(arg)?, 0, strides(dims)),
        };
        let transfer = Transfer::new(dims, &by, &to_by, size);
        pieces.push((slot, base as usize * size, place * to_by[dim] as usize * size, transfer));
        place += dims[dim];
    }
    let to = planner.target(id);
    planner.add(Concatenate { pieces, to });
    Ok(to)
}

impl KernelStage for Concatenate {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        for (slot, from, to, transfer) in &self.pieces {
            // SAFETY: the transfer was planned for the piece and its place in the output.
            unsafe {
                let (from, to) = (buffers.read(*slot).add(*from), buffers.write(self.to).add(*to));
                transfer_share(transfer, buffers, from, to);
            }
        }
    }

    fn parts(&self) -> usize {
        let transfers = || self.pieces.iter().map(|(.., transfer)| transfer);
        let slices = transfers().map(Transfer::slices).max();
        parts_of(transfers().map(Transfer::elements).sum(), slices.unwrap_or(1))
    }

    fn elements(&self) -> Option<usize> {
        Some(self.pieces.iter().map(|(.., transfer)| transfer.elements()).sum())
    }
}

/// Where a slice starts, decided at run time.
struct Starts {
    dims: Vec<SliceStart>,
}

/// Where a slice starts in one dimension.
struct SliceStart {
    slot: ArraySlot,
    /// Which element of the slot's array it is.
    at: usize,
    dtype: DType,
    /// The largest that leaves room for the slice.
    most: i64,
    /// The step in bytes.
    by: usize,
}

/// The extents of a slice, and the size of an element.
struct Sliced<'s> {
    sizes: &'s [usize],
    size: usize,
}

impl Starts {
    fn plan(
        planner: &mut Planner<'_>,
        args: &[TermId],
        dims: &[usize],
        slice: Sliced<'_>,
    ) -> Result<Starts, Trouble> {
        let Sliced { sizes, size } = slice;
        let mut starts = Vec::new();
        for (dim, by) in strides(dims).into_iter().enumerate() {
            // Indices are scalars, or in old modules one array of them.
            let (arg, at) = match args {
                [one] if planner.formula.term(*one).dims.len() == 1 => (*one, dim),
                _ => (args[dim], 0),
            };
            let (slot, dtype) = (planner.make(arg)?, planner.formula.term(arg).dtype);
            let most = dims[dim] as i64 - sizes[dim] as i64;
            starts.push(SliceStart { slot, at, dtype, most, by: by as usize * size });
        }
        Ok(Starts { dims: starts })
    }

    /// The first byte: each index is clamped so that the slice fits.
    fn place(&self, buffers: &Buffers<'_>) -> usize {
        // SAFETY: an array of one index, or of one for each dimension.
        let index = |start: &SliceStart| unsafe {
            read_index(buffers.read(start.slot), start.dtype, start.at)
        };
        self.dims
            .iter()
            .map(|start| index(start).clamp(0, start.most.max(0)) as usize * start.by)
            .sum()
    }
}

/// An index of any integer type.
///
/// # Safety
/// The array must have the type and more than `at` elements.
pub(super) unsafe fn read_index(from: *const u8, dtype: DType, at: usize) -> i64 {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::S8 => i64::from(*from.cast::<i8>().add(at)),
            DType::Tiny(tiny) if tiny.is_signed() => i64::from(*from.cast::<i8>().add(at)),
            DType::S16 => i64::from(*from.cast::<i16>().add(at)),
            DType::S32 => i64::from(*from.cast::<i32>().add(at)),
            DType::S64 => *from.cast::<i64>().add(at),
            DType::U16 => i64::from(*from.cast::<u16>().add(at)),
            DType::U32 => i64::from(*from.cast::<u32>().add(at)),
            // Larger indices are out of bounds for any array.
            DType::U64 => (*from.cast::<u64>().add(at)).min(i64::MAX as u64) as i64,
            _ => i64::from(*from.add(at)),
        }
    }
}

/// A slice whose start is known only at run time.
struct DynamicSlice {
    from: ArraySlot,
    starts: Starts,
    transfer: Transfer,
    to: ArraySlot,
}

fn dynamic_slice(planner: &mut Planner<'_>, id: TermId) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let from = planner.make(term.args[0])?;
    let dims = &planner.formula.term(term.args[0]).dims;
    let size = term.dtype.size();
    let slice = Sliced { sizes: &term.dims, size };
    let starts = Starts::plan(planner, &term.args[1..], dims, slice)?;
    let transfer = Transfer::new(&term.dims, &strides(dims), &strides(&term.dims), size);
    let to = planner.target(id);
    planner.add(DynamicSlice { from, starts, transfer, to });
    Ok(to)
}

impl KernelStage for DynamicSlice {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let place = self.starts.place(buffers);
        // SAFETY: the start is clamped, so the slice lies in the array.
        unsafe {
            let (from, to) = (buffers.read(self.from).add(place), buffers.write(self.to));
            transfer_share(&self.transfer, buffers, from, to);
        }
    }

    fn parts(&self) -> usize {
        parts_of(self.transfer.elements(), self.transfer.slices())
    }

    fn elements(&self) -> Option<usize> {
        Some(self.transfer.elements())
    }
}

/// Replaces a part of an array.
struct DynamicUpdateSlice {
    from: ArraySlot,
    bytes: usize,
    update: ArraySlot,
    starts: Starts,
    transfer: Transfer,
    to: ArraySlot,
}

fn dynamic_update_slice(planner: &mut Planner<'_>, id: TermId) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let (from, update) = (planner.make(term.args[0])?, planner.make(term.args[1])?);
    let dims = &planner.formula.term(term.args[1]).dims;
    let size = term.dtype.size();
    let slice = Sliced { sizes: dims, size };
    let starts = Starts::plan(planner, &term.args[2..], &term.dims, slice)?;
    let transfer = Transfer::new(dims, &strides(dims), &strides(&term.dims), size);
    let to = planner.target(id);
    planner.add(DynamicUpdateSlice {
        from,
        bytes: term.len() * size,
        update,
        starts,
        transfer,
        to,
    });
    Ok(to)
}

impl KernelStage for DynamicUpdateSlice {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let place = self.starts.place(buffers);
        let (from, to) = (buffers.read(self.from), buffers.write(self.to));
        // SAFETY: arrays as planned; the start is clamped, so the part lies in the array.
        unsafe {
            if from != to.cast_const() {
                std::ptr::copy_nonoverlapping(from, to, self.bytes);
            }
            self.transfer.run(buffers.read(self.update), to.add(place));
        }
    }

    /// In place.
    fn elements(&self) -> Option<usize> {
        Some(self.transfer.elements())
    }

    fn can_share(&self, output: usize, input: usize) -> bool {
        let is_read = self.update == ArraySlot::Input(input)
            || self.starts.dims.iter().any(|dim| dim.slot == ArraySlot::Input(input));
        self.to == ArraySlot::Output(output) && self.from == ArraySlot::Input(input) && !is_read
    }
}
