"""Ranks that are processes of Open MPI, beside ranks that are threads: the numbers of JAX, and an end to everything that goes
wrong."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

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


def module(name, stage="after_spmd_partitioning"):
    return HLO / f"{name}.{stage}.txt.gz"


def left_over():
    """Processes of the command, and shared memory."""
    found = subprocess.run(["ps", "-eo", "pid=,stat=,args="], capture_output=True, text=True).stdout.splitlines()
    ours = [line for line in found if f"{HALFLAP} run" in line and line.split()[1][0] != "Z"]
    memory = {path.name for path in pathlib.Path("/dev/shm").iterdir()}
    return ours, memory


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
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout, done.stderr, time.monotonic() - started


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


def test_every_collective_as_on_threads(tmp_path):
    groups = "channel_id=1, replica_groups={{0,2},{1,3}}, use_global_device_ids=true"
    kinds = ["f32", "bf16", "s32", "pred"]
    bodies = []
    for kind in kinds:
        ops = ["and", "or"] if kind == "pred" else ["add", "multiply", "minimum", "maximum"]
        for op in ops:
            bodies.append((kind, op, f"{kind}[4,6,2] all-reduce(p), {groups}, to_apply=f"))
        if kind != "pred":
            bodies.append((kind, "add", f"{kind}[4,3,2] reduce-scatter(p), {groups}, dimensions={{1}}, to_apply=f"))
        bodies.append((kind, "and" if kind == "pred" else "add", f"{kind}[4,12,2] all-gather(p), {groups}, dimensions={{1}}"))
    move = "channel_id=1, replica_groups={{2,0},{1,3}}"
    bodies.append(("f32", "add", f"f32[4,6,2] all-to-all(p), {move}, dimensions={{1}}"))
    bodies.append(("f32", "add", f"(f32[4,6,2], f32[4,6,2]) all-to-all(p, n), {move}"))
    bodies.append(("f32", "add", "f32[4,6,2] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,0}}"))
    bodies.append(("f32", "add", f"f32[4,6,2] collective-broadcast(p), {move}"))
    # All in one module: a run of MPI takes a while to start.
    lines, applied, results = [], [], []
    for index, (kind, op, body) in enumerate(bodies):
        applied.append(f"f{index} {{ a = {kind}[] parameter(0)\n b = {kind}[] parameter(1)\n ROOT c = {kind}[] {op}(a, b) }}")
        body = body.replace("to_apply=f", f"to_apply=f{index}").replace("(p", f"(p_{kind}").replace(" n)", " n)")
        lines.append(f"  r{index} = {body}")
        results.append(index)
    # Inputs that are made are the same on all ranks: each adds its own number.
    parameters = ["  id = u32[] partition-id()", "  one = u32[] constant(1)", "  is = pred[] compare(id, one), direction=EQ"]
    for index, kind in enumerate(kinds):
        own = "is" if kind == "pred" else f"i_{kind}"
        parameters += [f"  {own} = {kind}[] convert(id)"] if kind != "pred" else []
        parameters.append(f"  b_{kind} = {kind}[4,6,2] broadcast({own}), dimensions={{}}")
        parameters.append(f"  q_{kind} = {kind}[4,6,2] parameter({index})")
        parameters.append(f"  p_{kind} = {kind}[4,6,2] {'xor' if kind == 'pred' else 'add'}(q_{kind}, b_{kind})")
    used = [index for index in results if not bodies[index][2].startswith("(")]
    pair = next(index for index in results if bodies[index][2].startswith("("))
    lines += [f"  g{part} = f32[4,6,2] get-tuple-element(r{pair}), index={part}" for part in (0, 1)]
    shapes = [bodies[index][2].split()[0] for index in used] + ["f32[4,6,2]"] * 2
    root = f"  ROOT t = ({', '.join(shapes)}) tuple({', '.join([f'r{index}' for index in used] + ['g0', 'g1'])})"
    entry = "\n".join(["ENTRY e {", *parameters, "  n = f32[4,6,2] negate(p_f32)", *lines, root, "}"])
    text = tmp_path / "m.txt"
    text.write_text("HloModule m, num_partitions=4\n" + "\n".join(applied) + "\n" + entry + "\n")
    code, _, errors, _ = mpi(4, text, "--seed", 3, "-o", tmp_path / "mpi.npz")
    assert code == 0, errors
    run("run", text, "--seed", 3, "-o", tmp_path / "threads.npz")
    assert worst(read(tmp_path / "mpi.npz"), read(tmp_path / "threads.npz"), 1e-6, 1e-7) <= 1


def test_both_orders_are_compared():
    code, text, errors, _ = mpi(8, module("fsdp_L2"), "--compare", "--steps", 3, "--effort", "quick")
    assert code == 0, errors
    assert "ours over own" in text


def test_a_killed_rank_ends_all():
    """At three random moments: before, in and after the run."""
    for delay in [random.uniform(0.0, 0.4), random.uniform(0.4, 1.0), random.uniform(1.0, 2.0)]:
        command = [*MPIRUN, "8", HALFLAP, "run", str(module("fsdp_L2")), "--backend", "mpi"]
        command += ["--input-order", "--steps", "1000000", "--timeout", "10s"]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(delay)
        victims = []
        while not victims and started.poll() is None:
            victims = [int(line.split()[0]) for line in left_over()[0] if "mpirun" not in line]
        os.kill(random.choice(victims), signal.SIGKILL)
        _, errors = started.communicate(timeout=30)
        assert started.returncode != 0
        assert "signal 9 (Killed)" in errors, errors


def test_a_panic_ends_all():
    code, _, errors, seconds = mpi(8, module("fsdp_L2"), "--input-order", "--panic", "3:21", "--timeout", "20s")
    assert code != 0 and "rank 3 panicked at" in errors and seconds < 15


def test_another_order_is_found_out(tmp_path):
    order = tmp_path / "order.json"
    run("schedule", module("fsdp_L2"), "--effort", "quick", "-o", order)
    code, _, errors, seconds = mpi(8, module("fsdp_L2"), "--input-order", "--order-for", f"5={order}")
    assert code != 0 and "Rank 0 and rank 5 first differ at step\n  rank 0: " in errors and seconds < 20
    assert errors.count("the plans of the ranks differ") == 1


def test_a_custom_call_that_never_returns(tmp_path):
    (tmp_path / "f.c").write_text("#include <unistd.h>\nvoid forever(void *o, const void **i) { for (;;) pause(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "f.so", tmp_path / "f.c"], check=True)
    text = tmp_path / "m.txt"
    text.write_text(SUM.replace("OPERATION", 'custom-call(p), custom_call_target="forever"'))
    code, _, errors, seconds = mpi(4, text, "--custom-calls", tmp_path / "f.so", "--timeout", "1s")
    assert code != 0 and seconds < 15
    assert "nothing was completed for 1 s." in errors
    assert all(f"rank {rank}: runs n (step " in errors for rank in range(4)), errors


def test_one_rank_that_does_not_come(tmp_path):
    """Rank 1 hangs in a custom call, the others in the all-reduce that follows: each says so."""
    (tmp_path / "f.c").write_text("#include <unistd.h>\nvoid forever(void *o, const void **i) { for (;;) pause(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "f.so", tmp_path / "f.c"], check=True)
    text = tmp_path / "m.txt"
    slow = "slow { p = f32[4] parameter(0)\n ROOT h = f32[4] custom-call(p), custom_call_target=\"forever\" }\n"
    quick = "quick { p = f32[4] parameter(0)\n ROOT n = f32[4] negate(p) }\n"
    choice = "conditional(is, p, p), true_computation=slow, false_computation=quick"
    who = "id = u32[] partition-id()\n  one = u32[] constant(1)\n  is = pred[] compare(id, one), direction=EQ\n  n ="
    whole = SUM.replace("OPERATION", choice).replace("  n =", f"  {who}", 1).replace("ENTRY", slow + quick + "ENTRY")
    text.write_text(whole)
    code, _, errors, seconds = mpi(4, text, "--custom-calls", tmp_path / "f.so", "--timeout", "1s")
    assert code != 0 and seconds < 15
    assert "rank 1: runs h (step " in errors, errors
    assert all(f"rank {rank}: " in errors for rank in range(4)) and "is in r number 0 among {0-3}" in errors, errors


def test_inputs_that_do_not_fit(tmp_path):
    text = tmp_path / "m.txt"
    text.write_text(SUM.replace("OPERATION", "negate(p)"))
    code, _, errors, _ = mpi(4, text, "--inputs", tmp_path / "nowhere.npz")
    assert code == 2 and errors.count("nowhere.npz: cannot be read") == 1, errors
    code, _, errors, _ = mpi(4, module("fsdp_L2"))
    assert code == 2 and errors.count("partitioned for 8 ranks, and there are 4 processes") == 1, errors
    code, _, errors, _ = mpi(4, text, "--inputs", HLO / "fsdp_L2.ranks.npz")
    assert code == 2 and "and the module has 1 parameters on 4 ranks" in errors, errors
    code, _, errors, _ = mpi(4, tmp_path / "nothing.txt")
    assert code == 2 and errors.count("nothing.txt: cannot be read") == 1, errors


def test_times_are_those_that_schedule_takes(tmp_path):
    times = tmp_path / "times.json"
    code, _, errors, _ = mpi(8, module("fsdp_L2"), "--input-order", "--steps", 3, "--profile-out", times)
    assert code == 0, errors
    assert json.loads(times.read_text())["all-gather"] > 0
    run("schedule", module("fsdp_L2"), "--profile", times, "--effort", "quick")
