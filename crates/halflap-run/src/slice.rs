//! Time slices of threads that communicate. They work for microseconds at a time, and compete with
//! kernels that would keep their core for milliseconds.

use std::time::Duration;

/// The shortest slice that Linux grants.
const SLICE: Duration = Duration::from_micros(100);

/// Asks for short time slices for the calling thread, which then preempts a thread with longer ones
/// when it wakes. Linux before 6.12 ignores it.
pub(crate) fn wake_promptly() {
    #[cfg(target_os = "linux")]
    {
        let attributes = libc::sched_attr {
            size: size_of::<libc::sched_attr>() as u32,
            sched_policy: libc::SCHED_OTHER as u32,
            sched_flags: 0,
            sched_nice: 0,
            sched_priority: 0,
            sched_runtime: SLICE.as_nanos() as u64,
            sched_deadline: 0,
            sched_period: 0,
        };
        // SAFETY: the structure is as long as it says. A refusal leaves the thread as it was.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}
