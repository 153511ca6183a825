//! `halflap schedule`: run passes on a graph.

use std::time::Instant;

use halflap::explain::Limits;
use halflap::graph::Graph;
use halflap::order::Order;
use halflap::overlap::Fidelity;
use halflap::pass::{Mismatch, Options, Settings};
use halflap::report::page::Shown;
use halflap::report::{self, Played, Summary, Timed};
use halflap::schedule::{self, Failure, Request, Schedule};
use halflap::simulate::{Machine, lower_bound};

use crate::args::{self, ChainWhich, Compat, Emit};
use crate::exit::Failed;
use crate::files;
use crate::machine;
use crate::optimize;
use crate::pictures;
use crate::progress::Stopwatch;
use crate::simulate::program;
use crate::terminal;

/// How many collectives the table on the terminal has.
pub const ROWS: usize = 20;

pub fn run(args: &args::Schedule, verbose: bool) -> Result<(), Failed> {
    if args.emit == Some(Emit::Hlo) {
        return Err(Failed::in_file(files::name_of(&args.graph), "is no HLO module: --emit hlo writes one again"));
    }
    args.pictures.check(&args.graph, args.output.as_deref())?;
    if args.passes.is_empty() {
        refuse_without_passes(args)?;
        return optimize::run(args, verbose);
    }
    if args.search.any() {
        let problem = "--memory-budget, --collective-order, --effort and --threads are for the optimizer: leave out --passes, or use --set";
        return Err(Failed::BadInput(problem.to_owned()));
    }
    run_passes(args, verbose)
}

/// What is only for passes, and says so where none are named.
fn refuse_without_passes(args: &args::Schedule) -> Result<(), Failed> {
    let needs = |what: &str, why: &str| Err(Failed::BadInput(format!("{what} needs --passes: {why}")));
    match args {
        _ if args.compat.is_some() => needs("--compat", "torch has no default sequence to be compatible with"),
        _ if args.check_memory => needs("--check-memory", "the optimizer keeps no ledger"),
        _ if !args.settings.is_empty() => needs("--set", "torch's settings are those of its passes"),
        _ => Ok(()),
    }
}

fn run_passes(args: &args::Schedule, verbose: bool) -> Result<(), Failed> {
    let request = request(args)?;
    let started = Instant::now();
    let (graph, machine) = machine::load(&args.graph, &args.machine)?;
    let read_seconds = started.elapsed().as_secs_f64();
    let graph = files::chained(graph, args.order_collectives);
    if verbose {
        eprintln!("read {} nodes in {:.1} ms", graph.len(), read_seconds * 1e3);
    }
    let mut stopwatch = Stopwatch::new();
    let schedule = schedule::run(&graph, &request, &mut stopwatch).map_err(|failure| explain(&graph, failure, args))?;
    let bound = lower_bound(&graph, &machine, request.edges());
    let summary = Summary::of(&graph, &schedule, &machine, bound);
    let timed = Timed {
        graph: &graph,
        schedule: &schedule,
        summary: &summary,
        compat: args.compat.map(|Compat::Torch210| "torch-2.10"),
        order_collectives: args.order_collectives.map(ChainWhich::name),
        read_seconds,
        pass_seconds: &stopwatch.seconds,
        optimizer: None,
    };
    warn_of_excess(&schedule);
    draw(args, &timed, &machine)?;
    if write(args, &timed)? { Ok(()) } else { show(args, &timed) }
}

fn draw(args: &args::Schedule, timed: &Timed<'_>, machine: &Machine) -> Result<(), Failed> {
    if !args.pictures.any() {
        return Ok(());
    }
    let Timed { graph, schedule, summary, .. } = *timed;
    let input = Order::of_input(graph);
    let limits = Limits { memory: schedule.peak_before.max(schedule.peak), bound: summary.bound };
    let explanation = halflap::explain::explain(graph, machine, &schedule.order, limits);
    let passes: Vec<&str> = schedule.passes.iter().map(|run| run.pass.name()).collect();
    args.pictures.draw(&[Shown {
        title: &pictures::title(&args.graph),
        part: "",
        command: "schedule",
        facts: vec![("program", program(graph)), ("passes", passes.join(", "))],
        orders: &[
            Played::new("before", (graph, machine), &input),
            Played::new("after", (graph, machine), &schedule.order),
        ],
        explanation: &explanation,
        memory_limit: None,
        rows: &summary.rows,
    }])
}

/// Writes the schedule where it was asked for; says whether that took the place of the summary.
pub fn write(args: &args::Schedule, timed: &Timed<'_>) -> Result<bool, Failed> {
    if args.output.is_none() && !args.json {
        return Ok(false);
    }
    let mut json = Vec::new();
    report::write_schedule(timed, &mut json).map_err(|error| Failed::OurBug(error.to_string()))?;
    files::put_asked(args.output.as_deref(), args.json, || String::from_utf8_lossy(&json).into_owned())
}

fn show(args: &args::Schedule, timed: &Timed<'_>) -> Result<(), Failed> {
    if args.show {
        files::print(&report::listing(timed.graph, &timed.schedule.order))?;
        files::print("\n")?;
    }
    files::print(&report::render(timed.graph, timed.summary, ROWS, &terminal::style()))?;
    for (run, seconds) in timed.schedule.passes.iter().zip(timed.pass_seconds) {
        let moves = report::count(run.moves, "move");
        files::print(&format!("{}: {moves} in {:.3} ms\n", run.pass.name(), seconds * 1e3))?;
    }
    Ok(())
}

fn request(args: &args::Schedule) -> Result<Request, Failed> {
    let mut settings = Settings::default();
    if args.order_collectives.is_some() {
        keep_collective_order(&mut settings, args.compat);
    }
    for assignment in &args.settings {
        settings.assign(assignment).map_err(|error| Failed::BadInput(format!("--set: {error}")))?;
    }
    let fidelity = if args.compat.is_some() { Fidelity::Torch } else { Fidelity::Mended };
    let options = Options { settings, fidelity };
    Ok(Request { passes: args.passes.clone(), options, check_memory: args.check_memory })
}

/// Who asks for an order of collectives wants it kept. Torch's iterative passes do not look at it.
fn keep_collective_order(settings: &mut Settings, compat: Option<Compat>) {
    if compat.is_some() {
        files::warn("torch's iterative passes do not look at order-only edges, which --order-collectives adds");
        return;
    }
    settings.reorder.unsafe_collectives_reorder = false;
    settings.sink.unsafe_collectives_reorder = false;
}

/// Torch does not always keep its own budget; where we do as it does, that is said and not hidden.
fn warn_of_excess(schedule: &Schedule) {
    for run in &schedule.passes {
        if let Some(limit) = run.exceeded_limit {
            let name = run.pass.name();
            files::warn(&format!(
                "{name}, as in torch, exceeds its memory budget: {} bytes, limit {} bytes",
                run.peak.0, limit.0
            ));
        }
    }
}

/// Says what broke. A ledger that does not hold is written to a file, with all that is known of it.
fn explain(graph: &Graph, failure: Failure, args: &args::Schedule) -> Failed {
    let Failure::Ledger { pass, mismatch } = &failure else { return Failed::OurBug(failure.to_string()) };
    let path = match args.output.as_deref() {
        Some(output) if !files::is_stdout(output) && !output.starts_with("/dev/") => {
            format!("{output}.ledger-mismatch.json")
        }
        _ => "halflap.ledger-mismatch.json".to_owned(),
    };
    let written = files::write(&path, |mut out| report::write_mismatch(graph, *pass, mismatch, &mut out));
    let where_to_look = match written {
        Ok(()) => format!("{path} has all of it"),
        Err(_) => format!("{path}, which would have all of it, cannot be written"),
    };
    let name = graph.name(mismatch.candidate);
    let problem = format!("{failure} with '{name}': {}. {where_to_look}", what_differs(graph, mismatch));
    if args.compat.is_some() { Failed::TorchDrifts(problem) } else { Failed::OurBug(problem) }
}

fn what_differs(graph: &Graph, mismatch: &Mismatch) -> String {
    let Some(op) = mismatch.first else {
        return format!("the peak is {} bytes and its limit {}", mismatch.truth.peak.0, mismatch.limit.0);
    };
    let (books, truth) = (mismatch.ledger.level(op), mismatch.truth.levels[op]);
    format!(
        "at '{}' it has {} bytes after allocation and {} after freeing; true are {} and {}",
        graph.name(op),
        books.post_alloc.0,
        books.post_free().0,
        truth.post_alloc.0,
        truth.post_free().0
    )
}
