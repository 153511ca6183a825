//! Ctrl-C as a request to finish: the first one only sets a flag, the second one ends the process.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether SIGINT arrived since listening began.
static ASKED: AtomicBool = AtomicBool::new(false);

/// While it lives, the first SIGINT sets a flag instead of ending the process.
#[derive(Debug)]
pub struct Listening {
    /// Whether the handler is ours: any other handler is left alone.
    is_ours: bool,
}

impl Listening {
    /// Begins to listen, unless SIGINT is ignored or has a handler.
    pub fn start() -> Listening {
        ASKED.store(false, Ordering::SeqCst);
        // SAFETY: both structures live through the calls, and the handler only stores a flag.
        let is_ours = unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGINT, std::ptr::null(), &raw mut before);
            let is_free = before.sa_sigaction == libc::SIG_DFL;
            if is_free {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = note as *const () as usize;
                // The next one has its usual effect; interrupted system calls are restarted.
                action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
                libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut());
            }
            is_free
        };
        Listening { is_ours }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: the default action takes no pointer of ours.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        }
    }
}

/// Whether the work is to be finished early.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

extern "C" fn note(_: libc::c_int) {
    ASKED.store(true, Ordering::SeqCst);
}
