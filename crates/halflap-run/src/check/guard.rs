//! Memory that shows mistakes: every buffer has pages of its own between pages that nobody can touch.
//!
//! It stands against one end of its pages, so that one byte too far on that side is a fault at that very
//! instruction; on the other side, up to the next page, are marks, which are looked at when it is freed. New memory
//! is full of NaN. What was freed can be touched no more, and its address is not given again for long.
//!
//! Where one task runs at a time, a buffer that is alive can be touched only by tasks that were given it
//! ([`Resting::Closed`]): whoever kept its address, and whatever thread they left behind, is caught as well.

use std::collections::VecDeque;

use super::Side;
use super::regions::{self, Freed, MOST, Region, RegionId};
use crate::exec::memory::Address;

/// All bits set is a NaN in every floating-point type.
const FRESH: u8 = 0xff;
/// How many bytes before and after a buffer's pages nobody can touch: addresses cost nothing, and who goes astray may
/// do so by more than a page.
const GUARD: usize = 32 << 20;
/// What marks are made of.
const MARK: u8 = 0xcb;

/// Whose memory is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: &'a str,
    /// What the address must be a multiple of.
    pub(crate) align: usize,
    pub(crate) is_constant: bool,
}

/// What may be done with a buffer while no task works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resting {
    /// Anything: tasks on other streams may come and go.
    Open,
    /// Nothing.
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

/// A buffer whose marks somebody wrote over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overrun {
    /// The buffers that were there: one, or those that were in the same memory one after the other.
    pub buffers: Vec<String>,
    /// On which side of them.
    pub side: Side,
    /// How far from the buffer the first byte is that was written: 0 is the next one.
    pub offset: usize,
    /// The rank.
    pub rank: usize,
    /// What was known then: that it was freed after this kernel, or that the run was over.
    pub seen: String,
}

/// A place beside a buffer: how far it is from its first byte, or from the first one behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beyond(pub Side, pub usize);

impl std::fmt::Display for Beyond {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = match self.0 {
            Side::Start => "before the start",
            Side::End => "behind the end",
        };
        match self.1 {
            0 => write!(f, "right {side}"),
            1 => write!(f, "1 byte {side}"),
            bytes => write!(f, "{bytes} bytes {side}"),
        }
    }
}

impl std::fmt::Display for Overrun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Overrun { buffers, side, offset, rank, seen } = self;
        let place = Beyond(*side, *offset + usize::from(*side == Side::Start));
        let names: Vec<String> = buffers.iter().map(|name| format!("'{name}'")).collect();
        let of = match names.len() {
            1 => format!("buffer {}", names[0]),
            _ => format!("the memory in which buffers {} were one after the other", names.join(", ")),
        };
        write!(f, "rank {rank}: something was written {place} of {of}; that was seen {seen}. ")?;
        f.write_str("--no-memory-caching (and =start) stops at the kernel that does it")
    }
}

/// The guarded memory of one rank.
#[derive(Debug)]
pub(crate) struct Guarded {
    side: Side,
    resting: Resting,
    rank: usize,
    page: usize,
    /// What was freed, the oldest first.
    quarantine: VecDeque<RegionId>,
    /// How many are kept.
    kept: usize,
    /// What is never freed.
    constants: Vec<RegionId>,
}

impl Guarded {
    pub(crate) fn new((side, resting): (Side, Resting), (rank, ranks): (usize, usize)) -> Guarded {
        // SAFETY: it asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        // Half for what is alive.
        let kept = MOST / 2 / ranks.max(1);
        Guarded { side, resting, rank, page, quarantine: VecDeque::new(), kept, constants: Vec::new() }
    }

    /// New memory; nothing, if the system has no more.
    pub(crate) fn get(&mut self, bytes: usize, owner: Owner<'_>) -> Option<(Address, RegionId)> {
        let len = bytes.next_multiple_of(self.page).max(self.page);
        let start = loop {
            match self.map(len) {
                Some(start) => break start,
                // Old memory gives way.
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
            mapped: (start, len + 2 * GUARD),
            pages: (first, len),
            data: (at, bytes),
            name: owner.name.to_owned(),
            kind: owner.kind.to_owned(),
            rank: self.rank,
            is_constant: owner.is_constant,
        };
        // A constant is written once more.
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
        if protect((start + GUARD, len), Access::Write) {
            return Some(start);
        }
        unmap((start, whole));
        None
    }

    /// Takes memory away; what was written beside it is told.
    pub(crate) fn release(&mut self, id: RegionId, freed: Freed) -> Option<Overrun> {
        let region = regions::get(id)?;
        protect(region.pages, Access::Write);
        let overrun = self.overrun(region, &freed.kernel);
        regions::set_freed(id, freed);
        // Gone for good: the system gets the memory back, and the address leads nowhere.
        // SAFETY: nobody uses the buffer any more who may.
        unsafe {
            libc::madvise(region.pages.0 as *mut libc::c_void, region.pages.1, libc::MADV_DONTNEED);
        }
        protect(region.pages, Access::None);
        self.quarantine.push_back(id);
        if self.quarantine.len() > self.kept {
            self.forget();
        }
        overrun
    }

    /// Gives up the oldest of what was freed; nothing, if there is none.
    fn forget(&mut self) -> Option<()> {
        let id = self.quarantine.pop_front()?;
        let mapped = regions::get(id)?.mapped;
        regions::remove(id);
        unmap(mapped);
        Some(())
    }

    /// Gives everything back that is not in use.
    pub(crate) fn close(&mut self) {
        self.quarantine.extend(self.constants.drain(..));
        while self.forget().is_some() {}
    }

    fn overrun(&self, region: &Region, kernel: &str) -> Option<Overrun> {
        let ((first, len), (at, bytes)) = (region.pages, region.data);
        // SAFETY: the pages are there until the buffer is released, which is now.
        let all = unsafe { std::slice::from_raw_parts(first as *const u8, len) };
        let (before, after) = (&all[..at - first], &all[at - first + bytes..]);
        let (side, offset) = broken(before, after)?;
        let seen = format!("when it was freed after kernel '{kernel}'");
        Some(Overrun { buffers: vec![region.name.clone()], side, offset, rank: self.rank, seen })
    }
}

/// Where marks before and after a buffer were written over, nearest to it.
pub(crate) fn broken(before: &[u8], after: &[u8]) -> Option<(Side, usize)> {
    let is_other = |&byte: &u8| byte != MARK;
    let end = after.iter().position(is_other).map(|offset| (Side::End, offset));
    end.or_else(|| before.iter().rev().position(is_other).map(|offset| (Side::Start, offset)))
}

/// Fills memory with marks.
///
/// # Safety
/// The memory must be there, and nobody else's.
pub(crate) unsafe fn mark(start: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(start, MARK, len) };
}

/// What may be done with pages.
#[derive(Clone, Copy)]
enum Access {
    None,
    Read,
    Write,
}

fn protect((start, len): (usize, usize), access: Access) -> bool {
    let flags = match access {
        Access::None => libc::PROT_NONE,
        Access::Read => libc::PROT_READ,
        Access::Write => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: the pages are those of one region, whose owner decides what may be done with them.
    unsafe { libc::mprotect(start as *mut libc::c_void, len, flags) == 0 }
}

fn unmap((start, len): (usize, usize)) {
    // SAFETY: the pages are those of one region that nobody uses any more.
    unsafe { libc::munmap(start as *mut libc::c_void, len) };
}

/// Makes a constant's memory what it is.
pub(crate) fn seal(id: RegionId) {
    if let Some(region) = regions::get(id) {
        protect(region.pages, Access::Read);
    }
}

/// Lets a task do with its arrays what it may, as long as it runs: whoever does more is caught doing it.
pub(crate) struct Opened {
    pages: Vec<(usize, usize)>,
    resting: Resting,
}

impl Opened {
    /// What is among the outputs, too, may be written.
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

    /// Leaves everything open, for others may still be at it.
    pub(crate) fn leave(mut self) {
        self.pages.clear();
    }
}

/// The pages of an array. What was freed stays out of reach, and constants are read-only already.
fn pages_at(address: &Address) -> Option<(usize, usize)> {
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
