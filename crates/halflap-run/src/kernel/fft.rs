//! Fourier transforms of any length, computed in f64.
//!
//! Lengths that are powers of two by the usual halving; others as a convolution with a chirp of such a
//! length (Bluestein). Tables are made when the kernel is made.

use std::f64::consts::PI;

use super::Buffers;
use super::error::What;
use super::formula::{Op, TermId, Transform};
use super::plan::{Planner, Slot, Stage, Trouble};
use crate::tensor::{Complex, DType};

type C = Complex<f64>;

const ZERO: C = Complex { re: 0.0, im: 0.0 };

fn times(a: C, b: C) -> C {
    Complex { re: a.re * b.re - a.im * b.im, im: a.re * b.im + a.im * b.re }
}

fn conjugate(a: C) -> C {
    Complex { re: a.re, im: -a.im }
}

/// `exp(-i pi k / n)`; `k` is taken modulo `2 n`, so that large ones stay exact.
fn turn(k: usize, n: usize) -> C {
    let angle = -PI * (k % (2 * n)) as f64 / n as f64;
    Complex { re: angle.cos(), im: angle.sin() }
}

/// A transform of one length, forward and not scaled.
struct Line {
    len: usize,
    /// The power of two that is computed with.
    padded: usize,
    /// Roots of one, for the padded length.
    roots: Vec<C>,
    /// For a length that is not a power of two: the chirp, and the transform of its conjugate.
    chirp: Option<(Vec<C>, Vec<C>)>,
}

impl Line {
    fn new(len: usize) -> Line {
        let is_power = len.is_power_of_two();
        let padded = if is_power { len } else { (2 * len - 1).next_power_of_two() };
        let roots = (0..padded / 2).map(|k| turn(2 * k, padded)).collect();
        let mut line = Line { len, padded, roots, chirp: None };
        if !is_power {
            let chirp: Vec<C> = (0..len).map(|k| turn(k * k, len)).collect();
            let mut kernel = vec![ZERO; padded];
            for (k, &value) in chirp.iter().enumerate() {
                kernel[k] = conjugate(value);
                kernel[(padded - k) % padded] = conjugate(value);
            }
            line.halve(&mut kernel);
            line.chirp = Some((chirp, kernel));
        }
        line
    }

    /// Transforms in place; `work` has the padded length.
    fn run(&self, data: &mut [C], work: &mut [C]) {
        let Some((chirp, kernel)) = &self.chirp else { return self.halve(data) };
        work.fill(ZERO);
        for ((to, &value), &by) in work.iter_mut().zip(&*data).zip(chirp) {
            *to = times(value, by);
        }
        self.halve(work);
        // Back by the same transform of the conjugate.
        work.iter_mut().zip(kernel).for_each(|(value, &by)| *value = conjugate(times(*value, by)));
        self.halve(work);
        let scale = 1.0 / self.padded as f64;
        for ((to, &value), &by) in data.iter_mut().zip(&*work).zip(chirp) {
            let value = Complex { re: value.re * scale, im: -value.im * scale };
            *to = times(value, by);
        }
    }

    /// A transform of a power of two in place.
    fn halve(&self, data: &mut [C]) {
        let len = data.len();
        if len < 2 {
            return;
        }
        let bits = len.trailing_zeros();
        for at in 0..len {
            let other = at.reverse_bits() >> (usize::BITS - bits);
            if at < other {
                data.swap(at, other);
            }
        }
        let mut half = 1;
        while half < len {
            let step = len / (2 * half);
            for start in (0..len).step_by(2 * half) {
                for k in 0..half {
                    let (a, b) =
                        (data[start + k], times(data[start + k + half], self.roots[k * step]));
                    data[start + k] = Complex { re: a.re + b.re, im: a.im + b.im };
                    data[start + k + half] = Complex { re: a.re - b.re, im: a.im - b.im };
                }
            }
            half *= 2;
        }
    }
}

struct Fft {
    transform: Transform,
    from: Slot,
    to: Slot,
    is_double: bool,
    batch: usize,
    /// One for each dimension that is transformed.
    lines: Vec<Line>,
}

pub(super) fn plan(planner: &mut Planner<'_>, id: TermId) -> Result<Slot, Trouble> {
    let term = planner.formula.term(id);
    let Op::Fft { transform, lengths } = &term.op else {
        return Err(planner.fail(id, What::Operation));
    };
    let dims = &planner.formula.term(term.args[0]).dims;
    let Some(outer) = dims.len().checked_sub(lengths.len()).filter(|_| !lengths.is_empty()) else {
        return Err(planner.fail(id, What::Shape));
    };
    let is_double = matches!(term.dtype, DType::F64 | DType::C128);
    let from = planner.make(term.args[0])?;
    let batch = dims[..outer].iter().product();
    let to = planner.target(id);
    let lines = lengths.iter().map(|&len| Line::new(len)).collect();
    planner.add(Fft { transform: *transform, from, to, is_double, batch, lines });
    Ok(to)
}

impl Fft {
    fn len(&self) -> usize {
        self.lines.iter().map(|line| line.len).product()
    }

    /// The longest padded line.
    fn longest(&self) -> usize {
        self.lines.iter().map(|line| line.padded.max(line.len)).max().unwrap_or(0)
    }

    fn last(&self) -> usize {
        self.lines.last().map_or(1, |line| line.len)
    }

    /// How many of the last dimension's elements there are where the other half follows from them.
    fn half(&self) -> usize {
        self.last() / 2 + 1
    }

    /// One array of the batch, as complex numbers of full length.
    ///
    /// # Safety
    /// The slot must hold the batch.
    unsafe fn load(&self, buffers: &Buffers<'_>, batch: usize, data: &mut [C]) {
        let from = buffers.read(self.from);
        // SAFETY: an element of the array; the caller's promise.
        let number = |at: usize| unsafe {
            match self.is_double {
                true => from.cast::<f64>().add(at).read(),
                false => f64::from(from.cast::<f32>().add(at).read()),
            }
        };
        let (len, last, half) = (self.len(), self.last(), self.half());
        match self.transform {
            Transform::Real => {
                data.iter_mut()
                    .enumerate()
                    .for_each(|(at, to)| *to = Complex { re: number(batch * len + at), im: 0.0 });
            }
            Transform::Forward | Transform::Inverse => {
                let complex = |at: usize| Complex { re: number(2 * at), im: number(2 * at + 1) };
                data.iter_mut().enumerate().for_each(|(at, to)| *to = complex(batch * len + at));
            }
            Transform::InverseReal => {
                let rows = len / last;
                let complex = |at: usize| Complex { re: number(2 * at), im: number(2 * at + 1) };
                for (at, to) in data.iter_mut().enumerate() {
                    let (row, column) = (at / last, at % last);
                    *to = match column < half {
                        true => complex((batch * rows + row) * half + column),
                        false => conjugate(complex(
                            (batch * rows + self.mirrored(row)) * half + last - column,
                        )),
                    };
                }
            }
        }
    }

    /// The row whose indices are the negatives of a row's.
    fn mirrored(&self, row: usize) -> usize {
        let (mut left, mut found, mut by) = (row, 0, 1);
        for line in self.lines[..self.lines.len() - 1].iter().rev() {
            found += (line.len - left % line.len) % line.len * by;
            left /= line.len;
            by *= line.len;
        }
        found
    }

    /// # Safety
    /// The slot must hold the batch.
    unsafe fn store(&self, buffers: &Buffers<'_>, batch: usize, data: &[C]) {
        let to = buffers.write(self.to);
        // SAFETY: an element of the array; the caller's promise.
        let write = |at: usize, value: f64| unsafe {
            match self.is_double {
                true => to.cast::<f64>().add(at).write(value),
                false => to.cast::<f32>().add(at).write(value as f32),
            }
        };
        let (last, half) = (self.last(), self.half());
        let kept = if self.transform == Transform::Real { half } else { last };
        for (at, value) in data.iter().enumerate().filter(|(at, _)| at % last < kept) {
            let place = (batch * data.len() / last + at / last) * kept + at % last;
            match self.transform {
                Transform::InverseReal => write(place, value.re),
                _ => {
                    write(2 * place, value.re);
                    write(2 * place + 1, value.im);
                }
            }
        }
    }

    fn transform(&self, data: &mut [C], buffer: &mut [C], work: &mut [C]) {
        let is_inverse = matches!(self.transform, Transform::Inverse | Transform::InverseReal);
        let scale = 1.0 / data.len() as f64;
        if is_inverse {
            data.iter_mut().for_each(|value| *value = conjugate(*value));
        }
        let mut step = 1;
        for line in self.lines.iter().rev() {
            let buffer = &mut buffer[..line.len];
            for start in (0..data.len()).filter(|start| start / step % line.len == 0) {
                (0..line.len).for_each(|at| buffer[at] = data[start + at * step]);
                line.run(buffer, &mut work[..line.padded]);
                (0..line.len).for_each(|at| data[start + at * step] = buffer[at]);
            }
            step *= line.len;
        }
        if is_inverse {
            data.iter_mut()
                .for_each(|value| *value = Complex { re: value.re * scale, im: -value.im * scale });
        }
    }
}

impl Stage for Fft {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let (len, longest) = (self.len(), self.longest());
        // SAFETY: local memory has the requested length, and any bytes are numbers.
        let local = unsafe {
            std::slice::from_raw_parts_mut(buffers.local().cast::<C>(), len + 2 * longest)
        };
        let (data, rest) = local.split_at_mut(len);
        let (buffer, work) = rest.split_at_mut(longest);
        for batch in buffers.share(self.batch) {
            // SAFETY: the slots hold the batch.
            unsafe { self.load(buffers, batch, data) };
            self.transform(data, buffer, work);
            // SAFETY: as above.
            unsafe { self.store(buffers, batch, data) };
        }
    }

    fn parts(&self) -> usize {
        super::plan::parts_of(self.batch * self.len() * 8, self.batch)
    }

    fn local_bytes(&self) -> usize {
        (self.len() + 2 * self.longest()) * size_of::<C>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length against the definition.
    #[test]
    fn lines_are_sums_of_turns() {
        for len in 1..40 {
            let line = Line::new(len);
            let data: Vec<C> = (0..len)
                .map(|at| Complex { re: (at as f64 * 1.7).sin(), im: (at as f64).cos() })
                .collect();
            let mut given = data.clone();
            line.run(&mut given, &mut vec![ZERO; line.padded]);
            for (k, value) in given.iter().enumerate() {
                let sum =
                    data.iter().enumerate().map(|(at, &value)| times(value, turn(2 * at * k, len)));
                let sum = sum.fold(ZERO, |a, b| Complex { re: a.re + b.re, im: a.im + b.im });
                assert!((sum.re - value.re).abs() + (sum.im - value.im).abs() < 1e-11, "{len} {k}");
            }
        }
    }
}
