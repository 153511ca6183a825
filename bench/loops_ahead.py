#!/usr/bin/env python3
"""What gathering a loop's weights an iteration ahead gains: prints the table in docs/rewrite.md.

    PY bench/loops_ahead.py [--halflap BIN]

PY has jax. Lowers a training step of 32 layers under `lax.scan`, with weights cut in eight, for
batches of different sizes, so that communication takes more or less of the step, and schedules it
as it is and with `--rewrite pipeline`.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, WIDTH, INNER = 32, 1024, 4096
BATCHES = (1024, 2048, 4096, 8192)
BUDGETS = ("1x", "1.1x")


def loss(params, batch):
    """A residual block for each layer."""

    def layer(hidden, weights):
        return hidden + jnp.tanh(hidden @ weights[0]) @ weights[1], None

    hidden, _ = jax.lax.scan(layer, batch, params)
    return jnp.mean(hidden * hidden)


def train_step(params, batch):
    gradients = jax.grad(loss)(params, batch)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, params, gradients)


def lowered(rows):
    """The program of one device, with so many rows each."""
    mesh = Mesh(jax.devices(), ("ranks",))
    weights = NamedSharding(mesh, PartitionSpec(None, "ranks", None))
    data = NamedSharding(mesh, PartitionSpec("ranks", None))
    shape = lambda dims, sharding: jax.ShapeDtypeStruct(dims, jnp.float32, sharding=sharding)
    params = [shape((LAYERS, WIDTH, INNER), weights), shape((LAYERS, INNER, WIDTH), weights)]
    batch = shape((rows * len(jax.devices()), WIDTH), data)
    jitted = jax.jit(train_step, out_shardings=[weights, weights])
    return jitted.lower(params, batch).compile().as_text()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    root = Path(__file__).resolve().parent.parent
    parser.add_argument("--halflap", default=root / "target" / "dist" / "halflap")
    args = parser.parse_args()
    print("| rows | memory | order alone | exposed | pipeline | exposed | of order alone |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "scan.txt"
        for rows in BATCHES:
            module.write_text(lowered(rows))
            for budget in BUDGETS:
                command = [
                    args.halflap,
                    "schedule",
                    module,
                    "--device",
                    "h100",
                    "--json",
                    "--no-advice",
                ]
                command += ["--memory-budget", budget]
                kinds = ("none", "pipeline")
                runs = [
                    subprocess.run([*command, "--rewrite", kind], capture_output=True, check=True)
                    for kind in kinds
                ]
                alone, ahead = (json.loads(run.stdout) for run in runs)
                figures = [
                    f"{1e-6 * one[key]:.2f} ms"
                    for one in (alone, ahead)
                    for key in ("step_time", "exposed")
                ]
                ratio = ahead["step_time"] / alone["step_time"]
                print(f"| {rows} | {budget} | {' | '.join(figures)} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
