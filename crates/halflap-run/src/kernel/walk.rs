//! How elements are found: maps from a loop's indices to an array's, and copies along them.

use std::ops::Range;

use crate::tensor::element_count;

/// The maximum number of dimensions of a loop after splits for reshapes.
pub(super) const MOST_DIMS: usize = 24;

/// One index of an array as a function of a loop's: `base` plus a multiple of each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct IndexRow {
    pub(super) base: i64,
    pub(super) by: Vec<i64>,
}

impl IndexRow {
    pub(super) fn constant(base: i64, loops: usize) -> IndexRow {
        IndexRow { base, by: vec![0; loops] }
    }

    pub(super) fn scaled(&self, by: i64, plus: i64) -> IndexRow {
        IndexRow { base: self.base * by + plus, by: self.by.iter().map(|each| each * by).collect() }
    }

    pub(super) fn add(&mut self, other: &IndexRow, times: i64) {
        self.base += other.base * times;
        self.by.iter_mut().zip(&other.by).for_each(|(sum, each)| *sum += each * times);
    }
}

/// All indices of an array as functions of a loop's.
pub(super) type Map = Vec<IndexRow>;

/// How far apart elements are whose index differs by one, in each dimension.
pub(super) fn strides(dims: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim].max(1) as i64;
    }
    strides
}

/// Where in a dense array a map leads.
pub(super) fn linear(map: &Map, dims: &[usize], loops: usize) -> IndexRow {
    let mut row = IndexRow::constant(0, loops);
    map.iter().zip(strides(dims)).for_each(|(index, stride)| row.add(index, stride));
    row
}

/// Cuts two lists of dimensions with the same product into the shortest pieces with the same
/// products. Each piece is a range of either.
pub(super) fn common_pieces(
    a: &[usize],
    b: &[usize],
) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut pieces = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        let (start_i, start_j) = (i, j);
        let (mut left, mut right) = (1, 1);
        loop {
            if left == right && (i > start_i || j > start_j) {
                break;
            }
            if left <= right && i < a.len() {
                left *= a[i];
                i += 1;
            } else if j < b.len() {
                right *= b[j];
                j += 1;
            } else if i < a.len() {
                left *= a[i];
                i += 1;
            } else {
                break;
            }
        }
        pieces.push((start_i..i, start_j..j));
    }
    pieces
}

/// A copy between two places in memory along all indices of some dimensions.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    dims: Vec<usize>,
    from: Vec<isize>,
    to: Vec<isize>,
    /// How many bytes an element has.
    size: usize,
}

impl Transfer {
    /// Steps are in elements.
    pub(super) fn new(dims: &[usize], from: &[i64], to: &[i64], size: usize) -> Transfer {
        let mut kept: Vec<(usize, isize, isize)> = Vec::new();
        for ((&dim, &from), &to) in dims.iter().zip(from).zip(to) {
            if dim == 1 {
                continue;
            }
            let (from, to) = (from as isize, to as isize);
            match kept.last_mut() {
                // Two dimensions that are contiguous in both.
                Some(last) if last.1 == from * dim as isize && last.2 == to * dim as isize => {
                    *last = (last.0 * dim, from, to);
                }
                _ => kept.push((dim, from, to)),
            }
        }
        if kept.is_empty() {
            kept.push((1, 1, 1));
        }
        // The dimension written contiguously comes last, as the innermost loop.
        let mut transfer = Transfer {
            dims: kept.iter().map(|each| each.0).collect(),
            from: kept.iter().map(|each| each.1).collect(),
            to: kept.iter().map(|each| each.2).collect(),
            size,
        };
        if dims.contains(&0) {
            transfer.dims[0] = 0;
        }
        transfer
    }

    /// How many elements are copied.
    pub(super) fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The number of iterations of the outermost loop.
    pub(super) fn slices(&self) -> usize {
        self.dims[0]
    }

    /// Copies for some iterations of the outermost loop.
    ///
    /// # Safety
    /// See [`Transfer::run`].
    pub(super) unsafe fn run_slices(
        &self,
        from: *const u8,
        to: *mut u8,
        slices: std::ops::Range<usize>,
    ) {
        let mut part = self.clone();
        part.dims[0] = slices.len();
        let offset = |step: isize| slices.start as isize * step * self.size as isize;
        // SAFETY: elements of the same places; the caller's promise.
        unsafe { part.run(from.offset(offset(self.from[0])), to.offset(offset(self.to[0]))) }
    }

    /// Copies.
    ///
    /// # Safety
    /// Both places must hold every element that the dimensions and steps lead to, aligned to their
    /// size (at most 8), and must not overlap.
    pub(super) unsafe fn run(&self, from: *const u8, to: *mut u8) {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self.size {
                1 => self.typed::<u8>(from.cast(), to.cast()),
                2 => self.typed::<u16>(from.cast(), to.cast()),
                4 => self.typed::<u32>(from.cast(), to.cast()),
                8 => self.typed::<u64>(from.cast(), to.cast()),
                _ => self.typed::<[u64; 2]>(from.cast(), to.cast()),
            }
        }
    }

    /// # Safety
    /// See [`Transfer::run`].
    unsafe fn typed<T: Copy>(&self, from: *const T, to: *mut T) {
        if self.dims.contains(&0) {
            return;
        }
        let rank = self.dims.len();
        let last = rank - 1;
        // Where what is read one after the other is another dimension than what is written so, both
        // are walked in squares, which keep to a few cache lines of either.
        let reader = (0..last).rev().find(|&dim| self.from[dim] == 1 && self.dims[dim] >= 4);
        let paired = reader.filter(|_| {
            self.from[last].unsigned_abs() > 1 && self.to[last] == 1 && self.dims[last] >= 4
        });
        // Rows that are written one behind the other are copied together.
        let is_behind = |dim: &usize| self.to[*dim] == self.dims[last] as isize;
        let joined = last.checked_sub(1).filter(is_behind);
        let joined = joined.filter(|_| paired.is_none() && self.to[last] == 1);
        let mut outer = [0usize; MOST_DIMS];
        loop {
            let walked = (0..last).filter(|&dim| Some(dim) != paired && Some(dim) != joined);
            let (mut a, mut b) = (0isize, 0isize);
            for dim in walked.clone() {
                a += outer[dim] as isize * self.from[dim];
                b += outer[dim] as isize * self.to[dim];
            }
            // SAFETY: the places of the first element of this row, rows or plane; the caller's
            // promise.
            unsafe {
                match (paired, joined) {
                    (Some(dim), _) => self.plane(dim, from.offset(a), to.offset(b)),
                    (_, Some(dim)) => {
                        let by = [self.from[dim], self.from[last]];
                        let rows = CopiedRows { count: self.dims[dim], len: self.dims[last], by };
                        rows.copy(from.offset(a), to.offset(b));
                    }
                    _ => copy_row(
                        Stepped { start: from.offset(a), by: self.from[last] },
                        Stepped { start: to.offset(b), by: self.to[last] },
                        self.dims[last],
                    ),
                }
            }
            let mut dims = walked.rev();
            loop {
                let Some(dim) = dims.next() else { return };
                outer[dim] += 1;
                if outer[dim] < self.dims[dim] {
                    break;
                }
                outer[dim] = 0;
            }
        }
    }

    /// Transposes a plane, square by square.
    ///
    /// # Safety
    /// See [`Transfer::run`].
    unsafe fn plane<T: Copy>(&self, dim: usize, from: *const T, to: *mut T) {
        const SIDE: usize = 16;
        let last = self.dims.len() - 1;
        let (rows, columns) = (self.dims[dim], self.dims[last]);
        for row in (0..rows).step_by(SIDE) {
            for column in (0..columns).step_by(SIDE) {
                for i in row..rows.min(row + SIDE) {
                    let (i_from, i_to) = (i as isize, i as isize * self.to[dim]);
                    for j in column..columns.min(column + SIDE) {
                        // SAFETY: an element of the plane; the caller's promise.
                        unsafe {
                            *to.offset(i_to + j as isize) =
                                *from.offset(i_from + j as isize * self.from[last])
                        }
                    }
                }
            }
        }
    }
}

/// A row in memory: its first element, and the step from each to the next.
pub(super) struct Stepped<P> {
    pub(super) start: P,
    pub(super) by: isize,
}

/// # Safety
/// Both rows must have `len` elements and must not overlap.
pub(super) unsafe fn copy_row<T: Copy>(from: Stepped<*const T>, to: Stepped<*mut T>, len: usize) {
    let (Stepped { start: from, by: from_by }, Stepped { start: to, by: to_by }) = (from, to);
    // SAFETY: the caller's promise.
    unsafe {
        match (from_by, to_by) {
            (1, 1) if len < 16 => (0..len).for_each(|i| *to.add(i) = *from.add(i)),
            (1, 1) => std::ptr::copy_nonoverlapping(from, to, len),
            (0, 1) => std::slice::from_raw_parts_mut(to, len).fill(*from),
            // Known steps are read as vectors.
            (2, 1) => copy_every::<T, 2>(from, to, len),
            (4, 1) => copy_every::<T, 4>(from, to, len),
            _ => (0..len as isize).for_each(|i| *to.offset(i * to_by) = *from.offset(i * from_by)),
        }
    }
}

/// # Safety
/// As for [`copy_row`].
unsafe fn copy_every<T: Copy, const STEP: usize>(from: *const T, to: *mut T, len: usize) {
    // SAFETY: the caller's promise; the last element is the last that is read.
    unsafe {
        let from = std::slice::from_raw_parts(from, (len * STEP).saturating_sub(STEP - 1));
        let to = std::slice::from_raw_parts_mut(to, len);
        let (chunks, last) = from.as_chunks::<STEP>();
        to.iter_mut().zip(chunks).for_each(|(to, chunk)| *to = chunk[0]);
        if let (Some(to), Some(from)) = (to.last_mut(), last.first()) {
            *to = *from;
        }
    }
}

/// CopiedRows that are read with some steps, and written one behind the other.
#[derive(Clone, Copy)]
struct CopiedRows {
    count: usize,
    len: usize,
    /// The steps from row to row, and within a row.
    by: [isize; 2],
}

impl CopiedRows {
    /// # Safety
    /// `from` must hold all elements that the steps lead to, `to` as many, and they must not
    /// overlap.
    #[inline]
    unsafe fn copy<T: Copy>(self, from: *const T, to: *mut T) {
        // SAFETY: the caller's promise.
        unsafe {
            // Short rows of a known length are copied without a loop.
            match self.len {
                1 => copy_row(
                    Stepped { start: from, by: self.by[0] },
                    Stepped { start: to, by: 1 },
                    self.count,
                ),
                2 => self.copy_short::<T, 2>(from, to),
                3 => self.copy_short::<T, 3>(from, to),
                4 => self.copy_short::<T, 4>(from, to),
                8 => self.copy_short::<T, 8>(from, to),
                16 => self.copy_short::<T, 16>(from, to),
                len => (0..self.count).for_each(|row| {
                    let from = from.offset(row as isize * self.by[0]);
                    let to = Stepped { start: to.add(row * len), by: 1 };
                    copy_row(Stepped { start: from, by: self.by[1] }, to, len);
                }),
            }
        }
    }

    /// # Safety
    /// As for [`CopiedRows::copy`], and rows must have this length.
    #[inline]
    unsafe fn copy_short<T: Copy, const LEN: usize>(self, from: *const T, to: *mut T) {
        let [by, within] = self.by;
        // SAFETY: the caller's promise.
        let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<[T; LEN]>(), self.count) };
        for (row, to) in to.iter_mut().enumerate() {
            let from = from.wrapping_offset(row as isize * by);
            // SAFETY: the elements of a row; the caller's promise.
            *to = unsafe {
                match within {
                    1 => *from.cast::<[T; LEN]>(),
                    0 => [*from; LEN],
                    _ => std::array::from_fn(|i| *from.offset(i as isize * within)),
                }
            };
        }
    }
}

/// Reads elements of a loop, in the loop's order, into one block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LoopWalk {
    pub(super) dims: Vec<usize>,
    pub(super) base: i64,
    pub(super) by: Vec<i64>,
}

impl LoopWalk {
    pub(super) fn is_dense(&self) -> bool {
        self.by == strides(&self.dims)
    }

    /// Whether consecutive reads are far apart while another loop goes along the memory: a block
    /// would touch a cache line for each element, and the next block the same ones again.
    pub(super) fn is_across(&self) -> bool {
        const FEW: usize = 8;
        let Some((&by, outer)) = self.by.split_last() else { return false };
        let is_long = |dim: usize| self.dims[dim] >= FEW;
        let is_far = by.unsigned_abs() >= 16 && is_long(outer.len());
        is_far
            && element_count(&self.dims) >= 4096
            && (0..outer.len()).any(|dim| outer[dim] == 1 && is_long(dim))
    }

    pub(super) fn is_scalar(&self) -> bool {
        self.by.iter().all(|&by| by == 0)
    }

    /// # Safety
    /// `from` must hold every element that the walk leads to, `to` as many as the range has.
    #[inline]
    pub(super) unsafe fn read<T: Copy>(&self, from: *const T, to: *mut T, span: Range<usize>) {
        let (rank, len) = (self.dims.len(), span.len());
        let mut index = [0usize; MOST_DIMS];
        let mut rest = span.start;
        let mut place = self.base as isize;
        for dim in (0..rank).rev() {
            index[dim] = rest % self.dims[dim];
            rest /= self.dims[dim];
            place += index[dim] as isize * self.by[dim] as isize;
        }
        let (inner, by) = match rank {
            0 => (1, 0),
            _ => (self.dims[rank - 1], self.by[rank - 1] as isize),
        };
        let mut done = 0;
        let mut at = if rank == 0 { 0 } else { index[rank - 1] };
        while done < len {
            let run = (inner - at).min(len - done);
            let rows = match rank > 1 && at == 0 {
                true => ((len - done) / inner).min(self.dims[rank - 2] - index[rank - 2]),
                false => 0,
            };
            // SAFETY: a run of the innermost dimension, or of the two innermost ones; the caller's
            // promise.
            unsafe {
                let (from, to) = (from.offset(place), to.add(done));
                if rows > 1 {
                    let by = [self.by[rank - 2] as isize, by];
                    CopiedRows { count: rows, len: inner, by }.copy(from, to);
                } else {
                    copy_row(Stepped { start: from, by }, Stepped { start: to, by: 1 }, run);
                }
            }
            done += run.max(rows * inner);
            if done >= len {
                return;
            }
            place -= at as isize * by;
            at = 0;
            // The last of several rows is left like a single one.
            let skipped = rows.saturating_sub(1);
            if skipped > 0 {
                index[rank - 2] += skipped;
                place += skipped as isize * self.by[rank - 2] as isize;
            }
            for dim in (0..rank.saturating_sub(1)).rev() {
                index[dim] += 1;
                place += self.by[dim] as isize;
                if index[dim] < self.dims[dim] {
                    break;
                }
                place -= (self.dims[dim] as i64 * self.by[dim]) as isize;
                index[dim] = 0;
            }
        }
    }

    /// Writes elements of a block, which are those of the loop's range, to their places.
    ///
    /// # Safety
    /// As for [`LoopWalk::read`], in the other direction; elements have this many bytes.
    pub(super) unsafe fn write(
        &self,
        (from, to): (*const u8, *mut u8),
        size: usize,
        span: Range<usize>,
    ) {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match size {
                1 => self.write_typed::<u8>(from, to, span),
                2 => self.write_typed::<u16>(from.cast(), to.cast(), span),
                4 => self.write_typed::<u32>(from.cast(), to.cast(), span),
                8 => self.write_typed::<u64>(from.cast(), to.cast(), span),
                _ => self.write_typed::<[u64; 2]>(from.cast(), to.cast(), span),
            }
        }
    }

    /// # Safety
    /// See [`LoopWalk::write`].
    unsafe fn write_typed<T: Copy>(&self, from: *const T, to: *mut T, span: Range<usize>) {
        let (rank, len) = (self.dims.len(), span.len());
        let (inner, by) = match rank {
            0 => (1, 1),
            _ => (self.dims[rank - 1], self.by[rank - 1] as isize),
        };
        let mut index = [0usize; MOST_DIMS];
        let mut rest = span.start / inner;
        let mut row = self.base as isize;
        for dim in (0..rank.saturating_sub(1)).rev() {
            index[dim] = rest % self.dims[dim];
            rest /= self.dims[dim];
            row += index[dim] as isize * self.by[dim] as isize;
        }
        let (mut at, mut done) = (span.start % inner, 0);
        while done < len {
            let run = (inner - at).min(len - done);
            // SAFETY: a run of the innermost dimension; the caller's promise.
            unsafe {
                let to = Stepped { start: to.offset(row + at as isize * by), by };
                copy_row(Stepped { start: from.add(done), by: 1 }, to, run);
            }
            (at, done) = (0, done + run);
            for dim in (0..rank.saturating_sub(1)).rev() {
                index[dim] += 1;
                row += self.by[dim] as isize;
                if index[dim] < self.dims[dim] {
                    break;
                }
                row -= (self.dims[dim] as i64 * self.by[dim]) as isize;
                index[dim] = 0;
            }
        }
    }

    /// Writes the loop's own numbers `base + sum of by * index` instead of elements.
    ///
    /// # Safety
    /// `to` must hold as many elements as the range has.
    pub(super) unsafe fn count(&self, to: *mut i64, span: Range<usize>) {
        let len = span.len();
        let (inner, by) = match self.dims.len() {
            0 => (1, 0),
            rank => (self.dims[rank - 1], self.by[rank - 1]),
        };
        let mut done = 0;
        while done < len {
            let mut rest = span.start + done;
            let at = rest % inner;
            let mut value = self.base;
            for dim in (0..self.dims.len()).rev() {
                value += (rest % self.dims[dim]) as i64 * self.by[dim];
                rest /= self.dims[dim];
            }
            let run = (inner - at).min(len - done);
            // SAFETY: the caller's promise.
            let row = unsafe { std::slice::from_raw_parts_mut(to.add(done), run) };
            // Added up: there is no product of 64-bit vectors.
            for to in row {
                *to = value;
                value += by;
            }
            done += run;
        }
    }
}

/// Calls a function with every index of some dimensions, the last fastest.
pub(super) fn each_index(dims: &[usize], mut f: impl FnMut(&[usize])) {
    let mut index = [0usize; MOST_DIMS];
    let index = &mut index[..dims.len()];
    for _ in 0..element_count(dims) {
        f(index);
        for (i, &dim) in index.iter_mut().zip(dims).rev() {
            *i += 1;
            if *i < dim {
                break;
            }
            *i = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces() {
        assert_eq!(common_pieces(&[2, 3, 4], &[6, 4]), [(0..2, 0..1), (2..3, 1..2)]);
        assert_eq!(common_pieces(&[8], &[2, 4]), [(0..1, 0..2)]);
        assert_eq!(common_pieces(&[6, 4], &[4, 6]), [(0..2, 0..2)]);
        let with_ones = common_pieces(&[1, 5], &[5, 1, 1]);
        assert_eq!(
            with_ones
                .iter()
                .map(|(a, b)| (a.len(), b.len()))
                .fold((0, 0), |s, p| (s.0 + p.0, s.1 + p.1)),
            (2, 3)
        );
    }

    #[test]
    fn transfers() {
        let from: Vec<u32> = (0..6 * 20).collect();
        let mut to = vec![0u32; 6 * 20];
        let transfer = Transfer::new(&[20, 6], &[1, 20], &[6, 1], 4);
        // SAFETY: both hold 120 elements.
        unsafe { transfer.run(from.as_ptr().cast(), to.as_mut_ptr().cast()) };
        (0..20).for_each(|i| (0..6).for_each(|j| assert_eq!(to[i * 6 + j], from[j * 20 + i])));
    }
}
