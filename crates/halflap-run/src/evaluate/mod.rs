//! A plain evaluation of whole modules: all ranks in lock-step, instruction by instruction, in one
//! thread.
//!
//! The reference for the faster executor, so it does not optimise: instructions run in the order of
//! the text, for every rank, and a collective sees all ranks' values at once. A value is the list
//! of its arrays, tuples flattened, and is dropped after its last use. Ranks that leave a loop
//! earlier or take another branch are excluded from what the others run; a collective without one
//! of its members is an error. Kernels of all instructions are built before the first one runs.

mod collective;
mod prepare;

pub use prepare::EvaluateError;

use std::collections::HashMap;
use std::sync::Arc;

use halflap_hlo::ids::{ComputationId, InstrId};
use halflap_hlo::{Devices, Module};

use crate::kernel::{ArrayType, Context, Kernel, Libraries, Scratch, operand_leaves};
use crate::tensor::Tensor;
use collective::EvaluatedCollective;

/// The arrays of a value.
type LeafArrays = Vec<Arc<Tensor>>;
/// The results of instructions on one rank.
type ValueFrame = HashMap<InstrId, LeafArrays>;

/// What a loop runs, again and again.
struct Repeated {
    condition: ComputationId,
    body: ComputationId,
}

/// What is done for an instruction.
enum InstrAction {
    /// One of the arguments of the computation.
    Parameter(usize),
    Kernel(Kernel),
    /// The operands' arrays as they are.
    Pass,
    /// Some of the operands' arrays.
    Take(std::ops::Range<usize>),
    Call(ComputationId),
    While(Repeated),
    Conditional(Vec<ComputationId>),
    Collective(EvaluatedCollective),
    /// The start of an asynchronous operation, which runs synchronously here.
    Start {
        instr: InstrId,
        inner: Box<InstrAction>,
        arrange: Arrange,
    },
}

/// How the value of a start is composed of its inputs and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrange {
    /// Only its outputs.
    Out,
    /// Its inputs, its outputs, and zeros.
    InOut,
    /// Its outputs, its inputs, and zeros.
    OutIn,
}

/// An instruction, and those whose values are not needed after it.
struct ProgramLine {
    instr: InstrId,
    action: InstrAction,
    dead: Vec<InstrId>,
}

/// A module that can be evaluated.
pub struct Evaluator<'m> {
    module: &'m Module,
    computations: HashMap<ComputationId, Vec<ProgramLine>>,
    scratch: Vec<Scratch>,
}

impl<'m> Evaluator<'m> {
    /// Compiles kernels for everything that the module runs; an error if something cannot be run.
    pub fn new(module: &'m Module) -> Result<Evaluator<'m>, EvaluateError> {
        Evaluator::with(module, &Libraries::default())
    }

    /// The same, with libraries for custom calls.
    pub fn with(module: &'m Module, libraries: &Libraries) -> Result<Evaluator<'m>, EvaluateError> {
        let Devices { replicas, partitions } = module.devices();
        let context = |device: u32| Context {
            replica: device / partitions,
            partition: device % partitions,
            ..Context::default()
        };
        let scratch =
            (0..replicas * partitions).map(|device| Scratch::new(context(device))).collect();
        let computations = prepare::prepare(module, libraries)?;
        Ok(Evaluator { module, computations, scratch })
    }

    /// How many ranks there are: replicas times partitions.
    pub fn ranks(&self) -> usize {
        self.scratch.len()
    }

    /// Runs the module: for each rank, the arrays of all parameters in; for each rank, the arrays
    /// of the root out.
    pub fn run(&mut self, inputs: &[Vec<Tensor>]) -> Result<Vec<Vec<Tensor>>, EvaluateError> {
        self.check(inputs)?;
        let entry = self.module.entry();
        let mut arguments = Vec::with_capacity(inputs.len());
        for arrays in inputs {
            let mut arrays = arrays.iter().cloned().map(Arc::new);
            let parameters = self.module.parameters(entry).into_iter().flatten();
            let leaves = |parameter| self.module.instruction(parameter).shape.leaf_count();
            arguments.push(
                parameters
                    .map(|parameter| arrays.by_ref().take(leaves(parameter)).collect())
                    .collect(),
            );
        }
        let ranks: Vec<usize> = (0..self.ranks()).collect();
        let values = self.computation(entry, &ranks, arguments)?;
        Ok(values
            .into_iter()
            .map(|value| value.into_iter().map(Arc::unwrap_or_clone).collect())
            .collect())
    }

    fn check(&self, inputs: &[Vec<Tensor>]) -> Result<(), EvaluateError> {
        if inputs.len() != self.ranks() {
            return Err(EvaluateError::Ranks { expected: self.ranks(), given: inputs.len() });
        }
        let mut kinds = Vec::new();
        for parameter in self.module.parameters(self.module.entry()).into_iter().flatten() {
            kinds.extend(crate::kernel::leaf_kinds(self.module, parameter)?);
        }
        for (rank, arrays) in inputs.iter().enumerate() {
            if arrays.len() != kinds.len() {
                return Err(EvaluateError::Inputs {
                    rank,
                    expected: kinds.len(),
                    given: arrays.len(),
                });
            }
            for (index, (array, kind)) in arrays.iter().zip(&kinds).enumerate() {
                let ArrayType { dtype, dims } = kind;
                if array.dtype() != *dtype || array.dims() != dims {
                    let expected = format!("{dtype}{dims:?}");
                    return Err(EvaluateError::Input {
                        rank,
                        index,
                        expected,
                        given: format!("{array:?}"),
                    });
                }
            }
        }
        Ok(())
    }

    /// Runs a computation on some ranks, each with its own arguments.
    fn computation(
        &mut self,
        id: ComputationId,
        ranks: &[usize],
        arguments: Vec<Vec<LeafArrays>>,
    ) -> Result<Vec<LeafArrays>, EvaluateError> {
        // Taken out while it runs: no computation calls itself.
        let lines = self.computations.remove(&id).unwrap_or_default();
        let mut frames: Vec<ValueFrame> = vec![ValueFrame::new(); ranks.len()];
        for line in &lines {
            let operands: Vec<Vec<LeafArrays>> =
                frames.iter().map(|frame| self.operands(frame, line.instr)).collect();
            let values = match &line.action {
                InstrAction::Parameter(number) => {
                    arguments.iter().map(|arguments| arguments[*number].clone()).collect()
                }
                action => self.action(action, ranks, operands)?,
            };
            for (frame, value) in frames.iter_mut().zip(values) {
                frame.insert(line.instr, value);
                line.dead.iter().for_each(|dead| drop(frame.remove(dead)));
            }
        }
        self.computations.insert(id, lines);
        let root = self.module.root(id);
        Ok(frames.iter_mut().map(|frame| frame.remove(&root).unwrap_or_default()).collect())
    }

    fn operands(&self, frame: &ValueFrame, instr: InstrId) -> Vec<LeafArrays> {
        let operands = self.module.operands(instr).iter();
        operands
            .map(|operand| frame[&operand.of][operand_leaves(self.module, operand)].to_vec())
            .collect()
    }

    /// Executes an instruction on some ranks.
    fn action(
        &mut self,
        action: &InstrAction,
        ranks: &[usize],
        operands: Vec<Vec<LeafArrays>>,
    ) -> Result<Vec<LeafArrays>, EvaluateError> {
        let flat = |operands: Vec<Vec<LeafArrays>>| {
            operands.into_iter().map(|operands| operands.concat()).collect::<Vec<LeafArrays>>()
        };
        Ok(match action {
            InstrAction::Parameter(_) | InstrAction::Pass => flat(operands),
            InstrAction::Take(range) => {
                flat(operands).into_iter().map(|value| value[range.clone()].to_vec()).collect()
            }
            InstrAction::Kernel(kernel) => {
                let each = flat(operands).into_iter().zip(ranks);
                each.map(|(value, &rank)| run_kernel(kernel, &value, &mut self.scratch[rank]))
                    .collect()
            }
            InstrAction::Call(callee) => self.computation(*callee, ranks, operands)?,
            InstrAction::While(repeated) => self.repeat(repeated, ranks, flat(operands))?,
            InstrAction::Conditional(branches) => self.branch(branches, ranks, operands)?,
            InstrAction::Collective(collective) => collective.run(ranks, &flat(operands))?,
            InstrAction::Start { instr, inner, arrange } => {
                let taken = flat(operands.clone());
                let given = self.action(inner, ranks, operands)?;
                let kinds = crate::kernel::leaf_kinds(self.module, *instr)?;
                let arranged = |(taken, given): (LeafArrays, LeafArrays)| {
                    let mut value = match arrange {
                        Arrange::Out => given,
                        Arrange::InOut => [taken, given].concat(),
                        Arrange::OutIn => [given, taken].concat(),
                    };
                    let missing = kinds.iter().skip(value.len());
                    value.extend(
                        missing.map(|kind| Arc::new(Tensor::zeros(kind.dtype, &kind.dims))),
                    );
                    value
                };
                taken.into_iter().zip(given).map(arranged).collect()
            }
        })
    }

    /// Runs a loop: ranks leave it one by one.
    fn repeat(
        &mut self,
        &Repeated { condition, body }: &Repeated,
        ranks: &[usize],
        mut values: Vec<LeafArrays>,
    ) -> Result<Vec<LeafArrays>, EvaluateError> {
        let mut active: Vec<usize> = (0..ranks.len()).collect();
        loop {
            let who: Vec<usize> = active.iter().map(|&index| ranks[index]).collect();
            let given = |values: &[LeafArrays]| {
                active.iter().map(|&index| vec![values[index].clone()]).collect::<Vec<_>>()
            };
            let answers = self.computation(condition, &who, given(&values))?;
            let goes_on = |answer: &LeafArrays| {
                answer.first().is_some_and(|answer| answer.bytes().first() == Some(&1))
            };
            active = active
                .iter()
                .zip(&answers)
                .filter(|(_, answer)| goes_on(answer))
                .map(|(&index, _)| index)
                .collect();
            if active.is_empty() {
                return Ok(values);
            }
            let who: Vec<usize> = active.iter().map(|&index| ranks[index]).collect();
            let given =
                active.iter().map(|&index| vec![std::mem::take(&mut values[index])]).collect();
            for (&index, value) in active.iter().zip(self.computation(body, &who, given)?) {
                values[index] = value;
            }
        }
    }

    /// Runs one of several computations: ranks that take the same one run it together.
    fn branch(
        &mut self,
        branches: &[ComputationId],
        ranks: &[usize],
        operands: Vec<Vec<LeafArrays>>,
    ) -> Result<Vec<LeafArrays>, EvaluateError> {
        let chosen: Vec<usize> =
            operands.iter().map(|operands| choice(&operands[0][0], branches.len())).collect();
        let mut values = vec![LeafArrays::new(); ranks.len()];
        for (branch, &computation) in branches.iter().enumerate() {
            let who: Vec<usize> =
                (0..ranks.len()).filter(|&index| chosen[index] == branch).collect();
            if who.is_empty() {
                continue;
            }
            let given =
                who.iter().map(|&index| vec![operands[index][branch + 1].clone()]).collect();
            let who_ranks: Vec<usize> = who.iter().map(|&index| ranks[index]).collect();
            for (&index, value) in
                who.iter().zip(self.computation(computation, &who_ranks, given)?)
            {
                values[index] = value;
            }
        }
        Ok(values)
    }
}

/// Which branch a conditional takes: for a boolean the first if true; for an out-of-range index,
/// the last.
fn choice(selector: &Tensor, branches: usize) -> usize {
    match selector.bytes() {
        [truth] => usize::from(*truth == 0),
        bytes => {
            let index = bytes.first_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes));
            usize::try_from(index).ok().filter(|&index| index < branches).unwrap_or(branches - 1)
        }
    }
}

fn run_kernel(kernel: &Kernel, value: &[Arc<Tensor>], scratch: &mut Scratch) -> LeafArrays {
    let inputs: Vec<_> = value.iter().map(|array| array.view()).collect();
    let mut arrays: Vec<Tensor> =
        kernel.outputs().iter().map(|kind| Tensor::zeros(kind.dtype, &kind.dims)).collect();
    let mut outputs: Vec<_> = arrays.iter_mut().map(Tensor::view_mut).collect();
    kernel.run(&inputs, &mut outputs, scratch);
    arrays.into_iter().map(Arc::new).collect()
}
