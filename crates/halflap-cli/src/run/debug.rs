//! What is looked at while a module runs: from arguments to checks.

use std::fs::OpenOptions;
use std::path::PathBuf;

use halflap_run::check::{Checks, Filter, Forbidden, Level, Memory, Side, Strictness, ValueOptions};

use crate::args::{self, Against, CheckLifetimes, NanAsserts, OnOff};
use crate::exit::Failed;

/// The checks that were asked for.
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
        faults: debug.inject.clone(),
    }
}

/// From here on a kernel that brings the process down is named.
pub(super) fn catch_faults(args: &args::Run) -> Result<(), Failed> {
    let open = |path: &String| {
        // Ranks that are processes write to the same file, each line in one go.
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.map_err(|error| Failed::in_file(path, format!("cannot be written: {error}")))
    };
    let report = args.debug.fault_report.as_ref().map(open).transpose()?;
    halflap_run::check::catch_faults(report);
    Ok(())
}

fn values(debug: &args::DebugArgs) -> Option<ValueOptions> {
    let level = match debug.debug_values {
        0 => return None,
        1 => Level::Save,
        2 => Level::Print,
        _ => Level::Names,
    };
    let filter = Filter::new(debug.filter_kernels.as_deref().unwrap_or(""));
    Some(ValueOptions { level, filter, folder: PathBuf::from(&debug.values_dir) })
}

/// Only functions of others can write beside their arrays, so marks are there for them.
fn memory(args: &args::Run) -> Memory {
    match (args.debug.no_memory_caching, args.debug.canaries) {
        (Against::End, _) => Memory::Guarded(Side::End),
        (Against::Start, _) => Memory::Guarded(Side::Start),
        (Against::Off, Some(OnOff::On)) => Memory::Marked,
        (Against::Off, None) if !args.custom_calls.is_empty() => Memory::Marked,
        (Against::Off, _) => Memory::Cached,
    }
}
