//! `halflap simulate` and `halflap explain`: an order in time, and why it is no shorter.

use halflap::explain::{Explanation, explain};
use halflap::graph::Graph;
use halflap::ids::{Id, OpId};
use halflap::memory::{Budget, Timeline};
use halflap::order::Order;
use halflap::report::{against_bound, count, render_explanation, simulation_json, total_exposed};

use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::machine;
use crate::schedule::ROWS;

pub fn simulate(args: &args::Simulate) -> Result<(), Failed> {
    let (graph, order, explanation) = run(&args.of, Budget::Times(1.0))?;
    let simulation = &explanation.simulation;
    if write(&args.of, &graph, &order, &explanation)? {
        return Ok(());
    }
    let mut text = headline(&graph, &explanation);
    for (stream, idle) in simulation.stream_idle.iter().filter(|(_, idle)| **idle < simulation.step_time) {
        text.push_str(&format!("{:<14} idle {idle}\n", format!("stream {}", stream.index())));
    }
    text.push('\n');
    text.push_str(&render_explanation(&graph, &explanation, None, ROWS));
    files::print(&text)
}

pub fn explain_order(args: &args::Explain) -> Result<(), Failed> {
    let (graph, order, mut explanation) = run(&args.of, args.memory_budget)?;
    let mut text = headline(&graph, &explanation);
    if let Some(name) = &args.node {
        let collectives = named(&graph, name)?;
        explanation.held.retain(|held| collectives.contains(&held.collective));
        if explanation.held.is_empty() {
            text.push_str(&format!("{name} is hidden: nobody waits for it\n"));
        }
    }
    if write(&args.of, &graph, &order, &explanation)? {
        return Ok(());
    }
    text.push('\n');
    text.push_str(&render_explanation(&graph, &explanation, None, usize::MAX));
    files::print(&text)
}

/// The collective of that name, or those that a wait of that name belongs to.
fn named(graph: &Graph, name: &str) -> Result<Vec<OpId>, Failed> {
    let refused = |why: &str| Failed::BadInput(format!("--node: '{name}' {why}"));
    let op = graph.find(name).ok_or_else(|| refused("is not a node of the graph"))?;
    match graph.waits_for(op) {
        [] if graph.kind(op).is_collective() => Ok(vec![op]),
        [] => Err(refused("is neither a collective nor the wait of one")),
        collectives => Ok(collectives.to_vec()),
    }
}

fn run(args: &args::Ordered, budget: Budget) -> Result<(Graph, Order, Explanation), Failed> {
    if args.graph == "-" && args.order.as_deref() == Some("-") {
        return Err(Failed::BadInput("only one of graph and order can come from standard input".to_owned()));
    }
    let (graph, machine) = machine::load(&args.graph, &args.machine)?;
    let order = machine::order(&graph, args.order.as_deref())?;
    let limit = budget.limit(Timeline::of(&graph, &Order::of_input(&graph)).peak);
    let explanation = explain(&graph, &machine, &order, limit);
    Ok((graph, order, explanation))
}

fn headline(graph: &Graph, explanation: &Explanation) -> String {
    let simulation = &explanation.simulation;
    let collectives = graph.ops().filter(|&op| graph.kind(op).is_collective()).count();
    let exposed = total_exposed(simulation);
    let step = format!("{}, {}", simulation.step_time, against_bound(simulation.step_time, explanation.bound));
    format!(
        "{:<14} {}, {}\n{:<14} {step}\n{:<14} {exposed}\n{:<14} {}\n{:<14} idle {}\n",
        "program",
        count(graph.len(), "node"),
        count(collectives, "collective"),
        "step time",
        "exposed",
        "peak memory",
        explanation.peak.bytes,
        "compute",
        simulation.compute_idle,
    )
}

/// Writes the JSON, if asked; says whether it took the place of the text.
fn write(args: &args::Ordered, graph: &Graph, order: &Order, explanation: &Explanation) -> Result<bool, Failed> {
    let Some(path) = &args.output else { return Ok(false) };
    files::put(path, &format!("{}\n", simulation_json(graph, order, explanation)))
}
