//! `halflap debug`: the guide that walks itself.

mod child;
mod module;
mod report;
mod torch;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::log::{self, Level, Part};
use report::Report;

pub fn run(args: &args::Debug) -> Result<(), Failed> {
    let is_loud = log::takes(Part::Debug, Level::Debug);
    let folder = folder(args)?;
    let report = match &args.module {
        Some(module) => module::debug(args, module, &folder, is_loud)?,
        None => torch::debug(args, &folder, is_loud)?,
    };
    finish(args, &report)
}

/// Where everything is kept: the folder that was named, or one for temporary files.
fn folder(args: &args::Debug) -> Result<PathBuf, Failed> {
    let folder = match &args.artifacts {
        Some(path) => PathBuf::from(path),
        None => std::env::temp_dir().join(format!("halflap-debug.{}", std::process::id())),
    };
    let failed =
        |error: std::io::Error| Failed::in_file(&folder.display().to_string(), format!("cannot be written: {error}"));
    if is_filled(&folder) && args.artifacts.is_some() {
        if !args.overwrite {
            let problem = "is there and is not empty: name another folder, or say --overwrite";
            return Err(Failed::in_file(&folder.display().to_string(), problem));
        }
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    Ok(folder)
}

fn is_filled(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

/// Says what was found: code 1, as for every check that fails.
fn finish(args: &args::Debug, report: &Report) -> Result<(), Failed> {
    let text = || format!("{:#}\n", report.json());
    let shown = files::put_asked(args.output.as_deref(), args.json, text)?;
    if !shown {
        files::print(&report.render())?;
    }
    match report.finding {
        None => Ok(()),
        Some(_) => Err(Failed::ToldElsewhere(1)),
    }
}

/// What we were called as.
static NAME: OnceLock<OsString> = OnceLock::new();

/// Remembers what we were called as: where we are a library, that is the command.
pub fn remember_name(name: Option<&OsString>) {
    if let Some(name) = name {
        // Whoever calls twice is the same command.
        let _ = NAME.set(name.clone());
    }
}

/// The command that we are.
fn own_executable() -> Result<PathBuf, Failed> {
    let process = std::env::current_exe().ok();
    let is_ours = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("halflap"));
    let named = || NAME.get().map(PathBuf::from).filter(is_ours);
    let found = process.filter(is_ours).or_else(named);
    found.ok_or_else(|| Failed::BadInput("debug must be run as the command 'halflap'".to_owned()))
}

/// A word of a shell.
fn quoted(word: &str) -> String {
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
        assert_eq!((quoted("a-b.py"), quoted("it's"), quoted("")), ("a-b.py".into(), "'it'\\''s'".into(), "''".into()));
    }
}
