"""Regions of an FX graph that can be cut into pieces, from or to a collective.

A region begins with a collective that gives parts of all ranks (all-gather, all-to-all) or ends
with one that takes them (reduce-scatter, all-reduce, all-to-all), or both. In between are products,
elementwise operations, reshapes and permutations, each of whose pieces needs the same piece of the
ones before alone; `blocks` says what a piece is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.fx import Graph, Node

from .._handover import group_ranks
from .blocks import place_of
from .rowwise import PRODUCTS, RESHAPES, Step, shape_of, step_of, step_to
from .traits import traits_of
from .units import value_of

functional = torch.ops._c10d_functional

GATHER = functional.all_gather_into_tensor.default
SCATTER = functional.reduce_scatter_tensor.default
REDUCE = functional.all_reduce.default
EXCHANGE = functional.all_to_all_single.default

#: Nodes that a region looks ahead.
REACH = 400


@dataclass
class Region:
    """What may be cut."""

    pieces: int
    start: Node | None = None
    #: Of what the start is given.
    sent_blocks: int = 1
    #: What is computed in between, in sequence.
    inner: list[Step] = field(default_factory=list)
    #: What is read from outside and cut, too, such as saved activations.
    beside: list[Node] = field(default_factory=list)
    end: Node | None = None
    #: Of everything else that is cut.
    blocks: dict[Node, int] = field(default_factory=dict)

    @property
    def collectives(self) -> list[Node]:
        """One or two."""
        return [one for one in (self.start, self.end) if one is not None]

    @property
    def nodes(self) -> list[Node]:
        """All that the pieces take the place of, but for waits, in sequence."""
        first = [] if self.start is None else [self.start]
        last = [] if self.end is None else [self.end]
        return [*first, *[node for step in self.inner for node in step.nodes], *last]

    @property
    def has_product(self) -> bool:
        """Whether there is anything that takes long."""
        return any(step.node.target in PRODUCTS for step in self.inner)

    def has_room_for(self, step: Step) -> bool:
        """Whether what an operation reads is not cut in another way already."""
        return all(self.blocks.get(one, count) == count for one, count in step.given.items())

    def add(self, step: Step) -> None:
        """Takes in an operation, and what it reads of others that is cut."""
        self.inner.append(step)
        self.blocks[step.node] = step.blocks
        for one, blocks in step.given.items():
            if one not in self.blocks:
                self.blocks[one] = blocks
                self.beside.append(one)


class Cuts(NamedTuple):
    """What is to be cut."""

    #: Collectives that compute stalls on.
    exposed: frozenset[str] = frozenset()
    pieces: int = 1
    #: Whether a region that ends with one of them is cut from its beginning on. If it is not, what
    #: it begins with is there as a whole beside the pieces.
    reach_back: bool = False


def regions_of(graph: Graph, cuts: Cuts) -> Iterator[Region]:
    """Regions of exposed collectives, none of which shares a node with another. Each is looked for
    once the one before has been used, which may have been cut by then."""
    taken: set[Node] = set()
    for node in [*graph.nodes]:
        region = None if node in taken else _region_at(node, cuts)
        if region is not None and taken.isdisjoint(region.nodes):
            taken.update(region.nodes)
            yield region


def reaches_back(graph: Graph, cuts: Cuts) -> bool:
    """Whether any of the regions begins with a collective that is not exposed."""
    starts = [one.start for one in regions_of(graph, cuts)]
    return any(one is not None and one.name not in cuts.exposed for one in starts)


def _region_at(node: Node, cuts: Cuts) -> Region | None:
    is_exposed = node.name in cuts.exposed
    region = None
    if node.target in (GATHER, EXCHANGE) and (is_exposed or cuts.reach_back):
        region = _from_start(node, cuts.pieces)
        if region is not None and not is_exposed:
            ends_exposed = region.end is not None and region.end.name in cuts.exposed
            region = region if ends_exposed else None
    if region is None and is_exposed and node.target in (SCATTER, REDUCE, EXCHANGE):
        region = _before_end(node, cuts.pieces)
    return region


def wait_of(node: Node) -> Node | None:
    """The wait of a collective, if it is all that uses it."""
    users = list(node.users)
    return users[0] if len(users) == 1 and traits_of(users[0]).kind == "wait" else None


def ranks_of(node: Node) -> int:
    """How many take part in a collective."""
    if node.target is EXCHANGE:
        return len(node.args[1])
    return len(group_ranks(node.args[2])) if node.target is REDUCE else node.args[-2]


def _is_even(node: Node) -> bool:
    """Whether all ranks get as much of an all-to-all as each other."""
    if node.target is not EXCHANGE:
        return True
    sizes = [*node.args[1], *node.args[2]]
    return all(isinstance(size, int) and size == sizes[0] for size in sizes)


def _ways_to_cut(node: Node, parts: int, pieces: int) -> list[int]:
    """Blocks that a value may be cut in, so that each of some parts of it consists of whole ones:
    the parts themselves, and whatever axes of its shapes divide them into."""
    shapes = [shape_of(one) or [] for one in (node, *_reshaped(node))]
    found = [parts] + [math.prod(shape[:axis]) for shape in shapes for axis in range(len(shape))]
    fit = [blocks for blocks in sorted({*found}) if blocks and blocks % parts == 0]
    return [blocks for blocks in fit if place_of(shapes[0], blocks, pieces) is not None]


def _reshaped(node: Node) -> list[Node]:
    """The same value in other shapes: what it was made of, and what is made of it."""
    before, after = node, [user for user in node.users if user.target in RESHAPES]
    found = []
    while before.target in RESHAPES and isinstance(before.args[0], Node):
        before = before.args[0]
        found.append(before)
    return [*found, *after]


def _from_start(start: Node, pieces: int) -> Region | None:
    wait, given, made = wait_of(start), shape_of(start.args[0]), shape_of(start)
    if wait is None or given is None or made is None or not _is_even(start):
        return None
    ranks = ranks_of(start)
    for blocks in _ways_to_cut(wait, ranks, pieces):
        sent = blocks // ranks if start.target is GATHER else blocks
        region = Region(pieces, start, sent)
        region.blocks[wait] = blocks
        if place_of(given, sent, pieces) is not None:
            _grow(region, wait)
            _prune(region)
        if region.has_product and _hands_out_whole(region) and _can_be_read(region):
            return region
    return None


def _grow(region: Region, wait: Node) -> None:
    """Takes in what is computed piece by piece, up to the first collective that takes it."""
    rows, reached = {wait: region.blocks[wait]}, {wait}
    node = wait.next
    for _ in range(REACH):
        if node.op == "output":
            return
        if any(one in reached for one in node.all_input_nodes):
            reached.add(node)
            if node.args[0] in rows and node.args[0] is not wait and _is_end(node, region, rows):
                region.end = node
                return
            step = step_of(node, rows, region.pieces)
            others = set() if step is None else {*step.outside, *step.given.keys() - rows.keys()}
            if step is not None and reached.isdisjoint(others) and region.has_room_for(step):
                rows[node] = step.blocks
                region.add(step)
        node = node.next


def _is_end(node: Node, region: Region, rows: dict[Node, int]) -> bool:
    """Whether a collective takes what is cut; each rank's part must be whole blocks."""
    if node.target not in (SCATTER, REDUCE, EXCHANGE):
        return False
    if wait_of(node) is None or not _is_even(node) or not region.has_product:
        return False
    return node.target is REDUCE or rows[node.args[0]] % ranks_of(node) == 0


def _before_end(end: Node, pieces: int) -> Region | None:
    """What makes what a collective takes, back to products."""
    given = shape_of(end.args[0])
    if wait_of(end) is None or given is None or not _is_even(end):
        return None
    ranks = ranks_of(end)
    if ranks < 2:
        return None
    parts = 1 if end.target is REDUCE else ranks
    for blocks in _ways_to_cut(end.args[0], parts, pieces):
        region = Region(pieces, end=end)
        is_whole = _grow_back(region, blocks) and region.has_product and _hands_out_whole(region)
        if is_whole and _can_be_read(region):
            return region
    return None


def _prune(region: Region) -> None:
    """Leaves out what only moves elements for others: it would be put together again, perhaps with
    other strides than they rely on."""
    wanted = set() if region.end is None else {region.end.args[0]}
    kept = []
    for step in reversed(region.inner):
        if step.node in wanted or (step.move is None and _can_be_whole(step.node)):
            kept.append(step)
            wanted |= step.given.keys()
    first = None if region.start is None else wait_of(region.start)
    region.blocks = {} if first is None else {first: region.blocks[first]}
    region.inner, region.beside = [], []
    for step in reversed(kept):
        region.add(step)


def _can_be_read(region: Region) -> bool:
    """Whether what is read from outside can be cut, and a piece of it still lies in memory as it
    does: a product of what was transposed may have other bits than that of a copy."""
    for one in region.beside:
        place = place_of(shape_of(one) or [], region.blocks[one], region.pieces)
        if place is None or (place.outer > 1 and not value_of(one).is_contiguous()):
            return False
    return True


def _can_be_whole(node: Node) -> bool:
    """Whether all pieces of a value together lie in memory as it does."""
    return value_of(node).is_contiguous()


def _hands_out_whole(region: Region) -> bool:
    """Whether what others use of a region can be put together from pieces."""
    own = {*region.nodes}
    return all(own.issuperset(step.node.users) or _can_be_whole(step.node) for step in region.inner)


def _grow_back(region: Region, blocks: int) -> bool:
    """Takes in what leads to the end of a region; whether it is cut in one way alone."""
    wanted = {region.end.args[0]: blocks}
    #: What is taken in although others use it, too.
    main, own = {region.end.args[0]}, {region.end}
    steps: list[Step] = []
    node = region.end.prev
    for _ in range(REACH):
        if node.op in ("placeholder", "get_attr"):
            break
        is_ours = node in wanted and (node in main or own.issuperset(node.users))
        step = step_to(node, wanted[node], region.pieces) if is_ours else None
        if step is not None:
            steps.append(step)
            own.update(step.nodes)
            # Pieces of what a product reads are parts of what is there.
            others = {} if node.target in PRODUCTS else step.given
            main |= others.keys() if len(others) == 1 and node in main else set()
            if any(wanted.get(one, count) != count for one, count in others.items()):
                return False
            wanted |= others
        node = node.prev
    for step in reversed(steps):
        if not region.has_room_for(step):
            return False
        region.add(step)
    return True
