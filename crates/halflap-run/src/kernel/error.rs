//! Why an instruction cannot be run.

use halflap_hlo::ids::InstrId;
use halflap_hlo::{BadLiteral, Module};
use thiserror::Error;

use crate::tensor::DType;

/// An instruction that cannot be run, found before anything runs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {opcode} '{instruction}': {what}")]
pub struct Unsupported {
    /// The instruction's name.
    pub instruction: String,
    /// The opcode as it is written.
    pub opcode: String,
    /// Where in the module's text it is, counted from 1.
    pub line: usize,
    /// What is not supported.
    pub what: Gap,
}

/// The unsupported part of an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Gap {
    #[error("this operation is not supported")]
    Operation,
    #[error("this operation communicates or decides what runs, which is not a kernel's work")]
    NotAKernel,
    #[error("{}", unpaired(.is_host))]
    NoPairs { is_host: bool },
    #[error("no {0} of the module has its channel, so it would wait forever")]
    NoOtherHalf(&'static str),
    #[error("it does not carry the same type as '{0}' of the same channel")]
    OtherHalf(String),
    #[error("a message needs concurrent ranks, which a plain evaluation does not have")]
    Message,
    #[error("elements of type {0} are not supported")]
    ElementType(&'static str),
    #[error("it is not supported for elements of type {0}")]
    OfType(DType),
    #[error("its shape is dynamic, which is not supported")]
    Dynamic,
    #[error("its attribute '{key}' has a value that is missing or not supported: '{value}'")]
    Attribute { key: &'static str, value: String },
    #[error("its operands or its shape are not valid for the operation")]
    Shape,
    #[error(
        "this is text from before XLA's SPMD partitioner, where '{0}' goes from arrays of all \
         devices to those of one or back; ranks run the program of one device. Take \
         jax.jit(f).lower(...).compile().as_text(), or what halflap.jax.lower(f, ...) keeps, or \
         dump what the pass spmd-partitioning leaves: XLA_FLAGS='--xla_dump_to=DIR \
         --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=spmd-partitioning' writes \
         DIR/*after_spmd-partitioning*.txt"
    )]
    Unpartitioned(String),
    #[error(
        "the constant's values are not in the text ('{{...}}'): dump the module with \
         XLA_FLAGS=--xla_dump_large_constants (or print_large_constants=True in HloPrintOptions)"
    )]
    Elided,
    #[error(
        "it takes or gives a bitcast to another layout, which must be a copy there: \
         halflap_hlo::without_passed_bitcasts makes it one"
    )]
    Layout,
    #[error(transparent)]
    Literal(BadLiteral),
    #[error("the custom call's target '{0}' is neither known nor in a library that was given")]
    Target(String),
    #[error("the computation that it applies is not scalar")]
    Applied,
    #[error("the reduction of a collective is not one of add, multiply, minimum, maximum, and, or")]
    Reduction,
}

/// Why the ranks of a message are unknown.
fn unpaired(is_host: &bool) -> &'static str {
    match is_host {
        true => "it exchanges data with the host, and there is none here",
        false => {
            "it does not say between which ranks: \
             frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}} would"
        }
    }
}

impl Unsupported {
    /// A part of an instruction.
    pub fn new(module: &Module, instr: InstrId, what: Gap) -> Unsupported {
        Unsupported {
            instruction: module.instruction_name(instr).to_owned(),
            opcode: module.opcode_name(instr).to_owned(),
            line: module.line_of(instr),
            what,
        }
    }
}
