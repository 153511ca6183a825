//! `halflap debug`: the guide that walks itself.

mod child;
mod report;
mod torch;

use std::fs;
use std::path::{Path, PathBuf};

use crate::args;
use crate::exit::Failed;
use crate::files;
use report::Report;

pub fn run(args: &args::Debug, is_loud: bool) -> Result<(), Failed> {
    let folder = folder(args)?;
    let report = torch::debug(args, &folder, is_loud)?;
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
