//! Saved values of a run: inputs and outputs of launches, and arrays that changed unexpectedly.

use std::collections::BTreeMap;
use std::path::Path;

use halflap_run::check::{Entry, RankValues, read_values};

use crate::execution::debug::report::ArrayFacts;
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

impl Saved {
    pub fn read(folder: &Path) -> Result<Saved, Failed> {
        Ok(Saved {
            ranks: read_values(folder).map_err(|error| Failed::BadInput(error.to_string()))?,
        })
    }

    fn of(&self, place: Place) -> impl Iterator<Item = &Entry> {
        let all = self.ranks.get(place.rank).map_or(&[][..], |values| &values.entries);
        all.iter().filter(move |entry| entry.sequence == place.sequence && entry.when != "input")
    }

    pub fn kernel(&self, place: Place) -> Option<&Entry> {
        self.of(place).next()
    }

    /// A launch of a kernel on a rank in an iteration.
    pub fn at(&self, kernel: &str, rank: usize, iteration: &[u32]) -> Option<Place> {
        let values = self.ranks.iter().find(|values| values.rank == rank)?;
        let is_it = |entry: &&Entry| entry.kernel == kernel && entry.iteration == iteration;
        Some(Place { rank, sequence: values.entries.iter().find(is_it)?.sequence })
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
    pub fn around(&self, place: Place) -> (Vec<ArrayFacts>, Vec<ArrayFacts>) {
        let side =
            |when: &str| self.of(place).filter(|entry| entry.when == when).map(value).collect();
        (side("before"), side("after"))
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
                let load = |entry: &Entry| {
                    values.load(entry).map_err(|error| Failed::BadInput(error.to_string()))
                };
                let is_first =
                    first.as_ref().is_none_or(|(_, reader, _)| entry.sequence < reader.sequence);
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
        for entry in entries
            .iter()
            .filter(|entry| (from.sequence + 1..to.sequence).contains(&entry.sequence))
        {
            if !names.contains(&entry.kernel) {
                names.push(entry.kernel.clone());
            }
        }
        names
    }
}

/// Whether an array is of the same run of a computation as the one saved before it.
fn follows(entry: &Entry, before: &Entry) -> bool {
    let around = |entry: &Entry| (entry.run, entry.plan.clone(), entry.iteration.clone());
    let is_onward = entry.sequence == before.sequence || entry.step > before.step;
    around(entry) == around(before) && is_onward
}

/// An array for a report.
fn value(entry: &Entry) -> ArrayFacts {
    let stats = &entry.stats;
    let kind = format!("{}{:?}", entry.dtype, entry.shape);
    if stats.count == 0 {
        let facts = vec![("elements".to_owned(), "0".to_owned())];
        return ArrayFacts {
            buffer: entry.buffer.clone(),
            operand: Some(entry.value.clone()),
            kind,
            facts,
        };
    }
    let mut facts = vec![
        ("min".to_owned(), short(stats.min)),
        ("max".to_owned(), short(stats.max)),
        ("mean".to_owned(), short(stats.mean)),
    ];
    facts.extend((stats.nans > 0).then(|| ("NaN".to_owned(), stats.nans.to_string())));
    facts.extend(
        (stats.infinities > 0).then(|| ("infinities".to_owned(), stats.infinities.to_string())),
    );
    ArrayFacts { buffer: entry.buffer.clone(), operand: Some(entry.value.clone()), kind, facts }
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
        assert_eq!(
            [0.0, 1.5, -3.0, 1e-7, f64::NAN].map(short),
            ["0", "1.5", "-3", "1.000e-7", "NaN"]
        );
    }
}
