//! Checks of parsed instructions that all later stages rely on.
//!
//! Only what no compiler writes is rejected: unknown instructions are accepted.

use std::fmt;
use std::ops::Range;

use super::ModuleReader;
use crate::error::{HloError, Problem};
use crate::ids::InstrId;
use crate::{Module, Opcode, Phase, Shape, TextSpan};

impl ModuleReader<'_> {
    /// Rejects an inconsistent instruction, once it and all before it are parsed.
    pub(super) fn check(&mut self, instr: InstrId) -> Result<(), HloError> {
        let opcode = self.instructions[instr].opcode;
        self.check_count(instr)?;
        match opcode {
            Opcode::Parameter => self.check_parameter(instr),
            _ if opcode.phase() == Some(Phase::Done) => self.check_started(instr),
            _ => Ok(()),
        }
    }

    fn check_count(&self, instr: InstrId) -> Result<(), HloError> {
        let instruction = &self.instructions[instr];
        let found = instruction.operands.len();
        match takes(instruction.opcode) {
            Some(takes) if !takes.allows(found) => {
                let opcode = self.str(instruction.opcode_name).to_owned();
                let at = instruction.opcode_name.start as usize;
                let takes = takes.to_string();
                Err(self.cursor.error_at(at, Problem::WrongCount { opcode, takes, found }))
            }
            _ => Ok(()),
        }
    }

    fn check_parameter(&mut self, instr: InstrId) -> Result<(), HloError> {
        let payload = self.instructions[instr].payload;
        let Ok(number) = self.str(payload).trim().parse() else { return Ok(()) };
        match self.parameters.insert(number) {
            true => Ok(()),
            false => Err(self.twice("parameter", payload)),
        }
    }

    /// The state of an asynchronous operation may pass through tuples, loops, copies and calls;
    /// compute never returns one.
    fn check_started(&self, instr: InstrId) -> Result<(), HloError> {
        let instruction = &self.instructions[instr];
        let of = &self.instructions[self.operands[instruction.operands.start as usize].of];
        if !only_computes(of.opcode) {
            return Ok(());
        }
        let owned = |span| self.str(span).to_owned();
        let (opcode, name, of) =
            (owned(instruction.opcode_name), owned(of.name), owned(of.opcode_name));
        let at = instruction.payload.start as usize;
        Err(self.cursor.error_at(at, Problem::NotStarted { opcode, name, of }))
    }
}

impl Module {
    /// Checks get-tuple-element instructions, once all shapes are known.
    pub(super) fn check_elements(&self, untyped: &[InstrId]) -> Result<(), HloError> {
        for instr in self.instructions.ids() {
            if self.instructions[instr].opcode == Opcode::GetTupleElement {
                self.check_element(instr)?;
            }
            if !untyped.is_empty() {
                self.check_paths(instr)?;
            }
        }
        Ok(())
    }

    pub(super) fn check_paths(&self, instr: InstrId) -> Result<(), HloError> {
        for operand in self.operands(instr) {
            let (of, path) = (&self.instructions[operand.of], self.path(operand));
            if let (None, Some(&index)) = (of.shape.at(path), path.last()) {
                let name = self.str(of.name).to_owned();
                let at = self.instructions[instr].payload.start as usize;
                return Err(HloError::at(&self.text, at, Problem::NoSuchElement { name, index }));
            }
        }
        Ok(())
    }

    fn check_element(&self, instr: InstrId) -> Result<(), HloError> {
        let instruction = &self.instructions[instr];
        let failed =
            |at: TextSpan, problem| Err(HloError::at(&self.text, at.start as usize, problem));
        let Some(operand) = self.operands(instr).first() else { return Ok(()) };
        let of = &self.instructions[operand.of];
        let Some(Shape::Tuple(parts)) = of.shape.at(self.path(operand)) else {
            return failed(
                instruction.payload,
                Problem::NoTuple { name: self.str(of.name).to_owned() },
            );
        };
        match self.tuple_index(instr) {
            Some(number) if (number as usize) < parts.len() => Ok(()),
            _ => {
                let Range { start, end } = instruction.attributes;
                let attributes = &self.all_attributes[start as usize..end as usize];
                let index = attributes.iter().find(|attribute| self.str(attribute.key) == "index");
                let at = index.map_or(instruction.opcode_name, |index| index.value);
                failed(at, Problem::BadIndex { count: parts.len() })
            }
        }
    }
}

/// How many operands an instruction takes.
#[derive(Clone, Copy)]
enum Takes {
    Exactly(usize),
    AtLeast(usize),
}

impl Takes {
    fn allows(self, count: usize) -> bool {
        match self {
            Takes::Exactly(exact) => count == exact,
            Takes::AtLeast(least) => count >= least,
        }
    }
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, count) = match *self {
            Takes::Exactly(count) => ("", count),
            Takes::AtLeast(count) => ("at least ", count),
        };
        write!(f, "{before}{count} {}", if count == 1 { "operand" } else { "operands" })
    }
}

/// How many operands something takes, if that is fixed.
fn takes(opcode: Opcode) -> Option<Takes> {
    use Opcode as O;
    let is_binary = matches!(
        opcode,
        O::Add
            | O::And
            | O::Atan2
            | O::Compare
            | O::Complex
            | O::Divide
            | O::Maximum
            | O::Minimum
            | O::Multiply
            | O::Or
            | O::Power
            | O::Remainder
            | O::ShiftLeft
            | O::ShiftRightArithmetic
            | O::ShiftRightLogical
            | O::StochasticConvert
            | O::Subtract
            | O::Xor
    );
    match opcode {
        _ if is_binary => Some(Takes::Exactly(2)),
        O::Select | O::Clamp => Some(Takes::Exactly(3)),
        O::Map => None,
        O::Transpose
        | O::Reshape
        | O::Broadcast
        | O::Slice
        | O::Copy
        | O::Bitcast
        | O::GetTupleElement => Some(Takes::Exactly(1)),
        O::Dot | O::Convolution => Some(Takes::AtLeast(2)),
        O::AllGatherStart | O::AllReduceStart | O::CollectivePermuteStart => {
            Some(Takes::AtLeast(1))
        }
        O::Wrapped(Phase::Start, wrapped) if wrapped.opcode().is_sync_collective() => {
            Some(Takes::AtLeast(1))
        }
        _ if opcode.phase() == Some(Phase::Done) => Some(Takes::Exactly(1)),
        _ if opcode.is_sync_collective() => Some(Takes::AtLeast(1)),
        // The remaining ones have one operand.
        _ if opcode.is_elementwise() => Some(Takes::Exactly(1)),
        _ => None,
    }
}

/// Whether an instruction only produces new data. A fusion or a custom call may start things.
fn only_computes(opcode: Opcode) -> bool {
    use Opcode as O;
    let is_data = matches!(
        opcode,
        O::Constant
            | O::Iota
            | O::Broadcast
            | O::Transpose
            | O::Reshape
            | O::Slice
            | O::Concatenate
            | O::Pad
            | O::Dot
            | O::Convolution
            | O::Reduce
            | O::ReduceWindow
            | O::Gather
            | O::Scatter
            | O::Sort
    );
    is_data || opcode.is_elementwise() || opcode.is_sync_collective()
}
