//! Gathers and scatters.
//!
//! Both walk over the indices' batch and, for each, over the window that an index names. All
//! strides are computed beforehand: a run reads an index vector, locates the window, and copies or
//! combines its rows. Threads share a gather by its windows, and a scatter by the rows of its
//! result, so that updates of one row keep their order.

use std::ops::Range;
use std::sync::Arc;

use super::Buffers;
use super::block::{self, MOST_READ};
use super::error::Gap;
use super::formula::{Formula, Indexing, Op, TermId};
use super::heavy::read_index;
use super::plan::{ArraySlot, KernelStage, Planner, Trouble, parts_of};
use super::program::ScalarProgram;
use super::reduce::{self, FastCombine};
use super::single::{SingleUpdates, UpdatedArray};
use super::walk::{MOST_DIMS, Transfer, each_index, strides};
use crate::tensor::DType;

/// Where windows are: in the array, in the gathered (or scattered) array, and how indices are read.
pub(super) struct Windows {
    pub(super) indices: (ArraySlot, DType),
    /// The batch of the indices, with steps in the indices and in the gathered array.
    pub(super) batch: Vec<usize>,
    pub(super) index_by: Vec<usize>,
    pub(super) batch_by: Vec<usize>,
    /// The numbers of an index vector.
    pub(super) numbers: Vec<IndexNumber>,
    /// The batch's dimensions that go with one of the array, each with the step of that.
    pub(super) batching: Vec<(usize, usize)>,
    /// The window, with steps in the array and in the gathered array.
    pub(super) sizes: Vec<usize>,
    /// How many elements lie together in both, and the window without the dimensions that make
    /// them.
    run: usize,
    outer: Vec<usize>,
    array_by: Vec<i64>,
    window_by: Vec<i64>,
    array_dims: Vec<usize>,
}

/// A number of an index vector.
pub(super) struct IndexNumber {
    /// Where it is, from the vector's first on.
    pub(super) at: usize,
    /// The step of the array's dimension that it counts.
    pub(super) by: usize,
    /// The largest that leaves room for the window.
    pub(super) most: i64,
}

/// What happens to a window that does not fit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outside {
    Clamped,
    Skipped,
}

/// What a gather or scatter works on.
struct IndexedArrays<'a> {
    array: TermId,
    indices: TermId,
    /// The dimensions of the gathered (or scattered) array.
    gathered: &'a [usize],
}

impl Windows {
    fn plan(
        planner: &mut Planner<'_>,
        at: &Indexing,
        arrays: IndexedArrays<'_>,
    ) -> Result<Windows, Trouble> {
        let IndexedArrays { array, indices, gathered } = arrays;
        let slot = planner.make(indices)?;
        let formula = planner.formula;
        let (array_dims, index_term) = (formula.term(array).dims.clone(), formula.term(indices));
        let by = strides(gathered);
        let index_strides = strides(&index_term.dims);
        let index_batch: Vec<usize> =
            (0..index_term.dims.len()).filter(|&dim| dim != at.index_vector_dim).collect();
        let batch_dims: Vec<usize> =
            (0..gathered.len()).filter(|dim| !at.offset_dims.contains(dim)).collect();
        let is_window =
            |dim: &usize| !at.collapsed_dims.contains(dim) && !at.operand_batching.contains(dim);
        let window_dims: Vec<usize> = (0..array_dims.len()).filter(is_window).collect();
        let is_right = batch_dims.len() == index_batch.len()
            && window_dims.len() == at.offset_dims.len()
            && at.slice_sizes.len() == array_dims.len()
            && array_dims.len() <= MOST_DIMS;
        if !is_right {
            return Err(planner.fail(indices, Gap::Shape));
        }
        let array_strides = strides(&array_dims);
        let mut window_by = vec![0; array_dims.len()];
        window_dims
            .iter()
            .zip(&at.offset_dims)
            .for_each(|(&dim, &offset)| window_by[dim] = by[offset]);
        let batching = |(&dim, index_dim): (&usize, &usize)| {
            let along = index_batch.iter().position(|other| other == index_dim)?;
            Some((along, array_strides[dim] as usize))
        };
        let vector_by = index_strides.get(at.index_vector_dim).map_or(1, |&by| by as usize);
        let number = |(number, &dim): (usize, &usize)| IndexNumber {
            at: number * vector_by,
            by: array_strides[dim] as usize,
            most: array_dims[dim] as i64 - at.slice_sizes[dim] as i64,
        };
        let (mut run, mut outer) = (1, at.slice_sizes.clone());
        for dim in (0..array_dims.len()).rev() {
            let is_together = array_strides[dim] == run as i64 && window_by[dim] == run as i64;
            if outer[dim] != 1 && !is_together {
                break;
            }
            run *= outer[dim];
            outer[dim] = 1;
        }
        Ok(Windows {
            run,
            outer,
            indices: (slot, index_term.dtype),
            batch: index_batch.iter().map(|&dim| index_term.dims[dim]).collect(),
            index_by: index_batch.iter().map(|&dim| index_strides[dim] as usize).collect(),
            batch_by: batch_dims.iter().map(|&dim| by[dim] as usize).collect(),
            numbers: at.start_index_map.iter().enumerate().map(number).collect(),
            batching: at
                .operand_batching
                .iter()
                .zip(&at.indices_batching)
                .filter_map(batching)
                .collect(),
            sizes: at.slice_sizes.clone(),
            array_by: array_strides,
            window_by,
            array_dims,
        })
    }

    /// How many windows there are.
    pub(super) fn count(&self) -> usize {
        self.batch.iter().product()
    }

    /// Whether a window is one run of neighbours.
    fn is_run(&self) -> bool {
        self.outer.iter().all(|&extent| extent == 1)
    }

    /// Calls a function for some of the windows: with its first element in the array, and in the
    /// gathered array.
    fn each(
        &self,
        buffers: &Buffers<'_>,
        (windows, outside): (Range<usize>, Outside),
        mut f: impl FnMut(usize, usize),
    ) {
        if windows.is_empty() {
            return;
        }
        let indices = buffers.read(self.indices.0);
        let mut batch = [0usize; MOST_DIMS];
        let (mut vector, mut first, mut rest) = (0, 0, windows.start);
        for dim in (0..self.batch.len()).rev() {
            (batch[dim], rest) = (rest % self.batch[dim], rest / self.batch[dim]);
            vector += batch[dim] * self.index_by[dim];
            first += batch[dim] * self.batch_by[dim];
        }
        for _ in windows {
            let mut place: usize = self.batching.iter().map(|&(dim, by)| batch[dim] * by).sum();
            let mut fits = true;
            for number in &self.numbers {
                // SAFETY: a number of an index vector of the indices' array.
                let start = unsafe { read_index(indices, self.indices.1, vector + number.at) };
                let clamped = start.clamp(0, number.most.max(0));
                fits &= start == clamped;
                place += clamped as usize * number.by;
            }
            if fits || outside == Outside::Clamped {
                f(place, first);
            }
            for (dim, &extent) in self.batch.iter().enumerate().rev() {
                batch[dim] += 1;
                vector += self.index_by[dim];
                first += self.batch_by[dim];
                if batch[dim] < extent {
                    break;
                }
                batch[dim] = 0;
                vector -= extent * self.index_by[dim];
                first -= extent * self.batch_by[dim];
            }
        }
    }
}

struct Gather {
    windows: Windows,
    from: ArraySlot,
    to: ArraySlot,
    transfer: Transfer,
    size: usize,
}

pub(super) fn gather(
    planner: &mut Planner<'_>,
    id: TermId,
    at: &Indexing,
) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let from = planner.make(term.args[0])?;
    let arrays = IndexedArrays { array: term.args[0], indices: term.args[1], gathered: &term.dims };
    let windows = Windows::plan(planner, at, arrays)?;
    let size = term.dtype.size();
    let transfer = Transfer::new(&windows.sizes, &windows.array_by, &windows.window_by, size);
    let to = planner.target(id);
    planner.add(Gather { windows, from, to, transfer, size });
    Ok(to)
}

impl KernelStage for Gather {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let (from, to) = (buffers.read(self.from), buffers.write(self.to));
        let (windows, size) = (&self.windows, self.size);
        let share = (buffers.share(windows.count()), Outside::Clamped);
        windows.each(buffers, share, |place, first| {
            // SAFETY: the window lies in the array, and its elements in the gathered one, which is
            // aligned to its elements.
            unsafe {
                let (from, to) = (from.add(place * size), to.add(first * size));
                match (windows.is_run(), windows.run * size) {
                    (true, 4) if size == 4 => *to.cast::<u32>() = *from.cast::<u32>(),
                    (true, bytes) => std::ptr::copy_nonoverlapping(from, to, bytes),
                    _ => self.transfer.run(from, to),
                }
            }
        });
    }

    fn parts(&self) -> usize {
        let windows = self.windows.count();
        parts_of(windows * self.transfer.elements().max(1), windows)
    }

    fn elements(&self) -> Option<usize> {
        Some(self.windows.count() * (self.transfer.elements() + FINDING))
    }
}

/// How a scattered element is combined with what is there.
enum Combining {
    /// It replaces it.
    Replace,
    /// Where it is.
    Fold(FastCombine),
    /// A block function.
    Fast(block::BlockFn),
    Program(Box<ScalarProgram>),
}

struct Scatter {
    windows: Windows,
    /// Each: the array, the updates, the output and the type.
    arrays: Vec<(ArraySlot, ArraySlot, ArraySlot, DType)>,
    /// How many elements the arrays have.
    len: usize,
    combining: Combining,
    /// How single elements are updated.
    single: Option<SingleUpdates>,
}

pub(super) fn scatter(
    planner: &mut Planner<'_>,
    id: TermId,
    at: &Indexing,
    combiner: &Arc<Formula>,
) -> Result<ArraySlot, Trouble> {
    let formula = planner.formula;
    let term = formula.term(id);
    let count = (term.args.len() - 1) / 2;
    let updates = formula.term(term.args[count + 1]).dims.clone();
    let arrays =
        IndexedArrays { array: term.args[0], indices: term.args[count], gathered: &updates };
    let windows = Windows::plan(planner, at, arrays)?;
    let mut sources = Vec::with_capacity(count);
    for index in 0..count {
        let array = term.args[index];
        sources.push((
            planner.make(array)?,
            planner.make(term.args[count + 1 + index])?,
            formula.term(array),
        ));
    }
    let targets = match planner.part_count(id) {
        0 => vec![planner.target(id)],
        _ => planner.part_targets(id, &planner.part_kinds(id)),
    };
    let dtype = formula.term(term.args[0]).dtype;
    let is_second = |output| matches!(combiner.term(output).op, Op::Input(1));
    let is_replacing = count == 1 && matches!(combiner.outputs[..], [output] if is_second(output));
    let fast = combiner.single_binary().filter(|_| count == 1 && block::widen(dtype).is_none());
    let fold = fast.and_then(|opcode| reduce::fast(opcode, dtype));
    let combining = match (fold, fast.and_then(|opcode| block::binary(opcode, dtype))) {
        _ if is_replacing => Combining::Replace,
        (Some(fold), _) => Combining::Fold(fold),
        (None, Some(run)) => Combining::Fast(run),
        (None, None) => Combining::Program(Box::new(
            ScalarProgram::new(combiner).map_err(|what| planner.fail(id, what))?,
        )),
    };
    let len = formula.term(term.args[0]).len();
    let arrays = sources
        .iter()
        .zip(&targets)
        .map(|((array, update, term), &to)| (*array, *update, to, term.dtype))
        .collect();
    let update = match &combining {
        Combining::Replace => reduce::replace_at(dtype.size()),
        Combining::Fold(fast) => Some(fast.at),
        Combining::Fast(_) | Combining::Program(_) => None,
    };
    let single = update.and_then(|update| SingleUpdates::new(&windows, update));
    planner.add(Scatter { windows, arrays, len, combining, single });
    Ok(targets[0])
}

impl Scatter {
    fn updated(&self) -> usize {
        self.windows.count() * self.windows.sizes.iter().product::<usize>()
    }
}

/// What finding and updating an element takes, in elements of a simple loop.
const FINDING: usize = 8;

impl KernelStage for Scatter {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let rows = buffers.share(self.rows());
        let own = rows.start * self.row()..rows.end * self.row();
        for &(from, _, to, dtype) in &self.arrays {
            let (from, to) = (buffers.read(from), buffers.write(to));
            if from != to.cast_const() {
                let (start, bytes) = (own.start * dtype.size(), own.len() * dtype.size());
                // SAFETY: both arrays have these elements and are different memory.
                unsafe { std::ptr::copy_nonoverlapping(from.add(start), to.add(start), bytes) };
            }
        }
        if let (Some(single), &[(_, updates, to, dtype)]) = (&self.single, &self.arrays[..]) {
            let array = UpdatedArray { updates, to, size: dtype.size() };
            // SAFETY: the windows are its own, and the arrays are those that were planned.
            return unsafe { single.run(&self.windows, buffers, (array, own)) };
        }
        let mut table = match &self.combining {
            // SAFETY: local memory has the requested length.
            Combining::Program(applied) => unsafe {
                Some(applied.program.prepare(buffers.local().add(LOCAL), BLOCK))
            },
            _ => None,
        };
        let windows = &self.windows;
        // A window that does not fit is skipped as a whole.
        let all = (0..windows.count(), Outside::Skipped);
        windows.each(buffers, all, |place, first| {
            if !own.contains(&place) {
                return;
            }
            let is_whole = !matches!(self.combining, Combining::Program(_));
            if is_whole && windows.is_run() {
                let update = Update { buffers, to: place, from: first };
                // SAFETY: neighbours in the arrays, and in the updates.
                return unsafe { self.element(update, None) };
            }
            each_index(if is_whole { &windows.outer } else { &windows.sizes }, |index| {
                let dot = |by: &[i64]| {
                    index.iter().zip(by).map(|(&i, &by)| i * by as usize).sum::<usize>()
                };
                let update = Update {
                    buffers,
                    to: place + dot(&windows.array_by),
                    from: first + dot(&windows.window_by),
                };
                // SAFETY: an element of the arrays, and one of the updates.
                unsafe { self.element(update, table.as_deref_mut()) };
            });
        });
    }

    fn parts(&self) -> usize {
        parts_of(self.updated().max(self.len), self.rows())
    }

    /// In place.
    fn elements(&self) -> Option<usize> {
        Some((self.windows.count() + self.updated()) * FINDING)
    }

    fn local_bytes(&self) -> usize {
        match &self.combining {
            Combining::Program(applied) => LOCAL + applied.program.local_bytes(BLOCK),
            _ => LOCAL + self.windows.run * 16,
        }
    }

    fn can_share(&self, output: usize, input: usize) -> bool {
        let reads = |&(_, update, ..): &(ArraySlot, ArraySlot, ArraySlot, DType)| {
            update == ArraySlot::Input(input)
        };
        let is_own = |&(from, _, to, _): &(ArraySlot, ArraySlot, ArraySlot, DType)| {
            from == ArraySlot::Input(input) && to == ArraySlot::Output(output)
        };
        let from = self.arrays.iter().filter(|array| array.0 == ArraySlot::Input(input)).count();
        from == 1
            && self.arrays.iter().any(is_own)
            && !self.arrays.iter().any(reads)
            && self.windows.indices.0 != ArraySlot::Input(input)
    }
}

/// Room for two computed elements of every array.
const LOCAL: usize = 1024;
/// A program's block: one element.
const BLOCK: usize = 64;
/// The most arrays that are scattered at once.
pub(super) const MOST_ARRAYS: usize = 16;

/// An element that is scattered: its number in the arrays, and in the updates.
#[derive(Clone, Copy)]
struct Update<'r, 'b> {
    buffers: &'r Buffers<'b>,
    to: usize,
    from: usize,
}

impl Scatter {
    /// How many elements a row has: windows are within one. If they are not, there is only one row.
    fn row(&self) -> usize {
        let Windows { run, array_dims, .. } = &self.windows;
        let join = |row: usize, dim: &usize| if row < *run { row * dim } else { row };
        let row = array_dims.iter().rev().fold(1, join);
        let is_within = self.windows.is_run() && row == *run && row > 0;
        if is_within { row } else { self.len.max(1) }
    }

    fn rows(&self) -> usize {
        self.len / self.row()
    }

    /// Combines one element, or as many as lie together.
    ///
    /// # Safety
    /// The numbers must be those of elements.
    unsafe fn element(&self, element: Update<'_, '_>, table: Option<&mut [*mut u8]>) {
        let Update { buffers, to: at, from } = element;
        let (_, update, to, dtype) = self.arrays[0];
        let (size, run) = (dtype.size(), self.windows.run);
        // SAFETY: the caller's promise; a value is computed aside before it is written.
        unsafe {
            let (to, update) =
                (buffers.write(to).add(at * size), buffers.read(update).add(from * size));
            match (&self.combining, table) {
                (Combining::Replace, _) => std::ptr::copy_nonoverlapping(update, to, run * size),
                (Combining::Fold(fast), _) => (fast.fold)(update, to, run),
                (Combining::Fast(combine), _) => {
                    let aside = buffers.local();
                    combine(&[to.cast_const(), update, update, update], aside, run);
                    std::ptr::copy_nonoverlapping(aside, to, run * size);
                }
                (Combining::Program(applied), Some(table)) => self.apply(element, applied, table),
                (Combining::Program(_), None) => {}
            }
        }
    }

    /// # Safety
    /// See [`Scatter::element`].
    unsafe fn apply(
        &self,
        element: Update<'_, '_>,
        applied: &ScalarProgram,
        table: &mut [*mut u8],
    ) {
        let Update { buffers, to: at, from } = element;
        let count = self.arrays.len();
        // SAFETY: local memory has room for two elements of each array; the rest is the caller's
        // promise.
        unsafe {
            for (index, &(_, update, to, dtype)) in self.arrays.iter().enumerate() {
                let (old, new) =
                    (buffers.local().add(index * 32), buffers.local().add(index * 32 + 16));
                load(dtype, buffers.write(to).add(at * dtype.size()), old);
                load(dtype, buffers.read(update).add(from * dtype.size()), new);
                table[applied.inputs[index].0 as usize] = old;
                table[applied.inputs[count + index].0 as usize] = new;
            }
            applied.program.run(table, 1);
            for (index, &(_, _, to, dtype)) in self.arrays.iter().enumerate() {
                let value = table[applied.outputs[index].0 as usize];
                store(dtype, value, buffers.write(to).add(at * dtype.size()));
            }
        }
    }
}

/// Reads one stored element as a computed one.
///
/// # Safety
/// Both must hold one element.
pub(super) unsafe fn load(dtype: DType, from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match block::widen(dtype) {
            Some(widen) => widen(&[from; MOST_READ], to, 1),
            None => std::ptr::copy_nonoverlapping(from, to, dtype.size()),
        }
    }
}

/// Writes one computed element as a stored one.
///
/// # Safety
/// Both must hold one element.
pub(super) unsafe fn store(dtype: DType, from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match block::narrow(dtype) {
            Some(narrow) => narrow(&[from; MOST_READ], to, 1),
            None => std::ptr::copy_nonoverlapping(from, to, dtype.size()),
        }
    }
}
