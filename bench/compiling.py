#!/usr/bin/env python3
"""One model, compiled by torch up to the generation of code, and what its order comes to.

    PY bench/compiling.py KIND LAYERS WIDTH HEADS TOKENS RANKS WAY... -o OUT.json [--fx NAME=VALUE]...

PY has torch and the wheel. Nothing is executed: tensors have only shapes, and the process group
does nothing. WAY is one of `WAYS`; results are written after each. What torch scheduled is
handed over as `halflap.torch` does, with its model of an H100's run times, and simulated; forward
and backward add up. The bound is that of the same program without the dependencies by which torch
holds it to an order. `--fx` changes a setting of torch's FX-level scheduling,
`torch._inductor.config.aten_distributed_optimizations`.
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import json
import logging
import pathlib
import statistics
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "examples"))
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

import models
import torch
import torch.distributed as dist
from torch._inductor import comms, compile_fx, config, scheduler
from torch._inductor.fx_utils import count_flops_fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import halflap
import halflap.torch
from halflap import _halflap
from halflap.torch._devices import Modelled
from halflap.torch._handover import Program
from halflap.torch._times import Times
from halflap.torch._undisturbed import undisturbed

MODELLED = Modelled("h100", ranks_per_node=8)
TIMES = Times({}, None)
SIMPLE = "aten_distributed_optimizations.enable_simple_overlap"


class Scheduled(Exception):
    """The order is there; no code is generated from it."""


def handed_over(snodes):
    """A program with run times."""
    program = Program(snodes)
    TIMES.fill(program, MODELLED)
    return program


def with_our_times(snodes):
    """Gives torch's passes the run times that we have: on the CPU its own are 0."""
    for snode, node in zip(snodes, handed_over(snodes).nodes):
        snode.override_estimated_runtime = node["runtime_ns"] / 1e6
    return snodes


def iterative():
    passes = [
        with_our_times,
        comms.sink_waits_iterative,
        comms.reorder_communication_preserving_peak_memory,
    ]
    overlap = "reorder_for_compute_comm_overlap"
    return config.patch({overlap: True, f"{overlap}_passes": passes, SIMPLE: False})


def fx_time(node, override_size=None):
    """Milliseconds of a node of an FX graph, by the same model; it is not fused with others yet."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    made = size_of(node.meta.get("val"))
    read = sum(size_of(other.meta.get("val")) for other in node.all_input_nodes)
    if node.target.namespace == "_c10d_functional":
        size = max(read, made) if override_size is None else override_size
        issued = (node.target._overloadpacket.__name__, list(range(dist.get_world_size())), size)
        return 0.0 if "wait" in issued[0] else modelled_time([], [issued])
    if node.target.is_view:
        return 0.0
    return modelled_time([(count_flops_fx(node) or 0, read + made)], [])


def modelled_time(work, issued):
    """Milliseconds of one kernel or one collective."""
    times = _halflap.modelled_times(MODELLED.device, work, issued, MODELLED.ranks_per_node)
    return sum(map(sum, times)) / 1e6


def size_of(value):
    tensors = [
        leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)
    ]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


#: Settings that are not as torch has them.
CHANGED = {}


def fx_level(merges=False, holds=True):
    """Torch's FX-level scheduling. It may merge collectives, and it may add dependencies that hold
    the graph to its order, which Inductor has it do if nothing is said."""
    settings = {
        "custom_runtime_estimation": fx_time,
        "enable_overlap_scheduling": True,
        "insert_overlap_deps": holds,
        "collective_bucketing": merges,
        # The other estimator measures on a GPU.
        "compute_estimator": "analytical",
        **CHANGED,
    }
    return config.patch(
        {f"aten_distributed_optimizations.{name}": value for name, value in settings.items()}
    )


def ours(collective_order, effort="default", **more):
    return halflap.torch.enable(
        **MODELLED._asdict(), effort=effort, collective_order=collective_order, **more
    )


@contextlib.contextmanager
def both(collective_order):
    """Torch's FX-level scheduling, and halflap on the order that it gives."""
    with fx_level(), ours(collective_order):
        yield


WAYS = {
    "none": lambda: config.patch({SIMPLE: False}),
    "simple_overlap": lambda: config.patch({SIMPLE: True}),
    "iterative": iterative,
    "fx": fx_level,
    "fx merging": lambda: fx_level(merges=True),
    "halflap quick": lambda: ours("kept", effort="quick"),
    "halflap kept": lambda: ours("kept"),
    "halflap free": lambda: ours("free"),
    "halflap merged": lambda: ours("free", rewrite="exact"),
    "halflap split": lambda: ours("free", rewrite=["merge", "split"]),
    "fx, then halflap kept": lambda: both("kept"),
    "fx, then halflap free": lambda: both("free"),
}
#: Ways that hold the program to an order by dependencies, and the same without these.
UNHELD = {
    "fx": lambda: fx_level(holds=False),
    "fx merging": lambda: fx_level(merges=True, holds=False),
}


def in_order(snodes):
    """Nodes so that all their dependencies come first: passes may break those that chain
    collectives."""
    return snodes[0].scheduler.topological_sort_schedule(list(snodes))


class Compilation:
    """What torch schedules of a training step, one graph after the other."""

    def __init__(self, loss_of):
        """Of a function that is given a backend, and gives a loss that was compiled with it."""
        self.graphs = []
        scheduler.Scheduler.codegen = lambda of: self.stop(of.nodes)
        backend = functools.partial(compile_fx.compile_fx, inner_compile=self.inner)
        with FakeTensorMode(allow_non_fake_inputs=True):
            loss_of(backend).backward()

    def inner(self, module, inputs, **options):
        """Compiles a graph up to the generation of code, and has it computed as it is."""
        found = {}
        self.graphs.append(found)
        # Of the processor: others may use it, too.
        started = time.process_time()
        try:
            compile_fx.compile_fx_inner(module, inputs, **options)
        except Exception:
            if "graph" not in found:
                raise
        found["seconds"] = found["until"] - started
        run = lambda values: module(*values)  # noqa: E731
        run._boxed_call = True
        return run

    def stop(self, snodes):
        found = self.graphs[-1]
        found["until"] = time.process_time()
        found["order"] = [snode.get_name() for snode in snodes]
        snodes = in_order(snodes)
        found["graph"] = handed_over(snodes).graph()
        found["handover"] = statistics.median(handover_seconds(snodes) for _ in range(5))
        raise Scheduled


def example(kind, size, backend):
    """The loss of a model of examples/models.py."""
    run = torch.compile(models.build(kind, size), backend=backend, fullgraph=True)
    return run(models.batch(0, size)).square().mean()


def compiled(way, loss_of):
    torch._dynamo.reset()
    with way():
        return Compilation(loss_of).graphs


def results_of(ways, loss_of, output):
    """The figures of each way, which are also written as soon as they are there."""
    results = {}
    for way in ways:
        before = len(halflap.torch.history())
        found = compiled(WAYS[way], loss_of)
        passes = halflap.torch.history()[before:]
        unheld = compiled(UNHELD[way], loss_of) if way in UNHELD else found
        results[way] = figures(found, unheld, passes)
        pathlib.Path(output).write_text(json.dumps(results))
    return results


def handover_seconds(snodes):
    """CPU time to hand over the nodes and apply an order: everything that the pass does except the
    search."""
    names = [snode.get_name() for snode in snodes]

    def there_and_back():
        program = handed_over(snodes)
        _halflap.to_json(program.graph())
        program.ordered(names)

    started = time.thread_time()
    undisturbed(there_and_back)
    return time.thread_time() - started


def figures(found, unheld, passes):
    """Sums and the larger peak of both graphs."""
    simulations = [halflap.simulate(one["graph"], one["order"]) for one in found]
    collectives = [node for one in found for node in one["graph"]["nodes"] if "collective" in node]
    return {
        "nodes": [len(one["graph"]["nodes"]) for one in found],
        "collectives": len(collectives),
        "compile_seconds": sum(one["seconds"] for one in found),
        "step_time": sum(simulation.step_time for simulation in simulations),
        "bound": sum(halflap.simulate(one["graph"]).bound for one in unheld),
        "peak_memory": max(simulation.peak_memory for simulation in simulations),
        "handover": [one["handover"] for one in found],
        "rewrites": [str(one) for one in halflap.torch.status().fx[-len(found) :]],
        "passes": [
            {"seconds": ran.seconds, "handover": ran.handover_seconds, "failure": ran.failure}
            for ran in passes
        ],
    }


def setting(text):
    name, value = text.split("=", 1)
    return name, ast.literal_eval(value)


def start(ranks):
    """What every compilation needs: ranks that do nothing, and no cache."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    config.fx_graph_cache = False


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("kind", choices=models.BLOCKS)
    for name in ("layers", "width", "heads", "tokens", "ranks"):
        arguments.add_argument(name, type=int)
    arguments.add_argument("ways", choices=WAYS, nargs="+", metavar="way")
    arguments.add_argument("-o", "--output", required=True)
    arguments.add_argument("--fx", action="append", default=[], type=setting, metavar="NAME=VALUE")
    chosen = arguments.parse_args()
    CHANGED.update(chosen.fx)
    start(chosen.ranks)
    size = models.Size(chosen.layers, chosen.width, chosen.heads, chosen.tokens)
    # What is loaded and worked out once is not on the time of the first way.
    small = dataclasses.replace(size, layers=1)
    Compilation(functools.partial(example, chosen.kind, small))
    results_of(chosen.ways, functools.partial(example, chosen.kind, size), chosen.output)


if __name__ == "__main__":
    main()
