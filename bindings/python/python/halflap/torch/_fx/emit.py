"""New nodes in an FX graph, with the fake tensors that others read sizes of."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.utils import detect_fake_mode
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import Graph, Node

from .._handover import Unsupported
from .units import value_of


class Emitter:
    """Puts calls of operators before a node."""

    def __init__(self, graph: Graph, before: Node, like: Node) -> None:
        self._graph, self._before, self._like = graph, before, like
        self._mode = detect_fake_mode([value_of(like)])
        if self._mode is None:
            raise Unsupported(f"{like.name} has no fake tensor: sizes are not known")

    def call(self, target: Any, *args: Any, **named: Any) -> Node:
        """A call of an operator, with what it gives."""
        with self._graph.inserting_before(self._before):
            node = self._graph.call_function(target, args, named)
        values, others = torch.fx.map_arg((args, named), value_of)
        with self._mode, enable_python_dispatcher():
            node.meta["val"] = target(*values, **others)
        for name in ("stack_trace", "nn_module_stack", "custom", "partitioner_tag"):
            if name in self._like.meta:
                node.meta[name] = self._like.meta[name]
        return node
