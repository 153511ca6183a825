//! The page: one file that shows where a step's time goes, self-contained, without network access.
//!
//! `model` is what the page's script is given; `program` builds it from simulated orders,
//! `observed` from traces, `measured` from our own runs. The script, the style and the frame are
//! next to this file and part of the binary.

mod index;
mod measured;
mod model;
mod observed;
mod program;
mod rates;

pub use index::{Index, IndexFile, IndexStage, write_index};
pub use measured::{compared_page, measured_page};
pub use model::*;
pub use observed::{SLICES, observed_page};
pub use program::{Shown, program_page, sweep_page};

use std::io::{self, Write};

use serde::Serialize;

const FRAME: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// One script in parts, which the frame puts into one scope; the last sets everything going.
const SCRIPT: &str = concat!(
    include_str!("text.js"),
    include_str!("address.js"),
    include_str!("bands.js"),
    include_str!("model.js"),
    include_str!("timeline.js"),
    include_str!("marks.js"),
    include_str!("input.js"),
    include_str!("panel.js"),
    include_str!("find.js"),
    include_str!("table.js"),
    include_str!("sweep.js"),
    include_str!("page.js"),
);

#[derive(Serialize)]
struct PageDocument<'a> {
    format: &'static str,
    halflap: &'static str,
    parts: &'a [Page],
}

/// Writes a self-contained page. It shows one part of a program at a time.
pub fn write_page(parts: &[Page], out: &mut impl Write) -> io::Result<()> {
    let document =
        PageDocument { format: "halflap.page/1", halflap: env!("CARGO_PKG_VERSION"), parts };
    // Within a script element only `<` could end it; JSON may write it as an escape.
    let data = serde_json::to_string(&document)?.replace('<', "\\u003c");
    let mut rest = FRAME;
    for (mark, text) in [("/*STYLE*/", STYLE), ("/*DATA*/", &data), ("/*SCRIPT*/", SCRIPT)] {
        let (before, after) = rest
            .split_once(mark)
            .ok_or_else(|| io::Error::other(format!("no {mark} in the page")))?;
        out.write_all(before.as_bytes())?;
        out.write_all(text.as_bytes())?;
        rest = after;
    }
    out.write_all(rest.as_bytes())
}
