//! What each unit may need, so that the program as a whole stays within its memory limit.

use super::{Decided, Model, Priced, UnitError, Workload};
use crate::ids::{Id, IdVec, UnitId};
use crate::memory::{Budget, Timeline};
use crate::order::Order;
use crate::units::Bytes;

impl Workload {
    /// The most that each unit may need, if the whole program may need at most `whole`: what it
    /// needs in its input order, plus what is then free in its callers while it runs, in theirs. If
    /// a unit runs where the program needs more than the limit, it must do with less, by as much.
    /// The units may have been walked in any orders.
    pub fn limits<T>(&self, walked: &[Decided<T>], whole: Bytes) -> IdVec<UnitId, Bytes> {
        let mut limits: IdVec<UnitId, Option<Bytes>> = IdVec::filled(None, self.units.len());
        for (at, Decided { priced, .. }) in walked.iter().enumerate().rev() {
            let is_entry = at + 1 == walked.len();
            let most = match limits[priced.unit] {
                _ if is_entry => whole,
                most => most.unwrap_or(priced.peak_before()),
            };
            limits[priced.unit] = Some(most);
            let calls = &self.units[priced.unit].calls;
            if calls.is_empty() {
                continue;
            }
            let levels = Timeline::of(priced.setup_before().graph, &priced.input.order).levels;
            for call in calls {
                let free = most - levels[call.op].post_alloc;
                for run in &call.runs {
                    let now = walked[run.unit.index()].priced.peak_before() + free;
                    limits[run.unit] = Some(limits[run.unit].map_or(now, |known| known.min(now)));
                }
            }
        }
        limits.as_slice().iter().map(|limit| limit.unwrap_or(whole).max(Bytes::ZERO)).collect()
    }

    /// Whether an order must be searched for: something may overlap or, in its own order, the unit
    /// needs more than it may. So the entry's limit, which is the program's, holds whatever runs in
    /// it.
    pub fn is_searched(&self, priced: &Priced, limit: Bytes) -> bool {
        let needs = || Timeline::of(&priced.graph, &priced.input.order).peak;
        self.units[priced.unit].communicates() || needs() > limit
    }

    /// The limits for a budget, which is relative to what the program needs in its input orders.
    pub fn limits_within(
        &self,
        model: &Model,
        budget: Budget,
    ) -> Result<IdVec<UnitId, Bytes>, UnitError> {
        let walked =
            self.walk(model, |priced| Ok::<_, UnitError>((Order::of_input(&priced.graph), ())))?;
        let needed = walked.last().map_or(Bytes::ZERO, |entry| entry.priced.peak_before());
        Ok(self.limits(&walked, budget.limit(needed)))
    }
}
