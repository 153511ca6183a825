//! Progress and times. On a pipe there is none of the former.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use halflap::pass::Pass;
use halflap::schedule::Observer;

/// Times every pass, and shows on a terminal how far a long one has come.
pub struct Stopwatch {
    /// How long each pass took, in sequence.
    pub seconds: Vec<f64>,
    started: Instant,
    swaps: u64,
    shown: Option<Instant>,
    terminal: bool,
}

/// Work shorter than this needs no progress.
const PATIENCE: Duration = Duration::from_millis(500);
const BETWEEN: Duration = Duration::from_millis(100);

impl Stopwatch {
    pub fn new() -> Stopwatch {
        let terminal = std::io::stderr().is_terminal();
        Stopwatch { seconds: Vec::new(), started: Instant::now(), swaps: 0, shown: None, terminal }
    }

    fn show(&mut self) {
        let now = Instant::now();
        let wait = self.shown.map_or(PATIENCE, |shown| shown - self.started + BETWEEN);
        if now - self.started >= wait {
            eprint!("\r{} swaps checked, {:.0} s ", self.swaps, (now - self.started).as_secs_f64());
            let _ = std::io::stderr().flush();
            self.shown = Some(now);
        }
    }
}

impl Observer for Stopwatch {
    fn pass_started(&mut self, _: Pass) {
        (self.swaps, self.shown) = (0, None);
        self.started = Instant::now();
    }

    fn pass_finished(&mut self, _: Pass) {
        self.seconds.push(self.started.elapsed().as_secs_f64());
        if self.shown.is_some() {
            eprint!("\r{:40}\r", "");
        }
    }

    fn swap_checked(&mut self) {
        self.swaps += 1;
        if self.terminal && self.swaps.is_multiple_of(256) {
            self.show();
        }
    }
}

/// How far long work has come, with the time left; only on a terminal.
pub struct Bar {
    what: &'static str,
    started: Instant,
    shown: Mutex<Option<Instant>>,
    terminal: bool,
}

impl Bar {
    pub fn new(what: &'static str) -> Bar {
        Bar { what, started: Instant::now(), shown: Mutex::new(None), terminal: std::io::stderr().is_terminal() }
    }

    /// Shows that `part` of the work is done; may be called from any thread.
    pub fn show(&self, part: f64) {
        // Whoever finds the lock taken need not show anything: somebody else does.
        let Ok(mut shown) = self.shown.try_lock() else { return };
        let now = Instant::now();
        let due = shown.map_or(self.started + PATIENCE, |shown| shown + BETWEEN);
        if !self.terminal || now < due {
            return;
        }
        let elapsed = (now - self.started).as_secs_f64();
        let left = if part > 0.0 { elapsed * (1.0 - part) / part } else { 0.0 };
        let filled = (part * 30.0) as usize;
        eprint!("\r{} [{:<30}] {:3.0}%, {left:.0} s left ", self.what, "#".repeat(filled), part * 100.0);
        let _ = std::io::stderr().flush();
        *shown = Some(now);
    }

    /// Wipes the line.
    pub fn clear(&self) {
        if self.shown.lock().is_ok_and(|shown| shown.is_some()) {
            eprint!("\r{:70}\r", "");
        }
    }
}
