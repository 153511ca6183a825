"""Captures one program with run times from a trace, from a function and from the model, and with
torch's FX-level scheduling before halflap's, on one rank of a group that does nothing."""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch._inductor import config
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore

import halflap.torch


def step(a):
    seen = torch.nn.functional.scaled_dot_product_attention(*a.view(3, 1, 4, 8, 32))
    return collectives.all_gather_tensor(a[0] @ a[1], 0, dist.group.WORLD), a[2] @ a[2].t(), seen


def estimate(snode):
    """Half a millisecond of a product, and of all else what halflap would take."""
    return 0.5 if "mm" in str(getattr(snode.node, "python_kernel_name", "")) else None


def captured(name, **options):
    torch._dynamo.reset()
    halflap.torch.enable(**options)
    with halflap.torch.capture(folder / name):
        torch.compile(step, fullgraph=True)(torch.ones(3, 32, 32))


folder, trace = pathlib.Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
halflap.torch.profile_from_trace(trace, out=folder / "profile.json")
captured("profile", profile=folder / "profile.json")
captured("estimate", estimate=estimate)
captured("model")
scheduling = "aten_distributed_optimizations"
# Before, torch's scheduling needs a GPU.
if hasattr(config.aten_distributed_optimizations, "compute_estimator"):
    with config.patch(
        {
            f"{scheduling}.enable_overlap_scheduling": True,
            f"{scheduling}.insert_overlap_deps": True,
            # It would measure otherwise.
            f"{scheduling}.custom_runtime_estimation": lambda node, size=None: 1.0,
        }
    ):
        captured("fx")
