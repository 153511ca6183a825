//! What is looked at while a module runs: from arguments to checks.

use std::path::PathBuf;

use halflap_run::check::{Checks, Filter, Forbidden, Level, Memory, Side, Strictness, ValueOptions};

use crate::args::{self, Against, CheckLifetimes, NanAsserts, OnOff};

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
        recorder: debug.flight_recorder.is_some(),
        faults: debug.inject.clone(),
    }
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
