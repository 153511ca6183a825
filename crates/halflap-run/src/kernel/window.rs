//! Windows that move over arrays: reductions of them, and the gradients of such.
//!
//! A row of outputs is computed at once, one window position after the other: its elements are
//! gathered into a block, with the initial value where there is none.

use std::ops::Range;
use std::sync::Arc;

use halflap_hlo::WindowDim;

use super::Buffers;
use super::block::computed_as;
use super::error::Gap;
use super::formula::{Formula, TermId};
use super::index::{MOST_ARRAYS, load, store};
use super::plan::{ArraySlot, KernelStage, Planner, Trouble};
use super::program::{ScalarProgram, fill};
use super::selected::{Selected, Slots, WindowShape};
use super::walk::{MOST_DIMS, each_index, strides};
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

struct ReduceWindow {
    window: Vec<WindowDim>,
    dims: Vec<usize>,
    by: Vec<i64>,
    out: Vec<usize>,
    /// Each: the array, the initial value, the output and the type.
    arrays: Vec<(ArraySlot, ArraySlot, ArraySlot, DType)>,
    applied: ScalarProgram,
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
    let arrays = sources
        .into_iter()
        .zip(&targets)
        .map(|((array, init, dtype), &to)| (array, init, to, dtype))
        .collect();
    let (dims, out) = (formula.term(term.args[0]).dims.clone(), term.dims.clone());
    planner.add(ReduceWindow {
        window: window.to_vec(),
        by: strides(&dims),
        dims,
        out,
        arrays,
        applied,
    });
    Ok(targets[0])
}

/// Outputs of one row.
struct RowOutputs<'r> {
    /// The row's index.
    row: &'r [usize],
    span: Range<usize>,
}

/// A position in the window, for a row of windows.
#[derive(Clone, Copy)]
struct Sighting {
    /// Where the row of the array that it sees begins.
    outer: usize,
    /// The position in the last dimension.
    place: usize,
}

impl ReduceWindow {
    /// A block of local memory: the accumulated or the gathered elements of an array.
    fn block(&self, buffers: &Buffers<'_>, array: usize, which: usize) -> *mut u8 {
        buffers.local().wrapping_add((array * 3 + which) * BLOCK * WIDEST)
    }

    /// Computes outputs of one row.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn span(&self, buffers: &Buffers<'_>, table: &mut [*mut u8], outputs: RowOutputs<'_>) {
        let RowOutputs { row, span } = outputs;
        let (rank, by, len) = (self.dims.len(), &self.by, span.len());
        // SAFETY: blocks of local memory, elements of the arrays that the window sees.
        unsafe {
            for (index, &(_, init, _, dtype)) in self.arrays.iter().enumerate() {
                let element = self.block(buffers, index, 2);
                load(dtype, buffers.read(init), element);
                fill(
                    std::slice::from_raw_parts(element, computed_as(dtype).size()),
                    self.block(buffers, index, 0),
                    len,
                );
            }
            let sizes: [usize; MOST_DIMS] =
                std::array::from_fn(|dim| self.window.get(dim).map_or(1, |dim| dim.size as usize));
            each_index(&sizes[..rank], |place| {
                let outer = (0..rank.saturating_sub(1)).try_fold(0, |at, dim| {
                    Some(
                        at + seen(&self.window[dim], self.dims[dim], row[dim], place[dim])?
                            * by[dim] as usize,
                    )
                });
                // Without an element, the initial value would be combined, which must be neutral.
                let Some(outer) = outer else { return };
                let sight = Sighting { outer, place: place[rank - 1] };
                self.look(buffers, sight, span.clone());
                self.combine(buffers, table, len);
            });
        }
    }

    /// Gathers the elements of a row of windows into the second block of each array.
    ///
    /// # Safety
    /// See [`ReduceWindow::span`].
    unsafe fn look(&self, buffers: &Buffers<'_>, sight: Sighting, span: Range<usize>) {
        let Sighting { outer, place } = sight;
        let last = self.dims.len() - 1;
        for (index, &(array, _, _, dtype)) in self.arrays.iter().enumerate() {
            let (to, init) = (self.block(buffers, index, 1), self.block(buffers, index, 2));
            let size = computed_as(dtype).size();
            for (number, output) in span.clone().enumerate() {
                // SAFETY: an element of the array, or the initial value, to a place in the block.
                unsafe {
                    let to = to.add(number * size);
                    match seen(&self.window[last], self.dims[last], output, place) {
                        Some(at) => {
                            load(dtype, buffers.read(array).add((outer + at) * dtype.size()), to)
                        }
                        None => std::ptr::copy_nonoverlapping(init, to, size),
                    }
                }
            }
        }
    }

    /// # Safety
    /// The blocks must be filled.
    unsafe fn combine(&self, buffers: &Buffers<'_>, table: &mut [*mut u8], len: usize) {
        let count = self.arrays.len();
        for index in 0..count {
            table[self.applied.inputs[index].0 as usize] = self.block(buffers, index, 0);
            table[self.applied.inputs[count + index].0 as usize] = self.block(buffers, index, 1);
        }
        // SAFETY: all inputs are set; results are copied after all were computed.
        unsafe {
            self.applied.program.run(table, len);
            for index in 0..count {
                let from = table[self.applied.outputs[index].0 as usize];
                std::ptr::copy(
                    from,
                    self.block(buffers, index, 0),
                    len * self.applied.sizes[index],
                );
            }
        }
    }
}

impl KernelStage for ReduceWindow {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let rank = self.dims.len();
        // SAFETY: local memory has the requested length.
        let table = unsafe {
            self.applied
                .program
                .prepare(buffers.local().add(self.arrays.len() * 3 * BLOCK * WIDEST), BLOCK)
        };
        let (last, outer) =
            self.out.split_last().map_or((1, &[][..]), |(&last, outer)| (last, outer));
        let mut row = 0;
        each_index(outer, |index| {
            for first in (0..last).step_by(BLOCK) {
                let len = BLOCK.min(last - first);
                // SAFETY: outputs of a row.
                unsafe {
                    match rank {
                        0 => {}
                        _ => {
                            let outputs = RowOutputs { row: index, span: first..first + len };
                            self.span(buffers, table, outputs)
                        }
                    }
                    for (array, &(_, _, to, dtype)) in self.arrays.iter().enumerate() {
                        let size = computed_as(dtype).size();
                        for output in 0..len {
                            let to =
                                buffers.write(to).add((row * last + first + output) * dtype.size());
                            store(dtype, self.block(buffers, array, 0).add(output * size), to);
                        }
                    }
                }
            }
            row += 1;
        });
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
