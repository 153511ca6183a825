//! Factors of matrices, and systems that they solve.

use super::matrix::Matrix;
use super::scalar::MatrixNumber;

/// A Cholesky factor in one triangle; the other one is unchanged. Returns the number of the first
/// bad pivot, or 0.
pub(super) fn cholesky<T: MatrixNumber>(a: &mut Matrix<'_, T>, is_lower: bool) -> i32 {
    let at = |row: usize, column: usize| if is_lower { (row, column) } else { (column, row) };
    for column in 0..a.columns {
        for row in column..a.columns {
            let known = (0..column).fold(T::zero(), |sum, k| {
                // Of the upper factor the conjugate is in the other row.
                sum + a[at(row, k)] * a[at(column, k)].conjugate()
            });
            let left = a[at(row, column)] - known;
            if row > column {
                a[at(row, column)] = left / a[at(column, column)];
            } else if left.real() > 0.0 {
                a[at(row, column)] = T::of(left.real().sqrt());
            } else {
                return column as i32 + 1;
            }
        }
    }
    0
}

/// Elimination with pivots, which count from 1. Returns the number of the first zero pivot, or 0.
pub(super) fn eliminate<T: MatrixNumber>(a: &mut Matrix<'_, T>, pivots: &mut [T]) -> i32 {
    let mut bad = 0;
    for (step, pivot) in pivots.iter_mut().enumerate() {
        let size = |row: &usize| a[(*row, step)].sum_of_sizes();
        let best = (step..a.rows())
            .fold(step, |best, row| if size(&row) > size(&best) { row } else { best });
        *pivot = T::of(best as f64 + 1.0);
        a.swap_rows(step, best);
        let head = a[(step, step)];
        if head == T::zero() {
            bad = if bad == 0 { step as i32 + 1 } else { bad };
            continue;
        }
        for row in step + 1..a.rows() {
            let factor = a[(row, step)] / head;
            a[(row, step)] = factor;
            for column in step + 1..a.columns {
                a[(row, column)] = a[(row, column)] - factor * a[(step, column)];
            }
        }
    }
    bad
}

/// A reflection `1 - factor v v*`, whose vector is in a column, below a row where it is 1.
#[derive(Clone, Copy)]
pub(super) struct Reflection<T> {
    pub(super) factor: T,
    pub(super) row: usize,
    pub(super) column: usize,
}

impl<T: MatrixNumber> Reflection<T> {
    /// The one whose conjugate makes a column zero below a row and real there, put in place of it.
    pub(super) fn of(a: &mut Matrix<'_, T>, row: usize, column: usize) -> Reflection<T> {
        let below: f64 = (row + 1..a.rows()).map(|row| a[(row, column)].square()).sum();
        let head = a[(row, column)];
        if below == 0.0 && head.imaginary() == 0.0 {
            return Reflection { factor: T::zero(), row, column };
        }
        let length = T::of(-(head.square() + below).sqrt().copysign(head.real()));
        for row in row + 1..a.rows() {
            a[(row, column)] = a[(row, column)] / (head - length);
        }
        a[(row, column)] = length;
        Reflection { factor: (length - head) / length, row, column }
    }

    pub(super) fn conjugate(self) -> Reflection<T> {
        Reflection { factor: self.factor.conjugate(), ..self }
    }

    /// Its vector's element of a row, given the matrix that it is in.
    fn element(self, vectors: &Matrix<'_, T>, row: usize) -> T {
        if row == self.row { T::one() } else { vectors[(row, self.column)] }
    }

    /// Applies it to columns of the matrix that its vector is in.
    pub(super) fn apply(self, a: &mut Matrix<'_, T>, columns: std::ops::Range<usize>) {
        for column in columns {
            let along = (self.row..a.rows()).fold(T::zero(), |sum, row| {
                sum + self.element(a, row).conjugate() * a[(row, column)]
            });
            for row in self.row..a.rows() {
                a[(row, column)] = a[(row, column)] - self.factor * along * self.element(a, row);
            }
        }
    }

    /// Applies it from the right to rows of the matrix that its vector is in, from its first column
    /// on.
    pub(super) fn apply_right(self, a: &mut Matrix<'_, T>, rows: std::ops::Range<usize>) {
        for row in rows {
            let along = (self.row..a.rows())
                .fold(T::zero(), |sum, k| sum + a[(row, k)] * self.element(a, k));
            for k in self.row..a.rows() {
                let less = along * self.factor * self.element(a, k).conjugate();
                a[(row, k)] = a[(row, k)] - less;
            }
        }
    }

    /// Applies it to all of another matrix.
    pub(super) fn apply_to(self, vectors: &Matrix<'_, T>, other: &mut Matrix<'_, T>) {
        for column in 0..other.columns {
            let along = (self.row..other.rows()).fold(T::zero(), |sum, row| {
                sum + self.element(vectors, row).conjugate() * other[(row, column)]
            });
            for row in self.row..other.rows() {
                let less = self.factor * along * self.element(vectors, row);
                other[(row, column)] = other[(row, column)] - less;
            }
        }
    }
}

/// Householder's reflections: the triangle above, their vectors below, their factors separate.
pub(super) fn reflect<T: MatrixNumber>(a: &mut Matrix<'_, T>, factors: &mut [T]) {
    for (step, factor) in factors.iter_mut().enumerate() {
        let reflection = Reflection::of(a, step, step);
        *factor = reflection.factor;
        reflection.conjugate().apply(a, step + 1..a.columns);
    }
}

/// The same with column pivoting: the longest remaining column comes next, after those that
/// `pivots` puts first. Pivots count from 1.
pub(super) fn reflect_longest<T: MatrixNumber>(
    a: &mut Matrix<'_, T>,
    factors: &mut [T],
    pivots: &mut [T],
) {
    let mut fixed = 0;
    for column in 0..pivots.len() {
        let is_first = pivots[column] != T::zero();
        pivots[column] = T::of(column as f64 + 1.0);
        if is_first {
            a.swap_columns(column, fixed);
            pivots.swap(column, fixed);
            fixed += 1;
        }
    }
    for (step, factor) in factors.iter_mut().enumerate() {
        let length =
            |column: usize| (step..a.rows()).map(|row| a[(row, column)].square()).sum::<f64>();
        if step >= fixed {
            let longest = (step..a.columns).fold(step, |best, column| {
                if length(column) > length(best) { column } else { best }
            });
            a.swap_columns(step, longest);
            pivots.swap(step, longest);
        }
        let reflection = Reflection::of(a, step, step);
        *factor = reflection.factor;
        reflection.conjugate().apply(a, step + 1..a.columns);
    }
}

/// The first columns of the product of reflections, in place of their vectors.
pub(super) fn multiply_reflections<T: MatrixNumber>(a: &mut Matrix<'_, T>, factors: &[T]) {
    for column in factors.len()..a.columns {
        (0..a.rows()).for_each(|row| a[(row, column)] = T::of(f64::from(u8::from(row == column))));
    }
    for (step, &factor) in factors.iter().enumerate().rev() {
        Reflection { factor, row: step, column: step }.apply(a, step + 1..a.columns);
        (step + 1..a.rows()).for_each(|row| a[(row, step)] = -(factor * a[(row, step)]));
        a[(step, step)] = T::one() - factor;
        (0..step).for_each(|row| a[(row, step)] = T::zero());
    }
}

/// A matrix that is zero below its first subdiagonal, and has the eigenvalues of the given one; the
/// vectors of its reflections below that.
pub(super) fn hessenberg<T: MatrixNumber>(a: &mut Matrix<'_, T>, factors: &mut [T]) {
    for (step, factor) in factors.iter_mut().enumerate() {
        let reflection = Reflection::of(a, step + 1, step);
        *factor = reflection.factor;
        reflection.apply_right(a, 0..a.rows());
        reflection.conjugate().apply(a, step + 1..a.columns);
    }
}

/// The same for a Hermitian matrix, of which only the lower triangle is read: the result is
/// tridiagonal.
pub(super) fn tridiagonal<T: MatrixNumber>(a: &mut Matrix<'_, T>, factors: &mut [T]) {
    for (row, column) in below_diagonal(a.columns) {
        a[(column, row)] = a[(row, column)].conjugate();
    }
    (0..a.columns).for_each(|at| a[(at, at)] = T::of(a[(at, at)].real()));
    for (step, factor) in factors.iter_mut().enumerate() {
        let reflection = Reflection::of(a, step + 1, step);
        *factor = reflection.factor;
        reflection.apply_right(a, step + 1..a.rows());
        reflection.conjugate().apply(a, step + 1..a.columns);
    }
}

/// The places below the diagonal.
pub(super) fn below_diagonal(side: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..side).flat_map(|row| (0..row).map(move |column| (row, column)))
}

/// The diagonals of a matrix: below, on and above the main one, and what elimination puts above
/// that. An element is in the row of its number.
pub(super) struct Diagonals<'a, T> {
    pub(super) below: &'a mut [T],
    pub(super) main: &'a mut [T],
    pub(super) above: &'a mut [T],
    pub(super) second: &'a mut [T],
}

/// Solves a tridiagonal system, with pivots. Returns the number of the first zero pivot, or 0.
pub(super) fn solve_diagonals<T: MatrixNumber>(of: Diagonals<'_, T>, b: &mut Matrix<'_, T>) -> i32 {
    let Diagonals { below, main, above, second } = of;
    let n = main.len();
    second.fill(T::zero());
    for row in 0..n.saturating_sub(1) {
        if main[row].sum_of_sizes() < below[row + 1].sum_of_sizes() {
            std::mem::swap(&mut main[row], &mut below[row + 1]);
            std::mem::swap(&mut above[row], &mut main[row + 1]);
            if row + 2 < n {
                std::mem::swap(&mut second[row], &mut above[row + 1]);
            }
            b.swap_rows(row, row + 1);
        }
        if main[row] == T::zero() {
            return row as i32 + 1;
        }
        let factor = below[row + 1] / main[row];
        main[row + 1] = main[row + 1] - factor * above[row];
        if row + 2 < n {
            above[row + 1] = above[row + 1] - factor * second[row];
        }
        (0..b.columns).for_each(|k| b[(row + 1, k)] = b[(row + 1, k)] - factor * b[(row, k)]);
    }
    if n > 0 && main[n - 1] == T::zero() {
        return n as i32;
    }
    let columns = b.columns;
    for (row, column) in (0..n).rev().flat_map(|row| (0..columns).map(move |k| (row, k))) {
        let mut left = b[(row, column)];
        if row + 1 < n {
            left = left - above[row] * b[(row + 1, column)];
        }
        if row + 2 < n {
            left = left - second[row] * b[(row + 2, column)];
        }
        b[(row, column)] = left / main[row];
    }
    0
}
