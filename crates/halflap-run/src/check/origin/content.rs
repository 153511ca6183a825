//! The NaN and infinities of single arrays.

use crate::tensor::{DType, Tensor, View, Worst, numbers, worst_of};

/// Whether an array has NaN or infinities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NonFinite {
    pub(super) nan: bool,
    pub(super) inf: bool,
}

impl NonFinite {
    pub(super) fn of(view: &View<'_>) -> NonFinite {
        match worst_of(view) {
            Worst::Finite => NonFinite::default(),
            Worst::Infinity => NonFinite { nan: false, inf: true },
            Worst::Nan => {
                let inf =
                    numbers(view.dtype(), view.bytes()).iter().any(|number| number.is_infinite());
                NonFinite { nan: true, inf }
            }
        }
    }

    pub(super) fn is_bad(self) -> bool {
        self.nan || self.inf
    }

    pub(super) fn has(self, what: BadValue) -> bool {
        match what {
            BadValue::Nan => self.nan,
            BadValue::Infinity => self.inf,
        }
    }

    pub(super) fn or(self, other: NonFinite) -> NonFinite {
        NonFinite { nan: self.nan || other.nan, inf: self.inf || other.inf }
    }
}

/// NaN or infinities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BadValue {
    Nan,
    Infinity,
}

impl BadValue {
    pub(super) fn is(self, number: f64) -> bool {
        match self {
            BadValue::Nan => number.is_nan(),
            BadValue::Infinity => number.is_infinite(),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            BadValue::Nan => "nan",
            BadValue::Infinity => "infinity",
        }
    }
}

/// For each element of an array, whether it is one of these.
pub(super) fn mask(view: &View<'_>, what: BadValue) -> Vec<bool> {
    numbers(view.dtype(), view.bytes()).into_iter().map(|number| what.is(number)).collect()
}

/// The same array with 1 in place of NaN and infinities.
pub(super) fn cleaned(array: &Tensor) -> Tensor {
    with_ones(array, |number| !number.is_finite())
}

/// The same array with 1 in place of zeros.
pub(super) fn lifted(array: &Tensor) -> Tensor {
    with_ones(array, |number| number == 0.0)
}

fn with_ones(array: &Tensor, is_replaced: impl Fn(f64) -> bool) -> Tensor {
    let mut clean = array.clone();
    let wild: Vec<bool> =
        numbers(array.dtype(), array.bytes()).into_iter().map(is_replaced).collect();
    let one: &[u8] = match array.dtype() {
        DType::F32 | DType::C64 => &1f32.to_le_bytes(),
        DType::F64 | DType::C128 => &1f64.to_le_bytes(),
        DType::Bf16 => &0x3f80u16.to_le_bytes(),
        DType::F16 => &0x3c00u16.to_le_bytes(),
        DType::Mini(mini) => &[mini.encode(1.0)],
        // Integers are finite, and stay as they are.
        _ => return clean,
    };
    for (number, is_wild) in clean.bytes_mut().chunks_exact_mut(one.len()).zip(wild) {
        if is_wild {
            number.copy_from_slice(one);
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Complex;

    #[test]
    fn what_is_wild_becomes_one() {
        let wild = Tensor::of(&[3], &[2.0f32, f32::INFINITY, f32::NAN]);
        assert_eq!(NonFinite::of(&wild.view()), NonFinite { nan: true, inf: true });
        assert_eq!(mask(&wild.view(), BadValue::Nan), [false, false, true]);
        assert_eq!(cleaned(&wild).to_f64(), [2.0, 1.0, 1.0]);
        let half = Tensor::of(&[1], &[half::bf16::NEG_INFINITY]);
        assert_eq!((NonFinite::of(&half.view()).nan, cleaned(&half).to_f64()), (false, vec![1.0]));
        let complex = Tensor::of(&[1], &[Complex { re: 3.0f32, im: f32::NAN }]);
        assert_eq!(cleaned(&complex).to_f64(), [3.0, 1.0]);
        let whole = Tensor::of(&[1], &[-1i32]);
        assert_eq!((NonFinite::of(&whole.view()), cleaned(&whole)), (NonFinite::default(), whole));
    }
}
