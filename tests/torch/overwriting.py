"""Captures a program whose all-reduce overwrites what others read, on one rank of a group that does nothing."""

import sys

import torch
import torch.distributed as dist
from torch._inductor import config
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore

import halflap.torch


def step(a):
    b = a @ a
    c = torch.relu(b)
    gathered = collectives.all_gather_tensor(b, 0, dist.group.WORLD)
    d = c @ c
    summed = collectives.all_reduce(b, "sum", dist.group.WORLD)
    return d @ summed, gathered


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
# So that the all-reduce is done in place, after its readers.
with config.patch(reorder_for_locality=False), halflap.torch.capture(sys.argv[1]):
    torch.compile(step, fullgraph=True)(torch.ones(4, 4))
