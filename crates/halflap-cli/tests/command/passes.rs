//! torch's passes: what they report, and how they are held to their limits.

use std::fs;

use serde_json::Value;

use crate::REORDER;
use crate::common::{corpus, ends, entries, folder, halflap, read_json};

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
        assert!(err.contains("out.json.ledger-mismatch.json has the details"), "{err}");
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
