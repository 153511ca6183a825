//! Where the NaN and infinities of a fusion come from, if its own constants have some or it is
//! given what constants mark: its instructions run again, one by one, and are followed as launches
//! are.

use std::collections::BTreeMap;

use super::book::{Book, LaunchRecord, OriginId, OriginKind, SpoilOrigin, Taint};
use super::content::BadValue;
use super::{FinishedLaunch, Origins, OutOfRange, SpoilShare, Tracer, out_of_range};
use crate::check::probe::{LaunchArray, Seen};
use crate::kernel::Scratch;
use crate::prepare::{Argument, Bounds, InnerLine, Inside};
use crate::sync::locked;
use crate::tensor::{Tensor, View};

/// How often the launches of a loop are looked into.
const MOST_LOOKS: usize = 256;

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

/// An instruction inside of a launch that makes NaN or infinities.
#[derive(Clone, Debug)]
pub(super) struct InnerMaker {
    name: String,
    source: Option<String>,
    how: OriginKind,
    /// For NaN that it makes of infinities: where those are from in the same launch.
    pub(super) infinite: Option<Box<InnerMaker>>,
    /// For constant NaN that it puts somewhere: the inner origins of those that were there.
    instead: Vec<OriginId>,
}

impl InnerMaker {
    fn of(book: &Book, id: OriginId) -> InnerMaker {
        let origin = book.origin(id);
        let source = origin.launch.as_ref().and_then(|launch| launch.source.clone());
        // Those that an instruction makes come before those of constants.
        let of = book.of(id).iter().filter(|id| book.how(**id) != OriginKind::Input);
        let first = of.min_by_key(|id| (book.how(**id), **id));
        let infinite = first.map(|&id| Box::new(InnerMaker::of(book, id)));
        let (name, instead) = (origin.value.clone(), origin.instead.clone());
        InnerMaker { name, how: origin.how, source, infinite, instead }
    }

    /// An origin that a launch is to blame for, with this instruction as its own.
    pub(super) fn blame(&self, mut origin: SpoilOrigin) -> SpoilOrigin {
        (origin.value, origin.how) = (self.name.clone(), self.how);
        origin.launch = origin.launch.map(|launch| launch.at_line(self.source.clone()));
        origin
    }
}

/// The first instructions inside of a launch that make NaN and infinities.
#[derive(Clone, Debug, Default)]
pub(super) struct InnerMakers {
    nan: Option<InnerMaker>,
    inf: Option<InnerMaker>,
    /// A `select` that puts constant NaN somewhere.
    picked: Option<InnerMaker>,
}

impl InnerMakers {
    pub(super) fn of(&self, what: BadValue) -> Option<&InnerMaker> {
        match what {
            BadValue::Nan => self.nan.as_ref(),
            BadValue::Infinity => self.inf.as_ref(),
        }
    }

    pub(super) fn picked(&self) -> Option<&InnerMaker> {
        self.picked.as_ref()
    }

    /// Origins come in the order in which instructions run.
    fn add(&mut self, what: BadValue, book: &Book, id: OriginId) {
        let maker = match what {
            BadValue::Nan => &mut self.nan,
            BadValue::Infinity => &mut self.inf,
        };
        maker.get_or_insert_with(|| InnerMaker::of(book, id));
    }
}

/// A fusion that is followed: a tracer of its own, and which of its origins stand for inputs.
struct InnerTrace {
    tracer: Tracer,
    inputs: BTreeMap<OriginId, usize>,
    /// The same for what inputs say of NaN elsewhere.
    asked: BTreeMap<OriginId, usize>,
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
        Some(self.share_of(over, inside))
    }

    /// Looks into a launch that makes NaN or infinities whatever it is given: which instruction
    /// does, and whether it also passes on some. A trial of the whole launch does not tell, as what
    /// it makes hides what it passes on.
    pub(super) fn refined(&self, over: &FinishedLaunch<'_>, tried: SpoilShare) -> SpoilShare {
        let Some(inside) = over.seen.label.inside.as_deref() else { return tried };
        if !tried.own.is_bad() {
            return tried;
        }
        if self.is_known_well(over) {
            return tried.with_all(over.taken);
        }
        let share = self.share_of(over, inside);
        let is_explained = |what: BadValue| {
            let is_nan = what == BadValue::Nan;
            let is_found = share.own.has(what) || !share.from(what).is_empty();
            !tried.own.has(what) || is_found || is_nan && !share.asked.is_empty()
        };
        let is_better = is_explained(BadValue::Nan) && is_explained(BadValue::Infinity);
        if is_better { share } else { tried }
    }

    /// Whether a launch was looked into so often that another look says nothing new: it is in a
    /// long loop, where looks take time.
    fn is_known_well(&self, over: &FinishedLaunch<'_>) -> bool {
        let mut memory = locked(&self.memory);
        let looks = memory.looks.entry(over.seen.issued.label).or_default();
        *looks += 1;
        *looks > MOST_LOOKS
    }

    /// What a look into a launch says of its outputs.
    fn share_of(&self, over: &FinishedLaunch<'_>, inside: &Inside) -> SpoilShare {
        let trace = self.followed(over, inside);
        let mut share = trace.share(inside);
        let picked = share.makers.picked().map(|picked| picked.instead.clone());
        let outer = |id| self.outer(over, &trace, id).unwrap_or_default();
        share.instead = picked.unwrap_or_default().into_iter().flat_map(outer).collect();
        share
    }

    /// Runs a launch's instructions again, one by one, and follows them.
    fn followed(&self, over: &FinishedLaunch<'_>, inside: &Inside) -> InnerTrace {
        let mut trace = self.enter(over);
        let mut scratch = Scratch::default();
        inside.lines.iter().for_each(|line| trace.step(line, over.seen, &mut scratch));
        trace
    }

    /// An instruction of a launch compares NaN: finds out where they come from.
    pub(super) fn compared_inside(&self, over: &FinishedLaunch<'_>) {
        let Some(inside) = over.seen.label.inside.as_deref() else { return };
        let trace = self.followed(over, inside);
        let compared = locked(&trace.tracer.book).compared.clone();
        for (id, comparison) in &compared {
            if let Some(ids) = self.origins_of(over, &trace, *id) {
                self.compared(over.seen, &ids, comparison.by.clone());
            }
        }
        let asked: Vec<OriginId> = trace.asked_of_outputs(inside);
        let asked = asked.into_iter().filter_map(|id| self.origins_of(over, &trace, id));
        self.ask(over, &asked.flatten().collect::<Vec<_>>());
    }

    /// The launch's own origins for one inside of it, which it may have made.
    fn origins_of(
        &self,
        over: &FinishedLaunch<'_>,
        trace: &InnerTrace,
        id: OriginId,
    ) -> Option<Vec<OriginId>> {
        self.outer(over, trace, id).or_else(|| {
            let origin = locked(&trace.tracer.book).origin(id).clone();
            (origin.how == OriginKind::Made).then(|| self.made_inside(over, &origin))
        })
    }

    /// A NaN that an instruction of a launch makes: it is that of the launch's outputs, if those
    /// have any.
    fn made_inside(&self, over: &FinishedLaunch<'_>, origin: &SpoilOrigin) -> Vec<OriginId> {
        let given = self.given(over);
        if !given.is_empty() {
            return given;
        }
        let source = origin.launch.as_ref().and_then(|launch| launch.source.clone());
        let launch = Some(LaunchRecord::of(over.seen).at_line(source));
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
        let (mut inputs, mut asked) = (BTreeMap::new(), BTreeMap::new());
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
                let origin = tracer.origin_in(what, &place.to_string(), &array.view());
                let id = locked(&tracer.book).add(SpoilOrigin { how, lookup, ..origin });
                inputs.insert(id, place);
                taint.add(what, &[id]);
            }
            if !input.taint.asked().is_empty() {
                let id = self.stand_in(&tracer, input.taint.asked(), place);
                asked.insert(id, place);
                taint.ask(&[id]);
            }
            let (start, len) = (array.bytes().as_ptr() as usize, array.bytes().len());
            locked(&tracer.memory).set(start, len, taint);
            all.push(Some(array));
        }
        let nothing = Tensor::zeros(crate::tensor::DType::Pred, &[0]);
        InnerTrace { tracer, inputs, asked, values: InnerValues { all, nothing } }
    }

    /// An origin inside of a launch for those that an input was asked for.
    fn stand_in(&self, inner: &Tracer, asked: &[OriginId], place: usize) -> OriginId {
        let are_marks = locked(&self.book).are_marks(asked);
        let how = if are_marks { OriginKind::Constant } else { OriginKind::Input };
        let none = Tensor::zeros(crate::tensor::DType::Pred, &[0]);
        let name = format!("asked {place}");
        let origin = inner.origin_in(BadValue::Nan, &name, &none.view());
        locked(&inner.book).add(SpoilOrigin { how, ..origin })
    }

    /// The launch's own origins for one inside of it.
    fn outer(
        &self,
        over: &FinishedLaunch<'_>,
        trace: &InnerTrace,
        id: OriginId,
    ) -> Option<Vec<OriginId>> {
        let taint = |place: &usize| &over.taken.arrays[*place].taint;
        let nan = trace.inputs.get(&id).map(|place| taint(place).of(BadValue::Nan));
        let asked = || trace.asked.get(&id).map(|place| taint(place).asked());
        nan.or_else(asked).map(<[OriginId]>::to_vec)
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

    /// The origins of NaN that the launch's outputs say something of.
    fn asked_of_outputs(&self, inside: &Inside) -> Vec<OriginId> {
        let memory = locked(&self.tracer.memory);
        let outputs = inside.outputs.iter().map(|&output| self.values.array(output));
        let taint =
            |array: &Tensor| memory.taint(array.bytes().as_ptr() as usize, array.bytes().len());
        outputs.flat_map(|array| taint(array).asked().to_vec()).collect()
    }

    /// What it found for the launch's outputs.
    fn share(&self, inside: &Inside) -> SpoilShare {
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
                    _ if self.asked.contains_key(id) => share.asked.push(self.asked[id]),
                    (Some(&place), _) => from.push(place),
                    (None, OriginKind::Picked) => {
                        let picked = || InnerMaker::of(&book, *id);
                        share.makers.picked.get_or_insert_with(picked);
                    }
                    (None, OriginKind::Constant) => is_meant = true,
                    (None, OriginKind::Mask) => share.is_masked = true,
                    (None, OriginKind::Filled) => share.filled = book.lookup(&[*id]),
                    (None, _) => {
                        is_own = true;
                        share.makers.add(what, &book, *id);
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
