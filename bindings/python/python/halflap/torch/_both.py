"""Generates a graph's program twice: with collectives in the program's order and in the free one.

Inductor's code generation starts from the lowered graph, builds a scheduler, on which our pass
runs, and writes the program. It changes the graph's own tables on the way, so they are restored
before the second generation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import contains_collective
from torch._inductor.virtualized import V

from ._agree import Skeleton, withdraw
from ._either import packed

Generate = Callable[[GraphLowering], Any]


@dataclass
class Build:
    """State shared by our pass and the generation of a graph's program."""

    graph: GraphLowering
    #: What ranks would agree on; None where the program's order is kept without asking.
    skeleton: Skeleton | None = None
    #: The free order, where collectives change places in it, and the graph that it is for.
    free: Any = None
    text: bytes = b""
    #: Whether the free order is being generated now.
    is_second: bool = False
    #: What the pass recorded for this graph.
    ran: Any = None


class _Threads(threading.local):
    build: Build | None = None


_threads = _Threads()


def current_build() -> Build | None:
    """Of the graph whose program this thread generates, if it may have two. Regions in it, which
    are graphs of their own, have one order."""
    build = _threads.build
    return build if build is not None and build.graph is V.graph else None


def generates_both(generate: Generate, on_failure: Callable[[Build, Exception], None]) -> Generate:
    """Inductor's ``GraphLowering.codegen``, which generates both where our pass asks for it."""

    def codegen(graph: GraphLowering) -> Any:
        if not can_have_several(graph) or _threads.build is not None:
            return generate(graph)
        build = _threads.build = Build(graph)
        try:
            return _Generation(build, generate, on_failure).program()
        finally:
            _threads.build = None

    return codegen


def can_have_several(graph: GraphLowering) -> bool:
    """Programs that leave this process, and those that are not text, have one order."""
    if getattr(torch.compiler.config, "compile_on_one_rank", False):
        return False
    special = ("aot_mode", "fx_wrapper", "is_const_graph")
    return type(graph) is GraphLowering and not any(getattr(graph, name, False) for name in special)


@dataclass
class _Generation:
    """Generates a graph's program once or twice."""

    build: Build
    generate: Generate
    on_failure: Callable[[Build, Exception], None]

    def program(self) -> Any:
        """The program to compile."""
        before = Tables(self.build.graph)
        first = self.generate(self.build.graph)
        if self.build.skeleton is None:
            return first
        if self.build.free is None:
            return _ended(first, self.build.skeleton, None)
        after = Tables(self.build.graph)
        names = _issued(self.build.graph)
        try:
            before.put_back()
            self.build.is_second = True
            return _ended(self._second(names), self.build.skeleton, first[0].value)
        except Exception as problem:
            after.put_back()
            withdraw(self.build.skeleton)
            self.on_failure(self.build, problem)
            return first

    def _second(self, names: list[str]) -> Any:
        """The free program; ``names`` are the collectives in the kept one."""
        free = self.generate(self.build.graph)
        if _issued(self.build.graph) != [names[place] for place in self.build.skeleton.order]:
            raise RuntimeError("the generated program does not have the free order")
        return free


def _issued(graph: GraphLowering) -> list[str]:
    """The collectives in the sequence in which the program that was generated last issues them."""
    return [snode.get_name() for snode in graph.scheduler.nodes if contains_collective(snode)]


def _ended(program: Any, skeleton: Skeleton, kept: str | None) -> Any:
    """A program with an end that asks other ranks before it runs."""
    text, *others = program
    text.value += (
        "\n\n# halflap: ranks agree on the order of collectives before they first run this.\n"
        "from halflap.torch._either import either as _halflap_either\n"
        f"call = _halflap_either(call, globals(), {skeleton._asdict()!r}, "
        f"{None if kept is None else packed(kept)!r})\n"
    )
    return (text, *others)


class Tables:
    """The contents of a graph's tables. The tables stay the same objects: others refer to them."""

    def __init__(self, graph: GraphLowering) -> None:
        self._graph = graph
        self._fields = dict(vars(graph))
        sizes = graph.sizevars
        replaced = [sizes.precomputed_replacements, sizes.inv_precomputed_replacements]
        tables = [value for value in [*self._fields.values(), *replaced] if _is_table(value)]
        self._contents = [(table, _copy(table)) for table in tables]

    def put_back(self) -> None:
        """Restores the tables."""
        vars(self._graph).clear()
        vars(self._graph).update(self._fields)
        for table, content in self._contents:
            table.clear()
            (table.extend if isinstance(table, list) else table.update)(content)


def _is_table(value: Any) -> bool:
    return hasattr(value, "clear") and (hasattr(value, "update") or isinstance(value, list))


def _copy(table: Any) -> Any:
    return dict(table) if isinstance(table, dict) else list(table)
