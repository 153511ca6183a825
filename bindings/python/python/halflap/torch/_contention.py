"""How much compute and communication slow each other on this machine."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

#: Products of matrices of this size are short beside a transfer.
SIDE = 192
ROUNDS = 9
#: Two that share a core take twice as long, and wait for their turns; what is beyond is other load.
MOST = 4.0


@dataclass(frozen=True)
class Contention:
    """How many times as long each takes beside the other."""

    compute: float = 1.0
    communication: float = 1.0


def contention(size: int, device: torch.device) -> Contention:
    """Measured with all-reduces of so many bytes, while this rank multiplies matrices. All ranks
    call it, and get the same."""
    matrix = torch.rand(SIDE, SIDE, device=device)
    data = torch.zeros(max(1, size // 4), device=device)
    rounds = [(_reduce(data), _reduce_beside(data, matrix)) for _ in range(ROUNDS)]
    alone = statistics.median(seconds for seconds, _ in rounds)
    beside = statistics.median(seconds for _, (seconds, _) in rounds)
    product = statistics.median(taken for _, (_, taken) in rounds)
    own = torch.tensor([product / _product(matrix), beside / alone], dtype=torch.float64)
    every = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    compute, communication = torch.stack(every).mean(0).tolist()
    return Contention(*(min(MOST, max(1.0, factor)) for factor in (compute, communication)))


def _product(matrix: torch.Tensor) -> float:
    """Seconds of a product alone."""
    began = time.perf_counter()
    for _ in range(10 * ROUNDS):
        matrix @ matrix
    return (time.perf_counter() - began) / (10 * ROUNDS)


def _reduce(data: torch.Tensor) -> float:
    """Seconds of an all-reduce alone."""
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(data)
    return time.perf_counter() - began


def _reduce_beside(data: torch.Tensor, matrix: torch.Tensor) -> tuple[float, float]:
    """Seconds of an all-reduce and of a product, both at the same time."""
    dist.barrier()
    began = time.perf_counter()
    work = dist.all_reduce(data, async_op=True)
    products = 0
    while not work.is_completed():
        matrix @ matrix
        products += 1
    seconds = time.perf_counter() - began
    work.wait()
    return seconds, seconds / max(1, products)
