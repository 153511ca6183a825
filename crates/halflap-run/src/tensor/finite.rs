//! Whether arrays have NaN or infinities.
//!
//! Almost all arrays have none, so the first scan only checks whether there is any: one integer
//! comparison per element, which compilers vectorise.

use super::{DType, View};

/// What an array contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worst {
    Finite,
    Infinity,
    Nan,
}

/// Elements are scanned in chunks of this size, so that a hit near the start is found early.
const PIECE: usize = 1 << 12;

/// Scans all elements.
pub(crate) fn worst_of(view: &View<'_>) -> Worst {
    let bytes = view.bytes();
    match view.dtype() {
        DType::F32 | DType::C64 => words(bytes, f32::INFINITY.to_bits()),
        DType::F64 | DType::C128 => doubles(bytes),
        DType::Bf16 => halves(bytes, 0x7f80),
        DType::F16 => halves(bytes, 0x7c00),
        DType::Mini(mini) => {
            bytes.iter().map(|&code| worst(mini.decode(code).into())).max().unwrap_or(Worst::Finite)
        }
        _ => Worst::Finite,
    }
}

/// Elements as integers that are ordered, without the sign, as the elements are.
macro_rules! looked_at {
    ($name:ident, $unsigned:ty, $signed:ty) => {
        fn $name(bytes: &[u8], infinity: $unsigned) -> Worst {
            const SIGN: $unsigned = 1 << (<$unsigned>::BITS - 1);
            let (elements, _) = bytes.as_chunks::<{ size_of::<$unsigned>() }>();
            // Without the sign bit it fits a signed integer, which old machines compare faster.
            let reaches = |limit: $signed| {
                elements.chunks(PIECE).any(|piece| {
                    let over = |element: &[u8; size_of::<$unsigned>()]| {
                        <$signed>::from(
                            (<$unsigned>::from_le_bytes(*element) & !SIGN) as $signed > limit,
                        )
                    };
                    piece.iter().fold(0, |any, element| any | over(element)) != 0
                })
            };
            match reaches(infinity as $signed - 1) {
                false => Worst::Finite,
                true if reaches(infinity as $signed) => Worst::Nan,
                true => Worst::Infinity,
            }
        }
    };
}

looked_at!(words, u32, i32);
looked_at!(halves, u16, i16);

fn doubles(bytes: &[u8]) -> Worst {
    let (elements, _) = bytes.as_chunks::<8>();
    let each = elements.iter().map(|element| worst(f64::from_le_bytes(*element)));
    each.max().unwrap_or(Worst::Finite)
}

fn worst(number: f64) -> Worst {
    match number {
        number if number.is_finite() => Worst::Finite,
        number if number.is_nan() => Worst::Nan,
        _ => Worst::Infinity,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Complex, Tensor};

    /// One element of each kind at every index of arrays about as long as a chunk.
    #[test]
    fn one_element_is_found_wherever_it_is() {
        for len in [1, 7, 4095, 4097] {
            for place in [0, len / 2, len - 1] {
                for (bad, worst) in [
                    (f32::NAN, Worst::Nan),
                    (f32::NEG_INFINITY, Worst::Infinity),
                    (-f32::MAX, Worst::Finite),
                ] {
                    let mut elements = vec![-1.0f32; len];
                    elements[place] = bad;
                    assert_eq!(worst_of(&Tensor::of(&[len], &elements).view()), worst);
                    let doubles: Vec<f64> =
                        elements.iter().map(|&number| f64::from(number)).collect();
                    assert_eq!(worst_of(&Tensor::of(&[len], &doubles).view()), worst);
                    if bad != -f32::MAX {
                        let halves: Vec<half::bf16> =
                            elements.iter().map(|&number| half::bf16::from_f32(number)).collect();
                        assert_eq!(worst_of(&Tensor::of(&[len], &halves).view()), worst);
                        let halves: Vec<half::f16> =
                            elements.iter().map(|&number| half::f16::from_f32(number)).collect();
                        assert_eq!(worst_of(&Tensor::of(&[len], &halves).view()), worst);
                    }
                }
            }
        }
        assert_eq!(
            worst_of(&Tensor::of(&[1], &[Complex { re: 0.0f32, im: f32::NAN }]).view()),
            Worst::Nan
        );
        assert_eq!(worst_of(&Tensor::of(&[2], &[-1i32, i32::MAX]).view()), Worst::Finite);
    }
}
