//! Commands that examine orders: `simulate`, `explain`, `what-if`, `verify`.

use halflap::memory::Budget;
use halflap::units::Nanos;

use super::schedule::Rewrites;
use super::shared::{
    ChainWhich, CollectiveArgs, CollectiveOrder, EffortArg, MachineArgs, ORDERS, OUTPUT,
    PictureArgs, SEARCH, WhichArgs,
};
use super::values::{factor, limit};
use crate::place::{Input, Output};

/// The speeds of communication that what-if tries by default.
pub(crate) const BANDWIDTHS: [f64; 3] = [0.5, 1.0, 2.0];

/// A graph and optionally an order of it.
#[derive(Debug, Clone, clap::Args)]
pub struct Ordered {
    /// A halflap.graph/1 file or an HLO module, plain or gzipped; - reads standard input.
    pub graph: Input,
    /// An order, or a schedule (halflap.schedule/1), whose options are used, too [default: the
    /// input order].
    pub order: Option<Input>,
    #[command(flatten)]
    pub collectives: CollectiveArgs,
    /// Write everything to this file as JSON; - is standard output.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<String>,
    /// Print it as JSON instead of the text.
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
    #[command(flatten)]
    pub pictures: PictureArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub which: WhichArgs,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Simulate {
    #[command(flatten)]
    pub of: Ordered,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Explain {
    #[command(flatten)]
    pub of: Ordered,
    /// Explain the program as schedule --rewrite changes it (docs/rewrite.md): with rewrites that
    /// keep every bit, all, none, or those in a list
    /// [default: none; without a value: exact].
    #[arg(long, value_name = "exact|all|none|LIST", help_heading = ORDERS)]
    #[arg(num_args = 0..=1, default_missing_value = "exact")]
    pub rewrite: Option<Rewrites>,
    /// Only this collective.
    #[arg(long, value_name = "NAME", help_heading = OUTPUT)]
    pub node: Option<String>,
    /// Leave out "What you can do", which takes a few quick searches.
    #[arg(long, help_heading = OUTPUT)]
    pub no_advice: bool,
    /// The memory limit that the order was made for: a multiple of the input order's peak, or a
    /// size [default: as the schedule records it, else 1x].
    #[arg(long, value_name = "LIMIT", allow_hyphen_values = true, help_heading = ORDERS)]
    pub memory_budget: Option<Budget>,
}

#[derive(Debug, Clone, clap::Args)]
pub struct WhatIf {
    /// A halflap.graph/1 file or an HLO module, plain or gzipped; - reads standard input.
    pub graph: Input,
    /// A schedule (halflap.schedule/1) of it, whose collective order and effort are used; no point
    /// is worse than its order, if that fits.
    pub schedule: Option<Input>,
    /// Memory limits to try [default: from 0.8x of the input order's peak upwards, as long as more
    /// memory helps].
    #[arg(long, value_name = "LIMIT,...", value_delimiter = ',')]
    #[arg(allow_hyphen_values = true)]
    pub memory: Vec<Budget>,
    /// Communication speeds to try, as multiples of the graph's.
    #[arg(long, value_name = "FACTOR,...", value_delimiter = ',')]
    #[arg(default_value = "0.5x,1x,2x", value_parser = factor)]
    pub bandwidth: Vec<f64>,
    #[command(flatten)]
    pub collectives: CollectiveArgs,
    /// At each point, also rewrite the program where that shortens its step (docs/rewrite.md): with
    /// rewrites that keep every bit, all, none, or those in a list
    /// [default: none; without a value: exact].
    #[arg(long, value_name = "exact|all|none|LIST", help_heading = SEARCH)]
    #[arg(num_args = 0..=1, default_missing_value = "exact")]
    pub rewrite: Option<Rewrites>,
    /// How much work to spend on each point [default: as the schedule records it, else quick].
    #[arg(long, value_enum, help_heading = SEARCH)]
    pub effort: Option<EffortArg>,
    /// How many threads may work [default: all cores]; does not change the result.
    #[arg(long, value_name = "N", help_heading = SEARCH)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Write the points to this file as JSON; - is standard output.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<String>,
    /// Print them as JSON instead of the table.
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,
    /// Write a page for a browser: the points as curves, and the input order.
    #[arg(long, value_name = "FILE.html", help_heading = OUTPUT)]
    pub report: Option<Output>,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub which: WhichArgs,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Verify {
    /// A halflap.graph/1 file or an HLO module, plain or gzipped; - reads standard input.
    pub graph: Input,
    /// The order: a JSON list of node names, or an object with such a list as 'order'. Or a changed
    /// program (halflap.graph/1 or an HLO module, as --emit writes them), which is proved to
    /// compute the same.
    pub order: Input,
    /// Also run two HLO modules on all ranks, as threads, with random inputs, and compare the
    /// results: bit for bit, or within a tolerance if the order of summation differs
    /// (docs/rewrite.md).
    #[arg(long)]
    pub run: bool,
    /// The number of sets of random inputs.
    #[arg(long, value_name = "N", default_value = "3", requires = "run",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub seeds: u16,
    /// How long all runs together may take. If they take longer, the answer says how far they got.
    #[arg(long, value_name = "TIME", default_value = "600s", requires = "run",
        value_parser = limit)]
    pub run_limit: Nanos,
    /// The most memory that the order may need: a multiple of the input order's peak such as 1.2x,
    /// or a size such as 40GiB.
    #[arg(long, value_name = "LIMIT", allow_hyphen_values = true)]
    pub memory_budget: Option<Budget>,
    /// Whether order-only edges must be kept.
    #[arg(long, value_enum, default_value = "free")]
    pub collective_order: CollectiveOrder,
    /// First chain the collectives, as schedule does.
    #[arg(long, value_enum, value_name = "WHICH")]
    pub order_collectives: Option<ChainWhich>,
}
