//! What is read and written: standard input and output, links, files that are damaged or for
//! another command; and arguments that are wrong.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::common::{command, corpus, ends, entries, folder, halflap, read_json};

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

/// A bad input leaves a folder of artifacts as it was, also where it may be emptied.
#[test]
fn a_bad_input_empties_no_folder() {
    let dir = folder("a_bad_input_empties_no_folder");
    let graph = corpus("ddp_mlp_4.graph.json.gz");
    let into = |input: &str| {
        let more = ["--artifacts", "kept", "--overwrite", "--effort", "quick", "--no-advice"];
        halflap(&dir, &[&["schedule", input][..], &more].concat())
    };
    ends(&into(&graph), 0);
    let index = || fs::read_to_string(dir.join("kept/index.html")).unwrap();
    let before = index();
    fs::write(dir.join("bad.json"), "{}").unwrap();
    ends(&into("bad.json"), 2);
    assert_eq!(index(), before);
    assert!(dir.join("kept/schedule.json").is_file() && dir.join("kept/report.html").is_file());
    // A good one replaces it, and nothing is left beside it.
    fs::write(dir.join("kept/old.txt"), "").unwrap();
    ends(&into(&graph), 0);
    assert!(!dir.join("kept/old.txt").exists());
    let beside = fs::read_dir(&dir).unwrap().count();
    assert_eq!(beside, 2, "the folder and bad.json");
}
