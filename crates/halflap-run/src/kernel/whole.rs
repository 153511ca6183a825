//! Integer arithmetic, which wraps around.

use super::math::NumberType;

/// An integer type.
pub(super) trait Whole: NumberType + Ord {
    fn abs(self) -> Self;
    fn neg(self) -> Self;
    fn sign(self) -> Self;
    fn not(self) -> Self;
    fn ones(self) -> Self;
    fn leading(self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    /// A shift by the type's width or more gives zero.
    fn shl(self, other: Self) -> Self;
    fn shr_logical(self, other: Self) -> Self;
    fn shr_arithmetic(self, other: Self) -> Self;
}

macro_rules! whole {
    ($($type:ident $unsigned:ident $signed:ident $abs:expr, $sign:expr;)*) => {$(
        impl NumberType for $type {
            #[inline(always)]
            fn add(self, other: $type) -> $type {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: $type) -> $type {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: $type) -> $type {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn div(self, other: $type) -> $type {
                if other == 0 { !0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn rem(self, other: $type) -> $type {
                if other == 0 { self } else { self.wrapping_rem(other) }
            }
            #[inline(always)]
            #[allow(unused_comparisons)]
            fn pow(self, other: $type) -> $type {
                match other < 0 {
                    // An integer's reciprocal is an integer only for 1 and -1.
                    true if self == 1 => 1,
                    true if self == (0 as $type).wrapping_sub(1) => {
                        if other & 1 == 0 { 1 } else { self }
                    }
                    true => 0,
                    false => self.wrapping_pow(other as u32),
                }
            }
            #[inline(always)]
            fn max(self, other: $type) -> $type {
                Ord::max(self, other)
            }
            #[inline(always)]
            fn min(self, other: $type) -> $type {
                Ord::min(self, other)
            }
        }

        impl Whole for $type {
            #[inline(always)]
            fn abs(self) -> $type {
                $abs(self)
            }
            #[inline(always)]
            fn neg(self) -> $type {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn sign(self) -> $type {
                $sign(self)
            }
            #[inline(always)]
            fn not(self) -> $type {
                !self
            }
            #[inline(always)]
            fn ones(self) -> $type {
                self.count_ones() as $type
            }
            #[inline(always)]
            fn leading(self) -> $type {
                self.leading_zeros() as $type
            }
            #[inline(always)]
            fn and(self, other: $type) -> $type {
                self & other
            }
            #[inline(always)]
            fn or(self, other: $type) -> $type {
                self | other
            }
            #[inline(always)]
            fn xor(self, other: $type) -> $type {
                self ^ other
            }
            #[inline(always)]
            fn shl(self, other: $type) -> $type {
                let by = other & ($type::BITS - 1) as $type;
                if (other as $unsigned) < $type::BITS as $unsigned { self << by } else { 0 }
            }
            #[inline(always)]
            fn shr_logical(self, other: $type) -> $type {
                let by = (other & ($type::BITS - 1) as $type) as $unsigned;
                let shifted = ((self as $unsigned) >> by) as $type;
                if (other as $unsigned) < $type::BITS as $unsigned { shifted } else { 0 }
            }
            #[inline(always)]
            fn shr_arithmetic(self, other: $type) -> $type {
                let most = ($type::BITS - 1) as $unsigned;
                let by = if (other as $unsigned) < most { other as $unsigned } else { most };
                ((self as $signed) >> by) as $type
            }
        }
    )*};
}

whole! {
    i8 u8 i8 i8::wrapping_abs, i8::signum;
    i16 u16 i16 i16::wrapping_abs, i16::signum;
    i32 u32 i32 i32::wrapping_abs, i32::signum;
    i64 u64 i64 i64::wrapping_abs, i64::signum;
    u8 u8 i8 |a| a, |a| u8::from(a > 0);
    u16 u16 i16 |a| a, |a| u16::from(a > 0);
    u32 u32 i32 |a| a, |a| u32::from(a > 0);
    u64 u64 i64 |a| a, |a| u64::from(a > 0);
}
