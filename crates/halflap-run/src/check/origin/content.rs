//! The NaN and infinities of single arrays.

use crate::check::finite::{Worst, worst_of};
use crate::tensor::{DType, Tensor, View, numbers};

/// Whether an array has NaN or infinities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) nan: bool,
    pub(super) inf: bool,
}

impl Content {
    pub(super) fn of(view: &View<'_>) -> Content {
        match worst_of(view) {
            Worst::Finite => Content::default(),
            Worst::Infinity => Content { nan: false, inf: true },
            Worst::Nan => {
                let inf =
                    numbers(view.dtype(), view.bytes()).iter().any(|number| number.is_infinite());
                Content { nan: true, inf }
            }
        }
    }

    pub(super) fn is_bad(self) -> bool {
        self.nan || self.inf
    }

    pub(super) fn has(self, what: What) -> bool {
        match what {
            What::Nan => self.nan,
            What::Infinity => self.inf,
        }
    }

    pub(super) fn or(self, other: Content) -> Content {
        Content { nan: self.nan || other.nan, inf: self.inf || other.inf }
    }
}

/// What an array should not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Nan,
    Infinity,
}

impl What {
    pub(super) fn is(self, number: f64) -> bool {
        match self {
            What::Nan => number.is_nan(),
            What::Infinity => number.is_infinite(),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            What::Nan => "nan",
            What::Infinity => "infinity",
        }
    }
}

/// For each number of an array whether it is such.
pub(super) fn mask(view: &View<'_>, what: What) -> Vec<bool> {
    numbers(view.dtype(), view.bytes()).into_iter().map(|number| what.is(number)).collect()
}

/// The same array with 1 in place of NaN and infinities.
pub(super) fn cleaned(array: &Tensor) -> Tensor {
    let mut clean = array.clone();
    let wild: Vec<bool> =
        numbers(array.dtype(), array.bytes()).iter().map(|number| !number.is_finite()).collect();
    let one: &[u8] = match array.dtype() {
        DType::F32 | DType::C64 => &1f32.to_le_bytes(),
        DType::F64 | DType::C128 => &1f64.to_le_bytes(),
        DType::Bf16 => &0x3f80u16.to_le_bytes(),
        DType::F16 => &0x3c00u16.to_le_bytes(),
        DType::Mini(mini) => &[mini.encode(1.0)],
        // Whole numbers are finite.
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
        assert_eq!(Content::of(&wild.view()), Content { nan: true, inf: true });
        assert_eq!(mask(&wild.view(), What::Nan), [false, false, true]);
        assert_eq!(cleaned(&wild).to_f64(), [2.0, 1.0, 1.0]);
        let half = Tensor::of(&[1], &[half::bf16::NEG_INFINITY]);
        assert_eq!((Content::of(&half.view()).nan, cleaned(&half).to_f64()), (false, vec![1.0]));
        let complex = Tensor::of(&[1], &[Complex { re: 3.0f32, im: f32::NAN }]);
        assert_eq!(cleaned(&complex).to_f64(), [3.0, 1.0]);
        let whole = Tensor::of(&[1], &[-1i32]);
        assert_eq!((Content::of(&whole.view()), cleaned(&whole)), (Content::default(), whole));
    }
}
