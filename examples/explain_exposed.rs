//! Says which collectives of a graph are exposed in the order that it has now, and what holds each.
//!
//! ```sh
//! cargo run --release -p halflap --example explain_exposed -- GRAPH
//! ```

use std::error::Error;

use halflap::cost::Times;
use halflap::evaluate::{Evaluation, Setup};
use halflap::explain::{Held, Holder, Limits, explain};
use halflap::graph::{Edges, Graph};
use halflap::import::read_graph;
use halflap::order::Order;
use halflap::simulate::{Machine, lower_bound};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: explain_exposed GRAPH")?;
    for line in exposed(&read_graph(&std::fs::read(path)?)?)? {
        println!("{line}");
    }
    Ok(())
}

/// A line for each exposed collective, the most exposed first.
fn exposed(graph: &Graph) -> Result<Vec<String>, Box<dyn Error>> {
    // What orders are simulated on: the graph's own run times, no contention.
    let machine = Machine::new(graph, Times::given(graph)?);
    let setup = Setup { graph, machine: &machine };
    // An evaluation is made once, and handed to all that ask about the order.
    let evaluation = Evaluation::of(setup, Order::of_input(graph));
    let memory = evaluation.peak();
    let bound = lower_bound(graph, &machine, Edges::Real, memory);
    eprintln!("step time {}, lower bound {}", evaluation.step_time(), bound.time);
    let explanation = explain(setup, &evaluation, Limits { memory, bound });
    Ok(explanation.held.iter().map(|held| line(graph, held)).collect())
}

fn line(graph: &Graph, held: &Held) -> String {
    // `halflap_report::describe_holder` has words for all reasons.
    let why = match held.by {
        Holder::Misplaced(saved) => format!("issued too late: {saved} could be saved"),
        Holder::WaitMisplaced(wait, saved) => {
            format!("{} later would save {saved}", graph.name(wait))
        }
        Holder::Stream(other) => format!("its stream is busy with {}", graph.name(other)),
        Holder::Operation(other) => format!("it needs {}", graph.name(other)),
        Holder::Memory(bytes) => format!("starting earlier takes {bytes} above the limit"),
        other => format!("{other:?}"),
    };
    format!("{} is exposed for {}: {why}", graph.name(held.collective), held.exposed)
}

#[test]
fn exposed_collectives_are_explained() -> Result<(), Box<dyn Error>> {
    let bytes = std::fs::read("../../tests/corpus/moe_ep_6.graph.json.gz")?;
    let graph = read_graph(&bytes)?;
    let lines = exposed(&graph)?;
    assert!(lines.iter().any(|line| line.contains("could be saved")), "{lines:?}");
    Ok(())
}
