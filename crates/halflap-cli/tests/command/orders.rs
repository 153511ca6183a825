//! Commands that look at orders: `simulate`, `explain`, `what-if`, `verify`; and the options that a
//! schedule records for them.

use std::fs;

use serde_json::{Value, json};

use crate::common::{corpus, ends, folder, halflap, read_json};

/// What is said of an order is said under the rules that it was made with.
#[test]
fn a_schedule_is_explained_with_its_own_options() {
    let dir = folder("recorded");
    let graph = corpus("fsdp_backward.graph.json.gz");
    let made = [
        "--effort",
        "quick",
        "--collective-order",
        "kept",
        "--memory-budget",
        "1.1x",
        "-o",
        "kept.json",
    ];
    let (out, _) = ends(&halflap(&dir, &[&["schedule", &graph], made.as_slice()].concat()), 0);
    assert!(out.contains("for the kept collective order"), "{out}");
    assert!(out.contains("keeps its place among collectives: in any order, "), "{out}");
    let kept = read_json(dir.join("kept.json"));
    assert_eq!(kept["collective_order"], "kept");
    let asked = |command: &str, args: &[&str]| -> Value {
        let (out, _) = ends(&halflap(&dir, &[&[command, &graph], args, &["--json"]].concat()), 0);
        serde_json::from_str(&out).unwrap()
    };
    let explained = asked("explain", &["kept.json"]);
    assert_eq!(
        (&explained["bound"], &explained["collective_order"]),
        (&kept["bound"], &json!("kept"))
    );
    assert_eq!(
        asked("explain", &["kept.json", "--memory-budget", "1.1x"]),
        explained,
        "the limit is recorded, too"
    );
    assert_eq!(asked("simulate", &["kept.json"])["bound"], kept["bound"]);
    assert_eq!(asked("simulate", &["--collective-order", "kept"])["bound"], kept["bound"]);
    let free = asked("explain", &["kept.json", "--collective-order", "free"]);
    assert!(free["bound"].as_f64() < kept["bound"].as_f64());
    let kinds = |value: &Value| value["collectives"].to_string();
    assert!(
        kinds(&explained).contains("kept_order") && !kinds(&explained).contains("misplaced"),
        "{explained}"
    );
    assert!(kinds(&free).contains("misplaced") && !kinds(&free).contains("kept_order"), "{free}");
    let point = ["--memory", "1.1x", "--bandwidth", "1x"];
    let sweep = asked("what-if", &[&["kept.json"], point.as_slice()].concat());
    assert_eq!((&sweep["collective_order"], &sweep["effort"]), (&json!("kept"), &json!("quick")));
    assert_eq!(sweep["points"][0]["bound"], kept["bound"]);
    let step = |value: &Value| value["step_time"].as_f64().unwrap();
    assert!(
        step(&sweep["points"][0]) < step(&kept) + 1.0,
        "its order is known, and no nanosecond is lost"
    );
    let sweep = asked(
        "what-if",
        &[&["kept.json", "--collective-order", "free"], point.as_slice()].concat(),
    );
    assert_eq!(sweep["points"][0]["bound"], free["bound"]);
}

#[test]
fn what_a_schedule_records_must_fit() {
    let dir = folder("recorded_wrong");
    let graph = corpus("fsdp_backward.graph.json.gz");
    ends(&halflap(&dir, &["schedule", &graph, "--effort", "quick", "-o", "free.json"]), 0);
    let (_, err) =
        ends(&halflap(&dir, &["explain", &graph, "free.json", "--collective-order", "kept"]), 2);
    assert!(err.contains("(order of collectives); use --collective-order free"), "{err}");
    let mut file = read_json(dir.join("free.json"));
    assert_eq!(file["collective_order"], "free");
    file["collective_order"] = json!("loose");
    fs::write(dir.join("free.json"), file.to_string()).unwrap();
    let (_, err) = ends(&halflap(&dir, &["simulate", &graph, "free.json"]), 2);
    assert!(
        err.contains("free.json: 'collective_order' is \"loose\": it must be free or kept"),
        "{err}"
    );
}

#[test]
fn simulate_and_explain_take_what_they_need() {
    let dir = folder("simulate");
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    let (out, _) = ends(&halflap(&dir, &["simulate", &graph]), 0);
    assert!(out.contains("step time      9.02 ms, within 33.4% of optimal, proved"), "{out}");
    let step = |args: &[&str]| {
        let (out, _) = ends(&halflap(&dir, &[&["simulate", &graph, "-o", "-"], args].concat()), 0);
        serde_json::from_str::<Value>(&out).unwrap()["step_time"].as_f64().unwrap()
    };
    assert!(step(&["--slowdown", "1.4"]) > step(&[]) && step(&["--launch", "100us"]) > step(&[]));
    assert!(step(&["--comm-streams", "one"]) >= step(&["--comm-streams", "group"]));
    assert_ne!(step(&["--device", "h100"]), step(&[]));
    fs::write(dir.join("times.json"), r#"{ "op0": 5000000 }"#).unwrap();
    assert!(step(&["--profile", "times.json"]) > step(&[]) + 4e6);
    let (out, _) = ends(&halflap(&dir, &["explain", &graph, "--node", "op2"]), 0);
    assert!(out.contains("issued too late: 42.3 us could be saved"), "{out}");
    let (of_wait, _) = ends(&halflap(&dir, &["explain", &graph, "--node", "op24"]), 0);
    assert_eq!(of_wait, out, "a wait stands for its collective");
    let named = r#"{"format": "halflap.graph/1", "groups": {"g": {"ranks": [0, 1]}}, "buffers": [], "inputs": [], "nodes": [
        {"name": "c", "kind": "collective", "runtime_ns": 1, "outputs": [], "deps": [], "parameter": "layers.3.wq.weight",
         "collective": {"op": "all_gather", "group": "g", "group_size": 2, "bytes": 8, "async": false}}]}"#;
    fs::write(dir.join("named.json"), named).unwrap();
    let (out, _) = ends(&halflap(&dir, &["explain", "named.json", "--node", "c"]), 0);
    assert!(out.contains("parameter      layers.3.wq.weight"), "{out}");
    let (_, err) = ends(&halflap(&dir, &["explain", &graph, "--node", "op26"]), 2);
    assert!(err.contains("'op26' is neither a collective nor the wait of one"), "{err}");
    fs::write(dir.join("order.json"), r#"["op0"]"#).unwrap();
    let (_, err) = ends(&halflap(&dir, &["simulate", &graph, "order.json"]), 2);
    assert!(err.contains("order.json: node 'op86' is missing"), "{err}");
}

#[test]
fn a_wrong_node_gets_the_names_that_are_near() {
    let dir = folder("command-near");
    let graph = corpus("ddp_mlp_4.graph.json.gz");
    let nodes = read_json(&graph)["nodes"].clone();
    let nodes = nodes.as_array().unwrap().iter().filter(|node| node["kind"] == "collective");
    let collectives: Vec<&str> = nodes.map(|node| node["name"].as_str().unwrap()).collect();
    let said = |node: &str| {
        let args = ["explain", &graph, "--no-advice", "--node", node];
        ends(&halflap(&dir, &args), 2).1
    };
    let slip = format!("{}x", collectives[1]);
    let meant = format!("; did you mean '{}'?", collectives[1]);
    assert!(said(&slip).contains(&meant), "{}", said(&slip));
    // An operation: all that do it.
    let all = said("All_Reduce");
    assert!(collectives.iter().all(|name| all.contains(&format!("'{name}'"))), "{all}");
    assert!(all.contains(" or '"), "{all}");
    let none = said("something else");
    assert!(none.ends_with("is not a node of the graph\n"), "{none}");
}

#[test]
fn a_sweep_shows_what_memory_and_bandwidth_buy() {
    let dir = folder("what_if");
    let graph = corpus("moe_ep_6.graph.json.gz");
    let args =
        ["what-if", &graph, "--memory", "0.1x,1x", "--bandwidth", "1x,2x", "-o", "points.json"];
    let (out, _) = ends(&halflap(&dir, &args), 0);
    assert_eq!(out.lines().filter(|line| line.contains("GiB") && line.contains('x')).count(), 4);
    assert!(out.contains("\nthe input order: "), "{out}");
    assert!(out.contains("no order found; the smallest peak reached is"), "{out}");
    let file = read_json(dir.join("points.json"));
    let points = file["points"].as_array().unwrap();
    assert!(points[0]["step_time"].is_null());
    assert!(points[3]["step_time"].as_f64() < points[1]["step_time"].as_f64());
}

#[test]
fn verify_says_what_is_wrong() {
    let dir = folder("verify");
    let graph = corpus("moe_ep_6.graph.json.gz");
    ends(&halflap(&dir, &["schedule", &graph, "--passes", "raise_comms", "-o", "good.json"]), 0);
    let order: Vec<Value> = read_json(dir.join("good.json"))["order"].as_array().unwrap().clone();
    let said = |order: Value, args: &[&str], code: i32| {
        fs::write(dir.join("order.json"), order.to_string()).unwrap();
        ends(&halflap(&dir, &[&["verify", &graph, "order.json"], args].concat()), code).0
    };
    assert!(said(json!(order), &["--collective-order", "kept"], 0).starts_with("valid: 169 nodes"));
    assert!(said(json!({ "order": order }), &["--memory-budget", "8GiB"], 0).starts_with("valid"));
    assert!(
        said(json!(order), &["--memory-budget", "1KiB"], 1)
            .starts_with("not valid: peak memory is")
    );
    let mut twice = order.clone();
    twice[3] = twice[4].clone();
    assert!(said(json!(twice), &[], 1).contains("appears twice"));
    assert!(said(json!(order[1..]), &[], 1).contains("is missing"));
    let mut other = order.clone();
    other[0] = json!("nobody");
    assert_eq!(said(json!(other), &[], 1), "not valid: 'nobody' is not a node of the graph\n");
    let reversed: Vec<&Value> = order.iter().rev().collect();
    assert!(said(json!(reversed), &[], 1).contains("runs before"));
    fs::write(dir.join("strange.json"), r#"{ "orders": [] }"#).unwrap();
    let (_, err) = ends(&halflap(&dir, &["verify", &graph, "strange.json"]), 2);
    assert!(err.contains("must be a JSON list of node names"), "{err}");
    // A graph in the place of the order is a changed program, and this one is the same.
    let (out, _) = ends(&halflap(&dir, &["verify", &graph, &graph]), 0);
    assert!(out.starts_with("the same program: 169 nodes"), "{out}");
}
