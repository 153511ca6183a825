//! Files in and out. Nothing is half written: a file is written beside its place, then renamed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use halflap::graph::Graph;
use halflap::import::read_graph;

use crate::exit::Failed;

/// The bytes of a file, or of standard input for `-`.
pub fn read(path: &str) -> Result<Vec<u8>, Failed> {
    if path != "-" {
        return fs::read(path).map_err(|error| Failed::in_file(path, format!("cannot be read: {error}")));
    }
    if io::stdin().is_terminal() {
        return Err(Failed::BadInput("standard input is a terminal: pipe a graph into it, or name a file".to_owned()));
    }
    let mut bytes = Vec::new();
    let read = io::stdin().lock().read_to_end(&mut bytes);
    read.map_err(|error| Failed::in_file(name_of(path), format!("cannot be read: {error}")))?;
    Ok(bytes)
}

/// The graph in a file, or in standard input for `-`.
pub fn graph(path: &str) -> Result<Graph, Failed> {
    let bytes = read(path)?;
    parse_graph(path, &bytes)
}

/// The graph that a file's bytes are.
pub fn parse_graph(path: &str, bytes: &[u8]) -> Result<Graph, Failed> {
    let graph = read_graph(bytes).map_err(|error| Failed::in_file(name_of(path), error))?;
    for warning in graph.warnings() {
        eprintln!("warning: {}: {}", name_of(path), halflap::report::warning(&graph, &warning));
    }
    Ok(graph)
}

/// What to call a file in a message.
pub fn name_of(path: &str) -> &str {
    if path == "-" { "standard input" } else { path }
}

/// Prints to standard output.
pub fn print(text: &str) -> Result<(), Failed> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failed::NobodyReads),
        Err(error) => Err(Failed::BadInput(format!("standard output cannot be written: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes a file whole or not at all, gzipped if its name ends in `.gz`.
pub fn write(path: &str, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failed> {
    let failed = |error: io::Error| Failed::in_file(path, format!("cannot be written: {error}"));
    let target = Path::new(path);
    // A pipe or a device has no place beside it, and nothing to lose.
    if fs::metadata(target).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        let file = OpenOptions::new().write(true).open(target).map_err(failed)?;
        return fill_file(path, file, fill).map_err(failed);
    }
    let beside = beside(target).map_err(failed)?;
    let create = || OpenOptions::new().write(true).create_new(true).open(&beside);
    let written = create().and_then(|file| fill_file(path, file, fill)).and_then(|()| fs::rename(&beside, target));
    written.map_err(|error| {
        // Already failing: what cannot be removed either does not change the answer.
        let _ = fs::remove_file(&beside);
        failed(error)
    })
}

fn fill_file(path: &str, file: File, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
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
    let name = target.file_name().ok_or_else(|| io::Error::other("it is not the name of a file"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.tmp", std::process::id()));
    Ok(target.with_file_name(hidden))
}
