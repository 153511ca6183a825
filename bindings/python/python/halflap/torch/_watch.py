"""Watches what torch compiles, so that no graph is missed silently.

Every graph that torch.compile compiles goes through some of these calls, in this sequence:

- Dynamo's of the backend, which has its options, and a graph without DTensor's collectives;
- AOTAutograd's of the compilers of the forward and the backward graph, with all collectives;
- Inductor's of its compiler of one graph, in which our pass runs, or a compile cache answers;
- that of a compile cache which has found something, perhaps before AOTAutograd did anything.

They are wrapped, not changed: what torch computes, stores and looks up stays the same. Nothing that
goes wrong in here reaches the program.
"""

from __future__ import annotations

import functools
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch._guards import CompileContext

from . import _names
from ._collectives import SYMMETRIC_MEMORY, is_known, looks_collective, operator_name
from ._pass import OverlapPass, Ran, log, session
from ._settings import DETERMINISTIC, Needed, Settings, differing, shown
from ._variants import is_measuring


class Outcome(Enum):
    """The outcome for a graph with collectives."""

    ORDERED = "ordered"
    CACHED = "from a compile cache"
    AGREED = "in the order that ranks agreed on before"
    TORCHS_ORDER = "in torch's order"
    WITHOUT = "compiled without halflap"


class Reason(Enum):
    """Why a graph with collectives does not run in an order of ours, or may not."""

    SETTING = "setting"
    BACKEND = "backend"
    PROCESS = "process"
    NOT_CALLED = "not-called"
    DISTURBED = "disturbed"
    FAILED = "failed"
    TUNED = "tuned"
    HIDDEN = "hidden"


@dataclass(frozen=True)
class Cause:
    """Why, and what to do about it."""

    reason: Reason
    what: str
    to_do: str = ""
    #: The setting that it is about.
    setting: str | None = None

    def __str__(self) -> str:
        return f"{self.what}; {self.to_do}" if self.to_do else self.what


@dataclass(frozen=True)
class Compiled:
    """A graph with collectives that was compiled, or found in a cache, while we were enabled."""

    name: str
    outcome: Outcome
    collectives: int
    cause: Cause | None = None
    ran: Ran | None = None


@dataclass(frozen=True)
class Backend:
    """What a graph is compiled by."""

    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Watched:
    """What was seen in this process."""

    graphs: list[Compiled] = field(default_factory=list)
    #: Operators that look like collectives and were not named, in the sequence in which they came.
    hidden: dict[str, None] = field(default_factory=dict)
    #: How many graphs needed nothing.
    without_collectives: int = 0
    #: The reasons already warned about.
    told: set[tuple[Reason, str | None]] = field(default_factory=set)
    #: By compilation: a backward graph may be compiled long after its forward graph.
    backends: dict[str, Backend] = field(default_factory=dict)


watched = Watched()


class TorchCall(NamedTuple):
    """A call of torch's that we are around."""

    make: Callable[[], Any]
    #: All that it is given, and what of that by name.
    given: list[Any]
    named: Mapping[str, Any]

    def graph(self) -> torch.fx.GraphModule:
        """The graph that it is given."""
        return next(one for one in self.given if isinstance(one, torch.fx.GraphModule))

    def kind(self) -> str:
        """Of its graph, as far as the call says."""
        return _kind(self.named)


@dataclass
class _Frame:
    """One of the calls that a thread is in."""

    is_inductors: bool = False
    #: Whether an inner call has seen the graph, and recorded its outcome.
    is_settled: bool = False
    #: Whether a compile cache answered.
    is_cached: bool = False


class _Here(threading.local):
    """What this thread is compiling."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []
        #: Whether Inductor was given the last forward graph: it will be given the backward one.
        self.has_inductor = True


_here = _Here()


@contextmanager
def _frame(*, is_inductors: bool = False) -> Iterator[_Frame]:
    frame = _Frame(is_inductors)
    _here.frames.append(frame)
    try:
        yield frame
    finally:
        _here.frames.pop()


def _settle() -> None:
    for frame in _here.frames:
        frame.is_settled = True


def _quietly(look: Callable[..., Any]) -> Callable[..., Any]:
    """Torch's internals change, and a run must not fail because of our bookkeeping."""

    @functools.wraps(look)
    def guarded(*given: Any) -> Any:
        try:
            return look(*given)
        except Exception as problem:
            log.debug("halflap cannot see what torch compiles: %s", problem, exc_info=problem)
            return None

    return guarded


def watch(settings: Settings, our_pass: OverlapPass) -> bool:
    """Watches what is compiled from now on; whether this torch has all the calls that we know."""
    try:
        calls = [(of, name, vars(of)[name], around) for of, name, around in _calls(Look(our_pass))]
    except (ImportError, KeyError):
        return False
    for of, name, replaced, around in calls:
        settings.replace(of, name, _wrapped(replaced, around))
    return True


def _calls(look: Look) -> list[tuple[Any, str, Callable[[TorchCall], Any]]]:
    from torch._dynamo.output_graph import OutputGraph
    from torch._functorch._aot_autograd import graph_compile
    from torch._inductor import compile_fx
    from torch._inductor.codecache import FxGraphCache

    return [
        (OutputGraph, "_call_user_compiler", look.around_backend),
        (graph_compile, "_aot_stage2b_compile_forward_or_inference", look.around_forward),
        (graph_compile, "_aot_stage2b_bw_compile", look.around_backward),
        (compile_fx, "_compile_fx_inner", look.around_inductor),
        (FxGraphCache, "cache_hit_post_compile", look.around_cache),
    ]


def _wrapped(replaced: Any, around: Callable[[TorchCall], Any]) -> Any:
    function = replaced.__func__ if isinstance(replaced, staticmethod) else replaced

    @functools.wraps(function)
    def wrapper(*given: Any, **named: Any) -> Any:
        make = functools.partial(function, *given, **named)
        if is_measuring():
            # What we compile ourselves does not go past us, and does not stay.
            return make()
        return around(TorchCall(make, [*given, *named.values()], named))

    return staticmethod(wrapper) if isinstance(replaced, staticmethod) else wrapper


class Census(NamedTuple):
    """How many collectives a graph has, and which of its operators look like one."""

    collectives: int = 0
    hidden: tuple[str, ...] = ()


#: A call of an operator in a generated program.
CALLED = re.compile(r"(\w+)\.(\w+)\.\w+\(")


class Look:
    """Watches what is compiled while one pass is enabled."""

    def __init__(self, our_pass: OverlapPass) -> None:
        self._pass = our_pass
        self._opaque = {one.operator for one in our_pass.options.collectives}

    def around_backend(self, call: TorchCall) -> Any:
        self._begin(call)
        with _frame() as frame:
            compiled = call.make()
        if not frame.is_settled:
            self._went_past(call, "")
        return compiled

    def around_forward(self, call: TorchCall) -> Any:
        with _frame() as frame:
            compiled = call.make()
        _here.has_inductor = frame.is_settled
        if not frame.is_settled:
            self._went_past(call, call.kind())
        return compiled

    def around_backward(self, call: TorchCall) -> Any:
        if not _here.has_inductor:
            self._went_past(call, "backward")
        return call.make()

    def around_inductor(self, call: TorchCall) -> Any:
        census = self._census(call) or Census()
        ran_before = len(session.history)
        session.compiling.was_called = session.compiling.has_followed = False
        with _frame(is_inductors=True) as frame:
            compiled = call.make()
        _settle()
        _tell_hidden(census.hidden)
        self._compiled(
            Compiled(_name(call.kind()), Outcome.WITHOUT, census.collectives),
            frame.is_cached,
            session.history[ran_before:],
        )
        return compiled

    def around_cache(self, call: TorchCall) -> Any:
        found = call.make()
        inner = _here.frames[-1] if _here.frames else None
        if inner is not None and inner.is_inductors:
            inner.is_cached = True
        else:
            self._found_program(found)
        return found

    @_quietly
    def _begin(self, call: TorchCall) -> None:
        watched.backends[_compilation()] = _backend(call.given[0].compiler_fn)
        if session.is_watched():
            _names.keep_inputs(call.graph())

    @_quietly
    def _census(self, call: TorchCall) -> Census:
        modules = [*call.graph().modules()]
        graphs = [module.graph for module in modules if isinstance(module, torch.fx.GraphModule)]
        targets = [node.target for graph in graphs for node in graph.nodes]
        return self._counted(filter(None, map(operator_name, targets)))

    def _counted(self, operators: Iterable[str]) -> Census:
        collectives = 0
        hidden: dict[str, None] = {}
        for name in operators:
            if is_known(name) or name in self._opaque:
                collectives += 1
            elif looks_collective(name) and not name.startswith(SYMMETRIC_MEMORY):
                hidden[name] = None
        return Census(collectives, (*hidden,))

    @_quietly
    def _compiled(self, graph: Compiled, is_cached: bool, ran: list[Ran]) -> None:
        """A graph that Inductor has compiled, with what our pass did to it, if it ran."""
        differ = differing(self._pass)
        for one in ran:
            found = outcome_of(one, differ)
            # What failed has not counted them.
            _record(replace(found, collectives=found.collectives or graph.collectives))
        if not ran:
            self._went_without(graph, is_cached, differ)

    def _went_without(self, graph: Compiled, is_cached: bool, differ: list[Needed]) -> None:
        """A graph that our pass was not called for, or found no collectives in."""
        stops = [one for one in differ if one.stops]
        if graph.collectives == 0:
            watched.without_collectives += 1
        elif stops:
            _record(replace(graph, cause=_of_setting(stops[0])))
        elif is_cached:
            _record(replace(graph, outcome=Outcome.CACHED))
        elif session.compiling.has_followed:
            _record(replace(graph, outcome=Outcome.AGREED))
        elif self._pass.torchs is not None:
            _record(replace(graph, outcome=Outcome.TORCHS_ORDER, cause=TUNED))
        elif session.compiling.was_called:
            # Inductor has removed them, or has another way to compute them.
            watched.without_collectives += 1
        else:
            _record(replace(graph, cause=ELSEWHERE if _compiles_elsewhere() else NOT_CALLED))

    @_quietly
    def _went_past(self, call: TorchCall, kind: str) -> None:
        """A graph that Inductor was not given."""
        census = self._census(call) or Census()
        collectives = census.collectives + len(census.hidden)
        if collectives:
            cause = _past(watched.backends.get(_compilation(), Backend()))
            _record(Compiled(_name(kind), Outcome.WITHOUT, collectives, cause))
            _settle()

    @_quietly
    def _found_program(self, found: Any) -> None:
        """AOTAutograd's cache has found a generated program, so that there are no graphs."""
        program = found[0]
        if program is None:
            return
        _settle()
        called = CALLED.findall(program.source_code or "")
        census = self._counted(f"{namespace}::{name}" for namespace, name in called)
        _tell_hidden(census.hidden)
        name = _name(_kind(getattr(program, "fx_kwargs", {})))
        graph = Compiled(name, Outcome.WITHOUT, census.collectives)
        self._went_without(graph, True, differing(self._pass))


def outcome_of(ran: Ran, differ: list[Needed]) -> Compiled:
    """What the pass did, and which settings may have undone it."""
    if ran.failure is not None:
        cause = Cause(Reason.FAILED, ran.failure)
        return Compiled(ran.name, Outcome.TORCHS_ORDER, ran.collectives, cause, ran)
    undone = _of_setting(differ[0], Reason.DISTURBED) if differ else None
    return Compiled(ran.name, Outcome.ORDERED, ran.collectives, undone, ran)


def _record(graph: Compiled) -> None:
    watched.graphs.append(graph)
    # The pass has warned of its own failures, and what was tuned is as it should be.
    if graph.cause is not None and graph.cause.reason not in (Reason.FAILED, Reason.TUNED):
        but = ", but " if graph.outcome is Outcome.ORDERED else ": "
        _warn_once(graph.cause, f"{graph.name} has collectives and was {graph.outcome.value}{but}")


def _tell_hidden(operators: tuple[str, ...]) -> None:
    new = [name for name in operators if name not in watched.hidden]
    watched.hidden.update(dict.fromkeys(new))
    if new:
        what = f"{', '.join(new)} looks like a collective, and stays in its place among collectives"
        to_do = f"if it communicates, name it: enable(collectives={{{new[0]!r}: 'all_reduce'}})"
        _warn_once(Cause(Reason.HIDDEN, what, to_do))


def _warn_once(cause: Cause, about: str = "") -> None:
    """Warns once for each reason: a program that compiles many graphs has one mistake."""
    if (cause.reason, cause.setting) not in watched.told:
        watched.told.add((cause.reason, cause.setting))
        more = "this is said once; halflap.torch.status() lists all graphs"
        warnings.warn(f"halflap: {about}{cause} ({more})", RuntimeWarning, stacklevel=2)


ELSEWHERE = Cause(
    Reason.PROCESS,
    "torch compiles in another process, where halflap is not enabled",
    "unset TORCHINDUCTOR_FX_COMPILE_MODE",
)
TUNED = Cause(Reason.TUNED, "tune found torch's own order to be the fastest")
NOT_CALLED = Cause(Reason.NOT_CALLED, "torch did not run the passes that order communication")


def _compiles_elsewhere() -> bool:
    from torch._inductor import compile_fx

    mode = getattr(compile_fx, "fx_compile_mode", None)
    return getattr(mode, "name", "NORMAL") != "NORMAL"


def _past(backend: Backend) -> Cause:
    named = f"backend {backend.name!r}" if backend.name else "the backend"
    to_do = "use backend='inductor', or halflap.torch.optimize in a backend of your own"
    return Cause(Reason.BACKEND, f"{named} does not use Inductor", to_do)


def _of_setting(one: Needed, reason: Reason = Reason.SETTING) -> Cause:
    """What a setting does, who has set it, and what to do."""
    options = watched.backends.get(_compilation(), Backend()).options
    where, to_do = "after enable() or by the backend", "leave it alone, or call enable() after it"
    if one.name in options:
        mode = _mode_with(one.name, options)
        where = f"by mode={mode!r}" if mode else "in torch.compile's options"
        to_do = "use another mode" if mode else "leave it out there"
    if one.name == DETERMINISTIC:
        to_do = "unset it: halflap gives the same order every time"
    what = f"{one.name} is {shown(one.now())}, set {where}: {one.otherwise}"
    return Cause(reason, what, to_do, one.name)


def _mode_with(name: str, options: dict[str, Any]) -> str | None:
    """The mode of torch.compile that has set an option, if one has."""
    for mode, given in torch._inductor.list_mode_options().items():
        if name in given and given.items() <= options.items():
            return mode
    return None


def _backend(compiler: Any) -> Backend:
    """The backend that the user named, inside of what Dynamo wraps it in."""
    name = getattr(compiler, "__name__", "")
    while hasattr(compiler, "_torchdynamo_orig_backend"):
        compiler = compiler._torchdynamo_orig_backend
        name = getattr(compiler, "compiler_name", None) or getattr(compiler, "__name__", name)
    options = getattr(compiler, "config", None)
    return Backend(name, options if isinstance(options, dict) else {})


def _kind(named: Mapping[str, Any]) -> str:
    if named.get("is_backward"):
        return "backward"
    return "inference" if named.get("is_inference") else "forward"


def _name(kind: str) -> str:
    """Such as ``graph 0/0 forward``, by the number that torch's logs give it, if they do."""
    number = CompileContext.current_compile_id()
    return " ".join(["graph", *([] if number is None else [str(number)]), kind]).rstrip()


def _compilation() -> str:
    return str(CompileContext.current_compile_id())
