//! Windows that move over arrays: reductions of them, and the gradients of such.
//!
//! Neighbouring outputs are computed at once, one window position after the other: the elements
//! that their windows see there are gathered into a block.

use std::ops::Range;
use std::sync::Arc;

use halflap_hlo::WindowDim;

use super::Buffers;
use super::block::{MOST_READ, computed_as, narrow, widen};
use super::columns::Space;
use super::cumulate::{self, Cumulate};
use super::error::Gap;
use super::formula::{Formula, TermId};
use super::index::{MOST_ARRAYS, load, store};
use super::plan::{ArraySlot, KernelStage, Planner, Trouble, parts_of};
use super::program::{ScalarProgram, fill};
use super::reduce::{self, FastCombine};
use super::selected::{Selected, Slots, WindowShape};
use super::walk::{MOST_DIMS, Stepped, copy_row, each_index, strides};
use crate::tensor::{DType, element_count};

/// How many outputs are computed at once.
const BLOCK: usize = 512;
/// The largest element.
const WIDEST: usize = 16;

/// Where a window overlaps the array: the index in a dimension of the array, if there is an
/// element.
pub(super) fn seen(dim: &WindowDim, len: usize, output: usize, place: usize) -> Option<usize> {
    let at = output as i64 * dim.stride as i64 + place as i64 * dim.rhs_dilate as i64 - dim.pad_low;
    let dilation = dim.lhs_dilate as i64;
    let index = if dilation == 1 { at } else { at.div_euclid(dilation) };
    let is_there = at >= 0 && (index as usize) < len && (dilation == 1 || at % dilation == 0);
    is_there.then_some(index as usize)
}

/// Dimensions at the end that the window does not extend over (features) are walked together.
struct ReduceWindow {
    /// The other dimensions.
    spaces: Vec<Space>,
    /// The extents of the window in all of those but the last.
    outer: Vec<usize>,
    /// How many elements each position has.
    tail: usize,
    arrays: Vec<WindowArray>,
    /// How elements of a single array are combined, if by an operation that has such functions.
    fast: Option<FastCombine>,
    applied: ScalarProgram,
}

/// An array that windows move over.
pub(super) struct WindowArray {
    pub(super) from: ArraySlot,
    pub(super) init: ArraySlot,
    pub(super) to: ArraySlot,
    pub(super) dtype: DType,
}

pub(super) fn reduce(
    planner: &mut Planner<'_>,
    id: TermId,
    window: &[WindowDim],
    combiner: &Arc<Formula>,
) -> Result<ArraySlot, Trouble> {
    let formula = planner.formula;
    let term = formula.term(id);
    let count = term.args.len() / 2;
    let mut sources = Vec::with_capacity(count);
    for index in 0..count {
        let array = term.args[index];
        sources.push((
            planner.make(array)?,
            planner.make(term.args[count + index])?,
            formula.term(array).dtype,
        ));
    }
    if count > MOST_ARRAYS || window.len() > MOST_DIMS {
        return Err(planner.fail(id, Gap::Shape));
    }
    let targets = match planner.part_count(id) {
        0 => vec![planner.target(id)],
        _ => planner.part_targets(id, &planner.part_kinds(id)),
    };
    let applied = ScalarProgram::new(combiner).map_err(|what| planner.fail(id, what))?;
    let mut arrays: Vec<WindowArray> = sources
        .into_iter()
        .zip(&targets)
        .map(|((from, init, dtype), &to)| WindowArray { from, init, to, dtype })
        .collect();
    let fast = combiner
        .single_binary()
        .filter(|_| count == 1)
        .and_then(|opcode| reduce::fast(opcode, arrays[0].dtype));
    let (dims, out) = (&formula.term(term.args[0]).dims, &term.dims);
    if let (Some(fast), Some(along)) = (fast, cumulate::RunningAxis::of(window, dims, out)) {
        let array = arrays.swap_remove(0);
        planner.add(Cumulate::new(along, array, fast));
        return Ok(targets[0]);
    }
    let moving = window.iter().rposition(|dim| !is_still(dim)).map_or(0, |last| last + 1);
    let space = |dim: usize, by: i64| Space {
        window: window[dim],
        len: dims[dim],
        outputs: out[dim],
        by: by as isize,
    };
    let steps = strides(&dims[..moving]);
    let mut spaces: Vec<Space> =
        steps.iter().enumerate().map(|(dim, &by)| space(dim, by)).collect();
    if spaces.is_empty() {
        spaces.push(Space::NONE);
    }
    planner.add(ReduceWindow {
        outer: spaces[..spaces.len() - 1].iter().map(Space::size).collect(),
        spaces,
        tail: dims[moving..].iter().product(),
        arrays,
        fast,
        applied,
    });
    Ok(targets[0])
}

/// Whether the window is one element that moves by one.
pub(super) fn is_still(dim: &WindowDim) -> bool {
    dim.size == 1
        && dim.stride == 1
        && (dim.pad_low, dim.pad_high) == (0, 0)
        && (dim.lhs_dilate, dim.rhs_dilate) == (1, 1)
}

/// A block of memory of an array.
#[derive(Clone, Copy)]
enum BlockUse {
    Sum,
    Seen,
    Init,
}

/// Outputs that are computed at once: neighbours in the last dimension, and some elements of each.
struct WindowBlock {
    /// The row's index.
    row: [usize; MOST_DIMS],
    /// The number of the first output.
    number: usize,
    outputs: Range<usize>,
    elements: Range<usize>,
}

/// What a place of the window sees for neighbouring outputs of a block.
struct WindowRun<'a> {
    block: &'a WindowBlock,
    /// Where the row of the array begins, in positions.
    row: isize,
    /// The position in the last dimension.
    place: usize,
    outputs: Range<usize>,
}

impl ReduceWindow {
    fn last(&self) -> &Space {
        &self.spaces[self.spaces.len() - 1]
    }

    /// How many elements of a position, and how many positions, are computed at once.
    fn block_sizes(&self) -> [usize; 2] {
        let elements = self.tail.clamp(1, BLOCK);
        [elements, (BLOCK / elements).min(self.last().outputs.max(1))]
    }

    /// How many blocks there are for each row, by elements and by positions.
    fn blocks(&self) -> [usize; 2] {
        let [elements, outputs] = self.block_sizes();
        [self.tail.div_ceil(elements), self.last().outputs.div_ceil(outputs)]
    }

    fn rows(&self) -> usize {
        let (_, outer) = self.spaces.split_last().unwrap_or((&Space::NONE, &[]));
        outer.iter().map(|space| space.outputs).product()
    }

    fn block(&self, number: usize) -> WindowBlock {
        let ([by_elements, by_outputs], [elements, outputs]) = (self.blocks(), self.block_sizes());
        let first = number % by_outputs * outputs;
        let outputs = first..(first + outputs).min(self.last().outputs);
        let number = number / by_outputs;
        let first = number % by_elements * elements;
        let elements = first..(first + elements).min(self.tail);
        let number = number / by_elements;
        let (mut row, mut rest) = ([0; MOST_DIMS], number);
        for (dim, space) in self.spaces.iter().enumerate().rev().skip(1) {
            (row[dim], rest) = (rest % space.outputs, rest / space.outputs);
        }
        WindowBlock { row, number: number * self.last().outputs + outputs.start, outputs, elements }
    }

    /// A block of local memory.
    fn memory(&self, buffers: &Buffers<'_>, array: usize, which: BlockUse) -> *mut u8 {
        buffers.local().wrapping_add((array * 3 + which as usize) * BLOCK * WIDEST)
    }

    /// Computes outputs of one row.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn compute(&self, buffers: &Buffers<'_>, table: &mut [*mut u8], block: &WindowBlock) {
        let len = block.outputs.len() * block.elements.len();
        for (index, array) in self.arrays.iter().enumerate() {
            let element = self.memory(buffers, index, BlockUse::Init);
            let size = computed_as(array.dtype).size();
            // SAFETY: an element, and blocks of local memory.
            unsafe {
                load(array.dtype, buffers.read(array.init), element);
                let element = std::slice::from_raw_parts(element, size);
                fill(element, self.memory(buffers, index, BlockUse::Sum), len);
            }
        }
        if let Some(fast) = self.fast.filter(|_| self.has_long_lines()) {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.scan(buffers, fast, block) };
        }
        let last = self.last();
        let sizes: [usize; MOST_DIMS] = std::array::from_fn(|dim| {
            self.outer.get(dim).copied().unwrap_or(if dim == self.outer.len() {
                last.size()
            } else {
                1
            })
        });
        each_index(&sizes[..self.spaces.len()], |place| {
            let (Some(row), place) = (self.row(block, place), place[self.outer.len()]) else {
                return;
            };
            // Where there is no element, nothing is combined.
            let mut from = block.outputs.start;
            while let Some(outputs) = last.next_seeing(place, from..block.outputs.end) {
                from = outputs.end;
                let run = WindowRun { block, row, place, outputs };
                // SAFETY: elements of the arrays that the windows see; the caller's promise.
                unsafe {
                    match self.fast {
                        Some(fast) => self.fold(buffers, fast, &run),
                        None => {
                            self.look(buffers, &run);
                            self.combine(buffers, table, &run);
                        }
                    }
                }
            }
        });
    }

    /// Where the row of the array begins that a place of the window sees, in positions.
    fn row(&self, block: &WindowBlock, place: &[usize]) -> Option<isize> {
        let mut outer = self.spaces.iter().take(self.outer.len()).enumerate();
        outer.try_fold(0, |at, (dim, space)| Some(at + space.seen(block.row[dim], place[dim])?))
    }

    /// Whether each window sees more neighbours than there are windows in a row: they are combined
    /// window by window, in the same order.
    fn has_long_lines(&self) -> bool {
        let (last, dtype) = (self.last(), self.arrays[0].dtype);
        self.tail == 1
            && widen(dtype).is_none()
            && (last.window.lhs_dilate, last.window.rhs_dilate) == (1, 1)
            && last.size() > last.outputs
    }

    /// Combines the elements of a single array, window by window.
    ///
    /// # Safety
    /// See [`KernelStage::run`]; lines must be long.
    unsafe fn scan(&self, buffers: &Buffers<'_>, fast: FastCombine, block: &WindowBlock) {
        let (array, last) = (&self.arrays[0], self.last());
        let size = array.dtype.size();
        let [sums, passed] =
            [BlockUse::Sum, BlockUse::Seen].map(|which| self.memory(buffers, 0, which));
        each_index(&self.outer, |place| {
            let Some(row) = self.row(block, place) else { return };
            for (number, output) in block.outputs.clone().enumerate() {
                let places = last.places(output);
                let Some(first) = last.seen(output, places.start) else { continue };
                let from = buffers.read(array.from).wrapping_add((row + first) as usize * size);
                for start in (0..places.len()).step_by(BLOCK) {
                    let count = BLOCK.min(places.len() - start);
                    let (from, sum) =
                        (from.wrapping_add(start * size), sums.wrapping_add(number * size));
                    // SAFETY: elements that the window sees, a sum, and a block of local memory.
                    unsafe { (fast.scan)(from, sum, passed, count) };
                }
            }
        });
    }

    /// Combines the elements of a run of a single array. Those that lie together are read in place.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn fold(&self, buffers: &Buffers<'_>, fast: FastCombine, run: &WindowRun<'_>) {
        let (block, array, last) = (run.block, &self.arrays[0], self.last());
        let count = block.elements.len();
        let Some(place) = last.seen(run.outputs.start, run.place) else { return };
        let is_together = run.outputs.len() == 1 || (last.window.stride == 1 && count == self.tail);
        let from = match is_together && widen(array.dtype).is_none() {
            true => {
                let at = (run.row + place) as usize * self.tail + block.elements.start;
                buffers.read(array.from).wrapping_add(at * array.dtype.size())
            }
            false => {
                // SAFETY: the caller's promise.
                unsafe { self.look(buffers, run) };
                self.memory(buffers, 0, BlockUse::Seen).cast_const()
            }
        };
        let first = (run.outputs.start - block.outputs.start) * count;
        let sums = self.memory(buffers, 0, BlockUse::Sum);
        let sums = sums.wrapping_add(first * computed_as(array.dtype).size());
        // SAFETY: as many elements of the array, or that were gathered, and of the sums.
        unsafe { (fast.fold)(from, sums, run.outputs.len() * count) };
    }

    /// Gathers the elements of a run.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn look(&self, buffers: &Buffers<'_>, run: &WindowRun<'_>) {
        let block = run.block;
        let (last, count) = (self.last(), block.elements.len());
        let Some(first) = last.seen(run.outputs.start, run.place) else { return };
        let step = last.window.stride as usize;
        let is_dense = step == 1 && count == self.tail && run.outputs.len() > 1;
        let (runs, len) = match is_dense {
            true => (1, run.outputs.len() * count),
            false => (run.outputs.len(), count),
        };
        for (index, array) in self.arrays.iter().enumerate() {
            let (dtype, to) = (array.dtype, self.memory(buffers, index, BlockUse::Seen));
            let (stored, size) = (dtype.size(), computed_as(dtype).size());
            let at = (run.row + first) as usize * self.tail + block.elements.start;
            let from = buffers.read(array.from).wrapping_add(at * stored);
            // SAFETY: elements of the array, and as many of the block.
            unsafe {
                if len == 1 && stored == 4 && size == 4 {
                    let from =
                        Stepped { start: from.cast::<u32>(), by: (step * self.tail) as isize };
                    copy_row(from, Stepped { start: to.cast(), by: 1 }, runs);
                    continue;
                }
                for number in 0..runs {
                    let from = from.wrapping_add(number * step * self.tail * stored);
                    let to = to.wrapping_add(number * len * size);
                    match widen(dtype) {
                        Some(widen) => widen(&[from; MOST_READ], to, len),
                        None => std::ptr::copy_nonoverlapping(from, to, len * size),
                    }
                }
            }
        }
    }

    /// # Safety
    /// The run's elements must be gathered.
    unsafe fn combine(&self, buffers: &Buffers<'_>, table: &mut [*mut u8], run: &WindowRun<'_>) {
        let (block, count) = (run.block, self.arrays.len());
        let len = run.outputs.len() * block.elements.len();
        let first = (run.outputs.start - block.outputs.start) * block.elements.len();
        let sums = |index: usize| {
            let size = self.applied.sizes[index];
            self.memory(buffers, index, BlockUse::Sum).wrapping_add(first * size)
        };
        for index in 0..count {
            table[self.applied.inputs[index].0 as usize] = sums(index);
            table[self.applied.inputs[count + index].0 as usize] =
                self.memory(buffers, index, BlockUse::Seen);
        }
        // SAFETY: all inputs are set; results are copied after all were computed.
        unsafe {
            self.applied.program.run(table, len);
            for index in 0..count {
                let from = table[self.applied.outputs[index].0 as usize];
                std::ptr::copy(from, sums(index), len * self.applied.sizes[index]);
            }
        }
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn finish(&self, buffers: &Buffers<'_>, block: &WindowBlock) {
        // Outputs with all of their elements are one line.
        let (lines, len) = match block.elements.len() == self.tail {
            true => (1, block.outputs.len() * self.tail),
            false => (block.outputs.len(), block.elements.len()),
        };
        for (index, array) in self.arrays.iter().enumerate() {
            let (dtype, from) = (array.dtype, self.memory(buffers, index, BlockUse::Sum));
            let (stored, size) = (dtype.size(), computed_as(dtype).size());
            let to = (block.number * self.tail + block.elements.start) * stored;
            let to = buffers.write(array.to).wrapping_add(to);
            for output in 0..lines {
                let from = from.wrapping_add(output * len * size).cast_const();
                let to = to.wrapping_add(output * self.tail * stored);
                // SAFETY: elements of the block, and as many of the output.
                unsafe {
                    match narrow(dtype) {
                        Some(narrow) => narrow(&[from; MOST_READ], to, len),
                        None => std::ptr::copy_nonoverlapping(from, to, len * size),
                    }
                }
            }
        }
    }
}

impl KernelStage for ReduceWindow {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: local memory has the requested length.
        let table = unsafe {
            self.applied
                .program
                .prepare(buffers.local().add(self.arrays.len() * 3 * BLOCK * WIDEST), BLOCK)
        };
        for number in buffers.share(self.rows() * self.blocks().into_iter().product::<usize>()) {
            let block = self.block(number);
            // SAFETY: outputs of a row, which nobody else writes.
            unsafe {
                self.compute(buffers, table, &block);
                self.finish(buffers, &block);
            }
        }
    }

    fn parts(&self) -> usize {
        let places: usize = self.spaces.iter().map(Space::size).product();
        let elements = self.rows() * self.last().outputs * self.tail * self.arrays.len();
        let blocks = self.blocks().into_iter().product::<usize>();
        parts_of(elements.saturating_mul(places), self.rows() * blocks)
    }

    fn local_bytes(&self) -> usize {
        self.arrays.len() * 3 * BLOCK * WIDEST + self.applied.program.local_bytes(BLOCK)
    }
}

/// The gradient of a reduction that selects: each source goes to the element that its window
/// selected.
struct SelectAndScatter {
    window: Vec<WindowDim>,
    /// The window's extents.
    sizes: Vec<usize>,
    dims: Vec<usize>,
    by: Vec<i64>,
    source_dims: Vec<usize>,
    from: ArraySlot,
    source: ArraySlot,
    init: ArraySlot,
    to: ArraySlot,
    dtype: DType,
    select: ScalarProgram,
    combine: ScalarProgram,
}

pub(super) fn select_and_scatter(
    planner: &mut Planner<'_>,
    id: TermId,
    window: &[WindowDim],
    formulas: [&Arc<Formula>; 2],
) -> Result<ArraySlot, Trouble> {
    let formula = planner.formula;
    let term = formula.term(id);
    let (from, source, init) =
        (planner.make(term.args[0])?, planner.make(term.args[1])?, planner.make(term.args[2])?);
    let source_dims = formula.term(term.args[1]).dims.clone();
    let to = planner.target(id);
    let slots = Slots { from, source, init, to };
    let shape = WindowShape { window, dims: &term.dims, source_dims: &source_dims };
    let usual = Selected::new(slots, term.dtype, formulas.map(|formula| &**formula), shape);
    if let Some(usual) = usual {
        planner.add(usual);
        return Ok(to);
    }
    let [select, combine] = formulas.map(|formula| ScalarProgram::new(formula));
    let (select, combine) = (
        select.map_err(|what| planner.fail(id, what))?,
        combine.map_err(|what| planner.fail(id, what))?,
    );
    let (window, dims, dtype) = (window.to_vec(), term.dims.clone(), term.dtype);
    let (sizes, by) = (window.iter().map(|dim| dim.size as usize).collect(), strides(&dims));
    planner.add(SelectAndScatter {
        sizes,
        by,
        window,
        dims,
        source_dims,
        from,
        source,
        init,
        to,
        dtype,
        select,
        combine,
    });
    Ok(to)
}

impl KernelStage for SelectAndScatter {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let (size, to, local) = (self.dtype.size(), buffers.write(self.to), buffers.local());
        let (by, sizes) = (&self.by, &self.sizes);
        // SAFETY: local memory has the requested length; elements are those of the arrays.
        unsafe {
            fill(
                std::slice::from_raw_parts(buffers.read(self.init), size),
                to,
                element_count(&self.dims),
            );
            let select = self.select.program.prepare(local.add(64), 64);
            let combine = self
                .combine
                .program
                .prepare(local.add(64 + self.select.program.local_bytes(64)), 64);
            let (a, b) = (local, local.add(16));
            let mut number = 0;
            each_index(&self.source_dims, |output| {
                let mut selected = None;
                each_index(sizes, |place| {
                    let at = (0..self.dims.len()).try_fold(0, |at, dim| {
                        Some(
                            at + seen(&self.window[dim], self.dims[dim], output[dim], place[dim])?
                                * by[dim] as usize,
                        )
                    });
                    let Some(at) = at else { return };
                    let stays = selected.is_some_and(|known: usize| {
                        load(self.dtype, buffers.read(self.from).add(known * size), a);
                        load(self.dtype, buffers.read(self.from).add(at * size), b);
                        apply(&self.select, select, [a, b]);
                        *select[self.select.outputs[0].0 as usize] != 0
                    });
                    if !stays {
                        selected = Some(at);
                    }
                });
                if let Some(at) = selected {
                    load(self.dtype, to.add(at * size), a);
                    load(self.dtype, buffers.read(self.source).add(number * size), b);
                    apply(&self.combine, combine, [a, b]);
                    store(
                        self.dtype,
                        combine[self.combine.outputs[0].0 as usize],
                        to.add(at * size),
                    );
                }
                number += 1;
            });
        }
    }

    fn local_bytes(&self) -> usize {
        64 + self.select.program.local_bytes(64) + self.combine.program.local_bytes(64)
    }
}

/// Applies a computation of two scalars.
///
/// # Safety
/// The table must be prepared, the arguments computed elements.
unsafe fn apply(applied: &ScalarProgram, table: &mut [*mut u8], arguments: [*mut u8; 2]) {
    applied
        .inputs
        .iter()
        .zip(arguments)
        .for_each(|(place, argument)| table[place.0 as usize] = argument);
    // SAFETY: the caller's promise.
    unsafe { applied.program.run(table, 1) };
}
