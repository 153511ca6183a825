//! The caching allocator.
//!
//! Blocks are given and taken back by the thread that issues steps, in the sequence of the plan, and
//! what was taken back is given again at once, although kernels that use it may not have run. That is
//! safe: whatever uses a block is done before whatever is issued after its free (see
//! [`halflap::plan`]): the compute stream runs in sequence, a collective starts after all that was
//! issued before it, and what it uses is freed after its wait. Blocks return to the system when
//! the last stream that could touch them has ended.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::check::Tracker;

/// An address that threads hand to each other; the plan says who may use it when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) *mut u8);

// SAFETY: an address by itself is a number; whoever follows it says why it may.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// All memory that was taken from the system for one rank.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    blocks: Mutex<Vec<(Address, Layout)>>,
}

impl Drop for Arena {
    fn drop(&mut self) {
        let blocks = self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (address, layout) in blocks.drain(..) {
            // SAFETY: it was allocated with that layout, and every stream that could use it held the arena.
            unsafe { dealloc(address.0, layout) };
        }
    }
}

/// Blocks that can be given again, by their size.
#[derive(Debug)]
pub(crate) struct Pool {
    arena: Arc<Arena>,
    free: HashMap<usize, Vec<Address>>,
    /// What was taken from the system.
    pub(crate) reserved: usize,
    /// Who is told of what is given and taken back.
    pub(crate) tracker: Option<Tracker>,
}

/// A block of the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) address: Address,
    size: usize,
}

impl Pool {
    pub(crate) fn new(arena: Arc<Arena>) -> Pool {
        Pool { arena, free: HashMap::new(), reserved: 0, tracker: None }
    }

    /// Memory for so many bytes, aligned to a cache line.
    pub(crate) fn get(&mut self, bytes: usize) -> Block {
        let size = rounded(bytes);
        if let Some(address) = self.free.get_mut(&size).and_then(Vec::pop) {
            return Block { address, size };
        }
        let Ok(layout) = Layout::from_size_align(size, 64) else { handle_alloc_error(Layout::new::<u8>()) };
        // SAFETY: the size is not zero.
        let address = Address(unsafe { alloc_zeroed(layout) });
        if address.0.is_null() {
            handle_alloc_error(layout);
        }
        self.arena.blocks.lock().unwrap_or_else(PoisonError::into_inner).push((address, layout));
        self.reserved += size;
        Block { address, size }
    }

    pub(crate) fn put(&mut self, block: Block) {
        if let Some(tracker) = &mut self.tracker {
            tracker.died(block.address);
        }
        self.free.entry(block.size).or_default().push(block.address);
    }
}

/// Eight sizes for each power of two, so that blocks are used again by neighbours in size.
fn rounded(bytes: usize) -> usize {
    let bytes = bytes.max(64);
    let step = (bytes.next_power_of_two() / 16).max(64);
    bytes.div_ceil(step) * step
}

/// What is requested, in the sequence in which steps are issued.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requested {
    now: i64,
    pub(crate) peak: i64,
}

impl Requested {
    pub(crate) fn add(&mut self, bytes: i64) {
        self.now += bytes;
        self.peak = self.peak.max(self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_used_again() {
        let mut pool = Pool::new(Arc::default());
        let first = pool.get(1000);
        pool.put(first);
        assert_eq!(pool.get(990).address, first.address);
        assert_ne!(pool.get(990).address, first.address);
        assert_eq!((rounded(0), rounded(65), rounded(1000), rounded(1025)), (64, 128, 1024, 1152));
    }
}
