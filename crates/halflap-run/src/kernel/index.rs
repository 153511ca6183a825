//! Gathers and scatters.
//!
//! Both walk over the indices' batch and, for each, over the window that an index names. All
//! strides are computed beforehand: a run reads an index vector, locates the window, and copies or
//! combines its rows.

use std::sync::Arc;

use super::Buffers;
use super::block;
use super::error::Gap;
use super::formula::{Formula, Indexing, Op, TermId};
use super::heavy::read_index;
use super::plan::{ArraySlot, KernelStage, Planner, Trouble};
use super::program::ScalarProgram;
use super::walk::{MOST_DIMS, Transfer, each_index, strides};
use crate::tensor::DType;

/// Where windows are: in the array, in the gathered (or scattered) array, and how indices are read.
struct Windows {
    indices: (ArraySlot, DType),
    /// The batch of the indices, with steps in the indices and in the gathered array.
    batch: Vec<usize>,
    index_by: Vec<usize>,
    batch_by: Vec<usize>,
    /// How far apart the numbers of an index vector are, and for each the array's dimension.
    vector_by: usize,
    index_dims: Vec<usize>,
    /// The array's dimensions that go with one of the batch.
    batching: Vec<(usize, usize)>,
    /// The window, with steps in the array and in the gathered array.
    sizes: Vec<usize>,
    /// How many elements lie together in both, and the window without the dimensions that make
    /// them.
    run: usize,
    outer: Vec<usize>,
    array_by: Vec<i64>,
    window_by: Vec<i64>,
    array_dims: Vec<usize>,
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
            Some((dim, index_batch.iter().position(|other| other == index_dim)?))
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
            vector_by: index_strides.get(at.index_vector_dim).map_or(1, |&by| by as usize),
            index_dims: at.start_index_map.clone(),
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

    /// Calls a function for each window: with its start in the array's dimensions, and its first
    /// element in the gathered array.
    fn each(&self, buffers: &Buffers<'_>, mut f: impl FnMut(&mut [i64], usize)) {
        let indices = buffers.read(self.indices.0);
        let mut start = [0i64; MOST_DIMS];
        let start = &mut start[..self.array_dims.len()];
        each_index(&self.batch, |batch| {
            start.fill(0);
            let dot = |by: &[usize]| batch.iter().zip(by).map(|(i, by)| i * by).sum::<usize>();
            let first = dot(&self.index_by);
            for (number, &dim) in self.index_dims.iter().enumerate() {
                // SAFETY: a number of an index vector of the indices' array.
                start[dim] =
                    unsafe { read_index(indices, self.indices.1, first + number * self.vector_by) };
            }
            self.batching.iter().for_each(|&(dim, index)| start[dim] = batch[index] as i64);
            f(start, dot(&self.batch_by));
        });
    }

    fn place(&self, start: &[i64]) -> i64 {
        start.iter().zip(&self.array_by).map(|(start, by)| start * by).sum()
    }

    /// The largest start that leaves room for the window.
    fn most(&self, dim: usize) -> i64 {
        self.array_dims[dim] as i64 - self.sizes[dim] as i64
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
        self.windows.each(buffers, |start, first| {
            // A start is clamped so that its window fits.
            for (dim, start) in start.iter_mut().enumerate() {
                *start = (*start).clamp(0, self.windows.most(dim).max(0));
            }
            let place = self.windows.place(start) as usize;
            // SAFETY: the window lies in the array, and its elements in the gathered one.
            unsafe { self.transfer.run(from.add(place * self.size), to.add(first * self.size)) };
        });
    }
}

/// How a scattered element is combined with what is there.
enum Combining {
    /// It replaces it.
    Replace,
    /// A block function.
    Fast(block::BlockFn),
    Program(Box<ScalarProgram>),
}

struct Scatter {
    windows: Windows,
    /// Each: the array, the updates, the output and the type.
    arrays: Vec<(ArraySlot, ArraySlot, ArraySlot, DType)>,
    bytes: Vec<usize>,
    combining: Combining,
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
    let combining = match fast.and_then(|opcode| block::binary(opcode, dtype)) {
        _ if is_replacing => Combining::Replace,
        Some(run) => Combining::Fast(run),
        None => Combining::Program(Box::new(
            ScalarProgram::new(combiner).map_err(|what| planner.fail(id, what))?,
        )),
    };
    let bytes = sources.iter().map(|(_, _, term)| term.len() * term.dtype.size()).collect();
    let arrays = sources
        .iter()
        .zip(&targets)
        .map(|((array, update, term), &to)| (*array, *update, to, term.dtype))
        .collect();
    planner.add(Scatter { windows, arrays, bytes, combining });
    Ok(targets[0])
}

impl KernelStage for Scatter {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        for (&(from, _, to, _), &bytes) in self.arrays.iter().zip(&self.bytes) {
            let (from, to) = (buffers.read(from), buffers.write(to));
            if from != to.cast_const() {
                // SAFETY: both arrays have this many bytes and are different memory.
                unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
            }
        }
        let mut table = match &self.combining {
            // SAFETY: local memory has the requested length.
            Combining::Program(applied) => unsafe {
                Some(applied.program.prepare(buffers.local().add(LOCAL), BLOCK))
            },
            _ => None,
        };
        let windows = &self.windows;
        windows.each(buffers, |start, first| {
            // A window that does not fit is skipped as a whole.
            let fits = |(dim, &start): (usize, &i64)| start >= 0 && start <= windows.most(dim);
            if !start.iter().enumerate().all(fits) {
                return;
            }
            let place = windows.place(start) as usize;
            let is_whole = !matches!(self.combining, Combining::Program(_));
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
                (Combining::Fast(combine), _) => {
                    let aside = buffers.local();
                    combine(&[to.cast_const(), update, update], aside, run);
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
            Some(widen) => widen(&[from; 3], to, 1),
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
            Some(narrow) => narrow(&[from; 3], to, 1),
            None => std::ptr::copy_nonoverlapping(from, to, dtype.size()),
        }
    }
}
