//! Running sums and other running results: windows that reach back to the first element, or
//! ahead to the last one. Each result is made from its neighbour's instead of a window of its own.

use std::ops::Range;

use halflap_hlo::WindowDim;

use super::Buffers;
use super::block::{MOST_READ, computed_as, narrow, widen};
use super::index::load;
use super::plan::{KernelStage, parts_of};
use super::program::fill;
use super::reduce::FastCombine;
use super::window::{WindowArray, is_still};

/// How many elements are computed at once.
const BLOCK: usize = 512;
/// The largest element.
const WIDEST: usize = 16;

/// A dimension along which results accumulate.
pub(super) struct RunningAxis {
    /// How many lines there are before, how long each is, and how many elements each position has.
    lines: usize,
    len: usize,
    tail: usize,
    /// Whether it goes from the last element to the first.
    is_backward: bool,
}

impl RunningAxis {
    /// The dimension, if all windows together are running results of one.
    pub(super) fn of(window: &[WindowDim], dims: &[usize], out: &[usize]) -> Option<RunningAxis> {
        let dim = window.iter().position(|dim| !is_still(dim))?;
        let WindowDim { size, stride, pad_low, pad_high, lhs_dilate, rhs_dilate, .. } = window[dim];
        let reach = size as i64 - 1;
        let is_plain = stride == 1
            && (lhs_dilate, rhs_dilate) == (1, 1)
            && window[dim + 1..].iter().all(is_still)
            && dims[dim] == out[dim]
            && size as usize >= dims[dim];
        let is_backward = (pad_low, pad_high) == (0, reach);
        (is_plain && (is_backward || (pad_low, pad_high) == (reach, 0))).then(|| RunningAxis {
            lines: dims[..dim].iter().product(),
            len: dims[dim],
            tail: dims[dim + 1..].iter().product(),
            is_backward,
        })
    }
}

/// Runs along a dimension. Positions of one element each are combined as a line; of several, one
/// position after the other.
pub(super) struct Cumulate {
    along: RunningAxis,
    array: WindowArray,
    fast: FastCombine,
}

impl Cumulate {
    pub(super) fn new(along: RunningAxis, array: WindowArray, fast: FastCombine) -> Cumulate {
        Cumulate { along, array, fast }
    }

    /// How many blocks the elements of a position make.
    fn blocks(&self) -> usize {
        self.along.tail.div_ceil(BLOCK)
    }

    /// Blocks of local memory: the results so far, what is read, and what is written.
    fn memory(&self, buffers: &Buffers<'_>) -> [*mut u8; 3] {
        [0, 1, 2].map(|block| buffers.local().wrapping_add(block * BLOCK * WIDEST))
    }

    /// Some elements of the array, as they are computed.
    ///
    /// # Safety
    /// The array must have the elements.
    unsafe fn source(&self, buffers: &Buffers<'_>, at: usize, count: usize) -> *const u8 {
        let [_, read, _] = self.memory(buffers);
        let from = buffers.read(self.array.from).wrapping_add(at * self.array.dtype.size());
        let Some(widen) = widen(self.array.dtype) else { return from };
        // SAFETY: the caller's promise, and a block of local memory.
        unsafe { widen(&[from; MOST_READ], read, count) };
        read
    }

    /// Writes results.
    ///
    /// # Safety
    /// `from` must have as many results, and the output the elements.
    unsafe fn give(&self, buffers: &Buffers<'_>, from: *const u8, span: Range<usize>) {
        let (size, count) = (self.array.dtype.size(), span.len());
        let to = buffers.write(self.array.to).wrapping_add(span.start * size);
        // SAFETY: the caller's promise.
        unsafe {
            match narrow(self.array.dtype) {
                Some(narrow) => narrow(&[from; MOST_READ], to, count),
                None => std::ptr::copy_nonoverlapping(from, to, count * size),
            }
        }
    }

    /// Positions of one element, from the first to the last.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn line(&self, buffers: &Buffers<'_>, line: usize) {
        let [sum, _, made] = self.memory(buffers);
        let end = (line + 1) * self.along.len;
        // SAFETY: an element and blocks of local memory, and elements of the line.
        unsafe {
            load(self.array.dtype, buffers.read(self.array.init), sum);
            for at in (line * self.along.len..end).step_by(BLOCK) {
                let count = BLOCK.min(end - at);
                (self.fast.scan)(self.source(buffers, at, count), sum, made, count);
                self.give(buffers, made, at..at + count);
            }
        }
    }

    /// Positions of several elements, of which some are computed, or from the last to the first.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn positions(&self, buffers: &Buffers<'_>, line: usize, elements: Range<usize>) {
        let RunningAxis { len, tail, is_backward, .. } = self.along;
        let ([sum, read, _], count) = (self.memory(buffers), elements.len());
        let size = computed_as(self.array.dtype).size();
        // SAFETY: blocks of local memory, and elements of each position.
        unsafe {
            load(self.array.dtype, buffers.read(self.array.init), read);
            fill(std::slice::from_raw_parts(read, size), sum, count);
            for position in 0..len {
                let position = if is_backward { len - 1 - position } else { position };
                let at = (line * len + position) * tail + elements.start;
                (self.fast.fold)(self.source(buffers, at, count), sum, count);
                self.give(buffers, sum, at..at + count);
            }
        }
    }
}

impl KernelStage for Cumulate {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let RunningAxis { lines, tail, is_backward, .. } = self.along;
        for piece in buffers.share(lines * self.blocks()) {
            let (line, first) = (piece / self.blocks(), piece % self.blocks() * BLOCK);
            // SAFETY: a line, or a part of all its positions, that nobody else writes.
            unsafe {
                match tail == 1 && !is_backward {
                    true => self.line(buffers, line),
                    false => self.positions(buffers, line, first..tail.min(first + BLOCK)),
                }
            }
        }
    }

    fn parts(&self) -> usize {
        let RunningAxis { lines, len, tail, .. } = self.along;
        parts_of(lines * len * tail, lines * self.blocks())
    }

    fn local_bytes(&self) -> usize {
        3 * BLOCK * WIDEST
    }
}
