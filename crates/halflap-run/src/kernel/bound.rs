//! Kernels on fixed arrays, prepared to run many times.
//!
//! A loop runs the same kernels on the same memory in every iteration. Where these are small, most
//! of their time would go into finding the arrays, checking them and filling registers. All that is
//! done once here; a run only calls the functions.

use super::block::{BlockFn, MOST_READ};
use super::loops::ElementLoop;
use super::nest::{Fetch, FetchWay};
use super::plan::{ArraySlot, KernelStage};
use super::program::{ProgramStep, fill};
use super::{Buffers, Kernel, Portion, Scratch};
use crate::tensor::{AlignedBytes, View, ViewMut};

/// A kernel, its arrays and its memory.
pub(crate) struct BoundKernel {
    kernel: &'static Kernel,
    inputs: Box<[View<'static>]>,
    outputs: Box<[ViewMut<'static>]>,
    /// Scratch memory of the kernel, then that of each stage: what is filled once stays.
    memory: AlignedBytes,
    steps: Vec<BoundStep>,
    /// Whether a stage runs as a whole, and needs to be told where everything is.
    has_stages: bool,
}

// SAFETY: what it points to is its own, or the arrays and the kernel, which may be used by any
// thread; only the thread that owns it runs it.
unsafe impl Send for BoundKernel {}

/// What a run does.
pub(super) enum BoundStep {
    Call {
        run: BlockFn,
        ins: [*const u8; MOST_READ],
        out: *mut u8,
        len: usize,
    },
    /// An element of an array, everywhere in a register.
    Fill {
        from: *const u8,
        size: usize,
        to: *mut u8,
        len: usize,
    },
    /// Elements that lie apart, into a register.
    Fetch {
        fetch: &'static Fetch,
        from: *const u8,
        to: *mut u8,
        len: usize,
    },
    Copy {
        from: *const u8,
        to: *mut u8,
        bytes: usize,
    },
    /// A stage as a whole, with its own memory.
    Stage {
        stage: &'static dyn KernelStage,
        local: *mut u8,
    },
}

impl Kernel {
    /// Prepares it for arrays in fixed places. None of its stages is worth several threads.
    ///
    /// # Safety
    /// The kernel and the arrays must live, in their places, as long as what is returned is run.
    pub(crate) unsafe fn bind(
        &self,
        inputs: Vec<View<'_>>,
        outputs: Vec<ViewMut<'_>>,
        scratch: &mut Scratch,
    ) -> BoundKernel {
        // SAFETY: the caller's promise.
        let (kernel, inputs, outputs) = unsafe {
            (
                &*std::ptr::from_ref(self),
                std::mem::transmute::<Vec<View<'_>>, Vec<View<'static>>>(inputs),
                std::mem::transmute::<Vec<ViewMut<'_>>, Vec<ViewMut<'static>>>(outputs),
            )
        };
        let locals: usize = kernel.sizes.iter().map(|size| size.local_bytes).sum();
        let temp_bytes = kernel.plan.temp_bytes.next_multiple_of(64);
        let mut bound = BoundKernel {
            kernel,
            inputs: inputs.into_boxed_slice(),
            outputs: outputs.into_boxed_slice(),
            memory: AlignedBytes::zeros(temp_bytes + locals),
            steps: Vec::new(),
            has_stages: false,
        };
        let (mut steps, mut has_stages) = (Vec::new(), false);
        let temp = bound.memory.as_mut_ptr();
        let mut local = temp.wrapping_add(temp_bytes);
        for (stage, size) in kernel.plan.stages.iter().zip(&kernel.sizes) {
            let buffers = bound.buffers(temp, scratch, local);
            // SAFETY: the stage was planned for these arrays, and has memory of its own.
            if !unsafe { stage.bind(&buffers, &mut steps) } {
                has_stages = true;
                steps.push(BoundStep::Stage { stage: &**stage, local });
            }
            local = local.wrapping_add(size.local_bytes);
        }
        bound.steps = steps;
        bound.has_stages = has_stages;
        bound
    }
}

impl BoundKernel {
    fn buffers(&self, temp: *mut u8, scratch: &mut Scratch, local: *mut u8) -> Buffers<'_> {
        Buffers {
            inputs: &self.inputs,
            outputs: &self.outputs,
            constants: &self.kernel.plan.constants,
            temp,
            local,
            states: &raw mut scratch.states,
            context: scratch.context,
            portion: Portion { index: 0, count: 1 },
        }
    }

    /// Runs it once.
    ///
    /// # Safety
    /// See [`Kernel::bind`]; nothing else may use the arrays meanwhile.
    pub(crate) unsafe fn run(&mut self, scratch: &mut Scratch) {
        let temp = self.memory.as_mut_ptr();
        let buffers = self.has_stages.then(|| self.buffers(temp, scratch, temp));
        for step in &self.steps {
            // SAFETY: pointers into the arrays and the memory that it was prepared for, which are
            // as long as each function needs.
            unsafe {
                match *step {
                    BoundStep::Call { run, ref ins, out, len } => run(ins, out, len),
                    BoundStep::Fill { from, size, to, len } => {
                        fill(std::slice::from_raw_parts(from, size), to, len);
                    }
                    BoundStep::Fetch { fetch, from, to, len } => fetch.read(from, to, 0..len),
                    BoundStep::Copy { from, to, bytes } => {
                        std::ptr::copy_nonoverlapping(from, to, bytes);
                    }
                    BoundStep::Stage { stage, local } => {
                        if let Some(buffers) = &buffers {
                            stage.run(&Buffers { local, ..*buffers });
                        }
                    }
                }
            }
        }
    }
}

impl ElementLoop {
    /// Its steps on these arrays, if it is a single block.
    ///
    /// # Safety
    /// See [`KernelStage::bind`].
    pub(super) unsafe fn bound(&self, buffers: &Buffers<'_>, steps: &mut Vec<BoundStep>) -> bool {
        let body = &self.body;
        if body.total > body.block {
            return false;
        }
        let len = body.total;
        // SAFETY: the caller's promise, passed on; the loop and its fetches live as long as the
        // kernel. An element of each array that is read is where the fetch was planned to read.
        unsafe {
            let table = body.prepare(buffers);
            let to = buffers.write(self.to.0);
            let is_shared = body.reads_from(buffers, to);
            let aside = table[self.aside.0 as usize];
            table[self.out.0 as usize] = if is_shared { aside } else { to };
            for fetch in &body.fetches {
                let Some(slot) = fetch.slot else { continue };
                let at = fetch.walk.base as isize * fetch.size as isize;
                match fetch.way {
                    FetchWay::Dense => {
                        table[fetch.place.0 as usize] = buffers.read(slot).offset(at).cast_mut();
                    }
                    // Preparing has filled it, and it stays.
                    FetchWay::Scalar if matches!(slot, ArraySlot::Constant(_)) => {}
                    FetchWay::Scalar => steps.push(BoundStep::Fill {
                        from: buffers.read(slot).offset(at),
                        size: fetch.size,
                        to: table[fetch.place.0 as usize],
                        len,
                    }),
                    FetchWay::Gathered | FetchWay::Counted => {}
                }
            }
            for step in &body.program.steps {
                steps.push(match *step {
                    ProgramStep::Call { run, ins, out, .. } => BoundStep::Call {
                        run,
                        ins: ins.map(|place| table[place.0 as usize].cast_const()),
                        out: table[out.0 as usize],
                        len,
                    },
                    ProgramStep::Fetch { number, out } => {
                        let fetch = &*std::ptr::from_ref(&body.fetches[number]);
                        let from = fetch.slot.map_or(std::ptr::null(), |slot| buffers.read(slot));
                        BoundStep::Fetch { fetch, from, to: table[out.0 as usize], len }
                    }
                });
            }
            if is_shared {
                steps.push(BoundStep::Copy { from: aside, to, bytes: len * self.to.1 });
            }
        }
        true
    }
}
