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
MATMULS = {
    "attention_masked",
    "batched_einsum",
    "experts",
    "mixed_precision",
    "vision_transformer",
    "vocabulary_softmax",
}


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


@other
def vision_transformer():
    """A training step of one block over patches of images."""
    width, heads = 192, 6

    def loss(w, images):
        x = lax.conv_general_dilated(
            images, w["patch"], (8, 8), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = x.reshape(x.shape[0], -1, width) + w["place"]
        h = jax.nn.standardize(x)
        q, k, v = jnp.split((h @ w["qkv"]).reshape(*x.shape[:2], heads, -1), 3, -1)
        mixed = jax.nn.dot_product_attention(q, k, v)
        x = x + mixed.reshape(x.shape) @ w["out"]
        x = x + jax.nn.gelu(jax.nn.standardize(x) @ w["up"]) @ w["down"]
        return (x.mean(1) @ w["head"]).var()

    w = {
        "patch": real(8, 8, 3, width, scale=0.1),
        "place": real(64, width),
        "qkv": real(width, 3 * width, scale=0.1),
        "out": real(width, width, scale=0.1),
        "up": real(width, 4 * width, scale=0.1),
        "down": real(4 * width, width, scale=0.1),
        "head": real(width, 100, scale=0.1),
    }
    return jax.value_and_grad(loss), (w, real(16, 64, 64, 3))


@other
def gru():
    """A recurrent layer with gates, and its gradients."""

    def loss(w, u, xs):
        def step(h, x):
            r, z = jnp.split(jax.nn.sigmoid(x @ w[:, :256] + h @ u[:, :256]), 2, -1)
            new = jnp.tanh(x @ w[:, 256:] + (r * h) @ u[:, 256:])
            return (1 - z) * h + z * new, None

        return (lax.scan(step, jnp.zeros((16, 128), jnp.float32), xs)[0] ** 2).sum()

    return jax.grad(loss, (0, 1)), (
        real(64, 384, scale=0.1),
        real(128, 384, scale=0.1),
        real(48, 16, 64),
    )


@other
def beam_search():
    """Beams that are extended by the best tokens, with their states and histories reordered."""
    beams, words, width, length = 8, 2048, 128, 24

    def search(w, embed, state):
        def step(carry, at):
            state, scores, history = carry
            logits = jax.nn.log_softmax(state @ embed.T, -1)
            scores, best = lax.top_k((scores[:, None] + logits).reshape(-1), beams)
            origin, token = best // words, best % words
            history = history[origin].at[:, at].set(token)
            return (jnp.tanh(state[origin] @ w + embed[token]), scores, history), None

        start = (state, jnp.zeros(beams), jnp.zeros((beams, length), jnp.int32))
        return lax.scan(step, start, jnp.arange(length))[0]

    return search, (
        real(width, width, scale=0.1),
        real(words, width, scale=0.3),
        real(beams, width),
    )


@other
def depthwise_conv():
    """Depthwise and pointwise convolutions in turns."""

    def network(x, filters, mixes):
        numbers = ("NHWC", "HWIO", "NHWC")
        for each, mix in zip(filters, mixes):
            count = x.shape[-1]
            x = lax.conv_general_dilated(
                x, each, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=count
            )
            x = jax.nn.relu(
                lax.conv_general_dilated(x, mix, (1, 1), "VALID", dimension_numbers=numbers)
            )
        return x

    return network, (
        real(4, 56, 56, 64),
        [real(3, 3, 1, 64) for _ in range(2)],
        [real(1, 1, 64, 64, scale=0.1) for _ in range(2)],
    )


@other
def dilated_conv():
    """Convolutions whose windows see every second or fourth element, and one that upsamples."""

    def network(x, first, second, last):
        x = jax.nn.relu(lax.conv_general_dilated(x, first, (1, 1), "SAME", rhs_dilation=(2, 2)))
        x = jax.nn.relu(lax.conv_general_dilated(x, second, (1, 1), "SAME", rhs_dilation=(4, 4)))
        return lax.conv_general_dilated(x, last, (1, 1), [(2, 2)] * 2, lhs_dilation=(2, 2))

    return network, (
        real(2, 32, 48, 48),
        real(32, 32, 3, 3, scale=0.1),
        real(32, 32, 3, 3, scale=0.1),
        real(16, 32, 4, 4, scale=0.1),
    )


@other
def cumulate_and_sort():
    """Running sums, products and maxima along both dimensions, and pairs sorted by a key."""

    def all_of(a, keys):
        nucleus = jnp.cumsum(jax.nn.softmax(lax.sort(a, dimension=1), -1), -1) < 0.9
        sorted_by = lax.sort((keys, jnp.arange(keys.size, dtype=jnp.int32)), num_keys=1)
        return nucleus, jnp.cumsum(a, 0), lax.cummax(a, 1), lax.cumprod(a * 0.1 + 1, 1), sorted_by

    return all_of, (real(256, 1024), random.integers(0, 1000, 1 << 16).astype(np.int32))


@other
def batched_einsum():
    """Products of many small matrices, some transposed, and a bilinear form."""

    def forms(a, b, c, d):
        first = jnp.einsum("bhij,bhkj->bhik", a, b)
        second = jnp.einsum("bhik,bkhj->bihj", first, c)
        return second, jnp.einsum("bihj,jl,bihl->bi", second, d, second)

    return forms, (
        real(8, 12, 64, 48),
        real(8, 12, 64, 48),
        real(8, 64, 12, 48),
        real(48, 48, scale=0.1),
    )


@other
def vocabulary_softmax():
    """The loss over a large vocabulary, and its gradients."""

    def loss(x, head, labels):
        logits = x @ head
        picked = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
        return (jax.nn.logsumexp(logits, -1) - picked).mean()

    return jax.value_and_grad(loss, (0, 1)), (
        real(128, 256),
        real(256, 16384, scale=0.05),
        random.integers(0, 16384, 128).astype(np.int32),
    )


@other
def group_norm():
    """Normalisation by groups of channels, with a gated activation, and its gradients."""

    def loss(x, gain, bias):
        grouped = x.reshape(*x.shape[:3], 8, -1)
        mean, variance = (f(grouped, (1, 2, 4), keepdims=True) for f in (jnp.mean, jnp.var))
        x = ((grouped - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * gain + bias
        return (x * jax.nn.sigmoid(x)).sum()

    return jax.grad(loss, (0, 1, 2)), (real(8, 32, 32, 64), real(64), real(64))


@other
def dropout_mlp():
    """Layers with dropout, whose masks are made by JAX's generator of random numbers."""

    def network(w, x, seed):
        key = jax.random.key(seed)
        for each in w:
            key, now = jax.random.split(key)
            x = jax.nn.relu(x @ each)
            x = jnp.where(jax.random.bernoulli(now, 0.9, x.shape), x / 0.9, 0.0)
        return x

    return network, ([real(256, 256, scale=0.1) for _ in range(3)], real(512, 256), np.uint32(3))


@other
def random_bits():
    """Normal numbers from the generator that has an operation of its own."""

    def draw(seed):
        key = jax.random.key(seed, impl="rbg")
        return jax.random.normal(key, (512, 512)), jax.random.uniform(key, (256, 1024))

    return draw, (np.uint32(5),)


@other
def experts():
    """A layer of experts: tokens go to the two best ones, within their capacities."""
    count, room = 8, 128

    def layer(x, gate, up, down):
        weights, chosen = lax.top_k(jax.nn.softmax(x @ gate, -1), 2)
        hot = jax.nn.one_hot(chosen, count, dtype=jnp.float32)
        place = (jnp.cumsum(hot.reshape(-1, count), 0) - 1).reshape(hot.shape)
        sent = jax.nn.one_hot(place, room, dtype=jnp.float32) * hot[..., None]
        given = jnp.einsum("tkec,td->ecd", sent, x)
        made = jax.nn.silu(jnp.einsum("ecd,edf->ecf", given, up))
        made = jnp.einsum("ecf,efd->ecd", made, down)
        return jnp.einsum("tkec,tk,ecd->td", sent, weights, made)

    return layer, (
        real(256, 128),
        real(128, count),
        real(count, 128, 256, scale=0.1),
        real(count, 256, 128, scale=0.1),
    )


@other
def nearest_centres():
    """Rounds of k-means: distances, the nearest centre of each point, and new means."""

    def rounds(points, centres):
        def turn(_, centres):
            far = (centres**2).sum(-1)[None] - 2 * points @ centres.T
            nearest = jnp.argmin(far, -1)
            sums = jax.ops.segment_sum(points, nearest, centres.shape[0])
            counts = jax.ops.segment_sum(jnp.ones(points.shape[0]), nearest, centres.shape[0])
            return sums / jnp.maximum(counts, 1)[:, None]

        return lax.fori_loop(0, 5, turn, centres)

    return rounds, (real(8192, 32), real(64, 32))


@other
def image_changes():
    """Images that are flipped, shifted, padded, cropped and resized."""

    def changed(images, at):
        flipped = jnp.where(
            (jnp.arange(images.shape[0]) % 2 == 0)[:, None, None, None], images, images[:, :, ::-1]
        )
        rolled = jnp.roll(flipped, (5, 9), (1, 2))
        padded = jnp.pad(rolled, ((0, 0), (8, 8), (8, 8), (0, 0)), mode="reflect")
        crop = lambda image, place: lax.dynamic_slice(image, (place[0], place[1], 0), (96, 96, 3))
        return jax.image.resize(jax.vmap(crop)(padded, at), (images.shape[0], 64, 64, 3), "linear")

    return changed, (real(16, 96, 96, 3), random.integers(0, 16, (16, 2)).astype(np.int32))


@other
def long_filter():
    """Signals convolved with filters as long as themselves, so that windows are mostly padding."""
    network = lambda x, kernel: lax.conv_general_dilated(
        x, kernel, (1,), [(1023, 0)], feature_group_count=x.shape[1]
    )
    return network, (real(1, 16, 1024), real(16, 1, 1024, scale=0.01))


@other
def wide_windows():
    """Windows that see padding almost everywhere: larger than their input, and dilated."""

    def seen(image, wide, spread, apart):
        numbers = ("NHWC", "HWIO", "NHWC")
        first = lax.conv_general_dilated(
            image, wide, (1, 1), [(255, 255)] * 2, dimension_numbers=numbers
        )
        second = lax.conv_general_dilated(
            image,
            spread,
            (1, 1),
            [(512, 512)] * 2,
            rhs_dilation=(128, 128),
            dimension_numbers=numbers,
        )
        third = lax.conv_general_dilated(
            image, apart, (1, 1), [(2, 2)] * 2, lhs_dilation=(24, 24), dimension_numbers=numbers
        )
        return first, second, third

    return seen, (real(1, 8, 8, 2), real(256, 256, 2, 2), real(3, 3, 2, 2), real(5, 5, 2, 2))


@other
def tiny_network():
    """A training step of a small dense network: many kernels of a few thousand numbers."""

    def loss(w, x, labels):
        for matrix, offset in w:
            x = jnp.tanh(x @ matrix + offset)
        return -jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], 1).mean()

    def step(w, x, labels):
        value, gradients = jax.value_and_grad(loss)(w, x, labels)
        return value, jax.tree.map(lambda of, gradient: of - 0.1 * gradient, w, gradients)

    widths = [32, 64, 64, 10]
    w = [(real(a, b, scale=0.2), real(b)) for a, b in zip(widths, widths[1:])]
    return step, (w, real(16, 32), random.integers(0, 10, 16))


@other
def many_small_updates():
    """An optimiser's step for 60 small parameters, with clipped gradients."""

    def update(parameters, gradients, means, squares):
        norm = jnp.sqrt(sum((gradient**2).sum() for gradient in gradients))
        scale = jnp.minimum(1.0, 1.0 / norm)
        results = []
        for of, gradient, mean, square in zip(parameters, gradients, means, squares):
            gradient = gradient * scale
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.99 * square + 0.01 * gradient**2
            results.append((of - 0.01 * mean / (jnp.sqrt(square) + 1e-8), mean, square))
        return results

    shapes = [(64,), (16, 16), (128,)] * 20
    several = lambda: [real(*shape) for shape in shapes]
    return update, (several(), several(), several(), [of**2 for of in several()])


@other
def differential_equation():
    """Classic Runge-Kutta steps of three coupled oscillators, many at once."""

    def slope(state):
        place, speed = state
        pull = -place + 0.3 * (jnp.roll(place, 1, 0) - place) - 0.05 * place**3
        return speed, pull - 0.01 * speed

    def moved(state, by, slopes):
        return jax.tree.map(lambda of, slope: of + by * slope, state, slopes)

    def step(state, _):
        first = slope(state)
        second = slope(moved(state, 0.01, first))
        third = slope(moved(state, 0.01, second))
        fourth = slope(moved(state, 0.02, third))
        mean = jax.tree.map(lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6, first, second, third, fourth)
        state = moved(state, 0.02, mean)
        return state, state[0][0, 0]

    return lambda place, speed: lax.scan(step, (place, speed), length=500), (real(3, 8), real(3, 8))


@other
def kalman_filter():
    """Predictions and corrections of a small linear system, one measurement after the other."""
    move = np.eye(6, dtype=np.float32) + 0.1 * np.eye(6, k=3, dtype=np.float32)
    seen = np.eye(3, 6, dtype=np.float32)

    def step(state, measured):
        mean, spread = state
        mean, spread = move @ mean, move @ spread @ move.T + 0.01 * np.eye(6, dtype=np.float32)
        noise = seen @ spread @ seen.T + 0.1 * np.eye(3, dtype=np.float32)
        gain = spread @ seen.T @ jnp.linalg.inv(noise)
        mean = mean + gain @ (measured - seen @ mean)
        return (mean, spread - gain @ seen @ spread), mean

    def run(mean, spread, measurements):
        return lax.scan(step, (mean, spread), measurements)

    return run, (real(6), np.eye(6, dtype=np.float32), real(100, 3))
