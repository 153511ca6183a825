//! The checks of a run, from arguments.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use halflap::nearest;
use halflap_run::check::{
    Checks, Departure, EXIT_CODE, Filter, Forbidden, MemorySource, Origins, Side, Strictness,
    ValueLevel, ValueOptions,
};

use halflap_run::exec::{Failure, Label, LabelKind, Prepared};

use super::failed;
use crate::args::{self, Against, CheckLifetimes, NanAsserts, OnOff};
use crate::exit::Failed;
use crate::files;

/// The checks that were requested.
pub(super) fn checks(args: &args::Run) -> Checks {
    let debug = &args.debug;
    Checks {
        values: values(debug),
        lifetimes: match debug.check_lifetimes {
            CheckLifetimes::Off => Strictness::Off,
            CheckLifetimes::Log => Strictness::Log,
            CheckLifetimes::Assert => Strictness::Assert,
        },
        forbidden: match debug.nan_asserts {
            NanAsserts::Off => None,
            NanAsserts::Nan => Some(Forbidden::Nan),
            NanAsserts::Inf => Some(Forbidden::Infinity),
        },
        memory: memory(args),
        launch_blocking: debug.launch_blocking,
        recorder: debug.flight_recorder.as_ref().map(PathBuf::from),
        origins: debug.nan_origins.as_ref().map(|_| Origins::default()),
        faults: debug.inject.clone(),
    }
}

/// Writes the origins of the results' NaN and infinities, if requested.
pub(super) fn put_origins(args: &args::Run, checks: &Checks) -> Result<(), Failed> {
    match (&args.debug.nan_origins, &checks.origins) {
        (Some(path), Some(origins)) => {
            files::put(path, &format!("{:#}\n", origins.to_json())).map(drop)
        }
        _ => Ok(()),
    }
}

/// From here on, a kernel that crashes the process is named.
pub(super) fn catch_faults(args: &args::Run) -> Result<(), Failed> {
    halflap_run::check::catch_faults(
        args.debug.fault_report.as_deref().map(open_report).transpose()?,
    );
    Ok(())
}

/// Ranks that are processes write to the same file, each line in a single write.
fn open_report(path: &str) -> Result<File, Failed> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|error| Failed::in_file(path, format!("cannot be written: {error}")))
}

/// Writes the fault report, if requested, and returns the failure.
pub(super) fn reported(args: &args::Run, failure: Failure) -> Failed {
    note(args, &failure.to_json());
    failed(failure)
}

/// The same for a process that ended silently.
pub(super) fn departed(args: &args::Run, departure: &Departure) -> Failed {
    note(args, &departure.to_json());
    eprintln!("error: {departure}");
    Failed::ToldElsewhere(EXIT_CODE as u8)
}

/// Adds a line to the report, if there is one.
fn note(args: &args::Run, line: &serde_json::Value) {
    if let Some(path) = &args.debug.fault_report {
        let line = format!("{line}\n");
        let written = open_report(path).map(|mut file| file.write_all(line.as_bytes()));
        if !matches!(written, Ok(Ok(()))) {
            eprintln!("{path}: the fault report could not be written");
        }
    }
}

/// Requested kernels that do not exist.
pub(super) fn check_filter(args: &args::Run, program: &Prepared) -> Result<(), Failed> {
    let Some(list) = args.debug.filter_kernels.as_deref().filter(|_| args.debug.debug_values > 0)
    else {
        return Ok(());
    };
    let is_launched =
        |label: &&Label| !matches!(label.kind, LabelKind::Wait | LabelKind::Copy | LabelKind::Loop);
    let names: Vec<String> =
        program.labels.iter().filter(is_launched).map(|label| label.name.clone()).collect();
    let filter = Filter::new(list);
    match filter.unused(&names).next() {
        None => Ok(()),
        Some(unknown) => {
            let problem = format!("--filter-kernels: no kernel is called '{unknown}'");
            let near = nearest(unknown, names.iter().map(String::as_str));
            let hint = near.map_or("; --debug-values 3 prints their names".to_owned(), |near| {
                format!("; did you mean '{near}'?")
            });
            Err(Failed::BadInput(problem + &hint))
        }
    }
}

fn values(debug: &args::DebugArgs) -> Option<ValueOptions> {
    let level = match debug.debug_values {
        0 => return None,
        1 => ValueLevel::Save,
        2 => ValueLevel::Print,
        _ => ValueLevel::Names,
    };
    let filter = Filter::new(debug.filter_kernels.as_deref().unwrap_or(""));
    Some(ValueOptions { level, filter, folder: PathBuf::from(&debug.values_dir) })
}

/// Only custom calls can write outside their arrays, so only they need canary bytes.
fn memory(args: &args::Run) -> MemorySource {
    match (args.debug.no_memory_caching, args.debug.canaries) {
        (Against::End, _) => MemorySource::Guarded(Side::End),
        (Against::Start, _) => MemorySource::Guarded(Side::Start),
        (Against::Off, Some(OnOff::On)) => MemorySource::Marked,
        (Against::Off, None) if !args.custom_calls.is_empty() => MemorySource::Marked,
        (Against::Off, _) => MemorySource::Cached,
    }
}
