"""Collectives in nested regions, which are graphs of their own. Nothing communicates, and no kernel
is compiled."""

import warnings

import torch
import torch.distributed as dist
from torch._inductor.utils import contains_collective
from torch.distributed import _functional_collectives as functional
from torch.testing._internal.distributed.fake_pg import FakeStore

import halflap.torch


def estimate(snode):
    return 0.05 if contains_collective(snode) else 0.04


@torch.compiler.nested_compile_region
def region(x, late, early):
    late = functional.all_gather_tensor(late, 0, dist.group.WORLD)
    early = functional.all_gather_tensor(early, 0, dist.group.WORLD)
    return (x @ early) @ late


def program(x, parts):
    for late, early in parts:
        x = region(x, late, early)
    return x


def compiled():
    """What was done to each graph of the program."""
    torch._dynamo.reset()
    before = len(halflap.torch.history())
    parts = [(torch.ones(4, 8), torch.ones(4, 8)) for _ in range(3)]
    with torch.no_grad():
        torch.compile(program, fullgraph=True)(torch.ones(4, 8), parts)
    return halflap.torch.history()[before:]


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
warnings.simplefilter("error", RuntimeWarning)
halflap.torch.enable(collective_order="auto", estimate=estimate)
found = compiled()
assert any(ran.collectives == 2 for ran in found), found
assert all(ran.failure is None and ran.collective_order == "kept" for ran in found), found
# It is not that a free order would be the same.
halflap.torch.enable(collective_order="free", estimate=estimate)
assert [ran.schedule.order for ran in compiled()] != [ran.schedule.order for ran in found]
dist.destroy_process_group()
