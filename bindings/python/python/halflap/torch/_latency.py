"""What the smallest collectives of a step's kinds take: what merging saves, and cutting costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist

from ._times import collective_signature

ROUNDS = 15
#: Elements of each rank.
ELEMENTS = 1


class Spoken(NamedTuple):
    """A kind of collective among some ranks."""

    kind: str
    ranks: tuple[int, ...]


def latencies(groups: Mapping[Spoken, str]) -> dict[str, float]:
    """Nanoseconds by the names that profiles have for them, in this rank's process groups, which
    are given by name and sorted: ranks go through what they share in the same sequence, so that
    none waits for one that waits for another."""
    found = {}
    for spoken, name in groups.items():
        call = _call(spoken, dist.distributed_c10d._resolve_process_group(name))
        if call is not None:
            size = ELEMENTS * len(spoken.ranks) * torch.float32.itemsize
            name = collective_signature(spoken.kind, len(spoken.ranks), size)
            found[name] = 1e9 * statistics.median(_seconds(call) for _ in range(ROUNDS))
    return found


def _seconds(call: Callable[[], object]) -> float:
    """Ranks come out of a collective together, and so into the next one."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _call(spoken: Spoken, group: dist.ProcessGroup) -> Callable[[], object] | None:
    """The smallest one; None for kinds that are not measured."""
    ranks = len(spoken.ranks)
    part, whole = torch.zeros(ELEMENTS), torch.zeros(ranks * ELEMENTS)
    calls: dict[str, Callable[[], object]] = {
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(whole.clone(), whole, group=group),
    }
    return calls.get(spoken.kind)
