//! The last collectives of every rank, and what they say together when ranks diverged.
//!
//! Every rank records its collectives in issue order; ranks of one program issue the same ones. So
//! the first difference between two lists is where a rank diverged, and if the lists agree, a rank
//! that has not reached the collective that others wait in is behind.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Instant;

use serde_json::{Value, json};

use super::probe::Seen;
use crate::failure::{Account, Stray};
use crate::prepare::Prepared;
use crate::sync::locked;

/// The format name in a dump.
pub const FORMAT: &str = "halflap.flight/1";
/// How many collectives a rank remembers.
const KEPT: usize = 2048;

/// The state of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveState {
    /// It was issued.
    Scheduled,
    /// The rank has reached it.
    Started,
    /// It is over.
    Completed,
}

impl CollectiveState {
    fn name(self) -> &'static str {
        match self {
            CollectiveState::Scheduled => "scheduled",
            CollectiveState::Started => "started",
            CollectiveState::Completed => "completed",
        }
    }

    fn of(name: &str) -> Option<CollectiveState> {
        [CollectiveState::Scheduled, CollectiveState::Started, CollectiveState::Completed]
            .into_iter()
            .find(|state| state.name() == name)
    }
}

/// A collective of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Which of all collectives of the rank it is.
    pub index: usize,
    /// Which of all tasks of the rank.
    number: u64,
    /// Which of the collectives of its set of devices.
    pub sequence: u64,
    /// The instruction's name.
    pub name: String,
    /// What it does: `all-reduce`.
    pub op: String,
    /// The participants.
    pub group: String,
    /// The bytes that it moves.
    pub bytes: usize,
    /// The element type: `f32`.
    pub dtype: String,
    /// The type and shape of a rank's input: `f32[64]`.
    pub shape: String,
    /// The operation that combines elements: `add`; empty, if there is none.
    pub reduction: String,
    /// Its state.
    pub state: CollectiveState,
    /// The computation, and the step of its plan.
    pub place: (String, usize),
    /// The line of the user's program.
    pub source: Option<String>,
    /// Which run of the module.
    pub run: usize,
    /// The iteration of each enclosing loop.
    pub iteration: Vec<u32>,
    /// When it reached each state, in seconds since the run began.
    pub times: [Option<f64>; 3],
}

/// One rank's record.
#[derive(Clone, Debug, PartialEq)]
pub struct Flight {
    /// The rank.
    pub rank: usize,
    /// Whether it has issued everything.
    pub has_ended: bool,
    /// Its last collectives, in sequence.
    pub records: Vec<Record>,
}

/// Remembers the collectives of one rank.
pub(super) struct Recorder {
    epoch: Instant,
    ring: Mutex<(usize, VecDeque<Record>)>,
}

impl Recorder {
    pub(super) fn new() -> Recorder {
        Recorder { epoch: Instant::now(), ring: Mutex::default() }
    }

    /// A collective is issued.
    pub(super) fn schedule(&self, seen: &Seen<'_>, sequence: u64) {
        let label = seen.label;
        let mut ring = locked(&self.ring);
        let (index, records) = &mut *ring;
        if records.len() == KEPT {
            records.pop_front();
        }
        let (op, dtype) = label.collective.as_ref().map_or((String::new(), ""), |collective| {
            (
                collective.kind.name().to_owned(),
                collective.arrays.first().map_or("", |array| array.dtype.name()),
            )
        });
        records.push_back(Record {
            index: *index,
            number: seen.issued.count,
            sequence,
            name: label.name.clone(),
            op,
            group: label.among.clone(),
            bytes: label.bytes(),
            dtype: dtype.to_owned(),
            shape: label
                .ins
                .iter()
                .map(|argument| argument.kind.to_string())
                .collect::<Vec<_>>()
                .join(", "),
            reduction: label
                .collective
                .as_ref()
                .map_or(String::new(), |collective| collective.reduction.clone()),
            state: CollectiveState::Scheduled,
            place: label.place.clone(),
            source: label.source.clone(),
            run: seen.run,
            iteration: seen.iteration().to_vec(),
            times: [Some(self.epoch.elapsed().as_secs_f64()), None, None],
        });
        *index += 1;
    }

    /// A collective reaches a state.
    pub(super) fn advance(&self, number: u64, state: CollectiveState) {
        let mut ring = locked(&self.ring);
        if let Some(record) = ring.1.iter_mut().rev().find(|record| record.number == number) {
            record.state = state;
            record.times[state as usize] = Some(self.epoch.elapsed().as_secs_f64());
        }
    }

    pub(super) fn flight(&self, rank: usize, has_ended: bool) -> Flight {
        Flight { rank, has_ended, records: locked(&self.ring).1.iter().cloned().collect() }
    }
}

impl Record {
    fn to_json(&self) -> Value {
        json!({
            "index": self.index,
            "task": self.number,
            "sequence": self.sequence,
            "name": self.name,
            "op": self.op,
            "group": self.group,
            "bytes": self.bytes,
            "dtype": self.dtype,
            "shape": self.shape,
            "reduction": self.reduction,
            "state": self.state.name(),
            "computation": self.place.0,
            "step": self.place.1,
            "source": self.source,
            "run": self.run,
            "iteration": self.iteration,
            "seconds": { "scheduled": self.times[0], "started": self.times[1], "completed": self.times[2] },
        })
    }

    fn from_json(value: &Value) -> Option<Record> {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let whole = |name: &str| value[name].as_u64().map(|number| number as usize);
        let iteration =
            value["iteration"].as_array()?.iter().map(|number| Some(number.as_u64()? as u32));
        let seconds = &value["seconds"];
        Some(Record {
            index: whole("index")?,
            number: whole("task")? as u64,
            sequence: whole("sequence")? as u64,
            name: text("name")?,
            op: text("op")?,
            group: text("group")?,
            bytes: whole("bytes")?,
            dtype: text("dtype")?,
            shape: text("shape").unwrap_or_default(),
            reduction: text("reduction").unwrap_or_default(),
            state: CollectiveState::of(value["state"].as_str()?)?,
            place: (text("computation")?, whole("step")?),
            source: text("source"),
            run: whole("run")?,
            iteration: iteration.collect::<Option<_>>()?,
            times: ["scheduled", "started", "completed"].map(|name| seconds[name].as_f64()),
        })
    }

    /// How it differs from another one.
    fn differences(&self, other: &Record) -> Vec<String> {
        let each = [
            ("operation", &self.op, &other.op),
            ("shape", &self.shape, &other.shape),
            ("reduction", &self.reduction, &other.reduction),
            ("group", &self.group, &other.group),
        ];
        // Operations that do not reduce have no reduction.
        let is_both = |own: &str, theirs: &str| !own.is_empty() && !theirs.is_empty();
        let differ = each.iter().filter(|(_, own, theirs)| own != theirs && is_both(own, theirs));
        differ.map(|(name, own, theirs)| format!("{name}: {own}, not {theirs}")).collect()
    }

    /// For display: `'ar.1' (all-reduce of 1024 bytes f32 among {0-3}, number 5; step 12 of main,
    /// model.py:7)`.
    fn words(&self) -> String {
        let Record { name, op, group, bytes, dtype, sequence, place: (computation, step), .. } =
            self;
        let source = self.source.as_ref().map_or(String::new(), |source| format!(", {source}"));
        let around: String =
            self.iteration.iter().map(|number| format!(", iteration {number}")).collect();
        format!(
            "'{name}' ({op} of {bytes} bytes {dtype} among {group}, number {sequence}; step {step} of {computation}{around}{source})"
        )
    }
}

impl Flight {
    /// As JSON.
    pub fn to_json(&self) -> Value {
        let records: Vec<Value> = self.records.iter().map(Record::to_json).collect();
        json!({ "rank": self.rank, "ended": self.has_ended, "collectives": records })
    }

    /// Reads what [`Flight::to_json`] wrote.
    pub fn from_json(value: &Value) -> Option<Flight> {
        let records = value["collectives"].as_array()?.iter().map(Record::from_json);
        Some(Flight {
            rank: value["rank"].as_u64()? as usize,
            has_ended: value["ended"].as_bool()?,
            records: records.collect::<Option<_>>()?,
        })
    }

    fn at(&self, index: usize) -> Option<&Record> {
        let first = self.records.first()?.index;
        self.records.get(index.checked_sub(first)?)
    }

    fn last(&self) -> String {
        let done =
            self.records.iter().rev().find(|record| record.state > CollectiveState::Scheduled);
        done.map_or("it reached no collective before".to_owned(), |record| {
            let state = if record.state == CollectiveState::Completed {
                "which is over"
            } else {
                "which it is still in"
            };
            format!("its last was {}, {state}", record.words())
        })
    }
}

/// What a diverging rank reached.
fn stray(own: &Record, expected: Option<&Record>) -> Stray {
    Stray {
        collective: own.name.clone(),
        source: own.source.clone(),
        place: own.place.clone(),
        differences: expected.map_or(Vec::new(), |expected| own.differences(expected)),
    }
}

/// Merges the ranks' records; `None` if all ranks are equally far. `planned` is the list of
/// collectives that every rank reaches, if it does not depend on data.
pub fn account(flights: &[Flight], planned: Option<&[String]>) -> Option<Account> {
    let first = flights
        .iter()
        .filter_map(|flight| flight.records.first())
        .map(|record| record.index)
        .max()?;
    let end = flights
        .iter()
        .filter_map(|flight| flight.records.last())
        .map(|record| record.index + 1)
        .max()?;
    (first..end)
        .find_map(|index| strayed(flights, index, planned))
        .or_else(|| (first..end).find_map(|index| behind(flights, index)))
}

/// The expected name at a position: the plan's, else the one that most ranks have, else the lowest
/// rank's.
fn right<'a>(
    flights: &'a [Flight],
    index: usize,
    planned: Option<&'a [String]>,
) -> Option<&'a str> {
    if let Some(planned) = planned {
        return planned.get(index).map(String::as_str);
    }
    let names: Vec<&str> =
        flights.iter().filter_map(|flight| Some(flight.at(index)?.name.as_str())).collect();
    let votes = |name: &str| names.iter().filter(|other| **other == name).count();
    names.iter().rev().copied().max_by_key(|name| votes(name))
}

/// The rank that reached a different collective than the others.
fn strayed(flights: &[Flight], index: usize, planned: Option<&[String]>) -> Option<Account> {
    if planned.is_some_and(|planned| index >= planned.len()) {
        return Some(one_too_many(
            &flights.iter().filter(|flight| flight.at(index).is_some()).collect::<Vec<_>>(),
            index,
        ));
    }
    let right_here = right(flights, index, planned)?;
    let is_other =
        |flight: &&Flight| flight.at(index).is_some_and(|record| record.name != right_here);
    let others: Vec<&Flight> = flights.iter().filter(is_other).collect();
    let own = others.first()?.at(index)?;
    let expected = flights
        .iter()
        .filter_map(|flight| flight.at(index))
        .find(|record| record.name == right_here);
    let next = right(flights, index + 1, planned);
    let before = index
        .checked_sub(1)
        .and_then(|index| others[0].at(index))
        .filter(|record| record.name == own.name);
    let after = others[0].at(index + 1).map(|record| record.name.as_str());
    let what = match () {
        () if let Some(before) = before
            && after.is_none_or(|after| after == right_here) =>
        {
            match before.iteration == own.iteration {
                true => format!("it reached '{}' twice", own.name),
                false => format!("it runs another iteration, with '{}'", own.name),
            }
        }
        () if next == Some(&own.name) && after == Some(right_here) => {
            format!("it reached '{right_here}' and '{}' in the opposite order", own.name)
        }
        () if next == Some(&own.name) => format!("it skipped '{right_here}'"),
        () => format!("it should have reached '{right_here}'"),
    };
    let ranks: Vec<usize> = others.iter().map(|flight| flight.rank).collect();
    let differences = expected.map_or(Vec::new(), |expected| own.differences(expected));
    let differ = if differences.is_empty() {
        String::new()
    } else {
        format!(" ({})", differences.join("; "))
    };
    let text = format!(
        "{} diverged: as collective {index} it reached {}, the others {}: {what}{differ}",
        named(&ranks),
        own.words(),
        expected.map_or(format!("'{right_here}'"), Record::words),
    );
    let found = Found { ranks, name: right_here, record: expected };
    Some(found.account(Some(stray(own, expected)), text))
}

/// The ranks that have not reached the collective that others wait in.
fn behind(flights: &[Flight], index: usize) -> Option<Account> {
    let is_waiting = |flight: &&Flight| {
        flight.at(index).is_some_and(|record| record.state == CollectiveState::Started)
    };
    let waiting: Vec<&Flight> = flights.iter().filter(is_waiting).collect();
    let record = waiting.first()?.at(index)?;
    let is_late = |flight: &&Flight| {
        flight.at(index).is_none_or(|record| record.state == CollectiveState::Scheduled)
    };
    let late: Vec<&Flight> = flights.iter().filter(is_late).collect();
    let never: Vec<&Flight> = late
        .iter()
        .copied()
        .filter(|flight| flight.has_ended && flight.at(index).is_none())
        .collect();
    if never.len() == late.len() && never.len() > waiting.len() {
        return Some(one_too_many(&waiting, index));
    }
    let ranks: Vec<usize> = late.iter().map(|flight| flight.rank).collect();
    let one = late.first()?;
    let ended = if never.len() == late.len() {
        " and never will: it has no collectives left to issue"
    } else {
        ""
    };
    let text = format!(
        "{} behind: {} in {}, which {} has not reached{ended}; {}",
        if ranks.len() == 1 {
            format!("{} is", named(&ranks))
        } else {
            format!("{} are", named(&ranks))
        },
        waits(&waiting.iter().map(|flight| flight.rank).collect::<Vec<_>>()),
        record.words(),
        if ranks.len() == 1 { "it".to_owned() } else { format!("rank {}", one.rank) },
        one.last(),
    );
    Some(Found { ranks, name: &record.name, record: Some(record) }.account(None, text))
}

/// Ranks that reached a collective that no other rank reaches.
fn one_too_many(flights: &[&Flight], index: usize) -> Account {
    let ranks: Vec<usize> = flights.iter().map(|flight| flight.rank).collect();
    let record = flights.first().and_then(|flight| flight.at(index));
    let words = record.map_or(String::new(), Record::words);
    let text = format!(
        "{} reached {words} as collective {index}, which is one too many: there are {index}",
        named(&ranks)
    );
    let name = record.map_or("", |record| &record.name);
    Found { ranks, name, record }.account(record.map(|record| stray(record, None)), text)
}

/// The ranks that an account is about, and the collective.
struct Found<'a> {
    ranks: Vec<usize>,
    name: &'a str,
    /// As a rank has recorded it, if one has.
    record: Option<&'a Record>,
}

impl Found<'_> {
    fn account(self, stray: Option<Stray>, text: String) -> Account {
        Account {
            ranks: self.ranks,
            collective: self.name.to_owned(),
            source: self.record.and_then(|record| record.source.clone()),
            place: self.record.map(|record| record.place.clone()),
            iteration: self.record.map_or(Vec::new(), |record| record.iteration.clone()),
            stray,
            text,
        }
    }
}

fn waits(ranks: &[usize]) -> String {
    format!("{} {}", named(ranks), if ranks.len() == 1 { "waits" } else { "wait" })
}

fn named(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    if list.len() == 1 { format!("rank {}", list[0]) } else { format!("ranks {}", list.join(", ")) }
}

/// Everything, for a file.
pub fn dump(program: &Prepared, flights: &[Flight], account: Option<&Account>) -> String {
    let ranks: Vec<Value> = flights.iter().map(Flight::to_json).collect();
    let account = account.map(Account::to_json);
    format!(
        "{:#}\n",
        json!({ "format": FORMAT, "module": program.module, "account": account, "ranks": ranks })
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(rank: usize, names: &str, completed: usize, has_ended: bool) -> Flight {
        let record = |(index, name): (usize, &str)| Record {
            index,
            number: index as u64,
            sequence: index as u64,
            name: name.to_owned(),
            op: "all-reduce".to_owned(),
            group: "{0-2}".to_owned(),
            bytes: 4,
            dtype: "f32".to_owned(),
            shape: format!("f32[{}]", name.len()),
            reduction: "add".to_owned(),
            state: match index {
                _ if index < completed => CollectiveState::Completed,
                _ if index == completed => CollectiveState::Started,
                _ => CollectiveState::Scheduled,
            },
            place: ("e".to_owned(), index),
            source: Some(format!("m.py:{index}")),
            run: 0,
            iteration: vec![],
            times: [Some(0.5), None, None],
        };
        Flight { rank, has_ended, records: names.split(' ').enumerate().map(record).collect() }
    }

    #[track_caller]
    fn says(flights: &[Flight], planned: Option<&str>, rank: usize, words: &str) {
        let planned: Option<Vec<String>> =
            planned.map(|names| names.split(' ').map(str::to_owned).collect());
        let account = account(flights, planned.as_deref()).unwrap();
        assert_eq!(account.ranks, [rank], "{}", account.text);
        assert!(account.text.contains(words), "{}", account.text);
    }

    #[test]
    fn who_went_another_way() {
        let others = |at: usize| [flight(0, "a b c d", at, false), flight(1, "a b c d", at, false)];
        let with = |names: &str| [others(1).to_vec(), vec![flight(2, names, 1, false)]].concat();
        says(&with("a c d"), None, 2, "it skipped 'b'");
        says(&with("a c b d"), None, 2, "'b' and 'c' in the opposite order");
        says(&with("a a b c d"), None, 2, "it reached 'a' twice");
        // With two ranks, the plan decides which one is right.
        let two = [flight(0, "a c d", 1, false), flight(1, "a b c d", 1, false)];
        says(&two, Some("a b c d"), 0, "it skipped 'b'");
        assert_eq!(account(&others(1), None), None);
    }

    #[test]
    fn what_differs_is_named() {
        let flights = [
            flight(0, "a bb c", 1, false),
            flight(1, "a bb c", 1, false),
            flight(2, "a d", 1, false),
        ];
        let account = account(&flights, None).unwrap();
        let stray = account.stray.unwrap();
        assert_eq!((stray.collective.as_str(), stray.source.as_deref()), ("d", Some("m.py:1")));
        assert_eq!(stray.differences, ["shape: f32[1], not f32[2]"]);
        assert!(account.text.ends_with("(shape: f32[1], not f32[2])"), "{}", account.text);
    }

    #[test]
    fn who_is_behind() {
        let waiting = |rank: usize| flight(rank, "a b", 1, true);
        says(
            &[waiting(0), flight(1, "a b", 0, false), waiting(2)],
            None,
            1,
            "ranks 0, 2 wait in 'b'",
        );
        says(
            &[waiting(0), flight(1, "a", 1, true), waiting(2)],
            None,
            1,
            "has no collectives left to issue",
        );
        let ended = |rank: usize| flight(rank, "a b", 2, true);
        says(&[ended(0), ended(1), flight(2, "a b b", 2, true)], None, 2, "one too many");
    }

    #[test]
    fn there_and_back() {
        let one = flight(3, "a b", 1, false);
        assert_eq!(Flight::from_json(&one.to_json()), Some(one));
    }
}
