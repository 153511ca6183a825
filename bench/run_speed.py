"""One training step of a transformer on one core: JAX's own time beside that of halflap-run's kernels.

    taskset -c 0 python bench/run_speed.py [--width 512] [--layers 2] [--keep FOLDER]

Writes the optimised module, times JAX's step, and lets `cargo bench -p halflap-run -- MODULE` time
every kernel of the same module. Needs jax.
"""

import argparse
import os
import subprocess
import tempfile
import time

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def model(width, layers, heads=8, vocab=1024):
    key = iter(jax.random.split(jax.random.key(0), 8 * layers + 2))
    normal = lambda *shape: jax.random.normal(next(key), shape, jnp.float32) * 0.05
    layer = lambda: dict(
        g1=jnp.ones(width), g2=jnp.ones(width), qkv=normal(width, 3, heads, width // heads),
        out=normal(heads, width // heads, width), up=normal(width, 4 * width), down=normal(4 * width, width),
    )
    return dict(embed=normal(vocab, width), head=normal(width, vocab), layers=[layer() for _ in range(layers)])


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--keep")
    options = parser.parse_args()
    folder = options.keep or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    p = model(options.width, options.layers)
    tokens = np.random.default_rng(1).integers(0, 1024, (options.batch, options.length)).astype(np.int32)
    lowered = jax.jit(step).lower(p, tokens)
    compiled = lowered.compile()
    best = float("inf")
    for _ in range(12):
        start = time.perf_counter()
        jax.block_until_ready(compiled(p, tokens))
        best = min(best, time.perf_counter() - start)
    out = compiled(p, tokens)
    leaves = jax.tree.leaves((p, tokens))
    arrays = {f"in_{i:03}_r0": np.asarray(a) for i, a in enumerate(leaves)}
    arrays |= {f"out_{i:03}_r0": np.asarray(a) for i, a in enumerate(jax.tree.leaves(out))}
    np.savez(os.path.join(folder, "step.npz"), **arrays)
    for name, text in (("before", lowered.compiler_ir("hlo").as_hlo_text(True)), ("after", compiled.as_text())):
        with open(os.path.join(folder, f"step.{name}.hlo"), "w") as file:
            file.write(text)
    print(f"JAX: {best * 1e6:9.1f} us a step", flush=True)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    command = ["cargo", "bench", "-q", "-p", "halflap-run", "--bench", "kernels", "--", os.path.join(folder, "step.after.hlo")]
    subprocess.run(command, cwd=root, check=True)


if __name__ == "__main__":
    main()
