//! `halflap simulate` and `halflap explain`: an order in time, and why it is no shorter.

use halflap::explain::{Explanation, Limits, explain};
use halflap::graph::Graph;
use halflap::ids::{Id, OpId};
use halflap::memory::{Budget, Timeline};
use halflap::order::Order;
use halflap::report::page::Shown;
use halflap::report::{
    Explained, Played, Style, against_bound, count, labelled, printable, render_explanation, simulation_json,
    total_exposed, waiting_for_host,
};
use halflap::simulate::{Machine, Simulation, lower_bound};
use halflap::units::{Bytes, Nanos};

use crate::args;
use crate::exit::Failed;
use crate::files;
use crate::machine;
use crate::pictures;
use crate::recorded::{Collectives, Recorded};
use crate::schedule::ROWS;
use crate::terminal;

pub fn simulate(args: &args::Simulate) -> Result<(), Failed> {
    let ran = Ran::new(&args.of, None)?;
    ran.draw(&args.of, "simulate")?;
    if ran.write(&args.of)? {
        return Ok(());
    }
    let style = terminal::style();
    let mut text = ran.headline(&style);
    let simulation = &ran.explanation.simulation;
    for (stream, idle) in simulation.stream_idle.iter().filter(|(_, idle)| **idle < simulation.step_time) {
        text.push_str(&labelled(&format!("stream {}", stream.index()), &format!("idle {idle}"), &style));
    }
    text.push('\n');
    text.push_str(&ran.table(ROWS, &style));
    files::print(&text)
}

pub fn explain_order(args: &args::Explain) -> Result<(), Failed> {
    let mut ran = Ran::new(&args.of, args.memory_budget)?;
    let only = args.node.as_deref().map(|name| named(&ran.graph, name)).transpose()?;
    ran.draw(&args.of, "explain")?;
    let style = terminal::style();
    let mut text = ran.headline(&style);
    if let (Some(collectives), Some(name)) = (only, &args.node) {
        ran.explanation.held.retain(|held| collectives.contains(&held.collective));
        if ran.explanation.held.is_empty() {
            text.push_str(&format!("{name} is hidden: nobody waits for it\n"));
        }
        for (what, known) in collectives.iter().flat_map(|&op| ran.graph.provenance(op).known()) {
            text.push_str(&labelled(what, &printable(known), &style));
        }
    }
    if ran.write(&args.of)? {
        return Ok(());
    }
    text.push('\n');
    text.push_str(&ran.table(usize::MAX, &style));
    files::print(&text)
}

/// The collective of that name, or those that a wait of that name belongs to.
pub fn named(graph: &Graph, name: &str) -> Result<Vec<OpId>, Failed> {
    let refused = |why: &str| Failed::BadInput(format!("--node: '{name}' {why}"));
    let op = graph.find(name).ok_or_else(|| refused("is not a node of the graph"))?;
    match graph.waits_for(op) {
        [] if graph.kind(op).is_collective() => Ok(vec![op]),
        [] => Err(refused("is neither a collective nor the wait of one")),
        collectives => Ok(collectives.to_vec()),
    }
}

/// An order that was looked at.
struct Ran {
    graph: Graph,
    machine: Machine,
    order: Order,
    limit: Bytes,
    explanation: Explanation,
}

impl Ran {
    fn new(args: &args::Ordered, budget: Option<Budget>) -> Result<Ran, Failed> {
        if args.graph == "-" && args.order.as_deref() == Some("-") {
            return Err(Failed::BadInput("only one of graph and order can come from standard input".to_owned()));
        }
        args.pictures.check(&args.graph, args.output.as_deref())?;
        let recorded = Recorded::read(args.order.as_deref())?;
        let Collectives { chain, edges } = recorded.collectives(&args.collectives)?;
        let (graph, machine) = machine::load(&args.graph, &args.machine)?;
        let graph = files::chained(graph, chain);
        let order = machine::order(&graph, args.order.as_deref(), edges)?;
        let limit = recorded.limit(budget, None, Timeline::of(&graph, &Order::of_input(&graph)).peak);
        let limits = Limits { memory: limit, bound: lower_bound(&graph, &machine, edges) };
        let explanation = explain(&graph, &machine, &order, limits);
        Ok(Ran { graph, machine, order, limit, explanation })
    }

    /// Draws the order, below the input order if it is another.
    fn draw(&self, args: &args::Ordered, command: &'static str) -> Result<(), Failed> {
        if !args.pictures.any() {
            return Ok(());
        }
        let input = Order::of_input(&self.graph);
        let on = (&self.graph, &self.machine);
        let orders = match args.order {
            Some(_) => vec![Played::new("before", on, &input), Played::new("after", on, &self.order)],
            None => vec![Played::new("input order", on, &input)],
        };
        args.pictures.draw(&[Shown {
            title: &pictures::title(&args.graph),
            part: "",
            command,
            facts: vec![("program", program(&self.graph))],
            orders: &orders,
            explanation: &self.explanation,
            memory_limit: Some(self.limit),
            rows: &[],
        }])
    }

    fn headline(&self, style: &Style) -> String {
        let simulation = &self.explanation.simulation;
        let step = format!("{}, {}", simulation.step_time, against_bound(simulation.step_time, self.explanation.bound));
        let lines = [
            ("program", program(&self.graph)),
            ("step time", step),
            ("exposed", total_exposed(simulation).to_string()),
            ("peak memory", self.explanation.peak.bytes.to_string()),
            ("compute", format!("idle {}", simulation.compute_idle)),
        ];
        let host = host_line(simulation);
        lines.iter().chain(&host).map(|(label, value)| labelled(label, value, style)).collect()
    }

    fn table(&self, most: usize, style: &Style) -> String {
        let explained = Explained { graph: &self.graph, explanation: &self.explanation, was: None };
        render_explanation(&explained, most, style)
    }

    /// Writes the JSON, if asked; says whether it took the place of the text.
    fn write(&self, args: &args::Ordered) -> Result<bool, Failed> {
        let text = || format!("{}\n", simulation_json(&self.graph, &self.order, &self.explanation));
        files::put_asked(args.output.as_deref(), args.json, text)
    }
}

/// How long compute waits for the host, if it does.
pub fn host_line(simulation: &Simulation) -> Option<(&'static str, String)> {
    let waiting = waiting_for_host(simulation);
    (waiting > Nanos::ZERO).then(|| ("host", format!("compute waits {waiting} for it")))
}

/// What a program is, in a few words.
pub fn program(graph: &Graph) -> String {
    let collectives = graph.ops().filter(|&op| graph.kind(op).is_collective()).count();
    format!("{}, {}", count(graph.len(), "node"), count(collectives, "collective"))
}
