//! `halflap schedule` on a module.

use halflap::graph::Edges;
use halflap::hlo::{Place, write};
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::report::{OptimizerRun, Summary, Timed, collective_order, describe_trust};
use halflap::simulate::Bound;
use serde_json::{Value, json};

use super::draw::draw;
use super::show::{Section, render_schedule};
use super::{Done, Ready, Source};
use crate::args::{self, EffortArg, Emit};
use crate::exit::Failed;
use crate::files;
use crate::machine;
use crate::optimize::{self, Outcome};

pub fn schedule(args: &args::Schedule, verbose: bool) -> Result<(), Failed> {
    refuse(args)?;
    args.pictures.check(&args.graph, args.output.as_deref())?;
    let source = Source::read(&args.graph, &args.machine)?;
    if verbose {
        eprintln!("read {} instructions in {:.1} ms", source.module.len(), source.read_seconds * 1e3);
    }
    let all = source.walk(|ready| find(&source, ready, args))?;
    let edges = edges(args);
    let sections: Vec<Section<'_>> = all.iter().map(|done| section(done, edges)).collect();
    draw(&source, &sections, (&args.pictures, &args.which), "schedule")?;
    let printed = match args.emit.unwrap_or(Emit::Schedule) {
        Emit::Schedule => put_schedule(&source, &all, args)?,
        Emit::Hlo => put_module(&source, &all, args)?,
    };
    if printed {
        return Ok(());
    }
    files::print(&render_schedule(&source, &sections, args)?)
}

/// What is for torch's graphs alone.
fn refuse(args: &args::Schedule) -> Result<(), Failed> {
    let refused = |what: &str, why: &str| Err(Failed::BadInput(format!("{what} is not for HLO modules: {why}")));
    match args {
        _ if !args.passes.is_empty() => refused("--passes", "torch's passes are for graphs of torch"),
        _ if args.compat.is_some() => refused("--compat", "it says which torch is followed"),
        _ if args.check_memory => refused("--check-memory", "the optimizer keeps no ledger"),
        _ if !args.settings.is_empty() => refused("--set", "torch's settings are those of its passes"),
        _ if args.json && args.emit == Some(Emit::Hlo) => {
            Err(Failed::BadInput("--json prints the schedule and --emit hlo the module: choose one".to_owned()))
        }
        _ if args.order_collectives.is_some() => Err(no_chains()),
        _ => Ok(()),
    }
}

/// Why collectives of a module are not chained.
pub(super) fn no_chains() -> Failed {
    let why = "all devices run the same module, so that any order will do";
    Failed::BadInput(format!("--order-collectives is not for HLO modules: {why}"))
}

/// The best order of a computation; where nothing can run beside compute, its own.
fn find(source: &Source<'_>, ready: &Ready, args: &args::Schedule) -> Result<(Order, Option<Outcome>), Failed> {
    if !ready.unit.communicates() {
        return Ok((Order::of_input(&ready.graph), None));
    }
    let found =
        optimize::search(&ready.graph, &ready.machine, args, ready.unit.peak_before).map_err(
            |failed| match failed {
                Failed::BadInput(problem) => {
                    let name = source.module.computation_name(ready.unit.computation);
                    Failed::BadInput(format!("{problem} (computation '{name}')"))
                }
                other => other,
            },
        )?;
    Ok((found.schedule.order.clone(), Some(found)))
}

fn edges(args: &args::Schedule) -> Edges {
    machine::edges(args.search.collective_order, false)
}

/// A computation that does not communicate is as fast as it can be.
fn section(done: &Done<Option<Outcome>>, edges: Edges) -> Section<'_> {
    let limit = done.result.as_ref().map(|found| found.limit);
    let bound = done.result.as_ref().map(|found| found.bound);
    Section {
        ready: &done.ready,
        order: &done.order,
        step_time: (done.step_time_before, done.step_time),
        exposed: done.exposed(),
        exposed_in_all: done.exposed_in_all,
        limit: limit.unwrap_or(done.ready.unit.peak_before),
        bound: bound.unwrap_or(Bound { time: done.step_time, edges }),
        only: None,
        trust: done.result.as_ref().map(|found| format!("in its own order: {}", describe_trust(&found.trust))),
        seconds: done.result.as_ref().map_or(0.0, |found| found.seconds),
    }
}

/// Writes or prints the module in the new orders; says whether it was printed.
fn put_module(source: &Source<'_>, all: &[Done<Option<Outcome>>], args: &args::Schedule) -> Result<bool, Failed> {
    let places = |done: &Done<Option<Outcome>>| -> Vec<Place> {
        done.order.as_slice().iter().map(|&op| done.ready.unit.lowered.places[op]).collect()
    };
    let orders: Vec<_> = all.iter().map(|done| (done.ready.unit.computation, places(done))).collect();
    let text = write(&source.module, &orders);
    files::put(args.output.as_deref().unwrap_or("-"), &text)
}

/// Writes or prints `halflap.schedule/1`; says whether it was printed.
fn put_schedule(source: &Source<'_>, all: &[Done<Option<Outcome>>], args: &args::Schedule) -> Result<bool, Failed> {
    if args.output.is_none() && !args.json {
        return Ok(false);
    }
    let text = format!("{}\n", to_json(source, all, args)?);
    files::put_asked(args.output.as_deref(), args.json, || text)
}

fn to_json(source: &Source<'_>, all: &[Done<Option<Outcome>>], args: &args::Schedule) -> Result<Value, Failed> {
    let mut computations = Vec::new();
    for done in all {
        if let Some(found) = &done.result {
            computations.push(computation_json(source, (done, found), args)?);
        }
    }
    let entry = all.last().ok_or_else(|| Failed::OurBug("a module without an entry was read".to_owned()))?;
    let peak = |order: &Order| Timeline::of(&entry.ready.graph, order).peak;
    Ok(json!({
        "format": "halflap.schedule/1",
        "halflap": env!("CARGO_PKG_VERSION"),
        "module": source.module.name(),
        "device_assumed": source.assumed,
        "collective_order": collective_order(edges(args)),
        "step_time": entry.step_time,
        "step_time_before": entry.step_time_before,
        "exposed": entry.exposed_in_all.1,
        "exposed_before": entry.exposed_in_all.0,
        "peak_memory": peak(&entry.order),
        "peak_memory_before": entry.ready.unit.peak_before,
        "read_seconds": source.read_seconds,
        "computations": computations,
    }))
}

fn computation_json(
    source: &Source<'_>,
    (done, found): (&Done<Option<Outcome>>, &Outcome),
    args: &args::Schedule,
) -> Result<Value, Failed> {
    let Ready { graph, machine, unit, .. } = &done.ready;
    let summary = Summary::of(graph, &found.schedule, machine, found.bound);
    let timed = Timed {
        graph,
        schedule: &found.schedule,
        summary: &summary,
        compat: None,
        order_collectives: None,
        read_seconds: source.read_seconds,
        pass_seconds: &[],
        optimizer: Some(OptimizerRun {
            seconds: found.seconds,
            effort: args.search.effort.unwrap_or(EffortArg::Default).name(),
            memory_limit: found.limit,
            input_kept: found.input_kept,
            trust: &found.trust,
        }),
    };
    let fields = serde_json::to_value(&timed).map_err(|error| Failed::OurBug(error.to_string()))?;
    let mut computation = json!({
        "computation": source.module.computation_name(unit.computation),
        "runs": unit.runs,
        "caller": unit.caller.map(|caller| source.module.instruction_name(caller.instr)),
    });
    if let (Some(into), Value::Object(fields)) = (computation.as_object_mut(), fields) {
        // What all computations have in common stands above them.
        let common = ["format", "halflap", "collective_order", "read_seconds"];
        into.extend(fields.into_iter().filter(|(key, _)| !common.contains(&key.as_str())));
    }
    Ok(computation)
}
