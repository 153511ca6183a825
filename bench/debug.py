#!/usr/bin/env python3
"""What the options of debugging cost: step times of `halflap run` with them over those without.

    python bench/debug.py [--halflap BIN] [--before BIN] [--rounds 9] [--steps 20] [MODULE...]

All variants take turns in every round, and a ratio is taken within its round; the median of all
rounds is written to docs/debug-cost.md, with the quartiles. `--before` is a binary without any of
this, to compare a run with all off with.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from compare import build_halflap, cpu_model

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "debug-cost.md"
MODULES = [
    "fsdp_L2.after_spmd_partitioning",
    "tp_L2.after_spmd_partitioning",
    "mix_L2.after_spmd_partitioning",
]
VARIANTS = {
    "off, again": [],
    "lifetimes on assert": ["--check-lifetimes", "assert"],
    "NaN asserts": ["--nan-asserts"],
    "marks around buffers": ["--canaries", "on"],
    "flight recorder": ["--flight-recorder"],
    "no memory caching": ["--no-memory-caching"],
    "no memory caching, blocking launches": ["--no-memory-caching", "--launch-blocking"],
}


def step_time(binary, module, steps, options, folder):
    """The median step time of a run, in nanoseconds."""
    command = [binary, "run", module, "--input-order", "--steps", str(steps), "--json", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["step_time"]


def measure(binaries, module, args, folder):
    """For every variant, its ratios to a run with all off in the same round."""
    binary, before = binaries
    ratios = {name: [] for name in VARIANTS}
    if before:
        ratios = {"off, over before": []} | ratios
    plain = []
    for _ in range(args.rounds):
        off = step_time(binary, module, args.steps, [], folder)
        plain.append(off)
        if before:
            ratios["off, over before"].append(
                off / step_time(before, module, args.steps, [], folder)
            )
        for name, options in VARIANTS.items():
            ratios[name].append(step_time(binary, module, args.steps, options, folder) / off)
    return statistics.median(plain), ratios


def write(results, args):
    names = list(results[0][2])
    lines = [
        "# What debugging costs",
        "",
        f"Written by `bench/debug.py` on {datetime.date.today()}: {cpu_model()}, {os.cpu_count()} cores, eight ranks as threads, "
        f"{args.rounds} rounds of {args.steps} steps, the module's own order. Each figure is the step time relative to a run "
        "with everything off in the same round: the median over rounds, and the quartiles. *Off, again* shows the noise.",
        "",
        "| module | step time, all off | " + " | ".join(names) + " |",
        "| --- | --- |" + " --- |" * len(names),
    ]
    for module, plain, ratios in results:
        cells = []
        for name in names:
            low, middle, high = statistics.quantiles(ratios[name], n=4)
            cells.append(f"{middle:.3f} ({low:.3f} to {high:.3f})")
        lines.append(f"| {module} | {plain / 1e6:.2f} ms | " + " | ".join(cells) + " |")
    DOCUMENT.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--halflap")
    parser.add_argument("--before")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("modules", nargs="*", default=MODULES)
    args = parser.parse_args()
    binary = os.path.abspath(args.halflap) if args.halflap else build_halflap()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.modules:
            path = Path(name) if Path(name).exists() else ROOT / "tests" / "hlo" / f"{name}.txt.gz"
            plain, ratios = measure((binary, args.before), str(path.resolve()), args, folder)
            results.append((Path(name).name, plain, ratios))
            print(
                name,
                {name: round(statistics.median(values), 3) for name, values in ratios.items()},
                flush=True,
            )
    write(results, args)


if __name__ == "__main__":
    main()
