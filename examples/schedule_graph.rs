//! Schedules a captured graph (`halflap.graph/1`), and proves the order once more.
//!
//! ```sh
//! cargo run --release -p halflap --example schedule_graph -- GRAPH [MEMORY_BUDGET]
//! ```

use std::error::Error;

use halflap::graph::Graph;
use halflap::ids::OpId;
use halflap::import::read_graph;
use halflap::memory::Budget;
use halflap::units::Bytes;
use halflap::verify::{Demands, verify};
use halflap::workload::{Model, Search, Workload};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: schedule_graph GRAPH [MEMORY_BUDGET]")?;
    let memory: Budget = arguments.next().unwrap_or("1x".to_owned()).parse()?;
    for name in schedule(&std::fs::read(path)?, memory)? {
        println!("{name}");
    }
    Ok(())
}

/// The names of the operations in the best order that is found.
fn schedule(bytes: &[u8], memory: Budget) -> Result<Vec<String>, Box<dyn Error>> {
    // A graph is a workload of one unit. The default model uses the run times that it brings.
    let workload = Workload::from(read_graph(bytes)?);
    let search = Search { memory, ..Search::default() };
    let decision = workload.optimize(&Model::default(), &search)?;
    let (step, exposed, peak) = (decision.step_time(), decision.exposed(), decision.peak());
    eprintln!("step time {} -> {}", step.before, step.after);
    eprintln!("exposed {} -> {}", exposed.before, exposed.after);
    eprintln!("peak {} -> {}", peak.before, peak.after);

    let unit = &decision.units[0];
    let (graph, order) = (&unit.priced.graph, unit.result.order.as_slice());
    if let Some(found) = &unit.found {
        eprintln!("no order is faster than {}", found.bound.time);
    }
    prove(graph, order, memory.limit(peak.before))?;
    Ok(order.iter().map(|&op| graph.name(op).to_owned()).collect())
}

/// `optimize` has done this already: it is what to call on orders from elsewhere.
fn prove(graph: &Graph, order: &[OpId], limit: Bytes) -> Result<(), Box<dyn Error>> {
    let demands = Demands { memory_limit: Some(limit), ..Demands::default() };
    let proof = verify(graph, order, &demands)?;
    eprintln!("proved: every dependency is kept, and at most {} are alive", proof.peak);
    Ok(())
}

#[test]
fn an_order_has_every_operation_once() -> Result<(), Box<dyn Error>> {
    let bytes = std::fs::read("../../tests/corpus/moe_ep_6.graph.json.gz")?;
    let mut names = schedule(&bytes, Budget::Times(1.0))?;
    names.sort();
    names.dedup();
    assert_eq!(names.len(), read_graph(&bytes)?.len());
    Ok(())
}
