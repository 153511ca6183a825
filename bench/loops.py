#!/usr/bin/env python3
"""What an iteration of a loop costs: `halflap run` beside JAX, if this Python has it.

    python bench/loops.py [--halflap BIN] [--rounds 5]

Loops: one that only counts; one with a small body; one that writes one row of a large array in
every iteration, which must be done in place; a loop in a loop; a branch in a loop; and one with an
all-reduce on two ranks. Prints the least time of an iteration over all rounds, in microseconds.
"""

import argparse
import json
import os
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
    (
        "small body",
        "f32[8]",
        100_000,
        100_000,
        "  z = f32[8] multiply(x, x)\n  y = f32[8] subtract(z, x)",
        "",
        1,
    ),
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
    command = [halflap, "run", str(path), "--json", "--steps", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return min(json.loads(done.stdout)["step_times"]) / 1e9


def xla(loop):
    """The time of the same loop in JAX on the CPU, or nothing."""
    try:
        import jax
        import jax.numpy as jnp
        from jax import lax
    except ImportError:
        return None
    name, array, _, count, *_ = loop
    half = lambda x: x * 0.5
    bodies = {
        "count": lambda i, x: x,
        "small body": lambda i, x: x * x - x,
        "update in place": lambda i, x: lax.dynamic_update_slice(x, jnp.ones(1, jnp.float32), (i,)),
        "loop in a loop": lambda i, x: lax.while_loop(
            lambda s: s[0] < 10, lambda s: (s[0] + 1, half(s[1])), (0, x)
        )[1],
        "branch in a loop": lambda i, x: lax.switch(i % 2, [half, lambda x: x + x], x),
    }
    if name not in bodies:
        return None
    turn = lambda s: (s[0] + 1, bodies[name](*s))
    run = jax.jit(lambda x: lax.while_loop(lambda s: s[0] < count, turn, (0, x)))
    given = jnp.ones([int(n) for n in array[4:-1].split(",") if n], jnp.float32)
    times = []
    for _ in range(4):
        began = time.perf_counter()
        jax.block_until_ready(run(given))
        times.append(time.perf_counter() - began)
    return min(times)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--halflap", default=os.environ.get("HALFLAP", str(ROOT / "target" / "release" / "halflap"))
    )
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print("| loop | iterations | halflap, us each | XLA, us each |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for loop in LOOPS:
            path = Path(folder) / "loop.txt"
            path.write_text(text(loop))
            each = lambda seconds: f"{seconds / loop[2] * 1e6:.3f}"
            theirs = xla(loop)
            least = min(ours(args.halflap, path) for _ in range(args.rounds))
            print(
                f"| {loop[0]} | {loop[2]} | {each(least)} | {each(theirs) if theirs else ''} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
