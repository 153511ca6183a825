//! Scatters of single elements: the places of many are found at once, and then updated one after
//! the other. Both loops know the types, so that an update takes a few instructions.

use std::ops::Range;

use super::Buffers;
use super::heavy::read_index;
use super::index::{IndexNumber, Windows};
use super::plan::ArraySlot;
use super::reduce::{PlaceFn, PlacedUpdate};
use crate::tensor::DType;

/// How many places are found at once.
const BLOCK: usize = 512;
/// The place of a window that does not fit.
const NOWHERE: usize = usize::MAX;

/// Updates of single elements that are read along one line.
pub(super) struct SingleUpdates {
    /// The steps from one to the next: of the indices, and of the updates.
    index_by: usize,
    update_by: usize,
    update: PlaceFn,
}

/// The memory that is updated.
pub(super) struct UpdatedArray {
    pub(super) updates: ArraySlot,
    pub(super) to: ArraySlot,
    pub(super) size: usize,
}

impl SingleUpdates {
    /// `None` if windows have several elements, or cannot be walked as one line.
    pub(super) fn new(windows: &Windows, update: PlaceFn) -> Option<SingleUpdates> {
        let is_single = windows.sizes.iter().all(|&size| size == 1);
        if !is_single || !windows.batching.is_empty() {
            return None;
        }
        let step = |by: &[usize]| line(&windows.batch, by);
        let (index_by, update_by) = (step(&windows.index_by)?, step(&windows.batch_by)?);
        Some(SingleUpdates { index_by, update_by, update })
    }

    /// Does all updates of some elements.
    ///
    /// # Safety
    /// The windows must be those that it was made for, and the buffers those that were planned.
    pub(super) unsafe fn run(
        &self,
        windows: &Windows,
        buffers: &Buffers<'_>,
        (array, own): (UpdatedArray, Range<usize>),
    ) {
        let UpdatedArray { updates, to, size } = array;
        let (updates, to) = (buffers.read(updates), buffers.write(to));
        let (mut places, mut placed) = ([0; BLOCK], [PlacedUpdate::default(); BLOCK]);
        for first in (0..windows.count()).step_by(BLOCK) {
            let places = &mut places[..BLOCK.min(windows.count() - first)];
            // SAFETY: the caller's promise; the places are those of elements.
            unsafe {
                self.find(windows, buffers, (first, &mut *places));
                // Without a branch: with several threads, which it is cannot be foreseen.
                let mut count = 0;
                for (number, &place) in places.iter().enumerate() {
                    placed[count] = PlacedUpdate { number, place };
                    count += usize::from(place.wrapping_sub(own.start) < own.len());
                }
                let updates = updates.add(first * self.update_by * size);
                (self.update)((updates, self.update_by), to, &placed[..count]);
            }
        }
    }

    /// Finds the places of some windows, from one on.
    ///
    /// # Safety
    /// See [`SingleUpdates::run`].
    unsafe fn find(
        &self,
        windows: &Windows,
        buffers: &Buffers<'_>,
        (first, places): (usize, &mut [usize]),
    ) {
        let (indices, dtype) = (buffers.read(windows.indices.0), windows.indices.1);
        places.fill(0);
        for number in &windows.numbers {
            let start = first * self.index_by + number.at;
            // SAFETY: numbers of index vectors of the indices' array.
            unsafe {
                match dtype {
                    DType::S32 => {
                        let from = indices.cast::<i32>().add(start);
                        add(number, places, |at| i64::from(*from.add(at * self.index_by)));
                    }
                    DType::S64 => {
                        let from = indices.cast::<i64>().add(start);
                        add(number, places, |at| *from.add(at * self.index_by));
                    }
                    _ => add(number, places, |at| {
                        read_index(indices, dtype, start + at * self.index_by)
                    }),
                }
            }
        }
    }
}

/// Adds what a number of every index vector contributes to its place. A window that does not fit is
/// nowhere.
#[inline(always)]
fn add(number: &IndexNumber, places: &mut [usize], index: impl Fn(usize) -> i64) {
    let most = number.most.max(0);
    for (at, place) in places.iter_mut().enumerate() {
        let index = index(at);
        let fits = (0..=most).contains(&index) && *place != NOWHERE;
        *place = if fits { *place + index as usize * number.by } else { NOWHERE };
    }
}

/// The step along all indices of some dimensions, if it is always the same.
fn line(dims: &[usize], by: &[usize]) -> Option<usize> {
    let wide: Vec<usize> = (0..dims.len()).filter(|&dim| dims[dim] != 1).collect();
    let is_one = |pair: &[usize]| by[pair[0]] == by[pair[1]] * dims[pair[1]];
    wide.windows(2).all(is_one).then(|| wide.last().map_or(0, |&dim| by[dim]))
}
