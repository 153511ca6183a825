"""Decides whether all ranks that communicate in a graph may issue its collectives in a free order.

Ranks agree on a *skeleton*: the collectives of a graph in the program's order. In the process
group's store every rank has one cell for it, which compare-and-set writes once: either the rank
itself, with the free order that it would run, or a rank that gave up waiting for it, with `KEPT`.
The decision is a function of the cells of all ranks that the graph's process groups connect: free
if they all hold the same order, else kept. Cells never change, so all ranks that read them decide
alike, whether they compiled the graph or loaded it from a cache, early or late.

A decision binds the process from then on. Whatever has the same skeleton and is compiled later (the
same program for another sequence length, with other options, or after halflap was switched off)
gets the collective order that was decided, because one rank may run it while others still run what
was compiled first. Where its dependencies forbid that order, it is another program, and has a
skeleton of its own, *apart*: it runs only if all ranks come to it.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ._ranks import RanksDiffer

#: The prefix of a cell whose rank does not run a free order.
KEPT = "kept"

#: The whole cell of a rank that others gave up waiting for.
LOST = f"{KEPT}: did not come"

#: The seconds that a rank waits for the others by default. If they come at all, it would spend them
#: waiting in the graph's first collective anyway.
PATIENCE = 120.0

#: The same in seconds for a rank that failed to arrive before.
SHORT_PATIENCE = 5.0

#: How often a rank polls the cells of the ranks it waits for.
INTERVAL = 0.02


class Skeleton(NamedTuple):
    """What ranks agree on, and what this rank proposes."""

    name: str
    #: The process groups by name, in the sequence of their first use, which numbers them: names
    #: differ between ranks.
    groups: tuple[str, ...]
    #: The free order: the collectives by their place in the program's order.
    order: tuple[int, ...]
    #: A hash of how the collectives depend on each other.
    shape: str = ""
    #: The skeleton of all graphs with these collectives, if this graph has one of its own.
    apart_from: str = ""

    @property
    def key(self) -> str:
        """Its name in this process, which may run the same collectives over other groups, too."""
        return self._over_groups(self.name)

    @property
    def shared_key(self) -> str:
        """The skeleton of all graphs with these collectives."""
        return self._over_groups(self.apart_from or self.name)

    def _over_groups(self, name: str) -> str:
        return f"{name} over {' '.join(self.groups)}"

    def apart(self) -> Skeleton:
        """The one of graphs whose collectives depend on each other like this alone."""
        name = hashlib.sha256(f"{self.name} {self.shape}".encode()).hexdigest()[:24]
        return self._replace(name=name, apart_from=self.name)

    @property
    def is_kept(self) -> bool:
        """Whether it has collectives in the program's order."""
        return is_kept(self.order)


def is_kept(order: Sequence[int]) -> bool:
    """Whether collectives, by their place in the program's order, are in that order."""
    return all(place == number for number, place in enumerate(order))


def skeleton_of(graph: dict[str, Any], part: str) -> Skeleton:
    """What ranks agree on for a graph, without an order. Whatever is another part of a program has
    another one."""
    groups = groups_of(graph)
    depends = hashlib.sha256(json.dumps(dependencies_of(graph)).encode()).hexdigest()[:16]
    return Skeleton(skeleton_name(graph, groups, part), groups, (), depends)


def skeleton_name(graph: dict[str, Any], groups: Sequence[str], part: str) -> str:
    """A hash of the collectives in the program's order. The ranks of a group know it by the same
    name, but of several groups they need not have the same ones, so these are only numbered."""
    numbers = {name: name if len(groups) == 1 else number for number, name in enumerate(groups)}
    issued = [
        [one["op"], numbers[one["group"]], one["group_size"], one["async"]]
        for one in collectives_of(graph).values()
    ]
    return hashlib.sha256(json.dumps([part, issued]).encode()).hexdigest()[:24]


def collectives_of(graph: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The collectives of a graph by node, in the program's order."""
    return {node["name"]: node["collective"] for node in graph["nodes"] if "collective" in node}


def dependencies_of(graph: dict[str, Any]) -> list[list[int]]:
    """For each collective those that must come before it, by their places in the program's
    order."""
    makers = {name: node["name"] for node in graph["nodes"] for name in node["outputs"]}
    # Bits, one for each collective: nodes are in a topological order.
    before: dict[str, int] = {}
    found: list[list[int]] = []
    for node in graph["nodes"]:
        bits = 0
        for dep in node["deps"]:
            if dep["kinds"] != ["order"] and dep["buffer"] in makers:
                bits |= before[makers[dep["buffer"]]]
        if "collective" in node:
            found.append([place for place in range(len(found)) if bits >> place & 1])
            bits |= 1 << (len(found) - 1)
        before[node["name"]] = bits
    return found


def groups_of(graph: dict[str, Any]) -> tuple[str, ...]:
    """Process groups in the sequence of their first use."""
    return tuple(dict.fromkeys(one["group"] for one in collectives_of(graph).values()))


@dataclass
class Decisions:
    """What was decided in this process, for the process group that is up now."""

    world: Any = None
    #: By skeleton: the free order that this process has code for.
    offered: dict[str, tuple[int, ...]] = field(default_factory=dict)
    #: By skeleton: the order of collectives that all run; None for the program's own.
    orders: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    #: By skeleton: how collectives depend on each other in the graph that came first.
    shapes: dict[str, str] = field(default_factory=dict)
    #: Skeletons that some graphs are apart from.
    split: set[str] = field(default_factory=set)
    #: Ranks that never arrived.
    silent: set[int] = field(default_factory=set)
    patience: float = PATIENCE
    #: For a program that is apart, which cannot run without the others; by default as long as its
    #: own collectives would wait.
    apart_patience: float | None = None
    #: The prefix of cells in the store.
    prefix: str = "halflap/agree"

    def offer(self, skeleton: Skeleton) -> None:
        """Binds everything compiled from now on to this order, where dependencies allow it."""
        now = self.current()
        now.offered.setdefault(skeleton.key, skeleton.order)
        now.shapes.setdefault(skeleton.key, skeleton.shape)
        if skeleton.apart_from:
            now.split.add(skeleton.shared_key)

    def may_follow(self, shared: Skeleton) -> bool:
        """Whether a graph may have the order of others with the same collectives: not if some are
        apart from it, because it may be one of these, compiled again and fused otherwise."""
        now = self.current()
        is_known = now.shapes.get(shared.key) == shared.shape
        return is_known or shared.key not in now.split

    def current(self) -> Decisions:
        """Forgets everything once the process group is another one."""
        world = dist.group.WORLD if dist.is_initialized() else None
        if world is not self.world:
            self.world, self.offered, self.orders, self.silent = world, {}, {}, set()
            self.shapes, self.split = {}, set()
        return self

    def binding(self) -> dict[str, tuple[int, ...]]:
        """The free orders that other ranks rely on, by skeleton."""
        free = {key: order for key, order in self.current().orders.items() if order is not None}
        return {} if not free or is_alone() else free

    def outcome(self, skeleton: Skeleton) -> str:
        """The decision: ``free``, ``kept``, or ``not run yet``."""
        orders = self.current().orders
        if skeleton.key not in orders:
            return "not run yet"
        return "free" if orders[skeleton.key] == skeleton.order else KEPT

    def key(self) -> str:
        """For compile caches: what is compiled depends on what was decided before."""
        now = self.current()
        if not now.offered and not now.orders:
            return ""
        decided = json.dumps([now.offered, now.orders, now.shapes], sort_keys=True)
        return hashlib.sha256(decided.encode()).hexdigest()[:16]


decisions = Decisions()


@contextmanager
def waiting(seconds: float | None) -> Iterator[None]:
    """Waits for other ranks for so long at most, if anything is said."""
    before = decisions.patience
    decisions.patience = before if seconds is None else seconds
    try:
        yield
    finally:
        decisions.patience = before


def withdraw(skeleton: Skeleton) -> None:
    """Says that this rank keeps the program's order, unless it has said otherwise. Never raises."""
    try:
        if not is_alone():
            Cells(skeleton).put(dist.get_rank(), KEPT)
    except Exception as problem:
        _tell_unreachable(problem)


def may_run_free(skeleton: Skeleton) -> bool:
    """The decision. Waits for the other ranks, for `decisions.patience` at most. Raises
    `RanksDiffer` alone, where a rank does not come to a program that is apart."""
    orders = decisions.current().orders
    if skeleton.key not in orders:
        orders[skeleton.key] = skeleton.order if ask_all(skeleton) else None
    return orders[skeleton.key] == skeleton.order


def ask_all(skeleton: Skeleton) -> bool:
    """Whether all ranks offer the same order; not remembered."""
    try:
        return _all_agree(skeleton)
    except RanksDiffer:
        raise
    except Exception as problem:
        _tell_unreachable(problem)
        return False


def _tell_unreachable(problem: Exception) -> None:
    warnings.warn(
        "halflap keeps the program's order of collectives: it could not read from the process "
        f"group's store what other ranks run ({type(problem).__name__}: {problem})",
        RuntimeWarning,
        stacklevel=3,
    )


def _tell_silent(rank: int, waited: float) -> None:
    warnings.warn(
        f"halflap keeps the program's order of collectives: rank {rank} did not come to the same "
        f"graph within {waited:.0f} s; it may have ended, run something else, or not use halflap. "
        "If it always comes later, raise agree_within, and the process group's timeout",
        RuntimeWarning,
        stacklevel=3,
    )


def _all_agree(skeleton: Skeleton) -> bool:
    if is_alone():
        return dist.is_initialized() and not skeleton.is_kept
    cells = Cells(skeleton)
    written = cells.write_own()
    if skeleton.apart_from and written == LOST:
        raise _did_not_come(dist.get_rank())
    # A rank that keeps the program's order says so, and needs no answer.
    if written != cells.own or (skeleton.is_kept and not skeleton.apart_from):
        return False
    agreement = _Agreement(cells, _patience(skeleton), bool(skeleton.apart_from))
    try:
        is_free = agreement.reached()
    finally:
        cells.wait_for(())
    if skeleton.apart_from and agreement.lost:
        raise _did_not_come(agreement.lost[0])
    return is_free


def _patience(skeleton: Skeleton) -> float:
    """How long to wait for others. One that does not come may be in its next collective already,
    and ends with an error if this rank is not there within the process group's timeout."""
    try:
        timeout = min(map(_timeout_of, skeleton.groups), default=math.inf)
    except Exception:
        # Of a backend that has none.
        timeout = math.inf
    if not skeleton.apart_from:
        return min(decisions.patience, timeout / 2)
    return timeout if decisions.apart_patience is None else decisions.apart_patience


def _timeout_of(group: str) -> float:
    """The seconds that a process group's collectives wait for a rank."""
    usual = distributed_c10d.default_pg_timeout
    found = distributed_c10d._resolve_process_group(group)
    options = [
        getattr(found._get_backend(device), "options", None) for device in found._device_types
    ]
    return min(getattr(one, "_timeout", usual).total_seconds() for one in options)


def _did_not_come(rank: int) -> RanksDiffer:
    return RanksDiffer(
        f"rank {rank} did not come in time to a graph whose collectives cannot have the order that "
        "ranks agreed on for another graph with the same collectives; if ranks run different "
        "graphs at the same time, use halflap.torch.enable(collective_order='kept')"
    )


def is_alone() -> bool:
    """Whether this rank has nobody to agree with."""
    return not dist.is_initialized() or dist.get_backend() == "fake"


class Cells:
    """The cells of one skeleton in the store."""

    def __init__(self, skeleton: Skeleton) -> None:
        self._store = dist.PrefixStore(decisions.prefix, distributed_c10d._get_default_store())
        self._name = skeleton.name
        groups = [[group, sorted(_ranks_of(group))] for group in skeleton.groups]
        #: What this rank writes. Two groups may have the same ranks, so their names are part of it.
        self.own = json.dumps({"order": skeleton.order, "groups": groups})

    def put(self, rank: int, value: str) -> str:
        """Writes a cell unless it was written before, and returns its content."""
        return self._store.compare_set(f"{self._name}/{rank}", "", value).decode()

    def write_own(self) -> str:
        """Writes this rank's own cell, and returns its content."""
        return self.put(dist.get_rank(), self.own)

    def read(self, rank: int) -> str | None:
        """What is in a cell, without waiting for it."""
        key = f"{self._name}/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else None

    def wait_for(self, ranks: Iterable[int]) -> None:
        """Publishes which rank this one waits for, and in which graph."""
        waiting = {"in": self._name, "for": sorted(ranks)}
        self._store.set(f"waiting/{dist.get_rank()}", json.dumps(waiting))

    def part_from(self, rank: int) -> bool:
        """Whether a rank waits for this one in another graph. Neither would ever come, so its wait
        is ended, too."""
        key = f"waiting/{rank}"
        if not self._store.check([key]):
            return False
        waiting = json.loads(self._store.get(key))
        if waiting["in"] == self._name or dist.get_rank() not in waiting["for"]:
            return False
        # If this rank's cell is filled already, the other rank will see that and go on.
        declined = f"{KEPT} by rank {dist.get_rank()} in {self._name}"
        found = self._store.compare_set(f"{waiting['in']}/{dist.get_rank()}", "", declined)
        return found.decode() == declined


def _ranks_of(group: str) -> list[int]:
    return distributed_c10d.get_process_group_ranks(distributed_c10d._resolve_process_group(group))


class _Group(NamedTuple):
    """A process group, as all of its ranks know it."""

    name: str
    ranks: tuple[int, ...]


class _Agreement:
    """Reads the cells of all ranks that process groups connect with this one."""

    def __init__(self, cells: Cells, patience: float, is_apart: bool) -> None:
        self._cells = cells
        self._patience = patience
        #: Whether it is the same with all ranks, also with those that never came before.
        self._is_apart = is_apart
        self._began = time.monotonic()
        self._order = json.loads(cells.own)["order"]
        self._missing: set[int] = {dist.get_rank()}
        #: The process groups of every rank that was read.
        self._groups: dict[int, list[_Group]] = {}
        #: Ranks that never arrived.
        self.lost: list[int] = []

    def reached(self) -> bool:
        """Whether all cells hold the same order. Where one stays empty, it is filled: kept."""
        while self._missing:
            cells = {rank: self._cells.read(rank) for rank in sorted(self._missing)}
            found = {rank: value for rank, value in cells.items() if value}
            if not found:
                found = self._give_up_on_some()
            for rank, value in found.items():
                if value.startswith(KEPT):
                    self.lost += [rank] if value == LOST else []
                    return False
                if not self._read(rank, json.loads(value)):
                    return False
        return self._number_groups_alike()

    def _give_up_on_some(self) -> dict[int, str]:
        """Waits a little, or fills the cells of those that will not come."""
        self._cells.wait_for(self._missing)
        ended = {rank: self._ended(rank) for rank in sorted(self._missing)}
        given_up = {rank: value for rank, value in ended.items() if value is not None}
        if not given_up:
            time.sleep(INTERVAL)
        return {rank: self._cells.put(rank, value) for rank, value in given_up.items()}

    def _ended(self, rank: int) -> str | None:
        """What to fill a rank's cell with, if there is no point in waiting for it any longer."""
        waited = time.monotonic() - self._began
        if waited < self._patience_with(rank):
            return KEPT if self._cells.part_from(rank) else None
        if rank not in decisions.silent:
            _tell_silent(rank, waited)
        decisions.silent.add(rank)
        return LOST

    def _patience_with(self, rank: int) -> float:
        is_short = rank in decisions.silent and not self._is_apart
        return min(self._patience, SHORT_PATIENCE) if is_short else self._patience

    def _read(self, rank: int, cell: dict[str, Any]) -> bool:
        """Records a cell; returns whether its order is this rank's."""
        self._groups[rank] = [_Group(name, tuple(ranks)) for name, ranks in cell["groups"]]
        self._missing.update(*[group.ranks for group in self._groups[rank]])
        self._missing -= set(self._groups)
        return cell["order"] == self._order

    def _number_groups_alike(self) -> bool:
        """Whether every group has the same number on all of its ranks."""
        numbers = {
            (group, rank): [number for number, one in enumerate(self._groups[rank]) if one == group]
            for groups in self._groups.values()
            for group in groups
            for rank in group.ranks
        }
        return all(found == numbers[group, group.ranks[0]] for (group, _), found in numbers.items())
