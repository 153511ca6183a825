#!/usr/bin/env python3
"""Run torch's own communication-scheduling passes on a `halflap.graph/1` file.

    python torch_passes.py GRAPH.json[.gz] --passes a,b [--set NAME=VALUE]... [-o OUT.json]
    python torch_passes.py --batch JOBS.json[.gz] [-o OUT.json]

The python must have torch (2.10 and 2.15 are known to work). Nothing of torch is rebuilt here:
stand-in scheduler nodes carry the graph, and the functions of `torch._inductor.comms` run on
them. A GRAPH file that holds a list of graphs needs `--index I`.

A batch is a list of jobs {"graph": GRAPH, "passes": [...], "settings": {...}} where GRAPH is a
graph, or {"file": PATH, "index": I}; the output is then the list of the results, in the same
order. A job on which torch itself fails gives {"error": TEXT}.
"""

import argparse
import contextlib
import functools
import gc
import gzip
import io
import json
import logging
import os
import sys
import time
import traceback

# Structured traces would be formatted and written on the passes' time; torch reads this early.
os.environ.pop("TORCH_TRACE", None)

import torch
from torch._inductor import comms, config_comms, ir
from torch._inductor.dependencies import ReadWrites, StarDep, WeakDep
from torch._inductor.memory import (
    FreeableInputBuffer,
    MemoryPlanningInfoForBuffer,
    estimate_peak_memory_allocfree,
)
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

# The public forms of the two iterative passes throw their statistics away.
ITERATIVE = {
    "reorder_communication_preserving_peak_memory": "_reorder_communication_preserving_peak_memory_internal",
    "sink_waits_iterative": "_sink_waits_iterative_internal",
}
PLAIN = ["sink_waits", "raise_comms", "reorder_compute_for_overlap", "simple_overlap"]
# These never look at a node's ancestors, which take quadratic memory.
WITHOUT_ANCESTORS = {"sink_waits", "simple_overlap"}

STAT_FIELDS = [
    "moves",
    "grouped",
    "comm_time",
    "comp_time",
    "initial_exposed",
    "final_exposed",
    "limiting_factor",
]

# `is_async_collective` knows synchronous collectives by this kernel alone.
SYNC_KERNEL = "torch.ops._dtensor.shard_dim_alltoall.default"
ASYNC_KERNEL = "torch.ops._c10d_functional.{}.default"
WAIT_KERNEL = "torch.ops._c10d_functional.wait_tensor.default"
# `is_gemm_like` looks for "extern_kernels" in the kernel's name.
GEMM_KERNEL = "extern_kernels.mm"


# --- stand-ins for what the scheduler holds ---------------------------------------------------


class StandInScheduler:
    """All that a node asks of its scheduler: which buffers exist before the program runs."""

    available_buffer_names = OrderedSet()


class StandInBuffer:
    def __init__(self, name, size_alloc, size_free):
        self.name = name
        self.size_alloc = size_alloc
        self.size_free = size_free
        self.mpi_buffer = None

    def get_name(self):
        return self.name

    def debug_str(self):
        return self.name


class StandInNode(BaseSchedulerNode):
    """A scheduler node whose dependencies, buffers and run time come from the file."""

    def __init__(self, scheduler, index, node, buffers):
        super().__init__(scheduler)
        self.node = make_operation(node)
        self.min_order = self.max_order = index
        self.runtime_ns = node["runtime_ns"]
        self.outputs = [buffers[name] for name in node["outputs"]]
        self.outputs_by_name = {buf.name: buf for buf in self.outputs}
        self.ancestors = OrderedSet()
        writes = OrderedSet(StarDep(name) for name in node["outputs"])
        self.set_read_writes(ReadWrites(make_deps(node), writes, OrderedSet()))

    def get_estimated_runtime(self):
        return self.runtime_ns


class StandInGraph:
    """What the passes ask of `V.graph`."""

    def __init__(self, input_names, output_names):
        self.graph_inputs = dict.fromkeys(input_names)
        self.output_names = output_names

    def get_output_names(self):
        return self.output_names


def make_operation(node):
    """An operation of the class by which torch tells collectives, waits and the rest apart."""
    kind = node["kind"]
    if kind == "wait":
        cls, kernel = ir._WaitKernel, WAIT_KERNEL
    elif kind == "collective":
        is_async = node["collective"]["async"]
        cls = ir._CollectiveKernel
        kernel = ASYNC_KERNEL.format(node["collective"]["op"]) if is_async else SYNC_KERNEL
    elif node.get("gemm_like"):
        cls, kernel = ir.ExternKernelOut, GEMM_KERNEL
    else:
        cls, kernel = ir.ComputedBuffer, None
    # The constructors want a whole program around them; the passes need these few fields.
    op = object.__new__(cls)
    op.operation_name = op.name = node["name"]
    op.layout = ir.NoneLayout(device=None)
    op.op_overload = None
    op.python_kernel_name = kernel
    return op


def make_deps(node):
    """The node's dependencies in the file's order; one buffer can be needed in several kinds."""
    mutating = node["outputs"][0] if node["outputs"] else ""
    deps = OrderedSet()
    for dep in node["deps"]:
        for kind in dep["kinds"]:
            if kind == "data":
                deps.add(StarDep(dep["buffer"]))
            else:
                deps.add(WeakDep(dep["buffer"], mutating, is_fake=kind == "order"))
    return deps


def memory_info(size_alloc, size_free, users):
    users = OrderedSet(users)
    return MemoryPlanningInfoForBuffer(size_alloc, size_free, users, users)


def set_ancestors(graph, nodes):
    """Every node's ancestors: the closure over all its dependencies, order edges included."""
    maker = {buf.name: node for node in nodes for buf in node.outputs}
    for spec, node in zip(graph["nodes"], nodes):
        for dep in spec["deps"]:
            pred = maker[dep["buffer"]]
            node.ancestors |= pred.ancestors
            node.ancestors.add(pred.get_name())


class Program:
    """A graph as torch sees it: its nodes, its outputs and its freeable inputs."""

    def __init__(self, graph, with_ancestors=True):
        scheduler = StandInScheduler()
        buffers = {
            b["name"]: StandInBuffer(b["name"], b["size_alloc"], b["size_free"])
            for b in graph["buffers"]
        }
        self.nodes = [StandInNode(scheduler, i, n, buffers) for i, n in enumerate(graph["nodes"])]
        self.by_name = {n.get_name(): n for n in self.nodes}
        for b in graph["buffers"]:
            users = [self.by_name[u] for u in b["users"]]
            buffers[b["name"]].mpi_buffer = memory_info(b["size_alloc"], b["size_free"], users)
        if with_ancestors:
            set_ancestors(graph, self.nodes)
        self.inputs = graph["inputs"]
        self.output_names = [b["name"] for b in graph["buffers"] if b["output"]]
        # An input that nobody uses is never freed; torch knows that only of outputs.
        self.output_names += [i["name"] for i in self.inputs if i["output"] or not i["users"]]

    def freeable_inputs(self, *_ignored):
        """Takes the place of torch's `get_freeable_input_buf`, which reads real tensor sizes."""
        return {
            i["name"]: FreeableInputBuffer(
                i["name"], memory_info(0, i["size"], [self.by_name[u] for u in i["users"]])
            )
            for i in self.inputs
        }

    def peak_memory(self, order):
        outputs = OrderedSet(self.output_names)
        return estimate_peak_memory_allocfree(order, self.freeable_inputs(), outputs)[0]

    @contextlib.contextmanager
    def as_current(self):
        """Make this program the one that torch's passes see."""
        original = comms.get_freeable_input_buf
        comms.get_freeable_input_buf = self.freeable_inputs
        graph = StandInGraph([i["name"] for i in self.inputs], self.output_names)
        try:
            with V.set_graph_handler(graph):
                yield
        finally:
            comms.get_freeable_input_buf = original


# --- running ----------------------------------------------------------------------------------


def find_pass(name):
    """Torch's function for a pass, as a function that gives the order and statistics or None."""
    if name in ITERATIVE:
        return getattr(comms, ITERATIVE[name])
    if name not in PLAIN or not hasattr(comms, name):
        sys.exit(f"torch {torch.__version__} has no pass {name!r}")
    function = getattr(comms, name)
    return lambda nodes: (function(nodes), None)


def check_settings(settings):
    for name in settings:
        if not hasattr(config_comms, name):
            sys.exit(f"torch {torch.__version__} has no setting {name!r}")


def stats_as_dict(stats):
    return {
        node.get_name(): {field: getattr(info, field) for field in STAT_FIELDS}
        for node, info in stats.items()
    }


def run_passes(graph, passes, settings):
    functions = [find_pass(name) for name in passes]
    check_settings(settings)
    program = Program(graph, with_ancestors=not WITHOUT_ANCESTORS.issuperset(passes))
    order, last_stats, seconds = program.nodes, None, []
    # The ledger check prints what it finds; only the order that it leaves behind matters here.
    quiet = contextlib.redirect_stdout(io.StringIO())
    with program.as_current(), config_comms.patch(dict(settings)), quiet:
        for function in functions:
            # Garbage of the construction must not be collected on the pass's time.
            gc.collect()
            start = time.perf_counter()
            order, stats = function(order)
            seconds.append(time.perf_counter() - start)
            if stats is not None:
                last_stats = stats_as_dict(stats)
    return {
        "torch": torch.__version__,
        "passes": passes,
        "settings": settings,
        "order": [n.get_name() for n in order],
        "peak_memory": program.peak_memory(order),
        "seconds": seconds,
        "stats": last_stats,
    }


def run_job(job):
    graph = job["graph"]
    if "file" in graph:
        graph = pick_graph(load_cached(graph["file"]), graph.get("index"))
    try:
        return run_passes(graph, job["passes"], job.get("settings", {}))
    except Exception as error:  # torch's own assertions fire on some odd graphs
        where = traceback.extract_tb(error.__traceback__)[-1].name
        return {"error": f"{type(error).__name__} in {where}: {error}".rstrip(": ")}


# --- files and the command line ---------------------------------------------------------------


def load(path):
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt") as file:
        return json.load(file)


load_cached = functools.lru_cache(maxsize=1)(load)


def pick_graph(content, index):
    if not isinstance(content, list):
        return content
    if index is None:
        sys.exit("the file holds a list of graphs: say which one with --index")
    return content[index]


def parse_setting(text):
    name, _, value = text.partition("=")
    words = {"true": True, "false": False, "none": None, "null": None}
    if value.lower() in words:
        return name, words[value.lower()]
    try:
        return name, json.loads(value)
    except ValueError:
        sys.exit(f"--set {text}: the value is neither a number, true, false nor none")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("graph", nargs="?", help="a halflap.graph/1 file, plain or gzipped")
    parser.add_argument("--index", type=int, help="which graph of a file that holds a list")
    parser.add_argument("--passes", help="passes to run one after the other, with commas")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--batch", metavar="JOBS", help="run every job of this file instead")
    parser.add_argument("-o", "--output", help="the result (standard output if not given)")
    args = parser.parse_args()
    if not args.batch and not (args.graph and args.passes):
        parser.error("give a GRAPH and --passes, or --batch")
    return args


def main():
    args = parse_arguments()
    logging.disable(logging.CRITICAL)
    content = load(args.batch or args.graph)
    # What is there now stays; keep the collector from walking it again and again.
    gc.collect()
    gc.freeze()
    if args.batch:
        result = [run_job(job) for job in content]
    else:
        graph = pick_graph(content, args.index)
        settings = dict(parse_setting(s) for s in args.set)
        result = run_passes(graph, args.passes.split(","), settings)
    with open(args.output, "w") if args.output else contextlib.nullcontext(sys.stdout) as out:
        json.dump(result, out)
        out.write("\n")
    gc.unfreeze()  # or extension modules complain about leaks at exit


if __name__ == "__main__":
    main()
