//! Reports invalid memory accesses of kernels: a signal handler, which takes no lock and allocates
//! nothing, looks up the buffer and the running kernel, reports both and ends the process.

use std::fmt::{self, Write};
use std::fs::File;
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use super::post::{self, Running};
use super::regions::{self, Area, Freed, Region};
use super::{Beyond, departure};
use crate::prepare::Label;

/// The exit code of a process that a kernel crashed.
pub const EXIT_CODE: i32 = 4;

/// The file descriptor for lines of JSON; negative if there is none.
static REPORT: AtomicI32 = AtomicI32::new(-1);
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
/// The lowest rank that has a fault to report.
static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);
/// How long other ranks may take to reach the same fault.
const GRACE_MICROS: libc::useconds_t = 200_000;
/// The code of signals that the operating system itself raises.
const SI_KERNEL: libc::c_int = 0x80;
const UNALIGNED: &str = "SIGSEGV: an instruction needs aligned memory, or an address is invalid";
/// Only one thread reports.
static HAS_COME: AtomicBool = AtomicBool::new(false);
const SIGNALS: [(libc::c_int, &str); 5] = [
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGABRT, "SIGABRT"),
];

/// The process whose faults are reported; those of children that a custom call forks are not.
static OWNER: AtomicI32 = AtomicI32::new(0);

fn is_owner() -> bool {
    // SAFETY: a system call without pointers.
    OWNER.load(Ordering::Acquire) == unsafe { libc::getpid() }
}

/// Whether kernels that crash the process are reported.
pub(super) fn are_caught() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed)
}

/// From here on a kernel that crashes the process is named on standard error, and in a file as a
/// line of JSON; the process ends with [`EXIT_CODE`].
pub fn catch_faults(report: Option<File>) {
    if let Some(file) = report {
        REPORT.store(file.into_raw_fd(), Ordering::Release);
    }
    // SAFETY: a system call without pointers.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Release);
    if !IS_INSTALLED.swap(true, Ordering::AcqRel) {
        // SAFETY: the function lives as long as the process. If registration fails, a call of exit
        // is not reported.
        unsafe { libc::atexit(handle_exit) };
    }
    for (signal, _) in SIGNALS {
        // SAFETY: an action that is all zeros except for the handler, which is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

/// An alternate stack for the handler on this thread: the default one may be too small.
pub(crate) struct HandlerStack {
    memory: *mut libc::c_void,
}

const STACK: usize = 1 << 16;

impl HandlerStack {
    /// `None` if faults are not caught.
    pub(crate) fn new() -> Option<HandlerStack> {
        if !IS_INSTALLED.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: new memory, which stays until the stack is another one again.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let memory = libc::mmap(ptr::null_mut(), STACK, access, flags, -1, 0);
            if memory == libc::MAP_FAILED {
                return None;
            }
            let stack = libc::stack_t { ss_sp: memory, ss_flags: 0, ss_size: STACK };
            libc::sigaltstack(&raw const stack, ptr::null_mut());
            Some(HandlerStack { memory })
        }
    }
}

impl Drop for HandlerStack {
    fn drop(&mut self) {
        // SAFETY: after the first call no handler runs there any more.
        unsafe {
            let none = libc::stack_t {
                ss_sp: ptr::null_mut(),
                ss_flags: libc::SS_DISABLE,
                ss_size: STACK,
            };
            libc::sigaltstack(&raw const none, ptr::null_mut());
            libc::munmap(self.memory, STACK);
        }
    }
}

/// Text in a buffer of fixed size.
struct RawText {
    bytes: [u8; 4096],
    len: usize,
}

impl Write for RawText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

impl RawText {
    fn send(&self, file: libc::c_int) {
        // SAFETY: the buffer has this many bytes.
        unsafe { libc::write(file, self.bytes.as_ptr().cast(), self.len) };
    }
}

/// Whether memory was read or written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccessKind {
    Read,
    Written,
    Unknown,
}

impl AccessKind {
    fn words(self) -> &'static str {
        match self {
            AccessKind::Read => "reads",
            AccessKind::Written => "writes",
            AccessKind::Unknown => "touches",
        }
    }
}

/// A signal, and what is known about it.
struct CaughtSignal<'a> {
    signal: &'static str,
    address: usize,
    done: AccessKind,
    culprit: Culprit<'a>,
    place: Option<(&'a Region, Option<&'a Freed>)>,
}

/// What caused it.
#[derive(Clone, Copy)]
enum Culprit<'a> {
    /// A kernel, on the thread that runs it.
    Kernel(&'a Running<'a>),
    /// A rank's own thread between two kernels; the kernel is the one that it ran last.
    After(&'a Label, usize),
    /// An exception or `pthread_exit` that left a kernel.
    Left(&'a Label, usize),
    /// A thread that a kernel of this rank started.
    Thread(&'a Label, usize),
    /// Unknown.
    Unknown,
}

impl<'a> Culprit<'a> {
    /// What caused a fault on this thread.
    fn here() -> Culprit<'a> {
        let thread = || post::starter().map(|(label, rank)| Culprit::Thread(label, rank));
        let own = || {
            let past = post::past()?;
            let culprit = if past.has_returned { Culprit::After } else { Culprit::Left };
            Some(culprit(past.label(), past.rank))
        };
        post::running()
            .map(Culprit::Kernel)
            .or_else(own)
            .or_else(thread)
            .unwrap_or(Culprit::Unknown)
    }

    fn known(self) -> Option<(&'a Label, usize)> {
        match self {
            Culprit::Kernel(Running { label, rank, .. }) => Some((label, *rank)),
            Culprit::After(label, rank)
            | Culprit::Left(label, rank)
            | Culprit::Thread(label, rank) => Some((label, rank)),
            Culprit::Unknown => None,
        }
    }
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let name =
        SIGNALS.iter().find(|(number, _)| *number == signal).map_or("a signal", |(_, name)| name);
    let has_address = matches!(signal, libc::SIGSEGV | libc::SIGBUS);
    // SAFETY: the system passes both; these signals have an address.
    let address = if has_address { unsafe { (*info).si_addr() as usize } } else { 0 };
    let culprit = Culprit::here();
    let is_left = matches!(culprit, Culprit::Left(..)) && signal == libc::SIGABRT;
    let name = if is_left { "an exception or pthread_exit that left it (SIGABRT)" } else { name };
    let place = has_address.then(|| regions::find(address)).flatten();
    let is_ours =
        is_owner() && (culprit.known().is_some() || place.is_some() || post::is_anyone_busy());
    if !is_ours {
        // Nothing of ours runs: restore the default action; returning raises the signal again.
        // SAFETY: the default action for this signal.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            if !has_address {
                libc::raise(signal);
            }
        }
        return;
    }
    let done = if has_address { done_at(context) } else { AccessKind::Unknown };
    // SAFETY: as above. On x86, this code without an address means an unaligned access by an
    // instruction that requires alignment, or a non-canonical address.
    let is_unaligned =
        signal == libc::SIGSEGV && address == 0 && unsafe { (*info).si_code } == SI_KERNEL;
    let signal = if is_unaligned { UNALIGNED } else { name };
    CaughtSignal { signal, address, done, culprit, place }.end();
}

/// A kernel that calls `exit` would end the process as if it had succeeded.
extern "C" fn handle_exit() {
    let culprit = Culprit::here();
    if is_owner() && culprit.known().is_some() {
        CaughtSignal {
            signal: "a call of exit",
            address: 0,
            done: AccessKind::Unknown,
            culprit,
            place: None,
        }
        .end();
    }
    if is_owner() && FIRST.load(Ordering::Acquire) != usize::MAX {
        // Another thread is about to report.
        wait_for_the_end();
    }
}

/// Waits until another thread ends the process.
fn wait_for_the_end() -> ! {
    loop {
        // SAFETY: it sleeps.
        unsafe { libc::sleep(1) };
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn done_at(context: *mut libc::c_void) -> AccessKind {
    // SAFETY: the system passes the context; the second bit of its error is set for writes.
    let error =
        unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] };
    if error & 2 == 0 { AccessKind::Read } else { AccessKind::Written }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn done_at(_: *mut libc::c_void) -> AccessKind {
    AccessKind::Unknown
}

/// A name without characters that JSON would have to escape.
struct Plain<'a>(&'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |letter: char| letter >= ' ' && letter != '"' && letter != '\\';
        self.0
            .chars()
            .try_for_each(|letter| f.write_char(if is_plain(letter) { letter } else { '_' }))
    }
}

impl CaughtSignal<'_> {
    /// Reports the fault and ends the process.
    fn end(&self) -> ! {
        let rank = self.culprit.known().map_or(usize::MAX - 1, |(_, rank)| rank);
        FIRST.fetch_min(rank, Ordering::AcqRel);
        // If all ranks fail in the same way, the lowest reports, not the fastest. SAFETY: it only
        // sleeps.
        unsafe { libc::usleep(GRACE_MICROS) };
        if FIRST.load(Ordering::Acquire) != rank || HAS_COME.swap(true, Ordering::AcqRel) {
            wait_for_the_end();
        }
        departure::is_told();
        let mut text = RawText { bytes: [0; 4096], len: 0 };
        // Writing to memory does not fail.
        let _ = self.say(&mut text);
        text.send(libc::STDERR_FILENO);
        let report = REPORT.load(Ordering::Acquire);
        if report >= 0 {
            text.len = 0;
            let _ = self.report(&mut text);
            text.send(report);
        }
        // SAFETY: the process ends here without running handlers that could fail again.
        unsafe { libc::_exit(EXIT_CODE) };
    }

    fn kind(&self) -> &'static str {
        match self.place {
            // An array at the end of its pages starts at its element's alignment only.
            None if self.signal == UNALIGNED && regions::are_there() => "unaligned",
            None => "crash",
            Some((_, Some(_))) => "use-after-free",
            Some((region, None)) if region.beyond(self.address).is_some() => "out-of-bounds",
            Some((region, None)) if self.takes(region) => "write-to-input",
            Some(_) => "not-its-own",
        }
    }

    /// Whether a buffer is an input of the kernel.
    fn takes(&self, region: &Region) -> bool {
        match self.culprit {
            Culprit::Kernel(running) => {
                running.ins.iter().any(|address| region.has(address.0 as usize))
            }
            _ => region.is_constant,
        }
    }

    fn say(&self, text: &mut RawText) -> fmt::Result {
        write!(text, "error: ")?;
        let (before, after) = match self.culprit {
            Culprit::Kernel(_) | Culprit::Left(..) => ("", ", "),
            Culprit::After(..) => ("what comes after ", ", "),
            Culprit::Thread(..) => ("a thread that ", ", started "),
            Culprit::Unknown => ("a thread that runs no kernel ", ""),
        };
        if let Some((_, rank)) = self.culprit.known() {
            write!(text, "rank {rank}: ")?;
        }
        write!(text, "{before}")?;
        if let Some((label, _)) = self.culprit.known() {
            say_kernel(text, label)?;
        }
        write!(text, "{after}")?;
        match self.place {
            Some(place) => self.say_place(text, place),
            None if self.address == 0 => write!(text, "was stopped by {}", self.signal),
            None => {
                let (done, address) = (self.done.words(), self.address);
                write!(
                    text,
                    "{done} address {address:#x}, which belongs to no buffer ({})",
                    self.signal
                )
            }
        }?;
        if self.may_be_found() {
            write!(
                text,
                "; run it with --no-memory-caching, or 'halflap debug', to see which buffer is at fault"
            )?;
        }
        if self.culprit.known().is_none() {
            write!(text, ". What ran last:")?;
            for (rank, label) in post::lasts() {
                write!(text, "\n  rank {rank}: ")?;
                say_kernel(text, label)?;
            }
        }
        writeln!(text)
    }

    /// Whether guard pages, which are off, could have identified the accessed memory.
    fn may_be_found(&self) -> bool {
        self.place.is_none() && self.address != 0 && !regions::are_there()
    }

    fn say_place(
        &self,
        text: &mut RawText,
        (region, freed): (&Region, Option<&Freed>),
    ) -> fmt::Result {
        let Region { name, kind, data: Area { len: bytes, .. }, .. } = region;
        match region.beyond(self.address) {
            Some((side, bytes)) => {
                write!(text, "{} {} of ", self.done.words(), Beyond(side, bytes))?
            }
            None => {
                let offset = self.address - region.data.start;
                let only = match freed.is_none() && self.takes(region) {
                    true => ", which it must only read: ",
                    false => " of ",
                };
                write!(text, "{} byte {offset}{only}", self.done.words())?;
            }
        }
        write!(text, "buffer '{name}' ({kind}, {bytes} bytes)")?;
        if self.culprit.known().is_none_or(|(_, rank)| rank != region.rank) {
            write!(text, " of rank {}", region.rank)?;
        }
        match freed {
            Some(freed) => {
                let Freed { kernel, step, computation } = freed;
                write!(text, ", freed after kernel '{kernel}' before step {step} of {computation}")
            }
            None if self.kind() == "not-its-own" => {
                write!(text, ", which is alive and was not given to it")
            }
            None => Ok(()),
        }
    }

    fn report(&self, text: &mut RawText) -> fmt::Result {
        write!(
            text,
            "{{\"format\":\"halflap.fault/1\",\"kind\":\"{}\",\"signal\":\"{}\"",
            self.kind(),
            self.signal
        )?;
        write!(
            text,
            ",\"access\":\"{}\"",
            if self.done == AccessKind::Written { "write" } else { "read" }
        )?;
        if matches!(self.culprit, Culprit::Thread(..)) {
            write!(text, ",\"is_thread\":true")?;
        }
        if let Some((label, rank)) = self.culprit.known() {
            let (computation, step) = &label.place;
            write!(text, ",\"rank\":{rank},\"kernel\":\"{}\",\"step\":{step}", Plain(&label.name))?;
            write!(text, ",\"computation\":\"{}\"", Plain(computation))?;
            if let Some(source) = &label.source {
                write!(text, ",\"source\":\"{}\"", Plain(source))?;
            }
        }
        if let Some((region, freed)) = self.place {
            let offset = self.address as i64 - region.data.start as i64;
            write!(
                text,
                ",\"buffer\":\"{}\",\"type\":\"{}\"",
                Plain(&region.name),
                Plain(&region.kind)
            )?;
            write!(text, ",\"bytes\":{},\"offset\":{offset}", region.data.len)?;
            if let Some(Freed { kernel, step, .. }) = freed {
                write!(
                    text,
                    ",\"freed_after\":\"{}\",\"freed_before_step\":{step}",
                    Plain(kernel)
                )?;
            }
        }
        writeln!(text, "}}")
    }
}

fn say_kernel(text: &mut RawText, label: &Label) -> fmt::Result {
    write!(text, "kernel '{}'", label.name)?;
    if let Some(source) = &label.source {
        write!(text, " ({source})")?;
    }
    write!(text, ", step {} of {}", label.place.1, label.place.0)
}
