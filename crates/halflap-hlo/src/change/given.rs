//! Which instructions give the same value: their operands do, and they do the same with them.

use std::collections::HashMap;
use std::fmt::Write;

use super::RecipeSubject;
use super::merge::{self, MergeKey};
use super::pipeline::is_light;
use crate::ids::{ComputationId, InstrId};
use crate::split::shape_text;
use crate::{Module, Opcode, Operand};
use halflap::ids::{Id, IdVec};

halflap::ids! {
    /// What an instruction gives: instructions with the same meaning give the same value.
    GivenId
}

/// Attributes that do not affect values.
const SILENT: [&str; 3] = ["metadata", "sharding", "channel_id"];

/// Attributes that name computations: what these do counts instead.
const CALLS: [&str; 2] = ["calls", "to_apply"];

/// What two instructions must have in common to give the same value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum GivenValue {
    /// Equal to no other.
    Own(InstrId),
    Tuple(Vec<GivenId>),
    Element(GivenId, u32),
    Made {
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
    pub(super) subject: &'s RecipeSubject<'m>,
    all: IdVec<GivenId, GivenValue>,
    /// Looked up only.
    known: HashMap<GivenValue, GivenId>,
    /// Looked up only.
    of: HashMap<InstrId, GivenId>,
    /// The first instruction of a computation with this meaning. Looked up only.
    firsts: HashMap<(ComputationId, GivenId), InstrId>,
    /// The first computation that does this. Looked up only.
    bodies: HashMap<String, ComputationId>,
    /// Looked up only.
    same_as: HashMap<ComputationId, ComputationId>,
}

/// Whether an instruction makes a value of its operands alone that can stand for them: what moves
/// them, computes element by element, looks something up or reduces. Products are not among these:
/// what a program multiplies again, it does not want to keep.
pub(super) fn is_made(module: &Module, instr: InstrId) -> bool {
    let is_inside = |instr| {
        let opcode = module.instruction(instr).opcode;
        matches!(opcode, Opcode::Parameter | Opcode::Tuple | Opcode::GetTupleElement)
            || is_made(module, instr)
    };
    match module.instruction(instr).opcode {
        Opcode::Gather => true,
        Opcode::Reduce | Opcode::Fusion => {
            module.called(instr).iter().all(|&of| module.instructions(of).all(is_inside))
        }
        _ => is_light(module, instr),
    }
}

impl<'s, 'm> GivenValues<'s, 'm> {
    pub(super) fn new(subject: &'s RecipeSubject<'m>) -> Self {
        GivenValues {
            subject,
            all: IdVec::default(),
            known: HashMap::new(),
            of: HashMap::new(),
            firsts: HashMap::new(),
            bodies: HashMap::new(),
            same_as: HashMap::new(),
        }
    }

    /// The value of an instruction; all instructions with this meaning give the same.
    pub(super) fn of(&mut self, instr: InstrId) -> Option<GivenId> {
        if !self.of.contains_key(&instr) {
            let module = self.subject.module;
            let computation = module.computation_of(instr);
            for instr in module.instructions(computation) {
                let meaning = self.meaning(instr);
                self.of.insert(instr, meaning);
                self.firsts.entry((computation, meaning)).or_insert(instr);
            }
        }
        self.of.get(&instr).copied()
    }

    /// The first instruction of its computation that gives the same, if that is another one.
    pub(super) fn earlier(&mut self, instr: InstrId) -> Option<InstrId> {
        let meaning = self.of(instr)?;
        let computation = self.subject.module.computation_of(instr);
        self.firsts.get(&(computation, meaning)).copied().filter(|&first| first != instr)
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
            _ if is_made(module, instr) => match self.doing(instr) {
                Some(text) => {
                    let called = module.called(instr).iter().map(|&of| self.same_as(of)).collect();
                    GivenValue::Made { text, called, operands }
                }
                None => GivenValue::Own(instr),
            },
            _ => GivenValue::Own(instr),
        };
        self.known(meaning)
    }

    /// What an instruction does with its operands, apart from what it calls. A constant whose
    /// values were left out equals nothing but itself.
    fn doing(&self, instr: InstrId) -> Option<String> {
        let module = self.subject.module;
        let mut text = format!("{} {}", module.opcode_name(instr), shape_text(module, instr));
        if module.operands(instr).is_empty() {
            let payload = module.payload(instr);
            if payload.contains("...") {
                return None;
            }
            text.push_str(payload);
        }
        let is_heard = |key: &str| !SILENT.contains(&key) && !CALLS.contains(&key);
        for (key, value) in module.attributes(instr).filter(|(key, _)| is_heard(key)) {
            let _ = write!(text, ", {key}={value}");
        }
        Some(text)
    }

    /// The first computation that does the same as this one, instruction by instruction. Compilers
    /// copy computations for each instruction that calls them.
    fn same_as(&mut self, computation: ComputationId) -> ComputationId {
        if let Some(&same) = self.same_as.get(&computation) {
            return same;
        }
        let module = self.subject.module;
        let mut text = String::new();
        let place: HashMap<InstrId, usize> =
            module.instructions(computation).enumerate().map(|(at, instr)| (instr, at)).collect();
        for instr in module.instructions(computation) {
            let doing = self.doing(instr);
            let _ = match doing {
                Some(doing) => write!(text, "{doing}"),
                None => write!(text, "only {}", instr.index()),
            };
            for operand in module.operands(instr) {
                let path = module.path(operand);
                let _ = write!(text, " {:?}{path:?}", place.get(&operand.of));
            }
            for &of in module.called(instr) {
                let _ = write!(text, " {}", self.same_as(of).index());
            }
            text.push('\n');
        }
        let _ = write!(text, "{:?}", place.get(&module.root(computation)));
        let same = *self.bodies.entry(text).or_insert(computation);
        self.same_as.insert(computation, same);
        same
    }
}
