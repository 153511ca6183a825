"""A second process group for all-gathers, so that they overlap with what else the first one does:
collectives of one group run one after the other.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.fx import Graph, Node
from torch.utils._python_dispatch import _disable_current_modes

from .._groups import has_second, second_groups
from .check import is_collective
from .regions import GATHER


class _Group(NamedTuple):
    """A process group as all of its ranks know it; of several with the same ranks, which one."""

    ranks: tuple[int, ...]
    number: int
    backend: str


def make_second_groups() -> None:
    """Makes second groups for all groups that have none. All ranks call it; either all of them have
    them then, or none does, and each says why."""
    if not dist.is_initialized():
        raise ValueError(
            "rewrite 'groups' needs process groups: call torch.distributed.init_process_group first"
        )
    # A backend calls this while its compiler traces: what ranks send here are real tensors.
    with _disable_current_modes():
        _make_second_groups()


def _make_second_groups() -> None:
    known = second_groups()
    own = {name: group for name, group in _own_groups().items() if name not in known}
    own = {name: group for name, group in own.items() if name not in known.values()}
    wanted = _of_all(sorted(own.values()))
    # All ranks make all groups, in the same sequence, as torch wants it.
    ordered = sorted({_Group(*one) for groups in wanted for one in groups})
    made: dict[_Group, str] = {}
    failure = None
    try:
        for one in ordered:
            group = dist.new_group([*one.ranks], backend=one.backend)
            if dist.get_rank() in one.ranks:
                made[one] = group.group_name
    except Exception as problem:
        failure = f"rank {dist.get_rank()}: {type(problem).__name__}: {problem}"
    failures = [one for one in _of_all(failure) if one is not None]
    if failures:
        warnings.warn(
            f"halflap has no second process groups: {failures[0]}", RuntimeWarning, stacklevel=4
        )
        return
    has_second({name: made[group] for name, group in own.items()})


def _of_all(value: Any) -> list[Any]:
    """What each rank has."""
    if dist.get_backend() == "fake":
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def _own_groups() -> dict[str, _Group]:
    """The groups of this rank, by name. A group that numbers its ranks in another sequence than
    theirs in the world is left out: a second one would not."""
    met: Counter[tuple[int, ...]] = Counter()
    found = {}
    for group, name in distributed_c10d._world.pg_names.items():
        ranks = tuple(distributed_c10d.get_process_group_ranks(group))
        if len(ranks) < 2 or [*ranks] != sorted(ranks):
            continue
        backend = str(distributed_c10d._world.pg_map[group][0])
        found[str(name)] = _Group(ranks, met[ranks], backend)
        met[ranks] += 1
    return found


def can_regroup(graph: Graph) -> bool:
    """Whether an all-gather shares its group with something else."""
    return bool(_moving(graph))


def regroup_all(graph: Graph) -> list[str]:
    """Moves all-gathers to second groups; their names."""
    second, moving = second_groups(), _moving(graph)
    for node in moving:
        node.args = (*node.args[:-1], second[node.args[-1]])
    return [node.name for node in moving]


def _moving(graph: Graph) -> list[Node]:
    second = second_groups()
    issued = [node for node in graph.nodes if is_collective(node)] if second else []
    shared = {
        word
        for node in issued
        if node.target is not GATHER
        for word in node.args
        if isinstance(word, str)
    }
    gathers = [node for node in issued if node.target is GATHER and not node.kwargs]
    return [node for node in gathers if node.args[-1] in second and node.args[-1] in shared]
