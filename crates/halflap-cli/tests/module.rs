//! HLO modules as a user meets them.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{command, corpus, ends, folder, halflap, read_json};
use serde_json::Value;

fn hlo(name: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/hlo")
        .join(name)
        .display()
        .to_string()
}

const SMALL: &str = "HloModule small, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (p: f32[1024,1024], q: f32[1024,1024]) -> (f32[1024,1024], f32[1024,1024]) {
  %p = f32[1024,1024]{1,0} parameter(0)
  %q = f32[1024,1024]{1,0} parameter(1)
  %ar = f32[1024,1024]{1,0} all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true, to_apply=%add, metadata={op_name=\"jit(f)/psum\" source_file=\"model.py\" source_line=7}
  %dot = f32[1024,1024]{1,0} dot(%q, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (f32[1024,1024]{1,0}, f32[1024,1024]{1,0}) tuple(%ar, %dot)
}
";

fn small(dir: &Path) {
    fs::write(dir.join("small.txt"), SMALL).unwrap();
}

#[test]
fn a_module_is_scheduled_and_written() {
    let dir = folder("module-small");
    small(&dir);
    let (out, _) = ends(&halflap(&dir, &["schedule", "small.txt", "-o", "s.json"]), 0);
    assert!(out.contains("h100 is assumed, because no device was given"), "{out}");
    assert!(out.contains("main, the entry") && out.contains("3 nodes, 1 collective"), "{out}");
    assert!(out.contains("{0-3},{4-7}") && out.contains("jit(f)/psum model.py:7"), "{out}");
    let file = read_json(dir.join("s.json"));
    assert_eq!(
        (&file["format"], &file["module"]),
        (&Value::from("halflap.schedule/1"), &Value::from("small"))
    );
    let computation = &file["computations"][0];
    assert_eq!(
        (&computation["computation"], &computation["runs"]),
        (&Value::from("main"), &Value::from(1.0))
    );
    assert_eq!(computation["order"], Value::from(vec!["ar-start", "dot", "ar"]));
    assert!(file["step_time"].as_f64() < file["step_time_before"].as_f64());
    let (out, _) =
        ends(&halflap(&dir, &["verify", "small.txt", "s.json", "--memory-budget", "1x"]), 0);
    assert!(out.starts_with("valid: main, 3 nodes"), "{out}");
    ends(&halflap(&dir, &["schedule", "small.txt", "--emit", "hlo", "-o", "out.txt"]), 0);
    let text = fs::read_to_string(dir.join("out.txt")).unwrap();
    assert!(text.starts_with("HloModule small, is_scheduled=true, num_partitions=8\n"), "{text}");
    assert!(
        text.contains(
            "%ar-start = f32[1024,1024]{1,0} all-reduce-start(%p), channel_id=1, replica_groups="
        ),
        "{text}"
    );
    let done =
        "%ar = f32[1024,1024]{1,0} all-reduce-done(%ar-start), metadata={op_name=\"jit(f)/psum\"";
    assert!(text.find("%dot =") < text.find(done), "{text}");
    // What was written is the schedule that was found.
    let (out, _) = ends(&halflap(&dir, &["simulate", "out.txt", "-o", "-"]), 0);
    let simulated: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(simulated["step_time"], file["step_time"]);
}

#[test]
fn every_command_takes_a_module() {
    let dir = folder("module-commands");
    let module = hlo("fsdp_L2_scan.after_spmd_partitioning.txt.gz");
    let (out, _) =
        ends(&halflap(&dir, &["schedule", &module, "--effort", "quick", "-o", "s.json"]), 0);
    assert!(
        out.contains("3 computations with communication")
            && out.contains("(2 times) in main.30_spmd"),
        "{out}"
    );
    let (out, _) = ends(&halflap(&dir, &["simulate", &module, "s.json"]), 0);
    assert!(out.contains("main.30_spmd, the entry"), "{out}");
    let (out, _) =
        ends(&halflap(&dir, &["explain", &module, "--computation", "region_1.6_spmd"]), 0);
    assert!(out.contains("in the loop while.84") && out.contains("train_step.py:"), "{out}");
    let sweep = [
        "what-if",
        &module,
        "--memory",
        "1x",
        "--bandwidth",
        "1x,2x",
        "--computation",
        "main.30_spmd",
    ];
    let (out, _) = ends(&halflap(&dir, &sweep), 0);
    assert!(out.starts_with("computation main.30_spmd\n") && out.contains("of bound"), "{out}");
    let (out, _) = ends(&halflap(&dir, &["verify", &module, "s.json"]), 0);
    assert_eq!(out.lines().filter(|line| line.starts_with("valid: ")).count(), 3, "{out}");
    ends(
        &halflap(
            &dir,
            &["schedule", &module, "--effort", "quick", "--report", "p.html", "--trace", "t.json"],
        ),
        0,
    );
    assert!(dir.join("p.html").exists() && dir.join("t.json").exists());
    let (out, _) = ends(&halflap(&dir, &["explain", &module, "--node", "all-gather.50"]), 2);
    assert!(out.is_empty());
}

#[test]
fn the_content_tells_graphs_from_modules() {
    let dir = folder("module-content");
    small(&dir);
    let run = |file: &str| {
        let mut child = command(&dir, &["schedule", "-", "--json"])
            .stdin(fs::File::open(file).unwrap())
            .output()
            .unwrap();
        child.stderr.clear();
        let value: Value = serde_json::from_slice(&child.stdout).unwrap();
        value["computations"].is_array()
    };
    assert!(run(&dir.join("small.txt").display().to_string()));
    assert!(!run(&corpus("moe_ep_6.graph.json.gz")));
    fs::write(dir.join("mlir.txt"), "module @jit_f {\n}\n").unwrap();
    let (_, err) = ends(&halflap(&dir, &["schedule", "mlir.txt"]), 2);
    assert!(err.contains("this is MLIR (StableHLO)"), "{err}");
    fs::write(dir.join("bad.txt"), SMALL.replace("all-reduce(%p)", "all-reduce(%x)")).unwrap();
    let (_, err) = ends(&halflap(&dir, &["schedule", "bad.txt"]), 2);
    assert!(
        err.contains("bad.txt: line 12 column 40: no instruction before this one is called 'x'"),
        "{err}"
    );
    assert!(err.contains("%ar = f32[1024,1024]{1,0} all-reduce(%x), channel_id=1"), "{err}");
    let (_, err) = ends(&halflap(&dir, &["schedule", "small.txt", "--passes", "sink_waits"]), 2);
    assert!(err.contains("--passes is not for HLO modules"), "{err}");
    let graph = corpus("ddp_mlp_4.graph.json.gz");
    for command in ["schedule", "simulate", "explain", "what-if"] {
        let (_, err) = ends(&halflap(&dir, &[command, &graph, "--computation", "foo"]), 2);
        assert!(err.contains("--computation foo: a graph has none"), "{command}: {err}");
    }
    let (_, err) = ends(&halflap(&dir, &["simulate", "small.txt", "--computation", "nobody"]), 2);
    assert!(err.contains("none that runs is called 'nobody'"), "{err}");
}

#[test]
fn measured_times_come_before_modelled_ones() {
    let dir = folder("module-profile");
    small(&dir);
    fs::write(
        dir.join("p.pbtxt"),
        "costs { name: \"ar\" cost_us: 500 }\ncosts { name: \"dot\" cost_us: 300 }\n",
    )
    .unwrap();
    fs::write(dir.join("p.json"), "{\"ar\": 500000, \"dot\": 300000}").unwrap();
    for profile in ["p.pbtxt", "p.json"] {
        let (out, _) =
            ends(&halflap(&dir, &["schedule", "small.txt", "--profile", profile, "--json"]), 0);
        let file: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (file["step_time_before"].as_f64(), file["step_time"].as_f64()),
            (Some(800_000.0), Some(500_000.0))
        );
    }
    fs::write(dir.join("q.json"), "{\"nobody\": 1}").unwrap();
    let (_, err) = ends(&halflap(&dir, &["schedule", "small.txt", "--profile", "q.json"]), 2);
    assert!(
        err.contains("no name is an instruction of the module; the first is 'nobody'"),
        "{err}"
    );
}

#[test]
fn wrong_orders_of_modules_are_found() {
    let dir = folder("module-verify");
    small(&dir);
    let order = |names: &str| {
        format!("{{\"computations\": [{{\"computation\": \"main\", \"order\": [{names}]}}]}}")
    };
    fs::write(dir.join("o.json"), order("\"ar\", \"dot\", \"ar-start\"")).unwrap();
    let (out, _) = ends(&halflap(&dir, &["verify", "small.txt", "o.json"]), 1);
    assert!(
        out.contains("not valid: computation 'main': node 'ar' runs before 'ar-start'"),
        "{out}"
    );
    fs::write(dir.join("o.json"), order("\"ar-start\"").replace("main", "other")).unwrap();
    let (out, _) = ends(&halflap(&dir, &["verify", "small.txt", "o.json"]), 1);
    assert!(out.contains("no computation that runs is called 'other'"), "{out}");
    fs::write(dir.join("o.json"), "[\"ar\"]").unwrap();
    let (_, err) = ends(&halflap(&dir, &["verify", "small.txt", "o.json"]), 2);
    assert!(err.contains("o.json: it is a list of names, the order of a graph"), "{err}");
    let (_, err) = ends(&halflap(&dir, &["simulate", "small.txt", "o.json"]), 2);
    assert!(err.contains("a module needs an object with a list 'computations'"), "{err}");
    let graph = corpus("ddp_mlp_4.graph.json.gz");
    fs::write(dir.join("o.json"), order("\"ar-start\"")).unwrap();
    let (_, err) = ends(&halflap(&dir, &["simulate", &graph, "o.json"]), 2);
    assert!(err.contains("it has orders of a module's computations"), "{err}");
    for (pair, said) in [
        ([graph.as_str(), "small.txt"], "json.gz is a graph, and small.txt is an HLO module: give"),
        (["small.txt", graph.as_str()], "small.txt is an HLO module, and "),
    ] {
        let (_, err) = ends(&halflap(&dir, &["verify", pair[0], pair[1]]), 2);
        assert!(err.contains(said), "{err}");
    }
}

/// What a schedule says a module needs is what the written module needs, loops and all, and no more
/// than the limit allows of what it needed before.
#[test]
fn the_limit_holds_for_the_whole_module() {
    let dir = folder("module-limit");
    for name in [
        "fsdp_L2_scan.after_spmd_partitioning",
        "fsdp_L2_scan.after_optimizations",
        "mix_L2.after_optimizations",
    ] {
        let module = hlo(&format!("{name}.txt.gz"));
        let peak = |module: &str| {
            ends(&halflap(&dir, &["simulate", module, "-o", "sim.json"]), 0);
            read_json(dir.join("sim.json"))["peak_memory"].as_f64().unwrap()
        };
        let input = peak(&module);
        for (budget, factor) in [("1x", 1.0), ("1.1x", 1.1), ("1.5x", 1.5)] {
            let schedule = ["schedule", &module, "--effort", "quick", "--memory-budget", budget];
            ends(&halflap(&dir, &[&schedule[..], &["-o", "s.json"]].concat()), 0);
            ends(&halflap(&dir, &[&schedule[..], &["--emit", "hlo", "-o", "out.txt"]].concat()), 0);
            let said = read_json(dir.join("s.json"));
            assert_eq!(said["peak_memory_before"].as_f64(), Some(input), "{name} {budget}");
            let written = peak("out.txt");
            assert!(
                written <= said["peak_memory"].as_f64().unwrap(),
                "{name} {budget}: {written} {said}"
            );
            assert!(written <= factor * input, "{name} {budget}: {written} of {input}");
        }
    }
}

/// Of a conditional's branches one runs: the longest is taken, and what it exposes.
#[test]
fn exposed_time_is_that_of_the_branch_that_counts() {
    let dir = folder("module-branches");
    let branches = "HloModule m, num_partitions=8
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %r = f32[] add(%a, %b)
}
%b0 (x0: f32[1024,1024]) -> f32[1024,1024] {
  %x0 = f32[1024,1024]{1,0} parameter(0)
  ROOT %y0 = f32[1024,1024]{1,0} all-reduce(%x0), channel_id=9, use_global_device_ids=true, replica_groups=[1,8]<=[8], to_apply=%add
}
%b1 (x1: f32[1024,1024]) -> f32[1024,1024] {
  %x1 = f32[1024,1024]{1,0} parameter(0)
  ROOT %y1 = f32[1024,1024]{1,0} negate(%x1)
}
ENTRY %e (p: f32[1024,1024], ix: s32[]) -> f32[1024,1024] {
  %p = f32[1024,1024]{1,0} parameter(0)
  %ix = s32[] parameter(1)
  ROOT %c = f32[1024,1024]{1,0} conditional(%ix, %p, %p, %p), branch_computations={%b0, %b1, %b0}
}
";
    fs::write(dir.join("m.txt"), branches).unwrap();
    ends(&halflap(&dir, &["schedule", "m.txt", "-o", "s.json"]), 0);
    let said = read_json(dir.join("s.json"));
    let figure = |name: &str| said[name].as_f64().unwrap();
    assert!(figure("exposed") > 0.0 && figure("exposed") <= figure("step_time"), "{said}");
}

#[test]
fn one_node_is_explained_alone_and_graphs_are_no_modules() {
    let dir = folder("module-node");
    let module = hlo("fsdp_L2.after_spmd_partitioning.txt.gz");
    let (all, _) = ends(&halflap(&dir, &["explain", &module]), 0);
    let held = |text: &str| {
        text.lines().filter(|line| line.contains("all-reduce") && line.contains("start")).count()
    };
    assert!(held(&all) > 4, "{all}");
    let name = all.lines().find_map(|line| {
        line.split_whitespace().next().filter(|word| word.starts_with("all-reduce"))
    });
    let (one, _) = ends(&halflap(&dir, &["explain", &module, "--node", name.unwrap()]), 0);
    assert!(held(&one) <= 4 && one.contains(name.unwrap()), "{one}");
    let graph = corpus("ddp_mlp_4.graph.json.gz");
    let (_, err) = ends(&halflap(&dir, &["schedule", &graph, "--emit", "hlo", "-o", "x.txt"]), 2);
    assert!(err.contains("is not an HLO module"), "{err}");
    ends(&halflap(&dir, &["schedule", &module, "--emit", "hlo", "--json"]), 2);
}

/// Whatever is read, in whichever place of the command line, is not written.
#[test]
fn inputs_are_never_overwritten() {
    let dir = folder("module-inputs");
    small(&dir);
    fs::write(dir.join("g.json.gz"), fs::read(corpus("ddp_mlp_4.graph.json.gz")).unwrap()).unwrap();
    fs::write(dir.join("times.json"), "{}").unwrap();
    ends(&halflap(&dir, &["schedule", "g.json.gz", "-o", "order.json", "--no-advice"]), 0);
    let held = |name: &str| fs::read(dir.join(name)).unwrap();
    let names = ["small.txt", "g.json.gz", "times.json", "order.json"];
    let before = names.map(held);
    for args in [
        &["simulate", "g.json.gz", "order.json", "-o", "order.json"][..],
        &["explain", "g.json.gz", "order.json", "--report", "order.json"],
        &["what-if", "g.json.gz", "order.json", "-o", "order.json"],
        &["schedule", "g.json.gz", "--profile", "times.json", "-o", "times.json"],
        &["plan", "small.txt", "-o", "small.txt"],
        &["debug", "small.txt", "-o", "small.txt"],
        &["align", "g.json.gz", "-o", "."],
    ] {
        let (_, err) = ends(&halflap(&dir, args), 2);
        assert!(err.contains("is an input of this command"), "{args:?}: {err}");
    }
    // Nor is a folder emptied that has an input, and no folder has no name.
    ends(&halflap(&dir, &["schedule", "g.json.gz", "--artifacts", "kept", "--no-advice"]), 0);
    fs::rename(dir.join("order.json"), dir.join("kept/mine.json")).unwrap();
    fs::write(dir.join("kept/times.json"), "{}").unwrap();
    let profile = ["--profile", "kept/times.json", "--artifacts", "kept", "--overwrite"];
    let (_, err) = ends(&halflap(&dir, &[&["schedule", "g.json.gz"], &profile[..]].concat()), 2);
    assert!(err.contains("kept: contains kept/times.json, which is an input"), "{err}");
    assert!(dir.join("kept/mine.json").is_file());
    let count = fs::read_dir(&dir).unwrap().count();
    ends(&halflap(&dir, &["schedule", "g.json.gz", "--artifacts", "", "--no-advice"]), 0);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), count);
    fs::rename(dir.join("kept/mine.json"), dir.join("order.json")).unwrap();
    assert_eq!(names.map(held), before);
}

/// A module whose shapes do not fit together computes nothing, and is the same as none.
#[test]
fn only_right_shapes_are_proved_to_be_the_same() {
    let dir = folder("module-shapes");
    small(&dir);
    let wrong = SMALL.replace("%dot = f32[1024,1024]", "%dot = f32[1024,24]");
    fs::write(dir.join("wrong.txt"), wrong).unwrap();
    for pair in [["small.txt", "wrong.txt"], ["wrong.txt", "wrong.txt"]] {
        let (_, err) = ends(&halflap(&dir, &["verify", pair[0], pair[1]]), 2);
        assert!(err.contains("wrong.txt"), "{err}");
    }
    ends(&halflap(&dir, &["verify", "small.txt", "small.txt"]), 0);
}

/// A module's commands refuse what a graph's do, and answer what they answer.
#[test]
fn modules_and_graphs_are_treated_alike() {
    let dir = folder("module-alike");
    small(&dir);
    for command in ["what-if", "simulate", "explain", "schedule"] {
        let (_, err) = ends(&halflap(&dir, &[command, "small.txt", "--report", "small.txt"]), 2);
        assert!(err.contains("small.txt: is an input of this command"), "{command}: {err}");
    }
    assert_eq!(fs::read_to_string(dir.join("small.txt")).unwrap(), SMALL);
    ends(&halflap(&dir, &["schedule", "small.txt", "-o", "s.json"]), 0);
    let (out, _) = ends(&halflap(&dir, &["explain", "small.txt", "s.json", "--node", "ar"]), 0);
    assert!(out.contains("model.py:7"), "{out}");
    // With longer compute, nothing waits for it.
    fs::write(dir.join("times.json"), r#"{ "dot": 9e9, "ar": 1e3 }"#).unwrap();
    let hidden = ["explain", "small.txt", "s.json", "--node", "ar", "--profile", "times.json"];
    let (out, _) = ends(&halflap(&dir, &hidden), 0);
    assert!(out.contains("ar is hidden: nothing waits for it"), "{out}");
}

/// Two sets of devices that share one: two streams, unless all take turns.
#[test]
fn a_plan_has_the_streams_that_it_was_simulated_with() {
    let dir = folder("module-streams");
    let across = "%ag = f32[2048,1024]{1,0} all-gather(%q), channel_id=2, \
                  replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true, dimensions={0}\n  ROOT %t";
    fs::write(dir.join("two.txt"), SMALL.replacen("ROOT %t", across, 1)).unwrap();
    let streams = |which: &str| {
        let args = ["plan", "two.txt", "--input-order", "--comm-streams", which];
        let (out, _) = ends(&halflap(&dir, &args), 0);
        out.lines().filter(|line| line.starts_with("stream ")).count()
    };
    assert_eq!([streams("shared"), streams("one"), streams("group")], [2, 1, 2]);
}

#[test]
fn more_memory_or_effort_is_never_slower() {
    let dir = folder("never-slower");
    for program in
        [hlo("fsdp_L2_bf16.after_optimizations.txt.gz"), corpus("fsdp_backward.graph.json.gz")]
    {
        let step_time = |more: &[&str]| {
            let output = halflap(&dir, &[&["schedule", program.as_str(), "--json"], more].concat());
            let answer: Value = serde_json::from_str(&ends(&output, 0).0).unwrap();
            answer["step_time"].as_f64().unwrap()
        };
        let quick = step_time(&["--effort", "quick"]);
        for more in [
            &["--effort", "quick", "--memory-budget", "1.1x"][..],
            &["--memory-budget", "1.5x"],
            &[],
        ] {
            let found = step_time(more);
            assert!(found <= quick * (1.0 + 1e-9), "{program} {more:?}: {found} {quick}");
        }
    }
}

/// What is chosen with less effort or memory is a choice with more of them, too.
#[test]
fn more_memory_or_effort_never_gives_slower_rewrites() {
    let dir = folder("never-slower-rewritten");
    for program in
        [hlo("fsdp_L2_scan.after_spmd_partitioning.txt.gz"), corpus("fsdp_backward.graph.json.gz")]
    {
        let step_time = |[effort, budget]: [&str; 2]| {
            let wanted = ["schedule", &program, "--json", "--no-advice", "--device", "h100"];
            let more = ["--rewrite", "all", "--effort", effort, "--memory-budget", budget];
            let output = halflap(&dir, &[&wanted[..], &more].concat());
            let answer: Value = serde_json::from_str(&ends(&output, 0).0).unwrap();
            answer["step_time"].as_f64().unwrap()
        };
        let least = step_time(["quick", "1x"]);
        let quick = step_time(["quick", "1.1x"]);
        let default = step_time(["default", "1.1x"]);
        assert!(quick <= least * (1.0 + 1e-9), "{program}: {quick} {least}");
        assert!(default <= quick * (1.0 + 1e-9), "{program}: {default} {quick}");
    }
}

#[test]
fn what_people_write_is_scheduled_and_written_in_full() {
    let dir = folder("module-short");
    let text = "// No first line, no mark.
add { ROOT s = add(f32[] parameter(0), f32[] parameter(1)) }
main {
  p = f32[64, 64] parameter(0)
  r = f32[64,64] all-reduce(negate(p)), replica_groups={{0,1}}, to_apply=add // both
  d = dot(p, tanh(p)), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = tuple(r, d)
}
";
    fs::write(dir.join("m.txt"), text).unwrap();
    let (out, _) = ends(&halflap(&dir, &["schedule", "m.txt", "--emit", "hlo", "-o", "s.txt"]), 0);
    assert!(
        out.contains("2 replicas are assumed, because the module has neither replica_count"),
        "{out}"
    );
    let written = fs::read_to_string(dir.join("s.txt")).unwrap();
    assert!(written.starts_with("HloModule main, is_scheduled=true"), "{written}");
    assert!(
        written.contains("all-reduce-start(negate.anon0.")
            && written.contains("ROOT t = tuple(r, d)"),
        "{written}"
    );
    ends(&halflap(&dir, &["schedule", "s.txt"]), 0);
}

/// A module whose all-reduce, of which each rank uses a slice, and whose gathers are exposed.
fn changeable() -> String {
    let groups = "replica_groups={{0,1,2,3}}, use_global_device_ids=true";
    let metadata = "metadata={op_name=\"jit(f)/psum\" source_file=\"model.py\" source_line=7}";
    format!(
        "HloModule changeable, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[256,64], y: f32[64,64]) -> (f32[64,64], f32[256,64], f32[256,64]) {{
  %x = f32[256,64]{{1,0}} parameter(0)
  %y = f32[64,64]{{1,0}} parameter(1)
  %ar = f32[256,64]{{1,0}} all-reduce(%x), channel_id=1, {groups}, to_apply=%add, {metadata}
  %id = u32[] partition-id()
  %rank = s32[] convert(%id)
  %size = s32[] constant(64)
  %at = s32[] multiply(%rank, %size)
  %zero = s32[] constant(0)
  %mine = f32[64,64]{{1,0}} dynamic-slice(%ar, %at, %zero), dynamic_slice_sizes={{64,64}}
  %dot = f32[64,64]{{1,0}} dot(%mine, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %one = f32[256,64]{{1,0}} all-gather(%y), channel_id=2, {groups}, dimensions={{0}}
  %twice = f32[64,64]{{1,0}} add(%y, %y)
  %two = f32[256,64]{{1,0}} all-gather(%twice), channel_id=3, {groups}, dimensions={{0}}
  ROOT %r = (f32[64,64]{{1,0}}, f32[256,64]{{1,0}}, f32[256,64]{{1,0}}) tuple(%dot, %one, %two)
}}
"
    )
}

#[test]
fn a_module_is_changed_where_that_helps() {
    let dir = folder("module-rewrite");
    fs::write(dir.join("old.txt"), changeable()).unwrap();
    let run = |args: &[&str], code| ends(&halflap(&dir, args), code);
    let schedule = ["schedule", "old.txt", "--rewrite", "all", "-o", "s.json"];
    let (out, _) = run(&[&schedule[..], &["--report", "page.html"]].concat(), 0);
    assert!(out.contains("1 reduce-scatter, 1 merge, proved"), "{out}");
    assert!(out.contains("reduce-scatter:1 ar into mine"), "{out}");
    let page = fs::read_to_string(dir.join("page.html")).unwrap();
    for fact in ["reduce-scatter:1 ar into mine", "order alone"] {
        assert!(page.contains(fact), "{fact}");
    }
    assert!(out.contains("jit(f)/psum model.py:7"), "{out}");
    assert!(out.contains("merge:1 one, two into one_x2"), "{out}");
    let file = read_json(dir.join("s.json"));
    assert!(file["step_time"].as_f64() < file["order_alone"].as_f64());
    assert_eq!(
        (&file["recipes"][0]["name"], &file["exact"]),
        (&"reduce-scatter:1".into(), &false.into())
    );
    assert_eq!(file["recipes"][1]["members"], Value::from(vec!["one", "two"]));
    run(&["schedule", "old.txt", "--rewrite", "all", "--emit", "hlo", "-o", "new.txt"], 0);
    let text = fs::read_to_string(dir.join("new.txt")).unwrap();
    assert!(
        text.contains("reduce-scatter-start(") && text.contains("all-gather-start(%y, %twice)"),
        "{text}"
    );
    let (out, _) = run(&["verify", "old.txt", "new.txt"], 0);
    assert!(out.starts_with("the same program, up to the order of summation"), "{out}");
    let (out, _) = run(&["verify", "old.txt", "new.txt", "--run", "--seeds", "2"], 0);
    assert!(out.contains("run with 2 seeds on 4 ranks: all 3 results are equal"), "{out}");
    let (out, _) = run(&["schedule", "old.txt", "--rewrite"], 0);
    assert!(
        out.contains("1 merge, proved; every bit stays") && !out.contains("reduce-scatter:"),
        "{out}"
    );
    let leave = ["schedule", "old.txt", "--rewrite", "all", "--without", "merge:1"];
    let (out, _) = run(&leave, 0);
    assert!(out.contains("1 reduce-scatter, proved"), "{out}");
    let (_, err) = run(&["schedule", "old.txt", "--rewrite", "all", "--without", "merge:2"], 2);
    assert!(err.contains("--without merge:2: chosen were 2"), "{err}");
    let (out, _) = run(&["schedule", "old.txt", "--merge", "one,two"], 0);
    assert!(out.contains("merge:1 one, two into one_x2"), "{out}");
    let (_, err) = run(&["schedule", "old.txt", "--merge", "one,ar"], 2);
    assert!(err.contains("old.txt: --merge: 'one' and 'ar' differ in kind"), "{err}");
}

#[test]
fn wrong_changes_are_found_by_proof_and_by_running() {
    let dir = folder("module-wrong");
    let run = |args: &[&str], code| ends(&halflap(&dir, args), code);
    fs::write(dir.join("old.txt"), changeable()).unwrap();
    fs::write(dir.join("bad.txt"), changeable().replace("add(%y, %y)", "multiply(%y, %y)"))
        .unwrap();
    let (out, _) = run(&["verify", "old.txt", "bad.txt"], 1);
    assert!(out.contains("'twice' (line 21) is not computed"), "{out}");
    assert!(out.contains("expected add, found multiply"), "{out}");
    let (out, _) = run(&["verify", "old.txt", "bad.txt", "--run"], 1);
    assert!(out.contains("with seed 0, result 2 of rank 0 differs by"), "{out}");
    assert!(out.contains("; element ") && out.contains(": expected "), "{out}");
    // The same numbers by other means: the texts prove nothing, and runs prove no other inputs.
    let other = changeable()
        .replace("add(%y, %y)", "subtract(%y, %neg)")
        .replace("  %twice", "  %neg = f32[64,64]{1,0} negate(%y)\n  %twice");
    fs::write(dir.join("other.txt"), other).unwrap();
    run(&["verify", "old.txt", "other.txt"], 1);
    let (out, _) = run(&["verify", "old.txt", "other.txt", "--run"], 5);
    for line in ["not proved from the texts: ", "equal bit for bit", "nothing is proved"] {
        assert!(out.contains(line), "{out}");
    }
    let (_, err) = run(&["verify", "old.txt", "old.txt", "--memory-budget", "1x"], 2);
    assert!(err.contains("are for orders: two modules were given"), "{err}");
    let (_, err) = run(&["schedule", "old.txt", "--rewrite", "nonsense"], 2);
    assert!(err.contains("'nonsense' is not a rewrite"), "{err}");
}

/// Layers whose weights are gathered for the forward pass, and again behind a barrier.
fn gathered_twice() -> String {
    let shard = "f32[64,512]{1,0}";
    let (whole, rows) = ("f32[512,512]{1,0}", "f32[2048,512]{1,0}");
    let groups = "replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, dimensions={0}";
    let gather = |name: &str, of: &str, channel: usize| {
        format!("  %{name} = {whole} all-gather(%{of}), channel_id={channel}, {groups}\n")
    };
    let dot = |name: &str, x: &str, w: &str, side: usize| {
        format!(
            "  %{name} = {rows} dot(%{x}, %{w}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{{side}}}\n"
        )
    };
    let layers = 4;
    let mut text = format!("  %x0 = {rows} parameter(0)\n");
    for layer in 0..layers {
        let next = layer + 1;
        text += &format!("  %w{layer} = {shard} parameter({next})\n");
        text += &gather(&format!("ag{layer}"), &format!("w{layer}"), next);
        text += &dot(&format!("y{layer}"), &format!("x{layer}"), &format!("ag{layer}"), 0);
        text += &format!("  %x{next} = {rows} tanh(%y{layer})\n");
    }
    text += &format!("  %g{layers} = {rows} negate(%x{layers})\n");
    for layer in (0..layers).rev() {
        let before = layer + 1;
        let pair = format!("({rows}, {shard})");
        text += &format!("  %t{layer} = {pair} tuple(%g{before}, %w{layer})\n");
        text += &format!("  %b{layer} = {pair} opt-barrier(%t{layer})\n");
        text += &format!("  %u{layer} = {rows} get-tuple-element(%b{layer}), index=0\n");
        text += &format!("  %v{layer} = {shard} get-tuple-element(%b{layer}), index=1\n");
        text += &gather(&format!("again{layer}"), &format!("v{layer}"), 10 + layer);
        text += &dot(&format!("g{layer}"), &format!("u{layer}"), &format!("again{layer}"), 1);
    }
    let parameters: Vec<String> = (0..layers).map(|at| format!("w{at}: f32[64,512]")).collect();
    format!(
        "HloModule twice, num_partitions=8\n\nENTRY %main (x0: f32[2048,512], {}) -> f32[2048,512] {{\n{text}  ROOT %out = {rows} tanh(%g0)\n}}\n",
        parameters.join(", ")
    )
}

#[test]
fn weights_are_kept_as_memory_allows() {
    let dir = folder("module-keep");
    fs::write(dir.join("old.txt"), gathered_twice()).unwrap();
    let kept = |times: f64| {
        let budget = format!("{times}x");
        let args = ["schedule", "old.txt", "--device", "h100", "--rewrite", "keep"];
        let more = ["--effort", "quick", "--memory-budget", &budget, "--json"];
        let (out, _) = ends(&halflap(&dir, &[&args[..], &more].concat()), 0);
        let answer: Value = serde_json::from_str(&out).unwrap();
        let [peak, before] = ["peak_memory", "peak_memory_before"].map(|of| answer[of].as_f64());
        assert!(peak.unwrap() <= times * before.unwrap(), "{answer}");
        answer["recipes"].as_array().unwrap().clone()
    };
    let all = kept(2.0);
    assert_eq!(all.len(), 4, "{all:?}");
    for recipe in &all {
        assert_eq!(recipe["kind"], "keep");
        assert_eq!(recipe["kept_bytes"], 512 * 512 * 4);
        let [before, after] =
            ["communication_before", "communication"].map(|of| recipe[of].as_f64());
        assert!((before.unwrap() - 2.0 * after.unwrap()).abs() < 1.0, "{recipe}");
    }
    assert!(kept(1.0).len() < 4, "memory allows fewer");
    let args = ["schedule", "old.txt", "--device", "h100", "--rewrite", "--memory-budget", "2x"];
    let emit = ["--emit", "hlo", "-o", "new.txt"];
    let (out, _) = ends(&halflap(&dir, &[&args[..], &emit].concat()), 0);
    assert!(out.contains("keep:1 ag0, again0 into ag0: "), "{out}");
    assert!(out.contains("1 MiB kept between them"), "{out}");
    let (out, _) = ends(&halflap(&dir, &["verify", "old.txt", "new.txt", "--run"]), 0);
    assert!(out.contains("the same program, bit for bit"), "{out}");
    assert!(out.contains("equal bit for bit"), "{out}");
    let without = ["--rewrite", "keep", "--without", "keep:2", "--json", "--effort", "quick"];
    let args = ["schedule", "old.txt", "--device", "h100", "--memory-budget", "2x"];
    let (out, _) = ends(&halflap(&dir, &[&args[..], &without].concat()), 0);
    let answer: Value = serde_json::from_str(&out).unwrap();
    let recipes = answer["recipes"].as_array().unwrap();
    let members: Vec<&str> =
        recipes.iter().map(|recipe| recipe["members"][0].as_str().unwrap()).collect();
    assert_eq!(members, ["ag0", "ag2", "ag3"]);
}

/// Layers whose weights are gathered once, for the forward and the backward pass; before the third
/// one something takes so many times the memory of its input.
fn gathered_once(rows: usize, times: usize) -> String {
    let (shard, whole) = ("f32[64,512]{1,0}", "f32[512,512]{1,0}");
    let (some, many) = (format!("f32[{rows},512]{{1,0}}"), format!("f32[{times},{rows},512]"));
    let groups = "replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, dimensions={0}";
    let dot = |name: String, of: [String; 2], side: usize| {
        let [x, w] = of;
        let dims = format!("lhs_contracting_dims={{1}}, rhs_contracting_dims={{{side}}}");
        format!("  %{name} = {some} dot(%{x}, %{w}), {dims}\n")
    };
    let layers = 4;
    let mut text = format!("  %x0 = {some} parameter(0)\n");
    for layer in 0..layers {
        let next = layer + 1;
        let mut x = format!("x{layer}");
        if layer == 2 {
            text += &format!("  %big = {many} broadcast(%{x}), dimensions={{1,2}}\n");
            text += &format!("  %more = {many} sine(%big)\n");
            let limits = format!("slice={{[0:1], [0:{rows}], [0:512]}}");
            text += &format!("  %one = f32[1,{rows},512] slice(%more), {limits}\n");
            text += &format!("  %few = {some} reshape(%one)\n");
            x = "few".to_owned();
        }
        let place = format!("metadata={{source_file=\"model.py\" source_line={next}}}");
        text += &format!("  %w{layer} = {shard} parameter({next})\n");
        let gather = format!("all-gather(%w{layer}), channel_id={next}, {groups}, {place}");
        text += &format!("  %ag{layer} = {whole} {gather}\n");
        text += &dot(format!("y{layer}"), [x, format!("ag{layer}")], 0);
        text += &format!("  %x{next} = {some} tanh(%y{layer})\n");
    }
    text += &format!("  %g{layers} = {some} negate(%x{layers})\n");
    for layer in (0..layers).rev() {
        let of = [format!("g{}", layer + 1), format!("ag{layer}")];
        text += &dot(format!("g{layer}"), of, 1);
    }
    let parameters: Vec<String> = (0..layers).map(|at| format!("w{at}: f32[64,512]")).collect();
    let (head, parameters) = ("HloModule once, num_partitions=8", parameters.join(", "));
    let result = format!("f32[{rows},512]");
    format!(
        "{head}\n\nENTRY %main (x0: {result}, {parameters}) -> {result} {{\n{text}  ROOT %out = {some} tanh(%g0)\n}}\n"
    )
}

#[test]
fn weights_are_gathered_again_where_no_order_fits() {
    let dir = folder("module-again");
    fs::write(dir.join("old.txt"), gathered_once(512, 1)).unwrap();
    let args = ["schedule", "old.txt", "--device", "h100", "--effort", "quick"];
    let less = [&args[..], &["--memory-budget", "0.7x"]].concat();
    for more in [&[][..], &["--rewrite", "merge,keep"]] {
        let (_, err) = ends(&halflap(&dir, &[&less[..], more].concat()), 2);
        assert!(err.contains("no order was found that needs at most"), "{err}");
    }
    let again = [&less[..], &["--rewrite", "gather-again"]].concat();
    let (out, _) = ends(&halflap(&dir, &again), 0);
    assert!(out.contains("gather-again, proved; every bit stays as it was"), "{out}");
    assert!(out.contains("gather-again:1 ag0 into ag0, ag0.again: "), "{out}");
    assert!(out.contains(", 1 MiB freed between them, model.py:1"), "{out}");
    assert!(out.contains("none fits into the memory limit"), "{out}");
    let (out, _) = ends(&halflap(&dir, &[&again[..], &["--json"]].concat()), 0);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["order_alone"], Value::Null);
    assert_eq!(answer["exact"], true);
    let [peak, before] =
        ["peak_memory", "peak_memory_before"].map(|of| answer[of].as_f64().unwrap());
    assert!(peak <= 0.7 * before, "{answer}");
    for recipe in answer["recipes"].as_array().unwrap() {
        assert_eq!(recipe["kind"], "gather-again");
        assert_eq!(recipe["freed_bytes"], 512 * 512 * 4);
        let [before, after] =
            ["communication_before", "communication"].map(|of| recipe[of].as_f64().unwrap());
        assert!((2.0 * before - after).abs() < 1.0, "{recipe}");
    }
    let emit = ["--emit", "hlo", "-o", "new.txt"];
    ends(&halflap(&dir, &[&again[..], &emit].concat()), 0);
    let verify = ["verify", "old.txt", "new.txt", "--run", "--seeds", "1"];
    let (out, _) = ends(&halflap(&dir, &verify), 0);
    assert!(out.contains("the same program, bit for bit"), "{out}");
    assert!(out.contains("equal bit for bit"), "{out}");
    let without = [&again[..], &["--without", "gather-again:1"]].concat();
    let (_, err) = ends(&halflap(&dir, &without), 2);
    assert!(err.contains("the rest does not fit into the memory limit"), "{err}");
    let least = [&args[..], &["--memory-budget", "0.2x", "--rewrite"]].concat();
    let (_, err) = ends(&halflap(&dir, &least), 2);
    assert!(err.contains("no order was found that needs at most"), "{err}");
}

/// At the memory of the module's own order: collectives start earlier, or are merged, where weights
/// that were gathered before do not take the memory.
#[test]
fn weights_are_gathered_again_where_that_hides_others() {
    let dir = folder("module-again-hides");
    let chosen = |rows: usize, kinds: &str| -> Value {
        fs::write(dir.join("old.txt"), gathered_once(rows, 4)).unwrap();
        let args = ["schedule", "old.txt", "--device", "h100", "--effort", "quick", "--json"];
        let (out, _) = ends(&halflap(&dir, &[&args[..], &["--rewrite", kinds]].concat()), 0);
        let answer: Value = serde_json::from_str(&out).unwrap();
        assert!(answer["peak_memory"].as_f64() <= answer["peak_memory_before"].as_f64());
        answer
    };
    let step = |answer: &Value| answer["step_time"].as_f64().unwrap();
    let kinds = |answer: &Value| -> Vec<String> {
        let recipes = answer["recipes"].as_array().unwrap().iter();
        recipes.map(|recipe| recipe["kind"].as_str().unwrap().to_owned()).collect()
    };
    let earlier = chosen(8192, "gather-again");
    assert!(kinds(&earlier).iter().all(|kind| kind == "gather-again"), "{earlier}");
    assert!(step(&earlier) < 0.95 * earlier["order_alone"].as_f64().unwrap(), "{earlier}");
    let (alone, merged) = (chosen(2048, "merge"), chosen(2048, "merge,gather-again"));
    assert!(kinds(&alone).is_empty(), "there is no memory for it: {alone}");
    let both = kinds(&merged);
    assert!(["merge", "gather-again"].iter().all(|kind| both.iter().any(|of| of == kind)));
    assert!(step(&merged) < 0.8 * step(&alone), "{merged}");
    // Where there is enough memory, nothing is gathered twice.
    let args = ["schedule", "old.txt", "--device", "h100", "--rewrite", "merge,gather-again"];
    let more = ["--effort", "quick", "--memory-budget", "2x", "--json"];
    let (out, _) = ends(&halflap(&dir, &[&args[..], &more].concat()), 0);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert!(kinds(&answer).iter().all(|kind| kind == "merge"), "{answer}");
}

/// Two small gathers among 64 ranks, for which the hops of a ring take longer than the bytes.
fn over_nodes() -> String {
    let groups = "replica_groups=[1,64]<=[64], use_global_device_ids=true, dimensions={0}";
    format!(
        "HloModule nodes, num_partitions=64

ENTRY %main (x: f32[2,64]) -> f32[128,64] {{
  %x = f32[2,64]{{1,0}} parameter(0)
  %one = f32[128,64]{{1,0}} all-gather(%x), channel_id=1, {groups}
  %mine = f32[2,64]{{1,0}} slice(%one), slice={{[0:2], [0:64]}}
  %more = f32[2,64]{{1,0}} add(%mine, %x)
  ROOT %two = f32[128,64]{{1,0}} all-gather(%more), channel_id=2, {groups}
}}
"
    )
}

#[test]
fn collectives_go_over_nodes_on_two_levels() {
    let dir = folder("module-levels");
    fs::write(dir.join("old.txt"), over_nodes()).unwrap();
    let run = |args: &[&str]| ends(&halflap(&dir, args), 0).0;
    // Blocks that change places are copied.
    let limits = ["--device", "h100", "--memory-budget", "4x"];
    let schedule = [&["schedule", "old.txt", "--rewrite", "two-levels"], &limits[..]].concat();
    let out = run(&[&schedule[..], &["-o", "s.json"]].concat());
    assert!(out.contains("2 two-levels, proved; every bit stays as it was"), "{out}");
    assert!(out.contains("two-levels:1 one into one.across, one.within: "), "{out}");
    let file = read_json(dir.join("s.json"));
    assert!(file["step_time"].as_f64().unwrap() < 0.8 * file["order_alone"].as_f64().unwrap());
    run(&[&schedule[..], &["--emit", "hlo", "-o", "new.txt"]].concat());
    let out = run(&["verify", "old.txt", "new.txt"]);
    assert!(out.starts_with("the same program, bit for bit"), "{out}");
    let out = run(&[&schedule[..], &["--without", "two-levels:1"]].concat());
    assert!(out.contains("1 two-levels, proved"), "{out}");
    // Within a node, and on one link for all, there is one level.
    for more in [&["--ranks-per-node", "64"][..], &["--link", "ib400"]] {
        let out = run(&[&schedule[..], more].concat());
        assert!(out.contains("none of those that are allowed applies"), "{out}");
    }
}

/// A run that takes too long is no proof, and no refutation.
#[test]
fn runs_that_take_too_long_end() {
    let dir = folder("module-all-limits");
    let text = "HloModule long

body {
  s = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[] cosine(x)
  ROOT r = (s32[], f32[]) tuple(j, y)
}

condition {
  t = (s32[], f32[]) parameter(0)
  k = s32[] get-tuple-element(t), index=0
  n = s32[] constant(2000000000)
  ROOT lt = pred[] compare(k, n), direction=LT
}

ENTRY main {
  x0 = f32[] parameter(0)
  start = s32[] constant(0)
  init = (s32[], f32[]) tuple(start, x0)
  loop = (s32[], f32[]) while(init), condition=condition, body=body
  ROOT end = f32[] get-tuple-element(loop), index=1
}
";
    fs::write(dir.join("long.txt"), text).unwrap();
    let args = ["verify", "long.txt", "long.txt", "--run", "--run-limit", "100ms"];
    let (out, _) = ends(&halflap(&dir, &args), 5);
    assert!(out.starts_with("the same program, bit for bit"), "{out}");
    assert!(out.contains("not run to the end: 0 of 3 seeds within --run-limit 100 ms"), "{out}");
}

/// A table that is gathered for the rows of some tokens, and again behind a barrier for the same;
/// in between something takes as much memory as the table.
fn looked_up_twice() -> String {
    let groups = "replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, dimensions={0}";
    let look = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, \
                index_vector_dim=1, slice_sizes={1,64}";
    let pair = "(f32[512,64]{1,0}, f32[64,64]{1,0})";
    let product = "lhs_contracting_dims={1}, rhs_contracting_dims={1}";
    format!(
        "HloModule rows, num_partitions=8

ENTRY %main (t: f32[512,64], i: s32[64,1]) -> f32[64,64] {{
  %t = f32[512,64]{{1,0}} parameter(0)
  %i = s32[64,1]{{1,0}} parameter(1)
  %whole = f32[4096,64]{{1,0}} all-gather(%t), channel_id=1, {groups}
  %rows = f32[64,64]{{1,0}} gather(%whole, %i), {look}
  %a = f32[64,64]{{1,0}} dot(%rows, %rows), {product}
  %wide = f32[64,64,64]{{2,1,0}} broadcast(%a), dimensions={{1,2}}
  %b = f32[64,64]{{1,0}} dot(%wide, %wide), lhs_contracting_dims={{0,1}}, rhs_contracting_dims={{0,1}}
  %held = {pair} tuple(%t, %b)
  %barrier = {pair} opt-barrier(%held)
  %t.2 = f32[512,64]{{1,0}} get-tuple-element(%barrier), index=0
  %c = f32[64,64]{{1,0}} get-tuple-element(%barrier), index=1
  %whole.2 = f32[4096,64]{{1,0}} all-gather(%t.2), channel_id=2, {groups}
  %rows.2 = f32[64,64]{{1,0}} gather(%whole.2, %i), {look}
  ROOT %d = f32[64,64]{{1,0}} dot(%rows.2, %c), {product}
}}
"
    )
}

#[test]
fn rows_are_kept_and_not_their_table() {
    let dir = folder("module-rows");
    fs::write(dir.join("old.txt"), looked_up_twice()).unwrap();
    let args = ["schedule", "old.txt", "--device", "h100", "--effort", "quick"];
    let keep = [&args[..], &["--rewrite", "keep"]].concat();
    let (out, _) = ends(&halflap(&dir, &[&keep[..], &["--json"]].concat()), 0);
    let answer: Value = serde_json::from_str(&out).unwrap();
    let [recipe] = &answer["recipes"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!(recipe["members"], serde_json::json!(["whole", "whole.2"]));
    assert_eq!(recipe["kept"], serde_json::json!(["rows"]));
    assert_eq!(recipe["kept_bytes"], 64 * 64 * 4);
    let (out, _) =
        ends(&halflap(&dir, &[&keep[..], &["--emit", "hlo", "-o", "n.txt"]].concat()), 0);
    assert!(out.contains("16 KiB of rows kept between them"), "{out}");
    ends(&halflap(&dir, &["verify", "old.txt", "n.txt", "--run"]), 0);
}
