//! What is said to people while ranks run: each text whole, and what need not be said again once.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Mutex;

use crate::exec::stream::locked;

static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static OUT: Mutex<()> = Mutex::new(());

/// Writes a text to standard output in one go, whichever rank comes at the same time.
pub(crate) fn print(text: &str) {
    let _turn = locked(&OUT);
    // Standard output writes whole lines at once if it holds back nothing. Whoever read it may be gone; then nobody
    // needs it.
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

/// Says a line on standard error.
pub(crate) fn warn(line: &str) {
    let _turn = locked(&OUT);
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Says a line on standard error, unless it was said before.
pub(crate) fn warn_once(line: String) {
    if locked(&SAID).insert(line.clone()) {
        warn(&line);
    }
}
