//! `halflap schedule`.

use std::str::FromStr;

use clap::ValueEnum;
use halflap::improve::Allowed;
use halflap::memory::Budget;
use halflap::pass::Pass;
use halflap::rewrite::RewriteKind;
use halflap::{Unknown, nearest};
use halflap_hlo::change::{Found, RecipeKind};

use super::shared::{
    ArtifactArgs, ChainWhich, MachineArgs, OUTPUT, PictureArgs, SEARCH, SearchArgs, WhichArgs,
};
use crate::place::Input;

const PASSES: &str = "Torch's passes";
const REWRITES: &str = "Rewrites";

#[derive(Debug, Clone, clap::Args)]
pub struct Schedule {
    /// A halflap.graph/1 file or an HLO module, plain or gzipped; - reads standard input.
    pub graph: Input,
    #[command(flatten)]
    pub search: SearchArgs,
    /// First chain the collectives, of each process group or all of them, with order-only edges,
    /// and keep those.
    #[arg(long, value_enum, value_name = "WHICH", help_heading = SEARCH)]
    pub order_collectives: Option<ChainWhich>,
    /// Rewrite the program where that shortens its step (docs/rewrite.md): with rewrites that keep
    /// every bit, all, none, or those in a list [default: none; without a value: exact].
    #[arg(long, value_name = "exact|all|none|LIST", help_heading = REWRITES)]
    #[arg(num_args = 0..=1, default_missing_value = "exact")]
    pub rewrite: Option<Rewrites>,
    /// Leave out a rewrite that --rewrite chose, by its name in the summary (merge:3). May be given
    /// more than once.
    #[arg(long, value_name = "RECIPE", help_heading = REWRITES)]
    #[arg(requires = "rewrite", value_delimiter = ',')]
    pub without: Vec<String>,
    /// The ramp-up and ramp-down of each piece that --rewrite splits a matrix product into, as an
    /// amount of its result: a size, or a multiple of the default such as 2x [default: 2MiB].
    #[arg(long, value_name = "SIZE", help_heading = REWRITES)]
    #[arg(requires = "rewrite", hide_short_help = true, value_parser = tail)]
    pub piece_tail: Option<Budget>,
    /// Of a changed program only the recipes are wanted, and its order only as far as that was
    /// needed to choose them. Not on the command line.
    #[arg(skip)]
    pub recipes_only: bool,
    /// Merge these collectives into one before the search (docs/rewrite.md): node names, separated
    /// by commas. May be given more than once.
    #[arg(long, value_name = "NODE,NODE,...", help_heading = REWRITES)]
    #[arg(conflicts_with = "rewrite", hide_short_help = true)]
    pub merge: Vec<String>,
    /// Write the schedule (halflap.schedule/1) to this file; gzipped if its name ends in .gz; - is
    /// standard output, in place of the summary.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<String>,
    /// Print the schedule (halflap.schedule/1) instead of the summary.
    #[arg(long, conflicts_with = "show", help_heading = OUTPUT)]
    pub json: bool,
    /// What to write: the schedule; for an HLO module also the module itself, scheduled and with
    /// asynchronous collectives; for a graph also the graph, changed by --rewrite or --merge
    /// [default: schedule].
    #[arg(long, value_enum, value_name = "WHAT", help_heading = OUTPUT)]
    pub emit: Option<Emit>,
    #[command(flatten)]
    pub pictures: PictureArgs,
    #[command(flatten)]
    pub artifacts: ArtifactArgs,
    /// List the new order step by step.
    #[arg(long, help_heading = OUTPUT)]
    pub show: bool,
    /// Leave out "What you can do", which takes a few quick searches.
    #[arg(long, help_heading = OUTPUT)]
    pub no_advice: bool,
    #[command(flatten)]
    pub which: WhichArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// The passes to run, one after the other: sink_waits, raise_comms,
    /// reorder_compute_for_overlap, reorder_communication_preserving_peak_memory,
    /// sink_waits_iterative, simple_overlap. Without it the optimizer runs.
    #[arg(long, value_name = "PASS,...", help_heading = PASSES)]
    #[arg(value_delimiter = ',', value_parser = pass)]
    pub passes: Vec<Pass>,
    /// Set one of torch's settings (docs/settings.md lists them). May be given more than once.
    #[arg(long = "set", value_name = "NAME=VALUE", help_heading = PASSES)]
    pub settings: Vec<String>,
    /// Reproduce that version of torch exactly, including its known bugs.
    #[arg(long, value_enum, help_heading = PASSES)]
    pub compat: Option<Compat>,
    /// After every swap, compare the memory ledger with a full recomputation.
    #[arg(long, help_heading = PASSES)]
    pub check_memory: bool,
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
        self.rewrite.as_ref().is_some_and(Rewrites::any)
    }
}

/// Which rewrites of graphs and of modules may be used; `None` for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrites {
    pub graphs: Option<Allowed>,
    pub modules: Option<AllowedRecipes>,
    /// The kinds that were typed.
    named: Vec<String>,
}

/// Which rewrites of HLO modules may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedRecipes {
    pub kinds: Vec<RecipeKind>,
    /// Whether only those that keep every bit.
    pub exact_only: bool,
}

impl AllowedRecipes {
    pub fn has(&self, found: &Found) -> bool {
        self.kinds.contains(&found.recipe.kind()) && (found.is_exact || !self.exact_only)
    }
}

impl Rewrites {
    /// Whether any may be used.
    pub fn any(&self) -> bool {
        self.graphs.is_some() || self.modules.is_some()
    }

    /// All that keep every bit.
    pub fn exact() -> Rewrites {
        Rewrites::of_all(true)
    }

    /// The names of all rewrites, of graphs and of modules.
    pub fn names() -> Vec<&'static str> {
        let graphs = RewriteKind::ALL.iter().map(|kind| kind.name());
        let modules = RecipeKind::ALL.iter().map(|kind| kind.name());
        graphs.chain(modules.filter(|name| RewriteKind::named(name).is_none())).collect()
    }

    fn of_all(exact_only: bool) -> Rewrites {
        Rewrites {
            graphs: Some(Allowed { exact_only, ..Allowed::exact() }),
            modules: Some(AllowedRecipes { kinds: RecipeKind::ALL.to_vec(), exact_only }),
            named: Vec::new(),
        }
    }

    /// What is wrong with a name that is only one of the other kind of program's rewrites.
    pub fn problem(&self, is_module: bool) -> Option<String> {
        let graphs: Vec<&str> = RewriteKind::ALL.map(RewriteKind::name).to_vec();
        let modules: Vec<&str> = RecipeKind::ALL.map(RecipeKind::name).to_vec();
        let (this, own, others, of_others) = match is_module {
            true => ("an HLO module", modules, graphs, "captured graphs"),
            false => ("a captured graph", graphs, modules, "HLO modules"),
        };
        let is_strange =
            |name: &&String| others.contains(&name.as_str()) && !own.contains(&name.as_str());
        let name = self.named.iter().find(is_strange)?;
        let own = own.join(", ");
        Some(format!(
            "'{name}' is a rewrite of {of_others}; for {this} there are exact, all, none and {own}"
        ))
    }

    /// With others that are used only where they are named.
    fn and(mut self, names: &[&str]) -> Result<Rewrites, String> {
        for name in names {
            let kind = RewriteKind::named(name).filter(|kind| kind.is_on_request());
            let kind = kind.ok_or_else(|| {
                let more = RewriteKind::ALL.into_iter().filter(|kind| kind.is_on_request());
                let more: Vec<&str> = more.map(RewriteKind::name).collect();
                format!("after exact or all there can only be {}, not '{name}'", more.join(", "))
            })?;
            if let Some(graphs) = self.graphs.as_mut().filter(|of| !of.kinds.contains(&kind)) {
                graphs.kinds.push(kind);
            }
            self.named.push(kind.name().to_owned());
        }
        Ok(self)
    }
}

impl FromStr for Rewrites {
    type Err = String;

    fn from_str(text: &str) -> Result<Rewrites, String> {
        match text {
            "none" => Ok(Rewrites { graphs: None, modules: None, named: Vec::new() }),
            list => listed(list),
        }
    }
}

/// `exact` or `all`, rewrites by name, or the former and those that must be named.
fn listed(list: &str) -> Result<Rewrites, String> {
    let names: Vec<&str> = list.split(',').map(str::trim).collect();
    match names[..] {
        ["exact", ref more @ ..] => Rewrites::of_all(true).and(more),
        ["all", ref more @ ..] => Rewrites::of_all(false).and(more),
        _ => named(&names),
    }
}

/// Rewrites by name: some are for graphs, some for modules, some for both.
fn named(names: &[&str]) -> Result<Rewrites, String> {
    let is_known =
        |name: &&str| RewriteKind::named(name).is_some() || RecipeKind::named(name).is_some();
    if let Some(name) = names.iter().find(|name| !is_known(name)) {
        let near = nearest(name, Rewrites::names().into_iter().filter(|_| !name.is_empty()));
        let meant = near.map_or(String::new(), |near| format!("; did you mean '{near}'?"));
        return Err(format!(
            "'{name}' is not a rewrite: choose exact, all, none, or from the list {}{meant}",
            Rewrites::names().join(", ")
        ));
    }
    let kinds: Vec<RewriteKind> =
        names.iter().filter_map(|name| RewriteKind::named(name)).collect();
    let recipes: Vec<RecipeKind> =
        names.iter().filter_map(|name| RecipeKind::named(name)).collect();
    let graphs = Some(Allowed { kinds, exact_only: false }).filter(|of| !of.kinds.is_empty());
    let modules = Some(AllowedRecipes { kinds: recipes, exact_only: false });
    let named = names.iter().map(|&name| name.to_owned()).collect();
    Ok(Rewrites { graphs, modules: modules.filter(|of| !of.kinds.is_empty()), named })
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

/// A tail is given as limits are, and is none.
fn tail(text: &str) -> Result<Budget, String> {
    let problem = format!(
        "'{text}' is not an amount of a product's result: it must be a size such as 512KiB or 0B, \
         or a multiple of the default such as 2x"
    );
    text.parse().map_err(|_| problem)
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
