#!/usr/bin/env python3
"""Makes tests/corpus/torch_suite.json.gz: programs as in torch's own tests of its passes, and
torch's orders of them.

    PY bench/torch_suite.py [-o OUT.json.gz]

PY has torch 2.15 and the wheel. The programs are those of `test_compute_comm_reordering.py` (two
ranks) and `test_inductor_collectives.py` (one rank) in torch's `test/distributed`, compiled for the
CPU with a process group that does nothing. crates/halflap/tests/torch_suite.rs has what those tests
assert.
"""

import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")

import torch
import torch.distributed as dist
from torch._inductor import comms, config, ir, scheduler
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore

from halflap.torch._handover import Program, origins_of

CORPUS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "corpus" / "torch_suite.json.gz"
REORDER, SINK = "reorder_communication_preserving_peak_memory", "sink_waits_iterative"
functional = torch.ops._c10d_functional


# --- programs ---------------------------------------------------------------------------------


def reduced(tensor):
    return collectives.all_reduce(tensor, "sum", dist.group.WORLD)


def gathered(tensor):
    return functional.all_gather_into_tensor(
        tensor, dist.get_world_size(), dist.group.WORLD.group_name
    )


def scattered(tensor):
    return functional.reduce_scatter_tensor(
        tensor, "sum", dist.get_world_size(), dist.group.WORLD.group_name
    )


def product_beside(a):
    total = reduced(a)
    return total @ (a @ a)


def reduced_late(a):
    b = a @ a
    c = torch.relu(b)
    d = c @ c
    return d @ reduced(b)


def reduced_in_between(a):
    b = a @ a
    c = torch.relu(b)
    d = c @ c
    total = reduced(b)
    e = torch.relu(d)
    return total @ (e @ e)


def reduced_twice(a):
    first = reduced(a)
    beside = a @ a
    c = torch.relu(a)
    d = c @ c
    second = reduced(d * c * first)
    return (d + first + second) @ beside


def coalesced(a):
    x = a + 1
    world = dist.get_world_size(), dist.group.WORLD.group_name
    first, second = functional.reduce_scatter_tensor_coalesced([x, a], "sum", *world)
    y = x + 2
    first, second = functional.wait_tensor(first), functional.wait_tensor(second)
    return first, y, torch.ones_like(a) + 22, second


def gathered_twice(a):
    return functional.wait_tensor(gathered(functional.wait_tensor(gathered(a))))


def in_buckets(x, w, *shards):
    y = x @ w
    results = []
    for number, half in enumerate((shards[:2], shards[2:])):
        halves = [shard.to(torch.bfloat16) for shard in half]
        for collective in (gathered, scattered):
            under_way = [collective(shard) for shard in halves]
            results += [functional.wait_tensor(one) for one in under_way]
        if number == 0:
            y = y + (2 * x) @ (2 * w)
    return y, *results


def estimate(snode):
    """The run times of the test of custom estimates."""
    if isinstance(snode.node, ir._CollectiveKernel):
        return 100
    return 5 if isinstance(snode.node, ir.ExternKernel) else 1


SMALL = [(4, 4)]
SHARDS = [(4, 384), (384, 512), (1024, 512), (512, 1024), (1024, 512), (512, 1024)]
BUCKETS = {
    "allow_buffer_reuse": False,
    "bucket_all_gathers_fx": "all",
    "bucket_all_gathers_fx_bucket_size_determinator": lambda _: 2,
    "bucket_reduce_scatters_fx": "all",
    "bucket_reduce_scatters_fx_bucket_size_determinator": lambda _: 2,
}
#: For so many ranks: a name, the passes, the program, the shapes of its inputs, other settings.
CASES = {
    2: [
        ("sink_waits", ["sink_waits"], product_beside, SMALL, {"reorder_for_locality": False}),
        ("raise_comms", ["raise_comms"], reduced_late, SMALL, {"reorder_for_locality": False}),
        ("sink_waits_raise_comms", ["sink_waits", "raise_comms"], reduced_in_between, SMALL, {}),
        (
            "reorder_compute_for_overlap",
            ["reorder_compute_for_overlap"],
            reduced_twice,
            SMALL,
            {"estimate_op_runtime": estimate},
        ),
    ],
    1: [
        ("reorder_peak_memory", ["sink_waits", REORDER], coalesced, SMALL, {}),
        ("reorder_respects_wait_dep", ["sink_waits", REORDER], gathered_twice, SMALL, {}),
        ("reorder_peak_memory_bucketed", [REORDER, SINK, REORDER], in_buckets, SHARDS, BUCKETS),
    ],
}


# --- what becomes of them ---------------------------------------------------------------------


class Scheduled(Exception):
    """The order is there; no code is generated from it."""


def graph_of(snodes):
    program = Program(snodes)
    for snode, node in zip(snodes, program.nodes):
        node["runtime_ns"] = (
            0.0 if node["kind"] == "multi_output" else comms.estimate_op_runtime(snode) * 1e6
        )
        node["ops"] = [label(part) for part in snode.get_nodes()]
    return program.graph()


def label(part):
    """The operator that is called, or those that a kernel was written for."""
    called = getattr(part.node, "op_overload", None)
    names = [called] if called is not None else [origin.target for origin in origins_of(part)]
    return "+".join(str(name).removeprefix("_c10d_functional.") for name in names)


def case(name, passes, program, shapes, settings):
    """A program's graph, and torch's order after each pass."""
    found = {"name": name, "torch": torch.__version__.split("+")[0], "steps": []}

    def recorded(pass_name):
        def run(snodes):
            found.setdefault("graph", graph_of(snodes))
            ordered = getattr(comms, pass_name)(snodes)
            found["steps"].append(
                {"pass": pass_name, "order": [snode.get_name() for snode in ordered]}
            )
            return ordered

        return run

    overlap = "reorder_for_compute_comm_overlap"
    torch._dynamo.reset()
    with config.patch(
        {overlap: True, f"{overlap}_passes": [recorded(each) for each in passes], **settings}
    ):
        try:
            torch.compile(program, fullgraph=True)(*(torch.ones(shape) for shape in shapes))
        except Exception:
            if len(found["steps"]) < len(passes):
                raise
    return found


def stop(_):
    raise Scheduled


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("-o", "--output", default=CORPUS, type=pathlib.Path)
    arguments.add_argument("--ranks", type=int, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.ranks is None:
        # A process has one process group.
        parts = [[sys.executable, __file__, "--ranks", str(ranks)] for ranks in CASES]
        printed = [
            subprocess.run(part, check=True, stdout=subprocess.PIPE).stdout for part in parts
        ]
        found = [one for text in printed for one in json.loads(text.splitlines()[-1])]
        text = json.dumps(found, separators=(",", ":")).encode()
        chosen.output.write_bytes(gzip.compress(text, 9, mtime=0))
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=chosen.ranks)
    config.fx_graph_cache = False
    scheduler.Scheduler.codegen = stop
    print(json.dumps([case(*one) for one in CASES[chosen.ranks]]))


if __name__ == "__main__":
    main()
