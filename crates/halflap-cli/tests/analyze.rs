//! `halflap analyze` as a user meets it.

mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use common::{command, corpus, ends, entries, folder, halflap, read_json};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

fn gpu(name: &str, stream: i64, start: i64, time: i64) -> Value {
    json!({ "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": time,
        "args": { "device": 0, "stream": stream, "correlation": start } })
}

/// A gather of 100 us, of which a kernel hides 60, on a rank that arrives `late`.
fn step(rank: u32, late: i64) -> Value {
    let mut gather = gpu("ncclDevKernel_AllGather_RING_LL(x)", 20, 1000 + late, 100 - late);
    let args = json!({ "Collective name": "_allgather_base", "In msg nelems": 512, "Out msg nelems": 1024, "dtype": "Float",
        "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]" });
    gather["args"].as_object_mut().unwrap().extend(args.as_object().unwrap().clone());
    let events = json!([gpu("op0", 7, 900, 160), gather, gpu("op1", 7, 1110, 40)]);
    json!({ "distributedInfo": { "rank": rank, "world_size": 2 }, "traceEvents": events })
}

fn write(dir: &Path, name: &str, trace: &Value) {
    fs::write(dir.join(name), trace.to_string()).unwrap();
}

#[test]
fn tables_and_files() {
    let dir = folder("analyze");
    write(&dir, "r1.json", &step(1, 30));
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(step(0, 0).to_string().as_bytes()).unwrap();
    // Two members, the second with white space alone.
    let mut bytes = packed.finish().unwrap();
    let mut more = GzEncoder::new(Vec::new(), Compression::fast());
    more.write_all(b"\n\n").unwrap();
    bytes.extend(more.finish().unwrap());
    fs::write(dir.join("r0.json.gz"), bytes).unwrap();
    let args = [
        "analyze",
        "r1.json",
        "r0.json.gz",
        "-o",
        "a.json",
        "--profile-out",
        "t.json",
        "--report",
        "p.html",
    ];
    let (out, err) = ends(&halflap(&dir, &args), 0);
    assert_eq!(err, "", "no progress is shown on a pipe");
    for part in [
        "r0.json.gz",
        "40.0%",
        "all_gather",
        "2 ranks: 0-1",
        "op0",
        "40 us from op0 to op1",
        "rank 1",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert_eq!(entries(&dir), ["a.json", "p.html", "r0.json.gz", "r1.json", "t.json"]);
    let file = read_json(dir.join("a.json"));
    assert_eq!(file["format"], "halflap.analysis/1");
    let rank = &file["ranks"][0];
    let figures = ["span", "compute", "communication", "exposed", "idle"]
        .map(|name| rank[name].as_f64().unwrap());
    assert_eq!(figures, [250e3, 200e3, 100e3, 40e3, 10e3]);
    assert_eq!((&rank["rank"], &rank["peers"]["waiting"]), (&json!(0), &json!(30e3)));
    assert_eq!(rank["collectives"][0]["bytes"], 4096);
    // Half of the bytes pass the bus of each of two ranks, in the time of the transfer.
    let rate = rank["collectives"][0]["bus_bandwidth"].as_f64().unwrap();
    assert!((rate - 2048.0 / 70e-6).abs() < 1.0, "{rate}");
    assert!(out.contains("29.3 MB/s"), "{out}");
    assert_eq!(rank["collectives"][0]["latency_bound"], false);
    assert_eq!(file["matches"][0]["last_to_arrive"], 1);
    let nccl = "ncclDevKernel_AllGather_RING_LL(x)";
    assert_eq!(read_json(dir.join("t.json")), json!({ "op0": 160e3, "op1": 40e3, nccl: 70e3 }));
    let page = fs::read_to_string(dir.join("p.html")).unwrap();
    assert!(page.contains("halflap.page/1") && page.contains("all_gather 1"));
    let printed = ends(&halflap(&dir, &["analyze", "r1.json", "r0.json.gz", "--json"]), 0).0;
    assert_eq!(printed, fs::read_to_string(dir.join("a.json")).unwrap());
}

#[test]
fn measured_kernels_are_taken_by_a_schedule() {
    let dir = folder("analyze_profile");
    write(&dir, "r0.json", &step(0, 0));
    ends(&halflap(&dir, &["analyze", "r0.json", "--profile-out", "t.json"]), 0);
    let graph = corpus("fsdp_llama_2.graph.json.gz");
    let simulated = |args: &[&str]| {
        let args = [&["simulate", &graph, "-o", "-"], args].concat();
        serde_json::from_str::<Value>(&ends(&halflap(&dir, &args), 0).0).unwrap()["step_time"]
            .as_f64()
            .unwrap()
    };
    assert_ne!(simulated(&[]), simulated(&["--profile", "t.json"]));
}

#[test]
fn bad_traces_end_with_two_and_write_nothing() {
    let dir = folder("analyze_bad");
    let text = step(0, 0).to_string();
    fs::write(dir.join("cut.json"), &text[..text.len() - 40]).unwrap();
    write(&dir, "good.json", &step(0, 0));
    let said = |args: &[&str]| ends(&halflap(&dir, &[&["analyze"], args].concat()), 2).1;
    let cut =
        said(&["cut.json", "-o", "out.json", "--profile-out", "t.json", "--report", "p.html"]);
    assert!(
        cut.starts_with("error: cut.json: line 1 column ") && cut.contains(", event 2"),
        "{cut}"
    );
    assert!(cut.contains("the trace is truncated"), "{cut}");
    assert_eq!(entries(&dir), ["cut.json", "good.json"]);
    assert!(said(&["none.json"]).starts_with("error: none.json: cannot be read: "));
    assert!(said(&["."]).starts_with("error: .: is a folder"));
    assert!(said(&["good.json", "-o", "good.json"]).contains("is a trace that is read"));
    assert!(said(&["good.json", "--json", "--profile-out", "-"]).contains("only one output"));
    assert!(said(&["-", "-"]).contains("only one trace can come from standard input"));
    let mut zipped = GzEncoder::new(Vec::new(), Compression::fast());
    zipped.write_all(text.as_bytes()).unwrap();
    let zipped = zipped.finish().unwrap();
    fs::write(dir.join("cut.json.gz"), &zipped[..zipped.len() / 2]).unwrap();
    let cut = said(&["cut.json.gz"]);
    assert!(
        cut.starts_with("error: cut.json.gz: the gzip file is damaged or cut off (")
            && cut.contains("unpacked bytes"),
        "{cut}"
    );
}

#[test]
fn what_is_odd_is_said() {
    let dir = folder("analyze_odd");
    let trace = |rank: u32, size: u32, events: Value| json!({ "distributedInfo": { "rank": rank, "world_size": size }, "traceEvents": events });
    write(&dir, "negative.json", &trace(0, 1, json!([gpu("x", 7, 5, -3)])));
    let said = ends(&halflap(&dir, &["analyze", "negative.json"]), 2).1;
    assert!(said.contains("negative duration") && !said.contains("ProfilerActivity"), "{said}");
    write(
        &dir,
        "zero.json",
        &trace(0, 2, json!([gpu("x", 7, 0, 3), gpu("y", 7, 1_700_000_000_000_000, 3)])),
    );
    write(&dir, "four.json", &trace(1, 4, json!([gpu("x", 7, 0, 3)])));
    let (out, _) = ends(&halflap(&dir, &["analyze", "zero.json", "four.json"]), 0);
    for part in
        ["are 1700000000 s apart", "numbers of ranks (2 and 4)", "no collective relates its clock"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert_eq!(
        first_rank(&out).split_whitespace().rev().nth(3),
        Some("?"),
        "waiting is not known: {out}"
    );
    let printed = ends(&halflap(&dir, &["analyze", "zero.json", "four.json", "--json"]), 0).0;
    let file: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        (&file["ranks"][0]["peers"]["waiting"], &file["ranks"][0]["begin"]),
        (&Value::Null, &json!(0.0))
    );
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    let text = step(0, 0).to_string();
    packed.write_all(text.as_bytes()).unwrap();
    let mut bytes = packed.finish().unwrap();
    let sum = bytes.len() - 8;
    bytes[sum] ^= 1;
    fs::write(dir.join("sum.json.gz"), bytes).unwrap();
    let said = ends(&halflap(&dir, &["analyze", "sum.json.gz"]), 2).1;
    assert!(said.contains(&format!("after {} unpacked bytes", text.len())), "{said}");
}

/// The first row of the table of ranks.
fn first_rank(out: &str) -> &str {
    let heading = |line: &&str| !line.trim_start().starts_with("rank ");
    out.lines().skip_while(heading).nth(1).unwrap_or_else(|| panic!("{out}"))
}

/// A kernel runs at 0, at 1 ms and at 3 ms: the second was launched late because the host was busy,
/// the third because the host waited for the GPU, for most of it.
#[test]
fn idle_time_has_reasons_that_add_up() {
    let dir = folder("analyze_idle");
    let kernel = |ts: u64, correlation: u64| {
        json!({
            "ph": "X", "cat": "kernel", "name": "work", "pid": 0, "tid": 7, "ts": ts, "dur": 100,
            "args": { "device": 0, "stream": 7, "correlation": correlation },
        })
    };
    let call = |name: &str, ts: u64, dur: u64, correlation: u64| {
        json!({
            "ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts,
            "dur": dur, "args": { "correlation": correlation },
        })
    };
    let events = json!([
        kernel(1_000, 1),
        kernel(2_000, 2),
        kernel(4_000, 3),
        call("cudaLaunchKernel", 990, 5, 1),
        call("cudaLaunchKernel", 1_990, 5, 2),
        call("cudaDeviceSynchronize", 2_000, 1_500, 9),
        call("cudaLaunchKernel", 3_900, 5, 3),
    ]);
    let job = json!({ "rank": 0, "world_size": 1 });
    write(&dir, "t.json", &json!({ "distributedInfo": job, "traceEvents": events }));
    let printed = ends(&halflap(&dir, &["analyze", "t.json", "--json"]), 0).0;
    let file: Value = serde_json::from_str(&printed).unwrap();
    let rank = &file["ranks"][0];
    let by = |part: &str| rank["idle_by"][part].as_f64().unwrap();
    let parts = ["host", "synchronisation", "launch", "waiting", "unknown"].map(by);
    assert_eq!(parts, [890e3 + 400e3, 1_400e3, 10e3 + 20e3, 80e3, 0.0]);
    assert_eq!(parts.iter().sum::<f64>(), rank["idle"].as_f64().unwrap());
    let (out, _) = ends(&halflap(&dir, &["analyze", "t.json"]), 0);
    assert!(out.starts_with("What you can do\n  1. The GPU waits while the host waits"), "{out}");
    let idle = "idle 90.3% of the span (2.80 ms): host-bound 1.29 ms, synchronisation 1.40 ms";
    assert!(out.contains(idle), "{out}");
    assert_eq!(file["advice"].as_array().unwrap().len(), 3);
    for advice in file["advice"].as_array().unwrap() {
        assert!(out.contains(advice["text"].as_str().unwrap()), "{out}");
    }
}

/// Of 1,000 us a copy has 300 to itself, and another one runs beside a kernel.
#[test]
fn copies_that_nothing_hides_are_named() {
    let dir = folder("analyze_copies");
    let gpu = |category: &str, ts: u64, dur: u64| {
        json!({
            "ph": "X", "cat": category, "name": category, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": { "device": 0, "stream": 7, "correlation": 1 },
        })
    };
    let events =
        json!([gpu("kernel", 0, 700), gpu("gpu_memcpy", 100, 200), gpu("gpu_memcpy", 700, 300),]);
    let job = json!({ "rank": 0, "world_size": 1 });
    write(&dir, "t.json", &json!({ "distributedInfo": job, "traceEvents": events }));
    let (out, _) = ends(&halflap(&dir, &["analyze", "t.json"]), 0);
    let first = "  1. Copies and fills run while nothing else does: 30.0% of the time (300 us).";
    assert!(out.contains(first), "{out}");
}

#[test]
fn many_ranks_fit_a_screen() {
    let dir = folder("analyze_many");
    let mut args = vec!["analyze".to_owned()];
    for rank in 0..30 {
        args.push(format!("{rank}.json"));
        write(&dir, &args[args.len() - 1], &step(rank, 0));
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (out, _) = ends(&halflap(&dir, &args), 0);
    assert!(out.contains("... and 20 more, the least exposed with 40 us"), "{out}");
    assert_eq!(out.lines().filter(|line| line.contains("from op0 to op1")).count(), 2, "{out}");
}

#[test]
fn a_pipe_gets_long_names() {
    let dir = folder("analyze_names");
    let name = |last: char| format!("void at::native::kernel<{}{last}>", "x".repeat(200));
    let events = json!([gpu(&name('a'), 7, 0, 30), gpu(&name('b'), 7, 40, 30)]);
    write(&dir, "t.json", &json!({ "traceEvents": events }));
    let (out, _) = ends(&halflap(&dir, &["analyze", "t.json"]), 0);
    assert!(out.contains(&name('a')) && out.contains(&name('b')), "{out}");
}

#[test]
fn a_trace_comes_through_a_pipe() {
    let dir = folder("analyze_pipe");
    let mut running = command(&dir, &["analyze", "-", "--json"]);
    let mut running = running.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    running.stdin.take().unwrap().write_all(step(3, 0).to_string().as_bytes()).unwrap();
    let (out, _) = ends(&running.wait_with_output().unwrap(), 0);
    let file: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&file["ranks"][0]["rank"], &file["ranks"][0]["trace"]),
        (&json!(3), &json!("standard input"))
    );
}
