//! Checks that every result type follows from operands and attributes.
//!
//! The runtime trusts a module's shapes: a wrong one would read out of bounds. Instructions without
//! a known rule are accepted, and so are dynamic dimensions. Modules compiled for a TPU mix f32 and
//! bf16 in one instruction, which we cannot run: they are rejected here.
//!
//! | part | what it knows |
//! | --- | --- |
//! | `elementwise` | what is done at each place alone |
//! | `moves` | slices, pads, gathers and others that only move elements |
//! | `products` | dots, convolutions, windows, reductions, sorts, factorizations |
//! | `calls` | tuples, and who runs another computation |
//! | `collectives` | communication, and who takes part |
//! | `infer` | what the text leaves out: the same rules say what a result should be |

mod calls;
mod collectives;
mod elementwise;
mod infer;
mod moves;
mod products;

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use super::{Array, ElementType, Module, Opcode, Phase, Shape};
use crate::ids::{ComputationId, InstrId};
use halflap::ids::IdVec;

/// An instruction with a wrong type, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {opcode} '{instruction}': {mismatch}")]
pub struct TypeError {
    /// Counted from 1.
    pub line: usize,
    /// What it does, as it is written.
    pub opcode: String,
    /// Its name.
    pub instruction: String,
    /// What is wrong.
    pub mismatch: Box<Mismatch>,
}

/// How an instruction is inconsistent. Operands are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum Mismatch {
    #[error("operand {number} is {is}, it should be {right}")]
    Operand { number: usize, is: String, right: String },
    #[error("operand {number} is missing")]
    Missing { number: usize },
    #[error("{found} operands, it should have {right}")]
    Operands { found: usize, right: String },
    #[error("the result is {is}, it should be {right}")]
    Result { is: String, right: String },
    #[error("{key}={is} should be {right}")]
    Attribute { key: &'static str, is: String, right: String },
    #[error("parameter {number} of '{computation}' is {is}, it should be {right}")]
    Parameter { computation: String, number: usize, is: String, right: String },
    #[error("'{computation}' takes {found} parameters, it should take {right}")]
    Parameters { computation: String, found: usize, right: usize },
    #[error("'{computation}' gives {is}, it should give {right}")]
    Gives { computation: String, is: String, right: String },
    #[error(
        "{key} name {what} {number}, but there {}: they should be below that",
        there_are(what, *count)
    )]
    NoSuchDevice { key: &'static str, what: &'static str, number: u64, count: u64 },
    #[error("{key} name {what} {number} twice: each should be there once")]
    DeviceTwice { key: &'static str, what: &'static str, number: u64 },
    #[error(
        "replica_groups leave {what} {number} out: each should be in one, or write {{}} for all"
    )]
    DeviceMissing { what: &'static str, number: u64 },
    #[error("replica_groups have {first} and {other} devices: all should be of one size")]
    UnequalGroups { first: usize, other: usize },
    #[error("'{start}' is ended by '{first}' already: it should be ended once")]
    EndedTwice { start: String, first: String },
    #[error("the type of its elements is unknown: it should be one of HLO's, such as f32 or s32")]
    UnknownType,
}

fn there_are(what: &str, count: u64) -> String {
    let meaning = match what {
        "replica" => " (without channel_id and use_global_device_ids=true, numbers are replicas)",
        _ => "",
    };
    format!("{} {count}{meaning}", if count == 1 { "is" } else { "are" })
}

/// The result of a rule.
type RuleResult = Result<(), Mismatch>;

/// Checks every instruction that can run.
pub fn check(module: &Module) -> Result<(), TypeError> {
    let mut is_met: IdVec<ComputationId, bool> = IdVec::filled(false, module.computations().len());
    let mut open = vec![module.entry()];
    is_met[module.entry()] = true;
    known_types(module)?;
    while let Some(computation) = open.pop() {
        ended_once(module, computation)?;
        for instr in module.instructions(computation) {
            RuleView { module, instr, result: &module.instruction(instr).shape, inferred: None }
                .check()
                .map_err(|mismatch| error(module, instr, mismatch))?;
            for &callee in module.called(instr) {
                if !std::mem::replace(&mut is_met[callee], true) {
                    open.push(callee);
                }
            }
        }
    }
    Ok(())
}

/// Every array has elements of a known type: else others would seem wrong beside it.
fn known_types(module: &Module) -> Result<(), TypeError> {
    let has_unknown = |shape: &Shape| {
        let mut leaves = Vec::new();
        shape.leaves(&mut leaves);
        let is_unknown = |leaf: &&Shape| {
            matches!(leaf, Shape::Array(Array { element: ElementType::Other { .. }, .. }))
        };
        leaves.iter().any(is_unknown)
    };
    let mut all = module.computations().flat_map(|each| module.instructions(each));
    match all.find(|&instr| has_unknown(&module.instruction(instr).shape)) {
        Some(instr) => Err(error(module, instr, Mismatch::UnknownType)),
        None => Ok(()),
    }
}

/// Every start has exactly one done.
fn ended_once(module: &Module, computation: ComputationId) -> Result<(), TypeError> {
    let mut ends: BTreeMap<InstrId, InstrId> = BTreeMap::new();
    for instr in module.instructions(computation) {
        let opcode = module.instruction(instr).opcode;
        let Some(start) = module.operands(instr).first().filter(|_| opcode.is_end()) else {
            continue;
        };
        if let Some(first) = ends.insert(start.of, instr) {
            let name = |instr| module.instruction_name(instr).to_owned();
            let twice = Mismatch::EndedTwice { start: name(start.of), first: name(first) };
            return Err(error(module, instr, twice));
        }
    }
    Ok(())
}

fn error(module: &Module, instr: InstrId, mismatch: Mismatch) -> TypeError {
    TypeError {
        line: module.line_of(instr),
        opcode: module.opcode_name(instr).to_owned(),
        instruction: module.instruction_name(instr).to_owned(),
        mismatch: Box::new(mismatch),
    }
}

/// The type of an array, regardless of layout.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Type {
    element: ElementType,
    dims: Vec<u64>,
}

impl Type {
    fn new(element: ElementType, dims: &[u64]) -> Type {
        Type { element, dims: dims.to_vec() }
    }

    fn scalar(element: ElementType) -> Type {
        Type::new(element, &[])
    }

    fn of(array: &Array) -> Type {
        Type::new(array.element, &array.dims)
    }

    fn is(&self, array: &Array) -> bool {
        self.element == array.element && self.dims == array.dims
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(u64::to_string).collect();
        write!(f, "{}[{}]", self.element.name(), dims.join(","))
    }
}

/// A shape for display; a long tuple is truncated.
fn shown(shape: &Shape) -> String {
    const PARTS: usize = 8;
    match shape {
        Shape::Array(array) => Type::of(array).to_string(),
        Shape::Tuple(parts) => {
            let rest = if parts.len() > PARTS { ", ..." } else { "" };
            let parts: Vec<String> = parts.iter().take(PARTS).map(shown).collect();
            format!("({}{rest})", parts.join(", "))
        }
        Shape::Token => "token[]".to_owned(),
        Shape::Opaque => "opaque[]".to_owned(),
    }
}

/// Whether two shapes are the same, regardless of layouts.
fn are_alike(one: &Shape, other: &Shape) -> bool {
    match (one, other) {
        (Shape::Array(one), Shape::Array(other)) => {
            one.dynamic || other.dynamic || Type::of(one).is(other)
        }
        (Shape::Tuple(one), Shape::Tuple(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| are_alike(one, other))
        }
        (one, other) => one == other,
    }
}

fn is_dynamic(shape: &Shape) -> bool {
    match shape {
        Shape::Array(array) => array.dynamic,
        Shape::Tuple(parts) => parts.iter().any(is_dynamic),
        Shape::Token | Shape::Opaque => false,
    }
}

/// An instruction, as its rule sees it.
#[derive(Clone, Copy)]
struct RuleView<'a> {
    module: &'a Module,
    instr: InstrId,
    /// Its result; for a start, the result of what it starts.
    result: &'a Shape,
    /// Receives the inferred result, if the text omits it.
    inferred: Option<&'a OnceCell<Shape>>,
}

/// The shape of a result that the text omits, as XLA infers it; `None` if there is no rule.
pub(super) fn inferred(module: &Module, instr: InstrId) -> Result<Option<Shape>, Mismatch> {
    let found = OnceCell::new();
    let result = &module.instruction(instr).shape;
    infer::infer(RuleView { module, instr, result, inferred: Some(&found) })?;
    Ok(found.into_inner())
}

impl<'a> RuleView<'a> {
    fn check(self) -> RuleResult {
        let mut operands = self.module.operands(self.instr).iter();
        if is_dynamic(self.result)
            || operands.any(|operand| is_dynamic(self.module.operand_shape(operand)))
        {
            return Ok(());
        }
        collectives::groups(self)?;
        match self.module.instruction(self.instr).opcode {
            Opcode::Wrapped(Phase::Start, wrapped) => self.started(1)?.rule(wrapped.opcode()),
            Opcode::Wrapped(Phase::Done, _) => calls::done(self, 1),
            opcode => self.rule(opcode),
        }
    }

    fn rule(self, opcode: Opcode) -> RuleResult {
        use Opcode as O;
        match opcode {
            O::Broadcast => moves::broadcast(self),
            O::Reshape => moves::reshape(self),
            O::Bitcast => moves::bitcast(self),
            O::Transpose => moves::transpose(self),
            O::Slice => moves::slice(self),
            O::Pad => moves::pad(self),
            O::Reverse => moves::reverse(self),
            O::Concatenate => moves::concatenate(self),
            O::Iota => moves::iota(self),
            O::DynamicSlice => moves::dynamic_slice(self),
            O::DynamicUpdateSlice => moves::dynamic_update_slice(self),
            O::Gather => moves::gather(self),
            O::Scatter => moves::scatter(self),
            O::Dot => products::dot(self),
            O::Convolution => products::convolution(self),
            O::Reduce => products::reduce(self),
            O::ReduceWindow => products::reduce_window(self),
            O::SelectAndScatter => products::select_and_scatter(self),
            O::Sort => products::sort(self),
            O::Cholesky => products::cholesky(self),
            O::TriangularSolve => products::triangular_solve(self),
            O::Fft => products::fft(self),
            O::TopK => products::top_k(self),
            O::BatchNormTraining | O::BatchNormInference | O::BatchNormGrad => {
                products::batch_norm(self, opcode)
            }
            O::RngGetAndUpdateState => self.gives(&Type::new(ElementType::U64, &[2])),
            O::Rng => products::random(self),
            O::RngBitGenerator => products::random_bits(self),
            O::Copy | O::OptimizationBarrier | O::OptBarrierLong | O::Domain | O::AddDependency => {
                calls::same(self)
            }
            O::Tuple => calls::tuple(self),
            O::GetTupleElement => calls::get_tuple_element(self),
            O::While => calls::repeat(self),
            O::Call | O::Fusion => calls::call(self),
            O::Conditional => calls::conditional(self),
            O::CopyStart => calls::same(self.started(0)?),
            O::CopyDone => calls::done(self, 0),
            O::AsyncStart => calls::call(self.started(1)?),
            O::AsyncDone | O::AllGatherDone | O::CollectivePermuteDone => calls::done(self, 1),
            O::AllReduceDone => calls::same(self),
            O::AllReduce | O::AllReduceStart | O::CollectiveBroadcast => {
                collectives::unchanged(self)
            }
            O::CollectivePermute => collectives::permute(self),
            O::CollectivePermuteStart => collectives::permute(self.started(1)?),
            O::AllGather => collectives::all_gather(self),
            O::AllGatherStart => collectives::all_gather(self.started(1)?),
            O::ReduceScatter => collectives::reduce_scatter(self),
            O::AllToAll => collectives::all_to_all(self),
            O::RaggedAllToAll => collectives::ragged_all_to_all(self),
            O::SendDone => calls::done(self, 2),
            O::Recv | O::RecvDone => collectives::received(self),
            O::PartitionId | O::ReplicaId => self.gives(&Type::scalar(ElementType::U32)),
            opcode if opcode.is_elementwise() => elementwise::check(self, opcode),
            _ => Ok(()),
        }
    }

    /// What is started, given that a start's result has that in one of its parts.
    fn started(self, part: usize) -> Result<RuleView<'a>, Mismatch> {
        match self.result.parts().get(part) {
            Some(result) => Ok(RuleView { result, ..self }),
            None => Err(self.result_should("a tuple of what is started and what it gives")),
        }
    }

    fn count(self) -> usize {
        self.module.operands(self.instr).len()
    }

    /// An operand, counted from 0.
    fn operand(self, index: usize) -> Result<&'a Shape, Mismatch> {
        let operand = self.module.operands(self.instr).get(index);
        operand
            .map(|operand| self.module.operand_shape(operand))
            .ok_or(Mismatch::Missing { number: index + 1 })
    }

    /// An operand that must be an array.
    fn array(self, index: usize) -> Result<&'a Array, Mismatch> {
        self.operand(index)?.array().ok_or_else(|| self.operand_should(index, "an array"))
    }

    fn operand_should(self, index: usize, right: impl fmt::Display) -> Mismatch {
        let is = self.operand(index).map_or_else(|_| "missing".to_owned(), shown);
        Mismatch::Operand { number: index + 1, is, right: right.to_string() }
    }

    fn result_should(self, right: impl fmt::Display) -> Mismatch {
        Mismatch::Result { is: shown(self.result), right: right.to_string() }
    }

    fn attribute_should(self, key: &'static str, right: impl fmt::Display) -> Mismatch {
        let is = self.module.attribute(self.instr, key).unwrap_or("{}").to_owned();
        Mismatch::Attribute { key, is, right: right.to_string() }
    }

    /// Checks an operand's type.
    fn takes(self, index: usize, right: &Type) -> RuleResult {
        // Without a result shape, floating-point types may be mixed, as in XLA.
        let is_float = |element: ElementType| element.name().starts_with(['f', 'b']);
        let mixes = |array: &Array| {
            let are_floats = is_float(array.element) && is_float(right.element);
            self.inferred.is_some() && are_floats && array.dims == right.dims
        };
        match self.operand(index)?.array().is_some_and(|array| right.is(array) || mixes(array)) {
            true => Ok(()),
            false => Err(self.operand_should(index, right)),
        }
    }

    /// Checks the result's shape, regardless of layouts.
    fn gives_shape(self, right: &Shape) -> RuleResult {
        if let Some(inferred) = self.inferred {
            inferred.get_or_init(|| right.clone());
            return Ok(());
        }
        match are_alike(self.result, right) {
            true => Ok(()),
            false => Err(self.result_should(shown(right))),
        }
    }

    /// Checks the result's type.
    fn gives(self, right: &Type) -> RuleResult {
        if self.inferred.is_some() {
            return self.gives_shape(&shape_of(right));
        }
        match self.result.array().is_some_and(|array| right.is(array)) {
            true => Ok(()),
            false => Err(self.result_should(right)),
        }
    }

    /// Checks that the result is one array, or a tuple of several.
    fn gives_all(self, right: &[Type]) -> RuleResult {
        if self.inferred.is_some() {
            return match right {
                [one] => self.gives(one),
                several => self.gives_shape(&Shape::Tuple(several.iter().map(shape_of).collect())),
            };
        }
        if let ([one], Shape::Array(_)) = (right, self.result) {
            return self.gives(one);
        }
        let parts = self.result.parts();
        let fits =
            |(right, part): (&Type, &Shape)| part.array().is_some_and(|array| right.is(array));
        match parts.len() == right.len() && right.iter().zip(parts).all(fits) {
            true => Ok(()),
            false => Err(self.result_should(type_list(right))),
        }
    }

    /// Checks the result's dimensions, regardless of its element type.
    fn gives_dims(self, dims: &[u64]) -> RuleResult {
        if self.inferred.is_some() {
            return self.gives(&Type::new(self.widest()?, dims));
        }
        let array = self.result.array().ok_or_else(|| self.result_should("an array"))?;
        self.gives(&Type::new(array.element, dims))
    }

    /// The element type of the operands; the widest if they differ.
    fn widest(self) -> Result<ElementType, Mismatch> {
        let mut widest = self.array(0)?.element;
        for index in 1..self.count() {
            let other = self.array(index)?.element;
            widest = if other.bits() > widest.bits() { other } else { widest };
        }
        Ok(widest)
    }

    /// The numbers of an attribute, if they are dimensions of an array of that rank, each once.
    fn named_dims(self, key: &str, rank: usize) -> Option<Vec<usize>> {
        let numbers = self.module.numbers(self.instr, key);
        let dims: Vec<usize> =
            numbers.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<_>>()?;
        let is_right = |(at, dim): (usize, &usize)| *dim < rank && !dims[..at].contains(dim);
        dims.iter().enumerate().all(is_right).then_some(dims)
    }

    /// Dimensions that an attribute names.
    fn dims(self, key: &'static str, rank: usize) -> Result<Vec<usize>, Mismatch> {
        let right = || self.attribute_should(key, format!("dimensions below {rank}, each once"));
        self.named_dims(key, rank).ok_or_else(right)
    }

    /// The one dimension that an attribute names.
    fn dim(self, key: &'static str, rank: usize) -> Result<usize, Mismatch> {
        match self.named_dims(key, rank).as_deref() {
            Some(&[dim]) => Ok(dim),
            _ => Err(self.attribute_should(key, format!("one dimension below {rank}"))),
        }
    }

    /// Checks the signature of an attribute's computation.
    fn applies(self, key: &str, takes: &[Type], gives: &[Type]) -> RuleResult {
        // It says nothing about the result.
        if self.inferred.is_some() {
            return Ok(());
        }
        let Some(callee) = self.module.computation_in(self.instr, key) else { return Ok(()) };
        let right: Vec<Shape> = takes.iter().map(shape_of).collect();
        calls::parameters(self, callee, &right.iter().collect::<Vec<_>>())?;
        let root = &self.module.instruction(self.module.root(callee)).shape;
        let right = match gives {
            [one] if root.array().is_some() => shape_of(one),
            several => Shape::Tuple(several.iter().map(shape_of).collect()),
        };
        calls::root(self, callee, &right)
    }
}

fn shape_of(of: &Type) -> Shape {
    let Type { element, dims } = of.clone();
    Shape::Array(Array { element, dims, dynamic: false, layout: super::TextSpan::default() })
}

/// Types for display: one as it is, several as a tuple.
fn type_list(types: &[Type]) -> String {
    match types {
        [one] => one.to_string(),
        several => shown(&Shape::Tuple(several.iter().map(shape_of).collect())),
    }
}

/// The dimensions that are not in a list.
fn without(dims: &[u64], taken: &[usize]) -> Vec<u64> {
    dims.iter().enumerate().filter(|(dim, _)| !taken.contains(dim)).map(|(_, &size)| size).collect()
}
