//! Names to numbers, in bounded memory.

use std::collections::HashMap;
use std::hash::Hash;

use super::scan::{ScanFault, decode};
use halflap::ids::{Id, IdVec};

/// The longest name that is kept whole, in bytes. Templates of C++ reach thousands, and the
/// distinguishing part is often at the end.
const LONGEST: usize = 1024;

/// Items numbered in order of first occurrence. The map is only looked up, never iterated.
#[derive(Debug)]
pub(super) struct Numbered<I, T> {
    what: &'static str,
    most: usize,
    ids: HashMap<T, I>,
    items: IdVec<I, T>,
}

impl<I: Id, T: Clone + Eq + Hash> Numbered<I, T> {
    /// At most this many of `what`.
    pub(super) fn new(what: &'static str, most: usize) -> Numbered<I, T> {
        Numbered { what, most, ids: HashMap::new(), items: IdVec::from(Vec::new()) }
    }

    /// The number of an item, new or known.
    pub(super) fn id(&mut self, item: T) -> Result<I, ScanFault> {
        if let Some(&id) = self.ids.get(&item) {
            return Ok(id);
        }
        if self.items.len() >= self.most {
            return Err(ScanFault::TooMany { what: self.what, most: self.most });
        }
        let id = self.items.push(item.clone());
        self.ids.insert(item, id);
        Ok(id)
    }

    /// The item of a number that was given.
    pub(super) fn item(&self, id: I) -> &T {
        &self.items[id]
    }

    pub(super) fn items(&self) -> &IdVec<I, T> {
        &self.items
    }

    pub(super) fn into_items(self) -> IdVec<I, T> {
        self.items
    }
}

/// A name of bounded length. One that is too long keeps its beginning and gets a hash of the whole,
/// so that two of them stay distinct.
pub(super) fn bounded(text: &[u8]) -> String {
    const NUMBER: usize = 20;
    if text.len() <= LONGEST {
        return decode(text, LONGEST).into_owned();
    }
    let whole = decode(text, LONGEST + 1);
    if whole.len() <= LONGEST && text.len() <= 6 * LONGEST {
        return whole.into_owned();
    }
    format!("{}...#{:016x}", decode(text, LONGEST - NUMBER), fingerprint(text))
}

/// FNV-1a: the same on every machine.
fn fingerprint(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        let long = |last: u8| [vec![b'x'; 10 << 20], vec![last]].concat();
        let (a, b) = (bounded(&long(b'a')), bounded(&long(b'b')));
        assert_ne!(a, b);
        assert!(a.len() <= LONGEST && a.starts_with("xxxx"), "{}", a.len());
        assert_eq!(bounded(&[b'y'; LONGEST]).len(), LONGEST);
        let escaped = "\\u00e9".repeat(LONGEST / 2);
        assert_eq!(bounded(escaped.as_bytes()), "\u{e9}".repeat(LONGEST / 2));
        assert!(bounded("\u{e9}".repeat(5000).as_bytes()).len() <= LONGEST);
    }
}
