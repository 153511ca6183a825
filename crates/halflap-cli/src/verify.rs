//! `halflap verify`: prove an order.

use halflap::import::read_order;
use halflap::report::count;
use halflap::verify::{Demands, OrderEdges, verify, verify_names};

use crate::args::{self, CollectiveOrder};
use crate::exit::Failed;
use crate::files;

pub fn run(args: &args::Verify, verbose: bool) -> Result<(), Failed> {
    if args.graph == "-" && args.order == "-" {
        return Err(Failed::BadInput("only one of graph and order can come from standard input".to_owned()));
    }
    let graph = files::chained(files::graph(&args.graph)?, args.order_collectives);
    let bytes = files::read(&args.order)?;
    let names = read_order(&bytes).map_err(|error| Failed::in_file(files::name_of(&args.order), error))?;
    let input: Vec<_> = graph.ops().collect();
    let input =
        verify(&graph, &input, &Demands::default()).map_err(|violation| Failed::OurBug(violation.to_string()))?;
    let memory_limit = args.memory_budget.map(|budget| budget.limit(input.peak));
    if verbose {
        eprintln!("{} nodes; the input order's peak is {} bytes; limit {memory_limit:?}", graph.len(), input.peak.0);
    }
    let order_edges = match args.collective_order {
        CollectiveOrder::Free => OrderEdges::Free,
        CollectiveOrder::Kept => OrderEdges::Kept,
    };
    let proof = verify_names(&graph, &names, &Demands { order_edges, memory_limit });
    let proof = proof.map_err(|violation| Failed::Wrong(format!("not valid: {violation}")))?;
    let (peak, before) = (proof.peak, input.peak);
    let nodes = count(graph.len(), "node");
    files::print(&format!("valid: {nodes}, peak memory {peak} ({} bytes), input order {before}\n", peak.0))
}
