"""Measured run times of a step's kernels and collectives.

The step's graphs are compiled anew, in an order where every collective is waited for at once, and
marked (`_variants`), so that every node runs alone and says when it starts. Ranks then put together
what they measured: a collective's transfer begins when the last rank has come to it, and ends when
the last rank has its result.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._inductor.virtualized import V

from ._collectives import Opaque
from ._contention import Contention, contention
from ._handover import Program, has_collectives
from ._latency import Spoken, latencies
from ._profile import Measured
from ._rates import COLLECTIVE
from ._settings import Settings, compile_anew, compile_backward_at_once, plug_in
from ._times import may_be_on_gpu, measured_signature
from ._traced import together, traced
from ._undisturbed import undisturbed
from ._variants import Graph, Variants, current_building

#: How many steps are measured, after one that compiles and one that warms up.
STEPS = 5
APART = "apart"


@dataclass
class Node:
    """What is known of a node besides when it ran."""

    key: str = ""
    kind: str = ""
    #: The ranks that it communicates with, its process group and the bytes.
    ranks: tuple[int, ...] = ()
    group: str = ""
    bytes: int = 0


class Apart:
    """The pass that makes every collective synchronous: its wait follows at once."""

    def __init__(self, opaque: tuple[Opaque, ...], unbacked: int | None) -> None:
        self._opaque = opaque
        self._unbacked = unbacked

    def __call__(self, snodes: list[Any]) -> list[Any]:
        building = current_building()
        if building is None or not has_collectives(snodes, self._opaque):
            return snodes
        with V.graph.sizevars.shape_env.suppress_guards():
            program = undisturbed(Program, snodes, self._opaque, self._unbacked)
            building.graph.known = _known(program)
        return program.ordered(waited_at_once(program.nodes))


def _known(program: Program) -> dict[str, Node]:
    """The nodes of a program by name."""
    known = {}
    for snode, node in zip(program.snodes, program.nodes):
        found = known[node["name"]] = Node(measured_signature(program, snode, node), node["kind"])
        if "collective" in node:
            found.group = node["collective"]["group"]
            found.ranks = tuple(program.groups[found.group])
            found.bytes = node["collective"]["bytes"]
    return known


def waited_at_once(nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Node names in order, with each wait right after its collective."""
    issued = [node for node in nodes if node["kind"] == "collective"]
    makers = {name: node["name"] for node in issued for name in node["outputs"]}
    waits: dict[str, list[str]] = defaultdict(list)
    moved = set()
    for node in (node for node in nodes if node["kind"] == "wait"):
        made = [makers[dep["buffer"]] for dep in node["deps"] if dep["buffer"] in makers]
        if made:
            waits[made[-1]].append(node["name"])
            moved.add(node["name"])
    order = []
    for node in nodes:
        if node["name"] not in moved:
            order += [node["name"], *waits[node["name"]]]
    return order


def measure(
    step: Callable[[], Any],
    *,
    steps: int = STEPS,
    collectives: tuple[Opaque, ...] = (),
    unbacked: int | None = None,
) -> Measured:
    """What the kernels and collectives of a step take; see `halflap.torch.measure`."""
    ways = {APART: Apart(collectives, unbacked)}
    if may_be_on_gpu() and (times := _measured_on_gpu(step, ways, steps)):
        return Measured(times)
    apart = Variants(ways, is_marked=True)
    with ExitStack() as stack:
        compile_variants(stack, apart)
        for _ in range(2):
            seconds_of(step)
        apart.is_recording = True
        durations = [seconds_of(step) for _ in range(steps)]
    return _together(gathered(_own([one for one in apart.graphs if one.known], durations)))


def _measured_on_gpu(
    step: Callable[[], Any], ways: dict[str, Apart], steps: int
) -> dict[str, float]:
    """GPU times from all ranks' traces; None if the step runs on no GPU."""
    with ExitStack() as stack:
        compile_variants(stack, Variants(ways, is_marked=False))
        for _ in range(2):
            seconds_of(step)
        own = traced(lambda: [seconds_of(step) for _ in range(steps)])
    return together(gathered(own))


def compile_variants(stack: ExitStack, variants: Variants) -> None:
    """Has what is compiled from now on generated in variants, and all compiled again afterwards."""
    settings = Settings()
    stack.callback(torch._dynamo.reset)
    stack.callback(settings.restore)
    compile_anew(settings)
    compile_backward_at_once(settings)
    plug_in(settings, variants)
    torch._dynamo.reset()
    stack.enter_context(variants.installed())


def seconds_of(step: Callable[[], Any]) -> float:
    """Runs a step, timed from the moment all ranks have arrived."""
    if dist.is_initialized():
        dist.barrier()
    began = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _own(graphs: list[Graph], durations: list[float]) -> dict[str, Any]:
    """What this rank measured, in the form that ranks exchange."""
    variants = [graph.variants[APART] for graph in graphs]
    nodes = [
        [asdict(graph.known.get(name, Node())) for name in variant.nodes]
        for graph, variant in zip(graphs, variants)
    ]
    runs = [variant.runs for variant in variants]
    return {"clock": clock(), "durations": durations, "nodes": nodes, "runs": runs}


def gathered(own: Any) -> list[Any]:
    """Gathers a value from every rank."""
    if not dist.is_initialized():
        return [own]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return every


def _typical_bytes(found: Mapping[str, Any]) -> int:
    """Of a rank's collectives: half of all bytes are in those that are as large, or larger."""
    sizes = sorted(node["bytes"] for graph in found["nodes"] for node in graph)
    half, passed = sum(sizes) / 2, 0
    return next(size for size in sizes if (passed := passed + size) >= half)


def clock() -> str:
    """Equal on processes whose clocks can be compared."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def put_on_one_clock(every: list[Any]) -> None:
    """Shifts what ranks of other hosts measured: on the first rank's clock, the collectives that
    both have end at the same times."""
    first = every[0]
    for other in every[1:]:
        if other["clock"] == first["clock"]:
            continue
        shift = shift_between(_ends(first), _ends(other))
        other["runs"] = [[[mark - shift for mark in run] for run in runs] for runs in other["runs"]]


def shift_between(ends: Iterable[int], others: Iterable[int]) -> float:
    """How far the clock of other times is ahead, if both are when the same things ended."""
    apart = [other - end for end, other in zip(ends, others)]
    return statistics.median(apart) if apart else 0


def _ends(found: Mapping[str, Any]) -> list[int]:
    """The end times of a rank's collectives, in sequence."""
    return [
        run[index + 3]
        for nodes, runs in zip(found["nodes"], found["runs"])
        for run in runs
        for index, node in enumerate(nodes)
        if node["kind"] == "collective"
    ]


def _together(every: list[Any]) -> Measured:
    """Combines the measurements of all ranks."""
    put_on_one_clock(every)
    slower = Contention()
    times: dict[str, list[float]] = defaultdict(list)
    if dist.is_initialized() and all(rank["nodes"] for rank in every):
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        slower = contention(max(map(_typical_bytes, every)), device)
        _add_latencies(every, times)
    outside = [_Rank(every, rank).add(times) for rank in range(len(every))]
    merged = {key: statistics.mean(values) for key, values in sorted(times.items())}
    return Measured(merged, slower.compute, slower.communication, statistics.mean(outside))


def _add_latencies(every: list[Any], times: dict[str, list[float]]) -> None:
    """Adds what the smallest collectives take, of kinds that all ranks of a group have."""
    spoken = [_spoken(rank) for rank in every]
    shared = [one for one in set().union(*spoken) if all(one in spoken[rank] for rank in one.ranks)]
    own = spoken[dist.get_rank()]
    own = latencies({one: own[one] for one in sorted(shared) if one in own})
    for found in gathered(own):
        for name, time in found.items():
            times[name].append(time)


def _spoken(found: Mapping[str, Any]) -> dict[Spoken, str]:
    """A rank's process groups by kind of collective and ranks; the first, where several have the
    same."""
    groups: dict[Spoken, str] = {}
    for node in (node for graph in found["nodes"] for node in graph):
        named = COLLECTIVE.fullmatch(node["key"])
        if node["kind"] == "collective" and named and len(node["ranks"]) > 1:
            groups.setdefault(Spoken(named[1], tuple(node["ranks"])), node["group"])
    return groups


@dataclass
class _Rank:
    """A rank that measured something."""

    every: list[Any]
    rank: int

    def add(self, times: dict[str, list[float]]) -> float:
        """Adds the times of its nodes; returns the nanoseconds of a step spent outside them."""
        found = self.every[self.rank]
        inside = [0.0] * len(found["durations"])
        for number, runs in enumerate(found["runs"]):
            issue = self._add(number, times)
            for at, run in enumerate(runs[-len(inside) :]):
                inside[at] += run[-1] - run[0] - issue
        beyond = [1e9 * whole - part for whole, part in zip(found["durations"], inside)]
        return max(0.0, statistics.median(beyond))

    def _add(self, number: int, times: dict[str, list[float]]) -> float:
        """Adds the times of a graph; returns the nanoseconds spent issuing its collectives."""
        runs, issue = self.every[self.rank]["runs"][number], 0.0
        for index, node in enumerate(self.every[self.rank]["nodes"][number]):
            # The first mark is that of the call.
            lasted = statistics.median(run[index + 2] - run[index + 1] for run in runs)
            if node["kind"] == "compute":
                times[node["key"]].append(lasted)
            elif node["kind"] == "collective":
                issue += lasted
                times[node["key"]].append(self._transfer(number, index))
        return issue

    def _transfer(self, number: int, index: int) -> float:
        """Nanoseconds of a collective, from when the last of its ranks has come to it."""
        ranks = self.every[self.rank]["nodes"][number][index]["ranks"] or [self.rank]
        peers = [self._runs_of(rank, number) for rank in ranks]
        transfers = []
        for at in range(min(map(len, peers))):
            marks = [peer[at] for peer in peers]
            ended = max(mark[index + 3] for mark in marks)
            transfers.append(ended - max(mark[index + 2] for mark in marks))
        return max(0.0, statistics.median(transfers))

    def _runs_of(self, rank: int, number: int) -> list[list[int]]:
        """Of the same graph on another rank; our own if that has none, or another one."""
        own, other = self.every[self.rank], self.every[rank]
        keys = [node["key"] for node in own["nodes"][number]]
        is_same = number < len(other["nodes"]) and keys == [
            node["key"] for node in other["nodes"][number]
        ]
        return (other if is_same else own)["runs"][number]
