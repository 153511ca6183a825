"""Different graphs with the same collectives, on a rank that has nobody to agree with: each has the
best order of its own, within its memory limit."""

import random
import warnings

import torch
import torch.distributed as dist
from torch._inductor import config
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore

import halflap.torch

SIDE, WIDE = 64, 2048


def program(seed):
    """Four all-reduces of different sizes, between products."""
    dice = random.Random(seed)
    parts = [
        (dice.randrange(4), dice.choice((64, 64, 512, WIDE)), dice.randrange(1, 4))
        for _ in range(4)
    ]

    def computed(x, square, wide, narrow):
        found = []
        for before, width, after in parts:
            y = x
            for _ in range(before):
                y = y @ square
            y = collectives.all_reduce(y @ wide[:, :width], "sum", dist.group.WORLD)
            y = collectives.wait_tensor(y) @ narrow[:width]
            for _ in range(after):
                y = y @ square
            found.append(y)
        return found

    return computed


def schedules(order):
    """What became of each program, one after the other in one process."""
    given = [torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)]
    given += [torch.randn(SIDE, WIDE), torch.randn(WIDE, SIDE)]
    found = []
    for seed in range(5):
        with halflap.torch.enable(collective_order=order), torch.no_grad():
            torch.compile(program(seed), fullgraph=True)(*given)
        torch._dynamo.reset()
        found.append(halflap.torch.history()[-1])
    return found


warnings.simplefilter("ignore")
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
config.fx_graph_cache = False
torch._functorch.config.enable_autograd_cache = False
kept, auto = schedules("kept"), schedules("auto")
assert any(ran.collective_order == "either" for ran in auto[1:]), auto
for one, other in zip(kept, auto):
    kept_order, found = one.schedule, other.schedule
    assert found.peak_memory <= kept_order.peak_memory_before, (one, other)
    assert found.step_time_before == kept_order.step_time_before, (one, other)
    assert found.peak_memory_before == kept_order.peak_memory_before, (one, other)
    assert found.step_time <= kept_order.step_time, (one, other)
print(halflap.torch.status())
