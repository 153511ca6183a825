//! The `halflap` command: arguments, files, clocks and terminals around the library.
//!
//! It is a library, so that other programs can act as the command ([`main_with`]), or get answers
//! to its requests in memory ([`request`], [`ask`]).
//!
//! What uses the runtime (`halflap-run`) is in `execution` and `runtime`. Without the `runtime`
//! feature, stubs of the same names replace both, and the commands that need it say so.

// Code that only serves the runtime is unused without it; with it, unused code is still found.
#![cfg_attr(not(feature = "runtime"), allow(dead_code))]

mod advice;
mod align;
mod analyze;
mod answer;
#[allow(missing_docs)]
mod args;
mod artifacts;
pub mod ask;
mod costs;
mod draw;
mod equivalence;
#[cfg(feature = "runtime")]
mod execution;
#[cfg(not(feature = "runtime"))]
#[path = "execution/absent.rs"]
mod execution;
mod exit;
mod explain;
mod files;
mod kind;
mod log;
mod look;
mod machine;
mod man;
mod pictures;
pub mod place;
mod progress;
mod put;
mod recorded;
pub mod request;
mod rewrite;
mod rewrite_module;
#[cfg(feature = "runtime")]
mod runtime;
#[cfg(not(feature = "runtime"))]
#[path = "runtime/absent.rs"]
mod runtime;
mod schedule;
mod search;
mod shell;
mod show;
mod source;
mod terminal;
mod timeline;
mod verify;
mod what_if;

use std::ffi::OsString;
use std::panic::{self, AssertUnwindSafe};

use clap::{CommandFactory, FromArgMatches};

use answer::Answer;
use args::{Args, Command};
pub use costs::described_device;
pub use exit::Failed;
use log::{LogLevel, LogTopic};
use request::Request;

/// Acts as the command: reads arguments, the first of which is its own name, runs it and returns
/// the exit code. Exits if arguments are wrong.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    execution::remember_name(arguments.first());
    let args = parsed(arguments);
    // A panic message helps us, not the user: it is caught and reported once, below.
    panic::set_hook(Box::new(|_| {}));
    let ended = guarded(|| dispatch(&args));
    // Artifacts of a failed start are useless.
    let is_of_use = !ended.as_ref().is_err_and(Failed::is_bad_input);
    let code = ended.map_or_else(Failed::report, |()| 0);
    if is_of_use {
        files::name_written();
    }
    code
}

/// Reads arguments; exits if they are wrong, or ask for help.
fn parsed(arguments: Vec<OsString>) -> Args {
    let program = Args::command().next_line_help(terminal::is_narrow());
    let mut matches = program.get_matches_from(arguments);
    let args = Args::from_arg_matches_mut(&mut matches);
    args.unwrap_or_else(|error| error.format(&mut Args::command()).exit())
}

/// Runs a command; a panic is reported like any other bug.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failed>) -> Result<T, Failed> {
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    result.unwrap_or_else(|payload| Err(Failed::from_panic(payload.as_ref())))
}

/// The answer to a request of a program.
fn found(request: &Request) -> Result<Box<dyn Answer>, Failed> {
    log::start(false)?;
    Ok(match request {
        Request::Schedule(request) => schedule::find(request, false)?,
        Request::Simulate(request) => Box::new(look::simulated(request)?),
        Request::Explain(request) => explain::find(request)?,
        Request::WhatIf(request) => Box::new(what_if::find(request)?),
        Request::Timeline(request) => Box::new(timeline::find(request)?),
        Request::Analyze(request) => {
            let wanted = analyze::Reading { draws: true, verbose: false };
            Box::new(analyze::find(request, &wanted)?)
        }
    })
}

/// What a program asked to be proved.
fn proved(request: &request::Verify) -> Result<String, Failed> {
    log::start(false)?;
    verify::find(request, false)
}

/// Runs a module as a program asked for it.
fn ran(request: &request::Run) -> Result<(), Failed> {
    log::start(false)?;
    execution::run(request)
}

fn dispatch(args: &Args) -> Result<(), Failed> {
    log::start(args.verbose)?;
    let verbose = log::takes(LogTopic::Search, LogLevel::Info);
    match &args.command {
        Command::Schedule(command) if command.artifacts.artifacts.is_some() => {
            schedule_into(command, verbose)
        }
        Command::Schedule(command) => schedule::run(command, verbose),
        Command::Simulate(command) => {
            look::run(&command.of, || Ok(Box::new(look::simulated(command)?)))
        }
        Command::Explain(command) => look::run(&command.of, || explain::find(command)),
        Command::WhatIf(command) => what_if::run(command),
        Command::Verify(command) => verify::run(command, verbose),
        Command::Align(command) => align::run(command),
        Command::Analyze(command) => analyze::run(command, verbose),
        Command::Timeline(command) => timeline::run(command),
        Command::Plan(command) => execution::plan(command),
        Command::Run(command) => execution::run(command),
        Command::Diff(command) => execution::diff(command),
        Command::Debug(command) => execution::debug(command),
        Command::Completions { shell } => files::print(&shell::script(*shell, &Args::command())),
        Command::Man => files::print(&man::page(&Args::command())),
    }
}

/// The same, with everything that it can make in one folder.
fn schedule_into(command: &args::Schedule, verbose: bool) -> Result<(), Failed> {
    let [device, profile] = command.machine.costs.files();
    let read = [command.graph.path(), device, profile];
    let name = command.graph.name();
    let Some(artifacts) = artifacts::Artifacts::open(&command.artifacts, name, &read)? else {
        return schedule::run(command, verbose);
    };
    let mut command = command.clone();
    command.artifacts = args::ArtifactArgs::default();
    let file = |name: &str| Some(artifacts.file(name));
    command.output = command.output.or_else(|| file("schedule.json"));
    command.pictures.report =
        command.pictures.report.or_else(|| Some(artifacts.file("report.html").into()));
    command.pictures.trace = command.pictures.trace.or_else(|| file("trace.json"));
    let done = artifacts.stage("schedule", || schedule::run(&command, verbose));
    artifacts.close(&done)?;
    done
}
