"""Ranks that are processes of Open MPI, beside ranks that are threads: the numbers of JAX, and an
end to everything that goes wrong."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time
import warnings

import numpy as np
import pytest
from arrays import read, worst
from command import HALFLAP, run
from expected import HLO, NAMES, write_ranks

pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"]

SUM = """HloModule sum, num_partitions=4
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { p = f32[4] parameter(0)
  n = f32[4] OPERATION
  ROOT r = f32[4] all-reduce(n), channel_id=1, replica_groups={}, use_global_device_ids=true, to_apply=add }
"""

# A sum that can run beside products.
BESIDE = """HloModule beside, num_partitions=2
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { p = f32[64,64] parameter(0)
  r = f32[64,64] all-reduce(p), channel_id=1, replica_groups={}, use_global_device_ids=true, to_apply=add
  d = f32[64,64] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[64,64] dot(d, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = f32[64,64] add(r, s) }
"""


def module(name, stage="after_spmd_partitioning"):
    return HLO / f"{name}.{stage}.txt.gz"


def left_over():
    """Processes of the command, and shared memory; other tests may run beside these."""
    found = subprocess.run(
        ["ps", "-eo", "pid=,stat=,args="], capture_output=True, text=True
    ).stdout.splitlines()
    ours = [line for line in found if f"{HALFLAP} run" in line and "--backend mpi" in line]
    return [line for line in ours if line.split()[1][0] != "Z"], segments()


@pytest.fixture(autouse=True)
def nothing_stays():
    before = left_over()[1]
    yield
    for _ in range(50):
        ours, memory = left_over()
        if not ours and memory <= before:
            return
        time.sleep(0.1)
    assert not ours and memory <= before, (ours, memory - before)


def mpi(count, *arguments, timeout=120):
    command = [*MPIRUN, str(count), HALFLAP, "run", *map(str, arguments), "--backend", "mpi"]
    began = time.monotonic()
    variables = os.environ | {"TERM": "xterm"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=variables)
    assert "\x1b" not in done.stdout + done.stderr, "colours, where nobody looks"
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


@pytest.mark.parametrize("order", [["--input-order"], ["--effort", "quick"]], ids=["own", "ours"])
@pytest.mark.parametrize("stage", ["after_spmd_partitioning", "after_optimizations"])
@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_jax(name, stage, order, tmp_path):
    inputs, out = tmp_path / "in.npz", tmp_path / "out.npz"
    expected = write_ranks(name, inputs)
    tolerance = (2e-3, 2e-3) if "bf16" in name else (1e-5, 1e-6)
    arguments = [module(name, stage), "--inputs", inputs, "-o", out, *order]
    code, text, errors, _ = mpi(8, *arguments)
    assert code == 0, errors
    assert "as planned" in text and "MPI processes" in text
    assert worst(read(out), expected, *tolerance) <= 1
    assert "as planned" in run("run", *arguments)
    assert worst(read(out), expected, *tolerance) <= 1


# All of them take a while; scripts/nightly runs them.
IS_NIGHT = os.environ.get("HALFLAP_REWRITTEN") == "all"
STAGES = ("after_spmd_partitioning", "after_optimizations")
REWRITTEN = [(name, stage) for name in NAMES for stage in STAGES]


@pytest.mark.parametrize("name, stage", REWRITTEN if IS_NIGHT else REWRITTEN[1:2])
def test_the_numbers_of_jax_after_rewriting(name, stage, tmp_path):
    """What is chosen with plenty of memory runs on processes and on threads."""
    new, inputs, out = tmp_path / "new.txt", tmp_path / "in.npz", tmp_path / "out.npz"
    expected = write_ranks(name, inputs)
    tolerance = (2e-3, 2e-3) if "bf16" in name else (1e-5, 1e-6)
    limits = ["--device", "h100", "--memory-budget", "2x", "--effort", "quick"]
    rewrite = ["--rewrite", "all", "--emit", "hlo", "-o", new]
    chosen = run("schedule", module(name, stage), *limits, *rewrite)
    if "rewrites       none" in chosen:
        pytest.skip("nothing pays there")
    arguments = [new, "--inputs", inputs, "-o", out, "--input-order"]
    code, text, errors, _ = mpi(8, *arguments)
    assert code == 0, errors
    assert "MPI processes" in text
    assert worst(read(out), expected, *tolerance) <= 1
    run("run", *arguments)
    assert worst(read(out), expected, *tolerance) <= 1


def test_random_modules_after_rewriting(tmp_path):
    """What crates/halflap-run/tests/rewrites.rs left: the old module on threads, the rewritten ones
    on processes, where MPI adds numbers up in an order of its own. scripts/nightly runs all."""
    folder = HLO.parent.parent / "target" / "tmp" / "rewritten"
    seeds = sorted(int(path.name.split(".")[0]) for path in folder.glob("*.old.txt"))
    assert seeds, f"{folder} has no modules: cargo test -p halflap-run --test rewrites makes them"
    inputs, before, after = (tmp_path / f"{name}.npz" for name in ("inputs", "before", "after"))
    for seed in seeds[:5]:
        text = (folder / f"{seed}.old.txt").read_text()
        ranks = 8 if "num_partitions=8" in text else 4
        has_sums = "all-reduce" in text or "reduce-scatter" in text
        random = np.random.default_rng(seed)
        arrays = {
            f"in_{number:03}_r{rank}": random.normal(size=(8, 16)).astype(np.float32)
            for rank in range(ranks)
            for number in range(2)
        }
        np.savez(inputs, **arrays)
        run("run", folder / f"{seed}.old.txt", "--inputs", inputs, "-o", before, "--input-order")
        for kind in ("exact", "all"):
            path = folder / f"{seed}.{kind}.txt"
            code, _, errors, _ = mpi(ranks, path, "--inputs", inputs, "-o", after, "--input-order")
            assert code == 0, (seed, kind, errors)
            assert_equal(np.load(before), np.load(after), kind == "exact" and not has_sums)


def assert_equal(before, after, is_exact):
    """Bit for bit, or but for the order of sums."""
    assert before.files == after.files
    for name in before.files:
        if is_exact:
            assert before[name].tobytes() == after[name].tobytes(), name
        np.testing.assert_allclose(after[name], before[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_every_collective_as_on_threads(tmp_path):
    groups = "channel_id=1, replica_groups={{0,2},{1,3}}, use_global_device_ids=true"
    kinds = ["f32", "bf16", "s32", "pred"]
    bodies = []
    for kind in kinds:
        ops = ["and", "or"] if kind == "pred" else ["add", "multiply", "minimum", "maximum"]
        for op in ops:
            bodies.append((kind, op, f"{kind}[4,6,2] all-reduce(p), {groups}, to_apply=f"))
        if kind != "pred":
            bodies.append(
                (
                    kind,
                    "add",
                    f"{kind}[4,3,2] reduce-scatter(p), {groups}, dimensions={{1}}, to_apply=f",
                )
            )
        bodies.append(
            (
                kind,
                "and" if kind == "pred" else "add",
                f"{kind}[4,12,2] all-gather(p), {groups}, dimensions={{1}}",
            )
        )
    move = "channel_id=1, replica_groups={{2,0},{1,3}}"
    bodies.append(("f32", "add", f"f32[4,6,2] all-to-all(p), {move}, dimensions={{1}}"))
    bodies.append(("f32", "add", f"(f32[4,6,2], f32[4,6,2]) all-to-all(p, n), {move}"))
    bodies.append(
        (
            "f32",
            "add",
            "f32[4,6,2] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,0}}",
        )
    )
    bodies.append(("f32", "add", f"f32[4,6,2] collective-broadcast(p), {move}"))
    bodies.append(
        ("f32", "add", f"f32[4,6,2] ragged-all-to-all(p, n, first, ones, place, ones), {move}")
    )
    # All in one module: a run of MPI takes a while to start.
    lines, applied, results = [], [], []
    for index, (kind, op, body) in enumerate(bodies):
        applied.append(
            f"f{index} {{ a = {kind}[] parameter(0)\n b = {kind}[] parameter(1)\n ROOT c = {kind}[] {op}(a, b) }}"
        )
        body = (
            body.replace("to_apply=f", f"to_apply=f{index}")
            .replace("(p", f"(p_{kind}")
            .replace(" n)", " n)")
        )
        lines.append(f"  r{index} = {body}")
        results.append(index)
    # Inputs that are made are the same on all ranks: each adds its own number.
    parameters = [
        "  id = u32[] partition-id()",
        "  one = u32[] constant(1)",
        "  is = pred[] compare(id, one), direction=EQ",
    ]
    for index, kind in enumerate(kinds):
        own = "is" if kind == "pred" else f"i_{kind}"
        parameters += [f"  {own} = {kind}[] convert(id)"] if kind != "pred" else []
        parameters.append(f"  b_{kind} = {kind}[4,6,2] broadcast({own}), dimensions={{}}")
        parameters.append(f"  q_{kind} = {kind}[4,6,2] parameter({index})")
        parameters.append(
            f"  p_{kind} = {kind}[4,6,2] {'xor' if kind == 'pred' else 'add'}(q_{kind}, b_{kind})"
        )
    parameters += [
        f"  {name} = s32[2] constant({{{values}}})"
        for name, values in (("first", "0, 2"), ("ones", "1, 1"), ("place", "3, 1"))
    ]
    pairs = (
        "channel_id=9, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2},{2,3}}}"
    )
    lines += [
        "  token = token[] after-all()",
        f"  taken = (f32[4,6,2], u32[], token[]) recv(token), {pairs}",
        f"  sent = (f32[4,6,2], u32[], token[]) send(p_f32, token), {pairs}",
        "  came = (f32[4,6,2], token[]) recv-done(taken), channel_id=9",
        "  given = token[] send-done(sent), channel_id=9",
        "  got = f32[4,6,2] get-tuple-element(came), index=0",
    ]
    used = [index for index in results if not bodies[index][2].startswith("(")]
    pair = next(index for index in results if bodies[index][2].startswith("("))
    lines += [f"  g{part} = f32[4,6,2] get-tuple-element(r{pair}), index={part}" for part in (0, 1)]
    shapes = [bodies[index][2].split()[0] for index in used] + ["f32[4,6,2]"] * 3
    root = f"  ROOT t = ({', '.join(shapes)}) tuple({', '.join([f'r{index}' for index in used] + ['g0', 'g1', 'got'])})"
    entry = "\n".join(
        ["ENTRY e {", *parameters, "  n = f32[4,6,2] negate(p_f32)", *lines, root, "}"]
    )
    text = tmp_path / "m.txt"
    text.write_text("HloModule m, num_partitions=4\n" + "\n".join(applied) + "\n" + entry + "\n")
    code, _, errors, _ = mpi(4, text, "--seed", 3, "-o", tmp_path / "mpi.npz")
    assert code == 0, errors
    run("run", text, "--seed", 3, "-o", tmp_path / "threads.npz")
    assert worst(read(tmp_path / "mpi.npz"), read(tmp_path / "threads.npz"), 1e-6, 1e-7) <= 1


def test_both_orders_are_compared():
    code, text, errors, _ = mpi(
        8, module("fsdp_L2"), "--compare", "--steps", 3, "--effort", "quick"
    )
    assert code == 0, errors
    assert "ours over own" in text


def test_orders_are_tried(tmp_path):
    text, order, ours, threads = (
        tmp_path / name for name in ["m.txt", "order.json", "ours.npz", "threads.npz"]
    )
    text.write_text(BESIDE)
    files = ["--order-out", order, "-o", ours]
    code, printed, errors, _ = mpi(
        2, text, "--tune=2s", "--memory-budgets", "1x,2x", "--json", *files
    )
    assert code == 0, errors
    tuned = json.loads(printed)["tuned"]
    assert tuned["chosen"] in [row["candidate"] for row in tuned["rows"]]
    assert tuned["rows"][0]["candidate"] == {"order": "input", "memory_budget": None}
    assert len(tuned["rows"]) > 1 and len(tuned["rows"]) + len(tuned["left_out"]) == 5, printed
    run("run", text, "--order", order, "-o", threads)
    assert worst(read(ours), read(threads), 1e-6, 1e-7) <= 1


def started(steps=1000000):
    """Eight ranks that run for long."""
    command = [
        *MPIRUN,
        "8",
        HALFLAP,
        "run",
        str(module("fsdp_L2")),
        "--backend",
        "mpi",
        "--input-order",
    ]
    command += ["--steps", str(steps), "--timeout", "10s"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ranks_of(mpirun):
    """The processes that mpirun started, which are our command already and live."""
    try:
        children = (
            pathlib.Path(f"/proc/{mpirun.pid}/task/{mpirun.pid}/children").read_text().split()
        )
    except FileNotFoundError:
        return []
    return [int(child) for child in children if is_alive(child) and is_ours(child)]


def is_ours(process):
    try:
        return pathlib.Path(f"/proc/{process}/cmdline").read_bytes().startswith(HALFLAP.encode())
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_alive(process):
    try:
        return (
            pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except (FileNotFoundError, ProcessLookupError):
        return False


def some_ranks(mpirun):
    ranks = ranks_of(mpirun)
    while not ranks and mpirun.poll() is None:
        ranks = ranks_of(mpirun)
    return ranks


def errors_of(mpirun, ranks, before):
    """What was said until the end. PMIx of Debian 12 sometimes deadlocks in mpirun's own end, when
    all ranks have gone: then it is ended here."""
    try:
        return mpirun.communicate(timeout=30)[1]
    except subprocess.TimeoutExpired:
        assert not any(map(is_alive, ranks)), "a rank lives"
        warnings.warn("mpirun did not end after all its ranks had")
        mpirun.kill()
        errors = mpirun.communicate()[1]
        remove_segments(before)
        return errors


def segments():
    """Files of MPI's in shared memory."""
    return set(pathlib.Path("/dev/shm").glob("vader_segment.*"))


def remove_segments(before):
    """Removes what a killed mpirun could not."""
    for path in segments() - before:
        path.unlink()


@pytest.mark.parametrize("moment", [(0.0, 0.3), (0.3, 0.6), (0.6, 1.2), (1.2, 2.0)])
def test_a_killed_rank_ends_all(moment):
    """At a random moment: while ranks start, before they run, while they do."""
    before, mpirun = segments(), started()
    time.sleep(random.uniform(*moment))
    ranks = some_ranks(mpirun)
    os.kill(random.choice(ranks), signal.SIGKILL)
    errors = errors_of(mpirun, ranks, before)
    # 128 and the signal; or it was ended here.
    assert mpirun.returncode in [137, -9]
    # Of a rank that has not yet started MPI it does not say how it ended.
    assert "signal 9 (Killed)" in errors or "the job has been aborted" in errors, errors


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_mpirun_is_told_to_end(sent):
    before, mpirun = segments(), started()
    time.sleep(random.uniform(0.2, 1.5))
    ranks = some_ranks(mpirun)
    os.kill(mpirun.pid, sent)
    errors_of(mpirun, ranks, before)
    assert mpirun.returncode != 0


def test_ranks_whose_mpirun_is_killed_end():
    """What MPI has in shared memory only mpirun would have removed."""
    before, mpirun = segments(), started()
    time.sleep(random.uniform(0.5, 1.5))
    ranks = some_ranks(mpirun)
    mpirun.kill()
    mpirun.communicate(timeout=30)
    deadline = time.monotonic() + 20
    while any(map(is_alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_alive, ranks))
    remove_segments(before)


@pytest.mark.parametrize(
    "first, second, said",
    [
        ("negate(p)", "abs(p)", ["rank 0: n = f32[4] negate(p)", "rank 1: n = f32[4] abs(p)"]),
        ("negate(p)", "negate(p) --steps 3", ["rank 0: 1 steps, ", "rank 1: 3 steps, "]),
        ("negate(p)", "negate(p) --compare", ["without --compare", "with --compare"]),
        (
            "negate(p)",
            "negate(p) --tune --memory-budget 2x",
            ["without", "with --tune of input, kept 2x, free 2x"],
        ),
    ],
)
def test_ranks_that_are_given_different_things(first, second, said, tmp_path):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
    for number, (operation, _, options) in enumerate(
        each.partition(" ") for each in [first, second]
    ):
        path = tmp_path / f"{number}.txt"
        path.write_text(
            SUM.replace("OPERATION", operation).replace("num_partitions=4", "num_partitions=2")
        )
        part = ["-n", "1", HALFLAP, "run", str(path), "--backend", "mpi", *options.split()]
        command += part if number == 0 else [":", *part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("rank 0 and rank 1 were not given the same module and arguments:") == 1
    assert all(line in done.stderr for line in said), done.stderr


def test_what_cannot_be_written(tmp_path):
    text = tmp_path / "m.txt"
    text.write_text(SUM.replace("OPERATION", "negate(p)"))
    for path in [tmp_path / "nowhere" / "out.npz", "/dev/full"]:
        code, _, errors, _ = mpi(4, text, "-o", path)
        assert code == 2 and errors.count(f"{path}: cannot be written: ") == 1, errors
    assert [path.name for path in tmp_path.iterdir()] == ["m.txt"]


def test_one_process_is_not_enough(tmp_path):
    text = tmp_path / "m.txt"
    text.write_text(SUM.replace("OPERATION", "negate(p)"))
    done = subprocess.run(
        [HALFLAP, "run", text, "--backend", "mpi"], capture_output=True, text=True, timeout=60
    )
    assert (
        done.returncode == 2 and "this is one process: start it with mpirun -n 4" in done.stderr
    ), done.stderr


def test_a_panic_ends_all():
    code, _, errors, seconds = mpi(
        8, module("fsdp_L2"), "--input-order", "--panic", "3:21", "--timeout", "20s"
    )
    assert code != 0 and "rank 3 panicked at" in errors and seconds < 15


def test_another_order_is_found_out(tmp_path):
    order = tmp_path / "order.json"
    run("schedule", module("fsdp_L2"), "--effort", "quick", "-o", order)
    code, _, errors, seconds = mpi(
        8, module("fsdp_L2"), "--input-order", "--order-for", f"5={order}"
    )
    assert (
        code != 0
        and "Rank 0 and rank 5 first differ at step\n  rank 0: " in errors
        and seconds < 20
    )
    assert errors.count("the plans of the ranks differ") == 1


def test_a_custom_call_that_never_returns(tmp_path):
    (tmp_path / "f.c").write_text(
        "#include <unistd.h>\nvoid forever(void *o, const void **i) { for (;;) pause(); }\n"
    )
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", tmp_path / "f.so", tmp_path / "f.c"], check=True
    )
    text = tmp_path / "m.txt"
    text.write_text(SUM.replace("OPERATION", 'custom-call(p), custom_call_target="forever"'))
    code, _, errors, seconds = mpi(4, text, "--custom-calls", tmp_path / "f.so", "--timeout", "1s")
    assert code != 0 and seconds < 15
    assert (
        "nothing was completed for 1 s: rank " in errors
        and "does not return from kernel 'n'" in errors
    )
    assert all(
        f"rank {rank}: runs n (custom call of 'forever', step " in errors for rank in range(4)
    ), errors


def test_one_rank_that_does_not_come(tmp_path):
    """Rank 1 hangs in a custom call, the others in the all-reduce that follows: each says so."""
    (tmp_path / "f.c").write_text(
        "#include <unistd.h>\nvoid forever(void *o, const void **i) { for (;;) pause(); }\n"
    )
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", tmp_path / "f.so", tmp_path / "f.c"], check=True
    )
    text = tmp_path / "m.txt"
    slow = "slow { p = f32[4] parameter(0)\n ROOT h = f32[4] custom-call(p), custom_call_target=\"forever\" }\n"
    quick = "quick { p = f32[4] parameter(0)\n ROOT n = f32[4] negate(p) }\n"
    choice = "conditional(is, p, p), true_computation=slow, false_computation=quick"
    who = "id = u32[] partition-id()\n  one = u32[] constant(1)\n  is = pred[] compare(id, one), direction=EQ\n  n ="
    whole = (
        SUM.replace("OPERATION", choice)
        .replace("  n =", f"  {who}", 1)
        .replace("ENTRY", slow + quick + "ENTRY")
    )
    text.write_text(whole)
    code, _, errors, seconds = mpi(4, text, "--custom-calls", tmp_path / "f.so", "--timeout", "1s")
    assert code != 0 and seconds < 15
    assert "rank 1: runs h (custom call of 'forever', step " in errors, errors
    assert (
        all(f"rank {rank}: " in errors for rank in range(4))
        and "is in r number 0 among {0-3}" in errors
    ), errors


def test_inputs_that_do_not_fit(tmp_path):
    text = tmp_path / "m.txt"
    text.write_text(SUM.replace("OPERATION", "negate(p)"))
    code, _, errors, _ = mpi(4, text, "--inputs", tmp_path / "nowhere.npz")
    assert code == 2 and errors.count("nowhere.npz: cannot be read") == 1, errors
    code, _, errors, _ = mpi(4, module("fsdp_L2"))
    assert code == 2 and errors.count("partitioned for 8 ranks, and there are 4 processes") == 1, (
        errors
    )
    code, _, errors, _ = mpi(4, text, "--inputs", HLO / "fsdp_L2.ranks.npz")
    assert code == 2 and "and the module has 1 parameters on 4 ranks" in errors, errors
    code, _, errors, _ = mpi(4, tmp_path / "nothing.txt")
    assert code == 2 and errors.count("nothing.txt: cannot be read") == 1, errors


def test_times_are_those_that_schedule_takes(tmp_path):
    times = tmp_path / "times.json"
    code, _, errors, _ = mpi(
        8, module("fsdp_L2"), "--input-order", "--steps", 3, "--profile-out", times
    )
    assert code == 0, errors
    assert json.loads(times.read_text())["all-gather"] > 0
    run("schedule", module("fsdp_L2"), "--profile", times, "--effort", "quick")


def test_threads_under_mpirun_are_refused():
    module = HLO / "fsdp_L2.after_optimizations.txt.gz"
    started = {**os.environ, "OMPI_COMM_WORLD_SIZE": "8"}
    done = subprocess.run(
        [HALFLAP, "run", module], capture_output=True, text=True, timeout=60, env=started
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--backend mpi" in done.stderr
