#!/usr/bin/env python3
"""How long the search for rewrites takes beside the search for an order.

    python3 bench/rewrite_speed.py [--halflap BIN] [--effort EFFORT] [--only NAME]...
    python3 bench/rewrite_speed.py [--halflap BIN] [--effort EFFORT] [--rounds N] --module FILE...

Schedules every captured graph of tests/corpus, and one of 20,000 nodes that consists of several,
with the order alone and with --rewrite all: as they are, and with a millisecond more for each
collective, where there is more to merge. Prints seconds of processor time and of the clock as a
table. Needs only the standard library. Ends with 1 if the rewriting search takes more than three
times as long in all, or 60 s for 20,000 nodes. With --module it does the same for HLO modules on
h100s, in turns, and prints the medians of processor times and of the ratios within a round.
"""

import argparse
import copy
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import common
from compare import build_halflap, table
from orders import PROGRAMS, ROOT, load
from rewrites import LATENCIES

LONG = "20,000 nodes"
NODES = 20_000


def renamed(graph, ending):
    """A graph whose nodes and buffers have other names."""
    graph = copy.deepcopy(graph)
    for node in graph["nodes"]:
        node["name"] += ending
        node["outputs"] = [name + ending for name in node["outputs"]]
        for dep in node["deps"]:
            dep["buffer"] += ending
    for buffer in [*graph["buffers"], *graph.get("inputs", [])]:
        buffer["name"] += ending
        buffer["users"] = [name + ending for name in buffer["users"]]
        if buffer.get("view_of"):
            buffer["view_of"] += ending
    return graph


def long_program():
    """Several programs, one after the other."""
    one = load(ROOT / "tests" / "corpus" / "fsdp_llama_32.graph.json.gz")
    copies = -(-NODES // len(one["nodes"]))
    parts = [renamed(one, f".{number}") for number in range(copies)]
    joined = {
        name: [x for part in parts for x in part.get(name, [])]
        for name in ("nodes", "buffers", "inputs")
    }
    return {**one, **joined}


def modules(command, paths, rounds):
    """A table of modules; whether one takes more than three times as long."""
    head = ["module", "order alone", "step", "rewriting", "step", "ratio"]
    rows, ratios = [], []
    for path in paths:
        schedule = [*command, path, "--device", "h100"]
        ways = [schedule, [*schedule, "--rewrite=all"]]
        steps = [json.loads(common.run(way))["step_time"] / 1e6 for way in ways]
        times = [[spent(way)[0] for way in ways] for _ in range(rounds)]
        ratios.append(statistics.median(new / old for old, new in times))
        cells = [Path(path).stem]
        for own, step in zip(zip(*times), steps):
            cells += [f"{statistics.median(own):.2f} s", f"{step:.1f} ms"]
        rows.append([*cells, f"{ratios[-1]:.2f}"])
    print(table(head, rows))
    return max(ratios) > 3


def spent(command):
    """Seconds of processor time and of the clock."""

    def used():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    worked, began = used(), time.perf_counter()
    common.run(command)
    return used() - worked, time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--halflap", metavar="BIN")
    parser.add_argument("--effort", default="default", choices=["quick", "default", "thorough"])
    parser.add_argument("--only", metavar="NAME", action="append")
    parser.add_argument("--module", metavar="FILE", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    halflap = args.halflap or build_halflap()
    if args.module:
        command = [halflap, "schedule", "--json", "--no-advice", "--effort", args.effort]
        return int(modules(command, args.module, args.rounds))
    print(
        "| program | nodes | order alone: processor | clock | rewriting: processor | clock | ratio |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    total, longest = [0.0, 0.0], 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.json"
        for title, latency in LATENCIES.items():
            for name in args.only or [*PROGRAMS, LONG]:
                graph = (
                    long_program()
                    if name == LONG
                    else load(ROOT / "tests" / "corpus" / f"{name}.graph.json.gz")
                )
                for node in graph["nodes"]:
                    node["runtime_ns"] += latency if node["kind"] == "collective" else 0.0
                path.write_text(json.dumps(graph))
                command = [
                    halflap,
                    "schedule",
                    path,
                    "--json",
                    "--no-advice",
                    "--effort",
                    args.effort,
                ]
                alone, rewriting = spent(command), spent([*command, "--rewrite=all"])
                total = [total[0] + alone[0], total[1] + rewriting[0]]
                longest = max(longest, rewriting[1]) if name == LONG else longest
                times = " | ".join(f"{seconds:.2f} s" for seconds in (*alone, *rewriting))
                ratio = rewriting[0] / alone[0]
                print(
                    f"| {name}, {title} | {len(graph['nodes'])} | {times} | {ratio:.2f} |",
                    flush=True,
                )
    print(
        f"\nIn all, rewriting takes {total[1] / total[0]:.2f} times the processor time of the order alone."
    )
    return 1 if total[1] > 3 * total[0] or longest > 60 else 0


if __name__ == "__main__":
    sys.exit(main())
