"""A custom operator that leaves the last of its numbers as it found it, in a compiled model."""

import torch


@torch.library.custom_op("mine::most", mutates_args=())
def most(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    out.view(-1)[:-1] = x.view(-1)[:-1]
    return out


@most.register_fake
def _(x):
    return torch.empty_like(x)


@torch.compile
def model(x):
    y = torch.sin(x) + 1
    z = torch.ops.mine.most(y)
    return torch.cos(z) @ z.T


print("done", model(torch.ones(31, 33)).shape)
