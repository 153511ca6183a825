//! Pictures: the page and the trace.

use std::path::Path;

use halflap_report::Ran;
use halflap_report::page::{Page, Shown, program_page, write_page};
use halflap_report::trace::{
    TracedPart, write_json, write_perfetto, write_ran_json, write_ran_perfetto,
};

use crate::args::PictureArgs;
use crate::exit::Failed;
use crate::files;
use crate::place::{Input, Output};
use crate::progress::Notice;

impl PictureArgs {
    /// Whether any are requested.
    pub fn any(&self) -> bool {
        self.report.is_some() || self.trace.is_some()
    }

    /// Rejects files that cannot be written, before any work is done.
    pub fn check(&self, read: &Input, output: Option<&str>) -> Result<(), Failed> {
        let drawn = [self.report.as_ref().and_then(Output::path), self.trace.as_deref()];
        for path in drawn.into_iter().flatten() {
            refuse_stdout(path)?;
        }
        check_outputs(Some(read), &[drawn[0], drawn[1], output])
    }

    /// Draws what is requested, of every part of a program.
    pub fn draw(&self, parts: &[Shown<'_>]) -> Result<(), Failed> {
        if let Some(to) = &self.report {
            let pages: Vec<Page> = {
                let _notice = Notice::new("drawing the page");
                parts.iter().map(program_page).collect()
            };
            write_report(to, &pages)?;
        }
        if let Some(path) = &self.trace {
            let is_json = path.ends_with(".json") || path.ends_with(".json.gz");
            let parts =
                parts.iter().map(|shown| TracedPart { name: shown.part, orders: shown.orders });
            let parts: Vec<TracedPart<'_>> = parts.collect();
            files::write(path, |mut out| match is_json {
                true => write_json(&parts, &mut out),
                false => write_perfetto(&parts, &mut out),
            })?;
        }
        Ok(())
    }
}

impl PictureArgs {
    /// Draws what actually ran.
    pub fn draw_ran(&self, ranks: &[Ran], page: impl FnOnce() -> Page) -> Result<(), Failed> {
        if let Some(to) = &self.report {
            write_report(to, &[page()])?;
        }
        if let Some(path) = &self.trace {
            let is_json = path.ends_with(".json") || path.ends_with(".json.gz");
            files::write(path, |mut out| match is_json {
                true => write_ran_json(ranks, &mut out),
                false => write_ran_perfetto(ranks, &mut out),
            })?;
        }
        Ok(())
    }
}

/// Writes a page.
pub fn write_report(to: &Output, parts: &[Page]) -> Result<(), Failed> {
    let _notice = Notice::new(&format!("writing {}", to.path().unwrap_or("a page")));
    files::write_to(to, |mut out| write_page(parts, &mut out))
}

/// No two files that are written, and none that is read, may be the same; and all must be writable.
pub fn check_outputs(read: Option<&Input>, written: &[Option<&str>]) -> Result<(), Failed> {
    let written: Vec<&str> =
        written.iter().copied().flatten().filter(|path| !files::is_stdout(path)).collect();
    let read = read.and_then(Input::path);
    for (place, path) in written.iter().enumerate() {
        if read.is_some_and(|read| files::same_file(path, read)) {
            return Err(Failed::in_file(
                path,
                "is an input of this command: write to another file",
            ));
        }
        if written[..place].iter().any(|other| other == path || files::same_file(other, path)) {
            return Err(Failed::in_file(
                path,
                "is named twice: every output needs a file of its own",
            ));
        }
    }
    written.iter().try_for_each(|path| files::check_writable(path))
}

/// Pictures are for files.
pub fn refuse_stdout(path: &str) -> Result<(), Failed> {
    match files::is_stdout(path) {
        true => {
            Err(Failed::BadInput("a page or a trace is not for a terminal: name a file".to_owned()))
        }
        false => Ok(()),
    }
}

/// What a page calls a file: its name without its folder.
pub fn title(input: &Input) -> String {
    let name = Path::new(input.name()).file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| input.name().to_owned())
}
