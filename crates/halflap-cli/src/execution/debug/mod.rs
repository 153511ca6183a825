//! `halflap debug`: walks the debugging guide automatically.

mod child;
mod module;
mod report;
mod torch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use halflap_report::Style;

use crate::args;
use crate::artifacts::Artifacts;
use crate::exit::Failed;
use crate::files;
use crate::log::{self, LogLevel, LogTopic};
use crate::terminal;
use report::{DebugStage, Report};

pub fn run(args: &args::Debug) -> Result<(), Failed> {
    let is_loud = log::takes(LogTopic::Debug, LogLevel::Debug);
    let input = args.module.clone().unwrap_or_else(|| words(&args.command));
    let read = [&args.module, &args.run.inputs, &args.run.order].map(Option::as_deref);
    // Before a folder is emptied.
    let module = args.module.as_deref().map(module::read).transpose()?;
    let artifacts = match Artifacts::open(&args.artifacts, &input, &read)? {
        Some(artifacts) => artifacts,
        None => Artifacts::temporary("halflap-debug", &input)?,
    };
    let folder = artifacts.folder();
    let report = match module {
        Some(module) => module::debug(args, module, folder, is_loud),
        None => torch::debug(args, folder, is_loud),
    };
    if report.is_err() {
        artifacts.close(&report)?;
    }
    let report = report?;
    files::put(&artifacts.file("debug.json"), &format!("{:#}\n", report.json()))?;
    files::put(&artifacts.file("debug.txt"), &report.render(&Style::default()))?;
    for DebugStage { name, result, seconds } in &report.stages {
        artifacts.noted(name, result, *seconds);
    }
    artifacts.write_page(&report.verdict(), &report.render(&Style::default()))?;
    finish(args, &report)
}

fn words(command: &[OsString]) -> String {
    command.iter().map(|word| files::quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Reports what was found: exit code 1, as for every failed check.
fn finish(args: &args::Debug, report: &Report) -> Result<(), Failed> {
    let text = || format!("{:#}\n", report.json());
    let shown = files::put_asked(args.output.as_deref(), args.json, text)?;
    if !shown {
        files::print(&report.render(&terminal::style()))?;
    }
    match report.finding {
        None => Ok(()),
        Some(_) => Err(Failed::ToldElsewhere(1)),
    }
}

/// The name under which we were started.
static NAME: OnceLock<OsString> = OnceLock::new();

/// Records the name under which we were started; for a library, the command's.
pub fn remember_name(name: Option<&OsString>) {
    if let Some(name) = name {
        // A second call comes from the same command.
        let _ = NAME.set(name.clone());
    }
}

/// Our own command.
fn own_executable() -> Result<PathBuf, Failed> {
    let process = std::env::current_exe().ok();
    let is_ours = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("halflap"))
    };
    let named = || NAME.get().map(PathBuf::from).filter(is_ours);
    let found = process.filter(is_ours).or_else(named);
    found.ok_or_else(|| Failed::BadInput("debug must be run as the command 'halflap'".to_owned()))
}
