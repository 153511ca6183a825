//! `halflap schedule` without passes: the optimizer.

use std::time::Instant;

use halflap::explain::explain;
use halflap::graph::Graph;
use halflap::memory::{Budget, Timeline};
use halflap::optimize::{OptimizeError, Optimized, Task, optimize};
use halflap::order::Order;
use halflap::report::{self, OptimizerRun, Summary, Timed, against_bound, count, describe_trust, total_exposed};
use halflap::schedule::Schedule;
use halflap::simulate::{Machine, simulate};
use halflap::trust::Trust;
use halflap::units::{Bytes, Nanos};

use crate::args::{self, ChainWhich, CollectiveOrder, EffortArg};
use crate::exit::Failed;
use crate::files;
use crate::machine;
use crate::progress::Bar;
use crate::schedule::ROWS;

/// What a search led to.
struct Outcome {
    schedule: Schedule,
    trust: Trust,
    input_kept: bool,
    limit: Bytes,
    seconds: f64,
}

pub fn run(args: &args::Schedule, verbose: bool) -> Result<(), Failed> {
    let started = Instant::now();
    let (graph, machine) = machine::load(&args.graph, &args.machine)?;
    let graph = files::chained(graph, args.order_collectives);
    let read_seconds = started.elapsed().as_secs_f64();
    let found = search(&graph, &machine, args)?;
    if verbose {
        eprintln!("read {} in {:.1} ms", count(graph.len(), "node"), read_seconds * 1e3);
    }
    let summary = Summary::of(&graph, &found.schedule, &machine);
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
    if !crate::schedule::write(args, &timed)? {
        show(args, &timed, (&machine, &found))?;
    }
    Ok(())
}

fn search(graph: &Graph, machine: &Machine, args: &args::Schedule) -> Result<Outcome, Failed> {
    let peak_before = Timeline::of(graph, &Order::of_input(graph)).peak;
    let limit = args.search.memory_budget.unwrap_or(Budget::Times(1.0)).limit(peak_before);
    // Who chains collectives wants them kept.
    let order = args.search.collective_order.unwrap_or(match args.order_collectives {
        Some(_) => CollectiveOrder::Kept,
        None => CollectiveOrder::Free,
    });
    let bar = Bar::new("optimizing");
    let started = Instant::now();
    let task = Task {
        graph,
        machine,
        memory_limit: limit,
        edges: machine::edges(order),
        known: &[],
        effort: machine::effort(args.search.effort.unwrap_or(EffortArg::Default)),
        threads: machine::threads(args.search.threads),
        progress: &|part| bar.show(part),
    };
    let found = optimize(&task);
    let seconds = started.elapsed().as_secs_f64();
    bar.clear();
    let found = found.map_err(|error| match error {
        OptimizeError::NoOrderWithin { .. } => Failed::in_file(files::name_of(&args.graph), error),
        OptimizeError::Unproved(_) => Failed::OurBug(error.to_string()),
    })?;
    let Optimized { order, peak, trust, input_kept, .. } = found;
    let schedule = Schedule { order, peak_before, peak, passes: Vec::new() };
    Ok(Outcome { schedule, trust, input_kept, limit, seconds })
}

fn show(args: &args::Schedule, timed: &Timed<'_>, (machine, found): (&Machine, &Outcome)) -> Result<(), Failed> {
    let Timed { graph, summary, .. } = *timed;
    let order = &found.schedule.order;
    if args.show {
        files::print(&report::listing(graph, order))?;
        files::print("\n")?;
    }
    let before = simulate(graph, Order::of_input(graph).as_slice(), machine);
    let explanation = explain(graph, machine, order, found.limit);
    let saved = match summary.step_time_before {
        Nanos::ZERO => 0.0,
        whole => 100.0 * (1.0 - summary.step_time.0 / whole.0),
    };
    let lines = [
        ("program", format!("{}, {}", count(summary.nodes, "node"), count(summary.rows.len(), "collective"))),
        ("communication", summary.communication.to_string()),
        (
            "step time",
            format!(
                "{} -> {} ({saved:.1}% saved), {}",
                summary.step_time_before,
                summary.step_time,
                against_bound(summary.step_time, summary.bound)
            ),
        ),
        ("exposed", format!("{} -> {}", total_exposed(&before), total_exposed(&explanation.simulation))),
        ("peak memory", format!("{} -> {}, limit {}", summary.peak_before, summary.peak, found.limit)),
        ("trust", describe_trust(&found.trust)),
    ];
    let mut text = String::new();
    for (label, value) in lines {
        text.push_str(&format!("{label:<14} {value}\n"));
    }
    if found.input_kept {
        text.push_str("The input order is kept: in most variations it is better than what was found.\n");
    }
    text.push('\n');
    text.push_str(&report::render_explanation(graph, &explanation, Some(&before), ROWS));
    text.push_str(&format!("optimized in {:.2} s\n", found.seconds));
    files::print(&text)
}
