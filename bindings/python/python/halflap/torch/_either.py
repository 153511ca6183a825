"""The entry point of a compiled graph that can run in two orders of collectives.

Its generated module holds the free program, and the text of the same program with collectives in
the program's order. Before the first collective is issued for the first time, ranks agree on one of
them (`_agree`). The text is compiled only if the free order may not run.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.distributed_c10d import GroupMember

from ._agree import Skeleton, decisions, may_run_free

Call = Callable[[list[Any]], Sequence[Any]]


class Either:
    """One of two programs, chosen when it is first called in a process group."""

    def __init__(
        self, free: Call, names: dict[str, Any], skeleton: Skeleton, kept: str | None
    ) -> None:
        self._free = free
        self._names = names
        self._kept = kept
        self._chosen: Call | None = None
        #: The process group of all ranks that it was chosen in.
        self._world: Any = None
        self.skeleton = skeleton
        decisions.offer(skeleton)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        if self._chosen is None or self._world is not GroupMember.WORLD:
            self._world, self._chosen = GroupMember.WORLD, self._choose()
        return self._chosen(arguments)

    def _choose(self) -> Call:
        decisions.offer(self.skeleton)
        is_free = may_run_free(self.skeleton)
        return self._free if is_free or self._kept is None else load(self._kept, self._names)


def either(free: Call, names: dict[str, Any], offered: dict[str, Any], kept: str | None) -> Either:
    """What the last line of a generated program calls."""
    given = {**offered, "groups": tuple(offered["groups"]), "order": tuple(offered["order"])}
    skeleton = Skeleton(**given)
    return Either(free, names, skeleton, kept)


def load(packed: str, names: dict[str, Any]) -> Call:
    """Another program of the graph whose module has these names."""
    from torch._inductor.codecache import PyCodeCache

    # With attributes, torch makes a module of its own: graphs with the same text may have
    # different constants.
    module = PyCodeCache.load_by_key_path(*PyCodeCache.write(unpacked(packed)), attrs={})
    # Inductor has put constants into the first module, where the text has None or nothing.
    for name, value in names.items():
        if getattr(module, name, None) is None:
            setattr(module, name, value)
    return module.call


def packed(text: str) -> str:
    """A program's text, small and on one line."""
    return base64.b85encode(zlib.compress(text.encode(), 6)).decode()


def unpacked(text: str) -> str:
    """The text that was packed."""
    return zlib.decompress(base64.b85decode(text)).decode()
