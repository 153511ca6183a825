"""The JAX programs whose modules, as XLA's CPU compiler writes them, are in `optimised`; with what
is wrong with them in `optimised.py`. `python programs.py` writes them again (jax 0.8 or newer)."""

import os
import pathlib
import re

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent / "optimised"
PROGRAMS = {}
F16, F32, I32 = jnp.float16, jnp.float32, jnp.int32


def program(*shapes, ranks=1):
    """A program on arrays of these shapes; those of one rank, if there are several."""

    def added(function):
        PROGRAMS[function.__name__] = (function, shapes, ranks)
        return function

    return added


def of(*dims, dtype=F32):
    return (dims, dtype)


def ids(*dims):
    return of(*dims, dtype=I32)


TABLE, TOKENS, SQUARE, ROW = of(16, 4), ids(8), of(8, 8), of(64)


# Indices.


@program(TABLE, TOKENS)
def embedding(table, tokens):
    return table.at[tokens].get(mode="clip") * 2 + 1


@program(TABLE, TOKENS)
def embedding_sum(table, tokens):
    return jnp.sum(table[tokens] ** 2, axis=0)


@program(TABLE, TOKENS)
def embedding_clipped(table, tokens):
    return table.at[jnp.clip(tokens, 0, 15)].get(mode="clip") * 2 + 1


@program(TABLE, TOKENS)
def embedding_filled(table, tokens):
    return table.at[tokens].get(mode="fill", fill_value=0) * 2 + 1


@program(of(8, 16), TOKENS)
def cross_entropy(logits, labels):
    logs = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], axis=1))


def windows(stride):
    def function(table, x):
        def turn(i, x):
            part = lax.dynamic_slice(table, (i * stride, 0), (2, 4))
            return x + jnp.concatenate([jnp.sin(part)] * 8)

        return lax.fori_loop(0, 6, turn, x)

    return function


@program(TABLE, TABLE)
def windows_by_three(table, x):
    return windows(3)(table, x)


@program(TABLE, TABLE)
def windows_by_two(table, x):
    return windows(2)(table, x)


def cache(stride):
    def function(table, x):
        def turn(i, carried):
            table, x = carried
            x = jnp.tanh(x) * 1.5
            return lax.dynamic_update_slice(table, x * 2 + 1, (i * stride, 0)), x

        return lax.fori_loop(0, 6, turn, (table, x))[0]

    return function


@program(TABLE, of(2, 4))
def cache_by_three(table, x):
    return cache(3)(table, x)


@program(TABLE, of(2, 4))
def cache_by_two(table, x):
    return cache(2)(table, x)


@program(TABLE, ids(6, 8))
def lookups_in_a_loop(table, tokens):
    def turn(state, now):
        return state * 0.5 + table.at[now].get(mode="clip") * 3, None

    return lax.scan(turn, jnp.zeros((8, 4)), tokens)[0]


@program(TABLE, TOKENS)
def lookup_in_a_branch(table, tokens):
    look = lambda: jnp.sin(table.at[tokens].get(mode="clip") * 2)  # noqa: E731
    return lax.cond(table[0, 0] > 0, look, lambda: table[:8] * 3)


@program(TABLE, of(2, 4), ranks=8)
def part_by_rank(table, x):
    at = lax.axis_index("x") * 3
    return lax.psum(jnp.sin(lax.dynamic_slice(table, (at, 0), (2, 4))) * x, "x")


@program(TABLE, TOKENS, ranks=8)
def embedding_on_ranks(table, tokens):
    return lax.psum(table.at[tokens].get(mode="clip") * 2 + 1, "x")


@program(TABLE, TOKENS, of(8, 4))
def scatter_dropped(table, tokens, more):
    return jnp.tanh(table).at[tokens].add(more * 2, mode="drop")


@program(TABLE, of(2, 4), ids())
def clamped_slice(table, x, at):
    return jnp.sin(lax.dynamic_slice(table, (lax.clamp(0, at, 14), 0), (2, 4))) * x


# NaN and infinities that mark something.


@program(ROW, ROW)
def marked(x, y):
    return jnp.where(x > 0, x * y, jnp.nan)


@program(ROW, ROW)
def marked_mean(x, y):
    return jnp.mean(jnp.where(x > 0, x * y, jnp.nan)) + y


@program(ROW, ROW)
def nan_aware_mean(x, y):
    return jnp.nanmean(jnp.where(x > 0, x * y, jnp.nan)) + y


@program(ROW, ROW)
def marked_in_a_branch(x, y):
    mark = lambda: jnp.where(y > 0, x * y, jnp.nan)  # noqa: E731
    return lax.cond(x[0] > 0, mark, lambda: x * 2)


@program(TABLE, of(2, 4))
def filled_up(table, x):
    def turn(i, carried):
        table, x = carried
        return lax.dynamic_update_slice(table, x * 2 + 1, (i * 2, 0)), jnp.tanh(x)

    empty = jnp.where(table > 1e9, table, jnp.nan)
    return lax.fori_loop(0, 6, turn, (empty, x))[0]


@program(of(8, 16), of(8, 16))
def causal_attention(q, k):
    scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), q @ k.T, -jnp.inf)
    return jax.nn.softmax(scores) @ k


@program(of(8, 16), of(8, 16), of(8))
def padded_attention(q, k, lengths):
    scores = jnp.where(lengths[:, None] > jnp.arange(8), q @ k.T, -jnp.inf)
    return jax.nn.softmax(scores) @ k


@program(of(8, 16), of(64, 16))
def blockwise_attention(q, k):
    def turn(state, block):
        most, total, out = state
        scores = q @ block.T
        new = jnp.maximum(most, scores.max(1))
        weights, shrunk = jnp.exp(scores - new[:, None]), jnp.exp(most - new)
        return (new, total * shrunk + weights.sum(1), out * shrunk[:, None] + weights @ block), None

    start = (jnp.full(8, -jnp.inf), jnp.zeros(8), jnp.zeros((8, 16)))
    _, total, out = lax.scan(turn, start, k.reshape(8, 8, 16))[0]
    return out / total[:, None]


@program(ROW, ROW, ranks=8)
def least_of_ranks(x, y):
    mine = jnp.where(x > 0, x * 2, jnp.inf).min()
    least = lax.pmin(mine, "x")
    return jnp.where(jnp.isinf(least), 0, least) + y


@program(SQUARE, SQUARE)
def factor(x, y):
    return jnp.linalg.cholesky(x @ x.T + y)


@program(TABLE, TOKENS, of(4, 4))
def filled_product(table, tokens, weights):
    return jnp.take(table, tokens, axis=0) @ weights


@program(of(6, 16), ROW)
def masked_scores_in_a_loop(rows, y):
    def turn(state, row):
        scores = jnp.where(row > 0, row, -jnp.inf)
        weights = jnp.exp(scores - scores.max())
        return state + weights.sum(), jnp.log(weights.sum()) * jnp.where(row > 0, 1.0, jnp.nan)

    total, marks = lax.scan(turn, 0.0, rows)
    return total + y, marks


# Numbers that overflow, and what becomes of them.


@program(of(8, 16), of(8, 16))
def softmax_of_large(x, y):
    weights = jnp.exp(x * y * 100)
    return weights / weights.sum(-1, keepdims=True)


@program(of(8, 16), of(16))
def layer_norm(x, gain):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True)) * gain


@program(of(8, 16), of(16))
def unit_rows(x, gain):
    return x / jnp.sqrt((x * x).sum(-1, keepdims=True)) * gain


@program(of(8, 16), of(8, 16))
def entropy(x, y):
    likely = jax.nn.softmax(x * y)
    return -(likely * jnp.log(likely)).sum(-1)


@program(of(64, dtype=F16), of(64, dtype=F16))
def half_squares(x, y):
    return (x * x).astype(F32).sum() + y


@program(of(8, 8, dtype=jnp.bfloat16), of(8, 8, dtype=jnp.bfloat16))
def bfloat_product(x, y):
    return jnp.tanh(x) + (x * y) * (x * y)


@program(SQUARE, SQUARE)
def exploding(x, w):
    def turn(x, _):
        x = x @ w
        return x * x, jnp.sum(x)

    return lax.scan(turn, x, None, length=8)


@program(of(8), of(8))
def exploding_gradient(w, x):
    def loss(w):
        def turn(state, _):
            return state * w * w, None

        return jnp.sum(lax.scan(turn, x, None, length=6)[0] ** 2)

    return w - 0.1 * jax.grad(loss)(w)


@program(ROW, ROW, ROW)
def adam(p, m, v):
    return p - 1e-3 * (m / 0.1) / jnp.sqrt(v / 0.001)


@program(of(8, 16), of(8))
def naive_logsumexp(x, y):
    return jnp.log(jnp.exp(x * 10).sum(-1)) * y


@program(ROW, ROW)
def distance(x, y):
    cosine = x * y
    return jnp.sqrt(1 - cosine * cosine) * 2


@program(ROW, ROW)
def guarded_root(x, y):
    return jax.grad(lambda x: jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0) * y))(x)


@program(ROW, ROW)
def doubly_guarded_root(x, y):
    def loss(x):
        good = x > 0
        return jnp.sum(jnp.where(good, jnp.sqrt(jnp.where(good, x, 1)), 0) * y)

    return jax.grad(loss)(x)


# What a fusion makes, in which iteration, and what looks for it.


@program(ROW, ROW)
def log_in_a_sum(x, y):
    logs = jnp.log(x - 2 * jnp.mean(x))
    return jnp.sum(logs * y)


@program(ROW, ROW)
def large_times_zero(x, y):
    return jnp.exp(x * x) * (y - y * jnp.sign(y)) + 1


@program(ROW, ROW)
def roots_in_a_loop(x, y):
    def turn(i, x):
        return x + jnp.where(i < 5, y, jnp.sqrt(-1 - x * x))

    return lax.fori_loop(0, 12, turn, x)


@program(ROW, ROW)
def median_of_roots(x, y):
    return jnp.median(jnp.sqrt(x)) + y


@program(ROW, ROW)
def outside_of_its_domain(x, y):
    return lax.fori_loop(0, 8, lambda i, state: state + jnp.arctanh(jnp.where(i == 3, y, 0.3)), x)


@program(TABLE, TOKENS, ranks=8)
def counts_in_parts(table, tokens):
    # As XLA partitions it: each rank adds what is for its own part.
    tokens = lax.all_gather(tokens, "x", tiled=True) - lax.axis_index("x") * 16
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    return lax.scatter_add(table, tokens[:, None], jnp.ones((64, 4)), numbers, mode="drop")


# Masks as logarithms.


@program(SQUARE, SQUARE)
def log_of_mask(scores, keys):
    return scores * 2 + jnp.log((keys > 0).astype(F32))


@program(SQUARE, SQUARE)
def log_of_given_mask(scores, mask):
    return scores * 2 + jnp.log(mask)


# Lookups that are filled.


@program(of(16, 4), TOKENS, of(4, 4))
def filled_and_averaged(table, tokens, weights):
    h = jnp.tanh(jnp.take(table, tokens, axis=0) @ weights)
    return (h * h).mean(axis=-1) + 1


@program(of(16, 4), TOKENS)
def filled_result(table, tokens):
    return jnp.take(table, tokens, axis=0) * 2


@program(of(16, 4), TOKENS, of(4, 4))
def filled_in_a_loop(table, tokens, weights):
    def turn(h, token):
        return jnp.tanh((h + jnp.take(table, token, axis=0)) @ weights), h.sum()

    return lax.scan(turn, jnp.ones(4), tokens)


# Comparisons of NaN.


@program(ROW, ROW)
def greedy(x, y):
    return jnp.argmax(jnp.sqrt(x) * y)


@program(ROW, ROW)
def compared_logarithm(x, y):
    return jnp.where(jnp.log(x) > y, y, 0)


@program(ROW, ROW)
def argmax_without_nan(x, y):
    roots = jnp.sqrt(x)
    return jnp.argmax(jnp.where(jnp.isnan(roots), -jnp.inf, roots))


@program(ROW, ROW)
def guarded_logarithm(x, y):
    return jnp.where(x > 0, jnp.log(x), 0) + y


# Loops.


def counted(step):
    def function(x, n):
        def turn(state):
            i, x, n = state
            return i + step, jnp.sin(x) + i.astype(F32), n

        return lax.while_loop(lambda state: state[0] < state[2], turn, (0, x, n))

    return function


@program(ROW, ids())
def counted_up(x, n):
    return counted(1)(x, n)


@program(ROW, ids())
def counted_down(x, n):
    return counted(-1)(x, n)


@program(ROW, ROW)
def counted_down_from_zero(x, y):
    return lax.while_loop(lambda s: s[0] < 10, lambda s: (s[0] - 1, jnp.sin(s[1]) + y), (0, x))


# Ranks.


@program(ROW, ROW, ranks=8)
def mean_of_kept(x, mask):
    mine = (x * mask).sum() / mask.sum()
    return lax.pmean(mine, "x") + x


@program(ROW, ROW, ranks=8)
def mean_over_ranks(x, mask):
    return lax.psum((x * mask).sum(), "x") / lax.psum(mask.sum(), "x") + x


@program(ROW, ROW, ranks=8)
def gradient_norm(g, p):
    norm = jnp.sqrt(lax.psum(jnp.sum(g * g), "x"))
    return p - 0.1 * g * norm


@program(ROW, ROW, ranks=8)
def sums_by_turns(x, y):
    def turn(i, x):
        return lax.psum(jnp.tanh(x), "x") * 0.1 + y

    return lax.fori_loop(0, 4, turn, x)


@program(ROW, ROW, ranks=8)
def tempered(x, y):
    heat = jnp.where(lax.axis_index("x") == 6, 1e4, 1.0)
    weights = jnp.exp(x * heat)
    return weights / lax.psum(weights.sum(), "x") * y


def compiled(function, shapes, ranks):
    if ranks > 1:
        mesh = jax.make_mesh((ranks,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        specs = tuple(P("x") if dims else P() for dims, _ in shapes)
        function = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("x"), check_vma=False)
        shapes = [((dims[0] * ranks, *dims[1:]), dtype) for dims, dtype in shapes]
    given = [jax.ShapeDtypeStruct(dims, dtype) for dims, dtype in shapes]
    return jax.jit(function).lower(*given).compile().as_text()


def bare(text):
    """A module without the lines of the program it came from."""
    head, rest = text.split("\n", 1)
    start = re.search(r"^(%|ENTRY)", rest, re.M).start()
    text = re.sub(r", entry_computation_layout=.*", "", head)
    text += re.search(r", num_partitions=\d+", head)[0] if "num_partitions" in head else ""
    rest = re.sub(r', (metadata|frontend_attributes)=\{([^"}]|"[^"]*")*\}', "", rest[start:])
    lines = rest.strip().split("\n")
    own = [line if "custom-call" in line else line.split(", backend_config=")[0] for line in lines]
    rest = "\n".join(own)
    return f"{text}\n\n{rest}\n"


if __name__ == "__main__":
    for name, (function, shapes, ranks) in PROGRAMS.items():
        (FOLDER / f"{name}.txt").write_text(bare(compiled(function, shapes, ranks)))
