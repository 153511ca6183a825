//! The optimizer: what it says of its orders, and the order of collectives.

use serde_json::{Value, json};

use crate::REORDER;
use crate::common::{corpus, ends, folder, halflap, read_json};

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
        "optimal: no order is faster",
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
    assert!(err.contains("torch's iterative passes ignore order-only edges"), "{err}");
}
