"""Sizes as numbers, read without adding a guard.

With dynamic shapes a size is an expression of symbols. Comparing one, or taking its `int`, guards
it: the graph is then compiled for that size alone. A hint is the number that the graph was traced
with, and guards nothing. A symbol that depends on data (an *unbacked* one) has no hint, so its
value is assumed, and to be the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._inductor import config
from torch._inductor import memory as inductor_memory
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.symbol import SymT, symbol_is_type

#: What depends on an assumption differs between these two.
LEAST, MOST = 1, 1 << 40


class Hints:
    """The sizes of the graph that Inductor compiles."""

    def __init__(self, unbacked: int | None = None) -> None:
        self._variables = V.graph.sizevars
        # torch 2.10 has the second, later ones the first.
        hint = getattr(self._variables, "optimization_hint", None)
        self._hint = hint or self._variables.atomically_apply_size_hint
        self._fallback = config.unbacked_symint_fallback if unbacked is None else unbacked
        self._numbers: dict[Any, int] = {}
        #: Whether the graph has sizes that depend on data.
        symbols = self._variables.shape_env.var_to_range
        self.has_unbacked = any(symbol_is_type(symbol, SymT.UNBACKED_INT) for symbol in symbols)
        #: The symbols whose values were assumed, with these values.
        self.assumed: dict[str, int] = {}

    def product(self, sizes: Iterable[Any]) -> int:
        """Of numbers and expressions."""
        elements = 1
        for size in sizes:
            elements *= size.p if getattr(size, "is_Integer", False) else self.number(size)
        return elements

    def number(self, size: Any) -> int:
        """Of a number, a symbolic one, or an expression."""
        if isinstance(size, int):
            return size
        if getattr(size, "is_Integer", False):
            # What `int` of one of sympy's comes to, after several calls.
            return size.p
        expression = _expression(size)
        number = self._numbers.get(expression)
        if number is None:
            number = self._numbers[expression] = self._with(expression, self._fallback)
            if self.is_assumed(expression):
                for symbol in self._unbacked(expression):
                    self.assumed[str(symbol)] = self._with(symbol, self._fallback)
        return number

    def is_assumed(self, size: Any) -> bool:
        """Whether a size depends on what is assumed; not where the program asserts what it is."""
        if not self.has_unbacked or isinstance(size, int):
            return False
        expression = _expression(size)
        if not self._unbacked(expression):
            return False
        return self._with(expression, LEAST) != self._with(expression, MOST)

    def _with(self, expression: Any, assumption: int) -> int:
        return max(0, int(self._hint(expression, fallback=assumption)))

    def _unbacked(self, expression: Any) -> list[Any]:
        return sorted(free_unbacked_symbols(self._variables.simplify(expression)), key=str)

    def buffers(self, buffers: dict[str, Any]) -> dict[str, tuple[int, int]]:
        """What each buffer allocates and frees, by Inductor's own count. It takes sizes that it
        does not know for 0, so while it counts, it is given our numbers for these."""
        variables = self._variables
        name = "optimization_hint" if hasattr(variables, "optimization_hint") else "size_hint"
        hint = getattr(variables, name)

        def assumed(size: Any, fallback: int | None = None, **others: Any) -> int:
            return self.number(size) if fallback == 0 else hint(size, fallback=fallback, **others)

        setattr(variables, name, assumed)
        try:
            return inductor_memory.compute_size_for_scheduler_buffer(buffers)
        finally:
            delattr(variables, name)


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size
