//! Graphs, machines and orders as the command line names them.

use halflap::cost::Times;
use halflap::graph::{Assignment, Edges, Graph, Streams};
use halflap::import::read_order;
use halflap::optimize::Effort;
use halflap::order::Order;
use halflap::simulate::Machine;
use halflap::verify::{Demands, verify};

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
    machine.launch = args.launch;
    machine
}

/// The order in a file, or the input order; it must be one that can run.
pub fn order(graph: &Graph, path: Option<&str>) -> Result<Order, Failed> {
    let Some(path) = path else { return Ok(Order::of_input(graph)) };
    let bytes = files::read(path)?;
    let names = read_order(&bytes).map_err(|error| Failed::in_file(files::name_of(path), error))?;
    let unknown = |name: &String| Failed::in_file(files::name_of(path), format!("'{name}' is not a node of the graph"));
    let ops = names.iter().map(|name| graph.find(name).ok_or_else(|| unknown(name))).collect::<Result<Vec<_>, _>>()?;
    verify(graph, &ops, &Demands::default()).map_err(|violation| Failed::in_file(files::name_of(path), violation))?;
    Order::from_ops(graph.len(), ops).ok_or_else(|| Failed::OurBug("a verified order is no permutation".to_owned()))
}

pub fn edges(order: CollectiveOrder) -> Edges {
    match order {
        CollectiveOrder::Free => Edges::Real,
        CollectiveOrder::Kept => Edges::All,
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
