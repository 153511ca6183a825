//! The `halflap` command: arguments, files, clocks and terminals around the library.

mod align;
mod analyze;
mod args;
mod costs;
mod debug;
mod diff;
mod exit;
mod files;
mod machine;
mod optimize;
mod pictures;
mod plan;
mod program;
mod progress;
mod run;
mod schedule;
mod simulate;
mod terminal;
mod verify;
mod what_if;

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use exit::Failed;

fn main() -> ExitCode {
    let args = Args::parse();
    // What a panic would print helps us, not the user: it is told apart and said once, below.
    panic::set_hook(Box::new(|_| {}));
    let result = panic::catch_unwind(AssertUnwindSafe(|| run(&args)));
    let failed = match result {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(failed)) => failed,
        Err(payload) => Failed::from_panic(payload.as_ref()),
    };
    failed.report()
}

fn run(args: &Args) -> Result<(), Failed> {
    let is_module = |path: &str| files::is_module(path);
    match &args.command {
        Command::Schedule(command) if is_module(&command.graph)? => program::schedule(command, args.verbose),
        Command::Schedule(command) => schedule::run(command, args.verbose),
        Command::Simulate(command) if is_module(&command.of.graph)? => program::simulate(command),
        Command::Simulate(command) => simulate::simulate(command),
        Command::Explain(command) if is_module(&command.of.graph)? => program::explain(command),
        Command::Explain(command) => simulate::explain_order(command),
        Command::WhatIf(command) if is_module(&command.graph)? => program::what_if(command),
        Command::WhatIf(command) => what_if::run(command),
        Command::Verify(command) if is_module(&command.graph)? => program::verify(command),
        Command::Verify(command) => verify::run(command, args.verbose),
        Command::Align(command) => align::run(command, args.verbose),
        Command::Analyze(command) => analyze::run(command, args.verbose),
        Command::Plan(command) => plan::run(command),
        Command::Run(command) => run::run(command),
        Command::Diff(command) => diff::run(command),
        Command::Debug(command) => debug::run(command, args.verbose),
    }
}
