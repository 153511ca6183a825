//! `--artifacts DIR`: everything that a command makes, in one folder with a page that lists it.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use halflap::units::Bytes;
use halflap_report::page::{Index, IndexFile, IndexStage, write_index};

use crate::args::ArtifactArgs;
use crate::exit::Failed;
use crate::files::{self, quoted};

/// A folder for what a command makes.
pub struct Artifacts {
    path: PathBuf,
    /// Whether the folder is new.
    is_new: bool,
    /// Where its previous contents are, until there are new ones.
    aside: Option<PathBuf>,
    facts: Vec<(&'static str, String)>,
    /// What was done so far.
    stages: RefCell<Vec<IndexStage>>,
}

/// What may be in such a folder, and what it is.
const KNOWN: [(&str, &str); 13] = [
    ("report.html", "timeline, memory and collectives, to look at in a browser"),
    ("trace.json", "the same as a trace, for ui.perfetto.dev and others"),
    ("schedule.json", "the schedule: order, statistics, proof (halflap.schedule/1)"),
    ("plan.txt", "what a rank does, step by step"),
    ("order.json", "the order that was run"),
    ("times.json", "the time of every kernel and collective, for schedule --profile"),
    ("out.npz", "the outputs of every rank"),
    ("flight.json", "the last collectives of every rank"),
    ("fault.jsonl", "what went wrong"),
    ("debug.json", "what was found (halflap.debug/1)"),
    ("debug.txt", "what was found, as text"),
    ("values", "saved values of kernels"),
    ("guard.c", "the library that guards the memory of torch programs"),
];

/// The status of a successful stage.
const DONE: &str = "done";

impl Artifacts {
    /// Opens the folder that was requested; a non-empty one only if it may be emptied and contains
    /// none of the inputs.
    pub fn open(
        args: &ArtifactArgs,
        input: &str,
        read: &[Option<&str>],
    ) -> Result<Option<Artifacts>, Failed> {
        let Some(path) = args.artifacts.as_ref().filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let is_inside = |file: &&str| {
            let both = (fs::canonicalize(file), fs::canonicalize(path));
            matches!(both, (Ok(file), Ok(folder)) if file.starts_with(&folder) && file != folder)
        };
        if let Some(inside) = read.iter().copied().flatten().find(is_inside) {
            let problem =
                format!("contains {}, which is an input: name another folder", quoted(inside));
            return Err(Failed::in_file(path, problem));
        }
        Artifacts::at(PathBuf::from(path), args.overwrite, input).map(Some)
    }

    /// A folder for temporary files.
    pub fn temporary(name: &str, input: &str) -> Result<Artifacts, Failed> {
        let path = std::env::temp_dir().join(format!("{name}.{}", std::process::id()));
        Artifacts::at(path, true, input)
    }

    fn at(path: PathBuf, overwrite: bool, input: &str) -> Result<Artifacts, Failed> {
        let name = path.display().to_string();
        let failed =
            |error: std::io::Error| Failed::in_file(&name, format!("cannot be written: {error}"));
        let is_filled = fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
        if is_filled && !overwrite {
            return Err(Failed::in_file(
                &name,
                "is not empty: name another folder, or give --overwrite",
            ));
        }
        let is_there = path.exists();
        if is_filled {
            // Only files that such folders contain, so that a typo does not empty some other
            // folder.
            if !path.join("index.html").is_file() {
                return Err(Failed::in_file(
                    &name,
                    "has no index.html from halflap, so it is not emptied: name another folder",
                ));
            }
        }
        let aside =
            is_filled.then(|| PathBuf::from(format!("{name}.before-{}", std::process::id())));
        if let Some(aside) = &aside {
            fs::rename(&path, aside).map_err(failed)?;
        }
        fs::create_dir_all(&path).map_err(failed)?;
        let (is_new, stages) = (!is_there, RefCell::default());
        let artifacts = Artifacts { path, is_new, aside, facts: facts(input), stages };
        artifacts.write_page("", "")?;
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

    /// Runs a stage, and records how long it took and whether it succeeded.
    pub fn stage<T>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        let began = Instant::now();
        let done = work();
        let status = if done.is_ok() { DONE } else { "failed" };
        self.noted(name, status, began.elapsed().as_secs_f64());
        done
    }

    /// Records a stage that ran elsewhere.
    pub fn noted(&self, name: &str, status: &str, seconds: f64) {
        let (name, status) = (name.to_owned(), status.to_owned());
        self.stages.borrow_mut().push(IndexStage { name, status, seconds });
    }

    /// Writes the page that lists the files, with the outcome.
    pub fn write_page(&self, verdict: &str, summary: &str) -> Result<(), Failed> {
        let index = Index {
            verdict: verdict.to_owned(),
            facts: self.facts.clone(),
            stages: self.stages.borrow().clone(),
            summary: summary.to_owned(),
            files: self.files(),
        };
        files::write(&self.file("index.html"), |mut out| write_index(&index, &mut out))
    }

    /// Writes the page of a command that ended; restores the folder if the command did nothing,
    /// because its input is bad.
    pub fn close<T>(&self, done: &Result<T, Failed>) -> Result<(), Failed> {
        let verdict = match done {
            Ok(_) => "All went well.",
            Err(failed) if failed.is_bad_input() && !self.has_done_something() => {
                self.discard();
                return Ok(());
            }
            Err(_) => "It failed: the terminal says why.",
        };
        self.write_page(verdict, "")
    }

    fn has_done_something(&self) -> bool {
        self.stages.borrow().iter().any(|stage| stage.status == DONE)
    }

    /// Removes everything written. A failure to remove it matters less than the reason for removing
    /// it.
    fn discard(&self) {
        let _ = fs::remove_dir_all(&self.path);
        let _ = match &self.aside {
            Some(aside) => fs::rename(aside, &self.path),
            None if self.is_new => Ok(()),
            None => fs::create_dir(&self.path),
        };
    }

    /// The files in the folder, known ones first.
    fn files(&self) -> Vec<IndexFile> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> =
            names.filter(|name| name != "index.html" && !name.starts_with('.')).collect();
        let known = |name: &String| KNOWN.iter().position(|(known, _)| known == name);
        names.sort_by_key(|name| (known(name).unwrap_or(KNOWN.len()), name.clone()));
        let file = |name: String| {
            let what = known(&name)
                .map_or("one stage: what it printed", |known| KNOWN[known].1)
                .to_owned();
            let size = match fs::metadata(self.path.join(&name)) {
                Ok(file) if file.is_file() => Bytes(file.len() as i64).to_string(),
                _ => "folder".to_owned(),
            };
            IndexFile { name, size, what }
        };
        names.into_iter().map(file).collect()
    }
}

impl Drop for Artifacts {
    /// The previous contents are removed once there are new ones, unless they were restored.
    fn drop(&mut self) {
        if let Some(aside) = &self.aside {
            let _ = fs::remove_dir_all(aside);
        }
    }
}

/// The origin of a folder: the command as it can be typed, its input, the version, the date.
fn facts(input: &str) -> Vec<(&'static str, String)> {
    let words = std::env::args_os().map(|word| quoted(&word.to_string_lossy()));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    vec![
        ("command", words.collect::<Vec<_>>().join(" ")),
        ("input", input.to_owned()),
        ("version", format!("halflap {}", env!("CARGO_PKG_VERSION"))),
        ("date", date(now)),
    ]
}

/// Seconds since 1970 as a date and a time of day, without leap seconds.
fn date(seconds: u64) -> String {
    let (mut day, of_day) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_735_689_599), "2024-12-31 23:59:59 UTC");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }
}
