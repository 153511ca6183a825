//! Loops over rows: where arrays are read or written in rows that lie apart, but are each without
//! gaps, steps work on the rows where they are. Blocks would have to be copied together first.

use std::ops::Range;

use super::Buffers;
use super::block;
use super::loops::Body;
use super::nest::{Fetch, FetchWay, join};
use super::plan::Nested;
use super::program::{ProgramStep, Register};
use super::walk::{LoopWalk, MOST_DIMS};
use crate::tensor::DType;

/// Rows with fewer elements than this are copied together: calling all steps for each takes longer.
const FEWEST: usize = 64;

/// Computes an array, or a region of it, row by row.
pub(super) struct RowLoop {
    body: Body,
    /// The extents of all loops but the innermost, and the rows' length.
    outer: Vec<usize>,
    len: usize,
    /// Where the rows are written, and how large elements are.
    to: LoopWalk,
    size: usize,
    out: Register,
    /// A register for the result, if the output is memory that is also read.
    aside: Register,
    /// What moves along the rows: everything that is read, and the output.
    moving: Vec<MovingPlace>,
}

/// A place that moves from row to row.
struct MovingPlace {
    place: Register,
    /// How many bytes a row is from the next along the innermost of the outer loops, and the size
    /// of an element.
    step: isize,
    size: usize,
}

impl RowLoop {
    /// The loop of an expression, if it reads or writes such rows.
    pub(super) fn new(nested: &Nested<Register>, to: &LoopWalk, dtype: DType) -> Option<RowLoop> {
        let (mut extents, mut fetches) = (nested.extents.clone(), nested.fetches.clone());
        let size = dtype.size();
        // Loops are joined where what is written can be walked as one, too.
        fetches.push(Fetch {
            slot: None,
            walk: to.clone(),
            size,
            place: nested.result,
            way: FetchWay::Gathered,
        });
        let mut classes = vec![0; extents.len()];
        join(&mut extents, &mut classes, &mut fetches);
        let to = fetches.pop()?.walk;
        if !has_rows(&extents, &fetches, &to) {
            return None;
        }
        let (mut draft, result) = (nested.draft.clone(), nested.result);
        let out = draft.outside();
        let store = block::narrow(dtype).unwrap_or_else(|| block::copy(dtype));
        draft.store(result, out, (store, block::narrow(dtype).is_none()));
        let aside = draft.reserve(size);
        // Rows are read where they are.
        draft.steps.retain(|step| matches!(step, ProgramStep::Call { .. }));
        let total = extents.iter().product();
        let len = extents.pop().unwrap_or(1);
        let moving = |place: Register, walk: &LoopWalk, size: usize| {
            let step = walk.by[extents.len() - 1] as isize * size as isize;
            MovingPlace { place, step, size }
        };
        let read = fetches.iter().filter(|fetch| is_moving(fetch));
        let moving = read
            .map(|fetch| moving(fetch.place, &fetch.walk, fetch.size))
            .chain([moving(out, &to, size)])
            .collect();
        let body = Body::new(draft.finish(&[]), fetches, total);
        Some(RowLoop { body, outer: extents, len, to, size, out, aside, moving })
    }

    /// How many rows there are.
    pub(super) fn count(&self) -> usize {
        self.outer.iter().product()
    }

    /// How many elements a row has.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn local_bytes(&self) -> usize {
        self.body.local_bytes()
    }

    /// Whether the output may be in the same memory as an input.
    pub(super) fn can_share(&self, input: usize) -> bool {
        self.to.base == 0 && self.to.is_dense() && self.body.is_read_in_place(input, self.size)
    }

    /// Computes some rows.
    ///
    /// # Safety
    /// See [`super::plan::KernelStage::run`]; `to` must be the array that the rows belong to.
    pub(super) unsafe fn run(&self, buffers: &Buffers<'_>, to: *mut u8, rows: Range<usize>) {
        // SAFETY: the caller's promise, passed on.
        let table = unsafe { self.body.prepare(buffers) };
        let is_shared = self.body.reads_from(buffers, to);
        let along = self.outer.last().copied().unwrap_or(1);
        let mut row = rows.start;
        while row < rows.end {
            let index = self.index(row);
            let index = &index[..self.outer.len()];
            for fetch in self.body.fetches.iter().filter(|fetch| is_moving(fetch)) {
                let Some(slot) = fetch.slot else { continue };
                let at = place_of(&fetch.walk, index) * fetch.size as isize;
                table[fetch.place.0 as usize] = buffers.read(slot).wrapping_offset(at).cast_mut();
            }
            let at = place_of(&self.to, index) * self.size as isize;
            table[self.out.0 as usize] = to.wrapping_offset(at);
            // As many as follow each other along one loop.
            let count = (along - row % along).min(rows.end - row);
            // SAFETY: all places are at the row; the caller's promise.
            unsafe { self.follow(table, count, is_shared) };
            row += count;
        }
    }

    /// Computes rows that follow each other, from the one on that all places are at.
    ///
    /// # Safety
    /// The arrays must have these rows.
    unsafe fn follow(&self, table: &mut [*mut u8], count: usize, is_shared: bool) {
        let block = self.body.block.min(self.len);
        let aside = table[self.aside.0 as usize];
        for _ in 0..count {
            for first in (0..self.len).step_by(block) {
                let len = block.min(self.len - first);
                let at = table[self.out.0 as usize];
                // Where the output is read as well, rows are written aside first.
                // SAFETY: elements of rows of the arrays; the caller's promise.
                unsafe {
                    if is_shared {
                        table[self.out.0 as usize] = aside;
                        self.body.program.run(table, len);
                        std::ptr::copy_nonoverlapping(aside, at, len * self.size);
                        table[self.out.0 as usize] = at;
                    } else {
                        self.body.program.run(table, len);
                    }
                }
                let is_last = first + len == self.len;
                for MovingPlace { place, step, size } in &self.moving {
                    let by = match is_last {
                        true => *step - (first * size) as isize,
                        false => (len * size) as isize,
                    };
                    let place = &mut table[place.0 as usize];
                    *place = place.wrapping_offset(by);
                }
            }
        }
    }

    /// The indices of a row.
    fn index(&self, row: usize) -> [usize; MOST_DIMS] {
        let (mut index, mut rest) = ([0; MOST_DIMS], row);
        for (at, &extent) in index[..self.outer.len()].iter_mut().zip(&self.outer).rev() {
            *at = rest % extent;
            rest /= extent;
        }
        index
    }
}

/// Whether loops go along rows, some of which lie apart.
fn has_rows(extents: &[usize], fetches: &[Fetch], to: &LoopWalk) -> bool {
    let is_row = |walk: &LoopWalk| walk.by.last() == Some(&1);
    let is_fitting = |fetch: &Fetch| match fetch.way {
        FetchWay::Scalar => true,
        FetchWay::Dense | FetchWay::Gathered => fetch.slot.is_some() && is_row(&fetch.walk),
        FetchWay::Counted => false,
    };
    let is_apart = |fetch: &Fetch| fetch.way == FetchWay::Gathered;
    extents.len() > 1
        && extents.last().is_some_and(|&len| len >= FEWEST)
        && is_row(to)
        && fetches.iter().all(is_fitting)
        && (fetches.iter().any(is_apart) || !to.is_dense())
}

/// Where the row of an index begins.
#[inline]
fn place_of(walk: &LoopWalk, index: &[usize]) -> isize {
    let steps = index.iter().zip(&walk.by).map(|(&at, &by)| at as isize * by as isize);
    walk.base as isize + steps.sum::<isize>()
}

/// Whether what is fetched is another element in every iteration.
fn is_moving(fetch: &Fetch) -> bool {
    matches!(fetch.way, FetchWay::Dense | FetchWay::Gathered)
}
