//! HLO modules, as JAX and XLA write them.
//!
//! A [`Module`] is the text and its parsed form: computations and instructions with dense ids,
//! typed shapes and opcodes, operands resolved, and everything else as a [`TextSpan`] of the text
//! with typed accessors, so that unknown parts are preserved and parsing takes one pass. A module
//! is immutable. To schedule it, [`lower()`] turns a computation into a graph, and [`write()`]
//! writes the text in the new orders.
//!
//! | part | what it does |
//! | --- | --- |
//! | `lex`, `parse`, `error` | text to a module, or the place that is wrong |
//! | `shape`, `opcode`, `attributes`, `groups`, `metadata`, `literal` | what a piece of the text means |
//! | `work`, `trips` | how much an instruction does, and how often a loop runs |
//! | `types` | whether shapes are what operands and attributes come to |
//! | `nature`, `steps` | what an instruction is at run time, and which nodes it becomes |
//! | `values`, `storage` | which values share a buffer |
//! | `lower` | a computation to a graph |
//! | `program` | all computations that run, as a workload |
//! | `split`, `write`, `proof` | orders back to text, which is read again and compared |
//! | [`change`], `draft` | changed modules: recipes, and the edited text, which is read again |
//! | [`bounded()`], `masked`, `hosted`, `settled` | dynamic shapes as shapes of their bounds, ragged products as plain ones, messages to a host as feeds, and bitcasts that are passed on as copies |
//! | [`same()`] | whether two modules compute the same |
//! | [`plan`] | a module in given orders as steps |

#[cfg(test)]
#[path = "../tests/common/modules.rs"]
#[allow(dead_code, missing_docs)]
mod test_modules;
#[cfg(test)]
#[path = "../tests/common/orders.rs"]
#[allow(missing_docs)]
mod test_orders;
#[cfg(test)]
extern crate self as halflap_hlo;
#[cfg(test)]
use test_modules as modules;

mod alone;
mod attributes;
mod bounded;
pub mod change;
mod decides;
mod draft;
mod error;
mod groups;
mod hosted;
pub mod ids;
mod inline;
mod lex;
mod literal;
mod lower;
mod masked;
mod metadata;
mod nature;
mod opcode;
mod parse;
pub mod plan;
mod program;
mod proof;
mod same;
mod settled;
mod shape;
mod split;
mod steps;
mod storage;
mod trips;
mod types;
mod values;
mod work;
mod write;

pub use alone::alone;
pub use attributes::{Alias, Attribute, ConvDims, MovingWindow, SliceDim, WindowDim};
pub use bounded::bounded;
pub use decides::deciding_elements;
pub use draft::DraftError;
pub use error::{HloError, Problem, ReadError};
pub(crate) use groups::WrittenDevice;
pub use groups::{Devices, ReplicaGroups};
pub use hosted::without_host_messages;
pub use inline::without_calls;
pub use lex::TextSpan;
pub use literal::{BadLiteral, Literal};
pub use lower::{Lowered, lower};
pub use masked::without_ragged_products;
pub use metadata::{Metadata, SourceFrame};
pub use nature::{likely_device, started};
pub use opcode::{Opcode, Phase, Wrapped};
pub use program::{Caller, LoweredModule, LoweredUnit};
pub use proof::{WriteError, Wrong};
pub use same::{Different, Sameness, same};
pub use settled::without_passed_bitcasts;
pub use shape::{Array, DEVICE_MEMORY, ElementType, HOST_MEMORY, Layout, Shape};
pub use steps::{NodePart, NodePlace};
pub use storage::{Slot, SlotOrigin, Storage};
pub use trips::trip_count;
pub use types::{Mismatch, TypeError, check};
pub use values::Callee;
pub use write::{write, write_proved};

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use halflap::import::unzip;

use crate::ids::{ComputationId, InstrId};
use halflap::ids::{Id, IdVec};
use halflap::units::Bytes;

/// Reads a module, plain or gzipped.
pub fn read_module(bytes: &[u8]) -> Result<Module, ReadError> {
    Ok(Module::from_bytes(unzip(bytes)?.into_owned())?)
}

/// A module: its text, and its parsed content.
#[derive(Clone, Debug)]
pub struct Module {
    text: String,
    name: TextSpan,
    /// The first line, with its attributes.
    header: TextSpan,
    /// Everything before the first computation.
    preamble: TextSpan,
    attributes: Range<u32>,
    tables: metadata::Tables,
    computations: IdVec<ComputationId, Computation>,
    instructions: IdVec<InstrId, Instruction>,
    operands: Vec<Operand>,
    paths: Vec<u32>,
    all_attributes: Vec<Attribute>,
    called: Vec<ComputationId>,
    /// Control dependencies, ascending.
    controls: Vec<(InstrId, InstrId)>,
    entry: ComputationId,
    by_name: HashMap<String, ComputationId>,
    /// What follows the last computation.
    trailer: TextSpan,
    /// All instructions by name, built on first use.
    sorted: OnceLock<Vec<InstrId>>,
    /// Replicas and partitions, where the text does not say how many there are.
    assumed: Option<groups::Assumed>,
    /// For a text in shorthand: where each piece begins, and its line in the original.
    places: Vec<(u32, u32)>,
}

/// A sequence of instructions. In a scheduled module it is the order in which they run.
#[derive(Clone, Debug)]
pub struct Computation {
    name: TextSpan,
    instructions: Range<u32>,
    root: InstrId,
    /// From the end of the preceding item to its opening brace.
    head: TextSpan,
    /// From the end of its last instruction to the next item.
    tail: TextSpan,
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    name: TextSpan,
    /// What it does.
    pub opcode: Opcode,
    opcode_name: TextSpan,
    /// The shape of its result.
    pub shape: Shape,
    operands: Range<u32>,
    attributes: Range<u32>,
    called: Range<u32>,
    /// The text between its parentheses.
    payload: TextSpan,
    /// The text before it: spaces and comments.
    lead: TextSpan,
    /// All of it.
    text: TextSpan,
    computation: ComputationId,
}

/// An operand: the result of another instruction, or an element of it.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Its producer.
    pub of: InstrId,
    path: (u32, u32),
}

impl Module {
    /// Reads a module.
    pub fn read(text: String) -> Result<Module, HloError> {
        parse::parse(text)
    }

    /// Reads a module from bytes, which must be UTF-8.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Module, HloError> {
        match String::from_utf8(bytes) {
            Ok(text) => Module::read(text),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let lossy = String::from_utf8_lossy(error.as_bytes());
                Err(HloError::at(&lossy, at, Problem::NotUtf8))
            }
        }
    }

    /// Its name; without one, that of its entry.
    pub fn name(&self) -> &str {
        match self.name.is_empty() {
            true => self.computation_name(self.entry),
            false => self.str(self.name),
        }
    }

    /// The line of an instruction in the text that was read, counted from 1.
    pub fn line_of(&self, instr: InstrId) -> usize {
        let at = self.instructions[instr].name.start;
        let lines = |from: usize| {
            self.text.as_bytes()[from..at as usize].iter().filter(|&&byte| byte == b'\n').count()
        };
        let piece = self.places.partition_point(|&(new, _)| new <= at).checked_sub(1);
        match piece.map(|piece| self.places[piece]) {
            Some((new, line)) => line as usize + lines(new as usize),
            None => 1 + lines(0),
        }
    }

    /// The text that it was read from; for shorthand, the expanded text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A piece of the text.
    #[inline]
    pub fn str(&self, span: TextSpan) -> &str {
        &self.text[span.start as usize..span.end as usize]
    }

    /// Whether the text is in execution order, not just in a valid order.
    pub fn is_scheduled(&self) -> bool {
        self.module_attribute("is_scheduled") == Some("true")
    }

    /// The number of replicas, and the number of partitions of each.
    pub fn devices(&self) -> Devices {
        let number =
            |key| self.module_attribute(key).and_then(|text| text.parse().ok()).unwrap_or(1);
        self.assumed_devices().unwrap_or_else(|| Devices {
            replicas: number("replica_count"),
            partitions: number("num_partitions"),
        })
    }

    /// Replicas and partitions, as inferred from its collectives if the text does not give them.
    pub fn assumed_devices(&self) -> Option<Devices> {
        self.assumed.map(|assumed| assumed.least)
    }

    /// The same module for the given number of devices, if its text does not give the number and
    /// names no devices beyond it.
    pub fn for_devices(&self, count: u32) -> Option<Module> {
        let assumed = self.assumed?.of(count)?;
        Some(Module { assumed: Some(assumed), ..self.clone() })
    }

    /// The value of one of the module's own attributes.
    pub fn module_attribute(&self, key: &str) -> Option<&str> {
        self.find_attribute(&self.attributes, key)
    }

    /// The computations, in text order.
    pub fn computations(
        &self,
    ) -> impl DoubleEndedIterator<Item = ComputationId> + ExactSizeIterator + use<> {
        (0..self.computations.len()).map(ComputationId::from_index)
    }

    /// The computation that runs first.
    pub fn entry(&self) -> ComputationId {
        self.entry
    }

    /// The computation of a name.
    pub fn find(&self, name: &str) -> Option<ComputationId> {
        self.by_name.get(name).copied()
    }

    /// A computation's name.
    pub fn computation_name(&self, computation: ComputationId) -> &str {
        self.str(self.computations[computation].name)
    }

    /// A computation's instructions in text order, which is a valid execution order.
    pub fn instructions(
        &self,
        computation: ComputationId,
    ) -> impl DoubleEndedIterator<Item = InstrId> + ExactSizeIterator + use<> {
        let Range { start, end } = self.computations[computation].instructions;
        (start as usize..end as usize).map(InstrId::from_index)
    }

    /// The instruction whose value is the computation's.
    pub fn root(&self, computation: ComputationId) -> InstrId {
        self.computations[computation].root
    }

    /// A computation's parameters by their numbers; `None` for a missing number.
    pub fn parameters(&self, computation: ComputationId) -> Vec<Option<InstrId>> {
        let mut parameters = Vec::new();
        for instr in self.instructions(computation) {
            let Some(number) = self.parameter_number(instr) else { continue };
            // A valid number is smaller than the number of instructions.
            if number >= parameters.len() && number < self.instructions.len() {
                parameters.resize(number + 1, None);
            }
            if let Some(slot) = parameters.get_mut(number) {
                *slot = Some(instr);
            }
        }
        parameters
    }

    /// How many instructions there are in all computations.
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Whether there are none; never true for a module that was read.
    pub fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }

    /// One instruction.
    #[inline]
    pub fn instruction(&self, instr: InstrId) -> &Instruction {
        &self.instructions[instr]
    }

    /// An instruction's name, without `%`.
    #[inline]
    pub fn instruction_name(&self, instr: InstrId) -> &str {
        self.str(self.instructions[instr].name)
    }

    /// Whether an instruction of any computation has that name.
    pub fn has_instruction(&self, name: &str) -> bool {
        let sorted = self.sorted.get_or_init(|| {
            let mut sorted: Vec<InstrId> = self.instructions.ids().collect();
            sorted.sort_unstable_by_key(|&instr| self.instruction_name(instr));
            sorted
        });
        sorted.binary_search_by_key(&name, |&instr| self.instruction_name(instr)).is_ok()
    }

    /// The computation that an instruction is part of.
    pub fn computation_of(&self, instr: InstrId) -> ComputationId {
        self.instructions[instr].computation
    }

    /// The opcode as it is written.
    pub fn opcode_name(&self, instr: InstrId) -> &str {
        self.str(self.instructions[instr].opcode_name)
    }

    /// The shape of what an instruction gives, as it is written.
    pub(crate) fn shape_text(&self, instr: InstrId) -> &str {
        let Instruction { name, opcode_name, .. } = &self.instructions[instr];
        let text = &self.text[name.end as usize..opcode_name.start as usize];
        text.trim_start().trim_start_matches('=').trim()
    }

    /// The operands of an instruction.
    #[inline]
    pub fn operands(&self, instr: InstrId) -> &[Operand] {
        let Range { start, end } = self.instructions[instr].operands;
        &self.operands[start as usize..end as usize]
    }

    /// Which element of a tuple an operand is; empty for the whole.
    #[inline]
    pub fn path(&self, operand: &Operand) -> &[u32] {
        &self.paths[operand.path.0 as usize..operand.path.1 as usize]
    }

    /// An operand's shape.
    pub fn operand_shape(&self, operand: &Operand) -> &Shape {
        let whole = &self.instructions[operand.of].shape;
        // The path was checked when the module was read.
        whole.at(self.path(operand)).unwrap_or(whole)
    }

    /// The text between an instruction's parentheses.
    pub fn payload(&self, instr: InstrId) -> &str {
        self.str(self.instructions[instr].payload)
    }

    /// The computations that an instruction names, in text order.
    pub fn called(&self, instr: InstrId) -> &[ComputationId] {
        let Range { start, end } = self.instructions[instr].called;
        &self.called[start as usize..end as usize]
    }

    /// The control predecessors of an instruction.
    pub fn control_predecessors(&self, instr: InstrId) -> impl Iterator<Item = InstrId> {
        let first = self.controls.partition_point(|&(of, _)| of < instr);
        self.controls[first..]
            .iter()
            .take_while(move |&&(of, _)| of == instr)
            .map(|&(_, before)| before)
    }

    /// An array's memory layout.
    pub fn layout(&self, array: &Array) -> Layout {
        Layout::read(self.str(array.layout))
    }

    /// How many bytes a shape takes in a memory space.
    pub fn size_in(&self, shape: &Shape, space: u32) -> Bytes {
        match shape {
            Shape::Tuple(parts) => parts.iter().map(|part| self.size_in(part, space)).sum(),
            Shape::Array(array) => match self.layout(array) {
                layout if layout.memory_space == space => array.size(&layout),
                _ => Bytes::ZERO,
            },
            Shape::Token | Shape::Opaque => Bytes::ZERO,
        }
    }

    fn find_attribute(&self, range: &Range<u32>, key: &str) -> Option<&str> {
        let attributes = &self.all_attributes[range.start as usize..range.end as usize];
        attributes
            .iter()
            .find(|attribute| self.str(attribute.key) == key)
            .map(|attribute| self.str(attribute.value))
    }
}
