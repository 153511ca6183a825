//! JAX's LAPACK calls on the CPU: factors, eigenvalues and singular values of batches of real
//! matrices.
//!
//! Plain methods, computed in f64: elimination with pivots, Householder's reflections, Jacobi's rotations.
//! Vectors may have the other sign than LAPACK's.

use std::iter::once;

use super::Buffers;
use super::error::Gap;
use super::formula::{Routine, TermId};
use super::plan::{ArraySlot, KernelStage, Planner, Trouble};
use crate::tensor::DType;

struct Lapack {
    routine: Routine,
    ins: Vec<ArraySlot>,
    /// Results, with the number of elements in each array of the batch.
    outs: Vec<(ArraySlot, usize)>,
    is_double: bool,
    batch: usize,
    rows: usize,
    columns: usize,
}

pub(super) fn plan(
    planner: &mut Planner<'_>,
    id: TermId,
    routine: Routine,
) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let matrix = planner.formula.term(term.args[0]);
    let ([.., rows, columns], DType::F32 | DType::F64) = (&matrix.dims[..], matrix.dtype) else {
        return Err(planner.fail(id, Gap::OfType(matrix.dtype)));
    };
    let (rows, columns, is_double) = (*rows, *columns, matrix.dtype == DType::F64);
    let batch = matrix.dims[..matrix.dims.len() - 2].iter().product::<usize>();
    let ins = term.args.iter().map(|&arg| planner.make(arg)).collect::<Result<Vec<_>, _>>()?;
    let each = |dims: &[usize]| dims.iter().product::<usize>() / batch.max(1);
    let outs: Vec<(ArraySlot, usize)> = match planner.part_count(id) {
        0 => vec![(planner.target(id), each(&term.dims))],
        _ => {
            let kinds = planner.part_kinds(id);
            let lengths = kinds.iter().map(|kind| each(&kind.dims));
            planner.part_targets(id, &kinds).into_iter().zip(lengths.collect::<Vec<_>>()).collect()
        }
    };
    if outs.len() != routine.results() {
        return Err(planner.fail(id, Gap::Shape));
    }
    let first = outs[0].0;
    planner.add(Lapack { routine, ins, outs, is_double, batch, rows, columns });
    Ok(first)
}

/// A matrix, row by row.
struct Matrix<'a> {
    of: &'a mut [f64],
    columns: usize,
}

impl std::ops::Index<(usize, usize)> for Matrix<'_> {
    type Output = f64;
    fn index(&self, (row, column): (usize, usize)) -> &f64 {
        &self.of[row * self.columns + column]
    }
}

impl std::ops::IndexMut<(usize, usize)> for Matrix<'_> {
    fn index_mut(&mut self, (row, column): (usize, usize)) -> &mut f64 {
        &mut self.of[row * self.columns + column]
    }
}

impl Matrix<'_> {
    fn rows(&self) -> usize {
        self.of.len() / self.columns.max(1)
    }

    fn set_identity(&mut self) {
        self.of.fill(0.0);
        (0..self.rows().min(self.columns)).for_each(|at| self[(at, at)] = 1.0);
    }

    fn swap_rows(&mut self, a: usize, b: usize) {
        (0..self.columns)
            .for_each(|column| self.of.swap(a * self.columns + column, b * self.columns + column));
    }

    fn swap_columns(&mut self, a: usize, b: usize) {
        (0..self.rows())
            .for_each(|row| self.of.swap(row * self.columns + a, row * self.columns + b));
    }

    /// The product of two columns.
    fn product(&self, a: usize, b: usize) -> f64 {
        (0..self.rows()).map(|row| self[(row, a)] * self[(row, b)]).sum()
    }

    /// Rotates two columns in their plane.
    fn rotate(&mut self, a: usize, b: usize, by: Rotation) {
        let Rotation { cos, sin } = by;
        for row in 0..self.rows() {
            let (x, y) = (self[(row, a)], self[(row, b)]);
            self[(row, a)] = cos * x - sin * y;
            self[(row, b)] = sin * x + cos * y;
        }
    }
}

/// How often all pairs are turned at most: a few times are enough.
const SWEEPS: usize = 60;

/// A rotation in a plane.
#[derive(Clone, Copy)]
struct Rotation {
    cos: f64,
    sin: f64,
}

/// The rotation that makes `(p, m; m, q)` diagonal.
fn rotation(p: f64, q: f64, m: f64) -> Rotation {
    let theta = (q - p) / (2.0 * m);
    let tan = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
    let cos = 1.0 / (tan * tan + 1.0).sqrt();
    Rotation { cos, sin: tan * cos }
}

/// A Cholesky factor in one triangle; the other one stays. Gives the number of the first bad pivot, or 0.
fn cholesky(a: &mut Matrix<'_>, is_lower: bool) -> i32 {
    let at = |row: usize, column: usize| if is_lower { (row, column) } else { (column, row) };
    for column in 0..a.columns {
        for row in column..a.columns {
            let known: f64 = (0..column).map(|k| a[at(row, k)] * a[at(column, k)]).sum();
            let left = a[at(row, column)] - known;
            if row > column {
                a[at(row, column)] = left / a[at(column, column)];
            } else if left > 0.0 {
                a[at(row, column)] = left.sqrt();
            } else {
                return column as i32 + 1;
            }
        }
    }
    0
}

/// Elimination with pivots, which count from 1. Gives the number of the first pivot that is 0, or 0.
fn eliminate(a: &mut Matrix<'_>, pivots: &mut [f64]) -> i32 {
    let mut bad = 0;
    for (step, pivot) in pivots.iter_mut().enumerate() {
        let size = |row: &usize| a[(*row, step)].abs();
        let best = (step..a.rows())
            .fold(step, |best, row| if size(&row) > size(&best) { row } else { best });
        *pivot = best as f64 + 1.0;
        a.swap_rows(step, best);
        let head = a[(step, step)];
        if head == 0.0 {
            bad = if bad == 0 { step as i32 + 1 } else { bad };
            continue;
        }
        for row in step + 1..a.rows() {
            let factor = a[(row, step)] / head;
            a[(row, step)] = factor;
            for column in step + 1..a.columns {
                let below = factor * a[(step, column)];
                a[(row, column)] -= below;
            }
        }
    }
    bad
}

/// Householder's reflections: the triangle above, their vectors below, their factors separate.
fn reflect(a: &mut Matrix<'_>, factors: &mut [f64]) {
    for (step, factor) in factors.iter_mut().enumerate() {
        let below: f64 = (step + 1..a.rows()).map(|row| a[(row, step)] * a[(row, step)]).sum();
        let head = a[(step, step)];
        if below == 0.0 {
            *factor = 0.0;
            continue;
        }
        let length = -(head * head + below).sqrt().copysign(head);
        *factor = (length - head) / length;
        (step + 1..a.rows()).for_each(|row| a[(row, step)] /= head - length);
        a[(step, step)] = length;
        apply_reflection(a, *factor, step);
    }
}

/// Applies a reflection, whose vector is below the diagonal, to the columns after it.
fn apply_reflection(a: &mut Matrix<'_>, factor: f64, step: usize) {
    for column in step + 1..a.columns {
        let along: f64 = a[(step, column)]
            + (step + 1..a.rows()).map(|row| a[(row, step)] * a[(row, column)]).sum::<f64>();
        a[(step, column)] -= factor * along;
        for row in step + 1..a.rows() {
            let less = factor * along * a[(row, step)];
            a[(row, column)] -= less;
        }
    }
}

/// The first columns of the product of reflections, in place of their vectors.
fn multiply_reflections(a: &mut Matrix<'_>, factors: &[f64]) {
    for column in factors.len()..a.columns {
        (0..a.rows()).for_each(|row| a[(row, column)] = f64::from(u8::from(row == column)));
    }
    for (step, &factor) in factors.iter().enumerate().rev() {
        apply_reflection(a, factor, step);
        (step + 1..a.rows()).for_each(|row| a[(row, step)] *= -factor);
        a[(step, step)] = 1.0 - factor;
        (0..step).for_each(|row| a[(row, step)] = 0.0);
    }
}

/// Eigenvalues of a symmetric matrix, rising, of which one triangle is read, and their vectors as columns.
fn eigen(a: &mut Matrix<'_>, vectors: &mut Matrix<'_>, values: &mut [f64], is_lower: bool) {
    let n = a.columns;
    for (row, column) in (0..n).flat_map(|row| (0..row).map(move |column| (row, column))) {
        let (from, to) =
            if is_lower { ((row, column), (column, row)) } else { ((column, row), (row, column)) };
        a[to] = a[from];
    }
    vectors.set_identity();
    let scale: f64 = a.of.iter().map(|x| x * x).sum();
    for _ in 0..SWEEPS {
        let apart: f64 =
            (0..n).flat_map(|p| (p + 1..n).map(move |q| (p, q))).map(|at| a[at] * a[at]).sum();
        if apart <= f64::EPSILON * f64::EPSILON * scale {
            break;
        }
        for (p, q) in (0..n).flat_map(|p| (p + 1..n).map(move |q| (p, q))) {
            if a[(p, q)] != 0.0 {
                let turn = rotation(a[(p, p)], a[(q, q)], a[(p, q)]);
                a.rotate(p, q, turn);
                for column in 0..n {
                    let (x, y) = (a[(p, column)], a[(q, column)]);
                    a[(p, column)] = turn.cos * x - turn.sin * y;
                    a[(q, column)] = turn.sin * x + turn.cos * y;
                }
                vectors.rotate(p, q, turn);
            }
        }
    }
    (0..n).for_each(|at| values[at] = a[(at, at)]);
    sort_columns(values, vectors, |a, b| a < b);
}

/// Puts values, and columns with them, into a sequence.
fn sort_columns(
    values: &mut [f64],
    columns: &mut Matrix<'_>,
    is_before: impl Fn(f64, f64) -> bool,
) {
    for at in 0..values.len() {
        let first = (at..values.len()).fold(at, |best, other| {
            if is_before(values[other], values[best]) { other } else { best }
        });
        values.swap(at, first);
        columns.swap_columns(at, first);
    }
}

/// Singular values of a matrix with at least as many rows as columns, falling. The matrix becomes that of the left
/// vectors, each as long as its value.
fn singular(a: &mut Matrix<'_>, right: &mut Matrix<'_>, values: &mut [f64]) {
    let n = a.columns;
    right.set_identity();
    for _ in 0..SWEEPS {
        let mut is_done = true;
        for (p, q) in (0..n).flat_map(|p| (p + 1..n).map(move |q| (p, q))) {
            let (pp, qq, pq) = (a.product(p, p), a.product(q, q), a.product(p, q));
            if pq.abs() > 1e-15 * (pp * qq).sqrt() {
                is_done = false;
                let turn = rotation(pp, qq, pq);
                a.rotate(p, q, turn);
                right.rotate(p, q, turn);
            }
        }
        if is_done {
            break;
        }
    }
    for (at, value) in values.iter_mut().enumerate().take(n) {
        *value = a.product(at, at).sqrt();
    }
    for at in 0..n {
        let first =
            (at..n).fold(at, |best, other| if values[other] > values[best] { other } else { best });
        values.swap(at, first);
        a.swap_columns(at, first);
        right.swap_columns(at, first);
    }
}

/// Fills columns from `known` on so that all are orthogonal and of length one.
fn complete(q: &mut Matrix<'_>, known: usize) {
    for column in known..q.columns {
        for unit in 0..q.rows() {
            (0..q.rows()).for_each(|row| q[(row, column)] = f64::from(u8::from(row == unit)));
            // Twice is enough.
            for _ in 0..2 {
                for other in 0..column {
                    let along = q.product(other, column);
                    (0..q.rows()).for_each(|row| q[(row, column)] -= along * q[(row, other)]);
                }
            }
            let length = q.product(column, column).sqrt();
            if length > 0.5 / (q.rows() as f64).sqrt() {
                (0..q.rows()).for_each(|row| q[(row, column)] /= length);
                break;
            }
        }
    }
}

/// Takes memory from the front.
fn take<'a>(memory: &mut &'a mut [f64], len: usize) -> &'a mut [f64] {
    let (taken, rest) = std::mem::take(memory).split_at_mut(len);
    *memory = rest;
    taken
}

impl Lapack {
    /// How many numbers a routine works on.
    fn work(&self) -> usize {
        let side = self.rows.max(self.columns);
        4 * side * side + 2 * side
    }

    fn one<'l>(&'l self, buffers: &'l Buffers<'l>, number: usize) -> OneOfBatch<'l> {
        OneOfBatch { lapack: self, buffers, number }
    }
}

/// The arrays of one problem of a batch.
struct OneOfBatch<'l> {
    lapack: &'l Lapack,
    buffers: &'l Buffers<'l>,
    number: usize,
}

impl OneOfBatch<'_> {
    /// # Safety
    /// The slot must hold the batch.
    unsafe fn read(&self, which: usize, to: &mut [f64]) {
        let from = self.buffers.read(self.lapack.ins[which]);
        let first = self.number * to.len();
        for (at, to) in to.iter_mut().enumerate() {
            // SAFETY: an element of the array; the caller's promise.
            *to = unsafe {
                match self.lapack.is_double {
                    true => from.cast::<f64>().add(first + at).read(),
                    false => f64::from(from.cast::<f32>().add(first + at).read()),
                }
            };
        }
    }

    /// # Safety
    /// The slot must hold the batch.
    unsafe fn write(&self, which: usize, values: impl Iterator<Item = f64>) {
        let (slot, len) = self.lapack.outs[which];
        let first = self.number * len;
        let to = self.buffers.write(slot);
        for (at, value) in values.take(len).enumerate() {
            // SAFETY: an element of the array; the caller's promise.
            unsafe {
                match self.lapack.is_double {
                    true => to.cast::<f64>().add(first + at).write(value),
                    false => to.cast::<f32>().add(first + at).write(value as f32),
                }
            }
        }
    }

    /// # Safety
    /// The slot must hold the batch, of integers.
    unsafe fn write_whole(&self, which: usize, values: impl ExactSizeIterator<Item = i32>) {
        let to = self.buffers.write(self.lapack.outs[which].0).cast::<i32>();
        let first = self.number * values.len();
        // SAFETY: elements of the array; the caller's promise.
        values.enumerate().for_each(|(at, value)| unsafe { to.add(first + at).write(value) });
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn run(&self, mut memory: &mut [f64]) {
        let (rows, columns) = (self.lapack.rows, self.lapack.columns);
        let least = rows.min(columns);
        let mut a = Matrix { of: take(&mut memory, rows * columns), columns };
        // SAFETY: the slots hold the batch, of the types that were planned for.
        unsafe {
            self.read(0, a.of);
            match self.lapack.routine {
                Routine::Cholesky { is_lower } => {
                    let bad = cholesky(&mut a, is_lower);
                    self.write_whole(1, once(bad));
                }
                Routine::Eliminate => {
                    let pivots = take(&mut memory, least);
                    let bad = eliminate(&mut a, pivots);
                    self.write_whole(1, pivots.iter().map(|&pivot| pivot as i32));
                    self.write_whole(2, once(bad));
                }
                Routine::Reflect => {
                    let factors = take(&mut memory, least);
                    reflect(&mut a, factors);
                    self.write(1, factors.iter().copied());
                }
                Routine::Reflections { count } => {
                    let factors = take(&mut memory, count);
                    self.read(1, factors);
                    multiply_reflections(&mut a, factors);
                }
                Routine::Eigen { is_lower } => {
                    let mut vectors = Matrix { of: take(&mut memory, rows * columns), columns };
                    let values = take(&mut memory, columns);
                    eigen(&mut a, &mut vectors, values, is_lower);
                    a.of.copy_from_slice(vectors.of);
                    self.write(1, values.iter().copied());
                    self.write_whole(2, once(0));
                }
                Routine::Singular { has_vectors } => self.singular(&mut a, memory, has_vectors),
            }
            self.write(0, a.of.iter().copied());
        }
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn singular(&self, a: &mut Matrix<'_>, mut memory: &mut [f64], has_vectors: bool) {
        let &Lapack { rows, columns, ref outs, .. } = self.lapack;
        // A wide matrix is the transpose of a tall one, and so are its vectors.
        let is_wide = rows < columns;
        let (long, short) = (rows.max(columns), rows.min(columns));
        let mut tall = Matrix { of: take(&mut memory, long * short), columns: short };
        for (row, column) in (0..long).flat_map(|row| (0..short).map(move |column| (row, column))) {
            tall[(row, column)] = if is_wide { a[(column, row)] } else { a[(row, column)] };
        }
        let mut right = Matrix { of: take(&mut memory, short * short), columns: short };
        let values = take(&mut memory, short);
        singular(&mut tall, &mut right, values);
        // Columns that are nothing, and those beyond, are found from the others.
        let rank =
            values.iter().take_while(|&&value| value > 1e-300 && value > 1e-15 * values[0]).count();
        let mut left = Matrix { of: take(&mut memory, long * long), columns: long };
        for (row, column) in (0..long).flat_map(|row| (0..rank).map(move |column| (row, column))) {
            left[(row, column)] = tall[(row, column)] / values[column];
        }
        complete(&mut left, rank);
        let columns_of = |len: usize, side: usize| len / side.max(1);
        // SAFETY: the caller's promise.
        unsafe {
            self.write(1, values.iter().copied());
            self.write_whole(4, once(0));
            if !has_vectors {
                return;
            }
            let (u_columns, v_rows) = (columns_of(outs[2].1, rows), columns_of(outs[3].1, columns));
            let element = |of: &Matrix<'_>, row: usize, column: usize| of[(row, column)];
            let (u, v) = if is_wide { (&right, &left) } else { (&left, &right) };
            let all = |rows: usize, columns: usize| {
                (0..rows).flat_map(move |r| (0..columns).map(move |c| (r, c)))
            };
            self.write(2, all(rows, u_columns).map(|(r, c)| element(u, r, c)));
            self.write(3, all(v_rows, columns).map(|(r, c)| element(v, c, r)));
        }
    }
}

impl KernelStage for Lapack {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: local memory has the requested length, and any bytes are numbers.
        let memory =
            unsafe { std::slice::from_raw_parts_mut(buffers.local().cast::<f64>(), self.work()) };
        for batch in 0..self.batch {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.one(buffers, batch).run(memory) };
        }
    }

    fn local_bytes(&self) -> usize {
        self.work() * size_of::<f64>()
    }
}
