//! JAX's LAPACK calls on the CPU: factors, systems, eigenvalues and singular values of batches of
//! matrices.
//!
//! Plain methods, computed in f64: elimination with pivots, Householder's reflections, Jacobi's
//! rotations, QR steps. Vectors may differ from LAPACK's in sign, or by a factor of magnitude one,
//! and eigenvalues of non-symmetric matrices in order.
//!
//! | part | what it does |
//! | --- | --- |
//! | `scalar`, `matrix` | numbers, real or complex, and matrices of them |
//! | `factors` | factors, and systems that they solve |
//! | `spectra` | eigenvalues of symmetric matrices, and singular values |
//! | `general` | eigenvalues of all others |
//! | `real_schur` | Schur forms of real matrices |

mod factors;
mod general;
mod matrix;
mod real_schur;
mod scalar;
mod spectra;

use std::iter::once;

use super::Buffers;
use super::error::Gap;
use super::formula::{Routine, TermId};
use super::plan::{ArraySlot, KernelStage, Planner, Trouble};
use crate::tensor::{Complex, DType};
use factors::{
    Diagonals, Reflection, cholesky, eliminate, hessenberg, multiply_reflections, reflect,
    reflect_longest, solve_diagonals, tridiagonal,
};
use general::{Schur, in_pairs};
use matrix::Matrix;
use scalar::MatrixNumber;
use spectra::{complete, eigen, singular};

/// An array of a batch: its slot, its element type, and its number of elements per problem.
struct BatchArray {
    slot: ArraySlot,
    dtype: DType,
    len: usize,
}

struct Lapack {
    routine: Routine,
    ins: Vec<BatchArray>,
    outs: Vec<BatchArray>,
    is_complex: bool,
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
    let matrix = term.args.get(routine.matrix()).map(|&arg| planner.formula.term(arg));
    let matrix = matrix.ok_or_else(|| planner.fail(id, Gap::Shape))?;
    let is_known = matches!(matrix.dtype, DType::F32 | DType::F64 | DType::C64 | DType::C128);
    let ([batches @ .., rows, columns], true) = (&matrix.dims[..], is_known) else {
        return Err(planner.fail(id, Gap::OfType(matrix.dtype)));
    };
    let (rows, columns, batch) = (*rows, *columns, batches.iter().product::<usize>());
    let is_complex = matches!(matrix.dtype, DType::C64 | DType::C128);
    let each = |dims: &[usize]| dims.iter().product::<usize>() / batch.max(1);
    let mut ins = Vec::new();
    for &arg in &term.args {
        let (dtype, len) = (planner.formula.term(arg).dtype, each(&planner.formula.term(arg).dims));
        ins.push(BatchArray { slot: planner.make(arg)?, dtype, len });
    }
    let outs: Vec<BatchArray> = match planner.part_count(id) {
        0 => {
            let (dtype, len) = (term.dtype, each(&term.dims));
            vec![BatchArray { slot: planner.target(id), dtype, len }]
        }
        _ => {
            let kinds = planner.part_kinds(id);
            let slots = planner.part_targets(id, &kinds).into_iter().zip(&kinds);
            let array = |(slot, kind): (ArraySlot, &super::ArrayType)| BatchArray {
                slot,
                dtype: kind.dtype,
                len: each(&kind.dims),
            };
            slots.map(array).collect()
        }
    };
    if outs.len() != routine.results(is_complex) {
        return Err(planner.fail(id, Gap::Shape));
    }
    let first = outs[0].slot;
    planner.add(Lapack { routine, ins, outs, is_complex, batch, rows, columns });
    Ok(first)
}

/// Takes memory from the front.
fn take<'a, T>(memory: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    let (taken, rest) = std::mem::take(memory).split_at_mut(len);
    *memory = rest;
    taken
}

impl Lapack {
    /// How many numbers a routine works on.
    fn work(&self) -> usize {
        let side = self.rows.max(self.columns);
        let largest = self.ins.iter().map(|array| array.len).max().unwrap_or(0);
        4 * side.max(1) * side + 4 * side + 2 * largest
    }

    /// For a real matrix that is also used as a complex one.
    fn is_computed_complex(&self) -> bool {
        self.is_complex || matches!(self.routine, Routine::General { .. })
    }

    fn one<'l>(&'l self, buffers: &'l Buffers<'l>, number: usize) -> OneOfBatch<'l> {
        OneOfBatch { lapack: self, buffers, number }
    }
}

/// A number that a routine computes with, as it is read and written.
trait Computed: MatrixNumber {
    fn from_complex(value: Complex<f64>) -> Self;
    fn to_complex(self) -> Complex<f64>;
}

impl Computed for f64 {
    fn from_complex(value: Complex<f64>) -> f64 {
        value.re
    }

    fn to_complex(self) -> Complex<f64> {
        Complex { re: self, im: 0.0 }
    }
}

impl Computed for Complex<f64> {
    fn from_complex(value: Complex<f64>) -> Complex<f64> {
        value
    }

    fn to_complex(self) -> Complex<f64> {
        self
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
    unsafe fn read<T: Computed>(&self, which: usize, to: &mut [T]) {
        let BatchArray { slot, dtype, len } = self.lapack.ins[which];
        let from = self.buffers.read(slot);
        for (at, to) in to.iter_mut().enumerate().take(len) {
            let at = self.number * len + at;
            // SAFETY: an element of the array; the caller's promise.
            let value = unsafe {
                match dtype {
                    DType::S32 => Complex::of(f64::from(from.cast::<i32>().add(at).read())),
                    _ => scalar::read(from, dtype, at),
                }
            };
            *to = T::from_complex(value);
        }
    }

    /// # Safety
    /// The slot must hold the batch; of integers, the values must be such.
    unsafe fn write<T: Computed>(&self, which: usize, values: impl Iterator<Item = T>) {
        let BatchArray { slot, dtype, len } = self.lapack.outs[which];
        let to = self.buffers.write(slot);
        for (at, value) in values.take(len).enumerate() {
            let (at, value) = (self.number * len + at, value.to_complex());
            // SAFETY: an element of the array; the caller's promise.
            unsafe {
                match dtype {
                    DType::S32 => to.cast::<i32>().add(at).write(value.re as i32),
                    _ => scalar::write(to, dtype, at, value),
                }
            }
        }
    }

    /// The status: 0, or where it failed.
    ///
    /// # Safety
    /// The slot must hold the batch, of integers.
    unsafe fn write_info(&self, which: usize, info: i32) {
        // SAFETY: the caller's promise.
        unsafe { self.write(which, once(f64::from(info))) };
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn run<T: Computed>(&self, mut memory: &mut [T]) {
        let (rows, columns) = (self.lapack.rows, self.lapack.columns);
        let least = rows.min(columns);
        let mut a = Matrix { of: take(&mut memory, rows * columns), columns };
        // SAFETY: the slots hold the batch, of the types that were planned for.
        unsafe {
            self.read(self.lapack.routine.matrix(), a.of);
            match self.lapack.routine {
                Routine::Cholesky { is_lower } => {
                    self.write_info(1, cholesky(&mut a, is_lower));
                }
                Routine::Eliminate => {
                    let pivots = take(&mut memory, least);
                    self.write_info(2, eliminate(&mut a, pivots));
                    self.write(1, pivots.iter().copied());
                }
                Routine::Reflect { is_pivoted } => {
                    let (factors, pivots) = (take(&mut memory, least), take(&mut memory, columns));
                    match is_pivoted {
                        true => {
                            self.read(1, pivots);
                            reflect_longest(&mut a, factors, pivots);
                            self.write(1, pivots.iter().copied());
                        }
                        false => reflect(&mut a, factors),
                    }
                    self.write(self.lapack.outs.len() - 1, factors.iter().copied());
                }
                Routine::Reflections { count } => {
                    let factors = take(&mut memory, count);
                    self.read(1, factors);
                    multiply_reflections(&mut a, factors);
                }
                Routine::Hessenberg | Routine::Tridiagonal { .. } => self.condense(&mut a, memory),
                Routine::Eigen { is_lower } => {
                    let mut vectors = Matrix { of: take(&mut memory, rows * columns), columns };
                    let values = take(&mut memory, columns);
                    eigen(&mut a, &mut vectors, values, is_lower);
                    a.of.copy_from_slice(vectors.of);
                    self.write(1, values.iter().copied());
                    self.write_info(2, 0);
                }
                Routine::Singular { has_vectors } => self.singular(&mut a, memory, has_vectors),
                Routine::Diagonals => return self.diagonals(&mut a, memory),
                Routine::MultiplyBy { .. } => return self.multiply(&a, memory),
                Routine::General { .. } | Routine::Schur { .. } => return,
            }
            self.write(0, a.of.iter().copied());
        }
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn condense<T: Computed>(&self, a: &mut Matrix<'_, T>, mut memory: &mut [T]) {
        let side = a.columns;
        let factors = take(&mut memory, side.saturating_sub(1));
        // SAFETY: the caller's promise.
        unsafe {
            if self.lapack.routine == Routine::Hessenberg {
                hessenberg(a, factors);
                self.write(1, factors.iter().copied());
                return self.write_info(2, 0);
            }
            // An upper triangle is a lower one, in reverse.
            let is_upper = self.lapack.routine == Routine::Tridiagonal { is_lower: false };
            if is_upper {
                a.of.reverse();
            }
            let given = take(&mut memory, side * side);
            given.copy_from_slice(a.of);
            tridiagonal(a, factors);
            // The part above the diagonal is unchanged.
            for (row, column) in factors::below_diagonal(side) {
                a[(column, row)] = given[column * side + row];
            }
            let mut beside: Vec<T> = (1..side).map(|at| a[(at, at - 1)]).collect();
            if is_upper {
                a.of.reverse();
                factors.reverse();
                beside.reverse();
            }
            self.write(1, (0..side).map(|at| a[(at, at)]));
            self.write(2, beside.into_iter());
            self.write(3, factors.iter().copied());
            self.write_info(4, 0);
        }
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn diagonals<T: Computed>(&self, b: &mut Matrix<'_, T>, mut memory: &mut [T]) {
        let rows = self.lapack.rows;
        let [below, main, above, second] = [(); 4].map(|()| take(&mut memory, rows));
        // SAFETY: the caller's promise.
        unsafe {
            self.read(0, below);
            self.read(1, main);
            self.read(2, above);
            // JAX uses only the solution.
            self.write(0, below.iter().copied());
            self.write(1, main.iter().copied());
            self.write(2, above.iter().copied());
            let info = solve_diagonals(Diagonals { below, main, above, second }, b);
            self.write(3, b.of.iter().copied());
            self.write_info(4, info);
        }
    }

    /// The product of reflections, or its conjugate, times a matrix, or that times it.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn multiply<T: Computed>(&self, c: &Matrix<'_, T>, mut memory: &mut [T]) {
        let Routine::MultiplyBy { is_left, is_conjugated } = self.lapack.routine else { return };
        let count = self.lapack.ins[1].len;
        let side = if is_left { c.rows() } else { c.columns };
        let vectors = take(&mut memory, self.lapack.ins[0].len);
        let factors = take(&mut memory, count);
        let all = (0..c.rows()).flat_map(|row| (0..c.columns).map(move |column| (row, column)));
        // From the right the conjugate of all is computed.
        let others = c.of.len() / side.max(1);
        let mut turned = Matrix { of: take(&mut memory, c.of.len()), columns: others };
        let place =
            |(row, column): (usize, usize)| if is_left { (row, column) } else { (column, row) };
        let value = |value: T| if is_left { value } else { value.conjugate() };
        // SAFETY: the caller's promise.
        unsafe {
            self.read(0, vectors);
            self.read(1, factors);
            all.clone().for_each(|at| turned[place(at)] = value(c[at]));
            let columns = vectors.len() / side.max(1);
            let vectors = Matrix { of: vectors, columns };
            let is_forward = is_conjugated == is_left;
            for number in 0..count {
                let step = if is_forward { number } else { count - 1 - number };
                let own = Reflection { factor: factors[step], row: step, column: step };
                let own = if is_forward { own.conjugate() } else { own };
                own.apply_to(&vectors, &mut turned);
            }
            self.write(0, all.map(|at| value(turned[place(at)])));
        }
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn singular<T: Computed>(
        &self,
        a: &mut Matrix<'_, T>,
        mut memory: &mut [T],
        has_vectors: bool,
    ) {
        let &Lapack { rows, columns, ref outs, .. } = self.lapack;
        // A wide matrix is the conjugate of a tall one, whose vectors change sides.
        let is_wide = rows < columns;
        let (long, short) = (rows.max(columns), rows.min(columns));
        let all = |rows: usize, columns: usize| {
            (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)))
        };
        let mut tall = Matrix { of: take(&mut memory, long * short), columns: short };
        for (row, column) in all(long, short) {
            tall[(row, column)] =
                if is_wide { a[(column, row)].conjugate() } else { a[(row, column)] };
        }
        let mut right = Matrix { of: take(&mut memory, short * short), columns: short };
        let values = take(&mut memory, short);
        singular(&mut tall, &mut right, values);
        // Zero columns, and those beyond, are completed from the others.
        let most = values.first().map_or(0.0, |value| value.real());
        let is_some = |value: &&T| value.real() > 1e-300 && value.real() > 1e-15 * most;
        let rank = values.iter().take_while(is_some).count();
        let mut left = Matrix { of: take(&mut memory, long * long), columns: long };
        for (row, column) in all(long, rank) {
            left[(row, column)] = tall[(row, column)] / values[column];
        }
        complete(&mut left, rank);
        // SAFETY: the caller's promise.
        unsafe {
            self.write(1, values.iter().copied());
            self.write_info(4, 0);
            if !has_vectors {
                return;
            }
            let [u_columns, v_rows] = [outs[2].len / rows.max(1), outs[3].len / columns.max(1)];
            let (u, v) = if is_wide { (&right, &left) } else { (&left, &right) };
            self.write(2, all(rows, u_columns).map(|at| u[at]));
            self.write(3, all(v_rows, columns).map(|(row, column)| v[(column, row)].conjugate()));
        }
    }

    /// The matrix whose Schur form is to be found, and memory for the factors of reflections.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn matrix_of_form<'s, T: Computed>(
        &self,
        memory: &mut &'s mut [T],
    ) -> (Schur<'s, T>, &'s mut [T]) {
        let side = self.lapack.columns;
        let mut next = |len: usize| take(memory, len);
        let (t, q) = (next(side * side), next(side * side));
        // SAFETY: the caller's promise.
        unsafe { self.read(0, t) };
        let [t, q] = [t, q].map(|of| Matrix { of, columns: side });
        (Schur { t, q }, next(side.saturating_sub(1)))
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn schur(&self, mut memory: &mut [Complex<f64>]) {
        let side = self.lapack.columns;
        // SAFETY: the caller's promise.
        let (mut schur, factors) = unsafe { self.matrix_of_form(&mut memory) };
        let info = schur.find(factors);
        for (row, column) in factors::below_diagonal(side) {
            schur.t[(row, column)] = Complex::zero();
        }
        // SAFETY: the caller's promise.
        unsafe {
            self.write_form(&schur.t, &schur.q);
            self.write(2, (0..side).map(|at| schur.t[(at, at)]));
            self.write_info(3, 0);
            self.write_info(4, info);
        }
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn real_schur(&self, mut memory: &mut [f64]) {
        let side = self.lapack.columns;
        // SAFETY: the caller's promise.
        let (mut schur, factors) = unsafe { self.matrix_of_form(&mut memory) };
        let info = schur.find(factors);
        // SAFETY: the caller's promise.
        unsafe {
            self.write_form(&schur.t, &schur.q);
            self.write(2, (0..side).map(|at| schur.t[(at, at)]));
            self.write(3, (0..side).map(|at| schur.imaginary(at)));
            self.write_info(4, 0);
            self.write_info(5, info);
        }
    }

    /// A Schur form, and its vectors if they are wanted.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn write_form<T: Computed>(&self, t: &Matrix<'_, T>, q: &Matrix<'_, T>) {
        // SAFETY: the caller's promise.
        unsafe {
            self.write(0, t.of.iter().copied());
            if self.lapack.routine == (Routine::Schur { has_vectors: true }) {
                self.write(1, q.of.iter().copied());
            }
        }
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn general(&self, mut memory: &mut [Complex<f64>]) {
        let Routine::General { has_left, has_right } = self.lapack.routine else { return };
        let side = self.lapack.columns;
        // SAFETY: the caller's promise.
        let (mut schur, factors) = unsafe { self.matrix_of_form(&mut memory) };
        let mut next = |len: usize| take(&mut memory, len);
        let (values, vector) = (next(side), next(side));
        let info = schur.find(factors);
        (0..side).for_each(|at| values[at] = schur.t[(at, at)]);
        let is_real = !self.lapack.is_complex;
        let order = if is_real { in_pairs(values) } else { (0..side).collect() };
        let first = if is_real { 2 } else { 1 };
        // SAFETY: the caller's promise.
        unsafe {
            self.write(0, order.iter().map(|&at| values[at]));
            if is_real {
                self.write(1, order.iter().map(|&at| values[at].im));
            }
            for (which, is_left) in [(first, true), (first + 1, false)] {
                let is_asked = if is_left { has_left } else { has_right };
                if !is_asked {
                    continue;
                }
                let all = next(side * side);
                for (column, &at) in order.iter().enumerate() {
                    // Of a pair the second one is the conjugate of the first.
                    let is_second = is_real && values[at].im < 0.0;
                    match is_second {
                        true => vector.iter_mut().for_each(|x| *x = x.conjugate()),
                        false => schur.vector(at, is_left, vector),
                    }
                    (0..side).for_each(|row| all[row * side + column] = vector[row]);
                }
                self.write(which, all.iter().copied());
            }
            self.write_info(first + 2, info);
        }
    }
}

impl KernelStage for Lapack {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let (local, len) = (buffers.local(), self.work());
        for batch in 0..self.batch {
            let one = self.one(buffers, batch);
            // SAFETY: local memory has the requested length, and any bytes are numbers; the
            // caller's promise, passed on.
            unsafe {
                match self.is_computed_complex() {
                    true => {
                        let memory = std::slice::from_raw_parts_mut(local.cast(), len);
                        match self.routine {
                            Routine::General { .. } => one.general(memory),
                            Routine::Schur { .. } => one.schur(memory),
                            _ => one.run::<Complex<f64>>(memory),
                        }
                    }
                    false => {
                        let memory = std::slice::from_raw_parts_mut(local.cast(), len);
                        match self.routine {
                            Routine::Schur { .. } => one.real_schur(memory),
                            _ => one.run::<f64>(memory),
                        }
                    }
                }
            }
        }
    }

    fn local_bytes(&self) -> usize {
        let number = if self.is_computed_complex() { size_of::<Complex<f64>>() } else { 8 };
        self.work() * number
    }
}
