//! What custom calls leave allocated.
//!
//! The C library reports how much of the heap is in use. It is queried before and after a custom
//! call. Allocations by other threads count, too, so only the growth that all calls of a kernel
//! have in common is reported ([`kept`]), and only one of several concurrent calls is measured.

use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};

use libloading::os::unix::Library;

/// `struct mallinfo2` of glibc.
#[repr(C)]
struct HeapFigures {
    _arena: usize,
    _free_chunks: usize,
    _fast_chunks: usize,
    _mappings: usize,
    mapped_bytes: usize,
    _unused: usize,
    _fast_bytes: usize,
    bytes_in_use: usize,
    _free_bytes: usize,
    _top_bytes: usize,
}

/// Found at run time: older and other C libraries have no such function.
fn in_use() -> Option<i64> {
    type Ask = unsafe extern "C" fn() -> HeapFigures;
    static ASK: OnceLock<Option<Ask>> = OnceLock::new();
    let ask = *ASK.get_or_init(|| {
        // SAFETY: only glibc has a function of this name, with this result, and it stays loaded.
        unsafe { Library::this().get::<Ask>(b"mallinfo2").ok().map(|symbol| *symbol) }
    });
    // SAFETY: it takes no arguments, and any thread may call it.
    let HeapFigures { mapped_bytes, bytes_in_use, .. } = unsafe { ask?() };
    i64::try_from(mapped_bytes + bytes_in_use).ok()
}

/// A custom call that is being measured.
pub(crate) struct HeapWatch {
    before: i64,
    _turn: MutexGuard<'static, ()>,
}

impl HeapWatch {
    /// `None` if another call is being measured, or the C library does not report heap use.
    pub(super) fn begin() -> Option<HeapWatch> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = match TURN.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(HeapWatch { before: in_use()?, _turn: turn })
    }

    /// How many more bytes are in use than before.
    pub(super) fn growth(self) -> Option<i64> {
        Some(in_use()? - self.before)
    }
}

/// The minimum number of calls to compare.
const CALLS: usize = 8;
/// A smaller growth may come from other threads.
const LEAST: i64 = 1024;

/// What every call leaves allocated, given the growth of the heap in each.
pub(super) fn kept(growths: &[i64]) -> Option<i64> {
    let least = growths.iter().copied().min();
    least.filter(|&bytes| bytes >= LEAST && growths.len() >= CALLS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_call_leaves_is_told() {
        assert_eq!(kept(&[40960, 6400, 6400, 6500, 6400, 6400, 6400, 6400]), Some(6400));
        assert_eq!(kept(&[40960, 6400, 6400, 6500, 6400, 6400, 6400, 0]), None);
        assert_eq!(kept(&[6400; 7]), None);
        assert_eq!(kept(&[240; 8]), None);
    }

    #[test]
    fn the_heap_is_seen_to_grow() {
        let Some(watch) = HeapWatch::begin() else { return };
        let much: Vec<u8> = Vec::with_capacity(1 << 20);
        let growth = watch.growth().unwrap();
        // Other tests may free something meanwhile.
        assert!(growth > 1 << 19, "{growth}");
        drop(much);
    }
}
