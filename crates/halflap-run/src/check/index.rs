//! Saved values: a folder for each rank, an `.npy` file for each array, and an index that describes
//! them.
//!
//! The index is one JSON object and is valid at any time, however the process ends: once its array
//! is on disk, each entry is written over the end of the list, together with a new end.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thiserror::Error;

use super::stats::Stats;
use crate::tensor::{NpyError, Tensor, View, read_npy, write_npy};

/// The format name in an index.
pub const FORMAT: &str = "halflap.values/1";
const END: &[u8] = b"\n]}\n";
/// Longer names are truncated to fit in file names.
const LONGEST_NAME: usize = 60;

/// An array that was saved.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The number of its task on the rank; inputs and outputs of one launch have the same.
    pub sequence: u64,
    /// The number of earlier runs of the module.
    pub run: usize,
    /// The computation.
    pub plan: String,
    /// The step of its plan.
    pub step: usize,
    /// The iteration of each enclosing loop, outermost first.
    pub iteration: Vec<u32>,
    /// The launched kernel; `model_inputs` for the module's inputs.
    pub kernel: String,
    /// `input`, `before` or `after`.
    pub when: String,
    /// The name of its memory.
    pub buffer: String,
    /// The name of its value: that of the instruction.
    pub value: String,
    /// The element type, by HLO's name.
    pub dtype: String,
    /// The dimensions.
    pub shape: Vec<usize>,
    /// The file, in the rank's folder.
    pub file: String,
    /// The line of the user's program.
    pub source: Option<String>,
    /// Its statistics.
    pub stats: Stats,
}

/// Everything that a rank saved, in plan order.
#[derive(Clone, Debug, PartialEq)]
pub struct RankValues {
    /// The rank.
    pub rank: usize,
    /// The module's name.
    pub module: String,
    /// Where the files are.
    pub folder: PathBuf,
    /// The arrays.
    pub entries: Vec<Entry>,
}

/// Why saved values cannot be read.
#[derive(Debug, Error)]
#[error("{path}: {problem}")]
pub struct IndexError {
    path: String,
    problem: String,
}

impl IndexError {
    fn new(path: &Path, problem: impl ToString) -> IndexError {
        IndexError { path: path.display().to_string(), problem: problem.to_string() }
    }
}

/// Reads what all ranks of a run saved in a folder, or what one rank saved in its own. Among the
/// artifacts of a run they are in `values`.
pub fn read_values(folder: &Path) -> Result<Vec<RankValues>, IndexError> {
    if folder.join("index.json").is_file() {
        return Ok(vec![read_index(folder.to_owned())?.0]);
    }
    let inner = folder.join("values");
    let folder = match rank_folder(folder, 0).is_dir() {
        false if inner.is_dir() => &inner,
        false => {
            return Err(IndexError::new(
                folder,
                "has no values in it: save them with --debug-values 1",
            ));
        }
        true => folder,
    };
    let (first, ranks) = read_rank(folder, 0)?;
    let mut all = vec![first];
    for rank in 1..ranks {
        all.push(read_rank(folder, rank)?.0);
    }
    Ok(all)
}

fn rank_folder(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("rank_{rank}"))
}

/// What one rank saved, and how many ranks there are.
fn read_rank(folder: &Path, rank: usize) -> Result<(RankValues, usize), IndexError> {
    read_index(rank_folder(folder, rank))
}

fn read_index(own: PathBuf) -> Result<(RankValues, usize), IndexError> {
    let path = own.join("index.json");
    let bytes = fs::read(&path)
        .map_err(|error| IndexError::new(&path, format!("cannot be read: {error}")))?;
    let index: Value =
        serde_json::from_slice(&bytes).map_err(|error| IndexError::new(&path, error))?;
    if index["format"] != FORMAT {
        return Err(IndexError::new(
            &path,
            format!("is not an index of saved values: its format is not {FORMAT}"),
        ));
    }
    let listed = index["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    let read = |(number, value): (usize, &Value)| {
        let missing =
            || IndexError::new(&path, format!("entry {number} is incomplete or malformed"));
        Entry::from_json(value).ok_or_else(missing)
    };
    let mut entries = listed.iter().enumerate().map(read).collect::<Result<Vec<Entry>, _>>()?;
    // Streams write concurrently.
    entries.sort_by_key(|entry| entry.sequence);
    let module = index["module"].as_str().unwrap_or("").to_owned();
    let ranks = index["ranks"].as_u64().unwrap_or(1) as usize;
    let rank = index["rank"].as_u64().unwrap_or(0) as usize;
    Ok((RankValues { rank, module, folder: own, entries }, ranks))
}

impl RankValues {
    /// The array of an entry.
    pub fn load(&self, entry: &Entry) -> Result<Tensor, IndexError> {
        let path = self.folder.join(&entry.file);
        let bytes = fs::read(&path)
            .map_err(|error| IndexError::new(&path, format!("cannot be read: {error}")))?;
        read_npy(&bytes).map_err(|error: NpyError| IndexError::new(&path, error))
    }
}

impl Entry {
    fn to_json(&self) -> Value {
        json!({
            "sequence": self.sequence,
            "run": self.run,
            "plan": self.plan,
            "step": self.step,
            "iteration": self.iteration,
            "kernel": self.kernel,
            "when": self.when,
            "buffer": self.buffer,
            "value": self.value,
            "dtype": self.dtype,
            "shape": self.shape,
            "file": self.file,
            "source": self.source,
            "stats": self.stats.to_json(),
        })
    }

    fn from_json(value: &Value) -> Option<Entry> {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let whole = |name: &str| value[name].as_u64();
        let list = |name: &str| {
            value[name].as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>()
        };
        Some(Entry {
            sequence: whole("sequence")?,
            run: whole("run")? as usize,
            plan: text("plan")?,
            step: whole("step")? as usize,
            iteration: list("iteration")?.into_iter().map(|number| number as u32).collect(),
            kernel: text("kernel")?,
            when: text("when")?,
            buffer: text("buffer")?,
            value: text("value").or_else(|| text("buffer"))?,
            dtype: text("dtype")?,
            shape: list("shape")?.into_iter().map(|len| len as usize).collect(),
            file: text("file")?,
            source: text("source"),
            stats: Stats::from_json(&value["stats"])?,
        })
    }
}

/// An index that grows.
pub(super) struct IndexWriter {
    folder: PathBuf,
    file: File,
    is_empty: bool,
    names: BTreeSet<String>,
}

impl IndexWriter {
    /// Starts a rank's index. Files of earlier runs are removed.
    pub(super) fn create(
        folder: &Path,
        module: &str,
        rank: usize,
        ranks: usize,
    ) -> io::Result<IndexWriter> {
        if let Ok((old, _)) = read_rank(folder, rank) {
            old.entries.iter().for_each(|entry| {
                // It is fine if another process already removed it.
                let _ = fs::remove_file(old.folder.join(&entry.file));
            });
        }
        let folder = rank_folder(folder, rank);
        fs::create_dir_all(&folder)?;
        let mut file = File::create(folder.join("index.json"))?;
        let head = format!(
            "{{\"format\": {}, \"module\": {}, \"rank\": {rank}, \"ranks\": {ranks}, \"entries\": [",
            Value::from(FORMAT),
            Value::from(module)
        );
        file.write_all(&[head.as_bytes(), END].concat())?;
        Ok(IndexWriter { folder, file, is_empty: true, names: BTreeSet::new() })
    }

    /// Saves an array, then adds it to the index.
    pub(super) fn add(&mut self, mut entry: Entry, view: &View<'_>) -> io::Result<()> {
        entry.file = self.name_for(&entry);
        fs::write(self.folder.join(&entry.file), write_npy(&view.to_tensor()))?;
        let start = if self.is_empty { "\n" } else { ",\n" };
        let text = format!("{start}{}", entry.to_json());
        self.file.seek(SeekFrom::End(-(END.len() as i64)))?;
        self.file.write_all(&[text.as_bytes(), END].concat())?;
        self.is_empty = false;
        Ok(())
    }

    /// A unique file name that every system accepts.
    fn name_for(&mut self, entry: &Entry) -> String {
        let Entry { sequence, when, kernel, buffer, .. } = entry;
        let around: String = entry.iteration.iter().map(|number| format!("@{number}")).collect();
        let stem = match when.as_str() {
            "input" => format!("{sequence:06}.input.{}", safe(buffer)),
            _ => format!("{sequence:06}.{when}.{}{around}.{}", safe(kernel), safe(buffer)),
        };
        let numbered = (2..).map(|number| format!("{stem}~{number}.npy"));
        let mut names = std::iter::once(format!("{stem}.npy")).chain(numbered);
        // There is always another candidate.
        let name = names.find(|name| !self.names.contains(name)).unwrap_or_default();
        self.names.insert(name.clone());
        name
    }
}

/// A name without characters that file names cannot have.
fn safe(name: &str) -> String {
    let kept = |letter: char| {
        letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-' | '{' | '}')
    };
    name.chars().take(LONGEST_NAME).map(|letter| if kept(letter) { letter } else { '_' }).collect()
}
