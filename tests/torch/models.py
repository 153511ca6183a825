"""Small transformers over functional collectives: sharded parameters, and sharded layers."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd, reduce_scatter_tensor_autograd

WIDTH, LAYERS, TOKENS, HEADS = 64, 3, 32, 4


def gather(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return all_gather_tensor_autograd(tensor, dim, dist.group.WORLD)


def scatter(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return reduce_scatter_tensor_autograd(tensor, "sum", dim, dist.group.WORLD)


class Sharded(nn.Module):
    """A linear layer of which every rank holds a part of the rows, gathered when it is used."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        whole = torch.randn(out, into) / into**0.5
        self.shard = nn.Parameter(whole.chunk(dist.get_world_size())[dist.get_rank()].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ gather(self.shard, 0).t()


class FullyShardedBlock(nn.Module):
    """A transformer's block with sharded parameters; every rank has tokens of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = Sharded(WIDTH, 3 * WIDTH), Sharded(WIDTH, WIDTH)
        self.up, self.down = Sharded(WIDTH, 4 * WIDTH), Sharded(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.attention(F.layer_norm(x, (WIDTH,))).unflatten(-1, (3, HEADS, -1)).permute(1, 2, 0, 3)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.out((scores @ v).transpose(0, 1).flatten(1))
        return x + self.down(F.gelu(self.up(F.layer_norm(x, (WIDTH,)))))


class TensorParallelBlock(nn.Module):
    """A block of which every rank computes a part of the width; tokens are sharded in between."""

    def __init__(self) -> None:
        super().__init__()
        n, rank = dist.get_world_size(), dist.get_rank()
        up, down = torch.randn(4 * WIDTH, WIDTH) / WIDTH**0.5, torch.randn(WIDTH, 4 * WIDTH) / WIDTH
        self.up = nn.Parameter(up.chunk(n)[rank].clone())
        self.down = nn.Parameter(down.chunk(n, 1)[rank].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = gather(F.layer_norm(x, (WIDTH,)), 0)
        return x + scatter(F.gelu(tokens @ self.up.t()) @ self.down.t(), 0)


BLOCKS = {"fsdp": FullyShardedBlock, "tensor_parallel": TensorParallelBlock}


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(BLOCKS[kind]() for _ in range(LAYERS)))


def train(model: nn.Module, steps: int, *, compiled: bool) -> list[float]:
    """The losses of so many steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = torch.compile(model, fullgraph=True) if compiled else model
    losses = []
    for step in range(steps):
        torch.manual_seed(100 * step + dist.get_rank())
        loss = run(torch.randn(TOKENS, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
