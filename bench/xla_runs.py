#!/usr/bin/env python3
"""Operations that JAX itself does not write, as HLO text: what `halflap run` computes beside what
XLA computes on the CPU.

    python bench/xla_runs.py [--halflap BIN] [NAME...]

Ends with 1 if anything differs, does not run, or runs here although XLA refuses it. Needs jaxlib.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
import numpy as np
from jax._src import xla_bridge
from jaxlib import _hlo, _jax

from compare import build_halflap

random = np.random.default_rng(5)
PROGRAMS = {}


def real(*shape, dtype=np.float32, low=-2.0, high=2.0):
    return random.uniform(low, high, shape).astype(dtype)


def whole(low, high, *shape, dtype):
    return random.integers(low, high, shape).astype(dtype)


def program(name, body, *inputs, before="", relative=1e-5):
    """An entry computation of these lines, and the arrays that it is given."""
    text = f"HloModule m\n{before}\nENTRY e {{\n{body}\n}}\n"
    PROGRAMS[name] = (text, inputs, relative)


def batch_norms():
    for kind, dtype, relative in (("f32", np.float32, 1e-5), ("f64", np.float64, 1e-12)):
        x, grad = real(3, 4, 5, dtype=dtype), real(3, 4, 5, dtype=dtype)
        scale, offset, mean = (real(4, dtype=dtype) for _ in range(3))
        variance = real(4, dtype=dtype, low=0.1)
        whole_type, each = f"{kind}[3,4,5]", f"{kind}[4]"
        settings = "epsilon=0.001, feature_index=1"
        given = f" x = {whole_type} parameter(0)\n"
        one = [f" {name} = {each} parameter({number})\n" for number, name in enumerate("sabc", 1)]
        program(
            f"batch_norm_training_{kind}",
            given + "".join(one[:2])
            + f" ROOT r = ({whole_type}, {each}, {each}) batch-norm-training(x, s, a), {settings}",
            x, scale, offset, relative=relative * 10,
        )
        program(
            f"batch_norm_inference_{kind}",
            given + "".join(one[:4])
            + f" ROOT r = {whole_type} batch-norm-inference(x, s, a, b, c), {settings}",
            x, scale, offset, mean, variance, relative=relative,
        )
        program(
            f"batch_norm_grad_{kind}",
            given + "".join(one[:3]) + f" g = {whole_type} parameter(4)\n"
            f" ROOT r = ({whole_type}, {each}, {each}) batch-norm-grad(x, s, a, b, g), {settings}",
            x, scale, mean, variance, grad, relative=relative * 10,
        )


def roundings():
    for kind, bits, dtype, size in (("f32", "u32", np.float32, 32), ("f16", "u16", np.float16, 16)):
        x = np.concatenate([
            real(60, dtype=dtype, low=-200, high=200),
            np.array([0, -0.0, 1.5, -1.5, 1e4, -1e4, np.inf, -np.inf], dtype),
        ])
        noise = random.integers(0, 2**size, x.size, dtype=f"uint{size}")
        for to in ("s8", "s16", "s32"):
            program(
                f"stochastic_convert_{kind}_{to}",
                f" x = {kind}[{x.size}] parameter(0)\n n = {bits}[{x.size}] parameter(1)\n"
                f" ROOT r = {to}[{x.size}] stochastic-convert(x, n)",
                x, noise,
            )


def narrow_bits():
    """Through s32, as numpy has no integers of four bits. XLA counts the bits of the byte that a
    negative number is extended to, so these are not compared."""
    for kind, low, high in (("s4", -8, 8), ("u4", 0, 16), ("s2", -2, 2), ("u2", 0, 4)):
        x = np.arange(low, high).astype(np.int32)
        size, by = x.size, whole(0, 4, x.size, dtype=np.int32)
        ones = "n" if kind.startswith("s") else "ones"
        back = "".join(
            f" {name} = s32[{size}] convert({of})\n"
            for name, of in (("p", ones), ("q", "zeros"), ("w", "shifted"))
        )
        program(
            f"bits_{kind}",
            f" x = s32[{size}] parameter(0)\n b = s32[{size}] parameter(1)\n"
            f" n = {kind}[{size}] convert(x)\n m = {kind}[{size}] convert(b)\n"
            f" ones = {kind}[{size}] popcnt(n)\n zeros = {kind}[{size}] count-leading-zeros(n)\n"
            f" shifted = {kind}[{size}] shift-right-logical(n, m)\n{back}"
            f" ROOT r = (s32[{size}], s32[{size}], s32[{size}]) tuple(p, q, w)",
            x, by if kind in ("s4", "u4") else by % 2,
        )


def states():
    program("rng_state", " ROOT r = u64[2] rng-get-and-update-state(), delta=7")
    state = "(s32[], u64[2])"
    program(
        "rng_state_in_a_loop",
        f" z = s32[] constant(0)\n o = u64[2] constant({{0, 0}})\n i = {state} tuple(z, o)\n"
        f" ROOT w = {state} while(i), condition=goes, body=turn",
        before=f"goes {{\n s = {state} parameter(0)\n i = s32[] get-tuple-element(s), index=0\n"
        " n = s32[] constant(5)\n ROOT g = pred[] compare(i, n), direction=LT\n}\n"
        f"turn {{\n t = {state} parameter(0)\n j = s32[] get-tuple-element(t), index=0\n"
        " q = u64[2] get-tuple-element(t), index=1\n one = s32[] constant(1)\n"
        " k = s32[] add(j, one)\n u = u64[2] rng-get-and-update-state(), delta=3\n"
        f" v = u64[2] add(q, u)\n ROOT x = {state} tuple(k, v)\n}}\n",
    )


def markers():
    for target in (
        "MoveToHost", "MoveToDevice", "annotate_device_placement", "LayoutConstraint",
        "PinToDevice", "Sharding",
    ):
        more = ', frontend_attributes={_xla_buffer_placement="device"}'
        program(
            f"marker_{target}",
            " x = f32[3,4] parameter(0)\n y = f32[3,4] negate(x)\n"
            f' m = f32[3,4] custom-call(y), custom_call_target="{target}"'
            f"{more if target.startswith('annotate') else ''}"
            f"{', sharding={replicated}' if target == 'Sharding' else ''}\n"
            " ROOT r = f32[3,4] add(m, x)",
            real(3, 4),
        )


def dynamic_shapes():
    """Their results have no dynamic shapes, which XLA would cut to their sizes."""
    add = (
        "add {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n"
        " ROOT c = f32[] add(a, b)\n}\n"
    )
    program(
        "dynamic_concatenate",
        " p = f32[6] parameter(0)\n q = f32[5] parameter(1)\n w = f32[11] parameter(2)\n"
        " m = s32[] parameter(3)\n n = s32[] parameter(4)\n z = f32[] constant(0)\n"
        " d = f32[<=6] set-dimension-size(p, m), dimensions={0}\n"
        " e = f32[<=5] set-dimension-size(q, n), dimensions={0}\n"
        " c = f32[<=11] concatenate(d, e), dimensions={0}\n l = s32[] add(m, n)\n"
        " v = f32[<=11] set-dimension-size(w, l), dimensions={0}\n"
        " x = f32[<=11] multiply(c, v)\n s = f32[] reduce(x, z), dimensions={0}, to_apply=add\n"
        " g = s32[] get-dimension-size(c), dimensions={0}\n ROOT r = (f32[], s32[]) tuple(s, g)",
        real(6), real(5), real(11), np.int32(3), np.int32(2), before=add,
    )
    state = "(s32[], f32[<=6])"
    program(
        "dynamic_loop",
        " p = f32[6] parameter(0)\n m = s32[] parameter(1)\n z = s32[] constant(0)\n"
        " d = f32[<=6] set-dimension-size(p, m), dimensions={0}\n"
        f" i = {state} tuple(z, d)\n w = {state} while(i), condition=goes, body=turn\n"
        " x = f32[<=6] get-tuple-element(w), index=1\n o = f32[] constant(0)\n"
        " s = f32[] reduce(x, o), dimensions={0}, to_apply=add\n"
        " g = s32[] get-dimension-size(x), dimensions={0}\n ROOT r = (f32[], s32[]) tuple(s, g)",
        real(6), np.int32(4),
        before=add + f"goes {{\n s = {state} parameter(0)\n"
        " i = s32[] get-tuple-element(s), index=0\n n = s32[] constant(3)\n"
        " ROOT g = pred[] compare(i, n), direction=LT\n}\n"
        f"turn {{\n t = {state} parameter(0)\n j = s32[] get-tuple-element(t), index=0\n"
        " x = f32[<=6] get-tuple-element(t), index=1\n one = s32[] constant(1)\n"
        " k = s32[] add(j, one)\n y = f32[<=6] exponential(x)\n y2 = f32[<=6] negate(y)\n"
        f" ROOT u = {state} tuple(k, y2)\n}}\n",
    )


def choices():
    larger = (
        "larger {\n a = f32[] parameter(0)\n b = f32[] parameter(1)\n i = s32[] parameter(2)\n"
        " j = s32[] parameter(3)\n ROOT g = pred[] compare(a, b), direction=GT\n}\n"
    )
    for target in ("ApproxTopK", "PartialReduce"):
        program(
            f"choice_{target}",
            " x = f32[3,200] parameter(0)\n i = s32[3,200] iota(), iota_dimension=1\n"
            " z = f32[] constant(-inf)\n n = s32[] constant(-1)\n"
            " ROOT r = (f32[3,8], s32[3,8]) custom-call(x, i, z, n), called_computations={larger},"
            f' custom_call_target="{target}",'
            ' backend_config={"log2_reduction":1,"reduction_dim":1}',
            real(3, 200), before=larger,
        )


for make in (
    batch_norms, roundings, narrow_bits, states, markers, dynamic_shapes, choices,
):
    make()


def by_xla(text, inputs):
    module = _hlo.hlo_module_from_text(text)
    stable = _jax.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
    backend = xla_bridge.get_backend("cpu")
    devices = _jax.DeviceList(tuple(backend.local_devices()[:1]))
    executable = backend.compile_and_load(stable, devices, _jax.CompileOptions())
    results = executable.execute([jax.device_put(array) for array in inputs])
    return [np.asarray(result) for result in results]


def by_halflap(halflap, text, inputs):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "module.txt").write_text(text)
        arrays = {f"in_{number:03}_r0": array for number, array in enumerate(inputs)}
        np.savez(folder / "in.npz", **arrays)
        command = [halflap, "run", folder / "module.txt", "--inputs", folder / "in.npz"]
        command += ["-o", folder / "out.npz", "--effort", "quick"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        with np.load(folder / "out.npz") as outputs:
            return [outputs[name] for name in sorted(outputs.files)]


def differs(ours, theirs, relative):
    """What is different, or nothing."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results, XLA has {len(theirs)}"
    for number, (own, other) in enumerate(zip(ours, theirs)):
        if own.shape != other.shape or own.dtype != other.dtype:
            return f"result {number}: {own.dtype}{own.shape}, XLA {other.dtype}{other.shape}"
        if other.dtype.kind in "iub":
            same = np.array_equal(own, other)
        else:
            same = np.allclose(own, other, rtol=relative, atol=relative, equal_nan=True)
        if not same:
            return f"result {number}: {own.ravel()[:8]}, XLA {other.ravel()[:8]}"
    return None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--halflap")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    halflap = options.halflap or build_halflap()
    bad = 0
    for name in options.names or PROGRAMS:
        text, inputs, relative = PROGRAMS[name]
        try:
            theirs = by_xla(text, inputs)
        except Exception as error:
            theirs, why = None, str(error).splitlines()[0]
        try:
            ours = by_halflap(halflap, text, inputs)
        except RuntimeError as error:
            bad, problem = bad + 1, f"does not run: {error}"
        else:
            problem = differs(ours, theirs, relative) if theirs else None
            bad += bool(problem)
            problem = problem or ("equal" if theirs else f"runs; XLA does not: {why[:120]}")
        print(f"{name}: {problem}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
