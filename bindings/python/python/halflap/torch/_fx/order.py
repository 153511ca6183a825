"""An order of units, applied to an FX graph by moving its nodes."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Graph, Node

from .._handover import Unsupported
from .check import check_same, fixed_of
from .program import Program


def apply(program: Program, names: Sequence[str], keeps_collectives: bool) -> bool:
    """Puts a program's units into an order; whether that moved any. Raises, and leaves the graph as
    it was, if the result is not provably the same program."""
    units = {unit.leader.name: unit for unit in program.units.all}
    if len(names) != len(units) or set(names) != set(units):
        raise Unsupported("the order does not have every node once")
    before = list(program.fx.nodes)
    first = [node for node in before if node.op in ("placeholder", "get_attr")]
    # Placeholders keep their places: they are the parameters.
    first.sort(key=lambda node: node.op != "placeholder")
    last = [node for node in before if node.op == "output"]
    moved = [node for name in names for node in units[name].members]
    order = [*first, *moved, *last]
    if order == before:
        return False
    fixed = fixed_of(before)
    try:
        arrange(program.fx, order)
        check_same(fixed, program.fx, keeps_collectives)
    except BaseException:
        arrange(program.fx, before)
        raise
    return True


def arrange(graph: Graph, order: Sequence[Node]) -> None:
    """Moves all nodes of a graph into an order."""
    if len(order) != len(graph.nodes):
        raise Unsupported("the order does not have every node once")
    # From the end, because a node is put before another.
    following = order[-1]
    for node in reversed(order[:-1]):
        if node.next is not following:
            following.prepend(node)
        following = node
