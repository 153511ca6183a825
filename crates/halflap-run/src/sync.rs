//! Locks that stay usable after another thread panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks even if a thread panicked while holding it: the guarded data is valid at any time.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
