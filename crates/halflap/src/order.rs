//! An order: a permutation of a program's operations.

use std::ops::Range;

use crate::graph::Graph;
use crate::ids::{Id, IdVec, OpId, Pos};

/// A permutation of a program's operations. Invariant: `at[pos[op]] == op`; only `rotate` writes
/// either after construction.
///
/// ```
/// use halflap::ids::{Id, OpId};
/// use halflap::order::Order;
///
/// let ops: Vec<OpId> = [2, 0, 1].map(OpId::from_index).to_vec();
/// let order = Order::from_ops(3, ops).expect("every operation is there once");
/// assert_eq!(order.pos(OpId::from_index(0)).index(), 1);
/// assert!(Order::from_ops(2, vec![OpId::from_index(1); 2]).is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    at: IdVec<Pos, OpId>,
    pos: IdVec<OpId, Pos>,
}

/// Towards which end of the order something moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Towards the front.
    #[default]
    Earlier,
    /// Towards the end.
    Later,
}

/// Neighbouring operations that move as one: the places `first..end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    first: usize,
    end: usize,
}

impl Block {
    /// Whether a place is among those of the block.
    #[inline]
    pub fn contains(&self, pos: Pos) -> bool {
        (self.first..self.end).contains(&pos.index())
    }

    /// The place after the block's last.
    pub fn end(&self) -> Pos {
        Pos::from_index(self.end)
    }

    /// The block's first place.
    pub fn first(&self) -> Pos {
        Pos::from_index(self.first)
    }
}

impl Order {
    /// The order in which the program is scheduled now.
    pub fn of_input(graph: &Graph) -> Order {
        Order { at: graph.ops().collect(), pos: (0..graph.len()).map(Pos::from_index).collect() }
    }

    /// The order that a sequence of operations is, if each of `len` operations is there once.
    pub fn from_ops(len: usize, ops: Vec<OpId>) -> Option<Order> {
        let mut pos: IdVec<OpId, Option<Pos>> = IdVec::filled(None, len);
        for (index, &op) in ops.iter().enumerate() {
            if op.index() >= len || pos[op].replace(Pos::from_index(index)).is_some() {
                return None;
            }
        }
        let pos = pos.as_slice().iter().copied().collect::<Option<Vec<Pos>>>()?;
        Some(Order { at: ops.into(), pos: pos.into() })
    }

    /// The same with one operation at another place; those in between close up.
    pub(crate) fn moved(&self, op: OpId, to: Pos) -> Order {
        let mut order = self.clone();
        let (from, to) = (self.pos(op).index(), to.index());
        let places = from.min(to)..from.max(to) + 1;
        match to > from {
            true => order.at.as_mut_slice()[places.clone()].rotate_left(1),
            false => order.at.as_mut_slice()[places.clone()].rotate_right(1),
        }
        for place in places.map(Pos::from_index) {
            order.pos[order.at[place]] = place;
        }
        order
    }

    /// How many operations there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.at.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// The operations, first to last.
    #[inline]
    pub fn as_slice(&self) -> &[OpId] {
        self.at.as_slice()
    }

    /// The operations at some places.
    #[inline]
    pub fn slice(&self, places: Range<Pos>) -> &[OpId] {
        &self.at.as_slice()[places.start.index()..places.end.index()]
    }

    /// The operations of a block.
    #[inline]
    pub fn block(&self, block: &Block) -> &[OpId] {
        &self.at.as_slice()[block.first..block.end]
    }

    /// Where an operation stands.
    #[inline]
    pub fn pos(&self, op: OpId) -> Pos {
        self.pos[op]
    }

    /// The operation at a place.
    #[inline]
    pub fn at(&self, pos: Pos) -> OpId {
        self.at[pos]
    }

    /// The block of one operation.
    pub fn singleton(&self, op: OpId) -> Block {
        let first = self.pos[op].index();
        Block { first, end: first + 1 }
    }

    /// The operation next to a block.
    #[inline]
    pub fn beyond(&self, block: &Block, direction: Direction) -> Option<OpId> {
        let place = match direction {
            Direction::Earlier => block.first.checked_sub(1)?,
            Direction::Later => block.end,
        };
        self.at.as_slice().get(place).copied()
    }

    /// Takes the operation next to a block into it.
    pub fn extend(&self, block: &mut Block, direction: Direction) {
        match direction {
            Direction::Earlier => block.first -= 1,
            Direction::Later => block.end += 1,
        }
        debug_assert!(block.end <= self.len());
    }

    /// Exchanges a block with the operation next to it.
    #[inline]
    pub fn rotate(&mut self, block: &mut Block, direction: Direction) {
        match direction {
            Direction::Earlier => {
                let neighbour = self.at.as_slice()[block.first - 1];
                for place in block.first..block.end {
                    self.put(place - 1, self.at.as_slice()[place]);
                }
                self.put(block.end - 1, neighbour);
                *block = Block { first: block.first - 1, end: block.end - 1 };
            }
            Direction::Later => {
                let neighbour = self.at.as_slice()[block.end];
                for place in (block.first..block.end).rev() {
                    self.put(place + 1, self.at.as_slice()[place]);
                }
                self.put(block.first, neighbour);
                *block = Block { first: block.first + 1, end: block.end + 1 };
            }
        }
    }

    #[inline]
    fn put(&mut self, place: usize, op: OpId) {
        self.at.as_mut_slice()[place] = op;
        self.pos[op] = Pos::from_index(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(ops: &[usize]) -> Option<Order> {
        Order::from_ops(ops.len(), ops.iter().map(|&op| OpId::from_index(op)).collect())
    }

    #[test]
    fn only_permutations_are_orders() {
        assert!(order(&[]).is_some() && order(&[1, 0, 2]).is_some());
        assert!(order(&[0, 0, 2]).is_none() && order(&[0, 3, 1]).is_none());
        assert!(Order::from_ops(2, vec![OpId::from_index(0)]).is_none());
    }

    #[test]
    fn a_block_and_its_neighbour_change_places() {
        let mut order = order(&[0, 1, 2, 3]).unwrap();
        let mut block = order.singleton(OpId::from_index(2));
        order.extend(&mut block, Direction::Earlier);
        order.rotate(&mut block, Direction::Earlier);
        assert_eq!(order.as_slice().iter().map(|op| op.index()).collect::<Vec<_>>(), [1, 2, 0, 3]);
        assert_eq!(order.beyond(&block, Direction::Earlier), None);
        order.rotate(&mut block, Direction::Later);
        order.rotate(&mut block, Direction::Later);
        assert_eq!(order.as_slice().iter().map(|op| op.index()).collect::<Vec<_>>(), [0, 3, 1, 2]);
        assert!(
            order.as_slice().iter().enumerate().all(|(place, &op)| order.pos(op).index() == place)
        );
    }
}
