"""The entry point of a compiled graph that can run in two orders of collectives.

Its generated module holds the free program, and the text of the same program with collectives in the
program's order. Before the first collective is issued for the first time, ranks agree on one of them
(`_agree`). The text is compiled only if the free order may not run.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from ._agree import Skeleton, decisions, may_run_free

Call = Callable[[list[Any]], Sequence[Any]]


class Either:
    """One of two programs, chosen when it is first called."""

    def __init__(
        self, free: Call, names: dict[str, Any], skeleton: Skeleton, kept: str | None
    ) -> None:
        self._free = free
        self._names = names
        self._kept = kept
        self._chosen: Call | None = None
        self.skeleton = skeleton
        # Variants that are compiled from now on must follow this order.
        decisions.current().offered.setdefault(skeleton.key, skeleton.order)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        if self._chosen is None:
            self._chosen = self._choose()
        return self._chosen(arguments)

    def _choose(self) -> Call:
        is_free = may_run_free(self.skeleton)
        return self._free if is_free or self._kept is None else self._load(self._kept)

    def _load(self, packed: str) -> Call:
        from torch._inductor.codecache import PyCodeCache

        module = PyCodeCache.load(unpacked(packed))
        # Inductor has put constants into the other module, beside what its text defines.
        for name, value in self._names.items():
            if not hasattr(module, name):
                setattr(module, name, value)
        return module.call


def either(free: Call, names: dict[str, Any], offered: dict[str, Any], kept: str | None) -> Either:
    """What the last line of a generated program calls."""
    skeleton = Skeleton(offered["name"], tuple(offered["groups"]), tuple(offered["order"]))
    return Either(free, names, skeleton, kept)


def packed(text: str) -> str:
    """A program's text, small and on one line."""
    return base64.b85encode(zlib.compress(text.encode(), 6)).decode()


def unpacked(text: str) -> str:
    """The text that was packed."""
    return zlib.decompress(base64.b85decode(text)).decode()
