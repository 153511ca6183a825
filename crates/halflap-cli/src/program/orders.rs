//! `simulate`, `explain`, `verify` and `what-if` on a module: given orders, or its own.

use halflap::explain::{Explanation, Limits, explain as explain_order};
use halflap::graph::Edges;
use halflap::ids::OpId;
use halflap::import::read_orders;
use halflap::memory::Budget;
use halflap::order::Order;
use halflap::report::{collective_order, count, simulation_json};
use halflap::simulate::lower_bound;
use halflap::units::Bytes;
use halflap::verify::{Demands, OrderEdges, verify as prove, verify_names};
use serde_json::{Value, json};

use super::draw::draw;
use super::show::{SECTIONS, Section, headline, picked, render_section};
use super::{Done, Ready, Source, chosen};
use crate::args::{self, CollectiveArgs, CollectiveOrder};
use crate::exit::Failed;
use crate::files;
use crate::recorded::Recorded;
use crate::simulate::named;
use crate::terminal;
use crate::what_if::Rules;

/// Orders by the names of computations.
pub(super) struct Orders<'a> {
    path: &'a str,
    of: Vec<(String, Vec<String>)>,
}

impl<'a> Orders<'a> {
    pub(super) fn read(path: &'a str) -> Result<Orders<'a>, Failed> {
        let bytes = files::read(path)?;
        let wrong = |problem: String| Failed::in_file(files::name_of(path), problem);
        let of = read_orders(&bytes).map_err(|error| wrong(error.to_string()))?;
        let is_again = |at: usize| of[..at].iter().any(|(name, _)| *name == of[at].0);
        if let Some(at) = (0..of.len()).find(|&at| is_again(at)) {
            return Err(wrong(format!("it has two orders of computation '{}': there should be one", of[at].0)));
        }
        Ok(Orders { path, of })
    }

    /// The names of an order, if the file has one of that computation.
    fn of(&self, computation: &str) -> Option<&Vec<String>> {
        self.of.iter().find(|(name, _)| name == computation).map(|(_, names)| names)
    }

    /// The order of a computation: the file's, which must be one that can run, or its own.
    pub(super) fn order(&self, source: &Source<'_>, ready: &Ready) -> Result<Order, Failed> {
        let graph = &ready.graph;
        let computation = source.module.computation_name(ready.unit.computation);
        let Some(names) = self.of(computation) else { return Ok(Order::of_input(graph)) };
        let wrong = |problem: String| {
            Failed::in_file(files::name_of(self.path), format!("computation '{computation}': {problem}"))
        };
        let find = |name: &String| graph.find(name).ok_or_else(|| wrong(format!("'{name}' is no node")));
        let ops = names.iter().map(find).collect::<Result<Vec<OpId>, _>>()?;
        prove(graph, &ops, &Demands::default()).map_err(|violation| wrong(violation.to_string()))?;
        Order::from_ops(graph.len(), ops).ok_or_else(|| Failed::OurBug("a verified order is no permutation".to_owned()))
    }
}

pub fn simulate(args: &args::Simulate) -> Result<(), Failed> {
    look(&args.of, ("simulate", None), None)
}

pub fn explain(args: &args::Explain) -> Result<(), Failed> {
    look(&args.of, ("explain", args.node.as_deref()), args.memory_budget)
}

/// Runs orders and shows what comes of it.
fn look(
    args: &args::Ordered,
    (command, node): (&'static str, Option<&str>),
    budget: Option<Budget>,
) -> Result<(), Failed> {
    if args.graph == "-" && args.order.as_deref() == Some("-") {
        return Err(Failed::BadInput("only one of module and orders can come from standard input".to_owned()));
    }
    args.pictures.check(&args.graph, args.output.as_deref())?;
    let recorded = Recorded::read(args.order.as_deref())?;
    let edges = kept_edges(&recorded, &args.collectives)?;
    let source = Source::read(&args.graph, &args.machine)?;
    let orders = args.order.as_deref().map(Orders::read).transpose()?;
    let all = source.walk(|ready| {
        let order = match &orders {
            Some(orders) => orders.order(&source, ready)?,
            None => Order::of_input(&ready.graph),
        };
        Ok((order, ()))
    })?;
    let limit = |Ready { unit, .. }: &Ready| {
        recorded.limit(budget, Some(source.module.computation_name(unit.computation)), unit.peak_before)
    };
    let mut sections: Vec<Section<'_>> = all.iter().map(|done| section(done, limit(&done.ready), edges)).collect();
    let name = match node {
        Some(node) => Some(narrow(&source, &mut sections, node)?),
        None => args.which.computation.clone(),
    };
    draw(&source, &sections, (&args.pictures, &args.which), command)?;
    if files::put_asked(args.output.as_deref(), args.json, || format!("{}\n", to_json(&source, &sections)))? {
        return Ok(());
    }
    let style = terminal::style();
    let mut text = headline(&source, &sections, &style);
    let rows = if command == "explain" { usize::MAX } else { crate::schedule::ROWS };
    for section in picked(&source, &sections, name.as_deref(), SECTIONS)? {
        text.push_str(&render_section(&source, section, rows, &style));
    }
    files::print(&text)
}

/// Which edges orders of a module keep. Its collectives are not chained.
fn kept_edges(recorded: &Recorded<'_>, asked: &CollectiveArgs) -> Result<Edges, Failed> {
    match asked.order_collectives {
        Some(_) => Err(super::schedule::no_chains()),
        None => Ok(recorded.collectives(asked)?.edges),
    }
}

/// Explains one node alone; gives the computation that it is in.
fn narrow(source: &Source<'_>, sections: &mut [Section<'_>], node: &str) -> Result<String, Failed> {
    let found = sections.iter_mut().find(|section| section.ready.graph.find(node).is_some());
    let unknown = || Failed::BadInput(format!("--node: '{node}' is not a node of the module"));
    let section = found.ok_or_else(unknown)?;
    section.only = Some(named(&section.ready.graph, node)?);
    Ok(source.module.computation_name(section.ready.unit.computation).to_owned())
}

fn section(done: &Done<()>, limit: Bytes, edges: Edges) -> Section<'_> {
    let Ready { graph, machine, .. } = &done.ready;
    Section {
        ready: &done.ready,
        order: &done.order,
        step_time: (done.step_time_before, done.step_time),
        exposed: done.exposed(),
        exposed_in_all: done.exposed_in_all,
        limit,
        bound: lower_bound(graph, machine, edges),
        only: None,
        trust: None,
        seconds: 0.0,
    }
}

fn to_json(source: &Source<'_>, sections: &[Section<'_>]) -> Value {
    let computation = |section: &Section<'_>| {
        let Ready { graph, machine, unit, .. } = section.ready;
        let limits = Limits { memory: section.limit, bound: section.bound };
        let explanation: Explanation = explain_order(graph, machine, section.order, limits);
        let mut value = simulation_json(graph, section.order, &explanation);
        if let Some(object) = value.as_object_mut() {
            object.remove("format");
            object.remove("collective_order");
            object.insert("computation".to_owned(), json!(source.module.computation_name(unit.computation)));
            object.insert("runs".to_owned(), json!(unit.runs));
        }
        value
    };
    let shown = sections.iter().filter(|section| section.ready.unit.communicates());
    json!({
        "format": "halflap.simulation/1",
        "module": source.module.name(),
        "device_assumed": source.assumed,
        "collective_order": sections.last().map(|entry| collective_order(entry.bound.edges)),
        "step_time": sections.last().map(|entry| entry.step_time.1),
        "peak_memory": sections.last().map(|entry| entry.peak()),
        "computations": shown.map(computation).collect::<Vec<_>>(),
    })
}

pub fn verify(args: &args::Verify) -> Result<(), Failed> {
    if args.graph == "-" && args.order == "-" {
        return Err(Failed::BadInput("only one of module and orders can come from standard input".to_owned()));
    }
    let machine = args::MachineArgs::default();
    let source = Source::read(&args.graph, &machine)?;
    let orders = Orders::read(&args.order)?;
    let order_edges = match args.collective_order {
        CollectiveOrder::Free => OrderEdges::Free,
        CollectiveOrder::Kept => OrderEdges::Kept,
    };
    let mut text = String::new();
    let all = source.walk(|ready| {
        let graph = &ready.graph;
        let computation = source.module.computation_name(ready.unit.computation);
        let Some(names) = orders.of(computation) else { return Ok((Order::of_input(graph), ())) };
        let before = ready.unit.peak_before;
        let memory_limit = args.memory_budget.map(|budget| budget.limit(before));
        let proof = verify_names(graph, names, &Demands { order_edges: order_edges.clone(), memory_limit });
        let proof =
            proof.map_err(|violation| Failed::Wrong(format!("not valid: computation '{computation}': {violation}")))?;
        let nodes = count(graph.len(), "node");
        text.push_str(&format!("valid: {computation}, {nodes}, peak memory {}, input order {before}\n", proof.peak));
        Ok((orders.order(&source, ready)?, ()))
    })?;
    let known = |name: &str| all.iter().any(|done| source.module.computation_name(done.ready.unit.computation) == name);
    if let Some((name, _)) = orders.of.iter().find(|(name, _)| !known(name)) {
        return Err(Failed::Wrong(format!("not valid: no computation that runs is called '{name}'")));
    }
    files::print(&text)
}

pub fn what_if(args: &args::WhatIf) -> Result<(), Failed> {
    let recorded = Recorded::read(args.schedule.as_deref())?;
    let edges = kept_edges(&recorded, &args.collectives)?;
    let orders = args.schedule.as_deref().map(Orders::read).transpose()?;
    let source = Source::read(&args.graph, &args.machine)?;
    let all = source.walk(|ready| Ok((Order::of_input(&ready.graph), ())))?;
    let ready = &chosen(&source, &all, args.which.computation.as_deref())?.ready;
    let Ready { graph, machine, unit, .. } = ready;
    let known = orders.map(|orders| orders.order(&source, ready)).transpose()?;
    if !args.json && args.output.as_deref().is_none_or(|output| !files::is_stdout(output)) {
        files::print(&format!("computation {}\n", source.module.computation_name(unit.computation)))?;
        files::print(&source.device().map_or(String::new(), |device| format!("{device}\n")))?;
    }
    let rules = Rules { edges, effort: recorded.effort(args.effort)?, known };
    crate::what_if::run_on(args, &rules, (graph, machine))
}
