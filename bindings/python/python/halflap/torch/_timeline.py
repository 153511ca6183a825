"""A step as it ran: when each rank computed, issued and waited, and what was on the wire meanwhile.

The step's graphs are recompiled in the requested order, with marks (`_variants`). The profiler says
when gloo was done with each collective: a program sees that only where it waits.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch._inductor.virtualized import V

from .. import _api
from ._handover import has_collectives
from ._measure import clock, compile_variants, gathered, seconds_of, shift_between
from ._pass import OverlapPass
from ._profile import Measured, write_profile
from ._tune import way_of
from ._undisturbed import undisturbed
from ._variants import Graph, Variant, Variants, current_building

FORMAT = "halflap.timeline/1"
#: Marks that the profiler has on its own clock: the first ones come late.
CLOCK = "halflap: clock"
MARKS = 5


class Span(NamedTuple):
    """Nanoseconds on this rank's clock."""

    name: str
    start: int
    end: int


class Timeline:
    """A measured step, beside its simulation: ``print`` has the largest differences, `report` a
    page."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._comparison = _api.timeline(document)

    def to_dict(self) -> Mapping[str, Any]:
        """Everything measured, in the file format."""
        return self._document

    @property
    def comparison(self) -> _api.Comparison:
        """What ran beside what is simulated."""
        return self._comparison

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that ``halflap timeline`` takes."""
        write_profile(self._document, path)

    def report(self) -> _api.Report:
        """A page with the simulated step and that of each rank."""
        return self._comparison.report()

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def __str__(self) -> str:
        return str(self._comparison)


class Looked(NamedTuple):
    """What to measure: an order of ours, or torch's, and the known run times."""

    overlap_pass: OverlapPass
    measured: Measured


def timeline(step: Callable[[], Any], looked: Looked, steps: int) -> Timeline:
    """Runs a step; see `halflap.torch.timeline`."""
    way = _recorded(looked)
    variants = Variants({"looked at": way}, is_marked=True)
    with ExitStack() as stack:
        compile_variants(stack, variants)
        for _ in range(2):
            seconds_of(step)
        variants.is_recording = True
        ran = [_profiled(step) for _ in range(steps)]
    graphs = [graph for graph in variants.graphs if graph.known]
    return Timeline(_document(gathered(_own(graphs, ran)), looked.measured))


def _recorded(looked: Looked) -> Callable[[list[Any]], list[Any]]:
    """The pass, which also keeps the graph as it is given to halflap."""
    ordered = way_of(looked.overlap_pass)

    def recorded(snodes: list[Any]) -> list[Any]:
        building = current_building()
        overlap_pass = looked.overlap_pass
        if building is not None and has_collectives(snodes, overlap_pass.options.collectives):
            graph = undisturbed(overlap_pass.hand_over, snodes)[1]
            building.graph.known = graph
            building.graph.name = "backward" if V.graph.is_backward else "forward"
        return ordered(snodes)

    return recorded


class Ran(NamedTuple):
    """A step on this rank's clock."""

    begin: int
    end: int
    #: What gloo did, in sequence, from when it began.
    sent: list[Span]


def _profiled(step: Callable[[], Any]) -> Ran:
    """Runs a step, with gloo's work as the profiler saw it."""
    # It prints to standard error when it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with torch.autograd.profiler.profile(use_kineto=True) as profiler:
        marks = _marked()
        seconds = seconds_of(step)
        end = time.perf_counter_ns()
        marks += _marked()
    events = profiler.kineto_results.events()
    seen = sorted(event.start_ns() for event in events if event.name() == CLOCK)
    ours = _clock_of(seen, marks)
    sent = [
        Span(event.name(), ours(start := event.start_ns()), ours(start + event.duration_ns()))
        for event in events
        if event.name().startswith("gloo:")
    ]
    return Ran(end - int(1e9 * seconds), end, sorted(sent, key=lambda span: span.start))


def _marked() -> list[int]:
    """Marks the profiler's clock; gives the same moments on ours."""
    marks = []
    for _ in range(MARKS):
        marks.append(time.perf_counter_ns())
        with torch.profiler.record_function(CLOCK):
            pass
    return marks


def _clock_of(seen: list[int], marks: list[int]) -> Callable[[int], int]:
    """From the profiler's clock to ours. The two need not run at the same speed: the profiler
    scales a counter of the processor by what it saw of it."""
    pairs = [*zip(seen, marks)]
    # What comes between a mark and its event makes the event late, never early.
    (first, begin), (last, end) = (
        min(some, key=lambda pair: pair[0] - pair[1]) for some in (pairs[:MARKS], pairs[MARKS:])
    )
    speed = (end - begin) / (last - first)
    return lambda time: round(begin + (time - first) * speed)


def _own(graphs: list[Graph], ran: Iterable[Ran]) -> dict[str, Any]:
    """What this rank measured, for all of them."""
    variants = [next(iter(graph.variants.values())) for graph in graphs]
    described = [
        {"name": graph.name, "graph": graph.known, "order": variant.order}
        for graph, variant in zip(graphs, variants)
    ]
    steps = []
    for step in ran:
        runs = sorted(
            (marks, number)
            for number, variant in enumerate(variants)
            for marks in variant.runs
            if step.begin <= marks[0] <= step.end
        )
        sent = deque(step.sent)
        parts = [_part(number, marks, variants[number], sent) for marks, number in runs]
        steps.append({"begin": step.begin, "end": step.end, "parts": parts})
    return {"clock": clock(), "graphs": described, "steps": steps}


def _part(number: int, marks: list[int], variant: Variant, sent: deque[Span]) -> dict[str, Any]:
    """A graph that ran, with the collectives that it had sent: gloo begins them in the sequence in
    which they are issued, when a thread of it is free. Takes them off those of the step."""
    # The first mark is that of the call.
    ran = [Span(*span) for span in zip(variant.nodes, marks[1:], marks[2:])]
    collectives, done = set(variant.collectives), {}
    for issued in (span for span in ran if span.name in collectives):
        while sent and sent[0].start < issued.start:
            sent.popleft()
        if sent:
            done[issued.name] = sent.popleft()._replace(name=issued.name)
    return {"graph": number, "begin": marks[0], "end": marks[-1], "ran": ran, "sent": done}


def _document(every: list[Any], measured: Measured) -> dict[str, Any]:
    """In the format of `halflap timeline`: the step with the median duration."""
    lasted = [
        max(step["end"] - step["begin"] for step in steps)
        for steps in zip(*(rank["steps"] for rank in every))
    ]
    number = lasted.index(statistics.median_low(lasted))
    steps = [rank["steps"][number] for rank in every]
    sequences = [[part["graph"] for part in step["parts"]] for step in steps]
    if not any(sequences):
        raise RuntimeError("no compiled graph with collectives ran in this step")
    if any(one != sequences[0] for one in sequences):
        raise RuntimeError("ranks did not run the same compiled graphs with collectives")
    _put_on_one_clock(every, steps)
    graphs = [dict(every[0]["graphs"][graph]) for graph in sequences[0]]
    _number_names(graphs)
    return {
        "format": FORMAT,
        "slowdown": measured.slowdown,
        "comm_slowdown": measured.comm_slowdown,
        "outside_ns": measured.outside_ns or None,
        "graphs": graphs,
        "ranks": [_rank(steps, rank) for rank in range(len(steps))],
    }


def _number_names(graphs: list[dict[str, Any]]) -> None:
    """Tells several forward graphs apart."""
    names = [graph["name"] for graph in graphs]
    for place, name in enumerate(names):
        if names.count(name) > 1:
            graphs[place]["name"] = f"{name} {names[:place].count(name)}"


def _put_on_one_clock(every: Sequence[Mapping[str, Any]], steps: list[dict[str, Any]]) -> None:
    """Says of each step how far its rank's clock is ahead of the first's."""
    ends = [
        [span.end for part in step["parts"] for span in part["sent"].values()] for step in steps
    ]
    for rank, step in enumerate(steps):
        is_same = every[rank]["clock"] == every[0]["clock"]
        step["ahead"] = 0 if is_same else shift_between(ends[0], ends[rank])


def _rank(steps: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    """A rank's step, with times from its beginning on."""
    begin, ahead = steps[rank]["begin"], steps[rank]["ahead"]
    graphs = []
    for place, part in enumerate(steps[rank]["parts"]):
        transfers = []
        for name, own in part["sent"].items():
            issued = [
                step["parts"][place]["sent"][name].start - step["ahead"] + ahead
                for step in steps
                if name in step["parts"][place]["sent"]
            ]
            transfers.append(own._replace(start=min(own.end, max(issued))))
        graphs.append(
            {
                "begin_ns": part["begin"] - begin,
                "end_ns": part["end"] - begin,
                "ran": _written(part["ran"], begin),
                "transfers": _written(transfers, begin),
            }
        )
    return {"step_ns": steps[rank]["end"] - begin, "graphs": graphs}


def _written(spans: Iterable[Span], begin: int) -> list[dict[str, Any]]:
    return [
        {"name": span.name, "start_ns": span.start - begin, "end_ns": span.end - begin}
        for span in spans
    ]
