//! Products in which one operand has few rows, and both run along the contracted dimension: what a
//! few vectors have in common with many others.
//!
//! The matrix library copies the large operand so that neighbours of the result are neighbours,
//! which takes longer than the product. Here every element of the result is a sum along the memory
//! of both. Its additions are the same wherever it is computed, and by whichever thread.

use std::ops::Range;

use super::matrix::MatrixView;

/// `to = lhs * rhs`, where `lhs` has few rows, and `rhs` is a matrix whose rows are its columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThinProduct {
    /// How many vectors the small operand has, and how far they are apart.
    pub(super) few: usize,
    pub(super) few_step: isize,
    pub(super) many_step: isize,
    pub(super) depth: usize,
    pub(super) from: [*const f32; 2],
    /// A row for each of the few, a column for each of the many.
    pub(super) to: MatrixView<*mut f32>,
}

/// The most vectors of the small operand. With more, copying is worth it.
pub(super) const MOST: usize = 12;

/// How many of the many are multiplied at once.
pub(super) const TILE: usize = 4;

/// Whether the machine has what products are computed with.
pub(super) fn is_possible() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

impl ThinProduct {
    /// Computes some columns.
    ///
    /// # Safety
    /// The pointers must hold the matrices, nothing else may access these columns of the result,
    /// and the machine must be one that it is possible on.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run(&self, many: Range<usize>) {
        for first in many.clone().step_by(TILE) {
            let count = TILE.min(many.end - first);
            for row in (0..self.few).step_by(2) {
                // SAFETY: rows and columns of the matrices; the caller's promise.
                unsafe {
                    match (self.few - row, count) {
                        (1, TILE) => self.tile::<1, TILE>(row, first),
                        (_, TILE) => self.tile::<2, TILE>(row, first),
                        (1, _) => (0..count).for_each(|at| self.tile::<1, 1>(row, first + at)),
                        _ => (0..count).for_each(|at| self.tile::<2, 1>(row, first + at)),
                    }
                }
            }
        }
    }

    /// # Safety
    /// It must never be called.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) unsafe fn run(&self, _: Range<usize>) {}

    /// Some rows and columns of the result.
    ///
    /// # Safety
    /// As for [`ThinProduct::run`].
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    unsafe fn tile<const ROWS: usize, const COLUMNS: usize>(&self, row: usize, column: usize) {
        use std::arch::x86_64::*;
        const LANES: usize = 8;
        let vector = |side: usize, number: usize| {
            let step = if side == 0 { self.few_step } else { self.many_step };
            self.from[side].wrapping_offset(number as isize * step)
        };
        let few: [*const f32; ROWS] = std::array::from_fn(|at| vector(0, row + at));
        let many: [*const f32; COLUMNS] = std::array::from_fn(|at| vector(1, column + at));
        let whole = self.depth / LANES * LANES;
        let mut sums = [[_mm256_setzero_ps(); COLUMNS]; ROWS];
        // SAFETY: elements of the vectors; the caller's promise.
        unsafe {
            for at in (0..whole).step_by(LANES) {
                let mut right = [_mm256_setzero_ps(); COLUMNS];
                for (right, vector) in right.iter_mut().zip(many) {
                    *right = _mm256_loadu_ps(vector.add(at));
                }
                for (sums, vector) in sums.iter_mut().zip(few) {
                    let left = _mm256_loadu_ps(vector.add(at));
                    for (sum, right) in sums.iter_mut().zip(right) {
                        *sum = _mm256_fmadd_ps(left, right, *sum);
                    }
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, &sum) in sums.iter().enumerate() {
                let (left, right) = (few[i], many[j]);
                let mut rest = 0.0f32;
                for at in whole..self.depth {
                    // SAFETY: as above.
                    rest = unsafe { (*left.add(at)).mul_add(*right.add(at), rest) };
                }
                let half = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
                let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
                let one = _mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair));
                let place =
                    (row + i) as isize * self.to.row + (column + j) as isize * self.to.column;
                // SAFETY: an element of the result; the caller's promise.
                unsafe { *self.to.start.wrapping_offset(place) = _mm_cvtss_f32(one) + rest };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A product, computed in parts of so many columns.
    fn product(few: usize, many: usize, depth: usize, part: usize) -> Vec<f32> {
        let number = |at: usize| (at * 7 % 11) as f32 - 5.0;
        let left: Vec<f32> = (0..few * depth).map(|at| number(at + 3)).collect();
        let right: Vec<f32> = (0..many * depth).map(number).collect();
        let mut to = vec![f32::NAN; few * many];
        let matrix = MatrixView { start: to.as_mut_ptr(), row: many as isize, column: 1 };
        let product = ThinProduct {
            few,
            few_step: depth as isize,
            many_step: depth as isize,
            depth,
            from: [left.as_ptr(), right.as_ptr()],
            to: matrix,
        };
        for first in (0..many).step_by(part) {
            // SAFETY: the vectors are as long as the matrices, and the machine was asked.
            unsafe { product.run(first..many.min(first + part)) };
        }
        for (row, column) in (0..few).flat_map(|row| (0..many).map(move |column| (row, column))) {
            let sum: f32 =
                (0..depth).map(|k| left[row * depth + k] * right[column * depth + k]).sum();
            assert_eq!(to[row * many + column], sum, "{few} {many} {depth}: {row}, {column}");
        }
        to
    }

    /// The numbers are small and whole, so sums are exact.
    #[test]
    fn products_are_what_they_are_defined_as() {
        if !is_possible() {
            return;
        }
        for (few, many, depth) in [(1, 1, 1), (2, 5, 8), (3, 9, 23), (8, 33, 64), (7, 4, 100)] {
            product(few, many, depth, many);
            product(few, many, depth, 3);
        }
    }
}
