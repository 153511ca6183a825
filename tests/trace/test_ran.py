"""Traces of what ranks really did."""

import re

import pytest
from command import ROOT, read_json, run
from test_trace import Decoded

MODULE = ROOT / "tests" / "hlo" / "fsdp_L2.after_spmd_partitioning.txt.gz"
PLANNED = re.compile(r"^ +\d+  (launch|start) +(\S+)", re.MULTILINE)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run's trace in both forms, and what the plan has."""
    folder = tmp_path_factory.mktemp("ran")
    for name in ["t.pftrace", "t.json"]:
        run(
            "run",
            MODULE,
            "--input-order",
            "--steps",
            2,
            "--emulate-link",
            "1GB/s,100us",
            "--trace",
            folder / name,
        )
    plan = PLANNED.findall(run("plan", MODULE, "--input-order"))
    return Decoded(folder / "t.pftrace"), read_json(folder / "t.json")["traceEvents"], plan


def node(found):
    """What the plan calls it: slices are named by parameter or module where these are known."""
    return found.notes.get("node", found.name)


def test_every_rank_has_what_the_plan_has(ran):
    trace, _, plan = ran
    starts = [name for step, name in plan if step == "start"]
    kernels = [name for step, name in plan if step == "launch"]
    assert {found.process for found in trace.slices} == {f"rank {rank}" for rank in range(8)}
    for rank in range(8):
        own = [found for found in trace.slices if found.process == f"rank {rank}"]
        beside = sorted(
            (found for found in own if found.track != "compute"), key=lambda found: found.start
        )
        assert sorted(map(node, beside)) == sorted(starts)
        # Compute runs in the plan's sequence; waits stand between kernels.
        compute = sorted(
            (found for found in own if found.track == "compute"), key=lambda found: found.start
        )
        assert [node(found) for found in compute if not found.name.startswith("for ")] == kernels
        assert all(found.end - found.start >= 100_000 for found in beside), (
            "a collective takes the link's latency"
        )


def test_a_wait_ends_after_its_collective(ran):
    trace, _, _ = ran
    ends = {
        (found.process, found.name): found.end for found in trace.slices if found.track != "compute"
    }
    waits = [
        found
        for found in trace.slices
        if found.track == "compute" and found.name.startswith("for ")
    ]
    assert waits
    for found in waits:
        assert found.end >= ends[found.process, found.name.removeprefix("for ")]


def test_the_other_form_has_the_same_names(ran):
    trace, events, _ = ran
    names = sorted(found.name for found in trace.slices)
    assert sorted(event["name"] for event in events if event["ph"] == "X") == names
