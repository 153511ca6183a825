//! Locks that stay usable after another thread panicked, and short waits.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiting thread spins before it gives way to others.
const SPINS: u32 = 64;
/// How long it gives way to others before it sleeps: about as long as the operating system takes to
/// put a thread to sleep and to wake it.
const PATIENCE: Duration = Duration::from_micros(50);

/// Locks even if a thread panicked while holding it: the guarded data is valid at any time.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for something that may happen soon, without sleeping; whether it did.
pub(crate) fn happens_soon(has_happened: impl Fn() -> bool) -> bool {
    for _ in 0..SPINS {
        if has_happened() {
            return true;
        }
        std::hint::spin_loop();
    }
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        std::thread::yield_now();
        if has_happened() {
            return true;
        }
    }
    false
}
