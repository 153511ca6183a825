//! What every rank is doing, in memory that a signal handler can read without locks or allocation.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{departure, fault};
use crate::address::Address;
use crate::failure::LOOK;
use crate::prepare::{Label, Shared};

/// What a thread runs.
pub(crate) struct Running<'a> {
    pub(crate) label: &'a Label,
    pub(crate) rank: usize,
    /// Its inputs, if memory is guarded.
    pub(crate) ins: &'a [Address],
}

thread_local! {
    static RUNNING: Cell<*const Running<'static>> = const { Cell::new(ptr::null()) };
}

/// What a rank's own thread ran last.
#[derive(Clone, Copy)]
pub(super) struct Past {
    label: *const Label,
    pub(super) rank: usize,
    /// False if an exception or `pthread_exit` left it.
    pub(super) has_returned: bool,
}

impl Past {
    pub(super) fn label<'a>(self) -> &'a Label {
        // SAFETY: a label of the program that this thread runs, kept as those of posts are.
        unsafe { &*self.label }
    }
}

thread_local! {
    static PAST: Cell<Option<Past>> = const { Cell::new(None) };
}

/// What the calling thread ran last; `None` if it does not belong to a rank.
pub(super) fn past() -> Option<Past> {
    PAST.get()
}

/// What the calling thread runs.
pub(super) fn running<'a>() -> Option<&'a Running<'a>> {
    // SAFETY: the running task lives until it is done; the caller ends the process before that.
    unsafe { RUNNING.get().as_ref() }
}

/// Further ranks are not recorded.
const MOST_RANKS: usize = 1024;
/// Further threads that custom calls left behind are not recorded.
const MOST_THREADS: usize = 1024;

/// A rank's compute thread.
struct Post {
    /// What it ran last.
    last: AtomicPtr<Label>,
    /// The custom call that it ran last.
    custom: AtomicPtr<Label>,
    is_busy: AtomicBool,
}

static POSTS: [Post; MOST_RANKS] = [const {
    Post {
        last: AtomicPtr::new(ptr::null_mut()),
        custom: AtomicPtr::new(ptr::null_mut()),
        is_busy: AtomicBool::new(false),
    }
}; MOST_RANKS];

/// The programs whose labels posts point to.
static KEPT: Mutex<BTreeMap<usize, Shared>> = Mutex::new(BTreeMap::new());

/// The calling thread is a rank's compute thread from here on. Costs nothing if faults are not
/// caught.
pub(crate) fn take_up(rank: usize, program: &Shared) {
    let Some(post) = POSTS.get(rank).filter(|_| fault::are_caught()) else { return };
    post.last.store(ptr::null_mut(), Ordering::Release);
    post.custom.store(ptr::null_mut(), Ordering::Release);
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, program.clone());
}

/// Records what this thread runs, until it is dropped.
pub(crate) struct Marked<'a> {
    running: &'a Running<'a>,
    post: Option<&'static Post>,
}

impl<'a> Marked<'a> {
    pub(crate) fn new(running: &'a Running<'a>) -> Marked<'a> {
        RUNNING.set(ptr::from_ref(running).cast());
        PAST.set(Some(Past { label: running.label, rank: running.rank, has_returned: false }));
        let post =
            POSTS.get(running.rank).filter(|_| fault::are_caught() && is_compute(running.label));
        if let Some(post) = post {
            let label = ptr::from_ref(running.label).cast_mut();
            post.last.store(label, Ordering::Release);
            post.is_busy.store(true, Ordering::Release);
            if running.label.target.is_some() {
                post.custom.store(label, Ordering::Release);
                departure::note(running);
            }
        }
        Marked { running, post }
    }

    /// The kernel returned.
    pub(crate) fn has_returned(&self) {
        PAST.set(PAST.get().map(|past| Past { has_returned: true, ..past }));
    }

    /// Remembers the threads that a custom call left behind: those with the name of this one, which
    /// a thread inherits from its creator.
    pub(crate) fn note_threads(&self) {
        if self.running.label.target.is_none() {
            return;
        }
        let own = name_of_thread();
        let read = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        for entry in read {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            if let (true, Ok(id)) = (
                name.trim_end().as_bytes() == own.bytes(),
                entry.file_name().to_string_lossy().parse(),
            ) {
                remember(id, self.running);
            }
        }
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        RUNNING.set(ptr::null());
        if let Some(post) = self.post {
            post.is_busy.store(false, Ordering::Release);
            if self.running.label.target.is_some() {
                departure::forget(self.running.rank);
            }
        }
    }
}

/// Transfers and collectives run concurrently and are not recorded here.
fn is_compute(label: &Label) -> bool {
    use crate::prepare::LabelKind::{Copy, Kernel, Wait};
    matches!(label.kind, Kernel | Wait | Copy)
}

/// A thread that a custom call left behind.
struct Left {
    thread: AtomicI32,
    label: AtomicPtr<Label>,
    rank: AtomicUsize,
}

static LEFT: [Left; MOST_THREADS] = [const {
    Left {
        thread: AtomicI32::new(0),
        label: AtomicPtr::new(ptr::null_mut()),
        rank: AtomicUsize::new(0),
    }
}; MOST_THREADS];

fn thread_id() -> i32 {
    // SAFETY: a system call without pointers.
    unsafe { libc::gettid() }
}

fn remember(id: i32, running: &Running<'_>) {
    let is_known = |left: &Left| left.thread.load(Ordering::Acquire) == id;
    if id == thread_id() || LEFT.iter().any(is_known) {
        return;
    }
    let take = |left: &&Left| {
        left.thread.compare_exchange(0, id, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if let Some(left) = LEFT.iter().find(take) {
        left.rank.store(running.rank, Ordering::Release);
        left.label.store(ptr::from_ref(running.label).cast_mut(), Ordering::Release);
    }
}

/// How long a rank that is done waits for threads that custom calls left behind: late accesses
/// usually happen soon.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits for the threads that custom calls of a rank left behind.
pub(crate) fn wait_for_threads(rank: usize) {
    let began = Instant::now();
    while has_left_threads(rank) && began.elapsed() < PATIENCE {
        std::thread::sleep(LOOK);
    }
}

/// Whether threads that custom calls of a rank left behind are still running.
fn has_left_threads(rank: usize) -> bool {
    let is_there = |left: &Left| {
        let id = left.thread.load(Ordering::Acquire);
        id != 0
            && left.rank.load(Ordering::Acquire) == rank
            && fs::exists(format!("/proc/self/task/{id}")).unwrap_or(false)
    };
    LEFT.iter().any(is_there)
}

/// The name of a thread, which those that it starts inherit.
struct Name {
    bytes: [u8; 16],
}

impl Name {
    fn bytes(&self) -> &[u8] {
        let len = self.bytes.iter().position(|&byte| byte == 0).unwrap_or(16);
        &self.bytes[..len]
    }

    /// The rank of `rank 3 stream 0`.
    fn rank(&self) -> Option<usize> {
        let mut words = std::str::from_utf8(self.bytes()).ok()?.split(' ');
        let is_stream = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        match is_stream {
            ("rank", rank, word) if "stream".starts_with(word) => Some(rank),
            _ => None,
        }
    }
}

fn name_of_thread() -> Name {
    let mut bytes = [0; 16];
    // SAFETY: it writes up to 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, bytes.as_mut_ptr()) };
    Name { bytes }
}

/// Who started the calling thread, which runs no kernel of ours: the kernel and its rank.
pub(super) fn starter<'a>() -> Option<(&'a Label, usize)> {
    let id = thread_id();
    if let Some(left) = LEFT.iter().find(|left| left.thread.load(Ordering::Acquire) == id) {
        return Some((label_at(&left.label)?, left.rank.load(Ordering::Acquire)));
    }
    // It was not left behind: the custom call that is running, or another thread, started it.
    let rank = name_of_thread().rank()?;
    let post = POSTS.get(rank)?;
    Some((label_at(&post.custom).or_else(|| label_at(&post.last))?, rank))
}

fn label_at<'a>(at: &AtomicPtr<Label>) -> Option<&'a Label> {
    // SAFETY: it belongs to a program that is kept until the rank starts another one.
    unsafe { at.load(Ordering::Acquire).as_ref() }
}

/// What each rank runs, or ran last.
pub(super) fn lasts<'a>() -> impl Iterator<Item = (usize, &'a Label)> {
    POSTS.iter().enumerate().filter_map(|(rank, post)| Some((rank, label_at(&post.last)?)))
}

/// Whether something runs.
pub(super) fn is_anyone_busy() -> bool {
    POSTS.iter().any(|post| post.is_busy.load(Ordering::Acquire))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_bear_the_name_of_who_started_them() {
        let named = |text: &str| {
            let mut bytes = [0; 16];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            Name { bytes }
        };
        assert_eq!(named("rank 3 stream 0").rank(), Some(3));
        assert_eq!(named("rank 12 stream ").rank(), Some(12));
        assert_eq!((named("rank 3").rank(), named("halflap").rank()), (None, None));
        let inner = || std::thread::spawn(|| name_of_thread().bytes().to_vec()).join().unwrap();
        let outer =
            std::thread::Builder::new().name("rank 7 stream 0".to_owned()).spawn(inner).unwrap();
        assert_eq!(outer.join().unwrap(), b"rank 7 stream 0");
    }
}
