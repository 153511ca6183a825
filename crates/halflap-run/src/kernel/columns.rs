//! The matrix by which a convolution multiplies its kernel (im2col): a row for each place of the
//! window and input feature, a column for each batch and position of the output.
//!
//! Elements that are neighbours in the input become neighbours in the matrix, so that whole lines
//! are copied: features of one position, batches of one position, or neighbouring positions.

use std::ops::Range;

use halflap_hlo::WindowDim;

use super::matrix::{GemmReal, MatrixView};
use super::walk::{MOST_DIMS, Stepped, copy_row, each_index};
use super::window::seen;

/// The longest column that is made as a whole: sixteen of doubles are 64 MiB.
const LONGEST_COLUMN: usize = 512 * 1024;

/// A dimension: how many indices it has, and the step between their elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConvAxis {
    pub(super) count: usize,
    pub(super) by: isize,
}

impl ConvAxis {
    /// The step of several dimensions that are walked as one; `None` where there is none.
    pub(super) fn joined(axes: &[ConvAxis]) -> Option<isize> {
        let mut wide = axes.iter().filter(|axis| axis.count != 1);
        let Some(mut last) = wide.next() else { return Some(1) };
        for axis in wide {
            if last.by != axis.by * axis.count as isize {
                return None;
            }
            last = axis;
        }
        Some(last.by)
    }

    /// Where an element is whose number counts all indices, the last fastest.
    pub(super) fn place(axes: &[ConvAxis], mut number: usize) -> isize {
        let mut place = 0;
        for axis in axes.iter().rev() {
            place += (number % axis.count) as isize * axis.by;
            number /= axis.count;
        }
        place
    }
}

/// A spatial dimension of a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    pub(super) window: WindowDim,
    /// The extent of the input.
    pub(super) len: usize,
    /// The extent of the output.
    pub(super) outputs: usize,
    /// The step of the input.
    pub(super) by: isize,
}

impl Space {
    /// A dimension that does nothing.
    pub(super) const NONE: Space = Space {
        window: WindowDim {
            size: 1,
            stride: 1,
            pad_low: 0,
            pad_high: 0,
            lhs_dilate: 1,
            rhs_dilate: 1,
            reversed: false,
        },
        len: 1,
        outputs: 1,
        by: 0,
    };

    pub(super) fn size(&self) -> usize {
        self.window.size as usize
    }

    /// Where the element is that a place of an output's window sees.
    pub(super) fn seen(&self, output: usize, place: usize) -> Option<isize> {
        seen(&self.window, self.len, output, place).map(|index| index as isize * self.by)
    }

    /// Whether windows see every element once and nothing else.
    pub(super) fn is_plain(&self) -> bool {
        let WindowDim { size, stride, pad_low, lhs_dilate, .. } = self.window;
        size == 1 && stride == 1 && pad_low == 0 && lhs_dilate == 1 && self.outputs == self.len
    }

    /// The outputs of a range whose windows see an element at a place, or a gap between two
    /// elements of a dilated input.
    fn seeing(&self, place: usize, outputs: &Range<usize>) -> Range<usize> {
        let WindowDim { stride, pad_low, lhs_dilate, rhs_dilate, .. } = self.window;
        let stride = stride as i64;
        let before = pad_low - place as i64 * rhs_dilate as i64;
        let extent = (self.len as i64 - 1) * lhs_dilate as i64 + 1;
        let up = |value: i64| value.div_euclid(stride) + i64::from(value.rem_euclid(stride) != 0);
        let clamp = |value: i64| value.clamp(outputs.start as i64, outputs.end as i64) as usize;
        let (first, end) = (clamp(up(before)), clamp(up(before + extent.max(0))));
        first..end.max(first)
    }

    /// The first of those that sees an element. They repeat after `lhs_dilate` outputs at most.
    fn first_seeing(&self, place: usize, outputs: &Range<usize>) -> Option<usize> {
        let mut outputs = outputs.clone().take(self.window.lhs_dilate as usize);
        outputs.find(|&output| self.seen(output, place).is_some())
    }

    /// The next neighbouring outputs of a range whose windows see an element at a place.
    pub(super) fn next_seeing(&self, place: usize, outputs: Range<usize>) -> Option<Range<usize>> {
        let seeing = self.seeing(place, &outputs);
        let first = self.first_seeing(place, &seeing)?;
        Some(if self.window.lhs_dilate == 1 { seeing } else { first..first + 1 })
    }

    /// The places of an output's window that see an element, if neither is dilated.
    pub(super) fn places(&self, output: usize) -> Range<usize> {
        let start = output as i64 * self.window.stride as i64 - self.window.pad_low;
        let clamp = |value: i64| value.clamp(0, self.window.size as i64) as usize;
        let (first, end) = (clamp(-start), clamp(self.len as i64 - start));
        first..end.max(first)
    }
}

/// What lies next to each other in the input and in the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// The features of a position, and perhaps those of its neighbour: columns are contiguous,
    /// their rows are places and then features.
    Features,
    /// The batches of a position: rows are contiguous, columns are positions and then batches.
    Batches,
    /// Positions in the last dimension: rows are contiguous, columns are batches and then
    /// positions.
    Positions,
}

/// A part of the matrix.
pub(super) struct MatrixPart {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
}

/// Some columns of one of its rows.
struct MatrixRow<'a> {
    row: usize,
    columns: &'a Range<usize>,
}

/// A place of the windows of neighbouring outputs in one dimension.
struct Neighbours {
    place: usize,
    outputs: Range<usize>,
}

/// Everything that the matrix depends on.
#[derive(Clone, Debug)]
pub(super) struct ConvWindows {
    /// The last has the smallest step. There is at least one.
    pub(super) spaces: Vec<Space>,
    /// The extents of the window in all dimensions but the last.
    pub(super) outer: Vec<usize>,
    pub(super) features: ConvAxis,
    pub(super) batches: ConvAxis,
    pub(super) line: Line,
    /// Whether rows are places and then features instead of features and then places.
    pub(super) is_feature_last: bool,
}

impl ConvWindows {
    /// The kind of the longest lines; there are none where elements are not neighbours in the
    /// input.
    pub(super) fn longest_line(&self) -> Line {
        let last = self.last();
        let of = |axis: ConvAxis, run: usize| if axis.by == 1 { run } else { 0 };
        let positions = of(ConvAxis { count: last.outputs, by: last.by }, last.outputs);
        let joined = if self.joins_places() { last.size() } else { 1 };
        // Columns of features are made as a whole, so they must not be too long.
        let features = match self.depth() <= LONGEST_COLUMN {
            true => of(self.features, self.features.count * joined),
            false => 0,
        };
        let batches = of(self.batches, self.batches.count);
        match positions >= features && positions >= batches {
            true => Line::Positions,
            false if features >= batches => Line::Features,
            false => Line::Batches,
        }
    }

    fn last(&self) -> &Space {
        &self.spaces[self.spaces.len() - 1]
    }

    /// Whether the features of neighbouring places are one line of the input.
    fn joins_places(&self) -> bool {
        let Space { window, by, .. } = self.last();
        let is_dense = window.rhs_dilate == 1 && window.lhs_dilate == 1;
        is_dense && self.features.by == 1 && *by == self.features.count as isize
    }

    fn places(&self) -> usize {
        self.spaces.iter().map(Space::size).product()
    }

    /// How many rows the matrix has.
    pub(super) fn depth(&self) -> usize {
        self.features.count * self.places()
    }

    /// The steps of a part of the matrix.
    pub(super) fn view<T>(&self, start: *const T, part: &MatrixPart) -> MatrixView<*const T> {
        match self.line {
            Line::Features => MatrixView { start, row: 1, column: part.rows.len() as isize },
            _ => MatrixView { start, row: part.columns.len() as isize, column: 1 },
        }
    }

    /// Fills a part of the matrix. Columns that are contiguous are filled as a whole.
    ///
    /// # Safety
    /// `input` must be the first element of the group, and `matrix` as long as the part.
    pub(super) unsafe fn fill<T: GemmReal>(
        &self,
        input: *const T,
        part: &MatrixPart,
        matrix: *mut T,
    ) {
        if self.line == Line::Features {
            for (number, column) in part.columns.clone().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { self.fill_column(input, column, matrix.add(number * self.depth())) };
            }
            return;
        }
        for (number, row) in part.rows.clone().enumerate() {
            let to = matrix.wrapping_add(number * part.columns.len());
            // SAFETY: the caller's promise.
            unsafe { self.fill_row(input, MatrixRow { row, columns: &part.columns }, to) };
        }
    }

    /// The indices of a position; what is left of the number is returned.
    fn position(&self, mut number: usize, at: &mut [usize; MOST_DIMS]) -> usize {
        for (dim, space) in self.spaces.iter().enumerate().rev() {
            at[dim] = number % space.outputs;
            number /= space.outputs;
        }
        number
    }

    /// Where the element is that places of windows see in some dimensions.
    fn seen(&self, dims: Range<usize>, output: &[usize], place: &[usize]) -> Option<isize> {
        let mut dims = dims;
        dims.try_fold(0, |sum, dim| Some(sum + self.spaces[dim].seen(output[dim], place[dim])?))
    }

    /// # Safety
    /// See [`ConvWindows::fill`].
    unsafe fn fill_column<T: GemmReal>(&self, input: *const T, column: usize, to: *mut T) {
        let mut at = [0; MOST_DIMS];
        let batch = self.position(column, &mut at);
        let (dim, last) = (self.spaces.len() - 1, self.last());
        let from = input.wrapping_offset(batch as isize * self.batches.by);
        let features = self.features;
        let joined = self.joins_places().then(|| last.places(at[dim]));
        let mut to = to;
        each_index(&self.outer, |place| {
            let from = self.seen(0..dim, &at, place).map(|offset| from.wrapping_offset(offset));
            // SAFETY: a line of the matrix, and elements of the input that windows see.
            unsafe {
                match (from, &joined) {
                    (None, _) => clear(to, last.size() * features.count),
                    (Some(from), Some(seen)) => {
                        let [before, len] = [seen.start, seen.len()].map(|n| n * features.count);
                        let after = (last.size() - seen.end) * features.count;
                        clear(to, before);
                        if let Some(offset) = last.seen(at[dim], seen.start).filter(|_| len > 0) {
                            let from = Stepped { start: from.wrapping_offset(offset), by: 1 };
                            copy_row(from, Stepped { start: to.add(before), by: 1 }, len);
                        }
                        clear(to.add(before + len), after);
                    }
                    (Some(from), None) => {
                        for place in 0..last.size() {
                            let start =
                                last.seen(at[dim], place).map(|by| from.wrapping_offset(by));
                            let to = to.add(place * features.count);
                            copy_or_clear(start, features.by, to, features.count);
                        }
                    }
                }
                to = to.add(last.size() * features.count);
            }
        });
    }

    /// # Safety
    /// See [`ConvWindows::fill`].
    unsafe fn fill_row<T: GemmReal>(&self, input: *const T, part: MatrixRow<'_>, to: *mut T) {
        let MatrixRow { row, columns } = part;
        let (mut place, mut at) = ([0; MOST_DIMS], [0; MOST_DIMS]);
        let places = self.places();
        let (feature, mut number) = match self.is_feature_last {
            true => (row % self.features.count, row / self.features.count),
            false => (row / places, row % places),
        };
        for (dim, space) in self.spaces.iter().enumerate().rev() {
            place[dim] = number % space.size();
            number /= space.size();
        }
        let from = input.wrapping_offset(feature as isize * self.features.by);
        let (dim, last) = (self.spaces.len() - 1, self.last());
        let mut column = columns.start;
        while column < columns.end {
            let to = to.wrapping_add(column - columns.start);
            // SAFETY: a line of the matrix, and elements of the input that windows see.
            column += unsafe {
                match self.line {
                    Line::Batches => {
                        let (position, batch) =
                            (column / self.batches.count, column % self.batches.count);
                        let len = (self.batches.count - batch).min(columns.end - column);
                        self.position(position, &mut at);
                        let start = self.seen(0..dim + 1, &at, &place).map(|offset| {
                            from.wrapping_offset(offset + batch as isize * self.batches.by)
                        });
                        copy_or_clear(start, self.batches.by, to, len);
                        len
                    }
                    _ => {
                        let batch = self.position(column, &mut at);
                        let len = (last.outputs - at[dim]).min(columns.end - column);
                        let start = self.seen(0..dim, &at, &place).map(|offset| {
                            from.wrapping_offset(offset + batch as isize * self.batches.by)
                        });
                        let outputs = at[dim]..at[dim] + len;
                        let seen = Neighbours { place: place[dim], outputs };
                        match start {
                            Some(start) => last.fill(start, seen, to),
                            None => clear(to, len),
                        }
                        len
                    }
                }
            };
        }
    }
}

impl Space {
    /// What the windows of neighbouring outputs see at a place.
    ///
    /// # Safety
    /// `from` must be the first element of a line of the input, `to` as long as the outputs.
    unsafe fn fill<T: GemmReal>(&self, from: *const T, seen: Neighbours, to: *mut T) {
        let Neighbours { place, outputs } = seen;
        let seeing = self.seeing(place, &outputs);
        let first = self.first_seeing(place, &seeing).unwrap_or(seeing.end);
        let (stride, dilation) = (self.window.stride as usize, self.window.lhs_dilate as usize);
        // Every so many outputs see an element.
        let period = (1..dilation).find(|by| by * stride % dilation == 0).unwrap_or(dilation);
        let (before, count) = (first - outputs.start, (seeing.end - first).div_ceil(period));
        // SAFETY: the caller's promise.
        unsafe {
            clear(to, if period == 1 { before } else { outputs.len() });
            if let Some(place) = self.seen(first, place).filter(|_| count > 0) {
                let by = (stride * period / dilation) as isize * self.by;
                let to = Stepped { start: to.add(before), by: period as isize };
                copy_row(Stepped { start: from.offset(place), by }, to, count);
            }
            if period == 1 {
                clear(to.add(before + count), outputs.len() - before - count);
            }
        }
    }
}

/// # Safety
/// There must be as many elements.
unsafe fn clear<T: GemmReal>(to: *mut T, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(to, len).fill(T::ZERO) };
}

/// # Safety
/// Both must have as many elements.
unsafe fn copy_or_clear<T: GemmReal>(from: Option<*const T>, by: isize, to: *mut T, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match from {
            Some(start) => copy_row(Stepped { start, by }, Stepped { start: to, by: 1 }, len),
            None => clear(to, len),
        }
    }
}
