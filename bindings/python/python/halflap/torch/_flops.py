"""The floating-point operations of kernels, from the sizes of what they are given.

Torch's own counter runs each operation on fake tensors, which takes a thousand times as long and
guards dynamic sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch._ops import OpOverload


class Numbers(Protocol):
    """What makes numbers of sizes."""

    def number(self, size: Any) -> int:
        """Of a number, a symbolic one, or an expression."""

    def product(self, sizes: Iterable[Any]) -> int:
        """Of all of them."""


#: Products of matrices, and where the first of the two stands among the arguments.
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_scaled_mm": 0, "_int_mm": 0}
#: The same before they are decomposed, as `torch.export` has them.
PRODUCTS |= {"matmul": 0, "linear": 0}
GROUPED = ("_grouped_mm", "_scaled_grouped_mm")
CONVOLUTIONS = ("convolution", "convolution_backward")

#: How names of attention begin, and which axis of queries and keys is the sequence.
ATTENTION = {
    "_scaled_dot_product_": -2,
    "_cudnn_attention_": -2,
    "flex_attention": -2,
    "_flash_attention_": -3,
    "_flash_attn_": -3,
    "_efficient_attention_": -3,
    "_varlen_attn": -3,
}


class Operation(NamedTuple):
    """What is known of an operation by its name and schema."""

    name: str
    #: Of a product, where its first matrix stands among the arguments.
    first: int | None = None
    #: Of others that are counted, the names of their arguments.
    arguments: tuple[str, ...] = ()
    #: Of attention, which axis is the sequence.
    axis: int | None = None


def flops_of(kernel: Any, hints: Numbers) -> int:
    """The floating-point operations of a kernel; 0 where they do not matter."""
    operation = operation_of(getattr(kernel, "op_overload", None))
    if operation.first is not None:
        # Torch's objects lie all over the memory: what need not be looked at is not.
        summed = kernel.inputs[operation.first].get_layout().size[-1]
        return 2 * hints.product(kernel.layout.size) * hints.number(summed)
    if operation.arguments and hasattr(kernel, "unflatten_args"):
        args, kwargs = kernel.unflatten_args(kernel.inputs, kernel.constant_args)
        return Call(operation, args, kwargs).flops(kernel, hints)
    # One of these is what the kernel computes; the others are views of what it reads, or done to
    # its result in place.
    for origin in () if kernel is None else kernel.get_origins():
        operation = operation_of(origin.target)
        if operation.first is not None:
            return flops_of_node(origin, hints)
        if operation.arguments:
            return Call(operation, origin.args, origin.kwargs).flops(kernel, hints)
    return 0


def flops_of_node(node: torch.fx.Node, hints: Numbers) -> int:
    """The same for a node of an FX graph."""
    operation = operation_of(node.target)
    if operation.first is not None:
        made, first = node.meta["val"].shape, _sizes(node.args[operation.first])
        return 2 * hints.product(made) * hints.number(first[-1])
    if operation.arguments:
        return Call(operation, node.args, node.kwargs).flops(_Made(node), hints)
    return 0


class _Made(NamedTuple):
    """What a node of an FX graph makes, asked as a kernel of Inductor's is."""

    node: torch.fx.Node

    def get_size(self) -> Sequence[Any]:
        """Of its result."""
        return self.node.meta["val"].shape


def operation_of(target: Any) -> Operation:
    """Looked up once for each overload."""
    operation = _operations.get(id(target))
    if operation is None:
        operation = _look_up(target)
        if isinstance(target, OpOverload):
            _operations[id(target)] = operation
    return operation


#: By their identities: overloads live as long as torch does, and take long to hash.
_operations: dict[int, Operation] = {}


def _look_up(target: Any) -> Operation:
    # ``mm`` of ``torch.ops.aten.mm.out``.
    name = getattr(getattr(target, "_overloadpacket", target), "__name__", "")
    axis = next((axis for start, axis in ATTENTION.items() if name.startswith(start)), None)
    if axis is None and name not in (*GROUPED, *CONVOLUTIONS):
        return Operation(name, PRODUCTS.get(name))
    # Flex attention has no schema.
    schema = getattr(target, "_schema", None)
    names = "query key value".split() if schema is None else [one.name for one in schema.arguments]
    return Operation(name, None, tuple(names), axis)


def _sizes(tensor: Any) -> Sequence[Any]:
    """Of a tensor in Inductor's graph or in FX's."""
    return tensor.meta["val"].shape if isinstance(tensor, torch.fx.Node) else tensor.get_size()


class Call:
    """An operation, and its arguments by the names that they have in its schema."""

    def __init__(
        self, operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._operation = operation
        self._arguments = {**dict(zip(operation.arguments, args)), **kwargs}

    def flops(self, kernel: Any, hints: Numbers) -> int:
        """0 of an operation of a known name with arguments of other names."""
        if self._operation.axis is not None:
            return self._attention(self._operation.axis, hints)
        if self._operation.name in GROUPED:
            return self._grouped(hints)
        return self._convolution(kernel, hints)

    def _get(self, *names: str) -> Any:
        """The argument of the first of these names that has one."""
        for name in names:
            if self._arguments.get(name) is not None:
                return self._arguments[name]
        return None

    def _shape(self, hints: Numbers, *names: str) -> list[int]:
        tensor = self._get(*names)
        return [] if tensor is None else [hints.number(size) for size in _sizes(tensor)]

    def _grouped(self, hints: Numbers) -> int:
        """Groups lie along the rows of the first matrix, along what is summed over, or along the
        columns of the second."""
        first, second = self._shape(hints, "self"), self._shape(hints, "mat2")
        if len(first) > len(second):
            return 2 * math.prod(second) * first[-2]
        return 2 * math.prod(first) * second[-1]

    def _convolution(self, kernel: Any, hints: Numbers) -> int:
        """Each element of the result, or of the input of a transposed one, takes as many products
        as a filter has weights; in the backward pass once for each gradient."""
        gradients = self._get("output_mask")
        made = kernel.get_size() if gradients is None else _sizes(self._get("grad_output"))
        across = _sizes(self._get("input")) if self._get("transposed") else made
        elements = hints.product(across) * hints.product(_sizes(self._get("weight"))[1:])
        return 2 * elements * (1 if gradients is None else sum(gradients[:2]))

    def _attention(self, axis: int, hints: Numbers) -> int:
        """For each pair of a query and a key that it sees, a product along a head and one along a
        value; backward three and two."""
        query, key = self._shape(hints, "query", "q"), self._shape(hints, "key", "k")
        value = self._shape(hints, "value", "v")
        if len(query) < 3 or len(key) < 3 or not value:
            return 0
        queries, keys = query[axis], key[axis]
        longest = self._get("max_q", "max_seqlen_q"), self._get("max_k", "max_seqlen_k")
        if len(query) == 3 and all(length is not None for length in longest):
            # Sequences that lie one after the other, all taken for as long as the longest.
            queries, keys = [hints.number(length) for length in longest]
        pairs = queries * keys
        if self._get("is_causal", "causal", "custom_mask_type"):
            pairs = causal_pairs(queries, keys) if axis == -2 else causal_pairs(keys, queries)
        heads, values = (3, 2) if "backward" in self._operation.name else (1, 1)
        summed = heads * query[-1] + values * value[-1]
        return 2 * math.prod(query[:-1]) * pairs // max(1, queries) * summed


def causal_pairs(queries: int, keys: int) -> int:
    """Pairs of a query and a key that comes no later: the lower triangle of a matrix, its diagonal
    starting in the upper left corner, as `scaled_dot_product_attention` has it. With a diagonal
    that ends in the lower right corner, as flash attention has it, exchange the arguments."""
    square = min(queries, keys)
    return square * (square + 1) // 2 + (queries - square) * keys
