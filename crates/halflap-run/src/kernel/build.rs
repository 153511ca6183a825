//! HLO to formulas.

mod compose;

use std::collections::HashMap;
use std::sync::Arc;

use halflap_hlo::ids::{ComputationId, InstrId};
use halflap_hlo::{Literal, Module, Opcode, Operand, Phase, Shape};

use super::ArrayType;
use super::block::{CompareOp, computed_as};
use super::error::{Gap, Unsupported};
use super::formula::*;
use super::literal;
use super::precision::FloatBits;
use crate::tensor::DType;

/// Custom calls that go from arrays of all devices to those of one, or back: the partitioner
/// replaces them.
const IN_MANUAL: [&str; 4] = [
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
];

/// The leaves of the tuple, or the one array, that an instruction returns.
type Leaves = Vec<TermId>;

/// One of an instruction's result arrays, counted through all tuples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResultLeaf {
    /// Its producer.
    pub instr: InstrId,
    /// Which of its results.
    pub index: usize,
}

/// The leaves of the producer's result that form the operand.
pub(crate) fn operand_leaves(module: &Module, operand: &Operand) -> std::ops::Range<usize> {
    let mut shape = &module.instruction(operand.of).shape;
    let mut first = 0;
    for &index in module.path(operand) {
        let parts = shape.parts();
        first += parts[..index as usize].iter().map(Shape::leaf_count).sum::<usize>();
        shape = &parts[index as usize];
    }
    first..first + shape.leaf_count()
}

/// The types of an instruction's results. A token is an array without elements.
pub(crate) fn leaf_kinds(module: &Module, instr: InstrId) -> Result<Vec<ArrayType>, Unsupported> {
    let mut leaves = Vec::new();
    module.instruction(instr).shape.leaves(&mut leaves);
    let kind = |shape: &&Shape| match shape {
        Shape::Array(array) if array.dynamic => Err(Unsupported::new(module, instr, Gap::Dynamic)),
        Shape::Array(array) => {
            let unsupported =
                || Unsupported::new(module, instr, Gap::ElementType(array.element.name()));
            let dtype = DType::of(array.element).ok_or_else(unsupported)?;
            let dims = array.dims.iter().map(|&dim| dim as usize).collect();
            Ok(ArrayType { dtype, dims })
        }
        _ => Ok(ArrayType { dtype: DType::Pred, dims: vec![0] }),
    };
    leaves.iter().map(kind).collect()
}

/// The leaves of an instruction's result that it produces: for a start, without its operands and
/// device context.
pub(crate) fn made_leaves(module: &Module, instr: InstrId) -> std::ops::Range<usize> {
    let shape = &module.instruction(instr).shape;
    let part = match module.instruction(instr).opcode {
        Opcode::CopyStart | Opcode::Recv => 0,
        Opcode::AsyncStart | Opcode::Wrapped(Phase::Start, _) => 1,
        _ => return 0..shape.leaf_count(),
    };
    let parts = shape.parts();
    let first = parts.iter().take(part).map(Shape::leaf_count).sum();
    first..first + parts.get(part).map_or(0, Shape::leaf_count)
}

/// Makes formulas of a module's instructions.
pub(super) struct FormulaBuilder<'m> {
    module: &'m Module,
    formula: Formula,
}

/// The results of the instructions in one call of a computation.
type TermFrame = HashMap<InstrId, Leaves>;

impl<'m> FormulaBuilder<'m> {
    /// The formula of one instruction, whose inputs are its operands' leaves, one after the other.
    pub(super) fn instruction(module: &'m Module, instr: InstrId) -> Result<Formula, Unsupported> {
        let mut builder = FormulaBuilder { module, formula: Formula::default() };
        let mut frame = TermFrame::new();
        for operand in module.operands(instr) {
            // An operand that occurs twice is two inputs; the frame holds one, and both are equal.
            let kinds = leaf_kinds(module, operand.of)?;
            let range = operand_leaves(module, operand);
            let known =
                frame.entry(operand.of).or_insert_with(|| vec![TermId(u32::MAX); kinds.len()]);
            for leaf in range {
                let ArrayType { dtype, dims } = kinds[leaf].clone();
                let op = Op::Input(builder.formula.inputs);
                builder.formula.inputs += 1;
                known[leaf] = builder.formula.push(Term {
                    op,
                    dtype,
                    dims,
                    args: Vec::new(),
                    origin: operand.of,
                });
            }
        }
        let leaves = builder.one(instr, &frame)?;
        builder.formula.outputs = leaves;
        Ok(builder.formula)
    }

    /// The formula of some instructions of one computation, and its inputs.
    pub(super) fn group(
        module: &'m Module,
        instrs: &[InstrId],
        outputs: &[InstrId],
    ) -> Result<(Formula, Vec<ResultLeaf>), Unsupported> {
        let mut builder = FormulaBuilder { module, formula: Formula::default() };
        let mut frame = TermFrame::new();
        let mut inputs = Vec::new();
        for &instr in instrs {
            for operand in module.operands(instr) {
                let is_inside = instrs.contains(&operand.of);
                if is_inside {
                    continue;
                }
                let kinds = leaf_kinds(module, operand.of)?;
                for index in operand_leaves(module, operand) {
                    let leaf = ResultLeaf { instr: operand.of, index };
                    if inputs.contains(&leaf) {
                        continue;
                    }
                    let ArrayType { dtype, dims } = kinds[index].clone();
                    let op = Op::Input(inputs.len());
                    let term = builder.formula.push(Term {
                        op,
                        dtype,
                        dims,
                        args: Vec::new(),
                        origin: operand.of,
                    });
                    let known = frame
                        .entry(operand.of)
                        .or_insert_with(|| vec![TermId(u32::MAX); kinds.len()]);
                    known[index] = term;
                    inputs.push(leaf);
                }
            }
            let leaves = builder.one(instr, &frame)?;
            frame.insert(instr, leaves);
        }
        builder.formula.inputs = inputs.len();
        builder.formula.outputs = outputs.iter().flat_map(|output| frame[output].clone()).collect();
        Ok((builder.formula, inputs))
    }

    /// The formula of a computation of scalars, as reductions and sorts apply it.
    pub(super) fn applied(
        module: &'m Module,
        of: InstrId,
        name: &'static str,
    ) -> Result<Formula, Unsupported> {
        let missing =
            || Unsupported::new(module, of, Gap::Attribute { key: name, value: String::new() });
        let computation = module.computation_in(of, name).ok_or_else(missing)?;
        FormulaBuilder::scalars(module, of, computation)
    }

    fn scalars(
        module: &'m Module,
        of: InstrId,
        computation: ComputationId,
    ) -> Result<Formula, Unsupported> {
        let mut builder = FormulaBuilder { module, formula: Formula::default() };
        let mut arguments = Vec::new();
        for parameter in module.parameters(computation) {
            let parameter = parameter.ok_or_else(|| Unsupported::new(module, of, Gap::Applied))?;
            let [ArrayType { dtype, dims }] = &leaf_kinds(module, parameter)?[..] else {
                return Err(Unsupported::new(module, of, Gap::Applied));
            };
            if !dims.is_empty() {
                return Err(Unsupported::new(module, of, Gap::Applied));
            }
            let op = Op::Input(arguments.len());
            let term =
                Term { op, dtype: *dtype, dims: Vec::new(), args: Vec::new(), origin: parameter };
            arguments.push(vec![builder.formula.push(term)]);
        }
        builder.formula.inputs = arguments.len();
        builder.formula.outputs = builder.computation(computation, &arguments)?;
        let is_scalar = builder.formula.terms.iter().all(|term| term.dims.is_empty());
        match is_scalar {
            true => Ok(builder.formula),
            false => Err(Unsupported::new(module, of, Gap::Applied)),
        }
    }

    fn computation(
        &mut self,
        computation: ComputationId,
        arguments: &[Leaves],
    ) -> Result<Leaves, Unsupported> {
        let mut frame = TermFrame::new();
        for instr in self.module.instructions(computation) {
            let leaves = match self.module.parameter_number(instr) {
                Some(number) => arguments
                    .get(number)
                    .cloned()
                    .ok_or_else(|| self.unsupported(instr, Gap::Shape))?,
                None => self.one(instr, &frame)?,
            };
            frame.insert(instr, leaves);
        }
        Ok(frame[&self.module.root(computation)].clone())
    }

    fn unsupported(&self, instr: InstrId, what: Gap) -> Unsupported {
        Unsupported::new(self.module, instr, what)
    }

    /// The terms of an instruction whose operands are in a frame.
    fn one(&mut self, instr: InstrId, frame: &TermFrame) -> Result<Leaves, Unsupported> {
        let module = self.module;
        let args: Vec<Leaves> = module
            .operands(instr)
            .iter()
            .map(|operand| frame[&operand.of][operand_leaves(module, operand)].to_vec())
            .collect();
        match module.instruction(instr).opcode.begun() {
            Opcode::Tuple
            | Opcode::Copy
            | Opcode::CopyStart
            | Opcode::OptimizationBarrier
            | Opcode::OptBarrierLong
            | Opcode::Domain => Ok(args.concat()),
            Opcode::AddDependency => Ok(args.into_iter().next().unwrap_or_default()),
            Opcode::GetTupleElement => self.tuple_element(instr, &args),
            Opcode::Fusion | Opcode::Call | Opcode::AsyncStart => {
                let [callee] = module.called(instr) else {
                    return Err(self.unsupported(instr, Gap::Shape));
                };
                self.computation(*callee, &args)
            }
            _ => {
                let mut leaves = leaf_kinds(module, instr)?;
                let kinds = leaves.drain(made_leaves(module, instr)).collect();
                let mut place = BuiltInstr { instr, args: args.concat(), kinds };
                self.computing(&mut place)
            }
        }
    }

    fn tuple_element(&self, instr: InstrId, args: &[Leaves]) -> Result<Leaves, Unsupported> {
        let shape_error = || self.unsupported(instr, Gap::Shape);
        let [operand] = self.module.operands(instr) else { return Err(shape_error()) };
        let index = self.module.tuple_index(instr).ok_or_else(shape_error)? as usize;
        let parts = self.module.operand_shape(operand).parts();
        let first: usize =
            parts.get(..index).ok_or_else(shape_error)?.iter().map(Shape::leaf_count).sum();
        let count = parts.get(index).ok_or_else(shape_error)?.leaf_count();
        Ok(args[0][first..first + count].to_vec())
    }

    /// An instruction that computes.
    fn computing(&mut self, place: &mut BuiltInstr) -> Result<Leaves, Unsupported> {
        let instr = place.instr;
        let opcode = self.module.instruction(instr).opcode.begun();
        if let Some(leaves) = self.moving(opcode, place)? {
            return Ok(leaves);
        }
        if let Some(leaves) = self.composed(opcode, place)? {
            return Ok(leaves);
        }
        let op = match opcode {
            Opcode::Parameter => return Err(self.unsupported(instr, Gap::NotAKernel)),
            Opcode::Constant => return self.constant(place),
            Opcode::Infeed => return Ok(self.zeros(place)),
            Opcode::CustomCall => match self.custom(place)? {
                CustomTerms::Op(op) => op,
                CustomTerms::Leaves(leaves) => return Ok(leaves),
            },
            Opcode::Compare => self.compare(instr)?,
            Opcode::Select => {
                place.args[0] = self.like(place.args[0], place.args[1]);
                Op::Select
            }
            Opcode::Clamp => {
                for bound in [0, 2] {
                    place.args[bound] = self.like(place.args[bound], place.args[1]);
                }
                Op::Clamp
            }
            Opcode::Convert => Op::Convert,
            Opcode::ReducePrecision => {
                // More bits than any type has are as many as the largest has.
                let bits = |key| self.number(instr, key).map(|number| number.min(63) as u8);
                let exponent = bits("exponent_bits")?;
                if exponent == 0 {
                    return Err(self.attribute(instr, "exponent_bits"));
                }
                Op::ReducePrecision(FloatBits { exponent, mantissa: bits("mantissa_bits")? })
            }
            Opcode::Map => return self.map(place),
            Opcode::PartitionId => Op::PartitionId,
            Opcode::ReplicaId => Op::ReplicaId,
            Opcode::AfterAll | Opcode::Outfeed => {
                place.args.clear();
                Op::Constant(Arc::new([]))
            }
            _ => match (opcode.is_elementwise(), place.args.len()) {
                (true, 1) => Op::Unary(opcode),
                (true, 2) => Op::Binary(opcode),
                _ => self.heavy(opcode, place)?,
            },
        };
        Ok(self.push(place, op))
    }

    /// An operation that only moves elements.
    fn moving(
        &mut self,
        opcode: Opcode,
        place: &mut BuiltInstr,
    ) -> Result<Option<Leaves>, Unsupported> {
        let instr = place.instr;
        let op = match opcode {
            Opcode::Bitcast => return self.bitcast(place).map(Some),
            Opcode::Reshape => Op::Reshape,
            Opcode::DynamicReshape => {
                place.args.truncate(1);
                Op::Reshape
            }
            Opcode::BitcastConvert => Op::Reinterpret,
            Opcode::Broadcast => Op::Broadcast(self.dims(instr, "dimensions")),
            Opcode::Transpose => Op::Transpose(self.dims(instr, "dimensions")),
            Opcode::Reverse => Op::Reverse(self.dims(instr, "dimensions")),
            Opcode::Iota => Op::Iota(self.number(instr, "iota_dimension")?),
            Opcode::Slice => {
                let dims = self.module.slice_dims(instr);
                if dims.len() != place.kinds[0].dims.len() {
                    return Err(self.attribute(instr, "slice"));
                }
                let start = dims.iter().map(|dim| dim.start as usize).collect();
                Op::Slice {
                    start,
                    stride: dims.iter().map(|dim| dim.stride.max(1) as usize).collect(),
                }
            }
            Opcode::Pad => Op::Pad(self.padding(instr, place.kinds[0].dims.len())?),
            Opcode::Concatenate => Op::Concatenate(self.number(instr, "dimensions")?),
            Opcode::DynamicSlice => Op::DynamicSlice,
            Opcode::DynamicUpdateSlice => Op::DynamicUpdateSlice,
            _ => return Ok(None),
        };
        Ok(Some(self.push(place, op)))
    }

    /// An operation that has its own kernel.
    fn heavy(&mut self, opcode: Opcode, place: &mut BuiltInstr) -> Result<Op, Unsupported> {
        let (module, instr) = (self.module, place.instr);
        if matches!(opcode, Opcode::Dot | Opcode::Convolution) {
            self.unify(place);
        }
        let applied = |name| Ok(Arc::new(FormulaBuilder::applied(module, instr, name)?));
        Ok(match opcode {
            Opcode::Reduce => {
                Op::Reduce { dims: self.dims(instr, "dimensions"), combiner: applied("to_apply")? }
            }
            Opcode::ReduceWindow => Op::ReduceWindow {
                window: self.window(instr, place.kinds[0].dims.len())?,
                combiner: applied("to_apply")?,
            },
            Opcode::SelectAndScatter => Op::SelectAndScatter {
                window: self.window(instr, place.kinds[0].dims.len())?,
                select: applied("select")?,
                combiner: applied("scatter")?,
            },
            Opcode::Dot => Op::Dot(Arc::new(Contraction {
                lhs_batch: self.dims(instr, "lhs_batch_dims"),
                rhs_batch: self.dims(instr, "rhs_batch_dims"),
                lhs_contracting: self.dims(instr, "lhs_contracting_dims"),
                rhs_contracting: self.dims(instr, "rhs_contracting_dims"),
            })),
            Opcode::Convolution => Op::Convolution(Arc::new(self.convolution(instr)?)),
            Opcode::Gather => Op::Gather(Arc::new(self.gather(instr)?)),
            Opcode::Scatter => {
                Op::Scatter { at: Arc::new(self.scatter(place)?), combiner: applied("to_apply")? }
            }
            Opcode::Sort => Op::Sort {
                dim: self.number(instr, "dimensions")?,
                comparator: applied("to_apply")?,
            },
            Opcode::TopK => Op::TopK {
                count: *place.kinds[0]
                    .dims
                    .last()
                    .ok_or_else(|| self.unsupported(instr, Gap::Shape))?,
            },
            Opcode::RngBitGenerator => Op::RandomBits(self.generator(instr)?),
            Opcode::Rng => Op::Random { is_normal: self.is_normal(instr)? },
            Opcode::RngGetAndUpdateState => {
                let kind = &place.kinds[0];
                if kind.dtype != DType::U64 || kind.dims != [2] {
                    return Err(self.unsupported(instr, Gap::Shape));
                }
                Op::RandomState { delta: self.number(instr, "delta")? as u64 }
            }
            Opcode::Cholesky => {
                Op::Cholesky { is_lower: module.attribute(instr, "lower") == Some("true") }
            }
            Opcode::TriangularSolve => Op::TriangularSolve(self.solving(instr)?),
            Opcode::Fft => self.fourier(instr)?,
            Opcode::GetDimensionSize => {
                let dim = self.number(instr, "dimensions")?;
                let size =
                    self.formula.term(place.args[0]).dims.get(dim).copied().unwrap_or(0) as i32;
                place.args.clear();
                Op::Constant(size.to_le_bytes().into())
            }
            Opcode::While | Opcode::Conditional => {
                return Err(self.unsupported(instr, Gap::NotAKernel));
            }
            _ if opcode.is_sync_collective() || opcode.phase().is_some() => {
                return Err(self.unsupported(instr, Gap::NotAKernel));
            }
            _ => return Err(self.unsupported(instr, Gap::Operation)),
        })
    }

    /// Converts operands to the result's type if they are computed in another one.
    fn unify(&mut self, place: &mut BuiltInstr) {
        let dtype = place.kinds[0].dtype;
        for arg in &mut place.args {
            let Term { dtype: own, ref dims, origin, .. } = *self.formula.term(*arg);
            if computed_as(own) != computed_as(dtype) {
                let dims = dims.clone();
                *arg = self.formula.push(Term {
                    op: Op::Convert,
                    dtype,
                    dims,
                    args: vec![*arg],
                    origin,
                });
            }
        }
    }

    /// Adds a term, and its parts if it has several results.
    fn push(&mut self, place: &BuiltInstr, op: Op) -> Leaves {
        let origin = place.instr;
        let term = |kind: &ArrayType, op, args| Term {
            op,
            dtype: kind.dtype,
            dims: kind.dims.clone(),
            args,
            origin,
        };
        let is_tuple = !self.module.instruction(origin).shape.parts().is_empty();
        let whole = self.formula.push(term(&place.kinds[0], op, place.args.clone()));
        if !is_tuple {
            return vec![whole];
        }
        let part = |(index, kind): (usize, &ArrayType)| {
            self.formula.push(term(kind, Op::Part(index), vec![whole]))
        };
        place.kinds.iter().enumerate().map(part).collect()
    }

    /// A term that is added between others.
    fn between(&mut self, op: Op, arg: TermId, dims: Vec<usize>) -> TermId {
        let Term { dtype, origin, .. } = *self.formula.term(arg);
        self.formula.push(Term { op, dtype, dims, args: vec![arg], origin })
    }

    /// A scalar as an array of the dimensions of another.
    fn like(&mut self, scalar: TermId, other: TermId) -> TermId {
        let dims = self.formula.term(other).dims.clone();
        match self.formula.term(scalar).dims.is_empty() && !dims.is_empty() {
            true => self.between(Op::Broadcast(Vec::new()), scalar, dims),
            false => scalar,
        }
    }

    fn constant(&mut self, place: &BuiltInstr) -> Result<Leaves, Unsupported> {
        let ArrayType { dtype, .. } = place.kinds[0];
        let unsupported = |gap| self.unsupported(place.instr, gap);
        let bytes = match self.module.read_literal(place.instr) {
            Ok(Literal::LeftOut) => Err(Gap::Elided),
            Ok(value) => literal::bytes(&value, dtype).map_err(Gap::Literal),
            Err(bad) => Err(Gap::Literal(bad)),
        };
        let bytes = bytes.map_err(unsupported)?;
        Ok(self.push(place, Op::Constant(bytes.into())))
    }

    /// Arrays of zeros, in place of data from a host.
    fn zeros(&mut self, place: &BuiltInstr) -> Leaves {
        let zero = |kind: &ArrayType| {
            let (dtype, origin) = (kind.dtype, place.instr);
            let op = Op::Constant(vec![0; dtype.size()].into());
            let scalar =
                self.formula.push(Term { op, dtype, dims: Vec::new(), args: Vec::new(), origin });
            match kind.dims.is_empty() {
                true => scalar,
                false => self.between(Op::Broadcast(Vec::new()), scalar, kind.dims.clone()),
            }
        };
        place.kinds.iter().map(zero).collect()
    }

    fn compare(&self, instr: InstrId) -> Result<Op, Unsupported> {
        let direction = self.module.attribute(instr, "direction").and_then(CompareOp::named);
        let direction = direction.ok_or_else(|| self.attribute(instr, "direction"))?;
        Ok(Op::Compare {
            direction,
            is_total: self.module.attribute(instr, "type") == Some("TOTALORDER"),
        })
    }

    /// A bitcast keeps the bytes in the memory that the layouts describe: the argument in the order
    /// of its memory, reshaped, and back from the memory order of the result.
    fn bitcast(&mut self, place: &BuiltInstr) -> Result<Leaves, Unsupported> {
        let module = self.module;
        let shape_error = || self.unsupported(place.instr, Gap::Shape);
        let [operand] = module.operands(place.instr) else { return Err(shape_error()) };
        let from = module.operand_shape(operand).array().ok_or_else(shape_error)?;
        let to = module.instruction(place.instr).shape.array().ok_or_else(shape_error)?;
        let major_first = |array: &halflap_hlo::Array| -> Vec<usize> {
            let order: Vec<usize> =
                module.layout(array).minor_to_major.iter().rev().map(|&dim| dim as usize).collect();
            if order.len() == array.dims.len() { order } else { (0..array.dims.len()).collect() }
        };
        let (from_order, to_order) = (major_first(from), major_first(to));
        let mut value = place.args[0];
        let dims = self.formula.term(value).dims.clone();
        let permuted = |dims: &[usize], order: &[usize]| {
            order.iter().map(|&dim| dims[dim]).collect::<Vec<_>>()
        };
        value = self.transposed(value, from_order.clone(), permuted(&dims, &from_order));
        if self.formula.term(value).dtype != place.kinds[0].dtype {
            let ArrayType { dtype, dims } = ArrayType {
                dtype: place.kinds[0].dtype,
                dims: permuted(&place.kinds[0].dims, &to_order),
            };
            value = self.formula.push(Term {
                op: Op::Reinterpret,
                dtype,
                dims,
                args: vec![value],
                origin: place.instr,
            });
        }
        let physical = permuted(&place.kinds[0].dims, &to_order);
        if self.formula.term(value).dims != physical {
            value = self.between(Op::Reshape, value, physical);
        }
        let mut back = vec![0; to_order.len()];
        to_order.iter().enumerate().for_each(|(place, &dim)| back[dim] = place);
        Ok(vec![self.transposed(value, back, place.kinds[0].dims.clone())])
    }

    fn transposed(&mut self, value: TermId, order: Vec<usize>, dims: Vec<usize>) -> TermId {
        match order.iter().enumerate().all(|(place, &dim)| place == dim) {
            true => value,
            false => self.between(Op::Transpose(order), value, dims),
        }
    }

    /// A map is its computation of scalars, on arrays.
    fn map(&mut self, place: &BuiltInstr) -> Result<Leaves, Unsupported> {
        let applied = FormulaBuilder::applied(self.module, place.instr, "to_apply")?;
        let mut terms: Vec<TermId> = Vec::with_capacity(applied.terms.len());
        for term in &applied.terms {
            let id = match term.op {
                Op::Input(number) => place.args[number],
                _ => {
                    let args = term.args.iter().map(|arg| terms[arg.0 as usize]).collect();
                    let is_made_of_nothing = term.args.is_empty();
                    let dims =
                        if is_made_of_nothing { Vec::new() } else { place.kinds[0].dims.clone() };
                    let id = self.formula.push(Term { dims, args, ..term.clone() });
                    if is_made_of_nothing { self.like(id, place.args[0]) } else { id }
                }
            };
            terms.push(id);
        }
        Ok(applied.outputs.iter().map(|output| terms[output.0 as usize]).collect())
    }

    fn custom(&mut self, place: &BuiltInstr) -> Result<CustomTerms, Unsupported> {
        if self.module.is_pass_on_call(place.instr) {
            return self.passed_on(place).map(CustomTerms::Leaves);
        }
        let target = self.module.custom_call_target(place.instr).unwrap_or("");
        Ok(CustomTerms::Op(match target {
            "ApproxTopK" | "PartialReduce" => return self.chosen(place).map(CustomTerms::Leaves),
            "TopK" => {
                let count = place.kinds[0].dims.last().copied();
                Op::TopK { count: count.ok_or_else(|| self.unsupported(place.instr, Gap::Shape))? }
            }
            // Memory that is written before it is read.
            "AllocateBuffer" => {
                let size =
                    place.kinds[0].dims.iter().product::<usize>() * place.kinds[0].dtype.size();
                Op::Constant(vec![0; size].into())
            }
            other => self.lapack(place, other).unwrap_or_else(|| Op::Custom(other.into())),
        }))
    }

    /// The operands as they are.
    fn passed_on(&mut self, place: &BuiltInstr) -> Result<Leaves, Unsupported> {
        let is_same = |(&arg, kind): (&TermId, &ArrayType)| {
            let term = self.formula.term(arg);
            term.dtype == kind.dtype && term.dims == kind.dims
        };
        if place.args.len() != place.kinds.len()
            || !place.args.iter().zip(&place.kinds).all(is_same)
        {
            let target = self.module.custom_call_target(place.instr);
            let gap = match target.filter(|target| IN_MANUAL.contains(target)) {
                Some(target) => Gap::Unpartitioned(target.to_owned()),
                None => Gap::Shape,
            };
            return Err(self.unsupported(place.instr, gap));
        }
        let pass = |&arg: &TermId| {
            let Term { dtype, ref dims, .. } = *self.formula.term(arg);
            let (dims, args) = (dims.clone(), vec![arg]);
            self.formula.push(Term { op: Op::Reshape, dtype, dims, args, origin: place.instr })
        };
        Ok(place.args.iter().map(pass).collect())
    }

    /// A routine of LAPACK, as JAX names it: `lapack_spotrf_ffi`.
    fn lapack(&self, place: &BuiltInstr, target: &str) -> Option<Op> {
        let name = target.strip_prefix("lapack_")?.strip_suffix("_ffi")?;
        let name = name.strip_prefix(['s', 'd', 'c', 'z'])?;
        // Its settings are letters, given as numbers, and flags.
        let config = self.module.attribute(place.instr, "backend_config").unwrap_or("");
        let setting = |key: &str| Some(config.split_once(&format!("{key} = "))?.1);
        let letter = |key: &str| {
            let number: String = setting(key)?.chars().take_while(char::is_ascii_digit).collect();
            Some(char::from(number.parse::<u8>().ok()?))
        };
        let flag = |key: &str| Some(setting(key)?.starts_with("true"));
        let is_lower = || Some(letter("uplo")? == 'L');
        Some(Op::Lapack(match name {
            "potrf" => Routine::Cholesky { is_lower: is_lower()? },
            "getrf" => Routine::Eliminate,
            "geqrf" | "geqp3" => Routine::Reflect { is_pivoted: name == "geqp3" },
            "orgqr" | "ungqr" => {
                let count = self.formula.term(*place.args.get(1)?).dims.last().copied();
                Routine::Reflections { count: count? }
            }
            "ormqr" | "unmqr" => {
                Routine::MultiplyBy { is_left: flag("left")?, is_conjugated: flag("transpose")? }
            }
            "gehrd" => Routine::Hessenberg,
            "sytrd" | "hetrd" => Routine::Tridiagonal { is_lower: is_lower()? },
            "syevd" | "heevd" => Routine::Eigen { is_lower: is_lower()? },
            "geev" => Routine::General {
                has_left: letter("compute_left")? == 'V',
                has_right: letter("compute_right")? == 'V',
            },
            // Eigenvalues in the order in which they are found.
            "gees" if letter("sort")? == 'N' => {
                Routine::Schur { has_vectors: letter("mode")? == 'V' }
            }
            "gesdd" | "gesvd" => Routine::Singular { has_vectors: letter("mode")? != 'N' },
            "gtsv" => Routine::Diagonals,
            "trsm" => {
                let transposed = letter("trans_x")?;
                return Some(Op::TriangularSolve(Solving {
                    is_left: letter("side")? == 'L',
                    is_lower: is_lower()?,
                    is_transposed: transposed != 'N',
                    is_conjugated: transposed == 'C',
                    is_unit: letter("diag")? == 'U',
                }));
            }
            _ => return None,
        }))
    }

    fn fourier(&self, instr: InstrId) -> Result<Op, Unsupported> {
        let transform = match self.module.attribute(instr, "fft_type") {
            Some("FFT") => Transform::Forward,
            Some("IFFT") => Transform::Inverse,
            Some("RFFT") => Transform::Real,
            Some("IRFFT") => Transform::InverseReal,
            _ => return Err(self.attribute(instr, "fft_type")),
        };
        Ok(Op::Fft { transform, lengths: self.dims(instr, "fft_length") })
    }

    fn dims(&self, instr: InstrId, key: &str) -> Vec<usize> {
        self.module.numbers(instr, key).into_iter().map(|number| number as usize).collect()
    }

    fn attribute(&self, instr: InstrId, key: &'static str) -> Unsupported {
        let value = self.module.attribute(instr, key).unwrap_or("").to_owned();
        self.unsupported(instr, Gap::Attribute { key, value })
    }

    fn number(&self, instr: InstrId, key: &'static str) -> Result<usize, Unsupported> {
        match self.module.numbers(instr, key)[..] {
            [number] if number >= 0 => Ok(number as usize),
            _ => Err(self.attribute(instr, key)),
        }
    }

    /// `0_1x2_3_1`: low, high and perhaps interior of each dimension.
    fn padding(&self, instr: InstrId, rank: usize) -> Result<Vec<Padding>, Unsupported> {
        let read = |part: &str| {
            let numbers: Option<Vec<i64>> =
                part.split('_').map(|number| number.trim().parse().ok()).collect();
            match numbers?[..] {
                [low, high] => Some(Padding { low, high, interior: 0 }),
                [low, high, interior] => Some(Padding { low, high, interior }),
                _ => None,
            }
        };
        if rank == 0 {
            return Ok(Vec::new());
        }
        let text = self.module.attribute(instr, "padding").unwrap_or("");
        let padding: Option<Vec<Padding>> = text.split('x').map(read).collect();
        padding
            .filter(|padding| padding.len() == rank)
            .ok_or_else(|| self.attribute(instr, "padding"))
    }

    fn window(
        &self,
        instr: InstrId,
        rank: usize,
    ) -> Result<Vec<halflap_hlo::WindowDim>, Unsupported> {
        let window = self.module.window(instr).dims;
        if window.len() == rank { Ok(window) } else { Err(self.attribute(instr, "window")) }
    }

    fn convolution(&self, instr: InstrId) -> Result<Convolving, Unsupported> {
        let dims =
            self.module.conv_dims(instr).ok_or_else(|| self.attribute(instr, "dim_labels"))?;
        let window = self.window(instr, dims.input_spatial.len())?;
        let count =
            |key| self.module.numbers(instr, key).first().map_or(1, |&count| count.max(1) as usize);
        let (feature_groups, batch_groups) =
            (count("feature_group_count"), count("batch_group_count"));
        Ok(Convolving { window, dims, feature_groups, batch_groups })
    }

    fn gather(&self, instr: InstrId) -> Result<Indexing, Unsupported> {
        Ok(Indexing {
            offset_dims: self.dims(instr, "offset_dims"),
            collapsed_dims: self.dims(instr, "collapsed_slice_dims"),
            operand_batching: self.dims(instr, "operand_batching_dims"),
            indices_batching: self.dims(instr, "start_indices_batching_dims"),
            start_index_map: self.dims(instr, "start_index_map"),
            index_vector_dim: self.number(instr, "index_vector_dim")?,
            slice_sizes: self.dims(instr, "slice_sizes"),
        })
    }

    /// A scatter's dimensions under the names of the gather that would read what it writes.
    fn scatter(&self, place: &BuiltInstr) -> Result<Indexing, Unsupported> {
        let instr = place.instr;
        let mut indexing = Indexing {
            offset_dims: self.dims(instr, "update_window_dims"),
            collapsed_dims: self.dims(instr, "inserted_window_dims"),
            operand_batching: self.dims(instr, "input_batching_dims"),
            indices_batching: self.dims(instr, "scatter_indices_batching_dims"),
            start_index_map: self.dims(instr, "scatter_dims_to_operand_dims"),
            index_vector_dim: self.number(instr, "index_vector_dim")?,
            slice_sizes: Vec::new(),
        };
        let operands = (place.args.len() - 1) / 2;
        let updates = self.formula.term(place.args[operands + 1]);
        let mut windows = indexing.offset_dims.iter().map(|&dim| updates.dims[dim]);
        let rank = self.formula.term(place.args[0]).dims.len();
        indexing.slice_sizes = (0..rank)
            .map(|dim| {
                match indexing.collapsed_dims.contains(&dim)
                    || indexing.operand_batching.contains(&dim)
                {
                    true => 1,
                    false => windows.next().unwrap_or(1),
                }
            })
            .collect();
        Ok(indexing)
    }

    fn generator(&self, instr: InstrId) -> Result<Generator, Unsupported> {
        match self.module.attribute(instr, "algorithm") {
            Some("rng_three_fry") => Ok(Generator::ThreeFry),
            Some("rng_philox" | "rng_default") => Ok(Generator::Philox),
            _ => Err(self.attribute(instr, "algorithm")),
        }
    }

    fn is_normal(&self, instr: InstrId) -> Result<bool, Unsupported> {
        match self.module.attribute(instr, "distribution") {
            Some("rng_uniform") => Ok(false),
            Some("rng_normal") => Ok(true),
            _ => Err(self.attribute(instr, "distribution")),
        }
    }

    fn solving(&self, instr: InstrId) -> Result<Solving, Unsupported> {
        let flag = |key| self.module.attribute(instr, key) == Some("true");
        let transposed = self.module.attribute(instr, "transpose_a").unwrap_or("NO_TRANSPOSE");
        Ok(Solving {
            is_left: flag("left_side"),
            is_lower: flag("lower"),
            is_transposed: transposed != "NO_TRANSPOSE",
            is_conjugated: transposed == "ADJOINT",
            is_unit: flag("unit_diagonal"),
        })
    }
}

/// What a custom call becomes.
enum CustomTerms {
    Op(Op),
    Leaves(Leaves),
}

/// An instruction, its arguments and its results.
struct BuiltInstr {
    instr: InstrId,
    args: Vec<TermId>,
    kinds: Vec<ArrayType>,
}
