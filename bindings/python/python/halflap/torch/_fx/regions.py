"""Regions of an FX graph that work row by row on what a collective gives, or on what it takes.

A region begins with a collective that gives rows of all ranks (all-gather, all-to-all) or ends with
one that takes them (reduce-scatter, all-reduce, all-to-all), or both; in between are products and
elementwise operations, each of whose rows needs the same row of the one before alone. Rows are
``ranks`` times ``rows``: those of the first rank, those of the second, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from .._handover import group_ranks
from .traits import traits_of, written_by
from .units import value_of

aten, functional = torch.ops.aten, torch.ops._c10d_functional

GATHER = functional.all_gather_into_tensor.default
SCATTER = functional.reduce_scatter_tensor.default
REDUCE = functional.all_reduce.default
EXCHANGE = functional.all_to_all_single.default

#: Products of which each row is one of the result, and where the matrix with these rows stands.
PRODUCTS = {aten.mm.default: 0, aten.addmm.default: 1}

#: Nodes that a region looks ahead.
REACH = 400


@dataclass
class Region:
    """What may be cut."""

    ranks: int
    #: Of one rank.
    rows: int
    start: Node | None = None
    #: Its products and elementwise operations, in sequence.
    inner: list[Node] = field(default_factory=list)
    #: What elementwise operations read of the same rows from outside, such as saved activations.
    beside: list[Node] = field(default_factory=list)
    end: Node | None = None

    @property
    def collectives(self) -> list[Node]:
        """One or two."""
        return [one for one in (self.start, self.end) if one is not None]


def regions_of(graph: Graph, exposed: set[str]) -> list[Region]:
    """Regions of exposed collectives, none of which shares a node with another."""
    found, taken = [], set()
    for node in graph.nodes:
        if node.name not in exposed or node in taken:
            continue
        region = _from_start(node) if node.target in (GATHER, EXCHANGE) else None
        if region is None and node.target in (SCATTER, REDUCE, EXCHANGE):
            region = _before_end(node)
        members = [] if region is None else [*region.collectives, *region.inner]
        if members and taken.isdisjoint(members):
            taken.update(members)
            found.append(region)
    return found


def _shape(node: Any) -> list[int] | None:
    """A tensor's sizes, if all are numbers."""
    value = value_of(node) if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or value.dim() < 2:
        return None
    return list(value.shape) if all(isinstance(size, int) for size in value.shape) else None


def wait_of(node: Node) -> Node | None:
    """The wait of a collective, if it is all that uses it."""
    users = list(node.users)
    return users[0] if len(users) == 1 and traits_of(users[0]).kind == "wait" else None


def _is_even(node: Node) -> bool:
    """Whether all ranks get as much of an all-to-all as each other."""
    _, received, sent, _ = node.args
    sizes = [*received, *sent]
    return all(isinstance(size, int) and size == sizes[0] for size in sizes)


def _from_start(start: Node) -> Region | None:
    wait, shape = wait_of(start), _shape(start)
    if wait is None or shape is None or (start.target is EXCHANGE and not _is_even(start)):
        return None
    ranks = start.args[1] if start.target is GATHER else len(start.args[1])
    region = Region(ranks, shape[0] // ranks, start)
    _grow(region, wait)
    has_product = any(node.target in PRODUCTS for node in region.inner)
    return region if has_product else None


def _grow(region: Region, wait: Node) -> None:
    """Takes in what works on rows, up to the first collective that takes them."""
    rows, reached = {wait}, {wait}
    node = wait.next
    for _ in range(REACH):
        if node.op == "output":
            return
        read = node.all_input_nodes
        if any(one in reached for one in read):
            reached.add(node)
            if _is_end(node, region) and node.args[0] in rows and node.args[0] is not wait:
                region.end = node
                return
            if _works_on_rows(node, rows, reached):
                rows.add(node)
                region.inner.append(node)
                region.beside += [
                    one for one in _rows_beside(node, rows) if one not in region.beside
                ]
        node = node.next


def _is_end(node: Node, region: Region) -> bool:
    if node.target not in (SCATTER, REDUCE, EXCHANGE) or wait_of(node) is None:
        return False
    if node.target is EXCHANGE:
        return _is_even(node) and len(node.args[1]) == region.ranks
    if node.target is SCATTER:
        return node.args[2] == region.ranks
    return len(group_ranks(node.args[2])) == region.ranks


def _works_on_rows(node: Node, rows: set[Node], reached: set[Node]) -> bool:
    """Whether each row of a result needs the same row of the region's values alone."""
    shape = _shape(node)
    if shape is None or not isinstance(node.target, OpOverload) or written_by(node):
        return False
    if node.target in PRODUCTS:
        place = PRODUCTS[node.target]
        others = [one for number, one in enumerate(node.args) if number != place]
        return node.args[place] in rows and not _any_in(others, reached) and _broadcast(node, place)
    if torch.Tag.pointwise not in node.target.tags or node.target._schema.is_mutable:
        return False
    given = [one for one in node.all_input_nodes if one in rows]
    others = [one for one in node.all_input_nodes if one not in rows]
    fits = all(_has_rows_of(one, shape) for one in given)
    # What has as many axes has the same rows, and is cut, too.
    cut = all(_is_same_for_rows(one, len(shape)) or _has_rows_of(one, shape) for one in others)
    return bool(given) and fits and cut and not _any_in(others, reached)


def _has_rows_of(node: Node, shape: list[int]) -> bool:
    sizes = _shape(node)
    return sizes is not None and len(sizes) == len(shape) and sizes[0] == shape[0]


def _rows_beside(node: Node, rows: set[Node]) -> list[Node]:
    """What an elementwise operation of a region reads row by row, and the region does not make."""
    if node.target in PRODUCTS:
        return []
    others = [one for one in node.all_input_nodes if one not in rows]
    axes = len(_shape(node) or [])
    return [one for one in others if not _is_same_for_rows(one, axes)]


def _any_in(values: list[Any], nodes: set[Node]) -> bool:
    return any(isinstance(one, Node) and one in nodes for one in values)


def _broadcast(node: Node, place: int) -> bool:
    """Whether what is added to a product is the same for all rows."""
    return place == 0 or (not node.kwargs and _is_same_for_rows(node.args[0], 2))


def _is_same_for_rows(node: Node, axes: int) -> bool:
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return True
    return value.dim() < axes or (value.dim() == axes and value.shape[0] == 1)


def _before_end(end: Node) -> Region | None:
    """What makes what a collective takes: elementwise operations, and the product before them."""
    given, wait = end.args[0], wait_of(end)
    shape = _shape(given)
    if wait is None or shape is None or (end.target is EXCHANGE and not _is_even(end)):
        return None
    if end.target is EXCHANGE:
        ranks = len(end.args[1])
    else:
        ranks = end.args[2] if end.target is SCATTER else len(group_ranks(end.args[2]))
    if ranks < 2 or shape[0] % ranks:
        return None
    inner: list[Node] = []
    node = given
    while node.target not in PRODUCTS:
        read = [one for one in node.all_input_nodes if (_shape(one) or [0])[0] == shape[0]]
        if len(read) != 1 or not _works_on_rows(node, {read[0]}, {read[0]}):
            return None
        inner.insert(0, node)
        node = read[0]
    given = node.args[PRODUCTS[node.target]]
    # Not of a matrix with itself: its rows are cut, and the other factor is whole.
    if not _works_on_rows(node, {given}, {given}):
        return None
    return Region(ranks, shape[0] // ranks, None, [node, *inner], [], end)
