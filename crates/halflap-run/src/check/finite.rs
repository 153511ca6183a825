//! Finds kernels that make or take NaN and infinities.
//!
//! An infinity alone is not an error (masks have them), but when a NaN is found it helps to know
//! which kernel produced the first infinity.

use std::sync::Mutex;

use super::Forbidden;
use super::probe::{LaunchArray, LaunchPhase, Seen};
use crate::comm::MessageEnd;
use crate::failure::{FirstInfinity, NotFinite};
use crate::sync::locked;
use crate::tensor::{View, Worst, numbers, worst_of};

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
    use crate::tensor::Tensor;

    #[test]
    fn the_first_element_has_an_index() {
        let wild = Tensor::of(&[2, 3], &[0.0f32, 1.0, 2.0, 3.0, f32::INFINITY, f32::NAN]);
        assert_eq!(first(&wild.view(), |number| !number.is_finite()).0, [1, 1]);
    }
}
