//! Groups of options that several commands have.
//!
//! Each begins with its heading in `--help`. A heading applies to everything after it, even outside
//! its group: a command's own options come before the groups, or name their heading.

use clap::ValueEnum;
use halflap::memory::Budget;
use halflap::units::Nanos;

use super::values::{duration, slowdown};
use crate::place::{Input, Output};

pub(super) const OUTPUT: &str = "Output";
pub(super) const ORDERS: &str = "Orders";
pub(super) const SEARCH: &str = "Search";
const MACHINE: &str = "Machine";
const RUN_TIMES: &str = "Run times";

/// Where artifacts are kept.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = OUTPUT)]
pub struct ArtifactArgs {
    /// Keep all artifacts in this folder, with a page (index.html) that lists them: orders,
    /// statistics, pictures, plan, values, flight recorder [debug: by default a temporary folder].
    #[arg(long, value_name = "DIR", env = "HALFLAP_ARTIFACTS")]
    pub artifacts: Option<String>,
    /// Empty that folder first, if it is not empty.
    #[arg(long)]
    pub overwrite: bool,
}

/// Pictures of orders.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = OUTPUT)]
pub struct PictureArgs {
    /// Write a self-contained page for a browser: timeline, memory, table.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<Output>,
    /// Write a trace for ui.perfetto.dev; if the name ends in .json or .json.gz, as JSON, which
    /// other viewers also read.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<String>,
}

/// Which of an HLO module's computations to show.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = OUTPUT)]
pub struct WhichArgs {
    /// Show only this computation of an HLO module [default: those with the most exposed
    /// communication; what-if: the first of these].
    #[arg(long, value_name = "NAME")]
    pub computation: Option<String>,
}

/// The optimizer's options.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = SEARCH)]
pub struct SearchArgs {
    /// The most memory that an order may need: a multiple of the input order's peak such as 1.2x,
    /// or a size such as 40GiB [default: 1x].
    #[arg(long, value_name = "LIMIT", allow_hyphen_values = true)]
    pub memory_budget: Option<Budget>,
    /// Whether order-only edges, and so the order of collectives, are kept [default: free].
    #[arg(long, value_enum)]
    pub collective_order: Option<CollectiveOrder>,
    /// How much work to do; bounded in steps, so that the result is the same everywhere [default:
    /// default].
    #[arg(long, value_enum)]
    pub effort: Option<EffortArg>,
    /// How many threads may work [default: all cores]; does not change the result.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EffortArg {
    /// About a twelfth of the default's.
    Quick,
    /// A second or two for a thousand nodes.
    Default,
    /// About seven times the default's, and exact search for the smallest graphs.
    Thorough,
    /// To compare programs, not to be asked for.
    #[value(skip)]
    Sketch,
}

impl EffortArg {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            EffortArg::Quick => "quick",
            EffortArg::Default => "default",
            EffortArg::Thorough => "thorough",
            EffortArg::Sketch => "sketch",
        }
    }
}

impl SearchArgs {
    /// Whether any optimizer option is set.
    pub fn any(&self) -> bool {
        self.memory_budget.is_some()
            || self.collective_order.is_some()
            || self.effort.is_some()
            || self.threads.is_some()
    }
}

/// The machine that orders are simulated on.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = MACHINE)]
pub struct MachineArgs {
    /// How much slower compute is while communication runs [default: as the profile says, else 1].
    #[arg(long, value_name = "FACTOR", value_parser = slowdown)]
    pub slowdown: Option<f64>,
    /// How much slower communication is while compute runs [default: as the profile says, else 1].
    #[arg(long, value_name = "FACTOR", value_parser = slowdown)]
    pub comm_slowdown: Option<f64>,
    /// How long the host takes to issue a node, such as 4us.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration)]
    pub launch: Nanos,
    /// Which process groups share a communication stream.
    #[arg(long, value_enum, value_name = "WHICH", default_value = "shared")]
    pub comm_streams: CommStreams,
    #[command(flatten)]
    pub costs: CostArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CommStreams {
    /// Those that share more than one rank.
    Shared,
    /// All.
    One,
    /// None: each has its own.
    Group,
}

/// How to treat the order of collectives.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = ORDERS)]
pub struct CollectiveArgs {
    /// Whether order-only edges, and so the order of collectives, are kept [default: as the
    /// schedule records it, else free].
    #[arg(long, value_enum, value_name = "WHICH")]
    pub collective_order: Option<CollectiveOrder>,
    /// First chain the collectives, as schedule does, and keep that order [default: as the schedule
    /// records it].
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

/// A name as it is typed in a shell.
pub fn as_typed(name: &str) -> String {
    let is_plain = |of: char| of.is_alphanumeric() || "/._-+=@%:,".contains(of);
    match !name.is_empty() && name.chars().all(is_plain) {
        true => name.to_owned(),
        false => {
            let shown: String = name.chars().filter(|of| !of.is_control()).collect();
            format!("'{}'", shown.replace('\'', "'\\''"))
        }
    }
}

impl MachineArgs {
    /// As it is typed, without what is the default.
    pub fn typed(&self) -> String {
        let CostArgs { device, ranks_per_node, link, profile } = &self.costs;
        let name = |input: &Option<Input>| input.as_ref().map(|input| as_typed(input.name()));
        let number = |number: Option<f64>| number.map(|number| number.to_string());
        let streams = (self.comm_streams != CommStreams::Shared)
            .then(|| self.comm_streams.to_possible_value())
            .flatten();
        let launch = (self.launch > Nanos::ZERO).then(|| format!("{}ns", self.launch.0));
        let all = [
            ("device", name(device)),
            ("ranks-per-node", ranks_per_node.map(|ranks| ranks.to_string())),
            ("link", link.as_deref().map(as_typed)),
            ("profile", name(profile)),
            ("slowdown", number(self.slowdown)),
            ("comm-slowdown", number(self.comm_slowdown)),
            ("launch", launch),
            ("comm-streams", streams.map(|streams| streams.get_name().to_owned())),
        ];
        let option = |(name, value): (&str, Option<String>)| Some(format!(" --{name} {}", value?));
        all.into_iter().filter_map(option).collect()
    }
}

impl Default for MachineArgs {
    /// As if nothing was typed.
    fn default() -> MachineArgs {
        MachineArgs {
            costs: CostArgs::default(),
            slowdown: None,
            comm_slowdown: None,
            launch: Nanos::ZERO,
            comm_streams: CommStreams::Shared,
        }
    }
}

/// Where run times come from; every command that uses them flattens it.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = RUN_TIMES)]
pub struct CostArgs {
    /// Model run times on this device: a name such as h100, a100_pcie, l40s, mi300x or cpu
    /// (docs/costs.md lists all), or a JSON file with figures of your own.
    #[arg(long, value_name = "NAME|FILE")]
    pub device: Option<Input>,
    /// How many ranks share a node, if it differs from the device's value: ranks 0 to N-1 share the
    /// first.
    #[arg(long, value_name = "N", requires = "device")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks_per_node: Option<u32>,
    /// Model all collectives over this link, regardless of ranks: nvlink or network (the device's
    /// own), or one with a name such as nvlink4 or ib400.
    #[arg(long, value_name = "NAME")]
    pub link: Option<String>,
    /// Measured run times, which take precedence: a JSON object of node names and nanoseconds, what
    /// halflap.torch.measure saves (halflap.profile/1), or a profile as XLA's estimator reads it,
    /// in text form (costs { name: ... }).
    #[arg(long, value_name = "TIMES")]
    pub profile: Option<Input>,
}

impl CostArgs {
    /// The files that it may name.
    pub fn files(&self) -> [Option<&str>; 2] {
        [&self.device, &self.profile].map(|input| input.as_ref().and_then(Input::path))
    }
}
