"""A transformer's training step whose parameters two ranks share: modules for bench/run.py.

    python bench/jax_fsdp.py FOLDER

Writes FOLDER/transformer_WIDTH.txt, partitioned and not yet optimised. Needs jax.
"""

import glob
import os
import sys
import tempfile
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, HEADS, VOCAB, BATCH, LENGTH = 4, 8, 512, 4, 128


def parameters(width):
    """Shapes of all parameters; each is cut along its first dimension."""
    layer = {
        "qkv": (width, 3 * width),
        "out": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }
    return {
        "embed": (VOCAB, width),
        "head": (width, VOCAB),
        "layers": [dict(layer) for _ in range(LAYERS)],
    }


def attention(x, layer):
    batch, length, width = x.shape
    q, k, v = jnp.split((x @ layer["qkv"]).reshape(batch, length, HEADS, -1), 3, axis=-1)
    scores = jnp.einsum("bshk,bthk->bhst", q, k) / np.sqrt(width // HEADS)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    return jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores), v).reshape(x.shape) @ layer["out"]


def loss(params, tokens):
    x = params["embed"][tokens]
    for layer in params["layers"]:
        x = x + attention(x, layer)
        x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
    scores = jax.nn.log_softmax(x[:, :-1] @ params["head"])
    return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()


def step(params, tokens):
    value, grads = jax.value_and_grad(loss)(params, tokens)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def module(width):
    """The step's text after partitioning."""
    cut = NamedSharding(Mesh(np.array(jax.devices()), ("ranks",)), PartitionSpec("ranks"))
    is_shape = lambda leaf: isinstance(leaf, tuple)
    array = lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=cut)
    params = jax.tree.map(array, parameters(width), is_leaf=is_shape)
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32, sharding=cut)
    given = (jax.tree.map(lambda _: cut, params), NamedSharding(cut.mesh, PartitionSpec()))
    lowered = jax.jit(step, out_shardings=given).lower(params, tokens)
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_pass_re": "spmd-partitioning"}
        lowered.compile(compiler_options=options)
        (found,) = glob.glob(f"{folder}/*after_spmd-partitioning*.txt")
        return Path(found).read_text()


def main():
    for width in [256, 512]:
        (Path(sys.argv[1]) / f"transformer_{width}.txt").write_text(module(width))


if __name__ == "__main__":
    main()
