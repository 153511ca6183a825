//! The parameters and results of callees.

use super::{Loop, Plan, PlannedCall};
use crate::ids::{ComputationId, InstrId, PlanId, SlotId};
use crate::{Module, Opcode, SlotOrigin, Storage};
use halflap::ids::{Id, IdVec};

use super::build::PlanError;

/// The computations that are already planned.
#[derive(Clone, Copy)]
pub(super) struct Callees<'a> {
    pub(super) module: &'a Module,
    pub(super) plans: &'a IdVec<PlanId, Plan>,
    pub(super) of: &'a IdVec<ComputationId, Option<PlanId>>,
}

/// An instruction that calls.
#[derive(Clone, Copy)]
struct CallSite<'a> {
    storage: &'a Storage,
    instr: InstrId,
    /// The memory allocated with it.
    made: &'a [SlotId],
}

impl Callees<'_> {
    fn plan(
        &self,
        instr: InstrId,
        computation: Option<ComputationId>,
    ) -> Result<PlanId, PlanError> {
        let missing = || PlanError::Callee {
            instruction: self.module.instruction_name(instr).to_owned(),
            computation: computation
                .map_or("", |computation| self.module.computation_name(computation))
                .to_owned(),
        };
        computation.and_then(|computation| self.of[computation]).ok_or_else(missing)
    }

    fn misshapen(&self, instr: InstrId) -> PlanError {
        PlanError::Shape { instruction: self.module.instruction_name(instr).to_owned() }
    }

    fn operands(&self, storage: &Storage, instr: InstrId) -> Vec<SlotId> {
        let operands = self.module.operands(instr).iter();
        operands
            .flat_map(|operand| storage.of_operand(self.module, operand).iter().copied())
            .collect()
    }

    /// A call: values that it passes on stay in place. `made` is the memory allocated with it.
    pub(super) fn call(
        &self,
        storage: &Storage,
        instr: InstrId,
        made: &[SlotId],
    ) -> Result<PlannedCall, PlanError> {
        let plan = self.plan(instr, self.module.called(instr).first().copied())?;
        let arguments = self.operands(storage, instr);
        self.called(CallSite { storage, made, instr }, plan, arguments)
    }

    /// A conditional's selector and what each branch does.
    pub(super) fn branches(
        &self,
        storage: &Storage,
        instr: InstrId,
        made: &[SlotId],
    ) -> Result<(SlotId, Vec<PlannedCall>), PlanError> {
        let operands = self.module.operands(instr);
        let called = self.module.called(instr);
        if called.is_empty() || operands.len() != called.len() + 1 {
            return Err(self.misshapen(instr));
        }
        let slots = |index: usize| storage.of_operand(self.module, &operands[index]);
        let &[selector] = slots(0) else { return Err(self.misshapen(instr)) };
        let branch = |(index, &computation): (usize, &ComputationId)| {
            let plan = self.plan(instr, Some(computation))?;
            self.called(CallSite { storage, made, instr }, plan, slots(index + 1).to_vec())
        };
        Ok((selector, called.iter().enumerate().map(branch).collect::<Result<_, PlanError>>()?))
    }

    fn called(
        &self,
        caller: CallSite<'_>,
        id: PlanId,
        arguments: Vec<SlotId>,
    ) -> Result<PlannedCall, PlanError> {
        let CallSite { storage, made, instr } = caller;
        let plan = &self.plans[id];
        self.refuse_body(instr, plan.computation)?;
        let ours = storage.of(instr);
        if plan.parameters.len() != arguments.len() || plan.results.len() != ours.len() {
            return Err(self.misshapen(instr));
        }
        let mut call =
            PlannedCall { instr, plan: id, arguments, ..PlannedCall::nothing(instr, id) };
        for (&theirs, &own) in plan.results.iter().zip(ours) {
            let given = plan.parameters.iter().position(|&parameter| parameter == theirs);
            let is_passed = given.is_some_and(|given| call.arguments[given] == own);
            let is_new = call.adopted.iter().chain(&call.lent).all(|&(other, _)| other != theirs);
            let slot = &plan.storage.slots[theirs];
            // Values in other memory spaces have no size, and must not be confused with those that
            // do.
            let is_alike = slot.size == storage.slots[own].size;
            match slot.origin {
                _ if is_passed => {}
                SlotOrigin::Made if is_new && is_alike && made.contains(&own) => {
                    call.adopted.push((theirs, own))
                }
                SlotOrigin::Made if is_new && is_alike => call.lent.push((theirs, own)),
                _ => call.copied.push((theirs, own)),
            }
        }
        let is_left = |slot: &SlotId| call.adopted.iter().any(|(_, own)| own == slot);
        call.allocated = made.iter().copied().filter(|slot| !is_left(slot)).collect();
        Ok(call)
    }

    /// A loop body cannot also be called: bodies overwrite their result.
    fn refuse_body(&self, instr: InstrId, computation: ComputationId) -> Result<(), PlanError> {
        let module = self.module;
        let repeats = |other: InstrId| {
            module.instruction(other).opcode == Opcode::While
                && module.computation_in(other, "body") == Some(computation)
        };
        match (0..module.len()).map(InstrId::from_index).any(repeats) {
            false => Ok(()),
            true => Err(PlanError::CalledLoop {
                instruction: module.instruction_name(instr).to_owned(),
                computation: module.computation_name(computation).to_owned(),
            }),
        }
    }

    /// A loop: its state is in the same memory as its result.
    pub(super) fn repeat(&self, storage: &Storage, instr: InstrId) -> Result<Loop, PlanError> {
        let condition = self.plan(instr, self.module.computation_in(instr, "condition"))?;
        let body = self.plan(instr, self.module.computation_in(instr, "body"))?;
        let state = storage.of(instr).to_vec();
        let operands = self.operands(storage, instr);
        let (asked, repeated) = (&self.plans[condition], &self.plans[body]);
        let lengths = [
            operands.len(),
            asked.parameters.len(),
            repeated.parameters.len(),
            repeated.results.len(),
        ];
        if lengths.iter().any(|&len| len != state.len()) || asked.results.len() != 1 {
            return Err(self.misshapen(instr));
        }
        let differ = |(from, to): &(SlotId, SlotId)| from != to;
        let copied = operands.into_iter().zip(state.iter().copied()).filter(differ).collect();
        let ends = repeated.results.iter().copied().zip(repeated.parameters.iter().copied());
        Ok(Loop { instr, condition, body, copied, moved: ends.filter(differ).collect(), state })
    }
}

impl PlannedCall {
    fn nothing(instr: InstrId, plan: PlanId) -> PlannedCall {
        let (arguments, allocated, lent) = (Vec::new(), Vec::new(), Vec::new());
        PlannedCall {
            instr,
            plan,
            arguments,
            allocated,
            lent,
            adopted: Vec::new(),
            copied: Vec::new(),
        }
    }
}
