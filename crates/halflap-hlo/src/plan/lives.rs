//! Which memory must have been allocated and freed at which step.
//!
//! A [`Check`] between two steps says what must have happened since the previous check. It is
//! derived from the graph, not from the steps that allocate and free, so that comparing it with
//! what happened finds wrong steps; and it stays with the node that it follows when steps move.

use super::{Plan, PlanStep};
use crate::ids::{InstrId, SlotId};

/// What must have happened to memory since the previous check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The check runs before this step, or at the end if there is none.
    pub before: usize,
    /// The node that it follows.
    pub instr: InstrId,
    /// What must have been allocated.
    pub born: Vec<SlotId>,
    /// What must have been freed.
    pub died: Vec<SlotId>,
}

/// A step with its old position, or a check.
enum PlacedItem {
    Step(usize, PlanStep),
    Check(Check),
}

impl Plan {
    /// Injects a fault: memory is freed just before its last use, or only at the end. Returns
    /// whether the plan allows that.
    pub fn misplace_free(&mut self, slot: SlotId, is_early: bool) -> bool {
        let is_free = |item: &PlacedItem| match item {
            PlacedItem::Step(_, PlanStep::Free(other)) => *other == slot,
            _ => false,
        };
        let mut items = self.take_items();
        let Some(from) = items.iter().position(is_free) else {
            self.put_items(items);
            return false;
        };
        let is_check = |item: &PlacedItem| matches!(item, PlacedItem::Check(_));
        let to = match is_early {
            true => {
                let last = items
                    .iter()
                    .rposition(|item| matches!(item, PlacedItem::Step(_, step) if step.uses(slot)));
                last.and_then(|last| items[..last].iter().rposition(is_check))
            }
            false => items.iter().rposition(is_check),
        };
        // The check after its maker, at the earliest.
        let made = items
            .iter()
            .position(|item| matches!(item, PlacedItem::Step(_, step) if step.uses(slot)));
        let to = to.filter(|&to| to != from && made.is_none_or(|made| to > made));
        if let Some(to) = to {
            let free = items.remove(from);
            items.insert(if from < to { to - 1 } else { to }, free);
        }
        self.put_items(items);
        to.is_some()
    }

    fn take_items(&mut self) -> Vec<PlacedItem> {
        let mut checks = std::mem::take(&mut self.checks).into_iter().peekable();
        let mut items = Vec::new();
        for (place, step) in std::mem::take(&mut self.steps).into_iter().enumerate() {
            while let Some(check) = checks.next_if(|check| check.before <= place) {
                items.push(PlacedItem::Check(check));
            }
            items.push(PlacedItem::Step(place, step));
        }
        items.extend(checks.map(PlacedItem::Check));
        items
    }

    /// Steps and checks in another order; waits still refer to the same steps.
    fn put_items(&mut self, items: Vec<PlacedItem>) {
        let mut now = vec![0; items.len()];
        for item in items {
            match item {
                PlacedItem::Check(check) => {
                    self.checks.push(Check { before: self.steps.len(), ..check })
                }
                PlacedItem::Step(was, step) => {
                    now[was] = self.steps.len();
                    self.steps.push(step);
                }
            }
        }
        for step in &mut self.steps {
            if let PlanStep::Wait(start) = step {
                *start = now[*start];
            }
        }
    }
}

impl PlanStep {
    /// Whether it reads or writes memory.
    fn uses(&self, slot: SlotId) -> bool {
        match self {
            PlanStep::Launch(work) | PlanStep::Start { work, .. } => {
                work.reads.contains(&slot) || work.writes.contains(&slot)
            }
            PlanStep::Call(call) => call.arguments.contains(&slot),
            PlanStep::Loop(repeat) => repeat.state.contains(&slot),
            PlanStep::Branch { selector, branches, .. } => {
                *selector == slot || branches.iter().any(|call| call.arguments.contains(&slot))
            }
            PlanStep::Alloc(_) | PlanStep::Free(_) | PlanStep::Wait(_) => false,
        }
    }
}
