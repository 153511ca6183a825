//! All guarded memory of the process, in a table that a signal handler can read: it takes no lock
//! and allocates nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Side;

/// A range of addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// A buffer on its own pages.
#[derive(Debug)]
pub(crate) struct Region {
    /// All its pages, guard pages included.
    pub(crate) mapped: Area,
    /// Its accessible pages.
    pub(crate) pages: Area,
    /// The buffer itself.
    pub(crate) data: Area,
    /// Its name.
    pub(crate) name: String,
    /// Its content: `f32[8,4]`.
    pub(crate) kind: String,
    pub(crate) rank: usize,
    /// Whether it can never be written.
    pub(crate) is_constant: bool,
}

/// When a buffer was freed.
#[derive(Debug)]
pub(crate) struct Freed {
    /// After this kernel.
    pub(crate) kernel: String,
    /// Before this step of its plan.
    pub(crate) step: usize,
    pub(crate) computation: String,
}

/// A system does not allow more mappings than this.
pub(super) const MOST: usize = 1 << 14;

struct RegionEntry {
    region: AtomicPtr<Region>,
    freed: AtomicPtr<Freed>,
}

static TABLE: [RegionEntry; MOST] = [const {
    RegionEntry {
        region: AtomicPtr::new(std::ptr::null_mut()),
        freed: AtomicPtr::new(std::ptr::null_mut()),
    }
}; MOST];
/// All entries are below this index.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Where regions are, for everyone except the signal handler, which cannot take the lock. A search
/// for an empty entry would look at thousands of freed regions for every buffer.
struct Places {
    /// Indices by the first mapped byte.
    by_start: BTreeMap<usize, usize>,
    /// Entries that were removed.
    empty: Vec<usize>,
    /// The first entry that was never used.
    next: usize,
}

static PLACES: RwLock<Places> =
    RwLock::new(Places { by_start: BTreeMap::new(), empty: Vec::new(), next: 0 });

fn places() -> RwLockReadGuard<'static, Places> {
    PLACES.read().unwrap_or_else(PoisonError::into_inner)
}

fn places_mut() -> RwLockWriteGuard<'static, Places> {
    PLACES.write().unwrap_or_else(PoisonError::into_inner)
}

/// A place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionId(usize);

/// Adds a region to the table; returns it, if the table is full.
pub(super) fn add(region: Region) -> Result<RegionId, Region> {
    let mut places = places_mut();
    let place = match places.empty.pop() {
        Some(place) => place,
        None if places.next < MOST => {
            places.next += 1;
            places.next - 1
        }
        None => return Err(region),
    };
    places.by_start.insert(region.mapped.start, place);
    TABLE[place].region.store(Box::into_raw(Box::new(region)), Ordering::Release);
    USED.fetch_max(place + 1, Ordering::AcqRel);
    Ok(RegionId(place))
}

/// Removes a region from the table. Its owner does so after releasing the memory.
pub(super) fn remove(id: RegionId) {
    let entry = &TABLE[id.0];
    let Some(region) = get(id) else { return };
    let mut places = places_mut();
    places.by_start.remove(&region.mapped.start);
    let freed = entry.freed.swap(std::ptr::null_mut(), Ordering::AcqRel);
    let region = entry.region.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: both were created from boxes here, and only their owner removes them. A handler that
    // reads one at this moment runs in a process that is about to end.
    unsafe {
        (!freed.is_null()).then(|| Box::from_raw(freed));
        (!region.is_null()).then(|| Box::from_raw(region));
    }
    // Only now may another region take it.
    places.empty.push(id.0);
}

/// A region that is in the table.
pub(super) fn get(id: RegionId) -> Option<&'static Region> {
    // SAFETY: it stays until its owner removes it, and only the owner looks it up by id.
    unsafe { TABLE[id.0].region.load(Ordering::Acquire).as_ref() }
}

/// Records when a region was freed.
pub(super) fn set_freed(id: RegionId, freed: Freed) {
    TABLE[id.0].freed.store(Box::into_raw(Box::new(freed)), Ordering::Release);
}

/// Like [`find`], but faster, for callers that may take a lock.
pub(super) fn look_up(address: usize) -> Option<(&'static Region, Option<&'static Freed>)> {
    let place = *places().by_start.range(..=address).next_back()?.1;
    TABLE[place].holds(address)
}

/// Whether memory is guarded.
pub(super) fn are_there() -> bool {
    USED.load(Ordering::Acquire) > 0
}

/// The region that an address is in, with its guard pages.
pub(super) fn find(address: usize) -> Option<(&'static Region, Option<&'static Freed>)> {
    TABLE[..USED.load(Ordering::Acquire)].iter().find_map(|entry| entry.holds(address))
}

impl RegionEntry {
    /// Its region, if the address is in there.
    fn holds(&self, address: usize) -> Option<(&'static Region, Option<&'static Freed>)> {
        // SAFETY: as in `get` and `remove`: it exists, or the process is about to end.
        let region = unsafe { self.region.load(Ordering::Acquire).as_ref() }?;
        // SAFETY: as above.
        let freed = unsafe { self.freed.load(Ordering::Acquire).as_ref() };
        region.has(address).then_some((region, freed))
    }
}

impl Region {
    /// Whether an address is in its pages or its guard pages.
    pub(super) fn has(&self, address: usize) -> bool {
        let Area { start, len } = self.mapped;
        (start..start + len).contains(&address)
    }

    /// How far an address is from the buffer's bytes, and on which side; `None` if it is inside.
    pub(super) fn beyond(&self, address: usize) -> Option<(Side, usize)> {
        let Area { start, len } = self.data;
        match address {
            _ if address < start => Some((Side::Start, start - address)),
            _ if address >= start + len => Some((Side::End, address - (start + len))),
            _ => None,
        }
    }
}
