//! Whether memory lives as long as the plan says.
//!
//! The allocator tells of every block that it gives and takes back; whoever asked for a block for a slot
//! gives it that name. What the plan expects comes from its checks ([`halflap_hlo::plan::Check`]), which were
//! made without a look at the steps that allocate and free. Memory that a computation was given from
//! outside is nobody's birth or death there.

use std::collections::HashMap;
use std::fmt;

use halflap_hlo::ids::SlotId;

use crate::exec::memory::Address;

/// How memory differs from what the plan expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// It should have gone and is still there.
    DeathMissing,
    /// It has gone and should be there.
    DeathUnexpected,
    /// It has come and should not have.
    BirthUnexpected,
    /// It should have come and has not.
    BirthMissing,
}

/// A buffer that did not live as the plan says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifetimeViolation {
    /// What is wrong.
    pub deviation: Deviation,
    /// The buffer.
    pub buffer: String,
    /// The kernel after which that was found.
    pub kernel: String,
    /// The computation, and the step of its plan that comes next.
    pub place: (String, usize),
    /// The line of the user's program that the kernel comes from.
    pub source: Option<String>,
    /// The rank.
    pub rank: usize,
    /// Which run of the module.
    pub run: usize,
}

impl fmt::Display for LifetimeViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LifetimeViolation { buffer, kernel, place: (computation, step), rank, run, .. } = self;
        let what = match self.deviation {
            Deviation::DeathMissing => "should have been freed and is still alive",
            Deviation::DeathUnexpected => "was freed and should still be alive",
            Deviation::BirthUnexpected => "was allocated and should not have been",
            Deviation::BirthMissing => "should have been allocated and was not",
        };
        write!(f, "lifetimes: rank {rank}, after '{kernel}' (before step {step} of {computation}")?;
        if let Some(source) = &self.source {
            write!(f, ", {source}")?;
        }
        if *run > 0 {
            write!(f, ", run {run}")?;
        }
        write!(f, "): buffer '{buffer}' {what}")
    }
}

/// The memory of one run of a plan.
#[derive(Debug, Default)]
struct Frame {
    /// The next check.
    next: usize,
    /// What came from outside.
    given: Vec<SlotId>,
    born: Vec<SlotId>,
    died: Vec<SlotId>,
}

/// All blocks of a rank that have a name, and what became of them since the last check.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// Which run of a plan, by its depth, and which slot a block is for.
    owners: HashMap<usize, (usize, SlotId)>,
    frames: Vec<Frame>,
}

/// What a check expects, and what the tracker found.
pub(crate) type Found = Vec<(Deviation, SlotId)>;

impl Tracker {
    /// A plan begins to run, with memory from outside.
    pub(crate) fn enter(&mut self, given: Vec<SlotId>) {
        self.frames.push(Frame { given, ..Frame::default() });
    }

    /// A run of a plan is over: what it still has is no concern any more.
    pub(crate) fn leave(&mut self) {
        let depth = self.frames.len();
        self.frames.pop();
        // Which goes first does not matter.
        self.owners.retain(|_, (owner, _)| *owner + 1 < depth);
    }

    /// What is there now was there from the start.
    pub(crate) fn settle(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            frame.born.clear();
            frame.died.clear();
        }
    }

    /// A block that the allocator gave is a slot's of the innermost run, or of the one around it.
    pub(crate) fn name(&mut self, block: Address, slot: SlotId) {
        let Some(depth) = self.frames.len().checked_sub(1) else { return };
        self.owners.insert(block.0 as usize, (depth, slot));
        self.frames[depth].born.push(slot);
    }

    /// The same for a block that the innermost run leaves to the one around it.
    pub(crate) fn adopt(&mut self, block: Address, slot: SlotId) {
        let Some(depth) = self.frames.len().checked_sub(2) else { return };
        self.owners.insert(block.0 as usize, (depth, slot));
        self.frames[depth].born.push(slot);
    }

    /// The allocator took back a block.
    pub(crate) fn died(&mut self, block: Address) {
        if let Some((depth, slot)) = self.owners.remove(&(block.0 as usize)) {
            self.frames[depth].died.push(slot);
        }
    }

    /// The number of the next check of the innermost run.
    pub(crate) fn next(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.next)
    }

    /// Compares what happened since the last check with what should have, and goes on.
    pub(crate) fn check(&mut self, check: &halflap_hlo::plan::Check) -> Found {
        let Some(frame) = self.frames.last_mut() else { return Vec::new() };
        let mut found = Vec::new();
        let Frame { given, born, died, next } = frame;
        let mut compare = |expected: &[SlotId], actual: &mut Vec<SlotId>, [missing, unexpected]: [Deviation; 2]| {
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
