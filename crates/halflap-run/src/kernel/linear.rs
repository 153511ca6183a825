//! Cholesky factors and triangular systems, of batches of matrices: plain loops, computed in the
//! type itself.

use super::Buffers;
use super::error::Gap;
use super::formula::{Solving, TermId};
use super::math::Real;
use super::plan::{ArraySlot, KernelStage, Planner, Trouble};
use crate::tensor::{Complex, DType};

/// A number that can be divided by, in its own type.
trait SystemNumber: Copy + Default {
    fn less(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
    fn conjugate(self) -> Self;
    /// The root of its real part.
    fn root(self) -> Self;
}

impl<T: Real + Default> SystemNumber for T {
    fn less(self, other: T) -> T {
        self.sub(other)
    }

    fn times(self, other: T) -> T {
        self.mul(other)
    }

    fn over(self, other: T) -> T {
        self.div(other)
    }

    fn conjugate(self) -> T {
        self
    }

    fn root(self) -> T {
        self.sqrt()
    }
}

impl<T: Real + Default> SystemNumber for Complex<T> {
    fn less(self, other: Complex<T>) -> Complex<T> {
        Complex { re: self.re.sub(other.re), im: self.im.sub(other.im) }
    }

    fn times(self, other: Complex<T>) -> Complex<T> {
        let re = self.re.mul(other.re).sub(self.im.mul(other.im));
        Complex { re, im: self.re.mul(other.im).add(self.im.mul(other.re)) }
    }

    fn over(self, other: Complex<T>) -> Complex<T> {
        let size = other.re.mul(other.re).add(other.im.mul(other.im));
        let product = self.times(other.conjugate());
        Complex { re: product.re.div(size), im: product.im.div(size) }
    }

    fn conjugate(self) -> Complex<T> {
        Complex { re: self.re, im: self.im.neg() }
    }

    fn root(self) -> Complex<T> {
        Complex { re: self.re.sqrt(), im: T::default() }
    }
}

/// Calls a function for a type's Rust equivalent.
macro_rules! for_field {
    ($dtype:expr, $self:ident.$function:ident($buffers:expr)) => {
        match $dtype {
            DType::C64 => $self.$function::<Complex<f32>>($buffers),
            DType::C128 => $self.$function::<Complex<f64>>($buffers),
            DType::F64 => $self.$function::<f64>($buffers),
            _ => $self.$function::<f32>($buffers),
        }
    };
}

/// Whether there are such numbers.
fn is_field(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::C64 | DType::C128)
}

struct Cholesky {
    is_lower: bool,
    from: ArraySlot,
    to: ArraySlot,
    dtype: DType,
    batch: usize,
    side: usize,
}

pub(super) fn cholesky(
    planner: &mut Planner<'_>,
    id: TermId,
    is_lower: bool,
) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let from = planner.make(term.args[0])?;
    let (Some(&side), true) = (term.dims.last(), is_field(term.dtype)) else {
        return Err(planner.fail(id, Gap::OfType(term.dtype)));
    };
    let to = planner.target(id);
    let batch = term.len() / (side * side).max(1);
    planner.add(Cholesky { is_lower, from, to, dtype: term.dtype, batch, side });
    Ok(to)
}

impl Cholesky {
    /// # Safety
    /// The slots must hold the matrices, of this type.
    unsafe fn compute<T: SystemNumber>(&self, buffers: &Buffers<'_>) {
        let (n, len) = (self.side, self.side * self.side);
        for batch in 0..self.batch {
            // SAFETY: one matrix of each.
            let (from, to) = unsafe {
                (
                    std::slice::from_raw_parts(
                        buffers.read(self.from).cast::<T>().add(batch * len),
                        len,
                    ),
                    std::slice::from_raw_parts_mut(
                        buffers.write(self.to).cast::<T>().add(batch * len),
                        len,
                    ),
                )
            };
            // The upper factor is the lower one of the transposed matrix, transposed.
            let at = |row: usize, column: usize| {
                if self.is_lower { row * n + column } else { column * n + row }
            };
            to.fill(T::default());
            for column in 0..n {
                for row in column..n {
                    let mut sum = from[at(row, column)];
                    for k in 0..column {
                        sum = sum.less(to[at(row, k)].times(to[at(column, k)].conjugate()));
                    }
                    to[at(row, column)] =
                        if row == column { sum.root() } else { sum.over(to[at(column, column)]) };
                }
            }
        }
    }
}

impl KernelStage for Cholesky {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise, passed on.
        unsafe { for_field!(self.dtype, self.compute(buffers)) }
    }
}

struct Solve {
    solving: Solving,
    matrix: ArraySlot,
    from: ArraySlot,
    to: ArraySlot,
    dtype: DType,
    batch: usize,
    rows: usize,
    columns: usize,
}

pub(super) fn solve(
    planner: &mut Planner<'_>,
    id: TermId,
    solving: Solving,
) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let (matrix, from) = (planner.make(term.args[0])?, planner.make(term.args[1])?);
    let ([.., rows, columns], true) = (&term.dims[..], is_field(term.dtype)) else {
        return Err(planner.fail(id, Gap::OfType(term.dtype)));
    };
    let batch = term.len() / (rows * columns).max(1);
    let to = planner.target(id);
    planner.add(Solve {
        solving,
        matrix,
        from,
        to,
        dtype: term.dtype,
        batch,
        rows: *rows,
        columns: *columns,
    });
    Ok(to)
}

impl Solve {
    /// # Safety
    /// The slots must hold the matrices, of this type.
    unsafe fn compute<T: SystemNumber>(&self, buffers: &Buffers<'_>) {
        let Solving { is_left, is_lower, is_transposed, is_conjugated, is_unit } = self.solving;
        let len = self.rows * self.columns;
        // From the right, the system is that of the transposed matrices.
        let (n, others) =
            if is_left { (self.rows, self.columns) } else { (self.columns, self.rows) };
        let at = |i: usize, other: usize| {
            if is_left { i * self.columns + other } else { other * self.columns + i }
        };
        let is_turned = is_transposed == is_left;
        for batch in 0..self.batch {
            // SAFETY: one matrix of each.
            let (a, b, x) = unsafe {
                (
                    std::slice::from_raw_parts(
                        buffers.read(self.matrix).cast::<T>().add(batch * n * n),
                        n * n,
                    ),
                    std::slice::from_raw_parts(
                        buffers.read(self.from).cast::<T>().add(batch * len),
                        len,
                    ),
                    std::slice::from_raw_parts_mut(
                        buffers.write(self.to).cast::<T>().add(batch * len),
                        len,
                    ),
                )
            };
            let element = |i: usize, k: usize| {
                let value = if is_turned { a[k * n + i] } else { a[i * n + k] };
                if is_conjugated { value.conjugate() } else { value }
            };
            let is_forward = is_lower != is_turned;
            for other in 0..others {
                for step in 0..n {
                    let i = if is_forward { step } else { n - 1 - step };
                    let mut sum = b[at(i, other)];
                    let known = if is_forward { 0..i } else { i + 1..n };
                    for k in known {
                        sum = sum.less(element(i, k).times(x[at(k, other)]));
                    }
                    x[at(i, other)] = if is_unit { sum } else { sum.over(element(i, i)) };
                }
            }
        }
    }
}

impl KernelStage for Solve {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise, passed on.
        unsafe { for_field!(self.dtype, self.compute(buffers)) }
    }
}
