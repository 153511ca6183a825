//! The nearest right name for a wrong one.

use std::cmp::Reverse;
use std::fmt;

/// An unknown name, with the one that was probably meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    what: &'static str,
    name: String,
    nearest: Option<&'static str>,
    known: Vec<&'static str>,
}

impl Unknown {
    /// `name` is none of the `known` names of a `what`.
    pub fn new(
        what: &'static str,
        name: &str,
        known: impl IntoIterator<Item = &'static str>,
    ) -> Unknown {
        let known: Vec<_> = known.into_iter().collect();
        let nearest = nearest(&name.to_lowercase(), known.iter().copied());
        Unknown { what, name: name.to_owned(), nearest, known }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} '{}'", self.what, self.name)?;
        match self.nearest {
            Some(nearest) => write!(f, "; did you mean '{nearest}'?"),
            None => write!(f, "; known are {}", self.known.join(", ")),
        }
    }
}

impl std::error::Error for Unknown {}

/// The known name that was probably meant, if one is near enough.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A larger difference in length alone rules a name out; long names would cost the most.
    let known = known
        .filter(|right| 2 * right.chars().count().abs_diff(name.chars().count()) <= right.len());
    // Of two names at the same distance, prefer the one with the longer common prefix.
    let best =
        known.map(|right| (distance(name, right), Reverse(shared(name, right)), right)).min();
    // A name with less than half of its letters in common was not a typo.
    best.filter(|(distance, _, right)| 2 * distance <= right.len()).map(|(_, _, right)| right)
}

/// How many letters both begin with.
fn shared(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count()
}

/// Levenshtein's distance: how many letters must be inserted, deleted or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_gets_the_right_name() {
        let known = ["sink_waits", "raise_comms"];
        assert_eq!(
            Unknown::new("pass", "sink_wait", known).to_string(),
            "unknown pass 'sink_wait'; did you mean 'sink_waits'?"
        );
        assert_eq!(
            Unknown::new("pass", "x", known).to_string(),
            "unknown pass 'x'; known are sink_waits, raise_comms"
        );
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(nearest("h10", ["a10", "h20", "h100"].into_iter()), Some("h100"));
    }
}
