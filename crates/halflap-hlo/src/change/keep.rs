//! What is gathered twice is gathered once, and kept until its last reader.
//!
//! Backward passes gather weights again, behind barriers that keep compilers from seeing that both
//! gathers give the same. Values in a module never change, so equal operands are enough.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::merge::{self, MergeKey};
use super::pipeline::is_light;
use super::{RecipeSubject, Refusal};
use crate::draft::{Draft, DraftLine};
use crate::ids::{ComputationId, InstrId};
use crate::split::shape_text;
use crate::{Module, Opcode, Operand};
use halflap::ids::IdVec;

halflap::ids! {
    /// What an instruction gives: instructions with the same meaning give the same value.
    GivenId
}

/// Attributes that do not affect values.
const SILENT: [&str; 4] = ["metadata", "sharding", "channel_id", "backend_config"];

/// What two instructions must have in common to give the same value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum GivenValue {
    /// Equal to no other.
    Own(InstrId),
    Tuple(Vec<GivenId>),
    Element(GivenId, u32),
    Light {
        /// Opcode, type, payload of constants, attributes.
        text: String,
        called: Vec<ComputationId>,
        operands: Vec<GivenId>,
    },
    Gather {
        key: Box<MergeKey>,
        operand: GivenId,
    },
}

/// The meanings of instructions in the computations examined so far.
pub(super) struct GivenValues<'s, 'm> {
    subject: &'s RecipeSubject<'m>,
    all: IdVec<GivenId, GivenValue>,
    /// Looked up only.
    known: HashMap<GivenValue, GivenId>,
    /// Looked up only.
    of: HashMap<InstrId, GivenId>,
}

impl<'s, 'm> GivenValues<'s, 'm> {
    pub(super) fn new(subject: &'s RecipeSubject<'m>) -> Self {
        let (all, known, of) = (IdVec::default(), HashMap::new(), HashMap::new());
        GivenValues { subject, all, known, of }
    }

    /// The value of an instruction; all instructions with this meaning give the same.
    fn of(&mut self, instr: InstrId) -> Option<GivenId> {
        if !self.of.contains_key(&instr) {
            let module = self.subject.module;
            for instr in module.instructions(module.computation_of(instr)) {
                let meaning = self.meaning(instr);
                self.of.insert(instr, meaning);
            }
        }
        self.of.get(&instr).copied()
    }

    fn known(&mut self, meaning: GivenValue) -> GivenId {
        if let Some(&id) = self.known.get(&meaning) {
            return id;
        }
        let id = self.all.push(meaning.clone());
        self.known.insert(meaning, id);
        id
    }

    fn element(&mut self, of: GivenId, index: u32) -> GivenId {
        match &self.all[of] {
            GivenValue::Tuple(parts) if (index as usize) < parts.len() => parts[index as usize],
            _ => self.known(GivenValue::Element(of, index)),
        }
    }

    fn operand(&mut self, operand: &Operand) -> GivenId {
        let path = self.subject.module.path(operand).to_vec();
        let of = match self.of.get(&operand.of) {
            Some(&of) => of,
            None => self.known(GivenValue::Own(operand.of)),
        };
        path.into_iter().fold(of, |of, index| self.element(of, index))
    }

    fn meaning(&mut self, instr: InstrId) -> GivenId {
        let module = self.subject.module;
        let operands: Vec<GivenId> =
            module.operands(instr).iter().map(|operand| self.operand(operand)).collect();
        let meaning = match (self.subject.opcode(instr), &operands[..]) {
            (Opcode::Copy | Opcode::OptimizationBarrier | Opcode::OptBarrierLong, &[of]) => {
                return of;
            }
            (Opcode::GetTupleElement, &[of]) => match module.tuple_index(instr) {
                Some(index) => return self.element(of, index),
                None => GivenValue::Own(instr),
            },
            (Opcode::Tuple, _) => GivenValue::Tuple(operands),
            (Opcode::AllGather, &[operand]) => match merge::key(self.subject, instr) {
                Ok(key) => GivenValue::Gather { key: Box::new(key), operand },
                Err(_) => GivenValue::Own(instr),
            },
            _ if is_light(module, instr) => self.light(instr, operands),
            _ => GivenValue::Own(instr),
        };
        self.known(meaning)
    }

    fn light(&self, instr: InstrId, operands: Vec<GivenId>) -> GivenValue {
        let module = self.subject.module;
        let mut text = format!("{} {}", module.opcode_name(instr), shape_text(module, instr));
        if operands.is_empty() {
            let payload = module.payload(instr);
            // A constant whose values were left out equals nothing but itself.
            if payload.contains("...") {
                return GivenValue::Own(instr);
            }
            text.push_str(payload);
        }
        for (key, value) in module.attributes(instr).filter(|(key, _)| !SILENT.contains(key)) {
            text.push_str(&format!(", {key}={value}"));
        }
        GivenValue::Light { text, called: module.called(instr).to_vec(), operands }
    }
}

/// The gathers of a module that give the same as an earlier one, grouped with it, in text order.
pub(super) fn classes(subject: &RecipeSubject<'_>) -> Vec<Vec<InstrId>> {
    let mut classes: Vec<Vec<InstrId>> = Vec::new();
    let mut meanings = GivenValues::new(subject);
    for computation in subject.places() {
        let mut by_meaning: BTreeMap<GivenId, Vec<InstrId>> = BTreeMap::new();
        for instr in subject.module.instructions(computation) {
            if subject.opcode(instr) == Opcode::AllGather
                && let Some(meaning) = meanings.of(instr)
            {
                by_meaning.entry(meaning).or_default().push(instr);
            }
        }
        let plans = by_meaning.into_values().filter(|members| plan_of(subject, members).is_ok());
        classes.extend(plans);
    }
    // Instructions that only the repeated gathers read are removed with them.
    let again: BTreeSet<InstrId> =
        classes.iter().flat_map(|members| &members[1..]).copied().collect();
    let is_read = |&member: &InstrId| subject.users[member].iter().any(|at| !again.contains(at));
    classes.retain(|members| members[1..].iter().any(is_read));
    classes.sort_unstable();
    classes
}

/// What becomes of gathers that give the same.
pub(super) struct KeepPlan<'s, 'm> {
    subject: &'s RecipeSubject<'m>,
    first: InstrId,
    again: Vec<InstrId>,
}

/// What becomes of them, or why they cannot be one.
pub(super) fn plan<'s, 'm>(
    meanings: &mut GivenValues<'s, 'm>,
    members: &[InstrId],
) -> Result<KeepPlan<'s, 'm>, Refusal> {
    let plan = plan_of(meanings.subject, members)?;
    let first = meanings.of(plan.first);
    match plan.again.iter().all(|&member| meanings.of(member) == first) {
        true => Ok(plan),
        false => Err(Refusal::NotSame),
    }
}

/// The same apart from their operands, which are known to be equal.
fn plan_of<'s, 'm>(
    subject: &'s RecipeSubject<'m>,
    members: &[InstrId],
) -> Result<KeepPlan<'s, 'm>, Refusal> {
    let module = subject.module;
    let &[first, ref again @ ..] = members else { return Err(Refusal::NotSame) };
    if again.is_empty() || !members.is_sorted_by(|a, b| a < b) {
        return Err(Refusal::NotSame);
    }
    let layout = |instr: InstrId| subject.array(instr).map(|array| module.str(array.layout));
    for &member in members {
        if subject.opcode(member) != Opcode::AllGather {
            return Err(Refusal::Kind);
        }
        subject.changeable(member)?;
        if layout(member)? != layout(first)? {
            return Err(Refusal::Layout);
        }
    }
    Ok(KeepPlan { subject, first, again: again.to_vec() })
}

impl KeepPlan<'_, '_> {
    /// Writes it; returns the name of the gather that stays.
    pub(super) fn write(self, draft: &mut Draft<'_>) -> Result<String, Refusal> {
        let mut members = self.again.iter().chain([&self.first]);
        if !members.all(|&member| draft.is_untouched(member)) {
            return Err(Refusal::Changed);
        }
        let module = self.module();
        let name = module.instruction_name(self.first).to_owned();
        for &again in &self.again {
            let percent = draft.percent(again);
            let mut text = format!("{} bitcast({percent}{name})", shape_text(module, again));
            if let Some(metadata) = module.attribute(again, "metadata") {
                text.push_str(&format!(", metadata={metadata}"));
            }
            let own = module.instruction_name(again).to_owned();
            draft.replace(again, DraftLine { name: own, text, reads: vec![name.clone()] });
        }
        self.remove_unread(draft);
        Ok(name)
    }

    fn module(&self) -> &Module {
        self.subject.module
    }

    /// Leaves out what only the repeated gathers were computed from.
    fn remove_unread(&self, draft: &mut Draft<'_>) {
        let module = self.module();
        let makers = |instr: InstrId| module.operands(instr).iter().map(|operand| operand.of);
        let mut open: BTreeSet<InstrId> =
            self.again.iter().flat_map(|&again| makers(again)).collect();
        while let Some(instr) = open.pop_last() {
            let opcode = self.subject.opcode(instr);
            let is_plain = matches!(opcode, Opcode::GetTupleElement | Opcode::AllGather)
                || is_light(module, instr);
            let is_free = is_plain
                && draft.is_untouched(instr)
                && !self.subject.is_root(instr)
                && self.subject.changeable(instr).is_ok();
            if is_free && !draft.is_read(instr, &self.subject.users[instr]) {
                draft.remove(instr);
                open.extend(makers(instr));
            }
        }
    }
}
