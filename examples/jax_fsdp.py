#!/usr/bin/env python3
"""A training step of a small transformer with JAX, its parameters sharded over eight devices of
this host.

python examples/jax_fsdp.py [--report FILE.html]

halflap takes the program that XLA partitioned, finds a better order for it, and runs it with
its own runtime, eight ranks as threads: the numbers are JAX's.
"""

import argparse
import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import halflap
import halflap.jax

LAYERS, WIDTH, HEADS, TOKENS, SEQUENCES = 2, 64, 4, 16, 8


def parameters() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(0)

    def weight(into: int, out: int) -> np.ndarray:
        return (random.standard_normal((into, out)) / into**0.5).astype(np.float32)

    shapes = {
        "qkv": (WIDTH, 3 * WIDTH),
        "out": (WIDTH, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    return [{name: weight(*shape) for name, shape in shapes.items()} for _ in range(LAYERS)]


def norm(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def block(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    heads = (norm(x) @ weights["qkv"]).reshape(*x.shape[:2], 3, HEADS, WIDTH // HEADS)
    q, k, v = jnp.moveaxis(heads, 2, 0)
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5)
    x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ weights["out"]
    return x + jax.nn.gelu(norm(x) @ weights["up"]) @ weights["down"]


def loss(model: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    for weights in model:
        x = block(weights, x)
    return jnp.mean(x**2)


def step(
    model: list[dict[str, jax.Array]], x: jax.Array
) -> tuple[jax.Array, list[dict[str, jax.Array]]]:
    value, gradients = jax.value_and_grad(loss)(model, x)
    return value, jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, model, gradients)


def placed() -> tuple[list[dict[str, jax.Array]], jax.Array]:
    """Parameters and sequences, each sharded over all devices."""
    devices = NamedSharding(Mesh(np.array(jax.devices()[:8]), ("ranks",)), PartitionSpec("ranks"))
    x = np.random.default_rng(1).standard_normal((SEQUENCES, TOKENS, WIDTH)).astype(np.float32)
    return jax.device_put(parameters(), devices), jax.device_put(x, devices)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--report", help="write halflap's page to this file")
    report = arguments.parse_args().report
    model, x = placed()
    module = halflap.jax.lower(jax.jit(step), model, x)
    schedule = halflap.schedule(module, device="h100")
    print(schedule)
    if report is not None:
        schedule.report().save(report)
        print(f"report    {report}")
    ran = module.run(model, x, order=schedule)
    print(ran)
    expected = jax.jit(step)(model, x)
    differences = jax.tree.map(
        lambda ours, theirs: float(np.abs(ours - np.asarray(theirs)).max()), ran.value, expected
    )
    print(f"loss      {float(ran.value[0]):.6f}, JAX's {float(expected[0]):.6f}")
    print(f"largest difference of all outputs: {max(jax.tree.leaves(differences)):.1e}")


if __name__ == "__main__":
    main()
