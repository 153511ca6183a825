//! What is gathered for early and for late readers is gathered again for the late ones, instead of
//! staying in memory in between.
//!
//! The second gather reads the same shard through a barrier, beside a result of the last early
//! reader, which is the form that recomputed values have in modules of JAX: without it, compilers
//! would make the two gathers one again, or run both at once.

use std::collections::{BTreeMap, BTreeSet};

use super::pipeline::is_light;
use super::{FoundAgain, Recipe, RecipeSubject, Refusal};
use crate::draft::{Draft, array_text};
use crate::ids::InstrId;
use crate::split::shape_text;
use crate::{Array, Module, Opcode};

/// A gather that is done again for some of its readers.
pub(super) struct AgainPlan<'s, 'm> {
    subject: &'s RecipeSubject<'m>,
    gather: InstrId,
    /// The gathered value and what is made of it alone.
    values: BTreeSet<InstrId>,
    /// The last reader of the first gather.
    early: InstrId,
    /// The readers of the second one, ascending.
    late: Vec<InstrId>,
}

/// Whose readers read a value, directly or through what is made of it.
#[derive(Clone, Copy, Default)]
struct ReadBy {
    early: bool,
    late: bool,
}

/// What becomes of a gather that is done again for a reader and all later ones, or why it cannot
/// be.
pub(super) fn plan<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    gather: InstrId,
    from: InstrId,
) -> Result<AgainPlan<'s, 'm>, Refusal> {
    let values = values(subject, gather)?;
    let readers = readers(subject, &values);
    let (early, late): (Vec<InstrId>, Vec<InstrId>) =
        readers.iter().copied().partition(|&reader| reader < from);
    let Some(&last) = early.last().filter(|_| readers.contains(&from)) else {
        return Err(Refusal::NotBetween);
    };
    let module = subject.module;
    let is_over = |&reader: &InstrId| is_over_when_run(module, reader);
    if !early.iter().all(is_over) || waited_for(module, last).is_none() {
        return Err(Refusal::PassedOn);
    }
    Ok(AgainPlan { subject, gather, values, early: last, late })
}

/// All places where the readers of a gather can be divided.
pub(super) fn found(subject: &RecipeSubject<'_>, gather: InstrId) -> Vec<FoundAgain> {
    let Ok(values) = values(subject, gather) else { return Vec::new() };
    let froms = readers(subject, &values).into_iter().skip(1);
    let plans = froms.filter_map(|from| plan(subject, gather, from).ok());
    plans.map(|plan| plan.found()).collect()
}

/// A gather's result and what is made of it alone; that is computed again, too.
fn values(subject: &RecipeSubject<'_>, gather: InstrId) -> Result<BTreeSet<InstrId>, Refusal> {
    let module = subject.module;
    if subject.opcode(gather) != Opcode::AllGather {
        return Err(Refusal::Kind);
    }
    let [operand] = module.operands(gather) else { return Err(Refusal::Variadic) };
    module.operand_shape(operand).array().ok_or(Refusal::Variadic)?;
    subject.changeable(gather)?;
    subject.array(gather)?;
    if subject.is_root(gather) {
        return Err(Refusal::Root);
    }
    // Two fusions do not share a computation.
    let is_made = |&instr: &InstrId| {
        is_light(module, instr)
            && subject.opcode(instr) != Opcode::Fusion
            && module.operands(instr).len() == 1
            && !subject.is_root(instr)
            && subject.changeable(instr).is_ok()
            && subject.array(instr).is_ok()
    };
    let (mut open, mut values) = (vec![gather], BTreeSet::new());
    while let Some(value) = open.pop() {
        if values.insert(value) {
            open.extend(subject.users[value].iter().filter(|&user| is_made(user)));
        }
    }
    Ok(values)
}

fn readers(subject: &RecipeSubject<'_>, values: &BTreeSet<InstrId>) -> BTreeSet<InstrId> {
    let users = values.iter().flat_map(|&value| &subject.users[value]).copied();
    users.filter(|user| !values.contains(user)).collect()
}

/// Whether an instruction has read its operands when it has run: it neither passes them on nor only
/// starts something.
fn is_over_when_run(module: &Module, reader: InstrId) -> bool {
    let opcode = module.instruction(reader).opcode;
    let passes_on = matches!(
        opcode,
        Opcode::Tuple
            | Opcode::OptimizationBarrier
            | Opcode::OptBarrierLong
            | Opcode::Domain
            | Opcode::AddDependency
    );
    !passes_on && opcode.phase().is_none()
}

/// An array that is there once an instruction has run: its result or, by its place, an element.
fn waited_for(module: &Module, instr: InstrId) -> Option<(Option<usize>, &Array)> {
    let shape = &module.instruction(instr).shape;
    match shape.array() {
        Some(array) => Some((None, array)),
        None => {
            let mut parts = shape.parts().iter().enumerate();
            parts.find_map(|(at, part)| Some((Some(at), part.array()?)))
        }
    }
}

impl AgainPlan<'_, '_> {
    fn found(&self) -> FoundAgain {
        let name = |instr: InstrId| self.module().instruction_name(instr).to_owned();
        FoundAgain {
            recipe: Recipe::Again { gather: name(self.gather), from: name(self.late[0]) },
            values: self.values.iter().copied().collect(),
            last_early: self.early,
            first_late: self.late[0],
        }
    }

    fn module(&self) -> &Module {
        self.subject.module
    }

    /// Writes it; returns the names of both gathers.
    pub(super) fn write(self, draft: &mut Draft<'_>) -> Result<String, Refusal> {
        let mut all = self.values.iter().chain([&self.early]).chain(&self.late);
        let is_again =
            |&reader: &InstrId| self.values.iter().any(|&value| draft.is_redirected(reader, value));
        if !all.all(|&instr| draft.is_there(instr)) || self.late.iter().any(is_again) {
            return Err(Refusal::Changed);
        }
        let name = self.module().instruction_name(self.gather).to_owned();
        let operand = self.held_back(draft);
        draft.stay(self.late[0]);
        let again = self.copied(draft, self.gather, &operand);
        let into = format!("{name}, {}", again.trim_start_matches('%'));
        self.divide(draft, again);
        Ok(into)
    }

    /// The operand, behind a barrier that waits for the last early reader.
    fn held_back(&self, draft: &mut Draft<'_>) -> String {
        let (module, at) = (self.module(), self.early);
        let operand = &module.operands(self.gather)[0];
        // The plan has looked at both.
        let (Some(shard), Some((element, array))) =
            (module.operand_shape(operand).array(), waited_for(module, at))
        else {
            return draft.operand(operand);
        };
        let (shard, other) = (array_text(module, shard), array_text(module, array));
        let stem = |what: &str| format!("{}.{what}", module.instruction_name(self.gather));
        draft.stay(at);
        let mut waited = format!("{}{}", draft.percent(at), module.instruction_name(at));
        if let Some(index) = element {
            let text = format!("get-tuple-element({waited}), index={index}");
            waited = draft.add(at, &stem("after"), (&other, &text));
        }
        let pair = format!("({shard}, {other})");
        let text = format!("tuple({}, {waited})", draft.operand(operand));
        let both = draft.add(at, &stem("held"), (&pair, &text));
        let both = draft.add(at, &stem("barrier"), (&pair, &format!("opt-barrier({both})")));
        let text = format!("get-tuple-element({both}), index=0");
        draft.add(at, &stem("shard"), (&shard, &text))
    }

    /// Another one of an instruction, of another operand, before the first late reader.
    fn copied(&self, draft: &mut Draft<'_>, instr: InstrId, operand: &str) -> String {
        let module = self.module();
        let mut text = format!("{}({operand})", module.opcode_name(instr));
        for (key, value) in module.attributes(instr) {
            match key {
                "channel_id" => {
                    text.push_str(&format!(", channel_id={}", draft.fresh_channel()));
                }
                _ => text.push_str(&format!(", {key}={value}")),
            }
        }
        let stem = format!("{}.again", module.instruction_name(instr));
        draft.add(self.late[0], &stem, (&shape_text(module, instr), &text))
    }

    /// Lets late readers read what is made of the second gather. What only they read is not made of
    /// the first one any more.
    fn divide(&self, draft: &mut Draft<'_>, again: String) {
        let module = self.module();
        let read_by = self.read_by();
        let mut instead: BTreeMap<InstrId, String> = BTreeMap::from([(self.gather, again)]);
        for &value in self.values.iter().filter(|&&value| value != self.gather) {
            let of = module.operands(value)[0].of;
            let Some(operand) = instead.get(&of).cloned() else {
                // Its operand has been redirected, or nothing late reads it.
                continue;
            };
            match read_by[&value] {
                ReadBy { early: true, late: true } => {
                    let again = self.copied(draft, value, &operand);
                    instead.insert(value, again);
                }
                ReadBy { late: true, .. } => draft.redirect(value, of, &operand),
                ReadBy { late: false, .. } => {}
            }
        }
        for &reader in &self.late {
            for operand in module.operands(reader) {
                if let Some(other) = instead.get(&operand.of) {
                    draft.redirect(reader, operand.of, other);
                }
            }
        }
    }

    /// Which readers need each of the values.
    fn read_by(&self) -> BTreeMap<InstrId, ReadBy> {
        let mut read_by: BTreeMap<InstrId, ReadBy> = BTreeMap::new();
        for &value in self.values.iter().rev() {
            let mut of = ReadBy::default();
            for user in &self.subject.users[value] {
                let by = match read_by.get(user) {
                    Some(&by) => by,
                    None => {
                        let late = self.late.contains(user);
                        ReadBy { early: !late, late }
                    }
                };
                of = ReadBy { early: of.early || by.early, late: of.late || by.late };
            }
            read_by.insert(value, of);
        }
        read_by
    }
}
