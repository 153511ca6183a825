//! Numbers that are computed together, one of each of several lines: a vector of the machine, or an
//! array where it has none.
//!
//! Code over packs is inlined into a function that may use the vectors.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::fourier::Scalar;

/// How many lines lie beside each other.
pub(super) const LANES: usize = 8;

/// How many complex numbers of each line [`Pack::read_few`] reads.
pub(super) const FEW: usize = 4;

/// Some numbers.
pub(super) trait Pack<T: Scalar>: Copy {
    /// How many they are: a divisor of [`LANES`].
    const LEN: usize;

    /// # Safety
    /// `from` must hold as many numbers.
    unsafe fn load(from: *const T) -> Self;

    /// # Safety
    /// `to` must have room for as many numbers.
    unsafe fn store(self, to: *mut T);

    fn all(number: T) -> Self;

    fn plus(self, other: Self) -> Self;

    fn less(self, other: Self) -> Self;

    fn times(self, other: Self) -> Self;

    /// Of neighbouring pairs in two packs, the first numbers and the second ones. The sequence of
    /// lines may change; [`Pack::joined`] restores it.
    fn split(self, other: Self) -> (Self, Self);

    /// The opposite of [`Pack::split`].
    fn joined(self, other: Self) -> (Self, Self);

    /// Reads complex numbers, [`FEW`] of each of all lines, which are `apart` from each other, and
    /// writes their parts: the first numbers of all lines, then the second ones.
    ///
    /// # Safety
    /// The lines must have these numbers, and the parts room for them.
    #[inline(always)]
    unsafe fn read_few(from: *const T, apart: usize, parts: [*mut T; 2]) {
        for (at, line) in (0..FEW).flat_map(|at| (0..LANES).map(move |line| (at, line))) {
            for (part, to) in parts.into_iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { *to.add(at * LANES + line) = *from.add(line * apart + 2 * at + part) };
            }
        }
    }

    /// The opposite of [`Pack::read_few`], with everything multiplied by a number.
    ///
    /// # Safety
    /// The same.
    #[inline(always)]
    unsafe fn write_few(to: *mut T, apart: usize, parts: [*const T; 2], scale: T) {
        for (line, at) in (0..LANES).flat_map(|line| (0..FEW).map(move |at| (line, at))) {
            for (part, from) in parts.into_iter().enumerate() {
                let place = line * apart + 2 * at + part;
                // SAFETY: the caller's promise.
                unsafe { *to.add(place) = *from.add(at * LANES + line) * scale };
            }
        }
    }
}

/// A number alone.
#[derive(Clone, Copy)]
pub(super) struct Single<T>(T);

impl<T: Scalar> Pack<T> for Single<T> {
    const LEN: usize = 1;

    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // SAFETY: the caller's promise.
        Single(unsafe { *from })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // SAFETY: the caller's promise.
        unsafe { *to = self.0 };
    }

    #[inline(always)]
    fn all(number: T) -> Self {
        Single(number)
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Single(self.0 + other.0)
    }

    #[inline(always)]
    fn less(self, other: Self) -> Self {
        Single(self.0 - other.0)
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        Single(self.0 * other.0)
    }

    #[inline(always)]
    fn split(self, other: Self) -> (Self, Self) {
        (self, other)
    }

    #[inline(always)]
    fn joined(self, other: Self) -> (Self, Self) {
        (self, other)
    }
}

/// One number of each line, without vectors.
#[derive(Clone, Copy)]
pub(super) struct PlainPack<T>([T; LANES]);

impl<T: Scalar> PlainPack<T> {
    #[inline(always)]
    fn each(self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        PlainPack(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }
}

impl<T: Scalar> Pack<T> for PlainPack<T> {
    const LEN: usize = LANES;

    #[inline(always)]
    unsafe fn load(from: *const T) -> Self {
        // SAFETY: the caller's promise.
        PlainPack(unsafe { *from.cast() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut T) {
        // SAFETY: the caller's promise.
        unsafe { *to.cast() = self.0 };
    }

    #[inline(always)]
    fn all(number: T) -> Self {
        PlainPack([number; LANES])
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.each(other, |a, b| a + b)
    }

    #[inline(always)]
    fn less(self, other: Self) -> Self {
        self.each(other, |a, b| a - b)
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        self.each(other, |a, b| a * b)
    }

    #[inline(always)]
    fn split(self, other: Self) -> (Self, Self) {
        let pairs = [self.0, other.0];
        let at = |place: usize| pairs[place / LANES][place % LANES];
        let of = |part: usize| PlainPack(std::array::from_fn(|lane| at(2 * lane + part)));
        (of(0), of(1))
    }

    #[inline(always)]
    fn joined(self, other: Self) -> (Self, Self) {
        let parts = [self.0, other.0];
        let at = |place: usize| parts[place % 2][place / 2];
        let of = |first: usize| PlainPack(std::array::from_fn(|lane| at(first + lane)));
        (of(0), of(LANES))
    }
}

/// The vectors of 256 bits.
macro_rules! vector {
    ($type:ty, $vector:ty, $len:literal: $load:ident $store:ident $all:ident
     $add:ident $sub:ident $mul:ident $split:expr, $joined:expr; $($more:tt)*) => {
        // SAFETY: all of it is used in functions that may use these vectors. Pointers are as the
        // caller promises.
        #[cfg(target_arch = "x86_64")]
        impl Pack<$type> for $vector {
            const LEN: usize = $len;

            #[inline(always)]
            unsafe fn load(from: *const $type) -> Self {
                // SAFETY: as above.
                unsafe { $load(from) }
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut $type) {
                // SAFETY: as above.
                unsafe { $store(to, self) }
            }

            #[inline(always)]
            fn all(number: $type) -> Self {
                // SAFETY: as above.
                unsafe { $all(number) }
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $add(self, other) }
            }

            #[inline(always)]
            fn less(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $sub(self, other) }
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                // SAFETY: as above.
                unsafe { $mul(self, other) }
            }

            #[inline(always)]
            fn split(self, other: Self) -> (Self, Self) {
                // SAFETY: as above.
                unsafe { $split(self, other) }
            }

            #[inline(always)]
            fn joined(self, other: Self) -> (Self, Self) {
                // SAFETY: as above.
                unsafe { $joined(self, other) }
            }

            $($more)*
        }
    };
}

vector!(
    f64, __m256d, 4: _mm256_loadu_pd _mm256_storeu_pd _mm256_set1_pd
    _mm256_add_pd _mm256_sub_pd _mm256_mul_pd
    |a, b| (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b)),
    |re, im| (_mm256_unpacklo_pd(re, im), _mm256_unpackhi_pd(re, im));
);

vector!(
    f32, __m256, 8: _mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps
    _mm256_add_ps _mm256_sub_ps _mm256_mul_ps
    |a, b| (_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b)),
    |re, im| (_mm256_unpacklo_ps(re, im), _mm256_unpackhi_ps(re, im));

    #[inline(always)]
    unsafe fn read_few(from: *const f32, apart: usize, parts: [*mut f32; 2]) {
        // SAFETY: four complex numbers of each line are one vector; the caller's promise.
        unsafe {
            let mut lines = [_mm256_setzero_ps(); LANES];
            for (line, vector) in lines.iter_mut().enumerate() {
                *vector = _mm256_loadu_ps(from.add(line * apart));
            }
            for (row, vector) in transposed(lines).into_iter().enumerate() {
                _mm256_storeu_ps(parts[row % 2].add(row / 2 * LANES), vector);
            }
        }
    }

    #[inline(always)]
    unsafe fn write_few(to: *mut f32, apart: usize, parts: [*const f32; 2], scale: f32) {
        // SAFETY: as above.
        unsafe {
            let scale = _mm256_set1_ps(scale);
            let mut rows = [scale; LANES];
            for (row, vector) in rows.iter_mut().enumerate() {
                let from = parts[row % 2].add(row / 2 * LANES);
                *vector = _mm256_mul_ps(_mm256_loadu_ps(from), scale);
            }
            for (line, vector) in transposed(rows).into_iter().enumerate() {
                _mm256_storeu_ps(to.add(line * apart), vector);
            }
        }
    }
);

/// Eight rows as eight columns.
///
/// # Safety
/// The machine must have 256-bit vectors.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transposed(rows: [__m256; LANES]) -> [__m256; LANES] {
    // Pairs of rows, then fours of them, within the halves of a vector; then the halves.
    let (mut pairs, mut fours, mut columns) = (rows, rows, rows);
    // SAFETY: the caller's promise.
    unsafe {
        for at in (0..LANES).step_by(2) {
            pairs[at] = _mm256_unpacklo_ps(rows[at], rows[at + 1]);
            pairs[at + 1] = _mm256_unpackhi_ps(rows[at], rows[at + 1]);
        }
        for at in [0, 1, 4, 5] {
            let place = at / 4 * 4 + at % 4 * 2;
            fours[place] = _mm256_shuffle_ps::<0x44>(pairs[at], pairs[at + 2]);
            fours[place + 1] = _mm256_shuffle_ps::<0xee>(pairs[at], pairs[at + 2]);
        }
        for at in 0..LANES / 2 {
            columns[at] = _mm256_permute2f128_ps::<0x20>(fours[at], fours[at + 4]);
            columns[at + 4] = _mm256_permute2f128_ps::<0x31>(fours[at], fours[at + 4]);
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers<T: Scalar>(count: usize) -> Vec<T> {
        (0..count).map(|number| T::of(number as f64 + 1.0)).collect()
    }

    fn check<T: Scalar, V: Pack<T>>() {
        const APART: usize = 2 * FEW + 3;
        let lines = numbers::<T>(LANES * APART);
        let [mut re, mut im] = [(); 2].map(|()| vec![T::of(0.0); FEW * LANES]);
        let mut back = vec![T::of(0.0); lines.len()];
        // SAFETY: all of them are long enough.
        unsafe {
            V::read_few(lines.as_ptr(), APART, [re.as_mut_ptr(), im.as_mut_ptr()]);
            V::write_few(back.as_mut_ptr(), APART, [re.as_ptr(), im.as_ptr()], T::of(2.0));
        }
        for (at, line) in (0..FEW).flat_map(|at| (0..LANES).map(move |line| (at, line))) {
            for (part, of) in [&re, &im].into_iter().enumerate() {
                let place = line * APART + 2 * at + part;
                assert_eq!(of[at * LANES + line].get(), lines[place].get());
                assert_eq!(back[place].get(), 2.0 * lines[place].get());
            }
        }
        // SAFETY: as above.
        unsafe {
            let (a, b) = (V::load(lines.as_ptr()), V::load(lines.as_ptr().add(V::LEN)));
            let (re, im) = a.split(b);
            let (mut first, mut second) = (vec![T::of(0.0); V::LEN], vec![T::of(0.0); V::LEN]);
            re.store(first.as_mut_ptr());
            im.store(second.as_mut_ptr());
            for (first, second) in first.iter().zip(&second).filter(|_| V::LEN > 1) {
                assert_eq!((first.get() % 2.0, second.get()), (1.0, first.get() + 1.0));
            }
            let (a, b) = re.joined(im);
            a.store(back.as_mut_ptr());
            b.store(back.as_mut_ptr().add(V::LEN));
        }
        let as_given = |place: usize| back[place].get() == lines[place].get();
        assert!((0..2 * V::LEN).all(as_given));
    }

    #[test]
    fn lines_are_read_and_written_back() {
        check::<f32, PlainPack<f32>>();
        check::<f64, PlainPack<f64>>();
        check::<f64, Single<f64>>();
        #[cfg(target_arch = "x86_64")]
        if super::super::block::is_wide() {
            check::<f32, __m256>();
            check::<f64, __m256d>();
        }
    }
}
