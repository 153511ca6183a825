"""Ranks that agree on an order of collectives, or do not."""

from __future__ import annotations

import os
import pathlib
import time
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from tasks_random import slow_link
from torch._inductor.utils import is_collective, is_wait
from torch._dynamo.utils import counters
from torch.distributed import _functional_collectives as collectives

import halflap.torch
from halflap.torch import _agree, _both
from halflap.torch._agree import Skeleton, may_run_free, withdraw
from halflap.torch._pass import OverlapPass
from halflap.torch._ranks import RanksDiffer

RANK = int(os.environ["RANK"])
FOLDER = pathlib.Path(os.environ["FOLDER"])
FREE, OTHER, KEPT = (1, 0, 2), (2, 0, 1), (0, 1, 2)


def cells():
    """Decisions of four ranks on skeletons without graphs, each under its own name."""
    world = dist.group.WORLD.group_name
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mesh = (rows[RANK // 2].group_name, columns[RANK % 2].group_name)
    found = {}

    def decide(name, groups, order, patience=600.0):
        _agree.decisions.patience = patience
        shared = "shared" if name == "apart" else ""
        found[name] = may_run_free(Skeleton(name, groups, order, "", shared))

    decide("all the same", (world,), FREE)
    decide("another order", (world,), OTHER if RANK == 2 else FREE)
    decide("a mesh", mesh, FREE)
    # A rank has one cell for a skeleton, and it names the groups that it was offered for.
    decide("over rows, then columns", mesh[:1], FREE)
    found["over rows"] = found["over rows, then columns"]
    decide("over rows, then columns", mesh[1:], FREE)
    twins = tuple(dist.new_group([0, 1, 2, 3]).group_name for _ in range(2))
    decide("over one of two groups with the same ranks", twins[:1], FREE)
    found["over the first of two"] = found["over one of two groups with the same ranks"]
    decide("over one of two groups with the same ranks", twins[1:], KEPT if RANK == 1 else FREE)
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
    # A program apart from others runs if all come to it, and not at all if one does not.
    decide("apart", (world,), FREE)
    _agree.decisions.apart_patience = 0.5
    found["alone"] = RANK != 3 and is_refused(Skeleton("alone", (world,), FREE, "", "shared"))
    living = dist.new_group([0, 1, 2])
    dist.barrier()
    if RANK == 3:
        os._exit(0)
    decide("a dead rank", (world,), FREE, patience=0.5)
    # The store goes with rank 0.
    dist.barrier(living)
    return found


def is_refused(skeleton):
    try:
        may_run_free(skeleton)
    except RanksDiffer:
        return True
    return False


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


def forget(number):
    """As in another process group: what was decided before is forgotten, by the store, too."""
    torch._dynamo.reset()
    _agree.decisions.world = None
    _agree.decisions.prefix = f"halflap/agree {number}"


def enabled(number, **options):
    """With other options than any before, so that nothing comes from a compile cache."""
    forget(number)
    return halflap.torch.enable(
        **{"estimate": slow_link, "memory_budget": 2.0 + number / 100, **options}
    )


def mixes():
    """Whole programs on two ranks that do not do the same."""
    found = {}
    with enabled(0):
        found["the same"] = step()
        # Another length on one rank alone, while the other runs what was decided.
        found["another length later"] = step(32 if RANK == 0 else 48)
        found["both again"] = step(48 if RANK == 0 else 32)
    with enabled(1):
        found["other lengths"] = step(32 if RANK == 0 else 48)
    with enabled(2, memory_budget=2.0 if RANK == 0 else 2.5):
        found["other options"] = step()
    with enabled(3, estimate=slow_link if RANK == 0 else fails):
        found["an estimate fails"] = step()
    with enabled(4), on_rank_1(OverlapPass, "schedule", raises):
        found["a pass fails"] = step()
    with enabled(5), on_rank_1(_both._Generation, "_second", raises):
        found["a second program fails"] = step()
    forget(6)
    with enabled(6, agree_within=2.0) if RANK == 0 else nullcontext():
        found["not enabled"] = step()
    with enabled(7), on_rank_1(_agree.Cells, "write_own", raises):
        _agree.decisions.patience = 2.0
        found["no store"] = step()
    return found


def fails(_):
    raise KeyError("broken here")


def reversed_link(snode):
    """What makes the free order of `slow_link` slower than the program's."""
    if is_wait(snode.node):
        return 0.0
    return 3.0 if is_collective(snode.node) and snode.get_name() == "op1" else 0.1


def afterwards():
    """Ranks have agreed on a free order; then one of them compiles another length in its own way,
    while the other runs what it has."""
    ways = {
        "slower": {"estimate": reversed_link},
        "other options": {"effort": "default"},
        "fails": {"estimate": fails},
        "kept": {"collective_order": "kept"},
        "free": {"collective_order": "free"},
        "tiny": {"memory_budget": "0.1x"},
        "off": None,
    }
    found = {}
    for number, (name, options) in enumerate(ways.items()):
        with enabled(number, agree_within=20.0):
            step()
        if RANK == 1 and options is not None:
            halflap.torch.enable(**{"estimate": slow_link, "memory_budget": 2.0, **options})
        found[name] = step(32 if RANK == 0 else 48)
        found[name]["outcome"] = halflap.torch.status().graphs[-1].outcome.name
        halflap.torch.disable()
    # Which has other dependencies, and cannot have the order of what came before.
    with enabled(len(ways)):
        step()
        inputs = [torch.randn(32, 32) * 0.1 for _ in range(3)]
        value = torch.compile(in_turn, fullgraph=True)(*inputs)
        found["apart"] = {
            "right": torch.allclose(value, in_turn(*inputs), rtol=1e-4, atol=1e-5),
            "free": [order is not None for order in _agree.decisions.current().orders.values()],
        }
    return found


def in_turn(x, y, z):
    """The collectives of `late`, one needing the other."""
    first = collectives.all_reduce(x.t() @ x, "sum", dist.group.WORLD)
    second = collectives.all_reduce(y + torch.tanh(first @ z), "sum", dist.group.WORLD)
    return torch.tanh(second @ z)


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
    with enabled(0):
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
    with enabled(0, agree_within=2.0):
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
    with enabled(0):
        return step()
