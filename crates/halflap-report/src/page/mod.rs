//! The page: one file that shows where a step's time goes, self-contained, without network access.
//!
//! `model` is what the page's script is given; `program` builds it from simulated orders,
//! `observed` from traces, `measured` from our own runs. The script, the style and the frame are
//! next to this file and part of the binary.

mod measured;
mod model;
mod observed;
mod program;

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
struct Document<'a> {
    format: &'static str,
    halflap: &'static str,
    parts: &'a [Page],
}

/// Writes a self-contained page. It shows one part of a program at a time.
pub fn write_page(parts: &[Page], out: &mut impl Write) -> io::Result<()> {
    let document = Document { format: "halflap.page/1", halflap: env!("CARGO_PKG_VERSION"), parts };
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

/// Writes a page that lists files: for each its name, its size and what it is; and a text above them.
pub fn write_index(summary: &str, files: &[[String; 3]], out: &mut impl Write) -> io::Result<()> {
    let escaped =
        |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    writeln!(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">")?;
    writeln!(out, "<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">")?;
    writeln!(out, "<title>halflap artifacts</title>\n<style>\n{STYLE}\n")?;
    writeln!(out, "body {{ margin: 2rem auto; max-width: 60rem; padding: 0 1rem }}")?;
    writeln!(out, "td, th {{ text-align: left; padding: 0.25rem 1rem 0.25rem 0 }}")?;
    writeln!(
        out,
        "pre {{ font-family: var(--mono); white-space: pre-wrap; overflow-wrap: anywhere }}\n</style>"
    )?;
    writeln!(out, "</head>\n<body>\n<main>\n<h1>Artifacts</h1>")?;
    if !summary.is_empty() {
        writeln!(out, "<pre>{}</pre>", escaped(summary))?;
    }
    writeln!(
        out,
        "<table>\n<thead><tr><th>file</th><th>size</th><th>what it is</th></tr></thead>\n<tbody>"
    )?;
    for [name, size, what] in files {
        let (name, size, what) = (escaped(name), escaped(size), escaped(what));
        writeln!(
            out,
            "<tr><td><a href=\"{name}\">{name}</a></td><td>{size}</td><td>{what}</td></tr>"
        )?;
    }
    writeln!(out, "</tbody>\n</table>\n</main>\n</body>\n</html>")
}
