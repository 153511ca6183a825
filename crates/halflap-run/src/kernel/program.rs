//! Register programs: block functions in sequence, over blocks that fit the first-level cache.
//!
//! A place is a pointer to a block: a register, or memory outside that a loop moves along.
//! Registers are reused after their last use, but never by the step that reads them last: no step
//! writes what it reads.

use super::block::{self, BlockFn, MOST_READ};
use super::error::Gap;
use super::formula::{Formula, Op, TermId};
use super::precision;
use crate::tensor::DType;

/// A pointer in a program's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Register(pub(super) u16);

/// What a program does next.
#[derive(Clone, Debug)]
pub(super) enum ProgramStep {
    Call {
        run: BlockFn,
        ins: [Register; MOST_READ],
        count: u8,
        out: Register,
    },
    /// Something outside of the program fills a register.
    Fetch {
        number: usize,
        out: Register,
    },
}

/// A number that fills a register before anything runs.
#[derive(Clone, Debug)]
struct Splat {
    place: Register,
    bytes: Vec<u8>,
}

/// A program under construction: every step has its own register.
#[derive(Clone, Debug, Default)]
pub(super) struct ProgramDraft {
    pub(super) steps: Vec<ProgramStep>,
    splats: Vec<Splat>,
    /// Registers that the caller fills before the run.
    pinned: Vec<Register>,
    /// For every place, whether it is memory outside.
    outside: Vec<bool>,
    /// The widest element that a register holds.
    widest: usize,
}

impl ProgramDraft {
    fn place(&mut self, is_outside: bool) -> Register {
        self.outside.push(is_outside);
        Register(self.outside.len() as u16 - 1)
    }

    /// Memory outside.
    pub(super) fn outside(&mut self) -> Register {
        self.place(true)
    }

    /// A register that a fetch fills.
    pub(super) fn fetch(&mut self, number: usize, size: usize) -> Register {
        self.widest = self.widest.max(size);
        let out = self.place(false);
        self.steps.push(ProgramStep::Fetch { number, out });
        out
    }

    /// A register with the same number everywhere; `bytes` are those of a computed element.
    pub(super) fn splat(&mut self, bytes: &[u8]) -> Register {
        self.widest = self.widest.max(bytes.len());
        if let Some(known) = self.splats.iter().find(|splat| splat.bytes == bytes) {
            return known.place;
        }
        let place = self.place(false);
        self.splats.push(Splat { place, bytes: bytes.to_vec() });
        place
    }

    /// A register that is filled before anything runs and stays.
    pub(super) fn reserve(&mut self, size: usize) -> Register {
        self.widest = self.widest.max(size);
        let place = self.place(false);
        self.pinned.push(place);
        place
    }

    /// Whether a register has the same number everywhere, from the beginning.
    pub(super) fn is_same_everywhere(&self, place: Register) -> bool {
        self.pinned.contains(&place) || self.splats.iter().any(|splat| splat.place == place)
    }

    pub(super) fn call(&mut self, run: BlockFn, ins: &[Register], size: usize) -> Register {
        self.widest = self.widest.max(size);
        let out = self.place(false);
        self.call_into(run, ins, out);
        out
    }

    pub(super) fn call_into(&mut self, run: BlockFn, ins: &[Register], out: Register) {
        let mut all = [Register(0); MOST_READ];
        all[..ins.len()].copy_from_slice(ins);
        self.steps.push(ProgramStep::Call { run, ins: all, count: ins.len() as u8, out });
    }

    /// Writes a result to memory outside by a function. Where that only copies, the last step
    /// writes there itself if it makes the result.
    pub(super) fn store(&mut self, result: Register, to: Register, store: (BlockFn, bool)) {
        let (run, is_copy) = store;
        match self.steps.last_mut() {
            Some(ProgramStep::Call { out, .. }) if *out == result && is_copy => *out = to,
            _ => self.call_into(run, &[result], to),
        }
    }

    /// One elementwise operation on computed elements, rounded to its type.
    pub(super) fn apply(
        &mut self,
        formula: &Formula,
        id: TermId,
        args: &[Register],
    ) -> Result<Register, Gap> {
        let term = formula.term(id);
        let (dtype, size) = (term.dtype, block::computed_as(term.dtype).size());
        let of = |index: usize| formula.term(term.args[index]).dtype;
        let none = || Gap::OfType(of(0));
        let run = match &term.op {
            Op::Unary(opcode) => block::unary(*opcode, of(0)).ok_or_else(none)?,
            Op::Binary(opcode) => block::binary(*opcode, of(0)).ok_or_else(none)?,
            Op::Compare { direction, is_total } => {
                block::compare(*direction, of(0), *is_total).ok_or_else(none)?
            }
            Op::Select => block::select(dtype),
            Op::Clamp => {
                use halflap_hlo::Opcode;
                let [max, min] = [Opcode::Maximum, Opcode::Minimum]
                    .map(|opcode| block::binary(opcode, dtype).ok_or_else(none));
                let low = self.call(max?, &[args[1], args[0]], size);
                return Ok(self.call(min?, &[low, args[2]], size));
            }
            Op::Convert
                if block::computed_as(of(0)) == block::computed_as(dtype)
                    && dtype != DType::Pred =>
            {
                return Ok(self.rounded(args[0], of(0), dtype));
            }
            Op::Convert => block::convert(of(0), dtype),
            Op::ReducePrecision(to) => {
                let value = precision::reduced(self, args[0], (dtype, *to)).ok_or_else(none)?;
                return Ok(self.rounded(value, DType::F32, dtype));
            }
            // The bytes are the stored ones, which differ from computed elements for some types.
            Op::Reinterpret if of(0).size() == dtype.size() => {
                let stored = match block::narrow(of(0)) {
                    Some(narrow) => self.call(narrow, args, size),
                    None => args[0],
                };
                let copy = block::widen(dtype).unwrap_or_else(|| block::copy(dtype));
                return Ok(self.call(copy, &[stored], size));
            }
            _ => return Err(Gap::Operation),
        };
        let value = self.call(run, args, size);
        let is_exact = matches!(term.op, Op::Select | Op::Compare { .. });
        Ok(if is_exact { value } else { self.rounded(value, DType::F32, dtype) })
    }

    /// A computed element of one type as one of another.
    fn rounded(&mut self, value: Register, from: DType, to: DType) -> Register {
        match block::round(to) {
            Some(round) if from != to => self.call(round, &[value], 4),
            _ => value,
        }
    }

    /// Assigns registers. `kept` are read after the last step.
    pub(super) fn finish(mut self, kept: &[Register]) -> BlockProgram {
        let places = self.outside.len();
        let mut last_use = vec![0usize; places];
        for (at, step) in self.steps.iter().enumerate() {
            if let ProgramStep::Call { ins, count, .. } = step {
                ins[..*count as usize].iter().for_each(|place| last_use[place.0 as usize] = at);
            }
        }
        kept.iter().for_each(|place| last_use[place.0 as usize] = usize::MAX);
        let mut registers: Vec<Option<u16>> = vec![None; places];
        let mut count = 0;
        let mut fresh = |free: &mut Vec<u16>| {
            free.pop().unwrap_or_else(|| {
                count += 1;
                count - 1
            })
        };
        let mut free = Vec::new();
        for place in self.splats.iter().map(|splat| splat.place).chain(self.pinned.iter().copied())
        {
            last_use[place.0 as usize] = usize::MAX;
            registers[place.0 as usize] = Some(fresh(&mut free));
        }
        for (at, step) in self.steps.iter().enumerate() {
            let (ProgramStep::Call { out, .. } | ProgramStep::Fetch { out, .. }) = *step;
            if !self.outside[out.0 as usize] && registers[out.0 as usize].is_none() {
                registers[out.0 as usize] = Some(fresh(&mut free));
            }
            let ProgramStep::Call { ins, count, .. } = step else { continue };
            for (index, place) in ins[..*count as usize].iter().enumerate() {
                let is_first = !ins[..index].contains(place);
                if is_first && last_use[place.0 as usize] == at {
                    free.extend(registers[place.0 as usize]);
                }
            }
        }
        self.widest = self.widest.max(1);
        BlockProgram {
            registers,
            count: usize::from(count),
            widest: self.widest,
            steps: self.steps,
            splats: self.splats,
        }
    }
}

/// A program that can run.
#[derive(Clone, Debug)]
pub(super) struct BlockProgram {
    pub(super) steps: Vec<ProgramStep>,
    splats: Vec<Splat>,
    /// The register of each place; none for memory outside.
    registers: Vec<Option<u16>>,
    count: usize,
    widest: usize,
}

impl BlockProgram {
    /// How many elements are in a block: as many as fit with all registers, and never more than the
    /// loop has.
    pub(super) fn block(&self, total: usize) -> usize {
        const BYTES: usize = 32 * 1024;
        let fitting = BYTES / (self.widest * (self.count + 3));
        // A multiple of a cache line's elements, so that registers stay aligned.
        let most = fitting.clamp(128, 1024) / 64 * 64;
        most.min(total.next_multiple_of(64).max(64))
    }

    /// How many bytes of local memory it needs: the table, and the registers.
    pub(super) fn local_bytes(&self, block: usize) -> usize {
        self.table_bytes() + self.count * self.widest * block
    }

    fn table_bytes(&self) -> usize {
        (self.registers.len() * size_of::<*mut u8>()).next_multiple_of(64)
    }

    /// Fills the table and the registers that hold numbers.
    ///
    /// # Safety
    /// `local` must be aligned to a cache line and hold [`BlockProgram::local_bytes`], and must not
    /// be accessed elsewhere until the last run.
    pub(super) unsafe fn prepare<'l>(&self, local: *mut u8, block: usize) -> &'l mut [*mut u8] {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.prepare_some(local, block, block) }
    }

    /// The same, if no more than some elements of a block are used.
    ///
    /// # Safety
    /// As for [`BlockProgram::prepare`].
    pub(super) unsafe fn prepare_some<'l>(
        &self,
        local: *mut u8,
        block: usize,
        used: usize,
    ) -> &'l mut [*mut u8] {
        // SAFETY: the table is the first part of the local memory.
        let table = unsafe {
            std::slice::from_raw_parts_mut(local.cast::<*mut u8>(), self.registers.len())
        };
        for (pointer, register) in table.iter_mut().zip(&self.registers) {
            let place = register.map_or(0, |register| usize::from(register) * self.widest * block);
            // SAFETY: within the local memory, after the table.
            *pointer = unsafe { local.add(self.table_bytes() + place) };
        }
        for splat in &self.splats {
            // SAFETY: a register, which holds a block of the widest elements.
            unsafe { fill(&splat.bytes, table[splat.place.0 as usize], used) };
        }
        table
    }

    /// Runs all steps, none of which is a fetch.
    ///
    /// # Safety
    /// `table` must be prepared and point to outside memory where places are such.
    pub(super) unsafe fn run(&self, table: &[*mut u8], len: usize) {
        for step in &self.steps {
            if let ProgramStep::Call { run, ins, out, .. } = step {
                let ins = ins.map(|place| table[place.0 as usize].cast_const());
                // SAFETY: the function was chosen for the types of its places, and never writes
                // what it reads.
                unsafe { run(&ins, table[out.0 as usize], len) };
            }
        }
    }
}

/// Fills a block with an element.
///
/// # Safety
/// `to` must hold `len` such elements, aligned to their size.
pub(super) unsafe fn fill(element: &[u8], to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; each arm writes `len` elements of this size.
    unsafe {
        match *element {
            [a] => std::slice::from_raw_parts_mut(to, len).fill(a),
            [a, b] => {
                std::slice::from_raw_parts_mut(to.cast(), len).fill(u16::from_ne_bytes([a, b]))
            }
            [a, b, c, d] => std::slice::from_raw_parts_mut(to.cast(), len)
                .fill(u32::from_ne_bytes([a, b, c, d])),
            _ => (0..len).for_each(|i| {
                std::ptr::copy_nonoverlapping(
                    element.as_ptr(),
                    to.add(i * element.len()),
                    element.len(),
                );
            }),
        }
    }
}

/// A stored element as the bytes of a computed one.
pub(super) fn computed(dtype: DType, stored: &[u8]) -> Vec<u8> {
    match (dtype, stored) {
        (DType::Bf16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32().to_le_bytes().to_vec(),
        (DType::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32().to_le_bytes().to_vec(),
        (DType::Mini(mini), &[code]) => mini.decode(code).to_le_bytes().to_vec(),
        _ => stored.to_vec(),
    }
}

/// A computation of scalars, applied to computed elements of blocks.
#[derive(Clone, Debug)]
pub(super) struct ScalarProgram {
    pub(super) program: BlockProgram,
    /// Where each argument is given.
    pub(super) inputs: Vec<Register>,
    /// Where each result is found.
    pub(super) outputs: Vec<Register>,
    /// The sizes of the results' computed elements.
    pub(super) sizes: Vec<usize>,
}

impl ScalarProgram {
    pub(super) fn new(formula: &Formula) -> Result<ScalarProgram, Gap> {
        let mut draft = ProgramDraft::default();
        let inputs: Vec<Register> = (0..formula.inputs).map(|_| draft.outside()).collect();
        let mut places = Vec::with_capacity(formula.terms.len());
        for id in formula.ids().map(TermId) {
            let term = formula.term(id);
            let place = match &term.op {
                Op::Input(number) => inputs[*number],
                Op::Constant(bytes) => draft.splat(&computed(term.dtype, bytes)),
                Op::Broadcast(_) | Op::Reshape | Op::Transpose(_) => {
                    places[term.args[0].0 as usize]
                }
                _ => {
                    let args: Vec<Register> =
                        term.args.iter().map(|arg| places[arg.0 as usize]).collect();
                    draft.apply(formula, id, &args)?
                }
            };
            places.push(place);
        }
        let outputs: Vec<Register> =
            formula.outputs.iter().map(|output| places[output.0 as usize]).collect();
        let size = |output: &TermId| block::computed_as(formula.term(*output).dtype).size();
        let sizes = formula.outputs.iter().map(size).collect();
        Ok(ScalarProgram { program: draft.finish(&outputs), inputs, outputs, sizes })
    }
}
