"""Updates what Inductor derived from edges and positions before our pass ran.

Code generation still reads it afterwards. `decide_inplace_update` assumes that every operation in a
node's ``ancestors`` has already run, and lets the node overwrite a buffer whose other readers are
all among them. ``ancestors`` includes what is reachable through order-only edges; a free order
breaks some of these, and a reader that comes later would find its input overwritten. So after our
pass ``ancestors`` holds nothing that runs later, broken edges are gone, and positions are those of
the new order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch._inductor.ir import NonOwningLayout
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet


class OrderEdge(NamedTuple):
    """A dependency that only keeps two collectives in sequence: two nodes by index, and a
    buffer."""

    before: int
    after: int
    buffer: str


def set_positions(snodes: Iterable[BaseSchedulerNode]) -> None:
    """Numbers nodes as they run."""
    for position, snode in enumerate(snodes):
        snode.min_order = snode.max_order = position


Nodes = Sequence[BaseSchedulerNode]


def drop_broken_edges(
    snodes: Nodes, order: Sequence[int], edges: Sequence[OrderEdge], before: list[list[int]]
) -> None:
    """Removes order-only edges that an order breaks, and the ancestors that only they made.

    ``before`` has each node's other predecessors. Costs next to nothing if no edge is broken.
    """
    position = [0] * len(order)
    for place, index in enumerate(order):
        position[index] = place
    broken = [edge for edge in edges if position[edge.before] > position[edge.after]]
    if not broken:
        return
    for edge in broken:
        snode = snodes[edge.after]
        snode.unmet_dependencies = OrderedSet(
            dep
            for dep in snode.unmet_dependencies
            if dep.name != edge.buffer or not getattr(dep, "is_fake", False)
        )
    _forget_what_comes_later(snodes, order, _closure(before, edges))


def _closure(before: list[list[int]], edges: Sequence[OrderEdge]) -> list[int]:
    """Every node's ancestors as bits, over all edges, of which the input order is topological."""
    direct = [list(nodes) for nodes in before]
    for edge in edges:
        direct[edge.after].append(edge.before)
    closure: list[int] = []
    for nodes in direct:
        bits = 0
        for node in nodes:
            bits |= closure[node] | 1 << node
        closure.append(bits)
    return closure


def _forget_what_comes_later(snodes: Nodes, order: Sequence[int], closure: list[int]) -> None:
    has_run = 0
    for index in order:
        late = closure[index] & ~has_run
        if late:
            names = OrderedSet[str]()
            for other in _set_bits(late):
                names |= snodes[other].get_operation_names()
            for part in {snodes[index], *snodes[index].get_nodes()}:
                part.ancestors = part.ancestors - names
        has_run |= 1 << index


def _set_bits(bits: int) -> Iterable[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def keep_parts_apart(snodes: list[BaseSchedulerNode]) -> None:
    """Has nothing take the memory of a part of another buffer, such as what is written into a
    concatenation at once. Inductor may overwrite such a part in place after its last reader, and
    still frees the whole by its own readers alone: in its own order the part is read before."""
    for snode in snodes:
        for made in snode.get_outputs():
            if isinstance(getattr(made.node, "layout", None), NonOwningLayout):
                V.graph.never_reuse_buffers.add(made.get_name())
