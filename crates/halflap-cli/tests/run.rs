//! `plan` and `run` as a user meets them, with ranks that are threads. tests/mpi has those that are
//! processes.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{ends, entries, folder, halflap, read_json};
use halflap_run::tensor::{Npz, Tensor, write_npy, write_npz};

fn hlo(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hlo").join(name).display().to_string()
}

/// Two ranks that add up what they have.
const SUM: &str = "HloModule sum, num_partitions=2
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0)
  n = f32[4] negate(p)
  ROOT r = f32[4] all-reduce(n), channel_id=1, replica_groups={}, use_global_device_ids=true, to_apply=add }
";

fn with_module(test: &str, text: &str) -> PathBuf {
    let folder = folder(test);
    fs::write(folder.join("m.txt"), text).unwrap();
    folder
}

fn input(values: [f32; 4]) -> Tensor {
    Tensor::of(&[4], &values)
}

fn archive(folder: &Path, arrays: &[(&str, Tensor)]) {
    let arrays: Vec<(String, Tensor)> =
        arrays.iter().map(|(name, array)| ((*name).to_owned(), array.clone())).collect();
    fs::write(folder.join("in.npz"), write_npz(&arrays)).unwrap();
}

fn outputs(folder: &Path, name: &str) -> Vec<f32> {
    let bytes = fs::read(folder.join("out.npz")).unwrap();
    Npz::read(&bytes).unwrap().get(name).unwrap().slice::<f32>().to_vec()
}

#[test]
fn two_orders_of_one_computation_are_refused() {
    let folder = with_module("two_orders_of_one", SUM);
    let order = r#"{"computation": "e", "order": ["n", "r"]}"#;
    fs::write(folder.join("order.json"), format!(r#"{{"computations": [{order}, {order}]}}"#))
        .unwrap();
    let (_, err) = ends(&halflap(&folder, &["run", "m.txt", "--order", "order.json"]), 2);
    assert!(err.contains("order.json") && err.contains("two orders of computation 'e'"), "{err}");
}

#[test]
fn ranks_that_the_module_does_not_count() {
    let folder = with_module("ranks_not_counted", &SUM.replace(", num_partitions=2", ""));
    let ones = [1.0; 4];
    archive(
        &folder,
        &[0, 1, 2].map(|rank| (["in_000_r0", "in_000_r1", "in_000_r2"][rank], input(ones))),
    );
    let run = |more: &[&str], code| {
        let output = halflap(
            &folder,
            &[&["run", "m.txt", "--inputs", "in.npz", "-o", "out.npz"], more].concat(),
        );
        let (out, err) = ends(&output, code);
        out + &err
    };
    // Its groups name nobody: one rank, unless more are asked for.
    let said = run(&["--ranks", "3"], 0);
    assert!(said.contains("3 partitions are assumed, because the module has neither"), "{said}");
    assert_eq!(outputs(&folder, "out_000_r2"), [-3.0; 4]);
    let named = SUM
        .replace(", num_partitions=2", "")
        .replace("replica_groups={}", "replica_groups={{0,1,2}}");
    fs::write(folder.join("m.txt"), named).unwrap();
    assert!(run(&[], 0).contains("3 partitions are assumed"));
    assert!(run(&["--ranks", "2"], 2).contains("--ranks 2: its collectives name 3 ranks"));
    let missing = run(&["--ranks", "4"], 2);
    assert!(missing.contains("replica_groups leave device 3 out"), "{missing}");
}

#[test]
fn more_ranks_than_there_can_be_threads_are_refused() {
    let text = "HloModule x, replica_count=100000
ENTRY e { x = f32[4] parameter(0)
  ROOT r = f32[4] add(x, x) }
";
    let folder = with_module("too_many_ranks", text);
    for args in [&["run", "m.txt"][..], &["verify", "m.txt", "m.txt", "--run"]] {
        let (_, err) = ends(&halflap(&folder, args), 2);
        assert!(err.contains("m.txt: it is for 100000 ranks"), "{err}");
        assert!(err.contains("at most 4096"), "{err}");
    }
}

#[test]
fn without_outputs_the_archive_is_empty() {
    let folder = with_module("no_outputs", "ENTRY e { ROOT t = () tuple() }");
    ends(&halflap(&folder, &["run", "m.txt", "-o", "out.npz"]), 0);
    let bytes = fs::read(folder.join("out.npz")).unwrap();
    // numpy takes an archive for one by its first bytes.
    assert!(bytes.starts_with(b"PK\x05\x06"), "{bytes:?}");
    assert!(Npz::read(&bytes).unwrap().names().next().is_none());
}

#[test]
fn without_a_host_and_with_sizes_of_data() {
    let text = "HloModule m\nENTRY e { p = f32[4] parameter(0)\n t = token[] after-all()
        i = (f32[4], token[]) infeed(t)\n f = f32[4] get-tuple-element(i), index=0\n s = f32[4] add(p, f)
        n = s32[] constant(3)\n d = f32[<=4] set-dimension-size(s, n), dimensions={0}
        ROOT r = f32[<=4] negate(d) }\n";
    let folder = with_module("without_a_host", text);
    archive(&folder, &[("in_000_r0", input([1.0, 2.0, 3.0, 4.0]))]);
    let given = ["run", "m.txt", "--inputs", "in.npz", "-o", "out.npz"];
    let (said, _) = ends(&halflap(&folder, &given), 0);
    assert!(said.contains("infeed 'i' has no host: it gives zeros"), "{said}");
    assert_eq!(outputs(&folder, "out_000_r0"), [-1.0, -2.0, -3.0, 0.0]);
}

#[test]
fn a_plan_is_printed() {
    let folder = with_module("a_plan_is_printed", SUM);
    let (out, _) = ends(&halflap(&folder, &["plan", "m.txt", "--input-order"]), 0);
    assert!(out.starts_with("plan of sum for 2 ranks: 1 computation, "), "{out}");
    assert!(out.contains("start   r  all-reduce(n) -> r  on stream 0 among {0,1}\n"), "{out}");
    // The same each time, and the same in a file.
    ends(&halflap(&folder, &["plan", "m.txt", "--input-order", "-o", "plan.txt"]), 0);
    assert_eq!(fs::read_to_string(folder.join("plan.txt")).unwrap(), out);
    let (_, err) =
        ends(&halflap(&folder, &["plan", &common::corpus("ddp_mlp_4.graph.json.gz")]), 2);
    assert!(err.contains("it is a graph (halflap.graph/1): halflap schedule"), "{err}");
}

#[test]
fn archives_and_folders() {
    let folder = with_module("archives_and_folders", SUM);
    let (first, second) = (input([1.0, 2.0, 3.0, 4.0]), input([10.0, 20.0, 30.0, 40.0]));
    archive(&folder, &[("in_000_r0", first.clone()), ("in_000_r1", second.clone())]);
    let (out, _) = ends(
        &halflap(&folder, &["run", "m.txt", "--ranks", "2", "--inputs", "in.npz", "-o", "out.npz"]),
        0,
    );
    assert!(out.contains("as planned") && out.contains("2 arrays to out.npz"), "{out}");
    assert_eq!(outputs(&folder, "out_000_r0"), [-11.0, -22.0, -33.0, -44.0]);
    assert_eq!(outputs(&folder, "out_000_r1"), outputs(&folder, "out_000_r0"));
    fs::create_dir(folder.join("in")).unwrap();
    fs::write(folder.join("in/in_000_r0.npy"), write_npy(&second)).unwrap();
    fs::write(folder.join("in/in_000_r1.npy"), write_npy(&second)).unwrap();
    ends(&halflap(&folder, &["run", "m.txt", "--inputs", "in", "-o", "out.npz"]), 0);
    assert_eq!(outputs(&folder, "out_000_r1"), [-20.0, -40.0, -60.0, -80.0]);
    // Made from a seed: the same each time, others for another seed.
    let mut made = Vec::new();
    for seed in ["1", "1", "2"] {
        ends(&halflap(&folder, &["run", "m.txt", "--seed", seed, "-o", "out.npz"]), 0);
        made.push(outputs(&folder, "out_000_r0"));
    }
    assert!(made[0] == made[1] && made[0] != made[2]);
}

#[test]
fn inputs_that_do_not_fit() {
    let folder = with_module("inputs_that_do_not_fit", SUM);
    let said = |arrays: &[(&str, Tensor)]| {
        archive(&folder, arrays);
        ends(&halflap(&folder, &["run", "m.txt", "--inputs", "in.npz", "-o", "out.npz"]), 2).1
    };
    let good = input([0.0; 4]);
    assert_eq!(
        said(&[("in_000_r0", good.clone())]),
        "error: in.npz: the .npz file has no array 'in_000_r1'\n"
    );
    let wrong =
        said(&[("in_000_r0", good.clone()), ("in_000_r1", Tensor::of(&[2, 2], &[0.0f32; 4]))]);
    assert_eq!(
        wrong,
        "error: in.npz: 'in_000_r1' is f32[2, 2], and the module's parameter 0 ('p') is f32[4]\n"
    );
    let wrong = said(&[("in_000_r0", Tensor::of(&[4], &[0i32; 4])), ("in_000_r1", good.clone())]);
    assert!(
        wrong.contains("'in_000_r0' is s32[4], and the module's parameter 0 ('p') is f32[4]"),
        "{wrong}"
    );
    let pair = [("in_000_r0", good.clone()), ("in_000_r1", good.clone())];
    let wrong = said(&[pair[0].clone(), pair[1].clone(), ("in_001_r0", good.clone())]);
    assert!(
        wrong.contains("there is 'in_001_r0', and the module has 1 parameters on 2 ranks"),
        "{wrong}"
    );
    let run = |args: &[&str], code: i32| {
        ends(&halflap(&folder, &[&["run", "m.txt"], args].concat()), code).1
    };
    assert!(run(&["--inputs", "nowhere.npz"], 2).contains("nowhere.npz: cannot be read: "));
    assert!(run(&["--inputs", "m.txt"], 2).contains("m.txt: this .npz file cannot be read"));
    assert!(run(&["--ranks", "4"], 2).contains("the module is partitioned for 2 ranks"));
    assert!(run(&["--emulate-link", "fast"], 2).contains("such as 10GB/s,20us"));
    assert!(run(&["--timeout", "60"], 2).contains("it needs a unit"));
    // Nothing was written.
    assert_eq!(entries(&folder), ["in.npz", "m.txt"]);
}

#[test]
fn what_cannot_be_run_is_named_before() {
    let folder = with_module("what_cannot_be_run", &SUM.replace("negate(p)", "frobnicate(p)"));
    let (_, err) = ends(&halflap(&folder, &["run", "m.txt"]), 2);
    assert_eq!(err, "error: m.txt: line 6: frobnicate 'n': this operation is not supported\n");
    fs::write(
        folder.join("m.txt"),
        SUM.replace("negate(p)", "custom-call(p), custom_call_target=\"mine\""),
    )
    .unwrap();
    let (_, err) = ends(&halflap(&folder, &["run", "m.txt"]), 2);
    assert!(
        err.contains(
            "line 6: custom-call 'n': the custom call's target 'mine' is neither known nor"
        ),
        "{err}"
    );
    let (_, err) = ends(&halflap(&folder, &["run", "m.txt", "--custom-calls", "./none.so"]), 2);
    assert!(err.contains("the shared library './none.so' cannot be loaded"), "{err}");
}

#[test]
fn both_orders_and_what_was_measured() {
    let folder = folder("both_orders");
    let module = hlo("fsdp_L2.after_spmd_partitioning.txt.gz");
    let inputs = hlo("fsdp_L2.ranks.npz");
    let quick = ["--effort", "quick", "--inputs", &inputs, "--timeout", "30s"];
    let args = [
        "run",
        &module,
        "--compare",
        "--steps",
        "3",
        "--emulate-link",
        "1GB/s,50us",
        "-o",
        "out.npz",
    ];
    let pictures = ["--profile-out", "times.json", "--trace", "t.json", "--report", "r.html"];
    let (out, _) = ends(&halflap(&folder, &[&args[..], &quick, &pictures].concat()), 0);
    assert!(out.contains("ours over own") && out.contains("as planned"), "{out}");
    let bytes = fs::read(&inputs).unwrap();
    let expected = Npz::read(&bytes).unwrap();
    let bytes = fs::read(folder.join("out.npz")).unwrap();
    let ours = Npz::read(&bytes).unwrap();
    let names: Vec<&str> = expected.names().filter(|name| name.starts_with("out_")).collect();
    assert_eq!(ours.names().count(), names.len());
    for name in names {
        let (a, b) = (ours.get(name).unwrap().to_f64(), expected.get(name).unwrap().to_f64());
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-6 + 1e-5 * b.abs()), "{name}");
    }
    // What was measured is what schedule takes.
    let times = read_json(folder.join("times.json"));
    assert!(times["all-gather"].as_f64().unwrap() >= 50e3, "{times}");
    let (out, err) = ends(
        &halflap(&folder, &["schedule", &module, "--profile", "times.json", "--effort", "quick"]),
        0,
    );
    assert!(out.contains("step time") && err.is_empty(), "{err}");
    let trace = read_json(folder.join("t.json"));
    let names: Vec<&str> = trace["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    assert!(
        names.contains(&"rank 0") && names.contains(&"rank 7") && names.contains(&"compute"),
        "{names:?}"
    );
    assert!(fs::read_to_string(folder.join("r.html")).unwrap().contains("rank 7"));
}

#[test]
fn a_rank_with_another_order_is_found_out() {
    let folder = folder("another_order");
    let module = hlo("fsdp_L2.after_spmd_partitioning.txt.gz");
    ends(&halflap(&folder, &["schedule", &module, "--effort", "quick", "-o", "order.json"]), 0);
    ends(&halflap(&folder, &["run", &module, "--order", "order.json"]), 0);
    let (_, err) = ends(
        &halflap(&folder, &["run", &module, "--input-order", "--order-for", "5=order.json"]),
        1,
    );
    assert!(err.contains("Rank 0 and rank 5 first differ at step\n  rank 0: "), "{err}");
}

#[test]
fn a_rank_that_panics_ends_all() {
    let folder = with_module("a_rank_that_panics", SUM);
    let (_, err) = ends(&halflap(&folder, &["run", "m.txt", "--input-order", "--panic", "1:1"]), 3);
    assert!(
        err.starts_with("internal error: rank 1 panicked at 'n': this was asked for\n"),
        "{err}"
    );
}

#[test]
fn a_rank_that_panics_anywhere_ends_all() {
    let folder = folder("panics_anywhere");
    let module = hlo("mix_L2.after_spmd_partitioning.txt.gz");
    let (plan, _) = ends(&halflap(&folder, &["plan", &module, "--input-order"]), 0);
    let kernels: Vec<&str> =
        plan.lines().filter(|line| line.split_whitespace().nth(1) == Some("launch")).collect();
    assert!(kernels.len() > 100, "{plan}");
    // Other ones each time: every place must do.
    let moment =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
            as usize;
    for round in 0..6 {
        let (rank, kernel) =
            ((moment + round) % 8, kernels[(moment / 7 + round * 7919) % kernels.len()]);
        let step = kernel.split_whitespace().next().unwrap();
        let at = format!("{rank}:{step}");
        let run =
            halflap(&folder, &["run", &module, "--input-order", "--panic", &at, "-o", "out.npz"]);
        let (_, err) = ends(&run, 3);
        assert!(
            err.contains(&format!("rank {rank} panicked at '"))
                && err.contains("this was asked for"),
            "{err}"
        );
    }
    assert!(entries(&folder).is_empty());
}

#[test]
fn what_cannot_be_written_is_said_before_or_after() {
    let folder = with_module("cannot_be_written", SUM);
    fs::create_dir(folder.join("d")).unwrap();
    let cannot = |path: &str| {
        let (_, err) = ends(&halflap(&folder, &["run", "m.txt", "-o", path]), 2);
        assert!(err.starts_with(&format!("error: {path}: cannot be written: ")), "{err}");
    };
    // A folder that is not there, a folder, a full disk.
    ["nowhere/out.npz", "d", "/dev/full"].into_iter().for_each(cannot);
    assert!(
        ends(&halflap(&folder, &["run", "m.txt", "-o", "m.txt"]), 2)
            .1
            .contains("m.txt: is an input of this command")
    );
    assert!(
        ends(&halflap(&folder, &["run", "m.txt", "-o", "-"]), 2).1.contains("name a file with -o")
    );
    assert_eq!(entries(&folder), ["d", "m.txt"]);
}

#[test]
fn without_mpi_the_rest_runs() {
    let folder = with_module("without_mpi", SUM);
    // Files with these names that are not libraries hide the real ones.
    for name in ["libmpi.so.40", "libmpi.so", "libmpi.so.20", "libmpi.so.12"] {
        fs::write(folder.join(name), "no library").unwrap();
    }
    let run = |backend: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_halflap"));
        command.current_dir(&folder).env("LD_LIBRARY_PATH", &folder);
        command.args(["run", "m.txt", "--backend", backend]).output().unwrap()
    };
    ends(&run("threads"), 0);
    let (_, err) = ends(&run("mpi"), 2);
    assert!(
        err.contains("MPI: its library cannot be loaded (") && err.contains("Debian's openmpi-bin"),
        "{err}"
    );
}

#[test]
fn a_summary_for_machines() {
    let folder = with_module("a_summary_for_machines", SUM);
    let args =
        ["run", "m.txt", "--compare", "--steps", "3", "--emulate-link", "1GB/s,1ms", "--json"];
    let (out, _) = ends(&halflap(&folder, &args), 0);
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&said["format"], &said["ranks"]), (&"halflap.run/1".into(), &2.into()));
    assert_eq!(said["peak_memory"], said["planned_peak_memory"]);
    assert_eq!(said["step_times"].as_array().unwrap().len(), 2);
    // One collective, which takes a millisecond.
    for order in ["input_order", "ours"] {
        assert!(said["compared"][order]["simulated_step_time"].as_f64().unwrap() >= 1e6, "{out}");
        assert!(said["compared"][order]["step_time"].as_f64().unwrap() >= 1e6, "{out}");
    }
    assert!(
        said["communication"].as_f64().unwrap() >= 1e6 && said["compute"].as_f64().unwrap() > 0.0,
        "{out}"
    );
}

/// However the thread that issues waits, compute stands still while a collective that it needs is
/// on its way.
#[test]
fn a_synchronous_collective_is_exposed() {
    let folder = with_module("a_synchronous_collective_is_exposed", SUM);
    for blocking in [None, Some("--launch-blocking")] {
        let args = ["run", "m.txt", "--input-order", "--emulate-link", "1GB/s,5ms", "--json"];
        let args: Vec<&str> = args.into_iter().chain(blocking).collect();
        let (out, _) = ends(&halflap(&folder, &args), 0);
        let said: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(said["exposed"].as_f64().unwrap() >= 5e6, "{blocking:?}: {out}");
    }
}

/// Without inputs token ids are in range of small vocabularies, and nothing is made that is not a
/// number.
#[test]
fn inputs_of_our_own_are_numbers() {
    let folder = folder("own_inputs");
    let module = hlo("mix_L2.after_spmd_partitioning.txt.gz");
    ends(&halflap(&folder, &["run", &module, "--effort", "quick", "-o", "out.npz"]), 0);
    let bytes = fs::read(folder.join("out.npz")).unwrap();
    let archive = Npz::read(&bytes).unwrap();
    for name in archive.names() {
        assert!(
            archive.get(name).unwrap().to_f64().iter().all(|number| number.is_finite()),
            "{name}"
        );
    }
}

#[test]
fn a_custom_call_that_never_returns() {
    let text = SUM.replace("negate(p)", "custom-call(p), custom_call_target=\"forever\"");
    let folder = with_module("never_returns", &text);
    let source =
        "#include <unistd.h>\nvoid forever(void *out, const void **ins) { for (;;) pause(); }\n";
    fs::write(folder.join("forever.c"), source).unwrap();
    let compiled = Command::new("cc")
        .current_dir(&folder)
        .args(["-shared", "-fPIC", "-o", "f.so", "forever.c"])
        .status();
    assert!(compiled.unwrap().success());
    let (_, err) = ends(
        &halflap(&folder, &["run", "m.txt", "--custom-calls", "./f.so", "--timeout", "500ms"]),
        1,
    );
    assert!(
        err.contains("nothing was completed for 0.5 s: rank ")
            && err.contains("does not return from kernel 'n'")
            && err.contains("rank 1: runs n (custom call of 'forever', step 1 of e, "),
        "{err}"
    );
}

/// Kernels trust shapes: a module with a wrong one is refused before anything is computed.
#[test]
fn wrong_shapes_are_refused() {
    let text = SUM.replace("n = f32[4] negate(p)", "n = f32[4000] negate(p)");
    let folder = with_module("wrong_shapes_are_refused", &text);
    for command in ["run", "plan"] {
        let (out, err) = ends(&halflap(&folder, &[command, "m.txt"]), 2);
        assert!(
            err.contains("m.txt: line 6: negate 'n': the result is f32[4000], it should be f32[4]"),
            "{err}"
        );
        assert_eq!(out, "");
    }
    fs::write(folder.join("m.txt"), SUM.replace("replica_groups={}", "replica_groups={{0,0}}"))
        .unwrap();
    let (_, err) = ends(&halflap(&folder, &["run", "m.txt"]), 2);
    assert!(
        err.contains(
            "all-reduce 'r': replica_groups name device 0 twice: each should be there once"
        ),
        "{err}"
    );
}

/// Two ranks whose layers gather their weights right before they need them.
fn layers(count: usize) -> String {
    let mut text =
        "HloModule layers, num_partitions=2\nENTRY e {\n  x0 = f32[16,16] parameter(0)\n"
            .to_owned();
    for at in 0..count {
        let (channel, next) = (at + 1, at + 1);
        let groups = format!("channel_id={channel}, replica_groups=[1,2]<=[2]");
        let root = if next == count { "ROOT " } else { "" };
        text.push_str(&format!("  w{at} = f32[8,16] parameter({next})\n"));
        text.push_str(&format!(
            "  g{at} = f32[16,16] all-gather(w{at}), {groups}, dimensions={{0}}, use_global_device_ids=true\n"
        ));
        let dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}";
        text.push_str(&format!("  d{at} = f32[16,16] dot(x{at}, g{at}), {dims}\n"));
        text.push_str(&format!("  {root}x{next} = f32[16,16] tanh(d{at})\n"));
    }
    text + "}\n"
}

#[test]
fn orders_are_tried_and_the_choice_is_run() {
    let folder = with_module("orders_are_tried", &layers(4));
    let run = |args: &[&str]| {
        ends(&halflap(&folder, &[&["run", "m.txt", "--effort", "quick"], args].concat()), 0)
    };
    let link = ["--emulate-link", "1GB/s,200us"];
    let files = ["--order-out", "order.json", "-o", "out.npz", "--profile-out", "times.json"];
    let budgets = ["--memory-budgets", "1x,3x"];
    let (out, err) =
        run(&[&["--tune=3s", "--steps", "3", "--json"], &link[..], &files, &budgets].concat());
    assert_eq!(err, "");
    let said: serde_json::Value = serde_json::from_str(&out).unwrap();
    let tuned = &said["tuned"];
    let rows = tuned["rows"].as_array().unwrap();
    let candidates: Vec<_> = rows.iter().map(|row| &row["candidate"]).collect();
    assert_eq!(candidates[0], &serde_json::json!({ "order": "input", "memory_budget": null }));
    assert!(candidates.contains(&&tuned["chosen"]), "{out}");
    // Within three times the memory all weights can be gathered at once.
    assert!(
        rows.len() > 1 && rows.len() + tuned["left_out"].as_array().unwrap().len() == 5,
        "{out}"
    );
    assert_eq!((&rows[0]["ratio"], &rows[0]["equal_bits"]), (&1.0.into(), &true.into()));
    assert!(rows.iter().all(|row| row["equal_bits"] == true), "{out}");
    // What comes after is of the order that was chosen.
    let chosen = rows.iter().find(|row| row["candidate"] == tuned["chosen"]).unwrap();
    assert_eq!(
        (&said["peak_memory"], &said["planned_peak_memory"]),
        (&chosen["peak_memory"], &chosen["peak_memory"])
    );
    assert_eq!(said["step_times"].as_array().unwrap().len(), 2);
    assert!(read_json(folder.join("times.json"))["g0"].as_f64().unwrap() >= 200e3);
    // The file is an order: of all nodes, with the same peak and outputs.
    let output = fs::read(folder.join("out.npz")).unwrap();
    let (out, _) = run(&["--order", "order.json", "-o", "out.npz", "--json"]);
    let again: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(again["peak_memory"], said["peak_memory"]);
    assert_eq!(
        (again["tuned"].is_null(), fs::read(folder.join("out.npz")).unwrap()),
        (true, output)
    );
    assert!(
        ends(&halflap(&folder, &["verify", "m.txt", "order.json"]), 0).0.starts_with("valid: e, ")
    );
}

#[test]
fn without_time_the_own_order_is_run() {
    let folder = with_module("without_time", &layers(2));
    let args =
        ["run", "m.txt", "--tune=1ms", "--emulate-link", "1GB/s,1ms", "--order-out", "order.json"];
    let (out, err) = ends(&halflap(&folder, &args), 0);
    assert!(out.contains(" the module's own\n") && err.is_empty(), "{out}{err}");
    let rows: Vec<&str> = out.lines().filter(|line| line.starts_with("input ")).collect();
    assert!(
        matches!(rows[..], [row] if row.contains(" 1.000x ") && row.ends_with(" equal bits  chosen")),
        "{out}"
    );
    for name in ["kept", "free", "kept 1.5x", "free 1.5x"] {
        assert!(out.contains(&format!("\n{name} left out: the time was up\n")), "{out}");
    }
    let plan = |args: &[&str]| ends(&halflap(&folder, &[&["plan", "m.txt"], args].concat()), 0).0;
    assert_eq!(plan(&["order.json"]), plan(&["--input-order"]));
    // With artifacts, too, which have the plan and the order.
    ends(&halflap(&folder, &["run", "m.txt", "--tune=1ms", "--artifacts", "kept"]), 0);
    assert_eq!(
        fs::read_to_string(folder.join("kept/plan.txt")).unwrap(),
        plan(&["kept/order.json"])
    );
}

#[test]
fn what_does_not_go_with_tune() {
    let folder = with_module("not_with_tune", SUM);
    let said = |args: &[&str]| ends(&halflap(&folder, &[&["run", "m.txt"], args].concat()), 2).1;
    for other in [&["--input-order"][..], &["--compare"], &["--order", "o.json"]] {
        let err = said(&[&["--tune"], other].concat());
        assert!(
            err.contains("cannot be used with") && err.contains("--tune") && err.contains(other[0]),
            "{err}"
        );
    }
    assert!(said(&["--memory-budgets", "1x"]).contains("--tune"));
    assert!(
        said(&["--tune", "--memory-budgets", "1x", "--memory-budget", "2x"])
            .contains("cannot be used with")
    );
    assert!(said(&["--tune=60"]).contains("it needs a unit"));
    assert!(
        said(&["--tune", "--order-out", "m.txt"]).contains("m.txt: is an input of this command")
    );
    assert_eq!(entries(&folder), ["m.txt"]);
}

/// The order and the plan among the artifacts are those that ran, with and without `--compare`.
#[test]
fn artifacts_have_the_order_that_ran() {
    let folder = with_module("artifacts_order", &layers(2));
    for more in [&[][..], &["--compare"]] {
        ends(
            &halflap(
                &folder,
                &[&["run", "m.txt", "--artifacts", "kept", "--overwrite"], more].concat(),
            ),
            0,
        );
        let order = read_json(folder.join("kept/order.json"));
        assert_eq!(order["computations"][0]["computation"], "e", "{order}");
        let (out, _) = ends(&halflap(&folder, &["verify", "m.txt", "kept/order.json"]), 0);
        assert!(out.starts_with("valid: e, "), "{out}");
        let (plan, _) = ends(&halflap(&folder, &["plan", "m.txt", "kept/order.json"]), 0);
        assert_eq!(fs::read_to_string(folder.join("kept/plan.txt")).unwrap(), plan);
    }
}
