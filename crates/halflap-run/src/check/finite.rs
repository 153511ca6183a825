//! Finds NaN and infinities in arrays.
//!
//! Almost all arrays have none, so the first scan only checks whether there is any: one integer
//! comparison per element, which compilers vectorise. An infinity alone is not an error (masks have
//! them), but when a NaN is found it helps to know which kernel produced the first infinity.

use std::sync::Mutex;

use super::Forbidden;
use super::probe::{LaunchArray, LaunchPhase, Seen};
use crate::comm::MessageEnd;
use crate::failure::{FirstInfinity, NotFinite};
use crate::sync::locked;
use crate::tensor::{DType, View, numbers};

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

/// Checks the inputs and outputs of one rank's kernels.
pub(super) struct Finite {
    forbidden: Forbidden,
    rank: usize,
    /// The task that produced the first infinity, and its description.
    infinity: Mutex<Option<(u64, FirstInfinity)>>,
}

impl Finite {
    pub(super) fn new(forbidden: Forbidden, rank: usize) -> Finite {
        Finite { forbidden, rank, infinity: Mutex::default() }
    }

    /// The least severe content that is an error.
    fn limit(&self) -> Worst {
        match self.forbidden {
            Forbidden::Nan => Worst::Nan,
            Forbidden::Infinity => Worst::Infinity,
        }
    }

    /// What is wrong with the arrays of a launch, and their worst content. A constant's content is
    /// intended, and so is what is computed from such constants alone; but not what the launch
    /// itself produces from good ones.
    pub(super) fn look(
        &self,
        when: LaunchPhase,
        seen: &Seen<'_>,
        arrays: &[LaunchArray<'_>],
    ) -> (Option<NotFinite>, Worst) {
        let takes_meant = match when {
            LaunchPhase::Before => true,
            LaunchPhase::After(taken) => taken >= self.limit() || seen.label.ins.is_empty(),
        };
        let mut most = Worst::Finite;
        for array in arrays {
            let worst = worst_of(&array.view);
            most = most.max(worst);
            let is_meant = array.argument.is_constant && takes_meant;
            if worst >= self.limit() && !is_meant {
                return (Some(self.violation(when, seen, array)), most);
            }
        }
        (None, most)
    }

    /// Remembers a launch that produced an infinity from finite numbers.
    pub(super) fn note_infinity(&self, seen: &Seen<'_>, arrays: &[LaunchArray<'_>]) {
        let Some(array) = arrays.iter().find(|array| worst_of(&array.view) == Worst::Infinity)
        else {
            return;
        };
        let mut known = locked(&self.infinity);
        if known.as_ref().is_none_or(|(number, _)| seen.issued.number < *number) {
            let (index, _) = first(&array.view, |number| number.is_infinite());
            let (kernel, buffer) = (seen.label.name.clone(), array.argument.buffer.clone());
            let source = seen.label.source.clone();
            *known = Some((seen.issued.number, FirstInfinity { kernel, buffer, index, source }));
        }
    }

    fn violation(&self, when: LaunchPhase, seen: &Seen<'_>, array: &LaunchArray<'_>) -> NotFinite {
        let is_wrong = |number: f64| match self.forbidden {
            Forbidden::Nan => number.is_nan(),
            Forbidden::Infinity => !number.is_finite(),
        };
        let (index, value) = first(&array.view, is_wrong);
        let message = seen.label.message.as_ref();
        NotFinite {
            kernel: seen.label.name.clone(),
            is_input: when == LaunchPhase::Before,
            is_received: message.is_some_and(|message| message.end == MessageEnd::Recv),
            buffer: array.argument.buffer.clone(),
            index,
            value: value.to_string(),
            place: seen.label.place.clone(),
            source: seen.label.source.clone(),
            rank: self.rank,
            run: seen.run,
            iteration: seen.iteration().to_vec(),
            infinity: locked(&self.infinity).as_ref().map(|(_, first)| first.clone()),
        }
    }
}

/// The first element of a kind: its index and value.
pub(super) fn first(view: &View<'_>, is_wanted: impl Fn(f64) -> bool) -> (Vec<usize>, f64) {
    let all = numbers(view.dtype(), view.bytes());
    let at = all.iter().position(|&number| is_wanted(number)).unwrap_or(0);
    let value = all.get(at).copied().unwrap_or(0.0);
    // Complex elements have two numbers each.
    let mut left = if view.dtype().is_complex() { at / 2 } else { at };
    let mut index = vec![0; view.dims().len()];
    for (place, &len) in index.iter_mut().zip(view.dims()).rev() {
        (*place, left) = (left % len.max(1), left / len.max(1));
    }
    (index, value)
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
        let wild = Tensor::of(&[2, 3], &[0.0f32, 1.0, 2.0, 3.0, f32::INFINITY, f32::NAN]);
        assert_eq!(first(&wild.view(), |number| !number.is_finite()).0, [1, 1]);
    }
}
