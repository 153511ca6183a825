#!/usr/bin/env python3
"""What rewrites gain beyond the best order: writes the tables in docs/rewrite.md.

    python3 bench/rewrites.py [--halflap BIN] [--steps FOLDER] [--autoparallel FOLDER]
        [--groups-only] [--only NAME]... [-o docs/rewrite.md]

Schedules every captured graph of tests/corpus, and those that bench/whole_steps.py wrote to
--steps, at the input order's own peak, with the order alone and with --rewrite, as it is and with a
millisecond more for each collective, as rings over hundreds of ranks take. `least` is a lower bound
on what merging, splitting, keeping and ordering can reach: that of the program without latencies,
whose all-to-alls, all-reduces and repeated gathers take no time, and with any amount of memory.
--autoparallel has graphs NAME.graph.json.gz with run times NAME.times.json of other
projects, which are measured at 1.05 of the input order's peak, by those times and by our own model
of links. A table of its own says what --rewrite groups, second communicators, gain on the corpus,
with collectives as they are and twice as long. Needs only the standard library. Ends with 1 if a
rewritten program is slower than the order alone.
"""

import argparse
import copy
import datetime
import json
import math
import sys
import tempfile
from pathlib import Path

import common
from compare import build_halflap
from orders import PROGRAMS, ROOT, load

MARK = "## Results\n"
LATENCIES = {"as they are": 0.0, "with 1 ms more latency each": 1e6}
COLUMNS = ("program", "rewrites (all)", "order alone", "exact", "all")
RATIOS = ("exact : order alone", "all : order alone", "least : order alone")
HEAD = f"| {' | '.join(COLUMNS + RATIOS)} |\n"
RULE = "| --- " * len(COLUMNS + RATIOS) + "|\n"


def found(args, graph, *options):
    return json.loads(common.run([args.halflap, "schedule", graph, "--json", *options]))


def changed(recipes):
    """What was done, in a few words."""
    merged = [len(recipe["members"]) for recipe in recipes if recipe["kind"] == "merge"]
    cut = [recipe for recipe in recipes if recipe["kind"] == "split"]
    kept = [len(recipe["members"]) - 1 for recipe in recipes if recipe["kind"] == "keep"]
    words = [f"{sum(kept)} gathers left out"] if kept else []
    words += [f"{sum(merged)} merged into {len(merged)}"] if merged else []
    if cut:
        nodes = sum(len(recipe["members"]) for recipe in cut)
        words.append(f"{nodes} nodes cut into {cut[0]['pieces']} pieces")
    return ", ".join(words) or "none"


def slopes(nodes):
    """Nanoseconds for each byte of collectives, by group and kind, where sizes differ enough."""
    points = {}
    for node in nodes:
        one = node["collective"]
        point = (one["bytes"], node["runtime_ns"])
        points.setdefault((one["group"], kind_of(one)), []).append(point)
    return {key: slope(*zip(*all_points)) for key, all_points in points.items()}


def slope(sizes, times):
    """By least squares; none if that says nothing."""
    if max(sizes) < 1.5 * min(sizes):
        return None
    size, time = sum(sizes) / len(sizes), sum(times) / len(times)
    spread = sum((one - size) ** 2 for one in sizes)
    found = sum((a - size) * (b - time) for a, b in zip(sizes, times)) / spread
    return found if found > 0 else None


def kind_of(collective):
    return collective.get("kind", collective["op"])


def least(args, graph, folder):
    """A lower bound on the step of whatever merges, splits, keeps and orders make of a graph."""
    graph = copy.deepcopy(graph)
    nodes = [node for node in graph["nodes"] if "collective" in node]
    rates, sent = slopes(nodes), set()
    for node in nodes:
        one = node["collective"]
        rate, kind = rates[one["group"], kind_of(one)], kind_of(one)
        repeats = kind == "all_gather" and one.get("content") in sent
        if one.get("content") is not None:
            sent.add(one["content"])
        if kind in ("all_reduce", "all_to_all") or repeats:
            node["runtime_ns"] = 0.0
        elif rate is not None:
            node["runtime_ns"] = min(node["runtime_ns"], rate * one["bytes"])
    for buffer in graph["buffers"]:
        buffer["size_alloc"] = buffer["size_free"] = 0
    path = folder / "least.json"
    path.write_text(json.dumps(graph))
    return json.loads(common.run([args.halflap, "simulate", path, "--json"]))["bound"]


def row(args, name, graph, *options, bound=None):
    """A program: the ratios, and its line."""
    exact, every = (
        found(args, graph, f"--rewrite={which}", *options) for which in ("exact", "all")
    )
    alone = exact["order_alone"]
    ratios = [one["step_time"] / alone for one in (exact, every)]
    collectives = changed(every["recipes"])
    times = " | ".join(
        f"{time / 1e6:.2f} ms" for time in (alone, exact["step_time"], every["step_time"])
    )
    shown = " | ".join(f"{ratio:.3f}" for ratio in ratios)
    shown += f" | {bound / alone:.3f}" if bound is not None else " | "
    if bound is not None:
        ratios.append(bound / alone)
    return ratios, f"| {name} | {collectives} | {times} | {shown} |\n"


def captured(args, folder, what, paths):
    """All captured graphs of a set, at each latency."""
    worst, text = 0.0, ""
    for title, latency in LATENCIES.items():
        text += f"\n### {what}, collectives {title}\n\n{HEAD}{RULE}"
        all_ratios = []
        for source in paths:
            graph = load(source)
            for node in graph["nodes"]:
                if node["kind"] == "collective":
                    node["runtime_ns"] += latency
            path = folder / "graph.json"
            path.write_text(json.dumps(graph))
            name, bound = source.name.removesuffix(".graph.json.gz"), least(args, graph, folder)
            ratios, line = row(args, name, path, bound=bound)
            all_ratios.append(ratios)
            text += line
            print(line, end="", file=sys.stderr, flush=True)
        means = [math.exp(sum(map(math.log, column)) / len(column)) for column in zip(*all_ratios)]
        shown = "exact {:.3f}, all {:.3f}, least {:.3f}".format(*means)
        text += f"\nGeometric means: {shown} of the order alone.\n"
        worst = max(worst, *(max(ratios[:2]) for ratios in all_ratios))
    return worst, text


def corpus(args, folder):
    """Those of the corpus."""
    paths = [ROOT / "tests" / "corpus" / f"{name}.graph.json.gz" for name in args.only or PROGRAMS]
    return captured(args, folder, "Captured graphs", paths)


def why_not(result):
    """Why no second communicator is used, in a few words."""
    why = result.get("one_communicator")
    if why is None:
        return "used"
    words = {
        "nothing_beside": "no group has all-gathers and others",
        "nothing_exposed": "next to nothing is exposed",
        "nothing_fits": "does not fit into memory",
        "slower_in_most": "longer in most variations",
    }
    if why["kind"] == "bound":
        return f"no order below {why['bound'] / 1e6:.2f} ms"
    if why["kind"] == "nothing_shorter":
        return f"{why['step_time'] / 1e6:.2f} ms with it"
    return words[why["kind"]]


def second_communicators(args, folder):
    """What second communicators gain beyond the order, on the corpus."""
    title = "Captured graphs, second communicators"
    columns = (
        "program",
        "collectives take",
        "order alone",
        "exposed",
        "`groups`",
        "of order alone",
        "outcome",
    )
    today = datetime.date.today().isoformat()
    text = f"\n### {title}\n\nMade by `bench/rewrites.py --groups-only` on {today}, at the input's"
    text += " memory; simulated.\n\n"
    text += f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|\n"
    worst = 0.0
    for name in args.only or PROGRAMS:
        for length, factor in (("as they do", 1.0), ("twice as long", 2.0)):
            graph = load(ROOT / "tests" / "corpus" / f"{name}.graph.json.gz")
            for node in graph["nodes"]:
                if node["kind"] == "collective":
                    node["runtime_ns"] *= factor
            path = folder / "graph.json"
            path.write_text(json.dumps(graph))
            alone, groups = found(args, path), found(args, path, "--rewrite=groups")
            ratio = groups["step_time"] / alone["step_time"]
            worst = max(worst, ratio)
            times = (alone["step_time"], alone["exposed"], groups["step_time"])
            shown = " | ".join(f"{time / 1e6:.2f} ms" for time in times)
            line = f"| {name} | {length} | {shown} | {ratio:.3f} | {why_not(groups)} |\n"
            text += line
            print(line, end="", file=sys.stderr, flush=True)
    return worst, text


def whole_steps(args, folder):
    """Those of other programs, if they are there."""
    if args.steps is None:
        return 0.0, ""
    return captured(args, folder, "Other steps", sorted(args.steps.glob("*.graph.json.gz")))


def other_programs(args):
    """Programs of another project, if they are there."""
    if args.autoparallel is None:
        return 0.0, ""
    worst, text = (
        0.0,
        f"\n### meta-pytorch/autoparallel's programs, h100, at 1.05 of the input's memory\n\n{HEAD}{RULE}",
    )
    for graph in sorted(args.autoparallel.glob("*.graph.json.gz")):
        name = graph.name.removesuffix(".graph.json.gz")
        times = graph.with_name(f"{name}.times.json")
        for title, more in (("their times", [f"--profile={times}"]), ("our links", [])):
            ratios, line = row(
                args, f"{name}, {title}", graph, "--device=h100", "--memory-budget=1.05x", *more
            )
            worst = max(worst, *ratios)
            text += line
    return worst, text


def more_tables(args, folder):
    return [corpus(args, folder), whole_steps(args, folder), other_programs(args)]


def written_alone(args, worst, text):
    """Writes one table in place of the one with its heading, or before all others."""
    if args.output is None:
        print(text)
        return 1 if worst > 1.0 else 0
    before, _, results = args.output.read_text().partition(MARK)
    first, *parts = results.split("\n### ")
    new = text.removeprefix("\n### ")
    titles = [part.splitlines()[0] for part in parts]
    if new.splitlines()[0] in titles:
        parts[titles.index(new.splitlines()[0])] = new
    else:
        parts.insert(0, new)
    args.output.write_text(before + MARK + "\n### ".join([first, *parts]))
    return 1 if worst > 1.0 else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--halflap", metavar="BIN")
    parser.add_argument("--steps", metavar="FOLDER", type=Path)
    parser.add_argument("--autoparallel", metavar="FOLDER", type=Path)
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="of the captured graphs, these"
    )
    parser.add_argument(
        "--groups-only", action="store_true", help="of the corpus, only --rewrite groups"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path)
    args = parser.parse_args()
    args.halflap = args.halflap or build_halflap()
    with tempfile.TemporaryDirectory() as folder:
        results = [
            second_communicators(args, Path(folder)),
            *([] if args.groups_only else more_tables(args, Path(folder))),
        ]
    if args.groups_only:
        return written_alone(args, *results[0])
    today = datetime.date.today().isoformat()
    text = f"{MARK}\nMade by `bench/rewrites.py` on {today}: simulated steps, default effort, two threads.\n"
    text += "".join(text for _, text in results)
    if args.output:
        before, _, results = args.output.read_text().partition(MARK)
        # Other tables, such as those of modules, are made elsewhere.
        headings = [line for line in text.splitlines() if line.startswith("### ")]
        others = [
            part
            for part in results.split("\n### ")[1:]
            if f"### {part.splitlines()[0]}" not in headings
        ]
        args.output.write_text(
            before + text + "".join(f"\n### {part.strip()}\n" for part in others)
        )
    else:
        print(text)
    return 1 if max(worst for worst, _ in results) > 1.0 else 0


if __name__ == "__main__":
    sys.exit(main())
