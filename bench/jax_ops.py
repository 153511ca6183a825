"""Makes small modules with JAX, one for an operation or a few, and compares what halflap-run
computes.

Every case is lowered and compiled by JAX on the CPU; the module before and after optimisation is
evaluated by `examples/against_jax` with the same random inputs.

    python bench/jax_ops.py [--keep FOLDER] [NAME...]

Needs jax and numpy, and `cargo build --profile dist -p halflap-run --example against_jax`.
"""

import argparse
import os
import subprocess
import sys
import tempfile

os.environ.setdefault("JAX_ENABLE_X64", "1")
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOL = os.path.join(ROOT, "target", "dist", "examples", "against_jax")
random = np.random.default_rng(7)


def real(*shape, dtype=np.float32, low=-2.0, high=2.0):
    return random.uniform(low, high, shape).astype(dtype)


def whole(*shape, dtype=np.int32, low=-20, high=20):
    return random.integers(low, high, shape).astype(dtype)


CASES = {}


def case(name, function, *args, relative=1e-5, absolute=1e-6):
    CASES[name] = (function, args, relative, absolute)


def elementwise():
    x = real(7, 33)
    positive = real(7, 33, low=0.05, high=5.0)
    unit = real(7, 33, low=-0.95, high=0.95)
    for name in "exp expm1 tanh sin cos tan sinh cosh erf logistic cbrt floor ceil abs neg sign round is_finite asinh atan".split():
        case(name, getattr(lax, name), x)
    for name in "log log1p sqrt rsqrt".split():
        case(name, getattr(lax, name), positive)
    for name in "asin acos atanh".split():
        case(name, getattr(lax, name), unit)
    case("acosh", lax.acosh, positive + 1)
    case("pow", lax.pow, positive, x)
    case("atan2", lax.atan2, x, real(7, 33))
    case("rem", lax.rem, x, positive)
    case("round_even", lambda a: lax.round(a * 4, lax.RoundingMethod.TO_NEAREST_EVEN), x)
    case("exp_f64", jnp.exp, real(50, dtype=np.float64))
    case("tanh_f16", jnp.tanh, real(50, dtype=np.float16), relative=2e-3, absolute=2e-3)
    case("gelu_bf16", jax.nn.gelu, jnp.asarray(real(50), jnp.bfloat16).astype(jnp.bfloat16), relative=1e-2, absolute=1e-2)
    a, b = whole(40), whole(40)
    case("int_ops", lambda a, b: (a + b, a * b, a - b, lax.max(a, b), lax.div(a, b | 1), lax.rem(a, b | 1)), a, b)
    case("int_zero", lambda a, b: (lax.div(a, b), lax.rem(a, b)), a, np.zeros(40, np.int32))
    ua, ub = whole(40, dtype=np.uint32, low=0, high=2**31), whole(40, dtype=np.uint32, low=0, high=40)
    case("bits", lambda a, b: (a & b, a | b, a ^ b, ~a, lax.shift_left(a, b), lax.shift_right_logical(a, b), lax.population_count(a), lax.clz(a)), ua, ub)
    case("shift_signed", lambda a, b: (lax.shift_right_arithmetic(a, b), lax.shift_right_logical(a, b)), a, whole(40, low=0, high=40))
    case("int_pow", lambda a: (a**3, lax.integer_pow(a, 5)), whole(20, low=-4, high=4))
    case("small_ints", lambda a, b: (a + b, a * b, a // (b | 1)), whole(30, dtype=np.int8), whole(30, dtype=np.int8))
    case("compare", lambda a, b: (a < b, a <= b, a == b, a != b, a > b), x, np.where(x > 0, x, 0).astype(np.float32))
    case("select_clamp", lambda a, b: (jnp.where(a > 0, a, b), jnp.clip(a, -0.5, 0.5)), x, real(7, 33))
    case("convert", lambda a: (a.astype(np.int32), a.astype(jnp.bfloat16).astype(np.float32), a.astype(np.float64), (a > 0).astype(np.uint8), a.astype(np.int8)), x * 20)
    case("bitcast", lambda a: (lax.bitcast_convert_type(a, np.uint32), lax.bitcast_convert_type(a, np.uint8), lax.bitcast_convert_type(a, np.uint16)), x)
    case("complex", lambda a, b: (jnp.abs(a * b + a / b), jnp.real(jnp.exp(a)), jnp.imag(jnp.conj(a) * b)), (x + 1j * unit).astype(np.complex64), (unit + 2j).astype(np.complex64))
    nan = np.array([np.nan, 1, -0.0, 0.0, np.inf, -np.inf, 1e-30, 88.9], np.float32)
    case("special", lambda a: (lax.max(a, a[::-1]), lax.min(a, a[::-1]), jnp.exp(a), jnp.sign(a), jnp.tanh(a), jnp.floor(a)), nan)


def moving():
    x = real(4, 6, 10)
    case("transpose", lambda a: (a.T, a.transpose(1, 0, 2), a.transpose(0, 2, 1) + 1), x)
    case("transpose_large", lambda a: a.transpose(1, 0), real(130, 67))
    case("reshape", lambda a: ((a * 2).reshape(24, 10).T + 1, (a + 1).reshape(60, 4), (a.transpose(1, 0, 2) * 2).reshape(24, 10)), x)
    case("broadcast", lambda a, b: (a + b, jnp.broadcast_to(b[:, None], (10, 3))), x, real(10))
    case("slice", lambda a: (a[1:3, ::2, 9:2:-3], a[:, 2] * 2, a[::-1, :, ::-1]), x)
    case("pad", lambda a: (lax.pad(a, np.float32(1.5), ((1, 2, 0), (0, 0, 2), (-2, 3, 1))), lax.pad(a, np.float32(0), ((-1, -1, 0), (-3, -4, 2), (0, 0, 0)))), x)
    case("concatenate", lambda a, b: (jnp.concatenate([a, b * 2, a], 1), jnp.stack([a, a + 1], -1)), x, real(4, 2, 10))
    case("dynamic_slice", lambda a, i, j: lax.dynamic_slice(a, (i, j, np.int32(9)), (2, 3, 4)), x, np.int32(1), np.int32(100))
    case("dynamic_update", lambda a, u, i: lax.dynamic_update_slice(a, u, (i, np.int32(1), np.int32(-5))), x, real(2, 3, 4), np.int32(7))
    case("iota", lambda a: a + jnp.arange(10, dtype=np.float32) + lax.broadcasted_iota(np.float32, (4, 6, 10), 1), x)
    case("gather", lambda a, i: (a[i], a[:, i % 6], jnp.take(a, i, axis=2, mode="clip")), x, whole(5, 3, low=-3, high=12))
    case("take_along", lambda a, i: jnp.take_along_axis(a, i, 2), x, whole(4, 6, 3, low=0, high=10))
    case("scatter_add", lambda a, i, u: a.at[i].add(u), x, whole(5, low=0, high=6), real(5, 6, 10))
    case("scatter_set", lambda a, i, u: a.at[:, i].set(u), x, np.array([3, 0, 5], np.int32), real(4, 3, 10))
    case("scatter_max", lambda a, i, u: (a.at[i].max(u), a.at[i].multiply(u)), real(9), whole(20, low=-2, high=12), real(20))
    case("scatter_bf16", lambda a, i, u: a.at[i].add(u), jnp.asarray(real(9), jnp.bfloat16), whole(20, low=0, high=9), jnp.asarray(real(20), jnp.bfloat16), relative=2e-2, absolute=2e-2)
    case("grad_take", lambda a, i, g: jax.vjp(lambda a: jnp.take_along_axis(a, i, 1), a)[1](g)[0], real(6, 20), whole(6, 4, low=0, high=20), real(6, 4))
    # Larger ones are cut from the text of optimised modules.
    case("constants", lambda a: a[:, :2, :4] * np.arange(8, dtype=np.float32).reshape(2, 4) + np.float32(np.pi), x)
    case("roll", lambda a: jnp.roll(a, (2, -3), (0, 2)), x)
    case("tril", lambda a: (jnp.tril(a), jnp.triu(a, 2)), real(9, 11))


def reducing():
    x = real(5, 13, 37)
    case("sum", lambda a: (a.sum(), a.sum(0), a.sum(1), a.sum(2), a.sum((0, 2)), a.sum((0, 1)), (a * a + 1).mean(-1)), x)
    case("sum_large", lambda a: (a.sum(0), a.sum(1), a.sum()), real(1200, 1500, low=0, high=1))
    case("extremes", lambda a: (a.max(1), a.min(2), a.prod(0), jnp.any(a > 1.9, 1), jnp.all(a < 1.9, 2)), x)
    case("arg", lambda a: (a.argmax(2), a.argmin(0), a.argmax(), a.argmax(1)), x)
    case("arg_ties", lambda a: (a.argmax(1), a.argmin(1)), whole(40, 9, low=0, high=3))
    case("sum_types", lambda a: (a.sum(0), a.astype(np.float64).sum(1), a.astype(np.int64).sum(), a.astype(np.int8).max(1)), x[0] * 9)
    case("sum_bf16", lambda a: (a.sum(0), a.max(1)), jnp.asarray(real(30, 40), jnp.bfloat16), relative=1e-2, absolute=1e-2)
    case("softmax", lambda a: (jax.nn.softmax(a, -1), jax.nn.log_softmax(a, 1), jax.nn.logsumexp(a, 0)), x)
    case("layernorm", lambda a, g: (a - a.mean(-1, keepdims=True)) * lax.rsqrt(a.var(-1, keepdims=True) + 1e-5) * g, x, real(37))
    case("cumulative", lambda a: (jnp.cumsum(a, 1), jnp.cumprod(a[:2], 0), lax.cummax(a, 2)), x)
    case("reduce_window", lambda a: lax.reduce_window(a, -np.inf, lax.max, (1, 3, 3), (1, 2, 2), "SAME"), x)
    case("reduce_window_dilated", lambda a: lax.reduce_window(a, 0.0, lax.add, (2, 3, 4), (1, 1, 2), ((0, 1), (2, 0), (1, 1)), (2, 1, 2), (1, 2, 1)), x)
    case("max_pool_grad", lambda a, g: jax.vjp(lambda a: lax.reduce_window(a, -np.inf, lax.max, (1, 2, 2), (1, 2, 2), "VALID"), a)[1](g)[0], real(3, 8, 10), real(3, 4, 5))
    case("sort", lambda a: (jnp.sort(a, -1), jnp.argsort(a, 1), jnp.sort(a, 0, descending=True)), x)
    case("sort_ties", lambda a: jnp.argsort(a, 1), whole(9, 50, low=0, high=5))
    case("sort_pairs", lambda a, b: lax.sort((a, b, a + 1), dimension=0, num_keys=2), whole(50, low=0, high=5), real(50))
    case("top_k", lambda a: lax.top_k(a, 5), x)
    case("reduce_custom", lambda a: lax.reduce(a, np.float32(1), lambda p, q: p * q + 0 * p, (1,)), real(20, 5))


def multiplying():
    for n in (3, 17, 64):
        case(f"dot_{n}", lambda a, b: a @ b, real(n, n + 5), real(n + 5, n + 2), absolute=1e-5)
    case("dot_batch", lambda a, b: jnp.einsum("bhqd,bhkd->bhqk", a, b), real(2, 3, 7, 5), real(2, 3, 9, 5))
    case("dot_heads", lambda a, b: jnp.einsum("bshk,hkd->bsd", a, b), real(2, 7, 3, 5), real(3, 5, 8))
    case("dot_mixed", lambda a, b: jnp.einsum("abcd,dbe->cea", a, b), real(3, 4, 5, 6), real(6, 4, 2))
    case("dot_vector", lambda a, b: (a @ b, b @ b, jnp.outer(b, b)), real(9, 11), real(11))
    case("dot_f64", lambda a, b: a @ b, real(9, 11, dtype=np.float64), real(11, 4, dtype=np.float64))
    case("dot_bf16", lambda a, b: (a @ b, lax.dot(a, b, preferred_element_type=np.float32)), jnp.asarray(real(9, 31), jnp.bfloat16), jnp.asarray(real(31, 8), jnp.bfloat16), relative=1e-2, absolute=1e-2)
    case("dot_f16", lambda a, b: a @ b, real(9, 31, dtype=np.float16), real(31, 8, dtype=np.float16), relative=1e-2, absolute=1e-2)
    case("dot_int", lambda a, b: (a @ b, lax.dot(a.astype(np.int8), b.astype(np.int8), preferred_element_type=np.int32)), whole(5, 9), whole(9, 4))
    case("dot_complex", lambda a: a @ a.T, (real(5, 7) + 1j * real(5, 7)).astype(np.complex64))
    numbers = ("NHWC", "HWIO", "NHWC")
    image, kernel = real(2, 9, 11, 6), real(3, 2, 6, 8)
    case("conv", lambda a, k: lax.conv_general_dilated(a, k, (1, 2), "SAME", dimension_numbers=numbers), image, kernel, absolute=1e-5)
    case("conv_dilated", lambda a, k: lax.conv_general_dilated(a, k, (2, 1), ((1, 2), (-1, 3)), (2, 1), (1, 3), numbers), image, kernel, absolute=1e-5)
    case("conv_groups", lambda a, k: lax.conv_general_dilated(a, k, (1, 1), "VALID", dimension_numbers=numbers, feature_group_count=3), image, real(3, 2, 2, 9), absolute=1e-5)
    case("conv_batch_groups", lambda a, k: lax.conv_general_dilated(a, k, (1, 1), "VALID", dimension_numbers=numbers, batch_group_count=2), real(4, 9, 11, 6), real(3, 2, 6, 8), absolute=1e-5)
    case("conv_1d", lambda a, k: lax.conv(a, k, (2,), "VALID"), real(2, 5, 20), real(4, 5, 3), absolute=1e-5)
    case("conv_grad", lambda a, k, g: jax.vjp(lambda a, k: lax.conv_general_dilated(a, k, (2, 1), "SAME", dimension_numbers=numbers), a, k)[1](g), real(2, 8, 9, 3), real(3, 3, 3, 4), real(2, 4, 9, 4), absolute=1e-5)
    case("conv_bf16", lambda a, k: lax.conv_general_dilated(a, k, (1, 1), "SAME", dimension_numbers=numbers), jnp.asarray(image, jnp.bfloat16), jnp.asarray(kernel, jnp.bfloat16), relative=2e-2, absolute=5e-2)


def controlling():
    case("while", lambda a: lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 1, jnp.sin(c[1]) * 1.5), (0, a)), real(12))
    case("scan", lambda a, w: lax.scan(lambda c, x: (jnp.tanh(c @ w + x), c.sum()), a[0], a), real(6, 8), real(8, 8))
    case("cond", lambda p, a: lax.cond(p > 0, lambda a: a * 2, lambda a: a - 1, a), np.int32(1), real(9))
    case("switch", lambda i, a: lax.switch(i, [lambda a: a, lambda a: a * 3, lambda a: -a], a), np.int32(5), real(9))
    case("threefry", lambda k: (jax.random.bits(jax.random.wrap_key_data(k, impl="threefry2x32"), (33,)), jax.random.uniform(jax.random.wrap_key_data(k, impl="threefry2x32"), (5, 7))), np.array([3, 9], np.uint32))
    case("normal", lambda k: jax.random.normal(jax.random.wrap_key_data(k, impl="threefry2x32"), (5, 7)), np.array([3, 9], np.uint32), relative=1e-4, absolute=1e-5)
    key = np.array([3, 9, 11, 2], np.uint32)
    for name, algorithm in (("default", lax.RandomAlgorithm.RNG_DEFAULT), ("three_fry", lax.RandomAlgorithm.RNG_THREE_FRY), ("philox", lax.RandomAlgorithm.RNG_PHILOX)):
        for shape in ((7,), (6, 5), (3, 5, 7)):
            case(f"rng_{name}_{len(shape)}", lambda k, s=shape, a=algorithm: lax.rng_bit_generator(k, s, algorithm=a), key)
        case(f"rng_{name}_u64", lambda k, a=algorithm: lax.rng_bit_generator(k, (5, 3), dtype=np.uint64, algorithm=a), key)
    case("map", lambda a: lax.map(lambda x: jnp.exp(x).sum(), a), real(4, 5))
    case("dropout", lambda k, a: jnp.where(jax.random.bernoulli(jax.random.wrap_key_data(k, impl="threefry2x32"), 0.7, a.shape), a / 0.7, 0), np.array([3, 9], np.uint32), real(20, 20))

    def block(x, w1, w2, g):
        h = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g
        q = h.reshape(2, 8, 4, 4)
        s = jnp.einsum("bqhd,bkhd->bhqk", q, q) / 2
        s = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), s, -1e9)
        a = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), q).reshape(2, 8, 16)
        return x + a + jax.nn.gelu(h @ w1) @ w2

    args = (real(2, 8, 16), real(16, 32), real(32, 16), real(16))
    case("block", block, *args, absolute=1e-5)
    case("block_grad", jax.grad(lambda *a: (block(*a) ** 2).sum(), (0, 1, 2, 3)), *args, relative=1e-4, absolute=1e-3)


def to_numpy(array):
    array = np.asarray(array)
    return array.view(np.dtype("V2")) if array.dtype.name == "bfloat16" else array


def run(name, folder):
    function, args, relative, absolute = CASES[name]
    lowered = jax.jit(function, keep_unused=True).lower(*args)
    compiled = lowered.compile()
    outputs = jax.tree.leaves(compiled(*args))
    arrays = {f"in_{i:03}_r0": to_numpy(a) for i, a in enumerate(args)}
    arrays |= {f"out_{i:03}_r0": to_numpy(a) for i, a in enumerate(outputs)}
    data = os.path.join(folder, f"{name}.npz")
    np.savez_compressed(data, **arrays)
    texts = {"before": lowered.compiler_ir("hlo").as_hlo_text(True), "after": compiled.as_text()}
    failures = []
    for kind, text in texts.items():
        module = os.path.join(folder, f"{name}.{kind}.hlo")
        with open(module, "w") as file:
            file.write(text)
        done = subprocess.run([TOOL, module, data, str(relative), str(absolute)], capture_output=True, text=True)
        if done.returncode != 0:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            failures.append((kind, "\n    ".join(lines[:4])))
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", help="where modules and arrays stay")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for make in (elementwise, moving, reducing, multiplying, controlling):
        make()
    folder = options.keep or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    bad = 0
    names = options.names or list(CASES)
    for name in names:
        try:
            failures = run(name, folder)
        except Exception as error:
            failures = [("jax", f"{type(error).__name__}: {str(error)[:200]}")]
        for kind, text in failures:
            bad += 1
            print(f"{name} ({kind}):\n    {text}", flush=True)
    print(f"{len(names)} cases, each before and after optimisation: {bad} differ or do not run")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
