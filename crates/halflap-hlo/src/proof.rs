//! Proves that a written text is the original module in the requested orders.

use std::collections::HashSet;

use thiserror::Error;

use super::split;
use super::steps::{NodePart, NodePlace};
use super::{HloError, Module, Operand};
use crate::ids::{ComputationId, InstrId};

/// Why a written text is rejected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum WriteError {
    #[error("the module that was written cannot be read back: {0}")]
    Unreadable(HloError),
    #[error("in the module that was written, computation '{computation}' is missing")]
    NoComputation { computation: String },
    #[error(
        "in the module that was written, '{instruction}' of computation '{computation}' is {what}"
    )]
    Instruction { computation: String, instruction: String, what: Wrong },
}

/// How an instruction that was written is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Wrong {
    #[error("missing")]
    Missing,
    #[error("not of the module")]
    New,
    #[error("another operation")]
    Opcode,
    #[error("given other operands")]
    Operands,
    #[error("not at its place in the order")]
    Place,
    #[error("no longer the root")]
    Root,
}

/// Proves a text: it is read back and compared with the module and the orders.
pub(super) fn prove(
    module: &Module,
    orders: &[(ComputationId, Vec<NodePlace>)],
    text: &str,
) -> Result<(), WriteError> {
    let after = Module::read(text.to_owned()).map_err(WriteError::Unreadable)?;
    for computation in module.computations() {
        let order =
            orders.iter().find(|(of, _)| *of == computation).map(|(_, order)| order.as_slice());
        ComputationPair::new(module, &after, computation)?.prove(order)?;
    }
    Ok(())
}

/// A computation, before and after.
struct ComputationPair<'a> {
    before: &'a Module,
    after: &'a Module,
    old: ComputationId,
    new: ComputationId,
}

impl<'a> ComputationPair<'a> {
    fn new(
        before: &'a Module,
        after: &'a Module,
        old: ComputationId,
    ) -> Result<ComputationPair<'a>, WriteError> {
        let computation = before.computation_name(old);
        let missing = || WriteError::NoComputation { computation: computation.to_owned() };
        Ok(ComputationPair {
            before,
            after,
            old,
            new: after.find(computation).ok_or_else(missing)?,
        })
    }

    fn prove(&self, order: Option<&[NodePlace]>) -> Result<(), WriteError> {
        let places = order.unwrap_or(&[]);
        let names: Vec<String> =
            places.iter().map(|&place| split::name(self.before, place)).collect();
        let nodes: HashSet<&str> = names.iter().map(String::as_str).collect();
        let mut written: Vec<&str> =
            self.after.instructions(self.new).map(|new| self.name(new)).collect();
        written.retain(|name| nodes.contains(name));
        if let Some((wrong, _)) =
            names.iter().zip(&written).find(|(name, written)| name != *written)
        {
            return Err(self.wrong(wrong, Wrong::Place));
        }
        let starts: HashSet<&str> = names
            .iter()
            .zip(places)
            .filter(|(_, place)| place.part == NodePart::Start)
            .map(|(name, _)| name.as_str())
            .collect();
        self.same_instructions(&starts)
    }

    /// Every old instruction must be present; the only new ones are the starts of split
    /// collectives.
    fn same_instructions(&self, starts: &HashSet<&str>) -> Result<(), WriteError> {
        let mut old = self.before.instructions(self.old).collect::<Vec<_>>();
        let mut new: Vec<InstrId> = self.after.instructions(self.new).collect();
        new.retain(|&instr| !starts.contains(self.name(instr)));
        old.sort_unstable_by_key(|&instr| self.before.instruction_name(instr));
        new.sort_unstable_by_key(|&instr| self.name(instr));
        let mut news = new.iter().copied().peekable();
        for instr in old {
            let name = self.before.instruction_name(instr);
            match news.next_if(|&new| self.name(new) == name) {
                Some(new) => self.same_instruction(instr, new)?,
                None => return Err(self.wrong(name, Wrong::Missing)),
            }
        }
        match news.next() {
            Some(new) => Err(self.wrong(self.name(new), Wrong::New)),
            None => Ok(()),
        }
    }

    fn same_instruction(&self, old: InstrId, new: InstrId) -> Result<(), WriteError> {
        let name = self.before.instruction_name(old);
        let (opcode, now) = (self.before.opcode_name(old), self.after.opcode_name(new));
        if (self.before.root(self.old) == old) != (self.after.root(self.new) == new) {
            return Err(self.wrong(name, Wrong::Root));
        }
        let taker = match now.strip_suffix("-done") {
            _ if now == opcode => new,
            // The start has the operands of what was split.
            Some(split) if split == opcode => match self.after.operands(new) {
                [start] => start.of,
                _ => return Err(self.wrong(name, Wrong::Operands)),
            },
            _ => return Err(self.wrong(name, Wrong::Opcode)),
        };
        let (takes, took) = (self.after.operands(taker), self.before.operands(old));
        match takes.len() == took.len()
            && takes.iter().zip(took).all(|(new, old)| self.same_operand(new, old))
        {
            true => Ok(()),
            false => Err(self.wrong(name, Wrong::Operands)),
        }
    }

    fn same_operand(&self, new: &Operand, old: &Operand) -> bool {
        self.name(new.of) == self.before.instruction_name(old.of)
            && self.after.path(new) == self.before.path(old)
    }

    fn name(&self, new: InstrId) -> &'a str {
        self.after.instruction_name(new)
    }

    fn wrong(&self, instruction: &str, what: Wrong) -> WriteError {
        let computation = self.before.computation_name(self.old).to_owned();
        WriteError::Instruction { computation, instruction: instruction.to_owned(), what }
    }
}
