//! A coalesced collective returns its results through multi-outputs: they take no time and do not
//! wait; their readers wait for the collective.

use halflap::cost::Times;
use halflap::evaluate::{Evaluation, Setup};
use halflap::explain::{Holder, Limits, explain};
use halflap::graph::{Edges, Graph};
use halflap::ids::OpId;
use halflap::import::read_graph;
use halflap::memory::Timeline;
use halflap::optimize::{Effort, Task, optimize};
use halflap::order::Order;
use halflap::overlap::{Fidelity, Overlap};
use halflap::simulate::{Machine, lower_bound, simulate};
use halflap::units::{Bytes, Nanos};
use halflap_report::listing;
use serde_json::{Value, json};

fn node(name: &str, kind: &str, time: Option<u64>, reads: &[&str]) -> Value {
    let deps: Vec<Value> =
        reads.iter().map(|buffer| json!({ "buffer": buffer, "kinds": ["data"] })).collect();
    let mut node = json!({
        "name": name, "kind": kind, "runtime_ns": time, "outputs": [format!("of_{name}")], "deps": deps,
    });
    if kind == "collective" {
        let collective = json!({ "op": "all_gather", "group": "g", "group_size": 2, "bytes": 64, "async": true });
        node["collective"] = collective;
    }
    node
}

fn graph(nodes: Vec<Value>) -> Graph {
    let buffer = |node: &Value| {
        let name = node["outputs"][0].as_str().unwrap();
        let reads = |other: &&Value| {
            other["deps"].as_array().unwrap().iter().any(|dep| dep["buffer"] == name)
        };
        let users: Vec<&Value> = nodes.iter().filter(reads).map(|other| &other["name"]).collect();
        json!({ "name": name, "size_alloc": 8, "size_free": 8, "users": users, "output": users.is_empty() })
    };
    let buffers: Vec<Value> = nodes.iter().map(buffer).collect();
    let text = json!({
        "format": "halflap.graph/1", "groups": { "g": { "ranks": [0, 1] } },
        "nodes": nodes, "buffers": buffers, "inputs": [],
    });
    read_graph(text.to_string().as_bytes()).unwrap()
}

/// One gather of two tensors, each waited for on its own, and compute that needs neither.
fn coalesced() -> Graph {
    graph(vec![
        node("gather", "collective", Some(100), &[]),
        node("first", "multi_output", Some(0), &["of_gather"]),
        node("second", "multi_output", None, &["of_gather"]),
        node("beside", "compute", Some(60), &[]),
        node("wait_first", "wait", None, &["of_first"]),
        node("use_first", "compute", Some(30), &["of_wait_first"]),
        node("wait_second", "wait", None, &["of_second"]),
        node("use_second", "compute", Some(20), &["of_wait_second"]),
    ])
}

fn op(graph: &Graph, name: &str) -> OpId {
    graph.find(name).unwrap()
}

#[test]
fn waits_belong_to_the_collective_behind_multi_outputs() {
    let graph = coalesced();
    let gather = op(&graph, "gather");
    let waits = [op(&graph, "wait_first"), op(&graph, "wait_second")];
    assert_eq!(graph.waited_by(gather), waits);
    assert_eq!(graph.gates(gather), waits);
    assert!(graph.gated_by(op(&graph, "first")).is_empty());
    assert_eq!(graph.gated_by(waits[1]), [gather]);
}

#[test]
fn compute_goes_on_behind_multi_outputs() {
    let graph = coalesced();
    let order = Order::of_input(&graph);
    let mut machine = Machine::new(&graph, Times::given(&graph).unwrap());
    let simulation = simulate(&graph, order.as_slice(), &machine);
    assert_eq!(simulation.start[op(&graph, "beside")], Nanos(0.0));
    assert_eq!(simulation.start[op(&graph, "use_first")], Nanos(100.0));
    assert_eq!(simulation.step_time, Nanos(150.0));
    assert_eq!(
        simulation.step_time,
        lower_bound(&graph, &machine, Edges::Real, Bytes(i64::MAX)).time
    );
    let hiding = Overlap::new(&graph, &Times::given(&graph).unwrap(), Fidelity::Fixed)
        .of_collective(&order, op(&graph, "gather"));
    assert_eq!(hiding.exposed(), Nanos(40.0));
    // The host has nothing to issue for them.
    machine.launch = Nanos(10.0);
    let simulation = simulate(&graph, order.as_slice(), &machine);
    assert_eq!(simulation.start[op(&graph, "beside")], Nanos(20.0));
}

#[test]
fn a_reader_that_is_no_wait_stalls() {
    let graph = graph(vec![
        node("gather", "collective", Some(100), &[]),
        node("part", "multi_output", None, &["of_gather"]),
        node("reader", "compute", Some(10), &["of_part"]),
    ]);
    let machine = Machine::new(&graph, Times::given(&graph).unwrap());
    let simulation = simulate(&graph, Order::of_input(&graph).as_slice(), &machine);
    assert_eq!(simulation.start[op(&graph, "reader")], Nanos(100.0));
    assert_eq!(simulation.step_time, Nanos(110.0));
}

/// The compute comes before the gather, and the gather needs nothing: the best order turns them
/// round.
#[test]
fn the_optimizer_hides_a_coalesced_collective() {
    let graph = graph(vec![
        node("beside", "compute", Some(100), &[]),
        node("gather", "collective", Some(100), &[]),
        node("part", "multi_output", None, &["of_gather"]),
        node("other", "multi_output", None, &["of_gather"]),
        node("wait", "wait", None, &["of_part"]),
        node("use", "compute", Some(10), &["of_wait", "of_beside", "of_other"]),
    ]);
    let machine = Machine::new(&graph, Times::given(&graph).unwrap());
    let task = Task {
        graph: &graph,
        machine: &machine,
        memory_limit: Timeline::of(&graph, &Order::of_input(&graph)).peak,
        edges: Edges::Real,
        known: &[],
        effort: Effort::Quick,
        threads: 1,
        progress: &|_| std::ops::ControlFlow::Continue(()),
    };
    let best = optimize(&task).unwrap();
    assert_eq!(simulate(&graph, best.order.as_slice(), &machine).step_time, Nanos(110.0));
}

/// What holds a collective is the collective behind the multi-output, which only passes it on.
#[test]
fn the_collective_behind_a_multi_output_is_named() {
    let graph = graph(vec![
        node("gather", "collective", Some(100), &[]),
        node("part", "multi_output", None, &["of_gather"]),
        node("again", "collective", Some(50), &["of_part"]),
        node("long", "compute", Some(120), &[]),
        node("wait", "wait", None, &["of_again"]),
    ]);
    let mut machine = Machine::new(&graph, Times::given(&graph).unwrap());
    // The input order is as good as any; with a host that is slow it is not proved to be.
    machine.launch = Nanos(1.0);
    let order = Order::of_input(&graph);
    let limits = Limits {
        memory: Timeline::of(&graph, &order).peak,
        bound: lower_bound(&graph, &machine, Edges::Real, Bytes(i64::MAX)),
    };
    let setup = Setup { graph: &graph, machine: &machine };
    let explanation = explain(setup, &Evaluation::of(setup, order.clone()), limits);
    let held: Vec<_> =
        explanation.held.iter().map(|held| (graph.name(held.collective), held.by)).collect();
    assert_eq!(held, [("again", Holder::Stream(op(&graph, "gather")))]);
    let text = listing(setup, &order);
    assert!(text.contains("|       1  part"), "{text}");
}
