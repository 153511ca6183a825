//! Progress and times. Progress is shown only on a terminal.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use halflap::pass::Pass;
use halflap::schedule::Observer;
use halflap_report::width;

use crate::ask::{self, StopSignal};
use crate::runtime::interrupt;
use crate::terminal;

/// Times every pass, and shows the progress of long ones on a terminal.
pub struct Stopwatch {
    /// How long each pass took, in sequence.
    pub seconds: Vec<f64>,
    bar: Bar,
}

impl Stopwatch {
    pub fn new() -> Stopwatch {
        Stopwatch { seconds: Vec::new(), bar: Bar::new("checking") }
    }
}

impl Observer for Stopwatch {
    fn pass_started(&mut self, pass: Pass) {
        self.bar = Bar::new(pass.name());
    }

    fn pass_finished(&mut self, _: Pass) {
        self.seconds.push(self.bar.started.elapsed().as_secs_f64());
        self.bar.clear();
    }

    fn swap_checked(&mut self, part: f64) {
        // A pass has an end that is near: it is not stopped.
        let _ = self.bar.show(part);
    }
}

/// Work shorter than this needs no progress.
const PATIENCE: Duration = Duration::from_millis(500);
const BETWEEN: Duration = Duration::from_millis(100);

/// The progress of long work, with the time left, only on a terminal; and whether to continue.
pub struct Bar {
    what: &'static str,
    started: Instant,
    shown: Mutex<BarState>,
    terminal: bool,
    stop: Option<StopSignal>,
}

#[derive(Default)]
struct BarState {
    last: Option<Instant>,
    /// How many characters the line has.
    width: usize,
}

impl Bar {
    pub fn new(what: &'static str) -> Bar {
        let stop = ask::stop();
        let terminal =
            stop.is_none() && terminal::is_seen(&std::io::stderr()) && !terminal::is_dumb();
        Bar { what, started: Instant::now(), shown: Mutex::default(), terminal, stop }
    }

    /// Shows that `part` of the work is done, and returns whether to continue; may be called from
    /// any thread.
    pub fn show(&self, part: f64) -> ControlFlow<()> {
        if self.terminal {
            self.draw(part);
        }
        match self.stop.as_ref().map_or_else(interrupt::is_asked, StopSignal::is_asked_for) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn draw(&self, part: f64) {
        // If the lock is taken, another thread shows the progress.
        let Ok(mut shown) = self.shown.try_lock() else { return };
        let now = Instant::now();
        let due = shown.last.map_or(self.started + PATIENCE, |last| last + BETWEEN);
        if now < due {
            return;
        }
        let line = line(self.what, part, now - self.started, terminal::error_width());
        eprint!("\r{line:<width$}", width = shown.width);
        let _ = std::io::stderr().flush();
        *shown = BarState { last: Some(now), width: line.chars().count() };
    }

    /// Wipes the line.
    pub fn clear(&self) {
        if let Ok(shown) = self.shown.lock()
            && shown.last.is_some()
        {
            eprint!("\r{:width$}\r", "", width = shown.width);
        }
    }
}

/// What is being done, on a terminal, until it is done.
pub struct Notice {
    width: usize,
}

impl Notice {
    pub fn new(text: &str) -> Notice {
        let mut notice = Notice { width: 0 };
        notice.show(text);
        notice
    }

    /// Shows another text in its place.
    pub fn show(&mut self, text: &str) {
        let terminal =
            !ask::is_called() && terminal::is_seen(&std::io::stderr()) && !terminal::is_dumb();
        if terminal {
            let text = width::start(text, terminal::error_width().saturating_sub(1));
            eprint!("\r{text:<width$}", width = self.width);
            let _ = std::io::stderr().flush();
            self.width = self.width.max(width::columns(text));
        }
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        if self.width > 0 {
            eprint!("\r{:width$}\r", "", width = self.width);
        }
    }
}

/// `optimizing [#####     ]  50%, 3 s left`, in one line of the terminal.
fn line(what: &str, part: f64, elapsed: Duration, width: usize) -> String {
    // The first moments say nothing about the rest.
    let left = match part >= 0.005 {
        true => seconds(elapsed.as_secs_f64() * (1.0 - part) / part),
        false => "? s".to_owned(),
    };
    let end = format!("{:3.0}%, {left} left", part * 100.0);
    // The cursor needs a column, too: a full line would wrap.
    let room = width.saturating_sub(what.chars().count() + end.chars().count() + 5).min(30);
    if room < 5 {
        return format!("{what} {end}").chars().take(width.saturating_sub(1)).collect();
    }
    let filled = (part * room as f64) as usize;
    format!("{what} [{:<room$}] {end}", "#".repeat(filled))
}

fn seconds(seconds: f64) -> String {
    match seconds {
        long if long >= 90.0 => format!("{:.0} min", long / 60.0),
        short => format!("{short:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_what_the_rest_would_take() {
        let at = |part, seconds| line("sweeping", part, Duration::from_secs(seconds), 80);
        assert_eq!(at(0.25, 10), "sweeping [#######                       ]  25%, 30 s left");
        assert!(at(0.01, 60).ends_with("  1%, 99 min left"), "{}", at(0.01, 60));
        assert!(at(0.0, 60).ends_with("  0%, ? s left"));
    }

    #[test]
    fn the_line_is_shorter_than_the_terminal() {
        for width in 1..120 {
            let line = line("sink_waits_iterative", 0.5, Duration::from_secs(3), width);
            assert!(line.chars().count() < width.max(2), "{width}: {line}");
            assert_eq!(line.contains('['), width >= 44, "{width}: {line}");
        }
    }
}
