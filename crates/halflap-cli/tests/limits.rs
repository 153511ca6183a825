//! The memory limit of a module is one of the whole, which its loops share; and all commands
//! give the same figures.

mod common;

use std::fs;
use std::path::Path;

use common::{ends, folder, halflap, read_json};
use serde_json::Value;

/// A loop that needs little, before what needs the most: gathers of its body can run ahead if they
/// may use what is free while it runs.
const LOOP: &str = "HloModule loops, is_scheduled=true, replica_count=8

body (state: (s32[], f32[512,1024], f32[128,1024])) -> (s32[], f32[512,1024], f32[128,1024]) {
  state = (s32[], f32[512,1024], f32[128,1024]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[512,1024] get-tuple-element(state), index=1
  shard = f32[128,1024] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  a1 = f32[128,1024] negate(shard)
  g1 = f32[1024,1024] all-gather(a1), dimensions={0}, replica_groups={{0,1,2,3,4,5,6,7}}
  y1 = f32[512,1024] dot(x, g1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z1 = f32[512,1024] dot(y1, g1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  a2 = f32[128,1024] cosine(shard)
  g2 = f32[1024,1024] all-gather(a2), dimensions={0}, replica_groups={{0,1,2,3,4,5,6,7}}
  y2 = f32[512,1024] dot(z1, g2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z2 = f32[512,1024] dot(y2, g2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  a3 = f32[128,1024] sine(shard)
  g3 = f32[1024,1024] all-gather(a3), dimensions={0}, replica_groups={{0,1,2,3,4,5,6,7}}
  y3 = f32[512,1024] dot(z2, g3), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z3 = f32[512,1024] dot(y3, g3), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT out = (s32[], f32[512,1024], f32[128,1024]) tuple(next, z3, shard)
}

cond (state: (s32[], f32[512,1024], f32[128,1024])) -> pred[] {
  state.1 = (s32[], f32[512,1024], f32[128,1024]) parameter(0)
  i.1 = s32[] get-tuple-element(state.1), index=0
  five = s32[] constant(5)
  ROOT less = pred[] compare(i.1, five), direction=LT
}

ENTRY main (p0: f32[512,1024], p1: f32[128,1024]) -> f32[512,1024] {
  p0 = f32[512,1024] parameter(0)
  p1 = f32[128,1024] parameter(1)
  zero = s32[] constant(0)
  init = (s32[], f32[512,1024], f32[128,1024]) tuple(zero, p0, p1)
  loop = (s32[], f32[512,1024], f32[128,1024]) while(init), condition=cond, body=body
  x.1 = f32[512,1024] get-tuple-element(loop), index=1
  h1 = f32[1024,1024] all-gather(p1), dimensions={0}, replica_groups={{0,1,2,3,4,5,6,7}}
  h2 = f32[1024,1024] sine(h1)
  h3 = f32[1024,1024] cosine(h1)
  h4 = f32[1024,1024] negate(h1)
  u1 = f32[512,1024] dot(x.1, h2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  u2 = f32[512,1024] dot(u1, h3), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT u3 = f32[512,1024] dot(u2, h4), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
";

fn answered(dir: &Path, args: &[&str]) -> Value {
    let all = [args, &["--device", "h100", "--json"]].concat();
    serde_json::from_str(&ends(&halflap(dir, &all), 0).0).unwrap()
}

fn scheduled(dir: &Path, more: &[&str]) -> Value {
    answered(dir, &[&["schedule", "loops.txt", "--no-advice"], more].concat())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn computation<'a>(file: &'a Value, name: &str) -> &'a Value {
    let mut all = file["computations"].as_array().unwrap().iter();
    all.find(|one| one["computation"] == name).unwrap()
}

fn module(name: &str) -> std::path::PathBuf {
    let dir = folder(name);
    fs::write(dir.join("loops.txt"), LOOP).unwrap();
    dir
}

#[test]
fn a_loop_uses_what_is_free_while_it_runs() {
    let dir = module("limits-loop");
    let file = scheduled(&dir, &[]);
    let body = computation(&file, "body");
    assert!(number(&body["peak_memory"]) > number(&body["peak_memory_before"]), "{body}");
    assert!(number(&body["step_time"]) < 0.9 * number(&body["step_time_before"]), "{body}");
    assert!(number(&file["peak_memory"]) <= number(&file["peak_memory_before"]), "{file}");
    // The rewriting search begins with the same order.
    let alone = scheduled(&dir, &["--rewrite", "exact"]);
    assert_eq!(alone["order_alone"], file["step_time"]);
    // The limit that was promised is the one that is proved, of the schedule and of the module.
    fs::write(dir.join("s.json"), file.to_string()).unwrap();
    ends(&halflap(&dir, &["verify", "loops.txt", "s.json", "--memory-budget", "1x"]), 0);
    let write = ["schedule", "loops.txt", "--device", "h100", "--emit", "hlo", "-o", "new.txt"];
    ends(&halflap(&dir, &write), 0);
    let written = answered(&dir, &["simulate", "new.txt"]);
    assert_eq!(written["step_time"], file["step_time"]);
    assert!(number(&written["peak_memory"]) <= number(&file["peak_memory_before"]), "{written}");
}

#[test]
fn the_limit_is_one_of_the_whole() {
    let dir = module("limits-whole");
    let steps: Vec<f64> = ["0.9x", "1x", "1.05x", "2x"]
        .into_iter()
        .map(|budget| {
            let file = scheduled(&dir, &["--effort", "quick", "--memory-budget", budget]);
            let most = budget.trim_end_matches('x').parse::<f64>().unwrap();
            let (peak, before) = (&file["peak_memory"], &file["peak_memory_before"]);
            assert!(number(peak) <= most * number(before), "{budget}: {file}");
            let path = dir.join("s.json");
            fs::write(path, file.to_string()).unwrap();
            let verify = ["verify", "loops.txt", "s.json", "--memory-budget", budget];
            ends(&halflap(&dir, &verify), 0);
            number(&file["step_time"])
        })
        .collect();
    assert!(steps.is_sorted_by(|less, more| more <= less), "{steps:?}");
    // The last one needs more than 1x.
    let (out, err) =
        ends(&halflap(&dir, &["verify", "loops.txt", "s.json", "--memory-budget", "1x"]), 1);
    assert!(format!("{out}{err}").contains("computation 'main'"), "{out}{err}");
    let less = ["schedule", "loops.txt", "--effort", "quick", "--memory-budget", "0.3x"];
    let (_, err) = ends(&halflap(&dir, &less), 2);
    assert!(err.contains("no order was found") && err.contains("computation 'main'"), "{err}");
}

/// What `explain` promises is what the command that it names finds.
#[test]
fn explain_promises_what_schedule_finds() {
    let dir = module("limits-promised");
    for program in ["loops.txt".to_owned(), common::corpus("fsdp_backward.graph.json.gz")] {
        let explained = answered(&dir, &["explain", &program]);
        let lines = explained["advice"].as_array().unwrap();
        let mut seen = 0;
        for line in lines {
            let action = line["action"].as_str().unwrap();
            let Some(typed) = action.strip_prefix("halflap ") else { continue };
            let kind = line["kind"].as_str().unwrap();
            if !["reorder", "memory"].contains(&kind) {
                continue;
            }
            seen += 1;
            let typed: Vec<&str> = typed.split(' ').chain(["--json", "--no-advice"]).collect();
            let found: Value = serde_json::from_str(&ends(&halflap(&dir, &typed), 0).0).unwrap();
            assert_eq!(line["step_time"], found["step_time"], "{action}");
        }
        assert!(seen > 0, "{explained}");
        // An order of one's own is explained within the same limit.
        let quick = ["schedule", &program, "--effort", "quick", "-o", "q.json", "--no-advice"];
        ends(&halflap(&dir, &[&quick[..], &["--device", "h100"]].concat()), 0);
        let own = answered(&dir, &["explain", &program, "q.json"]);
        assert_eq!(own["step_time"], read_json(dir.join("q.json"))["step_time"]);
        let kinds: Vec<&Value> =
            own["advice"].as_array().unwrap().iter().map(|line| &line["kind"]).collect();
        assert!(!kinds.contains(&&Value::from("reorder")), "{kinds:?}");
    }
}

/// A changed module is compared with the module as it was, wherever a step before is shown.
#[test]
fn a_changed_module_has_one_step_before() {
    let dir = module("limits-before");
    let changed = ["--rewrite", "all", "--memory-budget", "2x", "--report", "page.html"];
    let file = scheduled(&dir, &changed);
    assert!(!file["recipes"].as_array().unwrap().is_empty(), "{file}");
    let old = answered(&dir, &["simulate", "loops.txt"]);
    assert_eq!(file["step_time_before"], old["step_time"]);
    let kept = |file: &Value| {
        let all = file["computations"].as_array().unwrap().iter();
        let of = |one: &Value| (one["computation"].to_string(), one["step_time_before"].clone());
        all.map(of).collect::<Vec<_>>()
    };
    let unchanged = kept(&scheduled(&dir, &[]));
    let mut seen = 0;
    for (name, before) in kept(&file) {
        match unchanged.iter().find(|(of, _)| *of == name) {
            Some((_, own)) => assert_eq!(before, *own, "{name}"),
            None => assert_eq!(before, Value::Null, "{name}"),
        }
        seen += 1;
    }
    assert!(seen > 0, "{file}");
    let (text, _) = ends(
        &halflap(&dir, &[&["schedule", "loops.txt", "--device", "h100"][..], &changed].concat()),
        0,
    );
    let main = text.split("main, the entry").nth(1).unwrap();
    let of_main = main.lines().find(|line| line.starts_with("step time")).unwrap();
    let of_all = text.lines().find(|line| line.starts_with("step time")).unwrap();
    let before = of_all.split(" -> ").next().unwrap();
    assert!(of_main.starts_with(before), "{text}");
}

/// The same behind a call: the entry itself has nothing to overlap.
fn called() -> String {
    let entry = "
ENTRY all (q0: f32[512,1024], q1: f32[128,1024]) -> f32[512,1024] {
  q0 = f32[512,1024] parameter(0)
  q1 = f32[128,1024] parameter(1)
  ROOT c = f32[512,1024] call(q0, q1), to_apply=main
}
";
    LOOP.replace("ENTRY main", "main") + entry
}

/// A pipelined loop, which needs more than it did, in an entry that does nothing else.
fn looped() -> String {
    let (loops, _) = LOOP.split_once("ENTRY").unwrap();
    let entry = "ENTRY all (p0: f32[512,1024], p1: f32[128,1024]) -> f32[512,1024] {
  p0 = f32[512,1024] parameter(0)
  p1 = f32[128,1024] parameter(1)
  zero = s32[] constant(0)
  init = (s32[], f32[512,1024], f32[128,1024]) tuple(zero, p0, p1)
  loop = (s32[], f32[512,1024], f32[128,1024]) while(init), condition=cond, body=body
  ROOT x.1 = f32[512,1024] get-tuple-element(loop), index=1
}
";
    loops.to_owned() + entry
}

#[test]
fn the_limit_holds_where_the_entry_has_no_order_to_choose() {
    let dir = folder("limits-called");
    for text in [called(), looped()] {
        fs::write(dir.join("loops.txt"), text).unwrap();
        for more in [&[][..], &["--rewrite", "exact"], &["--rewrite", "all"]] {
            for budget in ["1x", "1.05x", "1.3x"] {
                let asked = ["--effort", "quick", "--memory-budget", budget];
                let file = scheduled(&dir, &[&asked[..], more].concat());
                let most = budget.trim_end_matches('x').parse::<f64>().unwrap();
                let (peak, limit) = (number(&file["peak_memory"]), number(&file["memory_limit"]));
                let before = number(&file["peak_memory_before"]);
                assert_eq!(limit, (most * before).floor(), "{budget} {more:?}: {file}");
                assert!(peak <= limit, "{budget} {more:?}: {file}");
            }
            let none = ["schedule", "loops.txt", "--effort", "quick", "--memory-budget", "1KiB"];
            let (_, err) = ends(&halflap(&dir, &[&none[..], more].concat()), 2);
            assert!(err.contains("loops.txt: no order was found"), "{err}");
            assert!(err.contains("computation 'all'"), "{err}");
        }
        let (text, _) = ends(&halflap(&dir, &["schedule", "loops.txt", "--device", "h100"]), 0);
        let peak = text.lines().find(|line| line.starts_with("peak memory")).unwrap();
        assert!(peak.contains(", limit "), "{peak}");
    }
}

#[test]
fn the_limit_is_proved_where_the_entry_has_no_order_to_choose() {
    let dir = folder("limits-called-proved");
    fs::write(dir.join("loops.txt"), called()).unwrap();
    let file = scheduled(&dir, &["--effort", "quick"]);
    fs::write(dir.join("s.json"), file.to_string()).unwrap();
    let verify = ["verify", "loops.txt", "s.json", "--memory-budget"];
    let (out, _) = ends(&halflap(&dir, &[&verify[..], &["1x"]].concat()), 0);
    assert!(out.contains("valid: all, "), "{out}");
    let (out, _) = ends(&halflap(&dir, &[&verify[..], &["0.5x"]].concat()), 1);
    assert!(out.contains("computation 'all'"), "{out}");
    // It is explained within the limit that it was searched with.
    let more = scheduled(&dir, &["--effort", "quick", "--memory-budget", "1.3x"]);
    fs::write(dir.join("s.json"), more.to_string()).unwrap();
    let (text, _) =
        ends(&halflap(&dir, &["explain", "loops.txt", "s.json", "--device", "h100"]), 0);
    let peak = text.lines().find(|line| line.starts_with("peak memory")).unwrap();
    let (written, _) = ends(
        &halflap(&dir, &["schedule", "loops.txt", "--device", "h100", "--memory-budget", "1.3x"]),
        0,
    );
    let limit = |text: &str| text.rsplit(", limit ").next().unwrap().to_owned();
    let asked = written.lines().find(|line| line.starts_with("peak memory")).unwrap();
    assert_eq!(limit(peak), limit(asked), "{text}");
}
