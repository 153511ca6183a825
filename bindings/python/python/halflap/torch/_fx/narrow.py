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
    found = []
    for node in [*graph.nodes]:
        if node.target in (GATHER, EXCHANGE) and _narrow(graph, node):
            found.append(node.name)
    return found


def _narrow(graph: Graph, start: Node) -> bool:
    """Keeps the collective's node, so that it is still known by its name."""
    wait = wait_of(start)
    given = value_of(start.args[0])
    if wait is None or not isinstance(given, torch.Tensor):
        return False
    users = list(wait.users)
    types = {_type(user) for user in users}
    wanted = types.pop() if len(types) == 1 else None
    if wanted is None or wanted.itemsize >= given.element_size():
        return False
    emit = Emitter(graph, start, start)
    part = emit.call(CONVERTS[0], start.args[0], wanted)
    start.args = (part, *start.args[1:])
    for node in (start, wait):
        node.meta["val"] = value_of(node).to(wanted)
        # Torch's own sizes of it.
        node.meta.pop("tensor_meta", None)
    for user in users:
        user.replace_all_uses_with(wait)
        graph.erase_node(user)
    return True


def _type(user: Node) -> torch.dtype | None:
    """What a node converts to, if that is all it does."""
    if user.target in CONVERTS:
        return user.args[1]
    is_copy = user.target is torch.ops.aten._to_copy.default
    return user.kwargs["dtype"] if is_copy and [*user.kwargs] == ["dtype"] else None
