//! `halflap verify`: prove orders, and changed programs.

use halflap::graph::Graph;
use halflap::import::{read_order, unzip};
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::origin::Origin;
use halflap::units::{Bytes, Nanos};
use halflap::verify::{Demands, OrderEdges, Proof, verify, verify_names};
use halflap::verify_rewrite::verify_rewrite;
use halflap_report::count;

use crate::args::{self, CollectiveOrder};
use crate::equivalence;
use crate::exit::Failed;
use crate::files;
use crate::place::refuse_both_stdin;
use crate::show::program;
use crate::source::{Orders, Subject};

pub fn run(args: &args::Verify, verbose: bool) -> Result<(), Failed> {
    files::print(&find(args, verbose)?)
}

/// Proves it, and says in a line what was proved.
pub fn find(args: &args::Verify, verbose: bool) -> Result<String, Failed> {
    refuse_both_stdin(&args.graph, Some(&args.order), "program and order")?;
    let is_module = files::is_module(&args.graph)?;
    if is_module && files::is_module(&args.order)? {
        if args.memory_budget.is_some() || args.collective_order == CollectiveOrder::Kept {
            let problem =
                "--memory-budget and --collective-order are for orders: two modules were given";
            return Err(Failed::BadInput(problem.to_owned()));
        }
        return equivalence::prove(args);
    }
    refuse_both_kinds(args, is_module)?;
    match is_module {
        _ if args.run => {
            Err(Failed::BadInput("--run is for two HLO modules: it compares results".to_owned()))
        }
        true => prove_module(args),
        false => prove_graph(args, verbose),
    }
}

/// A graph and a module cannot be compared.
fn refuse_both_kinds(args: &args::Verify, is_module: bool) -> Result<(), Failed> {
    let (other, kinds) = match is_module {
        true => (is_graph(&files::read(&args.order)?), ["an HLO module", "a graph"]),
        false => (files::is_module(&args.order)?, ["a graph", "an HLO module"]),
    };
    match other {
        false => Ok(()),
        true => Err(Failed::BadInput(format!(
            "{} is {}, and {} is {}: give two graphs, two modules, or a program and its order",
            args.graph.name(),
            kinds[0],
            args.order.name(),
            kinds[1]
        ))),
    }
}

/// Whether a file has a graph, and not an order.
fn is_graph(bytes: &[u8]) -> bool {
    let Ok(text) = unzip(bytes) else { return false };
    let value = serde_json::from_slice::<serde_json::Value>(&text);
    value.is_ok_and(|value| {
        value["format"].as_str().is_some_and(|format| format.starts_with("halflap.graph/"))
    })
}

/// Proves that a changed graph computes what the old one did. Run times do not matter for that.
fn prove_change(before: Graph, after: Graph) -> Result<String, Failed> {
    let [before, after] = [before, after].map(|graph| graph.with_given(|_| Nanos::ZERO));
    let origin = Origin::by_names(&before, &after);
    let wrong = |violation| Failed::Wrong(format!("not the same program: {violation}"));
    verify_rewrite(&before, &after, &origin).map_err(wrong)?;
    let peak = |graph: &Graph| Timeline::of(graph, &Order::of_input(graph)).peak;
    Ok(format!(
        "the same program: {} -> {}, peak memory of the input orders {} -> {}\n",
        program(&before),
        program(&after),
        peak(&before),
        peak(&after)
    ))
}

/// A graph needs no run times to be proved.
fn prove_graph(args: &args::Verify, verbose: bool) -> Result<String, Failed> {
    let graph = files::chained(files::graph(&args.graph)?, args.order_collectives);
    let bytes = files::read(&args.order)?;
    if is_graph(&bytes) {
        if args.memory_budget.is_some() || args.collective_order == CollectiveOrder::Kept {
            let problem =
                "--memory-budget and --collective-order are for orders: two graphs were given";
            return Err(Failed::BadInput(problem.to_owned()));
        }
        return prove_change(graph, files::parse_graph(&args.order, &bytes)?);
    }
    let names = read_order(&bytes).map_err(|error| Failed::in_file(args.order.name(), error))?;
    let input: Vec<_> = graph.ops().collect();
    let input = verify(&graph, &input, &Demands::default());
    let before = input.map_err(|violation| Failed::OurBug(violation.to_string()))?.peak;
    if verbose {
        eprintln!("{} nodes; the input order's peak is {} bytes", graph.len(), before.0);
    }
    let memory_limit = args.memory_budget.map(|budget| budget.limit(before));
    let peak = prove(args, &graph, &names, memory_limit)
        .map_err(|problem| Failed::Wrong(format!("not valid: {problem}")))?
        .peak;
    let nodes = count(graph.len(), "node");
    Ok(format!("valid: {nodes}, peak memory {peak} ({} bytes), input order {before}\n", peak.0))
}

fn prove_module(args: &args::Verify) -> Result<String, Failed> {
    let machine = args::MachineArgs::default();
    let subject = Subject::read(&args.graph, &machine, args.order_collectives)?;
    let source = &subject.source;
    let orders = Orders::read(&args.order, &subject)?;
    let mut text = String::new();
    source.walk(|priced| {
        let graph = &priced.graph;
        let computation = source.name_of(priced.unit);
        let is_entry = source.workload.is_entry(priced.unit);
        let own: Vec<String>;
        let names = match orders.names(computation) {
            Some(names) => names,
            // Its peak is that of the whole, also where it has no order of its own to choose.
            None if is_entry => {
                let order = priced.input.order.as_slice().iter();
                own = order.map(|&op| graph.name(op).to_owned()).collect();
                &own
            }
            None => return Ok((priced.input.order.clone(), ())),
        };
        let before = priced.peak_before();
        // The whole has a limit, which the entry's peak includes: callees may use what is free.
        let memory = args.memory_budget.filter(|_| is_entry);
        let proof = prove(args, graph, names, memory.map(|budget| budget.limit(before)));
        let wrong =
            |problem| Failed::Wrong(format!("not valid: computation '{computation}': {problem}"));
        let peak = proof.map_err(wrong)?.peak;
        let nodes = count(graph.len(), "node");
        text.push_str(&format!(
            "valid: {computation}, {nodes}, peak memory {peak}, input order {before}\n"
        ));
        Ok((orders.order(source, priced, halflap::graph::Edges::Real)?, ()))
    })?;
    match orders.unknown(source) {
        Some(name) => {
            Err(Failed::Wrong(format!("not valid: no computation that runs is called '{name}'")))
        }
        None => Ok(text),
    }
}

/// Proves what was requested.
fn prove(
    args: &args::Verify,
    graph: &Graph,
    names: &[String],
    memory_limit: Option<Bytes>,
) -> Result<Proof, String> {
    let order_edges = match args.collective_order {
        CollectiveOrder::Free => OrderEdges::Free,
        CollectiveOrder::Kept => OrderEdges::Kept,
    };
    verify_names(graph, names, &Demands { order_edges, memory_limit })
        .map_err(|violation| violation.to_string())
}
