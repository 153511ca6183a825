//! What the terminal can show.

use std::env;
use std::io::{self, IsTerminal};

use halflap_report::{Bars, Style};

use crate::ask;

/// The style of standard output: fitted, with bars and colours, on a terminal; plain and complete
/// on a pipe.
pub fn style() -> Style {
    if ask::is_called() || !is_seen(&io::stdout()) {
        return Style::default();
    }
    let width =
        terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    let bars = if speaks_unicode() { Bars::Blocks } else { Bars::Ascii };
    Style { width: width.filter(|&width| width > 0), colour: wants_colour(), bars }
}

/// Whether a stream is an interactive terminal. mpirun gives its processes a terminal, wherever it
/// writes itself.
pub fn is_seen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && env::var_os("OMPI_COMM_WORLD_RANK").is_none()
}

/// Whether options and what they mean do not fit beside each other.
pub fn is_narrow() -> bool {
    /// The longest options take half of it.
    const LEAST: u16 = 72;
    terminal_size::terminal_size_of(io::stdout()).is_some_and(|(width, _)| width.0 < LEAST)
}

/// How wide the terminal of standard error is.
pub fn error_width() -> usize {
    let size = terminal_size::terminal_size_of(io::stderr());
    size.map(|(width, _)| usize::from(width.0)).filter(|&width| width > 0).unwrap_or(80)
}

/// By the convention of NO_COLOR: any value but an empty one turns colour off.
fn wants_colour() -> bool {
    let asked_not_to = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !asked_not_to && !is_dumb()
}

/// Whether the terminal can only append.
pub fn is_dumb() -> bool {
    env::var_os("TERM").is_none_or(|term| term == "dumb")
}

/// The first of these that is set to something decides, as for the C library.
fn speaks_unicode() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(env::var_os)
        .find(|value| !value.is_empty());
    set.is_some_and(|value| {
        let value = value.to_string_lossy().to_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    })
}
