"""What a piece of a tensor is, whatever shape the tensor has.

A tensor's elements, in sequence, are a number of equal *blocks*; of each block, piece ``k`` of
``pieces`` has the ``k``-th of as many equal parts. So reshaping changes neither blocks nor pieces,
and what permutes axes only changes how many blocks there are. Rows of several ranks, for example,
are as many blocks as there are ranks, and each piece has some rows of every rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """Where a tensor is cut: ``shape[axis]`` is ``outer`` blocks."""

    axis: int
    outer: int


def place_of(shape: Sequence[int], blocks: int, pieces: int) -> Place | None:
    """The axis that all blocks are cut along, if it is one, and all pieces are equal."""
    before = 1
    for axis, size in enumerate(shape):
        upto = before * size
        if blocks % before or not upto:
            return None
        if upto % blocks == 0 and upto // blocks % pieces == 0:
            return Place(axis, blocks // before)
        before = upto
    return None


def piece_shape(shape: Sequence[int], place: Place, pieces: int) -> list[int]:
    """Of one piece."""
    return [size // pieces if axis == place.axis else size for axis, size in enumerate(shape)]


def by_block(shape: Sequence[int], place: Place) -> list[int]:
    """With an axis of blocks before the one that is cut."""
    axis, outer = place
    return [*shape[:axis], outer, shape[axis] // outer, *shape[axis + 1 :]]


def permuted(shape: Sequence[int], place: Place, axes: Sequence[int]) -> int:
    """The blocks of what has its axes permuted: axis ``k`` of the result is ``axes[k]``."""
    before = [shape[axis] for axis in axes[: axes.index(place.axis)]]
    return math.prod(before) * place.outer


def inverse(axes: Sequence[int]) -> list[int]:
    """What undoes a permutation."""
    return sorted(range(len(axes)), key=axes.__getitem__)
