"""Ranks that agree on an order of collectives, or do not."""

from __future__ import annotations

import os
import pathlib
import time
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from tasks_random import slow_link
from torch._dynamo.utils import counters
from torch.distributed import _functional_collectives as collectives

import halflap.torch
from halflap.torch import _agree, _both
from halflap.torch._agree import Skeleton, may_run_free, withdraw
from halflap.torch._pass import OverlapPass

RANK = int(os.environ["RANK"])
FOLDER = pathlib.Path(os.environ["FOLDER"])
FREE, OTHER = (1, 0, 2), (2, 0, 1)


def cells():
    """Decisions of four ranks on skeletons without graphs, each under its own name."""
    world = dist.group.WORLD.group_name
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mesh = (rows[RANK // 2].group_name, columns[RANK % 2].group_name)
    found = {}

    def decide(name, groups, order, patience=600.0):
        _agree.decisions.patience = patience
        found[name] = may_run_free(Skeleton(name, groups, order))

    decide("all the same", (world,), FREE)
    decide("another order", (world,), OTHER if RANK == 2 else FREE)
    decide("a mesh", mesh, FREE)
    # A rank has one cell for a skeleton, and it names the groups that it was offered for.
    decide("over rows, then columns", mesh[:1], FREE)
    found["over rows"] = found["over rows, then columns"]
    decide("over rows, then columns", mesh[1:], FREE)
    decide("groups numbered otherwise", mesh[::-1] if RANK == 3 else mesh, FREE)
    if RANK == 1:
        withdraw(Skeleton("a rank failed", (world,), ()))
    decide("a rank failed", (world,), FREE)
    # Nobody would come: they wait for each other in different graphs.
    decide(f"graph of stage {RANK // 2}", (world,), FREE)
    # Rank 0 shares no group with rank 3, which comes late; whoever waits for it decides for all.
    if RANK == 3:
        wait_until_others_decided("a late rank in a mesh")
    decide("a late rank in a mesh", mesh, FREE, patience=0.5)
    # What was decided stays, for whatever has the same skeleton.
    found["the same again"] = may_run_free(Skeleton("all the same", (world,), FREE))
    found["the same, another order"] = may_run_free(Skeleton("all the same", (world,), OTHER))
    living = dist.new_group([0, 1, 2])
    dist.barrier()
    if RANK == 3:
        os._exit(0)
    decide("a dead rank", (world,), FREE, patience=0.5)
    # The store goes with rank 0.
    dist.barrier(living)
    return found


def wait_until_others_decided(name):
    """Bounded: a rank whose cell was filled by others knows that they have."""
    store = dist.PrefixStore("halflap/agree", dist.distributed_c10d._get_default_store())
    for _ in range(1200):
        if store.check([f"{name}/{RANK}"]):
            return
        time.sleep(0.05)


def late(x, y, z, group=None):
    """The first result is needed last: a free order issues the second one first."""
    group = group or dist.group.WORLD
    first = collectives.all_reduce(x.t() @ x, "sum", group)
    second = collectives.all_reduce(y, "sum", group)
    value = second
    for _ in range(6):
        value = torch.tanh(value @ z)
    return value + first


def step(length=32):
    """Whether a fresh compilation computes the right result, and how it was ordered."""
    torch.manual_seed(RANK)
    inputs = [torch.randn(length, 32), torch.randn(32, 32), torch.randn(32, 32) * 0.1]
    began = len(halflap.torch.history())
    counters.clear()
    compiled = torch.compile(late, fullgraph=True, dynamic=False)
    value = compiled(*inputs)
    return {
        "right": torch.allclose(value, late(*inputs), rtol=1e-4, atol=1e-5),
        "orders": [one.collective_order for one in halflap.torch.history()[began:]],
        "failures": [one.failure for one in halflap.torch.history()[began:]],
        "hits": counters["inductor"]["fxgraph_cache_hit"],
        "free": [order is not None for order in _agree.decisions.current().orders.values()],
    }


@contextmanager
def on_rank_1(owner, name, function):
    """Puts something else in the place of a method, on one rank."""
    before = getattr(owner, name)
    if RANK == 1:
        setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)


def raises(*_):
    raise MemoryError("broken here")


def enabled(budget, **options):
    """Each budget is a skeleton of its own; what was decided before is forgotten."""
    torch._dynamo.reset()
    _agree.decisions.world = None
    return halflap.torch.enable(estimate=slow_link, memory_budget=budget, **options)


def mixes():
    """Whole programs on two ranks that do not do the same."""
    found = {}
    with enabled(2.0):
        found["the same"] = step()
        # Another length on one rank alone, while the other runs what was decided.
        found["another length later"] = step(32 if RANK == 0 else 48)
        found["both again"] = step(48 if RANK == 0 else 32)
    with enabled(2.1):
        found["other lengths"] = step(32 if RANK == 0 else 48)
    with enabled(2.2 if RANK == 0 else 2.3):
        found["other options"] = step()
    with enabled(2.4), on_rank_1(OverlapPass, "schedule", raises):
        found["a pass fails"] = step()
    with enabled(2.5), on_rank_1(_both._Generation, "_second", raises):
        found["a second program fails"] = step()
    with enabled(2.6, agree_within=2.0) if RANK == 0 else nullcontext():
        torch._dynamo.reset()
        found["not enabled"] = step()
    with enabled(2.7), on_rank_1(_agree.Cells, "write_own", raises):
        _agree.decisions.patience = 2.0
        found["no store"] = step()
    return found


def numbered(numbers):
    """As `late`, with a constant of the graph."""

    def computed(x, y, z):
        return late(x, y, z) + torch.tensor(numbers).view(4, 8).repeat(8, 4)

    return computed


def constants():
    """Two graphs with the same text and other constants, whose kept programs run."""
    agrees, _agree._all_agree = _agree._all_agree, lambda skeleton: False
    inputs = [torch.ones(32, 32), torch.eye(32), torch.eye(32) * 0.1]
    right = []
    with enabled(2.0):
        for factor in (0.5, 0.25):
            # What was decided of the first would keep the second without another program.
            _agree.decisions.world = None
            function = numbered([factor * place for place in range(32)])
            value = torch.compile(function, fullgraph=True)(*inputs)
            right.append(torch.allclose(value, function(*inputs), rtol=1e-4, atol=1e-5))
            torch._dynamo.reset()
        orders = [one.collective_order for one in halflap.torch.history()]
        text = str(halflap.torch.status())
    _agree._all_agree = agrees
    return {"right": right, "orders": orders, "status": text}


def anew():
    """Another process group, in which one rank compiles again, without halflap."""
    # By its name, which the next group has, too: a group itself would be guarded.
    inputs = [*[torch.randn(32, 32) * 0.1 for _ in range(3)], dist.group.WORLD.group_name]
    found = {}
    with enabled(2.0, agree_within=2.0):
        compiled = torch.compile(late, fullgraph=True, dynamic=False)
        compiled(*inputs)
        found["free before"] = [one is not None for one in _agree.decisions.orders.values()]
        dist.destroy_process_group()
        store = dist.FileStore(str(FOLDER / "store"), 2)
        dist.init_process_group("gloo", store=store, rank=RANK, world_size=2)
        if RANK == 1:
            torch._dynamo.reset()
            halflap.torch.disable()
        value = compiled(*inputs)
        found["right"] = torch.allclose(value, late(*inputs), rtol=1e-4, atol=1e-5)
    return found


def cached():
    """One step, with the caches that earlier processes have left."""
    with enabled(2.0):
        return step()
