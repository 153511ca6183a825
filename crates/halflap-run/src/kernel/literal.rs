//! The values of constants as bytes.

use half::{bf16, f16};
use halflap_hlo::Literal;

use crate::tensor::DType;

/// A constant's elements in a type; `None` if they do not fit it.
pub(super) fn bytes(literal: &Literal, dtype: DType) -> Option<Vec<u8>> {
    match literal {
        Literal::Whole(values) => {
            values.iter().map(|&value| whole(value, dtype)).collect::<Option<Vec<_>>>()
        }
        Literal::Float(values) => values.iter().map(|&value| float(value, dtype)).collect(),
        Literal::Complex(values) => {
            values.iter().map(|&(real, imaginary)| complex(real, imaginary, dtype)).collect()
        }
        Literal::LeftOut => None,
    }
    .map(|elements| elements.concat())
}

fn whole(value: i128, dtype: DType) -> Option<Vec<u8>> {
    let bytes = value.to_le_bytes();
    match dtype {
        DType::Pred => Some(vec![u8::from(value != 0)]),
        DType::S8
        | DType::S16
        | DType::S32
        | DType::S64
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64 => Some(bytes[..dtype.size()].to_vec()),
        DType::Tiny(tiny) => Some(vec![tiny.wrap(bytes[0])]),
        _ => None,
    }
}

fn float(value: f64, dtype: DType) -> Option<Vec<u8>> {
    Some(match dtype {
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::Mini(mini) => vec![mini.encode(value as f32)],
        _ => return None,
    })
}

fn complex(real: f64, imaginary: f64, dtype: DType) -> Option<Vec<u8>> {
    let part = match dtype {
        DType::C64 => DType::F32,
        DType::C128 => DType::F64,
        _ => return None,
    };
    Some([float(real, part)?, float(imaginary, part)?].concat())
}
