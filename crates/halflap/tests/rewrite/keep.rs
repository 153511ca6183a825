//! All-gathers that repeat earlier ones: left out where that is proved, else refused.

use std::collections::BTreeMap;

use halflap::collective::CollectiveKind;
use halflap::cost::Costs;
use halflap::export::write_graph;
use halflap::graph::{DepKinds, Graph, OpKind, Parts};
use halflap::ids::{BufId, Id, OpId};
use halflap::import::read_graph;
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::origin::Origin;
use halflap::rewrite::{Recipe, RewriteError, Rewritten, Unkept, mergeable, repeated, rewrite};
use halflap::units::Bytes;
use halflap::verify_rewrite::{RewriteViolation, verify_rewrite};
use serde_json::{Value, json};

use crate::common::program;
use crate::damage::{Damage, Damaged, all_are_found};
use crate::programs::{order_of, pair, prices, read};
use crate::random::Random;

/// Three all-gathers, of which the first and the last send the same; between them other compute.
fn weights() -> Value {
    let mut graph = pair("all_gather", [32, 32, 32], [64, 64, 64]);
    for (index, content) in ["w", "v", "w"].into_iter().enumerate() {
        let comm = &mut graph["nodes"][4 * index + 1];
        comm["collective"]["content"] = json!(content);
        // Parameters are no buffers of the graph.
        comm["deps"].as_array_mut().unwrap().retain(|dep| dep["kinds"] == json!(["order"]));
    }
    for buffer in graph["buffers"].as_array_mut().unwrap() {
        if buffer["name"].as_str().unwrap().ends_with(".x") {
            buffer["users"] = json!([]);
        }
    }
    graph
}

fn kept(graph: &Graph, names: &[&str]) -> Result<Rewritten, RewriteError> {
    let costs = Costs::default();
    let members = names.iter().map(|name| graph.find(name).unwrap()).collect();
    rewrite(graph, &[Recipe::Keep { members }], &prices(&costs))
}

fn why(graph: &Value) -> Unkept {
    match kept(&read(graph), &["a.comm", "c.comm"]) {
        Err(RewriteError::NotRepeated { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_result_stays_for_the_readers_of_the_second() {
    let graph = read(&weights());
    assert_eq!(repeated(&graph), [["a.comm", "c.comm"].map(|name| graph.find(name).unwrap())]);
    let Rewritten { graph: new, origin } = kept(&graph, &["a.comm", "c.comm"]).unwrap();
    let order = [
        "a.make", "a.comm", "a.wait", "a.read", "b.make", "b.comm", "b.wait", "b.read", "c.make",
        "c.read",
    ];
    assert_eq!(order_of(&new), order);
    let find = |name: &str| new.buffers().find(|&one| new.buffer_name(one) == name);
    assert_eq!([find("c.y"), find("c.w")], [None, None]);
    let (gathered, waited) = (find("a.y").unwrap(), find("a.w").unwrap());
    let reader = new.find("c.read").unwrap();
    assert!(new.users(gathered).contains(&reader) && new.users(waited).contains(&reader));
    assert!(new.gated_by(reader).is_empty(), "its wait has waited");
    let levels = |graph: &Graph| Timeline::of(graph, &Order::of_input(graph)).peak;
    assert_eq!(levels(&new), levels(&graph) + Bytes(64), "beside what b gathers");
    let gone = |old: &str, by: &str| (graph.find(old).unwrap(), graph.find(by).unwrap());
    let dropped = BTreeMap::from([gone("c.comm", "a.comm"), gone("c.wait", "a.wait")]);
    assert_eq!(origin.dropped, dropped);
    assert_eq!(Origin::by_names(&graph, &new), origin);
    let carriers = origin.carriers(graph.len());
    assert_eq!(carriers[graph.find("c.comm").unwrap()], new.find("a.comm"));
}

#[test]
fn the_order_of_collectives_goes_on_past_what_is_left_out() {
    let mut value = weights();
    value["nodes"][9]["deps"] = json!([{ "buffer": "b.y", "kinds": ["order"] }]);
    let mut last = value["nodes"][5].clone();
    (last["name"], last["outputs"]) = (json!("d.comm"), json!(["d.y"]));
    last["collective"]["content"] = json!("u");
    last["deps"] = json!([{ "buffer": "c.y", "kinds": ["order"] }]);
    value["nodes"].as_array_mut().unwrap().push(last);
    value["buffers"].as_array_mut().unwrap().push(json!({ "name": "d.y", "size_alloc": 64,
        "size_free": 64, "users": [], "output": true }));
    let graph = read(&value);
    let new = kept(&graph, &["a.comm", "c.comm"]).unwrap().graph;
    let last = new.find("d.comm").unwrap();
    let before: Vec<&str> =
        new.deps(last).iter().map(|(buffer, _)| new.buffer_name(*buffer)).collect();
    assert_eq!(before, ["b.y"]);
}

#[test]
fn what_is_not_the_same_is_refused() {
    assert!(kept(&read(&weights()), &["a.comm", "c.comm"]).is_ok());
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut graph = weights();
        change(&mut graph);
        why(&graph)
    };
    let comm = |graph: &mut Value, field: &str, value: Value| {
        graph["nodes"][9]["collective"][field] = value;
    };
    assert_eq!(changed(&|graph| comm(graph, "content", json!("u"))), Unkept::Content);
    assert_eq!(changed(&|graph| comm(graph, "content", json!(null))), Unkept::Content);
    assert_eq!(changed(&|graph| comm(graph, "group", json!("h"))), Unkept::Kind);
    assert_eq!(changed(&|graph| comm(graph, "dtype", json!("i32"))), Unkept::Kind);
    let reads = |graph: &mut Value| {
        graph["nodes"][9]["deps"] = json!([{ "buffer": "c.x", "kinds": ["data"] }]);
        graph["buffers"][6]["users"] = json!(["c.comm", "c.wait"]);
    };
    assert_eq!(changed(&reads), Unkept::Content);
    let result = |graph: &mut Value| graph["buffers"][7]["output"] = json!(true);
    assert_eq!(changed(&result), Unkept::Result);
    // The reader of the first makes a buffer of no size: the new content of what it reads.
    let in_place = |graph: &mut Value| {
        graph["nodes"][3]["outputs"] = json!(["a.y2"]);
        let made = json!({ "name": "a.y2", "size_alloc": 0, "size_free": 0, "users": [],
            "output": false });
        graph["buffers"].as_array_mut().unwrap().push(made);
    };
    assert_eq!(changed(&in_place), Unkept::Written);
}

/// A captured program, with all-gathers of one size sending the same at random.
fn with_contents(name: &str, random: &mut Random) -> Graph {
    let mut parts = program(name).into_parts();
    for op in parts.ops.ids() {
        let Some(collective) = &mut parts.ops[op].collective else { continue };
        if collective.kind == CollectiveKind::AllGather {
            let which = random.pick(&[0, 1, 2, 3]);
            collective.content = Some(format!("{} of {}", which, collective.bytes().0));
        }
    }
    Graph::new(parts).unwrap()
}

/// Some of what repeats is left out, and some of what remains is merged.
fn changed(graph: &Graph, random: &mut Random) -> Rewritten {
    let mut recipes: Vec<Recipe> = Vec::new();
    for set in repeated(graph) {
        let members = set[random.pick(&[0, 0, 1])..].to_vec();
        let members: Vec<OpId> = members.into_iter().take(random.pick(&[2, 3, 5, 9])).collect();
        if members.len() > 1 {
            recipes.push(Recipe::Keep { members });
        }
    }
    let gone: Vec<OpId> =
        recipes.iter().flat_map(|recipe| recipe.members()[1..].to_vec()).collect();
    let class = mergeable(graph).into_iter().max_by_key(Vec::len).unwrap();
    let left: Vec<OpId> = class.into_iter().filter(|op| !gone.contains(op)).take(2).collect();
    if left.len() > 1 {
        recipes.push(Recipe::Merge { members: left });
    }
    let costs = Costs::default();
    rewrite(graph, &recipes, &prices(&costs)).unwrap()
}

fn results() -> Vec<(Graph, Rewritten)> {
    let mut random = Random(11);
    let mut made = |name: &str| {
        let graph = with_contents(name, &mut random);
        let rewritten = changed(&graph, &mut random);
        (graph, rewritten)
    };
    let names = ["fsdp_llama_2", "fsdp_tp_llama_4", "fsdp_llama_2", "fsdp_llama_8"];
    names.iter().cycle().take(12).map(|name| made(name)).collect()
}

#[test]
fn captured_programs_are_proved_with_whatever_repeats() {
    let (mut left_out, mut named) = (0, 0);
    for (graph, Rewritten { graph: new, origin }) in results() {
        left_out += origin.dropped.len();
        // The names in the two files claim the same, unless one that stays is in between.
        let mut text = Vec::new();
        write_graph(&new, &mut text).unwrap();
        let read = read_graph(&text).unwrap();
        let claimed = Origin::by_names(&graph, &read);
        assert_eq!(claimed.ops, origin.ops);
        if claimed.dropped == origin.dropped {
            verify_rewrite(&graph, &read, &claimed).unwrap();
            named += 1;
        }
    }
    assert!(left_out > 100 && named > 0, "{left_out}, {named}");
}

/// An operation of the new program that reads what it did not read in the old one.
fn new_reader(random: &mut Random, damaged: &Damaged) -> Option<(OpId, usize)> {
    let Damaged { before, parts, origin } = damaged;
    let found = |op: OpId| {
        let &[old] = &origin.ops[op].of[..] else { return None };
        let read = |buffer: &BufId| {
            let name = &parts.buffers[*buffer].name;
            before.deps(old).iter().any(|(other, _)| before.buffer_name(*other) == name)
        };
        let at = parts.ops[op].deps.iter().position(|(one, kinds)| kinds.data && !read(one))?;
        Some((op, at))
    };
    let all: Vec<(OpId, usize)> = parts.ops.ids().filter_map(found).collect();
    (!all.is_empty()).then(|| random.pick(&all))
}

fn read_from_another(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Some((op, at)) = new_reader(random, damaged) else { return false };
    let parts = &mut damaged.parts;
    let (buffer, kinds) = parts.ops[op].deps[at];
    let like = |parts: &Parts, one: BufId| {
        let maker = parts.buffers[one].maker.filter(|&maker| maker < op)?;
        Some((parts.ops[maker].kind, parts.buffers[one].size_alloc))
    };
    let reads: Vec<BufId> = parts.ops[op].deps.iter().map(|(one, _)| *one).collect();
    let is_other = |one: &BufId| {
        !reads.contains(one)
            && like(parts, *one).is_some()
            && like(parts, *one) == like(parts, buffer)
    };
    let others: Vec<BufId> = parts.buffers.ids().filter(is_other).collect();
    if others.is_empty() {
        return false;
    }
    let other = random.pick(&others);
    parts.ops[op].deps[at] = (other, kinds);
    parts.buffers[other].users.push(op);
    true
}

fn freed_before_the_last_reader(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Some((op, at)) = new_reader(random, damaged) else { return false };
    let parts = &mut damaged.parts;
    let (waited, _) = parts.ops[op].deps[at];
    let Some(wait) = parts.buffers[waited].maker else { return false };
    let Some(&(gathered, _)) = parts.ops[wait].deps.first() else { return false };
    let users = &mut parts.buffers[gathered].users;
    let many = users.len();
    users.retain(|&user| user != op);
    users.len() < many
}

fn dependency_lost(random: &mut Random, damaged: &mut Damaged) -> bool {
    let Some((op, at)) = new_reader(random, damaged) else { return false };
    damaged.parts.ops[op].deps[at].1 = DepKinds { order: true, ..DepKinds::default() };
    true
}

fn content_differs(random: &mut Random, damaged: &mut Damaged) -> bool {
    let mut parts = damaged.before.clone().into_parts();
    let gone: Vec<OpId> = damaged.origin.dropped.keys().copied().collect();
    let gathers: Vec<OpId> =
        gone.into_iter().filter(|&op| parts.ops[op].collective.is_some()).collect();
    if gathers.is_empty() {
        return false;
    }
    let op = random.pick(&gathers);
    if let Some(collective) = &mut parts.ops[op].collective {
        collective.content = random.chance(50).then(|| "something else".to_owned());
    }
    damaged.before = Graph::new(parts).unwrap();
    true
}

fn written_in_between(random: &mut Random, damaged: &mut Damaged) -> bool {
    let mut parts = damaged.before.clone().into_parts();
    let stays = damaged.origin.dropped.values().copied();
    let waits: Vec<OpId> = stays.filter(|&op| parts.ops[op].kind == OpKind::Wait).collect();
    if waits.is_empty() {
        return false;
    }
    let stays = random.pick(&waits);
    let made = parts.ops[stays].outputs.clone();
    let is_reader = |op: &OpId| {
        let reads = parts.ops[*op].deps.iter().any(|(one, kinds)| kinds.data && made.contains(one));
        reads && parts.ops[*op].kind == OpKind::Compute
    };
    let readers: Vec<OpId> = parts.ops.ids().filter(is_reader).collect();
    if readers.is_empty() {
        return false;
    }
    let op = random.pick(&readers);
    let Some(&made) = parts.ops[op].outputs.first() else { return false };
    (parts.buffers[made].size_alloc, parts.buffers[made].size_free) = (Bytes::ZERO, Bytes::ZERO);
    damaged.before = Graph::new(parts).unwrap();
    true
}

fn stand_in_of_another(random: &mut Random, damaged: &mut Damaged) -> bool {
    let dropped = &mut damaged.origin.dropped;
    let (gone, stays): (Vec<OpId>, Vec<OpId>) = dropped.iter().map(|(&a, &b)| (a, b)).unzip();
    let (at, other) = (random.pick(&gone), random.pick(&stays));
    dropped.insert(at, other) != Some(other)
}

fn one_more_is_left_out(random: &mut Random, damaged: &mut Damaged) -> bool {
    let ops: Vec<OpId> = damaged.before.ops().skip(1).collect();
    let gone = random.pick(&ops);
    let stays = OpId::from_index(gone.index() - 1);
    damaged.origin.dropped.insert(gone, stays).is_none()
}

#[test]
fn damaged_results_are_refused() {
    let damages: [(&str, Damage); 7] = [
        ("reads what another gathers", read_from_another),
        ("freed before the last reader", freed_before_the_last_reader),
        ("does not depend on the wait", dependency_lost),
        ("other content", content_differs),
        ("written in between", written_in_between),
        ("another stand-in", stand_in_of_another),
        ("left out for no reason", one_more_is_left_out),
    ];
    all_are_found(&damages, results().iter(), 6);
}

#[test]
fn the_reason_is_named() {
    let graph = read(&weights());
    let Rewritten { graph: new, origin } = kept(&graph, &["a.comm", "c.comm"]).unwrap();
    let mut other = weights();
    other["nodes"][9]["collective"]["content"] = json!("u");
    let refused = verify_rewrite(&read(&other), &new, &origin);
    assert_eq!(refused, Err(RewriteViolation::NotRepeated { node: "c.comm".to_owned() }));
}
