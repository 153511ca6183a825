"""Edges that keep nodes of a ``halflap.graph/1`` in sequence, whatever they read.

Such an edge goes through a buffer of no size that its first node makes besides its own, so that the
one proof of an order covers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ._collectives import SYMMETRIC


class Bound(Protocol):
    """What decides whether a node may move among others."""

    #: It communicates, or may communicate, in ways that we do not know.
    keeps_place: bool
    #: It has observable effects.
    is_pinned: bool


class Bonds:
    """The edges of one graph."""

    def __init__(self, nodes: list[dict[str, Any]], buffers: list[dict[str, Any]]) -> None:
        self._nodes, self._buffers = nodes, buffers
        self._marks: dict[str, dict[str, Any]] = {}

    def after(self, index: int, before: int) -> None:
        """Makes a node launch after another in every order."""
        node, earlier = self._nodes[index], self._nodes[before]
        name = f"{earlier['name']}.issued"
        mark = self._marks.get(name)
        if mark is None:
            mark = {"name": name, "size_alloc": 0, "size_free": 0, "users": [], "output": False}
            self._marks[name] = mark
            earlier["outputs"].append(name)
            self._buffers.append(mark)
        if node["name"] not in mark["users"]:
            mark["users"].append(node["name"])
            node["deps"].append({"buffer": name, "kinds": ["issued"]})

    def bind(self, traits: Sequence[Bound]) -> None:
        """Binds what must not move: what others may notice, one after the other; and what may
        communicate in ways that we do not know, against every collective."""
        last_pinned: int | None = None
        last_barrier: int | None = None
        since: list[int] = []
        for index, one in enumerate(traits):
            collective = self._nodes[index].get("collective")
            # Most nodes are neither.
            if collective is None and not (one.keeps_place or one.is_pinned):
                continue
            if is_barrier(one, collective):
                for before in since or ([] if last_barrier is None else [last_barrier]):
                    self.after(index, before)
                last_barrier, since = index, []
            elif collective is not None:
                if last_barrier is not None:
                    self.after(index, last_barrier)
                since.append(index)
            if one.is_pinned:
                if last_pinned is not None:
                    self.after(index, last_pinned)
                last_pinned = index


def is_barrier(traits: Bound, collective: dict[str, Any] | None) -> bool:
    """Whether no collective may move past it."""
    if traits.keeps_place or collective is None:
        return traits.keeps_place
    return collective.get("kind") not in SYMMETRIC
