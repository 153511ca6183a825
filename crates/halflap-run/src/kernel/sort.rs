//! Sorting, and the largest elements.
//!
//! Every sort is stable. A comparator that compares two elements of one array is a comparison of
//! keys: integers that are ordered as the elements. Any other is a program that runs for each pair.

use std::sync::Arc;

use super::Buffers;
use super::block::{Direction, computed_as};
use super::error::What;
use super::formula::{Formula, Op, TermId};
use super::index::load;
use super::math::Real;
use super::plan::{Planner, Slot, Stage, Trouble};
use super::program::Applied;
use crate::tensor::DType;

/// How two elements are put into sequence.
enum Order {
    /// By one of the arrays; whether the largest come first, and whether zeros differ by sign.
    Key {
        array: usize,
        is_descending: bool,
        is_total: bool,
    },
    Program(Box<Applied>),
}

struct Sort {
    /// Each: where it is, where it goes, and its type.
    arrays: Vec<(Slot, Slot, DType)>,
    order: Order,
    outer: usize,
    len: usize,
    inner: usize,
}

pub(super) fn plan(
    planner: &mut Planner<'_>,
    id: TermId,
    (dim, comparator): (usize, &Arc<Formula>),
) -> Result<Slot, Trouble> {
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
        None => Order::Program(Box::new(
            Applied::new(comparator).map_err(|what| planner.fail(id, what))?,
        )),
    };
    let dims = &formula.term(term.args[0]).dims;
    if dim >= dims.len() || sources.len() > super::index::MOST_ARRAYS {
        return Err(planner.fail(id, What::Shape));
    }
    let (outer, len, inner) =
        (dims[..dim].iter().product(), dims[dim], dims[dim + 1..].iter().product());
    let arrays =
        sources.into_iter().zip(&targets).map(|((from, dtype), &to)| (from, to, dtype)).collect();
    planner.add(Sort { arrays, order, outer, len, inner });
    Ok(targets[0])
}

/// Whether a comparator compares two elements of one array.
fn by_key(comparator: &Formula) -> Option<Order> {
    let [output] = comparator.outputs[..] else { return None };
    let term = comparator.term(output);
    let Op::Compare { direction, is_total } = term.op else { return None };
    let input = |arg: TermId| match comparator.term(arg).op {
        Op::Input(number) => Some(number),
        _ => None,
    };
    let (left, right) = (input(term.args[0])?, input(term.args[1])?);
    let is_descending = match direction {
        Direction::Lt => false,
        Direction::Gt => true,
        _ => return None,
    };
    let is_float = comparator.term(term.args[0]).dtype.is_float();
    if comparator.term(term.args[0]).dtype.is_complex() {
        return None;
    }
    let is_total = is_total || !is_float;
    match (left % 2, right) {
        (0, right) if right == left + 1 => {
            Some(Order::Key { array: left / 2, is_descending, is_total })
        }
        (1, right) if right + 1 == left => {
            Some(Order::Key { array: right / 2, is_descending: !is_descending, is_total })
        }
        _ => None,
    }
}

impl Stage for Sort {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let local = buffers.local();
        // SAFETY: local memory has room for as many numbers and keys as a row has elements.
        let (places, keys) = unsafe {
            let places = std::slice::from_raw_parts_mut(local.cast::<u32>(), self.len);
            let keys = local.add((self.len * 4).next_multiple_of(64));
            (places, std::slice::from_raw_parts_mut(keys.cast::<i64>(), self.len))
        };
        for outer in 0..self.outer {
            for inner in 0..self.inner {
                let first = outer * self.len * self.inner + inner;
                places.iter_mut().enumerate().for_each(|(place, number)| *number = place as u32);
                // SAFETY: a row of the arrays.
                unsafe { self.sort_row(buffers, first, (places, keys)) };
                for &(from, to, dtype) in &self.arrays {
                    let size = dtype.size();
                    for (place, &number) in places.iter().enumerate() {
                        let at = |place: usize| (first + place * self.inner) * size;
                        // SAFETY: elements of a row of both arrays.
                        unsafe {
                            let from = buffers.read(from).add(at(number as usize));
                            std::ptr::copy_nonoverlapping(
                                from,
                                buffers.write(to).add(at(place)),
                                size,
                            );
                        }
                    }
                }
            }
        }
    }

    fn local_bytes(&self) -> usize {
        let program = match &self.order {
            Order::Program(applied) => applied.program.local_bytes(64),
            Order::Key { .. } => 0,
        };
        (self.len * 4).next_multiple_of(64) + (self.len * 8).next_multiple_of(64) + 1024 + program
    }
}

impl Sort {
    /// Sorts the numbers of a row's elements.
    ///
    /// # Safety
    /// `first` must be the first element of a row.
    unsafe fn sort_row(
        &self,
        buffers: &Buffers<'_>,
        first: usize,
        (places, keys): (&mut [u32], &mut [i64]),
    ) {
        match &self.order {
            Order::Key { array, is_descending, is_total } => {
                let (from, _, dtype) = self.arrays[*array];
                for (place, key) in keys.iter_mut().enumerate() {
                    // SAFETY: an element of the row.
                    *key = unsafe {
                        key_of(
                            dtype,
                            buffers.read(from).add((first + place * self.inner) * dtype.size()),
                            *is_total,
                        )
                    };
                    if *is_descending {
                        *key = !*key;
                    }
                }
                // The index breaks ties, so the sort is stable without extra memory.
                places.sort_unstable_by_key(|&place| (keys[place as usize], place));
            }
            Order::Program(applied) => {
                let local = buffers
                    .local()
                    .wrapping_add(self.local_bytes() - applied.program.local_bytes(64) - 1024);
                // SAFETY: the last part of local memory.
                let table = unsafe { applied.program.prepare(local.add(1024), 64) };
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

/// A stable sort that does not mind a comparator that contradicts itself. `aside` is memory to merge in.
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
    // Zeros are the same where the order is not total.
    let real = |value: f32| if is_total || value != 0.0 { value.total() } else { 0 };
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F32 => real(*from.cast()),
            DType::F16 | DType::Bf16 => {
                let mut value = 0f32;
                load(dtype, from, (&raw mut value).cast());
                real(value)
            }
            DType::F64 => {
                let value: f64 = *from.cast();
                if is_total || value != 0.0 { value.total() } else { 0 }
            }
            // With the first bit turned, signed numbers are ordered as unsigned ones.
            DType::U64 => (*from.cast::<u64>() ^ 1 << 63) as i64,
            other => super::heavy::read_index(from, other, 0),
        }
    }
}

/// The largest elements of each row, and where they were.
struct TopK {
    from: (Slot, DType),
    values: Slot,
    places: Slot,
    rows: usize,
    len: usize,
    count: usize,
}

pub(super) fn top(planner: &mut Planner<'_>, id: TermId, count: usize) -> Result<Slot, Trouble> {
    let term = planner.formula.term(id);
    let from = planner.make(term.args[0])?;
    let dims = &planner.formula.term(term.args[0]).dims;
    let len = dims.last().copied().unwrap_or(1);
    if planner.part_count(id) != 2 || count > len || computed_as(term.dtype).size() > 8 {
        return Err(planner.fail(id, What::Shape));
    }
    let kinds = planner.part_kinds(id);
    if kinds[1].0 != DType::S32 {
        return Err(planner.fail(id, What::OfType(kinds[1].0)));
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

impl Stage for TopK {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let (from, dtype) = (buffers.read(self.from.0), self.from.1);
        let size = dtype.size();
        // SAFETY: local memory has room for a row's numbers; elements are those of rows.
        unsafe {
            let places =
                std::slice::from_raw_parts_mut(buffers.local().cast::<(i64, u32)>(), self.len);
            for row in 0..self.rows {
                let from = from.add(row * self.len * size);
                for (place, slot) in places.iter_mut().enumerate() {
                    *slot = (!key_of(dtype, from.add(place * size), true), place as u32);
                }
                if self.count < self.len {
                    places.select_nth_unstable(self.count);
                }
                places[..self.count].sort_unstable();
                for (rank, &(_, place)) in places[..self.count].iter().enumerate() {
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

    fn local_bytes(&self) -> usize {
        self.len * 16
    }
}
