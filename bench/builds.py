#!/usr/bin/env python3
"""Compares two builds of halflap: whether a change made passes or torch's hand-over slower.

    python3 bench/builds.py passes BEFORE AFTER [GRAPH...] [--rounds N]
    python3 bench/builds.py handover BEFORE AFTER --torch-python PY [--layers N] [--rounds N]

`passes` has two `halflap` commands, which run every pass in turns, and must come to the same
orders. It compares the instructions of the passes and of the whole command, counted by callgrind,
and the least time of each pass as the commands report it. `handover` has two folders that contain
the package `halflap`; one process compiles a model up to the generation of code, and hands the same
graphs over with each in turns, in processor time. Build both with the same profile.
Prints tables; ends with 1 if the instructions of a pass or a hand-over grow by more than 5%.

Without GRAPH, graphs of tests/corpus. Needs valgrind, and for `handover` a Python with torch 2.15.
"""

import argparse
import functools
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
from compare import table

ROOT = Path(__file__).resolve().parent.parent
GRAPHS = [
    "ddp_mlp_24",
    "moe_ep_6",
    "fsdp_llama_2",
    "fsdp_tp_llama_4",
    "fsdp_llama_8",
    "fsdp_llama_80",
]
PASSES = [
    "sink_waits",
    "raise_comms",
    "reorder_compute_for_overlap",
    "reorder_communication_preserving_peak_memory",
    "sink_waits_iterative",
    "simple_overlap",
]
#: Width, heads and tokens of the model that is handed over, and its ranks.
SIZE, RANKS = (4096, 32, 4096), 64
ALLOWED = 1.05
#: What `pass/list.rs` and `pass/slide.rs` are called through: none of these calls another one.
ENGINES = re.compile(r"halflap::pass::(list::schedule|slide::Slider(<.*>)?::(new|slide|finish)) \[")
COUNTED = re.compile(r"^ *([\d,]+) \([ \d.]+%\) +(.*)$", re.MULTILINE)


def instructions(command):
    """How many instructions a command executes in passes and in all, by callgrind."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out"
        counted = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            *map(str, command),
        ]
        common.run(counted, shown=command)
        report = common.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", out])
    lines = [(int(count.replace(",", "")), name) for count, name in COUNTED.findall(report)]
    whole = max(count for count, _ in lines)
    return sum(count for count, name in lines if ENGINES.search(name)), whole


def passes(args):
    """Instructions and times of every pass."""
    with tempfile.TemporaryDirectory() as folder:
        for graph in args.graphs:
            for name in PASSES:
                yield pass_row(args, graph, name, Path(folder))


def pass_row(args, graph, name, folder):
    def line(build):
        return common.halflap_command(build, graph, [name], {}, None, folder / "out.json")

    def once(build):
        common.run(line(build))
        return common.read_json(folder / "out.json")

    builds = (args.before, args.after)
    rounds = [[once(build) for build in builds] for _ in range(args.rounds)]
    if len({json.dumps(result["order"]) for results in rounds for result in results}) > 1:
        raise common.Failure(f"{graph_name(graph)}, {name}: the orders differ")
    seconds = [
        min(sum(p["seconds"] for p in result["passes"]) for result in of) for of in zip(*rounds)
    ]
    (own, whole), (own_after, whole_after) = (instructions(line(build)) for build in builds)
    times = [f"{1e6 * least:,.0f}" for least in seconds]
    cells = [
        graph_name(graph),
        name,
        f"{own:,}",
        f"{own_after:,}",
        f"{whole_after / whole:.3f}",
        *times,
    ]
    return cells, own_after / own


def handover(args):
    """CPU time to hand over scheduler nodes and apply an order, alternating, in one process: two
    processes place their objects differently in memory, which makes a larger difference."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("before", "after"):
            package = (getattr(args, name) / "halflap").resolve()
            Path(folder, f"halflap_{name}").symlink_to(package)
        command = [args.torch_python, __file__, "turns", args.layers, args.rounds]
        environment = {**os.environ, "PYTHONPATH": folder}
        found = subprocess.run(
            [*map(str, command)], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    for line in found.stdout.splitlines():
        nodes, rounds = json.loads(line)
        ratio = statistics.median(after / before for before, after in rounds)
        medians = [f"{1e3 * statistics.median(of):.1f} ms" for of in zip(*rounds)]
        yield [f"{nodes:,}", *medians], ratio


def turns(layers, rounds):
    """Runs in a process of its own, which can import both packages: compiles an FSDP model, and
    prints what each hand-over of its graphs took."""
    import compiling

    packages = [Package("halflap_before"), Package("halflap_after")]

    class Turns(compiling.Compilation):
        def stop(self, snodes):
            self.graphs[-1].update(until=0.0, graph=None)
            snodes = compiling.in_order(snodes)
            found = [take_turns(packages, snodes, turn) for turn in range(rounds)]
            print(json.dumps([len(snodes), found]), flush=True)
            raise compiling.Scheduled

    compiling.start(RANKS)
    with compiling.WAYS["none"]():
        size = compiling.models.Size(layers, *SIZE)
        Turns(functools.partial(compiling.example, "fsdp", size))


class Package:
    """halflap under another name."""

    def __init__(self, name):
        def module(path):
            return importlib.import_module(f"{name}.{path}")

        self.program = module("torch._handover").Program
        self.times = module("torch._times").Times({}, None)
        self.modelled = module("torch._devices").Modelled("h100", ranks_per_node=8)
        self.undisturbed = module("torch._undisturbed").undisturbed
        self.to_json = module("_halflap").to_json

    def seconds(self, snodes, names):
        """Everything that the pass does except the search."""

        def there_and_back():
            program = self.program(snodes)
            self.times.fill(program, self.modelled)
            self.to_json(program.graph())
            program.ordered(names)

        started = time.thread_time()
        self.undisturbed(there_and_back)
        return time.thread_time() - started


def take_turns(packages, snodes, turn):
    """Seconds of each package; which comes first changes with the turn."""
    names = [snode.get_name() for snode in snodes]
    seconds = {one: one.seconds(snodes, names) for one in packages[:: 1 - 2 * (turn % 2)]}
    return [seconds[one] for one in packages]


def graph_name(path):
    return Path(path).name.split(".")[0]


HEADS = {
    "passes": [
        "graph",
        "pass",
        "instructions before",
        "after",
        "whole command",
        "µs before",
        "after",
        "after / before",
    ],
    "handover": ["nodes", "before", "after", "median of after / before"],
}


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=HEADS)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("graphs", nargs="*", type=Path)
    parser.add_argument("--torch-python")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    args.graphs = args.graphs or [
        ROOT / "tests" / "corpus" / f"{name}.graph.json.gz" for name in GRAPHS
    ]
    return args


def main():
    if sys.argv[1:2] == ["turns"]:
        return turns(*map(int, sys.argv[2:]))
    args = parse_arguments()
    rows = []
    for cells, ratio in {"passes": passes, "handover": handover}[args.what](args):
        rows.append(([*cells, f"{ratio:.3f}"], ratio))
        print(*rows[-1][0], file=sys.stderr, flush=True)
    print(table(HEADS[args.what], [cells for cells, _ in rows]))
    return int(any(ratio > ALLOWED for _, ratio in rows))


if __name__ == "__main__":
    sys.exit(main())
