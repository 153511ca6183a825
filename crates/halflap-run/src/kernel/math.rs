//! Functions of real numbers, in forms that a compiler turns into vector code.
//!
//! Those that transformers spend time in (`exp`, `tanh`, `log`, `log1p`, `logistic`, `erf`, `sine`,
//! `cosine`) are polynomials without branches for f32, correct to 2 ulp; the rest, and f64, come
//! from the system's math library. No fused multiply-add is used: results have the same bits on
//! every machine.

/// Arithmetic types: floats and integers.
pub(super) trait NumberType: Copy + 'static {
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Integer division by zero gives all ones, as in XLA.
    fn div(self, other: Self) -> Self;
    /// For integers modulo zero, the dividend.
    fn rem(self, other: Self) -> Self;
    fn pow(self, other: Self) -> Self;
    /// The larger one; NaN if either is NaN.
    fn max(self, other: Self) -> Self;
    /// The smaller one; NaN if either is NaN.
    fn min(self, other: Self) -> Self;
}

/// A floating-point type that kernels compute in.
pub(super) trait Real: NumberType + PartialOrd {
    /// A number as this type.
    fn of(number: f64) -> Self;
    fn exp(self) -> Self;
    fn expm1(self) -> Self;
    fn log(self) -> Self;
    fn log1p(self) -> Self;
    fn tanh(self) -> Self;
    fn logistic(self) -> Self;
    fn erf(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tan(self) -> Self;
    fn asin(self) -> Self;
    fn acos(self) -> Self;
    fn asinh(self) -> Self;
    fn acosh(self) -> Self;
    fn atanh(self) -> Self;
    fn sinh(self) -> Self;
    fn cosh(self) -> Self;
    fn cbrt(self) -> Self;
    fn sqrt(self) -> Self;
    fn rsqrt(self) -> Self;
    fn abs(self) -> Self;
    fn neg(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round_away(self) -> Self;
    fn round_even(self) -> Self;
    fn sign(self) -> Self;
    fn is_finite(self) -> u8;
    fn atan2(self, other: Self) -> Self;
    /// An integer that is ordered as the value in the total order of IEEE 754.
    fn total(self) -> i64;
}

mod c {
    unsafe extern "C" {
        pub(super) safe fn erf(x: f64) -> f64;
    }
}

macro_rules! number {
    ($($type:ident)*) => {$(
        impl NumberType for $type {
            #[inline(always)]
            fn add(self, other: $type) -> $type {
                self + other
            }
            #[inline(always)]
            fn sub(self, other: $type) -> $type {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: $type) -> $type {
                self * other
            }
            #[inline(always)]
            fn div(self, other: $type) -> $type {
                self / other
            }
            #[inline(always)]
            fn rem(self, other: $type) -> $type {
                self % other
            }
            #[inline(always)]
            fn pow(self, other: $type) -> $type {
                self.powf(other)
            }
            #[inline(always)]
            fn max(self, other: $type) -> $type {
                if self >= other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn min(self, other: $type) -> $type {
                if self <= other || self.is_nan() { self } else { other }
            }
        }
    )*};
}

number!(f32 f64);

macro_rules! common {
    ($type:ident, $bits:ident, $signed:ident) => {
        #[inline(always)]
        fn of(number: f64) -> $type {
            number as $type
        }
        #[inline(always)]
        fn expm1(self) -> $type {
            self.exp_m1()
        }
        #[inline(always)]
        fn tan(self) -> $type {
            $type::tan(self)
        }
        #[inline(always)]
        fn asin(self) -> $type {
            $type::asin(self)
        }
        #[inline(always)]
        fn acos(self) -> $type {
            $type::acos(self)
        }
        #[inline(always)]
        fn asinh(self) -> $type {
            $type::asinh(self)
        }
        #[inline(always)]
        fn acosh(self) -> $type {
            $type::acosh(self)
        }
        #[inline(always)]
        fn atanh(self) -> $type {
            $type::atanh(self)
        }
        #[inline(always)]
        fn sinh(self) -> $type {
            $type::sinh(self)
        }
        #[inline(always)]
        fn cosh(self) -> $type {
            $type::cosh(self)
        }
        #[inline(always)]
        fn cbrt(self) -> $type {
            $type::cbrt(self)
        }
        #[inline(always)]
        fn sqrt(self) -> $type {
            $type::sqrt(self)
        }
        #[inline(always)]
        fn rsqrt(self) -> $type {
            1.0 / $type::sqrt(self)
        }
        #[inline(always)]
        fn abs(self) -> $type {
            $type::abs(self)
        }
        #[inline(always)]
        fn neg(self) -> $type {
            -self
        }
        #[inline(always)]
        fn floor(self) -> $type {
            $type::floor(self)
        }
        #[inline(always)]
        fn ceil(self) -> $type {
            $type::ceil(self)
        }
        #[inline(always)]
        fn round_away(self) -> $type {
            self.round()
        }
        #[inline(always)]
        fn round_even(self) -> $type {
            self.round_ties_even()
        }
        #[inline(always)]
        fn sign(self) -> $type {
            if self == 0.0 || self.is_nan() { self } else { (1.0 as $type).copysign(self) }
        }
        #[inline(always)]
        fn is_finite(self) -> u8 {
            u8::from($type::abs(self) < $type::INFINITY)
        }
        #[inline(always)]
        fn atan2(self, other: $type) -> $type {
            $type::atan2(self, other)
        }
        #[inline(always)]
        fn total(self) -> i64 {
            let bits = self.to_bits() as $signed;
            i64::from(bits ^ (((bits >> ($bits::BITS - 1)) as $bits) >> 1) as $signed)
        }
    };
}

impl Real for f32 {
    common!(f32, u32, i32);

    #[inline(always)]
    fn exp(self) -> f32 {
        exp(self)
    }
    #[inline(always)]
    fn log(self) -> f32 {
        log(self)
    }
    #[inline(always)]
    fn log1p(self) -> f32 {
        log1p(self)
    }
    #[inline(always)]
    fn tanh(self) -> f32 {
        tanh(self)
    }
    #[inline(always)]
    fn logistic(self) -> f32 {
        1.0 / (1.0 + exp(-self))
    }
    #[inline(always)]
    fn erf(self) -> f32 {
        c::erf(f64::from(self)) as f32
    }
    #[inline(always)]
    fn sin(self) -> f32 {
        f32::sin(self)
    }
    #[inline(always)]
    fn cos(self) -> f32 {
        f32::cos(self)
    }
}

impl Real for f64 {
    common!(f64, u64, i64);

    #[inline(always)]
    fn exp(self) -> f64 {
        f64::exp(self)
    }
    #[inline(always)]
    fn log(self) -> f64 {
        self.ln()
    }
    #[inline(always)]
    fn log1p(self) -> f64 {
        self.ln_1p()
    }
    #[inline(always)]
    fn tanh(self) -> f64 {
        f64::tanh(self)
    }
    #[inline(always)]
    fn logistic(self) -> f64 {
        1.0 / (1.0 + f64::exp(-self))
    }
    #[inline(always)]
    fn erf(self) -> f64 {
        c::erf(self)
    }
    #[inline(always)]
    fn sin(self) -> f64 {
        f64::sin(self)
    }
    #[inline(always)]
    fn cos(self) -> f64 {
        f64::cos(self)
    }
}

/// `2^n` for integer `n` from -126 to 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// e to the x: x is split into a multiple of ln 2 and a remainder of at most half of that, for
/// which a polynomial of degree 6 suffices.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Added to a small number, it leaves the nearest integer in the last bits.
    const ROUND: f32 = 12_582_912.0;
    // Beyond these, the result is infinite or zero.
    let bounded = x.clamp(-104.0, 88.8);
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = shifted.to_bits() as i32 - ROUND.to_bits() as i32;
    let whole = shifted - ROUND;
    let rest = bounded - whole * LN2_HIGH - whole * LN2_LOW;
    let mut poly = 1.987_569_1e-4;
    poly = poly * rest + 1.398_2e-3;
    poly = poly * rest + 8.333_452e-3;
    poly = poly * rest + 4.166_579_6e-2;
    poly = poly * rest + 1.666_666_5e-1;
    poly = poly * rest + 5e-1;
    let value = poly * rest * rest + rest + 1.0;
    // In two steps, because 2^n alone may overflow or underflow.
    let half = n >> 1;
    let scaled = value * power_of_two(half) * power_of_two(n - half);
    if x.is_nan() { x } else { scaled }
}

/// The natural logarithm: of the mantissa by a polynomial, of the exponent by multiplication.
#[inline(always)]
fn log(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let is_tiny = x < f32::MIN_POSITIVE;
    // Subnormal numbers are normalised by multiplying with 2^25.
    let normal = if is_tiny { x * 33_554_432.0 } else { x };
    let bits = normal.to_bits();
    // The mantissa is taken from half the square root of 2 to the square root of 2.
    let offset = bits.wrapping_sub(0x3f35_04f3);
    let exponent = (offset as i32 >> 23) - if is_tiny { 25 } else { 0 };
    let mantissa = f32::from_bits((offset & 0x007f_ffff).wrapping_add(0x3f35_04f3));
    let t = mantissa - 1.0;
    let square = t * t;
    let mut poly = 7.037_683_6e-2;
    poly = poly * t - 1.151_461e-1;
    poly = poly * t + 1.167_699_9e-1;
    poly = poly * t - 1.242_014_1e-1;
    poly = poly * t + 1.424_932_3e-1;
    poly = poly * t - 1.666_805_8e-1;
    poly = poly * t + 2.000_071_5e-1;
    poly = poly * t - 2.499_999_4e-1;
    poly = poly * t + 3.333_333e-1;
    let e = exponent as f32;
    let value = t + (t * square * poly + e * LN2_LOW - 0.5 * square) + e * LN2_HIGH;
    let special = if x == 0.0 {
        f32::NEG_INFINITY
    } else if x == f32::INFINITY {
        x
    } else {
        f32::NAN
    };
    if x > 0.0 && x < f32::INFINITY { value } else { special }
}

/// The natural logarithm of 1 + x: that of the rounded sum, and what rounding lost.
#[inline(always)]
fn log1p(x: f32) -> f32 {
    let sum = 1.0 + x;
    let value = log(sum) + (x - (sum - 1.0)) / sum;
    // The sign of zero is kept, and a pole is no quotient of zeros.
    match sum {
        1.0 | f32::INFINITY => x,
        0.0 => f32::NEG_INFINITY,
        _ => value,
    }
}

/// The hyperbolic tangent: near 0 an odd polynomial, elsewhere by `exp`.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let magnitude = f32::from_bits(x.to_bits() & 0x7fff_ffff);
    let square = x * x;
    let mut poly = -5.704_988_7e-3;
    poly = poly * square + 2.063_909e-2;
    poly = poly * square - 5.373_971_6e-2;
    poly = poly * square + 1.333_144_2e-1;
    poly = poly * square - 3.333_328e-1;
    let near = poly * square * x + x;
    // Beyond 10, the result is 1 to the last bit.
    let bounded = if magnitude > 10.0 { 10.0 } else { magnitude };
    let far = 1.0 - 2.0 / (exp(2.0 * bounded) + 1.0);
    // Zero keeps its sign, too.
    let signed = |value: f32| f32::from_bits(value.to_bits() | (x.to_bits() & 0x8000_0000));
    if magnitude < 0.625 {
        signed(near)
    } else if x.is_nan() {
        x
    } else {
        signed(far)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest distance from the true value, in units in the last place.
    fn worst(of: impl Fn(f32) -> f32, truth: impl Fn(f64) -> f64, range: (f32, f32)) -> f64 {
        const SAMPLES: i32 = 200_000;
        let at = |i: i32| range.0 + (range.1 - range.0) * i as f32 / SAMPLES as f32;
        let distance = |x: f32| {
            let exact = truth(f64::from(x));
            let near = exact as f32;
            let unit = f64::from(near.abs().next_up()) - f64::from(near.abs());
            (f64::from(of(x)) - exact).abs() / unit
        };
        (0..=SAMPLES).map(|i| distance(at(i))).fold(0.0, f64::max)
    }

    #[test]
    fn polynomials_are_close() {
        assert!(worst(exp, f64::exp, (-87.0, 88.0)) < 1.5);
        assert!(worst(log, f64::ln, (1e-6, 4.0)) < 1.5);
        assert!(worst(log, f64::ln, (1.0, 1e9)) < 1.5);
        assert!(worst(log1p, f64::ln_1p, (-0.999, 0.5)) < 2.0);
        assert!(worst(log1p, f64::ln_1p, (-1e-3, 1e-3)) < 2.0);
        assert!(worst(log1p, f64::ln_1p, (1.0, 1e9)) < 2.0);
        assert!(worst(tanh, f64::tanh, (-9.5, 9.5)) < 2.0);
        assert!(worst(tanh, f64::tanh, (-1e-3, 1e-3)) < 1.0);
    }

    #[test]
    fn edges() {
        assert_eq!(
            (exp(f32::NEG_INFINITY), exp(f32::INFINITY), exp(0.0)),
            (0.0, f32::INFINITY, 1.0)
        );
        assert_eq!((exp(200.0), exp(-200.0)), (f32::INFINITY, 0.0));
        assert!(
            exp(f32::NAN).is_nan()
                && log(f32::NAN).is_nan()
                && log(-1.0).is_nan()
                && tanh(f32::NAN).is_nan()
        );
        assert!((exp(-100.0) - 3.784e-44).abs() < 3e-45, "a number without a leading one");
        assert_eq!(
            (log(0.0), log(f32::INFINITY), log(1.0)),
            (f32::NEG_INFINITY, f32::INFINITY, 0.0)
        );
        assert_eq!(
            (log1p(-1.0), log1p(f32::INFINITY), log1p(1e-30)),
            (f32::NEG_INFINITY, f32::INFINITY, 1e-30)
        );
        assert!(log1p(-0.0).is_sign_negative() && log1p(-1.5).is_nan() && log1p(f32::NAN).is_nan());
        assert_eq!((tanh(50.0), tanh(-50.0), tanh(f32::INFINITY)), (1.0, -1.0, 1.0));
        assert!(tanh(-0.0).is_sign_negative());
        assert!(NumberType::max(f32::NAN, 1.0).is_nan() && NumberType::min(1.0, f32::NAN).is_nan());
        assert!((-0.0f32).total() < 0.0f32.total() && (-1.0f32).total() < (-0.5f32).total());
    }
}
