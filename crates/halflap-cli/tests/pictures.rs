//! Pages and traces as a user asks for them; tests/browser and tests/trace look at what is in them.

mod common;

use std::fs;
use std::path::Path;

use common::{corpus, ends, entries, folder, halflap, read_json};
use serde_json::{Value, json};

/// What a page was given to draw.
fn data(page: &Path) -> Value {
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    assert!(!data.contains('<'), "nothing in the data can end it");
    let document: Value = serde_json::from_str(data).unwrap();
    assert_eq!(document["format"], "halflap.page/1");
    document["parts"][0].clone()
}

#[test]
fn a_schedule_is_drawn_before_and_after() {
    let dir = folder("drawn");
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    let args = [
        "schedule",
        &graph,
        "--effort",
        "quick",
        "-o",
        "o.json",
        "--report",
        "r.html",
        "--trace",
        "t.pftrace",
    ];
    ends(&halflap(&dir, &args), 0);
    assert_eq!(entries(&dir), ["o.json", "r.html", "t.pftrace"]);
    let (page, schedule) = (data(&dir.join("r.html")), read_json(dir.join("o.json")));
    assert_eq!(page["title"], "fsdp_llama_2.graph.json.gz", "a page names no folder");
    assert_eq!(
        (&page["views"][0]["name"], &page["views"][1]["name"]),
        (&json!("before"), &json!("after"))
    );
    let figure = |view: usize, place: usize| {
        page["views"][view]["headline"][place]["value"].as_f64().unwrap()
    };
    assert_eq!(figure(0, 0), schedule["step_time_before"].as_f64().unwrap());
    assert_eq!(figure(1, 0), schedule["step_time"].as_f64().unwrap());
    assert_eq!(figure(1, 2), schedule["peak_memory"].as_f64().unwrap());
    assert_eq!(figure(1, 1), schedule["exposed"].as_f64().unwrap());
    let table = &page["tables"][0];
    let columns = table["columns"].as_array().unwrap();
    let column = columns.iter().position(|column| column["title"] == "exposed").unwrap();
    let rows = table["rows"].as_array().unwrap().iter();
    let exposed = rows.map(|row| row[column].as_f64().unwrap());
    assert!(
        (exposed.sum::<f64>() - figure(1, 1)).abs() < 10.0,
        "the table adds up to the headline"
    );
}

#[test]
fn the_same_input_gives_the_same_page() {
    let dir = folder("same_page");
    let graph = corpus("moe_ep_6.graph.json.gz");
    for name in ["a.html", "b.html"] {
        ends(&halflap(&dir, &["schedule", &graph, "--effort", "quick", "--report", name]), 0);
    }
    assert_eq!(fs::read(dir.join("a.html")).unwrap(), fs::read(dir.join("b.html")).unwrap());
}

#[test]
fn every_command_that_looks_at_orders_draws_them() {
    let dir = folder("all_drawn");
    let graph = corpus("ddp_mlp_4.graph.json.gz");
    ends(
        &halflap(
            &dir,
            &[
                "schedule",
                &graph,
                "--passes",
                "simple_overlap",
                "-o",
                "o.json",
                "--report",
                "p.html",
            ],
        ),
        0,
    );
    ends(&halflap(&dir, &["simulate", &graph, "--report", "s.html"]), 0);
    ends(
        &halflap(
            &dir,
            &["explain", &graph, "o.json", "--report", "e.html", "--trace", "e.json.gz"],
        ),
        0,
    );
    ends(&halflap(&dir, &["what-if", &graph, "--memory", "1x,1.1x", "--report", "w.html"]), 0);
    let views = |name: &str| data(&dir.join(name))["views"].as_array().unwrap().len();
    assert_eq!(["p.html", "s.html", "e.html", "w.html"].map(views), [2, 1, 2, 1]);
    let sweep = &data(&dir.join("w.html"))["sweep"];
    assert_eq!(sweep["curves"].as_array().unwrap().len(), 3);
    assert_eq!(sweep["curves"][0]["points"].as_array().unwrap().len(), 2);
    let details = &data(&dir.join("p.html"))["tables"][0]["details"][0];
    assert!(details.to_string().contains("stopped by"), "passes say why each stopped: {details}");
}

#[test]
fn pictures_need_files_of_their_own() {
    let dir = folder("picture_files");
    fs::copy(corpus("ddp_mlp_4.graph.json.gz"), dir.join("g.json.gz")).unwrap();
    for (args, says) in [
        (["--report", "-", "--effort", "quick"], "name a file"),
        (["--report", "g.json.gz", "--effort", "quick"], "is an input of this command"),
        (["--report", "x", "--trace", "x"], "named twice"),
        (["--report", "nowhere/x.html", "--effort", "quick"], "nowhere/x.html: cannot be written"),
    ] {
        let (_, err) = ends(&halflap(&dir, &[&["schedule", "g.json.gz"], &args[..]].concat()), 2);
        assert!(err.contains(says), "{args:?}: {err}");
    }
    assert_eq!(entries(&dir), ["g.json.gz"]);
}

/// What cannot all be written is not written in part.
#[test]
fn a_wrong_request_leaves_no_files() {
    let dir = folder("no_pictures");
    let graph = corpus("ddp_mlp_4.graph.json.gz");
    for args in [
        ["simulate", &graph, "--report", "r.html", "--trace", "t.pf", "-o", "nowhere/o.json"],
        ["explain", &graph, "--report", "r.html", "--trace", "t.pf", "--node", "nobody"],
    ] {
        ends(&halflap(&dir, &args), 2);
        assert_eq!(entries(&dir), [""; 0]);
    }
}

/// A host that is slow is not communication.
#[test]
fn waiting_for_the_host_is_told_apart() {
    let dir = folder("host");
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    let (out, _) = ends(
        &halflap(
            &dir,
            &["simulate", &graph, "--launch", "60us", "--report", "r.html", "-o", "o.json"],
        ),
        0,
    );
    assert!(out.contains("host           compute waits "), "{out}");
    let (page, json) = (data(&dir.join("r.html")), read_json(dir.join("o.json")));
    let exposed = |collective: &Value| collective["exposed"].as_f64().unwrap();
    let total: f64 = json["collectives"].as_array().unwrap().iter().map(exposed).sum();
    let figures = &page["views"][0]["headline"];
    assert!((figures[1]["value"].as_f64().unwrap() - total).abs() < 1.0, "{figures}");
    assert_eq!(figures[3]["label"], "waiting for the host");
    let idle = json["compute_idle"].as_f64().unwrap();
    assert!((figures[3]["value"].as_f64().unwrap() + total - idle).abs() < 1.0, "{figures}");
}

#[test]
fn hostile_names_stay_text() {
    let dir = folder("hostile_page");
    let names = [
        "</script><script>alert(1)</script>",
        "<!--",
        "\u{0}\u{1b}[2J",
        "\u{202e}evil",
        &"x".repeat(10_000_000),
    ];
    let node = |(place, name): (usize, &&str)| {
        json!({ "name": name, "kind": "compute", "runtime_ns": 1000.0, "outputs": [format!("b{place}<i>")], "deps": [],
                "source": "<b>", "ops": ["<u>"] })
    };
    let buffer = |(place, _): (usize, &&str)| json!({ "name": format!("b{place}<i>"), "size_alloc": 1, "size_free": 1, "users": [], "output": false });
    let graph = json!({
        "format": "halflap.graph/1", "groups": {}, "inputs": [],
        "nodes": names.iter().enumerate().map(node).collect::<Vec<_>>(),
        "buffers": names.iter().enumerate().map(buffer).collect::<Vec<_>>(),
    });
    fs::write(dir.join("g.json"), graph.to_string()).unwrap();
    let (out, _) =
        ends(&halflap(&dir, &["simulate", "g.json", "--report", "r.html", "--trace", "t.json"]), 0);
    assert!(out.len() < 2_000 && !out.contains(['\u{1b}', '\u{202e}', '\u{0}']), "{out:?}");
    assert!(fs::metadata(dir.join("r.html")).unwrap().len() < 400_000);
    let shown = data(&dir.join("r.html"))["ops"]["name"].clone();
    assert_eq!(shown[0], names[0], "what is harmless as text stays as it is");
    assert_eq!(shown[2], "\\u{0}\\u{1b}[2J");
    assert!(shown[4].as_str().unwrap().len() <= 160);
    serde_json::from_slice::<Value>(&fs::read(dir.join("t.json")).unwrap()).unwrap();
}
