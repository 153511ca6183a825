//! What a program asks halflap for: the requests that the command's arguments are parsed to, made
//! without a command line.
//!
//! A request reads files or data in memory ([`crate::place::Input`]). Where it says what to write,
//! a program that holds the answer leaves that out.

pub use clap::ValueEnum;

use halflap::units::Nanos;

pub use crate::args::DEFAULT_TUNE;
pub use crate::args::{
    Against, Analyze, ArtifactArgs, ChainWhich, CheckLifetimes, CollectiveArgs, CollectiveOrder,
    CommStreams, Compat, CostArgs, DebugArgs, EffortArg, Emit, Explain, MachineArgs, NanAsserts,
    OnOff, OrderArgs, Ordered, PictureArgs, Rewrites, Run, Schedule, SearchArgs, Simulate,
    Timeline, Verify, WhatIf, WhichArgs,
};
use crate::args::{BANDWIDTHS, Backend, TOP};
use crate::place::{Input, Output};

/// A request that has an answer.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Request {
    Schedule(Box<Schedule>),
    Simulate(Box<Simulate>),
    Explain(Box<Explain>),
    WhatIf(Box<WhatIf>),
    Analyze(Analyze),
    Timeline(Timeline),
}

impl Schedule {
    /// The best order of a program, with defaults otherwise.
    pub fn new(graph: impl Into<Input>) -> Schedule {
        Schedule {
            graph: graph.into(),
            passes: Vec::new(),
            settings: Vec::new(),
            search: SearchArgs::default(),
            machine: MachineArgs::default(),
            compat: None,
            check_memory: false,
            order_collectives: None,
            rewrite: None,
            without: Vec::new(),
            piece_tail: None,
            recipes_only: false,
            merge: Vec::new(),
            show: false,
            no_advice: false,
            artifacts: ArtifactArgs::default(),
            pictures: PictureArgs::default(),
            output: None,
            json: false,
            emit: None,
            which: WhichArgs::default(),
        }
    }
}

impl Ordered {
    /// A program in its own order, or in another, with defaults otherwise.
    pub fn new(graph: impl Into<Input>, order: Option<Input>) -> Ordered {
        Ordered {
            graph: graph.into(),
            order,
            collectives: CollectiveArgs::default(),
            output: None,
            json: false,
            pictures: PictureArgs::default(),
            machine: MachineArgs::default(),
            which: WhichArgs::default(),
        }
    }
}

impl WhatIf {
    /// The bandwidths that are tried by default, and memory as far as more of it helps.
    pub fn new(graph: impl Into<Input>, schedule: Option<Input>) -> WhatIf {
        WhatIf {
            graph: graph.into(),
            schedule,
            memory: Vec::new(),
            bandwidth: BANDWIDTHS.to_vec(),
            collectives: CollectiveArgs::default(),
            rewrite: None,
            effort: None,
            threads: None,
            output: None,
            json: false,
            report: None,
            machine: MachineArgs::default(),
            which: WhichArgs::default(),
        }
    }
}

impl Run {
    /// A module on threads, once, in the best order that is found.
    pub fn new(module: impl Into<Input>) -> Run {
        Run {
            module: module.into(),
            ranks: None,
            inputs: None,
            only: None,
            output: None,
            order: None,
            order_for: Vec::new(),
            backend: Backend::Threads,
            steps: 1,
            timeout: Nanos(60e9),
            loop_timeout: None,
            emulate_link: None,
            seed: 0,
            custom_calls: Vec::new(),
            threads_per_rank: None,
            compare: false,
            tune: None,
            memory_budgets: Vec::new(),
            order_out: None,
            profile_out: None,
            json: false,
            summary: Output::stdout(),
            stands_for: None,
            panic: None,
            orders: OrderArgs::default(),
            debug: DebugArgs::default(),
            artifacts: ArtifactArgs::default(),
            pictures: PictureArgs::default(),
            machine: MachineArgs::default(),
        }
    }
}

impl Verify {
    /// An order that may need any memory.
    pub fn new(graph: impl Into<Input>, order: impl Into<Input>) -> Verify {
        Verify {
            graph: graph.into(),
            order: order.into(),
            run: false,
            seeds: 3,
            run_limit: Nanos(600e9),
            memory_budget: None,
            collective_order: CollectiveOrder::Free,
            order_collectives: None,
        }
    }
}

impl Analyze {
    /// Traces, one for each rank.
    pub fn new(traces: Vec<Input>) -> Analyze {
        Analyze { traces, output: None, json: false, profile_out: None, report: None, top: TOP }
    }
}

impl Timeline {
    /// A measured step.
    pub fn new(step: impl Into<Input>) -> Timeline {
        Timeline {
            step: step.into(),
            output: None,
            json: false,
            pictures: PictureArgs::default(),
            top: TOP,
        }
    }
}

/// An option's value by name, or an error that lists the valid ones.
pub fn choice<T: ValueEnum>(name: &str) -> Result<T, String> {
    T::from_str(name, false).map_err(|_| {
        let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let known: Vec<String> = values.map(|value| value.get_name().to_owned()).collect();
        format!("[possible values: {}]", known.join(", "))
    })
}

/// A time such as `4us`.
pub fn duration(text: &str) -> Result<Nanos, String> {
    crate::args::duration(text)
}

/// A time that something may take, such as `60s`.
pub fn limit(text: &str) -> Result<Nanos, String> {
    crate::args::limit(text)
}

/// How much slower something is: a factor from 1 to 100.
pub fn slowdown(factor: f64) -> Result<f64, String> {
    crate::args::in_slowdowns(factor)
}

/// How much faster communication is: a factor such as 2.
pub fn bandwidth(factor: f64) -> Result<f64, String> {
    crate::args::in_bandwidths(factor)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    /// What is made of arguments without options.
    fn parsed(arguments: &[&str]) -> String {
        let args = Args::try_parse_from(std::iter::once(&"halflap").chain(arguments));
        match args.unwrap_or_else(|error| panic!("{error}")).command {
            Command::Schedule(schedule) => format!("{schedule:?}"),
            Command::Simulate(simulate) => format!("{:?}", simulate.of),
            Command::WhatIf(what_if) => format!("{what_if:?}"),
            Command::Verify(verify) => format!("{verify:?}"),
            Command::Analyze(analyze) => format!("{analyze:?}"),
            Command::Timeline(timeline) => format!("{timeline:?}"),
            Command::Run(run) => format!("{run:?}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_have_the_defaults_of_the_command() {
        assert_eq!(parsed(&["schedule", "g"]), format!("{:?}", Schedule::new("g")));
        assert_eq!(parsed(&["simulate", "g"]), format!("{:?}", Ordered::new("g", None)));
        assert_eq!(
            parsed(&["simulate", "g", "o"]),
            format!("{:?}", Ordered::new("g", Some("o".into())))
        );
        assert_eq!(parsed(&["what-if", "g"]), format!("{:?}", WhatIf::new("g", None)));
        assert_eq!(parsed(&["verify", "g", "o"]), format!("{:?}", Verify::new("g", "o")));
        let traces = vec!["a".into(), "b".into()];
        assert_eq!(parsed(&["analyze", "a", "b"]), format!("{:?}", Analyze::new(traces)));
        assert_eq!(parsed(&["run", "m"]), format!("{:?}", Run::new("m")));
        assert_eq!(parsed(&["timeline", "s"]), format!("{:?}", Timeline::new("s")));
    }
}
