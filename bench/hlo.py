#!/usr/bin/env python3
"""HLO modules: how fast they are read and scheduled, beside XLA's own orders and buffer assignment.

    python3 bench/hlo.py [--halflap BIN] [--effort default]

Measures on the modules in tests/hlo and writes the tables at the end of docs/hlo.md anew. Needs
only the standard library. Ends with 1 if an order is slower than XLA's or needs more memory.
"""

import argparse
import datetime
import json
import sys
import tempfile
import time
from pathlib import Path

from compare import build_halflap, cpu_model, version_of
import common

ROOT = Path(__file__).resolve().parent.parent
MODULES = ROOT / "tests" / "hlo"
DOCUMENT = ROOT / "docs" / "hlo.md"
MARK = "<!-- What follows is written by bench/hlo.py. -->"


def ms(nanos):
    return f"{nanos / 1e6:.3f}"


def mib(size):
    return f"{size / 2**20:.2f}"


def table(head, rows):
    aligned = ["---"] + ["---:"] * (len(head) - 1)
    lines = [head, aligned] + rows
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def reading():
    """Text to module, by the benchmark that is part of the library."""
    said = common.run(
        ["cargo", "bench", "-q", "--manifest-path", ROOT / "Cargo.toml", "--bench", "hlo"]
    )
    rows = []
    for line in said.splitlines():
        name, size, instructions, seconds = line.split("\t")
        size, seconds = int(size), float(seconds)
        rows.append(
            (
                size,
                [
                    name.removesuffix(".txt.gz"),
                    f"{size / 1e6:.2f}",
                    instructions,
                    f"{seconds * 1e3:.2f}",
                    f"{size / 1e6 / seconds:.0f}",
                ],
            )
        )
    rows.sort(key=lambda row: -row[0])
    return table(["module", "MB", "instructions", "ms", "MB/s"], [row for _, row in rows[:8]])


def schedule(args, path, folder):
    """The schedule of a module, and how long all of it took."""
    output = folder / "schedule.json"
    started = time.perf_counter()
    common.run([args.halflap, "schedule", path, "--effort", args.effort, "-o", output])
    return common.read_json(output), time.perf_counter() - started


def on_chip(found, key):
    """The most that a computation needs of the memory on the chip, with what it calls."""
    spaces = [
        computation["memory_spaces"].get("1", {key: 0}) for computation in found["computations"]
    ]
    return max(space[key] for space in spaces)


def peak(args, path):
    """The peak of the entry computation in the module's own order, whether it communicates or
    not."""
    text = common.run([args.halflap, "simulate", path, "-o", "-"])
    return json.loads(text)["peak_memory"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--halflap", type=Path)
    parser.add_argument("--effort", default="default")
    args = parser.parse_args()
    if args.halflap is None:
        args.halflap = build_halflap()
    paths = sorted(MODULES.glob("*.txt.gz"))
    totals = common.read_json(MODULES / "xla_total_bytes.json")
    scheduled, beside, assigned, lost = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            name = path.name.removesuffix(".txt.gz")
            print(name, file=sys.stderr)
            found, seconds = schedule(args, path, Path(folder))
            nodes = sum(len(computation["order"]) for computation in found["computations"])
            before, after = found["step_time_before"], found["step_time"]
            scheduled.append(
                [
                    name,
                    len(found["computations"]),
                    nodes,
                    ms(before),
                    ms(after),
                    f"{100 * (1 - after / before):.1f}%",
                    f"{seconds:.2f}",
                ]
            )
            if name.startswith("tpu"):
                beside.append(
                    [
                        name,
                        ms(before),
                        ms(after),
                        f"{100 * (1 - after / before):.1f}%",
                        ms(found["exposed_before"]),
                        ms(found["exposed"]),
                        mib(found["peak_memory_before"]),
                        mib(found["peak_memory"]),
                        mib(on_chip(found, "peak_memory_before")),
                        mib(on_chip(found, "peak_memory")),
                    ]
                )
                if on_chip(found, "peak_memory") > on_chip(found, "peak_memory_before"):
                    lost.append(name)
                if after > before or found["peak_memory"] > found["peak_memory_before"]:
                    lost.append(name)
            if name in totals:
                ours = peak(args, path)
                assigned.append(
                    [name, totals[name], ours, f"{100 * (ours / totals[name] - 1):+.2f}%"]
                )
    text = f"""{MARK}

Made {datetime.date.today()} with {version_of([args.halflap])} on {cpu_model()}, effort {
        args.effort
    }.

### Reading

The largest modules; unpacked text to module, the least of nine runs.

{reading()}

### Beside XLA's latency-hiding scheduler

Modules compiled for a TPU v5e 2x4, in the order in which XLA's scheduler left them and in ours. Both are
simulated on the same graphs with the same times. Times in ms, all computations together; peaks of the entry
computation in MiB, and the most that a computation needs of the memory on the chip, `S(1)`. Collectives that XLA
left synchronous stay so.

{
        table(
            [
                "module",
                "XLA",
                "ours",
                "saved",
                "exposed, XLA",
                "exposed, ours",
                "peak, XLA",
                "peak, ours",
                "on chip, XLA",
                "on chip, ours",
            ],
            beside,
        )
    }

### Peak memory beside XLA's buffer assignment

Modules after optimisation for the CPU, in their own order: the total of XLA's buffer assignment, and the peak of
our graph, in bytes.

{table(["module", "XLA", "ours", "difference"], assigned)}

### Scheduling

Computations and nodes are those that communicate. Step times in ms; seconds are those of the whole command.

{table(["module", "computations", "nodes", "before", "after", "saved", "seconds"], scheduled)}
"""
    document = DOCUMENT.read_text()
    DOCUMENT.write_text(document[: document.index(MARK)] + text)
    sys.exit(f"slower than XLA: {', '.join(lost)}" if lost else 0)


if __name__ == "__main__":
    main()
