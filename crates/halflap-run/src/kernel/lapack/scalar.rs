//! The numbers that routines compute with: f64, real or complex.

use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::tensor::{Complex, DType};

/// A real or complex number.
pub(super) trait MatrixNumber:
    Copy
    + Debug
    + PartialEq
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// A real number.
    fn of(real: f64) -> Self;
    fn real(self) -> f64;
    fn imaginary(self) -> f64;
    fn conjugate(self) -> Self;
    /// A non-negative factor and one of magnitude 1; real numbers keep their sign in the former.
    fn split(self) -> (f64, Self);

    fn zero() -> Self {
        Self::of(0.0)
    }

    fn one() -> Self {
        Self::of(1.0)
    }

    /// The square of its magnitude.
    fn square(self) -> f64 {
        self.real() * self.real() + self.imaginary() * self.imaginary()
    }

    fn size(self) -> f64 {
        let (a, b) = (self.real().abs(), self.imaginary().abs());
        let (most, least) = (a.max(b), a.min(b));
        if least == 0.0 { most } else { most * (1.0 + (least / most) * (least / most)).sqrt() }
    }

    /// What LAPACK compares pivots by.
    fn sum_of_sizes(self) -> f64 {
        self.real().abs() + self.imaginary().abs()
    }

    fn times(self, real: f64) -> Self {
        self * Self::of(real)
    }
}

impl MatrixNumber for f64 {
    fn of(real: f64) -> f64 {
        real
    }

    fn real(self) -> f64 {
        self
    }

    fn imaginary(self) -> f64 {
        0.0
    }

    fn conjugate(self) -> f64 {
        self
    }

    fn split(self) -> (f64, f64) {
        (self, 1.0)
    }

    fn size(self) -> f64 {
        self.abs()
    }
}

/// The complex ones.
pub(super) type ComplexNumber = Complex<f64>;

impl Add for ComplexNumber {
    type Output = ComplexNumber;
    fn add(self, other: ComplexNumber) -> ComplexNumber {
        ComplexNumber { re: self.re + other.re, im: self.im + other.im }
    }
}

impl Sub for ComplexNumber {
    type Output = ComplexNumber;
    fn sub(self, other: ComplexNumber) -> ComplexNumber {
        ComplexNumber { re: self.re - other.re, im: self.im - other.im }
    }
}

impl Mul for ComplexNumber {
    type Output = ComplexNumber;
    fn mul(self, other: ComplexNumber) -> ComplexNumber {
        let re = self.re * other.re - self.im * other.im;
        ComplexNumber { re, im: self.re * other.im + self.im * other.re }
    }
}

impl Div for ComplexNumber {
    type Output = ComplexNumber;
    fn div(self, other: ComplexNumber) -> ComplexNumber {
        // Scaled, so that the square is neither too large nor too small.
        let scale = other.sum_of_sizes();
        let by = ComplexNumber { re: other.re / scale, im: other.im / scale };
        let product = self * by.conjugate();
        let below = by.square() * scale;
        ComplexNumber { re: product.re / below, im: product.im / below }
    }
}

impl Neg for ComplexNumber {
    type Output = ComplexNumber;
    fn neg(self) -> ComplexNumber {
        ComplexNumber { re: -self.re, im: -self.im }
    }
}

impl MatrixNumber for ComplexNumber {
    fn of(real: f64) -> ComplexNumber {
        ComplexNumber { re: real, im: 0.0 }
    }

    fn real(self) -> f64 {
        self.re
    }

    fn imaginary(self) -> f64 {
        self.im
    }

    fn conjugate(self) -> ComplexNumber {
        ComplexNumber { re: self.re, im: -self.im }
    }

    fn split(self) -> (f64, ComplexNumber) {
        let size = self.size();
        (size, ComplexNumber { re: self.re / size, im: self.im / size })
    }

    fn times(self, real: f64) -> ComplexNumber {
        ComplexNumber { re: self.re * real, im: self.im * real }
    }
}

/// Reads an element of an array as a number.
///
/// # Safety
/// The array must have the type, which is one of floating-point or complex numbers, and more than
/// `at` elements.
pub(super) unsafe fn read(from: *const u8, dtype: DType, at: usize) -> ComplexNumber {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F64 => ComplexNumber::of(from.cast::<f64>().add(at).read()),
            DType::C64 => {
                let Complex { re, im } = from.cast::<Complex<f32>>().add(at).read();
                ComplexNumber { re: f64::from(re), im: f64::from(im) }
            }
            DType::C128 => from.cast::<ComplexNumber>().add(at).read(),
            _ => ComplexNumber::of(f64::from(from.cast::<f32>().add(at).read())),
        }
    }
}

/// Writes a number as an element of an array; one of a real type takes the real part.
///
/// # Safety
/// As for [`read`].
pub(super) unsafe fn write(to: *mut u8, dtype: DType, at: usize, value: ComplexNumber) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F64 => to.cast::<f64>().add(at).write(value.re),
            DType::C64 => {
                let value = Complex { re: value.re as f32, im: value.im as f32 };
                to.cast::<Complex<f32>>().add(at).write(value);
            }
            DType::C128 => to.cast::<ComplexNumber>().add(at).write(value),
            _ => to.cast::<f32>().add(at).write(value.re as f32),
        }
    }
}
