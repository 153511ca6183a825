#!/usr/bin/env python3
"""How good halflap's orders are: beside the input order, torch's own results, and the lower bound.

    python3 bench/orders.py [--halflap BIN] [--effort default] [-o docs/orders.md]

Schedules every captured graph of tests/corpus at the input order's own peak, also with all
collectives twice and half as long, and writes the tables as markdown. Needs only the standard
library. Ends with 1 if a result is slower than the best of torch's.
"""

import argparse
import datetime
import gzip
import json
import math
import sys
import tempfile
import time
from pathlib import Path

from compare import build_halflap, cpu_model, version_of
import common

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = [
    "ddp_mlp_4",
    "ddp_mlp_24",
    "moe_ep_6",
    "moe_ep_24",
    "fsdp_llama_2",
    "fsdp_llama_8",
    "fsdp_tp_llama_4",
    "fsdp_llama_32",
    "fsdp_llama_80",
    "fsdp_tp_llama_16",
]
TWICE_OR_HALF = {
    "collectives as they are": 1.0,
    "collectives half as long": 0.5,
    "collectives twice as long": 2.0,
}


def load(path):
    with gzip.open(path, "rt") as file:
        return json.load(file)


def simulated(args, graph, order, folder):
    """Step time and peak of an order."""
    path = folder / "order.json"
    path.write_text(json.dumps(order))
    said = json.loads(common.run([args.halflap, "simulate", graph, path, "-o", "-"]))
    return said["step_time"], said["peak_memory"]


def best_of_torch(args, graph, name, folder):
    """The shortest step among torch's results that need no more memory than the input order."""
    limit = json.loads(common.run([args.halflap, "simulate", graph, "-o", "-"]))["peak_memory"]
    results = load(ROOT / "tests" / "corpus" / f"{name}.torch.json.gz")["results"]
    steps = []
    for result in results:
        if "order" in result:
            step, peak = simulated(args, graph, result["order"], folder)
            if peak <= limit:
                steps.append(step)
    return min(steps, default=None)


def row(args, name, factor, folder):
    """One program, with its collectives `factor` times as long."""
    file = load(ROOT / "tests" / "corpus" / f"{name}.graph.json.gz")
    for node in file["nodes"]:
        if node["kind"] == "collective":
            node["runtime_ns"] *= factor
    graph = folder / f"{name}.json"
    graph.write_text(json.dumps(file))
    torch = best_of_torch(args, graph, name, folder)
    started = time.monotonic()
    command = [args.halflap, "schedule", graph, "--effort", args.effort, "--json"]
    found = json.loads(common.run(command))
    seconds = time.monotonic() - started
    common.run(
        [args.halflap, "verify", graph, write(folder, found["order"]), "--memory-budget", "1x"]
    )
    ratio = lambda step: "" if step is None else f"{step / found['bound']:.4f}"
    # Of the programs as they are, an independent program knows the bound that looks at one stream
    # at a time.
    one_stream = (
        load(ROOT / "tests" / "corpus" / "judged.json.gz")[name]["bound"] if factor == 1.0 else None
    )
    cells = [
        name,
        str(len(file["nodes"])),
        ratio(found["step_time_before"]),
        ratio(torch),
        ratio(found["step_time"]),
        "" if one_stream is None else f"{one_stream / 1e6:.3f} ms",
        f"{found['bound'] / 1e6:.3f} ms",
        found["bound_basis"]["kind"] + (", memory" if found["bound_basis"].get("memory") else ""),
        f"{100 * (found['step_time'] / found['bound'] - 1):.2f}%",
        f"{found['peak_memory'] / max(1, found['peak_memory_before']):.4f}",
        f"{found['optimizer']['seconds']:.2f} s",
        f"{seconds:.2f} s",
    ]
    return cells, found["step_time"] / found["bound"], torch is None or found["step_time"] <= torch


def write(folder, order):
    path = folder / "found.json"
    path.write_text(json.dumps(order))
    return path


HEAD = [
    "program",
    "nodes",
    "input order",
    "torch's best",
    "halflap",
    "bound of one stream",
    "bound",
    "it rests on",
    "gap",
    "peak, of the input order's",
    "search",
    "whole command",
]


def table(rows):
    rule = ["---"] + ["---:"] * (len(HEAD) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [HEAD, rule, *rows])


def shown_command(args):
    programs = "" if args.programs == ",".join(PROGRAMS) else f" --programs {args.programs}"
    return f"python3 bench/orders.py --effort {args.effort}{programs} -o docs/{args.output.name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--halflap", type=Path, help="a binary to use instead of building one")
    parser.add_argument("--effort", default="default")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="which, separated by commas")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "orders.md")
    args = parser.parse_args()
    args.halflap = (args.halflap or build_halflap()).resolve()
    now = datetime.datetime.now(datetime.timezone.utc)
    lines = [
        "# How good the orders are",
        "",
        f"Generated by `{shown_command(args)}`; do not edit.",
        "Step times are multiples of the lower bound, at a peak no higher than the input order's; torch's best is over",
        "all of its results in tests/corpus within that peak (one or none finished on the large graphs).",
        "",
        f"- date: {now:%Y-%m-%d %H:%M} UTC",
        f"- cpu: {cpu_model()}, {common.processors()} cores",
        f"- halflap: {version_of([args.halflap])}",
    ]
    good = True
    with tempfile.TemporaryDirectory() as name:
        for title, factor in TWICE_OR_HALF.items():
            rows, ratios = [], []
            for program in args.programs.split(","):
                print(f"{program}, {title}", flush=True)
                cells, times, is_good = row(args, program, factor, Path(name))
                rows.append(cells)
                ratios.append(times)
                good &= is_good
            mean = f"Geometric mean of step over bound: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.4f}."
            lines += ["", f"## {title.capitalize()}", "", table(rows), "", mean]
    text = "\n".join(lines) + "\n"
    args.output.write_text(text)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
