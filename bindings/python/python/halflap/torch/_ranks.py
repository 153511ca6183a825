"""Whether the ranks of a process group decided alike, and how their groups lie."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import distributed_c10d

#: How long a rank waits for the others by default.
PATIENCE = 60.0

#: How many graphs this process has had compared, for each set of ranks.
_compared: Counter[tuple[int, ...]] = Counter()


class RanksDiffer(RuntimeError):
    """Ranks of a process group would issue collectives in different orders, and hang or mix up
    their values.

    Torch wraps what is raised while it compiles: it comes as a
    ``torch._inductor.exc.InductorError`` whose ``inner_exception`` is this."""


def topology(ranks_per_node: int) -> str:
    """How process groups lie, as far as run times and streams depend on it; the same on all ranks
    of a job whose groups lie over nodes alike."""
    if not dist.is_initialized():
        return "none"
    groups = {
        name: distributed_c10d.get_process_group_ranks(group)
        for group, name in distributed_c10d._world.pg_names.items()
    }
    names = sorted(groups)
    spread = {
        name: sorted(Counter(rank // ranks_per_node for rank in groups[name]).values())
        for name in names
    }
    shared = [
        (a, b) for a in names for b in names if a < b and len(set(groups[a]) & set(groups[b])) > 1
    ]
    return json.dumps([spread, shared])


class Decision(NamedTuple):
    """What a rank is about to do with a graph."""

    options: str
    order: list[str]
    #: Why it keeps torch's order, if it does.
    failure: str | None = None


def compare(graph: dict[str, Any], decision: Decision, patience: float) -> None:
    """Raises on every rank where those of a process group do not agree, or do not answer."""
    if dist.get_backend() == "fake":
        return
    for ranks, issued in _by_ranks(graph, decision.order).items():
        number = _compared[ranks]
        _compared[ranks] += 1
        digest = hashlib.sha256(json.dumps(issued).encode()).hexdigest()[:16]
        own = {"options": decision.options, "failure": decision.failure, "order": digest}
        _compare_one(ranks, number, own, patience)


def _by_ranks(graph: dict[str, Any], order: list[str]) -> dict[tuple[int, ...], list[Any]]:
    """What each set of ranks is to issue together. Groups are numbered as they appear: their names
    may differ between ranks. Sends and receives differ, too, and are each other's partners."""
    nodes = {node["name"]: node for node in graph["nodes"]}
    issued: dict[tuple[int, ...], list[Any]] = defaultdict(list)
    numbers: dict[tuple[int, ...], dict[str, int]] = defaultdict(dict)
    for name in order:
        collective = nodes[name].get("collective")
        if collective is None or collective["op"].startswith(("send", "recv")):
            continue
        ranks = tuple(sorted(graph["groups"][collective["group"]]["ranks"]))
        number = numbers[ranks].setdefault(collective["group"], len(numbers[ranks]))
        issued[ranks].append([number, collective["op"], collective["bytes"]])
    return issued


def _compare_one(ranks: tuple[int, ...], number: int, own: dict[str, Any], patience: float) -> None:
    store = dist.PrefixStore("halflap", distributed_c10d._get_default_store())
    place = f"{'-'.join(map(str, ranks))}/{number}"
    what = f"graph number {number} with collectives among ranks {', '.join(map(str, ranks))}"
    answers = {}
    try:
        store.set(f"{place}/{dist.get_rank()}", json.dumps(own))
        for rank in ranks:
            key = f"{place}/{rank}"
            store.wait([key], timedelta(seconds=patience))
            answers[rank] = json.loads(store.get(key))
    except Exception as problem:
        silent = next((rank for rank in ranks if rank not in answers), ranks[0])
        raise RanksDiffer(
            f"{what}: rank {silent} did not say within {patience:g} s what it would do; it may have ended, or not "
            f"compile this graph ({type(problem).__name__})"
        ) from problem
    meanings = {
        "options": "other options or another version of halflap",
        "failure": "another failure of halflap's, or none,",
        "order": "another order",
    }
    for field, meaning in meanings.items():
        others = [str(rank) for rank in ranks if answers[rank][field] != answers[ranks[0]][field]]
        if others:
            failed = next(
                (
                    f"; rank {rank}: {answers[rank]['failure']}"
                    for rank in ranks
                    if answers[rank]["failure"]
                ),
                "",
            )
            raise RanksDiffer(
                f"{what}: ranks {', '.join(others)} have {meaning} than rank {ranks[0]}; they would hang{failed}"
            )
