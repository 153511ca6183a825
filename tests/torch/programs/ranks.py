"""Two ranks or more, for torchrun. With `nan` the second makes a NaN and sends it to the others;
with `apart` it takes part in a collective that no other rank issues."""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

dist.init_process_group("gloo")
is_odd_one = dist.get_rank() == 1


@torch.compile
def step(x):
    mine = torch.log(x)
    everybodys = collectives.all_reduce(mine, "sum", dist.group.WORLD)
    return torch.cos(everybodys).sum()


x = torch.ones(16, 16)
if is_odd_one and "nan" in sys.argv:
    x[3, 3] = -1
if is_odd_one and "apart" in sys.argv:
    dist.broadcast(x, 0)
print("done", step(x).item())
dist.destroy_process_group()
