//! Processes that must not outlive the one that started them.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

/// The group to end when we are ended; 0 is none.
static LEADER: AtomicI32 = AtomicI32::new(0);
/// The signal that terminated us while there was a group; 0 is none.
static INTERRUPT: AtomicI32 = AtomicI32::new(0);
/// Distinguishes the groups of this process.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// A process with this in its environment was started by a group, even in another session, as
/// launchers start ranks.
const NAME: &str = "HALFLAP_GROUP";
/// How often to search for processes that start others while they are being ended.
const ROUNDS: usize = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// A child and all processes that it starts.
pub struct ProcessGroup {
    /// The first of them.
    pub child: Child,
    /// The mark in their environment.
    mark: String,
}

/// How to end a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Ending {
    /// It may report where it was.
    Abort,
    Kill,
}

impl ProcessGroup {
    /// Starts a command. If this process is killed, at least the child ends with it. If it is
    /// interrupted or terminated, the child ends, and the caller must call
    /// [`ProcessGroup::end_if_interrupted`] for the rest.
    pub fn spawn(command: &mut Command) -> io::Result<ProcessGroup> {
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
        let mark = format!("{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let child = command.env(NAME, &mark).process_group(0).spawn()?;
        LEADER.store(child.id() as i32, Ordering::SeqCst);
        Ok(ProcessGroup { child, mark: format!("{NAME}={mark}") })
    }

    /// Ends all of it; a group that is gone is ignored. Killed processes are gone when this
    /// returns.
    pub fn end(&self, how: Ending) {
        let signal = match how {
            Ending::Abort => libc::SIGABRT,
            Ending::Kill => libc::SIGKILL,
        };
        let strays = self.strays();
        // SAFETY: a system call without pointers; the group's number is its leader's, which we have
        // not waited for or whose group still has members, or else it is unused.
        unsafe { libc::kill(-(self.child.id() as i32), signal) };
        strays.into_iter().for_each(|process| send(process, signal));
        for _ in 0..ROUNDS {
            let strays = if how == Ending::Kill { self.strays() } else { Vec::new() };
            if strays.is_empty() {
                break;
            }
            strays.into_iter().for_each(|process| send(process, signal));
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether no process is left.
    pub fn is_gone(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some() && self.strays().is_empty())
    }

    /// If we were terminated, ends the whole group, and then this process.
    pub fn end_if_interrupted(&mut self) -> io::Result<()> {
        let signal = INTERRUPT.load(Ordering::SeqCst);
        if signal != 0 {
            self.end(Ending::Kill);
            self.child.wait()?;
            // SAFETY: the signal has its usual effect again since it came.
            unsafe { libc::raise(signal) };
        }
        Ok(())
    }

    /// Its processes in other groups: those with our mark that are not in the child's group.
    fn strays(&self) -> Vec<i32> {
        let leader = self.child.id() as i32;
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        // SAFETY: a system call without pointers.
        let elsewhere = processes.filter(|process| unsafe { libc::getpgid(*process) } != leader);
        elsewhere.filter(|process| self.is_marked(*process)).collect()
    }

    fn is_marked(&self, process: i32) -> bool {
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == self.mark.as_bytes())
    }
}

fn send(process: i32, signal: i32) {
    // SAFETY: a system call without pointers; the process had our mark just now.
    unsafe { libc::kill(process, signal) };
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let own = self.child.id() as i32;
        // Another group may have replaced it: then that one stays.
        let _ = LEADER.compare_exchange(own, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Makes signals that end us end the group first. A signal that is ignored or has another handler
/// is left alone.
fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: both structures live through the calls, and the handler does what a handler may
        // do.
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
    INTERRUPT.store(signal, Ordering::SeqCst);
    // SAFETY: kill and raise may be called in a handler. The signal has its usual effect again,
    // once we return.
    unsafe {
        match leader {
            0 => libc::raise(signal),
            _ => libc::kill(-leader, libc::SIGKILL),
        };
    }
}
