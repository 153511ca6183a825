//! Eigenvalues of Hermitian matrices and singular values, by Jacobi's rotations.

use super::factors::below_diagonal;
use super::matrix::{Matrix, Rotation, first_of};
use super::scalar::MatrixNumber;

/// The maximum number of sweeps over all pairs: a few are enough.
const SWEEPS: usize = 60;

/// All pairs of columns.
fn pairs(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).flat_map(move |p| (p + 1..n).map(move |q| (p, q)))
}

/// Eigenvalues of a Hermitian matrix in ascending order, of which one triangle is read, and their
/// vectors as columns.
pub(super) fn eigen<T: MatrixNumber>(
    a: &mut Matrix<'_, T>,
    vectors: &mut Matrix<'_, T>,
    values: &mut [T],
    is_lower: bool,
) {
    let n = a.columns;
    for (row, column) in below_diagonal(n) {
        let (from, to) =
            if is_lower { ((row, column), (column, row)) } else { ((column, row), (row, column)) };
        a[to] = a[from].conjugate();
    }
    vectors.set_identity();
    let scale: f64 = a.of.iter().map(|x| x.square()).sum();
    for _ in 0..SWEEPS {
        let apart: f64 = pairs(n).map(|at| a[at].square()).sum();
        if apart <= f64::EPSILON * f64::EPSILON * scale {
            break;
        }
        for (p, q) in pairs(n) {
            let (size, turned) = a[(p, q)].split();
            if size == 0.0 {
                continue;
            }
            // What is between the two is real then.
            a.scale_column(q, turned.conjugate());
            vectors.scale_column(q, turned.conjugate());
            (0..n).for_each(|column| a[(q, column)] = a[(q, column)] * turned);
            let turn = Rotation::diagonalizing(a[(p, p)].real(), a[(q, q)].real(), size);
            a.rotate(p, q, turn);
            a.rotate_rows(p, q, turn);
            vectors.rotate(p, q, turn);
        }
    }
    (0..n).for_each(|at| values[at] = T::of(a[(at, at)].real()));
    vectors.sort_columns(values, |a, b| a < b);
}

/// Singular values of a matrix with at least as many rows as columns, in descending order. The
/// matrix becomes that of the left vectors, each as long as its value.
pub(super) fn singular<T: MatrixNumber>(
    a: &mut Matrix<'_, T>,
    right: &mut Matrix<'_, T>,
    values: &mut [T],
) {
    let n = a.columns;
    right.set_identity();
    for _ in 0..SWEEPS {
        let mut is_done = true;
        for (p, q) in pairs(n) {
            let (pp, qq) = (a.product(p, p).real(), a.product(q, q).real());
            let (pq, turned) = a.product(p, q).split();
            if pq.abs() > 1e-15 * (pp * qq).sqrt() {
                is_done = false;
                let turn = Rotation::diagonalizing(pp, qq, pq);
                a.scale_column(q, turned.conjugate());
                a.rotate(p, q, turn);
                right.scale_column(q, turned.conjugate());
                right.rotate(p, q, turn);
            }
        }
        if is_done {
            break;
        }
    }
    for (at, value) in values.iter_mut().enumerate().take(n) {
        *value = T::of(a.product(at, at).real().sqrt());
    }
    for at in 0..n {
        let first = first_of(&values[at..n], |a, b| a > b) + at;
        values.swap(at, first);
        a.swap_columns(at, first);
        right.swap_columns(at, first);
    }
}

/// Fills columns from `known` on so that all are orthogonal and of length one.
pub(super) fn complete<T: MatrixNumber>(q: &mut Matrix<'_, T>, known: usize) {
    for column in known..q.columns {
        for unit in 0..q.rows() {
            (0..q.rows())
                .for_each(|row| q[(row, column)] = T::of(f64::from(u8::from(row == unit))));
            // Twice is enough.
            for _ in 0..2 {
                for other in 0..column {
                    let along = q.product(other, column);
                    (0..q.rows()).for_each(|row| {
                        q[(row, column)] = q[(row, column)] - along * q[(row, other)]
                    });
                }
            }
            let length = q.product(column, column).real().sqrt();
            if length > 0.5 / (q.rows() as f64).sqrt() {
                q.scale_column(column, T::of(1.0 / length));
                break;
            }
        }
    }
}
