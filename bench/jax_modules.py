"""Modules of JAX programs: both stages as text, and what every rank takes and gives.

Import this before jax: it makes eight devices of the host. Needs jax and numpy.
"""

import glob
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

DEVICES = 8
FLAGS = f"--xla_force_host_platform_device_count={DEVICES}"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

STAGES = ("after_spmd", "after_optimizations")


def mesh(shape, names):
    """The first devices, as a grid with names."""
    count = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:count]).reshape(shape), names)


def place(array, grid, *spec):
    return jax.device_put(array, NamedSharding(grid, PartitionSpec(*spec)))


@dataclass
class Made:
    """A program that JAX compiled: its module at each stage, and a function that runs a step."""

    texts: dict
    arrays: Path
    step: object
    args: tuple


def stored(array):
    """numpy has no bfloat16: its bytes do."""
    array = np.asarray(array)
    return array.view(np.dtype("V2")) if array.dtype.name == "bfloat16" else array


def shards(leaves, kind):
    arrays = {}
    for index, leaf in enumerate(leaves):
        leaf = leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        for rank, shard in enumerate(
            sorted(leaf.addressable_shards, key=lambda shard: shard.device.id)
        ):
            arrays[f"{kind}_{index:03}_r{rank}"] = stored(shard.data)
    return arrays


def make(name, function, args, folder):
    """Compiles a function and writes NAME.STAGE.txt and NAME.npz to a folder."""
    folder = Path(folder)
    lowered = jax.jit(function, keep_unused=True).lower(*args)
    with tempfile.TemporaryDirectory() as dumped:
        options = {
            "xla_dump_to": dumped,
            "xla_dump_hlo_pass_re": "spmd-partitioning",
            "xla_dump_large_constants": True,
        }
        compiled = lowered.compile(compiler_options=options)
        texts = {
            "after_spmd": glob.glob(f"{dumped}/*after_spmd-partitioning*.txt"),
            "after_optimizations": glob.glob(f"{dumped}/*cpu_after_optimizations.txt"),
        }
        # One device has nothing to partition.
        texts["after_spmd"] = texts["after_spmd"] or glob.glob(
            f"{dumped}/*before_optimizations.txt"
        )
        paths = {}
        for stage, found in texts.items():
            paths[stage] = folder / f"{name}.{stage}.txt"
            paths[stage].write_text(Path(sorted(found)[0]).read_text())
    outputs = jax.tree.leaves(compiled(*args))
    arrays = shards(jax.tree.leaves(args), "in") | shards(outputs, "out")
    np.savez(folder / f"{name}.npz", **arrays)
    return Made(paths, folder / f"{name}.npz", compiled, args)
