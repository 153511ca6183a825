"""A model with tensor parallelism and experts, for the testbed: `--models bench/mixed_parallel.py`.

Activations are `[batch, sequence, width]`, as most models have them. Each rank has a part of every
sequence, some heads and one expert: sequences are gathered before attention and scattered after it,
and a rank's tokens go to the experts of all ranks in turn.
"""

import models
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

LAYERS, WIDTH, HEADS, BATCH, TOKENS = 2, 512, 8, 4, 96


class Layer(nn.Module):
    """Attention of some heads, then an expert."""

    def __init__(self):
        super().__init__()
        ranks, rank = dist.get_world_size(), dist.get_rank()
        qkv = models.weight(3 * WIDTH, WIDTH).view(3, WIDTH, WIDTH).chunk(ranks, 1)[rank]
        self.attention = nn.Parameter(qkv.flatten(0, 1).contiguous())
        self.out = models.own_part(models.weight(WIDTH, WIDTH), 1)
        self.up = nn.Parameter(models.weight(4 * WIDTH, WIDTH))
        self.down = nn.Parameter(models.weight(WIDTH, 4 * WIDTH))

    def forward(self, x):
        seen = self.attend(models._gather(models.norm(x), 1, dist.group.WORLD))
        x = x + models._scatter(F.linear(seen, self.out), "sum", 1, dist.group.WORLD)
        sent = models.exchange(models.norm(x).flatten(0, 1))
        expert = F.linear(F.gelu(F.linear(sent, self.up)), self.down)
        return x + models.exchange(expert).view_as(x)

    def attend(self, x):
        heads = F.linear(x, self.attention).unflatten(-1, (3, -1, WIDTH // HEADS))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def build():
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def batch(step):
    size = models.Size(LAYERS, WIDTH, HEADS, BATCH * TOKENS)
    return models.batch(step, size).view(BATCH, TOKENS, WIDTH)
