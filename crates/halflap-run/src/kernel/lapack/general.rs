//! Eigenvalues of any square matrix: Hessenberg's form, then shifted QR steps, in complex numbers.

use super::factors::{Reflection, hessenberg};
use super::matrix::Matrix;
use super::scalar::{ComplexNumber, MatrixNumber};

/// How many steps an eigenvalue may take.
pub(super) const STEPS: usize = 60;

/// What is computed: `a = q t q*`, with a triangle `t`, which for a real matrix may have blocks of
/// two.
pub(super) struct Schur<'a, T> {
    /// The matrix, and then the triangle.
    pub(super) t: Matrix<'a, T>,
    pub(super) q: Matrix<'a, T>,
}

impl<T: MatrixNumber> Schur<'_, T> {
    /// Makes Hessenberg's form, which all steps begin with.
    pub(super) fn begin(&mut self, factors: &mut [T]) {
        hessenberg(&mut self.t, factors);
        self.q.set_identity();
        for (step, &factor) in factors.iter().enumerate().rev() {
            Reflection { factor, row: step + 1, column: step }.apply_to(&self.t, &mut self.q);
        }
        for row in 2..self.t.columns {
            (0..row - 1).for_each(|column| self.t[(row, column)] = T::zero());
        }
    }
}

impl Schur<'_, ComplexNumber> {
    /// Returns 0, or how many eigenvalues were not found.
    pub(super) fn find(&mut self, factors: &mut [ComplexNumber]) -> i32 {
        self.begin(factors);
        let n = self.t.columns;
        let mut left = n;
        let mut steps = 0;
        while left > 1 {
            let first = self.t.last_block(left);
            if first + 1 == left {
                (left, steps) = (left - 1, 0);
            } else if steps == STEPS {
                return left as i32;
            } else {
                steps += 1;
                let shift = self.shift(left, steps);
                self.step(first..left, shift);
            }
        }
        0
    }

    /// The eigenvalue of the last two rows that is nearer to the last element; occasionally another
    /// one, if it does not converge.
    fn shift(&self, end: usize, steps: usize) -> ComplexNumber {
        let [a, b] = [self.t[(end - 2, end - 2)], self.t[(end - 2, end - 1)]];
        let [c, d] = [self.t[(end - 1, end - 2)], self.t[(end - 1, end - 1)]];
        if steps.is_multiple_of(10) {
            return d + ComplexNumber::of(c.size());
        }
        let half = (a - d).times(0.5);
        let root = root(half * half + b * c);
        let sum =
            if (half + root).square() > (half - root).square() { half + root } else { half - root };
        if sum == ComplexNumber::zero() { d } else { d - b * c / sum }
    }

    /// A QR step with a shift on some rows: rotations make a triangle, and are undone from the
    /// right.
    fn step(&mut self, rows: std::ops::Range<usize>, shift: ComplexNumber) {
        let n = self.t.columns;
        rows.clone().for_each(|at| self.t[(at, at)] = self.t[(at, at)] - shift);
        let mut turns = Vec::with_capacity(rows.len());
        for row in rows.start..rows.end - 1 {
            let (x, y) = (self.t[(row, row)], self.t[(row + 1, row)]);
            let length = (x.square() + y.square()).sqrt();
            let (c, s) = match length == 0.0 {
                true => (ComplexNumber::one(), ComplexNumber::zero()),
                false => (x.times(1.0 / length), y.times(1.0 / length)),
            };
            for column in row..n {
                let (x, y) = (self.t[(row, column)], self.t[(row + 1, column)]);
                self.t[(row, column)] = c.conjugate() * x + s.conjugate() * y;
                self.t[(row + 1, column)] = c * y - s * x;
            }
            turns.push((c, s));
        }
        for (at, &(c, s)) in turns.iter().enumerate() {
            let column = rows.start + at;
            let undo = |matrix: &mut Matrix<'_, ComplexNumber>, end: usize| {
                for row in 0..end {
                    let (x, y) = (matrix[(row, column)], matrix[(row, column + 1)]);
                    matrix[(row, column)] = x * c + y * s;
                    matrix[(row, column + 1)] = y * c.conjugate() - x * s.conjugate();
                }
            };
            undo(&mut self.t, (column + 2).min(n));
            undo(&mut self.q, n);
        }
        rows.for_each(|at| self.t[(at, at)] = self.t[(at, at)] + shift);
    }

    /// The eigenvector of a number on the diagonal, of length one: a right one, or a left one.
    pub(super) fn vector(&self, number: usize, is_left: bool, to: &mut [ComplexNumber]) {
        let n = self.t.columns;
        let value = self.t[(number, number)];
        let small =
            f64::EPSILON * self.t.of.iter().map(|x| x.sum_of_sizes()).fold(1e-300, f64::max);
        let mut own = vec![ComplexNumber::zero(); n];
        own[number] = ComplexNumber::one();
        let others: Vec<usize> =
            if is_left { (number + 1..n).collect() } else { (0..number).rev().collect() };
        for at in others {
            let known = |k: usize| match is_left {
                true => own[k] * self.t[(k, at)].conjugate(),
                false => self.t[(at, k)] * own[k],
            };
            let sum = (at.min(number)..=at.max(number))
                .filter(|&k| k != at)
                .fold(ComplexNumber::zero(), |sum, k| sum + known(k));
            let apart = value - self.t[(at, at)];
            let apart = if apart.size() < small { ComplexNumber::of(small) } else { apart };
            own[at] = sum / if is_left { apart.conjugate() } else { apart };
        }
        for (row, to) in to.iter_mut().enumerate() {
            *to = (0..n).fold(ComplexNumber::zero(), |sum, k| sum + self.q[(row, k)] * own[k]);
        }
        normalize(to);
    }
}

/// Normalises a vector to length one, with a real largest element.
fn normalize(vector: &mut [ComplexNumber]) {
    let length = vector.iter().map(|x| x.square()).sum::<f64>().sqrt();
    let largest = vector
        .iter()
        .fold(ComplexNumber::zero(), |most, &x| if x.square() > most.square() { x } else { most });
    let (size, turned) = largest.split();
    if size > 0.0 {
        vector.iter_mut().for_each(|x| *x = (*x * turned.conjugate()).times(1.0 / length));
    }
}

/// A square root with a real part that is not negative.
fn root(of: ComplexNumber) -> ComplexNumber {
    let size = of.size();
    let re = ((size + of.re) / 2.0).max(0.0).sqrt();
    let im = ((size - of.re) / 2.0).max(0.0).sqrt().copysign(of.im);
    ComplexNumber { re, im }
}

/// The eigenvalues of a real matrix: pairs of conjugates are next to each other, the one with the
/// positive imaginary part first, and the others are real. Returns their order.
pub(super) fn in_pairs(values: &mut [ComplexNumber]) -> Vec<usize> {
    let scale = values.iter().map(|value| value.size()).fold(0.0, f64::max);
    let is_real = |value: &ComplexNumber| value.im.abs() <= 1e-9 * scale;
    let mut order = Vec::new();
    let mut is_taken = vec![false; values.len()];
    for at in 0..values.len() {
        if is_taken[at] {
            continue;
        }
        is_taken[at] = true;
        let apart = |&other: &usize| (values[other].conjugate() - values[at]).size();
        let twin = (at + 1..values.len())
            .filter(|&other| !is_taken[other])
            .min_by(|a, b| apart(a).total_cmp(&apart(b)));
        match twin.filter(|_| !is_real(&values[at])) {
            Some(twin) => {
                is_taken[twin] = true;
                let first = if values[at].im > 0.0 { at } else { twin };
                let second = at + twin - first;
                values[second] = values[first].conjugate();
                order.extend([first, second]);
            }
            None => {
                values[at].im = 0.0;
                order.push(at);
            }
        }
    }
    order
}
