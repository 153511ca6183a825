#!/usr/bin/env python3
"""Training steps of transformers and other programs: JAX's own step time beside that of `halflap
run`, on the same cores.

    python bench/run_speed.py [--halflap BIN] [--before BIN] [--width 512] [--layers 2] [--rounds 7]
        [--keep FOLDER] [NAME...]

Makes the modules with JAX (one device; FSDP and tensor parallel on several devices of the host),
runs JAX and halflap in turns, and writes docs/run-speed.md anew: the median of the ratios of all
rounds, and the kernels that take most. With --before, another build of halflap takes part in every
round, and its column says by what factor it is slower. Needs jax.
"""

import argparse
import datetime
import json
import os
import re
import statistics
import tempfile
import time
from pathlib import Path

import jax_modules
from jax_modules import STAGES, make, mesh, place
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import common
from compare import build_halflap, cpu_model, version_of
from speed_programs import MATMULS, OTHERS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "run-speed.md"
VOCABULARY = 1024
HEADS = 8
# The largest ratio that is not named as too slow.
MOST = 1.5
# What the column of another build is.
COMPARED = (
    " `before` is another build of halflap in the same rounds, and by what factor it is slower."
)
UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def weights(width, layers):
    """Arrays by name, and for each how tensor parallelism cuts it."""
    random = np.random.default_rng(0)
    normal = lambda *shape: (random.standard_normal(shape) * 0.05).astype(np.float32)
    cuts = {
        "g1": (None,),
        "g2": (None,),
        "qkv": (None, None, "x", None),
        "out": ("x", None, None),
        "up": (None, "x"),
        "down": ("x", None),
    }
    layer = lambda: {
        "g1": np.ones(width, np.float32),
        "g2": np.ones(width, np.float32),
        "qkv": normal(width, 3, HEADS, width // HEADS),
        "out": normal(HEADS, width // HEADS, width),
        "up": normal(width, 4 * width),
        "down": normal(4 * width, width),
    }
    arrays = {
        "embed": normal(VOCABULARY, width),
        "head": normal(width, VOCABULARY),
        "layers": [layer() for _ in range(layers)],
    }
    return arrays, {"embed": (None, None), "head": (None, "x"), "layers": [cuts] * layers}


def norm(x, g):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g


def block(p, x):
    h = norm(x, p["g1"])
    q, k, v = jnp.einsum("bsd,dchk->cbshk", h, p["qkv"])
    s = jnp.einsum("bshk,bthk->bhst", q, k) / np.sqrt(q.shape[-1])
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -1e9)
    a = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(s, -1), v)
    x = x + jnp.einsum("bshk,hkd->bsd", a, p["out"])
    return x + jax.nn.gelu(norm(x, p["g2"]) @ p["up"]) @ p["down"]


def step(p, tokens):
    def loss(p):
        x = p["embed"][tokens]
        for layer in p["layers"]:
            x = block(layer, x)
        logits = jax.nn.log_softmax(x[:, :-1] @ p["head"], -1)
        return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()

    value, grads = jax.value_and_grad(loss)(p)
    return jax.tree.map(lambda p, g: p - 0.1 * g, p, grads), value


def fsdp(array, grid):
    """The first dimension that can be cut is cut."""
    count = grid.devices.size
    cut = next((dim for dim, size in enumerate(array.shape) if size % count == 0), None)
    return place(array, grid, *["x" if dim == cut else None for dim in range(array.ndim)])


def programs(options):
    """Every program: its name, its function and its arguments."""
    arrays, cuts = weights(options.width, options.layers)
    tokens = (
        np.random.default_rng(1)
        .integers(0, VOCABULARY, (options.batch, options.length))
        .astype(np.int32)
    )
    found = {"dense_1": (step, (arrays, tokens))}
    for count in options.devices:
        grid = mesh((count,), ("x",))
        leaves, tree = jax.tree.flatten(arrays)
        specs = jax.tree.flatten(cuts, is_leaf=lambda leaf: isinstance(leaf, tuple))[0]
        cut = jax.tree.unflatten(tree, [place(a, grid, *spec) for a, spec in zip(leaves, specs)])
        sharded = jax.tree.map(lambda a: fsdp(a, grid), arrays)
        found[f"fsdp_{count}"] = (step, (sharded, place(tokens, grid, "x")))
        found[f"tp_{count}"] = (step, (cut, place(tokens, grid)))
    chosen = lambda name: not options.names or name in options.names
    found = {name: made for name, made in found.items() if chosen(name)}
    return found | {name: make_it() for name, make_it in OTHERS.items() if chosen(name)}


def jax_time(made, steps):
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        jax.block_until_ready(made.step(*made.args))
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e9


def halflap_time(options, path, made, profile=None, binary=None):
    command = [
        binary or options.halflap,
        "run",
        path,
        "--inputs",
        made.arrays,
        "--steps",
        options.steps + 1,
        "--effort",
        "quick",
    ]
    shown = common.run(command + (["--profile-out", profile] if profile else []))
    value, unit = re.search(
        r"step time\s+([\d.]+) (\w+)", re.sub(r"\x1b\[[0-9;]*m", "", shown)
    ).groups()
    return float(value) * UNITS[unit]


def kernels(profile, path):
    """What the kernels of a rank take together, by their kind, the longest first."""
    text = path.read_text()
    kinds = dict(re.findall(r"^\s+(?:ROOT )?%?([\w.-]+) = [^=]*? ([\w-]+)\(", text, re.M))
    sums = {}
    for name, nanos in json.loads(profile.read_text()).items():
        kind = kinds.get(name, "other")
        sums[kind] = sums.get(kind, 0.0) + nanos
    return sorted(sums.items(), key=lambda item: -item[1])


def measure(name, made, options, folder):
    rounds = {stage: [] for stage in STAGES}
    for _ in range(options.rounds):
        for stage in STAGES:
            ours_first = len(rounds[stage]) % 2 == 0
            ours = halflap_time(options, made.texts[stage], made) if ours_first else None
            theirs = jax_time(made, options.steps)
            ours = ours or halflap_time(options, made.texts[stage], made)
            before = options.before and halflap_time(
                options, made.texts[stage], made, binary=options.before
            )
            rounds[stage].append((ours, theirs, before or 0.0))
    rows, tables = [], []
    for stage, times in rounds.items():
        ratio = statistics.median(ours / theirs for ours, theirs, _ in times)
        gain = statistics.median(before / ours for ours, _, before in times)
        ours, theirs, before = (statistics.median(column) / 1e6 for column in zip(*times))
        rows.append([name, stage, f"{theirs:.1f} ms", f"{ours:.1f} ms", f"{ratio:.2f}"])
        if options.before:
            rows[-1][3:3] = [f"{before:.1f} ms ({gain:.2f}x)"]
        print(*rows[-1], sep="  ", flush=True)
        profile = folder / "profile.json"
        halflap_time(options, made.texts[stage], made, profile)
        tables.append((f"{name}, {stage}", ours, kernels(profile, made.texts[stage])))
    return rows, tables


def table(rows):
    lines = [rows[0], ["---"] + ["---:"] * (len(rows[0]) - 1)] + rows[1:]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def means(rows):
    """The geometric means of the ratios, of what is mostly matrix products and of the others."""
    is_other = lambda row: row[0] in OTHERS and row[0] not in MATMULS
    ratios = lambda others: [float(row[-1]) for row in rows[1:] if is_other(row) == others]
    shown = lambda found: f"{statistics.geometric_mean(found):.2f}" if found else "none measured"
    slow = [f"{row[0]} {row[1]} {row[-1]}" for row in rows[1:] if float(row[-1]) > MOST]
    return (
        f"Geometric means: {shown(ratios(False))} of programs that are mostly matrix products "
        f"(the transformers, {', '.join(sorted(MATMULS))}), {shown(ratios(True))} of the others. "
        f"Above {MOST}: {', '.join(slow) or 'none'}."
    )


def command(options):
    """What was run, without the paths of binaries."""
    devices = " ".join(map(str, options.devices))
    before = " --before BIN" if options.before else ""
    return (
        f"python bench/run_speed.py{before} --devices {devices} --rounds {options.rounds} "
        f"--steps {options.steps}"
    )


def notes():
    """The sections of the document that are written by hand."""
    _, heading, rest = DOCUMENT.read_text().partition("\n## ")
    return heading + rest


def spent(tables):
    rows = [["module", "step", "kernels and collectives of a rank, together by operation"]]
    for name, whole, sums in tables:
        shown = ", ".join(f"{kind} {nanos / 1e6:.1f}" for kind, nanos in sums[:8])
        rows.append([name, f"{whole:.1f} ms", shown])
    return table(rows)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--halflap")
    parser.add_argument("--before")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--devices", type=int, nargs="*", default=[2, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--keep")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    built = "" if options.halflap else " as it is installed (`--profile dist`)"
    options.halflap = options.halflap or build_halflap()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows, tables = [["module", "text", "JAX", "halflap", "ratio"]], []
        if options.before:
            rows[0][3:3] = ["before"]
        for name, (function, args) in programs(options).items():
            made = make(name, function, args, folder)
            more, spent_in = measure(name, made, options, folder)
            rows, tables = rows + more, tables + spent_in
    print(means(rows))
    if options.names:
        return
    cores = len(os.sched_getaffinity(0))
    DOCUMENT.write_text(f"""# Step times compared with JAX

Written on {datetime.date.today().isoformat()} by `{command(options)}`: {version_of(options.halflap)}{built}, jax {jax.__version__}, {cpu_model()}, {cores} cores for both.

The training step of a transformer, in f32: width {options.width}, {options.layers} layers, {HEADS} heads, {options.batch} sequences of {options.length} tokens. `dense_1` is on one device, `fsdp_N` and `tp_N` on N host devices, which are N ranks on threads here. `after_spmd` is the module after partitioning (for one device: as given to the compiler), `after_optimizations` the one that JAX itself runs. The others are described in bench/speed_programs.py. {options.rounds} alternating rounds, each the median of {options.steps} steps; the ratio is the median of the rounds' ratios.{COMPARED if options.before else ""}

{table(rows)}

{means(rows)}

Where the time goes: median times of all kernels and collectives of a rank, summed by operation, in ms. Ranks share the cores, so sums can exceed the step; the time of a fused kernel is divided among its instructions.

{spent(tables)}
{notes()}""")


if __name__ == "__main__":
    main()
