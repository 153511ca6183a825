"""What `measure` and `tune` make of what they are given; no ranks."""

import json
import math
import pathlib
import random
import sys
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import torch

import halflap.torch
from halflap.torch import _measure, _traced
from halflap.torch._checked import read_options
from halflap.torch._measure import put_on_one_clock, waited_at_once
from halflap.torch._profile import Measured, read_profile
from halflap.torch._race import in_the_race, is_clear, ratio
from halflap.torch._rates import Link, Rates
from halflap.torch._tune import Candidate, Field, Row, choice, read_tuned, row_of

FOLDER = pathlib.Path(sys.argv[1])


def raises(kind, part, function, *given):
    try:
        function(*given)
    except kind as problem:
        assert part in str(problem), problem
    else:
        raise AssertionError(f"{function} took {given}")


def rounds_of(**seconds):
    """Rounds with these durations, by candidate."""
    return [dict(zip(seconds, one)) for one in zip(*seconds.values())]


# Two values are averaged in three ways; of seven, the two outermost averages at either end are
# outside, as in tables of Wilcoxon's test.
found = ratio("free", "default", rounds_of(default=[1.0, 1.0], free=[0.5, 2.0]))
assert [round(one, 9) for one in found] == [1.0, 0.5, 2.0]
found = ratio("free", "default", rounds_of(default=[1.0] * 7, free=[2.0**n for n in range(7)]))
assert [round(math.log2(one), 9) for one in found] == [3.0, 1.0, 5.0]
# How often the interval has the true ratio, whatever both have in common.
dice, inside = random.Random(0), 0
for _ in range(1000):
    drift = [math.exp(dice.gauss(0.0, 1.0)) for _ in range(15)]
    one = [drift * dice.lognormvariate(0.0, 0.1) for drift in drift]
    other = [0.9 * drift * dice.lognormvariate(0.0, 0.1) for drift in drift]
    found = ratio("free", "default", rounds_of(default=one, free=other))
    inside += found.low <= 0.9 <= found.high
assert 0.93 < inside / 1000 < 0.97, inside

# What is slower than the fastest beyond doubt leaves the race; torch's default stays, and so does
# what may be as fast.
wobble = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98]
race = {"default": wobble, "none": [2.0] * 6, "kept": [0.9] * 6, "free": wobble[::-1]}
race["free"] = [0.9 * one for one in race["free"]]
names = [*race]
assert in_the_race(names, "default", rounds_of(**race)) == ["default", "kept", "free"]
assert in_the_race(names, "default", rounds_of(**race)[:5]) == names
left = [{name: 1.0 for name in ("default", "kept")}] * 3
assert ratio("none", "default", [*rounds_of(**race), *left]).value > 1.9
assert not is_clear(["default", "free"], "default", rounds_of(**race))
assert is_clear(["default", "kept"], "default", rounds_of(default=[1.0] * 6, kept=[0.9] * 6))

# The fastest, if that is beyond doubt.
default = Row(Candidate("default"), 1.0, 1.0, 1.0, 1.0, 9)
free = Row(Candidate("free"), 0.9, 0.9, 0.85, 0.95, 9)
unsure = Row(Candidate("kept"), 0.8, 0.8, 0.7, 1.01, 9)
assert choice([default, free]) == free.candidate
assert choice([default, unsure]) == default.candidate
assert choice([default, replace(free, rounds=5)]) == default.candidate
row = row_of(Candidate("free"), rounds_of(default=[2.0, 4.0, 1.0], free=[1.0, 3.0, 0.9]))
assert (row.seconds, row.rounds) == (1.0, 3) and 0.5 < row.ratio < 0.9, row


def node(name, kind, outputs=(), reads=()):
    deps = [{"buffer": buffer, "kinds": ["data"]} for buffer in reads]
    return {"name": name, "kind": kind, "outputs": list(outputs), "deps": deps}


# Each wait follows its collective; one of a collective elsewhere stays.
program = [
    node("elsewhere", "wait", ["w"], ["given"]),
    node("gather", "collective", ["g"]),
    node("compute", "compute", ["c"]),
    node("scatter", "collective", ["s"], ["c"]),
    node("wait gather", "wait", ["wg"], ["g"]),
    node("wait scatter", "wait", ["ws"], ["c", "s"]),
]
order = ["elsewhere", "gather", "wait gather", "compute", "scatter", "wait scatter"]
assert waited_at_once(program) == order

# Clocks of other hosts are shifted, so that collectives end at the same times.
nodes = [[{"kind": "collective"}, {"kind": "wait"}, {"kind": "compute"}]]
here = {"clock": "a", "nodes": nodes, "runs": [[[0, 10, 11, 30, 50], [100, 110, 111, 130, 150]]]}
there = {"clock": "b", "nodes": nodes, "runs": [[[7000, 7012, 7013, 7030, 7052]]]}
same = {"clock": "a", "nodes": nodes, "runs": [[[5, 15, 16, 35, 55]]]}
every = [here, there, same]
put_on_one_clock(every)
assert there["runs"] == [[[0, 12, 13, 30, 52]]] and same["runs"] == [[[5, 15, 16, 35, 55]]]

# Profiles are plain times, or have all that was measured.
measured = Measured({"mm [2, 2] [2, 2]": 5.0}, 1.2, 1.5, 7.0)
measured.save(FOLDER / "profile.json")
assert read_profile(FOLDER / "profile.json") == read_profile(measured.to_dict()) == measured
assert read_profile({"mm": 1.0}) == Measured({"mm": 1.0})
faster = {**measured.to_dict(), "comm_slowdown": 0.5}
raises(ValueError, "'comm_slowdown' is 0.5", read_profile, faster)
raises(ValueError, "the format is 'x'", read_profile, {"format": "x"})
raises(ValueError, "'times' must be an object", read_profile, {**measured.to_dict(), "times": 3})


# On a GPU, the times of a trace, and of collectives those of the rank that waits for nobody.
class Recorded:
    """A profiler that has seen one kernel and one collective."""

    def __init__(self, record_shapes):
        assert record_shapes, "operators are known by their shapes"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def export_chrome_trace(self, path):
        kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "ts": 10, "dur": 11}
        kernel |= {"name": "triton_poi_fused_add_relu_3", "args": {"stream": 7}}
        pathlib.Path(path).write_text(json.dumps({"traceEvents": [kernel]}))


steps = []
with (
    mock.patch.object(_measure, "may_be_on_gpu", lambda: True),
    mock.patch.object(torch.profiler, "profile", Recorded),
):
    found = halflap.torch.measure(lambda: steps.append(1), steps=3)
assert found == Measured({"fused_add_relu": 11000.0}), found
assert len(steps) == 5, "two that warm up, three that are recorded"
ranks = [
    {"all_gather of 2, 8 bytes": 9.0, "mm [2, 2] [2, 2]": 4.0},
    {"all_gather of 2, 8 bytes": 5.0, "mm [2, 2] [2, 2]": 6.0, "fused_add": 1.0},
]
expected = {"all_gather of 2, 8 bytes": 5.0, "fused_add": 1.0, "mm [2, 2] [2, 2]": 4.0}
assert _traced.together(ranks) == expected

# Sizes that were not measured: a line through two sizes; at one size, the others' latency.
rates = Rates.of(
    {
        "all_gather of 2, 8 bytes": 100.0,
        "all_gather of 2, 1008 bytes": 1100.0,
        "reduce_scatter of 2, 500 bytes": 600.0,
        "all_to_all of 4, 500 bytes": 600.0,
        "mm [4, 8] [8, 2]": 64.0,
        "fused_add, 50 bytes": 100.0,
    }
)
assert rates.collective(Link("all_gather", 2), 508) == 600.0
assert math.isclose(rates.collective(Link("reduce_scatter", 2), 250), 92.0 + 254.0)
assert rates.collective(Link("all_to_all", 4), 250) == 300.0, "no latency is known among four"
assert rates.collective(Link("all_reduce", 2), 250) is None
assert (rates.compute(256, 10), rates.compute(0, 10)) == (128.0, 20.0)

# A rewrite that changed nothing is not tried.
tried = [Candidate("default"), Candidate("free", "1x", "exact")]
field = Field(tried, read_options())
assert [one.name for one in tried] == ["default", "free exact"]
assert field.described("free exact").failure == "there is nothing to rewrite"
assert field.described("default").failure is None

# Files of tune.
bad = FOLDER / "bad.json"
for content, part in (("{", "not JSON"), ("[]", "not a file of tune()")):
    bad.write_text(content)
    raises(ValueError, part, read_tuned, bad)
for reader in (read_tuned, read_profile):
    raises(FileNotFoundError, "there is no file 'none.json'; halflap.torch.", reader, "none.json")
kept = {"format": "halflap.tuned/1", "measured": measured.to_dict(), "effort": "quick"}
for chosen, part in (({"order": "best"}, "the order 'best'"), ({"name": 1}, "run tune() again")):
    bad.write_text(json.dumps({**kept, "chosen": chosen}))
    raises(ValueError, part, read_tuned, bad)
bad.write_text(json.dumps({**kept, "chosen": {"order": "free", "memory_budget": "1.5x"}}))
found = read_tuned(bad)
assert found.candidate == Candidate("free", "1.5x") and found.measured == measured
with halflap.torch.enable(tuned=bad) as enabled:
    options = enabled.overlap_pass.options
    assert (options.memory_budget, options.collective_order) == ("1.5x", "auto")
    assert (options.slowdown, options.comm_slowdown, options.effort) == (1.2, 1.5, "quick")
    # A free order that was measured to be faster is used also where the simulation sees no gain.
    alike = SimpleNamespace(step_time=1.0)
    assert enabled.overlap_pass.is_worth_it(alike, lambda: alike)
with halflap.torch.enable() as enabled:
    faster = SimpleNamespace(step_time=0.9)
    assert enabled.overlap_pass.is_worth_it(faster, lambda: alike)
    assert not enabled.overlap_pass.is_worth_it(alike, lambda: alike)
raises(ValueError, "steps must be", lambda: halflap.torch.measure(print, steps=0))
