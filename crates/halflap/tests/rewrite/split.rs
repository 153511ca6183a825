//! Programs cut into pieces: what works row by row is cut and proved, what does not is refused by
//! name.

use halflap::cost::Costs;
use halflap::export::write_graph;
use halflap::graph::Graph;
use halflap::ids::OpId;
use halflap::import::read_graph;
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::origin::{Origin, Part};
use halflap::rewrite::{
    CopyCost, Prices, Recipe, RewriteError, Rewritten, Uncut, apply, cuttable, rewrite,
};
use halflap::units::{Bandwidth, Bytes, Flops, Nanos};
use halflap::verify_rewrite::verify_rewrite;
use serde_json::{Value, json};

use crate::common;
use crate::programs::read;

/// A gigabyte in a second is a byte in a nanosecond.
fn prices(costs: &Costs) -> Prices<'_> {
    let copy = CopyCost { bandwidth: Bandwidth::gigas(1000.0), launch: Nanos(5.0) };
    Prices { copy, costs, tail: Bytes(1024) }
}

/// A node in short: its name, its kind, what was fused into it, floating-point operations, results
/// with their sizes, and what it reads.
type Short = (
    &'static str,
    &'static str,
    &'static [&'static str],
    f64,
    &'static [(&'static str, i64)],
    &'static [&'static str],
);

/// An expert: 64 rows of 16 numbers are exchanged, multiplied to 32 and back to 16, and exchanged
/// again; then the gradient of the first weight.
const EXPERT: [Short; 12] = [
    ("norm", "compute", &["mean", "mul"], 0.0, &[("x", 4096), ("x.mean", 256)], &[]),
    ("send", "all_to_all", &[], 0.0, &[("y", 4096)], &["x"]),
    ("send.wait", "wait", &[], 0.0, &[("yw", 0)], &["y", "x"]),
    ("up", "compute", &["mm"], 65536.0, &[("h", 8192)], &["yw"]),
    ("act", "compute", &["relu"], 0.0, &[("a", 8192)], &["h"]),
    ("down", "compute", &["mm", "permute"], 65536.0, &[("z", 4096)], &["a"]),
    ("back", "all_to_all", &[], 0.0, &[("r", 4096)], &["z"]),
    ("back.wait", "wait", &[], 0.0, &[("rw", 0)], &["r", "z"]),
    ("add", "compute", &["add", "mean", "mul"], 0.0, &[("o", 4096), ("o.mean", 256)], &["rw", "x"]),
    ("grad", "compute", &["mm", "permute"], 65536.0, &[("g", 2048)], &["yw", "a"]),
    ("heads", "compute", &["bmm"], 65536.0, &[("b", 4096)], &["o"]),
    ("loss", "compute", &["sum"], 0.0, &[("l", 4)], &["b", "g"]),
];

fn json_of(nodes: &[Short]) -> Value {
    let readers = |buffer: &str| -> Vec<&str> {
        let reads = |node: &&Short| node.5.contains(&buffer);
        nodes.iter().filter(reads).map(|node| node.0).collect()
    };
    // What is read under a wait's name is read of the collective's result.
    let through = |buffer: &str| -> Vec<&str> {
        let wait = nodes.iter().find(|node| node.1 == "wait" && node.5.first() == Some(&buffer));
        wait.map_or(vec![], |wait| readers(wait.4[0].0))
    };
    let mut buffers = Vec::new();
    let mut listed = Vec::new();
    for (name, kind, ops, flops, outputs, deps) in nodes {
        let is_collective = !matches!(*kind, "compute" | "wait");
        let deps: Vec<Value> =
            deps.iter().map(|dep| json!({ "buffer": dep, "kinds": ["data"] })).collect();
        let names: Vec<&str> = outputs.iter().map(|(name, _)| *name).collect();
        let kind_of = if is_collective { "collective" } else { *kind };
        let time = if *kind == "wait" { 0.0 } else { 1000.0 };
        let mut node = json!({ "name": name, "kind": kind_of, "runtime_ns": time,
            "outputs": names, "deps": deps, "ops": ops });
        node["gemm_like"] = json!(ops.iter().any(|op| op.ends_with("mm")));
        if *flops > 0.0 {
            node["flops"] = json!(flops);
        }
        if is_collective {
            let bytes = outputs.first().map_or(4096, |(_, size)| *size).max(4096);
            node["collective"] =
                json!({ "op": kind, "group": "g", "group_size": 2, "bytes": bytes, "async": true });
        }
        listed.push(node);
        for (name, size) in *outputs {
            let mut users = readers(name);
            users.extend(through(name));
            buffers
                .push(json!({ "name": name, "size_alloc": size, "size_free": size, "users": users,
                "output": *name == "l" }));
        }
    }
    json!({ "format": "halflap.graph/1", "groups": { "g": { "ranks": [0, 1] } }, "nodes": listed,
        "buffers": buffers, "inputs": [] })
}

pub fn expert() -> Graph {
    read(&json_of(&EXPERT))
}

fn ops(graph: &Graph, names: &[&str]) -> Vec<OpId> {
    names.iter().map(|name| graph.find(name).unwrap()).collect()
}

pub const REGION: [&str; 9] =
    ["norm", "send", "send.wait", "up", "act", "down", "back", "back.wait", "add"];

pub fn cut(graph: &Graph, names: &[&str], pieces: u32) -> Result<Rewritten, RewriteError> {
    let costs = Costs::default();
    rewrite(graph, &[Recipe::Split { members: ops(graph, names), pieces }], &prices(&costs))
}

#[test]
fn nodes_of_traced_programs_have_numbers() {
    let mut graph = json_of(&EXPERT);
    for node in graph["nodes"].as_array_mut().unwrap() {
        for op in node["ops"].as_array_mut().unwrap() {
            *op = json!(format!("{}_12", op.as_str().unwrap()));
        }
    }
    cut(&read(&graph), &REGION, 2).unwrap();
    graph["nodes"][4]["ops"] = json!(["cumsum_1"]);
    assert!(cut(&read(&graph), &REGION, 2).is_err());
}

#[test]
fn a_region_between_exchanges_is_cut() {
    let graph = expert();
    let Rewritten { graph: new, origin } = cut(&graph, &REGION, 4).unwrap();
    assert_eq!(new.len(), graph.len() + 3 * REGION.len());
    let size = |name: &str| {
        let buffer = new.buffers().find(|&buffer| new.buffer_name(buffer) == name);
        buffer.map(|buffer| new.size_alloc(buffer).0)
    };
    // Only members use what the first product makes; the gradient reads what they exchange.
    assert_eq!([size("h"), size("h.p1"), size("h.p4")], [None, Some(2048), Some(2048)]);
    assert_eq!([size("y"), size("y.p1")], [Some(4096), Some(0)]);
    let piece = new.find("up.p3").unwrap();
    let reads: Vec<&str> =
        new.deps(piece).iter().map(|(buffer, _)| new.buffer_name(*buffer)).collect();
    assert_eq!(reads, ["yw.p3"]);
    assert_eq!(new.flops(piece), Some(Flops(65536.0 / 4.0)));
    assert_eq!(origin.ops[piece].part, Part::Piece { number: 2, of: 4 });
    let message = new.collective(new.find("send.p2").unwrap()).unwrap();
    assert_eq!(message.payload.input, Bytes(1024));
    let grad = new.find("grad").unwrap();
    assert!(
        new.deps(grad)
            .iter()
            .filter(|(buffer, _)| new.buffer_name(*buffer).starts_with("a"))
            .count()
            == 5
    );
    // Pieces allocate no more than the whole did.
    let peak = |graph: &Graph| Timeline::of(graph, &Order::of_input(graph)).peak;
    assert!(peak(&new) <= peak(&graph));
}

#[test]
fn waits_may_name_what_is_sent_before_what_arrives() {
    let mut listed = json_of(&EXPERT);
    for node in listed["nodes"].as_array_mut().unwrap() {
        if node["kind"] == "wait" {
            node["deps"].as_array_mut().unwrap().reverse();
        }
    }
    let graph = read(&listed);
    let Rewritten { graph: new, origin } = cut(&graph, &REGION, 2).unwrap();
    verify_rewrite(&graph, &new, &origin).unwrap();
}

#[test]
fn pieces_have_the_loss_of_the_stated_curve() {
    let graph = expert();
    let new = cut(&graph, &REGION, 4).unwrap().graph;
    let time = |name: &str| new.runtime(new.find(name).unwrap());
    // A quarter of 8192 bytes, and a tail that takes as long as 1024.
    assert_eq!(time("up.p1"), Nanos(1000.0 * ((8192.0 * 0.25 + 1024.0) / (8192.0 + 1024.0))));
    // A launch of 5 ns, and a quarter of the rest.
    assert_eq!(time("act.p1"), Nanos(5.0 + 995.0 * 0.25));
    // One size does not say what is latency: a link's is assumed, which is longer than this takes.
    assert_eq!(time("send.p1"), Nanos(1000.0));
    assert_eq!(time("send.wait.p1"), Nanos(0.0));
}

#[test]
fn what_cannot_be_cut_is_named() {
    let graph = expert();
    let why = |graph: &Graph, names: &[&str]| match cut(graph, names, 2) {
        Err(RewriteError::NotCut { node, why }) => (node, why),
        other => panic!("{:?}", other.map(|_| ())),
    };
    let with = |name: &'static str| [&REGION[..], &[name]].concat();
    assert_eq!(why(&graph, &with("grad")), ("grad".to_owned(), Uncut::Contracts));
    assert_eq!(why(&graph, &with("heads")), ("heads".to_owned(), Uncut::Operation));
    assert_eq!(why(&graph, &["send.wait"]), ("send.wait".to_owned(), Uncut::Wait));
    // Without a product nothing says how many rows there are.
    assert_eq!(why(&graph, &["norm", "send"]), ("norm".to_owned(), Uncut::Rows));
    let changed = |name: &str, change: fn(&mut Value)| {
        let mut json = json_of(&EXPERT);
        let nodes = json["nodes"].as_array_mut().unwrap();
        change(nodes.iter_mut().find(|node| node["name"] == name).unwrap());
        read(&json)
    };
    let other = changed("act", |node| node["ops"] = json!(["cumsum"]));
    assert_eq!(why(&other, &REGION), ("act".to_owned(), Uncut::Operation));
    let other = changed("up", |node| node["flops"] = json!(65536.0 * 3.0));
    assert_eq!(why(&other, &REGION).1, Uncut::Rows);
    let other = changed("back", |node| node["collective"]["op"] = json!("all_gather"));
    assert_eq!(why(&other, &REGION), ("back".to_owned(), Uncut::Collective));
    let other = changed("back", |node| node["collective"]["async"] = json!(false));
    assert_eq!(why(&other, &REGION), ("back".to_owned(), Uncut::Kind));
    assert!(matches!(cut(&graph, &REGION, 1), Err(RewriteError::TooFewPieces { pieces: 1 })));
    let twice: Vec<&str> = REGION.iter().copied().chain(["up"]).collect();
    assert!(matches!(cut(&graph, &twice, 2), Err(RewriteError::Twice { .. })));
}

#[test]
fn what_can_be_cut_is_found() {
    let graph = expert();
    let all: Vec<OpId> = graph.ops().collect();
    let parts = cuttable(&graph, &all);
    assert!(parts.contains(&ops(&graph, &REGION)), "{parts:?}");
}

/// Captured programs, each with all that can be cut.
pub fn captured() -> Vec<(Graph, Rewritten)> {
    let mut all = Vec::new();
    for name in ["moe_ep_6", "fsdp_tp_llama_4", "ddp_mlp_4"] {
        let graph = common::program(name);
        let able = cuttable(&graph, &graph.ops().collect::<Vec<_>>());
        let is_worth = |part: &Vec<OpId>| part.iter().any(|&op| graph.kind(op).is_collective());
        let recipes: Vec<Recipe> = able
            .into_iter()
            .filter(is_worth)
            .enumerate()
            .map(|(number, members)| Recipe::Split { members, pieces: 2 + number as u32 % 3 })
            .collect();
        assert!(!recipes.is_empty(), "{name}");
        let costs = Costs::default();
        let rewritten = apply(&graph, &recipes, &prices(&costs)).unwrap();
        all.push((graph, rewritten));
    }
    all
}

#[test]
fn captured_programs_are_cut_and_proved() {
    for (graph, Rewritten { graph: new, origin }) in captured() {
        verify_rewrite(&graph, &new, &origin).unwrap();
        let mut text = Vec::new();
        write_graph(&new, &mut text).unwrap();
        let again = read_graph(&text).unwrap();
        let claimed = Origin::by_names(&graph, &again);
        assert_eq!(claimed.ops, origin.ops);
        verify_rewrite(&graph, &again, &claimed).unwrap();
    }
}

#[test]
fn merges_and_splits_go_together() {
    let (graph, _) = captured().swap_remove(0);
    let gradients: Vec<OpId> = graph
        .ops()
        .filter(|&op| graph.collective(op).is_some_and(|of| of.op == "all_reduce"))
        .collect();
    let region: Vec<OpId> = graph.ops().filter(|op| !gradients.contains(op)).collect();
    let members = cuttable(&graph, &region).into_iter().max_by_key(Vec::len).unwrap();
    let recipes =
        [Recipe::Merge { members: gradients[..3].to_vec() }, Recipe::Split { members, pieces: 2 }];
    let costs = Costs::default();
    let new = rewrite(&graph, &recipes, &prices(&costs)).unwrap();
    let count = |part: fn(Part) -> bool| {
        new.origin.ops.iter().filter(|(_, source)| part(source.part)).count()
    };
    assert_eq!(count(|part| part == Part::Merged), 1);
    assert!(count(|part| matches!(part, Part::Piece { .. })) > 100);
}
