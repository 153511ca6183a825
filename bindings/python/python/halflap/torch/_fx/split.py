"""Cuts a region into pieces that hide each other: while one piece computes, the next one is under
way.

Every piece has a part of what each rank has, so a piece of an all-gather, of an all-to-all or of a
reduce-scatter is that collective on a part of its input, and moves or adds up the same numbers.
Products are cut along rows alone. A piece of an all-reduce may be added up in another sequence.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from .blocks import by_block, piece_shape, place_of
from .emit import Emitter
from .merge import adds_up_alike, sort
from .regions import EXCHANGE, SCATTER, Cuts, Region, ranks_of, regions_of, wait_of
from .rowwise import Move, Step
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


def split_all(graph: Graph, cuts: Cuts, exact: bool) -> list[Split]:
    """Cuts the regions of all exposed collectives."""
    found = []
    for region in regions_of(graph, cuts):
        if exact and not _keeps_sums(region):
            continue
        names = tuple(one.name for one in region.collectives)
        _Cut(graph, region).write()
        # The next region may read what this one made, and is looked for in sequence.
        sort(graph)
        found.append(Split(names, region.pieces))
    return found


def _keeps_sums(region: Region) -> bool:
    """Whether every element is added up in the same sequence as before."""
    end = region.end
    ranks = 2 if end is None else ranks_of(end)
    if ranks == 2 or end.target is EXCHANGE:
        return True
    given = value_of(end.args[0])
    sizes = [given.numel(), given.numel() // region.pieces]
    return end.target is SCATTER and adds_up_alike(given, sizes, ranks)


class _Cut:
    """One region that is cut."""

    def __init__(self, graph: Graph, region: Region) -> None:
        self.graph, self.region, self.pieces = graph, region, region.pieces
        first = region.start or region.inner[0].node
        last = region.end or region.inner[-1].node
        #: Pieces of what begins the region start where it did; the rest comes where all is there.
        name = region.collectives[0].name
        self.early = Emitter(graph, first, first, name)
        self.late = Emitter(graph, last.next, last, name)
        #: By node, its pieces.
        self.parts: dict[Node, list[Node]] = {}

    def write(self) -> None:
        """Puts pieces in the place of the region."""
        region, numbers = self.region, range(self.pieces)
        if region.start is not None:
            starts = [self._begin(region.start, number) for number in numbers]
            wait_tensor = functional.wait_tensor.default
            waits = [self.late.call(wait_tensor, one) for one in starts]
            self.parts[wait_of(region.start)] = waits
        for node in region.beside:
            cut = functools.partial(self._cut, self.late, node, region.blocks[node])
            self.parts[node] = [cut(number) for number in numbers]
        for step in region.inner:
            self.parts[step.node] = [self._again(step, number) for number in numbers]
        if region.end is not None:
            self._finish(region.end)
        self._hand_out()

    def _begin(self, start: Node, number: int) -> Node:
        """A piece of the collective that begins the region."""
        part = self._cut(self.early, start.args[0], self.region.sent_blocks, number)
        part = self._dense(self.early, part)
        return self.early.call(start.target, part, *self._args_of(start, part))

    def _args_of(self, collective: Node, part: Node) -> tuple[Any, ...]:
        """What a collective is given besides its input."""
        if collective.target is not EXCHANGE:
            return collective.args[1:]
        ranks = ranks_of(collective)
        sizes = [value_of(part).shape[0] // ranks] * ranks
        return sizes, sizes, collective.args[3]

    def _cut(self, emit: Emitter, value: Node, blocks: int, number: int) -> Node:
        """A piece of a value that is there as a whole."""
        shape = [*value_of(value).shape]
        place = place_of(shape, blocks, self.pieces)
        size = shape[place.axis] // place.outer // self.pieces
        bounds = number * size, (number + 1) * size
        if place.outer == 1:
            return emit.call(aten.slice.Tensor, value, place.axis, *bounds)
        apart = emit.call(aten.reshape.default, value, by_block(shape, place))
        part = emit.call(aten.slice.Tensor, apart, place.axis + 1, *bounds)
        dense = self._dense(emit, part)
        return emit.reshaped(dense, piece_shape(shape, place, self.pieces))

    def _dense(self, emit: Emitter, part: Node) -> Node:
        """Memory of its own, which lies as a collective needs it."""
        return part if value_of(part).is_contiguous() else emit.call(aten.clone.default, part)

    def _again(self, step: Step, number: int) -> Node:
        """An operation of the region on a piece."""
        if step.move is not None:
            return self._moved(step, step.move, self.parts[step.move.source][number])
        node, parts = step.node, self.parts
        args = torch.fx.map_arg(
            (node.args, node.kwargs), lambda one: parts[one][number] if one in parts else one
        )
        return self.late.call(node.target, *args[0], **args[1])

    def _moved(self, step: Step, move: Move, part: Node) -> Node:
        """Elements of a piece where they would be in a piece of the result."""
        wide = place_of(move.wide, self.region.blocks[move.source], self.pieces)
        whole = [*value_of(step.node).shape]
        made = piece_shape(whole, place_of(whole, step.blocks, self.pieces), self.pieces)
        if move.axes == sorted(move.axes):
            return self.late.reshaped(part, made)
        part = self.late.reshaped(part, piece_shape(move.wide, wide, self.pieces))
        part = self.late.call(aten.permute.default, part, move.axes)
        if [*value_of(part).shape] == made:
            return part
        return self.late.reshaped(self._dense(self.late, part), made)

    def _finish(self, end: Node) -> None:
        """The pieces of the collective that ends the region, and its result."""
        given = self.parts[end.args[0]]
        starts = [self.late.call(end.target, one, *self._args_of(end, one)) for one in given]
        waited = [self.late.call(functional.wait_tensor.default, one) for one in starts]
        blocks = self.region.blocks[end.args[0]]
        wait = wait_of(end)
        own = blocks // ranks_of(end) if end.target is SCATTER else blocks
        wait.replace_all_uses_with(self._joined(waited, [*value_of(wait).shape], own))

    def _joined(self, parts: list[Node], shape: list[int], blocks: int) -> Node:
        """The whole of all pieces."""
        place = place_of(shape, blocks, self.pieces)
        if place.outer == 1:
            return self.late.call(aten.cat.default, parts, place.axis)
        part = piece_shape(shape, place, self.pieces)
        by_blocks = [
            self.late.call(aten.reshape.default, one, by_block(part, place)) for one in parts
        ]
        whole = self.late.call(aten.cat.default, by_blocks, place.axis + 1)
        return self.late.call(aten.reshape.default, whole, shape)

    def _hand_out(self) -> None:
        """Gives what is used elsewhere as a whole, and removes the rest."""
        region = self.region
        start, end = region.start, region.end
        made = [step.node for step in region.inner]
        made = made if start is None else [wait_of(start), *made]
        own = {*region.nodes}
        for node in made:
            if any(user not in own for user in node.users):
                shape = [*value_of(node).shape]
                whole = self._joined(self.parts[node], shape, region.blocks[node])
                node.replace_all_uses_with(whole, lambda user: user not in own)
        first = [] if start is None else [start, wait_of(start)]
        last = [] if end is None else [end, wait_of(end)]
        steps = [node for step in region.inner for node in step.nodes]
        for node in reversed([*first, *steps, *last]):
            self.graph.erase_node(node)
