//! Run times from files: what is wrong with them, and measured profiles.

use std::fs;

use serde_json::{Value, json};

use crate::common::{corpus, ends, folder, halflap, read_json};

/// What is wrong with run times names the file that they were to come from.
#[test]
fn run_times_that_are_missing_or_strange_name_their_file() {
    let dir = folder("command-times");
    let node = |time: &str| {
        format!(
            r#"{{ "format": "halflap.graph/1", "groups": {{}}, "buffers": [], "inputs": [], "nodes": [
                {{ "name": "a", "kind": "compute", "runtime_ns": {time}, "outputs": [], "deps": [] }} ] }}"#
        )
    };
    fs::write(dir.join("none.json"), node("null")).unwrap();
    fs::write(dir.join("one.json"), node("5")).unwrap();
    fs::write(dir.join("times.json"), r#"{ "b": 12 }"#).unwrap();
    let said = |args: &[&str]| ends(&halflap(&dir, args), 2).1;
    let err = said(&["simulate", "none.json"]);
    assert!(
        err.contains("none.json: node 'a' has no run time (runtime_ns is null): model it with"),
        "{err}"
    );
    let err = said(&["simulate", "none.json", "--link", "ib400"]);
    assert!(
        err.contains("none.json: node 'a' has no run time, and --link models collectives"),
        "{err}"
    );
    let err = said(&["simulate", "one.json", "--profile", "times.json"]);
    assert!(err.contains("times.json: 'b' is not a node of the graph"), "{err}");
    for (wrong, problem) in [
        (
            r#"{ "format": "halflap.profile/2", "times": {} }"#,
            "field 'format': \"halflap.profile/2\"; it must be",
        ),
        (r#"{ "format": "halflap.profile/1" }"#, "field 'times': missing; it must be an object"),
        (
            r#"{ "format": "halflap.profile/1", "times": {}, "slowdown": 0.5 }"#,
            "field 'slowdown': 0.5; it must be",
        ),
        (
            r#"{ "format": "halflap.profile/1", "times": {}, "comm_slowdown": 1e9 }"#,
            "field 'comm_slowdown': 1000000000.0; it must be a number from 1 to 100",
        ),
        (
            r#"{ "format": "halflap.profile/1", "times": {}, "outside_ns": -1 }"#,
            "field 'outside_ns': -1; it must be a time in nanoseconds, zero or more",
        ),
        (
            r#"{ "format": "halflap.profile/1", "times": { "mm [2, 2]": "5" } }"#,
            "'mm [2, 2]': time \"5\" is not a number; it must be",
        ),
        (
            r#"{ "format": "halflap.profile/1", "times": { "mm [2, 2]": 5 } }"#,
            "'mm [2, 2]' is not a node of the graph; was it measured on another program?",
        ),
    ] {
        fs::write(dir.join("times.json"), wrong).unwrap();
        let err = said(&["simulate", "one.json", "--profile", "times.json"]);
        assert!(err.contains("times.json: ") && err.contains(problem), "{err}");
    }
}

/// A captured graph and a profile that halflap.torch.measure saved are as good as a graph with
/// these times, to every command that takes them.
#[test]
fn measured_profiles_fit_captured_graphs() {
    let dir = folder("command-measured");
    let mut slow = read_json(corpus("fsdp_llama_2.graph.json.gz"));
    let (mut named, mut times) = (slow.clone(), serde_json::Map::new());
    for at in 0..slow["nodes"].as_array().unwrap().len() {
        let node = &mut slow["nodes"][at];
        let kernel = match node["kind"].as_str().unwrap() {
            "collective" => {
                let issued = &node["collective"];
                format!("{} of 8, {} bytes", issued["op"].as_str().unwrap(), issued["bytes"])
            }
            "compute" => format!("fused_{at}, {} bytes", node["bytes"]),
            _ => continue,
        };
        let time = json!(1.5 * node["runtime_ns"].as_f64().unwrap());
        node["runtime_ns"] = times.entry(&kernel).or_insert(time).clone();
        named["nodes"][at]["kernel"] = json!(kernel);
    }
    fs::write(dir.join("graph.json"), named.to_string()).unwrap();
    fs::write(dir.join("slow.json"), slow.to_string()).unwrap();
    let profile = json!({ "format": "halflap.profile/1", "times": times, "slowdown": 1.0,
        "comm_slowdown": 1.0, "outside_ns": 7e5 });
    fs::write(dir.join("measured.json"), profile.to_string()).unwrap();
    let step = |args: &[&str]| -> f64 {
        let out = ends(&halflap(&dir, &[args, &["--json"]].concat()), 0).0;
        let found: Value = serde_json::from_str(&out).unwrap();
        let found = if args[0] == "what-if" { &found["points"][0] } else { &found };
        found["step_time"].as_f64().unwrap()
    };
    let cases: [(&str, &[&str]); 4] = [
        ("simulate", &[]),
        ("explain", &["--no-advice"]),
        ("schedule", &["--no-advice", "--effort", "quick"]),
        ("what-if", &["--memory", "1x", "--bandwidth", "1x"]),
    ];
    for (command, more) in cases {
        let measured =
            step(&[&[command, "graph.json", "--profile", "measured.json"], more].concat());
        assert_eq!(measured, step(&[&[command, "slow.json"], more].concat()), "{command}");
        assert_ne!(measured, step(&[&[command, "graph.json"], more].concat()), "{command}");
    }
}

#[test]
fn measured_profiles_bring_their_contention() {
    let dir = folder("command-contention");
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    let profile = |slowdown: f64| {
        json!({ "format": "halflap.profile/1", "times": { "op26": 62266.0 },
        "slowdown": slowdown, "comm_slowdown": 1.0, "outside_ns": 0.0 })
    };
    let step = |more: &[&str]| -> f64 {
        let out = ends(&halflap(&dir, &[&["simulate", &graph, "--json"], more].concat()), 0).0;
        serde_json::from_str::<Value>(&out).unwrap()["step_time"].as_f64().unwrap()
    };
    fs::write(dir.join("plain.json"), r#"{ "op26": 62266.0 }"#).unwrap();
    fs::write(dir.join("alone.json"), profile(1.0).to_string()).unwrap();
    fs::write(dir.join("slow.json"), profile(1.5).to_string()).unwrap();
    let plain = step(&["--profile", "plain.json"]);
    assert_eq!(step(&["--profile", "alone.json"]), plain);
    assert_eq!(
        step(&["--profile", "slow.json"]),
        step(&["--profile", "plain.json", "--slowdown", "1.5"])
    );
    assert!(step(&["--profile", "slow.json"]) > plain);
    assert_eq!(
        step(&["--profile", "slow.json", "--slowdown", "1"]),
        plain,
        "what is typed comes first"
    );
}
