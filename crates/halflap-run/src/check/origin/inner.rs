//! Where the NaN and infinities of a fusion come from, if its own constants have some or it is
//! given what constants mark: its instructions run again, one by one, and are followed as launches
//! are.

use std::collections::BTreeMap;

use super::book::{LaunchRecord, OriginId, OriginKind, SpoilOrigin, Taint};
use super::content::BadValue;
use super::{FinishedLaunch, Origins, OutOfRange, SpoilShare, Tracer, out_of_range};
use crate::check::probe::{LaunchArray, Seen};
use crate::kernel::Scratch;
use crate::prepare::{Argument, Bounds, InnerLine, Inside};
use crate::sync::locked;
use crate::tensor::{Tensor, View};

/// The values between a fusion's instructions.
struct InnerValues {
    all: Vec<Option<Tensor>>,
    nothing: Tensor,
}

impl InnerValues {
    fn array(&self, value: usize) -> &Tensor {
        self.all.get(value).and_then(Option::as_ref).unwrap_or(&self.nothing)
    }

    fn arrays<'a>(
        &'a self,
        arguments: &'a [Argument],
        values: impl Iterator<Item = usize>,
    ) -> Vec<LaunchArray<'a>> {
        let array = |(argument, value)| LaunchArray { argument, view: self.array(value).view() };
        arguments.iter().zip(values).map(array).collect()
    }
}

/// A fusion that is followed: a tracer of its own, and which of its origins stand for inputs.
struct InnerTrace {
    tracer: Tracer,
    inputs: BTreeMap<OriginId, usize>,
    values: InnerValues,
}

impl Tracer {
    /// Finds out where the NaN and infinities of a launch come from by a look into it; `None` if
    /// there is no need.
    pub(super) fn look_inside(&self, over: &FinishedLaunch<'_>) -> Option<SpoilShare> {
        let inside = over.seen.label.inside.as_deref()?;
        let is_marked = |(place, input): (usize, &super::LaunchInput)| {
            input.content.nan && (input.is_constant || self.has_marks(over, place))
        };
        let has_own = inside.has_marks || inside.has_masks;
        if !has_own && !over.taken.arrays.iter().enumerate().any(is_marked) {
            return None;
        }
        let mut trace = self.enter(over);
        let mut scratch = Scratch::default();
        inside.lines.iter().for_each(|line| trace.step(line, over.seen, &mut scratch));
        Some(trace.share(inside))
    }

    /// An instruction of a launch compares NaN: finds out where they come from.
    pub(super) fn compared_inside(&self, over: &FinishedLaunch<'_>) {
        let Some(inside) = over.seen.label.inside.as_deref() else { return };
        let mut trace = self.enter(over);
        let mut scratch = Scratch::default();
        inside.lines.iter().for_each(|line| trace.step(line, over.seen, &mut scratch));
        let book = locked(&trace.tracer.book);
        for (id, comparison) in &book.compared {
            let ids = match trace.inputs.get(id) {
                Some(&place) => over.taken.arrays[place].taint.of(BadValue::Nan).to_vec(),
                None if book.how(*id) == OriginKind::Made => {
                    self.made_inside(over, book.origin(*id))
                }
                None => continue,
            };
            self.compared(over.seen, &ids, comparison.by.clone());
        }
    }

    /// A NaN that an instruction of a launch makes: it is that of the launch's outputs, if those
    /// have any.
    fn made_inside(&self, over: &FinishedLaunch<'_>, origin: &SpoilOrigin) -> Vec<OriginId> {
        let given = self.given(over);
        if !given.is_empty() {
            return given;
        }
        let launch = Some(LaunchRecord::of(over.seen));
        let of = Vec::new();
        vec![locked(&self.book).add(SpoilOrigin { launch, of, ..origin.clone() })]
    }

    /// Whether an input has NaN of constants.
    pub(super) fn has_marks(&self, over: &FinishedLaunch<'_>, place: usize) -> bool {
        let nan = over.taken.arrays[place].taint.of(BadValue::Nan);
        locked(&self.book).has_marks(nan)
    }

    /// Begins at a launch's inputs.
    fn enter(&self, over: &FinishedLaunch<'_>) -> InnerTrace {
        let tracer = Tracer::new(&Origins::default(), self.rank, 1);
        let mut inputs = BTreeMap::new();
        let mut all = Vec::new();
        for (place, input) in over.taken.arrays.iter().enumerate() {
            let array = input.tensor(&over.seen.label.ins[place]);
            let mut taint = Taint::default();
            let kinds = [BadValue::Nan, BadValue::Infinity].into_iter();
            if input.is_constant {
                taint = tracer.intended(&place.to_string(), &array.view());
            }
            for what in kinds.filter(|what| input.content.has(*what) && !input.is_constant) {
                let (is_mark, lookup) = {
                    let book = locked(&self.book);
                    (book.are_marks(input.taint.of(what)), book.lookup(input.taint.of(what)))
                };
                let how = if is_mark { OriginKind::Constant } else { OriginKind::Input };
                let origin = tracer.origin(what, &place.to_string(), &array.view());
                let id = locked(&tracer.book).add(SpoilOrigin { how, lookup, ..origin });
                inputs.insert(id, place);
                taint.add(what, &[id]);
            }
            let (start, len) = (array.bytes().as_ptr() as usize, array.bytes().len());
            locked(&tracer.memory).set(start, len, taint);
            all.push(Some(array));
        }
        let nothing = Tensor::zeros(crate::tensor::DType::Pred, &[0]);
        InnerTrace { tracer, inputs, values: InnerValues { all, nothing } }
    }
}

impl InnerTrace {
    /// Runs an instruction and follows what it makes.
    fn step(&mut self, line: &InnerLine, launch: &Seen<'_>, scratch: &mut Scratch) {
        let seen = Seen { label: &line.label, issued: launch.issued, run: launch.run };
        let ins = self.values.arrays(&line.label.ins, line.ins.iter().copied());
        let taken = self.tracer.before(&seen, &ins, &[]);
        let views: Vec<View<'_>> = ins.iter().map(|array| array.view).collect();
        let made = line.run(&views, scratch);
        let mut again = |replaced: &[(usize, Tensor)]| {
            let mut views = views.clone();
            replaced.iter().for_each(|(place, array)| views[*place] = array.view());
            line.run(&views, scratch)
        };
        let outs = line.label.outs.iter().zip(&made);
        let outs: Vec<LaunchArray<'_>> =
            outs.map(|(argument, array)| LaunchArray { argument, view: array.view() }).collect();
        // What a constant has is known as such where it is read.
        if !line.ins.is_empty() {
            let over = FinishedLaunch { seen: &seen, outs: &outs, taken: &taken };
            self.tracer.after(&over, Some(&mut again));
        }
        self.values.all.extend(made.into_iter().map(Some));
        line.dead.iter().for_each(|&value| self.forget(value));
    }

    /// A value is not needed any more: another may get its memory.
    fn forget(&mut self, value: usize) {
        if let Some(array) = self.values.all.get_mut(value).and_then(Option::take) {
            let (start, len) = (array.bytes().as_ptr() as usize, array.bytes().len());
            locked(&self.tracer.memory).clear(start, len);
        }
    }

    /// What it found for the launch's outputs.
    fn share(self, inside: &Inside) -> SpoilShare {
        let memory = locked(&self.tracer.memory);
        let mut taint = Taint::default();
        for &output in &inside.outputs {
            let array = self.values.array(output);
            taint.join(&memory.taint(array.bytes().as_ptr() as usize, array.bytes().len()));
        }
        let book = locked(&self.tracer.book);
        let mut share = SpoilShare::default();
        for what in [BadValue::Nan, BadValue::Infinity] {
            let (mut is_own, mut is_meant, mut from) = (false, false, Vec::new());
            for id in taint.of(what) {
                match (self.inputs.get(id), book.how(*id)) {
                    (Some(&place), _) => from.push(place),
                    (None, OriginKind::Constant) => is_meant = true,
                    (None, OriginKind::Mask) => share.is_masked = true,
                    (None, OriginKind::Filled) => share.filled = book.lookup(&[*id]),
                    (None, _) => {
                        is_own = true;
                        share.lookup = share.lookup.take().or_else(|| book.lookup(&[*id]));
                        let of = book.of(*id).iter().filter_map(|of| self.inputs.get(of));
                        from.extend(of);
                    }
                }
            }
            from.sort_unstable();
            from.dedup();
            share.add(what, is_own, from);
            share.mean(what, is_meant);
        }
        share
    }
}

/// Whether an instruction of a launch compares NaN.
pub(super) fn compares_nan(seen: &Seen<'_>, arrays: &[LaunchArray<'_>]) -> bool {
    let inside = seen.label.inside.as_deref().filter(|inside| inside.has_comparisons);
    inside.is_some_and(|inside| {
        let views: Vec<View<'_>> = arrays.iter().map(|array| array.view).collect();
        inside.compares_nan(&views, &mut Scratch::default())
    })
}

/// For each instruction of a launch, the first index out of range.
pub(in crate::check) fn out_of_range_in(
    seen: &Seen<'_>,
    arrays: &[LaunchArray<'_>],
) -> Vec<OutOfRange> {
    let label = seen.label;
    let Some(inside) = label.inside.as_deref() else {
        let of = |bounds: &Bounds| out_of_range(label, bounds, &arrays.get(bounds.input)?.view);
        return label.bounds.iter().filter_map(of).collect();
    };
    let mut found = Vec::new();
    if inside.has_indices {
        let views: Vec<View<'_>> = arrays.iter().map(|array| array.view).collect();
        inside.indices(&views, &mut Scratch::default(), |label, bounds, array| {
            found.extend(out_of_range(label, bounds, array));
        });
    }
    found
}
