#!/usr/bin/env python3
"""Rewritten modules on emulated links: whether a measured step follows the simulated gain.

    python3 bench/rewrite_run.py [--halflap BIN] [--rounds 5] [--steps 8] [--only NAME]

Writes a module for every rewrite, and a tensor-parallel one, on two ranks that are threads. Each is
scheduled as it is and rewritten, and both texts run in turns on emulated links. Steps are simulated
with the times that `--profile-out` measured in the same runs, plus what the runtime needs to pass a
kernel or a collective from thread to thread: three chains, of small kernels, of small collectives
that nothing overlaps, and of small collectives beside kernels, measure that in every round, because
no kernel's own time contains it. Prints tables
for docs/rewrite.md. Other work on the machine spoils it.
"""

import argparse
import datetime
import json
import math
import os
import re
import statistics
import tempfile
from pathlib import Path

import common
from compare import build_halflap, cpu_model, table, version_of
from run import measured

#: Bandwidths of the links, in GB/s; on the second, communication takes about as long as compute.
LINKS = [10, 0.4]
LATENCY = 20
#: About what the runtime adds to that where a collective overlaps compute, in us.
HAND_OVER = 30


def device(bandwidth):
    """The machine that rewrites are chosen for: a core, and the emulated link."""
    return {
        "peak_tflops": 0.2,
        "memory_gb_per_s": 10,
        "ranks_per_node": 2,
        "nvlink_gb_per_s": bandwidth,
        "network_gb_per_s": bandwidth,
        "nvlink_base_us": LATENCY + HAND_OVER,
        "nvlink_hop_us": 0,
        "nvlink_ramp_us": 0,
        "launch_us": 1,
    }


ALL = "replica_groups={{0,1}}, use_global_device_ids=true"
DIMS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
HEAD = """HloModule {name}, num_partitions=2

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}

"""


def entry(name, lines):
    """A module of an entry alone; its last line is the root."""
    lines = [*lines[:-1], f"ROOT {lines[-1]}"]
    return HEAD.format(name=name) + "\n".join(["ENTRY main {", *(f"  {of}" for of in lines), "}\n"])


def layer(step, given, read, data):
    """Gathers a weight, multiplies by it, and passes on what comes out, of the same shape."""
    width = data.split(",")[1].split("]")[0]
    return [
        f"g{step} = f32[{width},{width}]{{1,0}} all-gather({given}), channel_id={step + 1}, {ALL}, "
        "dimensions={0}",
        f"d{step} = {data} dot({read}, g{step}), {DIMS}",
        f"x{step + 1} = {data} tanh(d{step})",
    ]


def merge(count=120, rows=32, width=32):
    """Many small weights, each gathered for one layer."""
    data = f"f32[{rows},{width}]{{1,0}}"
    lines = [f"x0 = {data} parameter(0)"]
    lines += [f"w{i} = f32[{width // 2},{width}]{{1,0}} parameter({i + 1})" for i in range(count)]
    for i in range(count):
        lines += layer(i, f"w{i}", f"x{i}", data)
    return entry("merge", lines)


def scatter(count=4, rows=512, width=256):
    """Gradients that are reduced, and of which each rank updates its own rows."""
    whole, own = f"f32[{rows},{width}]{{1,0}}", f"f32[{rows // 2},{width}]{{1,0}}"
    lines = [f"p{i} = {whole} parameter({i})" for i in range(count)]
    lines += [
        "id = u32[] partition-id()",
        "rank = s32[] convert(id)",
        f"size = s32[] constant({rows // 2})",
        "at = s32[] multiply(rank, size)",
        "zero = s32[] constant(0)",
    ]
    for i in range(count):
        lines += [
            f"t{i} = {whole} negate(p{i})",
            f"r{i} = {whole} all-reduce(t{i}), channel_id={i + 1}, {ALL}, to_apply=add",
            f"s{i} = {own} dynamic-slice(r{i}, at, zero), "
            f"dynamic_slice_sizes={{{rows // 2},{width}}}",
        ]
    results = ", ".join(f"s{i}" for i in range(count))
    return entry("scatter", [*lines, f"all = ({', '.join([own] * count)}) tuple({results})"])


def narrow(count=4, rows=512, width=256):
    """Weights that are gathered wide and used narrow."""
    wide, short = f"f32[{rows},{width}]{{1,0}}", f"bf16[{rows},{width}]{{1,0}}"
    lines = [f"w{i} = f32[{rows // 2},{width}]{{1,0}} parameter({i})" for i in range(count)]
    for i in range(count):
        lines += [
            f"g{i} = {wide} all-gather(w{i}), channel_id={i + 1}, {ALL}, dimensions={{0}}",
            f"n{i} = {short} convert(g{i})",
            f"m{i} = {short} negate(n{i})",
        ]
    results = ", ".join(f"m{i}" for i in range(count))
    return entry("narrow", [*lines, f"all = ({', '.join([short] * count)}) tuple({results})"])


def keep(count=4, rows=128, width=256):
    """Weights that are gathered again for a second pass."""
    part, data = f"f32[{width // 2},{width}]{{1,0}}", f"f32[{rows},{width}]{{1,0}}"
    lines = [f"x0 = {data} parameter(0)"]
    lines += [f"w{i} = {part} parameter({i + 1})" for i in range(count)]
    for step in range(2 * count):
        i = step if step < count else 2 * count - 1 - step
        given = f"w{i}" if step < count else f"b{step}"
        if step >= count:
            pair = f"({part}, {data})"
            lines += [
                f"t{step} = {pair} tuple(w{i}, x{step})",
                f"o{step} = {pair} opt-barrier(t{step})",
                f"b{step} = {part} get-tuple-element(o{step}), index=0",
                f"y{step} = {data} get-tuple-element(o{step}), index=1",
            ]
        read = f"y{step}" if step >= count else f"x{step}"
        lines += layer(step, given, read, data)
    return entry("keep", lines)


def pipeline(count=8, rows=256, width=256):
    """A loop over layers, each with a weight that is gathered first."""
    weight, part = f"f32[{width},{width}]{{1,0}}", f"f32[{width // 2},{width}]{{1,0}}"
    data, stack = f"f32[{rows},{width}]{{1,0}}", f"f32[{count},{width // 2},{width}]{{2,1,0}}"
    state, sizes = f"(s32[], {data}, {stack})", f"1,{width // 2},{width}"
    row = f"f32[{sizes}]"
    return (
        HEAD.format(name="pipeline")
        + f"""body {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = {data} get-tuple-element(s), index=1
  w = {stack} get-tuple-element(s), index=2
  one = s32[] constant(1)
  zero = s32[] constant(0)
  j = s32[] add(i, one)
  own = {row}{{2,1,0}} dynamic-slice(w, i, zero, zero), dynamic_slice_sizes={{{sizes}}}
  part = {part} reshape(own)
  g = {weight} all-gather(part), channel_id=1, {ALL}, dimensions={{0}}
  d = {data} dot(x, g), {DIMS}
  y = {data} tanh(d)
  ROOT r = {state} tuple(j, y, w)
}}

condition {{
  t = {state} parameter(0)
  k = s32[] get-tuple-element(t), index=0
  n = s32[] constant({count})
  ROOT lt = pred[] compare(k, n), direction=LT
}}

ENTRY main {{
  x0 = {data} parameter(0)
  w0 = {stack} parameter(1)
  start = s32[] constant(0)
  init = {state} tuple(start, x0, w0)
  loop = {state} while(init), condition=condition, body=body
  ROOT end = {data} get-tuple-element(loop), index=1
}}
"""
    )


def parallel(name, count, rows, sizes):
    """Tensor-parallel layers: two products, and a sum over the ranks."""
    width, inner = sizes
    whole, part = f"f32[{rows},{width}]{{1,0}}", f"f32[{rows},{inner}]{{1,0}}"
    lines = [f"x0 = {whole} parameter(0)"]
    for i in range(count):
        lines.append(f"up{i} = f32[{width},{inner}]{{1,0}} parameter({2 * i + 1})")
        lines.append(f"down{i} = f32[{inner},{width}]{{1,0}} parameter({2 * i + 2})")
    for i in range(count):
        lines += [
            f"h{i} = {part} dot(x{i}, up{i}), {DIMS}",
            f"y{i} = {whole} dot(h{i}, down{i}), {DIMS}",
            f"x{i + 1} = {whole} all-reduce(y{i}), channel_id={i + 1}, {ALL}, to_apply=add",
        ]
    return entry(name, lines)


#: The runtime runs a collective on the compute thread itself if nothing larger overlaps it.
SHORT = 8 * 1024


def chain(name, count):
    """Small kernels, each of which needs the one before; with a sum over the ranks between them,
    or with such a sum beside a kernel that is not short."""
    kind, beside = "f32[32,32]{1,0}", f"f32[{SHORT * 2}]{{0}}"
    lines = [f"x0 = {kind} parameter(0)", f"w = {kind} parameter(1)", f"y0 = {beside} parameter(2)"]
    for i in range(count):
        lines.append(f"d{i} = {kind} dot(x{i}, w), {DIMS}")
        sums = f"(d{i}), channel_id={i + 1}, {ALL}, to_apply=add"
        if name == "kernels":
            lines.append(f"x{i + 1} = {kind} tanh(d{i})")
        elif name == "collectives":
            lines.append(f"x{i + 1} = {kind} all-reduce{sums}")
        else:
            lines.append(f"s{i} = {kind} all-reduce-start{sums}")
            lines.append(f"y{i + 1} = {beside} negate(y{i})")
            lines.append(f"x{i + 1} = {kind} all-reduce-done(s{i})")
    results = f"({kind}, {beside}) tuple(x{count}, {'y0' if name != 'overlapped' else f'y{count}'})"
    return entry(name, [*lines, f"all = {results}"])


class Overhead:
    """What kernels and collectives take beyond their own times."""

    COUNT = 60

    def __init__(self, halflap, folder):
        self.halflap = halflap
        self.paths = {}
        for name in ("kernels", "collectives", "overlapped"):
            self.paths[name] = folder / f"{name}.txt"
            self.paths[name].write_text(chain(name, self.COUNT))

    def measure(self, steps):
        self.kernel = self.missing("kernels", steps) / 2
        self.collective = max(0, self.missing("collectives", steps) - self.kernel)
        # The kernel beside a collective is passed on while that is under way.
        self.overlapped = max(0, self.missing("overlapped", steps) - self.kernel)

    def missing(self, name, steps):
        """What a link of a chain takes longer than it is simulated with the times of its own."""
        path = self.paths[name]
        profile = path.with_suffix(".json")
        link = ["--emulate-link", f"{LINKS[0]}GB/s,{LATENCY}us"]
        command = [self.halflap, "run", path, "--input-order", "--steps", steps, *link]
        found = measured([*command, "--profile-out", profile])
        return max(0, found["step_time"] - simulated(self.halflap, path, profile)) / self.COUNT

    def add_to(self, profile, text):
        """Adds it to the times of a profile."""
        times = json.loads(profile.read_text())
        of = {"kernel": self.kernel, "alone": self.collective, "overlapped": self.overlapped}
        for name in times:
            times[name] += of[how_it_runs(text, name)]
        profile.write_text(json.dumps(times))

    def all(self):
        return self.kernel, self.collective, self.overlapped


def simulated(halflap, path, profile):
    """The step of a module in its own order, with the times of a profile."""
    command = [halflap, "simulate", path, "--profile", profile, "--json"]
    return json.loads(common.run(command))["step_time"]


#: Each with its module, and how it is rewritten.
PROGRAMS = {
    "merge": (merge(), "merge"),
    "reduce-scatter": (scatter(), "reduce-scatter"),
    "narrow": (narrow(), "narrow"),
    "keep": (keep(), "keep"),
    "pipeline": (pipeline(), "pipeline"),
    "split": (parallel("split", 2, 512, (256, 128)), "split"),
    "tensor-parallel": (parallel("tensor_parallel", 4, 256, (256, 512)), "split"),
    "longer layers": (parallel("longer_layers", 4, 1024, (512, 1024)), "split"),
}


def how_it_runs(text, name):
    """Whether an instruction of a module is a kernel, or a collective that a larger kernel
    overlaps, or none does."""
    kinds = "all-gather|all-reduce|reduce-scatter"
    found = re.search(rf"%?{re.escape(name)} = [^\n]*? ({kinds})(-start)?\([^\n]*\n", text)
    if found is None:
        return "kernel"
    done = re.search(rf"-done\([^\n)]*%?{re.escape(name)}\)", text[found.end() :])
    if not found[2] or not done:
        return "alone"
    between = text[found.end() : found.end() + done.start()]
    between = between[: between.rfind("\n") + 1]
    return "overlapped" if any(is_long(line, text) for line in between.splitlines()) else "alone"


def elements_of(shape):
    return math.prod(int(size) for size in shape.split(",") if size)


def is_long(line, text):
    """Whether an instruction of a module is a kernel that is not short, or a collective."""
    parts = re.search(r" = \(?\w+\[([\d,]*)\]\S* ([\w-]+)\(", line)
    if not parts or parts[2] in ("parameter", "get-tuple-element", "tuple", "bitcast", "constant"):
        return False
    elements = elements_of(parts[1])
    if parts[2] == "dot":
        operands = re.findall(r"%?([\w.-]+)(?=[,)])", line[parts.end() : line.index(")") + 1])
        shape = lambda name: re.search(rf"%?{re.escape(name)} = \w+\[([\d,]*)\]", text)[1]
        # Each of the three sizes is in two of the three arrays.
        multiplied = math.isqrt(elements * math.prod(elements_of(shape(of)) for of in operands))
        return multiplied > 4 * SHORT
    return elements > SHORT or re.match(r"all-|reduce-scatter", parts[2])


class Program:
    """A module, scheduled as it is and rewritten, and what was measured of both."""

    def __init__(self, halflap, folder, name, bandwidth):
        self.halflap, self.folder, self.name = halflap, folder, name
        self.bandwidth, self.link = bandwidth, f"{bandwidth}GB/s,{LATENCY}us"
        text, self.rewrite = PROGRAMS[name]
        self.path = folder / f"{name}.txt"
        self.path.write_text(text)
        machine = folder / f"device{bandwidth}.json"
        machine.write_text(json.dumps(device(bandwidth)))
        self.options = ["--device", machine, "--memory-budget", "4x", "--no-advice"]
        self.steps = {"old": [], "new": []}
        self.last = {}

    def schedule(self):
        self.scheduled("old")
        # A core has no waves of tiles: pieces of a product lose little.
        tail = ["--piece-tail", "4KiB"]
        found = self.scheduled("new", "--rewrite", self.rewrite, *tail)
        self.what = f"{len(found['recipes'])} {self.rewrite}"
        if self.rewrite == "split" and found["recipes"]:
            first = found["recipes"][0]
            pieces = (first["into"].count(",") + 1) // len(first["members"])
            self.what = f"{len(found['recipes'])} into {pieces} pieces"

    def scheduled(self, which, *more):
        out = self.file(which, "txt")
        command = [self.halflap, "schedule", self.path, *self.options, *more]
        common.run([*command, "--emit", "hlo", "-o", out])
        return json.loads(common.run([*command, "--json"]))

    def file(self, which, kind):
        return self.folder / f"{self.name}.{self.bandwidth}.{which}.{kind}"

    def turn(self, steps, overhead):
        """Runs both once."""
        for which in self.steps:
            path, profile = self.file(which, "txt"), self.file(which, "json")
            command = [self.halflap, "run", path, "--input-order", "--steps", steps]
            found = measured([*command, "--emulate-link", self.link, "--profile-out", profile])
            text = path.read_text()
            overhead.add_to(profile, text)
            step = simulated(self.halflap, path, profile)
            self.steps[which].append((found["step_time"], step))
            self.last[which] = found

    def ratios(self):
        """New over old, measured and simulated, round by round."""
        rounds = zip(self.steps["old"], self.steps["new"])
        return [(new[0] / old[0], new[1] / old[1]) for old, new in rounds]

    def row(self):
        middle = {which: self.middle(which) for which in self.steps}
        ratios = self.ratios()
        measured_ratio = statistics.median(ratio for ratio, _ in ratios)
        simulated_ratio = statistics.median(ratio for _, ratio in ratios)
        self.apart = measured_ratio / simulated_ratio - 1
        cells = [self.name, f"{self.bandwidth} GB/s", self.what]
        for which in self.steps:
            cells += [f"{time / 1e6:.1f} ms" for time in middle[which]]
        cells += [f"{measured_ratio:.3f}", f"{simulated_ratio:.3f}", f"{100 * self.apart:+.1f}%"]
        return cells

    def middle(self, which):
        return [statistics.median(times) for times in zip(*self.steps[which])]

    def against_longer(self):
        """The step over the longer of compute and communication, before and after."""
        cells = [self.name, f"{self.bandwidth} GB/s"]
        for which in self.steps:
            found = self.last[which]
            longer = max(found["compute"], found["communication"])
            cells += [
                f"{found['compute'] / 1e6:.1f} ms",
                f"{found['communication'] / 1e6:.1f} ms",
                f"{found['step_time'] / 1e6:.1f} ms",
                f"{found['step_time'] / longer:.3f}",
            ]
        return cells


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--halflap")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", action="append", choices=list(PROGRAMS))
    options = parser.parse_args()
    halflap = Path(options.halflap) if options.halflap else build_halflap()
    with tempfile.TemporaryDirectory() as folder:
        chosen = options.only or list(PROGRAMS)
        pairs = [(name, bandwidth) for bandwidth in LINKS for name in chosen]
        programs = [Program(halflap, Path(folder), *pair) for pair in pairs]
        for program in programs:
            program.schedule()
        programs = [program for program in programs if not program.what.startswith("0")]
        overhead, passed = Overhead(halflap, Path(folder)), []
        for _ in range(options.rounds):
            overhead.measure(options.steps)
            passed.append(overhead.all())
            for program in programs:
                program.turn(options.steps, overhead)
    day = datetime.date.today().isoformat()
    print(f"{day}: {version_of([halflap])}, {cpu_model()}, load {os.getloadavg()[0]:.1f}")
    kernel, alone, overlapped = (f"{statistics.median(of) / 1e3:.1f} us" for of in zip(*passed))
    print(f"{kernel} more for a kernel, {alone} for a collective, {overlapped} for one overlapped\n")
    head = ["program", "link", "rewrites", "old, measured", "simulated", "new, measured"]
    head += ["simulated", "ratio, measured", "simulated", "apart"]
    print(table(head, [program.row() for program in programs]))
    head = ["program", "link", "old: compute", "communication", "step", "of the longer"]
    head += ["new: compute", "communication", "step", "of the longer"]
    last = [program for program in programs if program.rewrite == "split"]
    print("\n" + table(head, [program.against_longer() for program in last]))


if __name__ == "__main__":
    main()
