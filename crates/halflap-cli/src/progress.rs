//! Progress and times. On a pipe there is none of the former.

use std::io::{IsTerminal, Write};
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
