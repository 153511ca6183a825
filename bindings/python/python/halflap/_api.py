"""Requests as functions, and the objects that answer them."""

from __future__ import annotations

import functools
import html
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Union

from . import _halflap

#: What a program can be given as: a `Graph`, a ``halflap.graph/1`` dictionary, text (JSON or HLO),
#: or the path of a file.
GraphLike = Union["Graph", Mapping[str, Any], str, bytes, "os.PathLike[str]"]

#: What an order can be given as: names of nodes, a result of `schedule`, its dictionary, or the
#: path of a file.
Order = Union[Sequence[str], Mapping[str, Any], "Schedule", "os.PathLike[str]"]

CollectiveOrder = Literal["free", "kept"]
Effort = Literal["quick", "default", "thorough"]


class Machine(TypedDict, total=False):
    """The machine that orders are simulated on; every function takes these as keywords."""

    #: Model run times on this device: a name such as ``"h100"``, a file, or the figures themselves.
    device: str | os.PathLike[str] | Mapping[str, Any]
    #: How many ranks share a node, if not as many as the device says.
    ranks_per_node: int
    #: Model all collectives over this link.
    link: str
    #: Measured run times: a file, or nanoseconds by the names of nodes.
    profile: str | os.PathLike[str] | Mapping[str, float]
    #: How much slower compute is while communication runs.
    slowdown: float
    #: How much slower communication is while compute runs.
    comm_slowdown: float
    #: How long the host takes to issue a node, such as ``"4us"``.
    launch: str
    #: Which process groups take turns on one communication stream.
    comm_streams: Literal["shared", "one", "group"]


class Graph:
    """A program of one rank: a ``halflap.graph/1`` graph or an HLO module.

    ``source`` is a dictionary, text, or the path of a file, which may be gzipped. It is read, and
    what is wrong with it is found, when it is used; `Graph.check` does that now.
    """

    def __init__(self, source: GraphLike) -> None:
        self._path: str | None = None
        self._text: bytes | None = None
        if isinstance(source, Graph):
            self._path, self._text = source._path, source._text
        elif isinstance(source, Mapping):
            self._text = json.dumps(source).encode()
        elif isinstance(source, bytes):
            self._text = source
        elif isinstance(source, str) and _is_text(source):
            self._text = source.encode()
        else:
            self._path = os.fspath(source)

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._path if self._path is not None else "<graph>"

    def check(self) -> Graph:
        """Reads it; raises `BadInput` if it is not a program."""
        simulate(self)
        return self

    def to_dict(self) -> dict[str, Any]:
        """A graph as a dictionary; an HLO module has none."""
        text = self._text
        if text is None:
            with open(self.name, "rb") as file:
                text = file.read()
        if text[:2] == b"\x1f\x8b":
            import gzip

            text = gzip.decompress(text)
        return json.loads(text)

    def __repr__(self) -> str:
        return f"Graph({self.name!r})"


def _is_text(source: str) -> bool:
    return (
        source.lstrip()[:1] in ("{", "[", "#")
        or "\n" in source
        or source.lstrip().startswith("HloModule")
    )


class Report:
    """A page for a browser; notebooks display it."""

    def __init__(self, page: str) -> None:
        #: The page as one self-contained file.
        self.html = page

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it beside its place, then renames it."""
        beside = f"{os.fspath(path)}.{os.getpid()}.tmp"
        with open(beside, "w", encoding="utf-8") as file:
            file.write(self.html)
        os.replace(beside, path)

    def _repr_html_(self) -> str:
        page = html.escape(self.html, quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="800" style="border:0"></iframe>'

    def __repr__(self) -> str:
        return f"Report({len(self.html)} characters)"


class _Result:
    """An answer, held by the library and rendered as a dictionary, text or a page on demand."""

    def __init__(self, held: _halflap.Held) -> None:
        self._held = held
        #: A heading above the text.
        self._head = ""

    @functools.cached_property
    def _fields(self) -> dict[str, Any]:
        return json.loads(self._held.json())

    @functools.cached_property
    def _figures(self) -> _halflap.Figures:
        return self._held.figures()

    def to_dict(self) -> dict[str, Any]:
        """The whole result, in the format of docs/formats.md."""
        return self._fields

    def report(self) -> Report:
        """A page of it."""
        return Report(self._held.page())

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def __str__(self) -> str:
        return self._head + self._held.text()

    def _shown(self) -> dict[str, Any]:
        return {
            name: self._fields[name]
            for name in ("step_time", "peak_memory")
            if name in self._fields
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self._shown().items())
        return f"{type(self).__name__}({shown})"


class Schedule(_Result):
    """A proved order."""

    #: The result whose input order this one is compared with.
    _before: Schedule | None = None

    @functools.cached_property
    def _fields(self) -> dict[str, Any]:
        fields = json.loads(self._held.json())
        if self._before is not None:
            before = self._before.to_dict()
            fields.update({name: before[name] for name in before if name.endswith("_before")})
        return fields

    @property
    def _input(self) -> _halflap.Figures:
        return self._figures if self._before is None else self._before._figures

    def _shown(self) -> dict[str, Any]:
        return {"step_time": self.step_time, "peak_memory": self.peak_memory}

    def _compared_with(self, other: Schedule) -> Schedule:
        """The same order, beside the input order that another result for the program has."""
        compared = Schedule(self._held)
        compared._before = other
        compared._head = (
            f"in the sequence of collectives that ranks agreed on, before: "
            f"{other.step_time_before / 1e3:.1f} us\n"
        )
        return compared

    @property
    def order(self) -> list[str]:
        """The names of nodes in their new order; of an HLO module, those of its entry
        computation."""
        return self._figures.orders[-1][1]

    @property
    def orders(self) -> dict[str, list[str]]:
        """Of an HLO module, the order of each computation that communicates, by name."""
        return {name: order for name, order in self._figures.orders if name}

    @property
    def recipes(self) -> list[dict[str, Any]]:
        """How the program was changed, where ``rewrite`` was given: ``kind``, ``members``,
        ``into``, ``gain``."""
        return self._fields.get("recipes", [])

    @property
    def order_alone(self) -> float | None:
        """The step time of the best order of the program as it was, in nanoseconds, where
        ``rewrite`` was given."""
        return self._fields.get("order_alone")

    @property
    def step_time(self) -> float:
        """The simulated step time in nanoseconds."""
        return self._figures.step_time

    @property
    def step_time_before(self) -> float:
        """The input order's."""
        return self._input.step_time_before

    @property
    def bound(self) -> float | None:
        """A lower bound for all orders that keep the same collective order; for an HLO module, that
        of its entry computation."""
        return self._figures.bound

    @property
    def exposed(self) -> float:
        """Exposed communication in nanoseconds, as the simulation has it."""
        return self._figures.exposed

    @property
    def exposed_before(self) -> float:
        """The input order's."""
        return self._input.exposed_before

    @property
    def peak_memory(self) -> int:
        """In bytes."""
        return self._figures.peak_memory

    @property
    def peak_memory_before(self) -> int:
        """The input order's."""
        return self._input.peak_memory_before


class Simulation(_Result):
    """An order in time."""

    @property
    def step_time(self) -> float:
        """In nanoseconds."""
        return self._figures.step_time

    @property
    def bound(self) -> float | None:
        """A lower bound for all orders that keep the same collective order; None for an HLO module,
        whose computations each have one."""
        return self._figures.bound

    @property
    def peak_memory(self) -> int:
        """In bytes."""
        return self._figures.peak_memory

    @property
    def collectives(self) -> list[dict[str, Any]]:
        """Every collective in order: when it ran, what of it was exposed and what holds it."""
        parts = self._fields.get("computations", [self._fields])
        return [collective for part in parts for collective in part["collectives"]]


class Sweep(_Result):
    """What more memory or a faster network would gain."""

    @property
    def points(self) -> list[dict[str, Any]]:
        """One for each limit and speed."""
        return self._fields["points"]


class Analysis(_Result):
    """What actually ran."""

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """One for each trace."""
        return self._fields["ranks"]

    @property
    def profile(self) -> dict[str, float]:
        """The median time of every kernel in nanoseconds, as ``profile`` takes it."""
        return self._held.profile()


class Comparison(_Result):
    """A measured step beside its simulation."""

    @property
    def measured(self) -> dict[str, float]:
        """Where the step's time went, in nanoseconds, as a mean over ranks."""
        return self._fields["measured"]

    @property
    def simulated(self) -> dict[str, float]:
        """The same, simulated."""
        return self._fields["simulated"]

    @property
    def differences(self) -> list[dict[str, Any]]:
        """Every operation, measured and simulated, the largest difference first."""
        return self._fields["differences"]


#: What a request reads: the path of a file, or a name for messages and what is in memory.
Input = Union[str, tuple[str, bytes]]


def program_input(graph: GraphLike) -> Input:
    """A program as a request reads it."""
    graph = Graph(graph)
    return graph.name if graph._text is None else (graph.name, graph._text)


def order_input(order: Order | None) -> Input | None:
    """An order as a request reads it."""
    if isinstance(order, Schedule):
        order = order.to_dict()
    if order is None or isinstance(order, (str, os.PathLike)):
        return None if order is None else os.fspath(order)
    return "<order>", json.dumps(order).encode()


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are given; a device or a profile in memory is read as a file is."""
    given = {}
    for name, value in options.items():
        if value is None or value is False:
            continue
        if isinstance(value, Mapping) and name != "settings":
            value = f"<{name}.json>", json.dumps(value).encode()
        given[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
    return given


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of the library; messages use Python's argument names, and warnings are
    Python warnings."""
    try:
        answer = function(*arguments)
    except _halflap.BadInput as problem:
        raise _halflap.BadInput(of_arguments(str(problem))) from None
    told = answer[1] if isinstance(answer, tuple) else answer.warnings
    for warning in told:
        warnings.warn(warning, stacklevel=4)
    return answer


def _find(
    function: Callable[..., _halflap.Held],
    graph: GraphLike,
    options: Mapping[str, Any],
    *order: Order | None,
) -> _halflap.Held:
    """Asks about a program, and if that is part of the question about an order of it."""
    return ask(function, program_input(graph), *map(order_input, order), given_options(options))


#: An option, with what it stands for, as messages have it.
OPTION = re.compile(r"'?(?<![\w-])--([a-z]+(?:-[a-z]+)*)(?: <[^>]*>)?'?")


def of_arguments(problem: str) -> str:
    """A message of the command, with Python's arguments in the place of options."""
    return OPTION.sub(lambda found: found[1].replace("-", "_"), problem)


def schedule(
    graph: GraphLike,
    *,
    memory_budget: float | str | None = None,
    collective_order: CollectiveOrder | None = None,
    effort: Effort | None = None,
    threads: int | None = None,
    order_collectives: Literal["group", "all"] | None = None,
    rewrite: bool | str | Sequence[str] | None = None,
    without: Sequence[str] | None = None,
    passes: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    compat: Literal["torch-2.10"] | None = None,
    **machine: Any,
) -> Schedule:
    """Finds an order that hides more communication, and proves it.

    ``memory_budget`` is the most that the order may need: a multiple of the input order's peak
    (``"1.2x"`` or ``1.2``) or a size (``"40GiB"``, or an integer number of bytes).
    ``collective_order="kept"`` keeps order-only edges. ``rewrite`` also changes the program where
    that shortens its step: ``True`` or ``"exact"`` by rewrites that keep every bit, ``"all"``, or a
    list of their names; ``without`` leaves out chosen ones (``"merge:3"``). ``passes`` runs torch's
    passes by name, with ``settings``, instead of the optimizer. The rest is `Machine`.
    """
    options = {
        "memory_budget": memory_budget,
        "collective_order": collective_order,
        "effort": effort,
        "threads": threads,
        "order_collectives": order_collectives,
        "rewrite": rewrite,
        "without": without,
        "passes": passes,
        "settings": dict(settings or {}),
        "compat": compat,
        **machine,
    }
    return Schedule(_find(_halflap.schedule, graph, options))


def emit_hlo(module: GraphLike, **options: Any) -> str:
    """An HLO module again, scheduled and with asynchronous collectives; takes what `schedule`
    takes."""
    return _find(_halflap.schedule, module, {**options, "emit": "hlo"}).program()


def emit_graph(graph: GraphLike, **options: Any) -> Graph:
    """A captured graph again, changed by ``rewrite``; takes what `schedule` takes."""
    return Graph(
        json.loads(_find(_halflap.schedule, graph, {**options, "emit": "graph"}).program())
    )


def simulate(
    graph: GraphLike,
    order: Order | None = None,
    *,
    collective_order: CollectiveOrder | None = None,
    order_collectives: Literal["group", "all"] | None = None,
    **machine: Any,
) -> Simulation:
    """Runs an order, or the input order, on streams; the rest is `Machine`.

    Of a `Schedule` its own options are used, unless others are given: they decide which bound it
    has.
    """
    options = {
        "collective_order": collective_order,
        "order_collectives": order_collectives,
        **machine,
    }
    return Simulation(_find(_halflap.simulate, graph, options, order))


def explain(
    graph: GraphLike,
    order: Order | None = None,
    *,
    node: str | None = None,
    memory_budget: float | str | None = None,
    collective_order: CollectiveOrder | None = None,
    order_collectives: Literal["group", "all"] | None = None,
    rewrite: bool | str | Sequence[str] | None = None,
    **machine: Any,
) -> Simulation:
    """Says what holds every collective that is exposed, or ``node`` alone; the rest is `Machine`.

    Of a `Schedule` its own options are used, unless others are given. With ``rewrite``, the program
    is first changed as `schedule` does.
    """
    options = {
        "node": node,
        "rewrite": rewrite,
        "memory_budget": memory_budget,
        "collective_order": collective_order,
        "order_collectives": order_collectives,
        **machine,
    }
    return Simulation(_find(_halflap.explain, graph, options, order))


def verify(
    graph: GraphLike,
    order: Order,
    *,
    memory_budget: float | str | None = None,
    collective_order: CollectiveOrder | None = None,
    order_collectives: Literal["group", "all"] | None = None,
) -> str:
    """Proves an order and says what it needs; raises `NotValid` if it is wrong."""
    options = {
        "memory_budget": memory_budget,
        "collective_order": collective_order,
        "order_collectives": order_collectives,
    }
    return _find(_halflap.verify, graph, options, order)[0].strip()


def what_if(
    graph: GraphLike,
    schedule: Order | None = None,
    *,
    memory: Sequence[float | str] | None = None,
    bandwidth: Sequence[float] | None = None,
    collective_order: CollectiveOrder | None = None,
    order_collectives: Literal["group", "all"] | None = None,
    effort: Effort | None = None,
    threads: int | None = None,
    rewrite: bool | str | Sequence[str] | None = None,
    computation: str | None = None,
    **machine: Any,
) -> Sweep:
    """What more memory or a faster network would gain; the rest is `Machine`.

    Of a ``schedule`` its own options are used, unless others are given, and no point where its
    order fits is worse than that. With ``rewrite``, the program is also changed at each point, as
    `schedule` does.
    """
    options = {
        "memory": memory,
        "bandwidth": bandwidth,
        "collective_order": collective_order,
        "order_collectives": order_collectives,
        "effort": effort,
        "threads": threads,
        "rewrite": rewrite,
        "computation": computation,
        **machine,
    }
    return Sweep(_find(_halflap.what_if, graph, options, schedule))


def report(graph: GraphLike, order: Order | None = None, **machine: Any) -> Report:
    """A page of the input order and, if one is given, another below it; the rest is `Machine`."""
    return Report(_find(_halflap.explain, graph, machine, order).page())


def timeline(step: Mapping[str, Any] | str | os.PathLike[str]) -> Comparison:
    """Compares a measured step, or a file of one (`halflap.torch.timeline`), with its
    simulation."""
    is_held = isinstance(step, Mapping)
    given = ("<step>", _halflap.to_json(step)) if is_held else os.fspath(step)
    return Comparison(ask(_halflap.timeline, given))


def analyze(*traces: str | os.PathLike[str]) -> Analysis:
    """Shows what actually ran, from traces of torch.profiler, one for each rank."""
    return Analysis(ask(_halflap.analyze, [os.fspath(trace) for trace in traces]))
