//! The command line: the command itself here, a module for each group of commands, and what they
//! share.

mod debug;
mod measured;
mod orders;
mod run;
mod schedule;
mod shared;
mod values;

use clap::{Parser, Subcommand, ValueEnum};

pub use debug::{Against, CheckLifetimes, Debug, DebugArgs, Diff, NanAsserts, OnOff};
pub(crate) use measured::TOP;
pub use measured::{Align, Analyze, Timeline};
pub(crate) use orders::BANDWIDTHS;
pub use orders::{Explain, Ordered, Simulate, Verify, WhatIf};
pub use run::{Backend, DEFAULT_TUNE, OrderArgs, Plan, Run};
pub use schedule::{AllowedRecipes, Compat, Emit, Rewrites, Schedule};
pub use shared::{
    ArtifactArgs, ChainWhich, CollectiveArgs, CollectiveOrder, CommStreams, CostArgs, EffortArg,
    MachineArgs, PictureArgs, SearchArgs, WhichArgs, as_typed,
};
pub(crate) use values::{duration, in_bandwidths, in_slowdowns, limit};

/// Hides communication behind compute in distributed tensor programs, without adding memory.
#[derive(Debug, Parser)]
#[command(name = "halflap", version, arg_required_else_help = true)]
pub struct Args {
    /// Log progress to standard error.
    #[arg(short, long, global = true, display_order = 998)]
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
    /// Compare a measured step (halflap.torch.timeline) with its simulation, operation by
    /// operation.
    Timeline(Timeline),
    /// Show what running an HLO module does, step by step: memory, kernels, collectives, waits.
    Plan(Plan),
    /// Run an HLO module on all its ranks, in this process or, under mpirun, on MPI.
    Run(Box<Run>),
    /// Find out what is wrong with a program: walk the debugging guide (docs/debugging-guide.md).
    Debug(Debug),
    /// Compare the values that two runs saved (run --debug-values 1) and name the first kernel that
    /// differs.
    Diff(Diff),
    /// Print a shell's completion script for commands and options.
    Completions {
        /// Which shell.
        shell: Shell,
    },
    /// Print the manual page, for man(1).
    Man,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// source <(halflap completions bash)
    Bash,
    /// Into a folder of $fpath, as _halflap.
    Zsh,
    /// Into ~/.config/fish/completions, as halflap.fish.
    Fish,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The options that belong under a heading wherever they are.
    const HEADINGS: [(&str, &[&str]); 3] = [
        ("Run times", &["device", "ranks-per-node", "link", "profile"]),
        ("Machine", &["slowdown", "comm-slowdown", "launch", "comm-streams"]),
        (
            "Output",
            &[
                "output",
                "json",
                "emit",
                "report",
                "trace",
                "artifacts",
                "overwrite",
                "show",
                "order-out",
                "profile-out",
                "computation",
                "node",
                "no-advice",
                "top",
            ],
        ),
    ];

    #[test]
    fn options_stand_under_their_headings() {
        let program = Args::command();
        let mut seen = 0;
        for command in program.get_subcommands() {
            for option in command.get_opts() {
                let name = option.get_long().unwrap_or_default();
                let mut of = HEADINGS.iter().filter(|(_, names)| names.contains(&name));
                let expected = of.next().map(|(heading, _)| *heading);
                let heading = option.get_help_heading();
                let is_right = match expected {
                    Some(_) => heading == expected,
                    None => HEADINGS.iter().all(|(other, _)| heading != Some(*other)),
                };
                assert!(is_right, "{} --{name} stands under {heading:?}", command.get_name());
                seen += 1;
            }
        }
        assert!(seen > 100, "{seen}");
    }
}
