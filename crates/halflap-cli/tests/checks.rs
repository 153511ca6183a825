//! What `run` finds wrong: lifetimes, values, NaN, inputs, memory, collectives; and that it finds
//! nothing where all is well.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{command, ends, folder, halflap, read_json};
use halflap_run::check::read_values;
use halflap_run::tensor::{Tensor, write_npz};

/// Four ranks with a loop-free program: `n` is used twice, `x` takes a logarithm.
const FOUR: &str = "HloModule four, num_partitions=4
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0)
  n = f32[4] negate(p)
  r = f32[4] all-reduce(n), channel_id=1, replica_groups={}, use_global_device_ids=true, to_apply=add, metadata={op_name=\"r\" source_file=\"/x/model.py\" source_line=7}
  x = f32[4] log(n), metadata={op_name=\"x\" source_file=\"/x/model.py\" source_line=12}
  q = f32[4] all-reduce(x), channel_id=2, replica_groups={}, use_global_device_ids=true, to_apply=add
  s = f32[4] all-reduce(r), channel_id=3, replica_groups={}, use_global_device_ids=true, to_apply=add
  ROOT t = f32[4] add(q, s) }
";

fn with_module(test: &str, text: &str) -> PathBuf {
    let folder = folder(test);
    fs::write(folder.join("m.txt"), text).unwrap();
    folder
}

/// What every rank gets: numbers below zero, but for some of one rank.
fn give(folder: &Path, ranks: usize, odd: Option<(usize, [f32; 4])>) {
    let of = |rank: usize| match odd {
        Some((one, values)) if one == rank => values,
        _ => [-1.0, -2.0, -3.0, -4.0],
    };
    let arrays: Vec<(String, Tensor)> =
        (0..ranks).map(|rank| (format!("in_000_r{rank}"), Tensor::of(&[4], &of(rank)))).collect();
    fs::write(folder.join("in.npz"), write_npz(&arrays)).unwrap();
}

const RUN: [&str; 5] = ["run", "m.txt", "--input-order", "--inputs", "in.npz"];

#[track_caller]
fn run(folder: &Path, more: &[&str], code: i32) -> (String, String) {
    ends(&halflap(folder, &[&RUN, more].concat()), code)
}

#[test]
fn buffers_that_live_too_long_or_too_short() {
    let folder = with_module("lifetimes", FOUR);
    give(&folder, 4, None);
    let assert = ["--check-lifetimes", "assert"];
    run(&folder, &assert, 0);
    let (_, err) = run(&folder, &[&assert[..], &["--inject", "free-early=n"]].concat(), 1);
    assert!(
        err.contains("rank 0, after 'r'")
            && err.contains("buffer 'n' was freed and should still be alive"),
        "{err}"
    );
    let (_, err) = run(
        &folder,
        &[&assert[..], &["--inject", "free-late=n", "--fault-report", "f.json"]].concat(),
        1,
    );
    assert!(
        err.contains("rank 0, after 'x'")
            && err.contains("'n' should have been freed and is still alive"),
        "{err}"
    );
    let report = read_json(folder.join("f.json"));
    let named =
        ["kind", "deviation", "buffer", "kernel", "rank"].map(|field| report[field].to_string());
    assert_eq!(named, ["\"lifetime\"", "\"death-missing\"", "\"n\"", "\"x\"", "0"]);
    let (_, err) = run(&folder, &["--check-lifetimes", "log", "--inject", "free-late=n"], 0);
    for rank in 0..4 {
        assert!(err.contains(&format!("rank {rank}, after 'x'")), "{err}");
    }
    let (_, err) = run(&folder, &["--inject", "free-late=other"], 2);
    assert!(err.contains("the plan has no buffer 'other'"), "{err}");
}

#[test]
fn faults_of_what_the_program_does_not_have_are_refused() {
    let folder = with_module(
        "unknown_faults",
        &FOUR.replace("r = f32", "reduced = f32").replace("(r)", "(reduced)"),
    );
    give(&folder, 4, None);
    for (fault, problem) in [
        ("skip-collective=2:reducd", "no 'reducd'; did you mean 'reduced'?"),
        ("double-collective=2:x", "no 'x'"),
        ("swap-collectives=2:q,nobody", "no 'nobody'; halflap plan prints their names"),
        ("stall=1:nobody", "no 'nobody'"),
        ("stall=4:x", "there is no rank 4: the module has 4"),
        ("mutate-input=nobody", "no 'nobody'"),
        ("free-early=nobody", "no buffer 'nobody'"),
    ] {
        let (_, err) = run(&folder, &["--inject", fault], 2);
        assert!(err.contains(problem), "{fault}: {err}");
    }
}

/// Input that cannot be read leaves nothing behind, and what was there stays.
#[test]
fn debug_of_bad_input_leaves_no_folder() {
    let folder = with_module("debug_bad_input", FOUR);
    fs::write(folder.join("bad.txt"), "HloModule").unwrap();
    let debug = |args: &[&str]| {
        ends(&halflap(&folder, &[&["debug"], args, &["--artifacts", "kept"]].concat()), 2);
        assert!(!folder.join("kept").exists(), "{args:?}");
    };
    debug(&["bad.txt"]);
    debug(&["none.txt"]);
    debug(&["m.txt", "--inputs", "none.npz"]);
}

#[test]
fn values_are_saved_and_read_back() {
    let folder = with_module("values_saved", FOUR);
    give(&folder, 4, Some((2, [-8.0, -2.0, -3.0, -4.0])));
    run(
        &folder,
        &["--debug-values", "1", "--values-dir", "v", "--filter-kernels", "X,q*", "--steps", "2"],
        0,
    );
    let ranks = read_values(&folder.join("v")).unwrap();
    assert_eq!(ranks.len(), 4);
    for of in &ranks {
        let shown: Vec<String> = of
            .entries
            .iter()
            .map(|entry| format!("{} {} {} {}", entry.run, entry.when, entry.kernel, entry.buffer))
            .collect();
        let once = ["before x n", "after x x", "before q x", "after q q"];
        let expected: Vec<String> = std::iter::once("0 input model_inputs p".to_owned())
            .chain((0..2).flat_map(|run| once.map(|line| format!("{run} {line}"))))
            .collect();
        assert_eq!(shown, expected);
        let first = if of.rank == 2 { 8.0f32 } else { 1.0 };
        assert_eq!(of.load(&of.entries[1]).unwrap().slice::<f32>(), [first, 2.0, 3.0, 4.0]);
        assert_eq!(of.entries[2].source.as_deref(), Some("model.py:12"));
        let stats = of.entries[1].stats;
        assert_eq!((stats.count, stats.min, stats.nans), (4, first.min(2.0).into(), 0));
    }
    // Another run leaves nothing of this one.
    run(&folder, &["--debug-values", "1", "--values-dir", "v", "--filter-kernels", "t"], 0);
    let left: Vec<String> = common::entries(&folder.join("v/rank_3"));
    assert_eq!(left.len(), 1 + 1 + 3, "{left:?}");
}

#[test]
fn values_are_printed() {
    let folder = with_module("values_printed", FOUR);
    give(&folder, 4, None);
    let (out, _) = run(&folder, &["--debug-values", "2", "--filter-kernels", "x"], 0);
    let expected = "before_launch - x - n  (rank 3)\n[1, 2, 3, 4]\nNumber of elements: 4\nSize: [4]\nDtype: f32\nMean: 2.5\nMin: 1\nMax: 4\nStd: 1.2909944487358056\nNaN: 0\nInf: 0\n";
    assert!(out.contains(expected), "{out}");
    assert!(out.contains("model_inputs - p  (rank 0)\n[-1, -2, -3, -4]\n"), "{out}");
    assert!(
        out.contains("after_launch - x - x  (rank 1)\n") && !out.contains("launch - r"),
        "{out}"
    );
    let (out, _) = run(&folder, &["--debug-values", "3", "--filter-kernels", "r"], 0);
    assert_eq!(out.matches("[ before_launch: r ]").count(), 4, "{out}");
    assert_eq!(out.matches("[ after_launch: r ]").count(), 4, "{out}");
    assert!(!out.contains("launch: x") && !out.contains("model_inputs"), "{out}");
    let (_, err) = run(&folder, &["--debug-values", "3", "--filter-kernels", "rr"], 2);
    assert!(err.contains("no kernel is called 'rr'; --debug-values 3 prints their names"), "{err}");
    // The same from the environment.
    let variables = [
        ("HALFLAP_DEBUG_VALUES", "3"),
        ("HALFLAP_FILTER_KERNELS", "r"),
        ("HALFLAP_LAUNCH_BLOCKING", "1"),
    ];
    let output = command(&folder, &RUN).envs(variables).output().unwrap();
    assert_eq!(ends(&output, 0).0.matches("[ before_launch: r ]").count(), 4);
    for (name, value) in [("HALFLAP_LAUNCH_BLOCKING", "garbage"), ("HALFLAP_CHECK_INPUTS", "2")] {
        let output = command(&folder, &RUN).env(name, value).output().unwrap();
        let (_, err) = ends(&output, 2);
        assert!(err.contains(value) && err.contains("is neither 1 nor 0"), "{err}");
    }
}

/// Iterations have numbers, and what is in tuples is shown.
#[test]
fn values_in_loops() {
    let text = "HloModule m
body { s = (s32[], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
  a = f32[4] get-tuple-element(s), index=1\n one = s32[] constant(1)\n j = s32[] add(i, one)
  n = f32[4] multiply(a, a)\n ROOT t = (s32[], f32[4]) tuple(j, n) }
cond { s = (s32[], f32[4]) parameter(0)\n i = s32[] get-tuple-element(s), index=0
  k = s32[] constant(3)\n ROOT lt = pred[] compare(i, k), direction=LT }
ENTRY e { p = f32[4] parameter(0)\n z = s32[] constant(0)\n t = (s32[], f32[4]) tuple(z, p)
  w = (s32[], f32[4]) while(t), condition=cond, body=body\n ROOT r = f32[4] get-tuple-element(w), index=1 }";
    let folder = with_module("values_in_loops", text);
    give(&folder, 1, None);
    run(&folder, &["--debug-values", "1", "--check-lifetimes", "assert"], 0);
    let saved = &read_values(&folder.join("values")).unwrap()[0];
    let after = saved.entries.iter().filter(|entry| entry.kernel == "n" && entry.when == "after");
    let seen: Vec<(Vec<u32>, f32)> = after
        .map(|entry| (entry.iteration.clone(), saved.load(entry).unwrap().slice::<f32>()[1]))
        .collect();
    assert_eq!(seen, [(vec![0], 4.0), (vec![1], 16.0), (vec![2], 256.0)]);
    let whole = saved.entries.iter().find(|entry| entry.kernel == "j").unwrap();
    assert_eq!((whole.dtype.as_str(), whole.shape.len()), ("s32", 0));
}

/// Rank 2 alone makes a NaN, which then goes to all: it is the one that is named, every time.
#[test]
fn who_made_the_first_nan() {
    let folder = with_module("nan", FOUR);
    give(&folder, 4, Some((2, [-1.0, -2.0, 3.0, -4.0])));
    run(&folder, &[], 0);
    for more in [&[][..], &["--launch-blocking"], &["--no-memory-caching"], &[], &[]] {
        let (_, err) = run(&folder, &[&["--nan-asserts"], more].concat(), 1);
        assert!(
            err.contains("rank 2: kernel 'x' (model.py:12) makes NaN at [2] of buffer 'x', step "),
            "{err}"
        );
    }
    // An infinity is not an error, unless requested; its producer is reported with the resulting
    // NaN.
    give(&folder, 4, Some((1, [-0.0, -2.0, -3.0, -4.0])));
    run(&folder, &["--nan-asserts"], 0);
    let (_, err) = run(&folder, &["--nan-asserts=inf"], 1);
    assert!(err.contains("rank 1: kernel 'x' (model.py:12) makes -inf at [0]"), "{err}");
    give(&folder, 4, Some((3, [f32::NAN; 4])));
    let (_, err) = run(&folder, &["--nan-asserts", "--fault-report", "f.json"], 1);
    assert!(err.contains("rank 3: kernel 'n' is given NaN at [0] of buffer 'p'"), "{err}");
    let report = read_json(folder.join("f.json"));
    assert_eq!(
        (report["kind"].as_str(), report["is_input"].as_bool()),
        (Some("not-finite"), Some(true))
    );
}

#[test]
fn all_that_is_wrong_with_inputs() {
    let text = FOUR
        .replace("p = f32[4] parameter(0)", "p = f32[4] parameter(0)\n w = f32[2,3] parameter(1)");
    let folder = with_module("inputs", &text);
    let array = |name: &str, array: Tensor| (name.to_owned(), array);
    let arrays = [
        array("in_000_r0", Tensor::of(&[4], &[1.0f32; 4])),
        array("in_001_r0", Tensor::of(&[3, 2], &[1.0f32; 6])),
        array("in_000_r1", Tensor::of(&[5], &[1.0f32; 5])),
        array("in_001_r1", Tensor::of(&[2, 3], &[1i32; 6])),
        array("in_000_r2", Tensor::of(&[4], &[1.0f32; 4])),
        array("in_002_r2", Tensor::of(&[4], &[1.0f32; 4])),
    ];
    fs::write(folder.join("in.npz"), write_npz(&arrays)).unwrap();
    let (_, err) = run(&folder, &["--check-inputs"], 2);
    let expected = [
        "'in_001_r0' is f32[3, 2], and the module's parameter 1 ('w') is f32[2, 3]: the same dimensions in another layout",
        "'in_000_r1' is f32[5], and the module's parameter 0 ('p') is f32[4]\n",
        "'in_001_r1' is s32[2, 3], and the module's parameter 1 ('w') is f32[2, 3]: the same shape with another type",
        "no array 'in_001_r2'",
        "no array 'in_000_r3'",
        "there is 'in_002_r2'",
    ];
    for line in expected {
        assert!(err.contains(line), "{line}\n{err}");
    }
    assert!(err.contains("in.npz: 7 inputs are not what the module expects"), "{err}");
}

const FUNCTIONS: &str = "
typedef const float *in;
void good(float *out, in *ins) { for (int i = 0; i < 4; i++) out[i] = ins[0][i]; }
void writes_past(float *out, in *ins) { for (int i = 0; i <= 4; i++) out[i] = ins[0][i % 4]; }
void reads_past(float *out, in *ins) { for (int i = 0; i < 4; i++) out[i] = ins[0][i + 1]; }
void writes_before(float *out, in *ins) { for (int i = -1; i < 4; i++) out[i] = ins[0][(i + 4) % 4]; }
void reads_before(float *out, in *ins) { for (int i = 0; i < 4; i++) out[i] = ins[0][i - 1]; }
void reads_a_page_past(float *out, in *ins) { for (int i = 0; i < 4; i++) out[i] = ins[0][i + 2048]; }
void writes_input(float *out, in *ins) { for (int i = 0; i < 4; i++) ((float *)ins[0])[i] = out[i] = 1; }
void writes_nothing(float *out, in *ins) {}
void writes_nowhere(float *out, in *ins) { *(volatile int *)16 = 1; }
static float *kept;
void keeps(float *out, in *ins) { kept = (float *)ins[0]; good(out, ins); }
void reads_kept(float *out, in *ins) { for (int i = 0; i < 4; i++) out[i] = kept[i]; }
";

/// A library of the functions above; nothing without a compiler.
fn functions(folder: &Path) -> Option<()> {
    fs::write(folder.join("f.c"), FUNCTIONS).unwrap();
    let built = Command::new("cc")
        .current_dir(folder)
        .args(["-shared", "-fPIC", "-w", "-O1", "-o", "f.so", "f.c"])
        .status();
    built.is_ok_and(|status| status.success()).then_some(())
}

/// Two ranks; on both `first` is called, then something of ours, then `second`.
fn calls(folder: &Path, first: &str, second: &str) {
    let text = format!(
        "HloModule m, num_partitions=2
ENTRY e {{ p = f32[4] parameter(0)
  n = f32[4] negate(p)
  k = f32[4] custom-call(n), custom_call_target=\"{first}\", metadata={{op_name=\"k\" source_file=\"/x/model.py\" source_line=33}}
  c = f32[4] cosine(k)
  d = f32[4] custom-call(c), custom_call_target=\"{second}\"
  ROOT m = f32[4] add(d, p) }}"
    );
    fs::write(folder.join("m.txt"), text).unwrap();
}

#[test]
fn memory_that_is_none_of_a_kernel_s_business() {
    let folder = folder("guard");
    if functions(&folder).is_none() {
        return;
    }
    give(&folder, 2, None);
    let custom = ["--custom-calls", "./f.so"];
    let (end, start) = ("--no-memory-caching", "--no-memory-caching=start");
    let cases = [
        ("writes_past", end, "writes right behind the end of buffer 'k' (f32[4], 16 bytes)"),
        ("reads_past", end, "reads right behind the end of buffer 'n' (f32[4], 16 bytes)"),
        ("writes_before", start, "writes 4 bytes before the start of buffer 'k'"),
        ("reads_before", start, "reads 4 bytes before the start of buffer 'n'"),
        ("reads_a_page_past", end, "reads 8176 bytes behind the end of buffer 'n'"),
        ("writes_input", end, "writes byte 0, which it must only read: buffer 'n'"),
        ("writes_nowhere", end, "writes address 0x10, which belongs to no buffer (SIGSEGV)"),
    ];
    for (function, option, words) in cases {
        calls(&folder, function, "good");
        let _ = fs::remove_file(folder.join("f.json"));
        let (_, err) =
            run(&folder, &[&custom[..], &[option, "--fault-report", "f.json"]].concat(), 4);
        assert!(
            err.contains(&format!(": kernel 'k' (model.py:33), step 3 of e, {words}")),
            "{function}: {err}"
        );
        let report = fs::read_to_string(folder.join("f.json")).unwrap();
        let report: serde_json::Value =
            serde_json::from_str(report.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&report["kernel"], &report["source"]),
            (&"k".into(), &"model.py:33".into()),
            "{report}"
        );
    }
    // Without guard pages, a crash still names the kernel, and canary bytes are checked.
    calls(&folder, "writes_nowhere", "good");
    let (_, err) = run(&folder, &custom, 4);
    assert!(err.contains("kernel 'k'") && err.contains("halflap debug"), "{err}");
    for (function, place) in
        [("writes_past", "right behind the end"), ("writes_before", "1 byte before the start")]
    {
        calls(&folder, function, "good");
        let (_, err) = run(&folder, &custom, 1);
        assert!(
            err.contains("rank 0: something was written")
                && err.contains(place)
                && err.contains("'k'"),
            "{err}"
        );
    }
    calls(&folder, "keeps", "reads_kept");
    let (_, err) = run(&folder, &[&custom[..], &[end]].concat(), 4);
    assert!(
        err.contains("kernel 'd'")
            && err.contains("buffer 'n'")
            && err.contains("freed after kernel 'k'"),
        "{err}"
    );
    // Uninitialised memory is NaN.
    calls(&folder, "writes_nothing", "good");
    let (_, err) = run(&folder, &[&custom[..], &[end, "--nan-asserts"]].concat(), 1);
    assert!(
        err.contains("rank 0: kernel 'k' (model.py:33) makes NaN at [0] of buffer 'k'"),
        "{err}"
    );
    calls(&folder, "good", "good");
    for option in [end, start] {
        run(
            &folder,
            &[&custom[..], &[option, "--nan-asserts", "--check-lifetimes", "assert"]].concat(),
            0,
        );
    }
}

#[test]
fn a_wrong_plan_is_a_fault_at_the_kernel() {
    let folder = with_module("wrong_plan", FOUR);
    give(&folder, 4, None);
    let (_, err) = run(&folder, &["--no-memory-caching", "--inject", "free-early=n"], 4);
    assert!(
        err.contains("kernel 'x' (model.py:12)")
            && err.contains("of buffer 'n' (f32[4], 16 bytes), freed after"),
        "{err}"
    );
    let (_, err) = run(&folder, &["--no-memory-caching", "--inject", "mutate-input=x"], 4);
    assert!(
        err.contains("kernel 'x' (model.py:12)")
            && err.contains("which it must only read: buffer 'n'"),
        "{err}"
    );
}

#[test]
fn ranks_that_go_another_way() {
    let folder = with_module("recorder", FOUR);
    give(&folder, 4, None);
    let cases = [
        ("skip-collective=2:r", "rank 2 diverged", "it skipped 'r'"),
        (
            "skip-collective=3:s",
            "rank 3 is behind: ranks 0, 1, 2 wait in 's'",
            "has no collectives left to issue",
        ),
        ("double-collective=0:r", "rank 0 diverged", "it reached 'r' twice"),
        ("double-collective=1:s", "rank 1 reached 's'", "one too many"),
        ("swap-collectives=2:q,s", "rank 2 diverged", "'q' and 's' in the opposite order"),
        ("stall=1:x", "rank 1 is behind", "which it has not reached; its last was 'r'"),
    ];
    for (fault, who, what) in cases {
        let options = ["--timeout", "2s", "--flight-recorder=f.json", "--inject", fault];
        let (_, err) = run(&folder, &options, 1);
        let account = err
            .lines()
            .find(|line| line.starts_with("flight recorder: "))
            .unwrap_or_else(|| panic!("{err}"));
        assert!(account.contains(who) && account.contains(what), "{fault}: {account}");
        let dump = read_json(folder.join("f.json"));
        assert_eq!(dump["format"], "halflap.flight/1");
        assert!(account.ends_with(dump["account"]["text"].as_str().unwrap()), "{dump}");
        let first = &dump["ranks"][0]["collectives"][0];
        assert_eq!(
            (&first["name"], &first["op"], &first["source"]),
            (&"r".into(), &"all-reduce".into(), &"model.py:7".into())
        );
    }
}

/// Real modules, with everything on.
#[test]
fn no_alarm_where_nothing_is_wrong() {
    let folder = folder("no_alarm");
    let modules = [
        "fsdp_L2.after_spmd_partitioning",
        "fsdp_L2_scan.after_optimizations",
        "mix_L2.after_optimizations",
    ];
    for module in modules {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/hlo/{module}.txt.gz"));
        let path = path.display().to_string();
        // The best order that is found, on eight ranks.
        ends(&halflap(&folder, &["schedule", &path, "-o", "order.json"]), 0);
        let memories = [
            &["--no-memory-caching"][..],
            &["--no-memory-caching", "--launch-blocking"],
            &["--no-memory-caching=start", "--launch-blocking"],
            &["--canaries=on"],
        ];
        for memory in memories {
            let all = [
                "run",
                &path,
                "--steps",
                "2",
                "--check-lifetimes",
                "assert",
                "--nan-asserts",
                "--check-inputs",
            ];
            let more = ["--order", "order.json", "--flight-recorder", "--debug-values", "3"];
            let (_, err) = ends(&halflap(&folder, &[&all[..], &more, memory].concat()), 0);
            assert_eq!(err, "", "{module} {memory:?}");
        }
    }
}
