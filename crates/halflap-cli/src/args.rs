//! What can be typed.

use clap::{Parser, Subcommand, ValueEnum};
use halflap::Unknown;
use halflap::memory::Budget;
use halflap::pass::Pass;

/// Hides communication behind compute in distributed tensor programs, without adding memory.
#[derive(Debug, Parser)]
#[command(name = "halflap", version, arg_required_else_help = true)]
pub struct Args {
    /// Say on standard error what is being done.
    #[arg(short, long, global = true)]
    pub verbose: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find an order that hides more communication, prove it and say what stopped each collective.
    Schedule(Schedule),
    /// Prove an order: every node once, every edge kept, the peak within the limit.
    Verify(Verify),
    /// Give the same program on several ranks the same run times: the lower median of all.
    Align(Align),
}

#[derive(Debug, clap::Args)]
pub struct Schedule {
    /// A halflap.graph/1 file, plain or gzipped; - reads standard input.
    pub graph: String,
    /// The passes to run, one after the other: sink_waits, raise_comms, reorder_compute_for_overlap,
    /// reorder_communication_preserving_peak_memory, sink_waits_iterative, simple_overlap. Without
    /// it: the two iterative ones, guided by run times, with no memory added.
    #[arg(long, value_name = "PASS,...", value_delimiter = ',', value_parser = pass)]
    pub passes: Vec<Pass>,
    /// Set one of torch's settings (docs/settings.md lists them). May be given more than once.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    /// Behave exactly as that torch does, known defects included.
    #[arg(long, value_enum)]
    pub compat: Option<Compat>,
    /// After every swap, compare the memory ledger with a full recomputation.
    #[arg(long)]
    pub check_memory: bool,
    /// First chain the collectives, of each process group or all of them, with order-only edges, and
    /// keep those.
    #[arg(long, value_enum, value_name = "WHICH")]
    pub order_collectives: Option<ChainWhich>,
    /// List the new order step by step.
    #[arg(long)]
    pub show: bool,
    /// Write the schedule (halflap.schedule/1) to this file; gzipped if its name ends in .gz; - is
    /// standard output, in place of the summary.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// Print the schedule (halflap.schedule/1) instead of the summary.
    #[arg(long, conflicts_with = "show")]
    pub json: bool,
}

fn pass(name: &str) -> Result<Pass, Unknown> {
    name.trim().parse()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compat {
    /// torch 2.10; simple_overlap as in torch 2.15.
    #[value(name = "torch-2.10")]
    Torch210,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ChainWhich {
    /// Those of the same process group.
    Group,
    /// All of them, as torch does.
    All,
}

impl ChainWhich {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            ChainWhich::Group => "group",
            ChainWhich::All => "all",
        }
    }
}

#[derive(Debug, clap::Args)]
pub struct Verify {
    /// A halflap.graph/1 file, plain or gzipped; - reads standard input.
    pub graph: String,
    /// The order: a JSON list of node names, or an object with such a list as 'order'.
    pub order: String,
    /// The most memory that the order may need: a multiple of the input order's peak such as 1.2x,
    /// or a size such as 40GiB.
    #[arg(long, value_name = "LIMIT")]
    pub memory_budget: Option<Budget>,
    /// Whether order-only edges must be kept.
    #[arg(long, value_enum, default_value = "free")]
    pub collective_order: CollectiveOrder,
    /// First chain the collectives, as schedule does.
    #[arg(long, value_enum, value_name = "WHICH")]
    pub order_collectives: Option<ChainWhich>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CollectiveOrder {
    /// They may be broken.
    Free,
    /// They must be kept.
    Kept,
}

/// Where run times come from. For every command that has use for them: flatten it.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Run times")]
pub struct CostArgs {
    /// Model run times on this device: v100, a100, h100, h200, b200, mi300x, tpu_v5e, or a JSON file
    /// with figures of your own (docs/costs.md).
    #[arg(long, value_name = "NAME|FILE")]
    pub device: Option<String>,
    /// Model all collectives over this link, whichever ranks take part: nvlink or network (the
    /// device's own), or one with a name such as nvlink4 or ib400.
    #[arg(long, value_name = "NAME")]
    pub link: Option<String>,
    /// Measured run times, which come before all others: a JSON object of node names and
    /// nanoseconds.
    #[arg(long, value_name = "TIMES.json")]
    pub profile: Option<String>,
}

#[derive(Debug, clap::Args)]
pub struct Align {
    /// One halflap.graph/1 file for each rank, all of the same program.
    #[arg(required = true, num_args = 1..)]
    pub graphs: Vec<String>,
    /// The folder to write the aligned graphs to, under the names that they have.
    #[arg(short, long, value_name = "DIR")]
    pub output: String,
}
