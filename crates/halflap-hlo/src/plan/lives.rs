//! Which memory must have been allocated and freed at which step.
//!
//! A [`Check`] between two steps says what must have happened since the previous check. It is
//! derived from the graph, not from the steps that allocate and free, so that comparing it with
//! what happened finds wrong steps; and it stays with the node that it follows when steps move.

use super::{Plan, Step};
use crate::ids::{InstrId, SlotId};

/// What must have happened to memory since the previous check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// It is made before this step; at the end, if there is none.
    pub before: usize,
    /// The node that it follows.
    pub instr: InstrId,
    /// What must have been allocated.
    pub born: Vec<SlotId>,
    /// What must have been freed.
    pub died: Vec<SlotId>,
}

/// A step that was somewhere, or a check.
enum Item {
    Step(usize, Step),
    Check(Check),
}

impl Plan {
    /// Has memory go just before its last use, or never before the end: a plan that is wrong, to see that
    /// this is found. Gives whether there is such a plan.
    pub fn misplace_free(&mut self, slot: SlotId, is_early: bool) -> bool {
        let is_free =
            |item: &Item| matches!(item, Item::Step(_, Step::Free(other)) if *other == slot);
        let mut items = self.take_items();
        let Some(from) = items.iter().position(is_free) else {
            self.put_items(items);
            return false;
        };
        let is_check = |item: &Item| matches!(item, Item::Check(_));
        let to = match is_early {
            true => {
                let last = items
                    .iter()
                    .rposition(|item| matches!(item, Item::Step(_, step) if step.uses(slot)));
                last.and_then(|last| items[..last].iter().rposition(is_check))
            }
            false => items.iter().rposition(is_check),
        };
        // The check after its maker, at the earliest.
        let made =
            items.iter().position(|item| matches!(item, Item::Step(_, step) if step.uses(slot)));
        let to = to.filter(|&to| to != from && made.is_none_or(|made| to > made));
        if let Some(to) = to {
            let free = items.remove(from);
            items.insert(if from < to { to - 1 } else { to }, free);
        }
        self.put_items(items);
        to.is_some()
    }

    fn take_items(&mut self) -> Vec<Item> {
        let mut checks = std::mem::take(&mut self.checks).into_iter().peekable();
        let mut items = Vec::new();
        for (place, step) in std::mem::take(&mut self.steps).into_iter().enumerate() {
            while let Some(check) = checks.next_if(|check| check.before <= place) {
                items.push(Item::Check(check));
            }
            items.push(Item::Step(place, step));
        }
        items.extend(checks.map(Item::Check));
        items
    }

    /// Steps and checks in another sequence; waits still name the steps that they named.
    fn put_items(&mut self, items: Vec<Item>) {
        let mut now = vec![0; items.len()];
        for item in items {
            match item {
                Item::Check(check) => self.checks.push(Check { before: self.steps.len(), ..check }),
                Item::Step(was, step) => {
                    now[was] = self.steps.len();
                    self.steps.push(step);
                }
            }
        }
        for step in &mut self.steps {
            if let Step::Wait(start) = step {
                *start = now[*start];
            }
        }
    }
}

impl Step {
    /// Whether it reads or writes memory.
    fn uses(&self, slot: SlotId) -> bool {
        match self {
            Step::Launch(work) | Step::Start { work, .. } => {
                work.reads.contains(&slot) || work.writes.contains(&slot)
            }
            Step::Call(call) => call.arguments.contains(&slot),
            Step::Loop(repeat) => repeat.state.contains(&slot),
            Step::Branch { selector, branches, .. } => {
                *selector == slot || branches.iter().any(|call| call.arguments.contains(&slot))
            }
            Step::Alloc(_) | Step::Free(_) | Step::Wait(_) => false,
        }
    }
}
