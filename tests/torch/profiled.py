"""Captures one program with run times from a trace and a function, on one rank of a group that does nothing."""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore

import halflap.torch


def step(a):
    return collectives.all_gather_tensor(a @ a, 0, dist.group.WORLD), a @ a.t()


folder, trace = pathlib.Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
profile = halflap.torch.profile_from_trace(trace, out=folder / "profile.json")
for name, options in (("profile", {"profile": folder / "profile.json"}), ("model", {})):
    torch._dynamo.reset()
    halflap.torch.enable(**options)
    with halflap.torch.capture(folder / name):
        torch.compile(step, fullgraph=True)(torch.ones(8, 8))
