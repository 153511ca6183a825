//! Output while ranks run: texts are not interleaved, and repeated messages are printed once.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Mutex;

use crate::sync::locked;

static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static OUT: Mutex<()> = Mutex::new(());

/// Writes a text to standard output at once, even if other ranks print at the same time.
pub(crate) fn print(text: &str) {
    let _turn = locked(&OUT);
    // One write keeps the text together. If the reader is gone, the output is not needed.
    let _ = io::stdout().lock().write_all(text.as_bytes());
}

/// Prints a line on standard error.
pub(crate) fn warn(line: &str) {
    let _turn = locked(&OUT);
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Prints a line on standard error, unless it was printed before.
pub(crate) fn warn_once(line: String) {
    if locked(&SAID).insert(line.clone()) {
        warn(&line);
    }
}
