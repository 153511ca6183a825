"""Programs for run_speed.py beside the transformers: each a function and its arguments. All but
those in MATMULS are not mostly matrix products.

Import jax_modules before jax: it makes eight devices of the host. Needs jax.
"""

from jax_modules import mesh, place
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P

random = np.random.default_rng(7)
OTHERS = {}
MATMULS = {"attention_masked", "mixed_precision"}


def other(make_it):
    """Registers a function that gives another function and its arguments."""
    OTHERS[make_it.__name__] = make_it
    return make_it


def real(*shape, scale=1.0):
    return (random.standard_normal(shape) * scale).astype(np.float32)


@other
def cnn_batch_norm():
    """A training step of a small convolutional network."""

    def loss(w, images, labels):
        x = images
        for kernel, gain in zip(w["kernels"], w["gains"]):
            x = lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            x = jax.nn.relu((x - mean) * lax.rsqrt(variance + 1e-5) * gain)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        logits = x.reshape(x.shape[0], -1) @ w["head"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    widths = [3, 32, 64, 64]
    w = {
        "kernels": [real(3, 3, a, b, scale=0.1) for a, b in zip(widths, widths[1:])],
        "gains": [np.ones(b, np.float32) for b in widths[1:]],
        "head": real(4 * 4 * 64, 10, scale=0.1),
    }
    return jax.value_and_grad(loss), (w, real(32, 32, 32, 3), random.integers(0, 10, 32))


@other
def kv_cache_decoding():
    """Sixteen tokens, one by one, with keys and values of the earlier ones kept."""
    width, heads, layers, room = 256, 8, 4, 128

    def token(w, state, _):
        x, keys, values, at = state
        for layer in range(layers):
            h = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
            q, k, v = jnp.split(h @ w["qkv"][layer], 3, -1)
            split = lambda a: a.reshape(heads, width // heads)
            keys = lax.dynamic_update_slice(keys, split(k)[None, None], (layer, at, 0, 0))
            values = lax.dynamic_update_slice(values, split(v)[None, None], (layer, at, 0, 0))
            scores = jnp.einsum("hk,thk->ht", split(q), keys[layer]) / np.sqrt(width // heads)
            scores = jnp.where(jnp.arange(room) <= at, scores, -1e9)
            mixed = jnp.einsum("ht,thk->hk", jax.nn.softmax(scores, -1), values[layer])
            x = x + mixed.reshape(width) @ w["out"][layer]
            x = x + jax.nn.gelu(x @ w["up"][layer]) @ w["down"][layer]
        return (x, keys, values, at + 1), x @ w["head"]

    def decode(w, x, keys, values):
        return lax.scan(lambda s, t: token(w, s, t), (x, keys, values, 64), None, length=16)

    w = {
        "qkv": real(layers, width, 3 * width, scale=0.05),
        "out": real(layers, width, width, scale=0.05),
        "up": real(layers, width, 4 * width, scale=0.05),
        "down": real(layers, 4 * width, width, scale=0.05),
        "head": real(width, 1024, scale=0.05),
    }
    cache = real(layers, room, heads, width // heads)
    return decode, (w, real(width), cache, cache.copy())


@other
def fourier_3d():
    """There and back in three dimensions, with a filter between."""
    wave = lambda a, by: jnp.fft.irfftn(jnp.fft.rfftn(a) * by, a.shape)
    both = lambda a, b, by: (wave(a, by), jnp.fft.ifftn(jnp.fft.fftn(b)).real)
    signal = (real(48, 48, 48) + 1j * real(48, 48, 48)).astype(np.complex64)
    return both, (real(64, 64, 64), signal, real(64, 64, 33))


@other
def pipeline_2():
    """Two stages on two devices, with microbatches that are handed on."""
    grid = mesh((2,), ("x",))

    def stages(w, batches):
        def step(carry, batch):
            first = lax.axis_index("x") == 0
            h = jnp.where(first, batch, carry)
            for each in range(2):
                h = jnp.tanh(h @ w[0, each])
            return lax.ppermute(h, "x", [(0, 1), (1, 0)]), h

        start = lax.pcast(jnp.zeros_like(batches[0]), "x", to="varying")
        return lax.scan(step, start, batches)[1][None]

    run = shard_map(stages, mesh=grid, in_specs=(P("x"), P()), out_specs=P("x"))
    return run, (place(real(2, 2, 128, 128, scale=0.1), grid, "x"), place(real(32, 16, 128), grid))


@other
def embedding_gradient():
    """The gradient of a table by what was looked up in it."""
    loss = lambda table, tokens, by: (table[tokens] * by).sum()
    tokens = random.integers(0, 8192, (16, 256))
    return jax.grad(loss), (real(8192, 128), tokens, real(16, 256, 128))


@other
def int8_product():
    product = lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32)
    a, b = (random.integers(-100, 100, (384, 384)).astype(np.int8) for _ in range(2))
    return product, (a, b)


@other
def associative_scan():
    """A linear recurrence over a sequence, as state-space models have it."""
    combine = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])
    scan = lambda a, x: lax.associative_scan(combine, (a, x), axis=1)[1]
    return scan, (real(4, 1024, 64), real(4, 1024, 64))


@other
def sorting():
    """Rows with the places that they came from, and a long row alone."""
    return lambda a, b: (jnp.argsort(a, -1), jnp.sort(b)), (real(256, 1024), real(1 << 18))


@other
def attention_masked():
    """Causal attention with a mask of padding, and its gradients."""

    def loss(q, k, v, lengths):
        scores = jnp.einsum("bhsk,bhtk->bhst", q, k) / np.sqrt(q.shape[-1])
        at = jnp.arange(q.shape[2])
        seen = (at[:, None] >= at[None, :])[None] & (at[None, None, :] < lengths[:, None, None])
        weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e9), -1)
        return (jnp.einsum("bhst,bhtk->bhsk", weights, v) ** 2).sum()

    arrays = [real(4, 8, 256, 64) for _ in range(3)]
    return jax.grad(loss, (0, 1, 2)), (*arrays, random.integers(100, 256, 4).astype(np.int32))


@other
def mixed_precision():
    """Layers in bf16, with losses and gradients in f32."""

    def loss(w, x):
        for each in w:
            x = jax.nn.gelu(x @ each.astype(jnp.bfloat16))
        return (x.astype(jnp.float32) ** 2).mean()

    return jax.grad(loss), (
        [real(512, 512, scale=0.05) for _ in range(3)],
        jnp.asarray(real(256, 512), jnp.bfloat16),
    )


@other
def layer_norms():
    """A chain of normalisations with residuals, and its gradients."""

    def loss(x, gains):
        for gain in gains:
            h = x - x.mean(-1, keepdims=True)
            x = x + jnp.tanh(h * lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-5) * gain)
        return (x * x).sum()

    return jax.grad(loss, (0, 1)), (real(1024, 768), [real(768) for _ in range(4)])


@other
def scatter_histogram():
    """Counts and sums by bins, and rows that are replaced."""

    def bins(keys, values, table, rows, updates):
        counts = jnp.zeros(1024, jnp.int32).at[keys].add(1)
        sums = jax.ops.segment_sum(values, keys, 1024)
        return counts, sums, table.at[rows].set(updates)

    keys = random.integers(0, 1024, 1 << 16)
    return bins, (
        keys,
        real(1 << 16),
        real(4096, 256),
        random.permutation(4096)[:1024],
        real(1024, 256),
    )


@other
def pool_and_cumulate():
    """Averages over windows, sums along rows, and running sums."""
    pool = lambda a: lax.reduce_window(a, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") / 9
    return lambda a, b: (pool(a), a.sum((1, 2)), jnp.cumsum(b, -1)), (
        real(8, 64, 64, 32),
        real(512, 1024),
    )


@other
def lstm():
    """A recurrent layer over a sequence, step by step."""

    def layer(w, u, xs):
        def step(state, x):
            h, c = state
            i, f, g, o = jnp.split(x @ w + h @ u, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((xs.shape[1], u.shape[0]), jnp.float32)
        return lax.scan(step, (zeros, zeros), xs)[1]

    return layer, (real(128, 512, scale=0.1), real(128, 512, scale=0.1), real(64, 32, 128))


@other
def conv_1d_strided():
    """Convolutions of signals with strides and dilation, channels first."""

    def network(signal, first, second):
        x = jax.nn.relu(lax.conv_general_dilated(signal, first, (4,), [(4, 4)]))
        return lax.conv_general_dilated(x, second, (1,), [(4, 4)], rhs_dilation=(4,))

    return network, (real(8, 16, 8192), real(64, 16, 9, scale=0.1), real(64, 64, 3, scale=0.1))
