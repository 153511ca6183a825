//! Where the values of a computation are kept.
//!
//! Every leaf of every instruction is in one slot; a slot holds one content after the other, in any
//! order of the computation's graph. Slots are the buffers of the graph, plus those without device
//! memory.

use super::{Module, Operand};
use crate::Shape;
use crate::ids::{InstrId, SlotId};
use halflap::ids::{BufId, Id, IdVec};
use halflap::units::Bytes;

/// Which slot each value is in.
#[derive(Clone, Debug)]
pub struct Storage {
    base: usize,
    /// Where each instruction's leaves begin, by its place in the computation.
    first: Vec<u32>,
    leaves: Vec<SlotId>,
    /// All slots.
    pub slots: IdVec<SlotId, Slot>,
}

/// A place in memory.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The instruction that it is first written by, and which of its values.
    pub name: String,
    /// Where its first content comes from.
    pub origin: SlotOrigin,
    /// Its buffer in the graph; `None` if it exists from the start without device memory.
    pub buffer: Option<BufId>,
    /// The device memory that it takes.
    pub size: Bytes,
}

/// Where the first content of a slot comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotOrigin {
    /// The caller provides it.
    Parameter,
    /// It always exists.
    Constant,
    /// An instruction produces it.
    Made,
}

impl Storage {
    pub(super) fn new(
        base: usize,
        first: Vec<u32>,
        leaves: Vec<SlotId>,
        slots: IdVec<SlotId, Slot>,
    ) -> Storage {
        Storage { base, first, leaves, slots }
    }

    /// The slots of what an instruction gives, one for each leaf.
    pub fn of(&self, instr: InstrId) -> &[SlotId] {
        let index = instr.index() - self.base;
        &self.leaves[self.first[index] as usize..self.first[index + 1] as usize]
    }

    /// The slots of what an instruction takes.
    pub fn of_operand(&self, module: &Module, operand: &Operand) -> &[SlotId] {
        let (from, len) = leaf_range(&module.instruction(operand.of).shape, module.path(operand));
        &self.of(operand.of)[from..from + len]
    }
}

/// Where the leaves of an element of a tuple are, and how many.
pub(super) fn leaf_range(shape: &Shape, path: &[u32]) -> (usize, usize) {
    let mut from = 0;
    let mut at = shape;
    for &index in path {
        let parts = at.parts();
        from += parts.iter().take(index as usize).map(Shape::leaf_count).sum::<usize>();
        match parts.get(index as usize) {
            Some(part) => at = part,
            None => return (0, 0),
        }
    }
    (from, at.leaf_count())
}
