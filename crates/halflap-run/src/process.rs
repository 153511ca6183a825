//! Processes that must not outlive the one that started them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

/// The group that ends when somebody ends us; 0 is none.
static LEADER: AtomicI32 = AtomicI32::new(0);

/// A child and all that it starts, in a process group of its own.
pub struct Group {
    /// The first of them.
    pub child: Child,
}

/// How a group is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Ending {
    /// It may say where it was.
    Abort,
    Kill,
}

impl Group {
    /// Starts a command. Whoever interrupts or ends this process ends the whole group; if this process is
    /// killed, at least the child goes with it.
    pub fn spawn(command: &mut Command) -> io::Result<Group> {
        static LISTEN: Once = Once::new();
        LISTEN.call_once(listen);
        let with_us = || {
            // SAFETY: a system call that takes no pointer and may be made between fork and exec.
            match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(with_us) };
        let child = command.process_group(0).spawn()?;
        LEADER.store(child.id() as i32, Ordering::SeqCst);
        Ok(Group { child })
    }

    /// Ends all of it; a group that is gone needs no ending.
    pub fn end(&self, how: Ending) {
        let signal = match how {
            Ending::Abort => libc::SIGABRT,
            Ending::Kill => libc::SIGKILL,
        };
        // SAFETY: a system call without pointers; the group's number is its leader's, which we have not waited for or
        // whose group still has members, or else nobody has it.
        unsafe { libc::kill(-(self.child.id() as i32), signal) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let own = self.child.id() as i32;
        // Another group may have come since: then that one stays.
        let _ = LEADER.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Has signals that end us end the group first. A signal that somebody else handles, or that is ignored, is left alone.
fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: both structures live through the calls, and the handler does what a handler may do.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut before);
            if before.sa_sigaction != libc::SIG_DFL {
                continue;
            }
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = end_group as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

extern "C" fn end_group(signal: libc::c_int) {
    let leader = LEADER.load(Ordering::SeqCst);
    // SAFETY: kill and raise may be called in a handler. The signal has its usual effect again, once we return.
    unsafe {
        if leader > 0 {
            libc::kill(-leader, libc::SIGKILL);
        }
        libc::raise(signal);
    }
}
