//! Memory that detects invalid accesses: every buffer has its own pages between inaccessible guard
//! pages.
//!
//! It is aligned to one end of its pages, so that an access one byte too far on that side faults at
//! that very instruction; on the other side, up to the next page, are canary bytes, which are
//! checked when it is freed. New memory is filled with NaN. Freed memory is inaccessible, and its
//! address is not reused for a long time.
//!
//! If one task runs at a time, a live buffer is accessible only to the tasks that use it
//! ([`Resting::Closed`]): this also catches custom calls that kept its address, and threads that
//! they left behind.

use std::collections::VecDeque;

use super::regions::{self, Area, Freed, MOST, Region, RegionId};
use crate::address::Address;
use crate::failure::{Overrun, Side};

/// All bits set is a NaN in every floating-point type.
const FRESH: u8 = 0xff;
/// The size of the inaccessible area before and after a buffer's pages: addresses cost nothing, and
/// an access may be off by more than a page.
const GUARD: usize = 32 << 20;
/// The canary byte.
const MARK: u8 = 0xcb;

/// What the memory is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: &'a str,
    /// The required alignment.
    pub(crate) align: usize,
    pub(crate) is_constant: bool,
}

/// The access to a buffer while no task works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resting {
    /// Full access: tasks on other streams may run at any time.
    Open,
    /// No access.
    Closed,
}

impl Resting {
    fn access(self) -> Access {
        match self {
            Resting::Open => Access::Write,
            Resting::Closed => Access::None,
        }
    }
}

/// The guarded memory of one rank.
#[derive(Debug)]
pub(crate) struct GuardedMemory {
    side: Side,
    resting: Resting,
    rank: usize,
    page: usize,
    /// Freed regions, the oldest first.
    quarantine: VecDeque<RegionId>,
    /// How many are kept.
    kept: usize,
    /// Regions that are never freed.
    constants: Vec<RegionId>,
}

impl GuardedMemory {
    pub(crate) fn new(side: Side, resting: Resting, rank: usize, ranks: usize) -> GuardedMemory {
        // SAFETY: a system call without pointers.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        // Half of the mappings are left for live buffers.
        let kept = MOST / 2 / ranks.max(1);
        GuardedMemory {
            side,
            resting,
            rank,
            page,
            quarantine: VecDeque::new(),
            kept,
            constants: Vec::new(),
        }
    }

    /// New memory; `None` if the system is out of memory.
    pub(crate) fn get(&mut self, bytes: usize, owner: Owner<'_>) -> Option<(Address, RegionId)> {
        let len = bytes.next_multiple_of(self.page).max(self.page);
        let start = loop {
            match self.map(len) {
                Some(start) => break start,
                // The oldest memory is released.
                None => self.forget()?,
            }
        };
        let first = start + GUARD;
        let at = match self.side {
            Side::Start => first,
            Side::End => (first + len - bytes) & !(owner.align - 1),
        };
        // SAFETY: these pages were just made, for this buffer alone.
        unsafe {
            std::ptr::write_bytes(first as *mut u8, MARK, len);
            std::ptr::write_bytes(at as *mut u8, FRESH, bytes);
        }
        let region = Region {
            mapped: Area { start, len: len + 2 * GUARD },
            pages: Area { start: first, len },
            data: Area { start: at, len: bytes },
            name: owner.name.to_owned(),
            kind: owner.kind.to_owned(),
            rank: self.rank,
            is_constant: owner.is_constant,
        };
        // A constant still has to be written.
        if self.resting == Resting::Closed && !owner.is_constant {
            protect(region.pages, Access::None);
        }
        let mut region = region;
        loop {
            match regions::add(region) {
                Ok(id) => {
                    self.constants.extend(owner.is_constant.then_some(id));
                    return Some((Address(at as *mut u8), id));
                }
                Err(back) => region = back,
            }
            self.forget()?;
        }
    }

    fn map(&self, len: usize) -> Option<usize> {
        let whole = len + 2 * GUARD;
        // SAFETY: new pages at an address that the system chooses.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0)
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = start as usize;
        if protect(Area { start: start + GUARD, len }, Access::Write) {
            return Some(start);
        }
        unmap(Area { start, len: whole });
        None
    }

    /// Frees memory, and reports writes outside of the buffer.
    pub(crate) fn release(&mut self, id: RegionId, freed: Freed) -> Option<Overrun> {
        let region = regions::get(id)?;
        protect(region.pages, Access::Write);
        let overrun = self.overrun(region, &freed.kernel);
        regions::set_freed(id, freed);
        // Returns the memory to the system; the address becomes invalid. SAFETY: no valid user of
        // the buffer is left.
        unsafe {
            let Area { start, len } = region.pages;
            libc::madvise(start as *mut libc::c_void, len, libc::MADV_DONTNEED);
        }
        protect(region.pages, Access::None);
        self.quarantine.push_back(id);
        if self.quarantine.len() > self.kept {
            self.forget();
        }
        overrun
    }

    /// Unmaps the oldest freed region; returns `None` if there is none.
    fn forget(&mut self) -> Option<()> {
        let id = self.quarantine.pop_front()?;
        let mapped = regions::get(id)?.mapped;
        regions::remove(id);
        unmap(mapped);
        Some(())
    }

    /// Unmaps every region that is not in use.
    pub(crate) fn close(&mut self) {
        self.quarantine.extend(self.constants.drain(..));
        while self.forget().is_some() {}
    }

    fn overrun(&self, region: &Region, kernel: &str) -> Option<Overrun> {
        let Area { start: first, len } = region.pages;
        let Area { start: at, len: bytes } = region.data;
        // SAFETY: the pages stay mapped until the buffer is released, which is now.
        let all = unsafe { std::slice::from_raw_parts(first as *const u8, len) };
        let (before, after) = (&all[..at - first], &all[at - first + bytes..]);
        let (side, offset) = broken(before, after)?;
        let seen = format!("when it was freed after kernel '{kernel}'");
        Some(Overrun { buffers: vec![region.name.clone()], side, offset, rank: self.rank, seen })
    }
}

/// Where canary bytes before and after a buffer were overwritten, nearest to it.
pub(crate) fn broken(before: &[u8], after: &[u8]) -> Option<(Side, usize)> {
    let is_other = |&byte: &u8| byte != MARK;
    let end = after.iter().position(is_other).map(|offset| (Side::End, offset));
    end.or_else(|| before.iter().rev().position(is_other).map(|offset| (Side::Start, offset)))
}

/// Fills memory with canary bytes.
///
/// # Safety
/// The memory must be mapped and owned exclusively.
pub(crate) unsafe fn mark(start: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(start, MARK, len) };
}

/// Page protections.
#[derive(Clone, Copy)]
enum Access {
    None,
    Read,
    Write,
}

fn protect(pages: Area, access: Access) -> bool {
    let flags = match access {
        Access::None => libc::PROT_NONE,
        Access::Read => libc::PROT_READ,
        Access::Write => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: the pages are those of one region, whose owner decides what may be done with them.
    unsafe { libc::mprotect(pages.start as *mut libc::c_void, pages.len, flags) == 0 }
}

fn unmap(pages: Area) {
    // SAFETY: the pages are those of one region that is no longer used.
    unsafe { libc::munmap(pages.start as *mut libc::c_void, pages.len) };
}

/// Makes a constant's memory read-only.
pub(crate) fn seal(id: RegionId) {
    if let Some(region) = regions::get(id) {
        protect(region.pages, Access::Read);
    }
}

/// Gives a task the access that it needs to its arrays while it runs; any other access faults.
pub(crate) struct Opened {
    pages: Vec<Area>,
    resting: Resting,
}

impl Opened {
    /// An input that is also an output is writable.
    pub(crate) fn new(ins: &[Address], outs: &[Address], resting: Resting) -> Opened {
        let only_read = ins.iter().filter(|address| !outs.contains(address));
        let read = only_read.filter_map(pages_at).map(|pages| (pages, Access::Read));
        let written = outs.iter().filter(|_| resting == Resting::Closed).filter_map(pages_at);
        let opened = read.chain(written.map(|pages| (pages, Access::Write)));
        let each = opened.map(|(pages, access)| {
            protect(pages, access);
            pages
        });
        Opened { pages: each.collect(), resting }
    }

    /// Leaves everything accessible, because others may still use it.
    pub(crate) fn leave(mut self) {
        self.pages.clear();
    }
}

/// The pages of an array. Freed memory stays inaccessible, and constants are already read-only.
fn pages_at(address: &Address) -> Option<Area> {
    let (region, freed) = regions::look_up(address.0 as usize)?;
    (!region.is_constant && freed.is_none()).then_some(region.pages)
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.pages.iter().for_each(|&pages| {
            protect(pages, self.resting.access());
        });
    }
}
