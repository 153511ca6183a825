//! Rewrites and order chosen together: never slower than the order alone, proved, within the limit,
//! and the same on any number of threads.

mod common;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use halflap::cost::Costs;
use halflap::evaluate::{Evaluation, Setup};
use halflap::graph::{Edges, Graph};
use halflap::import::read_graph;
use halflap::improve::{
    Allowed, Improved, KeptBecause, LookedUp, OneCommunicator, PlanOrder, Request, improve,
    looked_up,
};
use halflap::memory::Timeline;
use halflap::optimize::{Effort, Task};
use halflap::order::Order;
use halflap::rewrite::{CopyCost, Prices, Recipe, RewriteKind, Rewritten, TAIL};
use halflap::units::{Bandwidth, Bytes, Nanos};
use halflap::verify::{Demands, OrderEdges, verify};
use halflap::verify_rewrite::verify_rewrite;
use halflap::workload::Model;
use serde_json::{Value, json};

/// Layers whose weights are gathered, each by several small collectives, and multiplied.
struct Layers {
    count: usize,
    kind: &'static str,
    /// Of a collective, besides a nanosecond for each byte.
    latency: f64,
    /// Of a layer's compute.
    compute: f64,
    /// Of a collective of its own group that the first layer waits for, if any.
    first: f64,
}

impl Layers {
    const GATHERS: usize = 3;

    fn graph(&self) -> Graph {
        let data = |buffer: &str| json!({ "buffer": buffer, "kinds": ["data"] });
        let (mut nodes, mut buffers): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
        for layer in 0..self.count {
            let mut reads = vec![];
            if layer > 0 {
                reads.push(data(&format!("x{}", layer - 1)));
            }
            let is_later = layer > 0 || self.first == 0.0;
            for part in 0..Layers::GATHERS + usize::from(!is_later) {
                let is_first = part == Layers::GATHERS;
                let (group, latency) =
                    if is_first { ("h", self.first) } else { ("g", self.latency) };
                let [comm, wait] = ["comm", "wait"].map(|what| format!("l{layer}.{part}.{what}"));
                let [gathered, waited] = ["y", "w"].map(|what| format!("l{layer}.{part}.{what}"));
                let bytes = 64 * (1 + part as i64);
                let reduction = if self.kind == "all_gather" { "none" } else { "sum" };
                nodes.push(json!({ "name": comm, "kind": "collective", "runtime_ns": latency + bytes as f64,
                    "outputs": [gathered], "deps": [], "collective": { "op": self.kind, "group": group, "group_size": 2,
                    "bytes": bytes, "async": true, "input_bytes": if self.kind == "all_gather" { bytes / 2 } else { bytes },
                    "output_bytes": bytes, "dtype": "f32", "reduction": reduction } }));
                nodes.push(
                    json!({ "name": wait, "kind": "wait", "runtime_ns": 0.0, "outputs": [waited],
                    "deps": [data(&gathered)] }),
                );
                let user = format!("l{layer}.mm");
                buffers.push(json!({ "name": gathered, "size_alloc": bytes, "size_free": bytes,
                    "users": [wait, user], "output": false }));
                buffers
                    .push(json!({ "name": waited, "size_alloc": 0, "size_free": 0, "users": [user], "output": false }));
                reads.push(data(&waited));
            }
            let users = if layer + 1 < self.count {
                json!([format!("l{}.mm", layer + 1)])
            } else {
                json!([])
            };
            nodes.push(json!({ "name": format!("l{layer}.mm"), "kind": "compute", "runtime_ns": self.compute,
                "outputs": [format!("x{layer}")], "deps": reads }));
            buffers.push(json!({ "name": format!("x{layer}"), "size_alloc": 100, "size_free": 100, "users": users,
                "output": layer + 1 == self.count }));
        }
        let text = json!({ "format": "halflap.graph/1", "groups": { "g": { "ranks": [0, 1] }, "h": { "ranks": [0, 2] } }, "nodes": nodes,
            "buffers": buffers, "inputs": [] });
        read_graph(text.to_string().as_bytes()).unwrap()
    }
}

/// What is asked for, besides the program.
struct Asked {
    allowed: Allowed,
    /// How many times what the input order needs.
    memory: f64,
    threads: usize,
    copy: CopyCost,
    plan_order: PlanOrder,
}

impl Default for Asked {
    fn default() -> Asked {
        let copy = CopyCost { bandwidth: Bandwidth::gigas(100.0), launch: Nanos(1.0) };
        let plan_order = PlanOrder::Searched;
        Asked { allowed: Allowed::exact(), memory: 4.0, threads: 1, copy, plan_order }
    }
}

fn limit(graph: &Graph, asked: &Asked) -> Bytes {
    Bytes((Timeline::of(graph, &Order::of_input(graph)).peak.0 as f64 * asked.memory) as i64)
}

fn improved(graph: &Graph, asked: &Asked) -> Improved {
    improved_while(graph, asked, &|_| ControlFlow::Continue(()))
}

/// Tells which part of the work is done.
type Progress<'a> = &'a (dyn Fn(f64) -> ControlFlow<()> + Sync);

fn improved_while(graph: &Graph, asked: &Asked, progress: Progress<'_>) -> Improved {
    let (model, costs) = (Model::default(), Costs::default());
    let machine = model.machine(graph, costs.times(graph).unwrap());
    let prices = Prices { copy: asked.copy, costs: &costs, tail: TAIL };
    let task = Task {
        graph,
        machine: &machine,
        memory_limit: limit(graph, asked),
        edges: Edges::Real,
        known: &[],
        effort: Effort::Quick,
        threads: asked.threads,
        progress,
    };
    let request = Request {
        task: &task,
        model: &model,
        prices: &prices,
        allowed: &asked.allowed,
        left_out: &[],
        plan_order: asked.plan_order,
        alone: None,
    };
    improve(&request).unwrap()
}

const LATENT: Layers =
    Layers { count: 6, kind: "all_gather", latency: 1000.0, compute: 900.0, first: 0.0 };

/// The same layers twice: the second half gathers what the first did.
fn gathered_twice() -> Graph {
    let mut parts = LATENT.graph().into_parts();
    for op in parts.ops.ids() {
        let name = parts.ops[op].name.clone();
        if let Some(collective) = &mut parts.ops[op].collective {
            let (layer, part) = name.split_once('.').unwrap();
            let layer = layer[1..].parse::<usize>().unwrap() % (LATENT.count / 2);
            collective.content = Some(format!("{layer} {part}"));
        }
    }
    Graph::new(parts).unwrap()
}

#[test]
fn what_was_gathered_is_kept_where_memory_allows() {
    let graph = gathered_twice();
    let allowed = Allowed { kinds: vec![RewriteKind::Keep], exact_only: true };
    for memory in [1.0, 1.5, 4.0] {
        let asked = Asked { allowed: allowed.clone(), memory, ..Asked::default() };
        let found = improved(&graph, &asked);
        let Some(changed) = found.changed else {
            assert!(memory < 4.0, "nine of 18 gathers of 1 us need not be");
            continue;
        };
        assert!(changed.recipes.iter().all(|recipe| recipe.kind() == RewriteKind::Keep));
        assert!(changed.optimized.step_time.0 < 0.999 * found.unchanged.step_time.0);
        verify_rewrite(&graph, &changed.rewritten.graph, &changed.rewritten.origin).unwrap();
        let peak = Timeline::of(&changed.rewritten.graph, &changed.optimized.order).peak;
        assert!(peak <= limit(&graph, &asked));
        if memory == 4.0 {
            assert_eq!(changed.rewritten.origin.dropped.len(), 18, "nine gathers, nine waits");
            assert!(changed.optimized.step_time.0 < 0.7 * found.unchanged.step_time.0);
        }
    }
    // Together with merges, never worse than without.
    let both = improved(&graph, &Asked::default()).changed.unwrap();
    let kinds = vec![RewriteKind::Merge];
    let asked = Asked { allowed: Allowed { kinds, exact_only: true }, ..Asked::default() };
    let merges = improved(&graph, &asked).changed.unwrap();
    assert!(both.optimized.step_time.0 <= 1.02 * merges.optimized.step_time.0);
}

#[test]
fn latency_is_paid_once_where_that_shortens_the_step() {
    let graph = LATENT.graph();
    let found = improved(&graph, &Asked::default());
    let changed = found.changed.expect("18 collectives of 1 us in a step of 5.4 us of compute");
    assert!(changed.optimized.step_time.0 < 0.6 * found.unchanged.step_time.0);
    assert_eq!(changed.recipes.len(), found.chosen.len());
    verify_rewrite(&graph, &changed.rewritten.graph, &changed.rewritten.origin).unwrap();
    let demands = Demands {
        order_edges: OrderEdges::Free,
        memory_limit: Some(limit(&graph, &Asked::default())),
    };
    verify(&changed.rewritten.graph, changed.optimized.order.as_slice(), &demands).unwrap();
}

#[test]
fn recipes_are_chosen_without_a_search_for_the_last_order() {
    let graph = LATENT.graph();
    let changed =
        |plan_order| improved(&graph, &Asked { plan_order, ..Asked::default() }).changed.unwrap();
    let (searched, sketched) = (changed(PlanOrder::Searched), changed(PlanOrder::Sketched));
    assert_eq!(sketched.recipes, searched.recipes);
    assert!(sketched.optimized.step_time >= searched.optimized.step_time);
    let memory_limit = Some(limit(&graph, &Asked::default()));
    let demands = Demands { order_edges: OrderEdges::Free, memory_limit };
    verify(&sketched.rewritten.graph, sketched.optimized.order.as_slice(), &demands).unwrap();
}

#[test]
fn weights_that_are_only_looked_up_are_named() {
    let (model, costs) = (Model::default(), Costs::default());
    let prices = Prices { copy: CopyCost::default(), costs: &costs, tail: TAIL };
    let found = |name: &str| {
        let graph = common::program(name);
        let machine = model.machine(&graph, costs.times(&graph).unwrap());
        let setup = Setup { graph: &graph, machine: &machine };
        let played = Evaluation::of(setup, Order::of_input(&graph));
        let all = looked_up(setup, &played.simulation, &prices);
        let saved = |one: &LookedUp| one.saved.0 / played.step_time().0;
        all.iter().map(|one| (graph.name(one.gather).to_owned(), saved(one))).collect::<Vec<_>>()
    };
    for name in ["fsdp_llama_2", "fsdp_tp_llama_4"] {
        let all = found(name);
        assert!(all.len() == 1 && all[0].0 == "op0", "{name}: {all:?}");
        assert!((0.05..0.25).contains(&all[0].1), "{name}: {all:?}");
    }
    assert_eq!(found("moe_ep_6"), []);
}

#[test]
fn what_is_exposed_between_exchanges_is_cut() {
    let graph = common::program("moe_ep_6");
    let asked = Asked { memory: 1.0, copy: CopyCost::default(), ..Asked::default() };
    let found = improved(&graph, &asked);
    let changed = found.changed.expect("most all-to-alls are exposed");
    assert!(changed.optimized.step_time.0 < 0.97 * found.unchanged.step_time.0);
    assert!(changed.recipes.iter().all(|recipe| recipe.is_exact(&graph)));
    assert!(found.chosen.iter().all(|&kind| kind == RewriteKind::Split));
    assert!(changed.optimized.peak <= limit(&graph, &asked));
    verify_rewrite(&graph, &changed.rewritten.graph, &changed.rewritten.origin).unwrap();
}

#[test]
fn nothing_is_changed_where_nothing_is_gained() {
    let none =
        |layers: Layers| assert!(improved(&layers.graph(), &Asked::default()).changed.is_none());
    // No latency, or all hidden already.
    none(Layers { latency: 0.0, ..LATENT });
    none(Layers { latency: 10.0, compute: 10_000.0, ..LATENT });
}

#[test]
fn plans_that_cannot_be_shorter_are_not_searched() {
    let searched = |layers: Layers| {
        let looks = AtomicUsize::new(0);
        let progress = |part: f64| {
            looks.fetch_add(usize::from((0.4..0.6).contains(&part)), Ordering::Relaxed);
            ControlFlow::Continue(())
        };
        let found = improved_while(&layers.graph(), &Asked::default(), &progress);
        (looks.into_inner() > 0, found.changed.is_some(), found.kept_because)
    };
    assert!(matches!(searched(LATENT), (true, true, _)));
    // What is exposed is one collective at the start, whatever becomes of the others behind it.
    let found = searched(Layers { first: 50_000.0, compute: 10_000.0, ..LATENT });
    assert_eq!(found, (false, false, KeptBecause::NothingShorter));
}

#[test]
fn buckets_stay_within_the_limit() {
    let graph = LATENT.graph();
    let steps = [1.0, 1.5, 4.0].map(|memory| {
        let asked = Asked { memory, ..Asked::default() };
        let found = improved(&graph, &asked);
        let best = found.changed.map_or(found.unchanged, |changed| changed.optimized);
        assert!(best.peak <= limit(&graph, &asked), "{memory}");
        best.step_time.0
    });
    assert!(steps[2] < steps[0], "memory buys larger buckets: {steps:?}");
    // Even at the input's own peak, the collectives of a layer can be one.
    let alone = improved(&graph, &Asked { memory: 1.0, ..Asked::default() }).unchanged.step_time.0;
    assert!(steps[0] < 0.9 * alone, "{} of {alone}", steps[0]);
}

#[test]
fn sums_are_merged_only_where_bits_may_change() {
    let graph = Layers { kind: "all_reduce", ..LATENT }.graph();
    assert!(improved(&graph, &Asked::default()).changed.is_none());
    let all = Allowed { exact_only: false, ..Allowed::exact() };
    assert!(improved(&graph, &Asked { allowed: all, ..Asked::default() }).changed.is_some());
    let no_kind = Allowed { kinds: Vec::new(), exact_only: false };
    assert!(improved(&graph, &Asked { allowed: no_kind, ..Asked::default() }).changed.is_none());
}

#[test]
fn the_choice_is_the_same_on_any_number_of_threads() {
    let graph = LATENT.graph();
    let found = |threads| {
        let changed = improved(&graph, &Asked { threads, ..Asked::default() }).changed.unwrap();
        (changed.recipes, changed.optimized.order.as_slice().to_vec())
    };
    assert_eq!(found(1), found(3));
}

#[test]
fn captured_programs_are_never_slower_than_with_order_alone() {
    for name in ["fsdp_llama_2", "fsdp_tp_llama_4", "moe_ep_6", "ddp_mlp_4"] {
        let graph = common::program(name);
        let asked = Asked { memory: 1.05, threads: 2, ..Asked::default() };
        let found = improved(&graph, &asked);
        let Some(changed) = found.changed else { continue };
        assert!(changed.optimized.step_time.0 < found.unchanged.step_time.0, "{name}");
        assert!(changed.optimized.peak <= limit(&graph, &asked), "{name}");
        assert!(!changed.robustness.is_lost(), "{name}");
        verify_rewrite(&graph, &changed.rewritten.graph, &changed.rewritten.origin).unwrap();
        let members: Vec<_> = changed.recipes.iter().map(|recipe| recipe.members().len()).collect();
        assert!(members.iter().all(|&count| count > 1), "{name}");
    }
}

/// A gradient is reduced while more is computed, and then a weight is gathered that the next
/// operation needs. On one communicator the gather waits for the whole gradient, or the gradient
/// for the gather.
fn urgent_gather() -> Graph {
    let data = |buffer: &str| json!({ "buffer": buffer, "kinds": ["data"] });
    let compute = |name: &str, time: f64, reads: &[&str]| {
        let deps: Vec<Value> = reads.iter().map(|buffer| data(buffer)).collect();
        json!({ "name": name, "kind": "compute", "runtime_ns": time,
            "outputs": [format!("{name}.out")], "deps": deps })
    };
    let comm = |name: &str, op: &str, time: f64, read: &str| {
        json!({ "name": name, "kind": "collective", "runtime_ns": time,
            "outputs": [format!("{name}.out")], "deps": [data(read)],
            "collective": { "op": op, "group": "dp", "group_size": 2, "bytes": 1000,
                "async": true } })
    };
    let wait = |name: &str, of: &str| {
        json!({ "name": name, "kind": "wait", "runtime_ns": 0.0,
            "outputs": [format!("{name}.out")], "deps": [data(&format!("{of}.out"))] })
    };
    let nodes = vec![
        compute("gradient", 10.0, &[]),
        comm("reduce", "reduce_scatter", 1000.0, "gradient.out"),
        compute("shard", 500.0, &["gradient.out"]),
        comm("gather", "all_gather", 100.0, "shard.out"),
        wait("gathered", "gather"),
        compute("next", 400.0, &["gathered.out"]),
        wait("reduced", "reduce"),
        compute("update", 50.0, &["next.out", "reduced.out"]),
    ];
    let made = nodes.iter().map(|node| {
        let name = format!("{}.out", node["name"].as_str().unwrap());
        let reads = |other: &&Value| {
            other["deps"].as_array().unwrap().iter().any(|dep| dep["buffer"] == json!(name))
        };
        let users: Vec<&Value> = nodes.iter().filter(reads).map(|node| &node["name"]).collect();
        json!({ "name": name, "size_alloc": 8, "size_free": 8, "users": users, "output": false })
    });
    let text = json!({ "format": "halflap.graph/1", "groups": { "dp": { "ranks": [0, 1] } },
        "nodes": nodes, "buffers": made.collect::<Vec<_>>(), "inputs": [] });
    read_graph(text.to_string().as_bytes()).unwrap()
}

fn only_groups() -> Asked {
    let allowed = Allowed { kinds: vec![RewriteKind::Groups], exact_only: false };
    Asked { allowed, ..Asked::default() }
}

#[test]
fn a_second_communicator_is_used_where_an_urgent_gather_would_wait() {
    let graph = urgent_gather();
    let found = improved(&graph, &only_groups());
    // Alone, the gather ends at 610 or 1110 and the gradient at 1610 or 1010.
    assert_eq!(found.unchanged.step_time, Nanos(1560.0));
    let changed = found.changed.expect("both travel at the same time");
    assert_eq!(found.one_communicator, None);
    assert!(matches!(changed.recipes[..], [Recipe::Groups { .. }]));
    // From 510 on both share the link: the gather ends at 710, the gradient at 1110.
    assert!((changed.optimized.step_time.0 - 1160.0).abs() < 1e-6);
    assert!(!changed.robustness.is_lost());
    let Rewritten { graph: new, origin } = &changed.rewritten;
    verify_rewrite(&graph, new, origin).unwrap();
    let mut text = Vec::new();
    halflap::export::write_graph(new, &mut text).unwrap();
    let again = read_graph(&text).unwrap();
    let machine = Model::default().machine(&again, Costs::default().times(&again).unwrap());
    let setup = Setup { graph: &again, machine: &machine };
    let step = Evaluation::of(setup, changed.optimized.order.clone()).step_time();
    assert_eq!(step, changed.optimized.step_time, "as it is read again");
}

#[test]
fn a_second_communicator_must_be_asked_for_and_be_worth_it() {
    let graph = urgent_gather();
    let found = improved(&graph, &Asked::default());
    assert!(found.changed.is_none() && found.one_communicator.is_none());
    assert!(!Allowed::exact().kinds.contains(&RewriteKind::Groups));
    // Only gathers: nothing runs beside them.
    let found = improved(&LATENT.graph(), &only_groups());
    assert_eq!(found.one_communicator, Some(OneCommunicator::NothingBeside));
    // A gradient that is as urgent as the gather only loses by sharing.
    let parts = || urgent_gather().into_parts();
    let with = |name: &str, time: f64| {
        let mut parts = parts();
        let op = parts.ops.ids().find(|&op| parts.ops[op].name == name).unwrap();
        parts.ops[op].runtime = Some(Nanos(time));
        Graph::new(parts).unwrap()
    };
    let found = improved(&with("shard", 5000.0), &only_groups());
    assert_eq!(
        found.one_communicator,
        Some(OneCommunicator::BoundTooLong { least: Nanos(5560.0) })
    );
    let found = improved(&with("gather", 0.0), &only_groups());
    assert!(found.changed.is_some(), "an empty gather would wait, too");
    let found = improved(&with("reduce", 0.5), &only_groups());
    assert!(found.changed.is_none() && found.one_communicator.is_some());
}
