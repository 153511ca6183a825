"""New nodes in an FX graph, with the fake tensors that others read sizes of."""

from __future__ import annotations

from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.utils import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx import Graph, Node

from .._fitting import REWRITE
from .._handover import Unsupported
from .units import value_of

aten = torch.ops.aten


def _copied(given: torch.Tensor) -> torch.Tensor:
    """What a copy of rows is: without the gaps between them."""
    strides = given.stride()
    if [*strides] != sorted(strides, reverse=True) or 0 in strides:
        return aten.clone.default(given)
    return torch.empty(given.shape, dtype=given.dtype, device="meta")


#: Operators that are written by the thousand. What they give depends on sizes alone, and kernels of
#: the meta device know it as well as a fake mode does, in a tenth of the time.
PLAIN = {
    aten.reshape.default: torch.reshape,
    aten.cat.default: torch.cat,
    aten.clone.default: _copied,
    aten.split_with_sizes.default: torch.split_with_sizes,
}


class Emitter:
    """Puts calls of operators before a node."""

    def __init__(self, graph: Graph, before: Node, like: Node, rewrite: str | None = None) -> None:
        self._graph, self._before = graph, before
        mode = detect_fake_mode([value_of(like)])
        if mode is None:
            raise Unsupported(f"{like.name} has no fake tensor: sizes are not known")
        self._mode: FakeTensorMode = mode
        named = ("stack_trace", "nn_module_stack", "custom", "partitioner_tag")
        self._meta = {name: like.meta[name] for name in named if name in like.meta}
        if rewrite is not None:
            self._meta[REWRITE] = rewrite

    def call(self, target: Any, *args: Any, **named: Any) -> Node:
        """A call of an operator, with what it gives."""
        with self._graph.inserting_before(self._before):
            node = self._graph.call_function(target, args, named)
        values = [self._values(one) for one in args]
        others = {name: self._values(one) for name, one in named.items()}
        node.meta.update(self._meta)
        node.meta["val"] = self._given(target, values, others)
        return node

    def reshaped(self, node: Node, shape: list[int]) -> Node:
        """A node in a shape, which is itself if it has that."""
        is_same = [*value_of(node).shape] == shape
        return node if is_same else self.call(aten.reshape.default, node, shape)

    def _values(self, given: Any) -> Any:
        """What an argument is: of nodes, what they give."""
        if isinstance(given, Node):
            return self._in_mode(value_of(given))
        return [self._values(one) for one in given] if isinstance(given, (list, tuple)) else given

    def _in_mode(self, value: Any) -> Any:
        """A value of another mode in this one: a graph that was traced with real tensors has a mode
        for each node."""
        is_other = type(value) is FakeTensor and value.fake_mode is not self._mode
        if not is_other or value._has_symbolic_sizes_strides:
            return value
        sizes, strides = [*value.shape], [*value.stride()]
        same = torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
        return FakeTensor(self._mode, same, value.fake_device)

    def _given(self, target: Any, values: Any, others: dict[str, Any]) -> Any:
        if not isinstance(target, torch._ops.OpOverload):
            # A part of several.
            return target(*values, **others)
        plain = None if others else PLAIN.get(target)
        device = None if plain is None else self._plain_device(values[0])
        if plain is None or device is None:
            with self._mode, enable_python_dispatcher():
                return target(*values, **others)
        with in_kernel_invocation_manager(self._mode):
            given = plain(*values)
        if isinstance(given, (tuple, list)):
            return [FakeTensor(self._mode, one, device) for one in given]
        return FakeTensor(self._mode, given, device)

    def _plain_device(self, given: Any) -> torch.device | None:
        """The device of what is given, if all of it is of this mode, and its sizes are numbers."""
        tensors = given if isinstance(given, (tuple, list)) else (given,)
        devices = set()
        for one in tensors:
            is_ours = type(one) is FakeTensor and one.fake_mode is self._mode
            if not is_ours or one._has_symbolic_sizes_strides:
                return None
            devices.add(one.fake_device)
        return devices.pop() if len(devices) == 1 else None
