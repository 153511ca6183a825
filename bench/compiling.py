#!/usr/bin/env python3
"""One model, compiled by torch up to the generation of code, and what its order comes to.

    PY bench/compiling.py KIND LAYERS WIDTH HEADS TOKENS RANKS WAY -o OUT.json

PY has torch and the wheel. Nothing is computed: tensors have shapes alone, and the process group does nothing.
WAY is one of `WAYS`. What torch scheduled is handed over as `halflap.torch` does, with its model of an H100's run
times, and simulated; forward and backward add up.
"""

import argparse
import functools
import json
import pathlib
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
warnings.simplefilter("ignore")

import models
import torch
import torch.distributed as dist
from torch._inductor import comms, compile_fx, config, scheduler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import halflap
import halflap.torch
from halflap.torch._handover import Program
from halflap.torch._times import Times

DEVICE = "h100"
TIMES = Times(DEVICE, {}, None)
SIMPLE = "aten_distributed_optimizations.enable_simple_overlap"


class Scheduled(Exception):
    """The order is there; no code is generated from it."""


def with_our_times(snodes):
    """Gives torch's passes the run times that we have: on the CPU its own are 0."""
    program = Program(snodes)
    TIMES.fill(program)
    for snode, node in zip(snodes, program.nodes):
        snode.override_estimated_runtime = node["runtime_ns"] / 1e6
    return snodes


def iterative():
    passes = [with_our_times, comms.sink_waits_iterative, comms.reorder_communication_preserving_peak_memory]
    overlap = "reorder_for_compute_comm_overlap"
    return config.patch({overlap: True, f"{overlap}_passes": passes, SIMPLE: False})


def fx_level():
    fx = "aten_distributed_optimizations"
    # The other estimator measures on a GPU.
    return config.patch({
        f"{fx}.enable_overlap_scheduling": True,
        f"{fx}.insert_overlap_deps": True,
        f"{fx}.collective_bucketing": True,
        f"{fx}.compute_estimator": "analytical",
    })


WAYS = {
    "none": lambda: config.patch({SIMPLE: False}),
    "simple_overlap": lambda: config.patch({SIMPLE: True}),
    "iterative": iterative,
    "fx": fx_level,
    "halflap quick": lambda: halflap.torch.enable(device=DEVICE, effort="quick"),
    "halflap": lambda: halflap.torch.enable(device=DEVICE, effort="default"),
    "halflap free": lambda: halflap.torch.enable(device=DEVICE, effort="default", collective_order="free"),
}


def compiled(kind, size):
    """What torch schedules of a training step, forward and backward, and how many seconds it takes."""
    found = []

    def stop(self):
        found[-1]["snodes"] = self.nodes
        found[-1]["graph"] = graph_of(self.nodes)
        raise Scheduled

    def inner(module, inputs, **options):
        found.append({"fx_nodes": len(module.graph.nodes)})
        started = time.perf_counter()
        try:
            compile_fx.compile_fx_inner(module, inputs, **options)
        except Exception:
            if "graph" not in found[-1]:
                raise
        found[-1]["seconds"] = time.perf_counter() - started - found[-1].pop("captured_in", 0)
        run = lambda values: module(*values)  # noqa: E731
        run._boxed_call = True
        return run

    def graph_of(snodes):
        started = time.perf_counter()
        program = Program(snodes)
        TIMES.fill(program)
        found[-1]["captured_in"] = time.perf_counter() - started
        return program.graph()

    scheduler.Scheduler.codegen = stop
    backend = functools.partial(compile_fx.compile_fx, inner_compile=inner)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = models.build(kind, size)
        loss = torch.compile(model, backend=backend, fullgraph=True)(models.batch(0, size)).square().mean()
        loss.backward()
    return found


def figures(found):
    """Sums and the larger peak of both graphs."""
    simulations = [halflap.simulate(one["graph"]) for one in found]
    collectives = [node for one in found for node in one["graph"]["nodes"] if "collective" in node]
    return {
        "nodes": [len(one["graph"]["nodes"]) for one in found],
        "collectives": len(collectives),
        "compile_seconds": sum(one["seconds"] for one in found),
        "step_time": sum(simulation.step_time for simulation in simulations),
        "bound": sum(simulation.bound for simulation in simulations),
        "peak_memory": max(simulation.peak_memory for simulation in simulations),
        "passes": [
            {"nodes": ran.nodes, "handover": ran.handover_seconds, "seconds": ran.seconds, "failure": ran.failure}
            for ran in halflap.torch.history()
        ],
    }


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("kind", choices=models.BLOCKS)
    for name in ("layers", "width", "heads", "tokens", "ranks"):
        arguments.add_argument(name, type=int)
    arguments.add_argument("way", choices=WAYS)
    arguments.add_argument("-o", "--output", required=True)
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=chosen.ranks)
    config.fx_graph_cache = False
    size = models.Size(chosen.layers, chosen.width, chosen.heads, chosen.tokens)
    with WAYS[chosen.way]():
        found = compiled(chosen.kind, size)
    pathlib.Path(chosen.output).write_text(json.dumps(figures(found)))


if __name__ == "__main__":
    main()
