//! A module's values as if its fusions were part of the computations that run them.

use std::collections::{BTreeMap, BTreeSet};

use halflap_hlo::ids::{ComputationId, InstrId};
use halflap_hlo::{Literal, Module, Opcode};

/// Follows values into fusions and out of them.
pub(super) struct Flat<'a> {
    pub(super) module: &'a Module,
    /// Which fusion or call runs a computation, where there is one alone.
    callers: BTreeMap<ComputationId, InstrId>,
    /// Which loop a computation is the body or the condition of.
    loops: BTreeMap<ComputationId, InstrId>,
}

impl<'a> Flat<'a> {
    pub(super) fn new(module: &'a Module) -> Flat<'a> {
        let mut callers = BTreeMap::new();
        let mut others = BTreeSet::new();
        let mut loops = BTreeMap::new();
        for instr in module.computations().flat_map(|all| module.instructions(all)) {
            let is_inner =
                matches!(module.instruction(instr).opcode, Opcode::Fusion | Opcode::Call);
            if module.instruction(instr).opcode == Opcode::While {
                loops.extend(module.called(instr).iter().map(|&callee| (callee, instr)));
            }
            for &callee in module.called(instr) {
                if !is_inner || callers.insert(callee, instr).is_some() {
                    others.insert(callee);
                }
            }
        }
        callers.retain(|callee, _| !others.contains(callee));
        Flat { module, callers, loops }
    }

    pub(super) fn opcode(&self, instr: InstrId) -> Opcode {
        self.module.instruction(instr).opcode
    }

    /// The instruction whose value this one only hands over.
    pub(super) fn maker(&self, mut instr: InstrId) -> InstrId {
        while let Some(other) = self.across(instr).or_else(|| self.copied(instr)) {
            instr = other;
        }
        instr
    }

    /// The value on the other side of a fusion's border, or in a tuple.
    fn across(&self, instr: InstrId) -> Option<InstrId> {
        let module = self.module;
        match self.opcode(instr) {
            Opcode::Parameter => {
                let caller = *self.callers.get(&module.computation_of(instr))?;
                let operand = module.operands(caller).get(module.parameter_number(instr)?)?;
                module.path(operand).is_empty().then_some(operand.of)
            }
            Opcode::Fusion | Opcode::Call => {
                let &[callee] = module.called(instr) else { return None };
                Some(module.root(callee))
            }
            Opcode::GetTupleElement => {
                let [tuple] = module.operands(instr) else { return None };
                let index = module.tuple_index(instr)? as usize;
                self.element(self.maker(tuple.of), index)
            }
            _ => None,
        }
    }

    /// An element of what a `tuple` makes.
    pub(super) fn element(&self, tuple: InstrId, index: usize) -> Option<InstrId> {
        let operand = self.module.operands(tuple).get(index)?;
        let is_whole = self.opcode(tuple) == Opcode::Tuple && self.module.path(operand).is_empty();
        is_whole.then_some(operand.of)
    }

    /// What an element of a loop's state is before the loop, if no iteration changes it.
    fn unchanged(&self, instr: InstrId) -> Option<InstrId> {
        let module = self.module;
        let (state, index) = self.state_element(instr)?;
        let around = *self.loops.get(&state)?;
        let roots = module.called(around).iter().map(|&callee| self.maker(module.root(callee)));
        let next = roots.filter_map(|root| self.element(root, index)).next()?;
        let (after, same) = self.state_element(self.maker(next))?;
        let is_kept = self.loops.get(&after) == Some(&around) && same == index;
        let before = self.maker(module.operands(around).first()?.of);
        self.element(before, index).filter(|_| is_kept)
    }

    /// The computation whose argument a value is an element of, and which.
    fn state_element(&self, instr: InstrId) -> Option<(ComputationId, usize)> {
        let [state] = self.module.operands(instr) else { return None };
        let is_element = self.opcode(instr) == Opcode::GetTupleElement
            && self.opcode(state.of) == Opcode::Parameter;
        let index = self.module.tuple_index(instr).filter(|_| is_element)?;
        Some((self.module.computation_of(state.of), index as usize))
    }

    fn copied(&self, instr: InstrId) -> Option<InstrId> {
        let [operand] = self.module.operands(instr) else { return None };
        let is_whole = self.module.path(operand).is_empty();
        (self.opcode(instr) == Opcode::Copy && is_whole).then_some(operand.of)
    }

    /// The single whole number that a constant is.
    pub(super) fn whole(&self, instr: InstrId) -> Option<i128> {
        match self.module.literal(self.maker(instr))? {
            Literal::Whole(numbers) if numbers.len() == 1 => Some(numbers[0]),
            _ => None,
        }
    }

    /// All that a value is made of, itself included, through the operands that `follows` names.
    pub(super) fn made_of(
        &self,
        instr: InstrId,
        follows: impl Fn(Opcode) -> std::ops::Range<usize>,
    ) -> BTreeSet<InstrId> {
        let mut found = BTreeSet::new();
        let mut open = vec![instr];
        while let Some(instr) = open.pop() {
            if !found.insert(instr) {
                continue;
            }
            if let Some(other) = self.across(instr).or_else(|| self.unchanged(instr)) {
                open.push(other);
                continue;
            }
            let followed = follows(self.opcode(instr));
            let operands = self.module.operands(instr).iter().enumerate();
            open.extend(
                operands.filter(|(place, _)| followed.contains(place)).map(|(_, each)| each.of),
            );
        }
        found
    }
}
