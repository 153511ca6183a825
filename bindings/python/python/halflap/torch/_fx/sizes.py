"""Sizes of an FX graph's tensors as numbers, read without adding a guard.

A graph need not be Inductor's, so this asks the symbols themselves. Comparing a symbolic size, or
taking its `int`, would guard it; its hint guards nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._inductor import config


class Sizes:
    """Numbers for sizes; those that depend on data are assumed, and the same on all ranks."""

    def __init__(self, unbacked: int | None = None) -> None:
        self._fallback = config.unbacked_symint_fallback if unbacked is None else unbacked
        #: The sizes that were assumed, by their expressions.
        self.assumed: dict[str, int] = {}

    def number(self, size: Any) -> int:
        """Of a number or a symbolic one."""
        if isinstance(size, int):
            return size
        node = getattr(size, "node", None)
        if node is None:
            return int(size)
        if node.has_hint():
            return max(0, int(node.hint))
        self.assumed[str(node)] = self._fallback
        return self._fallback

    def product(self, sizes: Iterable[Any]) -> int:
        """Of all of them."""
        product = 1
        for size in sizes:
            product *= size if type(size) is int else self.number(size)
        return product

    def bytes_of(self, value: Any) -> int:
        """Of a tensor, or of all in a tuple or list; empty for anything else."""
        if isinstance(value, torch.Tensor):
            return self.product(value.shape) * value.element_size()
        if isinstance(value, (tuple, list)):
            return sum([self.bytes_of(one) for one in value])
        return 0
