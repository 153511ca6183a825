//! Convolutions: each window becomes a column of a matrix (im2col), and a matrix multiplication
//! does the rest.
//!
//! All of HLO's numbers are taken: any sequence of dimensions, strides, padding (also negative),
//! both dilations, reversed windows, groups of features or of batches. Columns are made in pieces
//! that fit the second-level cache. bf16 and f16 are computed in f32 and rounded once. If most
//! positions of the windows see padding, only the others are computed, individually.

use std::ops::Range;

use halflap_hlo::WindowDim;

use super::Buffers;
use super::block;
use super::error::Gap;
use super::formula::{Convolving, TermId};
use super::matrix::{GemmReal, MatrixProduct, MatrixView};
use super::plan::{ArraySlot, KernelStage, Planner, Trouble};
use super::walk::{Transfer, each_index, strides};
use super::window::seen;
use crate::tensor::{DType, element_count};

struct Conv {
    window: Vec<WindowDim>,
    input: ArraySlot,
    kernel: ArraySlot,
    to: ArraySlot,
    types: [DType; 3],
    /// Steps of the input: batch, feature, spatial dimensions.
    batch_by: usize,
    feature_by: usize,
    spatial_by: Vec<usize>,
    spatial: Vec<usize>,
    out_spatial: Vec<usize>,
    out_by: Vec<i64>,
    /// The window's extents.
    sizes: Vec<usize>,
    groups: usize,
    is_batch_grouped: bool,
    /// In each group: input features, output features, batches.
    inputs: usize,
    outputs: usize,
    batches: usize,
    /// The kernel as groups of matrices, and the result from such.
    pack: Transfer,
    unpack: Transfer,
    lens: [usize; 3],
    /// For each dimension what windows see, if that is sparse.
    few: Option<Vec<Vec<Sight>>>,
}

/// A place of a window that sees an element, in one dimension.
#[derive(Clone, Copy)]
struct Sight {
    output: usize,
    place: usize,
    element: usize,
}

/// If less than this part of all positions see an element, only those are computed.
const SPARSE: usize = 8;

/// The elements that the window of an output can reach in one dimension.
fn reached(window: &WindowDim, len: usize, output: usize) -> Range<i64> {
    let start = output as i64 * window.stride as i64 - window.pad_low;
    let end = start + (window.size as i64 - 1) * window.rhs_dilate as i64;
    let dilation = window.lhs_dilate.max(1) as i64;
    let first = start.max(0).div_euclid(dilation) + i64::from(start.max(0) % dilation != 0);
    first..(end.div_euclid(dilation) + 1).min(len as i64)
}

/// What the windows see in each dimension; nothing if that is dense.
fn few_seen(
    numbers: &Convolving,
    spatial: &[usize],
    out_spatial: &[usize],
) -> Option<Vec<Vec<Sight>>> {
    let dims = || numbers.window.iter().zip(spatial.iter().zip(out_spatial));
    let (mut most, mut all) = (1usize, 1usize);
    for (window, (&len, &outputs)) in dims() {
        let count = |output: usize| {
            let Range { start, end } = reached(window, len, output);
            usize::try_from(end - start).unwrap_or(0)
        };
        most = most.saturating_mul((0..outputs).map(count).sum());
        all = all.saturating_mul(outputs.saturating_mul(window.size as usize));
    }
    let seen = |(window, (&len, &outputs)): (&WindowDim, (&usize, &usize))| {
        seen_along(window, len, outputs)
    };
    (most.saturating_mul(SPARSE) < all).then(|| dims().map(seen).collect())
}

/// What the windows see in one dimension.
fn seen_along(window: &WindowDim, len: usize, outputs: usize) -> Vec<Sight> {
    let size = window.size as usize;
    let mut sights = Vec::new();
    for output in 0..outputs {
        let start = output as i64 * window.stride as i64 - window.pad_low;
        for element in reached(window, len, output) {
            let (at, dilation) =
                (element * window.lhs_dilate as i64 - start, window.rhs_dilate.max(1) as i64);
            if at % dilation == 0 {
                let place = (at / dilation) as usize;
                let place = if window.reversed { size - 1 - place } else { place };
                sights.push(Sight { output, place, element: element as usize });
            }
        }
    }
    sights
}

pub(super) fn plan(
    planner: &mut Planner<'_>,
    id: TermId,
    numbers: &Convolving,
) -> Result<ArraySlot, Trouble> {
    let formula = planner.formula;
    let term = formula.term(id);
    let (input, kernel) = (planner.make(term.args[0])?, planner.make(term.args[1])?);
    let terms = [formula.term(term.args[0]), formula.term(term.args[1]), term];
    let types = terms.map(|term| term.dtype);
    if !matches!(block::computed_as(term.dtype), DType::F32 | DType::F64) {
        return Err(planner.fail(id, Gap::OfType(term.dtype)));
    }
    let [input_dims, kernel_dims, out_dims] = terms.map(|term| &term.dims);
    let dims = &numbers.dims;
    let groups = numbers.feature_groups.max(numbers.batch_groups);
    let is_batch_grouped = numbers.batch_groups > 1;
    let is_right = numbers.feature_groups == 1 || numbers.batch_groups == 1;
    let outputs = kernel_dims[dims.kernel_output] / groups;
    if !is_right || outputs * groups != kernel_dims[dims.kernel_output] {
        return Err(planner.fail(id, Gap::Shape));
    }
    let inputs = kernel_dims[dims.kernel_input];
    let input_by = strides(input_dims);
    let out_spatial: Vec<usize> = dims.output_spatial.iter().map(|&dim| out_dims[dim]).collect();
    // The kernel as outputs, inputs, window; the result as outputs, batch, space.
    let order: Vec<usize> =
        [&[dims.kernel_output, dims.kernel_input][..], &dims.kernel_spatial].concat();
    let kernel_by = strides(kernel_dims);
    let packed: Vec<usize> = order.iter().map(|&dim| kernel_dims[dim]).collect();
    let from: Vec<i64> = order.iter().map(|&dim| kernel_by[dim]).collect();
    let computed = block::computed_as(term.dtype).size();
    let pack = Transfer::new(&packed, &from, &strides(&packed), computed);
    let order: Vec<usize> =
        [&[dims.output_feature, dims.output_batch][..], &dims.output_spatial].concat();
    let out_by = strides(out_dims);
    let unpacked: Vec<usize> = order.iter().map(|&dim| out_dims[dim]).collect();
    let to_by: Vec<i64> = order.iter().map(|&dim| out_by[dim]).collect();
    let unpack = Transfer::new(&unpacked, &strides(&unpacked), &to_by, computed);
    let spatial: Vec<usize> = dims.input_spatial.iter().map(|&dim| input_dims[dim]).collect();
    let few = few_seen(numbers, &spatial, &out_spatial);
    let to = planner.target(id);
    planner.add(Conv {
        few,
        window: numbers.window.clone(),
        input,
        kernel,
        to,
        types,
        batch_by: input_by[dims.input_batch] as usize,
        feature_by: input_by[dims.input_feature] as usize,
        spatial_by: dims.input_spatial.iter().map(|&dim| input_by[dim] as usize).collect(),
        spatial,
        out_by: strides(&out_spatial),
        out_spatial,
        sizes: numbers.window.iter().map(|dim| dim.size as usize).collect(),
        groups,
        is_batch_grouped,
        inputs,
        outputs,
        batches: out_dims[dims.output_batch],
        pack,
        unpack,
        lens: terms.map(|term| term.len()),
    });
    Ok(to)
}

impl Conv {
    fn places(&self) -> usize {
        self.window.iter().map(|dim| dim.size as usize).product()
    }

    /// How many rows the matrix of columns has.
    fn depth(&self) -> usize {
        self.inputs * self.places()
    }

    /// How many columns there are.
    fn columns(&self) -> usize {
        self.batches * element_count(&self.out_spatial)
    }

    /// How many columns are made at once.
    fn tile(&self) -> usize {
        const ELEMENTS: usize = 128 * 1024;
        (ELEMENTS / self.depth().max(1)).clamp(64, 4096).min(self.columns().max(1))
    }

    fn size(&self) -> usize {
        block::computed_as(self.types[2]).size()
    }

    /// The parts of local memory: columns, their places, the packed kernel, the result, and both
    /// operands where they are converted.
    fn parts(&self) -> [usize; 7] {
        let size = self.size();
        let wide = |index: usize| {
            if block::widen(self.types[index]).is_some() { self.lens[index] * size } else { 0 }
        };
        // The result may have to be narrowed as well.
        let last = if block::narrow(self.types[2]).is_some() { self.lens[2] * size } else { 0 };
        let bytes = [
            if self.few.is_some() { 0 } else { self.depth() * self.tile() * size },
            if self.few.is_some() { 0 } else { self.tile() * 8 },
            self.lens[1] * size,
            self.lens[2] * size,
            wide(0),
            wide(1),
            last,
        ];
        let mut ends = [0; 7];
        let mut end = 0;
        for (part, bytes) in ends.iter_mut().zip(bytes) {
            end += bytes.next_multiple_of(64);
            *part = end;
        }
        ends
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn compute<T: GemmReal>(&self, buffers: &Buffers<'_>) {
        let ends = self.parts();
        let part = |index: usize| {
            buffers.local().wrapping_add(if index == 0 { 0 } else { ends[index - 1] })
        };
        // SAFETY: parts of local memory of the requested length, arrays as planned.
        unsafe {
            let wide = |index: usize, slot: ArraySlot| match block::widen(self.types[index]) {
                Some(widen) => {
                    widen(&[buffers.read(slot); 3], part(4 + index), self.lens[index]);
                    part(4 + index).cast_const()
                }
                None => buffers.read(slot),
            };
            let (input, kernel) = (wide(0, self.input).cast::<T>(), wide(1, self.kernel));
            self.pack.run(kernel, part(2));
            let (matrix, packed, result) =
                (part(0).cast::<T>(), part(2).cast::<T>(), part(3).cast::<T>());
            if let Some(few) = &self.few {
                let kernel = packed.cast_const();
                self.sum(few, Operands { input, kernel }, result);
                return self.finish(buffers, part(3), part(6));
            }
            let offsets = std::slice::from_raw_parts_mut(part(1).cast::<i64>(), self.tile());
            for group in 0..self.groups {
                let input = input.add(self.group_start(group));
                for first in (0..self.columns()).step_by(self.tile()) {
                    let len = self.tile().min(self.columns() - first);
                    let columns = Columns { first, matrix, offsets: &mut offsets[..len] };
                    self.fill(input, columns);
                    let to = result.add(group * self.outputs * self.columns() + first);
                    let kernel = packed.add(group * self.outputs * self.depth());
                    let by_rows =
                        |start, by: usize| MatrixView { start, row: by as isize, column: 1 };
                    let product = MatrixProduct {
                        rows: self.outputs,
                        columns: len,
                        depth: self.depth(),
                        lhs: by_rows(kernel.cast_const(), self.depth()),
                        rhs: by_rows(matrix.cast_const(), len),
                        to: MatrixView { start: to, row: self.columns() as isize, column: 1 },
                        threads: 1,
                    };
                    product.run();
                }
            }
            self.finish(buffers, part(3), part(6));
        }
    }

    /// Where the input of a group begins.
    fn group_start(&self, group: usize) -> usize {
        match self.is_batch_grouped {
            true => group * self.batches * self.batch_by,
            false => group * self.inputs * self.feature_by,
        }
    }

    /// Adds up what the windows see, and nothing else.
    ///
    /// # Safety
    /// The operands must be the planned ones, the kernel packed, and the result as long as all
    /// columns.
    unsafe fn sum<T: GemmReal>(&self, few: &[Vec<Sight>], operands: Operands<T>, result: *mut T) {
        let Operands { input, kernel } = operands;
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(result, self.lens[2]).fill(T::ZERO) };
        let (space, places) = (element_count(&self.out_spatial), self.places());
        let (sizes_by, counts) =
            (strides(&self.sizes), few.iter().map(Vec::len).collect::<Vec<_>>());
        each_index(&counts, |at| {
            let (mut output, mut place, mut element) = (0, 0, 0);
            for (dim, &number) in at.iter().enumerate() {
                let sight = few[dim][number];
                output += sight.output * self.out_by[dim] as usize;
                place += sight.place * sizes_by[dim] as usize;
                element += sight.element * self.spatial_by[dim];
            }
            for group in 0..self.groups {
                for (feature, batch) in pairs(self.outputs, self.batches) {
                    let row = group * self.outputs + feature;
                    let from = self.group_start(group) + batch * self.batch_by + element;
                    for number in 0..self.inputs {
                        // SAFETY: elements of the operands and of the result.
                        unsafe {
                            let factor = *kernel.add((row * self.inputs + number) * places + place);
                            let to = result.add((row * self.batches + batch) * space + output);
                            *to = *to + factor * *input.add(from + number * self.feature_by);
                        }
                    }
                }
            }
        });
    }

    /// Brings the result into the output's sequence and type.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn finish(&self, buffers: &Buffers<'_>, result: *const u8, aside: *mut u8) {
        let to = buffers.write(self.to);
        // SAFETY: both are as long as the output.
        unsafe {
            match block::narrow(self.types[2]) {
                Some(narrow) => {
                    self.unpack.run(result, aside);
                    narrow(&[aside.cast_const(); 3], to, self.lens[2]);
                }
                None => self.unpack.run(result, to),
            }
        }
    }

    /// Fills columns of the matrix that the kernel is multiplied by.
    ///
    /// # Safety
    /// `input` must be the group's first element, the matrix as long as the columns need.
    unsafe fn fill<T: GemmReal>(&self, input: *const T, columns: Columns<'_, T>) {
        let Columns { first, matrix, offsets } = columns;
        let len = offsets.len();
        let space = element_count(&self.out_spatial).max(1);
        let (by, sizes) = (&self.out_by, &self.sizes);
        let places = self.places();
        let mut number = 0;
        each_index(sizes, |place| {
            for (column, offset) in offsets.iter_mut().enumerate() {
                let (batch, at) = ((first + column) / space, (first + column) % space);
                let spatial = (0..self.spatial.len()).try_fold(0, |sum, dim| {
                    let output = at / by[dim] as usize % self.out_spatial[dim];
                    let window = &self.window[dim];
                    let place = if window.reversed {
                        window.size as usize - 1 - place[dim]
                    } else {
                        place[dim]
                    };
                    Some(
                        sum + seen(window, self.spatial[dim], output, place)?
                            * self.spatial_by[dim],
                    )
                });
                *offset = spatial.map_or(-1, |spatial| (batch * self.batch_by + spatial) as i64);
            }
            for feature in 0..self.inputs {
                let row = matrix.wrapping_add((feature * places + number) * len);
                for (column, &offset) in offsets.iter().enumerate() {
                    // SAFETY: an element of the matrix, and one of the input or none.
                    unsafe {
                        *row.add(column) = if offset < 0 {
                            T::ZERO
                        } else {
                            *input.add(offset as usize + feature * self.feature_by)
                        };
                    }
                }
            }
            number += 1;
        });
    }
}

impl KernelStage for Conv {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match block::computed_as(self.types[2]) {
                DType::F64 => self.compute::<f64>(buffers),
                _ => self.compute::<f32>(buffers),
            }
        }
    }

    fn local_bytes(&self) -> usize {
        self.parts()[6]
    }
}

/// What a convolution multiplies.
struct Operands<T> {
    input: *const T,
    /// Packed.
    kernel: *const T,
}

/// Neighbouring columns of the matrix that a group's kernel is multiplied by.
struct Columns<'c, T> {
    first: usize,
    matrix: *mut T,
    /// For each column, room for where its element of the input is; negative, if there is none.
    offsets: &'c mut [i64],
}

fn pairs(first: usize, second: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..first).flat_map(move |a| (0..second).map(move |b| (a, b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_is_what_windows_see() {
        for (size, stride, pad, lhs, rhs) in
            [(3, 1, 1, 1, 1), (40, 1, 39, 1, 1), (5, 2, 3, 3, 2), (9, 1, -2, 2, 1), (4, 3, 7, 1, 5)]
        {
            for reversed in [false, true] {
                let window = WindowDim {
                    size,
                    stride,
                    pad_low: pad,
                    pad_high: 0,
                    lhs_dilate: lhs,
                    rhs_dilate: rhs,
                    reversed,
                };
                let (len, outputs) = (6, 11);
                let all = (0..outputs)
                    .flat_map(|output| (0..size as usize).map(move |place| (output, place)));
                let mut expected: Vec<_> = all
                    .filter_map(|(output, place)| {
                        let index = if reversed { size as usize - 1 - place } else { place };
                        Some((output, index, seen(&window, len, output, place)?))
                    })
                    .collect();
                let sights = seen_along(&window, len, outputs);
                let mut found: Vec<_> =
                    sights.iter().map(|sight| (sight.output, sight.place, sight.element)).collect();
                expected.sort_unstable();
                found.sort_unstable();
                assert_eq!(found, expected, "{window:?}");
            }
        }
    }
}
