//! Commands that run HLO modules: `plan`, `run`.

use clap::ValueEnum;
use halflap::memory::Budget;
use halflap::units::Nanos;

use super::debug::DebugArgs;
use super::shared::{ArtifactArgs, MachineArgs, OUTPUT, PictureArgs, SearchArgs};
use super::values::{limit, order_for, panic_at};
use crate::place::{Input, Output};
use crate::runtime::EmulatedLink;

/// How long `--tune` tries orders if no time is given.
pub const DEFAULT_TUNE: Nanos = Nanos(300e9);

/// Which orders of a module's computations are run.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct OrderArgs {
    /// The module's own order [default: the best that is found].
    #[arg(long)]
    pub input_order: bool,
    /// Do not fuse instructions: one kernel for each.
    #[arg(long)]
    pub no_fuse: bool,
    #[command(flatten)]
    pub search: SearchArgs,
}

#[derive(Debug, clap::Args)]
pub struct Plan {
    /// An HLO module, plain or gzipped; - reads standard input.
    pub module: Input,
    /// An order (docs/formats.md) [default: the best that is found].
    #[arg(conflicts_with = "input_order")]
    pub order: Option<Input>,
    #[command(flatten)]
    pub orders: OrderArgs,
    /// Write it to this file; - is standard output.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<String>,
    #[command(flatten)]
    pub machine: MachineArgs,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Run {
    /// An HLO module, plain or gzipped; - reads standard input.
    pub module: Input,
    /// The number of ranks: as many as the module is partitioned for (replicas times partitions);
    /// if it does not say, any number that its collectives allow [default: inferred from the
    /// module].
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// The inputs of every rank: an .npz archive, or a folder of .npy files, with arrays named
    /// in_NNN_rK for parameter NNN of rank K [default: generated from --seed, the same on all
    /// ranks: floats from -0.5 to 0.5, integers from 0 to 7].
    #[arg(long, value_name = "IN.npz|FOLDER")]
    pub inputs: Option<Input>,
    /// Run this kernel or collective alone; --inputs is then a folder of saved values
    /// (--debug-values 1). Uses its last launch, or with KERNEL@2 the one in iteration 2 of the
    /// enclosing loop.
    #[arg(long, value_name = "KERNEL", requires = "inputs")]
    #[arg(conflicts_with_all = ["order", "compare", "tune"])]
    pub only: Option<String>,
    /// The outputs of every rank: an .npz archive of arrays named out_NNN_rK.
    #[arg(short, long, value_name = "OUT.npz", help_heading = OUTPUT)]
    pub output: Option<Output>,
    /// An order (docs/formats.md) [default: the best that is found].
    #[arg(long, value_name = "ORDER.json", conflicts_with = "input_order")]
    pub order: Option<Input>,
    /// Another order for one rank, to check that the mismatch is detected.
    #[arg(long, value_name = "RANK=ORDER.json", value_parser = order_for, hide = true)]
    pub order_for: Vec<(usize, Input)>,
    /// How ranks run.
    #[arg(long, value_enum, default_value = "threads")]
    pub backend: Backend,
    /// How many times to run it; the first run is a warm-up and does not count, unless it is the
    /// only one.
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub steps: u32,
    /// How long one collective or kernel may take, such as 60s; then the run ends, and reports what
    /// every rank was doing. A provably endless loop also ends it after that time.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = limit)]
    pub timeout: Nanos,
    /// Time limit for a loop that is not known to be endless [default: no limit].
    #[arg(long, value_name = "TIME", value_parser = limit, hide = true)]
    pub loop_timeout: Option<Nanos>,
    /// Make collectives take as long as on a network: a bandwidth and a latency, such as
    /// 10GB/s,20us.
    #[arg(long, value_name = "BANDWIDTH,LATENCY")]
    pub emulate_link: Option<EmulatedLink>,
    /// The seed of generated inputs and random numbers.
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// A shared library with targets of custom calls; may be given more than once.
    #[arg(long, value_name = "LIB.so")]
    pub custom_calls: Vec<String>,
    /// How many threads a kernel of a rank may use [default: the cores divided among the ranks].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads_per_rank: Option<u16>,
    /// Run the module's own order, too, and print measured and simulated step times side by side.
    #[arg(long)]
    pub compare: bool,
    /// Try the module's own order and ours on this machine, alternately, for at most this time, and
    /// run the fastest [default: 300s].
    #[arg(long, value_name = "TIME", value_parser = limit)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "300s")]
    #[arg(conflicts_with_all = ["order", "order_for", "input_order", "compare"])]
    pub tune: Option<Nanos>,
    /// The memory limits that --tune tries, each as for --memory-budget [default: 1x,1.5x].
    #[arg(
        long,
        value_name = "LIMIT,...",
        value_delimiter = ',',
        requires = "tune",
        conflicts_with = "memory_budget"
    )]
    pub memory_budgets: Vec<Budget>,
    /// Write the order that was run to this file, for --order.
    #[arg(long, value_name = "ORDER.json", help_heading = OUTPUT)]
    pub order_out: Option<String>,
    /// Write the median time of every kernel and collective to this file, for schedule --profile.
    #[arg(long, value_name = "TIMES.json", help_heading = OUTPUT)]
    pub profile_out: Option<String>,
    /// Print the summary as JSON (docs/run.md).
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
    /// Where the summary goes.
    #[arg(skip = Output::stdout())]
    pub summary: Output,
    /// The rank that a single rank represents, and the number of partitions.
    #[arg(skip)]
    pub stands_for: Option<(usize, u32)>,
    /// Make a rank panic at a step of a plan, for tests.
    #[arg(long, value_name = "RANK:STEP", value_parser = panic_at, hide = true)]
    pub panic: Option<(usize, usize)>,
    #[command(flatten)]
    pub orders: OrderArgs,
    #[command(flatten)]
    pub debug: DebugArgs,
    #[command(flatten)]
    pub artifacts: ArtifactArgs,
    #[command(flatten)]
    pub pictures: PictureArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// In this process.
    Threads,
    /// Processes that mpirun started, with Open MPI.
    Mpi,
}
