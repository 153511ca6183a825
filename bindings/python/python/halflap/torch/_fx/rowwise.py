"""Which operations can be computed piece by piece, and what each piece reads.

Products of which each row is one of the result, elementwise operations, and what only moves
elements: reshapes, permutations, and a split whose parts are concatenated along another axis, which
is what torch makes of a gather along an axis other than the first.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from .blocks import Place, inverse, permuted, place_of
from .traits import traits_of, written_by
from .units import value_of

aten = torch.ops.aten

#: Where the operand stands whose rows are those of the result.
PRODUCTS = {
    aten.mm.default: 0,
    aten.addmm.default: 1,
    aten.bmm.default: 0,
    aten.linear.default: 0,
    aten.matmul.default: 0,
}

#: Of a piece of a product.
LEAST_ROWS = 16

#: Elementwise, whatever torch's tags say.
ELEMENTWISE = (
    aten.clone.default,
    aten._to_copy.default,
    torch.ops.prims.convert_element_type.default,
)

#: What gives the same elements in the same sequence.
RESHAPES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.alias.default,
    aten.detach.default,
)

SPLITS = (aten.split.Tensor, aten.split_with_sizes.default)


@dataclass(frozen=True)
class Move:
    """Elements in another place: reshaped, their axes permuted, and reshaped to the result."""

    source: Node
    wide: list[int]
    axes: list[int]
    #: All nodes that do it.
    nodes: list[Node]

    def after(self, blocks: int, pieces: int) -> int | None:
        """The blocks of the result."""
        place = place_of(self.wide, blocks, pieces)
        return None if place is None else permuted(self.wide, place, self.axes)

    def before(self, blocks: int, pieces: int) -> int | None:
        """The blocks of what is moved."""
        moved = [self.wide[axis] for axis in self.axes]
        place = place_of(moved, blocks, pieces)
        return None if place is None else permuted(moved, place, inverse(self.axes))


@dataclass
class Step:
    """An operation that is computed piece by piece."""

    node: Node
    #: Of its result.
    blocks: int
    #: What is cut of what it reads, with the blocks of each, and what is read as a whole.
    given: dict[Node, int]
    outside: set[Node] = field(default_factory=set)
    move: Move | None = None

    @property
    def nodes(self) -> list[Node]:
        """All nodes that it stands for."""
        return [self.node] if self.move is None else self.move.nodes


def step_of(node: Node, cut: Mapping[Node, int], pieces: int) -> Step | None:
    """An operation on values that are cut, if it can be computed piece by piece."""
    move = move_of(node)
    read = [one for one in node.all_input_nodes if one in cut] if move is None else [move.source]
    if not read or read[0] not in cut:
        return None
    blocks = cut[read[0]] if move is None else move.after(cut[read[0]], pieces)
    step = None if blocks is None else step_to(node, blocks, pieces)
    agrees = step is not None and all(step.given.get(one) == cut[one] for one in read)
    return step if agrees else None


def step_to(node: Node, blocks: int, pieces: int) -> Step | None:
    """The operation that gives a value in blocks, if it can be computed piece by piece."""
    shape = shape_of(node)
    place = None if shape is None else place_of(shape, blocks, pieces)
    if shape is None or place is None or not isinstance(node.target, OpOverload):
        return None
    if not traits_of(node).is_plain or written_by(node):
        return None
    move = move_of(node)
    if move is not None:
        source = move.before(blocks, pieces)
        fits = source is not None and place_of(shape_of(move.source), source, pieces) is not None
        return Step(node, blocks, {move.source: source}, set(), move) if fits else None
    if node.target in PRODUCTS:
        return _product(node, blocks, place) if _has_rows(node, pieces) else None
    is_elementwise = torch.Tag.pointwise in node.target.tags or node.target in ELEMENTWISE
    return _elementwise(node, blocks, place) if is_elementwise else None


def shape_of(node: Any) -> list[int] | None:
    """A tensor's sizes, if all are numbers."""
    value = value_of(node) if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor) or not value.dim():
        return None
    return list(value.shape) if all(isinstance(size, int) for size in value.shape) else None


def _has_rows(node: Node, pieces: int) -> bool:
    """Whether pieces of a product have enough rows: with fewer, libraries use other kernels, which
    add up in another sequence."""
    shape = shape_of(node)
    rows = shape[1] if node.target is aten.bmm.default else math.prod(shape[:-1])
    return rows // pieces >= LEAST_ROWS


def _product(node: Node, blocks: int, place: Place) -> Step | None:
    """Cut along rows alone: a piece of a sum over the inner axis would be another sum."""
    number = PRODUCTS[node.target]
    rows, others = node.args[number], [*node.args[:number], *node.args[number + 1 :]]
    shape, made = shape_of(rows), shape_of(node)
    if shape is None or rows in others or shape[:-1] != made[:-1]:
        return None
    last = len(made) - 1
    if place.axis == last or (node.target is aten.bmm.default and place.axis != 1):
        return None
    if node.target is aten.matmul.default and len(shape_of(others[0]) or []) != 2:
        return None
    # What is added must be the same for all rows.
    is_added = node.target is aten.addmm.default
    if is_added and (node.kwargs or _is_cut(others[0], made, place) is not False):
        return None
    return Step(node, blocks, {rows: blocks}, {one for one in others if isinstance(one, Node)})


def _elementwise(node: Node, blocks: int, place: Place) -> Step | None:
    step = Step(node, blocks, {})
    for one in node.all_input_nodes:
        is_cut = _is_cut(one, shape_of(node), place)
        if is_cut is None:
            return None
        if is_cut:
            step.given[one] = blocks
        else:
            step.outside.add(one)
    return step if step.given else None


def _is_cut(node: Node, made: list[int], place: Place) -> bool | None:
    """Whether an operand has the axis that a result is cut along: then it is cut in the same way.
    None if it cannot be."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        return False
    axis = place.axis - (len(made) - value.dim())
    if axis < 0 or value.shape[axis] == 1:
        return False
    upto = place.axis + 1
    return True if [*value.shape[:upto]] == made[:upto] and axis == place.axis else None


def move_of(node: Node) -> Move | None:
    """What an operation moves, if it does nothing else."""
    if node.target is aten.cat.default:
        return _gathered(node)
    shape = shape_of(node.args[0]) if node.args else None
    if shape is None:
        return None
    axes = [*range(len(shape))]
    if node.target is aten.permute.default:
        axes = [axis % len(shape) for axis in node.args[1]]
    elif node.target is aten.transpose.int:
        first, second = node.args[1], node.args[2]
        axes[first], axes[second] = axes[second], axes[first]
    elif node.target is aten.t.default:
        axes.reverse()
    elif node.target not in RESHAPES:
        return None
    return Move(node.args[0], shape, axes, [node])


def _gathered(node: Node) -> Move | None:
    """A concatenation of all parts of a split, along another axis."""
    parts = node.args[0]
    if not all(isinstance(one, Node) and one.target is operator.getitem for one in parts):
        return None
    split = parts[0].args[0]
    in_sequence = [(one.args, [*one.users]) for one in parts] == [
        ((split, number), [node]) for number in range(len(parts))
    ]
    if split.target not in SPLITS or not in_sequence or len(split.users) != len(parts):
        return None
    shapes = [shape_of(one) for one in parts]
    given = shape_of(split.args[0])
    if given is None or shapes[0] is None or any(one != shapes[0] for one in shapes):
        return None
    axis = (split.args[2] if len(split.args) > 2 else 0) % len(given)
    along = (node.args[1] if len(node.args) > 1 else 0) % len(given)
    wide = [*given[:axis], len(parts), *shapes[0][axis:]]
    axes = [one for one in range(len(wide)) if one != axis]
    axes.insert(axes.index(along if along < axis else along + 1), axis)
    return Move(split.args[0], wide, axes, [split, *parts, node])
