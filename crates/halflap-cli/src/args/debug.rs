//! Commands that look for faults: `debug`, `diff`; and the checks of `run`.

use std::ffi::OsString;

use clap::ValueEnum;
use halflap::units::Nanos;

use super::shared::{ArtifactArgs, OUTPUT};
use super::values::{limit, switch};
use crate::runtime::Fault;

/// Checks while a module runs (docs/debug.md).
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(next_help_heading = "Debugging")]
pub struct DebugArgs {
    /// Check that buffers are allocated and freed at the planned steps: log differences, or end the
    /// run.
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value = "off",
        env = "HALFLAP_CHECK_LIFETIMES"
    )]
    pub check_lifetimes: CheckLifetimes,
    /// Arrays before and after every launch: 1 saves them, 2 prints them, 3 prints the names of
    /// launched kernels.
    #[arg(long, value_name = "LEVEL", default_value = "0", env = "HALFLAP_DEBUG_VALUES",
        value_parser = clap::value_parser!(u8).range(0..=3))]
    pub debug_values: u8,
    /// Only kernels with these names, case-insensitive, with * as a wildcard.
    #[arg(long, value_name = "NAME,...", env = "HALFLAP_FILTER_KERNELS")]
    pub filter_kernels: Option<String>,
    /// The folder that --debug-values 1 saves to.
    #[arg(long, value_name = "DIR", default_value = "values", env = "HALFLAP_VALUES_DIR")]
    pub values_dir: String,
    /// Compare all inputs with what the module expects, before anything runs, and list all
    /// problems.
    #[arg(long, env = "HALFLAP_CHECK_INPUTS", value_parser = switch)]
    pub check_inputs: bool,
    /// Stop at the first kernel that reads or produces NaN; with =inf, also at infinities.
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, require_equals = true,
        default_missing_value = "nan", default_value = "off", env = "HALFLAP_NAN_ASSERTS")]
    pub nan_asserts: NanAsserts,
    /// Track NaN and infinities from the kernels that produce them to the results, and write their
    /// origins to a file; also out-of-range indices that are clamped.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
        default_missing_value = "nan-origins.json", env = "HALFLAP_NAN_ORIGINS")]
    pub nan_origins: Option<String>,
    /// Give every buffer its own pages between inaccessible guard pages, aligned to their end or
    /// start, and make them inaccessible when it is freed.
    #[arg(long, value_enum, value_name = "AGAINST", num_args = 0..=1, require_equals = true,
        default_missing_value = "end", default_value = "off", env = "HALFLAP_NO_MEMORY_CACHING")]
    pub no_memory_caching: Against,
    /// Run one kernel or collective at a time.
    #[arg(long, env = "HALFLAP_LAUNCH_BLOCKING", value_parser = switch)]
    pub launch_blocking: bool,
    /// Put canary bytes around buffers and check them after each step [default: on with
    /// --custom-calls].
    #[arg(long, value_enum, value_name = "HOW", env = "HALFLAP_CANARIES")]
    pub canaries: Option<OnOff>,
    /// Record the last collectives of every rank, report where ranks diverged, and write them to a
    /// file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
        default_missing_value = "flight-recorder.json", env = "HALFLAP_FLIGHT_RECORDER")]
    pub flight_recorder: Option<String>,
    /// Write what went wrong to this file, as lines of JSON.
    #[arg(long, value_name = "FILE", env = "HALFLAP_FAULT_REPORT")]
    pub fault_report: Option<String>,
    /// Inject a fault, to check that it is found (docs/debug.md).
    #[arg(long, value_name = "FAULT", hide = true)]
    pub inject: Vec<Fault>,
}

impl Default for DebugArgs {
    /// No checks.
    fn default() -> DebugArgs {
        DebugArgs {
            check_lifetimes: CheckLifetimes::Off,
            debug_values: 0,
            filter_kernels: None,
            values_dir: "values".to_owned(),
            check_inputs: false,
            nan_asserts: NanAsserts::Off,
            nan_origins: None,
            no_memory_caching: Against::Off,
            launch_blocking: false,
            canaries: None,
            flight_recorder: None,
            fault_report: None,
            inject: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckLifetimes {
    /// Do not check.
    Off,
    /// Log differences.
    Log,
    /// End the run.
    Assert,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NanAsserts {
    /// Nothing.
    #[value(alias = "0")]
    Off,
    /// NaN.
    #[value(alias = "1")]
    Nan,
    /// Infinities, too.
    Inf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// Buffers are reused.
    #[value(alias = "0")]
    Off,
    /// One element too far is found.
    #[value(alias = "1")]
    End,
    /// One element before the start is found.
    Start,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    /// Yes.
    On,
    /// No.
    Off,
}

/// How to run the module being debugged; as for `halflap run`.
#[derive(Debug, clap::Args)]
pub struct DebugRun {
    /// The number of ranks; it must match the module's, if it has one [default: the module's].
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// The inputs of every rank, as for run [default: generated from --seed].
    #[arg(long, value_name = "IN.npz|FOLDER")]
    pub inputs: Option<String>,
    /// An order (docs/formats.md) [default: the best that is found].
    #[arg(long, value_name = "ORDER.json", conflicts_with = "input_order")]
    pub order: Option<String>,
    /// Another order for one rank.
    #[arg(long, value_name = "RANK=ORDER.json", hide = true)]
    pub order_for: Vec<String>,
    /// The module's own order.
    #[arg(long)]
    pub input_order: bool,
    /// Do not fuse kernels in the plain run either; all other stages never do.
    #[arg(long)]
    pub no_fuse: bool,
    /// How many times to run it.
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub steps: u32,
    /// The seed of generated inputs and random numbers.
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// A shared library with targets of custom calls; may be given more than once.
    #[arg(long, value_name = "LIB.so", visible_alias = "library")]
    pub custom_calls: Vec<String>,
    /// Inject a fault on purpose, to check that it is found.
    #[arg(long, value_name = "FAULT", hide = true)]
    pub inject: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub struct Debug {
    /// An HLO module, plain or gzipped.
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    pub module: Option<String>,
    /// A torch program to run repeatedly, such as -- python train.py; torchrun works, too.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    #[command(flatten)]
    pub run: DebugRun,
    /// How long a kernel or collective of a module may take [default: 20s], or each run of a
    /// command [default: 600s].
    #[arg(long, value_name = "TIME", value_parser = limit)]
    pub timeout: Option<Nanos>,
    #[command(flatten)]
    pub artifacts: ArtifactArgs,
    /// Write what was found to this file as JSON (halflap.debug/1); - is standard output.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<String>,
    /// Print it as JSON instead of the text.
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct Diff {
    /// A folder of saved values, of one rank's values, or of the artifacts of a run that saved
    /// them.
    #[arg(value_name = "RUN_A")]
    pub a: String,
    /// Another such folder: of another order, precision, module or rank.
    #[arg(value_name = "RUN_B")]
    pub b: String,
    /// The relative tolerance, as a fraction of RUN_B's values [default: by type: f64 1e-7, f32
    /// 1.3e-6, f16 1e-3, bf16 1.6e-2, others 0; the coarser of two types].
    #[arg(long, value_name = "NUMBER")]
    pub rtol: Option<f64>,
    /// The absolute tolerance [default: f64 1e-7, other floating types 1e-5, others 0].
    #[arg(long, value_name = "NUMBER")]
    pub atol: Option<f64>,
    /// Write all differences to this file as JSON (halflap.diff/1); - is standard output.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<String>,
    /// Print it as JSON instead of the text.
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
}
