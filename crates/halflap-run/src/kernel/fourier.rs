//! Fourier transforms of several lines at once.
//!
//! Real and imaginary parts are in separate planes, and each plane has the first element of all
//! lines, then the second, so that the innermost loops are contiguous. Lengths without large prime
//! factors are split into self-sorting passes (Stockham); others become a convolution with a chirp
//! whose length is a power of two (Bluestein).

use std::f64::consts::PI;
use std::ops::{Add, Mul, Neg, Sub};

use super::block::is_wide;
use super::lanes::{LANES, Pack, PlainPack, Single};
use crate::tensor::Complex;

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
    /// What is computed at once, on a machine with wide vectors.
    type Wide: Pack<Self>;

    fn of(number: f64) -> Self;
    fn get(self) -> f64;
}

impl Scalar for f32 {
    #[cfg(target_arch = "x86_64")]
    type Wide = std::arch::x86_64::__m256;
    #[cfg(not(target_arch = "x86_64"))]
    type Wide = PlainPack<f32>;

    #[inline(always)]
    fn of(number: f64) -> f32 {
        number as f32
    }

    #[inline(always)]
    fn get(self) -> f64 {
        self.into()
    }
}

impl Scalar for f64 {
    #[cfg(target_arch = "x86_64")]
    type Wide = std::arch::x86_64::__m256d;
    #[cfg(not(target_arch = "x86_64"))]
    type Wide = PlainPack<f64>;

    #[inline(always)]
    fn of(number: f64) -> f64 {
        number
    }

    #[inline(always)]
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

/// The radices of a length; nothing if one would be too large. Few large ones: every pass goes
/// through all of the memory.
fn radices(len: usize) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    let mut twos = len.trailing_zeros();
    let mut left = len >> twos;
    while twos > 0 {
        let bits = match twos {
            1 => 1,
            2 | 4 => 2,
            _ => 3,
        };
        found.push(1 << bits);
        twos -= bits;
    }
    for radix in [3, 5, 7, 11, 13] {
        while left.is_multiple_of(radix) {
            found.push(radix);
            left /= radix;
        }
    }
    (left == 1).then_some(found)
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
    /// have the result, and the others.
    pub(super) fn run<'a>(
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
        let (given, _) = padded.run(Planes { re: &mut re, im: &mut im }, other, 1);
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
        (lines, other) = self.padded.run(lines, other, count);
        turned(&mut lines, &self.kernel, count);
        // The inverse, by the forward transform of the conjugate.
        lines.im[..room].iter_mut().for_each(|im| *im = -*im);
        (lines, other) = self.padded.run(lines, other, count);
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
        let run = self.stride * count;
        let used = self.radix * self.rest * run;
        let planes = [&*from.re, &*from.im, &*to.re, &*to.im];
        assert!(planes.iter().all(|plane| plane.len() >= used), "planes are too short");
        let ends = PassEnds {
            from: Complex { re: from.re.as_ptr(), im: from.im.as_ptr() },
            to: Complex { re: to.re.as_mut_ptr(), im: to.im.as_mut_ptr() },
            run,
        };
        // SAFETY: the planes hold all elements, and the machine has the vectors.
        unsafe {
            match is_wide() {
                true if run.is_multiple_of(T::Wide::LEN) => self.wide::<T::Wide>(ends),
                true => self.wide::<Single<T>>(ends),
                false if run.is_multiple_of(LANES) => self.with::<PlainPack<T>>(ends),
                false => self.with::<Single<T>>(ends),
            }
        }
    }

    /// # Safety
    /// As for [`RadixPass::sweep`]. The machine must have 256-bit vectors.
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
    unsafe fn wide<V: Pack<T>>(&self, ends: PassEnds<T>) {
        // SAFETY: the caller's promise.
        unsafe { self.with::<V>(ends) };
    }

    /// # Safety
    /// As for [`RadixPass::sweep`].
    #[inline(always)]
    unsafe fn with<V: Pack<T>>(&self, ends: PassEnds<T>) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.radix {
                2 => self.sweep::<V, 2>(ends),
                3 => self.sweep::<V, 3>(ends),
                4 => self.sweep::<V, 4>(ends),
                5 => self.sweep::<V, 5>(ends),
                7 => self.sweep::<V, 7>(ends),
                8 => self.sweep::<V, 8>(ends),
                11 => self.sweep::<V, 11>(ends),
                _ => self.sweep::<V, 13>(ends),
            }
        }
    }

    /// All transforms of one radix.
    ///
    /// # Safety
    /// The planes must hold the elements of all transforms.
    #[inline(always)]
    unsafe fn sweep<V: Pack<T>, const RADIX: usize>(&self, ends: PassEnds<T>) {
        let PassEnds { from, to, run } = ends;
        let zero = Complex { re: V::all(T::of(0.0)), im: V::all(T::of(0.0)) };
        for j in 0..self.rest {
            let turns = &self.turns[j * (RADIX - 1)..][..RADIX - 1];
            for i in (0..run).step_by(V::LEN) {
                let mut values = [zero; RADIX];
                for (t, value) in values.iter_mut().enumerate() {
                    let at = (j + self.rest * t) * run + i;
                    // SAFETY: elements of a transform; the caller's promise.
                    unsafe {
                        *value =
                            Complex { re: V::load(from.re.add(at)), im: V::load(from.im.add(at)) };
                    }
                }
                values = transformed(values, &self.roots);
                for (r, mut value) in values.into_iter().enumerate() {
                    // The first transform's turns, and the first output's, are whole ones.
                    if j > 0 && r > 0 {
                        value = turned_by(value, turns[r - 1]);
                    }
                    let at = (RADIX * j + r) * run + i;
                    // SAFETY: as above.
                    unsafe {
                        value.re.store(to.re.add(at));
                        value.im.store(to.im.add(at));
                    }
                }
            }
        }
    }
}

/// The planes of a pass, and how many numbers are beside each other in them.
struct PassEnds<T> {
    from: Complex<*const T>,
    to: Complex<*mut T>,
    run: usize,
}

#[inline(always)]
pub(super) fn plus<T: Scalar, V: Pack<T>>(a: Complex<V>, b: Complex<V>) -> Complex<V> {
    Complex { re: a.re.plus(b.re), im: a.im.plus(b.im) }
}

#[inline(always)]
pub(super) fn less<T: Scalar, V: Pack<T>>(a: Complex<V>, b: Complex<V>) -> Complex<V> {
    Complex { re: a.re.less(b.re), im: a.im.less(b.im) }
}

/// `a - i b`.
#[inline(always)]
fn less_turned<T: Scalar, V: Pack<T>>(a: Complex<V>, b: Complex<V>) -> Complex<V> {
    Complex { re: a.re.plus(b.im), im: a.im.less(b.re) }
}

/// `a + i b`.
#[inline(always)]
fn plus_turned<T: Scalar, V: Pack<T>>(a: Complex<V>, b: Complex<V>) -> Complex<V> {
    Complex { re: a.re.less(b.im), im: a.im.plus(b.re) }
}

#[inline(always)]
pub(super) fn turned_by<T: Scalar, V: Pack<T>>(a: Complex<V>, by: Twiddle<T>) -> Complex<V> {
    let (re, im) = (V::all(by.re), V::all(by.im));
    Complex { re: re.times(a.re).less(im.times(a.im)), im: re.times(a.im).plus(im.times(a.re)) }
}

/// A transform of the length of a radix.
#[inline(always)]
fn transformed<T: Scalar, V: Pack<T>, const RADIX: usize>(
    mut values: [Complex<V>; RADIX],
    roots: &[Twiddle<T>],
) -> [Complex<V>; RADIX] {
    match RADIX {
        2 => {
            let (a, b) = (values[0], values[1]);
            (values[0], values[1]) = (plus(a, b), less(a, b));
        }
        4 => {
            let made = four([values[0], values[1], values[2], values[3]]);
            values.copy_from_slice(&made);
        }
        8 => eight(&mut values),
        _ => odd(&mut values, roots),
    }
    values
}

#[inline(always)]
fn four<T: Scalar, V: Pack<T>>([a, b, c, d]: [Complex<V>; 4]) -> [Complex<V>; 4] {
    let (sum, off) = (plus(a, c), less(a, c));
    let (odd_sum, odd_off) = (plus(b, d), less(b, d));
    [plus(sum, odd_sum), less_turned(off, odd_off), less(sum, odd_sum), plus_turned(off, odd_off)]
}

/// Two transforms of four: of sums, and of differences that are turned by eighths.
#[inline(always)]
fn eight<T: Scalar, V: Pack<T>, const RADIX: usize>(x: &mut [Complex<V>; RADIX]) {
    let half = V::all(T::of(std::f64::consts::FRAC_1_SQRT_2));
    let (a, b, c, d) = (less(x[0], x[4]), less(x[1], x[5]), less(x[2], x[6]), less(x[3], x[7]));
    let even = four([plus(x[0], x[4]), plus(x[1], x[5]), plus(x[2], x[6]), plus(x[3], x[7])]);
    let b = Complex { re: b.re.plus(b.im).times(half), im: b.im.less(b.re).times(half) };
    // Its imaginary part with the opposite sign.
    let d = Complex { re: d.im.less(d.re).times(half), im: d.im.plus(d.re).times(half) };
    let (sum, off) = (less_turned(a, c), plus_turned(a, c));
    let odd_sum = Complex { re: b.re.plus(d.re), im: b.im.less(d.im) };
    let odd_off = Complex { re: b.re.less(d.re), im: b.im.plus(d.im) };
    (x[0], x[2], x[4], x[6]) = (even[0], even[1], even[2], even[3]);
    (x[1], x[5]) = (plus(sum, odd_sum), less(sum, odd_sum));
    (x[3], x[7]) = (less_turned(off, odd_off), plus_turned(off, odd_off));
}

/// An odd radix: elements that are equally far from the first have the same cosines, and opposite
/// sines.
#[inline(always)]
fn odd<T: Scalar, V: Pack<T>, const RADIX: usize>(
    x: &mut [Complex<V>; RADIX],
    roots: &[Twiddle<T>],
) {
    let roots = &roots[..RADIX];
    let first = x[0];
    let (mut sums, mut offs) = (*x, *x);
    for t in 1..=RADIX / 2 {
        sums[t] = plus(x[t], x[RADIX - t]);
        offs[t] = less(x[t], x[RADIX - t]);
        x[0] = plus(x[0], sums[t]);
    }
    for r in 1..=RADIX / 2 {
        let mut middle = first;
        let mut side = scaled(offs[1], -roots[r].im);
        for t in 1..=RADIX / 2 {
            let root = roots[r * t % RADIX];
            middle = plus(middle, scaled(sums[t], root.re));
            if t > 1 {
                side = plus(side, scaled(offs[t], -root.im));
            }
        }
        x[r] = less_turned(middle, side);
        x[RADIX - r] = plus_turned(middle, side);
    }
}

#[inline(always)]
fn scaled<T: Scalar, V: Pack<T>>(a: Complex<V>, by: T) -> Complex<V> {
    let by = V::all(by);
    Complex { re: a.re.times(by), im: a.im.times(by) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Scalar, const COUNT: usize>(len: usize, within: f64) {
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
        let (given, _) = line.run(Planes { re, im }, Planes { re: other_re, im: other_im }, COUNT);
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
        for len in (1..70).chain([128, 210, 256, 1024]) {
            check::<f64, 3>(len, 1e-12);
            check::<f64, LANES>(len, 1e-12);
        }
        for len in [1, 2, 3, 4, 5, 8, 12, 16, 32, 60, 64, 128, 256, 1001] {
            check::<f32, 3>(len, 1e-6);
            check::<f32, LANES>(len, 1e-6);
        }
    }
}
