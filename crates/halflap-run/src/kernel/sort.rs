//! Sorting, and the largest elements.
//!
//! Every sort is stable. A comparator that compares two elements of one array, or the same function
//! of both, is a comparison of keys: integers that are ordered as what is compared. Any other is a
//! program that runs for each pair.

use std::sync::Arc;

use super::Buffers;
use super::block::{CompareOp, computed_as, is_wide};
use super::error::Gap;
use super::formula::{Formula, Op, TermId};
use super::index::load;
use super::math::Real;
use super::plan::{ArraySlot, KernelStage, Planner, Trouble, parts_of};
use super::program::ScalarProgram;
use crate::tensor::DType;

/// How two elements are ordered.
enum SortOrder {
    Key(SortKey),
    Program(Box<ScalarProgram>),
}

/// What elements are compared by.
struct SortKey {
    of: SortedBy,
    /// The type of what is compared.
    dtype: DType,
    /// Whether the largest come first.
    is_descending: bool,
    /// Whether zeros differ by sign.
    is_total: bool,
}

enum SortedBy {
    /// One of the arrays.
    Array(usize),
    /// A function of the arrays' elements.
    Mapped(Box<ScalarProgram>),
}

/// How many elements a function of elements is applied to at a time.
const BLOCK: usize = 64;

struct Sort {
    /// Each: where it is, where it goes, and its type.
    arrays: Vec<(ArraySlot, ArraySlot, DType)>,
    order: SortOrder,
    outer: usize,
    len: usize,
    inner: usize,
}

pub(super) fn plan(
    planner: &mut Planner<'_>,
    id: TermId,
    dim: usize,
    comparator: &Arc<Formula>,
) -> Result<ArraySlot, Trouble> {
    let formula = planner.formula;
    let term = formula.term(id);
    let mut sources = Vec::with_capacity(term.args.len());
    for &arg in &term.args {
        sources.push((planner.make(arg)?, formula.term(arg).dtype));
    }
    let targets = match planner.part_count(id) {
        0 => vec![planner.target(id)],
        _ => planner.part_targets(id, &planner.part_kinds(id)),
    };
    let order = match by_key(comparator) {
        Some(order) => order,
        None => SortOrder::Program(Box::new(
            ScalarProgram::new(comparator).map_err(|what| planner.fail(id, what))?,
        )),
    };
    let dims = &formula.term(term.args[0]).dims;
    if dim >= dims.len() || sources.len() > super::index::MOST_ARRAYS {
        return Err(planner.fail(id, Gap::Shape));
    }
    let (outer, len, inner) =
        (dims[..dim].iter().product(), dims[dim], dims[dim + 1..].iter().product());
    let arrays =
        sources.into_iter().zip(&targets).map(|((from, dtype), &to)| (from, to, dtype)).collect();
    planner.add(Sort { arrays, order, outer, len, inner });
    Ok(targets[0])
}

/// What a comparator compares, if it is the same function of both elements.
fn by_key(comparator: &Formula) -> Option<SortOrder> {
    let [output] = comparator.outputs[..] else { return None };
    let term = comparator.term(output);
    let Op::Compare { direction, is_total } = term.op else { return None };
    let (left, right) = (term.args[0], term.args[1]);
    let is_descending = match direction {
        CompareOp::Lt => false,
        CompareOp::Gt => true,
        _ => return None,
    };
    let dtype = comparator.term(left).dtype;
    if dtype.is_complex() || comparator.terms.len() > MOST_TERMS {
        return None;
    }
    let (first, is_descending) = match () {
        () if are_alike(comparator, left, right) => (left, is_descending),
        () if are_alike(comparator, right, left) => (right, !is_descending),
        () => return None,
    };
    let of = match comparator.term(first).op {
        Op::Input(number) => SortedBy::Array(number / 2),
        _ => SortedBy::Mapped(Box::new(ScalarProgram::new(&part_of(comparator, first)).ok()?)),
    };
    Some(SortOrder::Key(SortKey {
        of,
        dtype,
        is_descending,
        is_total: is_total || !dtype.is_float(),
    }))
}

/// Comparators with more operations run as programs.
const MOST_TERMS: usize = 64;

/// Whether two terms are the same function, one of the first element of each array and one of the
/// second.
fn are_alike(formula: &Formula, first: TermId, second: TermId) -> bool {
    let (a, b) = (formula.term(first), formula.term(second));
    let is_same = match (&a.op, &b.op) {
        (Op::Input(a), Op::Input(b)) => a.is_multiple_of(2) && *b == a + 1,
        (Op::Constant(a), Op::Constant(b)) => a == b,
        (Op::Unary(a), Op::Unary(b)) | (Op::Binary(a), Op::Binary(b)) => a == b,
        (
            Op::Compare { direction: a, is_total: a_total },
            Op::Compare { direction: b, is_total: b_total },
        ) => a == b && a_total == b_total,
        (Op::Select, Op::Select)
        | (Op::Clamp, Op::Clamp)
        | (Op::Convert, Op::Convert)
        | (Op::Reinterpret, Op::Reinterpret) => true,
        _ => false,
    };
    is_same
        && (a.dtype, a.args.len()) == (b.dtype, b.args.len())
        && a.args.iter().zip(&b.args).all(|(&a, &b)| are_alike(formula, a, b))
}

/// The formula of one term alone.
fn part_of(formula: &Formula, root: TermId) -> Formula {
    let mut is_needed = vec![false; formula.terms.len()];
    is_needed[root.0 as usize] = true;
    for (at, term) in formula.terms.iter().enumerate().rev() {
        if is_needed[at] {
            term.args.iter().for_each(|arg| is_needed[arg.0 as usize] = true);
        }
    }
    let mut part = Formula { inputs: formula.inputs, ..Formula::default() };
    let mut places = vec![root; formula.terms.len()];
    for (at, term) in formula.terms.iter().enumerate().filter(|(at, _)| is_needed[*at]) {
        let mut term = term.clone();
        term.args.iter_mut().for_each(|arg| *arg = places[arg.0 as usize]);
        places[at] = part.push(term);
    }
    part.outputs = vec![places[root.0 as usize]];
    part
}

impl KernelStage for Sort {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let local = buffers.local();
        // SAFETY: local memory has room for as many numbers and keys as a row has elements.
        let (places, keys) = unsafe {
            let places = std::slice::from_raw_parts_mut(local.cast::<u32>(), self.len);
            let keys = local.add((self.len * 4).next_multiple_of(64));
            (places, std::slice::from_raw_parts_mut(keys.cast::<i64>(), self.len))
        };
        for row in buffers.share(self.outer * self.inner) {
            let first = row / self.inner * self.len * self.inner + row % self.inner;
            places.iter_mut().enumerate().for_each(|(place, number)| *number = place as u32);
            // SAFETY: a row of the arrays.
            unsafe { self.sort_row(SortRow { buffers, first }, places, keys) };
            for &(from, to, dtype) in &self.arrays {
                let at = first * dtype.size();
                // SAFETY: the first element of a row of both arrays.
                unsafe {
                    let (from, to) = (buffers.read(from).add(at), buffers.write(to).add(at));
                    match dtype.size() {
                        4 => self.put::<u32>(places, from.cast(), to.cast()),
                        8 => self.put::<u64>(places, from.cast(), to.cast()),
                        2 => self.put::<u16>(places, from.cast(), to.cast()),
                        1 => self.put::<u8>(places, from, to),
                        _ => self.put::<[u64; 2]>(places, from.cast(), to.cast()),
                    }
                }
            }
        }
    }

    fn parts(&self) -> usize {
        let rows = self.outer * self.inner;
        parts_of(rows * self.len * 16, rows)
    }

    fn local_bytes(&self) -> usize {
        let program = match &self.order {
            SortOrder::Program(applied) => applied.program.local_bytes(64),
            SortOrder::Key(SortKey { of: SortedBy::Mapped(applied), .. }) => {
                applied.program.local_bytes(BLOCK)
            }
            SortOrder::Key(_) => 0,
        };
        let (places, keys) = (self.len * 4, self.len * 8);
        places.next_multiple_of(64) + keys.next_multiple_of(64) + self.aside() + program
    }
}

/// A row that is sorted: its first element.
#[derive(Clone, Copy)]
struct SortRow<'r, 'b> {
    buffers: &'r Buffers<'b>,
    first: usize,
}

impl Sort {
    /// How many bytes the elements take that a program is applied to.
    fn aside(&self) -> usize {
        self.arrays.len() * BLOCK * 16
    }

    /// Sorts the elements of a row.
    ///
    /// # Safety
    /// Both pointers must be those of the first element of a row.
    unsafe fn put<T: Copy>(&self, places: &[u32], from: *const T, to: *mut T) {
        for (place, &number) in places.iter().enumerate() {
            // SAFETY: elements of a row; the caller's promise.
            unsafe {
                let from = from.add(number as usize * self.inner);
                *to.add(place * self.inner) = *from;
            }
        }
    }

    /// The keys of a row's elements.
    ///
    /// # Safety
    /// `first` must be the first element of a row.
    unsafe fn keys(&self, key: &SortKey, row: SortRow<'_, '_>, keys: &mut [i64]) {
        let SortRow { buffers, first } = row;
        let element = |array: usize, place: usize| {
            let (from, _, dtype) = self.arrays[array];
            let at = (first + place * self.inner) * dtype.size();
            (buffers.read(from).wrapping_add(at), dtype)
        };
        let applied = match &key.of {
            SortedBy::Mapped(applied) => applied,
            SortedBy::Array(array) => {
                for (place, to) in keys.iter_mut().enumerate() {
                    let (from, dtype) = element(*array, place);
                    // SAFETY: an element of the row.
                    *to = unsafe { key_of(dtype, from, key.is_total) };
                }
                return;
            }
        };
        let program = applied.program.local_bytes(BLOCK);
        let aside = buffers.local().wrapping_add(self.local_bytes() - program - self.aside());
        // SAFETY: the last part of local memory.
        let table = unsafe { applied.program.prepare(aside.add(self.aside()), BLOCK) };
        let size = computed_as(key.dtype).size();
        for (number, keys) in keys.chunks_mut(BLOCK).enumerate() {
            for array in 0..self.arrays.len() {
                let to = aside.wrapping_add(array * BLOCK * 16);
                let wide = computed_as(self.arrays[array].2).size();
                for place in 0..keys.len() {
                    let (from, dtype) = element(array, number * BLOCK + place);
                    // SAFETY: an element of the row, and room for a computed one.
                    unsafe { load(dtype, from, to.add(place * wide)) };
                }
                table[applied.inputs[2 * array].0 as usize] = to;
            }
            // SAFETY: all inputs that are read are set; the result has as many elements.
            unsafe {
                applied.program.run(table, keys.len());
                let from = table[applied.outputs[0].0 as usize].cast_const();
                for (place, to) in keys.iter_mut().enumerate() {
                    let from = from.add(place * size);
                    *to = key_of(computed_as(key.dtype), from, key.is_total);
                }
            }
        }
    }

    /// Sorts the numbers of a row's elements.
    ///
    /// # Safety
    /// It must be a row of the arrays.
    unsafe fn sort_row(&self, row: SortRow<'_, '_>, places: &mut [u32], keys: &mut [i64]) {
        let SortRow { buffers, first } = row;
        match &self.order {
            SortOrder::Key(key) => {
                // SAFETY: the caller's promise.
                unsafe { self.keys(key, row, keys) };
                sort_by_keys(key, places, keys);
            }
            SortOrder::Program(applied) => {
                let local = buffers.local().wrapping_add(
                    self.local_bytes() - applied.program.local_bytes(64) - self.aside(),
                );
                // SAFETY: the last part of local memory.
                let table = unsafe { applied.program.prepare(local.add(self.aside()), 64) };
                let mut is_before = |a: u32, b: u32| {
                    for (index, &(from, _, dtype)) in self.arrays.iter().enumerate() {
                        for (side, place) in [a, b].into_iter().enumerate() {
                            let to = local.wrapping_add(index * 32 + side * 16);
                            let at = (first + place as usize * self.inner) * dtype.size();
                            // SAFETY: an element of the row, and room for a computed one.
                            unsafe { load(dtype, buffers.read(from).add(at), to) };
                            table[applied.inputs[2 * index + side].0 as usize] = to;
                        }
                    }
                    // SAFETY: all inputs are set; the result is a boolean.
                    unsafe {
                        applied.program.run(table, 1);
                        *table[applied.outputs[0].0 as usize] != 0
                    }
                };
                merge_sort(places, keys, &mut is_before);
            }
        }
    }
}

/// Sorts the numbers of elements by their keys; equal ones keep their order.
fn sort_by_keys(key: &SortKey, places: &mut [u32], keys: &mut [i64]) {
    if key.dtype.size() > 4 {
        if key.is_descending {
            keys.iter_mut().for_each(|key| *key = !*key);
        }
        // The index breaks ties, so the sort is stable without extra memory.
        return places.sort_unstable_by_key(|&place| (keys[place as usize], place));
    }
    // Key and index fit into one number.
    let least = if key.dtype == DType::U32 { 0 } else { i64::from(i32::MIN) };
    for (place, number) in keys.iter_mut().enumerate() {
        let ordered = (*number - least) as u32;
        let ordered = if key.is_descending { !ordered } else { ordered };
        // With the first bit flipped, it is ordered as a signed number.
        *number = (i64::from(ordered) << 32 | place as i64) ^ i64::MIN;
    }
    keys.sort_unstable();
    places.iter_mut().zip(&*keys).for_each(|(place, &number)| *place = number as u32);
}

/// A stable sort that tolerates an inconsistent comparator. `aside` is scratch memory for merging.
fn merge_sort(places: &mut [u32], aside: &mut [i64], is_before: &mut dyn FnMut(u32, u32) -> bool) {
    let len = places.len();
    let mut width = 1;
    while width < len {
        for start in (0..len).step_by(2 * width) {
            let (middle, end) = ((start + width).min(len), (start + 2 * width).min(len));
            let (mut left, mut right) = (start, middle);
            for slot in &mut aside[start..end] {
                let takes_right =
                    left >= middle || (right < end && is_before(places[right], places[left]));
                let from = if takes_right { &mut right } else { &mut left };
                *slot = i64::from(places[*from]);
                *from += 1;
            }
        }
        places.iter_mut().zip(&*aside).for_each(|(place, &number)| *place = number as u32);
        width *= 2;
    }
}

/// An integer with the same order as the element.
///
/// # Safety
/// `from` must hold one element.
unsafe fn key_of(dtype: DType, from: *const u8, is_total: bool) -> i64 {
    // Zeros are equal unless the order is total.
    let real = |value: f32| if is_total || value != 0.0 { value.total() } else { 0 };
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => real(*from.cast()),
            DType::F16 | DType::Bf16 | DType::Mini(_) => {
                let mut value = 0f32;
                load(dtype, from, (&raw mut value).cast());
                real(value)
            }
            DType::F64 => {
                let value: f64 = *from.cast();
                if is_total || value != 0.0 { value.total() } else { 0 }
            }
            // With the first bit flipped, signed numbers are ordered as unsigned ones.
            DType::U64 => (*from.cast::<u64>() ^ 1 << 63) as i64,
            other => super::heavy::read_index(from, other, 0),
        }
    }
}

/// The largest elements of each row, and where they were.
struct TopK {
    from: (ArraySlot, DType),
    values: ArraySlot,
    places: ArraySlot,
    rows: usize,
    len: usize,
    count: usize,
}

pub(super) fn top(
    planner: &mut Planner<'_>,
    id: TermId,
    count: usize,
) -> Result<ArraySlot, Trouble> {
    let term = planner.formula.term(id);
    let from = planner.make(term.args[0])?;
    let dims = &planner.formula.term(term.args[0]).dims;
    let len = dims.last().copied().unwrap_or(1);
    if planner.part_count(id) != 2 || count > len || computed_as(term.dtype).size() > 8 {
        return Err(planner.fail(id, Gap::Shape));
    }
    let kinds = planner.part_kinds(id);
    if kinds[1].dtype != DType::S32 {
        return Err(planner.fail(id, Gap::OfType(kinds[1].dtype)));
    }
    let targets = planner.part_targets(id, &kinds);
    let rows = dims.iter().product::<usize>() / len.max(1);
    planner.add(TopK {
        from: (from, term.dtype),
        values: targets[0],
        places: targets[1],
        rows,
        len,
        count,
    });
    Ok(targets[0])
}

/// An element that may be one of the largest: its inverted key, so that the largest come first, and
/// its place.
type RankedElement = (i64, u32);

/// How many elements are compared with the least that counts at once.
const LOOKED_AT: usize = 64;

impl TopK {
    /// How many elements are kept before the best of them are chosen: enough for choosing to take
    /// a constant time for each.
    fn room(&self) -> usize {
        self.len.min(2 * self.count + 2 * LOOKED_AT)
    }

    /// The largest elements of a row, in sequence.
    ///
    /// # Safety
    /// `from` must hold a row.
    unsafe fn best<'l>(
        &self,
        from: *const u8,
        kept: &'l mut [RankedElement],
    ) -> &'l [RankedElement] {
        if self.count == 0 {
            return &[];
        }
        let (dtype, size) = (self.from.1, self.from.1.size());
        // The largest inverted key that still counts, and how many are kept.
        let (mut limit, mut count) = (i64::MAX, 0);
        'row: for first in (0..self.len).step_by(LOOKED_AT) {
            let looked_at = LOOKED_AT.min(self.len - first);
            // SAFETY: elements of the row.
            unsafe {
                if !may_have(dtype, from.add(first * size), looked_at, limit) {
                    continue;
                }
            }
            for place in first..first + looked_at {
                // SAFETY: an element of the row.
                let key = !unsafe { key_of(dtype, from.add(place * size), true) };
                if key > limit {
                    continue;
                }
                kept[count] = (key, place as u32);
                count += 1;
                if count == kept.len() && count > self.count {
                    let (_, worst, _) = kept.select_nth_unstable(self.count - 1);
                    // Of equal ones the first count, so later ones must be larger.
                    let Some(less) = worst.0.checked_sub(1) else { break 'row };
                    (limit, count) = (less, self.count);
                }
            }
        }
        let kept = &mut kept[..count];
        if self.count < count {
            kept.select_nth_unstable(self.count);
        }
        let best = &mut kept[..self.count];
        best.sort_unstable();
        best
    }
}

/// Whether one of some elements may have an inverted key up to a limit.
///
/// # Safety
/// `from` must hold them.
unsafe fn may_have(dtype: DType, from: *const u8, count: usize, limit: i64) -> bool {
    let (DType::F32, Ok(limit)) = (dtype, i32::try_from(limit)) else { return true };
    // SAFETY: the caller's promise.
    let elements = unsafe { std::slice::from_raw_parts(from.cast::<i32>(), count) };
    match is_wide() {
        // SAFETY: the machine has the vectors.
        true => unsafe { has_wide(elements, limit) },
        false => has_any(elements, limit),
    }
}

/// # Safety
/// The machine must have 256-bit vectors.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2"))]
unsafe fn has_wide(elements: &[i32], limit: i32) -> bool {
    has_any(elements, limit)
}

/// Whether one of some floating-point numbers has an inverted key up to a limit.
#[inline(always)]
fn has_any(elements: &[i32], limit: i32) -> bool {
    let key = |bits: i32| !(bits ^ ((bits >> 31) as u32 >> 1) as i32);
    // All of them: that is faster than to stop at the first.
    elements.iter().fold(false, |found, &bits| found | (key(bits) <= limit))
}

impl KernelStage for TopK {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let (from, size) = (buffers.read(self.from.0), self.from.1.size());
        // SAFETY: local memory has room for the elements that are kept; elements are those of rows.
        unsafe {
            let local = buffers.local().cast::<RankedElement>();
            let kept = std::slice::from_raw_parts_mut(local, self.room());
            for row in buffers.share(self.rows) {
                let from = from.add(row * self.len * size);
                for (rank, &(_, place)) in self.best(from, kept).iter().enumerate() {
                    let at = row * self.count + rank;
                    std::ptr::copy_nonoverlapping(
                        from.add(place as usize * size),
                        buffers.write(self.values).add(at * size),
                        size,
                    );
                    buffers.write(self.places).cast::<i32>().add(at).write(place as i32);
                }
            }
        }
    }

    fn parts(&self) -> usize {
        parts_of(self.rows * self.len, self.rows)
    }

    fn local_bytes(&self) -> usize {
        self.room() * size_of::<RankedElement>()
    }
}
