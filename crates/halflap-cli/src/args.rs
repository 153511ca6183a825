//! What can be typed.

use std::ffi::OsString;
use std::str::FromStr;

use clap::{Parser, Subcommand, ValueEnum};
use halflap::Unknown;
use halflap::improve::Allowed;
use halflap::memory::Budget;
use halflap::pass::Pass;
use halflap::rewrite::RewriteKind;
use halflap::units::Nanos;
use halflap_hlo::change::RecipeKind;
use halflap_run::check::Fault;
use halflap_run::comm::EmulatedLink;

/// The speeds of communication that what-if tries by default.
pub(crate) const BANDWIDTHS: [f64; 3] = [0.5, 1.0, 2.0];
/// How many rows tables have by default.
pub(crate) const TOP: usize = 10;

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
    /// Run an order on streams: its step time, what is exposed, and how far it is from the bound.
    Simulate(Simulate),
    /// Show why each collective is still exposed, and which buffers make up the peak.
    Explain(Explain),
    /// Show what more memory or a faster network would gain.
    WhatIf(WhatIf),
    /// Prove an order: every node once, every edge kept, the peak within the limit.
    Verify(Verify),
    /// Give the same program on several ranks the same run times: the lower median of all.
    Align(Align),
    /// Show what actually ran, from profiler traces: what was exposed, what hid the rest, and which
    /// ranks waited for which.
    Analyze(Analyze),
    /// Compare a measured step (halflap.torch.timeline) with its simulation, operation by operation.
    Timeline(Timeline),
    /// Show what running an HLO module does, step by step: memory, kernels, collectives, waits.
    Plan(Plan),
    /// Run an HLO module on all its ranks, in this process or, under mpirun, on MPI.
    Run(Box<Run>),
    /// Find out what is wrong with a program: walk the debugging guide (docs/debugging-guide.md).
    Debug(Debug),
    /// Compare the values that two runs saved (run --debug-values 1) and name the first kernel that differs.
    Diff(Diff),
}

/// Where artifacts are kept.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ArtifactArgs {
    /// Keep all artifacts in this folder, with a page (index.html) that lists it: orders,
    /// statistics, pictures, plan, values, flight recorder [debug: by default a temporary folder].
    #[arg(long, value_name = "DIR", env = "HALFLAP_ARTIFACTS")]
    pub artifacts: Option<String>,
    /// Empty that folder first, if it is not empty.
    #[arg(long)]
    pub overwrite: bool,
}

/// How a module that is debugged is run; as for `halflap run`.
#[derive(Debug, clap::Args)]
pub struct DebugRun {
    /// How many ranks, which must be as many as the module has, if it says that [default: those].
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
    /// How often it is run.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub steps: u32,
    /// The seed of generated inputs and random numbers.
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// A shared library with targets of custom calls; may be given more than once.
    #[arg(long, value_name = "LIB.so", visible_alias = "library")]
    pub custom_calls: Vec<String>,
    /// Make a mistake on purpose, to see that it is found.
    #[arg(long, value_name = "FAULT", hide = true)]
    pub inject: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub struct Diff {
    /// A folder of saved values, that of one rank in it, or of the artifacts of a run that saved them.
    #[arg(value_name = "RUN_A")]
    pub a: String,
    /// Another one: of another order, precision, module or rank.
    #[arg(value_name = "RUN_B")]
    pub b: String,
    /// How far numbers may be apart, as a part of RUN_B's [default: by type: f64 1e-7, f32 1.3e-6, f16 1e-3, bf16
    /// 1.6e-2, others 0; the coarser of two types].
    #[arg(long, value_name = "NUMBER")]
    pub rtol: Option<f64>,
    /// The absolute tolerance [default: f64 1e-7, other floating types 1e-5, others 0].
    #[arg(long, value_name = "NUMBER")]
    pub atol: Option<f64>,
    /// Write all that differs to this file as JSON (halflap.diff/1); - is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// Print it as JSON instead of the text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct Debug {
    /// An HLO module, plain or gzipped.
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    pub module: Option<String>,
    /// A torch program to run again and again, such as -- python train.py; torchrun is fine, too.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
    #[command(flatten)]
    pub run: DebugRun,
    /// How long a kernel or collective of a module may take [default: 20s], or each run of a command
    /// [default: 600s].
    #[arg(long, value_name = "TIME", value_parser = limit)]
    pub timeout: Option<Nanos>,
    #[command(flatten)]
    pub artifacts: ArtifactArgs,
    /// Write what was found to this file as JSON (halflap.debug/1); - is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// Print it as JSON instead of the text.
    #[arg(long)]
    pub json: bool,
}

/// Which orders of a module's computations are run.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct OrderArgs {
    /// The module's own order [default: the best that is found].
    #[arg(long)]
    pub input_order: bool,
    /// One kernel for every instruction, instead of one for several where nothing else reads what is in between.
    #[arg(long)]
    pub no_fuse: bool,
    #[command(flatten)]
    pub search: SearchArgs,
}

#[derive(Debug, clap::Args)]
pub struct Plan {
    /// An HLO module, plain or gzipped; - reads standard input.
    pub module: String,
    /// An order (docs/formats.md) [default: the best that is found].
    #[arg(conflicts_with = "input_order")]
    pub order: Option<String>,
    #[command(flatten)]
    pub orders: OrderArgs,
    /// Write it to this file; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    #[command(flatten)]
    pub machine: MachineArgs,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Run {
    /// An HLO module, plain or gzipped; - reads standard input.
    pub module: String,
    /// How many ranks: as many as the module is partitioned for, replicas times partitions; any number
    /// that its collectives allow, if it does not say [default: those].
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// The inputs of every rank: an .npz archive, or a folder of .npy files, with arrays named
    /// in_NNN_rK for parameter NNN of rank K [default: generated from --seed, the same on all
    /// ranks: floats from -0.5 to 0.5, integers from 0 to 7].
    #[arg(long, value_name = "IN.npz|FOLDER")]
    pub inputs: Option<String>,
    /// Run this kernel or collective alone; --inputs is then a folder of values that were saved (--debug-values 1)
    /// with it. Of its last launch, or with KERNEL@2 of that in iteration 2 of the loop around it.
    #[arg(long, value_name = "KERNEL", requires = "inputs", conflicts_with_all = ["order", "compare", "tune"])]
    pub only: Option<String>,
    /// The outputs of every rank: an .npz archive of arrays named out_NNN_rK.
    #[arg(short, long, value_name = "OUT.npz")]
    pub output: Option<String>,
    /// An order (docs/formats.md) [default: the best that is found].
    #[arg(long, value_name = "ORDER.json", conflicts_with = "input_order")]
    pub order: Option<String>,
    /// Another order for one rank, to see that this is found out.
    #[arg(long, value_name = "RANK=ORDER.json", value_parser = order_for, hide = true)]
    pub order_for: Vec<(usize, String)>,
    #[command(flatten)]
    pub orders: OrderArgs,
    /// Where ranks are.
    #[arg(long, value_enum, default_value = "threads")]
    pub backend: Backend,
    /// How often to run it; the first run is a warm-up and does not count, unless it is the only
    /// one.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub steps: u32,
    /// How long one collective or kernel may take, such as 60s; then the run ends, and reports what
    /// every rank was doing. A provably endless loop also ends it after that time.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = limit)]
    pub timeout: Nanos,
    /// Time limit for a loop that is not known to be endless [default: no limit].
    #[arg(long, value_name = "TIME", value_parser = limit, hide = true)]
    pub loop_timeout: Option<Nanos>,
    /// Make collectives take as long as on a network: a bandwidth and a latency, such as 10GB/s,20us.
    #[arg(long, value_name = "BANDWIDTH,LATENCY")]
    pub emulate_link: Option<EmulatedLink>,
    /// The seed of generated inputs and random numbers.
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// A shared library with targets of custom calls; may be given more than once.
    #[arg(long, value_name = "LIB.so")]
    pub custom_calls: Vec<String>,
    /// How many threads a kernel of a rank may use [default: the cores there are, shared out among the ranks].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads_per_rank: Option<u16>,
    /// Run the module's own order, too, and print measured and simulated step times side by side.
    #[arg(long)]
    pub compare: bool,
    /// Try the module's own order and ours on this machine, alternately, for at most this time, and
    /// run the fastest [default: 300s].
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "300s",
        value_parser = limit, conflicts_with_all = ["order", "order_for", "input_order", "compare"])]
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
    #[arg(long, value_name = "ORDER.json")]
    pub order_out: Option<String>,
    /// Write the median time of every kernel and collective to this file, for schedule --profile.
    #[arg(long, value_name = "TIMES.json")]
    pub profile_out: Option<String>,
    /// Print the summary as JSON (docs/run.md).
    #[arg(long)]
    pub json: bool,
    /// The rank that a single rank represents, and the number of partitions.
    #[arg(skip)]
    pub stands_for: Option<(usize, u32)>,
    /// Have a rank panic at a step of a plan, to see what happens.
    #[arg(long, value_name = "RANK:STEP", value_parser = panic_at, hide = true)]
    pub panic: Option<(usize, usize)>,
    #[command(flatten)]
    pub debug: DebugArgs,
    #[command(flatten)]
    pub artifacts: ArtifactArgs,
    #[command(flatten)]
    pub pictures: PictureArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// Checks while a module runs (docs/debug.md).
#[derive(Debug, Clone, clap::Args)]
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
    /// Follow NaN and infinities from the kernels that make them to the results, and write to a file
    /// which made those that arrive; also indices out of range that are clamped.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckLifetimes {
    /// Do not check.
    Off,
    /// Say what differs.
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
    /// Buffers are given again.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// In this process.
    Threads,
    /// Processes that mpirun started, with Open MPI.
    Mpi,
}

/// A variable that is 1 or 0; `true` and `false` are what a flag that is there or not comes as.
fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" | "" => Ok(false),
        _ => Err("is neither 1 nor 0".to_owned()),
    }
}

fn order_for(text: &str) -> Result<(usize, String), String> {
    let parsed =
        text.split_once('=').and_then(|(rank, path)| Some((rank.parse().ok()?, path.to_owned())));
    parsed.ok_or_else(|| "it must be a rank and a file, such as 3=other.json".to_owned())
}

fn panic_at(text: &str) -> Result<(usize, usize), String> {
    let parsed = text
        .split_once(':')
        .and_then(|(rank, step)| Some((rank.parse().ok()?, step.parse().ok()?)));
    parsed.ok_or_else(|| "it must be a rank and a step, such as 3:10".to_owned())
}

#[derive(Debug, Clone, clap::Args)]
pub struct Schedule {
    /// A halflap.graph/1 file or an HLO module, plain or gzipped; - reads standard input.
    pub graph: String,
    /// The passes to run, one after the other: sink_waits, raise_comms, reorder_compute_for_overlap,
    /// reorder_communication_preserving_peak_memory, sink_waits_iterative, simple_overlap. Without
    /// it the optimizer runs.
    #[arg(long, value_name = "PASS,...", value_delimiter = ',', value_parser = pass)]
    pub passes: Vec<Pass>,
    /// Set one of torch's settings (docs/settings.md lists them). May be given more than once.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
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
    /// Change the program where that makes its step shorter (docs/rewrite.md): by rewrites that keep
    /// every bit, by all, by none, or by those that are named [default: none; without a value: exact].
    #[arg(long, value_name = "exact|all|none|LIST", num_args = 0..=1, default_missing_value = "exact")]
    pub rewrite: Option<Rewrites>,
    /// Leave out a rewrite that --rewrite chose, by the name that the summary has for it (merge:3). May
    /// be given more than once.
    #[arg(long, value_name = "RECIPE", requires = "rewrite", value_delimiter = ',')]
    pub without: Vec<String>,
    /// What a product's start and end take in every piece that --rewrite cuts it into, as so much of
    /// its result: a size, or a multiple of the default such as 2x [default: 2MiB].
    #[arg(long, value_name = "SIZE", requires = "rewrite", hide_short_help = true)]
    pub piece_tail: Option<Budget>,
    /// Merge these collectives into one before the search, as docs/rewrite.md says: names of nodes with
    /// commas between. May be given more than once.
    #[arg(long, value_name = "NODE,NODE,...", hide_short_help = true, conflicts_with = "rewrite")]
    pub merge: Vec<String>,
    /// List the new order step by step.
    #[arg(long)]
    pub show: bool,
    /// Leave out "What you can do", which takes a few quick searches.
    #[arg(long)]
    pub no_advice: bool,
    #[command(flatten)]
    pub artifacts: ArtifactArgs,
    #[command(flatten)]
    pub pictures: PictureArgs,
    /// Write the schedule (halflap.schedule/1) to this file; gzipped if its name ends in .gz; - is
    /// standard output, in place of the summary.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// Print the schedule (halflap.schedule/1) instead of the summary.
    #[arg(long, conflicts_with = "show")]
    pub json: bool,
    /// What is written: the schedule; of an HLO module also the module itself, scheduled and with
    /// asynchronous collectives; of a graph also the graph, changed by --rewrite or --merge [default: schedule].
    #[arg(long, value_enum, value_name = "WHAT")]
    pub emit: Option<Emit>,
    #[command(flatten)]
    pub which: WhichArgs,
}

impl Schedule {
    /// The rewrites of a graph that may be used, if any.
    pub fn allowed(&self) -> Option<&Allowed> {
        self.rewrite.as_ref().and_then(|rewrites| rewrites.graphs.as_ref())
    }

    /// The rewrites of an HLO module that may be used, if any.
    pub fn allowed_recipes(&self) -> Option<&AllowedRecipes> {
        self.rewrite.as_ref().and_then(|rewrites| rewrites.modules.as_ref())
    }

    /// Whether rewrites were asked for, and not `none`.
    pub fn rewrites(&self) -> bool {
        self.allowed().is_some() || self.allowed_recipes().is_some()
    }
}

/// Which rewrites may be used, of graphs and of modules; `None` for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrites {
    pub graphs: Option<Allowed>,
    pub modules: Option<AllowedRecipes>,
}

/// Which rewrites of HLO modules may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedRecipes {
    pub kinds: Vec<RecipeKind>,
    /// Whether only those that keep every bit.
    pub exact_only: bool,
}

impl Rewrites {
    /// All that keep every bit.
    pub fn exact() -> Rewrites {
        Rewrites::of_all(true)
    }

    fn of_all(exact_only: bool) -> Rewrites {
        Rewrites {
            graphs: Some(Allowed { exact_only, ..Allowed::exact() }),
            modules: Some(AllowedRecipes { kinds: RecipeKind::ALL.to_vec(), exact_only }),
        }
    }
}

impl FromStr for Rewrites {
    type Err = String;

    fn from_str(text: &str) -> Result<Rewrites, String> {
        match text {
            "none" => Ok(Rewrites { graphs: None, modules: None }),
            "exact" => Ok(Rewrites::exact()),
            "all" => Ok(Rewrites::of_all(false)),
            list => listed(list),
        }
    }
}

/// Rewrites by name: some are for graphs, some for modules, some for both.
fn listed(list: &str) -> Result<Rewrites, String> {
    let names: Vec<&str> = list.split(',').map(str::trim).collect();
    let is_known =
        |name: &&str| RewriteKind::named(name).is_some() || RecipeKind::named(name).is_some();
    if let Some(name) = names.iter().find(|name| !is_known(name)) {
        let mut known: Vec<&str> = RewriteKind::ALL.iter().map(|kind| kind.name()).collect();
        let recipes = RecipeKind::ALL.iter().map(|kind| kind.name());
        known.extend(recipes.filter(|name| RewriteKind::named(name).is_none()));
        return Err(format!(
            "'{name}' is no rewrite: choose exact, all, none, or from the list {}",
            known.join(", ")
        ));
    }
    let kinds: Vec<RewriteKind> =
        names.iter().filter_map(|name| RewriteKind::named(name)).collect();
    let recipes: Vec<RecipeKind> =
        names.iter().filter_map(|name| RecipeKind::named(name)).collect();
    let graphs = Some(Allowed { kinds, exact_only: false }).filter(|of| !of.kinds.is_empty());
    let modules = Some(AllowedRecipes { kinds: recipes, exact_only: false });
    Ok(Rewrites { graphs, modules: modules.filter(|of| !of.kinds.is_empty()) })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Emit {
    /// halflap.schedule/1.
    Schedule,
    /// HLO text.
    Hlo,
    /// halflap.graph/1.
    Graph,
}

/// Which of an HLO module's computations to show.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct WhichArgs {
    /// Show this computation of an HLO module alone [default: those with the most exposed
    /// communication; what-if: the first of these].
    #[arg(long, value_name = "NAME")]
    pub computation: Option<String>,
}

fn pass(name: &str) -> Result<Pass, Unknown> {
    name.trim().parse()
}

/// The optimizer's options.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SearchArgs {
    /// The most memory that an order may need: a multiple of the input order's peak such as 1.2x, or
    /// a size such as 40GiB [default: 1x].
    #[arg(long, value_name = "LIMIT", allow_hyphen_values = true)]
    pub memory_budget: Option<Budget>,
    /// Whether order-only edges, and so the order of collectives, are kept [default: free].
    #[arg(long, value_enum)]
    pub collective_order: Option<CollectiveOrder>,
    /// How much work is done; bounded in steps, so that the result is the same everywhere
    /// [default: default].
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
}

impl EffortArg {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            EffortArg::Quick => "quick",
            EffortArg::Default => "default",
            EffortArg::Thorough => "thorough",
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

/// What orders are simulated on.
#[derive(Debug, Clone, clap::Args)]
pub struct MachineArgs {
    #[command(flatten)]
    pub costs: CostArgs,
    /// How much slower compute is while communication runs [default: as the profile says, else 1].
    #[arg(long, value_name = "FACTOR", value_parser = slowdown)]
    pub slowdown: Option<f64>,
    /// How much slower communication is while compute runs [default: as the profile says, else 1].
    #[arg(long, value_name = "FACTOR", value_parser = slowdown)]
    pub comm_slowdown: Option<f64>,
    /// What the host needs to issue a node, such as 4us.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration)]
    pub launch: Nanos,
    /// Which process groups share a communication stream.
    #[arg(long, value_enum, value_name = "WHICH", default_value = "shared")]
    pub comm_streams: CommStreams,
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

fn slowdown(text: &str) -> Result<f64, String> {
    in_slowdowns(text.parse().unwrap_or(f64::NAN))
}

pub(crate) fn in_slowdowns(factor: f64) -> Result<f64, String> {
    let allowed = Some(factor).filter(|factor| (1.0..=100.0).contains(factor));
    allowed.ok_or_else(|| "it must be a factor from 1 to 100".to_owned())
}

/// A time that something may take.
fn limit(text: &str) -> Result<Nanos, String> {
    match duration(text)? {
        Nanos(time) if time < 1e6 => {
            Err("that is too short: it must be 1ms or more, such as 60s".to_owned())
        }
        time => Ok(time),
    }
}

pub(crate) fn duration(text: &str) -> Result<Nanos, String> {
    const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let unit = UNITS.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
    let (digits, scale) = match unit {
        Some(unit) => unit,
        None if text == "0" => (text, &1.0),
        None => return Err("it needs a unit: a time such as 4us, 500ns or 1.5ms".to_owned()),
    };
    let time = digits
        .trim()
        .parse()
        .ok()
        .map(|number: f64| number * scale)
        .filter(|time| (0.0..=1e12).contains(time));
    time.map(Nanos).ok_or_else(|| "it must be a time such as 4us, 500ns or 1.5ms".to_owned())
}

/// How to treat the order of collectives.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct CollectiveArgs {
    /// Whether order-only edges, and so the order of collectives, are kept [default: as the schedule
    /// records it, else free].
    #[arg(long, value_enum, value_name = "WHICH")]
    pub collective_order: Option<CollectiveOrder>,
    /// First chain the collectives, as schedule does, and keep that order [default: as the schedule
    /// records it].
    #[arg(long, value_enum, value_name = "WHICH")]
    pub order_collectives: Option<ChainWhich>,
}

/// A graph and perhaps an order of it.
#[derive(Debug, Clone, clap::Args)]
pub struct Ordered {
    /// A halflap.graph/1 file or an HLO module, plain or gzipped; - reads standard input.
    pub graph: String,
    /// An order, or a schedule (halflap.schedule/1), whose options are used, too [default: the input
    /// order].
    pub order: Option<String>,
    #[command(flatten)]
    pub collectives: CollectiveArgs,
    /// Write all of it to this file as JSON; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// Print it as JSON instead of the text.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub pictures: PictureArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub which: WhichArgs,
}

/// Pictures of orders.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PictureArgs {
    /// Write a self-contained page for a browser: timeline, memory, table.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<String>,
    /// Write a trace for ui.perfetto.dev, in its own form; as JSON, which other viewers take, too, if
    /// the name ends in .json or .json.gz.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<String>,
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
    /// Only this collective.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Leave out "What you can do", which takes a few quick searches.
    #[arg(long)]
    pub no_advice: bool,
    /// The memory limit that the order was made for: a multiple of the input order's peak, or a size
    /// [default: as the schedule records it, else 1x].
    #[arg(long, value_name = "LIMIT", allow_hyphen_values = true)]
    pub memory_budget: Option<Budget>,
}

#[derive(Debug, Clone, clap::Args)]
pub struct WhatIf {
    /// A halflap.graph/1 file or an HLO module, plain or gzipped; - reads standard input.
    pub graph: String,
    /// A schedule (halflap.schedule/1) of it, whose collective order and effort are used, and whose
    /// order no point is worse than where it fits.
    pub schedule: Option<String>,
    /// Memory limits to try [default: from 0.8x of the input order's peak as far as more memory helps].
    #[arg(long, value_name = "LIMIT,...", value_delimiter = ',')]
    #[arg(allow_hyphen_values = true)]
    pub memory: Vec<Budget>,
    /// Communication speeds to try, as multiples of what the graph has.
    #[arg(long, value_name = "FACTOR,...", value_delimiter = ',', default_value = "0.5x,1x,2x", value_parser = factor)]
    pub bandwidth: Vec<f64>,
    #[command(flatten)]
    pub collectives: CollectiveArgs,
    /// How much work is done for each point [default: as the schedule records it, else quick].
    #[arg(long, value_enum)]
    pub effort: Option<EffortArg>,
    /// How many threads may work [default: all cores]; does not change the result.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Write the points to this file as JSON; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// Print them as JSON instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Write a page for a browser: the points as curves, and the input order.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<String>,
    #[command(flatten)]
    pub machine: MachineArgs,
    #[command(flatten)]
    pub which: WhichArgs,
}

fn factor(text: &str) -> Result<f64, String> {
    in_bandwidths(text.trim().trim_end_matches('x').parse().unwrap_or(f64::NAN))
}

pub(crate) fn in_bandwidths(factor: f64) -> Result<f64, String> {
    let allowed = Some(factor).filter(|factor| (1e-3..=1e3).contains(factor));
    allowed.ok_or_else(|| "it must be a factor such as 2x".to_owned())
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

#[derive(Debug, Clone, clap::Args)]
pub struct Verify {
    /// A halflap.graph/1 file or an HLO module, plain or gzipped; - reads standard input.
    pub graph: String,
    /// The order: a JSON list of node names, or an object with such a list as 'order'. Or a changed
    /// program (halflap.graph/1 or an HLO module, as --emit writes them), which is proved to compute
    /// the same.
    pub order: String,
    /// Also run two HLO modules on all ranks, as threads, with random inputs, and compare the results:
    /// bit for bit, or within a tolerance where numbers are added up in another order (docs/rewrite.md).
    #[arg(long)]
    pub run: bool,
    /// With how many sets of random inputs.
    #[arg(long, value_name = "N", default_value = "3", requires = "run",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub seeds: u16,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CollectiveOrder {
    /// They may be broken.
    Free,
    /// They must be kept.
    Kept,
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

/// Where run times come from. For every command that has use for them: flatten it.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Run times")]
pub struct CostArgs {
    /// Model run times on this device: a name such as h100, a100_pcie, l40s, mi300x or cpu
    /// (docs/costs.md lists all), or a JSON file with figures of your own.
    #[arg(long, value_name = "NAME|FILE")]
    pub device: Option<String>,
    /// How many ranks share a node, if it differs from the device's value: ranks 0 to N-1 share the
    /// first.
    #[arg(long, value_name = "N", requires = "device", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks_per_node: Option<u32>,
    /// Model all collectives over this link, regardless of ranks: nvlink or network (the device's
    /// own), or one with a name such as nvlink4 or ib400.
    #[arg(long, value_name = "NAME")]
    pub link: Option<String>,
    /// Measured run times, which take precedence: a JSON object of node names and nanoseconds, or a
    /// profile as XLA's estimator reads it, in text form (costs { name: ... }).
    #[arg(long, value_name = "TIMES")]
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

#[derive(Debug, Clone, clap::Args)]
pub struct Timeline {
    /// A measured step (halflap.timeline/1), plain or gzipped; - reads standard input.
    #[arg(value_name = "STEP.json")]
    pub step: String,
    /// Write the comparison (halflap.comparison/1) to this file; - is standard output, in place of the tables.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// Print the comparison (halflap.comparison/1) instead of the tables.
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
    #[command(flatten)]
    pub pictures: PictureArgs,
    /// How many operations the table has.
    #[arg(long, value_name = "N", default_value = "10")]
    pub top: usize,
}

#[derive(Debug, Clone, clap::Args)]
pub struct Analyze {
    /// Traces of torch.profiler (Kineto), plain or gzipped, one for each rank; - reads standard input.
    #[arg(required = true, num_args = 1.., value_name = "TRACE")]
    pub traces: Vec<String>,
    /// Write all of it (halflap.analysis/1) to this file; gzipped if its name ends in .gz; - is
    /// standard output, in place of the tables.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<String>,
    /// Print all of it (halflap.analysis/1) instead of the tables.
    #[arg(long, conflicts_with = "output")]
    pub json: bool,
    /// Write the median time of every kernel to this file, for schedule --profile.
    #[arg(long, value_name = "TIMES.json")]
    pub profile_out: Option<String>,
    /// Write a self-contained page for a browser: a timeline for each rank, and tables.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<String>,
    /// How many ranks, collectives and kernels the tables have.
    #[arg(long, value_name = "N", default_value = "10")]
    pub top: usize,
}
