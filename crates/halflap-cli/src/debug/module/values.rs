//! Saved values of a run: finds the first kernel that produced a bad array.

use std::collections::BTreeMap;
use std::path::Path;

use halflap_run::check::{Entry, RankValues, Stats, read_values};

use crate::debug::report::Value;
use crate::exit::Failed;

/// What all ranks saved.
pub struct Saved {
    pub ranks: Vec<RankValues>,
}

/// A launch of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub rank: usize,
    pub sequence: u64,
}

/// Where a search for the first bad array ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueOrigin {
    /// A launch that produces it from good inputs.
    Launch(Place),
    /// An array without a producer: an input of the module, or one that was not saved.
    Given(Place, String),
}

impl Saved {
    pub fn read(folder: &Path) -> Result<Saved, Failed> {
        Ok(Saved { ranks: read_values(folder).map_err(|error| Failed::BadInput(error.to_string()))? })
    }

    fn of(&self, place: Place) -> impl Iterator<Item = &Entry> {
        let all = self.ranks.get(place.rank).map_or(&[][..], |values| &values.entries);
        all.iter().filter(move |entry| entry.sequence == place.sequence && entry.when != "input")
    }

    pub fn kernel(&self, place: Place) -> Option<&Entry> {
        self.of(place).next()
    }

    /// The last launch of a kernel on a rank, or on any: after a failure, nothing came later.
    pub fn find(&self, kernel: &str, rank: Option<usize>) -> Option<Place> {
        let ranks = self.ranks.iter().filter(|values| rank.is_none_or(|rank| values.rank == rank));
        let each = ranks.filter_map(|values| {
            let entry = values.entries.iter().rev().find(|entry| entry.kernel == kernel)?;
            Some(Place { rank: values.rank, sequence: entry.sequence })
        });
        each.min_by_key(|place| (place.sequence, place.rank))
    }

    /// The inputs and outputs of a launch.
    pub fn around(&self, place: Place) -> (Vec<Value>, Vec<Value>) {
        let side = |when: &str| self.of(place).filter(|entry| entry.when == when).map(value).collect();
        (side("before"), side("after"))
    }

    /// Whether a launch takes something bad.
    pub fn takes(&self, place: Place, is_bad: fn(&Stats) -> bool) -> bool {
        self.of(place).any(|entry| entry.when == "before" && is_bad(&entry.stats))
    }

    /// Walks back from a launch to the origin of a bad array. A collective's output may come from
    /// any rank.
    pub fn origin(
        &self,
        start: Place,
        is_bad: fn(&Stats) -> bool,
        is_collective: &dyn Fn(&str) -> bool,
    ) -> ValueOrigin {
        let mut place = start;
        let mut steps = self.ranks.iter().map(|values| values.entries.len()).sum::<usize>();
        loop {
            let bad = self.of(place).find(|entry| entry.when == "before" && is_bad(&entry.stats));
            let next = match bad {
                Some(entry) => match self.maker(place, &entry.buffer) {
                    Some(maker) => maker,
                    None => return ValueOrigin::Given(place, entry.buffer.clone()),
                },
                None => match self.kernel(place).filter(|entry| is_collective(&entry.kernel)) {
                    Some(entry) => match self.partner(entry, is_bad) {
                        Some(partner) => partner,
                        None => return ValueOrigin::Launch(place),
                    },
                    None => return ValueOrigin::Launch(place),
                },
            };
            if steps == 0 {
                return ValueOrigin::Launch(place);
            }
            steps -= 1;
            place = next;
        }
    }

    /// The first array that changed between its producer and a reader, with both launches:
    /// something else wrote to it. Only within one run of a computation: one that runs in between
    /// (a loop body) may legally write to its inputs under another name.
    pub fn changed(&self) -> Result<Option<(Place, Place, String)>, Failed> {
        let mut first: Option<(Place, Place, String)> = None;
        for values in &self.ranks {
            let mut left: BTreeMap<&str, &Entry> = BTreeMap::new();
            let mut before: Option<&Entry> = None;
            for entry in values.entries.iter().filter(|entry| entry.when != "input") {
                if before.replace(entry).is_some_and(|before| !follows(entry, before)) {
                    left.clear();
                }
                let place = |entry: &Entry| Place { rank: values.rank, sequence: entry.sequence };
                if entry.when == "after" {
                    left.insert(&entry.buffer, entry);
                    continue;
                }
                let Some(maker) = left.get(entry.buffer.as_str()) else { continue };
                let load = |entry: &Entry| values.load(entry).map_err(|error| Failed::BadInput(error.to_string()));
                let is_first = first.as_ref().is_none_or(|(_, reader, _)| entry.sequence < reader.sequence);
                if is_first && load(entry)?.bytes() != load(maker)?.bytes() {
                    first = Some((place(maker), place(entry), entry.buffer.clone()));
                }
            }
        }
        Ok(first)
    }

    /// The kernels that a rank launched between two others.
    pub fn between(&self, from: Place, to: Place) -> Vec<String> {
        let entries = self.ranks.get(from.rank).map_or(&[][..], |values| &values.entries);
        let mut names: Vec<String> = Vec::new();
        for entry in entries.iter().filter(|entry| (from.sequence + 1..to.sequence).contains(&entry.sequence)) {
            if !names.contains(&entry.kernel) {
                names.push(entry.kernel.clone());
            }
        }
        names
    }

    /// The launch that last wrote a buffer.
    fn maker(&self, place: Place, buffer: &str) -> Option<Place> {
        let entries = self.ranks.get(place.rank)?.entries.iter();
        let wrote =
            entries.filter(|entry| entry.when == "after" && entry.buffer == buffer && entry.sequence < place.sequence);
        wrote.map(|entry| Place { rank: place.rank, sequence: entry.sequence }).max_by_key(|place| place.sequence)
    }

    /// The rank that brings something bad to a collective.
    fn partner(&self, of: &Entry, is_bad: fn(&Stats) -> bool) -> Option<Place> {
        self.ranks.iter().find_map(|values| {
            let is_it = |entry: &&Entry| {
                entry.kernel == of.kernel
                    && (entry.run, &entry.iteration) == (of.run, &of.iteration)
                    && entry.when == "before"
                    && is_bad(&entry.stats)
            };
            let entry = values.entries.iter().find(is_it)?;
            Some(Place { rank: values.rank, sequence: entry.sequence })
        })
    }
}

/// Whether an array is of the same run of a computation as the one that was saved before it.
fn follows(entry: &Entry, before: &Entry) -> bool {
    let around = |entry: &Entry| (entry.run, entry.plan.clone(), entry.iteration.clone());
    let is_onward = entry.sequence == before.sequence || entry.step > before.step;
    around(entry) == around(before) && is_onward
}

/// An array for a report.
fn value(entry: &Entry) -> Value {
    let stats = &entry.stats;
    let kind = format!("{}{:?}", entry.dtype, entry.shape);
    if stats.count == 0 {
        return Value { buffer: entry.buffer.clone(), kind, facts: vec![("elements".to_owned(), "0".to_owned())] };
    }
    let mut facts = vec![
        ("min".to_owned(), short(stats.min)),
        ("max".to_owned(), short(stats.max)),
        ("mean".to_owned(), short(stats.mean)),
    ];
    facts.extend((stats.nans > 0).then(|| ("NaN".to_owned(), stats.nans.to_string())));
    facts.extend((stats.infinities > 0).then(|| ("infinities".to_owned(), stats.infinities.to_string())));
    Value { buffer: entry.buffer.clone(), kind, facts }
}

fn short(number: f64) -> String {
    match number {
        number if number == 0.0 || (1e-3..1e6).contains(&number.abs()) => {
            let text = format!("{number:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        number if number.is_finite() => format!("{number:.3e}"),
        number => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 1.5, -3.0, 1e-7, f64::NAN].map(short), ["0", "1.5", "-3", "1.000e-7", "NaN"]);
    }
}
