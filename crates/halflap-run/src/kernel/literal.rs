//! The values of constants as bytes.

use half::{bf16, f16};
use halflap_hlo::{BadLiteral, Literal};

use crate::tensor::DType;

/// A constant's elements in a type, or the first that does not fit it.
pub(super) fn bytes(literal: &Literal, dtype: DType) -> Result<Vec<u8>, BadLiteral> {
    let kind = dtype.name();
    let bad = |value: &dyn ToString| BadLiteral::Value { value: value.to_string(), kind };
    let elements: Result<Vec<_>, BadLiteral> = match literal {
        Literal::Whole(values) => {
            values.iter().map(|value| whole(*value, dtype).ok_or_else(|| bad(value))).collect()
        }
        Literal::Float(values) => {
            values.iter().map(|value| float(*value, dtype).ok_or_else(|| bad(value))).collect()
        }
        Literal::Complex(values) => values
            .iter()
            .map(|(real, imaginary)| {
                complex(*real, *imaginary, dtype)
                    .ok_or_else(|| bad(&format!("({real}, {imaginary})")))
            })
            .collect(),
        Literal::LeftOut => Err(BadLiteral::NoArray),
    };
    elements.map(|elements| elements.concat())
}

fn whole(value: i128, dtype: DType) -> Option<Vec<u8>> {
    let bytes = value.to_le_bytes();
    let bits = 8 * dtype.size() as u32;
    let fits = |bits: u32, is_signed: bool| match is_signed {
        true => (-(1 << (bits - 1))..1 << (bits - 1)).contains(&value),
        false => (0..1i128 << bits).contains(&value),
    };
    let is_within = match dtype {
        DType::Pred => return Some(vec![u8::from(value != 0)]),
        DType::Tiny(tiny) => {
            return fits(tiny.bits(), tiny.is_signed()).then(|| vec![tiny.wrap(bytes[0])]);
        }
        // As XLA reads them: -1 is the largest unsigned number.
        DType::S64 | DType::U64 => fits(bits, true) || fits(bits, false),
        DType::S8 | DType::S16 | DType::S32 => fits(bits, true),
        DType::U8 | DType::U16 | DType::U32 => fits(bits, false),
        _ => false,
    };
    is_within.then(|| bytes[..dtype.size()].to_vec())
}

fn float(value: f64, dtype: DType) -> Option<Vec<u8>> {
    let (bytes, is_finite) = match dtype {
        DType::F16 => {
            let near = f16::from_f64(value);
            (near.to_le_bytes().to_vec(), near.is_finite())
        }
        DType::Bf16 => {
            let near = bf16::from_f64(value);
            (near.to_le_bytes().to_vec(), near.is_finite())
        }
        DType::F32 => ((value as f32).to_le_bytes().to_vec(), (value as f32).is_finite()),
        DType::F64 => (value.to_le_bytes().to_vec(), value.is_finite()),
        // Their own rules say what becomes of large numbers.
        DType::Mini(mini) => (vec![mini.encode(value as f32)], true),
        _ => return None,
    };
    (is_finite || !value.is_finite()).then_some(bytes)
}

fn complex(real: f64, imaginary: f64, dtype: DType) -> Option<Vec<u8>> {
    let part = match dtype {
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        _ => return None,
    };
    Some([float(real, part)?, float(imaginary, part)?].concat())
}
