//! The peak of requested memory, step by step.

use super::{Plan, PlanStep, PlannedCall, Program};
use crate::SlotOrigin;
use crate::ids::{PlanId, SlotId};
use halflap::ids::IdVec;
use halflap::units::Bytes;

impl Program {
    /// The peak of requested memory, as the runtime measures it. For branches, and for a loop that
    /// may not run at all, the worst case counts.
    pub fn peak(&self) -> Bytes {
        let needs = PeakNeeds::new(self);
        let need = needs.of.get(self.entry).copied().unwrap_or(Bytes::ZERO);
        self.plans[self.entry].size_of(SlotOrigin::Parameter) + need
    }
}

impl Plan {
    /// What the slots of an origin take.
    pub fn size_of(&self, origin: SlotOrigin) -> Bytes {
        self.storage
            .slots
            .iter()
            .filter(|(_, slot)| slot.origin == origin)
            .map(|(_, slot)| slot.size)
            .sum()
    }
}

/// The most that plans request beyond their parameters.
struct PeakNeeds<'a> {
    plans: &'a IdVec<PlanId, Plan>,
    of: IdVec<PlanId, Bytes>,
}

/// The bytes that each plan requests at each step, beyond its parameters.
pub(super) fn levels(program: &Program) -> IdVec<PlanId, Vec<Bytes>> {
    let needs = PeakNeeds::new(program);
    program.plans.iter().map(|(_, plan)| needs.levels(plan, &[])).collect()
}

impl<'a> PeakNeeds<'a> {
    fn new(program: &'a Program) -> PeakNeeds<'a> {
        let mut needs = PeakNeeds { plans: &program.plans, of: IdVec::default() };
        for (_, plan) in program.plans.iter() {
            // Callees come before their callers.
            let need = needs.of(plan, &[]);
            needs.of.push(need);
        }
        needs
    }

    /// What one plan needs, with some of its memory lent by the caller.
    fn of(&self, plan: &Plan, lent: &[SlotId]) -> Bytes {
        self.levels(plan, lent).into_iter().fold(plan.size_of(SlotOrigin::Constant), Bytes::max)
    }

    fn levels(&self, plan: &Plan, lent: &[SlotId]) -> Vec<Bytes> {
        let size = |slot: SlotId| {
            if lent.contains(&slot) { Bytes::ZERO } else { plan.storage.slots[slot].size }
        };
        let mut alive = plan.size_of(SlotOrigin::Constant);
        let mut levels = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            // While it runs, and when it is over.
            let (inside, left) = match step {
                PlanStep::Alloc(slot) => (size(*slot), size(*slot)),
                PlanStep::Free(slot) => (Bytes::ZERO, -size(*slot)),
                PlanStep::Call(call) => self.call(plan, call, lent),
                PlanStep::Loop(repeat) => {
                    (self.of[repeat.condition].max(self.of[repeat.body]), Bytes::ZERO)
                }
                // What branches leave is the same.
                PlanStep::Branch { branches, .. } => {
                    let each = branches.iter().map(|call| self.call(plan, call, lent));
                    each.fold((Bytes::ZERO, Bytes::ZERO), |a, b| (a.0.max(b.0), b.1))
                }
                PlanStep::Launch(_) | PlanStep::Start { .. } | PlanStep::Wait(_) => {
                    (Bytes::ZERO, Bytes::ZERO)
                }
            };
            levels.push(alive + inside);
            alive += left;
        }
        levels
    }

    /// A call in a plan that some memory is lent to. What it would take over is lent on, then.
    fn call(&self, plan: &Plan, call: &PlannedCall, lent: &[SlotId]) -> (Bytes, Bytes) {
        let is_lent = |slot: &SlotId| lent.contains(slot);
        let size = |slot: SlotId| plan.storage.slots[slot].size;
        let fresh = call.allocated.iter().filter(|slot| !is_lent(slot));
        let fresh: Bytes = fresh.map(|&slot| size(slot)).sum();
        let (lent_on, adopted): (Vec<_>, Vec<_>) =
            call.adopted.iter().partition(|(_, own)| is_lent(own));
        let adopted: Bytes = adopted.into_iter().map(|&(_, own)| size(own)).sum();
        let lent: Vec<SlotId> =
            call.lent.iter().chain(lent_on).map(|&(theirs, _)| theirs).collect();
        let need = if lent.is_empty() {
            self.of[call.plan]
        } else {
            self.of(&self.plans[call.plan], &lent)
        };
        (fresh + need, fresh + adopted)
    }
}
