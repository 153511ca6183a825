"""Transformers that several ranks train together, over torch's functional collectives.

Each block takes and gives a rank's own tokens, `[tokens, width]`:

- `fsdp`: parameters are sharded over all ranks and gathered where they are used, once more in the
  backward pass; gradients are reduced and scattered.
- `tensor_parallel`: each rank has some heads and a part of the hidden width; tokens are gathered
  before and scattered after both halves.
- `expert_parallel`: attention as in `fsdp`, and one expert on each rank, to which tokens are sent
  and back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Size:
    """How large a model is; `tokens` are those of one rank."""

    layers: int
    width: int
    heads: int
    tokens: int

    @property
    def hidden(self) -> int:
        return 4 * self.width


#: Seconds to train on a laptop.
SMALL = Size(layers=2, width=64, heads=4, tokens=32)


# torch 2.15 has other names for these two.
_gather = (
    getattr(collectives, "all_gather_single_autograd", None)
    or collectives.all_gather_tensor_autograd
)
_scatter = (
    getattr(collectives, "reduce_scatter_single_autograd", None)
    or collectives.reduce_scatter_tensor_autograd
)


def gather(tensor: torch.Tensor) -> torch.Tensor:
    return _gather(tensor, 0, dist.group.WORLD)


def scatter(tensor: torch.Tensor) -> torch.Tensor:
    return _scatter(tensor, "sum", 0, dist.group.WORLD)


def exchange(tensor: torch.Tensor) -> torch.Tensor:
    """Part `k` goes to rank `k`."""
    return collectives.all_to_all_single_autograd(tensor, None, None, dist.group.WORLD)


def own_part(whole: torch.Tensor, dim: int = 0) -> nn.Parameter:
    """The part of a parameter that this rank holds."""
    return nn.Parameter(whole.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous())


def weight(out: int, into: int) -> torch.Tensor:
    return torch.randn(out, into) / into**0.5


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


def attend(x: torch.Tensor, head: int) -> torch.Tensor:
    """Attention among all tokens, of heads that lie side by side as queries, keys and values."""
    q, k, v = x.unflatten(-1, (3, -1, head)).permute(1, 2, 0, 3)
    seen = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    return seen.transpose(0, 1).flatten(1)


class Sharded(nn.Module):
    """A linear layer of which every rank holds some rows, gathered when it is used."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.rows = own_part(weight(out, into))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Not kept for the backward pass: it is gathered again.
        whole = checkpoint(gather, self.rows, use_reentrant=False)
        return x @ whole.t()


class FullyShardedBlock(nn.Module):
    """All parameters are sharded."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head = size.width // size.heads
        self.attention, self.out = (
            Sharded(size.width, 3 * size.width),
            Sharded(size.width, size.width),
        )
        self.up, self.down = Sharded(size.width, size.hidden), Sharded(size.hidden, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.out(attend(self.attention(norm(x)), self.head))
        return x + self.down(F.gelu(self.up(norm(x))))


class TensorParallelBlock(nn.Module):
    """Every rank has some heads, and a part of the hidden width."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.head = width // size.heads
        # Queries, keys and values of the same heads belong together.
        qkv = (
            weight(3 * width, width)
            .view(3, width, width)
            .chunk(dist.get_world_size(), 1)[dist.get_rank()]
        )
        self.attention = nn.Parameter(qkv.flatten(0, 1).contiguous())
        self.out = own_part(weight(width, width), 1)
        self.up, self.down = (
            own_part(weight(size.hidden, width)),
            own_part(weight(width, size.hidden), 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = attend(gather(norm(x)) @ self.attention.t(), self.head)
        x = x + scatter(seen @ self.out.t())
        return x + scatter(F.gelu(gather(norm(x)) @ self.up.t()) @ self.down.t())


class ExpertParallelBlock(nn.Module):
    """Attention with sharded parameters, then an expert on each rank; a rank's tokens go to all in
    turn."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head = size.width // size.heads
        self.attention, self.out = (
            Sharded(size.width, 3 * size.width),
            Sharded(size.width, size.width),
        )
        self.up = nn.Parameter(weight(size.hidden, size.width))
        self.down = nn.Parameter(weight(size.width, size.hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.out(attend(self.attention(norm(x)), self.head))
        expert = F.gelu(exchange(norm(x)) @ self.up.t()) @ self.down.t()
        return x + exchange(expert)


BLOCKS = {
    "fsdp": FullyShardedBlock,
    "tensor_parallel": TensorParallelBlock,
    "expert_parallel": ExpertParallelBlock,
}


def build(kind: str, size: Size = SMALL) -> nn.Module:
    """A model, with the same parameters on every run."""
    torch.manual_seed(0)
    return nn.Sequential(*(BLOCKS[kind](size) for _ in range(size.layers)))


def batch(step: int, size: Size = SMALL) -> torch.Tensor:
    """This rank's tokens in a step."""
    torch.manual_seed(100 * step + dist.get_rank())
    return torch.randn(size.tokens, size.width)


def train(
    model: nn.Module,
    steps: int,
    *,
    compiled: bool,
    size: Size = SMALL,
    seconds: list[float] | None = None,
) -> list[float]:
    """This rank's losses over `steps` steps. The duration of each is appended to `seconds`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = torch.compile(model, fullgraph=True) if compiled else model
    losses = []
    for step in range(steps):
        tokens = batch(step, size)
        started = time.perf_counter()
        loss = run(tokens).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if seconds is not None:
            seconds.append(time.perf_counter() - started)
    return losses
