//! Matrices, and what is done to their rows and columns.

use super::scalar::MatrixNumber;

/// A matrix, row by row.
pub(super) struct Matrix<'a, T> {
    pub(super) of: &'a mut [T],
    pub(super) columns: usize,
}

impl<T> std::ops::Index<(usize, usize)> for Matrix<'_, T> {
    type Output = T;
    fn index(&self, (row, column): (usize, usize)) -> &T {
        &self.of[row * self.columns + column]
    }
}

impl<T> std::ops::IndexMut<(usize, usize)> for Matrix<'_, T> {
    fn index_mut(&mut self, (row, column): (usize, usize)) -> &mut T {
        &mut self.of[row * self.columns + column]
    }
}

/// A rotation in a plane.
#[derive(Clone, Copy)]
pub(super) struct Rotation {
    pub(super) cos: f64,
    pub(super) sin: f64,
}

impl Rotation {
    /// The one that makes `(p, m; m, q)` diagonal.
    pub(super) fn diagonalizing(p: f64, q: f64, m: f64) -> Rotation {
        let theta = (q - p) / (2.0 * m);
        let tan = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
        let cos = 1.0 / (tan * tan + 1.0).sqrt();
        Rotation { cos, sin: tan * cos }
    }

    fn turn<T: MatrixNumber>(self, x: T, y: T) -> (T, T) {
        let Rotation { cos, sin } = self;
        (x.times(cos) - y.times(sin), x.times(sin) + y.times(cos))
    }
}

impl<T: MatrixNumber> Matrix<'_, T> {
    pub(super) fn rows(&self) -> usize {
        self.of.len() / self.columns.max(1)
    }

    /// The start of the last block that ends at a row: above it the subdiagonal is negligible, and
    /// made zero.
    pub(super) fn last_block(&mut self, end: usize) -> usize {
        for row in (1..end).rev() {
            let around = self[(row, row)].sum_of_sizes() + self[(row - 1, row - 1)].sum_of_sizes();
            if self[(row, row - 1)].sum_of_sizes() <= f64::EPSILON * around {
                self[(row, row - 1)] = T::zero();
                return row;
            }
        }
        0
    }

    pub(super) fn set_identity(&mut self) {
        self.of.fill(T::zero());
        (0..self.rows().min(self.columns)).for_each(|at| self[(at, at)] = T::one());
    }

    pub(super) fn swap_rows(&mut self, a: usize, b: usize) {
        (0..self.columns)
            .for_each(|column| self.of.swap(a * self.columns + column, b * self.columns + column));
    }

    pub(super) fn swap_columns(&mut self, a: usize, b: usize) {
        (0..self.rows())
            .for_each(|row| self.of.swap(row * self.columns + a, row * self.columns + b));
    }

    /// The product of two columns, the first one conjugated.
    pub(super) fn product(&self, a: usize, b: usize) -> T {
        (0..self.rows())
            .fold(T::zero(), |sum, row| sum + self[(row, a)].conjugate() * self[(row, b)])
    }

    pub(super) fn scale_column(&mut self, column: usize, by: T) {
        (0..self.rows()).for_each(|row| self[(row, column)] = self[(row, column)] * by);
    }

    /// Rotates two columns in their plane.
    pub(super) fn rotate(&mut self, a: usize, b: usize, by: Rotation) {
        for row in 0..self.rows() {
            let turned = by.turn(self[(row, a)], self[(row, b)]);
            (self[(row, a)], self[(row, b)]) = turned;
        }
    }

    /// Rotates two rows in their plane.
    pub(super) fn rotate_rows(&mut self, a: usize, b: usize, by: Rotation) {
        for column in 0..self.columns {
            let turned = by.turn(self[(a, column)], self[(b, column)]);
            (self[(a, column)], self[(b, column)]) = turned;
        }
    }

    /// Sorts columns together with their values.
    pub(super) fn sort_columns(&mut self, values: &mut [T], is_before: impl Fn(f64, f64) -> bool) {
        for at in 0..values.len() {
            let first = first_of(&values[at..], &is_before) + at;
            values.swap(at, first);
            self.swap_columns(at, first);
        }
    }
}

/// Which of some numbers comes before all others.
pub(super) fn first_of<T: MatrixNumber>(
    values: &[T],
    is_before: impl Fn(f64, f64) -> bool,
) -> usize {
    (0..values.len()).fold(0, |best, other| {
        if is_before(values[other].real(), values[best].real()) { other } else { best }
    })
}
