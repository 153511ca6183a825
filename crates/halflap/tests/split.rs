//! Programs cut into pieces: what works row by row is cut and proved, what does not is refused by
//! name, and a result that was damaged in any way is refused.

#[path = "common/random.rs"]
#[allow(dead_code)]
mod random;

use halflap::cost::Costs;
use halflap::export::write_graph;
use halflap::graph::{BufferParts, DepKinds, Graph, OpKind, OpParts, Parts};
use halflap::ids::{BufId, Id, OpId};
use halflap::import::read_graph;
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::origin::{Origin, Part};
use halflap::rewrite::{
    CopyCost, Prices, Recipe, RewriteError, Rewritten, Uncut, apply, cuttable, rewrite,
};
use halflap::units::{Bandwidth, Bytes, Flops, Nanos};
use halflap::verify_rewrite::{RewriteViolation, verify_rewrite};
use random::Random;
use serde_json::{Value, json};

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

fn read(value: &Value) -> Graph {
    read_graph(value.to_string().as_bytes()).unwrap()
}

fn expert() -> Graph {
    read(&json_of(&EXPERT))
}

fn ops(graph: &Graph, names: &[&str]) -> Vec<OpId> {
    names.iter().map(|name| graph.find(name).unwrap()).collect()
}

const REGION: [&str; 9] =
    ["norm", "send", "send.wait", "up", "act", "down", "back", "back.wait", "add"];

fn cut(graph: &Graph, names: &[&str], pieces: u32) -> Result<Rewritten, RewriteError> {
    let costs = Costs::default();
    rewrite(graph, &[Recipe::Split { members: ops(graph, names), pieces }], &prices(&costs))
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
fn captured() -> Vec<(Graph, Rewritten)> {
    let mut all = Vec::new();
    for name in ["moe_ep_6", "fsdp_tp_llama_4", "ddp_mlp_4"] {
        let path =
            format!("{}/../../tests/corpus/{name}.graph.json.gz", env!("CARGO_MANIFEST_DIR"));
        let graph = read_graph(&std::fs::read(path).unwrap()).unwrap();
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

type Damage = fn(&mut Random, &mut Graph, &mut Parts, &mut Origin) -> bool;

fn pieces(origin: &Origin) -> Vec<OpId> {
    let is_piece = |part: Part| matches!(part, Part::Piece { .. });
    origin.ops.iter().filter(|(_, source)| is_piece(source.part)).map(|(op, _)| op).collect()
}

/// A piece that reads a part of what was cut, and which of its dependencies that is.
fn reader(random: &mut Random, parts: &Parts, origin: &Origin) -> (OpId, usize) {
    loop {
        let op = random.pick(&pieces(origin));
        let is_part = |(buffer, kinds): &(BufId, DepKinds)| {
            kinds.data && parts.buffers[*buffer].name.contains(".p")
        };
        if let Some(at) = parts.ops[op].deps.iter().position(is_part) {
            return (op, at);
        }
    }
}

fn dependency_dropped(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let (op, at) = reader(random, parts, origin);
    let (buffer, _) = parts.ops[op].deps.remove(at);
    parts.buffers[buffer].users.retain(|&user| user != op);
    true
}

fn piece_of_another(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let (op, at) = reader(random, parts, origin);
    let (buffer, kinds) = parts.ops[op].deps[at];
    let old = origin.buffers[buffer].clone();
    let other = parts.buffers.ids().find(|&other| {
        other != buffer
            && origin.buffers[other] == old
            && parts.buffers[other].name.contains(".p")
            && parts.buffers[other].maker < Some(op)
    });
    let Some(other) = other else { return false };
    parts.ops[op].deps[at] = (other, kinds);
    parts.buffers[other].users.push(op);
    true
}

fn part_missed_by_an_outsider(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let kept: Vec<OpId> = parts
        .ops
        .ids()
        .filter(|&op| {
            let reads = parts.ops[op]
                .deps
                .iter()
                .filter(|(buffer, _)| parts.buffers[*buffer].name.contains(".p"));
            origin.ops[op].part == Part::Kept && reads.count() > 0
        })
        .collect();
    if kept.is_empty() {
        return false;
    }
    let op = random.pick(&kept);
    let at = parts.ops[op]
        .deps
        .iter()
        .rposition(|(buffer, kinds)| kinds.data && parts.buffers[*buffer].name.contains(".p"));
    let Some(at) = at else { return false };
    parts.ops[op].deps.remove(at);
    true
}

fn number_claimed_twice(
    random: &mut Random,
    _: &mut Graph,
    _: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let op = random.pick(&pieces(origin));
    let Part::Piece { number, of } = origin.ops[op].part else { return false };
    origin.ops[op].part = Part::Piece { number: (number + 1) % of, of };
    true
}

fn more_pieces_claimed(
    random: &mut Random,
    _: &mut Graph,
    _: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let op = random.pick(&pieces(origin));
    let Part::Piece { number, of } = origin.ops[op].part else { return false };
    origin.ops[op].part = Part::Piece { number, of: of + 1 };
    true
}

fn another_share(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let sends: Vec<OpId> =
        pieces(origin).into_iter().filter(|&op| parts.ops[op].collective.is_some()).collect();
    let op = random.pick(&sends);
    let Some(collective) = &mut parts.ops[op].collective else { return false };
    collective.payload.input = Bytes(collective.payload.input.0 + 2);
    true
}

fn less_work(random: &mut Random, _: &mut Graph, parts: &mut Parts, origin: &mut Origin) -> bool {
    let products: Vec<OpId> =
        pieces(origin).into_iter().filter(|&op| parts.ops[op].gemm_like).collect();
    let op = random.pick(&products);
    parts.ops[op].flops = parts.ops[op].flops.map(|flops| Flops(flops.0 / 2.0));
    true
}

fn another_size(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let apart: Vec<_> = parts
        .buffers
        .ids()
        .filter(|&id| {
            parts.buffers[id].name.contains(".p") && parts.buffers[id].size_alloc > Bytes(2)
        })
        .collect();
    let _ = origin;
    if apart.is_empty() {
        return false;
    }
    let buffer = random.pick(&apart);
    let size = Bytes(parts.buffers[buffer].size_alloc.0 - 2);
    (parts.buffers[buffer].size_alloc, parts.buffers[buffer].size_free) = (size, size);
    true
}

fn slice_of_nothing(random: &mut Random, _: &mut Graph, parts: &mut Parts, _: &mut Origin) -> bool {
    let slices: Vec<_> = parts
        .buffers
        .ids()
        .filter(|&id| parts.buffers[id].view_of.is_some() && parts.buffers[id].name.contains(".p"))
        .collect();
    let slice = random.pick(&slices);
    parts.buffers[slice].view_of = None;
    true
}

fn whole_not_allocated(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let op = random.pick(&pieces(origin));
    let issued = parts.ops[op].deps.iter().position(|(_, kinds)| kinds.issued);
    let Some(at) = issued else { return false };
    let (whole, _) = parts.ops[op].deps.remove(at);
    parts.buffers[whole].users.retain(|&user| user != op);
    true
}

fn freed_too_early(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    // A user under another name, which no dependency protects.
    let op = random.pick(&pieces(origin));
    let reads: Vec<_> = parts.ops[op].deps.iter().map(|(buffer, _)| *buffer).collect();
    let held = parts.buffers.ids().find(|&id| {
        parts.buffers[id].users.contains(&op)
            && !reads.contains(&id)
            && parts.buffers[id].view_of.is_none()
            && !parts.buffers.iter().any(|(part, parts)| {
                parts.view_of == Some(id) && (parts.users.contains(&op) || reads.contains(&part))
            })
    });
    let Some(held) = held else { return false };
    parts.buffers[held].users.retain(|&user| user != op);
    true
}

fn sums_over_rows(
    random: &mut Random,
    before: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let kernels: Vec<OpId> = pieces(origin)
        .into_iter()
        .filter(|&op| parts.ops[op].kind == OpKind::Compute && !parts.ops[op].gemm_like)
        .collect();
    let old = origin.ops[random.pick(&kernels)].of[0];
    let mut was = before.clone().into_parts();
    change_both([&mut was, parts], origin, old, |op| op.fused = vec!["cumsum".to_owned()]);
    *before = Graph::new(was).unwrap();
    true
}

fn batched(
    random: &mut Random,
    before: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let products: Vec<OpId> =
        pieces(origin).into_iter().filter(|&op| parts.ops[op].gemm_like).collect();
    let old = origin.ops[random.pick(&products)].of[0];
    let mut was = before.clone().into_parts();
    change_both([&mut was, parts], origin, old, |op| op.fused = vec!["bmm".to_owned()]);
    *before = Graph::new(was).unwrap();
    true
}

/// Changes an operation of the old program, and all that stand for it in the new one.
fn change_both(programs: [&mut Parts; 2], origin: &Origin, old: OpId, change: fn(&mut OpParts)) {
    let [before, after] = programs;
    change(&mut before.ops[old]);
    for (op, _) in origin.ops.iter().filter(|(_, source)| source.of == [old]) {
        change(&mut after.ops[op]);
    }
}

fn other_rows(
    random: &mut Random,
    before: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    // Of several products that hand pieces to each other, one with more work has other rows.
    let products: Vec<OpId> = pieces(origin)
        .into_iter()
        .filter(|&op| {
            let is_part = |buffer| {
                let of: &BufferParts = &parts.buffers[buffer];
                of.name.contains(".p")
            };
            parts.ops[op].gemm_like && parts.ops[op].deps.iter().any(|(buffer, _)| is_part(*buffer))
        })
        .collect();
    if products.len() < 20 {
        return false;
    }
    let old = origin.ops[random.pick(&products)].of[0];
    let mut was = before.clone().into_parts();
    change_both([&mut was, parts], origin, old, |op| {
        op.flops = op.flops.map(|flops| Flops(flops.0 * 3.0));
    });
    *before = Graph::new(was).unwrap();
    true
}

#[test]
fn every_damage_is_found() {
    let damages: [(&str, Damage); 14] = [
        ("a dependency dropped", dependency_dropped),
        ("another's piece read", piece_of_another),
        ("a part that an outsider does not wait for", part_missed_by_an_outsider),
        ("a piece that is there twice", number_claimed_twice),
        ("a piece that is not there", more_pieces_claimed),
        ("a message of another size", another_share),
        ("less work", less_work),
        ("a part of another size", another_size),
        ("a slice of nothing", slice_of_nothing),
        ("a part written before the whole is there", whole_not_allocated),
        ("a part that is freed too early", freed_too_early),
        ("a kernel that does not work row by row", sums_over_rows),
        ("a batched product", batched),
        ("a product with other rows", other_rows),
    ];
    let all = captured();
    for (what, damage) in damages {
        let mut random = Random(11);
        let mut found = 0;
        for (graph, rewritten) in all.iter().take(2).cycle().take(16) {
            let (mut before, mut origin) = (graph.clone(), rewritten.origin.clone());
            let mut parts = rewritten.graph.clone().into_parts();
            if !damage(&mut random, &mut before, &mut parts, &mut origin) {
                continue;
            }
            // What is not even a graph is refused before.
            let Ok(after) = Graph::new(parts) else { continue };
            let said = verify_rewrite(&before, &after, &origin);
            assert!(said.is_err(), "{what}");
            found += 1;
        }
        assert!(found >= 4, "{what}: only {found} programs");
    }
}

#[test]
fn violations_say_what_is_wrong() {
    let graph = expert();
    let Rewritten { graph: new, mut origin } = cut(&graph, &REGION, 2).unwrap();
    let piece = new.find("up.p2").unwrap();
    origin.ops[piece].part = Part::Piece { number: 0, of: 2 };
    let said = verify_rewrite(&graph, &new, &origin).unwrap_err();
    assert_eq!(said, RewriteViolation::WrongPieces { node: "up".to_owned() });
    assert_eq!(said.to_string(), "the pieces of 'up' are not all there, or not once");
    let unknown = OpId::from_index(graph.len());
    origin.ops[piece].of = vec![unknown];
    assert!(verify_rewrite(&graph, &new, &origin).is_err());
}
