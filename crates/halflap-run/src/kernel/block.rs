//! Functions over blocks of elements: the instructions of an elementwise program.
//!
//! A block function reads up to four blocks and writes one, all of the same number of elements. It
//! is compiled twice, for any machine and for one with 256-bit vectors (functions that compute long
//! polynomials also for 512 bits); which one to call is decided when a program is built. Types
//! whose `stored` form differs from the computed one are rounded by a separate instruction.

use std::sync::OnceLock;

use halflap_hlo::Opcode;

use super::math::{NumberType, Real};
pub(super) use super::stored::{computed_as, narrow, round, widen};
use super::whole::Whole;
use crate::tensor::{Complex, DType, Tiny};

/// How many blocks a function reads at most.
pub(super) const MOST_READ: usize = 4;

/// Reads blocks of `len` elements and writes one.
///
/// # Safety
/// The blocks must be of the types that the function was chosen for, at least `len` long, and the
/// one that is written must not overlap with those that are read.
pub(super) type BlockFn = unsafe fn(ins: &[*const u8; MOST_READ], out: *mut u8, len: usize);

/// Whether the machine has the vectors that the wide functions use.
pub(super) fn is_wide() -> bool {
    static WIDE: OnceLock<bool> = OnceLock::new();
    #[cfg(target_arch = "x86_64")]
    let detect = || {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
    };
    #[cfg(not(target_arch = "x86_64"))]
    let detect = || false;
    *WIDE.get_or_init(detect)
}

/// A closure without captures, out of nothing.
fn conjure<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0) };
    // SAFETY: the type has no bytes, and a value of it existed: only closures that were given to
    // `one`, `two` or `three` get here.
    unsafe { std::ptr::NonNull::<F>::dangling().read() }
}

macro_rules! unary_loop {
    ($one:ident $(#[$feature:meta])*) => {
        /// # Safety
        /// See [`BlockFn`].
        $(#[$feature])*
        unsafe fn $one<A: Copy, R, F: Fn(A) -> R + Copy>(
            ins: &[*const u8; MOST_READ],
            out: *mut u8,
            len: usize,
        ) {
            let f = conjure::<F>();
            // SAFETY: the caller promises blocks of these types and this length that do not
            // overlap.
            let (a, out) = unsafe { (block::<A>(ins[0], len), block_mut::<R>(out, len)) };
            for (out, &a) in out.iter_mut().zip(a) {
                *out = f(a);
            }
        }
    };
}

macro_rules! loops {
    ($one:ident $two:ident $three:ident $(#[$feature:meta])*) => {
        unary_loop!($one $(#[$feature])*);

        /// # Safety
        /// See [`BlockFn`].
        $(#[$feature])*
        unsafe fn $two<A: Copy, R, F: Fn(A, A) -> R + Copy>(
            ins: &[*const u8; MOST_READ],
            out: *mut u8,
            len: usize,
        ) {
            let f = conjure::<F>();
            // SAFETY: as above.
            let (a, b) = unsafe { (block::<A>(ins[0], len), block::<A>(ins[1], len)) };
            // SAFETY: as above.
            let out = unsafe { block_mut::<R>(out, len) };
            for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                *out = f(a, b);
            }
        }

        /// # Safety
        /// See [`BlockFn`].
        $(#[$feature])*
        unsafe fn $three<A: Copy, B: Copy, F: Fn(A, B, B) -> B + Copy>(
            ins: &[*const u8; MOST_READ],
            out: *mut u8,
            len: usize,
        ) {
            let f = conjure::<F>();
            // SAFETY: as above.
            let (a, b) = unsafe { (block::<A>(ins[0], len), block::<B>(ins[1], len)) };
            // SAFETY: as above.
            let (c, out) = unsafe { (block::<B>(ins[2], len), block_mut::<B>(out, len)) };
            for (((out, &a), &b), &c) in out.iter_mut().zip(a).zip(b).zip(c) {
                *out = f(a, b, c);
            }
        }
    };
}

/// # Safety
/// See [`BlockFn`].
#[inline(always)]
unsafe fn block<'a, T>(start: *const u8, len: usize) -> &'a [T] {
    // SAFETY: the caller promises this many elements of the type.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}

/// # Safety
/// See [`BlockFn`].
#[inline(always)]
unsafe fn block_mut<'a, T>(start: *mut u8, len: usize) -> &'a mut [T] {
    // SAFETY: the caller promises this many elements of the type, for this function alone.
    unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }
}

loops!(one_plain two_plain three_plain);
#[cfg(target_arch = "x86_64")]
loops!(one_wide two_wide three_wide #[target_feature(enable = "avx2,lzcnt,popcnt,bmi1,bmi2")]);
#[cfg(not(target_arch = "x86_64"))]
loops!(one_wide two_wide three_wide);
#[cfg(target_arch = "x86_64")]
unary_loop!(one_widest #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]);

/// A function that computes much for each element: it uses the widest vectors. They give the same
/// bits, because no multiplication is fused with an addition.
fn one_long<A: Copy, R, F: Fn(A) -> R + Copy>(f: F) -> BlockFn {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
    {
        return one_widest::<A, R, F>;
    }
    one(f)
}

pub(super) fn one<A: Copy, R, F: Fn(A) -> R + Copy>(_: F) -> BlockFn {
    if is_wide() { one_wide::<A, R, F> } else { one_plain::<A, R, F> }
}

pub(super) fn two<A: Copy, R, F: Fn(A, A) -> R + Copy>(_: F) -> BlockFn {
    if is_wide() { two_wide::<A, R, F> } else { two_plain::<A, R, F> }
}

fn three<A: Copy, B: Copy, F: Fn(A, B, B) -> B + Copy>(_: F) -> BlockFn {
    if is_wide() { three_wide::<A, B, F> } else { three_plain::<A, B, F> }
}

/// How two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub(super) enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl CompareOp {
    pub(super) fn named(name: &str) -> Option<CompareOp> {
        Some(match name {
            "EQ" => CompareOp::Eq,
            "NE" => CompareOp::Ne,
            "LT" => CompareOp::Lt,
            "LE" => CompareOp::Le,
            "GT" => CompareOp::Gt,
            "GE" => CompareOp::Ge,
            _ => return None,
        })
    }
}

/// Calls a generic function with the Rust type in which elements are computed.
macro_rules! by_type {
    ($dtype:expr, $function:ident, $($argument:expr),*) => {
        match computed_as($dtype) {
            DType::Pred | DType::U8 => $function::<u8>($($argument),*),
            DType::S8 | DType::Tiny(_) => $function::<i8>($($argument),*),
            DType::S16 => $function::<i16>($($argument),*),
            DType::S32 => $function::<i32>($($argument),*),
            DType::S64 => $function::<i64>($($argument),*),
            DType::U16 => $function::<u16>($($argument),*),
            DType::U32 => $function::<u32>($($argument),*),
            DType::U64 => $function::<u64>($($argument),*),
            DType::F64 => $function::<f64>($($argument),*),
            DType::F16 | DType::Bf16 | DType::F32 | DType::Mini(_) => {
                $function::<f32>($($argument),*)
            }
            DType::C64 => $function::<Complex<f32>>($($argument),*),
            DType::C128 => $function::<Complex<f64>>($($argument),*),
        }
    };
}

/// The function of a unary operation that returns the operand's type (`is-finite`, a boolean;
/// `real`, `imag` and `abs` of a complex number, a real one).
pub(super) fn unary(opcode: Opcode, dtype: DType) -> Option<BlockFn> {
    match dtype {
        DType::Pred => (opcode == Opcode::Not).then(|| one(|a: u8| a ^ 1)),
        DType::F16 | DType::Bf16 | DType::F32 | DType::Mini(_) => unary_real::<f32>(opcode),
        DType::F64 => unary_real::<f64>(opcode),
        DType::C64 => unary_complex::<f32>(opcode),
        DType::C128 => unary_complex::<f64>(opcode),
        DType::S8 => unary_whole::<i8>(opcode),
        DType::S16 => unary_whole::<i16>(opcode),
        DType::S32 => unary_whole::<i32>(opcode),
        DType::S64 => unary_whole::<i64>(opcode),
        DType::U8 => unary_whole::<u8>(opcode),
        DType::U16 => unary_whole::<u16>(opcode),
        DType::U32 => unary_whole::<u32>(opcode),
        DType::U64 => unary_whole::<u64>(opcode),
        // Bits beyond the type's would be counted.
        DType::Tiny(_) if matches!(opcode, Opcode::PopulationCount | Opcode::Clz) => None,
        DType::Tiny(_) => unary(opcode, computed_as(dtype)),
    }
}

fn unary_real<T: Real>(opcode: Opcode) -> Option<BlockFn> {
    Some(match opcode {
        Opcode::Abs => one(|a: T| a.abs()),
        Opcode::Negate => one(|a: T| a.neg()),
        Opcode::Sign => one(|a: T| a.sign()),
        Opcode::Floor => one(|a: T| a.floor()),
        Opcode::Ceil => one(|a: T| a.ceil()),
        Opcode::RoundNearestAfz => one(|a: T| a.round_away()),
        Opcode::RoundNearestEven => one(|a: T| a.round_even()),
        Opcode::IsFinite => one(|a: T| a.is_finite()),
        Opcode::Exponential => one_long(|a: T| a.exp()),
        Opcode::Expm1 => one(|a: T| a.expm1()),
        Opcode::Log => one_long(|a: T| a.log()),
        Opcode::Log1p => one(|a: T| a.log1p()),
        Opcode::Logistic => one_long(|a: T| a.logistic()),
        Opcode::Tanh => one_long(|a: T| a.tanh()),
        Opcode::Tan => one(|a: T| a.tan()),
        Opcode::Sine => one(|a: T| a.sin()),
        Opcode::Cosine => one(|a: T| a.cos()),
        Opcode::Asin => one(|a: T| a.asin()),
        Opcode::Acos => one(|a: T| a.acos()),
        Opcode::Asinh => one(|a: T| a.asinh()),
        Opcode::Acosh => one(|a: T| a.acosh()),
        Opcode::Atanh => one(|a: T| a.atanh()),
        Opcode::Sinh => one(|a: T| a.sinh()),
        Opcode::Cosh => one(|a: T| a.cosh()),
        Opcode::Erf => one(|a: T| a.erf()),
        Opcode::Cbrt => one(|a: T| a.cbrt()),
        Opcode::Sqrt => one(|a: T| a.sqrt()),
        Opcode::Rsqrt => one(|a: T| a.rsqrt()),
        Opcode::Real => one(|a: T| a),
        Opcode::Imag => one(|a: T| a.sub(a)),
        _ => return None,
    })
}

fn unary_whole<T: Whole>(opcode: Opcode) -> Option<BlockFn> {
    Some(match opcode {
        Opcode::Abs => one(|a: T| a.abs()),
        Opcode::Negate => one(|a: T| a.neg()),
        Opcode::Sign => one(|a: T| a.sign()),
        Opcode::Not => one(|a: T| a.not()),
        Opcode::PopulationCount => one(|a: T| a.ones()),
        Opcode::Clz => one(|a: T| a.leading()),
        Opcode::Real => one(|a: T| a),
        _ => return None,
    })
}

fn unary_complex<T: Real>(opcode: Opcode) -> Option<BlockFn> {
    type C<T> = Complex<T>;
    Some(match opcode {
        Opcode::Negate => one(|a: C<T>| Complex { re: a.re.neg(), im: a.im.neg() }),
        Opcode::Real => one(|a: C<T>| a.re),
        Opcode::Imag => one(|a: C<T>| a.im),
        Opcode::Abs => one(|a: C<T>| a.magnitude()),
        Opcode::Exponential => one(|a: C<T>| Complex::polar(a.re.exp(), a.im)),
        Opcode::Log => one(|a: C<T>| a.log()),
        Opcode::Log1p => one(|a: C<T>| {
            let grown = a.re.mul(a.re.add(T::of(2.0))).add(a.im.mul(a.im));
            Complex { re: grown.log1p().mul(T::of(0.5)), im: a.im.atan2(a.re.add(T::of(1.0))) }
        }),
        Opcode::Expm1 => one(|a: C<T>| {
            let sine = a.im.mul(T::of(0.5)).sin();
            let re = a.re.expm1().mul(a.im.cos()).sub(sine.mul(sine).mul(T::of(2.0)));
            Complex { re, im: a.re.exp().mul(a.im.sin()) }
        }),
        Opcode::Sine => one(|a: C<T>| Complex {
            re: a.re.sin().mul(a.im.cosh()),
            im: a.re.cos().mul(a.im.sinh()),
        }),
        Opcode::Cosine => one(|a: C<T>| Complex {
            re: a.re.cos().mul(a.im.cosh()),
            im: a.re.sin().mul(a.im.sinh()).neg(),
        }),
        Opcode::Tanh => one(|a: C<T>| a.tanh()),
        Opcode::Tan => one(|a: C<T>| {
            let turned = Complex { re: a.im.neg(), im: a.re }.tanh();
            Complex { re: turned.im, im: turned.re.neg() }
        }),
        Opcode::Sqrt => one(|a: C<T>| a.sqrt()),
        Opcode::Rsqrt => one(|a: C<T>| Complex { re: T::of(1.0), im: T::of(0.0) }.over(a.sqrt())),
        Opcode::Sign => one(|a: C<T>| {
            let size = a.magnitude();
            let by = if size > T::of(0.0) { size } else { T::of(1.0) };
            Complex { re: a.re.div(by), im: a.im.div(by) }
        }),
        _ => return None,
    })
}

impl<T: Real> ComplexMath<T> for Complex<T> {
    #[inline(always)]
    fn magnitude(self) -> T {
        self.re.mul(self.re).add(self.im.mul(self.im)).sqrt()
    }

    #[inline(always)]
    fn log(self) -> Complex<T> {
        Complex { re: self.magnitude().log(), im: self.im.atan2(self.re) }
    }

    #[inline(always)]
    fn tanh(self) -> Complex<T> {
        let (t, u) = (self.re.tanh(), self.im.tan());
        let (tt, uu, one) = (t.mul(t), u.mul(u), T::of(1.0));
        let below = tt.mul(uu).add(one);
        Complex { re: t.mul(uu.add(one)).div(below), im: u.mul(one.sub(tt)).div(below) }
    }

    #[inline(always)]
    fn sqrt(self) -> Complex<T> {
        let (half, zero) = (T::of(0.5), T::of(0.0));
        let side = self.magnitude().add(self.re.abs()).mul(half).sqrt();
        let other = if side > zero { self.im.abs().mul(half).div(side) } else { zero };
        let (re, im) = if self.re >= zero { (side, other) } else { (other, side) };
        Complex { re, im: if self.im < zero { im.neg() } else { im } }
    }

    #[inline(always)]
    fn power(self, other: Complex<T>) -> Complex<T> {
        let zero = T::of(0.0);
        let is_zero = |a: Complex<T>| a.re == zero && a.im == zero;
        match (is_zero(self), is_zero(other)) {
            (_, true) => Complex { re: T::of(1.0), im: zero },
            (true, false) => Complex { re: zero, im: zero },
            (false, false) => {
                let grown = self.log().times(other);
                Complex::polar(grown.re.exp(), grown.im)
            }
        }
    }

    #[inline(always)]
    fn polar(radius: T, angle: T) -> Complex<T> {
        Complex { re: radius.mul(angle.cos()), im: radius.mul(angle.sin()) }
    }

    #[inline(always)]
    fn times(self, other: Complex<T>) -> Complex<T> {
        let re = self.re.mul(other.re).sub(self.im.mul(other.im));
        Complex { re, im: self.re.mul(other.im).add(self.im.mul(other.re)) }
    }

    #[inline(always)]
    fn over(self, other: Complex<T>) -> Complex<T> {
        let scale = other.re.mul(other.re).add(other.im.mul(other.im));
        let product = self.times(Complex { re: other.re, im: other.im.neg() });
        Complex { re: product.re.div(scale), im: product.im.div(scale) }
    }
}

/// Operations on complex numbers besides addition.
trait ComplexMath<T> {
    fn magnitude(self) -> T;
    fn log(self) -> Self;
    fn tanh(self) -> Self;
    fn sqrt(self) -> Self;
    fn power(self, other: Self) -> Self;
    fn polar(radius: T, angle: T) -> Self;
    fn times(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
}

/// The function of a binary operation that returns their type.
pub(super) fn binary(opcode: Opcode, dtype: DType) -> Option<BlockFn> {
    match dtype {
        DType::Pred => binary_truth(opcode),
        DType::F16 | DType::Bf16 | DType::F32 | DType::Mini(_) => binary_real::<f32>(opcode),
        DType::F64 => binary_real::<f64>(opcode),
        DType::C64 => binary_complex::<f32>(opcode),
        DType::C128 => binary_complex::<f64>(opcode),
        DType::S8 => binary_whole::<i8>(opcode),
        DType::S16 => binary_whole::<i16>(opcode),
        DType::S32 => binary_whole::<i32>(opcode),
        DType::S64 => binary_whole::<i64>(opcode),
        DType::U8 => binary_whole::<u8>(opcode),
        DType::U16 => binary_whole::<u16>(opcode),
        DType::U32 => binary_whole::<u32>(opcode),
        DType::U64 => binary_whole::<u64>(opcode),
        // Bits beyond the type's would be shifted in.
        DType::Tiny(tiny) if tiny.is_signed() && opcode == Opcode::ShiftRightLogical => None,
        DType::Tiny(_) => binary(opcode, computed_as(dtype)),
    }
}

fn binary_truth(opcode: Opcode) -> Option<BlockFn> {
    Some(match opcode {
        Opcode::And | Opcode::Multiply | Opcode::Minimum => two(|a: u8, b: u8| a & b),
        Opcode::Or | Opcode::Add | Opcode::Maximum => two(|a: u8, b: u8| a | b),
        Opcode::Xor => two(|a: u8, b: u8| a ^ b),
        _ => return None,
    })
}

fn binary_number<T: NumberType>(opcode: Opcode) -> Option<BlockFn> {
    Some(match opcode {
        Opcode::Add => two(|a: T, b: T| a.add(b)),
        Opcode::Subtract => two(|a: T, b: T| a.sub(b)),
        Opcode::Multiply => two(|a: T, b: T| a.mul(b)),
        Opcode::Divide => two(|a: T, b: T| a.div(b)),
        Opcode::Remainder => two(|a: T, b: T| a.rem(b)),
        Opcode::Maximum => two(|a: T, b: T| a.max(b)),
        Opcode::Minimum => two(|a: T, b: T| a.min(b)),
        Opcode::Power => two(|a: T, b: T| a.pow(b)),
        _ => return None,
    })
}

fn binary_real<T: Real>(opcode: Opcode) -> Option<BlockFn> {
    Some(match opcode {
        Opcode::Atan2 => two(|a: T, b: T| a.atan2(b)),
        Opcode::Complex => two(|a: T, b: T| Complex { re: a, im: b }),
        _ => return binary_number::<T>(opcode),
    })
}

fn binary_whole<T: Whole>(opcode: Opcode) -> Option<BlockFn> {
    Some(match opcode {
        Opcode::And => two(|a: T, b: T| a.and(b)),
        Opcode::Or => two(|a: T, b: T| a.or(b)),
        Opcode::Xor => two(|a: T, b: T| a.xor(b)),
        Opcode::ShiftLeft => two(|a: T, b: T| a.shl(b)),
        Opcode::ShiftRightLogical => two(|a: T, b: T| a.shr_logical(b)),
        Opcode::ShiftRightArithmetic => two(|a: T, b: T| a.shr_arithmetic(b)),
        _ => return binary_number::<T>(opcode),
    })
}

fn binary_complex<T: Real>(opcode: Opcode) -> Option<BlockFn> {
    type C<T> = Complex<T>;
    Some(match opcode {
        Opcode::Add => two(|a: C<T>, b: C<T>| Complex { re: a.re.add(b.re), im: a.im.add(b.im) }),
        Opcode::Subtract => {
            two(|a: C<T>, b: C<T>| Complex { re: a.re.sub(b.re), im: a.im.sub(b.im) })
        }
        Opcode::Multiply => two(|a: C<T>, b: C<T>| a.times(b)),
        Opcode::Divide => two(|a: C<T>, b: C<T>| a.over(b)),
        Opcode::Power => two(|a: C<T>, b: C<T>| a.power(b)),
        _ => return None,
    })
}

/// The function that compares; `is_total` uses the total order of floating-point numbers, with
/// zeros by sign and NaN at the ends.
pub(super) fn compare(direction: CompareOp, dtype: DType, is_total: bool) -> Option<BlockFn> {
    match computed_as(dtype) {
        DType::C64 => compare_complex::<f32>(direction),
        DType::C128 => compare_complex::<f64>(direction),
        DType::F32 if is_total => Some(compare_total::<f32>(direction)),
        DType::F64 if is_total => Some(compare_total::<f64>(direction)),
        DType::F32 => Some(compare_plain::<f32>(direction)),
        DType::F64 => Some(compare_plain::<f64>(direction)),
        DType::Pred | DType::U8 => Some(compare_plain::<u8>(direction)),
        DType::S8 => Some(compare_plain::<i8>(direction)),
        DType::S16 => Some(compare_plain::<i16>(direction)),
        DType::S32 => Some(compare_plain::<i32>(direction)),
        DType::S64 => Some(compare_plain::<i64>(direction)),
        DType::U16 => Some(compare_plain::<u16>(direction)),
        DType::U32 => Some(compare_plain::<u32>(direction)),
        DType::U64 => Some(compare_plain::<u64>(direction)),
        DType::F16 | DType::Bf16 | DType::Mini(_) | DType::Tiny(_) => None,
    }
}

fn compare_plain<T: Copy + PartialOrd>(direction: CompareOp) -> BlockFn {
    match direction {
        CompareOp::Eq => two(|a: T, b: T| u8::from(a == b)),
        CompareOp::Ne => two(|a: T, b: T| u8::from(a != b)),
        CompareOp::Lt => two(|a: T, b: T| u8::from(a < b)),
        CompareOp::Le => two(|a: T, b: T| u8::from(a <= b)),
        CompareOp::Gt => two(|a: T, b: T| u8::from(a > b)),
        CompareOp::Ge => two(|a: T, b: T| u8::from(a >= b)),
    }
}

fn compare_total<T: Real>(direction: CompareOp) -> BlockFn {
    match direction {
        CompareOp::Eq => two(|a: T, b: T| u8::from(a.total() == b.total())),
        CompareOp::Ne => two(|a: T, b: T| u8::from(a.total() != b.total())),
        CompareOp::Lt => two(|a: T, b: T| u8::from(a.total() < b.total())),
        CompareOp::Le => two(|a: T, b: T| u8::from(a.total() <= b.total())),
        CompareOp::Gt => two(|a: T, b: T| u8::from(a.total() > b.total())),
        CompareOp::Ge => two(|a: T, b: T| u8::from(a.total() >= b.total())),
    }
}

fn compare_complex<T: Real>(direction: CompareOp) -> Option<BlockFn> {
    type C<T> = Complex<T>;
    match direction {
        CompareOp::Eq => Some(two(|a: C<T>, b: C<T>| u8::from(a.re == b.re && a.im == b.im))),
        CompareOp::Ne => Some(two(|a: C<T>, b: C<T>| u8::from(a.re != b.re || a.im != b.im))),
        _ => None,
    }
}

/// Adds a product to a value in one step, each rounded as it is alone.
pub(super) fn multiply_add(dtype: DType) -> Option<BlockFn> {
    Some(match dtype {
        DType::F32 => three(|a: f32, b: f32, c: f32| a * b + c),
        DType::F64 => three(|a: f64, b: f64, c: f64| a * b + c),
        _ => return None,
    })
}

/// How a value is rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RotateKind {
    /// By as many bits as two blocks say, for each element.
    Each,
    /// By the same number of bits everywhere.
    Same,
    /// By the same number of bits everywhere, and combined with another value by `xor`: after those
    /// of the rotation.
    SameXor,
}

/// Shifts a value to the left and to the right, and joins the bits: `x << a | x >> b`, without the
/// two shifted values in between. Random bits are made of such rotations.
pub(super) fn rotate(dtype: DType, kind: RotateKind) -> Option<BlockFn> {
    Some(match (dtype, kind) {
        (DType::U32, RotateKind::Each) => {
            three(|x: u32, a: u32, b: u32| x.shl(a).or(x.shr_logical(b)))
        }
        (DType::U64, RotateKind::Each) => {
            three(|x: u64, a: u64, b: u64| x.shl(a).or(x.shr_logical(b)))
        }
        (DType::U32, RotateKind::Same) if is_wide() => rotate_wide::<u32>,
        (DType::U32, RotateKind::Same) => rotate_plain::<u32>,
        (DType::U64, RotateKind::Same) if is_wide() => rotate_wide::<u64>,
        (DType::U64, RotateKind::Same) => rotate_plain::<u64>,
        (DType::U32, RotateKind::SameXor) if is_wide() => rotate_xor_wide::<u32>,
        (DType::U32, RotateKind::SameXor) => rotate_xor_plain::<u32>,
        (DType::U64, RotateKind::SameXor) if is_wide() => rotate_xor_wide::<u64>,
        (DType::U64, RotateKind::SameXor) => rotate_xor_plain::<u64>,
        _ => return None,
    })
}

macro_rules! rotations {
    ($rotate:ident $rotate_xor:ident $(#[$feature:meta])*) => {
        /// # Safety
        /// See [`BlockFn`].
        $(#[$feature])*
        unsafe fn $rotate<T: Whole>(ins: &[*const u8; MOST_READ], out: *mut u8, len: usize) {
            // SAFETY: the caller promises blocks of this type and length that do not overlap.
            let (x, out) = unsafe { (block::<T>(ins[0], len), block_mut::<T>(out, len)) };
            // SAFETY: the same; all elements of these are equal.
            let (a, b) = unsafe { (*ins[1].cast::<T>(), *ins[2].cast::<T>()) };
            for (out, &x) in out.iter_mut().zip(x) {
                *out = x.shl(a).or(x.shr_logical(b));
            }
        }

        /// # Safety
        /// See [`BlockFn`].
        $(#[$feature])*
        unsafe fn $rotate_xor<T: Whole>(ins: &[*const u8; MOST_READ], out: *mut u8, len: usize) {
            // SAFETY: as above.
            let (x, y) = unsafe { (block::<T>(ins[0], len), block::<T>(ins[3], len)) };
            // SAFETY: as above.
            let (a, b) = unsafe { (*ins[1].cast::<T>(), *ins[2].cast::<T>()) };
            // SAFETY: as above.
            let out = unsafe { block_mut::<T>(out, len) };
            for ((out, &x), &y) in out.iter_mut().zip(x).zip(y) {
                *out = x.shl(a).or(x.shr_logical(b)).xor(y);
            }
        }
    };
}

rotations!(rotate_plain rotate_xor_plain);
#[cfg(target_arch = "x86_64")]
rotations!(rotate_wide rotate_xor_wide #[target_feature(enable = "avx2")]);
#[cfg(not(target_arch = "x86_64"))]
rotations!(rotate_wide rotate_xor_wide);

/// Selects the second or the third operand by the first.
pub(super) fn select(dtype: DType) -> BlockFn {
    // Only the size of an element matters.
    match computed_as(dtype).size() {
        1 => three(|p: u8, a: u8, b: u8| if p != 0 { a } else { b }),
        2 => three(|p: u8, a: u16, b: u16| if p != 0 { a } else { b }),
        4 => three(|p: u8, a: u32, b: u32| if p != 0 { a } else { b }),
        8 if dtype != DType::C64 => three(|p: u8, a: u64, b: u64| if p != 0 { a } else { b }),
        8 => three(|p: u8, a: [u32; 2], b: [u32; 2]| if p != 0 { a } else { b }),
        _ => three(|p: u8, a: [u64; 2], b: [u64; 2]| if p != 0 { a } else { b }),
    }
}

/// Copies.
pub(super) fn copy(dtype: DType) -> BlockFn {
    match computed_as(dtype).size() {
        1 => one(|a: u8| a),
        2 => one(|a: u16| a),
        4 => one(|a: u32| a),
        8 => one(|a: [u32; 2]| a),
        _ => one(|a: [u64; 2]| a),
    }
}

/// The function that converts computed elements to another type, not yet rounded to it.
pub(super) fn convert(from: DType, to: DType) -> BlockFn {
    if let (DType::Tiny(tiny), true) = (to, from.is_float()) {
        return saturate(tiny, computed_as(from) == DType::F64);
    }
    by_type!(from, convert_from, computed_as(to), to == DType::Pred)
}

fn convert_from<A: Numeric>(to: DType, to_truth: bool) -> BlockFn {
    if to_truth {
        return one(|a: A| u8::from(!a.is_zero()));
    }
    match to {
        DType::Pred | DType::U8 => one(|a: A| a.to_u8()),
        DType::S8 | DType::Tiny(_) => one(|a: A| a.to_i8()),
        DType::S16 => one(|a: A| a.to_i16()),
        DType::S32 => one(|a: A| a.to_i32()),
        DType::S64 => one(|a: A| a.to_i64()),
        DType::U16 => one(|a: A| a.to_u16()),
        DType::U32 => one(|a: A| a.to_u32()),
        DType::U64 => one(|a: A| a.to_u64()),
        DType::F64 => one(|a: A| a.to_f64()),
        DType::F16 | DType::Bf16 | DType::F32 | DType::Mini(_) => one(|a: A| a.to_f32()),
        DType::C64 => one(|a: A| Complex { re: a.to_f32(), im: a.imaginary() as f32 }),
        DType::C128 => one(|a: A| Complex { re: a.to_f64(), im: a.imaginary() }),
    }
}

/// Real numbers to small integers: truncated and saturated.
fn saturate(tiny: Tiny, from_double: bool) -> BlockFn {
    macro_rules! within {
        ($low:literal, $high:literal) => {
            match from_double {
                true => one(|a: f64| (a as i8).clamp($low, $high)),
                false => one(|a: f32| (a as i8).clamp($low, $high)),
            }
        };
    }
    match tiny {
        Tiny::S1 => within!(-1, 0),
        Tiny::S2 => within!(-2, 1),
        Tiny::S4 => within!(-8, 7),
        Tiny::U1 => within!(0, 1),
        Tiny::U2 => within!(0, 3),
        Tiny::U4 => within!(0, 15),
    }
}

/// What can be converted.
pub(super) trait Numeric: Copy + Default + 'static {
    fn is_zero(self) -> bool;
    fn imaginary(self) -> f64;
    fn to_i8(self) -> i8;
    fn to_i16(self) -> i16;
    fn to_i32(self) -> i32;
    fn to_i64(self) -> i64;
    fn to_u8(self) -> u8;
    fn to_u16(self) -> u16;
    fn to_u32(self) -> u32;
    fn to_u64(self) -> u64;
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
}

macro_rules! numeric {
    ($([$($generic:tt)*] $type:ty, $real:expr, $imaginary:expr;)*) => {$(
        impl Numeric for $type {
            #[inline(always)]
            fn is_zero(self) -> bool {
                self == <$type>::default()
            }
            #[inline(always)]
            fn imaginary(self) -> f64 {
                $imaginary(self)
            }
            numeric!(@to $type, $real,
                to_i8 i8, to_i16 i16, to_i32 i32, to_i64 i64,
                to_u8 u8, to_u16 u16, to_u32 u32, to_u64 u64,
                to_f32 f32, to_f64 f64);
        }
    )*};
    (@to $from:ty, $real:expr, $($name:ident $type:ident),*) => {$(
        #[inline(always)]
        fn $name(self) -> $type {
            $real(self) as $type
        }
    )*};
}

numeric! {
    [] i8, |a| a, |_| 0.0;
    [] i16, |a| a, |_| 0.0;
    [] i32, |a| a, |_| 0.0;
    [] i64, |a| a, |_| 0.0;
    [] u8, |a| a, |_| 0.0;
    [] u16, |a| a, |_| 0.0;
    [] u32, |a| a, |_| 0.0;
    [] u64, |a| a, |_| 0.0;
    [] f32, |a| a, |_| 0.0;
    [] f64, |a| a, |_| 0.0;
    [] Complex<f32>, |a: Complex<f32>| a.re, |a: Complex<f32>| f64::from(a.im);
    [] Complex<f64>, |a: Complex<f64>| a.re, |a: Complex<f64>| a.im;
}
