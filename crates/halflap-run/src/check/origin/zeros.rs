//! Infinities that become zeros and infinities again, as in the logarithm of a sum of exponentials
//! over masked scores: `exp(-inf)` is 0, and `log(0)` is the same `-inf`, not a new one.
//!
//! An array whose zeros were infinities before keeps their origins. Which zeros those are is found
//! by trial, as for infinities: the launch runs again with 1 in place of the infinities, or of the
//! zeros, that it was given.

use super::book::{OriginId, Taint};
use super::content::{BadValue, cleaned, lifted};
use super::{Again, FinishedLaunch, Tracer};
use crate::tensor::{Tensor, numbers};

impl Tracer {
    /// The origins of infinities that have become zeros of a launch's outputs.
    pub(super) fn vanished(&self, over: &FinishedLaunch<'_>, again: Again<'_>) -> Vec<OriginId> {
        let origins = over.taken.arrays.iter().flat_map(|input| {
            let infinite = if input.content.inf { input.taint.of(BadValue::Infinity) } else { &[] };
            infinite.iter().chain(input.taint.zeros()).copied()
        });
        let origins: Vec<OriginId> = origins.collect();
        if origins.is_empty() {
            return origins;
        }
        let zeros: Vec<bool> = over
            .outs
            .iter()
            .flat_map(|out| numbers(out.view.dtype(), out.view.bytes()))
            .map(|number| number == 0.0)
            .collect();
        if !zeros.contains(&true) {
            return Vec::new();
        }
        let without = again(&without_zeros(over));
        let numbers =
            without.iter().flat_map(|out| numbers(out.view().dtype(), out.view().bytes()));
        let has_vanished = zeros.iter().zip(numbers).any(|(&is_zero, now)| is_zero && now != 0.0);
        if has_vanished { origins } else { Vec::new() }
    }

    /// The origins of a launch's infinities, if all of them are those of zeros that it was given:
    /// they are negative, as logarithms have them (a division by zero is something else).
    pub(super) fn reappeared(&self, over: &FinishedLaunch<'_>, again: Again<'_>) -> Option<Taint> {
        let origins: Vec<OriginId> =
            over.taken.arrays.iter().flat_map(|input| input.taint.zeros()).copied().collect();
        let all = || over.outs.iter().flat_map(|out| numbers(out.view.dtype(), out.view.bytes()));
        if origins.is_empty() || all().any(|number| number.is_nan() || number == f64::INFINITY) {
            return None;
        }
        let without = again(&without_zeros(over));
        let is_finite = without.iter().all(|out| {
            numbers(out.view().dtype(), out.view().bytes()).iter().all(|number| number.is_finite())
        });
        let mut taint = Taint::default();
        taint.add(BadValue::Infinity, &origins);
        is_finite.then_some(taint)
    }
}

/// A launch's inputs with 1 in place of infinities, and of zeros that were infinities.
fn without_zeros(over: &FinishedLaunch<'_>) -> Vec<(usize, Tensor)> {
    let inputs = over.taken.arrays.iter().enumerate().filter_map(|(place, input)| {
        let copy = input.copy.as_ref()?;
        let were_infinite = !input.taint.zeros().is_empty();
        let lifted = if were_infinite { lifted(copy) } else { copy.clone() };
        Some((place, cleaned(&lifted)))
    });
    inputs.collect()
}
