//! Files in and out. Nothing is half written: a file is written under a temporary name, then
//! renamed.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use flate2::Compression;
use flate2::write::GzEncoder;
use halflap::graph::{Chain, Graph};
use halflap::import::{self, read_graph};
use halflap::units::Bytes;

use crate::args::ChainWhich;
use crate::ask;
use crate::exit::Failed;
use crate::kind::{self, FileKind};
use crate::place::{Input, Output, name_of};
use crate::terminal;

/// What an input holds.
pub fn read(input: &Input) -> Result<Cow<'_, [u8]>, Failed> {
    match input {
        Input::File(path) => read_file(path).map(Cow::Owned),
        Input::Memory { bytes, .. } => Ok(Cow::Borrowed(bytes)),
    }
}

/// The bytes of a file, or of standard input for `-`.
pub fn read_file(path: &str) -> Result<Vec<u8>, Failed> {
    let cannot =
        |error: io::Error| Failed::in_file(name_of(path), format!("cannot be read: {error}"));
    if path != "-" && !is_pipe(path) {
        note_input(Path::new(path));
        return fs::read(path).map_err(cannot);
    }
    if path == "-" && io::stdin().is_terminal() {
        return Err(Failed::BadInput(
            "standard input is a terminal: pipe a graph into it, or name a file".to_owned(),
        ));
    }
    // Input that can be read only once is cached.
    static KEPT: Mutex<Vec<(String, Vec<u8>)>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, bytes)) = kept.iter().find(|(name, _)| name == path) {
        return Ok(bytes.clone());
    }
    let mut bytes = Vec::new();
    match path {
        "-" => io::stdin().lock().read_to_end(&mut bytes).map_err(cannot)?,
        _ => File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(cannot)?,
    };
    kept.push((path.to_owned(), bytes.clone()));
    Ok(bytes)
}

fn is_pipe(path: &str) -> bool {
    fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir())
}

/// Whether an input is an HLO module, to judge by its beginning.
pub fn is_module(input: &Input) -> Result<bool, Failed> {
    const ENOUGH: u64 = 1 << 16;
    let Some(path) = input.path().filter(|path| *path != "-" && !is_pipe(path)) else {
        return Ok(import::is_module(&read(input)?));
    };
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(ENOUGH).read_to_end(&mut start));
    read.map_err(|error| Failed::in_file(path, format!("cannot be read: {error}")))?;
    Ok(import::is_module(&start))
}

/// The graph that is given.
pub fn graph(input: &Input) -> Result<Graph, Failed> {
    parse_graph(input, &read(input)?)
}

/// The graph that the bytes of an input are.
pub fn parse_graph(input: &Input, bytes: &[u8]) -> Result<Graph, Failed> {
    let graph = read_graph(bytes).map_err(|error| {
        // The error for a module says what is needed.
        let problem = match import::is_module(bytes) {
            true => error.to_string(),
            false => kind::problem(bytes, FileKind::Graph, &error),
        };
        Failed::in_file(input.name(), problem)
    })?;
    for warning in graph.warnings() {
        warn(&format!("{}: {}", input.name(), halflap_report::warning(&graph, &warning)));
    }
    Ok(graph)
}

/// The graph with its collectives chained, if that was requested.
pub fn chained(graph: Graph, which: Option<ChainWhich>) -> Graph {
    match which {
        None => graph,
        Some(ChainWhich::Group) => graph.order_collectives(Chain::EachGroup),
        Some(ChainWhich::All) => graph.order_collectives(Chain::AllGroups),
    }
}

/// Warns on standard error.
pub fn warn(problem: &str) {
    if !ask::warn(problem) {
        eprintln!("warning: {problem}");
    }
}

/// Prints to standard output.
pub fn print(text: &str) -> Result<(), Failed> {
    print_with(|out| out.write_all(text.as_bytes()))
}

/// Prints output that is too large to hold as text.
pub fn print_with(fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failed> {
    let mut out = BufWriter::new(io::stdout().lock());
    match fill(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failed::NobodyReads),
        Err(error) => Err(Failed::BadInput(format!("standard output cannot be written: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Whether a path means our own standard output.
pub fn is_stdout(path: &str) -> bool {
    matches!(path, "-" | "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1")
}

/// Whether two paths lead to the same file.
pub fn same_file(a: &str, b: &str) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// The files that this command has read, other than its own.
static INPUTS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Records that a file is an input, so that it is not overwritten. An embedding program may
/// overwrite what an earlier request has read.
pub fn note_input(path: &Path) {
    let Some(path) = fs::canonicalize(path).ok().filter(|_| !ask::is_called()) else { return };
    let written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !written.iter().any(|(own, _)| fs::canonicalize(own).is_ok_and(|own| own == path)) {
        INPUTS.lock().unwrap_or_else(PoisonError::into_inner).insert(path);
    }
}

/// An error if the file is an input of this command.
fn refuse_input(path: &str, target: &Path) -> Result<(), Failed> {
    match INPUTS.lock().unwrap_or_else(PoisonError::into_inner).contains(target) {
        true => Err(Failed::in_file(path, "is an input of this command: write to another file")),
        false => Ok(()),
    }
}

/// Writes to where a request says, whole or not at all.
pub fn write_to(
    output: &Output,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failed> {
    match output {
        Output::File(path) if is_stdout(path) => print_with(fill),
        Output::File(path) => write(path, fill),
        Output::Memory(bytes) => {
            let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
            fill(&mut *bytes).map_err(|error| Failed::OurBug(error.to_string()))
        }
    }
}

/// Writes text to a file, or prints it; returns whether it was printed.
pub fn put(path: &str, text: &str) -> Result<bool, Failed> {
    if is_stdout(path) {
        print_data(|out| out.write_all(text.as_bytes()))?;
        return Ok(true);
    }
    write(path, |out| out.write_all(text.as_bytes()))?;
    Ok(false)
}

/// Writes text to a file, or to standard output instead of the summary; returns whether it did the
/// latter.
pub fn put_asked(
    output: Option<&str>,
    printed: bool,
    text: impl FnOnce() -> String,
) -> Result<bool, Failed> {
    if output.is_none() && !printed {
        return Ok(false);
    }
    let text = text();
    let shown = output.map_or(Ok(false), |path| put(path, &text))?;
    if printed && !shown {
        print_data(|out| out.write_all(text.as_bytes()))?;
    }
    Ok(printed || shown)
}

/// Writes a file whole or not at all, gzipped if its name ends in `.gz`.
pub fn write(
    path: &str,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failed> {
    let failed = |error: io::Error| Failed::in_file(path, format!("cannot be written: {error}"));
    // A link stays a link: its target is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    // A pipe or a device cannot be renamed, and has no content to lose.
    if is_special(&target) {
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        return fill_file(path, file, fill).map_err(failed);
    }
    refuse_input(path, &target)?;
    let beside = beside(&target).map_err(failed)?;
    let create = || OpenOptions::new().write(true).create_new(true).open(&beside);
    let written = create()
        .and_then(|file| fill_file(path, file, fill))
        .and_then(|()| fs::rename(&beside, &target));
    written.map_err(|error| {
        // Already failing: an error on removal does not change the result.
        let _ = fs::remove_file(&beside);
        failed(error)
    })?;
    let size = fs::metadata(&target).map_or(0, |there| there.len());
    // Programs know what they asked for.
    if !ask::is_called() {
        let mut written = WRITTEN.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was written again has another size.
        written.retain(|(other, _)| other != path);
        written.push((path.to_owned(), size));
    }
    Ok(())
}

/// The files that were written, with their sizes.
static WRITTEN: Mutex<Vec<(String, u64)>> = Mutex::new(Vec::new());

/// Names the files that were written, with their sizes: on standard output or, if that carries
/// machine-readable output, on the terminal if there is one.
pub fn name_written() {
    let text = written();
    if text.is_empty() {
        return;
    }
    if !HAS_DATA.load(Ordering::Relaxed) {
        // If nothing reads the output, the names do not matter.
        let _ = print(&text);
    } else if terminal::is_seen(&io::stderr()) {
        eprint!("{text}");
    }
}

/// Whether machine-readable output was printed.
static HAS_DATA: AtomicBool = AtomicBool::new(false);

/// Prints machine-readable output.
pub fn print_data(fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failed> {
    HAS_DATA.store(true, Ordering::Relaxed);
    print_with(fill)
}

/// A line for each file that was written since it was last asked.
fn written() -> String {
    let all = std::mem::take(&mut *WRITTEN.lock().unwrap_or_else(PoisonError::into_inner));
    let line = |(path, size): (String, u64)| {
        let size = Bytes(i64::try_from(size).unwrap_or(i64::MAX));
        format!("wrote {} ({size})\n", halflap_report::printable_end(&path, 200))
    };
    all.into_iter().map(line).collect()
}

/// An error if a file cannot be written, before any work is done and other files are written.
pub fn check_writable(path: &str) -> Result<(), Failed> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    if is_stdout(path) || is_special(&target) {
        return Ok(());
    }
    refuse_input(path, &target)?;
    let tried = match target.is_dir() {
        true => Err(io::Error::other("it is a folder")),
        false => beside(&target).and_then(|beside| {
            OpenOptions::new().write(true).create_new(true).open(&beside)?;
            fs::remove_file(&beside)
        }),
    };
    tried.map_err(|error| Failed::in_file(path, format!("cannot be written: {error}")))
}

fn is_special(target: &Path) -> bool {
    let of_the_system = ["/dev", "/proc", "/sys"].iter().any(|folder| target.starts_with(folder));
    of_the_system || fs::metadata(target).is_ok_and(|there| !there.is_file() && !there.is_dir())
}

fn fill_file(
    path: &str,
    file: File,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    if path.ends_with(".gz") {
        let mut zipped = GzEncoder::new(&mut out, Compression::default());
        fill(&mut zipped)?;
        zipped.finish()?;
    } else {
        fill(&mut out)?;
    }
    out.flush()
}

fn beside(target: &Path) -> io::Result<PathBuf> {
    let name =
        target.file_name().ok_or_else(|| io::Error::other("it is not the name of a file"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.tmp", std::process::id()));
    Ok(target.with_file_name(hidden))
}

/// A shell word.
pub fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:+@%".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell_are_quoted_where_they_must_be() {
        assert_eq!(
            (quoted("a-b.py"), quoted("it's"), quoted("")),
            ("a-b.py".into(), "'it'\\''s'".into(), "''".into())
        );
    }
}
