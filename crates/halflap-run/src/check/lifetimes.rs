//! Checks that memory lives exactly as long as planned.
//!
//! The allocator reports every block that it allocates and frees; the code that allocates a block
//! for a slot names it after the slot. Expectations come from the plan's checks
//! ([`halflap_hlo::plan::Check`]), which are derived independently of the steps that allocate and
//! free. Memory that a computation receives from its caller is neither allocated nor freed there.

use std::collections::HashMap;

use halflap_hlo::ids::SlotId;

use crate::address::Address;
use crate::failure::Deviation;

/// The memory of one run of a plan.
#[derive(Debug, Default)]
struct PlanFrame {
    /// The next check.
    next: usize,
    /// Memory from the caller.
    given: Vec<SlotId>,
    born: Vec<SlotId>,
    died: Vec<SlotId>,
}

/// All named blocks of a rank, and what happened to them since the last check.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// Which run of a plan, by its depth, and which slot a block is for.
    owners: HashMap<usize, (usize, SlotId)>,
    frames: Vec<PlanFrame>,
}

/// What a check expects, and what the tracker found.
pub(crate) type Deviations = Vec<(Deviation, SlotId)>;

impl Tracker {
    /// A plan starts to run, with memory from outside.
    pub(crate) fn enter(&mut self, given: Vec<SlotId>) {
        self.frames.push(PlanFrame { given, ..PlanFrame::default() });
    }

    /// A run of a plan is over: its remaining memory is no longer checked.
    pub(crate) fn leave(&mut self) {
        let depth = self.frames.len();
        self.frames.pop();
        // Their order does not matter.
        self.owners.retain(|_, (owner, _)| *owner + 1 < depth);
    }

    /// Counts memory that is alive now as alive from the start.
    pub(crate) fn settle(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            frame.born.clear();
            frame.died.clear();
        }
    }

    /// Assigns an allocated block to a slot of the innermost run, or of the enclosing one.
    pub(crate) fn name(&mut self, block: Address, slot: SlotId) {
        let Some(depth) = self.frames.len().checked_sub(1) else { return };
        self.owners.insert(block.0 as usize, (depth, slot));
        self.frames[depth].born.push(slot);
    }

    /// The same for a block that the innermost run passes to the enclosing one.
    pub(crate) fn adopt(&mut self, block: Address, slot: SlotId) {
        let Some(depth) = self.frames.len().checked_sub(2) else { return };
        self.owners.insert(block.0 as usize, (depth, slot));
        self.frames[depth].born.push(slot);
    }

    /// The allocator freed a block.
    pub(crate) fn died(&mut self, block: Address) {
        if let Some((depth, slot)) = self.owners.remove(&(block.0 as usize)) {
            self.frames[depth].died.push(slot);
        }
    }

    /// The number of the next check of the innermost run.
    pub(crate) fn next(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.next)
    }

    /// Compares the changes since the last check with the expected ones, and starts over.
    pub(crate) fn check(&mut self, check: &halflap_hlo::plan::Check) -> Deviations {
        let Some(frame) = self.frames.last_mut() else { return Vec::new() };
        let mut found = Vec::new();
        let PlanFrame { given, born, died, next } = frame;
        let mut compare = |expected: &[SlotId],
                           actual: &mut Vec<SlotId>,
                           [missing, unexpected]: [Deviation; 2]| {
            for slot in expected.iter().filter(|slot| !given.contains(slot)) {
                match actual.iter().position(|other| other == slot) {
                    Some(place) => drop(actual.swap_remove(place)),
                    None => found.push((missing, *slot)),
                }
            }
            actual.sort_unstable();
            found.extend(actual.drain(..).map(|slot| (unexpected, slot)));
        };
        compare(&check.died, died, [Deviation::DeathMissing, Deviation::DeathUnexpected]);
        compare(&check.born, born, [Deviation::BirthMissing, Deviation::BirthUnexpected]);
        *next += 1;
        found
    }
}
