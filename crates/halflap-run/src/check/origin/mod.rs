//! Where the NaN and infinities of results come from.
//!
//! Every array with NaN or infinities carries their origins: the launches that produced them from
//! finite numbers, or an input from outside. Origins belong to memory, not to names, so they cross
//! loops, branches and calls with it; a collective passes on those of the ranks that it receives
//! from. Which of a launch's inputs matter is found by trial: it runs again with 1 in place of the
//! non-finite elements of one input, and that input matters if fewer elements of the outputs are
//! then affected.

mod asked;
mod book;
mod content;
mod inner;
mod zeros;

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use serde_json::Value;

use asked::is_discrete;
pub use book::FORMAT;
use book::{
    Book, Brought, Clamped, CollectiveKey, ComparedAt, LaunchRecord, OriginId, OriginKind,
    SpoilOrigin, Spoiled, Taint,
};
use content::{BadValue, NonFinite, cleaned, mask};
pub(super) use inner::out_of_range_in;
use inner::{InnerMakers, compares_nan};

use super::finite::first;
use super::probe::{LaunchArray, Seen};
use crate::address::{Address, AddressRange, MemoryCopy};
use crate::comm::{ArrayPiece, CollectiveSpec, ExchangeKind, MessageSpec};
use crate::kernel::ArrayType;
use crate::prepare::{Argument, Bounds, FilledLookup, Handling, Label, MaskOrigin};
use crate::sync::locked;
use crate::tensor::{Tensor, View, numbers};

/// What all ranks of a run find about NaN, infinities and indices out of range. Clones share the
/// data.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    book: Arc<Mutex<Book>>,
}

impl Origins {
    /// Everything (`halflap.origins/1`).
    pub fn to_json(&self) -> Value {
        locked(&self.book).to_json()
    }
}

/// Tracks the NaN and infinities of one rank.
pub(super) struct Tracer {
    book: Arc<Mutex<Book>>,
    rank: usize,
    ranks: usize,
    memory: Mutex<Spoilt>,
}

/// The memory that has NaN or infinities, by its first byte: its length, and their origins.
#[derive(Default)]
struct Spoilt {
    arrays: BTreeMap<usize, (usize, Taint)>,
    /// The constants that were looked at.
    constants: BTreeSet<usize>,
    /// How often launches with this label were looked into because they make NaN or infinities.
    looks: BTreeMap<u32, usize>,
}

impl Spoilt {
    /// The memory is overwritten.
    fn clear(&mut self, start: usize, len: usize) {
        let within: Vec<usize> = self.overlapping(start, len).map(|(&at, _)| at).collect();
        within.into_iter().for_each(|at| {
            self.arrays.remove(&at);
        });
    }

    fn overlapping(
        &self,
        start: usize,
        len: usize,
    ) -> impl Iterator<Item = (&usize, &(usize, Taint))> {
        let end = start + len.max(1);
        // Arrays do not overlap each other, so only the last one before it may reach into it.
        let before =
            self.arrays.range(..start).next_back().filter(move |(at, (len, _))| *at + len > start);
        before.into_iter().chain(self.arrays.range(start..end))
    }

    fn taint(&self, start: usize, len: usize) -> Taint {
        let mut taint = Taint::default();
        self.overlapping(start, len).for_each(|(_, (_, other))| taint.join(other));
        taint
    }

    fn set(&mut self, start: usize, len: usize, taint: Taint) {
        self.clear(start, len);
        if taint != Taint::default() {
            self.arrays.insert(start, (len, taint));
        }
    }
}

/// An input of a launch.
pub(crate) struct Taken {
    arrays: Vec<LaunchInput>,
    /// Whether an instruction inside of the launch compares NaN.
    compares_nan: bool,
}

struct LaunchInput {
    content: NonFinite,
    taint: Taint,
    /// Whether its content is intended: it is computed from constants alone.
    is_constant: bool,
    address: Address,
    /// A copy, if the launch may have to run again.
    copy: Option<Tensor>,
}

impl LaunchInput {
    /// Its elements, if the launch may have to run again.
    fn tensor(&self, argument: &Argument) -> Tensor {
        let here = || LaunchArray::at(argument, &self.address).view.to_tensor();
        self.copy.clone().unwrap_or_else(here)
    }
}

impl Taken {
    fn is_bad(&self) -> bool {
        self.arrays.iter().any(|input| input.content.is_bad())
    }

    /// Whether what it is given has none of something that it makes: NaN of infinities.
    fn has_not(&self, made: NonFinite) -> bool {
        let all = self.arrays.iter();
        let taken = all.fold(NonFinite::default(), |all, input| all.or(input.content));
        made.nan && !taken.nan || made.inf && !taken.inf
    }

    fn bad(&self) -> impl Iterator<Item = usize> {
        (0..self.arrays.len()).filter(|&place| self.arrays[place].content.is_bad())
    }
}

/// Runs a launch again with some of its inputs replaced; returns its outputs.
pub(crate) type Again<'a> = &'a mut dyn FnMut(&[(usize, Tensor)]) -> Vec<Tensor>;

/// A completed launch: its label and number, its outputs, its inputs.
pub(super) struct FinishedLaunch<'a> {
    pub(super) seen: &'a Seen<'a>,
    pub(super) outs: &'a [LaunchArray<'a>],
    pub(super) taken: &'a Taken,
}

/// A collective that a rank is about to take part in: its label and number, its inputs, and their
/// origins.
pub(super) struct Arrival<'a> {
    pub(super) seen: &'a Seen<'a>,
    pub(super) ins: &'a [LaunchArray<'a>],
    pub(super) taken: &'a Taken,
}

impl Tracer {
    pub(super) fn new(origins: &Origins, rank: usize, ranks: usize) -> Tracer {
        Tracer { book: origins.book.clone(), rank, ranks, memory: Mutex::default() }
    }

    /// The origin of an array's NaN or infinities: a launch, unless the caller knows better.
    fn origin(&self, what: BadValue, array: &LaunchArray<'_>) -> SpoilOrigin {
        self.origin_in(what, &array.argument.buffer, &array.view)
    }

    /// The same for memory of this name.
    fn origin_in(&self, what: BadValue, buffer: &str, view: &View<'_>) -> SpoilOrigin {
        let (index, _) = first(view, |number| what.is(number));
        let (how, buffer, rank) = (OriginKind::Made, buffer.to_owned(), self.rank);
        let (launch, of, instead, lookup) = (None, Vec::new(), Vec::new(), None);
        let value = String::new();
        SpoilOrigin { what, how, rank, buffer, value, index, launch, of, instead, lookup }
    }

    /// The origins of an array that came from outside.
    fn outside(&self, how: OriginKind, name: &str, view: &View<'_>) -> Taint {
        let content = NonFinite::of(view);
        let mut taint = Taint::default();
        for what in
            [BadValue::Nan, BadValue::Infinity].into_iter().filter(|what| content.has(*what))
        {
            let origin = SpoilOrigin { how, ..self.origin_in(what, name, view) };
            let id = locked(&self.book).add(origin);
            taint.add(what, &[id]);
        }
        taint
    }

    /// A run of the module begins.
    pub(super) fn begin(&self) {
        *locked(&self.memory) = Spoilt::default();
    }

    /// A constant, which may be handed to a loop, a branch or a callee.
    pub(super) fn constant(&self, address: Address, name: &str, view: &View<'_>) {
        let (start, len) = (address.0 as usize, view.bytes().len());
        if len > 0 && locked(&self.memory).constants.insert(start) {
            let taint = self.intended(name, view);
            locked(&self.memory).set(start, len, taint);
        }
    }

    /// The origins of an array that is computed from constants alone.
    fn intended(&self, name: &str, view: &View<'_>) -> Taint {
        self.outside(OriginKind::Constant, name, view).of_constants()
    }

    /// The module is run on these inputs.
    pub(super) fn take_inputs(&self, inputs: &[(Address, &str, View<'_>)]) {
        let mut memory = locked(&self.memory);
        for (address, name, view) in inputs {
            let taint = self.outside(OriginKind::Input, name, view);
            memory.set(address.0 as usize, view.bytes().len(), taint);
        }
    }

    /// A launch is about to run. Inputs that it may overwrite are copied, if it could have to run
    /// again.
    pub(super) fn before(
        &self,
        seen: &Seen<'_>,
        arrays: &[LaunchArray<'_>],
        outs: &[Address],
    ) -> Taken {
        let contents: Vec<NonFinite> =
            arrays.iter().map(|array| NonFinite::of(&array.view)).collect();
        let were_infinite = |array: &LaunchArray<'_>| {
            let (start, len) = (array.view.as_ptr() as usize, array.view.bytes().len());
            !locked(&self.memory).taint(start, len).zeros().is_empty()
        };
        let is_marked = seen.label.inside.as_ref().is_some_and(|inside| inside.has_marks);
        let compares_nan = compares_nan(seen, arrays);
        let may_repeat = is_marked
            || compares_nan
            || contents.iter().any(|content| content.is_bad())
            || arrays.iter().any(were_infinite);
        let input = |(array, content): (&LaunchArray<'_>, NonFinite)| {
            let (start, len) = (array.view.as_ptr() as usize, array.view.bytes().len());
            let is_shared = outs.iter().any(|out| out.0 as usize == start);
            let mut taint = locked(&self.memory).taint(start, len);
            // What a launch computes from finite constants is not intended.
            let is_constant =
                taint.is_constant() || array.argument.is_constant && taint.is_unknown();
            if content.is_bad() && taint.is_unknown() {
                let how = if is_constant { OriginKind::Constant } else { OriginKind::Unwritten };
                taint = self.outside(how, &array.argument.buffer, &array.view);
            }
            if content.is_bad() {
                let mut book = locked(&self.book);
                [BadValue::Nan, BadValue::Infinity]
                    .into_iter()
                    .for_each(|what| book.taken(taint.of(what), seen));
            }
            let is_replaced = content.is_bad() || !taint.zeros().is_empty();
            // A look inside begins at what it was given.
            let is_needed = match is_shared {
                true => may_repeat || seen.label.inside.is_some(),
                false => may_repeat && is_replaced,
            };
            let copy = is_needed.then(|| array.view.to_tensor());
            let address = Address(array.view.as_ptr().cast_mut());
            LaunchInput { content, taint, is_constant, address, copy }
        };
        Taken { arrays: arrays.iter().zip(contents).map(input).collect(), compares_nan }
    }

    /// A launch has run.
    pub(super) fn after(&self, over: &FinishedLaunch<'_>, again: Option<Again<'_>>) {
        self.attribute(over, again);
        if over.seen.label.compares {
            let bad = over.taken.arrays.iter().filter(|input| input.content.nan);
            let ids = bad.flat_map(|input| input.taint.of(BadValue::Nan).to_vec());
            self.compared(over.seen, &ids.collect::<Vec<_>>(), name_of(over));
        } else if over.taken.compares_nan {
            self.compared_inside(over);
        }
        self.pass_on_asked(over);
    }

    /// A launch compares the NaN of these origins.
    fn compared(&self, seen: &Seen<'_>, ids: &[OriginId], by: String) {
        let launch = LaunchRecord::of(seen);
        let mut book = locked(&self.book);
        for id in ids {
            let comparison = || ComparedAt { launch: launch.clone(), by: by.clone() };
            book.compared.entry(*id).or_insert_with(comparison);
        }
    }

    /// Finds the origins of its outputs.
    fn attribute(&self, over: &FinishedLaunch<'_>, again: Option<Again<'_>>) {
        let content = over
            .outs
            .iter()
            .fold(NonFinite::default(), |all, array| all.or(NonFinite::of(&array.view)));
        if !content.is_bad() {
            let zeros = again.map_or(Vec::new(), |again| self.vanished(over, again));
            return self.settle(over.outs, |_| Taint::of_zeros(&zeros));
        }
        let has_new = over.taken.has_not(content);
        if over.taken.is_bad() && !has_new && is_of_constants(over) {
            let mut taint = Taint::default().of_constants();
            over.taken.arrays.iter().for_each(|input| taint.join(&input.taint));
            return self.settle(over.outs, |_| taint.clone());
        }
        let mut again = again;
        if let Some(again) = again.as_mut().filter(|_| !over.taken.is_bad())
            && let Some(taint) = self.reappeared(over, again)
        {
            return self.settle(over.outs, |_| taint.clone());
        }
        let share = self.look_inside(over).unwrap_or_else(|| {
            let tried = match (over.taken.is_bad(), again) {
                (false, _) => SpoilShare { own: content, ..SpoilShare::default() },
                (true, None) => SpoilShare::of_all(over.taken, content),
                (true, Some(again)) => self.tried(over, content, again),
            };
            self.refined(over, tried)
        });
        let taint = self.made(over, &share);
        self.settle(over.outs, |_| taint.clone());
    }

    /// Records the origins of a launch's outputs.
    fn settle(&self, outs: &[LaunchArray<'_>], taint_of: impl Fn(usize) -> Taint) {
        let mut memory = locked(&self.memory);
        for (place, array) in outs.iter().enumerate() {
            let content = NonFinite::of(&array.view);
            let all = taint_of(place);
            let mut taint = Taint::of_zeros(all.zeros());
            if is_discrete(array) {
                taint.ask(all.asked());
            }
            if all.is_constant() {
                taint = taint.of_constants();
            }
            for what in
                [BadValue::Nan, BadValue::Infinity].into_iter().filter(|what| content.has(*what))
            {
                taint.add(what, all.of(what));
            }
            memory.set(array.view.as_ptr() as usize, array.view.bytes().len(), taint);
        }
    }

    /// Finds by trial which inputs the NaN and infinities of a launch's outputs come from, and
    /// whether the launch produces some itself.
    fn tried(&self, over: &FinishedLaunch<'_>, content: NonFinite, again: Again<'_>) -> SpoilShare {
        let clean = |places: &[usize]| -> Vec<(usize, Tensor)> {
            let copies = over.taken.arrays.iter().enumerate().filter_map(|(place, input)| {
                let copy = input.copy.as_ref()?;
                Some((place, if places.contains(&place) { cleaned(copy) } else { copy.clone() }))
            });
            copies.collect()
        };
        let bad: Vec<usize> = over.taken.bad().collect();
        let masks = |outs: &[Tensor], what: BadValue| -> Vec<bool> {
            outs.iter().flat_map(|out| mask(&out.view(), what)).collect()
        };
        let given: Vec<Tensor> = over.outs.iter().map(|array| array.view.to_tensor()).collect();
        let without_all = again(&clean(&bad));
        let without: Vec<(usize, Vec<Tensor>)> = match bad.len() {
            1 => Vec::new(),
            _ => bad.iter().map(|&place| (place, again(&clean(&[place])))).collect(),
        };
        let mut share = SpoilShare::default();
        for what in
            [BadValue::Nan, BadValue::Infinity].into_iter().filter(|what| content.has(*what))
        {
            let all = masks(&given, what);
            let is_less = |outs: &[Tensor]| {
                all.iter().zip(masks(outs, what)).any(|(&is, other)| is && !other)
            };
            let is_own = all.iter().zip(masks(&without_all, what)).any(|(&is, other)| is && other);
            let mut from: Vec<usize> = Vec::new();
            if is_less(&without_all) {
                from = without
                    .iter()
                    .filter(|(_, outs)| is_less(outs))
                    .map(|(place, _)| *place)
                    .collect();
                // If several inputs affect the same elements, replacing one alone changes nothing.
                from = if from.is_empty() { bad.clone() } else { from };
            }
            share.add(what, is_own, from);
        }
        share
    }

    /// The origins of a launch's outputs, given its share in them.
    fn made(&self, over: &FinishedLaunch<'_>, share: &SpoilShare) -> Taint {
        let mut taint = Taint::default();
        let handling = over.seen.label.handling;
        let picks = over.seen.label.selects && handling == Handling::Moves;
        let asked: Vec<OriginId> = self.asked_of(over).filter(|_| picks).collect();
        let are_meant = over.outs.iter().all(|array| array.argument.is_constant);
        for what in [BadValue::Nan, BadValue::Infinity] {
            let mut is_own = share.own.has(what);
            let mut of = Vec::new();
            let mut lookup = share.lookup.clone();
            let mut filled = share.filled.clone();
            let is_nan = what == BadValue::Nan;
            let mut is_picked = is_nan && share.makers.picked().is_some();
            let mut instead = share.instead.clone();
            share.asked.iter().filter(|_| is_nan).for_each(|&place| {
                taint.add(what, over.taken.arrays[place].taint.asked());
            });
            for &place in share.from(what) {
                let input = &over.taken.arrays[place];
                match what {
                    // A result of infinities and a constant NaN originates here.
                    BadValue::Nan if !input.content.nan => {
                        is_own = true;
                        of.extend_from_slice(input.taint.of(BadValue::Infinity));
                    }
                    BadValue::Nan
                        if input.is_constant && !are_meant && self.fills(over).is_some() =>
                    {
                        filled = self.fills(over);
                    }
                    // It is there because others are, or marks elements.
                    BadValue::Nan if picks && input.is_constant && !are_meant => {
                        taint.add(what, &asked);
                        is_picked |= asked.is_empty();
                        instead = self.put_aside(over, place);
                    }
                    BadValue::Nan
                        if input.is_constant && (are_meant || handling != Handling::Moves) =>
                    {
                        is_own |= !are_meant;
                    }
                    // Elements that are combined with those that NaN marks are no marks.
                    BadValue::Nan
                        if handling == Handling::Combines && self.has_marks(over, place) =>
                    {
                        is_own |= !are_meant;
                        let nan = input.taint.of(what);
                        lookup = lookup.or_else(|| locked(&self.book).lookup(nan));
                    }
                    BadValue::Infinity if !input.content.inf => {
                        taint.add(what, input.taint.of(BadValue::Nan))
                    }
                    _ => taint.add(what, input.taint.of(what)),
                }
            }
            let is_mask = !is_nan && is_own && is_log_of_mask(over);
            let made = if is_mask { OriginKind::Mask } else { OriginKind::Made };
            let lookup = lookup.filter(|_| is_nan);
            let kinds = [
                is_own.then(|| OwnOrigin { of, lookup, ..OwnOrigin::of(what, made) }),
                (!is_nan && share.is_masked).then(|| OwnOrigin::of(what, OriginKind::Mask)),
                filled.filter(|_| is_nan).map(|lookup| OwnOrigin {
                    lookup: Some(lookup),
                    ..OwnOrigin::of(what, OriginKind::Filled)
                }),
                is_picked.then(|| OwnOrigin { instead, ..OwnOrigin::of(what, OriginKind::Picked) }),
                share.meant.has(what).then(|| OwnOrigin::of(what, OriginKind::Constant)),
            ];
            for from in kinds.into_iter().flatten() {
                self.own(over, share, from).iter().for_each(|id| taint.add(what, &[*id]));
            }
        }
        taint
    }

    /// Records an origin that is a launch's own, or of an instruction inside of it.
    fn own(
        &self,
        over: &FinishedLaunch<'_>,
        share: &SpoilShare,
        from: OwnOrigin,
    ) -> Option<OriginId> {
        let OwnOrigin { what, how, mut of, instead, lookup } = from;
        let array = over.outs.iter().find(|array| NonFinite::of(&array.view).has(what))?;
        let launch = LaunchRecord::of(over.seen);
        let value = array.argument.value.clone();
        let at = SpoilOrigin { value, launch: Some(launch), ..self.origin(what, array) };
        let maker = match how {
            OriginKind::Made => share.makers.of(what),
            OriginKind::Picked => share.makers.picked(),
            _ => None,
        };
        let mut book = locked(&self.book);
        if let Some(before) = maker.and_then(|maker| maker.infinite.as_deref()) {
            let what = BadValue::Infinity;
            of.push(book.add(before.blame(SpoilOrigin { what, ..at.clone() })));
        }
        let at = SpoilOrigin { how, of, instead, lookup, ..at };
        Some(book.add(match maker {
            Some(maker) => maker.blame(at),
            None => at,
        }))
    }

    /// The origins of the NaN of what a launch has made.
    fn given(&self, over: &FinishedLaunch<'_>) -> Vec<OriginId> {
        let memory = locked(&self.memory);
        let taint = |out: &LaunchArray<'_>| {
            memory.taint(out.view.as_ptr() as usize, out.view.bytes().len())
        };
        over.outs.iter().flat_map(|out| taint(out).of(BadValue::Nan).to_vec()).collect()
    }

    /// The lookup that a launch fills, if it is one that fills.
    fn fills(&self, over: &FinishedLaunch<'_>) -> Option<FilledLookup> {
        over.seen.label.fills.as_ref().map(|name| (self.rank, name.clone()))
    }

    /// Copies were made, all at once.
    pub(super) fn moved(&self, moves: &[MemoryCopy]) {
        let mut memory = locked(&self.memory);
        let taints: Vec<Taint> =
            moves.iter().map(|(from, _, len)| memory.taint(from.0 as usize, *len)).collect();
        for ((_, to, len), taint) in moves.iter().zip(taints) {
            memory.set(to.0 as usize, *len, taint);
        }
    }

    /// An array was copied to another layout.
    pub(super) fn cast(&self, from: AddressRange, to: AddressRange) {
        let mut memory = locked(&self.memory);
        let taint = memory.taint(from.start.0 as usize, from.len);
        memory.set(to.start.0 as usize, to.len, taint);
    }

    /// A rank reaches a collective with its inputs.
    pub(super) fn bring(&self, arrival: &Arrival<'_>, sequence: u64) {
        let Arrival { seen, ins, taken } = *arrival;
        let Some(collective) = &seen.label.collective else { return };
        let members = collective.sets.iter().map(Vec::len).max().unwrap_or(1);
        let mut brought = Vec::new();
        for (place, (input, array)) in taken.arrays.iter().zip(ins).enumerate() {
            if !input.content.is_bad() && input.taint.asked().is_empty() {
                continue;
            }
            let part = |member: usize| {
                part_of(&array.view, collective.arrays[place].rows, member, members)
            };
            let parts = match collective.kind {
                ExchangeKind::ReduceScatter | ExchangeKind::AllToAll => {
                    (0..members).map(part).collect()
                }
                _ => Vec::new(),
            };
            let infinite = match collective.kind {
                ExchangeKind::AllReduce => mask(&array.view, BadValue::Infinity),
                _ => Vec::new(),
            };
            let (content, taint) = (input.content, input.taint.clone());
            brought.push(Brought {
                rank: self.rank,
                array: place,
                content,
                taint,
                parts,
                infinite,
            });
        }
        let key = CollectiveKey { label: seen.issued.label, sequence };
        locked(&self.book).bring(key, brought);
    }

    /// A collective is over.
    pub(super) fn received(&self, over: &FinishedLaunch<'_>, sequence: u64) {
        if over.seen.label.collective.is_none() {
            return;
        }
        let key = CollectiveKey { label: over.seen.issued.label, sequence };
        let all = locked(&self.book).brought(key, self.ranks);
        let taint_of = |place: usize| {
            let content = NonFinite::of(&over.outs[place].view);
            let mut taint = match content.is_bad() {
                true => self.taint_received(over, &all, place),
                false => Taint::default(),
            };
            all.iter().for_each(|brought| taint.ask(brought.taint.asked()));
            taint
        };
        let taints: Vec<Taint> = (0..over.outs.len()).map(taint_of).collect();
        self.settle(over.outs, |place| taints[place].clone());
    }

    /// The origins of one of a collective's outputs.
    fn taint_received(&self, over: &FinishedLaunch<'_>, all: &[Brought], place: usize) -> Taint {
        let Some(collective) = &over.seen.label.collective else { return Taint::default() };
        let array = &over.outs[place];
        let content = NonFinite::of(&array.view);
        let came: Vec<(&Brought, NonFinite)> = all
            .iter()
            .filter_map(|brought| Some((brought, sent(collective, brought, self.rank, place)?)))
            .collect();
        let mut taint = Taint::default();
        for what in
            [BadValue::Nan, BadValue::Infinity].into_iter().filter(|what| content.has(*what))
        {
            let have = came.iter().filter(|(_, content)| content.has(what));
            have.clone().for_each(|(brought, _)| taint.add(what, brought.taint.of(what)));
            // An infinity where no rank has one, or a NaN of infinities, is the collective's own.
            let is_known = |at: usize| {
                have.clone().any(|(brought, _)| brought.infinite.get(at) == Some(&true))
            };
            let is_new = collective.kind == ExchangeKind::AllReduce
                && what == BadValue::Infinity
                && mask(&array.view, what).iter().enumerate().any(|(at, &is)| is && !is_known(at));
            if have.clone().next().is_none() || is_new {
                let of = came
                    .iter()
                    .flat_map(|(brought, _)| brought.taint.of(BadValue::Infinity).to_vec());
                let of = if what == BadValue::Nan { of.collect() } else { Vec::new() };
                let origin = self.origin(what, array);
                let id = locked(&self.book).add(SpoilOrigin {
                    launch: Some(LaunchRecord::of(over.seen)),
                    of,
                    ..origin
                });
                taint.add(what, &[id]);
            }
        }
        taint
    }

    /// A rank sends arrays to others, with their origins.
    pub(super) fn sends(&self, message: &MessageSpec, taken: &Taken) {
        let taints: Vec<Taint> = taken.arrays.iter().map(|input| input.taint.clone()).collect();
        let mut book = locked(&self.book);
        message.keys(self.rank).for_each(|key| book.post(key, taints.clone()));
    }

    /// A message from another rank has arrived.
    pub(super) fn got(&self, message: &MessageSpec, arrays: &[LaunchArray<'_>]) {
        let key = message.keys(self.rank).next();
        let taints = key.map(|key| locked(&self.book).posted(key)).unwrap_or_default();
        self.settle(arrays, |place| taints.get(place).cloned().unwrap_or_default());
    }

    /// The module has run: its results.
    pub(super) fn results(&self, run: usize, results: &[(Address, &ArrayType)]) {
        for (output, (address, kind)) in results.iter().enumerate() {
            let start = NonNull::new(address.0).unwrap_or(NonNull::<u64>::dangling().cast());
            // SAFETY: the run is over, and the result lives until its memory is freed.
            let view = unsafe { View::from_raw(kind.dtype, &kind.dims, start) };
            let content = NonFinite::of(&view);
            if content.is_bad() {
                let mut taint = locked(&self.memory).taint(address.0 as usize, kind.bytes());
                if taint.is_unknown() {
                    taint = self.outside(OriginKind::Constant, &format!("result {output}"), &view);
                }
                let kind = kind.to_string();
                locked(&self.book).results.push(Spoiled {
                    rank: self.rank,
                    run,
                    output,
                    kind,
                    content,
                    taint,
                });
            }
        }
    }

    /// A custom call has changed its thread's rounding mode.
    pub(super) fn changed_mode(&self, seen: &Seen<'_>) {
        let key = (self.rank, seen.issued.label);
        locked(&self.book).modes.entry(key).or_insert_with(|| LaunchRecord::of(seen));
    }

    /// A custom call left this many more bytes of the heap in use.
    pub(super) fn grew(&self, seen: &Seen<'_>, bytes: i64) {
        let key = (self.rank, seen.issued.label);
        let mut book = locked(&self.book);
        let first = || (LaunchRecord::of(seen), Vec::new());
        book.growths.entry(key).or_insert_with(first).1.push(bytes);
    }

    /// Indices of a launch are out of range.
    pub(super) fn out_of_range(&self, seen: &Seen<'_>, all: Vec<OutOfRange>) {
        let mut book = locked(&self.book);
        let mut is_counted = false;
        for broken in all {
            let OutOfRange { dimension, value, most, drops, is_replaced, source, lookup } = broken;
            let launch = LaunchRecord::of(seen);
            let (rank, times) = (self.rank, 0);
            let clamped = Clamped { rank, launch, value, most, dimension, drops, times, source };
            book.looked_up.entry((rank, lookup)).or_insert_with(|| clamped.clone());
            if !is_replaced && !std::mem::replace(&mut is_counted, true) {
                book.clamped.entry((rank, seen.issued.label)).or_insert(clamped).times += 1;
            }
        }
    }
}

/// Whether what a launch gives is computed from constants alone, some of which have NaN or
/// infinities: by the module's text, or because it moves constants that a caller hands over.
fn is_of_constants(over: &FinishedLaunch<'_>) -> bool {
    let inputs = &over.taken.arrays;
    over.outs.iter().all(|array| array.argument.is_constant)
        || over.seen.label.handling == Handling::Moves
            && inputs.iter().all(|input| input.is_constant)
}

/// Where NaN or infinities of a launch that it does not pass on come from.
struct OwnOrigin {
    what: BadValue,
    how: OriginKind,
    of: Vec<OriginId>,
    instead: Vec<OriginId>,
    lookup: Option<FilledLookup>,
}

impl OwnOrigin {
    fn of(what: BadValue, how: OriginKind) -> OwnOrigin {
        OwnOrigin { what, how, of: Vec::new(), instead: Vec::new(), lookup: None }
    }
}

/// The instruction that a launch is.
fn name_of(over: &FinishedLaunch<'_>) -> String {
    over.outs.first().map_or(String::new(), |out| out.argument.value.clone())
}

/// Whether a launch takes the logarithm of a mask: then it makes minus infinities and zeros alone.
fn is_log_of_mask(over: &FinishedLaunch<'_>) -> bool {
    let Some(mask) = over.seen.label.mask else { return false };
    let all = over.outs.iter().flat_map(|out| numbers(out.view.dtype(), out.view.bytes()));
    let mut has_ones = false;
    let are_of_mask = all.into_iter().all(|number| {
        has_ones |= number == 0.0;
        number == 0.0 || number == f64::NEG_INFINITY
    });
    are_of_mask && (mask == MaskOrigin::Program || has_ones)
}

/// Where the NaN and infinities of a launch come from: the launch itself, and which inputs.
#[derive(Default)]
struct SpoilShare {
    own: NonFinite,
    /// What constants inside of the launch have.
    meant: NonFinite,
    /// Whether it takes the logarithm of a mask inside.
    is_masked: bool,
    /// The lookup that it fills with NaN inside.
    filled: Option<FilledLookup>,
    /// The lookup whose NaN it combines with others inside.
    lookup: Option<FilledLookup>,
    /// The instructions inside that make what is its own.
    makers: InnerMakers,
    /// Inputs that say where NaN are, which a `select` inside looks at to put a constant's there.
    asked: Vec<usize>,
    /// The origins of NaN that a `select` inside replaces with a constant's.
    instead: Vec<OriginId>,
    nan: Vec<usize>,
    inf: Vec<usize>,
}

impl SpoilShare {
    /// If it cannot be tried: from all inputs.
    fn of_all(taken: &Taken, content: NonFinite) -> SpoilShare {
        let mut share = SpoilShare::default();
        for what in
            [BadValue::Nan, BadValue::Infinity].into_iter().filter(|what| content.has(*what))
        {
            // Infinities can produce NaN, but NaN cannot produce infinities.
            let has = |&place: &usize| what == BadValue::Nan || taken.arrays[place].content.inf;
            let from: Vec<usize> = taken.bad().filter(has).collect();
            let nan: Vec<usize> =
                from.iter().copied().filter(|&place| taken.arrays[place].content.nan).collect();
            let from = if what == BadValue::Nan && !nan.is_empty() { nan } else { from };
            share.add(what, from.is_empty(), from);
        }
        share
    }

    fn add(&mut self, what: BadValue, is_own: bool, from: Vec<usize>) {
        match what {
            BadValue::Nan => (self.own.nan, self.nan) = (is_own, from),
            BadValue::Infinity => (self.own.inf, self.inf) = (is_own, from),
        }
    }

    /// The same, also from all inputs that have what it makes itself.
    fn with_all(mut self, taken: &Taken) -> SpoilShare {
        for what in [BadValue::Nan, BadValue::Infinity] {
            if self.own.has(what) && self.from(what).is_empty() {
                let has = |&place: &usize| taken.arrays[place].content.has(what);
                self.add(what, true, taken.bad().filter(has).collect());
            }
        }
        self
    }

    fn mean(&mut self, what: BadValue, is_meant: bool) {
        match what {
            BadValue::Nan => self.meant.nan = is_meant,
            BadValue::Infinity => self.meant.inf = is_meant,
        }
    }

    fn from(&self, what: BadValue) -> &[usize] {
        match what {
            BadValue::Nan => &self.nan,
            BadValue::Infinity => &self.inf,
        }
    }
}

/// What a rank receives, as one of its outputs, of an array that another contributes.
fn sent(
    collective: &CollectiveSpec,
    brought: &Brought,
    rank: usize,
    output: usize,
) -> Option<NonFinite> {
    let device = u32::try_from(rank).ok()?;
    let from = u32::try_from(brought.rank).ok()?;
    if collective.kind == ExchangeKind::Permute {
        return (collective.source_of(device)? == from && brought.array == output)
            .then_some(brought.content);
    }
    let ((set, place), (other, sender)) = (collective.set_of(device)?, collective.set_of(from)?);
    let is_from = match collective.kind {
        // Its arrays are for the members of its set, in order.
        ExchangeKind::AllToAllTuple => brought.array == place && sender == output,
        ExchangeKind::Broadcast => sender == 0 && brought.array == output,
        // Rows of any member are written into a copy of its own second array.
        ExchangeKind::RaggedAllToAll => brought.array == 0 || sender == place,
        _ => brought.array == output,
    };
    let content = brought.parts.get(place).copied().unwrap_or(brought.content);
    (set == other && is_from && content.is_bad()).then_some(content)
}

/// What one of several equal parts of an array has.
fn part_of(view: &View<'_>, rows: usize, number: usize, count: usize) -> NonFinite {
    let bytes = view.bytes();
    let ArrayPiece { rows, stride, first, len } = ArrayPiece::of(bytes.len(), rows, number, count);
    let row = |row: usize| {
        bytes.get(row * stride + first..).and_then(|rest| rest.get(..len)).unwrap_or_default()
    };
    let part: Vec<u8> = (0..rows).flat_map(|number| row(number).iter().copied()).collect();
    let mut all = Tensor::zeros(view.dtype(), &[part.len() / view.dtype().size().max(1)]);
    all.bytes_mut().copy_from_slice(&part);
    NonFinite::of(&all.view())
}

/// An index that is out of range.
pub(super) struct OutOfRange {
    /// The instruction that it is given to.
    lookup: String,
    is_replaced: bool,
    source: Option<String>,
    dimension: usize,
    value: i64,
    /// The largest that is valid.
    most: i64,
    drops: bool,
}

/// The first index out of range. Updates one past the end are those that a program drops on
/// purpose.
fn out_of_range(label: &Label, bounds: &Bounds, array: &View<'_>) -> Option<OutOfRange> {
    let all = numbers(array.dtype(), array.bytes());
    let (count, drops) = (bounds.most.len().max(1), bounds.drops);
    let broken = |(at, &number): (usize, &f64)| {
        let &(dimension, most) = bounds.most.get(at / bounds.stride.max(1) % count)?;
        let value = number as i64;
        let is_broken = value < 0 || value > most + i64::from(drops);
        let lookup = || label.outs.first().map_or(String::new(), |out| out.value.clone());
        let (is_replaced, source) = (bounds.is_replaced, || bounds.source.clone());
        is_broken.then(|| OutOfRange {
            lookup: lookup(),
            is_replaced,
            source: source(),
            dimension,
            value,
            most,
            drops,
        })
    };
    all.iter().enumerate().find_map(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_whose_it_is_until_it_is_written_again() {
        let mut book = Book::default();
        let view = Tensor::of(&[1], &[f32::NAN]);
        let tracer = Tracer::new(&Origins::default(), 0, 1);
        let id = book.add(tracer.origin_in(BadValue::Nan, "a", &view.view()));
        let mut taint = Taint::default();
        taint.add(BadValue::Nan, &[id]);
        let mut memory = Spoilt::default();
        memory.set(100, 64, taint.clone());
        assert_eq!((memory.taint(160, 4), memory.taint(164, 4)), (taint.clone(), Taint::default()));
        assert_eq!(memory.taint(90, 20), taint);
        memory.clear(163, 1);
        assert_eq!(memory.taint(100, 64), Taint::default());
    }

    #[test]
    fn a_part_of_an_array() {
        let array = Tensor::of(&[2, 4], &[1.0f32, 2.0, f32::NAN, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let parts = |rows: usize, count: usize| -> Vec<bool> {
            (0..count).map(|part| part_of(&array.view(), rows, part, count).nan).collect()
        };
        assert_eq!(
            (parts(2, 2), parts(1, 4)),
            (vec![false, true], vec![false, true, false, false])
        );
    }
}
