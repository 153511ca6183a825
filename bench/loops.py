#!/usr/bin/env python3
"""What an iteration of a loop costs: `halflap run` beside JAX, if this Python has it.

    python bench/loops.py [--halflap BIN] [--rounds 5]

Loops: one that only counts; one with a small body; one that writes one row of a large array in every iteration, which
must be done in place; a loop in a loop; a branch in a loop; and one with an all-reduce on two ranks, which cannot run
on one thread. Prints the median time of an iteration, in microseconds.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

HEAD = """HloModule loop{ranks}

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}
{more}
goes {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant({count})
  ROOT g = pred[] compare(i, n), direction=LT
}}

turn {{
  t = {state} parameter(0)
  j = s32[] get-tuple-element(t), index=0
  x = {array} get-tuple-element(t), index=1
  one = s32[] constant(1)
  k = s32[] add(j, one)
{body}
  ROOT u = {state} tuple(k, y)
}}

ENTRY main {{
  p = {array} parameter(0)
  zero = s32[] constant(0)
  begin = {state} tuple(zero, p)
  loop = {state} while(begin), condition=goes, body=turn
  ROOT r = {array} get-tuple-element(loop), index=1
}}
"""

INNER = """
runs {
  s1 = (s32[], f32[]) parameter(0)
  i1 = s32[] get-tuple-element(s1), index=0
  n1 = s32[] constant(10)
  ROOT g1 = pred[] compare(i1, n1), direction=LT
}

inner {
  t1 = (s32[], f32[]) parameter(0)
  j1 = s32[] get-tuple-element(t1), index=0
  x1 = f32[] get-tuple-element(t1), index=1
  one1 = s32[] constant(1)
  k1 = s32[] add(j1, one1)
  half = f32[] constant(0.5)
  y1 = f32[] multiply(x1, half)
  ROOT u1 = (s32[], f32[]) tuple(k1, y1)
}
"""
BRANCHES = """
halves {
  x1 = f32[] parameter(0)
  half = f32[] constant(0.5)
  ROOT y1 = f32[] multiply(x1, half)
}

doubles {
  x2 = f32[] parameter(0)
  ROOT y2 = f32[] add(x2, x2)
}
"""

# Name, array, iterations of the innermost loop, iterations, body, further computations, ranks.
LOOPS = [
    ("count", "f32[]", 100_000, 100_000, "  y = f32[] copy(x)", "", 1),
    ("small body", "f32[8]", 100_000, 100_000, "  z = f32[8] multiply(x, x)\n  y = f32[8] subtract(z, x)", "", 1),
    (
        "update in place",
        "f32[1048576]",
        10_000,
        10_000,
        "  f = f32[1] constant({1})\n  y = f32[1048576] dynamic-update-slice(x, f, j)",
        "",
        1,
    ),
    (
        "loop in a loop",
        "f32[]",
        100_000,
        10_000,
        "  zero1 = s32[] constant(0)\n  begin1 = (s32[], f32[]) tuple(zero1, x)\n"
        "  loop1 = (s32[], f32[]) while(begin1), condition=runs, body=inner\n  y = f32[] get-tuple-element(loop1), index=1",
        INNER,
        1,
    ),
    (
        "branch in a loop",
        "f32[]",
        100_000,
        100_000,
        "  two = s32[] constant(2)\n  rest = s32[] remainder(j, two)\n"
        "  y = f32[] conditional(rest, x, x), branch_computations={halves, doubles}",
        BRANCHES,
        1,
    ),
    (
        "all-reduce in a loop",
        "f32[8]",
        2_000,
        2_000,
        "  y = f32[8] all-reduce(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add",
        "",
        2,
    ),
]


def text(loop):
    _, array, _, count, body, more, ranks = loop
    state = f"(s32[], {array})"
    ranks = f", num_partitions={ranks}" if ranks > 1 else ""
    return HEAD.format(ranks=ranks, more=more, state=state, count=count, array=array, body=body)


def ours(halflap, path):
    command = [halflap, "run", str(path), "--json", "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return min(json.loads(done.stdout)["step_times"]) / 1e9


def xla(loop):
    """The time of a run by XLA, or nothing."""
    try:
        import jax
        import numpy as np
        from jax._src.lib import xla_client
    except ImportError:
        return None
    if loop[6] > 1:
        return None
    backend = jax.devices("cpu")[0].client
    module = xla_client._xla.hlo_module_from_text(text(loop))
    built = xla_client.XlaComputation(module.as_serialized_hlo_module_proto())
    devices = xla_client.DeviceList(tuple(jax.devices("cpu")[:1]))
    stablehlo = xla_client._xla.mlir.xla_computation_to_mlir_module(built)
    run = backend.compile_and_load(stablehlo, devices)
    dims = [int(n) for n in loop[1][4:-1].split(",") if n]
    given = backend.buffer_from_pyval(np.ones(dims, np.float32), jax.devices("cpu")[0])
    times = []
    for _ in range(3):
        began = time.perf_counter()
        run.execute([given])[0].block_until_ready()
        times.append(time.perf_counter() - began)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--halflap", default=os.environ.get("HALFLAP", str(ROOT / "target" / "release" / "halflap")))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("| loop | iterations | halflap, us each | XLA, us each |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for loop in LOOPS:
            path = Path(folder) / "loop.txt"
            path.write_text(text(loop))
            each = lambda seconds: f"{seconds / loop[2] * 1e6:.2f}"
            theirs = xla(loop)
            median = statistics.median(ours(args.halflap, path) for _ in range(args.rounds))
            print(f"| {loop[0]} | {loop[2]} | {each(median)} | {each(theirs) if theirs else ''} |", flush=True)


if __name__ == "__main__":
    main()
