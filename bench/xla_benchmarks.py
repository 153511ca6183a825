#!/usr/bin/env python3
"""XLA's own benchmarks for CPUs: numbers and step times of `halflap run` beside XLA's.

    python bench/xla_benchmarks.py CHECKOUT [--halflap BIN] [--rounds 5] [--largest 1GB] [NAME...]

CHECKOUT is one of openxla/xla; its modules are in xla/backends/cpu/benchmarks/hlo. Both get the same
arrays and run in turns, on the same cores. Prints a table for docs/run-speed.md. Ends with 1 if
numbers differ or a module does not run. Needs jaxlib; nothing is downloaded.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
import numpy as np
from jax._src import xla_bridge
from jaxlib import _hlo, _jax, xla_client

import common
from compare import build_halflap, cpu_model, table, version_of

MODULES = Path("xla/backends/cpu/benchmarks/hlo")
#: How long a run may take, in seconds.
LIMIT = 60


def array(shape, random):
    """As `halflap run` makes them: small numbers, and integers that can be indices."""
    kind, sizes = shape.numpy_dtype(), shape.dimensions()
    if kind == np.bool_:
        return random.integers(0, 2, sizes).astype(kind)
    if kind.kind in "iu":
        return random.integers(0, 8, sizes).astype(kind)
    if kind.kind == "c":
        return (random.uniform(-0.5, 0.5, sizes) + 1j * random.uniform(-0.5, 0.5, sizes)).astype(kind)
    return random.uniform(-0.5, 0.5, sizes).astype(kind)


class Xla:
    """A module, compiled by XLA."""

    def __init__(self, text):
        module = _hlo.hlo_module_from_text(text)
        proto = module.as_serialized_hlo_module_proto()
        program = xla_client.XlaComputation(proto).program_shape()
        self.parameters = program.parameter_shapes()
        backend = xla_bridge.get_backend("cpu")
        devices = _jax.DeviceList(tuple(backend.local_devices()[:1]))
        options = _jax.CompileOptions()
        stable = _jax.mlir.hlo_to_stablehlo(proto)
        self.executable = backend.compile_and_load(stable, devices, options)

    def give(self, arrays):
        self.inputs = [jax.device_put(array) for array in arrays]

    def step(self):
        began = time.perf_counter()
        results = self.executable.execute(self.inputs)
        for result in results:
            result.block_until_ready()
        return (time.perf_counter() - began) * 1e9, results


def stored(array):
    """bf16 and smaller types as raw bytes."""
    return array if array.dtype.kind in "biufc" else array.view(f"V{array.dtype.itemsize}")


def difference(own, other):
    """How far two arrays are apart, relative to the largest number; infinite where only one has
    none."""
    other = np.asarray(other)
    if own.dtype.kind == "V":
        own = own.view(other.dtype)
    if own.shape != other.shape or own.dtype != other.dtype:
        return float("inf")
    if other.dtype.kind in "iub":
        return float(np.count_nonzero(own != other)) / max(1, own.size)
    wide = complex if other.dtype.kind == "c" else float
    own, other = own.astype(wide), other.astype(wide)
    finite = np.isfinite(other)
    with np.errstate(invalid="ignore"):
        same = (own == other) | (np.isnan(own) & np.isnan(other))
    if not np.array_equal(finite, np.isfinite(own)) or not same[~finite].all():
        return float("inf")
    largest = np.abs(other[finite]).max(initial=0)
    return float(np.abs(own - other)[finite].max(initial=0) / max(largest, 1e-30))


class Benchmark:
    def __init__(self, halflap, path, folder):
        self.halflap, self.path, self.folder = halflap, path, folder
        self.times = {"xla": [], "ours": []}

    def prepare(self, largest):
        """Why it is left out, or nothing."""
        text = self.path.read_text()
        if "constant({...})" in text:
            return "its text lacks the values of constants"
        self.xla = Xla(text)
        size = sum(
            shape.numpy_dtype().itemsize * int(np.prod(shape.dimensions()))
            for shape in self.xla.parameters
        )
        if size > largest:
            return f"its parameters have {size / 1e9:.1f} GB"
        random = np.random.default_rng(7)
        arrays = [array(shape, random) for shape in self.xla.parameters]
        self.xla.give(arrays)
        named = {f"in_{number:03}_r0": stored(of) for number, of in enumerate(arrays)}
        np.savez(self.folder / "in.npz", **named)
        return None

    def command(self, steps):
        command = [self.halflap, "run", self.path, "--inputs", self.folder / "in.npz"]
        return ["timeout", LIMIT, *command, "--input-order", "--steps", steps, "--json"]

    def compare(self):
        """How far all results are apart."""
        _, theirs = self.xla.step()
        common.run([*self.command(1), "-o", self.folder / "out.npz"])
        with np.load(self.folder / "out.npz") as outputs:
            ours = [outputs[name] for name in sorted(outputs.files)]
        if len(ours) != len(theirs):
            return float("inf")
        return max(map(difference, ours, theirs), default=0.0)

    def turn(self):
        """Both once; as many steps as take about a second."""
        once, _ = self.xla.step()
        steps = int(min(20, max(2, 1e9 / once)))
        took = [self.xla.step()[0] for _ in range(steps)]
        self.times["xla"].append(statistics.median(took))
        self.times["ours"].append(json.loads(common.run(self.command(steps + 1)))["step_time"])

    def row(self, apart):
        xla, ours = (statistics.median(self.times[who]) for who in ("xla", "ours"))
        ratios = [own / other for own, other in zip(self.times["ours"], self.times["xla"])]
        self.ratio = statistics.median(ratios)
        cells = [f"{xla / 1e6:.3f} ms", f"{ours / 1e6:.3f} ms", f"{self.ratio:.2f}"]
        return [self.path.stem, *cells, f"{apart:.1e}"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--halflap")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--largest", default="1GB")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    halflap = options.halflap or build_halflap()
    largest = float(options.largest.removesuffix("GB")) * 1e9
    rows, ratios, bad = [], [], 0
    for path in sorted((options.checkout / MODULES).glob("*.hlo")):
        if options.names and path.stem not in options.names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            benchmark = Benchmark(halflap, path, Path(folder))
            try:
                if left_out := benchmark.prepare(largest):
                    print(f"{path.stem}: left out: {left_out}", file=sys.stderr, flush=True)
                    continue
                apart = benchmark.compare()
                for _ in range(options.rounds):
                    benchmark.turn()
            except (common.Failure, RuntimeError, ValueError) as error:
                bad += isinstance(error, common.Failure)
                print(f"{path.stem}: {str(error)[:600]}", file=sys.stderr, flush=True)
                continue
            rows.append(benchmark.row(apart))
            ratios.append(benchmark.ratio)
            print(*rows[-1], file=sys.stderr, flush=True)
    day = datetime.date.today().isoformat()
    print(f"{day}: {version_of([halflap])}, {cpu_model()}, load {os.getloadavg()[0]:.1f}\n")
    print(table(["module", "XLA", "halflap", "ratio", "apart"], rows))
    if ratios:
        print(f"\ngeometric mean {statistics.geometric_mean(ratios):.2f}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
