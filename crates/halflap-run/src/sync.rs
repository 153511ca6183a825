//! Locks that a panic of another thread does not take away.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A lock, also if a thread panicked that had it: what it guards is valid at any time.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
