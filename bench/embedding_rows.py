#!/usr/bin/env python3
"""What keeping looked-up rows in place of a gathered table gains: prints the table in
docs/rewrite.md.

    PY bench/embedding_rows.py [--halflap BIN] [--before BIN]

PY has jax. Lowers a training step that looks tokens up in a table cut in eight, under
`jax.checkpoint`, followed by layers, each under it, too; schedules it as XLA partitions it, with
the order alone and with `--rewrite keep`. The rewritten modules are proved. With --before, another
version of halflap rewrites the same modules.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

FOLDER = tempfile.TemporaryDirectory()
FLAGS = (
    "--xla_force_host_platform_device_count=8 --xla_dump_hlo_as_text "
    f"--xla_dump_to={FOLDER.name} --xla_dump_hlo_pass_re=spmd.*"
)
os.environ["XLA_FLAGS"] = FLAGS
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, WIDTH, INNER = 4, 1024, 4096
VOCABULARIES = (32_768, 131_072)
BUDGETS = ("0.8x", "1x", "1.1x")
MESH = Mesh(jax.devices(), ("ranks",))


def whole(weight):
    """Gathered for every use, as fully sharded programs do."""
    return jax.lax.with_sharding_constraint(weight, NamedSharding(MESH, PartitionSpec()))


@jax.checkpoint
def embedded(table, tokens):
    rows = whole(table)[tokens]
    return rows * jax.lax.rsqrt(jnp.mean(rows * rows, -1, keepdims=True) + 1e-6)


@jax.checkpoint
def layer(hidden, weights):
    return hidden + jnp.tanh(hidden @ whole(weights[0])) @ whole(weights[1])


def loss(params, tokens):
    table, layers = params
    hidden = embedded(table, tokens)
    for weights in layers:
        hidden = layer(hidden, weights)
    return jnp.mean(hidden * hidden)


def train_step(params, tokens):
    gradients = jax.grad(loss)(params, tokens)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, params, gradients)


def lowered(vocabulary, tokens):
    """The program of one device, with so many tokens each, after partitioning."""
    cut = NamedSharding(MESH, PartitionSpec("ranks", None))
    shape = lambda *dims: jax.ShapeDtypeStruct(dims, jnp.float32, sharding=cut)
    layers = [[shape(WIDTH, INNER), shape(INNER, WIDTH)] for _ in range(LAYERS)]
    params = (shape(vocabulary, WIDTH), layers)
    data = NamedSharding(MESH, PartitionSpec("ranks"))
    batch = jax.ShapeDtypeStruct((tokens * len(jax.devices()),), jnp.int32, sharding=data)
    jitted = jax.jit(train_step, out_shardings=jax.tree.map(lambda _: cut, params))
    known = set(Path(FOLDER.name).iterdir())
    jitted.lower(params, batch).compile()
    dumped = set(Path(FOLDER.name).glob("*after_spmd-partitioning*.txt")) - known
    return dumped.pop().read_text()


def scheduled(halflap, module, budget, rewrites):
    """The answer, or None if nothing fits."""
    command = [halflap, "schedule", module, "--device", "h100", "--json", "--no-advice"]
    command += ["--memory-budget", budget, "--rewrite", rewrites]
    run = subprocess.run(command, capture_output=True, check=False)
    return json.loads(run.stdout) if run.returncode == 0 else None


def cells(answer):
    if answer is None:
        return ["none fits", "", "", ""]
    kept = sum(recipe["kept_bytes"] for recipe in answer.get("recipes", []))
    return [
        f"{1e-6 * answer['step_time']:.2f} ms",
        f"{1e-6 * answer['exposed']:.2f} ms",
        f"{answer['peak_memory'] / 2**20:.0f} MiB",
        f"{kept / 2**20:.0f} MiB",
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    root = Path(__file__).resolve().parent.parent
    parser.add_argument("--halflap", default=root / "target" / "dist" / "halflap")
    parser.add_argument("--before", metavar="BIN")
    args = parser.parse_args()
    ways = [(args.halflap, "none"), (args.halflap, "keep")]
    if args.before:
        ways.insert(1, (args.before, "keep"))
    print("| rows of the table | memory | rewrite | step | exposed | peak | kept |")
    print("| ---: | --- | --- | ---: | ---: | ---: | ---: |")
    module = Path(FOLDER.name) / "module.txt"
    for vocabulary in VOCABULARIES:
        module.write_text(lowered(vocabulary, 1024))
        for budget in BUDGETS:
            for halflap, rewrites in ways:
                name = "before" if halflap == args.before else rewrites
                row = [str(vocabulary), budget, name]
                row += cells(scheduled(halflap, module, budget, rewrites))
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
