//! `issued`: an operation comes after a collective was launched, and does not wait for its end.

#[path = "common/random.rs"]
#[allow(dead_code)]
mod random;

use halflap::cost::Times;
use halflap::evaluate::{Evaluation, Setup};
use halflap::explain::{Holder, Limits, explain};
use halflap::graph::{DepKinds, Edges, Graph, OpKind, Parts};
use halflap::ids::{IdVec, OpId, StreamId};
use halflap::import::read_graph;
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::overlap::{Fidelity, Overlap};
use halflap::simulate::{Basis, Bound, Machine, lower_bound, simulate};
use halflap::units::{Bytes, Nanos};
use halflap::verify::{Demands, verify_names};
use halflap_report::listing;
use random::Random;
use serde_json::{Value, json};

fn machine(graph: &Graph) -> Machine {
    Machine::new(graph, Times::given(graph).unwrap())
}

fn bound(graph: &Graph) -> Nanos {
    lower_bound(graph, &machine(graph), Edges::Real, Bytes(i64::MAX)).time
}

fn step(graph: &Graph) -> Nanos {
    simulate(graph, &graph.ops().collect::<Vec<_>>(), &machine(graph)).step_time
}

/// A gather, a product that comes after it by `kind` alone, and the gather's wait, which comes
/// after the product.
fn smallest(kind: &str) -> Graph {
    let node = |name: &str, kind: &str, time: u32, deps: Value| {
        let made = format!("of_{name}");
        json!({ "name": name, "kind": kind, "runtime_ns": time, "outputs": [made], "deps": deps })
    };
    let mut gather = node("ag", "collective", 1000, json!([]));
    gather["collective"] =
        json!({ "op": "all_gather", "group": "g", "group_size": 2, "bytes": 8, "async": true });
    let product = node("mm", "compute", 1000, json!([{ "buffer": "of_ag", "kinds": [kind] }]));
    let waited =
        json!([{ "buffer": "of_ag", "kinds": ["data"] }, { "buffer": "of_mm", "kinds": [kind] }]);
    let buffer = |name: &str, users: &[&str], output: bool| json!({ "name": name, "size_alloc": 8, "size_free": 8, "users": users, "output": output });
    let graph = json!({
        "format": "halflap.graph/1",
        "groups": { "g": { "ranks": [0, 1] } },
        "nodes": [gather, product, node("wait", "wait", 0, waited)],
        "buffers": [buffer("of_ag", &["wait"], false), buffer("of_mm", &[], true), buffer("of_wait", &[], true)],
        "inputs": [],
    });
    read_graph(graph.to_string().as_bytes()).unwrap()
}

#[test]
fn compute_runs_beside_a_collective_that_it_was_issued_after() {
    let graph = smallest("issued");
    assert_eq!((step(&graph), bound(&graph)), (Nanos(1000.0), Nanos(1000.0)));
    let weak = smallest("weak");
    assert_eq!((step(&weak), bound(&weak)), (Nanos(2000.0), Nanos(2000.0)));
}

#[test]
fn the_verifier_holds_an_order_to_it() {
    let graph = smallest("issued");
    let proved = |names: [&str; 3]| {
        verify_names(&graph, &names.map(str::to_owned), &Demands::default())
            .map_err(|wrong| wrong.to_string())
    };
    assert!(proved(["ag", "mm", "wait"]).is_ok());
    let early = "node 'mm' runs before 'ag', whose buffer 'of_ag' it needs (issued)";
    assert_eq!(proved(["mm", "ag", "wait"]).unwrap_err(), early);
    let early = "node 'wait' runs before 'mm', whose buffer 'of_mm' it needs (issued)";
    assert_eq!(proved(["ag", "wait", "mm"]).unwrap_err(), early);
}

#[test]
fn it_hides_the_collective_and_keeps_nothing_alive() {
    let graph = smallest("issued");
    let [gather, product] = ["ag", "mm"].map(|name| graph.find(name).unwrap());
    let order = Order::of_input(&graph);
    let hiding = Overlap::new(&graph, &Times::given(&graph).unwrap(), Fidelity::Fixed)
        .of_collective(&order, gather);
    assert_eq!(hiding.comp_time, Nanos(1000.0));
    assert!(!graph.users(graph.outputs(gather)[0]).contains(&product));
    assert!(graph.gated_by(product).is_empty() && graph.preds(product, Edges::Real) == [gather]);
    let text = listing(Setup { graph: &graph, machine: &machine(&graph) }, &order);
    assert!(text.contains("|       1  mm"), "{text}");
}

/// An order step by step has the names of the model; nodes are a detail.
#[test]
fn a_listing_has_the_names_of_the_model() {
    let text = json!({
        "format": "halflap.graph/1",
        "groups": { "g": { "ranks": [0, 1] } },
        "nodes": [
            { "name": "op1", "kind": "collective", "runtime_ns": 50, "outputs": ["of_1"], "deps": [],
              "parameter": "layers.3.wq.weight",
              "collective": { "op": "all_gather", "group": "g", "group_size": 2, "bytes": 8, "async": true } },
            { "name": "op2", "kind": "wait", "runtime_ns": 0, "outputs": ["of_2"],
              "parameter": "layers.3.wq.weight",
              "deps": [{ "buffer": "of_1", "kinds": ["data"] }] },
            { "name": "op3", "kind": "compute", "runtime_ns": 50, "outputs": ["of_3"], "deps": [],
              "module": "layers.3.wq" },
        ],
        "buffers": [
            { "name": "of_1", "size_alloc": 8, "size_free": 8, "users": ["op2"], "output": false },
            { "name": "of_2", "size_alloc": 8, "size_free": 8, "users": [], "output": true },
            { "name": "of_3", "size_alloc": 8, "size_free": 8, "users": [], "output": true },
        ],
        "inputs": [],
    });
    let graph = read_graph(text.to_string().as_bytes()).unwrap();
    let order = Order::of_input(&graph);
    let text = listing(Setup { graph: &graph, machine: &machine(&graph) }, &order);
    for line in [
        "layers.3.wq.weight  all_gather of 8 B in group g  (op1)",
        "layers.3.wq.weight  for all_gather op1  (op2)",
        "layers.3.wq  (op3)",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// A second gather that was issued after the first one on another stream starts with it, and so is
/// held by nothing.
#[test]
fn what_only_had_to_be_issued_holds_nothing() {
    let text = json!({
        "format": "halflap.graph/1",
        "groups": { "g": { "ranks": [0, 1] }, "h": { "ranks": [0, 2] } },
        "nodes": [
            { "name": "a", "kind": "collective", "runtime_ns": 50, "outputs": ["of_a"], "deps": [],
              "collective": { "op": "all_gather", "group": "g", "group_size": 2, "bytes": 8, "async": true } },
            { "name": "k", "kind": "compute", "runtime_ns": 50, "outputs": ["of_k"], "deps": [] },
            { "name": "b", "kind": "collective", "runtime_ns": 90, "outputs": ["of_b"],
              "deps": [{ "buffer": "of_a", "kinds": ["issued"] }, { "buffer": "of_k", "kinds": ["data"] }],
              "collective": { "op": "all_gather", "group": "h", "group_size": 2, "bytes": 8, "async": true } },
        ],
        "buffers": [
            { "name": "of_a", "size_alloc": 8, "size_free": 8, "users": [], "output": true },
            { "name": "of_k", "size_alloc": 8, "size_free": 8, "users": ["b"], "output": false },
            { "name": "of_b", "size_alloc": 8, "size_free": 8, "users": [], "output": true },
        ],
        "inputs": [],
    });
    let graph = read_graph(text.to_string().as_bytes()).unwrap();
    let [k, b] = ["k", "b"].map(|name| graph.find(name).unwrap());
    let order = Order::of_input(&graph);
    // With no bound to reach, so that a holder is looked for.
    let limits = Limits {
        memory: Timeline::of(&graph, &order).peak,
        bound: Bound {
            time: Nanos::ZERO,
            edges: Edges::Real,
            basis: Basis::Compute,
            memory: false,
        },
    };
    let machine = machine(&graph);
    let setup = Setup { graph: &graph, machine: &machine };
    let explained = explain(setup, &Evaluation::of(setup, order.clone()), limits);
    let held = explained.held.iter().find(|held| held.collective == b).unwrap();
    assert_eq!(held.by, Holder::Operation(k));
}

/// What every operation waits for, from the definition alone: the asynchronous collectives that
/// made what it depends on by data or weakly, also where multi-outputs handed that out.
fn awaited(graph: &Graph, op: OpId) -> Vec<OpId> {
    let deps = graph.deps(op).iter().filter(|(_, kinds)| kinds.data || kinds.weak);
    let makers = deps.filter_map(|&(buffer, _)| graph.maker(buffer));
    makers
        .flat_map(|maker| {
            if graph.kind(maker) == OpKind::MultiOutput {
                awaited(graph, maker)
            } else {
                vec![maker]
            }
        })
        .collect()
}

/// The step time from the definition in docs/optimizer.md.
fn step_by_definition(graph: &Graph, order: &[OpId], machine: &Machine) -> f64 {
    let mut end: IdVec<OpId, f64> = IdVec::filled(0.0, graph.len());
    let mut free: IdVec<StreamId, f64> = IdVec::filled(0.0, machine.streams.len());
    let mut now = 0.0f64;
    for &op in order.iter().filter(|&&op| graph.kind(op) != OpKind::MultiOutput) {
        let ready = awaited(graph, op).into_iter().fold(now, |ready, maker| ready.max(end[maker]));
        let stream = machine.streams.of(op);
        end[op] = stream.map_or(ready, |stream| ready.max(free[stream])) + graph.runtime(op).0;
        if let Some(stream) = stream {
            free[stream] = end[op];
        }
        if graph.kind(op) != OpKind::AsyncCollective {
            now = end[op];
        }
    }
    end.as_slice().iter().copied().fold(0.0, f64::max)
}

#[test]
fn the_simulator_keeps_to_the_definition() {
    let mut shorter = 0;
    for seed in 0..1000 {
        let graph = random::graph(&mut Random(seed + 70_000), 40);
        let order: Vec<OpId> = graph.ops().collect();
        let machine = machine(&graph);
        let step = simulate(&graph, &order, &machine).step_time.0;
        assert!((step - step_by_definition(&graph, &order, &machine)).abs() < 1e-6, "seed {seed}");
        let least = bound(&graph).0;
        assert!(least <= step + 1e-6, "seed {seed}: bound {least}, step {step}");
        let weak = with_kinds(&graph, |_, kinds| DepKinds {
            weak: kinds.weak || kinds.issued,
            issued: false,
            ..kinds
        });
        let as_weak = simulate(&weak, &order, &machine).step_time.0;
        assert!(step <= as_weak + 1e-6 && least <= bound(&weak).0 + 1e-6, "seed {seed}");
        shorter += usize::from(step < as_weak);
    }
    assert!(shorter > 50, "only {shorter} programs in which it matters");
}

/// Behind anything but an asynchronous collective, `issued` is `weak`.
#[test]
fn after_compute_it_binds_as_weak_does() {
    for seed in 0..300 {
        let graph = random::graph(&mut Random(seed + 80_000), 40);
        let goes_on = |maker: Option<OpId>| {
            let kind = maker.map(|maker| graph.kind(maker));
            matches!(kind, Some(OpKind::AsyncCollective | OpKind::MultiOutput))
        };
        let weak = with_kinds(&graph, |maker, kinds| match kinds.issued && !goes_on(maker) {
            true => DepKinds { weak: true, issued: false, ..kinds },
            false => kinds,
        });
        assert_eq!(step(&graph), step(&weak), "seed {seed}");
        assert_eq!(bound(&graph), bound(&weak), "seed {seed}");
    }
}

/// The same program with other kinds of dependencies, by who makes what is needed.
fn with_kinds(graph: &Graph, change: impl Fn(Option<OpId>, DepKinds) -> DepKinds) -> Graph {
    let mut parts: Parts = graph.clone().into_parts();
    for op in parts.ops.as_mut_slice() {
        for (buffer, kinds) in &mut op.deps {
            *kinds = change(parts.buffers[*buffer].maker, *kinds);
        }
    }
    Graph::new(parts).unwrap()
}
