"""What a run finds wrong, on ranks that are processes of Open MPI: the same rank and kernel as on
threads."""

import json
import shutil
import subprocess

import numpy as np
import pytest
from command import HALFLAP

pytestmark = pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")

RANKS = 4
AMONG = "replica_groups={}, use_global_device_ids=true, to_apply=add"
FOUR = f"""HloModule four, num_partitions={RANKS}
add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }}
ENTRY e {{ p = f32[4] parameter(0)
  n = f32[4] negate(p)
  r = f32[4] all-reduce(n), channel_id=1, {AMONG}
  x = f32[4] log(n)
  q = f32[4] all-reduce(x), channel_id=2, {AMONG}
  s = f32[4] all-reduce(r), channel_id=3, {AMONG}
  ROOT t = f32[4] add(q, s) }}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "m.txt").write_text(FOUR)
    arrays = {f"in_000_r{rank}": np.full(4, -1.0, np.float32) for rank in range(RANKS)}
    # Only rank 2 takes the logarithm of something below zero.
    arrays["in_000_r2"][1] = 5
    np.savez(tmp_path / "in.npz", **arrays)
    return tmp_path


def run(folder, *options):
    command = [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        str(RANKS),
        HALFLAP,
        "run",
        "m.txt",
    ]
    command += [
        "--backend",
        "mpi",
        "--input-order",
        "--inputs",
        "in.npz",
        "--timeout",
        "3s",
        *options,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "more",
    [[], ["--launch-blocking"], ["--no-memory-caching"]],
    ids=["plain", "blocking", "guarded"],
)
def test_who_made_the_first_nan(folder, more):
    code, _, errors = run(folder, "--nan-asserts", *more)
    assert code == 1 and "error: rank 2: kernel 'x' makes NaN at [1] of buffer 'x'" in errors, (
        errors
    )


PAIRS = "frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2},{2,3}}}"
CHAIN = f"""HloModule chain, num_partitions={RANKS}
ENTRY e {{ p = f32[4] parameter(0)
  t = token[] after-all()
  r = (f32[4], u32[], token[]) recv(t), channel_id=1, {PAIRS}
  d = (f32[4], token[]) recv-done(r), channel_id=1
  y = f32[4] get-tuple-element(d), index=0
  n = f32[4] negate(p)
  x = f32[4] log(n)
  m = f32[4] add(x, y)
  s = (f32[4], u32[], token[]) send(m, t), channel_id=1, {PAIRS}
  e = token[] send-done(s), channel_id=1
  ROOT o = f32[4] add(m, y) }}
"""


@pytest.mark.parametrize("backend", ["mpi", "threads"])
def test_who_sends_a_nan_is_blamed_and_not_who_receives_it(folder, backend):
    """Rank 3 receives at an earlier step than the one at which rank 2 makes it."""
    (folder / "m.txt").write_text(CHAIN)
    if backend == "mpi":
        code, _, errors = run(folder, "--nan-asserts", "--no-fuse")
    else:
        command = [HALFLAP, "run", "m.txt", "--input-order", "--inputs", "in.npz"]
        command += ["--nan-asserts", "--no-fuse"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20)
        code, errors = done.returncode, done.stderr
    assert code == 1 and "rank 2: kernel 'x' makes NaN at [1]" in errors, errors


def test_lifetimes(folder):
    code, _, errors = run(folder, "--check-lifetimes", "assert", "--inject", "free-early=n")
    assert (
        code == 1
        and "rank 0, after 'r'" in errors
        and "'n' was freed and should still be alive" in errors
    ), errors
    assert run(folder, "--check-lifetimes", "assert")[0] == 0


@pytest.mark.parametrize(
    "fault, who, what",
    [
        ("skip-collective=2:r", "rank 2 diverged", "it skipped 'r'"),
        ("skip-collective=3:s", "rank 3 is behind", "has no collectives left to issue"),
        ("double-collective=1:s", "rank 1 reached 's'", "one too many"),
        ("swap-collectives=2:q,s", "rank 2 diverged", "'q' and 's' in the opposite order"),
        ("stall=1:x", "rank 1 is behind", "its last was 'r'"),
    ],
)
def test_ranks_that_go_another_way(folder, fault, who, what):
    code, _, errors = run(folder, "--flight-recorder=f.json", "--inject", fault)
    account = [line for line in errors.splitlines() if line.startswith("flight recorder: ")]
    assert code == 1 and account and who in account[0] and what in account[0], errors
    assert json.loads((folder / "f.json").read_text())["format"] == "halflap.flight/1"


def test_values_of_a_tensor_stay_together(folder):
    code, out, errors = run(folder, "--debug-values", "2")
    assert code == 0, errors
    lines = out.splitlines()
    starts = [place for place, line in enumerate(lines) if " - " in line]
    # The input, and what five kernels and collectives take and give, `t` two arrays.
    assert len(starts) == RANKS * (1 + 2 * 6 + 1)
    for place in starts:
        assert lines[place + 2 : place + 5] == [
            "Number of elements: 4",
            "Size: [4]",
            "Dtype: f32",
        ], lines[place : place + 11]


def test_a_fault_names_its_rank(folder):
    code, _, errors = run(
        folder, "--no-memory-caching", "--inject", "mutate-input=x", "--fault-report", "f.json"
    )
    assert (
        code == 4 and "kernel 'x'" in errors and "which it must only read: buffer 'n'" in errors
    ), errors
    lines = (folder / "f.json").read_text().splitlines()
    assert all(json.loads(line)["kind"] == "write-to-input" for line in lines) and lines
