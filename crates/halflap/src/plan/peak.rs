//! The most that is requested at once, step by step.

use super::{Call, Plan, Program, Step};
use crate::hlo::Origin;
use crate::ids::{IdVec, PlanId};
use crate::units::Bytes;

impl Program {
    /// The most memory that is requested at once: what the runtime measures. Of branches, and of a loop
    /// that may not run at all, what needs most counts.
    pub fn peak(&self) -> Bytes {
        let mut needs: IdVec<PlanId, Bytes> = IdVec::default();
        for (_, plan) in self.plans.iter() {
            // Callees stand before their callers.
            let need = plan.need(&needs);
            needs.push(need);
        }
        let entry = &self.plans[self.entry];
        entry.size_of(Origin::Parameter) + needs.as_slice().last().copied().unwrap_or(Bytes::ZERO)
    }
}

impl Plan {
    /// What the slots of an origin take.
    pub fn size_of(&self, origin: Origin) -> Bytes {
        self.storage.slots.iter().filter(|(_, slot)| slot.origin == origin).map(|(_, slot)| slot.size).sum()
    }

    /// The most that it requests beyond its parameters.
    fn need(&self, needs: &IdVec<PlanId, Bytes>) -> Bytes {
        let size = |slot| self.storage.slots[slot].size;
        let called = |call: &Call| {
            let fresh: Bytes = call.allocated.iter().map(|&slot| size(slot)).sum();
            let adopted: Bytes = call.adopted.iter().map(|&(_, own)| size(own)).sum();
            (fresh + needs[call.plan], fresh + adopted)
        };
        let mut alive = self.size_of(Origin::Constant);
        let mut most = alive;
        for step in &self.steps {
            // While a callee runs, and when it is over.
            let (inside, left) = match step {
                Step::Alloc(slot) => (size(*slot), size(*slot)),
                Step::Free(slot) => (Bytes::ZERO, -size(*slot)),
                Step::Call(call) => called(call),
                Step::Loop(repeat) => (needs[repeat.condition].max(needs[repeat.body]), Bytes::ZERO),
                // What branches leave is the same.
                Step::Branch { branches, .. } => {
                    branches.iter().map(called).fold((Bytes::ZERO, Bytes::ZERO), |a, b| (a.0.max(b.0), b.1))
                }
                Step::Launch(_) | Step::Start { .. } | Step::Wait(_) => (Bytes::ZERO, Bytes::ZERO),
            };
            most = most.max(alive + inside);
            alive += left;
        }
        most
    }
}
