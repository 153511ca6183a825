"""One rank of the tests with real torch: does what it is told and writes what came of it."""

import faulthandler
import importlib
import json
import os
import pathlib
import re
import sys
import time
import warnings
from contextlib import contextmanager, nullcontext

import models
import torch
import torch.distributed as dist
from sizes import TINY
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache
from torch._inductor.exc import InductorError
from torch.distributed import _functional_collectives as collectives

import halflap
import halflap.torch
from halflap.torch import _agree

FOLDER = pathlib.Path(os.environ["FOLDER"])
RANK = int(os.environ["RANK"])
KINDS = ("fsdp", "tensor_parallel")
CALL = re.compile(r"_c10d_functional\.(\w+)\.default\((.*)\)|(extern_kernels\.\w+|cpp_\w+)\(")


def trained(kind, *, compiled, steps=3):
    """Losses, what was compiled and what caches did, from a fresh start."""
    torch._dynamo.reset()
    PyCodeCache.cache_clear()
    counters.clear()
    before = len(halflap.torch.history())
    losses = models.train(models.build(kind, TINY), steps, compiled=compiled, size=TINY)
    ran = halflap.torch.history()[before:]
    return {
        "losses": losses,
        "sequences": sequences(),
        "hits": counters["inductor"]["fxgraph_cache_hit"],
        "misses": counters["inductor"]["fxgraph_cache_miss"],
        "ran": [
            [one.name, one.collectives, one.failure, one.schedule and one.schedule.order]
            for one in ran
        ],
        "collective_orders": {one.name: one.collective_order for one in ran},
    }


def sequences():
    """For each graph with collectives, what it runs, as its generated program has it."""
    found = []
    for module in PyCodeCache.modules:
        text = pathlib.Path(module.__file__).read_text()
        if "_c10d_functional." in text:
            found.append([" ".join(filter(None, call)) for call in CALL.findall(text)])
    return sorted(found)


def train():
    result = {"reports": [], "settings": settings()}
    for kind in KINDS:
        eager = trained(kind, compiled=False)["losses"]
        plain = trained(kind, compiled=True)
        halflap.torch.enable(report_dir=FOLDER / "reports")
        ordered = trained(kind, compiled=True)
        halflap.torch.disable()
        result[kind] = {"eager": eager, "plain": plain, "ordered": ordered}
    # Ranks have agreed on orders, which bind as long as their process group is up.
    result["settings_bound"] = settings()
    _agree.decisions.world = None
    halflap.torch.disable()
    result["settings_after"] = settings()
    return result


def settings():
    from torch._inductor import config

    partitions = config.triton.reorder_for_reducing_graph_partitions
    own = config.aten_distributed_optimizations
    overlap = [
        getattr(own, name, None) for name in ("enable_simple_overlap", "insert_overlap_deps")
    ]
    passes = config.reorder_for_compute_comm_overlap_passes
    return [config.reorder_for_compute_comm_overlap, list(map(str, passes)), overlap, partitions]


def again():
    """The same in another process; then with another option; then captured, in a block."""
    result = {}
    halflap.torch.enable()
    result["same"] = trained("fsdp", compiled=True)
    halflap.torch.enable(memory_budget="1.5x")
    result["changed"] = trained("fsdp", compiled=True)
    halflap.torch.disable()
    with halflap.torch.capture(FOLDER / "captured"):
        result["captured"] = trained("tensor_parallel", compiled=True)
    return result


def differ():
    """Ranks that are compared: with the same options, and one with others. Then a pass that
    fails."""
    halflap.torch.enable(check_ranks=True)
    result = {"agreed": trained("tensor_parallel", compiled=True, steps=1)}
    halflap.torch.enable(check_ranks=True, memory_budget="1.5x" if RANK == 1 else "1x")
    result["error"] = refused()
    halflap.torch.enable()
    result["failing"] = failing()
    with halflap.torch.enable(memory_budget="1.7x"):
        result["mended"] = trained("tensor_parallel", compiled=True)
    with halflap.torch.enable(collective_order="free"), broken(MemoryError("broken everywhere")):
        result["free"] = refused()
    with (
        halflap.torch.enable(check_ranks=True),
        broken(MemoryError("broken here")) if RANK == 1 else nullcontext(),
    ):
        result["alone"] = refused()
    return result


def refused():
    """What is said where a step is not compiled."""
    try:
        trained("tensor_parallel", compiled=True, steps=1)
    except InductorError as problem:
        assert isinstance(problem.inner_exception, halflap.torch.RanksDiffer), problem
        return str(problem)
    return None


@contextmanager
def broken(problem):
    """A pass that fails."""
    from halflap.torch._pass import OverlapPass

    def raises(*_, **__):
        raise problem

    before, OverlapPass.schedule = OverlapPass.schedule, raises
    try:
        yield
    finally:
        OverlapPass.schedule = before


def failing():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with (
            halflap.torch.enable(memory_budget="1.7x"),
            broken(halflap.InternalError("broken on purpose")),
        ):
            result = trained("tensor_parallel", compiled=True)
    result["warnings"] = [str(one.message) for one in told if "halflap" in str(one.message)]
    return result


def died():
    """The last rank ends before it compiles anything; the others are not to wait for ever."""
    if RANK == dist.get_world_size() - 1:
        os._exit(0)
    halflap.torch.enable(check_ranks=5.0)
    try:
        trained("tensor_parallel", compiled=True, steps=1)
    except Exception as problem:
        return {"error": str(problem)}
    return {"error": None}


def stages():
    """Two stages of a pipeline, of two ranks each, whose graphs differ; all ranks are compared."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = groups[RANK // 2]

    def first(x):
        return collectives.all_reduce(x @ x, "sum", own)

    def second(x):
        gathered = collectives.all_gather_tensor(x + 1, 0, own)
        return collectives.all_reduce(gathered @ x, "sum", own)

    stage = first if RANK < 2 else second
    halflap.torch.enable(check_ranks=True)
    x = torch.full((4, 4), 1.0 + RANK)
    compiled = torch.compile(stage, fullgraph=True)(x)
    return {
        "same": torch.equal(compiled, stage(x)),
        "ran": [[one.collectives, one.failure] for one in halflap.torch.history()],
    }


def align():
    """Profiles that differ between ranks."""
    path = FOLDER / f"aligned{RANK}.json"
    aligned = halflap.torch.align_profiles({"both": RANK + 1.0, f"only{RANK}": 1.0}, out=path)
    return {"aligned": aligned, "written": json.loads(path.read_text())}


def task_named(task):
    """A function of this file, or, as `area.function`, one of tasks_AREA.py."""
    area, _, name = task.rpartition(".")
    return getattr(
        importlib.import_module(f"tasks_{area}") if area else sys.modules[__name__], name
    )


def main(task):
    # A rank that crashes says where every thread was.
    faulthandler.enable()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    result = task_named(task)()
    (FOLDER / f"{task}{RANK}.json").write_text(json.dumps(result))
    if RANK == 0:
        outlive_others(task)
    # Without a goodbye: a peer that has died would be waited for.
    sys.stdout.flush()
    os._exit(0)


def outlive_others(task, seconds=60):
    """Rank 0 has the store, in which the others may still be looking."""
    ended = [FOLDER / f"{task}{rank}.ended" for rank in range(1, dist.get_world_size())]
    until = time.monotonic() + seconds
    while time.monotonic() < until and not all(path.exists() for path in ended):
        time.sleep(0.02)
