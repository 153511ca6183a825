//! Changed programs as a user meets them: what is compared, written, drawn and refused.

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::{corpus, ends, entries, folder, halflap, read_json};
use serde_json::{Value, json};

#[test]
fn merged_collectives_are_compared_with_what_they_were() {
    let dir = folder("merge");
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    let merge = [
        "schedule",
        &graph,
        "--merge",
        "op1,op15",
        "--merge",
        "op2, op10",
        "--memory-budget",
        "1.2x",
    ];
    let quick = ["--effort", "quick"];
    let (out, _) = ends(
        &halflap(&dir, &[&merge[..], &quick, &["-o", "o.json", "--report", "r.html"]].concat()),
        0,
    );
    assert!(out.contains("255 nodes, 60 collectives -> 257 nodes, 58 collectives"), "{out}");
    assert!(
        out.contains("op1, op15 into op1_x2") && out.contains("op2, op10 into op2_x2"),
        "{out}"
    );
    assert_eq!(entries(&dir), ["o.json", "r.html"]);
    assert!(out.starts_with("What you can do\n") && out.contains("\nlower bound "), "{out}");
    // No setting of torch merges what was named by hand.
    assert!(out.contains("Use the changed program") && !out.contains("enable(rewrite"), "{out}");

    let file = read_json(dir.join("o.json"));
    let plain = ends(&halflap(&dir, &["schedule", &graph, "--effort", "quick", "--json"]), 0).0;
    let plain: Value = serde_json::from_str(&plain).unwrap();
    for field in
        ["step_time_before", "peak_memory_before", "exposed_before", "simulated_exposed_before"]
    {
        assert_eq!(
            file[field], plain[field],
            "before is the old program in its own order: {field}"
        );
    }
    assert_eq!(plain.get("recipes"), None);
    for advice in file["advice"].as_array().unwrap() {
        assert!(out.contains(advice["text"].as_str().unwrap()), "{out}");
    }
    let recipe = &file["recipes"][0];
    assert_eq!((&recipe["kind"], &recipe["members"]), (&json!("merge"), &json!(["op1", "op15"])));
    let number = |field: &str| recipe[field].as_f64().unwrap();
    assert!((number("gain") - (number("exposed_before") - number("exposed"))).abs() < 1e-6);
    let origin = file["origin"].as_array().unwrap();
    let parts = |part: &str| origin.iter().filter(|one| one["part"] == part).count();
    assert_eq!(["copy_in", "merged", "wait", "copy_out"].map(parts), [2, 2, 2, 4]);
    assert_eq!(file["order"].as_array().unwrap().len(), 257);
    let page = fs::read_to_string(dir.join("r.html")).unwrap();
    check_page(&page, &file, &Apart { old: "op15", new: "op1_x2" });
}

/// An operation of the old program alone, and one of the new program alone.
struct Apart<'a> {
    old: &'a str,
    new: &'a str,
}

/// Both views are drawn, each with its program's own operations, all of them named.
fn check_page(page: &str, schedule: &Value, apart: &Apart<'_>) {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    let document: Value = serde_json::from_str(data).unwrap();
    let page = &document["parts"][0];
    let names: Vec<&str> =
        page["ops"]["name"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let drawn = |view: usize| -> BTreeSet<&str> {
        let ops = page["views"][view]["slices"]["op"].as_array().unwrap();
        ops.iter().map(|op| names[op.as_u64().unwrap() as usize]).collect()
    };
    let (before, after) = (drawn(0), drawn(1));
    assert_eq!(after.len(), schedule["order"].as_array().unwrap().len());
    assert!(before.contains(apart.old) && !before.contains(apart.new));
    assert!(after.contains(apart.new) && !after.contains(apart.old));
    let headline = |view: usize, place: usize| {
        page["views"][view]["headline"][place]["value"].as_f64().unwrap()
    };
    assert_eq!(headline(0, 0), schedule["step_time_before"].as_f64().unwrap());
    assert_eq!(headline(1, 2), schedule["peak_memory"].as_f64().unwrap());
    // What is alive at the peak of each view, by the buffers that it has.
    for view in &page["views"].as_array().unwrap()[..] {
        let memory = &view["memory"];
        let list = |value: &Value| -> Vec<i64> {
            value.as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect()
        };
        let (bytes, order, freed) =
            (list(&memory["bytes"]), list(&memory["order"]), list(&memory["freed_by"]));
        let first = memory["first_buffer"].as_u64().unwrap() as usize;
        let (size, maker) = (list(&page["buffers"]["size"]), list(&page["buffers"]["maker"]));
        let peak =
            (0..bytes.len()).max_by_key(|&entry| (bytes[entry], std::cmp::Reverse(entry))).unwrap();
        let place = |op: i64| order.iter().position(|&other| other == op).unwrap();
        let alive = freed.iter().enumerate().filter(|(number, last)| {
            let made = maker[first + number];
            (made < 0 || place(made) <= peak / 2) && (**last < 0 || place(**last) >= peak / 2)
        });
        let sum: i64 = alive.map(|(number, _)| size[first + number]).sum();
        assert_eq!(sum, bytes[peak], "{}", view["name"]);
    }
}

#[test]
fn a_changed_graph_is_written_and_can_be_scheduled() {
    let dir = folder("emit_graph");
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    let args = [
        "schedule",
        &graph,
        "--effort",
        "quick",
        "--memory-budget",
        "1.2x",
        "--emit",
        "graph",
        "-o",
        "new.json",
    ];
    ends(&halflap(&dir, &[&args[..], &["--merge", "op1,op15"]].concat()), 0);
    let new = read_json(dir.join("new.json"));
    let merged =
        new["nodes"].as_array().unwrap().iter().find(|node| node["name"] == "op1_x2").unwrap();
    assert_eq!(merged["collective"]["kind"], "all_gather");
    assert_eq!(merged["ops"], json!(["op1", "op15"]));
    let (out, _) = ends(&halflap(&dir, &["simulate", "new.json"]), 0);
    assert!(out.contains("256 nodes, 59 collectives"), "{out}");
}

#[test]
fn what_cannot_be_merged_is_said() {
    let dir = folder("merge_refused");
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    let said =
        |more: &[&str]| ends(&halflap(&dir, &[&["schedule", &graph][..], more].concat()), 2).1;
    assert!(
        said(&["--merge", "op1"])
            .contains("this rewrite takes two or more collectives, and 1 was named")
    );
    assert!(said(&["--merge", "op1,nobody"]).contains("'nobody' is not a node of the graph"));
    assert!(
        said(&["--merge", "op1,op165"]).contains("differ in kind: all_gather and reduce_scatter")
    );
    assert!(
        said(&["--merge", "op1,op15", "--passes", "sink_waits"]).contains("leave out --passes")
    );
}

/// A captured program whose collectives are mostly latency: their times with a millisecond more.
fn latent(dir: &std::path::Path) -> String {
    let mut graph = read_json(corpus("fsdp_llama_2.graph.json.gz"));
    for node in graph["nodes"].as_array_mut().unwrap() {
        if node["kind"] == "collective" {
            node["runtime_ns"] = json!(node["runtime_ns"].as_f64().unwrap() + 1e6);
        }
    }
    fs::write(dir.join("latent.json"), graph.to_string()).unwrap();
    "latent.json".to_owned()
}

#[test]
fn rewrites_are_chosen_with_the_order() {
    let dir = folder("rewrite");
    let graph = latent(&dir);
    let (out, _) = ends(&halflap(&dir, &["schedule", &graph, "--effort", "quick"]), 0);
    assert!(out.contains("Merging ") && out.contains("--rewrite\n"), "{out}");
    let args = ["schedule", &graph, "--memory-budget", "2x", "--effort", "quick", "--rewrite"];
    let (out, _) =
        ends(&halflap(&dir, &[&args[..], &["-o", "o.json", "--report", "r.html"]].concat()), 0);
    assert!(out.contains("merge:1 ") && out.contains("order alone"), "{out}");
    let found = read_json(dir.join("o.json"));
    let step = found["step_time"].as_f64().unwrap();
    assert!(step < 0.5 * found["order_alone"].as_f64().unwrap(), "{step}");
    let recipes = found["recipes"].as_array().unwrap();
    assert_eq!(recipes[0]["name"], "merge:1");
    // The new program is written, read again, and takes as long.
    ends(&halflap(&dir, &[&args[..], &["--emit", "graph", "-o", "new.json"]].concat()), 0);
    ends(&halflap(&dir, &["simulate", "new.json", "o.json", "-o", "s.json"]), 0);
    assert_eq!(read_json(dir.join("s.json"))["step_time"].as_f64().unwrap(), step);
    let (out, _) = ends(&halflap(&dir, &["verify", &graph, "new.json"]), 0);
    assert!(out.contains("the same program: 255 nodes, 60 collectives -> "), "{out}");
    ends(&halflap(&dir, &[&args[..], &["--emit", "graph", "-o", "new.json.gz"]].concat()), 0);
    ends(&halflap(&dir, &["verify", &graph, "new.json.gz"]), 0);
    let (_, error) =
        ends(&halflap(&dir, &["verify", &graph, "new.json", "--memory-budget", "1x"]), 2);
    assert!(error.contains("two graphs were given"), "{error}");
    // One dependency less, and it is another program.
    let mut damaged = read_json(dir.join("new.json"));
    let nodes = damaged["nodes"].as_array_mut().unwrap();
    let last =
        nodes.iter_mut().rev().find(|node| !node["deps"].as_array().unwrap().is_empty()).unwrap();
    last["deps"] = json!([]);
    fs::write(dir.join("damaged.json"), damaged.to_string()).unwrap();
    let (out, error) = ends(&halflap(&dir, &["verify", &graph, "damaged.json"]), 1);
    assert!((out + &error).contains("not the same program"), "{error}");
    // One is left out; what is not there cannot be.
    ends(
        &halflap(
            &dir,
            &[&args[..6], &["--rewrite=exact", "--without", "merge:1", "-o", "w.json"]].concat(),
        ),
        0,
    );
    let less = read_json(dir.join("w.json"));
    // What the summary calls by that name is what is left out.
    let members = |of: &Value| of["members"].clone();
    let left: Vec<Value> = less["recipes"].as_array().unwrap().iter().map(members).collect();
    assert_eq!(left, recipes[1..].iter().map(members).collect::<Vec<_>>());
    let (_, error) = ends(&halflap(&dir, &[&args[..], &["--without", "merge:99"]].concat()), 2);
    assert!(error.contains("--without merge:99"), "{error}");
}

#[test]
fn exposed_collectives_are_cut_into_pieces() {
    let dir = folder("rewrite_split");
    let graph = corpus("moe_ep_6.graph.json.gz");
    let args = ["schedule", &graph, "--effort", "quick", "--rewrite"];
    let (out, _) =
        ends(&halflap(&dir, &[&args[..], &["-o", "o.json", "--report", "r.html"]].concat()), 0);
    assert!(out.contains("split:1 ") && out.contains(" pieces each: exposes "), "{out}");
    let found = read_json(dir.join("o.json"));
    let step = found["step_time"].as_f64().unwrap();
    assert!(step < 0.97 * found["order_alone"].as_f64().unwrap(), "{step}");
    let recipe = &found["recipes"][0];
    assert_eq!((&recipe["name"], &recipe["exact"]), (&json!("split:1"), &json!(true)));
    assert!(recipe["pieces"].as_u64().unwrap() >= 2 && recipe["gain"].as_f64().unwrap() > 0.0);
    let pieces = found["origin"].as_array().unwrap().iter().filter(|one| one["part"] == "piece");
    assert!(pieces.count() > 50);
    let page = fs::read_to_string(dir.join("r.html")).unwrap();
    let member = recipe["members"][0].as_str().unwrap();
    check_page(&page, &found, &Apart { old: member, new: &format!("{member}.p1") });
    // The new program is written, and proved from the two files alone.
    ends(&halflap(&dir, &[&args[..], &["--emit", "graph", "-o", "new.json"]].concat()), 0);
    ends(&halflap(&dir, &["simulate", "new.json", "o.json", "-o", "s.json"]), 0);
    assert_eq!(read_json(dir.join("s.json"))["step_time"].as_f64().unwrap(), step);
    let (out, _) = ends(&halflap(&dir, &["verify", &graph, "new.json"]), 0);
    assert!(out.contains("the same program: 169 nodes, 42 collectives -> "), "{out}");
    // A piece that reads another's rows is another program.
    let mut damaged = read_json(dir.join("new.json"));
    let nodes = damaged["nodes"].as_array_mut().unwrap();
    let reads = |node: &Value| node["deps"][0]["buffer"].as_str().map(str::to_owned);
    let is_second = |node: &&mut Value| {
        node["gemm_like"] == true && reads(node).is_some_and(|buffer| buffer.ends_with(".p2"))
    };
    let second = nodes.iter_mut().find(is_second).unwrap();
    let (name, other) = (second["name"].clone(), reads(second).unwrap().replace(".p2", ".p1"));
    second["deps"][0]["buffer"] = json!(other);
    let buffers = damaged["buffers"].as_array_mut().unwrap();
    let read = buffers.iter_mut().find(|buffer| buffer["name"] == json!(other)).unwrap();
    read["users"].as_array_mut().unwrap().push(name);
    fs::write(dir.join("damaged.json"), damaged.to_string()).unwrap();
    let (out, error) = ends(&halflap(&dir, &["verify", &graph, "damaged.json"]), 1);
    assert!((out + &error).contains("not the same program"), "{error}");
    // It can be left out by its own name only.
    let (_, error) = ends(&halflap(&dir, &[&args[..], &["--without", "merge:1"]].concat()), 2);
    assert!(error.contains("--without merge:1: not among the"), "{error}");
    ends(&halflap(&dir, &["schedule", &graph, "--effort", "quick", "--rewrite=merge"]), 0);
}

/// Six layers of three gathered weights each, of which the last three are the first ones again.
fn gathered_twice() -> Value {
    let data = |buffer: String| json!({ "buffer": buffer, "kinds": ["data"] });
    let made = |name: String, size: u64, users: Value| {
        json!({ "name": name, "size_alloc": size, "size_free": size, "users": users,
            "output": false })
    };
    let (mut nodes, mut buffers) = (Vec::new(), Vec::new());
    for layer in 0..6 {
        let mut reads: Vec<Value> = Vec::new();
        reads.extend((layer > 0).then(|| data(format!("x{}", layer - 1))));
        let reader = format!("l{layer}.mm");
        for part in 0..3_u64 {
            let [comm, wait, gathered, waited] =
                ["comm", "wait", "y", "w"].map(|what| format!("l{layer}.{part}.{what}"));
            let bytes = 64 * (part + 1);
            nodes.push(json!({ "name": comm, "kind": "collective", "runtime_ns": 1000 + bytes,
                "outputs": [gathered], "deps": [], "collective": { "op": "all_gather",
                "group": "g", "group_size": 2, "bytes": bytes, "async": true,
                "content": format!("w{}.{part}", layer % 3) } }));
            nodes.push(json!({ "name": wait, "kind": "wait", "runtime_ns": 0,
                "outputs": [waited], "deps": [data(gathered.clone())] }));
            buffers.push(made(gathered, bytes, json!([wait, reader])));
            reads.push(data(waited.clone()));
            buffers.push(made(waited, 0, json!([reader])));
        }
        nodes.push(json!({ "name": reader, "kind": "compute", "runtime_ns": 900,
            "outputs": [format!("x{layer}")], "deps": reads }));
        let users = if layer < 5 { json!([format!("l{}.mm", layer + 1)]) } else { json!([]) };
        buffers.push(made(format!("x{layer}"), 100, users));
    }
    json!({ "format": "halflap.graph/1", "groups": { "g": { "ranks": [0, 1] } }, "nodes": nodes,
        "buffers": buffers, "inputs": [] })
}

#[test]
fn what_is_gathered_twice_is_kept() {
    let dir = folder("rewrite_keep");
    let graph = gathered_twice();
    fs::write(dir.join("old.json"), graph.to_string()).unwrap();
    let args = ["schedule", "old.json", "--effort", "quick", "--memory-budget", "4x"];
    let keep = [&args[..], &["--rewrite", "keep"]].concat();
    let (out, _) = ends(&halflap(&dir, &[&keep[..], &["-o", "o.json"]].concat()), 0);
    assert!(out.contains("keep:1 ") && out.contains(" stay in memory, "), "{out}");
    let found = read_json(dir.join("o.json"));
    let recipes = found["recipes"].as_array().unwrap();
    assert!(recipes.iter().all(|recipe| recipe["kind"] == "keep" && recipe["exact"] == true));
    assert!(recipes[0]["kept_bytes"].as_u64().unwrap() > 0);
    let step = found["step_time"].as_f64().unwrap();
    assert!(step < 0.98 * found["order_alone"].as_f64().unwrap(), "{step}");
    // The new program is written, and proved from the two files alone.
    ends(&halflap(&dir, &[&keep[..], &["--emit", "graph", "-o", "new.json"]].concat()), 0);
    ends(&halflap(&dir, &["simulate", "new.json", "o.json", "-o", "s.json"]), 0);
    assert_eq!(read_json(dir.join("s.json"))["step_time"].as_f64().unwrap(), step);
    let new = read_json(dir.join("new.json"));
    let count = |graph: &Value| graph["nodes"].as_array().unwrap().len();
    assert_eq!(count(&new), count(&graph) - 2 * recipes.len(), "gathers and waits");
    ends(&halflap(&dir, &["verify", "old.json", "new.json"]), 0);
    // Without what says that the same is sent, nothing proves it.
    let mut unnamed = graph.clone();
    unnamed["nodes"][21]["collective"]["content"] = json!(null);
    fs::write(dir.join("unnamed.json"), unnamed.to_string()).unwrap();
    let (out, error) = ends(&halflap(&dir, &["verify", "unnamed.json", "new.json"]), 1);
    assert!((out + &error).contains("not the same program"), "{error}");
    // One is left out, by its name.
    let less = [&keep[..], &["--without", "keep:1", "-o", "w.json"]].concat();
    ends(&halflap(&dir, &less), 0);
    let left = read_json(dir.join("w.json"));
    assert_eq!(left["recipes"].as_array().unwrap().len(), recipes.len() - 1);
}

/// A gradient that is reduced, while a weight is gathered that the next operation needs.
fn urgent_gather() -> Value {
    let data = |buffer: &str| json!({ "buffer": format!("{buffer}.out"), "kinds": ["data"] });
    let node = |name: &str, kind: &str, time: f64, reads: &[&str]| {
        let deps: Vec<Value> = reads.iter().map(|buffer| data(buffer)).collect();
        json!({ "name": name, "kind": kind, "runtime_ns": time,
            "outputs": [format!("{name}.out")], "deps": deps })
    };
    let mut nodes = vec![
        node("gradient", "compute", 10.0, &[]),
        node("reduce", "collective", 1000.0, &["gradient"]),
        node("shard", "compute", 500.0, &["gradient"]),
        node("gather", "collective", 100.0, &["shard"]),
        node("gathered", "wait", 0.0, &["gather"]),
        node("next", "compute", 400.0, &["gathered"]),
        node("reduced", "wait", 0.0, &["reduce"]),
        node("update", "compute", 50.0, &["next", "reduced"]),
    ];
    for (place, op) in [(1, "reduce_scatter"), (3, "all_gather")] {
        nodes[place]["collective"] = json!({ "op": op, "group": "dp", "group_size": 2,
            "bytes": 1000, "async": true });
    }
    let made = nodes.iter().map(|node| {
        let name = node["outputs"][0].clone();
        let reads = |other: &&Value| {
            other["deps"].as_array().unwrap().iter().any(|dep| dep["buffer"] == name)
        };
        let users: Vec<&Value> = nodes.iter().filter(reads).map(|node| &node["name"]).collect();
        json!({ "name": name, "size_alloc": 8, "size_free": 8, "users": users, "output": false })
    });
    let made: Vec<Value> = made.collect();
    json!({ "format": "halflap.graph/1", "groups": { "dp": { "ranks": [0, 1] } }, "nodes": nodes,
        "buffers": made, "inputs": [] })
}

#[test]
fn second_communicators_are_used_on_request_where_they_help() {
    let dir = folder("rewrite_groups");
    fs::write(dir.join("old.json"), urgent_gather().to_string()).unwrap();
    let args = ["schedule", "old.json", "--effort", "quick", "--memory-budget", "4x"];
    let groups = [&args[..], &["--rewrite", "groups"]].concat();
    let options = ["-o", "o.json", "--report", "r.html"];
    let (out, _) = ends(&halflap(&dir, &[&groups[..], &options].concat()), 0);
    assert!(out.contains("groups:1 gather on dp.2, a second communicator of dp: "), "{out}");
    assert!(out.contains(r#"halflap.torch.enable(rewrite=["exact", "groups"])"#), "{out}");
    let found = read_json(dir.join("o.json"));
    let recipe = &found["recipes"][0];
    assert_eq!((&recipe["name"], &recipe["kind"]), (&json!("groups:1"), &json!("groups")));
    assert_eq!((&recipe["group"], &recipe["into"]), (&json!("dp"), &json!("dp.2")));
    assert_eq!((&recipe["members"], &recipe["exact"]), (&json!(["gather"]), &json!(true)));
    let step = found["step_time"].as_f64().unwrap();
    assert!((step - 1160.0).abs() < 1e-6 && found["order_alone"] == json!(1560.0), "{step}");
    // Beside all exact ones, which gain nothing here; what needs no name is not named beside them.
    let both = [&args[..], &["--rewrite", "exact,groups", "-o", "both.json"]].concat();
    ends(&halflap(&dir, &both), 0);
    assert_eq!(read_json(dir.join("both.json"))["recipes"], found["recipes"]);
    let (_, refused) = ends(&halflap(&dir, &[&args[..], &["--rewrite", "all,split"]].concat()), 2);
    assert!(refused.contains("after exact or all there can only be groups, not 'split'"));
    // The new program is written, proved from the two files, and takes as long when read again.
    ends(&halflap(&dir, &[&groups[..], &["--emit", "graph", "-o", "new.json"]].concat()), 0);
    let new = read_json(dir.join("new.json"));
    assert_eq!(new["groups"]["dp.2"], json!({ "ranks": [0, 1], "second_of": "dp" }));
    ends(&halflap(&dir, &["verify", "old.json", "new.json"]), 0);
    ends(&halflap(&dir, &["simulate", "new.json", "o.json", "-o", "s.json"]), 0);
    assert_eq!(read_json(dir.join("s.json"))["step_time"], found["step_time"]);
    let again = ["schedule", "new.json", "--effort", "quick", "--memory-budget", "4x"];
    ends(&halflap(&dir, &[&again[..], &["-o", "again.json"]].concat()), 0);
    assert_eq!(read_json(dir.join("again.json"))["step_time"], found["step_time"]);
    let mut other = new.clone();
    other["groups"]["dp.2"] = json!({ "ranks": [0, 1] });
    fs::write(dir.join("other.json"), other.to_string()).unwrap();
    let (out, error) = ends(&halflap(&dir, &["verify", "old.json", "other.json"]), 1);
    assert!((out + &error).contains("'dp.2' of the new program is no second communicator"));
    // Nothing else uses them, and what is not worth it says why.
    for which in ["exact", "all", "merge,split,keep"] {
        ends(&halflap(&dir, &[&args[..], &["--rewrite", which, "-o", "p.json"]].concat()), 0);
        assert_eq!(read_json(dir.join("p.json"))["recipes"], json!([]), "{which}");
    }
    let one = [&groups[..], &["--comm-streams", "one", "-o", "p.json"]].concat();
    let (out, _) = ends(&halflap(&dir, &one), 0);
    assert!(out.contains("no second communicator: "), "{out}");
    assert!(read_json(dir.join("p.json"))["one_communicator"]["kind"].is_string());
    let less = [&groups[..], &["--without", "groups:1"]].concat();
    let (out, _) = ends(&halflap(&dir, &less), 0);
    assert!(out.contains("no second communicator: left out, as asked"), "{out}");
}

#[test]
fn where_no_rewrite_helps_the_program_stays_as_it_is() {
    let dir = folder("rewrite_none");
    let graph = corpus("ddp_mlp_4.graph.json.gz");
    let (out, _) = ends(
        &halflap(&dir, &["schedule", &graph, "--effort", "quick", "--rewrite", "-o", "o.json"]),
        0,
    );
    assert!(
        out.contains("rewrites")
            && out.contains("none: nothing exposed can be merged, cut into pieces or kept"),
        "{out}"
    );
    let args = ["schedule", &graph, "--effort", "quick", "--rewrite", "none", "-o", "p.json"];
    let (out, _) = ends(&halflap(&dir, &args), 0);
    assert!(!out.contains("hint"), "{out}");
    let (found, plain) = (read_json(dir.join("o.json")), read_json(dir.join("p.json")));
    assert_eq!((&found["order"], &found["recipes"]), (&plain["order"], &json!([])));
}

#[test]
fn what_is_no_rewrite_is_refused() {
    let dir = folder("rewrite_refused");
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    for (more, said) in [
        (
            &["--rewrite", "melt"][..],
            "'melt' is not a rewrite: choose exact, all, none, or from the list merge, split",
        ),
        (&["--rewrite", "--without", "merge"], "--without merge: not the name of a rewrite"),
        (&["--rewrite", "--passes", "simple_overlap"], "leave out --passes"),
        (&["--rewrite", "--merge", "op1,op2"], "cannot be used with"),
        (&["--without", "merge:1"], "--rewrite"),
        (&["--rewrite", "none", "--without", "merge:1"], "--rewrite none chooses nothing"),
    ] {
        let (_, error) = ends(&halflap(&dir, &[&["schedule", &graph], more].concat()), 2);
        assert!(error.contains(said), "{more:?}: {error}");
    }
}

/// Names of the other kind of program's rewrites are refused wherever they are typed.
#[test]
fn rewrites_are_those_of_the_program() {
    let dir = folder("rewrite_names");
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    let module = corpus("fsdp_L2.after_optimizations.txt.gz").replace("corpus/", "hlo/");
    let of_graphs = "captured graphs; for an HLO module there are exact, all, none and";
    let of_modules = "HLO modules; for a captured graph there are exact, all, none and";
    for (program, names, said) in [
        (&graph, "narrow", format!("'narrow' is a rewrite of {of_modules} merge, split")),
        (&graph, "narrow,merge", format!("'narrow' is a rewrite of {of_modules} merge")),
        (&module, "groups", format!("'groups' is a rewrite of {of_graphs} ")),
        (&module, "merge,groups", format!("'groups' is a rewrite of {of_graphs} ")),
        (&module, "exact,groups", format!("'groups' is a rewrite of {of_graphs} ")),
        (&module, "all,groups", format!("'groups' is a rewrite of {of_graphs} ")),
    ] {
        for command in ["schedule", "explain", "what-if"] {
            let typed = [command, program, "--rewrite", names];
            let (_, error) = ends(&halflap(&dir, &typed), 2);
            assert!(error.contains(&said) && error.contains(program.as_str()), "{error}");
        }
    }
    for (program, more, said) in [
        (&graph, &["--rewrite", "mrge"][..], "did you mean 'merge'?"),
        (&graph, &["--merge", "op1x,op2"], "is not a node of the graph; did you mean "),
        (&module, &["--merge", "all-gathr,x"], "of the module; did you mean 'all-gather"),
        (&graph, &["--rewrite", "--piece-tail", "0"], "'0' is not an amount of a product's"),
        (&graph, &["--rewrite", "--without", "merge:99"], "json.gz: --without merge:99: "),
        (&module, &["--rewrite", "--without", "merge:99"], "txt.gz: --without merge:99: "),
    ] {
        let quick = ["schedule", program, "--effort", "quick"];
        let (_, error) = ends(&halflap(&dir, &[&quick[..], more].concat()), 2);
        assert!(error.contains(said), "{more:?}: {error}");
    }
}

/// With more rewrites, or more memory, a step is never longer; and the order alone is that of a
/// search without rewrites.
#[test]
fn a_longer_list_of_rewrites_is_no_worse() {
    let dir = folder("rewrite_superset");
    let quick = ["--device", "h100", "--effort", "quick", "--no-advice"];
    for (name, budget) in [("moe_ep_6", "1x"), ("fsdp_tp_llama_4", "1.3x")] {
        let graph = corpus(&format!("{name}.graph.json.gz"));
        let schedule = ["schedule", &graph, "--memory-budget", budget];
        let found = |more: &[&str]| asked(&dir, &[&schedule[..], &quick, more].concat());
        let step = |of: &Value| of["step_time"].as_f64().unwrap();
        let alone = found(&[]);
        let [exact, all] = ["exact", "all"].map(|which| found(&["--rewrite", which]));
        assert!(step(&all) <= step(&exact), "{name}: {} and {}", step(&all), step(&exact));
        assert!(step(&exact) <= step(&alone), "{name}");
        for with in [&exact, &all] {
            assert_eq!(with["order_alone"], alone["step_time"], "{name}");
        }
        // What is left out is left out of what was chosen.
        let Some(first) = all["recipes"].as_array().unwrap().first() else { continue };
        let left = found(&["--rewrite", "all", "--without", first["name"].as_str().unwrap()]);
        let members = |one: &Value| one["members"].clone();
        let kept = left["recipes"].as_array().unwrap().iter().map(members);
        assert!(!kept.collect::<Vec<_>>().contains(&first["members"]), "{name}: {left}");
    }
}

/// From one of the limits that all larger ones are compared with to any larger one, more memory
/// never gives a longer step.
#[test]
fn more_memory_is_no_slower() {
    let dir = folder("rewrite_memory");
    for (name, which) in
        [("fsdp_llama_8", "none"), ("fsdp_tp_llama_4", "none"), ("fsdp_llama_8", "exact")]
    {
        let graph = corpus(&format!("{name}.graph.json.gz"));
        let step = |budget: &&str| {
            let schedule = ["schedule", &graph, "--memory-budget", budget, "--rewrite", which];
            let found =
                asked(&dir, &[&schedule[..], &["--effort", "quick", "--no-advice"]].concat());
            found["step_time"].as_f64().unwrap()
        };
        let steps: Vec<f64> = ["1x", "1.2x", "1.5x", "2x", "3x"].iter().map(step).collect();
        assert!(steps.is_sorted_by(|less, more| more <= less), "{name} {which}: {steps:?}");
    }
}

/// What a command prints as JSON.
fn asked(dir: &std::path::Path, arguments: &[&str]) -> Value {
    let (out, _) = ends(&halflap(dir, &[arguments, &["--json"]].concat()), 0);
    serde_json::from_str(&out).unwrap()
}

/// `explain` and `what-if` change a program as `schedule` does, and find the same step.
#[test]
fn changed_programs_are_explained_and_swept_over() {
    let dir = folder("explain-changed");
    let graph = latent(&dir);
    let module = corpus("mix_L2.after_spmd_partitioning.txt.gz").replace("corpus/", "hlo/");
    for program in [&graph, &module] {
        let found = asked(&dir, &["schedule", program, "--rewrite", "all", "--no-advice"]);
        let explained = asked(&dir, &["explain", program, "--rewrite", "all"]);
        assert!(!found["recipes"].as_array().unwrap().is_empty(), "{program}");
        for field in ["recipes", "order_alone", "step_time_before"] {
            assert_eq!(explained[field], found[field], "{program}: {field}");
        }
        let [step, is] = [&found, &explained].map(|one| one["step_time"].as_f64().unwrap());
        assert!((step - is).abs() < 1e-6 * step, "{program}: {step} and {is}");
        let (text, _) = ends(&halflap(&dir, &["explain", program, "--rewrite", "all"]), 0);
        assert!(text.contains("held by") && text.contains("order alone"), "{text}");

        let quick = ["--rewrite", "all", "--effort", "quick"];
        let found = asked(&dir, &[&["schedule", program, "--no-advice"], &quick[..]].concat());
        let at = ["--memory", "1x,1.5x", "--bandwidth", "1x,2x"];
        let swept = asked(&dir, &[&["what-if", program], &quick[..], &at].concat());
        let points = swept["points"].as_array().unwrap();
        let of = |field: &str| -> Vec<f64> {
            points.iter().map(|point| point[field].as_f64().unwrap()).collect()
        };
        let (steps, alone) = (of("step_time"), of("order_alone"));
        let step = found["step_time"].as_f64().unwrap();
        assert!((step - steps[0]).abs() < 1e-6 * step, "{program}: {steps:?}");
        assert_eq!(found["order_alone"].as_f64().unwrap(), alone[0], "{program}");
        assert!(steps[1] <= steps[0] && steps[3] <= steps[2] && steps[2] < steps[0], "{steps:?}");
        assert!(steps.iter().zip(&alone).all(|(step, alone)| step <= alone), "{alone:?}");
    }
    ends(&halflap(&dir, &["schedule", &graph, "--effort", "quick", "-o", "order.json"]), 0);
    let refused: [(&[&str], &str); 3] = [
        (
            &["explain", &graph, "order.json", "--rewrite"],
            "order.json: is for the program as it is",
        ),
        (
            &["what-if", &graph, "order.json", "--rewrite"],
            "order.json: is for the program as it is",
        ),
        (&["what-if", &module, "--rewrite", "--computation", "main"], "--rewrite changes a module"),
    ];
    for (arguments, said) in refused {
        let (_, error) = ends(&halflap(&dir, arguments), 2);
        assert!(error.contains(said), "{error}");
    }
}
