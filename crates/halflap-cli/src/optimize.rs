//! `halflap schedule` without passes: the optimizer.

use std::time::Instant;

use halflap::explain::{Explanation, Limits, explain};
use halflap::graph::Graph;
use halflap::memory::{Budget, Timeline};
use halflap::optimize::{OptimizeError, Optimized, Task, optimize};
use halflap::order::Order;
use halflap::report::page::Shown;
use halflap::report::{
    self, Explained, OptimizerRun, Played, Summary, Timed, against_bound, count, describe_trust, labelled,
};
use halflap::schedule::Schedule;
use halflap::simulate::{Bound, Machine};
use halflap::trust::Trust;
use halflap::units::{Bytes, Nanos};

use crate::args::{self, ChainWhich, EffortArg, SearchArgs};
use crate::exit::Failed;
use crate::files;
use crate::machine;
use crate::pictures;
use crate::progress::Bar;
use crate::schedule::ROWS;
use crate::simulate::{host_line, program};
use crate::terminal;

/// What a search led to.
pub struct Outcome {
    pub schedule: Schedule,
    pub bound: Bound,
    pub trust: Trust,
    pub input_kept: bool,
    pub limit: Bytes,
    pub seconds: f64,
}

pub fn run(args: &args::Schedule, verbose: bool) -> Result<(), Failed> {
    let started = Instant::now();
    let (graph, machine) = machine::load(&args.graph, &args.machine)?;
    let graph = files::chained(graph, args.order_collectives);
    let read_seconds = started.elapsed().as_secs_f64();
    let peak_before = Timeline::of(&graph, &Order::of_input(&graph)).peak;
    let found = search(&graph, &machine, args, peak_before)?;
    if verbose {
        eprintln!("read {} in {:.1} ms", count(graph.len(), "node"), read_seconds * 1e3);
    }
    let summary = Summary::of(&graph, &found.schedule, &machine, found.bound);
    let effort = args.search.effort.unwrap_or(EffortArg::Default);
    let timed = Timed {
        graph: &graph,
        schedule: &found.schedule,
        summary: &summary,
        compat: None,
        order_collectives: args.order_collectives.map(ChainWhich::name),
        read_seconds,
        pass_seconds: &[],
        optimizer: Some(OptimizerRun {
            seconds: found.seconds,
            effort: effort.name(),
            memory_limit: found.limit,
            input_kept: found.input_kept,
            trust: &found.trust,
        }),
    };
    let printed = crate::schedule::write(args, &timed)?;
    if printed && !args.pictures.any() {
        return Ok(());
    }
    let limits = Limits { memory: found.limit, bound: found.bound };
    let explanation = explain(&graph, &machine, &found.schedule.order, limits);
    let input = Order::of_input(&graph);
    let on = (&graph, &machine);
    let orders = [Played::new("before", on, &input), Played::new("after", on, &found.schedule.order)];
    args.pictures.draw(&[Shown {
        title: &pictures::title(&args.graph),
        part: "",
        command: "schedule",
        facts: vec![("program", program(&graph)), ("trust", describe_trust(&found.trust))],
        orders: &orders,
        explanation: &explanation,
        memory_limit: Some(found.limit),
        rows: &[],
    }])?;
    if printed { Ok(()) } else { show(args, &timed, (&found, &explanation, &orders[0])) }
}

/// The best order of a graph whose limit is measured by what it needed before.
pub fn search(graph: &Graph, machine: &Machine, args: &args::Schedule, peak_before: Bytes) -> Result<Outcome, Failed> {
    let is_chained = args.order_collectives.is_some();
    search_for(graph, machine, &Wanted { search: &args.search, is_chained, path: &args.graph, peak_before })
}

/// What an order is to be like.
pub struct Wanted<'a> {
    pub search: &'a SearchArgs,
    /// Whether collectives were chained.
    pub is_chained: bool,
    /// Where the graph came from.
    pub path: &'a str,
    /// What the graph needed before, which the limit is measured by.
    pub peak_before: Bytes,
}

/// The best order of a graph.
pub fn search_for(graph: &Graph, machine: &Machine, wanted: &Wanted<'_>) -> Result<Outcome, Failed> {
    let (args, peak_before) = (wanted.search, wanted.peak_before);
    let limit = args.memory_budget.unwrap_or(Budget::Times(1.0)).limit(peak_before);
    let bar = Bar::new("optimizing");
    let started = Instant::now();
    let task = Task {
        graph,
        machine,
        memory_limit: limit,
        edges: machine::edges(args.collective_order, wanted.is_chained),
        known: &[],
        effort: machine::effort(args.effort.unwrap_or(EffortArg::Default)),
        threads: machine::threads(args.threads),
        progress: &|part| bar.show(part),
    };
    let found = optimize(&task);
    let seconds = started.elapsed().as_secs_f64();
    bar.clear();
    let found = found.map_err(|error| match error {
        OptimizeError::NoOrderWithin { .. } => Failed::in_file(files::name_of(wanted.path), error),
        OptimizeError::Unproved(_) => Failed::OurBug(error.to_string()),
        OptimizeError::Stopped => Failed::Stopped,
    })?;
    let Optimized { order, bound, peak, trust, input_kept, .. } = found;
    let schedule = Schedule { order, peak_before, peak, passes: Vec::new() };
    Ok(Outcome { schedule, bound, trust, input_kept, limit, seconds })
}

fn show(
    args: &args::Schedule,
    timed: &Timed<'_>,
    (found, explanation, before): (&Outcome, &Explanation, &Played<'_>),
) -> Result<(), Failed> {
    let Timed { graph, summary, .. } = *timed;
    if args.show {
        files::print(&report::listing(graph, &found.schedule.order))?;
        files::print("\n")?;
    }
    let saved = match summary.step_time_before {
        Nanos::ZERO => 0.0,
        whole => 100.0 * (1.0 - summary.step_time.0 / whole.0),
    };
    let against_bound = against_bound(summary.step_time, summary.bound);
    let step = format!("{} -> {} ({saved:.1}% saved), {against_bound}", summary.step_time_before, summary.step_time);
    let lines = [
        ("program", program(graph)),
        ("communication", summary.communication.to_string()),
        ("step time", step),
        ("exposed", format!("{} -> {}", summary.simulated_exposed_before, summary.simulated_exposed)),
        ("peak memory", format!("{} -> {}, limit {}", summary.peak_before, summary.peak, found.limit)),
        ("trust", describe_trust(&found.trust)),
    ];
    let style = terminal::style();
    let host = host_line(&explanation.simulation);
    let mut text: String = lines.iter().chain(&host).map(|(label, value)| labelled(label, value, &style)).collect();
    if found.input_kept {
        text.push_str("The input order is kept: in most variations it is better than what was found.\n");
    }
    text.push('\n');
    let explained = Explained { graph, explanation, was: Some(&before.simulation) };
    text.push_str(&report::render_explanation(&explained, ROWS, &style));
    text.push_str(&format!("optimized in {:.2} s\n", found.seconds));
    files::print(&text)
}
