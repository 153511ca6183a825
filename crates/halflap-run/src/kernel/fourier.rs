//! Fourier transforms of several lines at once.
//!
//! Real and imaginary parts are in separate planes, and each plane has the first element of all
//! lines, then the second, so that the innermost loops are contiguous. Lengths without large prime
//! factors are split into self-sorting passes (Stockham); others become a convolution with a chirp
//! whose length is a power of two (Bluestein).

use std::f64::consts::PI;
use std::ops::{Add, Mul, Neg, Sub};

use super::block::is_wide;

/// The type of the computation.
pub(super) trait Scalar:
    Copy
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
    + Send
    + Sync
    + 'static
{
    fn of(number: f64) -> Self;
    fn get(self) -> f64;
}

impl Scalar for f32 {
    fn of(number: f64) -> f32 {
        number as f32
    }
    fn get(self) -> f64 {
        self.into()
    }
}

impl Scalar for f64 {
    fn of(number: f64) -> f64 {
        number
    }
    fn get(self) -> f64 {
        self
    }
}

/// A complex number that lines are multiplied by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Twiddle<T> {
    pub(super) re: T,
    pub(super) im: T,
}

/// `exp(-i pi k / n)`; `k` is taken modulo `2 n`, so that large ones stay exact.
pub(super) fn turn<T: Scalar>(k: usize, n: usize) -> Twiddle<T> {
    let angle = -PI * (k % (2 * n)) as f64 / n as f64;
    Twiddle { re: T::of(angle.cos()), im: T::of(angle.sin()) }
}

impl<T: Scalar> Twiddle<T> {
    #[inline(always)]
    pub(super) fn times(self, re: T, im: T) -> (T, T) {
        (self.re * re - self.im * im, self.re * im + self.im * re)
    }
}

/// Several lines, interleaved.
pub(super) struct Planes<'a, T> {
    pub(super) re: &'a mut [T],
    pub(super) im: &'a mut [T],
}

/// One pass: transforms of the length of its radix, each element turned.
struct RadixPass<T> {
    radix: usize,
    /// How many such transforms remain in a line.
    rest: usize,
    /// How many elements earlier passes have made adjacent.
    stride: usize,
    /// For each transform one for every output but the first.
    turns: Vec<Twiddle<T>>,
    /// The roots of one of the radix.
    roots: Vec<Twiddle<T>>,
}

/// A transform of one length, forward and not scaled.
pub(super) struct LineTransform<T> {
    pub(super) len: usize,
    passes: Vec<RadixPass<T>>,
    chirp: Option<Box<Chirp<T>>>,
}

/// A length with a large prime factor as a convolution.
struct Chirp<T> {
    padded: LineTransform<T>,
    by: Vec<Twiddle<T>>,
    /// The transform of the conjugate.
    kernel: Vec<Twiddle<T>>,
}

/// The radices of a length; nothing if one would be too large.
fn radices(mut len: usize) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    for radix in [4, 2, 3, 5, 7, 11, 13] {
        while len.is_multiple_of(radix) {
            found.push(radix);
            len /= radix;
        }
    }
    (len == 1).then_some(found)
}

/// Whether a length is split without a convolution, which needs more precision.
pub(super) fn is_smooth(len: usize) -> bool {
    radices(len).is_some()
}

impl<T: Scalar> LineTransform<T> {
    /// The length must not be zero.
    pub(super) fn new(len: usize) -> LineTransform<T> {
        let Some(radices) = radices(len) else {
            return LineTransform {
                len,
                passes: Vec::new(),
                chirp: Some(Box::new(Chirp::new(len))),
            };
        };
        let (mut left, mut stride) = (len, 1);
        let pass = |radix: usize| {
            let rest = left / radix;
            let turns =
                (0..rest).flat_map(|j| (1..radix).map(move |r| turn(2 * j * r, rest * radix)));
            let roots = (0..radix).map(|k| turn(2 * k, radix)).collect();
            let pass = RadixPass { radix, rest, stride, turns: turns.collect(), roots };
            (left, stride) = (rest, stride * radix);
            pass
        };
        LineTransform { len, passes: radices.into_iter().map(pass).collect(), chirp: None }
    }

    /// How many elements of each line its planes must have room for.
    pub(super) fn room(&self) -> usize {
        self.chirp.as_ref().map_or(self.len, |chirp| chirp.padded.len)
    }

    /// Transforms lines in the first planes, with the second as scratch; returns the planes that
    /// have the result.
    pub(super) fn run<'a>(
        &self,
        lines: Planes<'a, T>,
        other: Planes<'a, T>,
        count: usize,
    ) -> Planes<'a, T> {
        self.both(lines, other, count).0
    }

    fn both<'a>(
        &self,
        mut lines: Planes<'a, T>,
        mut other: Planes<'a, T>,
        count: usize,
    ) -> (Planes<'a, T>, Planes<'a, T>) {
        if let Some(chirp) = &self.chirp {
            return chirp.run(lines, other, count);
        }
        for pass in &self.passes {
            pass.run(&lines, &mut other, count);
            std::mem::swap(&mut lines, &mut other);
        }
        (lines, other)
    }
}

impl<T: Scalar> Chirp<T> {
    fn new(len: usize) -> Chirp<T> {
        let padded = LineTransform::<T>::new((2 * len - 1).next_power_of_two());
        let room = padded.len;
        let by: Vec<Twiddle<T>> = (0..len).map(|k| turn(k * k, len)).collect();
        let (mut re, mut im) = (vec![T::of(0.0); room], vec![T::of(0.0); room]);
        for (k, value) in by.iter().enumerate() {
            for at in [k, (room - k) % room] {
                (re[at], im[at]) = (value.re, -value.im);
            }
        }
        let (mut other_re, mut other_im) = (re.clone(), im.clone());
        let other = Planes { re: &mut other_re, im: &mut other_im };
        let given = padded.run(Planes { re: &mut re, im: &mut im }, other, 1);
        let scale = T::of(1.0 / room as f64);
        let pairs = given.re.iter().zip(given.im.iter());
        let kernel = pairs.map(|(&re, &im)| Twiddle { re: re * scale, im: im * scale }).collect();
        Chirp { padded, by, kernel }
    }

    fn run<'a>(
        &self,
        mut lines: Planes<'a, T>,
        mut other: Planes<'a, T>,
        count: usize,
    ) -> (Planes<'a, T>, Planes<'a, T>) {
        turned(&mut lines, &self.by, count);
        let (used, room) = (self.by.len() * count, self.padded.len * count);
        for plane in [&mut lines.re, &mut lines.im] {
            plane[used..room].fill(T::of(0.0));
        }
        (lines, other) = self.padded.both(lines, other, count);
        turned(&mut lines, &self.kernel, count);
        // The inverse, by the forward transform of the conjugate.
        lines.im[..room].iter_mut().for_each(|im| *im = -*im);
        (lines, other) = self.padded.both(lines, other, count);
        lines.im[..used].iter_mut().for_each(|im| *im = -*im);
        turned(&mut lines, &self.by, count);
        (lines, other)
    }
}

/// Multiplies the elements of all lines.
fn turned<T: Scalar>(lines: &mut Planes<'_, T>, by: &[Twiddle<T>], count: usize) {
    let elements = lines.re.chunks_exact_mut(count).zip(lines.im.chunks_exact_mut(count));
    for ((re, im), by) in elements.zip(by) {
        re.iter_mut().zip(im).for_each(|(re, im)| (*re, *im) = by.times(*re, *im));
    }
}

impl<T: Scalar> RadixPass<T> {
    fn run(&self, from: &Planes<'_, T>, to: &mut Planes<'_, T>, count: usize) {
        match is_wide() {
            // SAFETY: the machine has the vectors.
            true => unsafe { self.wide(from, to, count) },
            false => self.plain(from, to, count),
        }
    }

    /// # Safety
    /// The machine must have 256-bit vectors.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
    unsafe fn wide(&self, from: &Planes<'_, T>, to: &mut Planes<'_, T>, count: usize) {
        self.plain(from, to, count);
    }

    #[inline(always)]
    fn plain(&self, from: &Planes<'_, T>, to: &mut Planes<'_, T>, count: usize) {
        let run = self.stride * count;
        for j in 0..self.rest {
            let input = |number: usize| {
                let place = (j + self.rest * number) * run;
                (&from.re[place..][..run], &from.im[place..][..run])
            };
            let turns = &self.turns[j * (self.radix - 1)..][..self.radix - 1];
            let place = self.radix * j * run;
            let re = &mut to.re[place..][..self.radix * run];
            let im = &mut to.im[place..][..self.radix * run];
            match self.radix {
                2 => two([input(0), input(1)], Planes { re, im }, turns[0]),
                4 => {
                    four([0, 1, 2, 3].map(input), Planes { re, im }, [turns[0], turns[1], turns[2]])
                }
                _ => self.many(input, Planes { re, im }, turns),
            }
        }
    }

    /// Any radix, by its definition.
    #[inline(always)]
    fn many<'f>(
        &self,
        input: impl Fn(usize) -> (&'f [T], &'f [T]),
        to: Planes<'_, T>,
        turns: &[Twiddle<T>],
    ) {
        let run = to.re.len() / self.radix;
        for r in 0..self.radix {
            let out_re = &mut to.re[r * run..][..run];
            let out_im = &mut to.im[r * run..][..run];
            let (re, im) = input(0);
            out_re.copy_from_slice(re);
            out_im.copy_from_slice(im);
            for t in 1..self.radix {
                let ((re, im), root) = (input(t), self.roots[r * t % self.radix]);
                for i in 0..run {
                    let (more_re, more_im) = root.times(re[i], im[i]);
                    out_re[i] = out_re[i] + more_re;
                    out_im[i] = out_im[i] + more_im;
                }
            }
            if let Some(by) = r.checked_sub(1).map(|r| turns[r]) {
                for i in 0..run {
                    (out_re[i], out_im[i]) = by.times(out_re[i], out_im[i]);
                }
            }
        }
    }
}

/// The parts of an element of several lines.
type ElementParts<'a, T> = (&'a [T], &'a [T]);

#[inline(always)]
fn two<T: Scalar>([a, b]: [ElementParts<'_, T>; 2], to: Planes<'_, T>, by: Twiddle<T>) {
    let run = a.0.len();
    let (re0, re1) = to.re.split_at_mut(run);
    let (im0, im1) = to.im.split_at_mut(run);
    let (re1, im0, im1) = (&mut re1[..run], &mut im0[..run], &mut im1[..run]);
    let (a_im, b_re, b_im) = (&a.1[..run], &b.0[..run], &b.1[..run]);
    for i in 0..run {
        re0[i] = a.0[i] + b_re[i];
        im0[i] = a_im[i] + b_im[i];
        (re1[i], im1[i]) = by.times(a.0[i] - b_re[i], a_im[i] - b_im[i]);
    }
}

#[inline(always)]
fn four<T: Scalar>(from: [ElementParts<'_, T>; 4], to: Planes<'_, T>, by: [Twiddle<T>; 3]) {
    let run = from[0].0.len();
    let [(a_re, a_im), (b_re, b_im), (c_re, c_im), (d_re, d_im)] =
        from.map(|(re, im)| (&re[..run], &im[..run]));
    let (re0, rest) = to.re.split_at_mut(run);
    let (re1, rest) = rest.split_at_mut(run);
    let (re2, re3) = rest.split_at_mut(run);
    let (im0, rest) = to.im.split_at_mut(run);
    let (im1, rest) = rest.split_at_mut(run);
    let (im2, im3) = rest.split_at_mut(run);
    let (re3, im3) = (&mut re3[..run], &mut im3[..run]);
    for i in 0..run {
        let (sum_re, sum_im) = (a_re[i] + c_re[i], a_im[i] + c_im[i]);
        let (less_re, less_im) = (a_re[i] - c_re[i], a_im[i] - c_im[i]);
        let (odd_re, odd_im) = (b_re[i] + d_re[i], b_im[i] + d_im[i]);
        let (off_re, off_im) = (b_re[i] - d_re[i], b_im[i] - d_im[i]);
        re0[i] = sum_re + odd_re;
        im0[i] = sum_im + odd_im;
        (re1[i], im1[i]) = by[0].times(less_re + off_im, less_im - off_re);
        (re2[i], im2[i]) = by[1].times(sum_re - odd_re, sum_im - odd_im);
        (re3[i], im3[i]) = by[2].times(less_re - off_im, less_im + off_re);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Scalar>(len: usize, within: f64) {
        const COUNT: usize = 3;
        let line = LineTransform::<T>::new(len);
        let value = |at: usize, line: usize| {
            ((at as f64 * 1.7 + line as f64).sin(), (at as f64 - line as f64).cos())
        };
        let room = line.room() * COUNT;
        let mut planes: [Vec<T>; 4] = std::array::from_fn(|_| vec![T::of(0.0); room]);
        for (at, of) in (0..len).flat_map(|at| (0..COUNT).map(move |of| (at, of))) {
            let (re, im) = value(at, of);
            planes[0][at * COUNT + of] = T::of(re);
            planes[1][at * COUNT + of] = T::of(im);
        }
        let [re, im, other_re, other_im] = &mut planes;
        let given = line.run(Planes { re, im }, Planes { re: other_re, im: other_im }, COUNT);
        for (k, of) in (0..len).flat_map(|k| (0..COUNT).map(move |of| (k, of))) {
            let mut sum = (0.0, 0.0);
            for at in 0..len {
                let (re, im) = value(at, of);
                let (re, im) = turn::<f64>(2 * at * k, len).times(re, im);
                sum = (sum.0 + re, sum.1 + im);
            }
            let place = k * COUNT + of;
            let off = (sum.0 - given.re[place].get()).abs() + (sum.1 - given.im[place].get()).abs();
            assert!(off < within * len as f64, "{len}: {k} of line {of} is off by {off}");
        }
    }

    /// Every length against the definition.
    #[test]
    fn lines_are_sums_of_turns() {
        (1..70).chain([128, 210, 256, 1024]).for_each(|len| check::<f64>(len, 1e-12));
        [1, 2, 3, 4, 5, 8, 12, 16, 60, 64, 256, 1001]
            .into_iter()
            .for_each(|len| check::<f32>(len, 1e-6));
    }
}
