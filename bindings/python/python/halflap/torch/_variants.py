"""Several programs of one graph, side by side in one module, to be measured.

While something is measured or tuned, Inductor's program is generated once for each way to order the
graph. All of them are in the module that torch loads, and `choose` says which one runs. A marked
program also records when each of its nodes starts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch._inductor import config
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import Scheduler
from torch._inductor.utils import contains_collective
from torch._inductor.virtualized import V

from ._both import Tables, can_have_several
from ._either import Call, load, packed
from ._settings import Settings

Order = Callable[[list[Any]], list[Any]]


@dataclass
class Variant:
    """A graph's program in one way."""

    #: The names of its nodes as they run.
    nodes: list[str] = field(default_factory=list)
    #: The names of all nodes, also of those that no code is generated for.
    order: list[str] = field(default_factory=list)
    collectives: list[str] = field(default_factory=list)
    failure: str | None = None
    #: Nanoseconds at which each node started, and the last ended, for each run that was recorded.
    runs: list[list[int]] = field(default_factory=list)


@dataclass
class Graph:
    """A graph whose programs are measured."""

    variants: dict[str, Variant] = field(default_factory=dict)
    #: What a pass that orders it says of it.
    known: dict[str, Any] = field(default_factory=dict)
    name: str = ""


@dataclass
class Building:
    """What is being generated in this thread."""

    lowering: GraphLowering
    graph: Graph
    way: str


class _Threads(threading.local):
    building: Building | None = None


_threads = _Threads()


class Described(NamedTuple):
    """What ranks compare of a way: why it failed, and each graph's collectives in sequence."""

    failure: str | None
    collectives: list[list[str]]


class Variants:
    """The graphs that are compiled while it is installed, each in every way that is given."""

    def __init__(self, ways: dict[str, Order], is_marked: bool) -> None:
        #: The first is that which a graph falls back to where another fails.
        self.ways = ways
        self.is_marked = is_marked
        self.graphs: list[Graph] = []
        self.chosen = next(iter(ways))
        self.is_recording = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Has every graph that is compiled in the block generated in all ways."""
        global _current
        settings = Settings()
        settings.replace(GraphLowering, "codegen", self._codegen(vars(GraphLowering)["codegen"]))
        if self.is_marked:
            entering = vars(Scheduler)["enter_context"]
            settings.replace(Scheduler, "enter_context", _marks_nodes(entering))
        before, _current = _current, self
        try:
            yield
        finally:
            _current = before
            settings.restore()

    is_halflaps = True

    def __call__(self, snodes: list[Any]) -> list[Any]:
        """The pass that is on while graphs are compiled."""
        building = _threads.building
        if building is None:
            return snodes
        return self.ways[building.way](snodes)

    def described(self, way: str) -> Described:
        """A way in all graphs, for other ranks."""
        variants = [graph.variants[way] for graph in self.graphs]
        failures = [one.failure for one in variants if one.failure]
        return Described(failures[0] if failures else None, [one.collectives for one in variants])

    def _codegen(self, generate: Callable[[GraphLowering], Any]) -> Any:
        def codegen(lowering: GraphLowering) -> Any:
            if not can_have_several(lowering) or _threads.building is not None:
                return generate(lowering)
            try:
                return self._several(lowering, generate)
            finally:
                _threads.building = None

        return codegen

    def _several(self, lowering: GraphLowering, generate: Callable[[GraphLowering], Any]) -> Any:
        """The program in the first way, with the texts of the others."""
        graph = Graph()
        number = len(self.graphs)
        self.graphs.append(graph)
        before = Tables(lowering)
        texts: dict[str, str] = {}
        for way in reversed(self.ways):
            before.put_back()
            variant = graph.variants[way] = Variant()
            _threads.building = Building(lowering, graph, way)
            try:
                program = generate(lowering)
            except Exception as problem:
                if way == next(iter(self.ways)):
                    self.graphs.pop()
                    raise
                variant.failure = f"{type(problem).__name__}: {problem}"
                continue
            snodes = lowering.scheduler.nodes
            variant.order = [one.get_name() for one in snodes]
            variant.collectives = [one.get_name() for one in snodes if contains_collective(one)]
            texts[way] = packed(program[0].value)
        return _ended(program, number, texts)


_current: Variants | None = None


def is_measuring() -> bool:
    """Whether what is compiled now is compiled to be measured."""
    return _current is not None


def current_building() -> Building | None:
    """What this thread generates, if it will be measured."""
    return _threads.building


def _marks_nodes(entering: Any) -> Any:
    """Inductor's ``Scheduler.enter_context``, which it calls before each node."""

    def enter_context(scheduler: Scheduler, snode: Any) -> None:
        building = _threads.building
        if building is not None and V.graph is building.lowering and not config.cpp_wrapper:
            # Kernels of several nodes would be one.
            scheduler.flush()
            V.graph.wrapper_code.writeline("_halflap_mark()")
            building.graph.variants[building.way].nodes.append(snode.get_name())
        entering(scheduler, snode)

    return enter_context


def _ended(program: Any, number: int, texts: dict[str, str]) -> Any:
    """A program with an end that chooses between all of them."""
    text, *others = program
    text.value += (
        "\n\n# halflap: the same program in other orders, to be measured.\n"
        "from halflap.torch._variants import Several as _HalflapSeveral, mark as _halflap_mark\n"
        f"call = _HalflapSeveral(call, globals(), {number}, {texts!r})\n"
    )
    return (text, *others)


class Several:
    """A graph's programs: runs the one that is chosen."""

    def __init__(
        self, first: Call, names: dict[str, Any], number: int, texts: dict[str, str]
    ) -> None:
        assert _current is not None
        self._owner = _current
        self._graph = _current.graphs[number]
        self._calls = {next(iter(_current.ways)): first}
        self._names = names
        self._texts = texts

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        owner = self._owner
        # A way that failed for this graph runs the first.
        way = owner.chosen if owner.chosen in self._texts else next(iter(owner.ways))
        call = self._calls.get(way)
        if call is None:
            self._names["_halflap_mark"] = mark
            call = self._calls[way] = load(self._texts[way], self._names)
        if not owner.is_recording:
            return call(arguments)
        _marks.clear()
        _marks.append(time.perf_counter_ns())
        returned = call(arguments)
        _marks.append(time.perf_counter_ns())
        self._graph.variants[way].runs.append(_marks.copy())
        return returned


_marks: list[int] = []


def mark() -> None:
    """What a marked program calls before each node."""
    _marks.append(time.perf_counter_ns())
