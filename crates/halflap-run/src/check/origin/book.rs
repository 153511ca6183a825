//! What all ranks know about the origins of NaN and infinities.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Value, json};

use super::content::{BadValue, NonFinite};
use crate::check::heap::kept;
use crate::check::probe::Seen;
use crate::comm::MessageKey;
use crate::prepare::FilledLookup;

/// The format name of the file.
pub const FORMAT: &str = "halflap.origins/1";
/// The most origins that are kept for one array.
const MOST: usize = 16;
/// Beyond this, only the first iteration of a launch is kept.
const MOST_ORIGINS: usize = 1 << 14;

/// An origin, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OriginId(usize);

/// Where the NaN and infinities of an array come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Taint {
    nan: Vec<OriginId>,
    inf: Vec<OriginId>,
    /// Of infinities that have become zeros.
    zero: Vec<OriginId>,
    /// Of NaN that booleans or integers were asked about: they say where those are.
    asked: Vec<OriginId>,
    /// Whether the array is computed from constants alone.
    of_constants: bool,
}

impl Taint {
    /// The same, of an array that is computed from constants alone.
    pub(super) fn of_constants(self) -> Taint {
        Taint { of_constants: true, ..self }
    }

    /// Whether the array is computed from constants alone, and has NaN or infinities.
    pub(super) fn is_constant(&self) -> bool {
        self.of_constants && !self.is_unknown()
    }

    pub(super) fn of(&self, what: BadValue) -> &[OriginId] {
        match what {
            BadValue::Nan => &self.nan,
            BadValue::Infinity => &self.inf,
        }
    }

    /// The origins of infinities that have become zeros.
    pub(super) fn zeros(&self) -> &[OriginId] {
        &self.zero
    }

    /// The origins of NaN that a condition looked for to make it.
    pub(super) fn asked(&self) -> &[OriginId] {
        &self.asked
    }

    /// Adds origins of NaN that a condition looked for.
    pub(super) fn ask(&mut self, origins: &[OriginId]) {
        add(&mut self.asked, origins);
    }

    /// Whether it says nothing of NaN and infinities.
    pub(super) fn is_unknown(&self) -> bool {
        self.nan.is_empty() && self.inf.is_empty()
    }

    /// Of infinities that have become zeros.
    pub(super) fn of_zeros(origins: &[OriginId]) -> Taint {
        let mut taint = Taint::default();
        add(&mut taint.zero, origins);
        taint
    }

    pub(super) fn add(&mut self, what: BadValue, origins: &[OriginId]) {
        match what {
            BadValue::Nan => add(&mut self.nan, origins),
            BadValue::Infinity => add(&mut self.inf, origins),
        }
    }

    pub(super) fn join(&mut self, other: &Taint) {
        add(&mut self.nan, &other.nan);
        add(&mut self.inf, &other.inf);
        add(&mut self.zero, &other.zero);
        add(&mut self.asked, &other.asked);
        self.of_constants |= other.of_constants;
    }
}

fn add(known: &mut Vec<OriginId>, origins: &[OriginId]) {
    known.extend_from_slice(origins);
    known.sort_unstable();
    known.dedup();
    known.truncate(MOST);
}

/// How NaN or infinities got into an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OriginKind {
    /// A launch produced them from inputs without any.
    Made,
    /// They are the logarithms of a mask's zeros.
    Mask,
    /// They are in an input of the module.
    Input,
    /// A `select` put them in place of what a lookup has no valid index for.
    Filled,
    /// A `select` put those of a constant there.
    Picked,
    /// They are in a constant of the module.
    Constant,
    /// No launch wrote it.
    Unwritten,
}

impl OriginKind {
    fn name(self) -> &'static str {
        match self {
            OriginKind::Made => "made",
            OriginKind::Mask => "mask",
            OriginKind::Filled => "filled",
            OriginKind::Picked => "picked",
            OriginKind::Input => "input",
            OriginKind::Constant => "constant",
            OriginKind::Unwritten => "unwritten",
        }
    }
}

/// A launch: which, and when.
#[derive(Clone, Debug)]
pub(super) struct LaunchRecord {
    kernel: String,
    pub(super) source: Option<String>,
    place: (String, usize),
    run: usize,
    iteration: Vec<u32>,
    number: u64,
}

impl LaunchRecord {
    pub(super) fn of(seen: &Seen<'_>) -> LaunchRecord {
        LaunchRecord {
            kernel: seen.label.name.clone(),
            source: seen.label.source.clone(),
            place: seen.label.place.clone(),
            run: seen.run,
            iteration: seen.iteration().to_vec(),
            number: seen.issued.number,
        }
    }

    /// The same, from this line of the program, if it is known.
    pub(super) fn at_line(self, source: Option<String>) -> LaunchRecord {
        LaunchRecord { source: source.or(self.source), ..self }
    }

    fn add_to(&self, value: &mut Value) {
        let LaunchRecord { kernel, source, place: (computation, step), run, iteration, .. } = self;
        value["kernel"] = json!(kernel);
        value["source"] = json!(source);
        value["computation"] = json!(computation);
        value["step"] = json!(step);
        value["run"] = json!(run);
        value["iteration"] = json!(iteration);
    }
}

/// An origin of NaN or infinities.
#[derive(Clone, Debug)]
pub(super) struct SpoilOrigin {
    pub(super) what: BadValue,
    pub(super) how: OriginKind,
    pub(super) rank: usize,
    pub(super) buffer: String,
    /// The instruction, if a launch made it.
    pub(super) value: String,
    pub(super) index: Vec<usize>,
    /// The launch that produced it, or first read it.
    pub(super) launch: Option<LaunchRecord>,
    /// For a NaN that was computed from infinities: their origins.
    pub(super) of: Vec<OriginId>,
    /// For a constant NaN that was put somewhere: the origins of the NaN that were there.
    pub(super) instead: Vec<OriginId>,
    /// For a NaN that a lookup was filled with, or that was computed from such: the lookup.
    pub(super) lookup: Option<FilledLookup>,
}

impl SpoilOrigin {
    /// Earlier launches first; within a launch, the lowest rank first.
    fn order(&self) -> (usize, u64, usize) {
        let (run, number) =
            self.launch.as_ref().map_or((0, 0), |launch| (launch.run, launch.number));
        (run, number, self.rank)
    }

    fn to_json(&self, id: OriginId, lookup: Option<Value>) -> Value {
        let mut value = json!({
            "lookup": lookup,
            "id": id.0, "what": self.what.name(), "how": self.how.name(), "rank": self.rank, "buffer": self.buffer,
            "index": self.index, "of": self.of.iter().map(|origin| origin.0).collect::<Vec<_>>(),
        });
        self.launch.iter().for_each(|launch| launch.add_to(&mut value));
        value
    }
}

/// What a rank contributes to a collective, array by array.
#[derive(Clone, Debug)]
pub(super) struct Brought {
    pub(super) rank: usize,
    pub(super) array: usize,
    pub(super) content: NonFinite,
    pub(super) taint: Taint,
    /// For each member of the set, what its part has, if each receives one.
    pub(super) parts: Vec<NonFinite>,
    /// Where it is infinite, if elements keep their position.
    pub(super) infinite: Vec<bool>,
}

/// A result that has NaN or infinities.
#[derive(Clone, Debug)]
pub(super) struct Spoiled {
    pub(super) rank: usize,
    pub(super) run: usize,
    pub(super) output: usize,
    pub(super) kind: String,
    pub(super) content: NonFinite,
    pub(super) taint: Taint,
}

/// An out-of-range index.
#[derive(Clone, Debug)]
pub(super) struct Clamped {
    pub(super) rank: usize,
    pub(super) launch: LaunchRecord,
    pub(super) value: i64,
    pub(super) most: i64,
    pub(super) dimension: usize,
    /// Whether HLO drops what it is for; otherwise it clamps the index.
    pub(super) drops: bool,
    /// How many launches had such an index.
    pub(super) times: u64,
    /// The input of the module that has it.
    pub(super) source: Option<String>,
}

impl Clamped {
    fn to_json(&self) -> Value {
        let Clamped { rank, launch, value, most, dimension, drops, times, source } = self;
        let mut json = json!({
            "rank": rank, "index": value, "most": most, "dimension": dimension, "dropped": drops,
            "times": times, "input": source,
        });
        launch.add_to(&mut json);
        json
    }
}

/// The first launch that compares a NaN.
#[derive(Clone, Debug)]
pub(super) struct ComparedAt {
    pub(super) launch: LaunchRecord,
    /// The instruction in it.
    pub(super) by: String,
}

/// A collective: its label, and the number of earlier ones of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CollectiveKey {
    pub(super) label: u32,
    pub(super) sequence: u64,
}

/// What origins share that are the same again: all but the iteration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OriginKey {
    rank: usize,
    what: BadValue,
    how: OriginKind,
    kernel: String,
    instruction: String,
    buffer: String,
}

impl OriginKey {
    fn of(origin: &SpoilOrigin) -> OriginKey {
        let launch = origin.launch.as_ref();
        OriginKey {
            rank: origin.rank,
            what: origin.what,
            how: origin.how,
            kernel: launch.map_or(String::new(), |launch| launch.kernel.clone()),
            instruction: origin.value.clone(),
            buffer: origin.buffer.clone(),
        }
    }
}

/// What all ranks found.
#[derive(Debug, Default)]
pub(super) struct Book {
    origins: Vec<SpoilOrigin>,
    first: BTreeMap<OriginKey, OriginId>,
    /// For each collective, what ranks contributed and how many have read it.
    collectives: BTreeMap<CollectiveKey, (Vec<Brought>, usize)>,
    /// For each message in flight, the origins of its arrays.
    messages: BTreeMap<MessageKey, VecDeque<Vec<Taint>>>,
    pub(super) results: Vec<Spoiled>,
    pub(super) clamped: BTreeMap<(usize, u32), Clamped>,
    /// The origins of NaN that are compared with something.
    pub(super) compared: BTreeMap<OriginId, ComparedAt>,
    /// The first index out of range of each lookup.
    pub(super) looked_up: BTreeMap<FilledLookup, Clamped>,
    /// Custom calls that changed their thread's rounding mode.
    pub(super) modes: BTreeMap<(usize, u32), LaunchRecord>,
    /// The growth of the heap in each call of a custom call.
    pub(super) growths: BTreeMap<(usize, u32), (LaunchRecord, Vec<i64>)>,
}

impl Book {
    pub(super) fn add(&mut self, origin: SpoilOrigin) -> OriginId {
        let key = OriginKey::of(&origin);
        let is_again = origin.how != OriginKind::Made || self.origins.len() >= MOST_ORIGINS;
        if let Some(&known) = self.first.get(&key).filter(|_| is_again) {
            return known;
        }
        let id = OriginId(self.origins.len());
        self.origins.push(origin);
        self.first.entry(key).or_insert(id);
        id
    }

    /// Remembers the first launch that reads an array from outside.
    pub(super) fn taken(&mut self, origins: &[OriginId], seen: &Seen<'_>) {
        for id in origins {
            let origin = &mut self.origins[id.0];
            let is_earlier = |launch: &LaunchRecord| {
                (seen.run, seen.issued.number) < (launch.run, launch.number)
            };
            if origin.how != OriginKind::Made && origin.launch.as_ref().is_none_or(is_earlier) {
                origin.launch = Some(LaunchRecord::of(seen));
            }
        }
    }

    /// Whether a launch produced one of these origins.
    fn is_made(&self, origins: &[OriginId]) -> bool {
        let is_made = |id: &OriginId| matches!(self.how(*id), OriginKind::Made | OriginKind::Mask);
        origins.iter().any(is_made)
    }

    /// Whether an origin's NaN mark elements that have no value.
    fn is_mark(&self, id: OriginId) -> bool {
        matches!(self.how(id), OriginKind::Constant | OriginKind::Filled | OriginKind::Picked)
    }

    pub(super) fn has_marks(&self, origins: &[OriginId]) -> bool {
        origins.iter().any(|id| self.is_mark(*id))
    }

    /// Whether there are some, and all are marks.
    pub(super) fn are_marks(&self, origins: &[OriginId]) -> bool {
        !origins.is_empty() && origins.iter().all(|id| self.is_mark(*id))
    }

    /// The first lookup that was filled with these.
    pub(super) fn lookup(&self, origins: &[OriginId]) -> Option<FilledLookup> {
        origins.iter().find_map(|id| self.origins[id.0].lookup.clone())
    }

    /// How an origin's NaN or infinities came about.
    pub(super) fn how(&self, id: OriginId) -> OriginKind {
        self.origins[id.0].how
    }

    pub(super) fn origin(&self, id: OriginId) -> &SpoilOrigin {
        &self.origins[id.0]
    }

    /// The infinities that an origin's NaN was computed from.
    pub(super) fn of(&self, id: OriginId) -> &[OriginId] {
        &self.origins[id.0].of
    }

    /// A rank contributes arrays to a collective.
    pub(super) fn bring(&mut self, collective: CollectiveKey, brought: Vec<Brought>) {
        self.collectives.entry(collective).or_default().0.extend(brought);
    }

    /// What all ranks contributed to a collective that one of `ranks` has completed.
    pub(super) fn brought(&mut self, collective: CollectiveKey, ranks: usize) -> Vec<Brought> {
        let Some((all, looked)) = self.collectives.get_mut(&collective) else { return Vec::new() };
        *looked += 1;
        match *looked == ranks {
            true => self.collectives.remove(&collective).map(|(all, _)| all).unwrap_or_default(),
            false => all.clone(),
        }
    }

    /// A message is sent.
    pub(super) fn post(&mut self, key: MessageKey, taints: Vec<Taint>) {
        self.messages.entry(key).or_default().push_back(taints);
    }

    /// The first message that has not been received.
    pub(super) fn posted(&mut self, key: MessageKey) -> Vec<Taint> {
        self.messages.get_mut(&key).and_then(VecDeque::pop_front).unwrap_or_default()
    }

    /// Origins in order: those that a launch produced come first, the earliest first.
    fn sorted(&self, mut ids: Vec<OriginId>) -> Vec<OriginId> {
        ids.sort_by_key(|id| (self.origins[id.0].how, self.origins[id.0].order()));
        ids.dedup();
        ids
    }

    /// The origins of the first run whose results have NaN or infinities.
    fn causes(&self, what: BadValue) -> Vec<OriginId> {
        let run = self
            .results
            .iter()
            .filter(|result| result.content.has(what))
            .map(|result| result.run)
            .min();
        let spoiled = self.results.iter().filter(|result| Some(result.run) == run);
        self.sorted(spoiled.flat_map(|result| result.taint.of(what).to_vec()).collect())
    }

    /// Launches whose NaN reached no result, nor had a constant NaN put in their place that did.
    fn hidden(&self, shown: &[OriginId]) -> Vec<OriginId> {
        let replaced: BTreeSet<OriginId> =
            shown.iter().flat_map(|id| self.origins[id.0].instead.iter().copied()).collect();
        let is_hidden = |&id: &OriginId| {
            let origin = &self.origins[id.0];
            origin.what == BadValue::Nan
                && origin.how == OriginKind::Made
                && !shown.contains(&id)
                && !replaced.contains(&id)
        };
        self.sorted((0..self.origins.len()).map(OriginId).filter(is_hidden).collect())
    }

    fn origin_json(&self, id: OriginId) -> Value {
        let origin = &self.origins[id.0];
        let lookup = origin.lookup.as_ref().and_then(|lookup| {
            let mut json = self.looked_up.get(lookup)?.to_json();
            json["name"] = json!(lookup.1);
            Some(json)
        });
        let mut json = origin.to_json(id, lookup);
        json["instruction"] = json!(origin.value);
        if let Some(ComparedAt { launch, by }) = self.compared.get(&id) {
            json["compared"] = json!({ "instruction": by });
            launch.add_to(&mut json["compared"]);
        }
        json
    }

    /// Everything, for a file.
    pub(super) fn to_json(&self) -> Value {
        let (nan, infinity) = (self.causes(BadValue::Nan), self.causes(BadValue::Infinity));
        let of: Vec<OriginId> = nan.iter().flat_map(|id| self.origins[id.0].of.clone()).collect();
        let behind = self.sorted(if self.is_made(&of) { of } else { Vec::new() });
        let list =
            |ids: &[OriginId]| ids.iter().map(|&id| self.origin_json(id)).collect::<Vec<_>>();
        let result = |result: &Spoiled| {
            json!({
                "rank": result.rank, "run": result.run, "output": result.output, "type": result.kind,
                "nan": result.content.nan, "infinity": result.content.inf,
            })
        };
        let mut results: Vec<&Spoiled> = self.results.iter().collect();
        results.sort_by_key(|result| (result.run, result.output, result.rank));
        let modes = self.modes.iter().map(|((rank, _), launch)| {
            let mut json = json!({ "rank": rank });
            launch.add_to(&mut json);
            json
        });
        let leaks = self.growths.iter().filter_map(|((rank, _), (launch, growths))| {
            let mut json = json!({ "rank": rank, "bytes": kept(growths)?, "calls": growths.len() });
            launch.add_to(&mut json);
            Some(json)
        });
        json!({
            "format": FORMAT,
            "results": results.into_iter().map(result).collect::<Vec<_>>(),
            "nan": list(&nan),
            "infinity": list(&infinity),
            "behind": list(&behind),
            "hidden": list(&self.hidden(&nan)),
            "clamped": self.clamped.values().map(Clamped::to_json).collect::<Vec<_>>(),
            "rounding": modes.collect::<Vec<_>>(),
            "leaks": leaks.collect::<Vec<_>>(),
        })
    }
}
