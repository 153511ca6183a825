//! Processes that end silently: a custom call that calls `_exit`, or that is killed, cannot report
//! it.
//!
//! So a child does the work. In shared memory it records which custom calls are running and, at the
//! end, that it finished; its parent only waits for it.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::FAULT_FORMAT;
use super::post::Running;

/// How long a process may be suspended before it counts as stopped for good.
const PATIENCE: Duration = Duration::from_secs(1);
/// Further ranks are not recorded.
const MOST_RANKS: usize = 256;
/// A longer note is truncated, and then ignored.
const MOST_BYTES: usize = 1000;

/// The custom call that a rank is in: JSON, or nothing.
struct CallNote {
    len: AtomicUsize,
    text: [std::sync::atomic::AtomicU8; MOST_BYTES],
}

/// Shared by both processes. All zeros is a valid value.
struct Notes {
    is_over: AtomicBool,
    ranks: [CallNote; MOST_RANKS],
}

static NOTES: AtomicPtr<Notes> = AtomicPtr::new(ptr::null_mut());

fn notes() -> Option<&'static Notes> {
    // SAFETY: it is null, or was mapped and filled with zeros, and stays until the process ends.
    unsafe { NOTES.load(Ordering::Acquire).as_ref() }
}

/// A rank is in a custom call.
pub(super) fn note(running: &Running<'_>) {
    let Some(note) = notes().and_then(|notes| notes.ranks.get(running.rank)) else { return };
    let (label, (computation, step)) = (running.label, &running.label.place);
    let text = json!({
        "rank": running.rank, "kernel": label.name, "step": step, "computation": computation, "source": label.source,
        "target": label.target,
    });
    let text = text.to_string();
    note.text.iter().zip(text.bytes()).for_each(|(at, byte)| at.store(byte, Ordering::Relaxed));
    note.len.store(text.len().min(MOST_BYTES), Ordering::Release);
}

/// A rank's custom call returned.
pub(super) fn forget(rank: usize) {
    if let Some(note) = notes().and_then(|notes| notes.ranks.get(rank)) {
        note.len.store(0, Ordering::Release);
    }
}

/// Any exit from here on has been reported, or is intended.
pub(super) fn is_told() {
    if let Some(notes) = notes() {
        notes.is_over.store(true, Ordering::Release);
    }
}

/// How the process ended that did the work.
#[derive(Debug)]
pub struct Departure {
    status: ExitStatus,
    /// The custom calls that were running, by rank.
    at: Vec<Value>,
    was_told: bool,
    was_stopped: bool,
}

/// Which of the two processes this is.
#[derive(Debug)]
pub enum Split {
    /// The process that does the work, and records when it is done.
    Worker(EndRecorder),
    /// The process that waited for it.
    Watcher(Departure),
}

/// Records on drop that the work ended, successfully or not.
#[derive(Debug)]
pub struct EndRecorder(());

impl Drop for EndRecorder {
    fn drop(&mut self) {
        is_told();
    }
}

/// Forks the process. The caller must be the only relevant thread.
pub fn split() -> io::Result<Split> {
    let size = size_of::<Notes>();
    // SAFETY: new memory, shared with the child and zeroed, which is a valid `Notes`.
    let memory = unsafe {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        libc::mmap(ptr::null_mut(), size, access, flags, -1, 0)
    };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NOTES.store(memory.cast(), Ordering::Release);
    // SAFETY: no other thread can hold a lock that the child needs: there is none yet.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: a system call without pointers: if the parent ends, so does the child.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            Ok(Split::Worker(EndRecorder(())))
        }
        child => Ok(Split::Watcher(wait_for(child)?)),
    }
}

fn wait_for(child: libc::pid_t) -> io::Result<Departure> {
    let mut was_stopped = false;
    let status = loop {
        let mut status = 0;
        // SAFETY: the status lives through the call.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) } >= 0 {
            if !libc::WIFSTOPPED(status) {
                break status;
            }
            // A terminal suspends and resumes both processes; if only the child is suspended, its
            // clocks stop, too.
            was_stopped = libc::WSTOPSIG(status) == libc::SIGSTOP && stays_stopped(child);
            if was_stopped {
                // SAFETY: a system call without pointers, on our own child.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            continue;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    };
    let ranks = notes().map_or(&[][..], |notes| &notes.ranks);
    let read = |note: &CallNote| {
        let len = note.len.load(Ordering::Acquire);
        let bytes: Vec<u8> =
            note.text[..len].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        serde_json::from_slice(&bytes).ok()
    };
    let was_told = notes().is_some_and(|notes| notes.is_over.load(Ordering::Acquire));
    Ok(Departure {
        status: ExitStatus::from_raw(status),
        at: ranks.iter().filter_map(read).collect(),
        was_told,
        was_stopped,
    })
}

/// Whether a stopped process is not resumed although we are running.
fn stays_stopped(process: libc::pid_t) -> bool {
    std::thread::sleep(PATIENCE);
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

impl Departure {
    /// The exit code of a process that reported its own end; `None` if it ended silently.
    pub fn code(&self) -> Option<u8> {
        self.status.code().filter(|_| self.was_told).map(|code| code as u8)
    }

    fn how(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            _ if self.was_stopped => "SIGSTOP stopped it, and nothing continued it".to_owned(),
            (Some(code), _) => format!("_exit({code}) was called"),
            (None, signal) => format!("signal {} ended it", signal.unwrap_or(0)),
        }
    }

    /// For machines, as `Failure::to_json`.
    pub fn to_json(&self) -> Value {
        let how = self.how();
        let mut value = json!({ "format": FAULT_FORMAT, "kind": "crash", "signal": how, "message": self.to_string() });
        // If several ranks were in a custom call, the culprit is unknown; take the first.
        if let (Value::Object(all), Some(Value::Object(first))) =
            (&mut value, self.at.first().cloned())
        {
            all.extend(first);
        }
        value
    }
}

impl std::fmt::Display for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the process ended in the middle of the run: {}", self.how())?;
        let Some(first) = self.at.first() else {
            return f.write_str(", by no custom call that was still running");
        };
        let text = |name: &str| first[name].as_str().unwrap_or("");
        let source = if text("source").is_empty() {
            String::new()
        } else {
            format!(" ({})", text("source"))
        };
        let ranks: Vec<String> = self.at.iter().map(|note| note["rank"].to_string()).collect();
        let ranks = match ranks.len() {
            1 => format!("rank {} was", ranks[0]),
            _ => format!("ranks {} were", ranks.join(", ")),
        };
        let (kernel, target) = (text("kernel"), text("target"));
        write!(f, " while {ranks} in custom call '{kernel}'{source}, which calls '{target}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_without_a_word_is_named() {
        let note =
            |rank: usize| json!({ "rank": rank, "kernel": "k", "source": "m.py:3", "target": "f" });
        let left = |status, at| Departure {
            status: ExitStatus::from_raw(status),
            at,
            was_told: false,
            was_stopped: false,
        };
        let alone = left(0, vec![note(2)]);
        assert_eq!(alone.code(), None);
        assert_eq!(
            alone.to_string(),
            "the process ended in the middle of the run: _exit(0) was called while rank 2 was in custom call 'k' \
             (m.py:3), which calls 'f'"
        );
        assert_eq!(
            (alone.to_json()["rank"].as_u64(), alone.to_json()["kernel"].as_str()),
            (Some(2), Some("k"))
        );
        assert!(
            left(9, vec![note(0), note(1)])
                .to_string()
                .contains("signal 9 ended it while ranks 0, 1 were")
        );
        assert_eq!(Departure { was_told: true, ..left(4 << 8, Vec::new()) }.code(), Some(4));
    }
}
