//! Products of matrices of integers.
//!
//! Both operands are packed so that what is summed lies one after the other; then two rows and four
//! columns are summed at a time. Numbers of 32 bits that fit into 16 are packed as such: a machine
//! multiplies and adds pairs of those in one instruction.

use std::ops::Range;

use super::block::is_wide;
use super::whole::Whole;

/// Rows and columns that are summed at a time.
const ROWS: usize = 2;
const COLUMNS: usize = 4;

/// A matrix in memory: steps between what is kept, and along what is summed.
pub(super) struct StridedMatrix<T> {
    pub(super) start: *const T,
    pub(super) free: isize,
    pub(super) contracted: isize,
}

/// What is computed: some rows of the result.
pub(super) struct Extent {
    pub(super) rows: Range<usize>,
    pub(super) columns: usize,
    pub(super) depth: usize,
}

impl Extent {
    /// How many bytes packed operands take.
    pub(super) fn room(columns: usize, depth: usize, size: usize) -> usize {
        (columns + ROWS) * depth * size
    }
}

impl<T: Copy> StridedMatrix<T> {
    /// # Safety
    /// The matrix must have the element.
    unsafe fn get(&self, free: usize, contracted: usize) -> T {
        let at = free as isize * self.free + contracted as isize * self.contracted;
        // SAFETY: the caller's promise.
        unsafe { *self.start.offset(at) }
    }

    /// Packs rows one after the other. Those that lie beside each other are read so.
    ///
    /// # Safety
    /// The matrix must have the rows.
    unsafe fn pack<P>(&self, rows: Range<usize>, to: &mut [P], as_packed: impl Fn(T) -> P) {
        const BESIDE: usize = 16;
        let depth = to.len() / rows.len().max(1);
        if self.contracted == 1 {
            for (row, to) in rows.zip(to.chunks_exact_mut(depth.max(1))) {
                // SAFETY: the caller's promise.
                let from = unsafe {
                    let start = self.start.offset(row as isize * self.free);
                    std::slice::from_raw_parts(start, depth)
                };
                from.iter().zip(to).for_each(|(&value, to)| *to = as_packed(value));
            }
            return;
        }
        for first in (0..rows.len()).step_by(BESIDE) {
            for k in 0..depth {
                for row in first..rows.len().min(first + BESIDE) {
                    // SAFETY: the caller's promise.
                    let value = unsafe { self.get(rows.start + row, k) };
                    to[row * depth + k] = as_packed(value);
                }
            }
        }
    }
}

/// Multiplies matrices of one type, and writes rows of a dense result.
///
/// # Safety
/// The operands must hold the matrices, `room` as many bytes as packed operands take, aligned to
/// the type, and `to` the result.
pub(super) unsafe fn multiply<T: Whole + Default>(
    extent: Extent,
    operands: [StridedMatrix<T>; 2],
    room: *mut u8,
    to: *mut T,
) {
    let sums = |left: [&[T]; ROWS], right: [&[T]; COLUMNS]| match is_wide() {
        // SAFETY: the machine has the vectors.
        true => unsafe { tile_wide(left, right) },
        false => tile(left, right),
    };
    // SAFETY: the caller's promise.
    unsafe { packed(extent, operands, Packing { room: room.cast(), of: |value| value, sums }, to) };
}

/// The same for 32 bits, which may be smaller numbers.
///
/// # Safety
/// See [`multiply`].
pub(super) unsafe fn multiply_s32(
    extent: Extent,
    operands: [StridedMatrix<i32>; 2],
    room: *mut u8,
    to: *mut i32,
) {
    let [lhs, rhs] = &operands;
    // SAFETY: the caller's promise; the machine has the vectors where they are used.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if is_wide()
            && are_small(lhs, extent.rows.clone(), extent.depth)
            && are_small(rhs, 0..extent.columns, extent.depth)
        {
            let sums = |left: [&[i16]; ROWS], right: [&[i16]; COLUMNS]| tile_pairs(left, right);
            let packing = Packing { room: room.cast(), of: |value: i32| value as i16, sums };
            return packed(extent, operands, packing, to);
        }
        multiply(extent, operands, room, to);
    }
}

/// Whether all numbers fit into 16 bits.
///
/// # Safety
/// The operand must have the rows.
unsafe fn are_small(operand: &StridedMatrix<i32>, rows: Range<usize>, depth: usize) -> bool {
    let is_large = |value: i32| value ^ i32::from(value as i16);
    // Numbers that lie beside each other are looked at together.
    let (lines, len) = match operand.free == 1 {
        true => (0..depth, rows.len()),
        false => (rows.clone(), depth),
    };
    lines.into_iter().all(|line| {
        // SAFETY: the caller's promise.
        unsafe {
            if operand.free == 1 || operand.contracted == 1 {
                let at = match operand.free == 1 {
                    true => rows.start as isize + line as isize * operand.contracted,
                    false => line as isize * operand.free,
                };
                let line = std::slice::from_raw_parts(operand.start.offset(at), len);
                return line.iter().fold(0, |found, &value| found | is_large(value)) == 0;
            }
            (0..len).all(|k| is_large(operand.get(line, k)) == 0)
        }
    })
}

/// How operands are packed and summed.
struct Packing<P, A, S> {
    room: *mut P,
    /// A number as it is packed.
    of: A,
    /// The sums of a few rows and columns.
    sums: S,
}

/// # Safety
/// See [`multiply`].
unsafe fn packed<T, P, A, S>(
    Extent { rows, columns, depth }: Extent,
    [lhs, rhs]: [StridedMatrix<T>; 2],
    Packing { room, of, sums }: Packing<P, A, S>,
    to: *mut T,
) where
    T: Whole,
    A: Fn(T) -> P + Copy,
    S: Fn([&[P]; ROWS], [&[P]; COLUMNS]) -> [[T; COLUMNS]; ROWS],
{
    // SAFETY: the caller's promise; any bytes are numbers.
    let room = unsafe { std::slice::from_raw_parts_mut(room, (columns + ROWS) * depth) };
    let (right, left) = room.split_at_mut(columns * depth);
    // SAFETY: the caller's promise.
    unsafe { rhs.pack(0..columns, right, of) };
    let end = rows.end;
    for row in rows.step_by(ROWS) {
        // The last row may be computed twice, and so may the last column.
        let at: [usize; ROWS] = std::array::from_fn(|i| (row + i).min(end - 1));
        for (i, &row) in at.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { lhs.pack(row..row + 1, &mut left[i * depth..][..depth], of) };
        }
        for column in (0..columns).step_by(COLUMNS) {
            let across: [usize; COLUMNS] = std::array::from_fn(|j| (column + j).min(columns - 1));
            let left = std::array::from_fn(|i| &left[i * depth..][..depth]);
            let sums = sums(left, across.map(|column| &right[column * depth..][..depth]));
            for (i, j) in (0..ROWS).flat_map(|i| (0..COLUMNS).map(move |j| (i, j))) {
                // SAFETY: an element of the result.
                unsafe { *to.add(at[i] * columns + across[j]) = sums[i][j] };
            }
        }
    }
}

/// # Safety
/// The machine must have 256-bit vectors.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
unsafe fn tile_wide<T: Whole + Default>(
    left: [&[T]; ROWS],
    right: [&[T]; COLUMNS],
) -> [[T; COLUMNS]; ROWS] {
    tile(left, right)
}

/// Several sums for each row and column, so that they make a vector.
#[inline(always)]
fn tile<T: Whole + Default>(left: [&[T]; ROWS], right: [&[T]; COLUMNS]) -> [[T; COLUMNS]; ROWS] {
    const LANES: usize = 8;
    let mut sums = [[[T::default(); LANES]; COLUMNS]; ROWS];
    let depth = left[0].len();
    let whole = depth / LANES * LANES;
    for k in (0..whole).step_by(LANES) {
        let left = left.map(|row| row[k..].first_chunk::<LANES>());
        let right = right.map(|column| column[k..].first_chunk::<LANES>());
        for (i, row) in left.iter().enumerate() {
            for (j, column) in right.iter().enumerate() {
                let (Some(row), Some(column)) = (row, column) else { continue };
                for lane in 0..LANES {
                    sums[i][j][lane] = sums[i][j][lane].add(row[lane].mul(column[lane]));
                }
            }
        }
    }
    std::array::from_fn(|i| {
        std::array::from_fn(|j| {
            let sum = sums[i][j].into_iter().fold(T::default(), |a, b| a.add(b));
            (whole..depth).fold(sum, |sum, k| sum.add(left[i][k].mul(right[j][k])))
        })
    })
}

/// Sums of products of 16 bits in 32: pairs are multiplied and added in one instruction.
///
/// # Safety
/// The machine must have 256-bit vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn tile_pairs(left: [&[i16]; ROWS], right: [&[i16]; COLUMNS]) -> [[i32; COLUMNS]; ROWS] {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_setzero_si256,
        _mm256_storeu_si256,
    };
    const LANES: usize = 16;
    let depth = left[0].len();
    let whole = depth / LANES * LANES;
    let mut sums = [[_mm256_setzero_si256(); COLUMNS]; ROWS];
    for k in (0..whole).step_by(LANES) {
        // SAFETY: a row or column has as many numbers from here on.
        let load = |of: &[i16]| unsafe { _mm256_loadu_si256(of.as_ptr().add(k).cast::<__m256i>()) };
        let rows = left.map(load);
        for j in 0..COLUMNS {
            let column = load(right[j]);
            for i in 0..ROWS {
                let pairs = _mm256_madd_epi16(rows[i], column);
                sums[i][j] = _mm256_add_epi32(sums[i][j], pairs);
            }
        }
    }
    std::array::from_fn(|i| {
        std::array::from_fn(|j| {
            let mut lanes = [0i32; 8];
            // SAFETY: there is room for eight numbers.
            unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums[i][j]) };
            let sum = lanes.into_iter().fold(0i32, i32::wrapping_add);
            (whole..depth).fold(sum, |sum, k| {
                sum.wrapping_add(i32::from(left[i][k]).wrapping_mul(i32::from(right[j][k])))
            })
        })
    })
}
