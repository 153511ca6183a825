"""Converts before gathering: an all-gather whose result is only ever narrowed moves fewer bytes,
and the same values, if each rank narrows its own part first.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from .emit import Emitter
from .regions import EXCHANGE, GATHER, wait_of
from .units import value_of

#: Conversions of the type alone.
CONVERTS = (torch.ops.prims.convert_element_type.default,)


def narrow_all(graph: Graph) -> list[str]:
    """Moves conversions before all-gathers and all-to-alls; the names of these."""
    found = [(node, wanted) for node in graph.nodes if (wanted := _wanted(node)) is not None]
    for node, wanted in found:
        _narrow(graph, node, wanted)
    return [node.name for node, _ in found]


def can_narrow(graph: Graph) -> bool:
    """Whether there is such a conversion."""
    return any(_wanted(node) is not None for node in graph.nodes)


def _wanted(start: Node) -> torch.dtype | None:
    """The narrower type that all who use what a collective gives convert it to."""
    wait = wait_of(start) if start.target in (GATHER, EXCHANGE) else None
    given = None if wait is None else value_of(start.args[0])
    if wait is None or not isinstance(given, torch.Tensor):
        return None
    types = {_type(user) for user in wait.users}
    wanted = types.pop() if len(types) == 1 else None
    return None if wanted is None or wanted.itemsize >= given.element_size() else wanted


def _narrow(graph: Graph, start: Node, wanted: torch.dtype) -> None:
    """Keeps the collective's node, so that it is still known by its name."""
    wait = wait_of(start)
    emit = Emitter(graph, start, start)
    part = emit.call(CONVERTS[0], start.args[0], wanted)
    start.args = (part, *start.args[1:])
    for node in (start, wait):
        node.meta["val"] = value_of(node).to(wanted)
        # Torch's own sizes of it.
        node.meta.pop("tensor_meta", None)
    for user in [*wait.users]:
        user.replace_all_uses_with(wait)
        graph.erase_node(user)


def _type(user: Node) -> torch.dtype | None:
    """What a node converts to, if that is all it does."""
    if user.target in CONVERTS:
        return user.args[1]
    is_copy = user.target is torch.ops.aten._to_copy.default
    return user.kwargs["dtype"] if is_copy and [*user.kwargs] == ["dtype"] else None
