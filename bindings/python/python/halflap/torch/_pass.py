"""The pass: takes what Inductor scheduled, and gives it back in the best order that was found and
proved.

Whatever goes wrong, Inductor gets its own order back, and one warning says why. The pass is an
instance that pickles, because that is what torch's compile caches are keyed by: its state has
everything that decides an order, and nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import logging
import os
import pickle
import re
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._inductor.utils import contains_collective
from torch._inductor.virtualized import V
from torch._logging import getArtifactLogger, trace_structured

from .. import _halflap
from .._api import Graph, Schedule, schedule
from ._agree import Skeleton, collectives_of, decisions, is_alone, is_kept, skeleton_of, withdraw
from ._both import Build, current_build
from ._collectives import Opaque
from ._devices import Modelled, modelled_on, warn_of_unknown_gpu
from ._fitting import REWRITE, to_take_back
from ._handover import Program, Unsupported, has_collectives, origins_of
from ._judged import Comparison, Ended, Reference, Stage, current_comparison
from ._ranks import Decision, RanksDiffer, compare, topology
from ._sequence import in_sequence, places
from ._settings import torch_default
from ._times import Times, name_kernels
from ._undisturbed import undisturbed
from ._variants import current_building

log: logging.Logger = getArtifactLogger("torch._inductor.comms", "overlap")

#: Changes with what is handed over, so that an order of before is not taken from a cache.
HANDOVER = 12

#: A rewritten program must be this much shorter than the best order of the given one.
WORTH = 0.999


@dataclass(frozen=True)
class Options:
    """Everything that decides an order besides the graph."""

    memory_budget: str
    collective_order: str
    effort: str
    #: As `described`, or None for that of the process that compiles.
    device: str | None
    #: The user's description of them.
    ranks_per_node: int | None
    #: What sizes are assumed to be that depend on data; None is Inductor's own assumption.
    unbacked: int | None
    #: Of the profile and of the callable, which are not part of the state themselves.
    times: str
    #: Operators of others that communicate.
    collectives: tuple[Opaque, ...] = ()
    #: Slowdown of compute while communication runs, and vice versa.
    slowdown: float = 1.0
    comm_slowdown: float = 1.0
    #: Whether `tune` found free orders to be the fastest: the simulation, which may see no
    #: difference, then has no say in whether collectives move.
    is_free_faster: bool = False


@dataclass
class Ran:
    """What the pass did to one graph."""

    name: str
    nodes: int
    collectives: int
    #: None where Inductor's own order was kept because something failed.
    schedule: Schedule | None
    #: Seconds without the search (handing over and back), and in all.
    handover_seconds: float
    seconds: float
    failure: str | None = None
    #: How it was searched: ``"kept"``, ``"free"``, or ``"either"``, where collectives pass each
    #: other in the free order and ranks agree on one of the two before they first run the graph.
    collective_order: str = "kept"
    #: With ``"either"``: what ranks agree on, and the order that runs where they do not.
    skeleton: Skeleton | None = None
    kept: Schedule | None = None
    #: Such as ``h100, 8 ranks per node``.
    modelled_on: str = ""
    #: The sizes that depend on data, and what they were assumed to be.
    assumed_sizes: dict[str, int] = field(default_factory=dict)


@dataclass
class Session:
    """State that does not decide an order, and so is not part of a cache key."""

    report_dir: str | None = None
    #: The folder for captured graphs.
    capture_dirs: list[str] = field(default_factory=list)
    #: Per thread: whether the graph being compiled must stay out of compile caches.
    compiling: threading.local = field(default_factory=threading.local)
    #: How long ranks wait for each other when they compare programs.
    check_ranks: float | None = None
    #: Run times by the key that options have of them.
    times: dict[str, Times] = field(default_factory=dict)
    history: list[Ran] = field(default_factory=list)
    graphs: int = 0

    def is_kept_out(self) -> bool:
        """Whether our pass failed on the graph that this thread compiles."""
        return getattr(self.compiling, "has_failed", False)

    def is_watched(self) -> bool:
        """Whether graphs are shown to people, and so need descriptions."""
        return bool(self.report_dir or self.capture_dirs)


session = Session()


class OverlapPass:
    """The entry in ``config.reorder_for_compute_comm_overlap_passes``."""

    is_halflaps = True

    def __init__(self, options: Options, torchs: str | None = None) -> None:
        self.options = options
        #: An order of torch's own that was found to be faster than ours: ``default`` or ``none``.
        self.torchs = torchs

    def __getstate__(self) -> dict[str, Any]:
        """The cache key."""
        modelled = self.modelled_on()
        state = {
            "halflap": _halflap.__version__,
            "handover": HANDOVER,
            "options": self.options,
            "torchs": self.torchs,
            "device": modelled.device,
            "topology": topology(modelled.ranks_per_node),
        }
        if self.options.collective_order == "auto" or decisions.binding():
            state["decided"] = decisions.key()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.options, self.torchs = state["options"], state["torchs"]

    def __repr__(self) -> str:
        return f"halflap.torch.OverlapPass({_halflap.__version__}, {HANDOVER}, {self.torchs}, {self.options})"

    def modelled_on(self) -> Modelled:
        """What run times are modelled on in this process."""
        return modelled_on(self.options.device, self.options.ranks_per_node)

    def __call__(self, snodes: list[Any]) -> list[Any]:
        session.compiling.has_failed, session.compiling.was_called = False, True
        if not has_collectives(snodes, self.options.collectives):
            return snodes
        bound = self.bound(snodes)
        if bound is not None:
            session.compiling.has_followed = True
            return bound
        if self.torchs is not None:
            return snodes if self.torchs == "none" else torch_default(snodes)
        build = current_build()
        if build is not None and build.is_second:
            return self.give_free(snodes, build)
        comparison = current_comparison()
        if comparison is not None and comparison.stage is Stage.LOOKING:
            comparison.note(self.reference(snodes))
        started = time.perf_counter()
        name = _graph_name()
        graph: dict[str, Any] | None = None
        try:
            program, graph, text = undisturbed(self.hand_over, snodes)
            for folder in session.capture_dirs:
                _write(folder, f"{name}.json", text)
            given = time.perf_counter()
            found = self.judge(comparison, program, graph, text)
            searched = time.perf_counter()
            ordered = program.ordered(found.first.order)
            if session.check_ranks is not None:
                compare(graph, Decision(self.deciding(), found.best.order), session.check_ranks)
        except (RanksDiffer, Ended):
            raise
        except Exception as problem:
            # It may work next time, or have worked on another rank.
            session.compiling.has_failed = True
            _tell_failure(name, graph, problem)
            told = f"{type(problem).__name__}: {problem}"
            session.history.append(
                Ran(name, len(snodes), 0, None, 0.0, time.perf_counter() - started, told)
            )
            return self.fall_back(snodes, graph, problem)
        ended = time.perf_counter()
        collectives = len(collectives_of(graph))
        handover = ended - started - (searched - given)
        ran = Ran(
            name,
            len(snodes),
            collectives,
            found.best,
            handover,
            ended - started,
            None,
            found.collective_order,
        )
        if found.collective_order == "either":
            ran.skeleton, ran.kept = build.skeleton, found.first
        ran.modelled_on = str(self.modelled_on())
        ran.assumed_sizes = program.hints.assumed
        session.history.append(ran)
        if build is not None:
            build.ran = ran
        _tell(ran)
        return ordered

    def deciding(self) -> str:
        """What must be equal on all ranks, besides the graph."""
        return f"{self!r} on {self.modelled_on()!r}"

    def give_free(self, snodes: list[Any], build: Build) -> list[Any]:
        """The free order, for the second program; the caller, which generates it, catches what goes
        wrong."""
        started = time.perf_counter()
        program, _, text = undisturbed(self.hand_over, snodes)
        if text != build.text:
            raise RuntimeError("the graph is another one the second time")
        ordered = program.ordered(build.free.order)
        seconds = time.perf_counter() - started
        build.ran.handover_seconds += seconds
        build.ran.seconds += seconds
        return ordered

    def reference(self, snodes: list[Any]) -> Reference:
        """What a graph that was not rewritten needs and takes."""
        program, _, text = undisturbed(self.hand_over, snodes)
        is_free = self.options.collective_order != "kept" and program.is_symmetric()
        found = self.schedule(Graph(text), "free" if is_free else "kept")
        return Reference(memory_limit(found), found.step_time)

    def judge(
        self, comparison: Comparison | None, program: Program, graph: dict[str, Any], text: bytes
    ) -> Found:
        """What is found; of a rewritten graph, within the limit of the graph that it was, and only
        if it is better."""
        if comparison is None or comparison.stage is not Stage.REWRITING:
            return self.find(program, graph, text)
        reference = comparison.reference
        own = self.options.memory_budget
        fallback = comparison.changed.limit if own.endswith("x") else own
        limit = fallback if reference is None else f"{reference.memory_limit}B"
        within = OverlapPass(replace(self.options, memory_budget=limit), self.torchs)
        try:
            found = within.find(program, graph, text)
        except _halflap.Error as problem:
            why = f"it does not fit into {limit} once it is fused ({problem})"
            if reference is None:
                comparison.drop(why)
            of = rewrites_of(program)
            comparison.retry(why, to_take_back(graph, of, reference.memory_limit))
        # What a second process group gains, the simulation cannot show.
        must_gain = reference is not None and not comparison.changed.rewrites.regrouped
        if must_gain and not found.best.step_time < WORTH * reference.step_time:
            comparison.drop("its step is no shorter once it is fused")
        return found

    def find(self, program: Program, graph: dict[str, Any], text: bytes) -> Found:
        """The order to generate a program with, and the best one."""
        wanted = self.options.collective_order
        build = current_build()
        if wanted != "auto" or build is None or not program.is_symmetric():
            order = "kept" if wanted == "auto" else wanted
            result = self.schedule(Graph(text), order)
            return Found(result, result, order)
        skeleton = self.skeleton(graph)
        if not decisions.may_follow(skeleton) or skeleton.apart().key in decisions.offered:
            skeleton = skeleton.apart()
        # Searched only when needed, and once.
        kept = functools.cache(lambda: self.schedule(Graph(text), "kept"))
        if not self.may_be_free(skeleton):
            return Found(kept(), kept(), "kept")
        free = self.schedule(Graph(text), "free")
        if not (is_kept(places(graph, free.order)) or self.is_worth_it(free, kept)):
            free = kept()
        found = self.offered(graph, skeleton, free)
        if found is None:
            skeleton, found = skeleton.apart(), free
        build.skeleton = skeleton._replace(order=places(graph, found.order))
        if build.skeleton.is_kept:
            return Found(found, found, "kept")
        build.free, build.text = found, text
        return Found(kept(), found, "either")

    def is_worth_it(self, free: Schedule, kept: Callable[[], Schedule]) -> bool:
        """Whether moving collectives is worth a second program and an agreement."""
        return self.options.is_free_faster or free.step_time < kept().step_time

    def skeleton(self, graph: dict[str, Any]) -> Skeleton:
        """What ranks agree on, before there is an order."""
        # While one rank runs a forward graph, none runs a backward graph with the same collectives.
        return skeleton_of(graph, "backward" if V.graph.is_backward else "forward")

    def may_be_free(self, skeleton: Skeleton) -> bool:
        """Whether ranks have not decided to keep the program's order."""
        return decisions.current().orders.get(skeleton.key, ()) is not None

    def offered(self, graph: dict[str, Any], skeleton: Skeleton, free: Schedule) -> Schedule | None:
        """The free order, or, where another graph with the same collectives has one already, the
        best in the same sequence; None if dependencies forbid that."""
        sequence = decisions.current().offered.get(skeleton.key)
        if sequence in (None, places(graph, free.order)) or is_alone():
            return free
        chained = in_sequence(graph, sequence, free.order)
        if chained is None:
            return None
        # It was found from another order than Inductor's.
        return self.chained(chained, free.peak_memory_before)._compared_with(free)

    def chained(self, graph: bytes, peak: int) -> Schedule:
        """The best order of a graph that keeps collectives as they are. Ranks that have agreed on a
        sequence have no choice: where it needs more memory than there may be, it is said."""
        limit = limit_of(self.options.memory_budget, peak)
        given = {"order_collectives": "all"}
        try:
            return self.schedule(Graph(graph), "kept", memory_budget=limit, **given)
        except _halflap.Error:
            found = self.schedule(Graph(graph), "kept", memory_budget="1x", **given)
        warnings.warn(
            f"halflap: ranks have agreed on an order of collectives that needs {found.peak_memory} "
            f"bytes in this graph, more than memory_budget={self.options.memory_budget!r} allows",
            RuntimeWarning,
            stacklevel=2,
        )
        return found

    def follow(self, snodes: list[Any]) -> list[Any] | None:
        """Nodes with collectives in the sequence that ranks have agreed on for a graph with the
        same collectives; None if they have not, or if dependencies forbid it. Needs no run
        times."""
        if not decisions.binding():
            return None
        program = self.plain(snodes)
        graph = program.graph()
        sequence = decisions.binding().get(self.skeleton(graph).key)
        if sequence is None:
            return None
        chained = in_sequence(graph, sequence, [node["name"] for node in graph["nodes"]])
        if chained is None:
            return None
        given = {"memory_budget": "1x", "order_collectives": "all"}
        return program.ordered(self.schedule(Graph(chained), "kept", **given).order)

    def plain(self, snodes: list[Any]) -> Program:
        """A program with modelled run times: what the user has to say of them may be what fails."""
        with V.graph.sizevars.shape_env.suppress_guards():
            program = Program(snodes, self.options.collectives, self.options.unbacked)
            Times({}, None).fill(program, self.modelled_on())
        return program

    def bound(self, snodes: list[Any]) -> list[Any] | None:
        """The same for a pass that does not ask other ranks: they may still run what was agreed
        on."""
        asks = self.options.collective_order == "auto" and self.torchs is None
        # What is measured runs on all ranks at once.
        if asks or current_building() is not None or not decisions.binding():
            return None
        return undisturbed(self.follow, snodes)

    def fall_back(
        self, snodes: list[Any], graph: dict[str, Any] | None, problem: Exception
    ) -> list[Any]:
        """Torch's order, or the one that ranks agreed on; tells the other ranks. Raises where they
        may not do the same as this one, and torch's order would not do."""
        if session.check_ranks is not None and graph is not None:
            names = [snode.get_name() for snode in snodes]
            compare(graph, Decision(self.deciding(), names, str(problem)), session.check_ranks)
        # What is said of a graph and options is said on every rank that has them.
        is_everybodys = isinstance(problem, (Unsupported, _halflap.Error))
        if self.options.collective_order == "free" and not is_everybodys:
            raise self.may_differ(problem) from problem
        if self.options.collective_order != "auto":
            return snodes
        try:
            followed = undisturbed(self.follow, snodes)
            if followed is None:
                withdraw(self.skeleton(self.plain(snodes).graph()))
            return snodes if followed is None else followed
        except Exception:
            issued = sum(map(contains_collective, snodes))
            if any(len(order) == issued for order in decisions.binding().values()):
                raise self.may_differ(problem) from problem
            return snodes

    def may_differ(self, problem: Exception) -> RanksDiffer:
        """The error to raise where torch's order cannot be used."""
        return RanksDiffer(
            f"halflap failed on this rank, perhaps on this one alone ({type(problem).__name__}: {problem}); the "
            "others may issue their collectives in another order than torch's"
        )

    def hand_over(self, snodes: list[Any]) -> tuple[Program, dict[str, Any], bytes]:
        """Scheduler nodes as a graph with run times, and as text."""
        times = session.times.get(self.options.times)
        if times is None:
            raise RuntimeError(
                "the profile or callable that run times come from is not in this process"
            )
        if self.options.device is None:
            warn_of_unknown_gpu()
        # We guard no sizes; this is for what Inductor's and the user's estimates do with them.
        with V.graph.sizevars.shape_env.suppress_guards():
            program = Program(snodes, self.options.collectives, self.options.unbacked)
            times.fill(program, self.modelled_on())
            if session.is_watched():
                name_kernels(program)
        if session.is_watched():
            program.describe()
        graph = program.graph()
        return program, graph, _halflap.to_json(graph)

    def schedule(self, graph: Graph, collective_order: str, **more: Any) -> Schedule:
        """The best order of a graph."""
        options = self.options
        with warnings.catch_warnings():
            # Of the graph: they are for those who made it, and here that is Inductor.
            warnings.simplefilter("ignore")
            given = {"memory_budget": options.memory_budget, "effort": options.effort, **more}
            return schedule(
                graph,
                collective_order=collective_order,
                threads=threads(),
                slowdown=options.slowdown,
                comm_slowdown=options.comm_slowdown,
                **given,
            )


class Found(NamedTuple):
    """What a program is generated with first, the best order, and what it does to collectives."""

    first: Schedule
    best: Schedule
    collective_order: str


def tell_half(build: Build, problem: Exception) -> None:
    """Records that a graph keeps the program's order of collectives."""
    session.compiling.has_failed = True
    build.ran.collective_order, build.ran.failure = "kept", str(problem)
    warnings.warn(
        f"halflap keeps the program's order of collectives in {build.ran.name}: {type(problem).__name__}: {problem}",
        RuntimeWarning,
        stacklevel=3,
    )


def times_key(profile: dict[str, float], estimate: Callable[[Any], float | None] | None) -> str:
    """Hashes that stand for a profile and a callable in a pass's state."""
    content = hashlib.sha256(json.dumps(profile, sort_keys=True).encode())
    if estimate is not None:
        content.update(_source_of(estimate).encode())
    return content.hexdigest()[:16]


def _source_of(function: Any) -> str:
    """Name, body and what is bound to it: a name alone would not tell an edited function from what
    it was."""
    if not callable(function):
        raise ValueError(f"estimate must be a function of a node, not {function!r}")
    if getattr(function, "__closure__", None) or getattr(function, "__name__", "") == "<lambda>":
        raise ValueError(
            "estimate must be a function with a name and without a closure (no lambda), so that compile caches can "
            "tell it from another"
        )
    code = getattr(function, "__code__", None)
    if code is None:
        return pickle.dumps(function).hex()
    try:
        body = inspect.getsource(function)
    except (OSError, TypeError):
        body = f"{code.co_code.hex()} {code.co_consts!r}"
    bound = (getattr(function, "__self__", None), function.__defaults__, function.__kwdefaults__)
    return f"{function.__module__}.{function.__qualname__}\n{body}\n{pickle.dumps(bound).hex()}"


def limit_of(budget: str, peak: int) -> str:
    """A memory budget in bytes, of a graph whose own order has this peak."""
    return f"{int(float(budget[:-1]) * peak)}B" if budget.endswith("x") else budget


def bytes_of(budget: str) -> int | None:
    """A memory budget that is a size; None if it is a multiple."""
    nothing = {"format": "halflap.graph/1", "groups": {}, "nodes": [], "buffers": [], "inputs": []}
    found = schedule(nothing, memory_budget=budget)
    return None if budget.endswith("x") else memory_limit(found)


def memory_limit(found: Schedule) -> int:
    """The bytes that an order was allowed."""
    return found.to_dict()["optimizer"]["memory_limit"]


def rewrites_of(program: Program) -> dict[str, str]:
    """By node of a program, the rewrite that it was made by."""
    found = {}
    for snode, node in zip(program.snodes, program.nodes):
        names = [one.meta[REWRITE] for one in origins_of(snode) if REWRITE in one.meta]
        if names:
            found[node["name"]] = min(names)
    return found


def threads() -> int:
    """The ranks of a machine share its cores. Does not change the result."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, (os.cpu_count() or 1) // max(1, int(ranks) if ranks.isdecimal() else 1))


def _graph_name() -> str:
    """Such as ``rank0_graph3_backward``; numbered as graphs are compiled in this process, after
    those that an earlier run has captured into the same folder."""
    kind = "backward" if V.graph.is_backward else "inference" if V.graph.is_inference else "forward"
    rank = dist.get_rank() if dist.is_initialized() else 0
    number = max([session.graphs, *[_captured(folder, rank) for folder in session.capture_dirs]])
    session.graphs = number + 1
    return f"rank{rank}_graph{number}_{kind}"


def _captured(folder: str, rank: int) -> int:
    """The first number that no graph of a rank in a folder has, nor any after it."""
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    numbers = [re.match(rf"rank{rank}_graph(\d+)_", name) for name in names]
    return max((int(number[1]) + 1 for number in numbers if number), default=0)


def _write(folder: str, name: str, content: bytes) -> str:
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    beside = f"{path}.{os.getpid()}.tmp"
    with open(beside, "wb") as file:
        file.write(content)
    os.replace(beside, path)
    return path


def _tell(ran: Ran) -> None:
    """Reports what was done: in the log, the trace and the report."""
    result = ran.schedule
    assert result is not None
    summary = f"modelled on    {ran.modelled_on}\n{_told_sizes(ran.assumed_sizes)}{result}"
    log.debug(
        "halflap ordered %s (%d nodes) in %.3f s\n%s", ran.name, ran.nodes, ran.seconds, summary
    )
    _trace("halflap_summary", lambda: summary)
    _trace("halflap_schedule", lambda: json.dumps(result.to_dict()))
    if session.report_dir is not None:
        try:
            _write(session.report_dir, f"{ran.name}.html", result.report().html.encode())
        except Exception as problem:
            warnings.warn(f"halflap: no report of {ran.name}: {problem}", stacklevel=2)


def _told_sizes(assumed: dict[str, int]) -> str:
    """A line of the summary, if there is anything to say."""
    if not assumed:
        return ""
    sizes = ", ".join(f"{symbol} = {size}" for symbol, size in assumed.items())
    return f"sizes assumed  {sizes} (they depend on data; enable(unbacked=N) sets them)\n"


def _trace(name: str, payload: Callable[[], str]) -> None:
    """Adds an artifact to torch's structured trace, if tracing is on."""
    trace_structured(
        "artifact", metadata_fn=lambda: {"name": name, "encoding": "string"}, payload_fn=payload
    )


def _tell_failure(name: str, graph: dict[str, Any] | None, problem: Exception) -> None:
    where = ""
    if graph is not None:
        folder = session.report_dir or os.path.join(tempfile.gettempdir(), f"halflap-{os.getpid()}")
        try:
            where = f"; {_write(folder, f'{name}.json', json.dumps(graph).encode())} has the graph"
        except (OSError, TypeError, ValueError):
            pass
    text = f"halflap keeps torch's own order of {name}: {type(problem).__name__}: {problem}{where}"
    log.debug(text, exc_info=problem)
    warnings.warn(text, RuntimeWarning, stacklevel=3)
