//! Convolutions without a matrix of windows: each place that a window sees is added to its sum.
//! They are used if windows see padding nearly everywhere, and for depthwise ones, whose groups are
//! too small to be products of matrices.

use std::ops::Range;

use halflap_hlo::WindowDim;

use super::Buffers;
use super::columns::ConvAxis;
use super::matrix::GemmReal;
use super::plan::{ArraySlot, KernelStage, parts_of};
use super::walk::{MOST_DIMS, each_index};
use crate::tensor::DType;

/// A place of a window that sees an element, in one dimension.
#[derive(Clone, Copy)]
pub(super) struct Sight {
    output: usize,
    place: usize,
    element: usize,
}

/// If less than this part of all positions see an element, only those are computed.
const SPARSE: usize = 8;

/// A window in one dimension, with the extents of the input and of the output.
#[derive(Clone, Copy)]
pub(super) struct Extents {
    pub(super) window: WindowDim,
    pub(super) len: usize,
    pub(super) outputs: usize,
}

/// The elements that the window of an output can reach in one dimension.
fn reached(window: &WindowDim, len: usize, output: usize) -> Range<i64> {
    let start = output as i64 * window.stride as i64 - window.pad_low;
    let end = start + (window.size as i64 - 1) * window.rhs_dilate as i64;
    let dilation = window.lhs_dilate.max(1) as i64;
    let first = start.max(0).div_euclid(dilation) + i64::from(start.max(0) % dilation != 0);
    first..(end.div_euclid(dilation) + 1).min(len as i64)
}

/// Whether windows see so little that only that is computed.
pub(super) fn is_sparse(dims: &[Extents]) -> bool {
    let (mut most, mut all) = (1usize, 1usize);
    for Extents { window, len, outputs } in dims {
        let count = |output: usize| {
            let Range { start, end } = reached(window, *len, output);
            usize::try_from(end - start).unwrap_or(0)
        };
        most = most.saturating_mul((0..*outputs).map(count).sum());
        all = all.saturating_mul(outputs.saturating_mul(window.size as usize));
    }
    most.saturating_mul(SPARSE) < all
}

/// What the windows see in one dimension, by outputs.
pub(super) fn seen_along(Extents { window, len, outputs }: &Extents) -> Vec<Sight> {
    let size = window.size as usize;
    let mut sights = Vec::new();
    for output in 0..*outputs {
        let start = output as i64 * window.stride as i64 - window.pad_low;
        for element in reached(window, *len, output) {
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

/// An array of a convolution: where it begins, its steps in the spatial dimensions, and the step
/// from group to group.
pub(super) struct SparseArray {
    pub(super) slot: ArraySlot,
    pub(super) base: isize,
    pub(super) spatial: Vec<isize>,
    pub(super) group: isize,
}

/// A convolution whose places are computed one after the other; its result was cleared before.
pub(super) struct SparseConv {
    pub(super) dtype: DType,
    /// What windows see in each dimension.
    pub(super) sights: Vec<Vec<Sight>>,
    /// The extent of the result in the first one.
    pub(super) rows: usize,
    pub(super) input: SparseArray,
    pub(super) kernel: SparseArray,
    pub(super) to: SparseArray,
    pub(super) groups: usize,
    /// Steps of the input and the output, of the input and the kernel, and of the kernel and the
    /// output.
    pub(super) batches: [ConvAxis; 2],
    pub(super) inputs: [ConvAxis; 2],
    pub(super) outputs: [ConvAxis; 2],
    /// For every sight of the last dimension, its steps in the input, the kernel and the output.
    pub(super) line: Vec<[isize; 3]>,
}

impl SparseConv {
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn sum<T: GemmReal>(&self, buffers: &Buffers<'_>) {
        let start =
            |array: &SparseArray| buffers.read(array.slot).cast::<T>().wrapping_offset(array.base);
        let (input, kernel) = (start(&self.input), start(&self.kernel));
        let to = buffers.write(self.to.slot).cast::<T>();
        let first = self.first_sights(&buffers.share(self.rows));
        // The last dimension is a loop of its own, without these indices.
        let outer = self.sights.len().saturating_sub(1);
        let line = if outer == 0 { first.clone() } else { 0..self.line.len() };
        let mut counts = [0; MOST_DIMS];
        let sights = self.sights[..outer].iter().map(Vec::len);
        counts.iter_mut().zip(sights).for_each(|(count, sights)| *count = sights);
        counts[..outer].first_mut().into_iter().for_each(|count| *count = first.len());
        each_index(&counts[..outer], |at| {
            let (mut from, mut factor, mut sum) = (input, kernel, to);
            for (dim, &number) in at.iter().enumerate() {
                let number = if dim == 0 { first.start + number } else { number };
                let [element, place, output] = self.steps(dim, &self.sights[dim][number]);
                from = from.wrapping_offset(element);
                factor = factor.wrapping_offset(place);
                sum = sum.wrapping_offset(output);
            }
            // SAFETY: elements of the operands and of the result.
            unsafe { self.add_line([from, factor], sum, &self.line[line.clone()]) };
        });
    }

    /// How far a sight is from the beginning of the input, the kernel and the result.
    fn steps(&self, dim: usize, sight: &Sight) -> [isize; 3] {
        let by = |index: usize, array: &SparseArray| index as isize * array.spatial[dim];
        [by(sight.element, &self.input), by(sight.place, &self.kernel), by(sight.output, &self.to)]
    }

    /// The same convolution, with the steps of the last dimension's sights.
    pub(super) fn prepared(mut self) -> SparseConv {
        let last = self.sights.len().checked_sub(1);
        let steps = last.map(|dim| self.sights[dim].iter().map(|s| self.steps(dim, s)).collect());
        // Without dimensions there is one place.
        self.line = steps.unwrap_or_else(|| vec![[0; 3]]);
        self
    }

    /// Adds the products of a line of places.
    ///
    /// # Safety
    /// The pointers and steps must lead to the first elements of the first group.
    unsafe fn add_line<T: GemmReal>(
        &self,
        [from, factor]: [*const T; 2],
        to: *mut T,
        line: &[[isize; 3]],
    ) {
        let counts = [self.outputs, self.batches, self.inputs].map(|axes| axes[0].count);
        for group in 0..if self.is_depthwise() { 1 } else { self.groups as isize } {
            let operands = [
                from.wrapping_offset(group * self.input.group),
                factor.wrapping_offset(group * self.kernel.group),
            ];
            let to = to.wrapping_offset(group * self.to.group);
            // SAFETY: the caller's promise. Loops of known length are unrolled.
            unsafe {
                match counts {
                    _ if self.is_depthwise() => {
                        for &[element, place, output] in line {
                            let (from, factor) = (from.offset(element), factor.offset(place));
                            self.add_features(from, factor, to.offset(output));
                        }
                    }
                    [1, 1, 1] => self.add_places(operands, (to, line), [1, 1, 1]),
                    [1, 1, 2] => self.add_places(operands, (to, line), [1, 1, 2]),
                    [1, 2, 2] => self.add_places(operands, (to, line), [1, 2, 2]),
                    [2, 1, 1] => self.add_places(operands, (to, line), [2, 1, 1]),
                    [2, 1, 2] => self.add_places(operands, (to, line), [2, 1, 2]),
                    [1, 1, 3] => self.add_places(operands, (to, line), [1, 1, 3]),
                    [3, 1, 3] => self.add_places(operands, (to, line), [3, 1, 3]),
                    counts => self.add_places(operands, (to, line), counts),
                }
            }
        }
    }

    /// The sights of some outputs of the first dimension.
    fn first_sights(&self, rows: &Range<usize>) -> Range<usize> {
        let Some(sights) = self.sights.first() else { return 0..1 };
        let before = |row: usize| sights.partition_point(|sight| sight.output < row);
        before(rows.start)..before(rows.end)
    }

    /// Whether each group is a feature, and features lie next to each other.
    pub(super) fn is_depthwise(&self) -> bool {
        let is_single = self.inputs[0].count == 1 && self.outputs[0].count == 1;
        is_single && [&self.input, &self.kernel, &self.to].iter().all(|array| array.group == 1)
    }

    /// Adds the products of one place to the sums of one position, for all features.
    ///
    /// # Safety
    /// The pointers must be the first elements of the first group, and the convolution depthwise.
    unsafe fn add_features<T: GemmReal>(&self, from: *const T, factor: *const T, to: *mut T) {
        let [batch_from, batch_to] = self.batches;
        // SAFETY: the caller's promise.
        let factors = unsafe { std::slice::from_raw_parts(factor, self.groups) };
        for batch in 0..batch_from.count as isize {
            // SAFETY: as above; the result is not an operand.
            let (values, sums) = unsafe {
                let from = from.offset(batch * batch_from.by);
                let to = to.offset(batch * batch_to.by);
                (
                    std::slice::from_raw_parts(from, self.groups),
                    std::slice::from_raw_parts_mut(to, self.groups),
                )
            };
            for ((sum, &value), &factor) in sums.iter_mut().zip(values).zip(factors) {
                *sum = *sum + factor * value;
            }
        }
    }

    /// Adds the products of each place to the sums of its position, for these numbers of output
    /// features, batches and input features.
    ///
    /// # Safety
    /// As for [`SparseConv::add_line`], for one group.
    #[inline(always)]
    unsafe fn add_places<T: GemmReal>(
        &self,
        [from, factor]: [*const T; 2],
        (to, line): (*mut T, &[[isize; 3]]),
        [outputs, batches, inputs]: [usize; 3],
    ) {
        let [[batch_from, batch_to], [input_from, input_by], [output_by, output_to]] =
            [self.batches, self.inputs, self.outputs].map(|axes| axes.map(|axis| axis.by));
        for &[element, place, position] in line {
            for output in 0..outputs as isize {
                for batch in 0..batches as isize {
                    // SAFETY: the caller's promise.
                    unsafe {
                        let from = from.offset(element + batch * batch_from);
                        let factor = factor.offset(place + output * output_by);
                        let to = to.offset(position + output * output_to + batch * batch_to);
                        let mut sum = *to;
                        for input in 0..inputs as isize {
                            let factor = *factor.offset(input * input_by);
                            sum = sum + factor * *from.offset(input * input_from);
                        }
                        *to = sum;
                    }
                }
            }
        }
    }
}

impl KernelStage for SparseConv {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self.dtype {
                DType::F64 => self.sum::<f64>(buffers),
                _ => self.sum::<f32>(buffers),
            }
        }
    }

    /// Outputs of the first dimension are shared out.
    fn parts(&self) -> usize {
        let [batches, inputs, outputs] =
            [self.batches, self.inputs, self.outputs].map(|axes| axes[0].count);
        let sights: usize = self.sights.iter().map(Vec::len).product();
        let work = sights * self.groups * batches * inputs * outputs;
        if self.sights.is_empty() { 1 } else { parts_of(work, self.rows) }
    }
}

/// Sets all bytes of an array to zero.
pub(super) struct ClearStage {
    pub(super) to: ArraySlot,
    pub(super) bytes: usize,
}

impl KernelStage for ClearStage {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let share = buffers.share(self.bytes);
        // SAFETY: the array has as many bytes.
        unsafe { buffers.write(self.to).add(share.start).write_bytes(0, share.len()) };
    }

    fn parts(&self) -> usize {
        parts_of(self.bytes / 4, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::window::seen;
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
                let sights = seen_along(&Extents { window, len, outputs });
                let mut found: Vec<_> =
                    sights.iter().map(|sight| (sight.output, sight.place, sight.element)).collect();
                expected.sort_unstable();
                found.sort_unstable();
                assert_eq!(found, expected, "{window:?}");
            }
        }
    }
}
