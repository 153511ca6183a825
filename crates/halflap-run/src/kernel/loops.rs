//! A loop over an elementwise expression.

use std::ops::Range;

use super::Buffers;
use super::block;
use super::bound::BoundStep;
use super::nest::{Fetch, FetchWay, join};
use super::plan::{ArraySlot, KernelStage, Nested, parts_of};
use super::program::{BlockProgram, ProgramStep, Register, fill};
use super::region::{RegionBlocks, RegionBody};
use super::rows::RowLoop;
use super::walk::LoopWalk;
use crate::tensor::DType;

/// Computes one array, block by block.
pub(super) struct ElementLoop {
    pub(super) body: Body,
    /// Where the result is written, and how large its elements are.
    pub(super) to: (ArraySlot, usize),
    pub(super) out: Register,
    /// A register for the result, if the output is memory that is also read.
    pub(super) aside: Register,
}

/// What a loop computes: a program, and what fills its registers.
pub(super) struct Body {
    pub(super) program: BlockProgram,
    pub(super) fetches: Vec<Fetch>,
    pub(super) total: usize,
    pub(super) block: usize,
}

impl ElementLoop {
    pub(super) fn new(nested: Nested<Register>, slot: ArraySlot, dtype: DType) -> ElementLoop {
        let Nested { mut draft, mut fetches, mut extents, result, .. } = nested;
        let out = draft.outside();
        let store = block::narrow(dtype).unwrap_or_else(|| block::copy(dtype));
        draft.store(result, out, (store, block::narrow(dtype).is_none()));
        let aside = draft.reserve(dtype.size());
        let total = extents.iter().product();
        let mut classes = vec![0; extents.len()];
        join(&mut extents, &mut classes, &mut fetches);
        ElementLoop {
            body: Body::new(draft.finish(&[]), fetches, total),
            to: (slot, dtype.size()),
            out,
            aside,
        }
    }
}

impl RegionBody {
    pub(super) fn new(nested: Nested<Register>, to: LoopWalk, dtype: DType) -> RegionBody {
        match RowLoop::new(&nested, &to, dtype) {
            Some(rows) => RegionBody::Rows(rows),
            None => RegionBody::Blocks(RegionBlocks::new(nested, to, dtype)),
        }
    }
}

impl RegionBlocks {
    fn new(nested: Nested<Register>, to: LoopWalk, dtype: DType) -> RegionBlocks {
        let Nested { mut draft, mut fetches, mut extents, result, .. } = nested;
        let out = match block::narrow(dtype) {
            Some(narrow) => draft.call(narrow, &[result], dtype.size()),
            None => result,
        };
        // Loops are joined where what is written can be walked as one, too.
        let (size, place) = (dtype.size(), out);
        fetches.push(Fetch { slot: None, walk: to.clone(), size, place, way: FetchWay::Gathered });
        let total = extents.iter().product();
        let mut classes = vec![0; extents.len()];
        join(&mut extents, &mut classes, &mut fetches);
        let to = fetches.pop().map_or(to, |fetch| fetch.walk);
        RegionBlocks { body: Body::new(draft.finish(&[out]), fetches, total), to, out }
    }
}

impl Body {
    pub(super) fn new(program: BlockProgram, fetches: Vec<Fetch>, total: usize) -> Body {
        let block = program.block(total);
        Body { program, fetches, total, block }
    }

    pub(super) fn local_bytes(&self) -> usize {
        self.program.local_bytes(self.block)
    }

    pub(super) fn blocks(&self) -> usize {
        self.total.div_ceil(self.block)
    }

    /// Whether a slot that is read is in this memory.
    pub(super) fn reads_from(&self, buffers: &Buffers<'_>, memory: *mut u8) -> bool {
        let is_there = |slot: ArraySlot| buffers.read(slot) == memory.cast_const();
        self.fetches.iter().any(|fetch| fetch.slot.is_some_and(is_there))
    }

    /// Whether an input is read, and every element of it only for the same one of a dense result.
    pub(super) fn is_read_in_place(&self, input: usize, size: usize) -> bool {
        let is_read = |fetch: &&Fetch| fetch.slot == Some(ArraySlot::Input(input));
        let mut reads = self.fetches.iter().filter(is_read).peekable();
        let is_in_place = |fetch: &Fetch| {
            fetch.way == FetchWay::Dense && fetch.walk.base == 0 && fetch.size == size
        };
        reads.peek().is_some() && reads.all(is_in_place)
    }

    /// Prepares the table and what is the same in every block.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    pub(super) unsafe fn prepare<'l>(&self, buffers: &Buffers<'_>) -> &'l mut [*mut u8] {
        // SAFETY: the local memory is as long as the stage asked for.
        let used = self.block.min(self.total);
        // SAFETY: as above.
        let table = unsafe { self.program.prepare_some(buffers.local(), self.block, used) };
        for fetch in &self.fetches {
            if let (FetchWay::Scalar, Some(slot)) = (fetch.way, fetch.slot) {
                // SAFETY: an element of the array that the slot holds, and a register of a block.
                unsafe {
                    let from =
                        buffers.read(slot).offset(fetch.walk.base as isize * fetch.size as isize);
                    let element = std::slice::from_raw_parts(from, fetch.size);
                    fill(element, table[fetch.place.0 as usize], used);
                }
            }
        }
        table
    }

    /// Computes some elements of the loop.
    ///
    /// # Safety
    /// The table must be prepared, and places outside must be set.
    pub(super) unsafe fn run(
        &self,
        buffers: &Buffers<'_>,
        table: &mut [*mut u8],
        span: Range<usize>,
    ) {
        for fetch in &self.fetches {
            if let (FetchWay::Dense, Some(slot)) = (fetch.way, fetch.slot) {
                let place = (fetch.walk.base as isize + span.start as isize) * fetch.size as isize;
                // SAFETY: an element of the array that the slot holds; it is only read.
                table[fetch.place.0 as usize] =
                    unsafe { buffers.read(slot).offset(place).cast_mut() };
            }
        }
        for step in &self.program.steps {
            match step {
                ProgramStep::Call { run, ins, out, .. } => {
                    let ins = ins.map(|place| table[place.0 as usize].cast_const());
                    // SAFETY: chosen for the types of its places; it never writes what it reads.
                    unsafe { run(&ins, table[out.0 as usize], span.len()) };
                }
                ProgramStep::Fetch { number, out } => {
                    // SAFETY: a register of a block, and a walk over the array that the slot holds.
                    unsafe {
                        self.fetches[*number].fill(buffers, table[out.0 as usize], span.clone())
                    };
                }
            }
        }
    }
}

impl Fetch {
    /// # Safety
    /// `to` must be a register.
    unsafe fn fill(&self, buffers: &Buffers<'_>, to: *mut u8, span: Range<usize>) {
        let from = self.slot.map_or(std::ptr::null(), |slot| buffers.read(slot));
        // SAFETY: the caller's promise, and the array that it was planned for.
        unsafe { self.read(from, to, span) }
    }

    /// The same from an array's first byte.
    ///
    /// # Safety
    /// `to` must be a register, and `from` the array of its slot.
    pub(super) unsafe fn read(&self, from: *const u8, to: *mut u8, span: Range<usize>) {
        // SAFETY: the walk was planned for this array, and a register holds a block.
        unsafe {
            if self.slot.is_none() {
                return self.walk.count(to.cast(), span);
            }
            match self.size {
                1 => self.walk.read::<u8>(from, to, span),
                2 => self.walk.read::<u16>(from.cast(), to.cast(), span),
                4 => self.walk.read::<u32>(from.cast(), to.cast(), span),
                8 => self.walk.read::<u64>(from.cast(), to.cast(), span),
                _ => self.walk.read::<[u64; 2]>(from.cast(), to.cast(), span),
            }
        }
    }
}

impl KernelStage for ElementLoop {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise, passed on.
        let table = unsafe { self.body.prepare(buffers) };
        let to = buffers.write(self.to.0);
        let is_shared = self.body.reads_from(buffers, to);
        let aside = table[self.aside.0 as usize];
        for number in buffers.share(self.body.blocks()) {
            let first = number * self.body.block;
            let len = self.body.block.min(self.body.total - first);
            // SAFETY: elements of the output; the table's other places are set by the body. Where
            // the output is read as well, the block is written aside first.
            unsafe {
                let at = to.add(first * self.to.1);
                table[self.out.0 as usize] = if is_shared { aside } else { at };
                self.body.run(buffers, table, first..first + len);
                if is_shared {
                    std::ptr::copy_nonoverlapping(aside, at, len * self.to.1);
                }
            }
        }
    }

    fn parts(&self) -> usize {
        parts_of(self.body.total, self.body.blocks())
    }

    fn local_bytes(&self) -> usize {
        self.body.local_bytes()
    }

    fn elements(&self) -> Option<usize> {
        Some(self.body.total)
    }

    unsafe fn bind(&self, buffers: &Buffers<'_>, steps: &mut Vec<BoundStep>) -> bool {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.bound(buffers, steps) }
    }

    fn can_share(&self, output: usize, input: usize) -> bool {
        self.to.0 == ArraySlot::Output(output) && self.body.is_read_in_place(input, self.to.1)
    }
}
