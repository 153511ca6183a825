"""What must be the same of an FX graph after its nodes were moved, recomputed from the graph alone.

Knows nothing of units, and of orders only that nodes have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

from .._handover import Unsupported


class Fixed(NamedTuple):
    """What no order may change."""

    nodes: frozenset[Node]
    #: Observable effects, in sequence.
    effects: list[Node]
    #: For each memory that is written to: its writes, each with what read it since the last one.
    accesses: dict[Node, list[tuple[Node | None, frozenset[Node]]]]
    #: Collectives in sequence.
    collectives: list[Node]
    #: Of values that are waited for several times, the waits in sequence.
    waits: dict[Node, list[Node]]


def fixed_of(nodes: Sequence[Node]) -> Fixed:
    """Of nodes in their order."""
    return Fixed(
        nodes=frozenset(nodes),
        effects=[node for node in nodes if node.op == "call_function" and _is_noticed(node)],
        accesses=_accesses(nodes),
        collectives=[node for node in nodes if is_collective(node)],
        waits=_repeated_waits(nodes),
    )


def _repeated_waits(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        if node.op == "call_function" and _is_wait(node):
            found.setdefault(node.all_input_nodes[0], []).append(node)
    return {awaited: waits for awaited, waits in found.items() if len(waits) > 1}


def check_same(before: Fixed, graph: Graph, keeps_collectives: bool) -> None:
    """Raises if a moved graph is not the same program."""
    graph.lint()
    nodes = list(graph.nodes)
    seen: set[Node] = set()
    for node in nodes:
        for needed in node.all_input_nodes:
            if needed not in seen:
                raise Unsupported(f"{node.name} would run before {needed.name}, which it needs")
        seen.add(node)
    after = fixed_of(nodes)
    named = {"nodes": "nodes", "effects": "effects", "accesses": "writes to memory"}
    named["waits"] = "waits for one collective"
    for field, what in named.items():
        if getattr(before, field) != getattr(after, field):
            raise Unsupported(f"the order would change the sequence of {what}")
    if keeps_collectives and before.collectives != after.collectives:
        raise Unsupported("the order would change the sequence of collectives")


def sequence_of(nodes: Sequence[Node]) -> list[Node]:
    """What a rewrite must leave as it is, node by node: what others may notice, and whatever reads
    or writes memory that is written to."""
    accesses = _accesses(nodes)
    touching = {one for found in accesses.values() for write, reads in found for one in reads}
    touching |= {write for found in accesses.values() for write, _ in found if write is not None}
    called = [node for node in nodes if node.op == "call_function"]
    return [node for node in called if node in touching or _is_noticed(node)]


def is_collective(node: Node) -> bool:
    """Whether a node starts a functional collective."""
    return isinstance(node.target, OpOverload) and _facts(node.target).is_collective


def _is_noticed(node: Node) -> bool:
    target = node.target
    if isinstance(target, OpOverload):
        return _facts(target).is_noticed
    if isinstance(target, HigherOrderOperator):
        return True
    plain = ("_operator", "math", "builtins", "torch", "torch.utils._sympy.functions")
    return getattr(target, "__module__", "") not in plain


class _Facts(NamedTuple):
    """What an operator's schema says."""

    is_collective: bool
    is_wait: bool
    is_noticed: bool
    #: It reads nothing, but shows it in another form.
    shows_only: bool
    #: Places and names of the arguments that it writes to, and of those whose memory it gives.
    written: tuple[tuple[int, str], ...]
    shown: tuple[tuple[int, str], ...]


def _facts(target: OpOverload) -> _Facts:
    """Read once for each operator: torch makes new objects of a schema whenever it is asked."""
    known = _read.get(id(target))
    if known is None:
        known = _read[id(target)] = _read_schema(target)
    return known


#: By their identities: operators live as long as torch does.
_read: dict[int, _Facts] = {}


def _read_schema(target: OpOverload) -> _Facts:
    schema, name = target._schema, target.name()
    returns, aliases = schema.returns, [one.alias_info for one in schema.arguments]
    is_wait = "wait_tensor" in name
    is_view = bool(returns) and all(one.alias_info is not None for one in returns)
    gives_memory = not all(one.alias_info is None for one in returns)
    named = [(number, one.name) for number, one in enumerate(schema.arguments)]
    pairs = [*zip(named, aliases)]
    return _Facts(
        is_collective=target.namespace == "_c10d_functional" and "wait" not in name,
        is_wait=is_wait,
        is_noticed=torch.Tag.nondeterministic_seeded in target.tags
        or (not returns and not schema.is_mutable),
        shows_only=is_view and not schema.is_mutable,
        written=tuple(one for one, alias in pairs if alias is not None and alias.is_write),
        shown=tuple(one for one, alias in pairs if alias is not None and gives_memory),
    )


def _accesses(nodes: Sequence[Node]) -> dict[Node, list[Any]]:
    """Of all memory that is written to, which in most graphs is none."""
    given = {node: found for node in nodes if (found := _arguments(node, writes=True))}
    return _Memory(nodes).accesses(nodes, given) if given else {}


class _Memory:
    """Which nodes give the same memory: whatever a schema says may be an argument's is taken for
    it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._first: dict[Node, Node] = {}
        attributes: dict[str, Node] = {}
        #: What a collective reads until its wait.
        self._reads_on: dict[Node, list[Node]] = {}
        for node in sorted(nodes, key=lambda one: one.op != "get_attr"):
            if node.op == "get_attr":
                self._first[node] = attributes.setdefault(str(node.target), node)
        # In any topological order the result is the same: arguments come first.
        for node in nodes:
            if node in self._first:
                continue
            shown = [one for one in _arguments(node, writes=False) if one in self._first]
            self._first[node] = self._find(shown[0]) if shown else node
            for other in shown[1:]:
                self._join(node, other)
            if is_collective(node):
                self._reads_on[node] = node.all_input_nodes

    def _find(self, node: Node) -> Node:
        while (first := self._first[node]) is not node:
            node = first
        return node

    def _join(self, node: Node, other: Node) -> None:
        first, second = sorted((self._find(node), self._find(other)), key=lambda one: one.name)
        self._first[second] = first

    def accesses(
        self, nodes: Sequence[Node], given: dict[Node, list[Node]]
    ) -> dict[Node, list[Any]]:
        """Of all memory that is written to; ``given`` has what each node writes to."""
        called = [node for node in nodes if node.op == "call_function"]
        writes = {node: {self._find(one) for one in found} for node, found in given.items()}
        written = set().union(*writes.values())
        found: dict[Node, list[Any]] = {one: [] for one in written}
        since: dict[Node, set[Node]] = {one: set() for one in written}
        for node in called:
            if _shows_only(node):
                continue
            for memory in {self._find(one) for one in self._read(node)} & written:
                if memory in writes.get(node, ()):
                    found[memory].append((node, frozenset(since[memory])))
                    since[memory] = set()
                else:
                    since[memory].add(node)
        for memory, readers in since.items():
            found[memory].append((None, frozenset(readers)))
        return found

    def _read(self, node: Node) -> list[Node]:
        read = list(node.all_input_nodes)
        if _is_wait(node):
            for one in node.all_input_nodes:
                started = self._find(one)
                read += self._reads_on.get(one, self._reads_on.get(started, []))
        return read


def _is_wait(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and _facts(node.target).is_wait


def _shows_only(node: Node) -> bool:
    """Whether a node reads nothing, but shows it in another form."""
    if not isinstance(node.target, OpOverload):
        return getattr(node.target, "__module__", "") == "_operator"
    return _facts(node.target).shows_only


def _arguments(node: Node, writes: bool) -> list[Node]:
    """The arguments that a node writes to, or whose memory it gives."""
    target = node.target
    if node.op != "call_function":
        return []
    if not isinstance(target, OpOverload):
        # What calls Python or has a body of its own is noticed, and so keeps its place.
        is_part = getattr(target, "__name__", "") == "getitem" and not writes
        return node.all_input_nodes[:1] if is_part else []
    facts = _facts(target)
    if not writes and facts.is_wait:
        return node.all_input_nodes[:1]
    found: list[Node] = []
    for number, name in facts.written if writes else facts.shown:
        given = node.args[number] if number < len(node.args) else node.kwargs.get(name)
        torch.fx.map_arg(given, found.append)
    return found
