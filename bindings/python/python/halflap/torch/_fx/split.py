"""Cuts a region into pieces that hide each other: while one piece computes, the next one is under
way.

Every piece has some of the rows of every rank, so a piece of an all-gather, of an all-to-all or of
a reduce-scatter is that collective on a part of its input, and moves or adds up the same numbers.
Products are cut along rows alone. A piece of an all-reduce may be added up in another sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from .emit import Emitter
from .merge import sort
from .regions import EXCHANGE, GATHER, PRODUCTS, REDUCE, SCATTER, Region, regions_of, wait_of
from .units import value_of

aten, functional = torch.ops.aten, torch.ops._c10d_functional


class Split(NamedTuple):
    """Collectives that were cut, with the compute between them."""

    collectives: tuple[str, ...]
    pieces: int

    def to_dict(self) -> dict[str, Any]:
        """In values that JSON has."""
        return {"collectives": [*self.collectives], "pieces": self.pieces}

    def __str__(self) -> str:
        return f"{', '.join(self.collectives)} into {self.pieces} pieces"


def split_all(graph: Graph, exposed: set[str], pieces: int, exact: bool) -> list[Split]:
    """Cuts the regions of all exposed collectives."""
    found = []
    for region in regions_of(graph, exposed):
        is_inexact = region.end is not None and region.end.target is REDUCE and region.ranks > 2
        if region.rows % pieces or (exact and is_inexact):
            continue
        names = tuple(one.name for one in region.collectives)
        _Cut(graph, region, pieces).write()
        found.append(Split(names, pieces))
    if found:
        sort(graph)
    return found


class _Cut:
    """One region that is cut."""

    def __init__(self, graph: Graph, region: Region, pieces: int) -> None:
        self.graph, self.region, self.pieces = graph, region, pieces
        self.rows = region.rows // pieces
        first = region.start or region.inner[0]
        last = region.end or region.inner[-1]
        #: Pieces of what begins the region start where it did; the rest comes where all is there.
        self.early = Emitter(graph, first, first)
        self.late = Emitter(graph, last.next, last)
        #: By node, its pieces.
        self.parts: dict[Node, list[Node]] = {}

    def write(self) -> None:
        """Puts pieces in the place of the region."""
        region, numbers = self.region, range(self.pieces)
        if region.start is not None:
            wait = wait_of(region.start)
            starts = [self._begin(region.start, number) for number in numbers]
            wait_tensor = functional.wait_tensor.default
            self.parts[wait] = [self.late.call(wait_tensor, one) for one in starts]
        else:
            given = region.inner[0].args[PRODUCTS[region.inner[0].target]]
            self.parts[given] = [self._cut(self.late, given, number) for number in numbers]
        for node in region.beside:
            self.parts[node] = [self._cut(self.late, node, number) for number in numbers]
        for node in region.inner:
            self.parts[node] = [self._again(node, number) for number in numbers]
        if region.end is not None:
            self._finish(region.end)
        self._hand_out()

    def _begin(self, start: Node, number: int) -> Node:
        """A piece of the collective that begins the region."""
        if start.target is GATHER:
            low = number * self.rows
            part = self.early.call(aten.slice.Tensor, start.args[0], 0, low, low + self.rows)
            return self.early.call(GATHER, self._dense(self.early, part), *start.args[1:])
        part = self._cut(self.early, start.args[0], number)
        sizes = [self.rows] * self.region.ranks
        return self.early.call(EXCHANGE, part, sizes, sizes, start.args[3])

    def _cut(self, emit: Emitter, value: Node, number: int) -> Node:
        """Some rows of every rank."""
        shape = list(value_of(value).shape)
        by_rank = emit.call(aten.reshape.default, value, [self.region.ranks, -1, *shape[1:]])
        low = number * self.rows
        part = emit.call(aten.slice.Tensor, by_rank, 1, low, low + self.rows)
        dense = self._dense(emit, part)
        return emit.call(aten.reshape.default, dense, [self.region.ranks * self.rows, *shape[1:]])

    def _dense(self, emit: Emitter, part: Node) -> Node:
        """Memory of its own, which lies as a collective needs it."""
        return part if value_of(part).is_contiguous() else emit.call(aten.clone.default, part)

    def _again(self, node: Node, number: int) -> Node:
        """An operation of the region on a piece."""
        parts = self.parts
        args = torch.fx.map_arg(
            (node.args, node.kwargs), lambda one: parts[one][number] if one in parts else one
        )
        return self.late.call(node.target, *args[0], **args[1])

    def _finish(self, end: Node) -> None:
        """The pieces of the collective that ends the region, and its result."""
        sizes = [self.rows] * self.region.ranks
        args = (sizes, sizes, end.args[3]) if end.target is EXCHANGE else end.args[1:]
        starts = [self.late.call(end.target, one, *args) for one in self.parts[end.args[0]]]
        waited = [self.late.call(functional.wait_tensor.default, one) for one in starts]
        wait = wait_of(end)
        if end.target is SCATTER:
            whole = self.late.call(aten.cat.default, waited)
        else:
            whole = self._joined(waited)
        wait.replace_all_uses_with(whole)

    def _joined(self, parts: list[Node]) -> Node:
        """All rows of every rank again."""
        shape = list(value_of(parts[0]).shape)
        sizes = [self.region.ranks, self.rows, *shape[1:]]
        by_rank = [self.late.call(aten.reshape.default, one, sizes) for one in parts]
        whole = self.late.call(aten.cat.default, by_rank, 1)
        rows = shape[0] * self.pieces
        return self.late.call(aten.reshape.default, whole, [rows, *shape[1:]])

    def _hand_out(self) -> None:
        """Gives what is used elsewhere as a whole, and removes the rest."""
        start, end = self.region.start, self.region.end
        nodes = [*self.region.inner] if start is None else [wait_of(start), *self.region.inner]
        own = {*nodes, end}
        for node in nodes:
            if any(user not in own for user in node.users):
                whole = self._joined(self.parts[node])
                node.replace_all_uses_with(whole, lambda user: user not in own)
        ended = [] if end is None else [end, wait_of(end)]
        for node in reversed([*([] if start is None else [start]), *nodes, *ended]):
            self.graph.erase_node(node)
