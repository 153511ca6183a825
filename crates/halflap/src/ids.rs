//! Dense ids, and the containers that they index.
//!
//! Every table of the library is a vector indexed by one of these types, so that an operation's
//! number cannot be used where a buffer's is meant. Ids are `u32`: a program of four billion
//! operations is refused at import.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut, Range};

/// A number that indexes one kind of table.
pub trait Id: Copy + Ord + fmt::Debug {
    /// The id of the entry at `index`.
    fn from_index(index: usize) -> Self;
    /// The index of this id's entry.
    fn index(self) -> usize;
}

/// Defines id types.
#[macro_export]
macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $crate::ids::Id for $name {
            #[inline]
            fn from_index(index: usize) -> Self {
                debug_assert!(u32::try_from(index).is_ok());
                $name(index as u32)
            }
            #[inline]
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    )*};
}

ids! {
    /// An operation: a node of the program, numbered in input order.
    OpId
    /// A buffer: what an operation makes, or a freeable input.
    BufId
    /// A process group.
    GroupId
    /// A communication stream: process groups that must not communicate concurrently share one.
    StreamId
    /// A place in an order.
    Pos
    /// A unit of a workload: one of the graphs that a program is made of.
    UnitId
}

/// A vector indexed by an id.
#[derive(Clone, PartialEq, Eq)]
pub struct IdVec<I, T> {
    items: Vec<T>,
    index: PhantomData<fn(I)>,
}

impl<I: Id, T> IdVec<I, T> {
    /// As many copies of `item` as there are ids below `len`.
    pub fn filled(item: T, len: usize) -> Self
    where
        T: Clone,
    {
        Self::from(vec![item; len])
    }

    /// How many entries there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds an entry and gives its id.
    pub fn push(&mut self, item: T) -> I {
        self.items.push(item);
        I::from_index(self.items.len() - 1)
    }

    /// The entry of `id`, if there is one.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }

    /// All ids, ascending.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I, T> {
        (0..self.items.len()).map(I::from_index)
    }

    /// All ids with their entries, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(index, item)| (I::from_index(index), item))
    }

    /// The entries, ascending.
    #[inline]
    pub fn as_slice(&self) -> &[T] {
        &self.items
    }

    /// The entries, ascending, to be written.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items
    }
}

impl<I, T> From<Vec<T>> for IdVec<I, T> {
    fn from(items: Vec<T>) -> Self {
        IdVec { items, index: PhantomData }
    }
}

impl<I, T> FromIterator<T> for IdVec<I, T> {
    fn from_iter<It: IntoIterator<Item = T>>(items: It) -> Self {
        Self::from(items.into_iter().collect::<Vec<_>>())
    }
}

impl<I: Id, T> Index<I> for IdVec<I, T> {
    type Output = T;
    #[inline]
    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for IdVec<I, T> {
    #[inline]
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<I, T: fmt::Debug> fmt::Debug for IdVec<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.fmt(f)
    }
}

/// A list for each id, all in one flat vector.
///
/// ```
/// use halflap::ids::{BufId, Csr, Id, OpId};
///
/// let [first, second] = [0, 1].map(OpId::from_index);
/// let buffer = BufId::from_index(0);
/// let uses: Csr<OpId, BufId> = Csr::from_lists([vec![], vec![buffer]]);
/// assert!(uses.of(first).is_empty());
/// assert_eq!(uses.inverse(1).of(buffer), [second]);
/// ```
#[derive(Clone, Debug)]
pub struct Csr<I, T> {
    starts: Vec<u32>,
    items: Vec<T>,
    index: PhantomData<fn(I)>,
}

impl<I: Id, T: Copy> Csr<I, T> {
    /// The lists in the order of their ids.
    pub fn from_lists<L: IntoIterator<Item = T>>(lists: impl IntoIterator<Item = L>) -> Self {
        let mut csr = Csr { starts: vec![0], items: Vec::new(), index: PhantomData };
        for list in lists {
            csr.items.extend(list);
            csr.starts.push(csr.items.len() as u32);
        }
        csr
    }

    /// Groups pairs by their id; within a list the pairs keep their sequence.
    pub fn from_pairs(len: usize, pairs: impl Iterator<Item = (I, T)> + Clone) -> Self {
        let mut starts = vec![0u32; len + 1];
        for (id, _) in pairs.clone() {
            starts[id.index() + 1] += 1;
        }
        for index in 0..len {
            starts[index + 1] += starts[index];
        }
        let mut next = starts.clone();
        // Every slot is written exactly once more: there is one pair for each.
        let mut items: Vec<T> = pairs.clone().map(|(_, item)| item).collect();
        for (id, item) in pairs {
            let slot = &mut next[id.index()];
            items[*slot as usize] = item;
            *slot += 1;
        }
        Csr { starts, items, index: PhantomData }
    }

    /// The list of `id`.
    #[inline]
    pub fn of(&self, id: I) -> &[T] {
        &self.items[self.range(id)]
    }

    /// How many ids have a list.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Whether there is no id at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every id with each item of its list.
    pub fn pairs(&self) -> impl Iterator<Item = (I, T)> + Clone {
        (0..self.len())
            .map(I::from_index)
            .flat_map(|id| self.of(id).iter().map(move |&item| (id, item)))
    }

    /// Where the list of `id` is among all items.
    #[inline]
    pub(crate) fn range(&self, id: I) -> Range<usize> {
        self.starts[id.index()] as usize..self.starts[id.index() + 1] as usize
    }
}

impl<I: Id, T: Id> Csr<I, T> {
    /// For each item, the ids whose lists hold it, ascending.
    pub fn inverse(&self, len: usize) -> Csr<T, I> {
        Csr::from_pairs(len, self.pairs().map(|(id, item)| (item, id)))
    }
}
