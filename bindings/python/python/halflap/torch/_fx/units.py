"""FX nodes as units that move as one: what generated code fuses, and views with what they show.

A unit stands where its first node does. A node joins a unit only if everything else that it needs
belongs to units that stand before it, so the sequence of units is a topological order, and no
contraction can make a cycle. What others may notice, and what reads or writes memory that is
written to, stays alone.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Graph, Node

from .traits import Traits, aliased_by, nodes_in, traits_of, written_by

#: Generated code fuses over any distance, but not if results would have to be kept for long.
NEAR = 48


@dataclass
class Unit:
    """Nodes that stay together, in the program's order."""

    members: list[Node]
    traits: Traits
    #: Where it stands among all nodes, and where its last node does.
    place: int
    last: int
    #: Its place among units.
    index: int = -1
    #: Whether further nodes may be fused into it.
    is_open: bool = False

    @property
    def leader(self) -> Node:
        """What it is named after."""
        return self.members[0]


@dataclass
class Units:
    """All units of a graph, and the memory that its nodes share."""

    all: list[Unit] = field(default_factory=list)
    of: dict[Node, Unit] = field(default_factory=dict)
    #: By node: the nodes that made the memory of its result.
    roots: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    #: By node that writes: what it writes to, by the makers of that memory.
    writes: dict[Node, tuple[Node, ...]] = field(default_factory=dict)


def units_of(graph: Graph) -> Units:
    """The units of a graph."""
    found = Units()
    written: set[Node] = set()
    attributes: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            # The same attribute is the same memory.
            found.roots[node] = (attributes.setdefault(str(node.target), node),)
        elif node.op == "call_function":
            found.roots[node] = _roots(found.roots, aliased_by(node)) or (node,)
            roots = _roots(found.roots, written_by(node))
            if roots:
                found.writes[node] = roots
                written.update(roots)
        else:
            found.roots[node] = (node,)
    for place, node in enumerate(graph.nodes):
        if node.op == "call_function":
            _place(found, node, place, written)
    found.all.sort(key=lambda unit: unit.place)
    for index, unit in enumerate(found.all):
        unit.index = index
    return found


def _roots(known: dict[Node, tuple[Node, ...]], nodes: list[Node]) -> tuple[Node, ...]:
    if len(nodes) == 1:
        return known[nodes[0]]
    return tuple(dict.fromkeys(root for node in nodes for root in known[node]))


def _place(units: Units, node: Node, place: int, written: set[Node]) -> None:
    """Puts a node into the unit of something that it reads, or into one of its own."""
    traits = traits_of(node)
    is_open = traits.is_fused and not _touches(units, node, written)
    joined = None
    if traits.is_view:
        joined = _shown(units, node)
    elif is_open:
        joined = _fusing(units, node, place)
    if joined is not None:
        joined.members.append(node)
        joined.last = place if traits.is_fused else joined.last
        units.of[node] = joined
        return
    unit = Unit([node], traits, place, place, is_open=is_open)
    units.all.append(unit)
    units.of[node] = unit


def _touches(units: Units, node: Node, written: set[Node]) -> bool:
    """Whether a node reads or makes memory that is written to."""
    touched = (node, *node.all_input_nodes) if written else ()
    return any(root in written for one in touched for root in units.roots[one])


def _needed(units: Units, node: Node) -> list[Unit]:
    return [units.of[one] for one in node.all_input_nodes if one in units.of]


def _shown(units: Units, node: Node) -> Unit | None:
    """The unit of what a view shows, if all else that it needs (sizes) is there before."""
    shown = [units.of[one] for one in nodes_in(node.args[0]) if one in units.of]
    if len(shown) != 1:
        return None
    base = shown[0]
    others = [unit for unit in _needed(units, node) if unit is not base]
    return base if all(unit.place < base.place for unit in others) else None


def _fusing(units: Units, node: Node, place: int) -> Unit | None:
    """The latest unit that it reads, if that is fused and near."""
    needed = _needed(units, node)
    if not needed:
        return None
    latest = max(needed, key=lambda unit: unit.place)
    return latest if latest.is_open and place - latest.last <= NEAR else None


def values_read(unit: Unit) -> list[Node]:
    """What a unit reads of others, each once, in sequence."""
    own = set(unit.members)
    found: dict[Node, None] = {}
    for node in unit.members:
        for one in node.all_input_nodes:
            if one not in own:
                found[one] = None
    return list(found)


def is_part(node: Node) -> bool:
    """Whether a node takes one of several results."""
    return node.target is operator.getitem


def value_of(node: Node) -> Any:
    """What a node gives, as a fake tensor, a number, or a tuple of these."""
    return node.meta.get("val", node.meta.get("example_value"))
