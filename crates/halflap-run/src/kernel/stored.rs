//! Types whose stored form differs from the computed one: bf16, f16 and smaller floating-point
//! types are computed in f32, integers of few bits in eight.

use half::f16;

use super::block::{BlockFn, one};
use crate::tensor::mini::FORMATS;
use crate::tensor::{DType, Mini, Tiny};

/// The type in which an element is held between loading and storing.
pub(super) fn computed_as(dtype: DType) -> DType {
    match dtype {
        DType::Bf16 | DType::F16 | DType::Mini(_) => DType::F32,
        DType::Tiny(tiny) if tiny.is_signed() => DType::S8,
        DType::Tiny(_) => DType::U8,
        other => other,
    }
}

/// Stored elements to computed ones; `None` where they are the same.
pub(super) fn widen(dtype: DType) -> Option<BlockFn> {
    match dtype {
        DType::Bf16 => Some(one(|a: u16| f32::from_bits(u32::from(a) << 16))),
        DType::F16 => Some(one(|a: u16| f16::from_bits(a).to_f32_const())),
        DType::Mini(mini) => Some(mini_functions(mini).widen),
        DType::Tiny(tiny) => Some(wrap(tiny)),
        _ => None,
    }
}

/// Computed elements to stored ones; `None` where they are the same.
pub(super) fn narrow(dtype: DType) -> Option<BlockFn> {
    match dtype {
        DType::Bf16 => Some(one(|a: f32| (bf16_bits(a) >> 16) as u16)),
        DType::F16 => Some(one(|a: f32| f16::from_f32_const(a).to_bits())),
        DType::Mini(mini) => Some(mini_functions(mini).narrow),
        DType::Tiny(tiny) => Some(wrap(tiny)),
        _ => None,
    }
}

/// Rounds computed elements to values that the stored type has; `None` where all are.
pub(super) fn round(dtype: DType) -> Option<BlockFn> {
    match dtype {
        DType::Bf16 => Some(one(|a: f32| f32::from_bits(bf16_bits(a)))),
        DType::F16 => Some(one(|a: f32| f16::from_f32_const(a).to_f32_const())),
        DType::Mini(mini) => Some(mini_functions(mini).round),
        DType::Tiny(tiny) => Some(wrap(tiny)),
        _ => None,
    }
}

/// The nearest bf16, ties to even, as the upper half of 32 bits.
#[inline(always)]
fn bf16_bits(a: f32) -> u32 {
    let bits = a.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    // NaN stays NaN, whatever the upper bits were.
    if a.is_nan() { bits & 0xffff_0000 | 0x0040_0000 } else { rounded }
}

/// The lowest bits of an integer, extended by its sign.
fn wrap(tiny: Tiny) -> BlockFn {
    match tiny {
        Tiny::S1 => one(|a: u8| Tiny::S1.wrap(a)),
        Tiny::S2 => one(|a: u8| Tiny::S2.wrap(a)),
        Tiny::S4 => one(|a: u8| Tiny::S4.wrap(a)),
        Tiny::U1 => one(|a: u8| Tiny::U1.wrap(a)),
        Tiny::U2 => one(|a: u8| Tiny::U2.wrap(a)),
        Tiny::U4 => one(|a: u8| Tiny::U4.wrap(a)),
    }
}

/// How the codes of a type are read and made.
#[derive(Clone, Copy)]
struct MiniFunctions {
    widen: BlockFn,
    narrow: BlockFn,
    round: BlockFn,
}

fn mini_functions(mini: Mini) -> MiniFunctions {
    match mini {
        Mini::F8e5m2 => functions_of::<{ Mini::F8e5m2 as usize }>(),
        Mini::F8e4m3 => functions_of::<{ Mini::F8e4m3 as usize }>(),
        Mini::F8e4m3fn => functions_of::<{ Mini::F8e4m3fn as usize }>(),
        Mini::F8e3m4 => functions_of::<{ Mini::F8e3m4 as usize }>(),
        Mini::F8e4m3b11fnuz => functions_of::<{ Mini::F8e4m3b11fnuz as usize }>(),
        Mini::F8e4m3fnuz => functions_of::<{ Mini::F8e4m3fnuz as usize }>(),
        Mini::F8e5m2fnuz => functions_of::<{ Mini::F8e5m2fnuz as usize }>(),
        Mini::F8e8m0fnu => functions_of::<{ Mini::F8e8m0fnu as usize }>(),
        Mini::F4e2m1fn => functions_of::<{ Mini::F4e2m1fn as usize }>(),
    }
}

fn functions_of<const FORMAT: usize>() -> MiniFunctions {
    MiniFunctions {
        widen: one(|code: u8| decoded::<FORMAT>()[usize::from(code)]),
        narrow: one(|a: f32| const { &FORMATS[FORMAT] }.encode(a)),
        round: one(|a: f32| decoded::<FORMAT>()[usize::from(const { &FORMATS[FORMAT] }.encode(a))]),
    }
}

/// The numbers of all codes.
#[inline(always)]
fn decoded<const FORMAT: usize>() -> &'static [f32; 256] {
    const { &FORMATS[FORMAT].decoded() }
}
