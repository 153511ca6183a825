//! The command as a user meets it: what it prints, what it writes, how it ends.

mod common;

use std::fs;
use std::io::Write;
use std::process::Stdio;

use common::{command, corpus, ends, entries, folder, halflap, read_json};

use serde_json::{Value, json};

const REORDER: &str = "reorder_communication_preserving_peak_memory";

#[test]
fn a_schedule_is_summarised_and_written() {
    let dir = folder("schedule");
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    let output = halflap(
        &dir,
        &["schedule", &graph, "--passes", REORDER, "--compat", "torch-2.10", "-o", "out.json"],
    );
    let (out, _) = ends(&output, 0);
    assert!(out.contains("255 nodes, 60 collectives") && out.contains("2864 moves in"), "{out}");
    assert!(out.contains("stopped by") && out.contains("... and 40 more"), "{out}");
    assert_eq!(entries(&dir), ["out.json"]);
    let file = read_json(dir.join("out.json"));
    assert_eq!(file["format"], "halflap.schedule/1");
    assert_eq!(file["peak_memory"], 1_729_878_024_i64);
    assert_eq!(file["peak_memory_before"], 1_451_792_392_i64);
    assert_eq!(file["order"].as_array().unwrap().len(), 255);
    assert_eq!(file["passes"][0]["moves"], 2864);
    assert!(file["passes"][0]["seconds"].as_f64().unwrap() > 0.0);
    let stats = file["passes"][0]["stats"].as_object().unwrap();
    let sum: u64 = stats.values().map(|stat| stat["moves"].as_u64().unwrap()).sum();
    assert_eq!(sum, 2864);
    for stat in stats.values() {
        let number = |field: &str| stat[field].as_f64().unwrap();
        assert!(
            (number("improvement") - (number("initial_exposed") - number("final_exposed"))).abs()
                < 1.0
        );
        assert_eq!(
            stat["grouped"].as_u64().unwrap() as usize,
            stat["grouped_with"].as_array().unwrap().len()
        );
        assert!(stat["limit"]["kind"].is_string() && stat["overlapped"].is_array());
    }
    let output = halflap(&dir, &["verify", &graph, "out.json", "--memory-budget", "1.2x"]);
    assert!(ends(&output, 0).0.starts_with("valid: 255 nodes"));
}

#[test]
fn without_passes_the_step_is_shorter_and_no_memory_is_added() {
    let dir = folder("default");
    for name in ["moe_ep_6", "fsdp_llama_2", "fsdp_tp_llama_4"] {
        let output = halflap(
            &dir,
            &["schedule", &corpus(&format!("{name}.graph.json.gz")), "--effort", "quick", "--json"],
        );
        let file: Value = serde_json::from_str(&ends(&output, 0).0).unwrap();
        assert!(file["step_time"].as_f64() < file["step_time_before"].as_f64(), "{name}");
        assert!(file["peak_memory"].as_i64() <= file["peak_memory_before"].as_i64(), "{name}");
    }
}

#[test]
fn the_optimizer_says_how_good_its_order_is() {
    let dir = folder("optimizer");
    let graph = corpus("moe_ep_6.graph.json.gz");
    let (out, err) = ends(&halflap(&dir, &["schedule", &graph, "-o", "out.json"]), 0);
    assert_eq!(err, "", "no progress is shown on a pipe");
    for part in [
        "step time",
        "of optimal, proved",
        "lower bound",
        "robustness",
        "held by",
        "optimized in",
        "peak 3.47 GiB at ",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let file = read_json(dir.join("out.json"));
    assert!(file["step_time"].as_f64() < file["step_time_before"].as_f64());
    assert!(file["step_time"].as_f64() >= file["bound"].as_f64());
    assert_eq!(file["optimizer"]["effort"], "default");
    assert_eq!(file["optimizer"]["robustness"]["variations"], 23);
    assert_eq!(file["optimizer"]["trust"], file["optimizer"]["robustness"], "the old name");
    ends(&halflap(&dir, &["verify", &graph, "out.json", "--memory-budget", "1x"]), 0);
    let one = ends(&halflap(&dir, &["schedule", &graph, "--threads", "1", "--json"]), 0).0;
    assert_eq!(serde_json::from_str::<Value>(&one).unwrap()["order"], file["order"]);
    let (out, _) = ends(&halflap(&dir, &["simulate", &graph, "out.json", "-o", "-"]), 0);
    let simulated: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(simulated["step_time"], file["step_time"]);
    assert_eq!(simulated["collectives"].as_array().unwrap().len(), 42);
    let (_, err) = ends(
        &halflap(&dir, &["schedule", &graph, "--effort", "quick", "--memory-budget", "1GiB"]),
        2,
    );
    assert!(err.contains("the smallest peak reached is"), "{err}");
}

#[test]
fn collectives_stay_in_order_if_asked() {
    let dir = folder("optimizer_kept");
    let graph = corpus("fsdp_tp_llama_4.graph.json.gz");
    ends(
        &halflap(
            &dir,
            &[
                "schedule",
                &graph,
                "--effort",
                "quick",
                "--collective-order",
                "kept",
                "-o",
                "kept.json",
            ],
        ),
        0,
    );
    ends(
        &halflap(
            &dir,
            &["verify", &graph, "kept.json", "--collective-order", "kept", "--memory-budget", "1x"],
        ),
        0,
    );
}

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
fn a_graph_comes_from_standard_input_plain_or_gzipped() {
    let dir = folder("stdin");
    let zipped = fs::read(corpus("moe_ep_6.graph.json.gz")).unwrap();
    let plain = halflap::import::unzip(&zipped).unwrap().into_owned();
    let run = |bytes: &[u8]| {
        let mut child =
            command(&dir, &["schedule", "-", "--passes", "sink_waits,raise_comms", "--show"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        let (out, err) = ends(&child.wait_with_output().unwrap(), 0);
        assert_eq!(err, "", "nothing is logged unasked, and no progress is shown on a pipe");
        out.split("sink_waits:").next().unwrap().to_owned()
    };
    assert_eq!(run(&zipped), run(&plain));
    let (_, err) = ends(&halflap(&dir, &["schedule", "-"]), 2);
    assert!(err.starts_with("error: standard input: it is neither a halflap.graph/1"), "{err}");
}

#[test]
fn the_listing_shows_every_step() {
    let dir = folder("listing");
    let output = halflap(
        &dir,
        &["schedule", &corpus("ddp_mlp_4.graph.json.gz"), "--passes", "simple_overlap", "--show"],
    );
    let (out, _) = ends(&output, 0);
    let listing = out.split("\n\n").next().unwrap();
    assert_eq!(listing.lines().count(), 1 + 30 + 1, "{listing}");
    assert!(listing.contains("all_reduce of") && listing.contains("  for op"), "{listing}");
    assert!(listing.lines().last().unwrap().starts_with("compute "), "{listing}");
}

#[test]
fn wrong_usage_says_what_is_right() {
    let dir = folder("usage");
    let graph = corpus("moe_ep_6.graph.json.gz");
    let said = |args: &[&str]| ends(&halflap(&dir, &[&["schedule", &graph], args].concat()), 2).1;
    assert!(said(&["--passes", "sink_wait"]).contains("did you mean 'sink_waits'?"));
    assert!(
        said(&["--passes", "sink_waits", "--set", "sink_iterative_peak_memory_budged=1"])
            .contains("did you mean 'sink_iterative_peak_memory_budget'?")
    );
    assert!(
        said(&["--passes", "sink_waits", "--set", "sink_iterative_peak_memory_budget=lots"])
            .contains("must be a number")
    );
    assert!(said(&["--compat", "torch-2.10"]).contains("--compat needs --passes"));
    assert!(said(&["--check-memory"]).contains("--check-memory needs --passes"));
    assert!(said(&["--passes", "sink_waits", "--effort", "quick"]).contains("for the optimizer"));
    assert!(said(&["--launch", "soon"]).contains("such as 4us"));
    assert!(said(&["--launch", "4"]).contains("it needs a unit"));
    assert!(said(&["--memory-budget", "1.2"]).contains("a multiple such as 1.2x"));
    assert!(said(&["--memory-budget", "-1x"]).contains("is not a memory limit"));
    assert!(said(&["--threads", "0"]).contains("0 is not in 1.."));
    assert!(said(&["--compat", "torch-1.0", "--passes", "sink_waits"]).contains("torch-2.10"));
    assert!(
        said(&["--effort", "quick", "-o", "no/such/folder/out.json"])
            .contains("no/such/folder/out.json: cannot be written")
    );
    let (_, err) = ends(&halflap(&dir, &["schedule", "missing.json"]), 2);
    assert!(err.starts_with("error: missing.json: cannot be read"), "{err}");
    let (_, err) = ends(&halflap(&dir, &["verify", &graph, &graph, "--memory-budget", "much"]), 2);
    assert!(err.contains("1.2x"), "{err}");
    assert_eq!(entries(&dir), [""; 0]);
}

#[test]
fn bad_input_leaves_what_was_there() {
    let dir = folder("bad_input");
    fs::write(dir.join("out.json"), "kept").unwrap();
    let zipped = fs::read(corpus("fsdp_llama_2.graph.json.gz")).unwrap();
    fs::write(dir.join("cut.json.gz"), &zipped[..zipped.len() / 2]).unwrap();
    let (out, err) = ends(&halflap(&dir, &["schedule", "cut.json.gz", "-o", "out.json"]), 2);
    assert_eq!(out, "");
    assert!(err.starts_with("error: cut.json.gz: the gzip file is cut off"), "{err}");
    assert_eq!(fs::read_to_string(dir.join("out.json")).unwrap(), "kept");
    assert_eq!(entries(&dir), ["cut.json.gz", "out.json"]);
}

#[test]
fn a_ledger_that_does_not_hold_stops_the_program() {
    let dir = folder("ledger");
    let graphs: Value = read_json(corpus("random.graphs.json.gz"));
    let mut fired = 0;
    for graph in graphs.as_array().unwrap().iter().take(40) {
        fs::write(dir.join("graph.json"), graph.to_string()).unwrap();
        let args =
            ["schedule", "graph.json", "--passes", REORDER, "--check-memory", "-o", "out.json"];
        ends(&halflap(&dir, &args), 0);
        fs::remove_file(dir.join("out.json")).unwrap();
        let output = halflap(&dir, &[args.as_slice(), &["--compat", "torch-2.10"]].concat());
        if output.status.code() == Some(0) {
            fs::remove_file(dir.join("out.json")).unwrap();
            continue;
        }
        fired += 1;
        let (_, err) = ends(&output, 3);
        assert!(err.contains("out.json.ledger-mismatch.json has all of it"), "{err}");
        assert!(err.contains("This is what torch does, too"), "{err}");
        assert_eq!(entries(&dir), ["graph.json", "out.json.ledger-mismatch.json"]);
        let file = read_json(dir.join("out.json.ledger-mismatch.json"));
        assert_eq!(file["pass"], REORDER);
        assert!(
            file["candidate"]["node"].is_string() && !file["group"].as_array().unwrap().is_empty()
        );
        assert_eq!(
            file["order"].as_array().unwrap().len(),
            graph["nodes"].as_array().unwrap().len()
        );
        if let Some(first) = file["first_node_that_differs"].as_object() {
            assert_ne!(first["ledger"], first["true"]);
        } else {
            assert!(file["peak_memory_after_swap"].as_i64() > file["peak_memory_limit"].as_i64());
        }
        fs::remove_file(dir.join("out.json.ledger-mismatch.json")).unwrap();
    }
    assert!(fired > 0, "torch drifts on some of these graphs");
}

#[test]
fn torch_that_exceeds_its_budget_is_warned_of() {
    let dir = folder("excess");
    let graphs: Value = read_json(corpus("random.graphs.json.gz"));
    let warned = graphs.as_array().unwrap().iter().filter(|graph| {
        fs::write(dir.join("graph.json"), graph.to_string()).unwrap();
        let set = ["--set", "reorder_iterative_peak_memory_budget=0"];
        let args = ["schedule", "graph.json", "--passes", REORDER, "--compat", "torch-2.10"];
        let (_, err) = ends(&halflap(&dir, &[args.as_slice(), &set].concat()), 0);
        err.contains("exceeds its memory budget")
    });
    assert!(warned.count() > 0);
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
    assert!(said(json!(twice), &[], 1).contains("is there twice"));
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

#[test]
fn order_only_edges_are_kept_where_asked() {
    let dir = folder("kept");
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    ends(&halflap(&dir, &["schedule", &graph, "--passes", REORDER, "-o", "free.json"]), 0);
    let (out, _) =
        ends(&halflap(&dir, &["verify", &graph, "free.json", "--collective-order", "kept"]), 1);
    assert!(out.contains("order of collectives"), "{out}");
    let set = "reorder_iterative_unsafe_collectives_reorder=false";
    ends(
        &halflap(&dir, &["schedule", &graph, "--passes", REORDER, "--set", set, "-o", "kept.json"]),
        0,
    );
    ends(&halflap(&dir, &["verify", &graph, "kept.json", "--collective-order", "kept"]), 0);
}

#[test]
fn chained_collectives_stay_in_order_and_the_schedule_says_so() {
    let dir = folder("chained");
    let graph = corpus("fsdp_tp_llama_4.graph.json.gz");
    ends(
        &halflap(
            &dir,
            &[
                "schedule",
                &graph,
                "--effort",
                "quick",
                "--order-collectives",
                "all",
                "-o",
                "all.json",
            ],
        ),
        0,
    );
    let file = read_json(dir.join("all.json"));
    assert_eq!(
        (&file["order_collectives"], &file["collective_order"]),
        (&json!("all"), &json!("kept"))
    );
    let (out, _) = ends(&halflap(&dir, &["explain", &graph, "all.json", "--json"]), 0);
    assert_eq!(
        serde_json::from_str::<Value>(&out).unwrap()["bound"],
        file["bound"],
        "chained as it was made"
    );
    let kept = ["--collective-order", "kept", "--order-collectives", "all"];
    ends(&halflap(&dir, &[&["verify", &graph, "all.json"], kept.as_slice()].concat()), 0);
    let passes = ["--passes", REORDER, "--compat", "torch-2.10", "--order-collectives", "group"];
    let (_, err) = ends(&halflap(&dir, &[&["schedule", &graph], passes.as_slice()].concat()), 0);
    assert!(err.contains("torch's iterative passes do not look at order-only edges"), "{err}");
}

#[test]
fn links_devices_and_standard_output() {
    let dir = folder("links");
    let graph = corpus("moe_ep_6.graph.json.gz");
    fs::write(dir.join("real.json"), "old").unwrap();
    std::os::unix::fs::symlink("real.json", dir.join("link.json")).unwrap();
    ends(&halflap(&dir, &["schedule", &graph, "--effort", "quick", "-o", "link.json"]), 0);
    assert!(fs::symlink_metadata(dir.join("link.json")).unwrap().file_type().is_symlink());
    assert_eq!(read_json(dir.join("real.json"))["format"], "halflap.schedule/1");
    for output in ["-", "/dev/stdout"] {
        let (out, _) =
            ends(&halflap(&dir, &["schedule", &graph, "--effort", "quick", "-o", output]), 0);
        let printed: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(printed["format"], "halflap.schedule/1");
    }
    ends(&halflap(&dir, &["schedule", &graph, "--effort", "quick", "-o", "/dev/null"]), 0);
    fs::copy(&graph, dir.join("graph.json.gz")).unwrap();
    let (_, err) = ends(&halflap(&dir, &["schedule", "graph.json.gz", "-o", "./graph.json.gz"]), 2);
    assert!(err.contains("is an input of this command"), "{err}");
    assert_eq!(entries(&dir), ["graph.json.gz", "link.json", "real.json"]);
}

/// Names are whatever a compiler made up.
#[test]
fn names_that_a_terminal_cannot_take_are_cut_and_escaped() {
    let dir = folder("names");
    let long = "x".repeat(70_000);
    let node = |name: &str, kind: &str| json!({ "name": name, "kind": kind, "runtime_ns": 1, "outputs": [], "deps": [] });
    let mut collective = node(&long, "collective");
    collective["collective"] =
        json!({ "op": long, "group": "g", "group_size": 2, "bytes": 1, "async": true });
    let graph = json!({
        "format": "halflap.graph/1",
        "groups": { "g": { "ranks": [0, 1] } },
        "nodes": [node("red\u{1b}[31m\nline", "compute"), collective, node("k", "compute")],
        "buffers": [],
        "inputs": [],
    });
    fs::write(dir.join("graph.json"), graph.to_string()).unwrap();
    let (out, _) = ends(
        &halflap(&dir, &["schedule", "graph.json", "--passes", "simple_overlap", "--show"]),
        0,
    );
    assert!(!out.contains('\u{1b}') && out.lines().all(|line| line.chars().count() < 200), "{out}");
    assert!(out.contains("1 collective\n"), "{out}");
}

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

/// A file for another command: the error names that command.
#[test]
fn files_for_another_command_name_it() {
    let dir = folder("command-kinds");
    let events = r#"[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2}]"#;
    fs::write(dir.join("events.json"), events).unwrap();
    let trace = format!(r#"{{"schemaVersion":1,"traceEvents":{events}}}"#);
    fs::write(dir.join("trace.json"), trace).unwrap();
    fs::write(dir.join("profile.json"), r#"{"format":"halflap.profile/1","times":{}}"#).unwrap();
    fs::write(dir.join("step.json"), r#"{"format":"halflap.timeline/1"}"#).unwrap();
    fs::write(dir.join("module.txt"), "HloModule m\nENTRY e { ROOT p = f32[] parameter(0) }\n")
        .unwrap();
    let graph = corpus("ddp_mlp_4.graph.json.gz");
    for (args, problem) in [
        (["schedule", "trace.json"], "trace.json: it is a profiler's trace: halflap analyze reads"),
        (
            ["explain", "events.json"],
            "events.json: it is a profiler's trace: halflap analyze reads",
        ),
        (["debug", "trace.json"], "trace.json: it is a profiler's trace: halflap analyze reads"),
        (["what-if", "profile.json"], "profile.json: it is a profile (halflap.profile/1): give it"),
        (["simulate", "step.json"], "step.json: it is a measured step (halflap.timeline/1)"),
        (["analyze", &graph], "it is a graph (halflap.graph/1): halflap schedule and"),
        (["analyze", "module.txt"], "module.txt: it is an HLO module: halflap schedule and"),
        (["timeline", "trace.json"], "trace.json: it is a profiler's trace: halflap analyze reads"),
        // What is wrong with a file of the right kind is still said.
        (["timeline", "step.json"], "step.json: not a measured step: missing field"),
    ] {
        let (out, err) = ends(&halflap(&dir, &args), 2);
        assert!(out.is_empty() && err.contains(problem), "{args:?}: {err}");
    }
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

/// What is written is named with its size, whatever the command.
#[test]
fn written_files_are_named_with_their_sizes() {
    let dir = folder("command-written");
    let graph = corpus("ddp_mlp_4.graph.json.gz");
    fs::write(
        dir.join("t.json"),
        r#"[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2}]"#,
    )
    .unwrap();
    fs::write(
        dir.join("m.txt"),
        "HloModule m\nENTRY e { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }\n",
    )
    .unwrap();
    let quick = ["--no-advice", "--effort", "quick"];
    let cases: [(&[&str], &[&str]); 8] = [
        (
            &[
                "schedule",
                &graph,
                "-o",
                "a.json",
                "--report",
                "a.html",
                "--trace",
                "a.pftrace",
                quick[0],
                quick[1],
                quick[2],
            ],
            &["a.json", "a.html", "a.pftrace"],
        ),
        (&["schedule", "m.txt", "--emit", "hlo", "-o", "b.txt"], &["b.txt"]),
        (
            &["schedule", &graph, "--artifacts", "c", quick[0], quick[1], quick[2]],
            &["c/schedule.json", "c/report.html", "c/trace.json", "c/index.html"],
        ),
        (&["what-if", &graph, "--memory", "1x", "--bandwidth", "1x", "-o", "d.json"], &["d.json"]),
        (&["align", &graph, "-o", "e"], &["e/ddp_mlp_4.graph.json.gz"]),
        (
            &["analyze", "t.json", "-o", "f.json", "--report", "f.html", "--profile-out", "g.json"],
            &["f.json", "f.html", "g.json"],
        ),
        (&["plan", "m.txt", "-o", "h.txt"], &["h.txt"]),
        (
            &["run", "m.txt", "-o", "i.npz", "--order-out", "i.json", "--profile-out", "j.json"],
            &["i.npz", "i.json", "j.json"],
        ),
    ];
    for (args, files) in cases {
        let (out, err) = ends(&halflap(&dir, args), 0);
        let named: Vec<&str> = out.lines().filter(|line| line.starts_with("wrote ")).collect();
        assert_eq!(named.len(), files.len(), "{args:?}: {out}{err}");
        for file in files {
            let size = fs::metadata(dir.join(file)).unwrap().len();
            let size = halflap::units::Bytes(size as i64);
            assert!(named.contains(&format!("wrote {file} ({size})").as_str()), "{file}: {out}");
        }
        // They are the last that is said.
        assert!(out.trim_end().lines().last().unwrap().starts_with("wrote "), "{out}");
    }
    // What programs read stays what they read.
    let args = ["simulate", &graph, "--json", "--report", "k.html"];
    let (out, err) = ends(&halflap(&dir, &args), 0);
    assert!(serde_json::from_str::<Value>(&out).is_ok() && err.is_empty(), "{out}{err}");
}
