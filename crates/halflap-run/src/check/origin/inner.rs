//! Where the NaN and infinities of a fusion come from, if its own constants have some or it is
//! given what constants mark: its instructions run again, one by one, and are followed as launches
//! are.

use std::collections::BTreeMap;

use super::book::{OriginId, OriginKind, SpoilOrigin, Taint};
use super::content::BadValue;
use super::{FinishedLaunch, Origins, OutOfRange, SpoilShare, Tracer, out_of_range};
use crate::check::probe::{LaunchArray, Seen};
use crate::kernel::Scratch;
use crate::prepare::{Argument, InnerLine, Inside};
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
        if !inside.has_marks && !over.taken.arrays.iter().enumerate().any(is_marked) {
            return None;
        }
        let mut trace = self.enter(over);
        let mut scratch = Scratch::default();
        inside.lines.iter().for_each(|line| trace.step(line, over.seen, &mut scratch));
        Some(trace.share(inside))
    }

    /// Whether an input has NaN of constants.
    pub(super) fn has_marks(&self, over: &FinishedLaunch<'_>, place: usize) -> bool {
        let nan = over.taken.arrays[place].taint.of(BadValue::Nan);
        locked(&self.book).is_of(nan, OriginKind::Constant)
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
            // What constants of the module have is known as such where it is read.
            for what in kinds.filter(|what| input.content.has(*what) && !input.is_constant) {
                let is_mark =
                    locked(&self.book).is_all_of(input.taint.of(what), OriginKind::Constant);
                let how = if is_mark { OriginKind::Constant } else { OriginKind::Input };
                let origin = tracer.origin(what, &place.to_string(), &array.view());
                let id = locked(&tracer.book).add(SpoilOrigin { how, ..origin });
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
                    (None, _) => {
                        is_own = true;
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

/// The first index out of range of a launch, or of an instruction in it.
pub(in crate::check) fn first_out_of_range(
    seen: &Seen<'_>,
    arrays: &[LaunchArray<'_>],
) -> Option<OutOfRange> {
    let Some(inside) = seen.label.inside.as_deref() else {
        let mut each = seen.label.bounds.iter();
        return each.find_map(|bounds| out_of_range(bounds, &arrays.get(bounds.input)?.view));
    };
    let mut found = None;
    if inside.has_indices {
        let views: Vec<View<'_>> = arrays.iter().map(|array| array.view).collect();
        inside.indices(&views, &mut Scratch::default(), |bounds, array| {
            found = found.take().or_else(|| out_of_range(bounds, array));
        });
    }
    found
}
