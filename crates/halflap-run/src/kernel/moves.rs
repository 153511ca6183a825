//! Elements from one place to another.

use super::Buffers;
use super::block::{BlockFn, MOST_READ};
use super::plan::{ArraySlot, KernelStage, Strided, parts_of};
use super::program::fill;
use super::walk::{Transfer, strides};

/// A copy of elements of one array to a dense one.
pub(super) struct CopyStage {
    transfer: Transfer,
    from: (ArraySlot, usize),
    to: ArraySlot,
}

impl CopyStage {
    pub(super) fn new(dims: &[usize], from: Strided, to: ArraySlot, size: usize) -> CopyStage {
        let transfer = Transfer::new(dims, &from.by, &strides(dims), size);
        CopyStage { transfer, from: (from.slot, from.base as usize * size), to }
    }
}

impl KernelStage for CopyStage {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        // SAFETY: the transfer was planned for the arrays of these slots, which are different
        // memory.
        unsafe {
            let (from, to) = (buffers.read(self.from.0).add(self.from.1), buffers.write(self.to));
            transfer_share(&self.transfer, buffers, from, to);
        }
    }

    fn parts(&self) -> usize {
        parts_of(self.transfer.elements(), self.transfer.slices())
    }

    fn elements(&self) -> Option<usize> {
        Some(self.transfer.elements())
    }
}

/// Copies this portion's share.
///
/// # Safety
/// See [`Transfer::run`].
pub(super) unsafe fn transfer_share(
    transfer: &Transfer,
    buffers: &Buffers<'_>,
    from: *const u8,
    to: *mut u8,
) {
    let share = buffers.share(transfer.slices());
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match share.len() == transfer.slices() {
            true => transfer.run(from, to),
            false => transfer.run_slices(from, to, share),
        }
    }
}

/// One element everywhere.
pub(super) struct FillStage {
    pub(super) value: ArraySlot,
    pub(super) to: ArraySlot,
    pub(super) len: usize,
    pub(super) size: usize,
}

impl KernelStage for FillStage {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let share = buffers.share(self.len);
        // SAFETY: the value is one element, the array has `len`.
        unsafe {
            let value = std::slice::from_raw_parts(buffers.read(self.value), self.size);
            fill(value, buffers.write(self.to).add(share.start * self.size), share.len());
        }
    }

    fn parts(&self) -> usize {
        parts_of(self.len, self.len)
    }

    fn elements(&self) -> Option<usize> {
        Some(self.len)
    }
}

/// Elements of one type as those of another.
pub(super) struct ConvertStage {
    pub(super) from: ArraySlot,
    pub(super) to: ArraySlot,
    pub(super) len: usize,
    /// The sizes of an element before and after.
    pub(super) sizes: [usize; 2],
    pub(super) function: BlockFn,
}

impl KernelStage for ConvertStage {
    unsafe fn run(&self, buffers: &Buffers<'_>) {
        let share = buffers.share(self.len);
        // SAFETY: both arrays have the length.
        unsafe {
            let from = buffers.read(self.from).add(share.start * self.sizes[0]);
            let to = buffers.write(self.to).add(share.start * self.sizes[1]);
            (self.function)(&[from; MOST_READ], to, share.len());
        }
    }

    fn parts(&self) -> usize {
        parts_of(self.len, self.len)
    }
}
