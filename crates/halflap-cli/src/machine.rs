//! Graphs, machines and orders as the command line names them.

use halflap::cost::Times;
use halflap::graph::{Assignment, Edges, Graph, Streams};
use halflap::import::read_order;
use halflap::optimize::Effort;
use halflap::order::Order;
use halflap::simulate::Machine;
use halflap::verify::{Demands, OrderEdges, verify};

use crate::args::{CollectiveOrder, CommStreams, EffortArg, MachineArgs};
use crate::costs;
use crate::exit::Failed;
use crate::files;

/// A graph with the run times that were asked for, and what it is simulated on.
pub fn load(path: &str, args: &MachineArgs) -> Result<(Graph, Machine), Failed> {
    let graph = files::graph(path)?;
    let times = costs::times(&args.costs, &graph, path)?;
    let graph = graph.with_runtimes(|op| times.of(op));
    let machine = with_times(&graph, times, args);
    Ok((graph, machine))
}

/// What a graph with these times is simulated on.
pub fn with_times(graph: &Graph, times: Times, args: &MachineArgs) -> Machine {
    let assignment = match args.comm_streams {
        CommStreams::Shared => Assignment::SharedRanks,
        CommStreams::One => Assignment::One,
        CommStreams::Group => Assignment::EachGroup,
    };
    let mut machine = Machine::new(graph, times);
    machine.streams = Streams::assign(graph, assignment);
    machine.slowdown = args.slowdown;
    machine.comm_slowdown = args.comm_slowdown;
    machine.launch = args.launch;
    machine
}

/// The order in a file, or the input order; it must be one that can run and keeps `edges`.
pub fn order(graph: &Graph, path: Option<&str>, edges: Edges) -> Result<Order, Failed> {
    let Some(path) = path else { return Ok(Order::of_input(graph)) };
    let bytes = files::read(path)?;
    let names = read_order(&bytes).map_err(|error| Failed::in_file(files::name_of(path), error))?;
    let unknown = |name: &String| Failed::in_file(files::name_of(path), format!("'{name}' is not a node of the graph"));
    let ops = names.iter().map(|name| graph.find(name).ok_or_else(|| unknown(name))).collect::<Result<Vec<_>, _>>()?;
    let proved = |order_edges| verify(graph, &ops, &Demands { order_edges, memory_limit: None });
    let wrong = |problem: String| Failed::in_file(files::name_of(path), problem);
    proved(OrderEdges::Free).map_err(|violation| wrong(violation.to_string()))?;
    if edges == Edges::All {
        let not_kept = |violation| wrong(format!("{violation}; use --collective-order free for an order like this"));
        proved(OrderEdges::Kept).map_err(not_kept)?;
    }
    Order::from_ops(graph.len(), ops).ok_or_else(|| Failed::OurBug("a verified order is no permutation".to_owned()))
}

/// Which edges are kept: as asked, else all where collectives were chained, because that is what they are
/// chained for.
pub fn edges(order: Option<CollectiveOrder>, is_chained: bool) -> Edges {
    match order {
        Some(CollectiveOrder::Kept) => Edges::All,
        None if is_chained => Edges::All,
        _ => Edges::Real,
    }
}

pub fn effort(effort: EffortArg) -> Effort {
    match effort {
        EffortArg::Quick => Effort::Quick,
        EffortArg::Default => Effort::Default,
        EffortArg::Thorough => Effort::Thorough,
    }
}

/// All cores, unless asked otherwise.
pub fn threads(asked: Option<u16>) -> usize {
    asked.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
}
