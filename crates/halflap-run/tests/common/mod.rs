//! What the tests share: running a text, random numbers, closeness.
#![allow(dead_code)]

use halflap_hlo::Module;
use halflap_run::evaluate::{EvaluateError, Evaluator};
use halflap_run::tensor::{DType, Tensor};

/// Evaluates a module of one rank.
pub fn try_run(text: &str, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvaluateError> {
    let module = Module::read(text.to_owned()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let outputs = Evaluator::new(&module)?.run(&[inputs.to_vec()])?;
    Ok(outputs.into_iter().next().unwrap_or_default())
}

/// Evaluates a module of one rank that can be run.
pub fn run(text: &str, inputs: &[Tensor]) -> Vec<Tensor> {
    try_run(text, inputs).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Evaluates an entry computation after computations that it may name: `add`, `max` and `less` of
/// f32.
pub fn run_entry(body: &str, inputs: &[Tensor]) -> Vec<Tensor> {
    run(&with_computations(body), inputs)
}

/// The same, fused into one kernel.
pub fn with_computations(body: &str) -> String {
    let pair = " a = f32[] parameter(0)\n b = f32[] parameter(1)\n";
    format!(
        "HloModule m\nadd {{\n{pair} ROOT r = f32[] add(a, b)\n}}\nmax {{\n{pair} ROOT r = f32[] maximum(a, b)\n}}\n\
         less {{\n{pair} ROOT r = pred[] compare(a, b), direction=LT\n}}\nENTRY e {{\n{body}\n}}\n"
    )
}

pub fn floats(dims: &[usize], values: &[f32]) -> Tensor {
    Tensor::of(dims, values)
}

/// Random numbers that are the same each time.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit.max(1)
    }

    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// From -1 to 1.
    pub fn unit(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 30) as f32 - 1.0
    }

    pub fn floats(&mut self, dims: &[usize]) -> Tensor {
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| self.unit()).collect();
        Tensor::of(dims, &values)
    }

    pub fn array(&mut self, dtype: DType, dims: &[usize]) -> Tensor {
        match dtype {
            DType::F32 => self.floats(dims),
            _ => {
                let mut array = Tensor::zeros(dtype, dims);
                // Small integers mean something in every type that is an index.
                for element in array.bytes_mut().chunks_exact_mut(dtype.size()) {
                    element[0] = self.below(if dtype == DType::Pred { 2 } else { 100 }) as u8;
                }
                array
            }
        }
    }

    pub fn shuffled(&mut self, len: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..len).collect();
        (1..len).rev().for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }
}

/// `{1,2}` or `[1,2]` without the brackets.
pub fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// The place of an index in a dense array.
pub fn place(dims: &[usize], index: &[usize]) -> usize {
    dims.iter().zip(index).fold(0, |at, (&dim, &i)| at * dim + i)
}

/// Every index of an array, the last fastest.
pub fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    dims.iter().fold(vec![Vec::new()], |all, &dim| {
        all.iter()
            .flat_map(|index| (0..dim).map(move |i| [index.clone(), vec![i]].concat()))
            .collect()
    })
}

#[track_caller]
pub fn assert_close(given: &[f32], expected: &[f32], relative: f32) {
    assert_eq!(given.len(), expected.len());
    for (at, (a, b)) in given.iter().zip(expected).enumerate() {
        let is_same = a == b || (a.is_nan() && b.is_nan());
        assert!(
            is_same || (a - b).abs() <= 1e-5 + relative * b.abs(),
            "element {at}: {a} and not {b}"
        );
    }
}
