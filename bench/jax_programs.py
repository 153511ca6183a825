#!/usr/bin/env python3
"""Whole JAX programs on one to eight devices: what `halflap run` computes beside what JAX computes,
on every rank.

    python bench/jax_programs.py [--halflap BIN] [--keep FOLDER] [--tests] [NAME...]

Each program is run as it was partitioned and as it was optimised, in our order. Ends with 1 if
anything differs or does not run. With --tests those that add something to the tests are written to
tests/programs anew. Needs jax.
"""

import argparse
import gzip
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_ENABLE_X64", "1")
from jax_modules import STAGES, make, mesh, place
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P

from compare import build_halflap

TESTS = Path(__file__).resolve().parent.parent / "tests" / "programs"
# Small ones, each with something that no other module of the tests has.
TESTED = ["experts_all_to_all", "fourier", "linear_algebra", "generator_bits", "half_precision", "complex_numbers", "scatter_sums", "more_linear_algebra", "schur_forms"]
random = np.random.default_rng(11)
START = random.bit_generator.state
PROGRAMS = {}


def program(relative=1e-4, absolute=1e-5):
    """Registers a function that gives another function and its arguments."""

    def register(make_it):
        PROGRAMS[make_it.__name__] = (make_it, relative, absolute)
        return make_it

    return register


def real(*shape, dtype=np.float32, scale=1.0):
    return (random.standard_normal(shape) * scale).astype(dtype)


@program(absolute=1e-4)
def cnn_batch_norm():
    grid = mesh((4,), ("x",))

    def loss(w, images, labels):
        x = images
        for kernel, gain in zip(w["kernels"], w["gains"]):
            x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            x = jax.nn.relu((x - mean) * lax.rsqrt(variance + 1e-5) * gain)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME") / 4
        logits = x.reshape(x.shape[0], -1) @ w["head"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    w = {
        "kernels": [real(3, 3, 3, 8, scale=0.3), real(3, 3, 8, 16, scale=0.2)],
        "gains": [np.ones(8, np.float32), np.ones(16, np.float32)],
        "head": real(4 * 4 * 16, 10, scale=0.1),
    }
    w = jax.tree.map(lambda a: place(a, grid), w)
    images = place(real(8, 16, 16, 3), grid, "x")
    labels = place(random.integers(0, 10, 8).astype(np.int32), grid, "x")
    return jax.value_and_grad(loss), (w, images, labels)


@program()
def experts_all_to_all():
    grid = mesh((4,), ("x",))

    def local(x, gate, up, down):
        scores = jax.nn.softmax(x @ gate)
        weight, chosen = lax.top_k(scores, 2)
        place_of = jnp.cumsum(jax.nn.one_hot(chosen[:, 0], 4, dtype=jnp.int32), 0) - 1
        slot = jnp.take_along_axis(place_of, chosen[:, :1], 1)[:, 0]
        sent = jnp.zeros((4, 8, x.shape[1])).at[chosen[:, 0], slot].set(x, mode="drop")
        got = lax.all_to_all(sent, "x", 0, 0, tiled=False)
        done = jax.nn.gelu(got @ up[0]) @ down[0]
        back = lax.all_to_all(done, "x", 0, 0, tiled=False)
        return back.at[chosen[:, 0], slot].get(mode="fill", fill_value=0) * weight[:, :1]

    specs = (P("x"), P(), P("x"), P("x"))
    function = shard_map(local, mesh=grid, in_specs=specs, out_specs=P("x"))
    arrays = real(64, 16), real(16, 4), real(4, 16, 32, scale=0.3), real(4, 32, 16, scale=0.3)
    return function, tuple(place(a, grid, *spec) for a, spec in zip(arrays, specs))


@program()
def ring_attention():
    grid = mesh((8,), ("x",))

    def local(q, k, v):
        def turn(i, state):
            k, v, top, total, out = state
            s = jnp.einsum("qd,kd->qk", q, k) / 4
            new = jnp.maximum(top, s.max(1))
            p, old = jnp.exp(s - new[:, None]), jnp.exp(top - new)
            pairs = [(j, (j + 1) % 8) for j in range(8)]
            k, v = lax.ppermute(k, "x", pairs), lax.ppermute(v, "x", pairs)
            return k, v, new, total * old + p.sum(1), out * old[:, None] + p @ v_now(v, i)

        def v_now(v, i):
            return lax.ppermute(v, "x", [((j + 1) % 8, j) for j in range(8)])

        start = (k, v, lax.pcast(jnp.full(q.shape[0], -jnp.inf, q.dtype), "x", to="varying"))
        start += (lax.pcast(jnp.zeros(q.shape[0], q.dtype), "x", to="varying"), lax.pcast(jnp.zeros(q.shape, q.dtype), "x", to="varying"))
        state = lax.fori_loop(0, 8, turn, start)
        return state[4] / state[3][:, None]

    function = shard_map(local, mesh=grid, in_specs=P("x"), out_specs=P("x"))
    return function, tuple(place(real(64, 16), grid, "x") for _ in range(3))


@program()
def pipeline_permute():
    grid = mesh((4,), ("x",))

    def local(w, x):
        index = lax.axis_index("x")
        carried = lax.pcast(jnp.zeros_like(x[0]), "x", to="varying")
        outs = []
        for step in range(7):
            given = x[step] if step < 4 else jnp.zeros_like(x[0])
            carried = jnp.where(index == 0, given, carried)
            carried = jnp.tanh(carried @ w[0])
            outs.append(jnp.where(index == 3, carried, 0))
            carried = lax.ppermute(carried, "x", [(j, j + 1) for j in range(3)])
        return lax.psum(jnp.stack(outs), "x")

    function = shard_map(local, mesh=grid, in_specs=(P("x"), P()), out_specs=P())
    return function, (place(real(4, 16, 16, scale=0.3), grid, "x"), place(real(4, 5, 16), grid))


@program()
def gru_scan():
    grid = mesh((2,), ("x",))

    def loss(w, x):
        def cell(h, x):
            z = jax.nn.sigmoid(x @ w["xz"] + h @ w["hz"])
            r = jax.nn.sigmoid(x @ w["xr"] + h @ w["hr"])
            n = jnp.tanh(x @ w["xn"] + (r * h) @ w["hn"])
            h = (1 - z) * n + z * h
            return h, h

        _, all_of = lax.scan(cell, jnp.zeros((x.shape[1], 12), x.dtype), x)
        return (all_of**2).mean()

    w = {f"{a}{b}": real(10 if a == "x" else 12, 12, scale=0.3) for a in "xh" for b in "zrn"}
    w = jax.tree.map(lambda a: place(a, grid), w)
    return jax.value_and_grad(loss), (w, place(real(9, 4, 10), grid, None, "x"))


@program()
def lstm_while():
    def function(w, x):
        def body(state):
            i, h, c, _ = state
            gates = jnp.concatenate([x, h]) @ w
            a, f, g, o = jnp.split(gates, 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(a) * jnp.tanh(g)
            new = jax.nn.sigmoid(o) * jnp.tanh(c)
            return i + 1, new, c, jnp.abs(new - h).max()

        start = (0, jnp.zeros(8, x.dtype), jnp.zeros(8, x.dtype), jnp.array(1.0, x.dtype))
        return lax.while_loop(lambda s: (s[3] > 1e-3) & (s[0] < 100), body, start)

    return function, (real(14, 32, scale=0.2), real(6))


@program()
def sorting():
    grid = mesh((4,), ("x",))

    def function(x, k):
        order = jnp.argsort(x, 1)
        return (
            jnp.sort(x, 0), order, jnp.take_along_axis(x, order, 1), jnp.cumsum(x, 1), jnp.cumprod(1 + 0.1 * x, 0),
            lax.cummax(x, 1), lax.cumlogsumexp(x, 1), jnp.searchsorted(jnp.sort(k), k), jnp.bincount(k % 7, length=7),
            jnp.median(x, 1), lax.top_k(x, 3), jnp.unique(k, size=8, fill_value=-1), jnp.quantile(x, 0.3, 1),
        )

    return function, (place(real(8, 20), grid, "x"), place(random.integers(0, 50, 40).astype(np.int32), grid))


@program()
def fourier():
    grid = mesh((2,), ("x",))

    def function(x, c):
        return (
            jnp.abs(jnp.fft.fft(c)), jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x) * 2), jnp.fft.ifft(c),
            jnp.fft.fft2(c.reshape(4, 6, 12)), jnp.fft.rfftn(x.reshape(4, 6, 12)), jnp.fft.irfft(c[:, :8], n=15),
        )

    c = (real(4, 72) + 1j * real(4, 72)).astype(np.complex64)
    return function, (place(real(4, 72), grid, "x"), place(c, grid, "x"))


@program(relative=1e-3, absolute=1e-4)
def linear_algebra():
    def function(a, b):
        s = a @ a.T + 8 * jnp.eye(8, dtype=a.dtype)
        factor = jnp.linalg.cholesky(s)
        q, r = jnp.linalg.qr(a)
        values, vectors = jnp.linalg.eigh(s)
        u, d, v = jnp.linalg.svd(a)
        return (
            factor, jax.scipy.linalg.solve_triangular(factor, b, lower=True), jnp.linalg.solve(a, b), jnp.linalg.inv(s),
            jnp.linalg.det(s), q @ r, values, (vectors * values) @ vectors.T, d, jnp.linalg.slogdet(s)[1],
            jax.scipy.linalg.lu(s)[2], jnp.linalg.lstsq(a, b)[0],
        )

    return function, (real(8, 8), real(8, 3))


@program(relative=1e-3, absolute=1e-4)
def more_linear_algebra():
    def function(a, b, c, lines):
        s = c @ c.conj().T + 8 * jnp.eye(6, dtype=c.dtype)
        factor = jnp.linalg.cholesky(s)
        q, r = jnp.linalg.qr(c)
        values, vectors = jnp.linalg.eigh(s)
        u, d, v = jnp.linalg.svd(c)
        general, right = jnp.linalg.eig(a)
        ordered, upper, order = jax.scipy.linalg.qr(a, pivoting=True)
        condensed, turned = jax.scipy.linalg.hessenberg(a, calc_q=True)
        return (
            factor, jax.scipy.linalg.solve_triangular(factor, b + 0j, trans=2, lower=True), jnp.linalg.solve(c, b + 0j),
            q @ r, values, (vectors * values) @ vectors.conj().T, d, (u * d) @ v, jnp.sum(general ** 3),
            (right * general) @ jnp.linalg.inv(right), ordered @ upper, order, jnp.abs(jnp.diag(upper)),
            turned @ condensed @ turned.T, jnp.abs(condensed), lax.linalg.tridiagonal_solve(*lines, b),
        )

    c = (real(6, 6) + 1j * real(6, 6)).astype(np.complex64)
    return function, (real(6, 6), real(6, 2), c, real(3, 6) + np.array([[0], [3], [0]], np.float32))


@program(relative=1e-3, absolute=1e-4)
def schur_forms():
    def function(a, c, batch):
        form, vectors = jax.scipy.linalg.schur(a)
        complex_form, complex_vectors = jax.scipy.linalg.schur(c)
        several = jax.vmap(lambda one: jax.scipy.linalg.schur(one, output="complex")[0])(batch)
        s, h = a @ a.T, c @ c.conj().T
        return (
            vectors @ form @ vectors.T, vectors @ vectors.T, jnp.sort(jnp.diag(form)), jnp.tril(form, -2),
            complex_vectors @ complex_form @ complex_vectors.conj().T, jnp.tril(complex_form, -1),
            jnp.sort(jnp.abs(jnp.diagonal(several, axis1=1, axis2=2))), jax.scipy.linalg.sqrtm(s + jnp.eye(6)),
            *(jnp.abs(part) for part in lax.linalg.tridiagonal(s, lower=False)[1:3]),
            *(jnp.abs(part) for part in lax.linalg.tridiagonal(h, lower=False)[1:3]),
        )

    c = (real(6, 6) + 1j * real(6, 6)).astype(np.complex64)
    return function, (real(6, 6), c, real(3, 5, 5))


@program()
def dropout():
    grid = mesh((8,), ("x",))

    def function(key, x, w):
        keys = jax.random.split(jax.random.wrap_key_data(key), 3)
        mask = jax.random.bernoulli(keys[0], 0.8, x.shape)
        noise = jax.random.normal(keys[1], (x.shape[0], w.shape[1]))
        chosen = jax.random.categorical(keys[2], x @ w)
        return jnp.where(mask, x / 0.8, 0) @ w + noise, chosen, jax.random.permutation(keys[0], 16)

    return function, (place(np.array([1, 2], np.uint32), grid), place(real(16, 12), grid, "x"), place(real(12, 8), grid))


@program()
def generator_bits():
    def function(key, x):
        key = jax.random.wrap_key_data(key, impl="rbg")
        return jax.random.uniform(key, (5, 9)) + x, jax.random.bits(key, (7,), np.uint8), jax.random.bits(key, (7,), np.uint16)

    return function, (np.array([1, 2, 3, 4], np.uint32), real(5, 9))


@program()
def newton_steps():
    grid = mesh((2,), ("x",))

    def function(x):
        def cond(state):
            return jnp.logical_and(jnp.max(jnp.abs(state[1])) > 1e-6, state[2] < 50)

        def body(state):
            x, _, i = state
            step = (x**3 - 2 * x - 5) / (3 * x**2 - 2)
            return x - step, step, i + 1

        return lax.while_loop(cond, body, (x, jnp.ones_like(x), 0))

    return function, (place(np.linspace(1.5, 4, 16, dtype=np.float32), grid, "x"),)


@program()
def branches():
    grid = mesh((4,), ("x",))

    def local(i, x):
        kinds = [lambda x: lax.psum(x, "x"), lambda x: lax.pmax(x, "x"), lambda x: 2 * lax.pmean(x, "x")]
        y = lax.switch(i[0], kinds, x)
        return lax.cond(x.sum() > 0, lambda: y * 2, lambda: y - 1)

    function = shard_map(local, mesh=grid, in_specs=(P(), P("x")), out_specs=P("x"), check_vma=False)
    return function, (place(np.array([1], np.int32), grid), place(real(8, 6), grid, "x"))


@program()
def scatter_sums():
    grid = mesh((2, 4), ("x", "y"))

    def local(a, b):
        y = lax.psum_scatter(a @ b, "y", scatter_dimension=1, tiled=True)
        g = lax.all_gather(y, "x", axis=0, tiled=True)
        return lax.psum_scatter(g, ("x", "y"), scatter_dimension=0, tiled=True), lax.pmin(y, "x"), lax.psum(y, "y")

    function = shard_map(local, mesh=grid, in_specs=(P("x", "y"), P("y")), out_specs=(P(("x", "y")), P(None, "y"), P("x")), check_vma=False)
    return function, (place(real(16, 32), grid, "x", "y"), place(real(32, 16), grid, "y"))


@program()
def whole_numbers():
    grid = mesh((4,), ("x",))

    def function(a, b):
        return (
            a // (b | 1), a % (b | 1), a << (b & 7), a >> 2, a ^ b, jnp.gcd(a, b), jnp.clip(a, -5, 5), a.astype(np.int8) * 3,
            (a.astype(np.uint64) * 123456789).sum(0), jnp.bitwise_count(a), jnp.prod(b | 1, 1), jnp.packbits(a > 0, axis=1),
            lax.clz(b), a @ b.T, jnp.argmax(a, 1), jnp.all(a > -100, 1), jnp.divmod(a, 7), jnp.power(b, 3),
        )

    values = lambda: place(random.integers(-40, 40, (8, 16)).astype(np.int32), grid, "x")
    return function, (values(), values())


@program(relative=1e-10, absolute=1e-10)
def double_precision():
    grid = mesh((4,), ("x",))

    def function(a, b):
        h = jnp.tanh(a @ b)
        return jax.nn.softmax(h), jnp.exp(h).sum(1), lax.erf(h), lax.lgamma(2 + h), lax.digamma(3 + h), jnp.sinc(h), h.var(0)

    return function, (place(real(16, 24, dtype=np.float64), grid, "x"), place(real(24, 8, dtype=np.float64), grid))


@program(relative=4e-3, absolute=4e-3)
def half_precision():
    grid = mesh((2,), ("x",))

    def function(a, b):
        h = jax.nn.gelu(a @ b)
        return h, h.sum(0), jnp.sort(h, 1), (h / (1 + h.max())).astype(jnp.float32)

    return function, (place(real(8, 16, dtype=np.float16), grid, "x"), place(real(16, 12, dtype=np.float16, scale=0.3), grid))


@program()
def complex_numbers():
    grid = mesh((2,), ("x",))

    def function(a, b):
        c = a @ b
        return c, jnp.abs(c), jnp.angle(c), c * a[:, :6] / (2 + b[:6].T[:4]), jnp.exp(1j * c.real), c.sum(0), jnp.conj(c), jnp.sqrt(c), jnp.log(c), jnp.sin(c), c**2, jnp.tanh(c)

    value = lambda *shape: (real(*shape) + 1j * real(*shape)).astype(np.complex64)
    return function, (place(value(4, 8), grid, "x"), place(value(8, 6), grid))


@program()
def functions():
    def function(x):
        y = jnp.abs(x) + 0.5
        return (
            lax.lgamma(y), lax.digamma(y), lax.igamma(y, y + 1), lax.bessel_i0e(x), lax.erf_inv(jnp.tanh(x)), lax.erfc(x),
            jax.scipy.special.betainc(y, y + 1, jnp.clip(y / 4, 0, 1)), jax.nn.silu(x), jax.nn.softplus(x), jnp.logaddexp(x, y),
            jnp.arctan2(x, y), jnp.hypot(x, y), jnp.nextafter(x, y), jnp.frexp(x)[0], jnp.cbrt(x), jnp.exp2(x), jnp.log2(y),
            jnp.fmod(x, y), jnp.heaviside(x, 0.5), jnp.interp(x, jnp.linspace(-2, 2, 9), jnp.linspace(0, 1, 9)),
        )

    return function, (real(6, 7),)


@program(relative=2e-2, absolute=2e-2)
def brain_floats():
    grid = mesh((8,), ("x",))

    def loss(w, x):
        return (jax.nn.gelu(x @ w["a"]) @ w["b"]).astype(jnp.float32).var()

    w = {"a": real(16, 64, scale=0.2).astype(jnp.bfloat16), "b": real(64, 16, scale=0.2).astype(jnp.bfloat16)}
    w = {"a": place(w["a"], grid, None, "x"), "b": place(w["b"], grid, "x")}
    return jax.value_and_grad(loss), (w, place(real(8, 16).astype(jnp.bfloat16), grid))


def floats(array):
    """Arrays of any type as numbers: bfloat16 is stored as bytes."""
    if array.dtype.kind == "V":
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def difference(given, expected, relative, absolute):
    """In words what differs; nothing, if all is close. Elements count beside the largest of their
    array."""
    names = sorted(name for name in expected if name.startswith("out_"))
    for name in names:
        if name not in given:
            return f"{name} is missing"
        a, b = floats(given[name]), floats(expected[name])
        if a.shape != b.shape:
            return f"{name} is {a.shape} and not {b.shape}"
        largest = np.abs(b[np.isfinite(b)]).max(initial=0)
        close = (np.abs(a - b) <= absolute + relative * largest) | (a == b) | (np.isnan(a) & np.isnan(b))
        if not close.all():
            worst = np.unravel_index(np.argmax(np.where(close, 0, np.abs(a - b))), a.shape) if a.shape else ()
            return f"{name}: {a[worst]} and not {b[worst]} at {worst}, {np.sum(~close)} of {a.size} differ"
    return None


def keep_for_tests(name, made):
    """Both stages without what says where they come from, and the arrays."""
    TESTS.mkdir(exist_ok=True)
    for stage, path in made.texts.items():
        text = re.sub(r",? ?(metadata|frontend_attributes)=\{[^{}]*\}", "", path.read_text())
        text = re.sub(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*\n*", "", text, flags=re.M)
        with open(TESTS / f"{name}.{stage}.txt.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, 0) as file:
            file.write(text.encode())
    np.savez_compressed(TESTS / f"{name}.npz", **np.load(made.arrays))


def check(name, options, folder):
    make_it, relative, absolute = PROGRAMS[name]
    # The same arrays, whichever programs are asked for.
    random.bit_generator.state = START
    made = make(name, *make_it(), folder)
    expected = np.load(made.arrays)
    problems = []
    if options.tests and name in TESTED:
        keep_for_tests(name, made)
    for stage in STAGES:
        out = folder / f"{name}.out.npz"
        command = [options.halflap, "run", made.texts[stage], "--inputs", made.arrays, "-o", out, "--effort", "quick"]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        problem = done.stderr.strip() if done.returncode else difference(np.load(out), expected, relative, absolute)
        if problem:
            problems.append(f"{name}, {stage}: {problem[:400]}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--halflap")
    parser.add_argument("--keep")
    parser.add_argument("--tests", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    options.halflap = options.halflap or build_halflap()
    bad = 0
    names = options.names or list(PROGRAMS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            try:
                problems = check(name, options, folder)
            except Exception as error:  # What JAX itself cannot do is told, too.
                problems = [f"{name}, JAX: {type(error).__name__}: {str(error)[:300]}"]
            bad += len(problems)
            print("\n".join(problems) or f"{name}: the same", flush=True)
    print(f"{len(names)} programs, each at two stages: {bad} differ or do not run")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
