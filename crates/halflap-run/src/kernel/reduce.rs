//! Reductions, with the expression that they reduce in the same loop.
//!
//! Loops are ordered as outer kept, reduced, inner kept, so that memory is read sequentially:
//! without inner loops, rows are reduced to one element each (`rows`); with them, rows are summed
//! (`columns`). Blocks hold several short rows. bf16 and f16 are accumulated in f32 and rounded
//! once. Any computation other than a single operation is applied to blocks as a program; the order
//! of elements is kept, so it need only be associative.

use std::ops::Range;

use halflap_hlo::Opcode;

use super::Buffers;
use super::block::{self, MOST_READ, is_wide};
use super::error::Gap;
use super::formula::{Op, TermId};
use super::loops::Body;
use super::math::NumberType;
use super::nest::{self, join};
use super::plan::{ArraySlot, KernelStage, Planner, Trouble, parts_of};
use super::program::{Register, ScalarProgram};
use super::whole::Whole;
use crate::tensor::DType;

/// Reduces a row to one element, together with the one already there.
type RowFn = unsafe fn(row: *const u8, into: *mut u8, len: usize);
/// Reduces a row into another, element by element.
type FoldFn = unsafe fn(row: *const u8, into: *mut u8, len: usize);

/// Combines elements one after the other with the one in `into`, and writes each result.
type ScanFn = unsafe fn(row: *const u8, into: *mut u8, to: *mut u8, len: usize);

/// Combines updates, from the first on and so many elements apart, with the elements at their
/// places.
pub(super) type PlaceFn = unsafe fn((*const u8, usize), to: *mut u8, placed: &[PlacedUpdate]);

/// An update: its number, and the element that it is for.
#[derive(Clone, Copy, Default)]
pub(super) struct PlacedUpdate {
    pub(super) number: usize,
    pub(super) place: usize,
}

/// The functions of an operation that reductions use often.
#[derive(Clone, Copy)]
pub(super) struct FastCombine {
    pub(super) row: RowFn,
    pub(super) fold: FoldFn,
    pub(super) scan: ScanFn,
    pub(super) at: PlaceFn,
}

/// How elements are combined.
enum Combine {
    Fast(FastCombine),
    Program(ScalarProgram),
}

/// One of the arrays that are reduced.
struct ReducedArray {
    value: Register,
    init: ArraySlot,
    to: ArraySlot,
    dtype: DType,
}

struct Reduce {
    body: Body,
    operands: Vec<ReducedArray>,
    combine: Combine,
    outer: usize,
    reduced: usize,
    inner: usize,
}

/// The kept dimensions that come after the reduced ones are inner.
fn class(dim: usize, reduced: &[usize], first_inner: usize) -> u8 {
    match reduced.contains(&dim) {
        true => 1,
        false if dim >= first_inner => 2,
        false => 0,
    }
}

pub(super) fn plan(planner: &mut Planner<'_>, id: TermId) -> Result<ArraySlot, Trouble> {
    let formula = planner.formula;
    let term = formula.term(id);
    let Op::Reduce { dims: reduced, combiner } = &term.op else {
        return Err(planner.fail(id, Gap::Operation));
    };
    let count = term.args.len() / 2;
    let dims = formula.term(term.args[0]).dims.clone();
    let fast = combiner
        .single_binary()
        .filter(|_| count == 1)
        .and_then(|opcode| fast(opcode, formula.term(term.args[0]).dtype));
    let kept: usize =
        (0..dims.len()).filter(|dim| !reduced.contains(dim)).map(|dim| dims[dim]).product();
    // A program is worth its steps only on many elements at once: those that are kept, if there are
    // many.
    let first_inner = match &fast {
        None if kept >= 16 => 0,
        None => dims.len(),
        Some(_) => (0..dims.len())
            .rev()
            .find(|dim| reduced.contains(dim) && dims[*dim] != 1)
            .map_or(0, |dim| dim + 1),
    };
    let combine = match fast {
        Some(fast) => Combine::Fast(fast),
        None => {
            Combine::Program(ScalarProgram::new(combiner).map_err(|what| planner.fail(id, what))?)
        }
    };
    let mut inits = Vec::with_capacity(count);
    for &init in &term.args[count..] {
        inits.push(planner.make(init)?);
    }
    let mut loops = nest::loops_of(&dims);
    loops.sort_by_key(|dim| class(dim.root, reduced, first_inner));
    let (nested, computes) = planner.nested(loops, |nest| {
        let map = nest.root_map(dims.len());
        (0..count)
            .map(|index| nest.value(term.args[index], map.clone()))
            .collect::<Result<Vec<Register>, _>>()
    })?;
    planner.note(&computes, id)?;
    let targets = targets(planner, id, count);
    let (mut extents, mut fetches) = (nested.extents, nested.fetches);
    let mut classes: Vec<u8> =
        nested.roots.iter().map(|&root| class(root, reduced, first_inner)).collect();
    let extent = |of: u8| -> usize {
        extents
            .iter()
            .zip(&classes)
            .filter(|(_, class)| **class == of)
            .map(|(extent, _)| extent)
            .product()
    };
    let (outer, reduced, inner) = (extent(0), extent(1), extent(2));
    join(&mut extents, &mut classes, &mut fetches);
    let body = Body::new(nested.draft.finish(&nested.result), fetches, outer * reduced * inner);
    let operand = |index: usize| ReducedArray {
        value: nested.result[index],
        init: inits[index],
        to: targets[index],
        dtype: formula.term(term.args[index]).dtype,
    };
    let operands = (0..count).map(operand).collect();
    planner.add(Reduce { body, operands, combine, outer, reduced, inner });
    Ok(targets[0])
}

fn targets(planner: &mut Planner<'_>, id: TermId, count: usize) -> Vec<ArraySlot> {
    match planner.part_count(id) {
        0 => vec![planner.target(id); count],
        _ => planner.part_targets(id, &planner.part_kinds(id)),
    }
}

impl KernelStage for Reduce {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            let table = self.body.prepare(buffers);
            match &self.combine {
                Combine::Fast(fast) if self.inner == 1 => self.rows(buffers, table, fast.row),
                Combine::Fast(fast) => self.columns(buffers, table, fast.fold),
                Combine::Program(applied) => {
                    Applying::new(self, applied, self.accumulators(buffers)).run(buffers, table)
                }
            }
        }
    }

    fn parts(&self) -> usize {
        parts_of(self.body.total, self.pieces())
    }

    fn elements(&self) -> Option<usize> {
        matches!(self.combine, Combine::Fast(_)).then_some(self.body.total)
    }

    fn local_bytes(&self) -> usize {
        let more = match &self.combine {
            Combine::Fast(_) => self.body.block * 8,
            Combine::Program(applied) => Applying::bytes(self, applied),
        };
        self.body.local_bytes() + more
    }
}

impl Reduce {
    /// How many elements of the output are accumulated at once.
    fn tile(&self) -> usize {
        self.inner.min(self.body.block).max(1)
    }

    /// The number of adjacent tiles.
    fn tiles(&self) -> usize {
        self.inner.div_ceil(self.tile())
    }

    /// What can be reduced on its own: rows, or tiles.
    fn pieces(&self) -> usize {
        self.outer * self.tiles()
    }

    /// The local memory after that of the loop's body.
    fn accumulators(&self, buffers: &Buffers<'_>) -> *mut u8 {
        buffers.local().wrapping_add(self.body.local_bytes())
    }

    /// Reduces each row to one element.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn rows(&self, buffers: &Buffers<'_>, table: &mut [*mut u8], row: RowFn) {
        let into = self.accumulators(buffers);
        let operand = &self.operands[0];
        let size = block::computed_as(operand.dtype).size();
        let at_once = (self.body.block / self.reduced.max(1)).max(1);
        let share = buffers.share(self.outer);
        let mut first = share.start;
        while first < share.end {
            let rows = at_once.min(share.end - first);
            // SAFETY: spans of the loop, rows of a block, and this many elements of the output.
            unsafe {
                operand.start(buffers, into, rows);
                let mut done = 0;
                while done < self.reduced {
                    let len = self.body.block.min(self.reduced - done);
                    // Either whole rows, several at once, or pieces of one.
                    let start = first * self.reduced + done;
                    let count = if rows > 1 { rows * self.reduced } else { len };
                    self.body.run(buffers, table, start..start + count);
                    let value = table[operand.value.0 as usize];
                    for index in 0..rows {
                        row(value.add(index * self.reduced * size), into.add(index * size), len);
                    }
                    done += len;
                }
                operand.store(buffers, into, first..first + rows);
            }
            first += rows;
        }
    }

    /// Adds up rows.
    ///
    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn columns(&self, buffers: &Buffers<'_>, table: &mut [*mut u8], fold: FoldFn) {
        let into = self.accumulators(buffers);
        let operand = &self.operands[0];
        let size = block::computed_as(operand.dtype).size();
        let tile = self.tile();
        // Where rows are shorter than a block, several are computed at once.
        let at_once = if self.inner <= self.body.block { self.body.block / self.inner } else { 1 };
        for piece in buffers.share(self.pieces()) {
            let (outer, first) = (piece / self.tiles(), piece % self.tiles() * tile);
            let len = tile.min(self.inner - first);
            // SAFETY: spans of the loop, a tile of the output, rows of a block.
            unsafe {
                operand.start(buffers, into, len);
                let mut done = 0;
                while done < self.reduced {
                    let rows = at_once.min(self.reduced - done);
                    let start = (outer * self.reduced + done) * self.inner + first;
                    let count = if rows > 1 { rows * self.inner } else { len };
                    self.body.run(buffers, table, start..start + count);
                    let value = table[operand.value.0 as usize];
                    (0..rows)
                        .for_each(|index| fold(value.add(index * self.inner * size), into, len));
                    done += rows;
                }
                let to = outer * self.inner + first;
                operand.store(buffers, into, to..to + len);
            }
        }
    }
}

impl ReducedArray {
    /// Fills accumulators with the initial element.
    ///
    /// # Safety
    /// `into` must hold `len` computed elements.
    unsafe fn start(&self, buffers: &Buffers<'_>, into: *mut u8, len: usize) {
        let size = block::computed_as(self.dtype).size();
        let mut element = [0u64; 2];
        let element: *mut u8 = element.as_mut_ptr().cast();
        // SAFETY: one element of the initial array, computed; no element is larger than 16 bytes.
        unsafe {
            let init = buffers.read(self.init);
            match block::widen(self.dtype) {
                Some(widen) => widen(&[init; MOST_READ], element, 1),
                None => std::ptr::copy_nonoverlapping(init, element, size),
            }
            super::program::fill(std::slice::from_raw_parts(element, size), into, len);
        }
    }

    /// Writes accumulators to the output.
    ///
    /// # Safety
    /// `from` must hold as many computed elements as the range has, and the output that range.
    unsafe fn store(&self, buffers: &Buffers<'_>, from: *const u8, span: Range<usize>) {
        let (size, len) = (self.dtype.size(), span.len());
        // SAFETY: the caller's promise.
        unsafe {
            let to = buffers.write(self.to).add(span.start * size);
            match block::narrow(self.dtype) {
                Some(narrow) => narrow(&[from; MOST_READ], to, len),
                None => std::ptr::copy_nonoverlapping(from, to, len * size),
            }
        }
    }
}

/// Elements that are put into one of an operand's blocks.
#[derive(Clone, Copy)]
struct Filled {
    block: usize,
    len: usize,
}

/// A reduction by a program: the memory of its accumulators and its registers.
struct Applying<'r> {
    reduce: &'r Reduce,
    applied: &'r ScalarProgram,
    /// For each operand, a block of accumulators and two to put values into.
    blocks: *mut u8,
    width: usize,
    local: *mut u8,
}

impl<'r> Applying<'r> {
    /// The size of the largest element.
    const WIDEST: usize = 16;

    fn bytes(reduce: &Reduce, applied: &ScalarProgram) -> usize {
        reduce.body.block * Self::WIDEST * 3 * reduce.operands.len()
            + applied.program.local_bytes(reduce.body.block)
    }

    /// # Safety
    /// `memory` must hold [`Applying::bytes`].
    unsafe fn new(reduce: &'r Reduce, applied: &'r ScalarProgram, memory: *mut u8) -> Applying<'r> {
        let width = reduce.body.block * Self::WIDEST;
        // SAFETY: the caller's promise.
        let local = unsafe { memory.add(width * 3 * reduce.operands.len()) };
        Applying { reduce, applied, blocks: memory, width, local }
    }

    /// The accumulators of an operand, or what is to be combined.
    fn part(&self, operand: usize, which: usize) -> *mut u8 {
        self.blocks.wrapping_add((operand * 3 + which) * self.width)
    }

    /// # Safety
    /// See [`KernelStage::run`].
    unsafe fn run(&self, buffers: &Buffers<'_>, table: &mut [*mut u8]) {
        let Reduce { body, operands, reduced, inner, .. } = self.reduce;
        let tile = self.reduce.tile();
        // SAFETY: spans of the loop, blocks of elements, a tile of the output.
        unsafe {
            let own = self.applied.program.prepare(self.local, body.block);
            for place in buffers.share(self.reduce.pieces()) {
                let (outer, first) =
                    (place / self.reduce.tiles(), place % self.reduce.tiles() * tile);
                let len = tile.min(inner - first);
                (0..operands.len())
                    .for_each(|index| operands[index].start(buffers, self.part(index, 0), len));
                let mut done = 0;
                while done < *reduced {
                    let rows = if *inner == 1 { body.block.min(reduced - done) } else { 1 };
                    let start = (outer * reduced + done) * inner + first;
                    body.run(buffers, table, start..start + rows * len);
                    let values =
                        |index: usize| table[operands[index].value.0 as usize].cast_const();
                    match *inner {
                        1 => self.fold_row(own, &values, rows),
                        _ => {
                            let pairs = |index| [self.part(index, 0).cast_const(), values(index)];
                            self.combine(own, &pairs, Filled { block: 0, len });
                        }
                    }
                    done += rows;
                }
                let to = outer * inner + first;
                for (index, operand) in operands.iter().enumerate() {
                    operand.store(buffers, self.part(index, 0), to..to + len);
                }
            }
        }
    }

    /// Combines pairs of elements into the accumulators, or into another block.
    ///
    /// # Safety
    /// Every pointer must hold `len` computed elements of its operand.
    unsafe fn combine(
        &self,
        own: &mut [*mut u8],
        pairs: &dyn Fn(usize) -> [*const u8; 2],
        to: Filled,
    ) {
        let Filled { block, len } = to;
        let count = self.reduce.operands.len();
        for index in 0..count {
            let [left, right] = pairs(index);
            own[self.applied.inputs[index].0 as usize] = left.cast_mut();
            own[self.applied.inputs[count + index].0 as usize] = right.cast_mut();
        }
        // SAFETY: the caller's promise; results are copied only after all were computed.
        unsafe {
            self.applied.program.run(own, len);
            for index in 0..count {
                let result = own[self.applied.outputs[index].0 as usize];
                std::ptr::copy(result, self.part(index, block), len * self.applied.sizes[index]);
            }
        }
    }

    /// Reduces a row into the first accumulator. A long one is cut into stretches that are reduced
    /// side by side.
    ///
    /// # Safety
    /// Every value must hold `len` computed elements of its operand.
    unsafe fn fold_row(
        &self,
        own: &mut [*mut u8],
        values: &dyn Fn(usize) -> *const u8,
        len: usize,
    ) {
        const BESIDE: usize = 32;
        let each = if len >= 2 * BESIDE { len / BESIDE } else { 0 };
        let stretches = |index| self.part(index, 2).cast_const();
        // SAFETY: blocks hold at least as many elements as there are stretches, and elements are
        // within the row.
        unsafe {
            if each > 0 {
                self.pick(values, Filled { block: 2, len: BESIDE }, |stretch| stretch * each);
            }
            for step in 1..each {
                self.pick(values, Filled { block: 1, len: BESIDE }, |stretch| {
                    stretch * each + step
                });
                let pairs = |index| [stretches(index), self.part(index, 1).cast_const()];
                self.combine(own, &pairs, Filled { block: 2, len: BESIDE });
            }
            if each > 0 {
                (0..BESIDE).for_each(|at| self.fold_one(own, &stretches, at));
            }
            (each * BESIDE..len).for_each(|at| self.fold_one(own, values, at));
        }
    }

    /// Combines one element with the first accumulator.
    ///
    /// # Safety
    /// Every value must hold the element.
    unsafe fn fold_one(&self, own: &mut [*mut u8], values: &dyn Fn(usize) -> *const u8, at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            self.pick(values, Filled { block: 1, len: 1 }, |_| at);
            let pairs = |index| [0, 1].map(|which| self.part(index, which).cast_const());
            self.combine(own, &pairs, Filled { block: 0, len: 1 });
        }
    }

    /// Puts some elements of each operand into a block.
    ///
    /// # Safety
    /// Every value must hold the elements, and a block as many.
    unsafe fn pick(
        &self,
        values: &dyn Fn(usize) -> *const u8,
        to: Filled,
        place: impl Fn(usize) -> usize,
    ) {
        for (index, &size) in self.applied.sizes.iter().enumerate() {
            let (from, block) = (values(index), self.part(index, to.block));
            for number in 0..to.len {
                let (from, to) =
                    (from.wrapping_add(place(number) * size), block.wrapping_add(number * size));
                // SAFETY: the caller's promise.
                unsafe {
                    match size {
                        4 => *to.cast::<u32>() = *from.cast::<u32>(),
                        _ => std::ptr::copy_nonoverlapping(from, to, size),
                    }
                }
            }
        }
    }
}

macro_rules! loops {
    ($row:ident $fold:ident $scan:ident $(#[$feature:meta])*) => {
        /// # Safety
        /// `row` must hold `len` elements of the type, `into` one.
        $(#[$feature])*
        unsafe fn $row<T: Copy, F: Fn(T, T) -> T + Copy>(
            row: *const u8,
            into: *mut u8,
            len: usize,
        ) {
            const LANES: usize = 32;
            let f = conjure::<F>();
            // SAFETY: the caller's promise.
            let row = unsafe { std::slice::from_raw_parts(row.cast::<T>(), len) };
            // SAFETY: the caller's promise.
            let into = unsafe { &mut *into.cast::<T>() };
            let (chunks, rest) = row.as_chunks::<LANES>();
            if let Some((first, chunks)) = chunks.split_first() {
                // A fixed number of lanes: the order of additions is the same on every machine.
                let mut lanes = *first;
                for chunk in chunks {
                    lanes.iter_mut().zip(chunk).for_each(|(lane, &value)| *lane = f(*lane, value));
                }
                let mut width = LANES / 2;
                while width > 0 {
                    (0..width).for_each(|lane| lanes[lane] = f(lanes[lane], lanes[lane + width]));
                    width /= 2;
                }
                *into = f(*into, lanes[0]);
            }
            rest.iter().for_each(|&value| *into = f(*into, value));
        }

        /// # Safety
        /// Both must hold `len` elements of the type and must not overlap.
        $(#[$feature])*
        unsafe fn $fold<T: Copy, F: Fn(T, T) -> T + Copy>(
            row: *const u8,
            into: *mut u8,
            len: usize,
        ) {
            let f = conjure::<F>();
            // SAFETY: the caller's promise.
            let row = unsafe { std::slice::from_raw_parts(row.cast::<T>(), len) };
            // SAFETY: the caller's promise.
            let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<T>(), len) };
            into.iter_mut().zip(row).for_each(|(into, &value)| *into = f(*into, value));
        }

        /// # Safety
        /// `row` and `to` must hold `len` elements of the type, `into` one, and none may overlap.
        $(#[$feature])*
        unsafe fn $scan<T: Copy, F: Fn(T, T) -> T + Copy>(
            row: *const u8,
            into: *mut u8,
            to: *mut u8,
            len: usize,
        ) {
            let f = conjure::<F>();
            // SAFETY: the caller's promise.
            let row = unsafe { std::slice::from_raw_parts(row.cast::<T>(), len) };
            // SAFETY: the caller's promise.
            let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<T>(), len) };
            // SAFETY: the caller's promise.
            let into = unsafe { &mut *into.cast::<T>() };
            let mut sum = *into;
            for (to, &value) in to.iter_mut().zip(row) {
                sum = f(sum, value);
                *to = sum;
            }
            *into = sum;
        }
    };
}

loops!(row_plain fold_plain scan_plain);
#[cfg(target_arch = "x86_64")]
loops!(row_wide fold_wide scan_wide #[target_feature(enable = "avx2,lzcnt,popcnt,bmi1,bmi2")]);
#[cfg(not(target_arch = "x86_64"))]
loops!(row_wide fold_wide scan_wide);

/// A closure without captures, out of nothing.
fn conjure<F: Copy>() -> F {
    const { assert!(size_of::<F>() == 0) };
    // SAFETY: the type has no bytes, and a value of it existed: only closures given to `pair` or
    // `replace_at` get here.
    unsafe { std::ptr::NonNull::<F>::dangling().read() }
}

/// # Safety
/// Places must be those of elements of `to`, and there must be updates of these numbers.
unsafe fn at_places<T: Copy, F: Fn(T, T) -> T + Copy>(
    (updates, by): (*const u8, usize),
    to: *mut u8,
    placed: &[PlacedUpdate],
) {
    let f = conjure::<F>();
    let (updates, to) = (updates.cast::<T>(), to.cast::<T>());
    for &PlacedUpdate { number, place } in placed {
        // SAFETY: the caller's promise.
        unsafe { *to.add(place) = f(*to.add(place), *updates.add(number * by)) };
    }
}

/// The function that replaces elements of a size.
pub(super) fn replace_at(size: usize) -> Option<PlaceFn> {
    fn of<T: Copy, F: Fn(T, T) -> T + Copy>(_: F) -> PlaceFn {
        at_places::<T, F>
    }
    Some(match size {
        1 => of(|_: u8, new: u8| new),
        2 => of(|_: u16, new: u16| new),
        4 => of(|_: u32, new: u32| new),
        8 => of(|_: u64, new: u64| new),
        _ => return None,
    })
}

fn pair<T: Copy, F: Fn(T, T) -> T + Copy>(_: F) -> FastCombine {
    match is_wide() {
        true => FastCombine {
            row: row_wide::<T, F>,
            fold: fold_wide::<T, F>,
            scan: scan_wide::<T, F>,
            at: at_places::<T, F>,
        },
        false => FastCombine {
            row: row_plain::<T, F>,
            fold: fold_plain::<T, F>,
            scan: scan_plain::<T, F>,
            at: at_places::<T, F>,
        },
    }
}

/// The functions of an operation, if it is one of those.
pub(super) fn fast(opcode: Opcode, dtype: DType) -> Option<FastCombine> {
    match block::computed_as(dtype) {
        DType::F32 => fast_number::<f32>(opcode),
        DType::F64 => fast_number::<f64>(opcode),
        DType::S32 => fast_whole::<i32>(opcode),
        DType::S64 => fast_whole::<i64>(opcode),
        DType::U32 => fast_whole::<u32>(opcode),
        DType::U64 => fast_whole::<u64>(opcode),
        DType::Pred => Some(match opcode {
            Opcode::And | Opcode::Minimum | Opcode::Multiply => pair(|a: u8, b: u8| a & b),
            Opcode::Or | Opcode::Maximum | Opcode::Add => pair(|a: u8, b: u8| a | b),
            _ => return None,
        }),
        _ => None,
    }
}

fn fast_number<T: NumberType>(opcode: Opcode) -> Option<FastCombine> {
    Some(match opcode {
        Opcode::Add => pair(|a: T, b: T| a.add(b)),
        Opcode::Multiply => pair(|a: T, b: T| a.mul(b)),
        Opcode::Maximum => pair(|a: T, b: T| a.max(b)),
        Opcode::Minimum => pair(|a: T, b: T| a.min(b)),
        _ => return None,
    })
}

fn fast_whole<T: Whole>(opcode: Opcode) -> Option<FastCombine> {
    Some(match opcode {
        Opcode::And => pair(|a: T, b: T| a.and(b)),
        Opcode::Or => pair(|a: T, b: T| a.or(b)),
        _ => return fast_number::<T>(opcode),
    })
}
