//! Products of two matrices, by the matrix library.
//!
//! The library's kernels for complex numbers took a tenth of halflap's build time, and programs
//! rarely multiply complex matrices. Those are computed as four products of their real and
//! imaginary parts, which are matrices with twice the strides.

use std::ops::{Add, Mul, Neg};

use gemm_common::Parallelism;

use crate::tensor::Complex;

/// A matrix in memory: where it begins, and the steps between rows and between columns, in
/// elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatrixView<P> {
    pub(super) start: P,
    pub(super) row: isize,
    pub(super) column: isize,
}

impl<P> MatrixView<P> {
    fn transposed(self) -> MatrixView<P> {
        MatrixView { start: self.start, row: self.column, column: self.row }
    }
}

/// `to = lhs * rhs`. Steps of the result are never negative.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatrixProduct<T> {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// The length of the contracted dimension.
    pub(super) depth: usize,
    pub(super) lhs: MatrixView<*const T>,
    pub(super) rhs: MatrixView<*const T>,
    pub(super) to: MatrixView<*mut T>,
    /// How many threads may work on it.
    pub(super) threads: usize,
}

impl<T: Multiplied> MatrixProduct<T> {
    /// Computes it.
    ///
    /// # Safety
    /// The pointers must hold the matrices, and nothing else may access the result.
    pub(super) unsafe fn run(&self) {
        if self.depth > 0 {
            // SAFETY: the caller's promise.
            return unsafe { T::multiply(self) };
        }
        for row in 0..self.rows as isize {
            for column in 0..self.columns as isize {
                let place = row * self.to.row + column * self.to.column;
                // SAFETY: an element of the result.
                unsafe { *self.to.start.offset(place) = T::ZERO };
            }
        }
    }

    /// The same product in the form that the library expects: neighbours in a column of the result
    /// are closer than those in a row, and the left operand has positive steps. Either gives the
    /// same bits.
    fn arranged(self) -> MatrixProduct<T> {
        let is_by_rows = self.to.column < self.to.row;
        let mut product = match is_by_rows && !self.is_right_far_apart() {
            false => self,
            true => MatrixProduct {
                rows: self.columns,
                columns: self.rows,
                lhs: self.rhs.transposed(),
                rhs: self.lhs.transposed(),
                to: self.to.transposed(),
                ..self
            },
        };
        let MatrixProduct { lhs, rhs, .. } = &mut product;
        if lhs.column < 0 {
            let last = self.depth as isize - 1;
            lhs.start = lhs.start.wrapping_offset(last * lhs.column);
            rhs.start = rhs.start.wrapping_offset(last * rhs.row);
            (lhs.column, rhs.row) = (-lhs.column, -rhs.row);
        }
        product
    }

    /// Whether the columns of the right operand lie so far apart that the library is slow to pack
    /// them as a left one, in a product that spends most of its time on that.
    fn is_right_far_apart(&self) -> bool {
        let is_deep = self.depth >= 8 * self.rows.max(self.columns);
        is_deep && self.rhs.row == 1 && self.rhs.column >= 1024
    }
}

/// What matrices are made of.
pub(super) trait Multiplied: Copy + 'static {
    const ZERO: Self;

    /// # Safety
    /// As for [`MatrixProduct::run`]; the depth is not 0.
    unsafe fn multiply(product: &MatrixProduct<Self>);
}

/// What the library multiplies.
pub(super) trait GemmReal:
    Multiplied + Add<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    const ONE: Self;

    /// Adds the product times a factor to what the result has, or replaces that.
    ///
    /// # Safety
    /// As for [`Multiplied::multiply`].
    unsafe fn accumulate(product: &MatrixProduct<Self>, factor: Self, is_added: bool);
}

macro_rules! number {
    ($type:ty, $library:path) => {
        impl Multiplied for $type {
            const ZERO: $type = 0.0;

            unsafe fn multiply(product: &MatrixProduct<$type>) {
                // SAFETY: the caller's promise.
                unsafe { Self::accumulate(product, Self::ONE, false) }
            }
        }

        impl GemmReal for $type {
            const ONE: $type = 1.0;

            unsafe fn accumulate(product: &MatrixProduct<$type>, factor: $type, is_added: bool) {
                use $library as library;
                let MatrixProduct { rows, columns, depth, lhs, rhs, to, threads } =
                    product.arranged();
                let old = if is_added { Self::ONE } else { Self::ZERO };
                let threads = match threads {
                    0 | 1 => Parallelism::None,
                    threads => Parallelism::Rayon(threads),
                };
                // SAFETY: the caller's promise. The last flags are for complex numbers.
                unsafe {
                    library()(
                        rows, columns, depth, to.start, to.column, to.row, is_added, lhs.start,
                        lhs.column, lhs.row, rhs.start, rhs.column, rhs.row, old, factor, false,
                        false, false, threads,
                    );
                }
            }
        }
    };
}

number!(f32, gemm_f32::gemm::f32::get_gemm_fn);
number!(f64, gemm_f64::gemm::f64::get_gemm_fn);

/// Which of a complex number's parts.
#[derive(Clone, Copy)]
enum ComplexPart {
    Re = 0,
    Im = 1,
}

impl<T: GemmReal> MatrixProduct<Complex<T>> {
    /// The product of one part of each operand, for one part of the result.
    fn of_parts(&self, lhs: ComplexPart, rhs: ComplexPart, to: ComplexPart) -> MatrixProduct<T> {
        let operand = |matrix: MatrixView<*const Complex<T>>, part: ComplexPart| MatrixView {
            start: matrix.start.cast::<T>().wrapping_add(part as usize),
            row: 2 * matrix.row,
            column: 2 * matrix.column,
        };
        let &MatrixProduct { rows, columns, depth, threads, .. } = self;
        MatrixProduct {
            rows,
            columns,
            depth,
            lhs: operand(self.lhs, lhs),
            rhs: operand(self.rhs, rhs),
            to: MatrixView {
                start: self.to.start.cast::<T>().wrapping_add(to as usize),
                row: 2 * self.to.row,
                column: 2 * self.to.column,
            },
            threads,
        }
    }
}

impl<T: GemmReal> Multiplied for Complex<T> {
    const ZERO: Complex<T> = Complex { re: T::ZERO, im: T::ZERO };

    unsafe fn multiply(product: &MatrixProduct<Complex<T>>) {
        use ComplexPart::{Im, Re};
        // SAFETY: the caller's promise; a complex matrix is two real ones.
        unsafe {
            T::accumulate(&product.of_parts(Re, Re, Re), T::ONE, false);
            T::accumulate(&product.of_parts(Im, Im, Re), -T::ONE, true);
            T::accumulate(&product.of_parts(Re, Im, Im), T::ONE, false);
            T::accumulate(&product.of_parts(Im, Re, Im), T::ONE, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps of a matrix that is stored by rows or by columns.
    fn stored<P>(start: P, by_columns: bool, [rows, columns]: [usize; 2]) -> MatrixView<P> {
        match by_columns {
            false => MatrixView { start, row: columns as isize, column: 1 },
            true => MatrixView { start, row: 1, column: rows as isize },
        }
    }

    fn place<P>(matrix: &MatrixView<P>, row: usize, column: usize) -> usize {
        (row as isize * matrix.row + column as isize * matrix.column) as usize
    }

    /// Compares a product with its definition. The numbers are small and whole, so both are exact.
    fn check<T: Multiplied + std::fmt::Debug + PartialEq>(
        sizes: [usize; 3],
        by_columns: [bool; 3],
        number: impl Fn(usize) -> T,
        add_product: impl Fn(T, T, T) -> T,
    ) {
        let [rows, columns, depth] = sizes;
        let a: Vec<T> = (0..rows * depth).map(|at| number(at + 3)).collect();
        let b: Vec<T> = (0..depth * columns).map(&number).collect();
        let mut c = vec![number(1); rows * columns];
        let product = MatrixProduct {
            rows,
            columns,
            depth,
            lhs: stored(a.as_ptr(), by_columns[0], [rows, depth]),
            rhs: stored(b.as_ptr(), by_columns[1], [depth, columns]),
            to: stored(c.as_mut_ptr(), by_columns[2], [rows, columns]),
            threads: 1,
        };
        // SAFETY: the vectors are as long as the matrices.
        unsafe { product.run() };
        for row in 0..rows {
            for column in 0..columns {
                let sum = (0..depth).fold(T::ZERO, |sum, k| {
                    let (l, r) = (place(&product.lhs, row, k), place(&product.rhs, k, column));
                    add_product(sum, a[l], b[r])
                });
                let at = place(&product.to, row, column);
                assert_eq!(c[at], sum, "{sizes:?} {by_columns:?} at {row}, {column}");
            }
        }
    }

    #[test]
    fn products_are_what_they_are_defined_as() {
        let whole = |at: usize| (at * 7 % 11) as f64 - 5.0;
        let complex = |at: usize| Complex { re: whole(at), im: whole(at * 3 + 1) };
        let multiplied = |sum: Complex<f64>, a: Complex<f64>, b: Complex<f64>| Complex {
            re: sum.re + a.re * b.re - a.im * b.im,
            im: sum.im + a.re * b.im + a.im * b.re,
        };
        for sizes in
            [[1, 1, 1], [3, 5, 4], [9, 1, 7], [1, 6, 3], [17, 33, 21], [2, 3, 0], [5, 3, 1100]]
        {
            for bits in 0..8 {
                let by_columns = [1, 2, 4].map(|bit| bits & bit != 0);
                check(sizes, by_columns, whole, |sum, a, b| sum + a * b);
                check(sizes, by_columns, |at| whole(at) as f32, |sum, a, b| sum + a * b);
                check(sizes, by_columns, complex, multiplied);
            }
        }
    }

    #[test]
    fn operands_may_run_backwards() {
        let (a, b) = ([1.0f32, 2.0, 3.0], [10.0f32, 20.0, 30.0]);
        let mut c = [0.0f32; 1];
        let lhs = MatrixView { start: &raw const a[2], row: 3, column: -1 };
        let rhs = MatrixView { start: b.as_ptr(), row: 1, column: 3 };
        let to = MatrixView { start: c.as_mut_ptr(), row: 1, column: 1 };
        // SAFETY: all three elements of each are visited, and one is written.
        unsafe { MatrixProduct { rows: 1, columns: 1, depth: 3, lhs, rhs, to, threads: 1 }.run() };
        assert_eq!(c, [3.0 * 10.0 + 2.0 * 20.0 + 1.0 * 30.0]);
    }
}
