"""A sharded model with many small parameters, for the testbed: `--models
bench/small_parameters.py`.

Every weight, bias and scale of 12 layers is a parameter of its own, gathered where it is used, so
that most of the time of its collectives is latency.
"""

import models
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

LAYERS, WIDTH, TOKENS = 12, 128, 256


class Shard(nn.Module):
    """A part of a parameter; the whole is gathered, and again in the backward pass."""

    def __init__(self, whole):
        super().__init__()
        self.part = models.own_part(whole)

    def forward(self):
        return checkpoint(models.gather, self.part, use_reentrant=False)


class Layer(nn.Module):
    """Two products with biases, and a scaled norm before them."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = Shard(torch.ones(WIDTH)), Shard(torch.zeros(WIDTH))
        self.up, self.up_bias = (
            Shard(models.weight(2 * WIDTH, WIDTH)),
            Shard(torch.zeros(2 * WIDTH)),
        )
        self.down, self.down_bias = (
            Shard(models.weight(WIDTH, 2 * WIDTH)),
            Shard(torch.zeros(WIDTH)),
        )

    def forward(self, x):
        y = models.norm(x) * self.scale() + self.shift()
        y = F.gelu(F.linear(y, self.up(), self.up_bias()))
        return x + F.linear(y, self.down(), self.down_bias())


def build():
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def batch(step):
    return models.batch(step, models.Size(LAYERS, WIDTH, 4, TOKENS))
