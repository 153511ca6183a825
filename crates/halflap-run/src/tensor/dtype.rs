//! Types of elements.

use std::fmt;

use half::{bf16, f16};
use halflap_hlo::ElementType;

use super::mini::{Mini, Tiny};

/// A complex number: real and imaginary part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Complex<T> {
    pub re: T,
    pub im: T,
}

/// A type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DType {
    /// A boolean in a byte, 0 or 1.
    Pred,
    S8,
    S16,
    S32,
    S64,
    U8,
    U16,
    U32,
    U64,
    F16,
    Bf16,
    F32,
    F64,
    C64,
    C128,
    /// A floating-point number of at most eight bits, in a byte.
    Mini(Mini),
    /// An integer of at most four bits, in a byte, extended by its sign.
    Tiny(Tiny),
}

impl DType {
    /// The type of HLO's, if it is one of those here.
    pub fn of(element: ElementType) -> Option<DType> {
        Some(match element {
            ElementType::Pred => DType::Pred,
            ElementType::S8 => DType::S8,
            ElementType::S16 => DType::S16,
            ElementType::S32 => DType::S32,
            ElementType::S64 => DType::S64,
            ElementType::U8 => DType::U8,
            ElementType::U16 => DType::U16,
            ElementType::U32 => DType::U32,
            ElementType::U64 => DType::U64,
            ElementType::F16 => DType::F16,
            ElementType::Bf16 => DType::Bf16,
            ElementType::F32 => DType::F32,
            ElementType::F64 => DType::F64,
            ElementType::C64 => DType::C64,
            ElementType::C128 => DType::C128,
            ElementType::F8e5m2 => DType::Mini(Mini::F8e5m2),
            ElementType::F8e4m3 => DType::Mini(Mini::F8e4m3),
            ElementType::F8e4m3fn => DType::Mini(Mini::F8e4m3fn),
            ElementType::F8e3m4 => DType::Mini(Mini::F8e3m4),
            ElementType::F8e4m3b11fnuz => DType::Mini(Mini::F8e4m3b11fnuz),
            ElementType::F8e4m3fnuz => DType::Mini(Mini::F8e4m3fnuz),
            ElementType::F8e5m2fnuz => DType::Mini(Mini::F8e5m2fnuz),
            ElementType::F8e8m0fnu => DType::Mini(Mini::F8e8m0fnu),
            ElementType::F4e2m1fn => DType::Mini(Mini::F4e2m1fn),
            ElementType::S1 => DType::Tiny(Tiny::S1),
            ElementType::S2 => DType::Tiny(Tiny::S2),
            ElementType::S4 => DType::Tiny(Tiny::S4),
            ElementType::U1 => DType::Tiny(Tiny::U1),
            ElementType::U2 => DType::Tiny(Tiny::U2),
            ElementType::U4 => DType::Tiny(Tiny::U4),
            ElementType::Other { .. } => return None,
        })
    }

    /// As HLO writes it.
    pub fn name(self) -> &'static str {
        match self {
            DType::Pred => "pred",
            DType::S8 => "s8",
            DType::S16 => "s16",
            DType::S32 => "s32",
            DType::S64 => "s64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::C64 => "c64",
            DType::C128 => "c128",
            DType::Mini(mini) => mini.name(),
            DType::Tiny(tiny) => tiny.name(),
        }
    }

    /// How many bytes an element has.
    pub fn size(self) -> usize {
        match self {
            DType::Pred | DType::S8 | DType::U8 | DType::Mini(_) | DType::Tiny(_) => 1,
            DType::S16 | DType::U16 | DType::F16 | DType::Bf16 => 2,
            DType::S32 | DType::U32 | DType::F32 => 4,
            DType::S64 | DType::U64 | DType::F64 | DType::C64 => 8,
            DType::C128 => 16,
        }
    }

    /// The alignment of an element.
    pub fn align(self) -> usize {
        self.size().min(8)
    }

    /// Whether it is a real floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::Bf16 | DType::F32 | DType::F64 | DType::Mini(_))
    }

    /// Whether it is a complex type.
    pub fn is_complex(self) -> bool {
        matches!(self, DType::C64 | DType::C128)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that holds elements.
///
/// # Safety
/// `holds` may be true only for types of the same size and alignment, any bytes of which are a
/// value.
pub unsafe trait Element: Copy + Default + 'static {
    /// Its own element type.
    const DTYPE: DType;
    /// Whether elements of a type can be held in it.
    fn holds(dtype: DType) -> bool {
        dtype == Self::DTYPE
    }
}

macro_rules! elements {
    ($($type:ty: $dtype:ident $(or $other:pat)?,)*) => {$(
        // SAFETY: each is the type itself, or the byte that holds a boolean or a smaller number.
        unsafe impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            fn holds(dtype: DType) -> bool {
                matches!(dtype, DType::$dtype $(| $other)?)
            }
        }
    )*};
}

elements! {
    i8: S8 or DType::Tiny(_), i16: S16, i32: S32, i64: S64,
    u8: U8 or DType::Pred | DType::Mini(_) | DType::Tiny(_), u16: U16, u32: U32, u64: U64,
    f16: F16, bf16: Bf16, f32: F32, f64: F64, Complex<f32>: C64, Complex<f64>: C128,
}

/// Elements as numbers.
pub(crate) fn to_f64(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk)).collect()
    }
    match dtype {
        DType::Pred | DType::U8 => each(bytes, |b| f64::from(u8::from_le_bytes(b))),
        DType::S8 => each(bytes, |b| f64::from(i8::from_le_bytes(b))),
        DType::S16 => each(bytes, |b| f64::from(i16::from_le_bytes(b))),
        DType::U16 => each(bytes, |b| f64::from(u16::from_le_bytes(b))),
        DType::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f64()),
        DType::Bf16 => each(bytes, |b| bf16::from_le_bytes(b).to_f64()),
        DType::S32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
        DType::U32 => each(bytes, |b| f64::from(u32::from_le_bytes(b))),
        DType::F32 | DType::C64 => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
        DType::S64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        DType::U64 => each(bytes, |b| u64::from_le_bytes(b) as f64),
        DType::F64 | DType::C128 => each(bytes, f64::from_le_bytes),
        DType::Mini(mini) => each(bytes, |[code]| f64::from(mini.decode(code))),
        DType::Tiny(tiny) if tiny.is_signed() => {
            each(bytes, |[byte]| f64::from(tiny.wrap(byte) as i8))
        }
        DType::Tiny(tiny) => each(bytes, |[byte]| f64::from(tiny.wrap(byte))),
    }
}
