//! Kernels: what an instruction, a fusion or a group of instructions computes, ready to run.
//!
//! Building one does all the work that can be done in advance: `build` inlines the HLO into a flat
//! `formula`, `plan` decides what shares a loop and which intermediate values are in memory, and
//! every stage knows the functions that it calls. Unsupported operations are rejected there.
//! Running one allocates nothing once its [`Scratch`] is as large as it needs (except that the
//! matrix library packs operands in its own memory, and that work is dispatched to threads), gives
//! the same bits each time, and may be done by any number of threads at once, each with its own
//! scratch. A context may have its own threads: then stages are split into parts, never within a
//! sum, so that the bits stay the same.
//!
//! | part | what it does |
//! | --- | --- |
//! | `formula`, `build`, `literal`, `error` | HLO to terms, or why not |
//! | `plan`, `nest` | terms to stages and slots of memory |
//! | `program`, `block`, `stored`, `math`, `walk` | elementwise expressions over blocks; how elements are found |
//! | `region` | loops in parts, where arrays are padded or concatenated |
//! | `rows` | loops over rows that lie apart |
//! | `bound` | kernels on fixed arrays, for loops that run them often |
//! | `loops`, `reduce`, `dot`, `moves`, `heavy` and what it names | stages |
//! | `matrix`, `thin` | products of two matrices, and those with few rows |
//! | `cumulate` | running sums |
//! | `columns`, `sparse`, `planes` | convolutions: as products, of little, of few features |
//! | `fourier`, `lanes` | Fourier transforms of lines, several at once |
//! | `product`, `pairs` | products of integers |

mod block;
mod bound;
mod build;
mod columns;
mod combine;
mod conv;
mod cumulate;
mod custom;
mod dot;
mod error;
mod fft;
mod formula;
mod fourier;
mod heavy;
mod index;
mod lanes;
mod lapack;
mod linear;
mod literal;
mod loops;
mod math;
mod matrix;
mod moves;
mod nest;
mod pairs;
mod plan;
mod planes;
mod precision;
mod product;
mod program;
mod random;
mod reduce;
mod region;
mod rows;
mod selected;
mod single;
mod sort;
mod sparse;
mod stored;
mod thin;
mod walk;
mod whole;
mod window;

pub(crate) use bound::BoundKernel;
pub use build::ResultLeaf;
pub(crate) use build::{leaf_kinds, made_leaves, operand_leaves};
pub use combine::Combiner;
pub use custom::{Libraries, LoadError};
pub use error::{Gap, Unsupported};

use std::collections::BTreeMap;
use std::ops::Range;

use halflap_hlo::ids::InstrId;
use halflap_hlo::{Module, Opcode};

use crate::tensor::{AlignedBytes, DType, View, ViewMut};
use build::FormulaBuilder;
use formula::{Formula, Op};
use plan::{ArraySlot, KernelPlan, KernelStage, Planner};

/// The rank that runs a kernel, for instructions that depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// The value of `replica-id`.
    pub replica: u32,
    /// The value of `partition-id`.
    pub partition: u32,
    /// The seed of `rng`.
    pub seed: u64,
    /// How many threads a kernel may use; 0 and 1 are one.
    pub threads: usize,
}

/// Memory that kernels use while they run, kept to be used again. One for each thread.
#[derive(Default)]
pub struct Scratch {
    memory: AlignedBytes,
    /// What random numbers continue from, by instruction.
    states: BTreeMap<u64, u128>,
    /// The rank that runs kernels with it.
    pub context: Context,
}

impl Scratch {
    /// Memory for kernels that a rank runs.
    pub fn new(context: Context) -> Scratch {
        Scratch { context, ..Scratch::default() }
    }

    /// Makes sure that kernels that need this many bytes allocate nothing.
    pub fn reserve(&mut self, bytes: usize) {
        self.memory.reserve(bytes);
    }
}

/// Which of several equal parts of a stage's work to do.
#[derive(Clone, Copy)]
struct Portion {
    index: usize,
    count: usize,
}

/// The memory that a kernel's stages read and write in one run.
pub(crate) struct Buffers<'r> {
    inputs: &'r [View<'r>],
    outputs: &'r [ViewMut<'r>],
    constants: &'r [AlignedBytes],
    temp: *mut u8,
    local: *mut u8,
    states: *mut BTreeMap<u64, u128>,
    context: Context,
    portion: Portion,
}

// SAFETY: threads that share a kernel's memory do different parts of a stage: they write to
// different elements of its outputs and have their own local memory.
unsafe impl Sync for Buffers<'_> {}

impl Buffers<'_> {
    /// The same for one of several threads, each with this many bytes of local memory.
    fn for_portion(&self, portion: Portion, local_bytes: usize) -> Buffers<'_> {
        Buffers { local: self.local.wrapping_add(portion.index * local_bytes), portion, ..*self }
    }

    /// Which of `count` pieces of work this portion does.
    fn share(&self, count: usize) -> Range<usize> {
        let Portion { index, count: portions } = self.portion;
        count * index / portions..count * (index + 1) / portions
    }

    fn read(&self, slot: ArraySlot) -> *const u8 {
        match slot {
            ArraySlot::Input(index) => self.inputs[index].as_ptr(),
            ArraySlot::Constant(index) => self.constants[index].as_ptr(),
            _ => self.write(slot),
        }
    }

    fn write(&self, slot: ArraySlot) -> *mut u8 {
        match slot {
            ArraySlot::Output(index) => self.outputs[index].raw(),
            ArraySlot::Temp(at) => self.temp.wrapping_add(at),
            // Planning never writes to these.
            ArraySlot::Input(_) | ArraySlot::Constant(_) => std::ptr::null_mut(),
        }
    }

    fn local(&self) -> *mut u8 {
        self.local
    }

    /// How many threads a part of a stage may use.
    fn threads(&self) -> usize {
        if self.portion.count > 1 { 1 } else { self.context.threads }
    }
}

/// The type of a kernel's input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ArrayType {
    pub dtype: DType,
    pub dims: Vec<usize>,
}

impl ArrayType {
    /// How many bytes such an array has.
    pub fn bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size()
    }
}

impl std::fmt::Display for ArrayType {
    /// As HLO has it: `f32[8,4]`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(usize::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(","))
    }
}

/// Some instructions of one computation that are to run as one kernel.
#[derive(Clone, Copy, Debug)]
pub struct FusedGroup<'a> {
    /// In a sequence in which they can run.
    pub instrs: &'a [InstrId],
    /// Those whose values are needed elsewhere.
    pub outputs: &'a [InstrId],
}

/// Something that can run.
pub struct Kernel {
    name: String,
    inputs: Vec<ArrayType>,
    outputs: Vec<ArrayType>,
    plan: KernelPlan,
    /// Whether it gives the same whenever it gets the same.
    is_repeatable: bool,
    /// One for each stage.
    sizes: Vec<StageSize>,
}

/// How a stage can be divided.
#[derive(Clone, Copy)]
struct StageSize {
    /// Into how many parts.
    parts: usize,
    /// The memory that each needs.
    local_bytes: usize,
}

impl StageSize {
    fn of(stage: &dyn KernelStage) -> StageSize {
        StageSize {
            parts: stage.parts().max(1),
            local_bytes: stage.local_bytes().next_multiple_of(64),
        }
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} stages)", self.name, self.plan.stages.len())
    }
}

impl Kernel {
    /// The kernel of one instruction, which may be a fusion or a call. Its inputs are the leaves of
    /// its operands, one after the other; its outputs those of its result.
    pub fn compile(module: &Module, instr: InstrId) -> Result<Kernel, Unsupported> {
        Kernel::compile_with(module, instr, &Libraries::default())
    }

    /// The kernel of one instruction, with libraries for custom calls.
    pub fn compile_with(
        module: &Module,
        instr: InstrId,
        libraries: &Libraries,
    ) -> Result<Kernel, Unsupported> {
        let formula = FormulaBuilder::instruction(module, instr)?;
        let name = match module.instruction(instr).opcode {
            Opcode::Fusion | Opcode::Call => describe(&formula, module.instruction_name(instr)),
            _ => module.instruction_name(instr).to_owned(),
        };
        Kernel::of(module, libraries, name, &formula)
    }

    /// The kernel of a group, and its inputs.
    pub fn compile_group(
        module: &Module,
        group: FusedGroup<'_>,
        libraries: &Libraries,
    ) -> Result<(Kernel, Vec<ResultLeaf>), Unsupported> {
        let (formula, leaves) = FormulaBuilder::group(module, group.instrs, group.outputs)?;
        let last = group.outputs.last().map_or("", |&output| module.instruction_name(output));
        let name = if group.instrs.len() == 1 { last.to_owned() } else { describe(&formula, last) };
        Ok((Kernel::of(module, libraries, name, &formula)?, leaves))
    }

    fn of(
        module: &Module,
        libraries: &Libraries,
        name: String,
        formula: &Formula,
    ) -> Result<Kernel, Unsupported> {
        let plan = Planner::plan(module, libraries, formula)?;
        let mut inputs = vec![ArrayType { dtype: DType::Pred, dims: vec![0] }; formula.inputs];
        for term in &formula.terms {
            if let Op::Input(number) = term.op {
                inputs[number] = ArrayType { dtype: term.dtype, dims: term.dims.clone() };
            }
        }
        let output =
            |&id| ArrayType { dtype: formula.term(id).dtype, dims: formula.term(id).dims.clone() };
        let outputs = formula.outputs.iter().map(output).collect();
        let sizes = plan.stages.iter().map(|stage| StageSize::of(&**stage)).collect();
        let draws =
            |op: &Op| matches!(op, Op::Random { .. } | Op::RandomState { .. } | Op::Custom(_));
        let is_repeatable = !formula.terms.iter().any(|term| draws(&term.op));
        Ok(Kernel { name, inputs, outputs, plan, is_repeatable, sizes })
    }

    /// Its name: `fused_add_multiply_reduce.12`, `dot.5`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its inputs.
    pub fn inputs(&self) -> &[ArrayType] {
        &self.inputs
    }

    /// Its outputs.
    pub fn outputs(&self) -> &[ArrayType] {
        &self.outputs
    }

    /// How many bytes of scratch memory it needs.
    pub fn scratch_bytes(&self) -> usize {
        let local = self.sizes.iter().map(|size| size.local_bytes).max();
        self.plan.temp_bytes + local.unwrap_or(0)
    }

    /// Whether it runs at once, without memory for what is computed on the way.
    pub fn is_one_stage(&self) -> bool {
        self.plan.is_one_stage()
    }

    /// Whether it gives the same whenever it gets the same: it draws no random numbers, and no
    /// foreign code runs.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.is_repeatable
    }

    /// Whether an output may be written to the memory of an input ([`View::from_raw`]). An output
    /// is written by one stage; if that is the last one, nothing reads the input after it.
    pub fn can_share(&self, output: usize, input: usize) -> bool {
        self.plan.stages.last().is_some_and(|last| last.can_share(output, input))
    }

    /// How much it does, in elements of which each takes a few operations, if that is known. What
    /// is updated in place does not count.
    pub(crate) fn elements(&self) -> Option<usize> {
        self.plan.stages.iter().map(|stage| stage.elements()).sum()
    }

    /// Runs it. Panics where the arrays are not of the types that it was made for.
    pub fn run(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>], scratch: &mut Scratch) {
        assert_eq!(inputs.len(), self.inputs.len(), "{}: inputs", self.name);
        assert_eq!(outputs.len(), self.outputs.len(), "{}: outputs", self.name);
        for (view, expected) in inputs.iter().zip(&self.inputs) {
            assert!(
                view.dtype() == expected.dtype && are_same(view.dims(), &expected.dims),
                "{}: {view:?} is not {expected:?}",
                self.name
            );
        }
        for (view, expected) in outputs.iter().zip(&self.outputs) {
            assert!(
                view.dtype() == expected.dtype && are_same(view.dims(), &expected.dims),
                "{}: {view:?} is not {expected:?}",
                self.name
            );
        }
        let threads = scratch.context.threads.max(1);
        let local = self.sizes.iter().map(|size| size.local_bytes * size.parts.min(threads));
        scratch.memory.reserve(self.plan.temp_bytes + local.max().unwrap_or(0));
        let temp = scratch.memory.as_mut_ptr();
        let local = temp.wrapping_add(self.plan.temp_bytes);
        let constants = &self.plan.constants;
        let buffers = Buffers {
            inputs,
            outputs,
            constants,
            temp,
            local,
            states: &raw mut scratch.states,
            context: scratch.context,
            portion: Portion { index: 0, count: 1 },
        };
        for (stage, &StageSize { parts, local_bytes }) in self.plan.stages.iter().zip(&self.sizes) {
            let count = parts.min(threads);
            on_threads(0..count, &|index| {
                let portion = Portion { index, count };
                // SAFETY: the arrays are those that were planned for, and the scratch memory is
                // long enough.
                unsafe { stage.run(&buffers.for_portion(portion, local_bytes)) };
            });
        }
    }
}

/// Whether extents are equal. One by one: the system's comparison of memory takes 200 ns where
/// there are none, because it reads at the address of an empty list, masked, and the processor has
/// to suppress the fault.
fn are_same(some: &[usize], others: &[usize]) -> bool {
    some.len() == others.len() && some.iter().zip(others).all(|(one, other)| one == other)
}

/// Does all parts of some work, each on a thread.
fn on_threads(parts: Range<usize>, work: &(impl Fn(usize) + Sync)) {
    let middle = parts.start + parts.len() / 2;
    match parts.len() {
        0 => {}
        1 => work(parts.start),
        // Halves, because handing over one of two things allocates nothing.
        _ => {
            let halves = (parts.start..middle, middle..parts.end);
            rayon::join(|| on_threads(halves.0, work), || on_threads(halves.1, work));
        }
    }
}

/// `fused_` and the main operations, with the number of the name.
fn describe(formula: &Formula, name: &str) -> String {
    const SHOWN: usize = 4;
    let mut words: Vec<&str> = Vec::new();
    for term in &formula.terms {
        let word = match &term.op {
            Op::Unary(opcode) | Op::Binary(opcode) => opcode.name(),
            Op::Compare { .. } => "compare",
            Op::Select => "select",
            Op::Clamp => "clamp",
            Op::Dot(_) => "dot",
            Op::Reduce { .. } => "reduce",
            Op::Convolution(_) => "convolution",
            Op::Gather(_) => "gather",
            Op::Scatter { .. } => "scatter",
            Op::Sort { .. } => "sort",
            Op::DynamicUpdateSlice => "update",
            _ => continue,
        };
        if !words.contains(&word) {
            words.push(word);
        }
    }
    let moves = |op: &Op| match op {
        Op::Transpose(_) => Some("transpose"),
        Op::Broadcast(_) => Some("broadcast"),
        Op::Slice { .. } | Op::DynamicSlice => Some("slice"),
        Op::Pad(_) => Some("pad"),
        Op::Concatenate(_) => Some("concatenate"),
        Op::Convert => Some("convert"),
        _ => None,
    };
    if words.is_empty() {
        words.push(formula.terms.iter().rev().find_map(|term| moves(&term.op)).unwrap_or("copy"));
    }
    // The last operations matter most.
    let shown = words[words.len().saturating_sub(SHOWN)..].join("_");
    match name.rsplit_once('.') {
        Some((_, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("fused_{shown}.{number}")
        }
        _ => format!("fused_{shown}"),
    }
}
