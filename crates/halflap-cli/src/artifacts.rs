//! `--artifacts DIR`: everything that a command makes, in one folder with a page that lists it.

use std::fs;
use std::path::{Path, PathBuf};

use halflap::units::Bytes;
use halflap_report::page::write_index;

use crate::args::ArtifactArgs;
use crate::exit::Failed;
use crate::files;

/// A folder for what a command makes.
pub struct Artifacts {
    path: PathBuf,
}

/// What may be in such a folder, and what it is.
const KNOWN: [(&str, &str); 13] = [
    ("report.html", "timeline, memory and collectives, to look at in a browser"),
    ("trace.json", "the same as a trace, for ui.perfetto.dev and others"),
    ("schedule.json", "the schedule: order, statistics, proof (halflap.schedule/1)"),
    ("plan.txt", "what a rank does, step by step"),
    ("order.json", "the order that was run"),
    ("times.json", "what every kernel and collective took, for schedule --profile"),
    ("out.npz", "what every rank gave"),
    ("flight.json", "the last collectives of every rank"),
    ("fault.jsonl", "what went wrong"),
    ("debug.json", "what was found (halflap.debug/1)"),
    ("debug.txt", "what was found, as it is printed"),
    ("values", "saved values of kernels"),
    ("guard.c", "what guards the memory of torch programs"),
];

impl Artifacts {
    /// Opens the folder that was requested; a non-empty one only if it may be emptied.
    pub fn open(args: &ArtifactArgs) -> Result<Option<Artifacts>, Failed> {
        args.artifacts
            .as_ref()
            .map(|path| Artifacts::at(PathBuf::from(path), args.overwrite))
            .transpose()
    }

    /// A folder for temporary files.
    pub fn temporary(name: &str) -> Result<Artifacts, Failed> {
        Artifacts::at(std::env::temp_dir().join(format!("{name}.{}", std::process::id())), true)
    }

    fn at(path: PathBuf, overwrite: bool) -> Result<Artifacts, Failed> {
        let name = path.display().to_string();
        let failed =
            |error: std::io::Error| Failed::in_file(&name, format!("cannot be written: {error}"));
        let is_filled = fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
        if is_filled && !overwrite {
            return Err(Failed::in_file(
                &name,
                "is there and is not empty: name another folder, or say --overwrite",
            ));
        }
        if is_filled {
            // Only what such folders have: a folder of something else is not emptied by a slip of the finger.
            if !path.join("index.html").is_file() {
                return Err(Failed::in_file(
                    &name,
                    "has no index.html of ours, and is not emptied: name another folder",
                ));
            }
            fs::remove_dir_all(&path).map_err(failed)?;
        }
        fs::create_dir_all(&path).map_err(failed)?;
        let artifacts = Artifacts { path };
        artifacts.write_page("")?;
        Ok(artifacts)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Writes the page that lists what is there, with the summary of it all.
    pub fn write_page(&self, summary: &str) -> Result<(), Failed> {
        let mut names: Vec<String> = fs::read_dir(&self.path)
            .map(|entries| {
                entries
                    .flatten()
                    .map(|entry| entry.file_name().to_string_lossy().into_owned())
                    .collect()
            })
            .unwrap_or_default();
        names.retain(|name| name != "index.html" && !name.starts_with('.'));
        let place = |name: &String| {
            KNOWN.iter().position(|(known, _)| known == name).unwrap_or(KNOWN.len())
        };
        names.sort_by_key(|name| (place(name), name.clone()));
        let rows: Vec<[String; 3]> = names
            .into_iter()
            .map(|name| {
                let what = KNOWN
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map_or("one stage: what it printed", |(_, what)| what);
                let size = match fs::metadata(self.path.join(&name)) {
                    Ok(file) if file.is_file() => Bytes(file.len() as i64).to_string(),
                    _ => "folder".to_owned(),
                };
                [name, size, what.to_owned()]
            })
            .collect();
        files::write(&self.file("index.html"), |mut out| write_index(summary, &rows, &mut out))
    }
}
