//! Products of matrices of integers that fit into 16 bits, with sums of 32 bits.
//!
//! Both operands are packed as pairs of what is summed: a machine multiplies pairs and adds both
//! products to a sum in one or two instructions. Each pair of a left row meets vectors of right
//! columns, so that no sum is spread over a vector.

use std::ops::Range;

use super::block::is_wide;
use crate::tensor::DType;

/// Rows and columns of a tile.
const ROWS: usize = 8;
pub(super) const COLUMNS: usize = 32;

/// Two numbers that are summed.
type IntegerPair = [i16; 2];
type Tile = [[i32; COLUMNS]; ROWS];

/// A matrix in memory: its type, and steps between what is kept and along what is summed.
pub(super) struct StoredMatrix {
    pub(super) start: *const u8,
    pub(super) stored: DType,
    pub(super) free: isize,
    pub(super) contracted: isize,
}

/// A product to be computed; the result is dense.
pub(super) struct PairProduct {
    pub(super) lhs: StoredMatrix,
    pub(super) rhs: StoredMatrix,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
}

/// Whether all numbers of a type fit.
pub(super) fn fits(dtype: DType) -> bool {
    matches!(dtype, DType::S8 | DType::U8 | DType::S16)
}

/// How many bytes packed operands take: all rows, and the columns of a tile.
pub(super) fn room(rows: usize, columns: usize, depth: usize) -> usize {
    let panels = if columns > 0 { COLUMNS } else { 0 };
    (rows.next_multiple_of(ROWS) + panels) * depth.div_ceil(2) * size_of::<IntegerPair>()
}

impl StoredMatrix {
    /// Packs some rows as pairs, `WIDTH` of them side by side, with zeros beyond the ends.
    ///
    /// # Safety
    /// The matrix must have the rows, of this depth.
    unsafe fn pack<const WIDTH: usize>(
        &self,
        rows: Range<usize>,
        depth: usize,
        to: &mut [[IntegerPair; WIDTH]],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.stored {
                DType::S8 => self.pack_as::<i8, WIDTH>(rows, depth, to),
                DType::U8 => self.pack_as::<u8, WIDTH>(rows, depth, to),
                _ => self.pack_as::<i16, WIDTH>(rows, depth, to),
            }
        }
    }

    /// # Safety
    /// As for [`StoredMatrix::pack`], and the matrix must be of this type.
    unsafe fn pack_as<T: Copy + Into<i16>, const WIDTH: usize>(
        &self,
        rows: Range<usize>,
        depth: usize,
        to: &mut [[IntegerPair; WIDTH]],
    ) {
        let start = self.start.cast::<T>().wrapping_offset(rows.start as isize * self.free);
        let get = |row: usize, k: usize| -> i16 {
            if row >= rows.len() || k >= depth {
                return 0;
            }
            let at = row as isize * self.free + k as isize * self.contracted;
            // SAFETY: an element of the matrix.
            unsafe { *start.offset(at) }.into()
        };
        if self.free == 1 && rows.len() == WIDTH {
            for (number, pairs) in to.iter_mut().enumerate().take(depth / 2) {
                // SAFETY: two lines of as many rows that lie beside each other.
                let [one, two] = [2 * number, 2 * number + 1].map(|k| unsafe {
                    let line = start.offset(k as isize * self.contracted);
                    std::slice::from_raw_parts(line, WIDTH)
                });
                for ((pair, &a), &b) in pairs.iter_mut().zip(one).zip(two) {
                    *pair = [a.into(), b.into()];
                }
            }
            for pairs in &mut to[depth / 2..] {
                *pairs = std::array::from_fn(|row| [get(row, depth - 1), 0]);
            }
            return;
        }
        if self.contracted == 1 {
            for row in 0..rows.len() {
                // SAFETY: a line of the matrix.
                let line = unsafe {
                    let line = start.offset(row as isize * self.free);
                    std::slice::from_raw_parts(line, depth)
                };
                let (twos, last) = line.as_chunks::<2>();
                for (pairs, &[a, b]) in to.iter_mut().zip(twos) {
                    pairs[row] = [a.into(), b.into()];
                }
                if let (Some(pairs), [a]) = (to.last_mut(), last) {
                    pairs[row] = [(*a).into(), 0];
                }
            }
            to.iter_mut().for_each(|pairs| pairs[rows.len()..].fill([0, 0]));
            return;
        }
        for row in 0..WIDTH {
            for (number, pairs) in to.iter_mut().enumerate() {
                pairs[row] = [get(row, 2 * number), get(row, 2 * number + 1)];
            }
        }
    }
}

impl PairProduct {
    /// Computes the columns of some tiles.
    ///
    /// # Safety
    /// The operands must hold the matrices, `room` as many bytes as [`room`] says, and `to` the
    /// result.
    pub(super) unsafe fn run(&self, panels: Range<usize>, room: *mut u8, to: *mut i32) {
        let &PairProduct { rows, columns, depth, .. } = self;
        let (pairs, tiles) = (depth.div_ceil(2), rows.div_ceil(ROWS));
        if panels.is_empty() || rows == 0 {
            return;
        }
        let right = room.cast::<[IntegerPair; COLUMNS]>();
        // SAFETY: the room has a panel of the right operand and then all rows of the left; any
        // bytes are numbers.
        let (right, left) = unsafe {
            let left = right.add(pairs).cast::<[IntegerPair; ROWS]>();
            let left = std::slice::from_raw_parts_mut(left, tiles * pairs);
            (std::slice::from_raw_parts_mut(right, pairs), left)
        };
        let sums = chosen();
        for tile in 0..tiles {
            let of = tile * ROWS..rows.min((tile + 1) * ROWS);
            // SAFETY: the caller's promise.
            unsafe { self.lhs.pack(of, depth, &mut left[tile * pairs..][..pairs]) };
        }
        for panel in panels {
            let across = panel * COLUMNS..columns.min((panel + 1) * COLUMNS);
            // SAFETY: the caller's promise.
            unsafe { self.rhs.pack(across.clone(), depth, right) };
            for tile in 0..tiles {
                let mut made: Tile = [[0; COLUMNS]; ROWS];
                // SAFETY: the function was chosen for this machine.
                unsafe { sums(&left[tile * pairs..][..pairs], right, &mut made) };
                for (row, sums) in (tile * ROWS..rows).zip(&made) {
                    // SAFETY: a part of a row of the result.
                    let to = unsafe { to.add(row * columns + across.start) };
                    // SAFETY: as above; the tile is not in the result.
                    unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), to, across.len()) };
                }
            }
        }
    }
}

/// Adds products of rows and columns to a tile.
///
/// # Safety
/// The machine must have the instructions that the function uses.
type SumFn = unsafe fn(&[[IntegerPair; ROWS]], &[[IntegerPair; COLUMNS]], &mut Tile);

/// The fastest function of this machine.
fn chosen() -> SumFn {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
            return sums_512;
        }
        if is_wide() {
            return sums_256;
        }
    }
    sums_plain
}

/// # Safety
/// See [`SumFn`]; any machine has these.
unsafe fn sums_plain(
    left: &[[IntegerPair; ROWS]],
    right: &[[IntegerPair; COLUMNS]],
    tile: &mut Tile,
) {
    for (rows, columns) in left.iter().zip(right) {
        for (row, sums) in rows.iter().zip(tile.iter_mut()) {
            for (column, sum) in columns.iter().zip(sums) {
                let product = |k: usize| i32::from(row[k]).wrapping_mul(i32::from(column[k]));
                *sum = sum.wrapping_add(product(0)).wrapping_add(product(1));
            }
        }
    }
}

/// # Safety
/// The machine must have 256-bit vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sums_256(
    left: &[[IntegerPair; ROWS]],
    right: &[[IntegerPair; COLUMNS]],
    tile: &mut Tile,
) {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_set1_epi32,
        _mm256_setzero_si256, _mm256_storeu_si256,
    };
    for (top, first) in (0..ROWS).step_by(4).flat_map(|row| [0, 16].map(|column| (row, column))) {
        let mut sums = [[_mm256_setzero_si256(); 2]; 4];
        for (rows, columns) in left.iter().zip(right) {
            let columns = [0, 8].map(|lane| {
                let from: *const IntegerPair = &raw const columns[first + lane];
                // SAFETY: eight pairs from here on.
                unsafe { _mm256_loadu_si256(from.cast::<__m256i>()) }
            });
            for (row, sums) in rows[top..top + 4].iter().zip(&mut sums) {
                let row = _mm256_set1_epi32(both(*row));
                for (column, sum) in columns.iter().zip(sums) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(row, *column));
                }
            }
        }
        for (row, sums) in tile[top..].iter_mut().zip(&sums) {
            for (lane, sum) in sums.iter().enumerate() {
                let to: *mut i32 = &raw mut row[first + lane * 8];
                // SAFETY: eight sums from here on.
                unsafe { _mm256_storeu_si256(to.cast::<__m256i>(), *sum) };
            }
        }
    }
}

/// # Safety
/// The machine must have 512-bit vectors that multiply pairs.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn sums_512(
    left: &[[IntegerPair; ROWS]],
    right: &[[IntegerPair; COLUMNS]],
    tile: &mut Tile,
) {
    use std::arch::x86_64::{
        __m512i, _mm512_dpwssd_epi32, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_si512,
        _mm512_storeu_si512,
    };
    let mut sums = [[_mm512_setzero_si512(); 2]; ROWS];
    for (rows, columns) in left.iter().zip(right) {
        let columns = [0, 16].map(|lane| {
            let from: *const IntegerPair = &raw const columns[lane];
            // SAFETY: sixteen pairs from here on.
            unsafe { _mm512_loadu_si512(from.cast::<__m512i>()) }
        });
        for (row, sums) in rows.iter().zip(&mut sums) {
            let row = _mm512_set1_epi32(both(*row));
            for (column, sum) in columns.iter().zip(sums) {
                *sum = _mm512_dpwssd_epi32(*sum, row, *column);
            }
        }
    }
    for (row, sums) in tile.iter_mut().zip(&sums) {
        for (lane, sum) in sums.iter().enumerate() {
            let to: *mut i32 = &raw mut row[lane * 16];
            // SAFETY: sixteen sums from here on.
            unsafe { _mm512_storeu_si512(to.cast::<__m512i>(), *sum) };
        }
    }
}

/// A pair as one number of 32 bits.
#[cfg(target_arch = "x86_64")]
fn both([one, two]: IntegerPair) -> i32 {
    i32::from(one) & 0xffff | i32::from(two) << 16
}
