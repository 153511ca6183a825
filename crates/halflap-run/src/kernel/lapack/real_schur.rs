//! The Schur form of a real matrix in real numbers: Hessenberg's form, then Francis's double steps.
//! A pair of conjugate eigenvalues is a block of two rows with equal elements on the diagonal, as
//! LAPACK leaves it.

use std::ops::Range;

use super::general::{STEPS, Schur};
use super::matrix::Rotation;

impl Schur<'_, f64> {
    /// Returns 0, or how many eigenvalues were not found.
    pub(super) fn find(&mut self, factors: &mut [f64]) -> i32 {
        self.begin(factors);
        let (mut left, mut steps) = (self.t.columns, 0);
        while left > 0 {
            let first = self.t.last_block(left);
            match left - first {
                1 => (left, steps) = (first, 0),
                2 => {
                    self.standardize(first);
                    (left, steps) = (first, 0);
                }
                _ if steps == STEPS => return left as i32,
                _ => {
                    steps += 1;
                    self.step(first..left, steps.is_multiple_of(10));
                }
            }
        }
        0
    }

    /// A double step on at least three rows: a reflection that two shifts begin disturbs
    /// Hessenberg's form, and others push the disturbance out at the end.
    fn step(&mut self, rows: Range<usize>, is_exceptional: bool) {
        let t = &self.t;
        let (start, end) = (rows.start, rows.end);
        let (a, d) = (t[(end - 2, end - 2)], t[(end - 1, end - 1)]);
        let (mut sum, mut product) = (a + d, a * d - t[(end - 2, end - 1)] * t[(end - 1, end - 2)]);
        if is_exceptional {
            let size = t[(end - 1, end - 2)].abs() + t[(end - 2, end - 3)].abs();
            (sum, product) = (1.5 * size, size * size);
        }
        let (head, next) = (t[(start, start)], t[(start + 1, start)]);
        let mut vector = [
            head * (head - sum) + t[(start, start + 1)] * next + product,
            next * (head + t[(start + 1, start + 1)] - sum),
            next * t[(start + 2, start + 1)],
        ];
        for row in start..end - 1 {
            let len = (end - row).min(3);
            self.reflect(row, &vector[..len]);
            if row > start {
                (1..len).for_each(|below| self.t[(row + below, row - 1)] = 0.0);
            }
            vector = [1, 2, 3].map(|below| match row + below < end {
                true => self.t[(row + below, row)],
                false => 0.0,
            });
        }
    }

    /// Turns a vector of some rows into one along the first of them, and undoes that from the
    /// right.
    fn reflect(&mut self, row: usize, vector: &[f64]) {
        let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
        if length == 0.0 {
            return;
        }
        let mut normal = [0.0; 3];
        normal[..vector.len()].copy_from_slice(vector);
        normal[0] += length.copysign(vector[0]);
        let scale = 2.0 / normal.iter().map(|x| x * x).sum::<f64>();
        let normal = &normal[..vector.len()];
        let along = |values: &[f64]| {
            scale * values.iter().zip(normal).map(|(value, x)| value * x).sum::<f64>()
        };
        for column in 0..self.t.columns {
            let values: Vec<f64> = (0..normal.len()).map(|at| self.t[(row + at, column)]).collect();
            let less = along(&values);
            (0..normal.len()).for_each(|at| self.t[(row + at, column)] -= less * normal[at]);
        }
        for matrix in [&mut self.t, &mut self.q] {
            for other in 0..matrix.rows() {
                let from = other * matrix.columns + row;
                let values = &mut matrix.of[from..from + normal.len()];
                let less = along(values);
                values.iter_mut().zip(normal).for_each(|(value, x)| *value -= less * x);
            }
        }
    }

    /// Makes a block of two rows a triangle if its eigenvalues are real; otherwise its elements on
    /// the diagonal are made equal.
    fn standardize(&mut self, at: usize) {
        let [a, b] = [self.t[(at, at)], self.t[(at, at + 1)]];
        let [c, d] = [self.t[(at + 1, at)], self.t[(at + 1, at + 1)]];
        let half = (a - d) / 2.0;
        let is_real = half * half + b * c >= 0.0;
        let (cos, sin) = match is_real {
            true => {
                let root = half + (half * half + b * c).sqrt().copysign(half);
                (root / root.hypot(c), c / root.hypot(c))
            }
            false => {
                let size = (b + c).hypot(a - d);
                let cos = ((1.0 + (b + c).abs() / size) / 2.0).sqrt();
                (cos, -(half / (size * cos)).copysign(half * (b + c)))
            }
        };
        if c == 0.0 || !cos.is_finite() {
            return;
        }
        let turn = Rotation { cos, sin: -sin };
        self.t.rotate(at, at + 1, turn);
        self.t.rotate_rows(at, at + 1, turn);
        self.q.rotate(at, at + 1, turn);
        if is_real {
            self.t[(at + 1, at)] = 0.0;
        } else {
            let middle = (self.t[(at, at)] + self.t[(at + 1, at + 1)]) / 2.0;
            (self.t[(at, at)], self.t[(at + 1, at + 1)]) = (middle, middle);
        }
    }

    /// The imaginary part of an eigenvalue; the real one is on the diagonal.
    pub(super) fn imaginary(&self, at: usize) -> f64 {
        let below = |row: usize| match row + 1 < self.t.columns {
            true => self.t[(row + 1, row)],
            false => 0.0,
        };
        let size = |row: usize| (below(row) * self.t[(row, row + 1)]).abs().sqrt();
        match at {
            _ if below(at) != 0.0 => size(at),
            1.. if below(at - 1) != 0.0 => -size(at - 1),
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::lapack::matrix::Matrix;

    fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
        let of = |at: usize| (0..n).map(|k| a[at / n * n + k] * b[k * n + at % n]).sum();
        (0..n * n).map(of).collect()
    }

    fn transposed(a: &[f64], n: usize) -> Vec<f64> {
        (0..n * n).map(|at| a[at % n * n + at / n]).collect()
    }

    /// The form of a matrix, and how far its product is from the matrix.
    fn form(a: &[f64], n: usize) -> (Vec<f64>, f64) {
        let (mut t, mut q) = (a.to_vec(), vec![0.0; n * n]);
        let mut schur =
            Schur { t: Matrix { of: &mut t, columns: n }, q: Matrix { of: &mut q, columns: n } };
        assert_eq!(schur.find(&mut vec![0.0; n.saturating_sub(1)]), 0);
        let again = product(&product(&q, &t, n), &transposed(&q, n), n);
        let apart = again.iter().zip(a).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        (t, apart)
    }

    #[test]
    fn the_form_is_a_triangle_with_blocks_of_two() {
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as f64 / f64::from(1_u32 << 30) - 1.0
        };
        for n in 0..12 {
            let a: Vec<f64> = (0..n * n).map(|_| next()).collect();
            let (t, apart) = form(&a, n);
            assert!(apart < 1e-12, "{n}: {apart}");
            for row in 0..n {
                assert!((0..row.saturating_sub(1)).all(|column| t[row * n + column] == 0.0));
            }
            let is_block = |row: usize| t[(row + 1) * n + row] != 0.0;
            for row in (0..n.saturating_sub(1)).filter(|&row| is_block(row)) {
                assert_eq!(t[row * n + row], t[(row + 1) * n + row + 1]);
                assert!(t[(row + 1) * n + row] * t[row * n + row + 1] < 0.0);
                assert!(row + 2 >= n || !is_block(row + 1));
            }
        }
    }

    #[test]
    fn matrices_that_are_hard_to_begin_with() {
        // A cycle needs an exceptional shift; a double eigenvalue; nothing to do.
        let cycle = [0., 0., 0., 1., 1., 0., 0., 0., 0., 1., 0., 0., 0., 0., 1., 0.];
        assert!(form(&cycle, 4).1 < 1e-12);
        assert!(form(&[1.0, 5.0, 0.0, 1.0], 2).1 < 1e-12);
        assert_eq!(form(&[2.0, 0.0, 0.0, 3.0], 2).0, [2.0, 0.0, 0.0, 3.0]);
    }
}
