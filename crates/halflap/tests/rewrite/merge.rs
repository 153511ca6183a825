//! Merged collectives: their order, run times and memory; which cannot be merged.

use halflap::collective::{CollectiveKind, Dtype, Payload};
use halflap::cost::Costs;
use halflap::graph::{Edges, Graph, OpKind};
use halflap::ids::OpId;
use halflap::memory::Timeline;
use halflap::order::Order;
use halflap::origin::{Part, Source};
use halflap::rewrite::{Recipe, RewriteError, Rewritten, merge_named, rewrite};
use halflap::units::{Bytes, Nanos};
use serde_json::{Value, json};

use crate::common;
use crate::programs::{named, of_part, order_of, pair, prices, read};

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
    // The graph's own take 100 ns and one for each byte; a copy 5 ns and one for each byte read or
    // written.
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
