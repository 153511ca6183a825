//! Stands in for the commands that need the runtime where halflap is built without it.

use std::ffi::OsString;

use crate::args;
use crate::exit::{Failed, RunsCompared};
use crate::runtime::ABSENT;
use crate::source::ModuleSource;

/// Only `debug` uses the name under which we were started.
pub fn remember_name(_: Option<&OsString>) {}

pub fn plan(_: &args::Plan) -> Result<(), Failed> {
    Err(absent("plan"))
}

pub fn run(_: &args::Run) -> Result<(), Failed> {
    Err(absent("run"))
}

pub fn diff(_: &args::Diff) -> Result<(), Failed> {
    Err(absent("diff"))
}

pub fn debug(_: &args::Debug) -> Result<(), Failed> {
    Err(absent("debug"))
}

pub fn compare(
    _: ModuleSource,
    _: ModuleSource,
    _: &args::Verify,
    _: bool,
) -> Result<RunsCompared, Failed> {
    Err(absent("verify --run"))
}

fn absent(command: &str) -> Failed {
    Failed::BadInput(format!("{command}: {ABSENT}"))
}
