//! A measured step beside its simulation.

use halflap_report::measured::read_step;
use halflap_report::measured::{ComparedPart, Comparison};
use halflap_report::page::{compared_page, write_page};
use halflap_report::trace::write_ran_json;
use halflap_report::{Style, comparison_json, lanes_of, render_comparison};
use serde_json::{Value, json};

/// A gather of 1000 ns, a product of 600 beside it, and a wait.
fn graph() -> Value {
    let gathered =
        json!({ "op": "all_gather", "group": "g", "group_size": 2, "bytes": 8, "async": true });
    let node = |name: &str, kind: &str, time: u32, deps: Value| {
        let made = format!("of_{name}");
        json!({ "name": name, "kind": kind, "runtime_ns": time, "outputs": [made], "deps": deps })
    };
    let mut gather = node("ag", "collective", 1000, json!([]));
    gather["collective"] = gathered;
    let product = node("mm", "compute", 600, json!([]));
    let wait = node("wait", "wait", 0, json!([{ "buffer": "of_ag", "kinds": ["data"] }]));
    let buffer = |name: &str, users: &[&str], output: bool| json!({ "name": name, "size_alloc": 8, "size_free": 8, "users": users, "output": output });
    json!({
        "format": "halflap.graph/1",
        "groups": { "g": { "ranks": [0, 1] } },
        "nodes": [gather, product, wait],
        "buffers": [
            buffer("of_ag", &["wait"], false),
            buffer("of_mm", &[], true),
            buffer("of_wait", &[], true),
        ],
        "inputs": [],
    })
}

fn span(name: &str, start: u32, end: u32) -> Value {
    json!({ "name": name, "start_ns": start, "end_ns": end })
}

/// The second rank issues later and computes for longer.
fn step() -> Value {
    let rank = |late: u32, product: u32| {
        let issued = 100 + late;
        let ran = [
            span("ag", 100, issued),
            span("mm", issued, issued + product),
            span("wait", issued + product, 1500),
        ];
        json!({
            "step_ns": 2000,
            "graphs": [{
                "begin_ns": 100, "end_ns": 1500, "ran": ran, "transfers": [span("ag", 140, 1490)],
            }],
        })
    };
    json!({
        "format": "halflap.timeline/1",
        "graphs": [{ "name": "forward", "graph": graph(), "order": ["ag", "mm", "wait"] }],
        "ranks": [rank(20, 600), rank(40, 800)],
    })
}

fn read(step: &Value) -> Result<halflap_report::measured::Step, String> {
    read_step(step.to_string().as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn where_the_time_of_a_step_went() {
    let step = read(&step()).unwrap();
    let found = Comparison::of(&step);
    let spent = |spent: &halflap_report::measured::StepSpent| {
        [spent.compute.0, spent.waiting.0, spent.issuing.0, spent.outside.0, spent.total().0]
    };
    assert_eq!(spent(&found.measured), [700.0, 670.0, 30.0, 600.0, 2000.0]);
    // What lies outside is not known otherwise: it is as measured, with what issuing took.
    assert_eq!(spent(&found.simulated), [600.0, 400.0, 0.0, 630.0, 1630.0]);
    let of = |place: usize| {
        let one = found.differences[place];
        (step.parts[0].graph.name(one.op), one.what, one.measured.0, one.simulated.0)
    };
    assert_eq!(of(0), ("ag", ComparedPart::Transfer, 1350.0, 1000.0));
    assert_eq!(of(1), ("wait", ComparedPart::Wait, 670.0, 400.0));
    assert_eq!(of(2), ("mm", ComparedPart::Kernel, 700.0, 600.0));
    assert_eq!(found.differences.len(), 3);
}

#[test]
fn it_is_shown() {
    let step = read(&step()).unwrap();
    let found = Comparison::of(&step);
    let style = Style::default();
    let text = render_comparison(&step, &found, 2, &style);
    assert!(text.contains("2 us measured on 2 ranks, 1.63 us simulated (-18.5%)"), "{text}");
    assert!(text.contains("+350 ns") && !text.contains("mm"), "{text}");
    let json = comparison_json(&step, &found);
    assert_eq!(
        (&json["measured"]["waiting"], &json["differences"][2]["node"]),
        (&json!(670.0), &json!("mm"))
    );
    let lanes = lanes_of(&step, &found);
    let names: Vec<&str> = lanes.iter().map(|ran| ran.name.as_str()).collect();
    assert_eq!(names, ["simulated", "rank 0", "rank 1"]);
    for ran in &lanes {
        for lane in &ran.lanes {
            let ends: Vec<f64> =
                lane.slices.iter().flat_map(|slice| [slice.start.0, slice.end.0]).collect();
            assert!(
                ends.is_sorted() && ends.last().is_none_or(|&end| end <= ran.step_time.0),
                "{lane:?}"
            );
        }
    }
    let mut page = Vec::new();
    write_page(&[compared_page("step", &step, &found, &lanes)], &mut page).unwrap();
    assert!(String::from_utf8(page).unwrap().contains("\"differences\""));
}

/// Operations are called by their parameter or module wherever the program says so; the node is a
/// detail.
#[test]
fn names_are_those_of_the_model() {
    let mut named = step();
    let nodes = named["graphs"][0]["graph"]["nodes"].as_array_mut().unwrap();
    for node in [0, 2] {
        nodes[node]["parameter"] = json!("layers.3.wq.weight");
    }
    nodes[1]["module"] = json!("layers.3.wq");
    nodes[1]["source"] = json!("model.py:42");
    // With two graphs, names say whose they are.
    let mut second = named["graphs"][0].clone();
    second["name"] = json!("backward");
    named["graphs"].as_array_mut().unwrap().push(second);
    for rank in named["ranks"].as_array_mut().unwrap() {
        let runs = rank["graphs"].as_array_mut().unwrap();
        let later = json!({ "begin_ns": 1600, "end_ns": 1700, "ran": [], "transfers": [] });
        runs.push(later);
    }
    let step = read(&named).unwrap();
    let found = Comparison::of(&step);
    let text = render_comparison(&step, &found, 3, &Style::default());
    for (label, node) in [
        ("forward/layers.3.wq.weight  transfer", "forward/ag"),
        ("forward/layers.3.wq.weight  wait", "forward/wait"),
        ("forward/layers.3.wq         kernel", "forward/mm"),
    ] {
        let is_row = |line: &str| line.starts_with(label) && line.trim_end().ends_with(node);
        assert!(text.lines().any(is_row), "{label}: {text}");
    }
    let json = comparison_json(&step, &found);
    let first = &json["differences"][0];
    assert_eq!((&first["node"], &first["parameter"]), (&json!("ag"), &json!("layers.3.wq.weight")));
    let lanes = lanes_of(&step, &found);
    let mut page = Vec::new();
    write_page(&[compared_page("step", &step, &found, &lanes)], &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("\"forward/layers.3.wq.weight\"") && page.contains("\"forward/ag\""));
    let mut trace = Vec::new();
    write_ran_json(&lanes, &mut trace).unwrap();
    let trace = String::from_utf8(trace).unwrap();
    for part in [
        "\"issue forward/layers.3.wq.weight\"",
        "\"for forward/layers.3.wq.weight\"",
        "\"node\":\"forward/mm\"",
        "\"source\":\"model.py:42\"",
    ] {
        assert!(trace.contains(part), "{part}: {trace}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let wrong = |change: fn(&mut Value)| {
        let mut step = step();
        change(&mut step);
        read(&step).unwrap_err()
    };
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 10] = [
        (|step| *step = json!(["a"]), "expected an object with format, graphs and ranks"),
        (|step| step["ranks"] = json!([1]), "expected an object with step_ns and graphs"),
        (|step| step["format"] = json!("other"), "its format is \"other\""),
        (
            |step| step["slowdown"] = json!(0.5),
            "a slowdown is 0.5; it must be a number of at least 1",
        ),
        (|step| step["ranks"] = json!([]), "it has no graph or no rank"),
        (
            |step| step["graphs"][0]["order"] = json!(["mm", "ag"]),
            "the order of graph 'forward': node 'wait' is missing",
        ),
        (|step| step["ranks"][1]["graphs"] = json!([]), "rank 1: it has 0 graphs, not 1"),
        (
            |step| step["ranks"][0]["step_ns"] = json!(1400),
            "rank 0: its graphs must run one after the other",
        ),
        (
            |step| step["ranks"][0]["graphs"][0]["ran"][0]["name"] = json!("ah"),
            "rank 0, graph 'forward': 'ah' is not a node",
        ),
        (
            |step| step["ranks"][0]["graphs"][0]["transfers"][0]["name"] = json!("mm"),
            "rank 0, graph 'forward': 'mm' has a transfer and is not a collective",
        ),
    ];
    for (change, message) in cases {
        let found = wrong(change);
        assert!(found.contains(message), "{found}");
    }
}
