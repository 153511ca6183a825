"""`halflap analyze` on traces made here, against a plain sweep and, where it is installed, HTA.

HALFLAP names the binary (target/release/halflap), HTA_PYTHON a Python that has
HolisticTraceAnalysis (the one that runs the tests, if it has it), TRACES a folder of real traces
(../shared/traces beside the repository). What is not there is skipped.
"""

import gzip
import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import hta_figures
import pytest
import sweep
from command import HALFLAP, ROOT

HTA_PYTHON = os.environ.get("HTA_PYTHON") or (
    sys.executable if importlib.util.find_spec("hta") else None
)
TRACES = Path(os.environ.get("TRACES", ROOT.parent / "shared/traces"))
FIGURES = [
    "span",
    "compute",
    "communication",
    "memory",
    "overlapped",
    "exposed",
    "exposed_beside_memory",
    "idle",
]
HOSTILE = [
    '<script>alert("x")</script>',
    "a\nb\r\tc",
    "\x1b[31mred\x07",
    "\u202egnp",
    '"\'`;--',
    "x" * 10_000_000,
]


def halflap(*args):
    return subprocess.run([HALFLAP, *map(str, args)], capture_output=True, text=True)


def analyze(*args):
    done = halflap("analyze", *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kernel(name, start, duration, stream=7, cat="kernel", **args):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": duration,
        "args": {"device": 0, "stream": stream, "correlation": start, **args},
    }


def host(name, start, duration, thread=1):
    cat = "user_annotation" if name.startswith(("gloo:", "Optimizer")) else "cpu_op"
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": {},
    }


def write(path, events, **top):
    path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": events}))
    return path


def random_trace(seed):
    """Streams that run beside each other, with touching, nested and empty intervals among them."""
    rng = random.Random(seed)
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "pid": 1,
            "tid": 1,
            "ts": 1,
            "dur": 9,
            "args": {},
        }
    ]
    streams = [
        (7, "kernel", "gemm"),
        (8, "kernel", "triton_poi_fused_1"),
        (20, "kernel", "ncclDevKernel_AllReduce"),
        (21, "kernel", "ncclKernel_SendRecv"),
        (9, "gpu_memcpy", "Memcpy HtoD"),
        (7, "gpu_memset", "Memset"),
    ]
    for stream, cat, name in streams:
        at = 1_682_725_898_000_000.0 + rng.randrange(100)
        for number in range(rng.randrange(1, 40)):
            duration = rng.choice([0, 1, 5, 20.125, 60.5, 300])
            events.append(kernel(f"{name}_{number % 3}", round(at, 3), duration, stream, cat))
            at += rng.choice([duration, duration + 3.25, duration / 2, duration + 100])
    rng.shuffle(events)
    return events


def random_cpu_trace(seed):
    """Threads with nested, touching, empty and crossing events, and two threads of gloo."""
    rng = random.Random(seed)
    names = [
        "aten::mm",
        "aten::add",
        "Torch-Compiled Region: 0/0",
        "CompiledFunction",
        "c10d::allreduce_",
        "_c10d_functional::wait_tensor",
        "Optimizer.step#SGD.step",
        "gloo:recv",
    ]
    events = [host("c10d::barrier", 0, 0.5, thread) for thread in (1, 2)]

    def nest(thread, start, end, depth):
        at = start
        while at < end and depth < 5:
            duration = rng.choice([0, 1, 5.125, 20, 60.5])
            over = rng.choice([0, 0, 0, 0.25])
            events.append(host(rng.choice(names), round(at, 3), round(duration + over, 3), thread))
            nest(thread, at, at + duration, depth + 1)
            at += duration + rng.choice([0.5, 0.5, 3])

    for thread in (1, 2):
        nest(thread, 10 + rng.randrange(20), 400, 0)
    for thread in (8, 9):
        at = 0
        while at < 400:
            duration = rng.choice([0, 4, 30.5])
            events += [
                host("gloo:all_reduce", at, duration, thread),
                host("aten::copy_", at, duration, thread),
            ]
            at += duration + rng.choice([0.5, 9])
    rng.shuffle(events)
    return events


@pytest.mark.parametrize("make", [random_trace, random_cpu_trace])
@pytest.mark.parametrize("seed", range(40))
def test_figures_agree_with_a_sweep(tmp_path, seed, make):
    path = write(tmp_path / "t.json", make(seed))
    ours, events = analyze(path)["ranks"][0], sweep.work(sweep.load(path))
    assert {name: ours[name] for name in FIGURES} == sweep.spent(events)
    assert {kernel["name"]: kernel["total"] for kernel in ours["kernels"]} == sweep.totals(events)
    charged = [collective["exposed"] for collective in ours["collectives"]]
    assert charged == sweep.charges(events)
    assert sum(charged) == ours["exposed"]
    assert sum(used["exposed"] for used in ours["operations"]) == ours["exposed"]


def test_a_real_cpu_trace(tmp_path):
    """One step of examples/models.py's fsdp, compiled, on two ranks over gloo (torch 2.15, shapes
    recorded)."""
    paths = [Path(__file__).parent / f"fsdp_gloo_{rank}.json.gz" for rank in (0, 1)]
    file = analyze(
        *paths, "--profile-out", tmp_path / "times.json", "--report", tmp_path / "page.html"
    )
    for rank, path in zip(file["ranks"], paths):
        events = sweep.work(sweep.load(path))
        assert {name: rank[name] for name in FIGURES} == sweep.spent(events)
        assert [collective["exposed"] for collective in rank["collectives"]] == sweep.charges(
            events
        )
        assert rank["processor"] == "cpu" and rank["overlapped"] > 0 and rank["memory"] == 0
        operations = {
            used["operation"]: (used["launches"], used["bytes"]) for used in rank["operations"]
        }
        # Four parameters of 768 KiB in all; three are gathered once more in the backward pass.
        assert operations == {"all_gather": (7, 1344 << 10), "all_reduce": (4, 768 << 10)}
        assert [(group["name"], group["ranks"]) for group in rank["groups"]] == [("0", [0, 1])]
        assert rank["peers"]["unmatched"] == 0
    assert {"aten::mm", "gloo:all_gather"} <= set(json.loads((tmp_path / "times.json").read_text()))
    texts = [
        halflap("analyze", *paths).stdout,
        (tmp_path / "page.html").read_text().split("halflap.page/1")[-1],
    ]
    assert all("gloo" in text and "GPU" not in text for text in texts)


def test_gzip_and_a_bare_list_give_the_same(tmp_path):
    events = random_trace(99)
    plain = analyze(write(tmp_path / "t.json", events))["ranks"][0]
    (tmp_path / "t.json.gz").write_bytes(
        gzip.compress(json.dumps({"traceEvents": events}).encode())
    )
    (tmp_path / "list.json").write_text(json.dumps(events))
    for other in ("t.json.gz", "list.json"):
        assert analyze(tmp_path / other)["ranks"][0] | {"trace": ""} == plain | {"trace": ""}


def test_waiting_is_told_from_transfer(tmp_path):
    """Rank 1 arrives late at every second collective; its clock is 5 ms ahead."""
    rng, paths, group = (
        random.Random(3),
        [],
        {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2},
    )
    late = [rng.choice([0, 200, 900]) for _ in range(30)]
    for rank in (0, 1):
        events = []
        for number, delay in enumerate(late):
            # The third collective is missing on rank 1: counting would pair all others wrongly.
            if rank == 1 and number == 2:
                continue
            end, arrives = 2000 * number + 1500, 2000 * number + 400 + delay * rank
            start = arrives + 5000 * rank
            events.append(
                kernel(
                    "ncclDevKernel_AllGather",
                    start,
                    end + 5000 * rank - start,
                    20,
                    **group,
                    **{"Collective name": "all_gather"},
                )
            )
            events.append(kernel("gemm", start - 300, 200))
        paths.append(
            write(
                tmp_path / f"rank{rank}.json",
                events,
                distributedInfo={"rank": rank, "world_size": 2},
            )
        )
    file = analyze(*paths)
    assert len(file["matches"]) == 29
    assert [rank["peers"]["clock_ahead"] for rank in file["ranks"]] == [0, 5_000_000]
    waited = sum(delay for number, delay in enumerate(late) if number != 2) * 1000
    assert [rank["peers"]["waiting"] for rank in file["ranks"]] == [waited, 0]
    assert not file["waiting_is_at_least"]
    assert [rank["peers"]["unmatched"] for rank in file["ranks"]] == [1, 0]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_names_give_bounded_output(tmp_path, number):
    name = HOSTILE[number]
    events = [kernel(name, 10, 5), kernel("nccl" + name, 12, 9, 20, **{"Process Group Name": name})]
    path = write(tmp_path / "t.json", events)
    done = halflap("analyze", path)
    assert done.returncode == 0 and len(done.stdout) < 4000
    assert not any(ord(letter) < 32 and letter != "\n" for letter in done.stdout)
    assert "\u202e" not in done.stdout
    assert len(json.dumps(analyze(path))) < 20_000


def test_times_by_kernel(tmp_path):
    events = [kernel("triton_a", 100 * i, duration) for i, duration in enumerate([5, 1, 9])]
    path = write(tmp_path / "t.json", events)
    assert halflap("analyze", path, "--profile-out", tmp_path / "times.json").returncode == 0
    assert json.loads((tmp_path / "times.json").read_text()) == {"triton_a": 5000.0}


@pytest.mark.skipif(
    HTA_PYTHON is None, reason="no HolisticTraceAnalysis: tests/requirements-hta.txt"
)
@pytest.mark.parametrize("seed", range(3))
def test_figures_agree_with_hta(tmp_path, seed):
    events = [e for e in random_trace(seed) if e["dur"] > 0]
    info = {"backend": "nccl", "rank": 0, "world_size": 1}
    path = write(
        tmp_path / "t.json",
        hta_figures.level({"traceEvents": events})["traceEvents"],
        distributedInfo=info,
    )
    agrees_with_hta(path)


@pytest.mark.skipif(HTA_PYTHON is None or not TRACES.is_dir(), reason="no HTA, or no real traces")
@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json.gz")), ids=lambda path: path.name)
def test_figures_agree_with_hta_on_real_traces(tmp_path, path):
    level = tmp_path / "level.json"
    level.write_text(json.dumps(hta_figures.level(sweep.load(path)), default=float))
    agrees_with_hta(level)


def agrees_with_hta(path):
    done = subprocess.run(
        [HTA_PYTHON, hta_figures.__file__, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    theirs, ours = json.loads(done.stdout.splitlines()[-1]), analyze(path)["ranks"][0]
    for name in ("span", "compute", "idle"):
        assert theirs[name] * 1000 == ours[name], name
    assert abs(theirs["overlap"] - 100 * ours["overlapped"] / ours["communication"]) < 0.0051


@pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces")
@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json.gz")), ids=lambda path: path.name)
def test_real_traces_agree_with_a_sweep(path):
    ours, events = analyze(path)["ranks"][0], sweep.work(sweep.load(path))
    assert {name: ours[name] for name in FIGURES} == sweep.spent(events)
    assert [collective["exposed"] for collective in ours["collectives"]] == sweep.charges(events)
