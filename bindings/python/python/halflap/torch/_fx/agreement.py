"""Whether all ranks that communicate in an FX graph are about to do the same to it.

By the cells of `_agree`, when the pass runs: every rank writes what it would do, once, and reads
what the others wrote. If all cells are equal, all ranks do it; otherwise none does. So it needs a
pass that runs on every rank, with no compile cache before it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter

import torch.distributed as dist
from torch.fx import Graph

from .._agree import Skeleton, ask_all, is_alone, withdraw
from .check import is_collective

#: How many graphs with the same collectives this process came to, by the process group that is up.
_met: Counter[tuple[int, str]] = Counter()


def place_of(graph: Graph) -> Skeleton:
    """What ranks know a graph by: its collectives, and how many with the same came before."""
    issued, groups = [], []
    for node in graph.nodes:
        if is_collective(node):
            words = [one for one in node.args if isinstance(one, (str, int))]
            issued.append([node.target.name(), *words])
            groups += [word for word in words if isinstance(word, str)][-1:]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    known = [[numbers.get(word, word) for word in one] for one in issued]
    content = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:20]
    world = id(dist.group.WORLD) if dist.is_initialized() else 0
    number = _met[world, content]
    _met[world, content] += 1
    return Skeleton(f"fx {content} {number}", tuple(numbers), ())


def all_would(place: Skeleton, decision: str) -> bool:
    """Whether every rank would do this. Waits for the others, for `decisions.patience` at most."""
    if is_alone():
        return True
    digest = int.from_bytes(hashlib.sha256(decision.encode()).digest()[:7], "big") + 1
    return ask_all(place._replace(order=(digest,)))


def would_not(place: Skeleton) -> None:
    """Says that this rank leaves the graph as it is."""
    withdraw(place)
