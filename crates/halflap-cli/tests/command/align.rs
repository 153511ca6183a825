//! `halflap align`.

use std::fs;

use serde_json::{Value, json};

use crate::common::{corpus, ends, entries, folder, halflap, read_json};

/// A graph with other run times, and its process groups under other names.
fn rank(graph: &Value, factor: f64, group: &str) -> Value {
    let mut text = graph.clone();
    for node in text["nodes"].as_array_mut().unwrap() {
        node["runtime_ns"] = json!(node["runtime_ns"].as_f64().unwrap() * factor);
        if node["kind"] == "collective" {
            let name = format!("{group}{}", node["collective"]["group"].as_str().unwrap());
            node["collective"]["group"] = json!(name);
        }
    }
    let groups = text["groups"].as_object().unwrap().clone();
    text["groups"] =
        groups.into_iter().map(|(name, ranks)| (format!("{group}{name}"), ranks)).collect();
    text
}

#[test]
fn aligned_ranks_have_the_lower_median() {
    let dir = folder("align");
    let graph = read_json(corpus("fsdp_tp_llama_4.graph.json.gz"));
    for (name, factor) in [("r0", 1.0), ("r1", 4.0), ("r2", 2.0), ("r3", 3.0)] {
        fs::write(dir.join(format!("{name}.json")), rank(&graph, factor, name).to_string())
            .unwrap();
    }
    ends(
        &halflap(&dir, &["align", "r0.json", "r1.json", "r2.json", "r3.json", "-o", "aligned"]),
        0,
    );
    assert_eq!(entries(&dir.join("aligned")), ["r0.json", "r1.json", "r2.json", "r3.json"]);
    // Of 1, 2, 3 and 4 times the lower median is 2; everything else stays each rank's own.
    for name in ["r0", "r1", "r2", "r3"] {
        assert_eq!(
            read_json(dir.join("aligned").join(format!("{name}.json"))),
            rank(&graph, 2.0, name)
        );
    }
}

#[test]
fn aligned_ranks_need_not_have_times() {
    let dir = folder("align_without_times");
    let graph = |times: [Value; 2]| {
        let node = |(name, time): (&str, Value)| json!({ "name": name, "kind": "compute", "runtime_ns": time, "outputs": [], "deps": [] });
        let nodes: Vec<Value> = ["a", "b"].into_iter().zip(times).map(node).collect();
        json!({ "format": "halflap.graph/1", "groups": {}, "nodes": nodes, "buffers": [], "inputs": [] })
    };
    fs::write(dir.join("r0.json"), graph([json!(5.0), Value::Null]).to_string()).unwrap();
    fs::write(dir.join("r1.json"), graph([Value::Null, Value::Null]).to_string()).unwrap();
    let (out, _) = ends(&halflap(&dir, &["align", "r0.json", "r1.json", "-o", "aligned"]), 0);
    let said = "aligned 2 ranks of 2 nodes; at most 1 run time of a rank changed\nwrote ";
    assert!(out.starts_with(said), "{out}");
    // One rank's time is the median of those that there are; a time that none has stays unknown.
    for name in ["r0.json", "r1.json"] {
        assert_eq!(read_json(dir.join("aligned").join(name)), graph([json!(5.0), Value::Null]));
    }
}

#[test]
fn ranks_with_other_programs_are_refused() {
    let dir = folder("align_refused");
    let graph = read_json(corpus("fsdp_tp_llama_4.graph.json.gz"));
    let said = |change: &dyn Fn(&mut Value)| {
        let mut other = graph.clone();
        change(&mut other);
        fs::write(dir.join("a.json"), graph.to_string()).unwrap();
        fs::write(dir.join("b.json"), other.to_string()).unwrap();
        let (_, err) = ends(&halflap(&dir, &["align", "a.json", "b.json", "-o", "out"]), 2);
        assert_eq!(entries(&dir), ["a.json", "b.json"], "nothing is written");
        err
    };
    let first = graph["buffers"][5]["name"].as_str().unwrap().to_owned();
    let err = said(&|other| other["buffers"][5]["size_alloc"] = json!(77));
    assert!(
        err.contains(&format!("b.json: differs from a.json: buffer '{first}': size_alloc is")),
        "{err}"
    );
    let is_collective = |node: &&Value| node["kind"] == "collective";
    let collective =
        graph["nodes"].as_array().unwrap().iter().position(|node| is_collective(&node)).unwrap();
    let worker = graph["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .position(|node| node["flops"].is_number())
        .unwrap();
    let err = said(&|other| other["nodes"][worker]["flops"] = Value::Null);
    assert!(err.contains("its work in flops is") && err.contains("and not given here"), "{err}");
    let err = said(&|other| other["nodes"][collective]["collective"]["op"] = json!("broadcast"));
    assert!(err.contains("its operation is"), "{err}");
    // The first collective moves to the other process group: a renaming cannot explain that.
    let groups: Vec<String> = graph["groups"].as_object().unwrap().keys().cloned().collect();
    assert!(groups.len() > 1);
    let err = said(&|other| {
        let now = other["nodes"][collective]["collective"]["group"].as_str().unwrap().to_owned();
        let next = groups.iter().find(|group| **group != now).unwrap();
        other["nodes"][collective]["collective"]["group"] = json!(next);
    });
    assert!(err.contains("its process group"), "{err}");
    // Groups that share two ranks take turns: with other ranks another order is best.
    let err = said(&|other| {
        for group in other["groups"].as_object_mut().unwrap().values_mut() {
            let ranks = group["ranks"].as_array().unwrap().len();
            group["ranks"] = json!((0..ranks).collect::<Vec<_>>());
        }
    });
    assert!(err.contains("shares a stream with"), "{err}");
    let err = said(&|other| drop(other["nodes"].as_array_mut().unwrap().pop()));
    assert!(
        err.contains("is not a node")
            || err.contains("number of nodes")
            || err.contains("is made by no node"),
        "{err}"
    );
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/a.json"), graph.to_string()).unwrap();
    let (_, err) = ends(&halflap(&dir, &["align", "a.json", "sub/a.json", "-o", "out"]), 2);
    assert!(err.contains("needs a name of its own"), "{err}");
}
