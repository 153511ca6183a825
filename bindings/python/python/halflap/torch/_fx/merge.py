"""Merges collectives of an FX graph: packs what they send, sends it once, hands out the parts.

What is emitted is functional: a concatenation, one collective, its wait, and slices. So it runs in
every compiler, and no memory is written to. Bits stay as they were: an all-gather moves data only;
a reduce-scatter adds up each element on the same rank as before; all-reduces are merged as a
reduce-scatter and an all-gather of what each rank adds up alone anyway. The latter two need parts
that ranks share evenly. With ``exact=False`` all others are merged, too; all-reduces are then
concatenated into one. Ranks may add up in another sequence.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from .emit import Emitter
from .traits import traits_of
from .units import value_of

aten = torch.ops.aten
functional = torch.ops._c10d_functional


class Merged(NamedTuple):
    """Collectives that became one."""

    kind: str
    members: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.members)} {self.kind}: {', '.join(self.members)}"


class _Member(NamedTuple):
    """A collective, its wait, and what it takes."""

    start: Node
    wait: Node

    @property
    def given(self) -> Node:
        return self.start.args[0]

    @property
    def value(self) -> torch.Tensor:
        """What is waited for."""
        return value_of(self.start)

    @property
    def elements(self) -> int:
        """How many it takes."""
        return value_of(self.given).numel()


def merge_all(graph: Graph, recipes: Sequence[Mapping[str, Any]], exact: bool) -> list[Merged]:
    """Carries recipes out; gives those that could be."""
    nodes = {node.name: node for node in graph.nodes}
    places = {node: place for place, node in enumerate(nodes.values())}
    sets = []
    for recipe in recipes:
        starts = [nodes[name] for name in recipe["members"]] if recipe["kind"] == "merge" else []
        members = _members(starts) if len(starts) > 1 else None
        taken = [] if members is None else _writer(members).taken(members, exact)
        if taken:
            sets.append(sorted(taken, key=lambda one: places[one.start]))
    merged = [_merge(graph, members) for members in _independent(graph, sets)]
    if merged:
        # Members' waits and their users may come before the last input is made.
        sort(graph)
    return merged


def _merge(graph: Graph, members: list[_Member]) -> Merged:
    writer = _writer(members)
    names = tuple(one.start.name for one in members)
    emitter = Emitter(graph, members[-1].start.next, members[0].start, names[0])
    results = writer.write(emitter, members)
    for one, result in zip(members, results):
        one.wait.replace_all_uses_with(result)
        result.meta.update({key: one.wait.meta[key] for key in one.wait.meta if key != "val"})
    for one in members:
        graph.erase_node(one.wait)
        graph.erase_node(one.start)
    return Merged(writer.name, names)


def _members(starts: list[Node]) -> list[_Member] | None:
    """Each with its wait, if they are all alike and have one each."""
    found = []
    if starts[0].target not in _WRITERS:
        return None
    for start in starts:
        users = list(start.users)
        if len(users) != 1 or traits_of(users[0]).kind != "wait":
            return None
        if start.kwargs or not isinstance(start.args[0], Node):
            return None
        if not _is_static(value_of(start.args[0])) or not _is_static(value_of(start)):
            return None
        found.append(_Member(start, users[0]))
    alike = {(one.target, one.args[1:], *_made_of(one.args[0])) for one in starts}
    return found if len(alike) == 1 and len(set(starts)) == len(starts) else None


def _made_of(node: Node) -> tuple[Any, ...]:
    value = value_of(node)
    return value.dtype, value.device


def _is_static(value: Any) -> bool:
    """Whether sizes are numbers, and elements lie one after the other."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return False
    return all(isinstance(size, int) for size in value.shape) and value.is_contiguous()


def _independent(graph: Graph, sets: list[list[_Member]]) -> list[list[_Member]]:
    """Those sets that can all become one node each: none needs itself or another in a circle."""
    if not _need_each_other(graph, sets):
        return sets
    kept: list[list[_Member]] = []
    for one in sets:
        if not _need_each_other(graph, [*kept, one]):
            kept.append(one)
    return kept


def _need_each_other(graph: Graph, sets: list[list[_Member]]) -> bool:
    """Whether the graph would have a circle if each set were one node."""
    first = {one.start: members[0].start for members in sets for one in members}
    all_of = {members[0].start: [one.start for one in members] for members in sets}
    missing: dict[Node, int] = {}
    for node in graph.nodes:
        node_or_set = first.get(node, node)
        missing[node_or_set] = missing.get(node_or_set, 0) + len(node.all_input_nodes)
    ready = [one for one, count in missing.items() if not count]
    done = 0
    while ready:
        one = ready.pop()
        done += 1
        for made in all_of.get(one, (one,)):
            for user in made.users:
                user = first.get(user, user)
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)
    return done < len(missing)


def sort(graph: Graph) -> None:
    """A topological order close to the old one: what is not ready waits for its inputs."""
    from .order import arrange

    waiting: dict[Node, int] = {}
    order: list[Node] = []
    placed: set[Node] = set()
    for node in [*graph.nodes]:
        missing = [one for one in node.all_input_nodes if one not in placed]
        if missing:
            waiting[node] = len(missing)
            continue
        ready = [node]
        while ready:
            one = ready.pop(0)
            placed.add(one)
            order.append(one)
            for user in one.users:
                if user in waiting:
                    waiting[user] -= 1
                    if waiting[user] == 0:
                        del waiting[user]
                        ready.append(user)
    arrange(graph, order)


class _Gather:
    """All-gathers: every rank's part of the result holds a piece of each."""

    name = "all_gather"

    def taken(self, members: list[_Member], exact: bool) -> list[_Member]:
        return members

    def write(self, emit: Emitter, members: list[_Member]) -> list[Node]:
        ranks = members[0].start.args[1]
        flat = [emit.reshaped(one.given, [one.elements]) for one in members]
        packed = emit.call(aten.cat.default, flat)
        start = emit.call(members[0].start.target, packed, *members[0].start.args[1:])
        gathered = emit.call(functional.wait_tensor.default, start)
        return _handed_out(emit, gathered, members, ranks)


def _handed_out(emit: Emitter, gathered: Node, members: list[_Member], ranks: int) -> list[Node]:
    """The parts of what all ranks gave, one piece of each member after the other."""
    sizes = [one.value.numel() // ranks for one in members]
    rows = emit.call(aten.reshape.default, gathered, [ranks, sum(sizes)])
    parts = emit.call(aten.split_with_sizes.default, rows, sizes, 1)
    found = []
    for number, one in enumerate(members):
        part = emit.call(operator.getitem, parts, number)
        whole = emit.call(aten.clone.default, part)
        found.append(emit.reshaped(whole, list(one.value.shape)))
    return found


class _Scatter:
    """Reduce-scatters: what goes to a rank lies together."""

    name = "reduce_scatter"

    def taken(self, members: list[_Member], exact: bool) -> list[_Member]:
        keeps = not exact or _keeps_sums(members, members[0].start.args[2])
        return members if keeps else []

    def write(self, emit: Emitter, members: list[_Member]) -> list[Node]:
        ranks = members[0].start.args[2]
        reduced = _reduced(emit, members, ranks, members[0].start.args[1:])
        sizes = [one.value.numel() for one in members]
        parts = emit.call(aten.split_with_sizes.default, reduced, sizes)
        taken = [emit.call(operator.getitem, parts, number) for number in range(len(members))]
        shapes = [list(one.value.shape) for one in members]
        return [emit.reshaped(*pair) for pair in zip(taken, shapes)]


def _reduced(emit: Emitter, members: list[_Member], ranks: int, args: tuple[Any, ...]) -> Node:
    rows = [emit.call(aten.reshape.default, one.given, [ranks, -1]) for one in members]
    packed = emit.call(aten.reshape.default, emit.call(aten.cat.default, rows, 1), [-1])
    start = emit.call(functional.reduce_scatter_tensor.default, packed, *args)
    return emit.call(functional.wait_tensor.default, start)


class _Reduce:
    """All-reduces: as a reduce-scatter and an all-gather, or one that is as long as all of them."""

    name = "all_reduce"

    def taken(self, members: list[_Member], exact: bool) -> list[_Member]:
        return self._shared(members) if exact else members

    def _shared(self, members: list[_Member]) -> list[_Member]:
        """Those of which every rank can add up an equal part, if that keeps bits and gains
        anything."""
        _, operation, group = members[0].start.args
        ranks = _ranks(group)
        even = [one for one in members if one.elements % ranks == 0]
        # Two collectives for two would gain nothing.
        is_worth_it = operation == "sum" and len(even) > 2
        return even if is_worth_it and _keeps_sums(even, ranks) else []

    def write(self, emit: Emitter, members: list[_Member]) -> list[Node]:
        _, operation, group = members[0].start.args
        ranks = _ranks(group)
        if len(self._shared(members)) == len(members):
            part = _reduced(emit, members, ranks, (operation, ranks, group))
            start = emit.call(functional.all_gather_into_tensor.default, part, ranks, group)
            gathered = emit.call(functional.wait_tensor.default, start)
            return _handed_out(emit, gathered, members, ranks)
        flat = [emit.reshaped(one.given, [one.elements]) for one in members]
        packed = emit.call(aten.cat.default, flat)
        start = emit.call(functional.all_reduce.default, packed, operation, group)
        sizes = [one.value.numel() for one in members]
        whole = emit.call(functional.wait_tensor.default, start)
        parts = emit.call(aten.split_with_sizes.default, whole, sizes)
        taken = [emit.call(operator.getitem, parts, number) for number in range(len(members))]
        shapes = [list(one.value.shape) for one in members]
        return [emit.reshaped(*pair) for pair in zip(taken, shapes)]


def _keeps_sums(members: list[_Member], ranks: int) -> bool:
    """Whether every element is added up in the same sequence as before."""
    sizes = [one.elements for one in members]
    return ranks == 2 or adds_up_alike(value_of(members[0].given), [*sizes, sum(sizes)], ranks)


def adds_up_alike(given: torch.Tensor, sizes: Sequence[int], ranks: int) -> bool:
    """Whether each element of tensors of these sizes is added up on the rank whose part it is, so
    that the sequence is the same in all. The tensors are of the kind of ``given``."""
    is_even = _is_even_on_gloo if given.device.type == "cpu" else _is_even
    return all(is_even(size, given.element_size(), ranks) for size in sizes)


def _is_even(elements: int, _: int, ranks: int) -> bool:
    return elements % ranks == 0


def _is_even_on_gloo(elements: int, bytes_of_each: int, ranks: int) -> bool:
    """Gloo adds up in segments of at most 1 MiB, at least two for each rank, and as many for each;
    if they are rounded up, ranks' parts move. Its reduce-scatter is an all-reduce."""
    least = -(-elements * bytes_of_each // SEGMENT)
    segments = -(-max(least, 2 * ranks) // ranks) * ranks
    return elements % segments == 0


#: The largest segment of gloo's ring, in bytes.
SEGMENT = 1 << 20


def _ranks(group: str) -> int:
    from .._handover import group_ranks

    return len(group_ranks(group))


def _writer(members: list[_Member]) -> _Gather | _Scatter | _Reduce:
    return _WRITERS[members[0].start.target]


_WRITERS = {
    functional.all_gather_into_tensor.default: _Gather(),
    functional.reduce_scatter_tensor.default: _Scatter(),
    functional.all_reduce.default: _Reduce(),
}
