//! `reduce-precision`: numbers rounded to fewer bits of exponent and mantissa, in their own type.
//!
//! The mantissa is rounded to the nearest, ties to even, in the bits of the type; what then is too
//! large becomes infinite, and what is too small for a normal number of the new format becomes
//! zero. NaN stays as it is.

use super::block::{BlockFn, copy, two};
use super::program::{ProgramDraft, Register};
use super::stored::{narrow, widen};
use crate::tensor::{DType, Mini};

/// A floating-point format: how many bits of exponent and mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FloatBits {
    pub(super) exponent: u8,
    pub(super) mantissa: u8,
}

impl FloatBits {
    /// One register's worth of both, for a block function.
    fn packed(self) -> u16 {
        u16::from(self.exponent) << 8 | u16::from(self.mantissa)
    }
}

/// The type in whose bits numbers are rounded: as in XLA, small types are f16, but for the one that
/// has exponents beyond it.
fn worked_in(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => Some(dtype),
        DType::Mini(Mini::F8e8m0fnu) => Some(DType::F32),
        DType::Mini(_) => Some(DType::F16),
        _ => None,
    }
}

/// Rounds computed elements of a type; `None` if it is not one of real numbers.
pub(super) fn reduced(
    program: &mut ProgramDraft,
    value: Register,
    (dtype, to): (DType, FloatBits),
) -> Option<Register> {
    let worked = worked_in(dtype)?;
    let own = own_bits(worked);
    if to.exponent >= own.exponent && to.mantissa >= own.mantissa {
        return Some(program.call(copy(dtype), &[value], super::block::computed_as(dtype).size()));
    }
    let packed = to.packed();
    let (function, format): (BlockFn, Vec<u8>) = match worked {
        DType::F64 => (two(reduce_f64), u64::from(packed).to_ne_bytes().to_vec()),
        DType::F32 => (two(reduce_f32), u32::from(packed).to_ne_bytes().to_vec()),
        DType::Bf16 => (two(reduce_bf16), packed.to_ne_bytes().to_vec()),
        _ => (two(reduce_f16), packed.to_ne_bytes().to_vec()),
    };
    let size = format.len();
    let format = program.splat(&format);
    Some(match narrow(worked).zip(widen(worked)) {
        Some((narrow, widen)) => {
            let stored = program.call(narrow, &[value], size);
            let reduced = program.call(function, &[stored, format], size);
            program.call(widen, &[reduced], 4)
        }
        None => program.call(function, &[value, format], size),
    })
}

fn own_bits(dtype: DType) -> FloatBits {
    match dtype {
        DType::F64 => FloatBits { exponent: 11, mantissa: 52 },
        DType::F16 => FloatBits { exponent: 5, mantissa: 10 },
        DType::Bf16 => FloatBits { exponent: 8, mantissa: 7 },
        _ => FloatBits { exponent: 8, mantissa: 23 },
    }
}

macro_rules! reduce {
    ($name:ident, $bits:ty, $exponent:literal, $mantissa:literal) => {
        /// Rounds the bits of a number to a packed format.
        #[inline(always)]
        fn $name(x: $bits, format: $bits) -> $bits {
            const SIGN: $bits = 1 << ($exponent + $mantissa);
            const INFINITY: $bits = ((1 << $exponent) - 1) << $mantissa;
            const BIAS: $bits = (1 << ($exponent - 1)) - 1;
            let (exponent, mantissa) = (format >> 8, format & 0xff);
            let magnitude = x & !SIGN;
            // Rounding by no bits adds and masks nothing.
            let dropped = ($mantissa as $bits).saturating_sub(mantissa);
            let last = (1 as $bits) << dropped;
            let is_odd = (magnitude >> dropped) & 1;
            let half = (last >> 1).wrapping_sub(1).wrapping_add(is_odd);
            let half = if dropped == 0 { 0 } else { half };
            // A carry into the exponent is right: the mantissa is then zero.
            let rounded = magnitude.wrapping_add(half) & !(last - 1);
            let range = ((1 as $bits) << (exponent.min($exponent) - 1)) - 1;
            let is_narrower = exponent < $exponent;
            let is_over = is_narrower && rounded & INFINITY > (BIAS + range) << $mantissa;
            let is_under = is_narrower && rounded & INFINITY <= (BIAS - range) << $mantissa;
            let reduced = if is_over { INFINITY } else { rounded };
            let reduced = if is_under { 0 } else { reduced };
            if magnitude > INFINITY { x } else { reduced | x & SIGN }
        }
    };
}

reduce!(reduce_f64, u64, 11, 52);
reduce!(reduce_f32, u32, 8, 23);
reduce!(reduce_f16, u16, 5, 10);
reduce!(reduce_bf16, u16, 8, 7);
