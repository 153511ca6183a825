//! Changed programs: what can be merged is proved, what cannot is refused by name, and a result that
//! was damaged in any way is refused.

mod common;
#[path = "common/random.rs"]
#[allow(dead_code)]
mod random;

use halflap::collective::{CollectiveKind, Dtype, Payload, Reduction};
use halflap::cost::{Costs, Times};
use halflap::evaluate::{Evaluation, Setup, Side};
use halflap::export::write_graph;
use halflap::graph::{DepKinds, Edges, Graph, OpKind, OpParts, Parts};
use halflap::ids::{BufId, GroupId, Id, OpId};
use halflap::import::read_graph;
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::origin::{Origin, Part, Source};
use halflap::overlap::Fidelity;
use halflap::pass::{Options, Pass, Settings};
use halflap::rewrite::{
    CopyCost, Prices, Recipe, RewriteError, Rewritten, TAIL, apply, merge_named, rewrite,
};
use halflap::robustness::Robustness;
use halflap::schedule::{self, NoObserver, Request};
use halflap::simulate::{Machine, lower_bound};
use halflap::units::{Bandwidth, Bytes, Nanos};
use halflap::verify_rewrite::{RewriteViolation, verify_rewrite};
use halflap_report::{Compared, Summary, carried};
use random::Random;
use serde_json::{Value, json};

/// A gigabyte in a second is a byte in a nanosecond.
fn prices(costs: &Costs) -> Prices<'_> {
    let copy = CopyCost { bandwidth: Bandwidth::gigas(1.0), launch: Nanos(5.0) };
    Prices { copy, costs, tail: TAIL }
}

/// Two collectives of the same kind with an input, a wait and a reader each, and one more of another
/// size; nothing binds them to each other but their order.
fn pair(kind: &str, sizes: [i64; 3], outputs: [i64; 3]) -> Value {
    let node = |name: String, kind: &str, outputs: Value, deps: Value| json!({ "name": name, "kind": kind, "runtime_ns": 10.0, "outputs": outputs, "deps": deps });
    let data = |buffer: String| json!([{ "buffer": buffer, "kinds": ["data"] }]);
    let buffer = |name: String, size: i64, users: Value| json!({ "name": name, "size_alloc": size, "size_free": size, "users": users, "output": false });
    let (mut nodes, mut buffers) = (Vec::new(), Vec::new());
    for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
        let (size, output) = (sizes[index], outputs[index]);
        nodes.push(node(
            format!("{name}.make"),
            "compute",
            json!([format!("{name}.x")]),
            json!([]),
        ));
        let mut deps = data(format!("{name}.x"));
        if index > 0 {
            let before = format!("{}.y", ["a", "b"][index - 1]);
            deps.as_array_mut().unwrap().push(json!({ "buffer": before, "kinds": ["order"] }));
        }
        let mut collective =
            node(format!("{name}.comm"), "collective", json!([format!("{name}.y")]), deps);
        collective["runtime_ns"] = json!(100.0 + size.max(output) as f64);
        collective["collective"] = json!({ "op": kind, "group": "g", "group_size": 2, "bytes": size.max(output),
            "async": true, "input_bytes": size, "output_bytes": output, "dtype": "f32" });
        if kind != "all_gather" {
            collective["collective"]["reduction"] = json!("sum");
        }
        nodes.push(collective);
        nodes.push(node(
            format!("{name}.wait"),
            "wait",
            json!([format!("{name}.w")]),
            data(format!("{name}.y")),
        ));
        nodes.push(node(format!("{name}.read"), "compute", json!([]), data(format!("{name}.w"))));
        let [comm, wait, read] = ["comm", "wait", "read"].map(|part| format!("{name}.{part}"));
        buffers.push(buffer(format!("{name}.x"), size, json!([comm, wait])));
        buffers.push(buffer(format!("{name}.y"), output, json!([wait, read])));
        buffers.push(buffer(format!("{name}.w"), 0, json!([read])));
    }
    json!({ "format": "halflap.graph/1", "groups": { "g": { "ranks": [0, 1] }, "h": { "ranks": [0, 1] } },
        "nodes": nodes, "buffers": buffers, "inputs": [] })
}

fn read(value: &Value) -> Graph {
    read_graph(value.to_string().as_bytes()).unwrap()
}

fn named(names: &[&str]) -> Vec<Vec<String>> {
    vec![names.iter().map(|&name| name.to_owned()).collect()]
}

fn order_of(graph: &Graph) -> Vec<&str> {
    graph.ops().map(|op| graph.name(op)).collect()
}

/// What is said of the names on a graph after a change.
fn refused(change: impl FnOnce(&mut Value), names: &[&str]) -> RewriteError {
    let mut graph = pair("all_reduce", [64, 64, 32], [64, 64, 32]);
    change(&mut graph);
    merge_named(&read(&graph), &named(names), &prices(&Costs::default())).map(|_| ()).unwrap_err()
}

#[test]
fn reduced_ones_become_slices_of_a_bucket() {
    let graph = read(&pair("all_reduce", [64, 128, 32], [64, 128, 32]));
    let Rewritten { graph: new, origin } =
        merge_named(&graph, &named(&["a.comm", "b.comm"]), &prices(&Costs::default())).unwrap();
    let merged = new.find("a.comm_x2").unwrap();
    assert_eq!(
        order_of(&new),
        [
            "a.make",
            "b.make",
            "a.comm_x2.in",
            "a.comm_x2",
            "a.wait",
            "a.read",
            "b.wait",
            "b.read",
            "c.make",
            "c.comm",
            "c.wait",
            "c.read"
        ]
    );
    assert_eq!(
        origin.ops[merged],
        Source {
            part: Part::Merged,
            of: vec![graph.find("a.comm").unwrap(), graph.find("b.comm").unwrap()]
        }
    );
    let collective = new.collective(merged).unwrap();
    assert_eq!(
        collective.payload,
        Payload { dtype: Some(Dtype::named("f32")), input: Bytes(192), output: Bytes(192) }
    );
    // The graph's own take 100 ns and one for each byte; a copy 5 ns and one for each byte read or written.
    assert_eq!(new.runtime(merged), Nanos(292.0));
    assert_eq!(new.runtime(new.find("a.comm_x2.in").unwrap()), Nanos(5.0 + 2.0 * 192.0));
    assert_eq!(new.waited_by(merged), [new.find("a.wait").unwrap(), new.find("b.wait").unwrap()]);
    // Inputs live until they are copied; the bucket lives as long as both slices.
    let peak = |graph: &Graph| Timeline::of(graph, &Order::of_input(graph)).peak;
    assert_eq!((peak(&graph), peak(&new)), (Bytes(256), Bytes(384)));
    let bucket = new.outputs(merged)[0];
    let users: Vec<&str> = new.users(bucket).iter().map(|&user| new.name(user)).collect();
    assert_eq!(
        (new.size_alloc(bucket), &users[..]),
        (Bytes(192), &["a.wait", "a.read", "b.wait", "b.read"][..])
    );
    let slice = new.outputs(merged)[1];
    assert_eq!((new.size_alloc(slice), new.view_of(slice)), (Bytes::ZERO, Some(bucket)));
    // The chain of collectives goes on behind the merged one.
    assert!(new.preds(new.find("c.comm").unwrap(), Edges::All).contains(&merged));
}

#[test]
fn gathered_ones_are_copied_out() {
    let graph = read(&pair("all_gather", [32, 64, 16], [64, 128, 32]));
    let new = merge_named(&graph, &named(&["b.comm", "a.comm"]), &prices(&Costs::default()))
        .unwrap()
        .graph;
    assert_eq!(
        order_of(&new),
        [
            "a.make",
            "b.make",
            "a.comm_x2.in",
            "a.comm_x2",
            "a.comm_x2.wait",
            "a.wait",
            "a.read",
            "b.wait",
            "b.read",
            "c.make",
            "c.comm",
            "c.wait",
            "c.read"
        ]
    );
    let copy = new.find("b.wait").unwrap();
    assert_eq!((new.kind(copy), new.runtime(copy)), (OpKind::Compute, Nanos(5.0 + 2.0 * 128.0)));
    let made: Vec<&str> = new.outputs(copy).iter().map(|&buffer| new.buffer_name(buffer)).collect();
    assert_eq!(made, ["b.y", "b.w"]);
    let merged = new.find("a.comm_x2").unwrap();
    assert_eq!(new.waited_by(merged), [new.find("a.comm_x2.wait").unwrap()]);
    // 96 bytes go in, 192 come out, and the first copy adds 64.
    assert_eq!(
        Timeline::of(&new, &Order::of_input(&new)).peak,
        Bytes(192 + 64 + 128 - 64).max(Bytes(192 + 96))
    );
}

#[test]
fn what_works_in_place_is_copied_back() {
    let mut graph = pair("all_reduce", [64, 128, 32], [64, 128, 32]);
    for (index, name) in ["a", "b"].into_iter().enumerate() {
        graph["buffers"][3 * index + 1]["size_alloc"] = json!(0);
        graph["buffers"][3 * index + 1]["size_free"] = json!(0);
        graph["buffers"][3 * index]["users"] =
            json!(["comm", "wait", "read"].map(|part| format!("{name}.{part}")));
    }
    let new = merge_named(&read(&graph), &named(&["a.comm", "b.comm"]), &prices(&Costs::default()))
        .unwrap()
        .graph;
    let copy = new.find("a.wait").unwrap();
    assert_eq!(new.kind(copy), OpKind::Compute);
    let input = new.buffers().find(|&buffer| new.buffer_name(buffer) == "a.x").unwrap();
    assert!(new.users(input).contains(&copy), "it is written where it was read");
}

#[test]
fn sums_and_models_stand_in_for_a_fit() {
    // One size alone says nothing of latency: without a model, members follow one another.
    let same = read(&pair("all_reduce", [64, 64, 64], [64, 64, 64]));
    let costs = Costs::default();
    let new = merge_named(&same, &named(&["a.comm", "b.comm"]), &prices(&costs)).unwrap().graph;
    assert_eq!(new.runtime(new.find("a.comm_x2").unwrap()), Nanos(2.0 * 164.0));
    let link = halflap::cost::Link::within_node(1.0);
    let costs = Costs { link: Some(link), ..Costs::default() };
    let new = merge_named(&same, &named(&["a.comm", "b.comm"]), &prices(&costs)).unwrap().graph;
    // 16.5 us, two hops of 1.48 us, 128 bytes at 1 GB/s, and the ramp 2 * sqrt(4.77 us * 128 ns).
    let expected = 16_500.0 + 2.0 * 1_480.0 + 128.0 + 2.0 * (4_770.0_f64 * 128.0).sqrt();
    assert!((new.runtime(new.find("a.comm_x2").unwrap()).0 - expected).abs() < 1.0);
}

#[test]
fn what_cannot_be_merged_is_named() {
    let both = ["a.comm", "b.comm"];
    let name = |name: &str| name.to_owned();
    assert_eq!(refused(|_| (), &["a.comm"]), RewriteError::TooFew { count: 1 });
    assert_eq!(
        refused(|_| (), &["a.comm", "a.comm"]),
        RewriteError::Twice { member: name("a.comm") }
    );
    assert_eq!(refused(|_| (), &["a.comm", "z"]), RewriteError::UnknownNode { name: name("z") });
    assert_eq!(
        refused(|_| (), &["a.comm", "b.wait"]),
        RewriteError::NotACollective { member: name("b.wait") }
    );
    let kind = |g: &mut Value| g["nodes"][5]["collective"]["kind"] = json!("all_to_all");
    assert_eq!(
        refused(kind, &both),
        RewriteError::NotMergeable { member: name("b.comm"), kind: CollectiveKind::AllToAll }
    );
    let differs = |what: &'static str, values: &str| RewriteError::Differs {
        first: name("a.comm"),
        second: name("b.comm"),
        what,
        values: values.to_owned(),
    };
    let set = |field: &'static str, value: Value| {
        move |g: &mut Value| g["nodes"][5]["collective"][field] = value
    };
    assert_eq!(
        refused(set("kind", json!("reduce_scatter")), &both),
        differs("kind", "all_reduce and reduce_scatter")
    );
    assert_eq!(refused(set("group", json!("h")), &both), differs("group", "g and h"));
    assert_eq!(refused(set("reduction", json!("max")), &both), differs("reduction", "sum and max"));
    assert_eq!(
        refused(set("dtype", json!("bf16")), &both),
        differs("type of elements", "f32 and bf16")
    );
    assert_eq!(
        refused(set("dtype", json!(null)), &both),
        differs("type of elements", "f32 and not known")
    );
    let other = refused(set("reduction", json!("other")), &both);
    assert_eq!(other, RewriteError::UnknownReduction { member: name("b.comm") });
    // b sends what was made of what a received.
    let bound = |g: &mut Value| {
        g["nodes"][4]["deps"] = json!([{ "buffer": "a.w", "kinds": ["data"] }]);
        g["buffers"][2]["users"] = json!(["a.read", "b.make"]);
    };
    assert_eq!(
        refused(bound, &both),
        RewriteError::Dependent { first: name("a.comm"), second: name("b.comm") }
    );
    let shared = |g: &mut Value| {
        g["nodes"][6]["deps"]
            .as_array_mut()
            .unwrap()
            .push(json!({ "buffer": "a.y", "kinds": ["data"] }));
        g["buffers"][1]["users"] = json!(["a.wait", "a.read", "b.wait"]);
    };
    assert_eq!(
        refused(shared, &both),
        RewriteError::SharedWait { wait: name("b.wait"), member: name("a.comm") }
    );
    let handed = |g: &mut Value| g["nodes"][2]["kind"] = json!("multi_output");
    assert!(matches!(
        refused(
            |g| {
                handed(g);
                g["nodes"][2]["runtime_ns"] = json!(0)
            },
            &both
        ),
        RewriteError::HandsOut { .. }
    ));
}

#[test]
fn sets_that_need_each_other_are_refused() {
    // Of two sets, each has a member that comes before one of the other.
    let mut graph = pair("all_reduce", [64, 64, 64], [64, 64, 64]);
    let renamed = ["a", "b", "c"].iter().fold(graph.to_string(), |text, name| {
        text.replace(&format!("\"{name}."), &format!("\"{name}2."))
    });
    let more: Value = serde_json::from_str(&renamed).unwrap();
    for part in ["nodes", "buffers"] {
        let items = more[part].as_array().unwrap().clone();
        graph[part].as_array_mut().unwrap().extend(items);
    }
    let depend = |graph: &mut Value, node: &str, on: &str| {
        let nodes = graph["nodes"].as_array_mut().unwrap();
        let node = nodes.iter_mut().find(|one| one["name"] == node).unwrap();
        node["deps"].as_array_mut().unwrap().push(json!({ "buffer": on, "kinds": ["weak"] }));
    };
    depend(&mut graph, "a2.comm", "a.y");
    let sets =
        [&["a.comm", "b.comm"][..], &["a2.comm", "b2.comm"]].map(|names| named(names).remove(0));
    assert!(merge_named(&read(&graph), &sets, &prices(&Costs::default())).is_ok());
    // Now the other way round, too: b2 is made before b.
    let nodes = graph["nodes"].as_array_mut().unwrap();
    let place =
        |nodes: &[Value], name: &str| nodes.iter().position(|one| one["name"] == name).unwrap();
    for name in ["b2.make", "b2.comm"] {
        let from = place(nodes, name);
        let node = nodes.remove(from);
        let to = place(nodes, "b.make");
        nodes.insert(to, node);
    }
    let node = nodes.iter_mut().find(|one| one["name"] == "b2.comm").unwrap();
    node["deps"].as_array_mut().unwrap().retain(|dep| dep["kinds"] != json!(["order"]));
    depend(&mut graph, "b.comm", "b2.y");
    let error =
        merge_named(&read(&graph), &sets, &prices(&Costs::default())).map(|_| ()).unwrap_err();
    assert!(matches!(error, RewriteError::Circular { .. }), "{error}");
}

#[test]
fn several_recipes_follow_one_another() {
    let graph = read(&pair("all_reduce", [64, 128, 32], [64, 128, 32]));
    let sets =
        [&["a.comm", "b.comm"][..], &["a.comm_x2", "c.comm"]].map(|names| named(names).remove(0));
    let Rewritten { graph: new, origin } =
        merge_named(&graph, &sets, &prices(&Costs::default())).unwrap();
    let merged = new.find("a.comm_x3").unwrap();
    let members: Vec<&str> = origin.ops[merged].of.iter().map(|&op| graph.name(op)).collect();
    assert_eq!(members, ["a.comm", "b.comm", "c.comm"]);
    assert_eq!(new.collective(merged).unwrap().bytes(), Bytes(224));
}

/// A random program whose collectives are of several kinds, some with what they make in one piece.
fn varied(random: &mut Random) -> Graph {
    let mut parts = random::graph(random, 60).into_parts();
    let outputs: Vec<Bytes> = parts
        .ops
        .iter()
        .map(|(_, op)| op.outputs.iter().map(|&buffer| parts.buffers[buffer].size_alloc).sum())
        .collect();
    for op in parts.ops.ids() {
        let Some(collective) = &mut parts.ops[op].collective else { continue };
        collective.kind = random.pick(&[
            CollectiveKind::AllReduce,
            CollectiveKind::AllGather,
            CollectiveKind::ReduceScatter,
        ]);
        collective.reduction =
            collective.kind.reduces().then_some(Reduction::Sum).or(Some(Reduction::None));
        collective.group = GroupId::from_index(random.pick(&[0, 0, 0, 1]));
        let output = if random.chance(80) { outputs[op.index()] } else { Bytes(512) };
        let input = Bytes(random.pick(&[0, 64, 1024]));
        collective.payload = Payload { dtype: Some(Dtype::named("f32")), input, output };
    }
    Graph::new(parts).unwrap()
}

/// One to three sets that have nothing in common.
fn some_merges(random: &mut Random, graph: &Graph, collectives: &[OpId]) -> Vec<Recipe> {
    let mut left = collectives.to_vec();
    let mut recipes = Vec::new();
    for _ in 0..random.pick(&[1, 1, 2, 3]) {
        if left.len() < 2 {
            break;
        }
        let first = random.pick(&left);
        let like = |&&op: &&OpId| {
            let (a, b) = (graph.collective(first).unwrap(), graph.collective(op).unwrap());
            a.kind == b.kind && a.group == b.group && graph.kind(first) == graph.kind(op)
        };
        let members: Vec<OpId> = left
            .iter()
            .filter(like)
            .copied()
            .filter(|&op| op == first || random.chance(60))
            .collect();
        left.retain(|op| !members.contains(op));
        recipes.push(Recipe::Merge { members });
    }
    recipes
}

/// Programs and what merging random sets of their collectives gives.
fn merged(seeds: std::ops::Range<u64>) -> Vec<(Graph, Rewritten)> {
    let costs = Costs::default();
    let mut found = Vec::new();
    for seed in seeds {
        let mut random = Random(seed);
        let graph = varied(&mut random);
        let collectives: Vec<OpId> =
            graph.ops().filter(|&op| graph.kind(op).is_collective()).collect();
        for _ in 0..6 {
            if collectives.len() < 2 {
                break;
            }
            let recipes = some_merges(&mut random, &graph, &collectives);
            match apply(&graph, &recipes, &prices(&costs)) {
                Ok(rewritten) => found.push((graph.clone(), rewritten)),
                Err(RewriteError::Invalid(error)) => panic!("seed {seed}: {error}"),
                Err(_) => {}
            }
        }
    }
    found
}

#[test]
fn random_sets_are_proved() {
    let all = merged(0..3000);
    assert!(all.len() > 1000, "only {} merged", all.len());
    let mut parts = std::collections::BTreeSet::new();
    let mut slices = 0;
    for (index, (graph, Rewritten { graph: new, origin })) in all.iter().enumerate() {
        verify_rewrite(graph, new, origin)
            .unwrap_or_else(|violation| panic!("{index}: {violation}"));
        parts.extend(origin.ops.iter().map(|(_, source)| source.part.name()));
        slices += new.buffers().filter(|&buffer| new.view_of(buffer).is_some()).count();
        // The whole is written and read again as well, and proved by its names alone.
        let mut text = Vec::new();
        write_graph(new, &mut text).unwrap();
        let again = read_graph(&text).unwrap();
        assert_eq!(order_of(&again), order_of(new));
        verify_rewrite(graph, &again, &Origin::by_names(graph, &again))
            .unwrap_or_else(|violation| panic!("{index}, by names: {violation}"));
    }
    assert_eq!(parts.len(), 5, "{parts:?}");
    assert!(slices > 100, "only {slices} slices");
}

/// A way to damage a result; says whether there was something to damage.
type Damage = fn(&mut Random, &mut Graph, &mut Parts, &mut Origin) -> bool;

fn of_part(origin: &Origin, part: Part) -> Option<OpId> {
    origin.ops.iter().find(|(_, source)| source.part == part).map(|(op, _)| op)
}

/// A kept operation with a real dependency on another's result, and which one.
fn bound(random: &mut Random, parts: &Parts, origin: &Origin) -> Option<(OpId, usize)> {
    let is_kept = |op: &OpId| origin.ops[*op].part == Part::Kept;
    let real = |op: OpId| {
        let deps = parts.ops[op].deps.iter().enumerate();
        let real = deps.filter(|(_, (buffer, kinds))| {
            kinds.is_real() && parts.buffers[*buffer].maker.is_some()
        });
        real.map(move |(place, _)| (op, place)).collect::<Vec<_>>()
    };
    let all: Vec<(OpId, usize)> = parts.ops.ids().filter(is_kept).flat_map(real).collect();
    (!all.is_empty()).then(|| random.pick(&all))
}

fn bucket(parts: &Parts, origin: &Origin, part: Part) -> Option<BufId> {
    let op = of_part(origin, part)?;
    parts.ops[op].outputs.first().copied()
}

fn drop_dependency(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let Some((op, place)) = bound(random, parts, origin) else { return false };
    parts.ops[op].deps.remove(place);
    // Building a graph ties users of a buffer to its producer: this one must not be tied.
    let made: Vec<BufId> = parts.buffers.ids().collect();
    for buffer in made {
        let needs =
            parts.ops[op].deps.iter().any(|(needed, kinds)| *needed == buffer && kinds.data);
        if !needs {
            parts.buffers[buffer].users.retain(|&user| user != op);
        }
    }
    true
}

fn drop_input(_: &mut Random, _: &mut Graph, parts: &mut Parts, origin: &mut Origin) -> bool {
    let Some(copy) = of_part(origin, Part::CopyIn) else { return false };
    let data = parts.ops[copy].deps.iter().position(|(_, kinds)| kinds.data);
    data.map(|place| parts.ops[copy].deps.remove(place)).is_some()
}

fn drop_bucket(_: &mut Random, _: &mut Graph, parts: &mut Parts, origin: &mut Origin) -> bool {
    let (Some(merged), Some(bucket)) =
        (of_part(origin, Part::Merged), bucket(parts, origin, Part::CopyIn))
    else {
        return false;
    };
    parts.ops[merged].deps.retain(|(needed, _)| *needed != bucket);
    true
}

fn copy_too_early(_: &mut Random, _: &mut Graph, parts: &mut Parts, origin: &mut Origin) -> bool {
    let Some(waited) = bucket(parts, origin, Part::Wait) else { return false };
    let copies = |copy: &OpId| origin.ops[*copy].part == Part::CopyOut;
    let waits = |copy: &OpId| parts.ops[*copy].deps.iter().any(|(needed, _)| *needed == waited);
    let Some(copy) = parts.ops.ids().find(|copy| copies(copy) && waits(copy)) else { return false };
    parts.ops[copy].deps.retain(|(needed, _)| *needed != waited);
    parts.buffers[waited].users.retain(|&user| user != copy);
    true
}

fn wrong_input_size(_: &mut Random, _: &mut Graph, parts: &mut Parts, origin: &mut Origin) -> bool {
    let Some(bucket) = bucket(parts, origin, Part::CopyIn) else { return false };
    parts.buffers[bucket].size_alloc += Bytes(8);
    true
}

fn wrong_output_size(
    _: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let Some(bucket) = bucket(parts, origin, Part::Merged) else { return false };
    parts.buffers[bucket].size_free += Bytes(8);
    true
}

fn wrong_payload(_: &mut Random, _: &mut Graph, parts: &mut Parts, origin: &mut Origin) -> bool {
    change_collective(parts, origin, |collective| collective.payload.input += Bytes(4))
}

fn wrong_group(_: &mut Random, _: &mut Graph, parts: &mut Parts, origin: &mut Origin) -> bool {
    change_collective(parts, origin, |collective| collective.group = GroupId::from_index(2))
}

fn wrong_reduction(_: &mut Random, _: &mut Graph, parts: &mut Parts, origin: &mut Origin) -> bool {
    change_collective(parts, origin, |collective| collective.reduction = Some(Reduction::Max))
}

fn change_collective(
    parts: &mut Parts,
    origin: &Origin,
    change: impl Fn(&mut halflap::graph::Collective),
) -> bool {
    let Some(merged) = of_part(origin, Part::Merged) else { return false };
    parts.ops[merged].collective.as_mut().map(change).is_some()
}

fn swapped_member(
    random: &mut Random,
    before: &mut Graph,
    _: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let Some(merged) = of_part(origin, Part::Merged) else { return false };
    let members = origin.ops[merged].of.clone();
    let others: Vec<OpId> = before
        .ops()
        .filter(|op| before.kind(*op).is_collective() && !members.contains(op))
        .collect();
    if others.is_empty() {
        return false;
    }
    let other = random.pick(&others);
    for source in origin.ops.as_mut_slice().iter_mut().filter(|source| source.of == members) {
        source.of[0] = other;
    }
    true
}

/// The old program has a path that its change does not know of.
fn member_with_a_path(
    _: &mut Random,
    before: &mut Graph,
    _: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let Some(merged) = of_part(origin, Part::Merged) else { return false };
    let members = origin.ops[merged].of.clone();
    let Some(&out) = before.outputs(members[0]).first() else { return false };
    let mut parts = before.clone().into_parts();
    parts.ops[members[1]].deps.retain(|(buffer, _)| *buffer != out);
    parts.ops[members[1]].deps.push((out, DepKinds { issued: true, ..DepKinds::default() }));
    match Graph::new(parts) {
        Ok(graph) => *before = graph,
        Err(_) => return false,
    }
    true
}

fn member_of_another_type(
    _: &mut Random,
    before: &mut Graph,
    _: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let Some(merged) = of_part(origin, Part::Merged) else { return false };
    let mut parts = before.clone().into_parts();
    if let Some(collective) = &mut parts.ops[origin.ops[merged].of[1]].collective {
        collective.payload.dtype = Some(Dtype::named("s8"));
    }
    *before = Graph::new(parts).unwrap();
    true
}

/// The last operation is left out.
fn lost_operation(_: &mut Random, _: &mut Graph, parts: &mut Parts, origin: &mut Origin) -> bool {
    let Some(last) = parts.ops.ids().next_back() else { return false };
    if !parts.ops[last].outputs.is_empty() || origin.ops[last].part != Part::Kept {
        return false;
    }
    parts.ops = parts.ops.as_slice()[..last.index()].to_vec().into();
    origin.ops = origin.ops.as_slice()[..last.index()].to_vec().into();
    for buffer in parts.buffers.as_mut_slice() {
        buffer.users.retain(|&user| user != last);
    }
    true
}

fn claimed_twice(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let kept: Vec<OpId> = parts.ops.ids().filter(|&op| origin.ops[op].part == Part::Kept).collect();
    if kept.len() < 2 {
        return false;
    }
    let place = random.below(kept.len() - 1);
    origin.ops[kept[place]].of = origin.ops[kept[place + 1]].of.clone();
    true
}

fn invented_operation(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let Some(copy) = of_part(origin, Part::CopyIn) else { return false };
    let like = parts.ops[copy].clone();
    parts.ops.push(OpParts {
        name: "new".to_owned(),
        deps: Vec::new(),
        outputs: Vec::new(),
        ..like
    });
    let part = random.pick(&[Part::Wait, Part::CopyIn, Part::Merged, Part::CopyOut]);
    let mut of = origin.ops[copy].of.clone();
    of.truncate(if part == Part::CopyOut { 1 } else { 2 });
    origin.ops.push(Source { part, of });
    true
}

fn invented_dependency(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let is_kept = |op: &OpId| origin.ops[*op].part == Part::Kept;
    let kept: Vec<OpId> = parts.ops.ids().filter(is_kept).collect();
    if kept.is_empty() {
        return false;
    }
    let op = random.pick(&kept);
    let is_new = |buffer: &BufId| parts.ops[op].deps.iter().all(|(needed, _)| needed != buffer);
    let made = |buffer: &BufId| parts.buffers[*buffer].maker.is_some_and(|maker| maker < op);
    let Some(buffer) = parts.buffers.ids().filter(is_new).find(made) else { return false };
    parts.ops[op].deps.push((buffer, DepKinds { data: true, ..DepKinds::default() }));
    parts.buffers[buffer].users.push(op);
    true
}

fn bucket_not_held(_: &mut Random, _: &mut Graph, parts: &mut Parts, origin: &mut Origin) -> bool {
    let (Some(merged), Some(bucket)) =
        (of_part(origin, Part::Merged), bucket(parts, origin, Part::CopyIn))
    else {
        return false;
    };
    let held = parts.buffers[bucket].users.len() > 1;
    parts.buffers[bucket].users = vec![merged];
    held
}

fn slice_without_a_bucket(
    _: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    _: &mut Origin,
) -> bool {
    let slice = parts.buffers.ids().find(|&buffer| parts.buffers[buffer].view_of.is_some());
    slice.map(|slice| parts.buffers[slice].view_of = None).is_some()
}

/// A buffer of its own becomes a part of another one.
fn slice_of_another(
    random: &mut Random,
    before: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let buffers = before.buffers().filter(|&buffer| {
        let maker = parts.buffers[buffer].maker;
        let is_kept = maker.is_some_and(|maker| origin.ops[maker].part == Part::Kept);
        is_kept && parts.buffers[buffer].size_alloc > Bytes::ZERO
    });
    let buffers: Vec<BufId> = buffers.collect();
    if buffers.len() < 2 {
        return false;
    }
    let place = random.below(buffers.len() - 1);
    let part = &mut parts.buffers[buffers[place + 1]];
    (part.size_alloc, part.size_free, part.view_of) =
        (Bytes::ZERO, Bytes::ZERO, Some(buffers[place]));
    true
}

fn bucket_as_a_result(
    _: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let Some(bucket) = bucket(parts, origin, Part::CopyIn) else { return false };
    parts.buffers[bucket].output = true;
    true
}

fn wait_with_memory(_: &mut Random, _: &mut Graph, parts: &mut Parts, origin: &mut Origin) -> bool {
    let Some(waited) = bucket(parts, origin, Part::Wait) else { return false };
    parts.buffers[waited].size_alloc = Bytes(64);
    true
}

fn buffer_of_another_size(
    random: &mut Random,
    before: &mut Graph,
    parts: &mut Parts,
    _: &mut Origin,
) -> bool {
    let old = before.buffers().len();
    if old == 0 {
        return false;
    }
    let buffer = BufId::from_index(random.below(old));
    parts.buffers[buffer].size_free += Bytes(1);
    parts.buffers[buffer].view_of.is_none()
}

fn lives_too_short(
    random: &mut Random,
    before: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    // Users that depend on nothing through the buffer: no reader, and not bound to its maker.
    let mut found = Vec::new();
    for buffer in before.buffers() {
        for &user in &parts.buffers[buffer].users {
            let reads = parts.ops[user].deps.iter().any(|(needed, _)| *needed == buffer);
            if !reads && origin.ops[user].part == Part::Kept {
                found.push((buffer, user));
            }
        }
    }
    if found.is_empty() {
        return false;
    }
    let (buffer, user) = random.pick(&found);
    parts.buffers[buffer].users.retain(|&other| other != user);
    true
}

fn result_or_not(
    random: &mut Random,
    before: &mut Graph,
    parts: &mut Parts,
    _: &mut Origin,
) -> bool {
    let old = before.buffers().len();
    if old == 0 {
        return false;
    }
    let buffer = BufId::from_index(random.below(old));
    parts.buffers[buffer].output = !parts.buffers[buffer].output;
    true
}

fn another_time(
    random: &mut Random,
    _: &mut Graph,
    parts: &mut Parts,
    origin: &mut Origin,
) -> bool {
    let is_kept =
        |op: &OpId| origin.ops[*op].part == Part::Kept && parts.ops[*op].kind == OpKind::Compute;
    let kept: Vec<OpId> = parts.ops.ids().filter(is_kept).collect();
    if kept.is_empty() {
        return false;
    }
    parts.ops[random.pick(&kept)].runtime = Some(Nanos(1e6 + 0.5));
    true
}

#[test]
fn every_damage_is_found() {
    let damages: [(&str, Damage); 25] = [
        ("a dependency dropped", drop_dependency),
        ("an input not copied", drop_input),
        ("the bucket not sent", drop_bucket),
        ("a copy before the wait", copy_too_early),
        ("a bucket too large for what goes in", wrong_input_size),
        ("a bucket that is freed as another size", wrong_output_size),
        ("another payload", wrong_payload),
        ("another group", wrong_group),
        ("another reduction", wrong_reduction),
        ("a swapped member", swapped_member),
        ("a member with a path", member_with_a_path),
        ("a member of another type", member_of_another_type),
        ("an operation lost", lost_operation),
        ("an operation claimed twice", claimed_twice),
        ("an operation invented", invented_operation),
        ("a dependency invented", invented_dependency),
        ("a bucket that is not held", bucket_not_held),
        ("a slice without a bucket", slice_without_a_bucket),
        ("a buffer that became a slice", slice_of_another),
        ("a bucket that is a result", bucket_as_a_result),
        ("a wait that takes memory", wait_with_memory),
        ("a buffer of another size", buffer_of_another_size),
        ("a buffer that dies early", lives_too_short),
        ("a result that is none", result_or_not),
        ("another time", another_time),
    ];
    let all = merged(0..1500);
    for (what, damage) in damages {
        let mut random = Random(7);
        let mut found = 0;
        for (index, (graph, rewritten)) in all.iter().enumerate() {
            let (mut before, mut origin) = (graph.clone(), rewritten.origin.clone());
            let mut parts = rewritten.graph.clone().into_parts();
            if !damage(&mut random, &mut before, &mut parts, &mut origin) {
                continue;
            }
            // What is not even a graph is refused before.
            let Ok(after) = Graph::new(parts) else { continue };
            let said = verify_rewrite(&before, &after, &origin);
            assert!(said.is_err(), "{what}, program {index}");
            found += 1;
        }
        assert!(found >= 20, "{what}: only {found} programs");
    }
}

#[test]
fn violations_say_what_is_wrong() {
    let graph = read(&pair("all_reduce", [64, 128, 32], [64, 128, 32]));
    let members = ["a.comm", "b.comm"].map(|name| graph.find(name).unwrap()).to_vec();
    let Rewritten { graph: new, origin } =
        rewrite(&graph, &[Recipe::Merge { members }], &prices(&Costs::default())).unwrap();
    let said = |change: fn(&mut Parts)| {
        let mut parts = new.clone().into_parts();
        change(&mut parts);
        verify_rewrite(&graph, &Graph::new(parts).unwrap(), &origin).unwrap_err()
    };
    let grow = |parts: &mut Parts| {
        let bucket =
            parts.buffers.ids().find(|&id| parts.buffers[id].name == "a.comm_x2.in").unwrap();
        parts.buffers[bucket].size_alloc = Bytes(200);
    };
    let expected = RewriteViolation::WrongSize {
        buffer: "a.comm_x2.in".to_owned(),
        is: Bytes(200),
        should: Bytes(192),
    };
    assert_eq!(said(grow), expected);
    let slower = |parts: &mut Parts| {
        let op = parts.ops.ids().find(|&id| parts.ops[id].name == "b.read").unwrap();
        parts.ops[op].runtime = Some(Nanos(11.0));
    };
    assert_eq!(
        said(slower),
        RewriteViolation::Changed { node: "b.read".to_owned(), what: "its run time" }
    );
}

/// Through an origin that changes nothing, everything is compared as without one.
#[test]
fn an_unchanged_program_is_compared_as_ever() {
    let options = Options { settings: Settings::default(), fidelity: Fidelity::Fixed };
    let request = Request { passes: vec![Pass::SimpleOverlap], options, check_memory: false };
    for name in &common::PROGRAMS[..4] {
        let graph = &common::program(name);
        let machine = &Machine::new(graph, Times::given(graph).unwrap());
        let setup = Setup { graph, machine };
        let schedule = schedule::run(graph, &machine.times, &request, &mut NoObserver).unwrap();
        let origin = Origin::unchanged(graph);
        let input = Evaluation::of(setup, Order::of_input(graph));
        let found = Evaluation::of(setup, schedule.order);
        let (before, after) =
            (Side { setup, evaluation: &input }, Side { setup, evaluation: &found });
        let plain = Robustness::of(graph, machine, input.order.as_slice(), found.order.as_slice());
        assert_eq!(Robustness::between(before, after, &origin), plain, "{name}");
        let bound = lower_bound(graph, machine, Edges::Real, Bytes(i64::MAX));
        let summary = |origin| {
            Summary::of(&Compared { before, after, origin, passes: &schedule.passes }, bound)
        };
        let (plain, through) = (summary(None), summary(Some(&origin)));
        assert_eq!(format!("{plain:?}"), format!("{through:?}"), "{name}");
    }
}

/// A merged collective has what its members had, and begins where the first of them did.
#[test]
fn a_summary_adds_up_what_was_merged() {
    let graph = &read(&pair("all_reduce", [64, 128, 32], [64, 128, 32]));
    let costs = Costs::default();
    let Rewritten { graph: new, origin } =
        merge_named(graph, &named(&["a.comm", "b.comm"]), &prices(&costs)).unwrap();
    let [machine, on] =
        [graph, &new].map(|graph| Machine::new(graph, Times::given(graph).unwrap()));
    let (old, changed) = (Setup { graph, machine: &machine }, Setup { graph: &new, machine: &on });
    let [run, merged] =
        [old, changed].map(|setup| Evaluation::of(setup, Order::of_input(setup.graph)));
    let before = Side { setup: old, evaluation: &run };
    let after = Side { setup: changed, evaluation: &merged };
    let bound = lower_bound(&new, &on, Edges::Real, Bytes(i64::MAX));
    let summary =
        Summary::of(&Compared { before, after, origin: Some(&origin), passes: &[] }, bound);
    let row = summary.rows.iter().find(|row| new.name(row.op) == "a.comm_x2").unwrap();
    // 164 and 228 ns, of which nothing hides anything; it stands two places behind that of a.
    assert_eq!(
        (row.estimated_before, row.time, row.shift),
        (Nanos(164.0 + 228.0), Nanos(292.0), 2)
    );
    let run = &run.simulation;
    let was = carried(&origin, run);
    let (a, b) = (graph.find("a.comm").unwrap(), graph.find("b.comm").unwrap());
    assert_eq!((was.start[row.op], was.end[row.op]), (run.start[a], run.end[b]));
    assert_eq!(was.exposures.len(), run.exposures.len());
}

/// Neighbours of every captured program, as far as they can be merged.
#[test]
fn captured_programs_are_proved() {
    let costs = Costs::default();
    for name in &common::PROGRAMS[..7] {
        let graph = common::program(name);
        let collectives: Vec<OpId> =
            graph.ops().filter(|&op| graph.kind(op).is_collective()).collect();
        let mut proved = 0;
        for members in collectives.windows(3).step_by(7).chain(collectives.windows(2).step_by(5)) {
            let longest = members.iter().map(|&op| graph.runtime(op)).fold(Nanos::ZERO, Nanos::max);
            match rewrite(&graph, &[Recipe::Merge { members: members.to_vec() }], &prices(&costs)) {
                Ok(Rewritten { graph: new, origin }) => {
                    let merged = of_part(&origin, Part::Merged).unwrap();
                    assert!(new.runtime(merged) >= longest, "{name}");
                    proved += 1;
                }
                Err(RewriteError::Unproved(violation)) => panic!("{name}: {violation}"),
                Err(RewriteError::Invalid(error)) => panic!("{name}: {error}"),
                Err(_) => {}
            }
        }
        assert!(proved > 0 || name.starts_with("moe"), "{name}");
    }
}
