#!/usr/bin/env python3
"""Compare halflap with torch on random graphs, settings and sequences of passes.

    python3 bench/differential.py --torch-python PY --halflap BIN [--graphs N] [--seed S]

PY is a python with torch 2.10. Every case has its own seed, `S + its number`, so a single one
can be repeated with `--seed` and `--graphs 1`. For each case that differs, the graph, both
results and the commands are written beside each other (`--out`). Needs only the standard library.

To check `simple_overlap`, give a python with torch 2.15 and `--passes simple_overlap`.
"""

import argparse
import json
import random
import shlex
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import common

PASSES = [
    "sink_waits",
    "raise_comms",
    "reorder_compute_for_overlap",
    "reorder_communication_preserving_peak_memory",
    "sink_waits_iterative",
]

LARGEST = 80  # nodes

SIZES = [0, 0, 16, 256, 1024, 4096, 16384, 100_000, 1 << 20]
RUN_TIMES = [0, 0, 1, 2, 500, 1000, 2500, 7000, 20_000, 150_000]
COLLECTIVES = ["all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce", "all_to_all_single"]

MULTIPLIERS = [0.0, 0.3, 0.7, 1.0, 1.7, 2.0, 5.0]
BUDGETS = [0.0, 0.01, 0.05, 0.1, 0.2, 0.37, 0.5, 1.0]
EXTRA_OVERLAPS = [0.0, 0.1, 0.3, 0.5, 1.0, 1.7]
LIMITS = [0, 1, 2, 3, 5, 8, 20]
BOOLEANS = [False, True]
SETTINGS = {
    "reorder_iterative_use_runtime_estimations": BOOLEANS,
    "sink_iterative_use_runtime_estimations": BOOLEANS,
    "reorder_sink_runtime_estimations_comm_mult": MULTIPLIERS,
    "reorder_sink_runtime_estimations_non_comm_mult": MULTIPLIERS,
    "reorder_iterative_extra_comm_comp_overlap": EXTRA_OVERLAPS,
    "sink_iterative_extra_comm_comp_overlap": EXTRA_OVERLAPS,
    "reorder_iterative_peak_memory_budget": BUDGETS,
    "sink_iterative_peak_memory_budget": BUDGETS,
    "reorder_iterative_unsafe_collectives_reorder": BOOLEANS,
    "sink_waits_iterative_unsafe_collectives_reorder": BOOLEANS,
    "reorder_iterative_group_with_collectives": BOOLEANS,
    "sink_waits_iterative_swap_with_collectives": BOOLEANS,
}
RUNTIME_SETTINGS = [
    "reorder_iterative_use_runtime_estimations",
    "sink_iterative_use_runtime_estimations",
]
# These end a pass early and would hide what comes after, so they are rare.
RARE_SETTINGS = {
    "reorder_iterative_debug_limit_to_reorder": LIMITS,
    "sink_waits_iterative_debug_limit_to_sink": LIMITS,
}


# --- random graphs ----------------------------------------------------------------------------


class GraphMaker:
    """Adds one node after the other, each needing only buffers that exist by then."""

    def __init__(self, rng):
        self.rng = rng
        self.groups = self.random_groups()
        self.nodes = []
        self.buffers = {}
        self.maker = {}
        # By node name: all nodes that it needs through data and weak edges.
        self.needs = {}
        # Asynchronous collectives that no wait belongs to yet, and the results of all of them.
        self.pending = []
        self.unfinished = set()
        # What this graph is like; each kind reaches other corners of the passes.
        self.odd = rng.choice([0.0, 0.05, 0.2])  # how often it does unusual things
        self.fractional = rng.random() < 0.3
        self.comm_share = rng.choice([0.1, 0.25, 0.4])
        self.sync_share = rng.choice([0.0, 0.1, 0.5])
        self.gemm_share = rng.choice([0.0, 0.25, 0.5])
        self.comm_slowness = rng.choice([1, 1, 10, 50])

    def chance(self, probability):
        return self.rng.random() < probability

    def random_groups(self):
        """One to three process groups; some share one rank, some several."""
        groups = {"g0": {"ranks": list(range(8))}}
        if self.chance(0.5):
            groups["g1"] = {"ranks": self.rng.choice([[0, 1, 2, 3], [7, 8, 9], [8, 9, 10, 11]])}
        if len(groups) == 2 and self.chance(0.5):
            groups["g2"] = {"ranks": self.rng.choice([[0, 8], [2, 3, 4], [20, 21]])}
        return groups

    def run_time(self, kind):
        if kind == "wait":
            return 0.0
        factor = self.comm_slowness if kind == "collective" else 1
        if self.fractional and self.chance(0.7):
            return factor * self.rng.uniform(0, self.rng.choice([3, 40_000]))
        return float(factor * self.rng.choice(RUN_TIMES))

    def pick_buffers(self, count):
        """Buffers to read: mostly recent ones, so that chains and not only stars come about."""
        names = list(self.buffers)
        if not self.chance(self.odd):
            # In a well-behaved program only the wait reads what a collective gives.
            names = [n for n in names if n not in self.unfinished]
        recent = names[-12:] if self.chance(0.7) else names
        return self.rng.sample(recent, min(count, len(recent)))

    def random_deps(self, count):
        kinds = [["data"]] * 17 + [["weak"]] * 2 + [["data", "weak"]]
        return {b: self.rng.choice(kinds) for b in self.pick_buffers(count)}

    def add_order_deps(self, deps):
        """Order-only edges from earlier collectives and waits, whatever their group."""
        comms = [n for n in self.nodes if n["kind"] != "compute" and n["outputs"]]
        if not comms:
            return
        if self.chance(0.5):
            earlier = [n for n in comms if n["kind"] == "collective"][-1:]
        else:
            earlier = self.rng.sample(comms, min(len(comms), self.rng.randint(0, 2)))
        for node in earlier:
            for buffer in node["outputs"]:
                deps[buffer] = deps.get(buffer, []) + ["order"]

    def add_node(self, kind, deps, output_count, **fields):
        node = {
            "name": f"op{len(self.nodes)}",
            "kind": kind,
            "runtime_ns": self.run_time(kind),
            "outputs": [self.add_buffer() for _ in range(output_count)],
            "deps": [{"buffer": b, "kinds": k} for b, k in deps.items()],
            "ops": [],
            **fields,
        }
        name = node["name"]
        self.needs[name] = set()
        for buffer, kinds in deps.items():
            if kinds != ["order"]:
                self.buffers[buffer]["users"].append(name)
                maker = self.maker[buffer]
                self.needs[name] |= self.needs[maker] | {maker}
        self.maker.update(dict.fromkeys(node["outputs"], name))
        self.nodes.append(node)
        return node

    def add_buffer(self):
        name = f"buf{len(self.buffers)}"
        alloc = self.rng.choice(SIZES)
        free = self.rng.choice(SIZES) if self.chance(0.1) else alloc
        output = self.chance(0.08)
        self.buffers[name] = {
            "name": name,
            "size_alloc": alloc,
            "size_free": free,
            "users": [],
            "output": output,
        }
        return name

    def output_count(self):
        if self.chance(0.2):
            return self.rng.choice([0, 2, 3])
        return 1

    def add_compute(self):
        deps = self.random_deps(self.rng.choice([0, 1, 1, 2, 2, 3]))
        if self.chance(self.odd):
            self.add_order_deps(deps)
        gemm = {"gemm_like": True} if self.chance(self.gemm_share) else {}
        return self.add_node("compute", deps, self.output_count(), **gemm)

    def add_collective(self):
        deps = self.random_deps(self.rng.choice([0, 1, 1, 1, 2]))
        if self.chance(0.4):
            self.add_order_deps(deps)
        is_async = not self.chance(self.sync_share)
        group = self.rng.choice(list(self.groups))
        about = {
            "op": self.rng.choice(COLLECTIVES),
            "group": group,
            "group_size": len(self.groups[group]["ranks"]),
            "async": is_async,
            "bytes": self.rng.choice(SIZES),
        }
        count = self.output_count() if self.chance(0.3) else 1
        node = self.add_node("collective", deps, count, collective=about)
        if is_async and node["outputs"]:
            self.pending.append(node)
            self.unfinished.update(node["outputs"])

    def add_wait(self):
        """A wait, mostly of one collective; sometimes of two, of none, or through other nodes."""
        waited = self.take_pending(2 if self.chance(self.odd) else 1)
        if self.chance(self.odd) or not waited:
            deps = self.random_deps(self.rng.choice([1, 2]))
        else:
            deps = {}
        for node in waited:
            deps.update(self.deps_on_result(node))
        if self.chance(0.2):
            deps = {**self.random_deps(1), **deps}
        if self.chance(self.odd):
            self.add_order_deps(deps)
        wait = self.add_node("wait", deps, 1 if self.chance(0.95) else self.output_count())
        if not self.chance(self.odd):
            for node in waited:
                self.keep_inputs_alive(node, wait)

    def take_pending(self, count):
        self.rng.shuffle(self.pending)
        taken, self.pending = self.pending[:count], self.pending[count:]
        return taken

    def deps_on_result(self, collective):
        read = self.rng.sample(
            collective["outputs"], self.rng.randint(1, len(collective["outputs"]))
        )
        if self.chance(0.1):
            # One output of a multi-output result: another node stands in between.
            between = self.add_node("compute", {b: ["data"] for b in read}, 1)
            return {between["outputs"][0]: ["data"]}
        return {b: ["weak"] if self.chance(0.1) else ["data"] for b in read}

    def keep_inputs_alive(self, collective, wait):
        """What an asynchronous collective reads lives until its wait."""
        for dep in collective["deps"]:
            users = self.buffers[dep["buffer"]]["users"]
            if dep["kinds"] != ["order"] and wait["name"] not in users:
                users.append(wait["name"])

    def add_alias_users(self):
        """Users under another name; they come after the maker in every order."""
        for buffer in self.buffers.values():
            if not self.chance(0.05):
                continue
            maker = self.maker[buffer["name"]]
            later = [n for n, needs in self.needs.items() if maker in needs]
            later = [n for n in later if n not in buffer["users"]]
            buffer["users"] += self.rng.sample(later, min(1, len(later)))

    def random_inputs(self):
        names = [n["name"] for n in self.nodes]
        inputs = []
        for i in range(self.rng.choice([0, 0, 1, 3])):
            users = self.rng.sample(names, min(len(names), self.rng.randint(1, 3)))
            size, output = self.rng.choice(SIZES), self.chance(0.15)
            inputs.append({"name": f"arg{i}", "size": size, "users": users, "output": output})
        return inputs

    def make(self, size):
        while len(self.nodes) < size:
            if self.pending and self.chance(0.25):
                self.add_wait()
            elif self.chance(self.odd * 0.2):
                self.add_wait()
            elif self.chance(self.comm_share):
                self.add_collective()
            else:
                self.add_compute()
        # At the end most collectives get their wait, which adds up to three nodes at a time.
        while len(self.nodes) < LARGEST - 2 and self.pending and not self.chance(self.odd):
            self.add_wait()
        self.add_alias_users()
        return {
            "format": "halflap.graph/1",
            "source": {"program": "random"},
            "groups": self.groups,
            "nodes": self.nodes,
            "buffers": list(self.buffers.values()),
            "inputs": self.random_inputs(),
        }


def random_settings(rng):
    share = rng.choice([0.0, 0.4, 0.9])
    settings = {k: rng.choice(v) for k, v in SETTINGS.items() if rng.random() < share}
    if rng.random() < 0.5:
        # Most of the decisions are made only with run-time estimates.
        settings.update(dict.fromkeys(RUNTIME_SETTINGS, True))
    settings.update({k: rng.choice(v) for k, v in RARE_SETTINGS.items() if rng.random() < 0.07})
    return settings


def random_case(seed, pool):
    rng = random.Random(seed)
    # The waits at the end come on top.
    size = rng.choice([rng.randint(2, 12), rng.randint(8, 40), rng.randint(30, 70)])
    graph = GraphMaker(rng).make(size)
    graph["source"]["seed"] = seed
    weights = [3 if name in common.ITERATIVE else 1 for name in pool]
    passes = rng.choices(pool, weights, k=rng.choice([1, 1, 2, 3]))
    return {"graph": graph, "passes": passes, "settings": random_settings(rng)}


# --- running and comparing --------------------------------------------------------------------


def run_torch(python, cases, folder):
    """All cases, in as many processes as there are processors: loading torch takes seconds."""
    count = min(common.processors(), len(cases))
    parts = [cases[i::count] for i in range(count)]

    def run_part(numbered):
        number, part = numbered
        jobs, output = folder / f"jobs-{number}.json", folder / f"torch-{number}.json"
        jobs.write_text(json.dumps(part))
        common.run(common.torch_batch_command(python, jobs, output))
        return common.read_json(output)

    with ThreadPoolExecutor(count) as pool:
        done = list(pool.map(run_part, enumerate(parts)))
    results = [None] * len(cases)
    for i, part in enumerate(done):
        results[i::count] = part
    return results


def run_halflap(args, case, graph, output):
    graph.write_text(json.dumps(case["graph"]))
    command = common.halflap_command(
        args.halflap, graph, case["passes"], case["settings"], args.compat, output
    )
    common.run(command)
    return common.read_json(output)


def check(args, number, case, torch_result, folder):
    """What differs in one case, as a list of sentences."""
    graph, output = folder / f"case-{number}.graph.json", folder / f"case-{number}.out.json"
    try:
        ours = run_halflap(args, case, graph, output)
        found = common.differences(torch_result, ours)
    except common.Failure as failure:
        found = [str(failure)]
    except (KeyError, TypeError, ValueError) as error:
        found = [f"halflap's output is not as expected: {type(error).__name__}: {error}"]
    finally:
        graph.unlink(missing_ok=True)
        output.unlink(missing_ok=True)
    return found


def keep(args, number, case, torch_result, found):
    """Write everything needed to reproduce a case that differs."""
    base = args.out / f"case-{args.seed + number}"
    args.out.mkdir(parents=True, exist_ok=True)
    graph = base.with_suffix(".graph.json")
    graph.write_text(json.dumps(case["graph"]))
    base.with_suffix(".torch.json").write_text(json.dumps(torch_result))
    ours = common.halflap_command(
        args.halflap,
        graph,
        case["passes"],
        case["settings"],
        args.compat,
        base.with_suffix(".halflap.json"),
    )
    theirs = common.torch_command(
        args.torch_python, graph, case["passes"], case["settings"], base.with_suffix(".torch.json")
    )
    lines = [shlex.join(str(part) for part in command) for command in (ours, theirs)]
    base.with_suffix(".commands").write_text("\n".join(lines) + "\n")
    print(f"case {args.seed + number} ({len(case['graph']['nodes'])} nodes) differs:")
    for sentence in found[:6]:
        print(f"  {sentence}")
    print(f"  {lines[0]}")


def run_chunk(args, first, count, totals, folder):
    cases = [random_case(args.seed + first + i, args.passes) for i in range(count)]
    torch_results = run_torch(args.torch_python, cases, folder)

    def check_one(i):
        if "error" in torch_results[i]:
            return None
        return check(args, first + i, cases[i], torch_results[i], folder)

    with ThreadPoolExecutor(common.processors()) as pool:
        checked = list(pool.map(check_one, range(count)))
    for i, found in enumerate(checked):
        if found is None:
            totals["skipped"] += 1
            totals["errors"].add(torch_results[i]["error"])
        elif found:
            totals["failed"] += 1
            if totals["failed"] <= args.show:
                keep(args, first + i, cases[i], torch_results[i], found)
        else:
            totals["passed"] += 1


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--torch-python", required=True, help="a python that has torch 2.10")
    parser.add_argument("--halflap", required=True, help="the halflap binary")
    parser.add_argument("--graphs", type=int, default=1000, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="the first case's seed")
    parser.add_argument("--passes", default=",".join(PASSES), help="the passes to choose from")
    parser.add_argument("--compat", default="torch-2.10", help="halflap's --compat ('' for none)")
    parser.add_argument("--show", type=int, default=5, help="how many differing cases to keep")
    parser.add_argument("--chunk", type=int, default=2000, help="cases held in memory at a time")
    parser.add_argument(
        "--out", type=Path, default=Path("target/differential"), help="where those are written"
    )
    args = parser.parse_args()
    args.passes = args.passes.split(",")
    return args


def main():
    args = parse_arguments()
    totals = {"passed": 0, "failed": 0, "skipped": 0, "errors": set()}
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, args.graphs, args.chunk):
            count = min(args.chunk, args.graphs - first)
            run_chunk(args, first, count, totals, Path(folder))
    if totals["skipped"]:
        print(f"{totals['skipped']} skipped, because torch itself fails on them:")
        for error in sorted(totals["errors"])[:5]:
            print(f"  {error}")
    print(f"{totals['passed']} passed, {totals['failed']} failed")
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
