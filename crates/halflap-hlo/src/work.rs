//! How much an instruction computes and moves, from shapes.
//!
//! Floating-point operations count one for each element of an elementwise result and two for each
//! product of a dot or convolution; products with the zeros of padding and dilation do not count.
//! Bytes are what is read and written, each operand once: for one that is only sliced, the slices;
//! for a large array that is updated in place, the update.

use super::{Array, Module, Opcode, Shape};
use crate::ids::{ComputationId, InstrId};
use crate::lex::numbers_in;
use halflap::ids::IdVec;
use halflap::rewrite::TAIL;
use halflap::units::{Bytes, Flops};

/// What an instruction does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct InstrWork {
    pub(super) flops: Flops,
    pub(super) bytes: Bytes,
    /// Whether a dot or convolution is in it.
    pub(super) gemm_like: bool,
}

/// The work of whole computations, each computed once.
pub(super) struct Works {
    of: IdVec<ComputationId, Option<InstrWork>>,
}

impl Works {
    pub(super) fn new(module: &Module) -> Works {
        Works { of: IdVec::filled(None, module.computations().len()) }
    }

    /// What an instruction does.
    pub(super) fn of(&mut self, module: &Module, instr: InstrId) -> InstrWork {
        let instruction = module.instruction(instr);
        let gemm_like = matches!(
            instruction.opcode,
            Opcode::Dot | Opcode::Convolution | Opcode::RaggedDot | Opcode::ScaledDot
        );
        let bytes = Bytes(traffic(module, instr).0.max(0));
        match instruction.opcode {
            Opcode::Fusion | Opcode::Map => {
                let inner = module
                    .called(instr)
                    .first()
                    .map_or(InstrWork::default(), |&callee| self.computation(module, callee));
                let times = if instruction.opcode == Opcode::Map {
                    elements(&instruction.shape)
                } else {
                    1.0
                };
                InstrWork { flops: Flops(inner.flops.0 * times), bytes, gemm_like: inner.gemm_like }
            }
            Opcode::CustomCall => custom_call(module, instr, bytes),
            _ => InstrWork { flops: Flops(flops(module, instr)), bytes, gemm_like },
        }
    }

    /// What all instructions of a computation do; fusions call fusions, and none calls itself.
    fn computation(&mut self, module: &Module, computation: ComputationId) -> InstrWork {
        // Deep chains of calls would overflow the stack, so callees are computed first.
        let mut open = vec![computation];
        while let Some(&top) = open.last() {
            let fused =
                module.instructions(top).flat_map(|instr| module.called(instr).iter().copied());
            let missing: Vec<ComputationId> =
                fused.filter(|&callee| self.of[callee].is_none()).collect();
            if !missing.is_empty() {
                open.extend(missing);
                continue;
            }
            open.pop();
            if self.of[top].is_none() {
                let mut sum = InstrWork::default();
                for instr in module.instructions(top) {
                    let work = self.of(module, instr);
                    sum.flops = Flops(sum.flops.0 + work.flops.0);
                    sum.gemm_like |= work.gemm_like;
                }
                self.of[top] = Some(sum);
            }
        }
        self.of[computation].unwrap_or_default()
    }
}

/// The frontend attribute of a piece of a product: how many there are, and the bytes of its tail if
/// they are not the usual ones.
pub(crate) const PIECES: &str = "halflap_pieces";

/// How much longer a piece of a product takes than its share of the whole. A piece starts and ends
/// like the whole, when not all of the device is busy.
fn piece_loss(module: &Module, instr: InstrId) -> f64 {
    let attributes = module.attribute(instr, "frontend_attributes").unwrap_or("");
    let Some((_, rest)) = attributes.split_once(PIECES) else { return 1.0 };
    let numbers = numbers_in(rest.split('"').nth(1).unwrap_or(""));
    let Some(&pieces) = numbers.first().filter(|pieces| **pieces > 0) else { return 1.0 };
    let tail = numbers.get(1).copied().filter(|tail| *tail >= 0).unwrap_or(TAIL.0);
    let (pieces, tail) = (pieces as f64, tail as f64);
    let Some(array) = module.instruction(instr).shape.array() else { return 1.0 };
    let result = pieces * array.elements() as f64 * f64::from(array.element.bits()) / 8.0;
    (result + pieces * tail) / (result + tail)
}

fn elements(shape: &Shape) -> f64 {
    match shape {
        Shape::Array(array) => array.elements() as f64,
        Shape::Tuple(parts) => parts.iter().map(elements).sum(),
        Shape::Token | Shape::Opaque => 0.0,
    }
}

fn operand_array(module: &Module, instr: InstrId, index: usize) -> Option<&Array> {
    module.operand_shape(module.operands(instr).get(index)?).array()
}

fn flops(module: &Module, instr: InstrId) -> f64 {
    let shape = &module.instruction(instr).shape;
    let first = || {
        module
            .operands(instr)
            .first()
            .map_or(0.0, |operand| elements(module.operand_shape(operand)))
    };
    match module.instruction(instr).opcode {
        opcode if opcode.is_elementwise() => elements(shape),
        Opcode::Dot | Opcode::ScaledDot | Opcode::RaggedDot => {
            2.0 * elements(shape) * contracted(module, instr) * piece_loss(module, instr)
        }
        Opcode::Convolution => convolution(module, instr).unwrap_or(0.0),
        Opcode::Reduce | Opcode::ReduceScatter | Opcode::AllReduce | Opcode::SelectAndScatter => {
            first()
        }
        Opcode::ReduceWindow => {
            let window: f64 = module.window(instr).dims.iter().map(|dim| dim.size as f64).product();
            elements(shape) * window
        }
        Opcode::Sort | Opcode::TopK => first() * first().max(2.0).log2(),
        Opcode::Scatter => module
            .operands(instr)
            .last()
            .map_or(0.0, |updates| elements(module.operand_shape(updates))),
        Opcode::BatchNormGrad | Opcode::BatchNormTraining | Opcode::BatchNormInference => {
            5.0 * first()
        }
        Opcode::Fft => 5.0 * first() * first().max(2.0).log2(),
        Opcode::TriangularSolve | Opcode::Cholesky => {
            let side = operand_array(module, instr, 0)
                .and_then(|array| array.dims.last())
                .copied()
                .unwrap_or(1);
            elements(shape) * side as f64
        }
        _ => 0.0,
    }
}

/// How many products each element of a dot sums.
fn contracted(module: &Module, instr: InstrId) -> f64 {
    let Some(left) = operand_array(module, instr, 0) else { return 0.0 };
    let dims = module.numbers(instr, "lhs_contracting_dims").into_iter();
    dims.filter_map(|dim| left.dims.get(usize::try_from(dim).ok()?))
        .map(|&dim| dim as f64)
        .product()
}

/// Two for each product of an input element with a kernel element.
fn convolution(module: &Module, instr: InstrId) -> Option<f64> {
    let labels = module.conv_dims(instr)?;
    let (input, kernel) = (operand_array(module, instr, 0)?, operand_array(module, instr, 1)?);
    let output = module.instruction(instr).shape.array()?;
    let dim = |array: &Array, index: usize| array.dims.get(index).copied().unwrap_or(1);
    let mut products = dim(output, labels.output_batch) as f64
        * dim(output, labels.output_feature) as f64
        * dim(kernel, labels.kernel_input) as f64;
    for (index, window) in module.window(instr).dims.iter().enumerate() {
        let (Some(&from), Some(&to)) =
            (labels.input_spatial.get(index), labels.output_spatial.get(index))
        else {
            continue;
        };
        products *= taps(window, dim(input, from), dim(output, to));
    }
    Some(2.0 * products)
}

/// How many pairs of a window's element and an output's place meet an input element, along one
/// dimension.
fn taps(window: &super::WindowDim, input: u64, output: u64) -> f64 {
    /// Larger ones are counted as if there were neither padding nor dilation.
    const MOST: u64 = 1 << 22;
    if window.size.saturating_mul(output) > MOST {
        return window.size as f64 * output as f64 / window.lhs_dilate as f64;
    }
    let dilated = input.saturating_sub(1).saturating_mul(window.lhs_dilate).saturating_add(1);
    let (dilated, lhs) = (i64::try_from(dilated).unwrap_or(i64::MAX), window.lhs_dilate as i64);
    let meets = |at: i64| (0..dilated).contains(&at) && at % lhs == 0;
    let mut count = 0u64;
    for place in 0..output {
        let base = (place.saturating_mul(window.stride) as i64).saturating_sub(window.pad_low);
        let at = |tap: u64| base.saturating_add(tap.saturating_mul(window.rhs_dilate) as i64);
        count += (0..window.size).filter(|&tap| meets(at(tap))).count() as u64;
    }
    count as f64
}

/// A custom call: as much as its configuration or name tells.
fn custom_call(module: &Module, instr: InstrId, bytes: Bytes) -> InstrWork {
    let config = module.backend_config(instr);
    let estimate = |key: &str| {
        let value = config
            .as_ref()?
            .get("cost_estimate")
            .or(config.as_ref()?.get("custom_call_config")?.get("cost_estimate"))?
            .get(key)?;
        value.as_f64().or_else(|| value.as_str()?.parse().ok())
    };
    if let Some(flops) = estimate("flops").filter(|flops| flops.is_finite() && *flops >= 0.0) {
        let bytes = estimate("bytes_accessed")
            .filter(|bytes| *bytes >= 0.0)
            .map_or(bytes, |bytes| Bytes(bytes as i64));
        return InstrWork { flops: Flops(flops), bytes, gemm_like: flops > 0.0 };
    }
    let target = module.attribute(instr, "custom_call_target").unwrap_or("").to_lowercase();
    let is_gemm = ["gemm", "matmul", "conv", "dot"].iter().any(|word| target.contains(word));
    match is_gemm {
        true => {
            InstrWork { flops: Flops(2.0 * product_terms(module, instr)), bytes, gemm_like: true }
        }
        false => InstrWork { flops: Flops(0.0), bytes, gemm_like: false },
    }
}

/// The products of a matrix multiplication with unknown dimensions: of batch, rows, columns and
/// depth, the two inputs and the output each have three.
fn product_terms(module: &Module, instr: InstrId) -> f64 {
    let shape = &module.instruction(instr).shape;
    let output = shape.parts().first().unwrap_or(shape);
    let sizes = [operand_array(module, instr, 0), operand_array(module, instr, 1), output.array()];
    let [Some(left), Some(right), Some(output)] = sizes else { return 0.0 };
    let is_batched = left.dims.len() >= 3
        && left.dims.first() == output.dims.first()
        && left.dims.first() == right.dims.first();
    let batch = if is_batched { left.dims[0].max(1) as f64 } else { 1.0 };
    let product: f64 = [left, right, output].iter().map(|array| array.elements() as f64).product();
    (product / batch).sqrt()
}

/// The bytes that an instruction reads and writes, in any memory space.
fn traffic(module: &Module, instr: InstrId) -> Bytes {
    let instruction = module.instruction(instr);
    let size = |shape: &Shape| total_size(module, shape);
    let output = size(&instruction.shape);
    let operand = |index: usize| {
        module
            .operands(instr)
            .get(index)
            .map_or(Bytes::ZERO, |operand| size(module.operand_shape(operand)))
    };
    let all = || {
        module
            .operands(instr)
            .iter()
            .map(|operand| size(module.operand_shape(operand)))
            .sum::<Bytes>()
    };
    match instruction.opcode {
        Opcode::Slice | Opcode::DynamicSlice | Opcode::Gather => output + output,
        Opcode::DynamicUpdateSlice => operand(1) + operand(1),
        Opcode::Scatter => operand(2) + operand(2) + operand(1),
        Opcode::Fusion => fusion_traffic(module, instr),
        _ => all() + output,
    }
}

pub(super) fn total_size(module: &Module, shape: &Shape) -> Bytes {
    match shape {
        Shape::Tuple(parts) => parts.iter().map(|part| total_size(module, part)).sum(),
        Shape::Array(array) => array.size(&module.layout(array)),
        Shape::Token | Shape::Opaque => Bytes::ZERO,
    }
}

fn fusion_traffic(module: &Module, instr: InstrId) -> Bytes {
    let Some(&computation) = module.called(instr).first() else { return Bytes::ZERO };
    let mut read: Vec<Option<Bytes>> = vec![Some(Bytes::ZERO); module.operands(instr).len()];
    let mut written = total_size(module, &module.instruction(instr).shape);
    let parameter = |of: InstrId| module.parameter_number(of);
    for inner in module.instructions(computation) {
        let opcode = module.instruction(inner).opcode;
        for (place, operand) in module.operands(inner).iter().enumerate() {
            let Some(number) = parameter(operand.of).filter(|&number| number < read.len()) else {
                continue;
            };
            let output = || total_size(module, &module.instruction(inner).shape);
            read[number] = match opcode {
                Opcode::Slice | Opcode::DynamicSlice | Opcode::Gather if place == 0 => {
                    read[number].map(|read| read + output())
                }
                // What is updated in place is not read, and of the result only the update is
                // written.
                Opcode::DynamicUpdateSlice if place == 0 => {
                    let update = module
                        .operands(inner)
                        .get(1)
                        .map(|update| total_size(module, module.operand_shape(update)));
                    written -= (output() - update.unwrap_or(Bytes::ZERO)).max(Bytes::ZERO);
                    read[number]
                }
                _ => None,
            };
        }
    }
    let whole =
        |number: usize| total_size(module, module.operand_shape(&module.operands(instr)[number]));
    let read = read
        .iter()
        .enumerate()
        .map(|(number, sliced)| sliced.map_or(whole(number), |sliced| sliced.min(whole(number))));
    read.sum::<Bytes>() + written.max(Bytes::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(body: &str) -> (f64, i64) {
        let text = format!("HloModule m\nENTRY e {{\n{body}\n}}\n");
        let module = Module::read(text).unwrap();
        let work = Works::new(&module).of(&module, module.root(module.entry()));
        (work.flops.0, work.bytes.0)
    }

    #[test]
    fn dots_and_convolutions() {
        let dot = "a = f32[2,3,4] parameter(0)\nb = f32[2,4,5] parameter(1)
            ROOT d = f32[2,3,5] dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}";
        assert_eq!(work(dot), (2.0 * 2.0 * 3.0 * 5.0 * 4.0, 4 * (24 + 40 + 30)));
        let conv = "a = f32[1,4,1] parameter(0)\nb = f32[3,1,2] parameter(1)
            ROOT c = f32[1,4,2] convolution(a, b), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f";
        // Of the 12 places that the window covers, 2 are padding.
        assert_eq!(work(conv).0, 2.0 * 2.0 * 10.0);
        let dilated =
            conv.replace("pad=1_1", "pad=1_2 lhs_dilate=2").replace("f32[1,4,2]", "f32[1,8,2]");
        // Of 7 input places every other one holds something: the first meets 2 windows, the others
        // 3.
        assert_eq!(work(&dilated).0, 2.0 * 2.0 * 11.0);
    }

    #[test]
    fn slices_and_updates() {
        let update = "a = f32[100] parameter(0)\nb = f32[5] parameter(1)\ni = s32[] parameter(2)
            ROOT u = f32[100] dynamic-update-slice(a, b, i)";
        assert_eq!(work(update), (0.0, 40));
        let slice = "a = f32[100] parameter(0)\nROOT s = f32[5] slice(a), slice={[5:10]}";
        assert_eq!(work(slice), (0.0, 40));
        let add = "a = f32[100] parameter(0)\nROOT s = f32[100] add(a, a)";
        assert_eq!(work(add), (100.0, 1200));
    }

    #[test]
    fn fusions_hold_what_is_in_them() {
        let text = "HloModule m
            f { p = f32[100] parameter(0)\n q = f32[5] parameter(1)\n i = s32[] parameter(2)
              n = f32[5] negate(q)\n ROOT u = f32[100] dynamic-update-slice(p, n, i) }
            ENTRY e { a = f32[100] parameter(0)\n b = f32[5] parameter(1)\n i = s32[] parameter(2)
              ROOT r = f32[100] fusion(a, b, i), kind=kLoop, calls=f }";
        let module = Module::read(text.to_owned()).unwrap();
        let work = Works::new(&module).of(&module, module.root(module.entry()));
        assert_eq!((work.flops.0, work.bytes.0), (5.0, 20 + 4 + 20));
    }
}
