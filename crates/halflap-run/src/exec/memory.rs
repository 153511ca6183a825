//! The caching allocator.
//!
//! The issuing thread allocates and frees blocks in plan order, and reuses a freed block
//! immediately, although kernels that use it may not have run. That is safe: every use of a block
//! completes before anything issued after its free (see [`halflap::plan`]): the compute stream runs
//! in sequence, a collective starts after everything issued before it, and its memory is freed
//! after its wait. Blocks return to the system when the last stream that could touch them has
//! ended.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::address::Address;
use crate::check::{
    Checks, Freed, GuardedMemory, MemorySource, Overrun, Owner, RegionId, Resting, Tracker, broken,
    mark,
};

/// All memory that was taken from the system for one rank.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    blocks: Mutex<Vec<(Address, Layout)>>,
}

impl Drop for Arena {
    fn drop(&mut self) {
        let blocks = self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (address, layout) in blocks.drain(..) {
            // SAFETY: it was allocated with that layout, and every stream that could use it held
            // the arena.
            unsafe { dealloc(address.0, layout) };
        }
    }
}

/// Where blocks come from.
#[derive(Debug)]
enum BlockSource {
    /// Blocks are reused for requests of about the same size.
    Cached,
    /// Blocks are reused for requests of exactly the same size, with canary bytes around them.
    Marked(MarkedBlocks),
    /// Every block is new.
    Guarded(GuardedMemory),
}

/// Blocks with canary bytes around them, in order of allocation.
#[derive(Debug, Default)]
struct MarkedBlocks {
    /// The address and length of each, and its users in this run of the module.
    blocks: Vec<(Address, usize, Vec<String>)>,
    place: HashMap<usize, usize>,
}

/// The least number of canary bytes on either side.
const ZONE: usize = 64;

/// Free blocks, by size.
#[derive(Debug)]
pub(crate) struct Pool {
    arena: Arc<Arena>,
    free: HashMap<usize, Vec<Address>>,
    source: BlockSource,
    rank: usize,
    /// The bytes allocated from the system.
    pub(crate) reserved: usize,
    /// Notified of every allocation and free.
    pub(crate) tracker: Option<Tracker>,
}

/// A block of the pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolBlock {
    pub(crate) address: Address,
    size: usize,
    pub(crate) region: Option<RegionId>,
}

impl Pool {
    pub(crate) fn new(arena: Arc<Arena>, checks: &Checks, rank: usize, ranks: usize) -> Pool {
        let source = match checks.memory {
            MemorySource::Cached => BlockSource::Cached,
            MemorySource::Marked => BlockSource::Marked(MarkedBlocks::default()),
            MemorySource::Guarded(side) => {
                let resting = checks.resting().unwrap_or(Resting::Open);
                BlockSource::Guarded(GuardedMemory::new(side, resting, rank, ranks))
            }
        };
        Pool { arena, free: HashMap::new(), source, rank, reserved: 0, tracker: None }
    }

    /// Whether freed memory becomes inaccessible, so that it must not be freed too early.
    pub(crate) fn is_guarded(&self) -> bool {
        matches!(self.source, BlockSource::Guarded(_))
    }

    /// Memory for this many bytes, aligned to a cache line, or if it is guarded as its owner needs
    /// it. `None` if the system is out of memory.
    pub(crate) fn get(&mut self, bytes: usize, owner: Owner<'_>) -> Option<PoolBlock> {
        if let BlockSource::Guarded(guarded) = &mut self.source {
            let (address, region) = guarded.get(bytes, owner)?;
            self.reserved += bytes;
            return Some(PoolBlock { address, size: bytes, region: Some(region) });
        }
        isize::try_from(bytes).ok()?;
        let size =
            if matches!(self.source, BlockSource::Marked(_)) { bytes } else { rounded(bytes) };
        let again = self.free.get_mut(&size).and_then(Vec::pop);
        let address = again.or_else(|| self.fresh(size))?;
        if let BlockSource::Marked(marks) = &mut self.source {
            let place = marks.place[&(address.0 as usize)];
            marks.blocks[place].2.push(owner.name.to_owned());
        }
        Some(PoolBlock { address, size, region: None })
    }

    /// New memory.
    fn fresh(&mut self, size: usize) -> Option<Address> {
        let zone = if matches!(self.source, BlockSource::Marked(_)) { ZONE } else { 0 };
        let whole = size.checked_next_multiple_of(64)?.checked_add(2 * zone)?;
        let layout = Layout::from_size_align(whole, 64).ok()?;
        // SAFETY: the size is not zero: without canary bytes, requests are not empty.
        let start = Address(unsafe { alloc_zeroed(layout) });
        if start.0.is_null() {
            return None;
        }
        self.arena.blocks.lock().unwrap_or_else(PoisonError::into_inner).push((start, layout));
        self.reserved += whole;
        let address = Address(start.0.wrapping_add(zone));
        if let BlockSource::Marked(marks) = &mut self.source {
            // SAFETY: the marks before and after the block are in what was just allocated.
            unsafe {
                mark(start.0, zone);
                mark(address.0.add(size), whole - zone - size);
            }
            marks.place.insert(address.0 as usize, marks.blocks.len());
            marks.blocks.push((address, size, Vec::new()));
        }
        Some(address)
    }

    /// Frees a block; `freed` says when, if memory is guarded. Reports writes outside of it.
    pub(crate) fn put(
        &mut self,
        block: PoolBlock,
        freed: impl FnOnce() -> Freed,
    ) -> Option<Overrun> {
        if let Some(tracker) = &mut self.tracker {
            tracker.died(block.address);
        }
        match (&mut self.source, block.region) {
            (BlockSource::Guarded(guarded), Some(region)) => guarded.release(region, freed()),
            _ => {
                self.free.entry(block.size).or_default().push(block.address);
                None
            }
        }
    }

    /// Returns guarded memory to the system once nothing runs; while something may, it is kept.
    pub(crate) fn close(&mut self) {
        if let BlockSource::Guarded(guarded) = &mut self.source {
            guarded.close();
        }
    }

    /// Checks all canary bytes while nothing runs. Reports the first block with an overrun.
    pub(crate) fn look_at_marks(&mut self) -> Option<Overrun> {
        let BlockSource::Marked(marks) = &mut self.source else { return None };
        let mut found = None;
        for (address, size, owners) in &mut marks.blocks {
            let buffers = std::mem::take(owners);
            let after = size.next_multiple_of(64) - *size + ZONE;
            // SAFETY: the marks are where they were made, and nothing runs.
            let (before, after) = unsafe {
                let end = std::slice::from_raw_parts(address.0.add(*size), after);
                (std::slice::from_raw_parts(address.0.sub(ZONE), ZONE), end)
            };
            if let (None, Some((side, offset))) = (&found, broken(before, after)) {
                let mut buffers = buffers;
                buffers.dedup();
                let seen = "when the run of the module was over".to_owned();
                found = Some(Overrun { buffers, side, offset, rank: self.rank, seen });
            }
        }
        found
    }
}

/// Eight size classes for each power of two, so that blocks are reused for similar sizes.
fn rounded(bytes: usize) -> usize {
    let bytes = bytes.max(64);
    let step = (bytes.next_power_of_two() / 16).max(64);
    bytes.div_ceil(step) * step
}

/// Requested bytes, in issue order.
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
        let mut pool = Pool::new(Arc::default(), &Checks::default(), 0, 1);
        let owner = Owner { name: "a", kind: "u8[1000]", align: 1, is_constant: false };
        let freed = || Freed { kernel: String::new(), step: 0, computation: String::new() };
        let first = pool.get(1000, owner).unwrap();
        assert_eq!(pool.put(first, freed), None);
        assert_eq!(pool.get(990, owner).unwrap().address, first.address);
        assert_ne!(pool.get(990, owner).unwrap().address, first.address);
        assert!(pool.get(usize::MAX / 4, owner).is_none() && pool.get(usize::MAX, owner).is_none());
        assert_eq!((rounded(0), rounded(65), rounded(1000), rounded(1025)), (64, 128, 1024, 1152));
    }
}
