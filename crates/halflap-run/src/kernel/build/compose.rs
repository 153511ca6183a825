//! Operations that are others put together, as XLA's compilers expand them: batch normalisation,
//! stochastic rounding, bits of narrow integers, and the approximate choice of the largest.

use std::sync::Arc;

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Literal, Opcode};

use super::{BuiltInstr, FormulaBuilder, Leaves};
use crate::kernel::ArrayType;
use crate::kernel::block::CompareOp;
use crate::kernel::error::{Gap, Unsupported};
use crate::kernel::formula::*;
use crate::kernel::literal;
use crate::tensor::{DType, Tiny};

impl FormulaBuilder<'_> {
    /// The terms of an operation that is made of others; `None` if it has its own.
    pub(super) fn composed(
        &mut self,
        opcode: Opcode,
        place: &BuiltInstr,
    ) -> Result<Option<Leaves>, Unsupported> {
        let mut composer = Composer { instr: place.instr, builder: self };
        Ok(Some(match opcode {
            Opcode::BatchNormTraining => composer.normalized(&place.args)?,
            Opcode::BatchNormInference => composer.inferred(&place.args)?,
            Opcode::BatchNormGrad => composer.gradients(&place.args)?,
            Opcode::StochasticConvert => {
                vec![composer.rounded(&place.args, place.kinds[0].dtype)?]
            }
            Opcode::PopulationCount | Opcode::Clz | Opcode::ShiftRightLogical => {
                match place.kinds[0].dtype {
                    DType::Tiny(tiny) => vec![composer.bits(opcode, &place.args, tiny)],
                    _ => return Ok(None),
                }
            }
            _ => return Ok(None),
        }))
    }

    /// The largest elements along a dimension, or the smallest: the comparator decides. All
    /// operands are chosen alike. What is approximate on a TPU is exact here.
    pub(super) fn chosen(&mut self, place: &BuiltInstr) -> Result<Leaves, Unsupported> {
        let instr = place.instr;
        let wrong = || self.unsupported(instr, Gap::Shape);
        // Half of the operands are the initial values of a reduction that is not needed.
        let of = &place.args[..place.args.len() / 2];
        let from = self.formula.term(*of.first().ok_or_else(wrong)?).dims.clone();
        let dim = self.reduced_dim(instr, from.len()).ok_or_else(wrong)?;
        let is_choice = |(&arg, kind): (&TermId, &ArrayType)| {
            let term = self.formula.term(arg);
            let is_other = |at: usize| at != dim && kind.dims[at] != from[at];
            term.dims == from
                && term.dtype == kind.dtype
                && kind.dims.len() == from.len()
                && kind.dims[dim] <= from[dim]
                && !(0..from.len()).any(is_other)
        };
        if place.kinds.len() != of.len() || !of.iter().zip(&place.kinds).all(is_choice) {
            return Err(wrong());
        }
        let &[comparator] = self.module.called(instr) else { return Err(wrong()) };
        let comparator = FormulaBuilder::scalars(self.module, instr, comparator)?;
        let sort = Op::Sort { dim, comparator: Arc::new(comparator) };
        let kinds = place.kinds.iter().map(|kind| ArrayType { dims: from.clone(), ..*kind });
        let sorted = BuiltInstr { instr, args: of.to_vec(), kinds: kinds.collect() };
        let sorted = self.push(&sorted, sort);
        let slice = Op::Slice { start: vec![0; from.len()], stride: vec![1; from.len()] };
        let first = |(leaf, kind): (TermId, &ArrayType)| match kind.dims == from {
            true => leaf,
            false => self.between(slice.clone(), leaf, kind.dims.clone()),
        };
        Ok(sorted.into_iter().zip(&place.kinds).map(first).collect())
    }

    /// `reduction_dim` of a custom call's settings, counted from the end if it is negative.
    fn reduced_dim(&self, instr: InstrId, rank: usize) -> Option<usize> {
        let config = self.module.attribute(instr, "backend_config")?;
        let value = config.split_once("reduction_dim")?.1;
        let value = value.trim_start_matches(|c: char| c != '-' && !c.is_ascii_digit());
        let is_end = |&(at, c): &(usize, char)| at > 0 && !c.is_ascii_digit();
        let end = value.char_indices().find(is_end).map_or(value.len(), |(at, _)| at);
        let dim: i64 = value[..end].parse().ok()?;
        let dim = if dim < 0 { dim + rank as i64 } else { dim };
        usize::try_from(dim).ok().filter(|&dim| dim < rank)
    }
}

/// Adds the terms of one instruction.
struct Composer<'b, 'm> {
    instr: InstrId,
    builder: &'b mut FormulaBuilder<'m>,
}

/// The features of what is normalised: one dimension of it.
struct Features {
    dim: usize,
    /// How many elements belong to one.
    count: f64,
    /// What is added to variances.
    epsilon: f64,
}

impl Composer<'_, '_> {
    fn term(&self, id: TermId) -> &Term {
        self.builder.formula.term(id)
    }

    fn add(&mut self, op: Op, kind: ArrayType, args: Vec<TermId>) -> TermId {
        let ArrayType { dtype, dims } = kind;
        self.builder.formula.push(Term { op, dtype, dims, args, origin: self.instr })
    }

    /// An operation on arrays of the same dimensions, of the first one's type.
    fn elementwise(&mut self, op: Op, args: &[TermId]) -> TermId {
        let Term { dtype, ref dims, .. } = *self.term(args[0]);
        let dims = dims.clone();
        self.add(op, ArrayType { dtype, dims }, args.to_vec())
    }

    fn unary(&mut self, opcode: Opcode, of: TermId) -> TermId {
        self.elementwise(Op::Unary(opcode), &[of])
    }

    fn binary(&mut self, opcode: Opcode, a: TermId, b: TermId) -> TermId {
        self.elementwise(Op::Binary(opcode), &[a, b])
    }

    fn compare(&mut self, a: TermId, direction: CompareOp, b: TermId) -> TermId {
        let dims = self.term(a).dims.clone();
        let kind = ArrayType { dtype: DType::Pred, dims };
        self.add(Op::Compare { direction, is_total: false }, kind, vec![a, b])
    }

    fn select(&mut self, condition: TermId, yes: TermId, no: TermId) -> TermId {
        let Term { dtype, ref dims, .. } = *self.term(yes);
        let dims = dims.clone();
        self.add(Op::Select, ArrayType { dtype, dims }, vec![condition, yes, no])
    }

    fn convert(&mut self, of: TermId, dtype: DType) -> TermId {
        let dims = self.term(of).dims.clone();
        self.add(Op::Convert, ArrayType { dtype, dims }, vec![of])
    }

    fn scalar(&mut self, value: &Literal, dtype: DType) -> Result<TermId, Unsupported> {
        let unsupported = |_| self.builder.unsupported(self.instr, Gap::OfType(dtype));
        let bytes = literal::bytes(value, dtype).map_err(unsupported)?;
        let kind = ArrayType { dtype, dims: Vec::new() };
        Ok(self.add(Op::Constant(bytes.into()), kind, Vec::new()))
    }

    /// A real number in every element of an array like another.
    fn real(&mut self, number: f64, other: TermId) -> Result<TermId, Unsupported> {
        let scalar = self.scalar(&Literal::Float(vec![number]), self.term(other).dtype)?;
        Ok(self.builder.like(scalar, other))
    }

    /// The same with an integer.
    fn whole(&mut self, number: i128, other: TermId) -> Result<TermId, Unsupported> {
        let scalar = self.scalar(&Literal::Whole(vec![number]), self.term(other).dtype)?;
        Ok(self.builder.like(scalar, other))
    }

    fn features(&self, of: TermId) -> Result<Features, Unsupported> {
        let dim = self.builder.number(self.instr, "feature_index")?;
        let term = self.term(of);
        let extent = term.dims.get(dim).copied();
        let extent = extent.ok_or_else(|| self.builder.attribute(self.instr, "feature_index"))?;
        let text = self.builder.module.attribute(self.instr, "epsilon").unwrap_or("");
        // It is an f32, whatever it is added to.
        let epsilon: f32 =
            text.trim().parse().map_err(|_| self.builder.attribute(self.instr, "epsilon"))?;
        let count = (term.len() / extent.max(1)) as f64;
        Ok(Features { dim, count, epsilon: f64::from(epsilon) })
    }

    /// A number for each feature, in all elements of that feature.
    fn spread(&mut self, each: TermId, features: &Features, like: TermId) -> TermId {
        let (dtype, dims) = (self.term(each).dtype, self.term(like).dims.clone());
        self.add(Op::Broadcast(vec![features.dim]), ArrayType { dtype, dims }, vec![each])
    }

    /// The sum of the elements of each feature.
    fn sum(&mut self, of: TermId, features: &Features) -> Result<TermId, Unsupported> {
        let Term { dtype, ref dims, .. } = *self.term(of);
        let extent = dims[features.dim];
        let others = (0..dims.len()).filter(|&dim| dim != features.dim).collect();
        let zero = self.scalar(&Literal::Float(vec![0.0]), dtype)?;
        let combiner = Arc::new(addition(dtype, self.instr));
        let kind = ArrayType { dtype, dims: vec![extent] };
        Ok(self.add(Op::Reduce { dims: others, combiner }, kind, vec![of, zero]))
    }

    fn mean(&mut self, of: TermId, features: &Features) -> Result<TermId, Unsupported> {
        let count = self.real(features.count, of)?;
        Ok(self.binary(Opcode::Divide, of, count))
    }

    /// The inverse of a standard deviation.
    fn inverse(&mut self, variance: TermId, features: &Features) -> Result<TermId, Unsupported> {
        let epsilon = self.real(features.epsilon, variance)?;
        let more = self.binary(Opcode::Add, variance, epsilon);
        Ok(self.unary(Opcode::Rsqrt, more))
    }

    /// `batch-norm-training`: what is normalised, and the means and variances of features.
    fn normalized(&mut self, args: &[TermId]) -> Result<Leaves, Unsupported> {
        let &[x, scale, offset] = args else { return Err(self.wrong()) };
        let features = self.features(x)?;
        let squares = self.binary(Opcode::Multiply, x, x);
        let [mean, square] = [x, squares].map(|of| self.sum(of, &features));
        let (mean, square) = (self.mean(mean?, &features)?, self.mean(square?, &features)?);
        let squared = self.binary(Opcode::Multiply, mean, mean);
        let variance = self.binary(Opcode::Subtract, square, squared);
        let inverse = self.inverse(variance, &features)?;
        let [centre, by, gain, shift] =
            [mean, inverse, scale, offset].map(|each| self.spread(each, &features, x));
        let centred = self.binary(Opcode::Subtract, x, centre);
        let even = self.binary(Opcode::Multiply, centred, by);
        let scaled = self.binary(Opcode::Multiply, even, gain);
        Ok(vec![self.binary(Opcode::Add, scaled, shift), mean, variance])
    }

    /// `batch-norm-inference`: a line for each feature.
    fn inferred(&mut self, args: &[TermId]) -> Result<Leaves, Unsupported> {
        let &[x, scale, offset, mean, variance] = args else { return Err(self.wrong()) };
        let features = self.features(x)?;
        let inverse = self.inverse(variance, &features)?;
        let slope = self.binary(Opcode::Multiply, scale, inverse);
        let less = self.binary(Opcode::Multiply, mean, slope);
        let start = self.binary(Opcode::Subtract, offset, less);
        let [slope, start] = [slope, start].map(|each| self.spread(each, &features, x));
        let scaled = self.binary(Opcode::Multiply, x, slope);
        Ok(vec![self.binary(Opcode::Add, scaled, start)])
    }

    /// `batch-norm-grad`: the gradients of what was normalised, of scales and of offsets.
    fn gradients(&mut self, args: &[TermId]) -> Result<Leaves, Unsupported> {
        let &[x, scale, mean, variance, grad] = args else { return Err(self.wrong()) };
        let features = self.features(x)?;
        let centre = self.spread(mean, &features, x);
        let centred = self.binary(Opcode::Subtract, x, centre);
        let product = self.binary(Opcode::Multiply, grad, centred);
        let along = self.sum(product, &features)?;
        let offset_grad = self.sum(grad, &features)?;
        let inverse = self.inverse(variance, &features)?;
        let scale_grad = self.binary(Opcode::Multiply, along, inverse);
        // What does not change the mean or the variance remains.
        let [sum, along, spread, inverse, scale] = [offset_grad, along, variance, inverse, scale]
            .map(|each| self.spread(each, &features, x));
        let epsilon = self.real(features.epsilon, x)?;
        let spread = self.binary(Opcode::Add, spread, epsilon);
        let along = self.binary(Opcode::Multiply, along, centred);
        let along = self.binary(Opcode::Divide, along, spread);
        let count = self.real(features.count, x)?;
        let many = self.binary(Opcode::Multiply, grad, count);
        let rest = self.binary(Opcode::Subtract, many, sum);
        let rest = self.binary(Opcode::Subtract, rest, along);
        let by = self.binary(Opcode::Multiply, scale, inverse);
        let by = self.mean(by, &features)?;
        Ok(vec![self.binary(Opcode::Multiply, by, rest), scale_grad, offset_grad])
    }

    /// `stochastic-convert` to a signed integer: away from zero if the fraction is larger than a
    /// random one, else towards it.
    fn rounded(&mut self, args: &[TermId], to: DType) -> Result<TermId, Unsupported> {
        let &[x, random] = args else { return Err(self.wrong()) };
        let (from, noise) = (self.term(x).dtype, self.term(random).dtype);
        let is_noise = matches!(noise, DType::U8 | DType::U16 | DType::U32 | DType::U64);
        let bits = match to {
            DType::S8 | DType::S16 | DType::S32 | DType::S64 => 8 * to.size() as u32,
            DType::Tiny(tiny) if tiny.is_signed() => tiny.bits(),
            _ => return Err(self.builder.unsupported(self.instr, Gap::OfType(to))),
        };
        if !from.is_float() || !is_noise || noise.size() != from.size() {
            return Err(self.wrong());
        }
        let size = self.unary(Opcode::Abs, x);
        let floor = self.unary(Opcode::Floor, size);
        let fraction = self.binary(Opcode::Subtract, size, floor);
        // f16 does not have the factor.
        let fraction = match from {
            DType::F16 => self.convert(fraction, DType::F32),
            _ => fraction,
        };
        let steps = self.real(2f64.powi(8 * noise.size() as i32), fraction)?;
        let fraction = self.binary(Opcode::Multiply, fraction, steps);
        let fraction = self.convert(fraction, noise);
        let is_up = self.compare(random, CompareOp::Lt, fraction);
        let down = self.convert(floor, to);
        let one = self.whole(1, down)?;
        let up = self.binary(Opcode::Add, down, one);
        let near = self.select(is_up, up, down);
        let opposite = self.unary(Opcode::Negate, near);
        let zero = self.real(0.0, x)?;
        let is_below = self.compare(x, CompareOp::Lt, zero);
        let mut result = self.select(is_below, opposite, near);
        let most = (1i128 << (bits - 1)) - 1;
        for (limit, beyond) in [(-most - 1, CompareOp::Le), (most, CompareOp::Ge)] {
            let bound = self.real(limit as f64, x)?;
            let is_beyond = self.compare(x, beyond, bound);
            let limit = self.whole(limit, result)?;
            result = self.select(is_beyond, limit, result);
        }
        Ok(result)
    }

    /// An operation on the bits of a narrow integer, which is in a byte with others before it.
    fn bits(&mut self, opcode: Opcode, args: &[TermId], tiny: Tiny) -> TermId {
        let mut args: Vec<TermId> = args.iter().map(|&arg| self.convert(arg, DType::U8)).collect();
        let byte = |this: &mut Self, value: u8| {
            let op = Op::Constant(Arc::new([value]));
            let kind = ArrayType { dtype: DType::U8, dims: Vec::new() };
            let scalar = this.add(op, kind, Vec::new());
            this.builder.like(scalar, args[0])
        };
        let (own, others) = (byte(self, (1 << tiny.bits()) - 1), byte(self, 8 - tiny.bits() as u8));
        args[0] = self.binary(Opcode::And, args[0], own);
        let result = match args[..] {
            [of] => self.unary(opcode, of),
            _ => self.binary(opcode, args[0], args[1]),
        };
        let result = match opcode {
            Opcode::Clz => self.binary(Opcode::Subtract, result, others),
            _ => result,
        };
        self.convert(result, DType::Tiny(tiny))
    }

    fn wrong(&self) -> Unsupported {
        self.builder.unsupported(self.instr, Gap::Shape)
    }
}

/// The sum of two numbers.
fn addition(dtype: DType, origin: InstrId) -> Formula {
    let mut formula = Formula { inputs: 2, ..Formula::default() };
    let scalar = |op, args| Term { op, dtype, dims: Vec::new(), args, origin };
    let args = [0, 1].map(|number| formula.push(scalar(Op::Input(number), Vec::new())));
    let sum = formula.push(scalar(Op::Binary(Opcode::Add), args.to_vec()));
    formula.outputs.push(sum);
    formula
}
