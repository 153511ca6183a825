//! Conditions that look for NaN: `select(any(isnan(x)), nan, y)` puts a constant NaN into a result
//! because `x` has some, so they are those of `x`.
//!
//! Booleans and integers that are computed from such a question carry the origins of the NaN.

use super::book::OriginId;
use super::content::{BadValue, mask};
use super::{FinishedLaunch, Tracer};
use crate::check::probe::LaunchArray;
use crate::sync::locked;

/// Whether an array can only say something of NaN, but have none.
pub(super) fn is_discrete(array: &LaunchArray<'_>) -> bool {
    let dtype = array.view.dtype();
    !dtype.is_float() && !dtype.is_complex()
}

impl Tracer {
    /// The origins of NaN that were asked for to make what a launch takes.
    pub(super) fn asked_of(
        &self,
        over: &FinishedLaunch<'_>,
    ) -> impl Iterator<Item = OriginId> + use<> {
        let inputs = over.taken.arrays.iter();
        let all: Vec<OriginId> = inputs.flat_map(|input| input.taint.asked().to_vec()).collect();
        all.into_iter()
    }

    /// What a launch makes of an answer says it, too; so does the answer to its own question.
    pub(super) fn pass_on_asked(&self, over: &FinishedLaunch<'_>) {
        let mut asked: Vec<OriginId> = self.asked_of(over).collect();
        if over.seen.label.asks {
            let nan = over.taken.arrays.iter().filter(|input| input.content.nan);
            asked.extend(nan.flat_map(|input| input.taint.of(BadValue::Nan)));
        }
        self.ask(over, &asked);
    }

    /// The booleans and integers that a launch makes say where the NaN of these origins are.
    pub(super) fn ask(&self, over: &FinishedLaunch<'_>, origins: &[OriginId]) {
        if origins.is_empty() {
            return;
        }
        let mut memory = locked(&self.memory);
        for out in over.outs.iter().filter(|out| is_discrete(out)) {
            let (start, len) = (out.view.as_ptr() as usize, out.view.bytes().len());
            let mut taint = memory.taint(start, len);
            taint.ask(origins);
            memory.set(start, len, taint);
        }
    }

    /// The origins of NaN of which a `select` takes none, where it takes those of a constant.
    pub(super) fn put_aside(&self, over: &FinishedLaunch<'_>, constant: usize) -> Vec<OriginId> {
        let Some(out) = over.outs.first() else { return Vec::new() };
        let made = mask(&out.view, BadValue::Nan);
        let inputs = over.taken.arrays.iter().enumerate();
        let others = inputs.filter(|(place, input)| *place != constant && input.content.nan);
        let was_there = others.filter(|(_, input)| {
            let copy = input.copy.as_ref();
            let was = copy.map(|copy| mask(&copy.view(), BadValue::Nan)).unwrap_or_default();
            was.iter().zip(&made).any(|(was, is)| *was && *is)
        });
        was_there.flat_map(|(_, input)| input.taint.of(BadValue::Nan).to_vec()).collect()
    }
}
