"""Passes over FX graphs: `reorder` moves nodes, `optimize` also merges and splits collectives.

Whatever goes wrong, the graph stays as it was, and one warning says why.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._logging import getArtifactLogger, trace_structured
from torch.fx import Graph

from ... import _halflap
from ..._api import Graph as Given
from ..._api import Schedule, simulate
from .._devices import modelled_on
from .._groups import second_groups
from .._handover import Unsupported
from .._pass import WORTH, Options, bytes_of, limit_of
from .._ranks import RanksDiffer, topology
from .._undisturbed import undisturbed
from .agreement import all_would, place_of, would_not
from .check import sequence_of
from .groups import can_regroup, regroup_all
from .merge import Merged, merge_all
from .narrow import can_narrow, narrow_all
from .order import apply, arrange
from .program import Program, communicates
from .regions import Cuts, reaches_back
from .restore import Backup
from .search import hand_over, ordered
from .split import Split, split_all

log: logging.Logger = getArtifactLogger("torch._inductor.comms", "overlap")

#: Changes with what is handed over, so that a result of before is not taken from a cache.
HANDOVER = 3

#: A collective is cut only if compute stands still for it for this part of a step, and into so many
#: pieces.
EXPOSED = 0.002
PIECES = (2, 4)
#: How many of them are cut together.
PARTS = (1.0, 0.5, 0.2)


@dataclass(frozen=True)
class Asked:
    """What a pass may do, besides what decides an order."""

    options: Options
    #: ``"exact"``, ``"all"``, names of kinds with commas between, or None: only nodes are moved.
    rewrite: str | None = None
    #: Whether ranks agree before a graph is changed in ways that others must follow.
    agrees: bool = False
    #: Whether a graph that is not rewritten is ordered, too.
    orders: bool = True

    @property
    def merges(self) -> bool:
        """Whether collectives may be merged."""
        return self._has("exact", "merge", "all")

    @property
    def splits(self) -> bool:
        """Whether they may be cut."""
        return self._has("split", "all")

    @property
    def regroups(self) -> bool:
        """Whether all-gathers may move to second process groups."""
        return self._has("groups")

    @property
    def is_exact(self) -> bool:
        """Whether sums must be added up in the same sequence."""
        return not self._has("all")

    def _has(self, *kinds: str) -> bool:
        return not {*kinds}.isdisjoint((self.rewrite or "").split(","))


class Rewrites(NamedTuple):
    """What became of collectives."""

    #: Those that are now of a narrower type.
    narrowed: Sequence[str] = ()
    merged: Sequence[Merged] = ()
    split: Sequence[Split] = ()
    #: Those that are now of a second process group.
    regrouped: Sequence[str] = ()

    def __str__(self) -> str:
        """A part of a sentence that a comma ends."""
        parts = [(len(self.narrowed), "sent after conversion")] if self.narrowed else []
        merged = sum(len(one.members) for one in self.merged)
        parts += [(merged, f"merged into {len(self.merged)}")] if merged else []
        cut = sum(len(one.collectives) for one in self.split)
        parts += [(cut, f"cut into {self.split[0].pieces} pieces each")] if cut else []
        moved = len(self.regrouped)
        parts += [(moved, "in a second process group")] if moved else []
        return "".join(f"{_counted(count)} {what}, " for count, what in parts)

    def lines(self) -> list[str]:
        """All of it, for a summary."""
        narrowed = [f"converted      {', '.join(self.narrowed)}\n"] if self.narrowed else []
        merged = [f"merged         {one}\n" for one in self.merged]
        moved = [f"second group   {', '.join(self.regrouped)}\n"] if self.regrouped else []
        return [*narrowed, *merged, *[f"cut            {one}\n" for one in self.split], *moved]


def _counted(count: int) -> str:
    return "1 collective" if count == 1 else f"{count} collectives"


@dataclass
class Changed:
    """What a pass did to one FX graph."""

    name: str
    nodes: int
    collectives: int
    seconds: float = 0.0
    #: The order, of the rewritten program where it was rewritten; None where nothing was done.
    schedule: Schedule | None = None
    #: Simulated, in ns: of the graph as it was, and of the best order without rewrites.
    step_time_before: float | None = None
    order_alone: float | None = None
    rewrites: Rewrites = Rewrites()
    #: Whether nodes have other places than before.
    is_moved: bool = False
    #: What a rewritten program may need, in the words of `limit_of`.
    limit: str = ""
    #: What was carried out.
    plan: Plan | None = None
    #: Collectives that stay as they are, because the graph would not fit once it is fused.
    taken_back: tuple[str, ...] = ()
    #: Why a rewritten graph was given up once it was fused.
    dropped: str | None = None
    #: Whether it was not rewritten because other ranks would not have done the same.
    is_alone: bool = False
    #: Why the graph is as it was.
    failure: str | None = None

    def without(self, names: Sequence[str]) -> Changed | None:
        """What to do instead, without rewrites that the first of their collectives names; None if
        nothing is left."""
        sets = [one.members for one in self.rewrites.merged]
        sets += [one.collectives for one in self.rewrites.split]
        sets = [one for one in sets if one[0] in names]
        assert self.plan is not None
        plan = self.plan.without(sets)
        kept = plan.cuts.exposed.union(*[one["members"] for one in plan.recipes])
        lost = [one for members in sets for one in members if one not in kept]
        left = replace(self, plan=plan, taken_back=(*self.taken_back, *lost))
        return left if sets and kept else None

    def drop(self, why: str) -> None:
        """Notes that the graph is as it was after all."""
        self.dropped, self.rewrites, self.schedule = why, Rewrites(), None
        log.debug("halflap leaves %s as it is: rewritten, %s", self.name, why)

    def to_dict(self) -> dict[str, Any]:
        """In values that JSON has; times in ns."""
        return {
            "name": self.name,
            "nodes": self.nodes,
            "collectives": self.collectives,
            "narrowed": [*self.rewrites.narrowed],
            "merged": [[*one.members] for one in self.rewrites.merged],
            "split": [one.to_dict() for one in self.rewrites.split],
            "regrouped": [*self.rewrites.regrouped],
            "taken_back": [*self.taken_back],
            "step_time_before": self.step_time_before,
            "order_alone": self.order_alone,
            "step_time": None if self.schedule is None else self.schedule.step_time,
            "dropped": self.dropped,
            "is_alone": self.is_alone,
            "failure": self.failure,
        }

    def __str__(self) -> str:
        if self.dropped is not None:
            return f"{self.name}: as it was; rewritten, {self.dropped}"
        if self.failure is not None:
            return f"{self.name}: as it was; {self.failure}"
        alone = "other ranks would not do the same, so not rewritten" if self.is_alone else ""
        if self.schedule is None:
            return f"{self.name}: {alone or 'nothing to rewrite'}"
        alone = alone and f"{alone}; "
        taken = f"{_counted(len(self.taken_back))} left for memory, " if self.taken_back else ""
        text = f"{self.name}: {alone}{self.rewrites}{taken}ordered"
        before, after = self.step_time_before / 1e3, self.schedule.step_time / 1e3
        return f"{text}, simulated step time {before:.1f} us -> {after:.1f} us"


#: What was done in this process, in sequence.
done: list[Changed] = []


def forget(changed: Changed) -> None:
    """Leaves out what was done in vain."""
    done[:] = [one for one in done if one is not changed]


def run(graph: Graph, asked: Asked, planned: Changed | None = None) -> Changed:
    """Changes a graph in place; what was done to it. What is planned, for a graph that was seen
    before, is carried out as it is."""
    started = time.perf_counter()
    changed = Changed(_name(), len(graph.nodes), 0)
    if planned is not None:
        changed = replace(planned, name=changed.name, rewrites=Rewrites(), schedule=None)
    if not communicates(graph, asked.options.collectives):
        return changed
    needs_all = asked.rewrite is not None or asked.options.collective_order != "kept"
    place = place_of(graph) if asked.agrees and needs_all else None
    try:
        undisturbed(lambda: _Run(graph, asked, changed, place).run())
    except RanksDiffer:
        raise
    except Exception as problem:
        if place is not None:
            would_not(place)
        _fail(changed, problem, asked, needs_all)
    changed.seconds = time.perf_counter() - started
    done.append(changed)
    _tell(changed)
    return changed


class _Run:
    """One run of a pass."""

    def __init__(self, graph: Graph, asked: Asked, changed: Changed, place: Any) -> None:
        self.graph, self.asked, self.changed, self.place = graph, asked, changed, place
        self.program = self._hand_over()

    def run(self) -> None:
        """Does all that was asked for."""
        if self.changed.plan is not None:
            return self._rewrite_as(self.changed.plan)
        program = self.program
        issued = [node for node in program.nodes if node["kind"] == "collective"]
        self.changed.collectives = len(issued)
        text = _halflap.to_json(program.graph())
        self.asked = self._with_room(text)
        wanted = self.asked.options.collective_order
        order = "kept" if wanted == "auto" and not program.is_symmetric else wanted
        may_rewrite = self.asked.rewrite is not None and program.is_symmetric
        merging = self._merging(text) if may_rewrite and self.asked.merges else None
        alone = Alone(lambda: self._schedule(text, "free" if order == "auto" else order), merging)
        self.changed.step_time_before = alone.known.step_time_before
        self.changed.order_alone = alone.step_time
        is_rewritten = may_rewrite and self._rewrite(text, alone)
        if self.asked.orders and not is_rewritten:
            self._reorder(text, alone.schedule, order)
        if self.place is not None:
            would_not(self.place)

    def _with_room(self, text: bytes) -> Asked:
        """What is asked for; where the result is judged once it is fused, within what the graph
        needs before that, even if it must fit into less in the end."""
        size = None if self.asked.orders else bytes_of(self.asked.options.memory_budget)
        if size is None or size >= simulate(Given(text)).peak_memory:
            return self.asked
        return replace(self.asked, options=replace(self.asked.options, memory_budget="1x"))

    def _hand_over(self) -> Program:
        return hand_over(self.graph, self.asked.options)

    def _schedule(self, text: bytes, collective_order: str, **more: Any) -> Schedule:
        return ordered(text, self.asked.options, collective_order, **more)

    def _reorder(self, text: bytes, found: Schedule, order: str) -> None:
        """Moves nodes into the order found; if collectives move and ranks do not agree on that,
        into the best one that keeps theirs."""
        before, program = list(self.graph.nodes), self.program
        if order != "kept":
            # Anything that can fail does so before other ranks rely on it.
            self._move(program, found, order)
            if not self._agreed(json.dumps(_issued(program, found.order))):
                arrange(self.graph, before)
                found, order = self._schedule(text, "kept"), "kept"
        if order == "kept":
            self._move(program, found, order)
        self.changed.schedule = found

    def _move(self, program: Program, found: Schedule, order: str) -> None:
        if found.step_time < found.step_time_before:
            self.changed.is_moved = apply(program, found.order, order == "kept")

    def _agreed(self, decision: str) -> bool:
        """Whether all ranks do the same, or the user says that they do."""
        if not self.asked.agrees:
            return True
        place, self.place = self.place, None
        return place is not None and all_would(place, decision)

    def _rewrite(self, text: bytes, alone: Alone) -> bool:
        """Merges and cuts collectives, and orders the result; whether that is better than the best
        order of the program as it is, and all ranks do it."""
        narrows = self.asked.merges and can_narrow(self.graph)
        regroups = self.asked.regroups and can_regroup(self.graph)
        if not (alone.recipes or narrows or regroups or self.asked.splits):
            return False
        backup = Backup(self.graph)
        try:
            best = self._best(text, alone, backup)
            if best is None or not self._agreed(best.decision()):
                self.changed.is_alone = best is not None
                backup.restore()
                # Of the nodes that it has now.
                self.program = self._hand_over()
                return False
        except BaseException:
            backup.restore()
            raise
        self._note(best)
        return True

    def _rewrite_as(self, plan: Plan) -> None:
        """Does what is planned. What a part of it needs before it is fused is not the question any
        more, so this has its own limit."""
        backup = Backup(self.graph)
        try:
            limit = "1x" if self.changed.taken_back else self.changed.limit
            best = self._attempt(plan, limit).better_than(math.inf)
            if best is None:
                return backup.restore()
            self._arrange(best)
        except BaseException:
            backup.restore()
            raise
        self._note(best)

    def _note(self, done: Attempt) -> None:
        self.changed.schedule, self.changed.rewrites = done.found, done.rewrites
        self.changed.plan, self.changed.is_moved = done.plan, True

    def _arrange(self, done: Attempt) -> None:
        """Puts a rewritten program into its order."""
        apply(done.program, done.found.order, self._order() == "kept")

    def _best(self, text: bytes, alone: Alone, backup: Backup) -> Attempt | None:
        """The best program that was tried, which the graph then is, or None."""
        limit = limit_of(self.asked.options.memory_budget, alone.known.peak_memory_before)
        self.changed.limit = limit
        best = last = self._without_cuts(alone, limit, backup)
        if self.asked.splits:
            exposed = best.exposed() if best is not None else self._exposed(text, alone.schedule)
            merges = [] if best is None else best.plan.recipes
            for cuts in _cuts(exposed):
                backup.restore()
                if cuts.reach_back and not reaches_back(self.graph, cuts):
                    last = None
                    continue
                last = self._attempt(Plan(merges, cuts), limit)
                least = alone.step_time if best is None else best.found.step_time
                best = last.better_than(WORTH * least) or best
        if best is not None and best is not last:
            backup.restore()
            last = self._attempt(best.plan, limit)
            best = last.better_than(math.inf)
        if best is not None:
            self._arrange(best)
        return best

    def _without_cuts(self, alone: Alone, limit: str, backup: Backup) -> Attempt | None:
        """Merged where that is shorter, and with second groups if there are any."""
        regroups = self.asked.regroups and can_regroup(self.graph)
        if self.asked.merges:
            best = self._attempt(Plan(alone.recipes), limit).better_than(WORTH * alone.step_time)
            if best is not None or not regroups:
                return best
            backup.restore()
        # It was asked for by name, and the simulation knows little of what waits on a real link.
        return self._attempt(Plan([]), limit).better_than(math.inf) if regroups else None

    def _order(self) -> str:
        return "kept" if self.asked.options.collective_order == "kept" else "free"

    def _merging(self, text: bytes) -> Schedule:
        """What the library would merge, and the best order if that is nothing; all-reduces, too,
        which can be merged exactly here."""
        options = self.asked.options
        modelled = modelled_on(options.device, options.ranks_per_node)
        # Copies, and collectives of sizes that the graph does not have, are modelled; all else has
        # its time already.
        is_own = modelled.device.startswith("{")
        device = json.loads(modelled.device) if is_own else modelled.device
        machine = {
            "device": device,
            "ranks_per_node": modelled.ranks_per_node,
            "profile": {node["name"]: node["runtime_ns"] for node in self.program.nodes},
        }
        # What is merged is written below, and then ordered.
        more = {"rewrite": ["merge"], "recipes_only": True}
        return self._schedule(text, self._order(), **more, **machine)

    def _exposed(self, text: bytes, found: Schedule) -> list[str]:
        """The collectives that are worth cutting: compute stalls on them, on the first the most."""
        ran = simulate(Given(text), found.order, collective_order=self._order()).collectives
        least = EXPOSED * found.step_time
        worth = [one for one in ran if one["exposed"] > least]
        worth.sort(key=lambda one: -one["exposed"])
        return [one["node"] for one in worth]

    def _attempt(self, plan: Plan, limit: str) -> Attempt:
        """Changes the graph as planned, and orders it."""
        before = sequence_of([*self.graph.nodes])
        try:
            rewrites = self._written(plan)
        except (MemoryError, OSError, Unsupported):
            raise
        except Exception as problem:
            # Graph and plan alone decide what is written: all ranks fail alike.
            raise Unsupported(f"a rewrite failed: {type(problem).__name__}: {problem}") from problem
        plan = plan.with_starts([one.collectives[0] for one in rewrites.split])
        if not any(rewrites) or sequence_of([*self.graph.nodes]) != before:
            return Attempt(self, plan, None)
        program = self._hand_over()
        text = _halflap.to_json(program.graph())
        try:
            found = self._schedule(text, self._order(), memory_budget=limit)
        except _halflap.Error:
            # It does not fit into memory.
            return Attempt(self, plan, None)
        return Attempt(self, plan, found, program, text, rewrites)

    def _written(self, plan: Plan) -> Rewrites:
        """Changes the graph as planned."""
        asked, graph = self.asked, self.graph
        regrouped = regroup_all(graph) if asked.regroups else []
        narrowed = narrow_all(graph) if asked.merges else []
        merged = merge_all(graph, plan.recipes, asked.is_exact)
        split = split_all(graph, plan.cuts, asked.is_exact) if plan.cuts.exposed else []
        return Rewrites(narrowed, merged, split, regrouped)


class Alone:
    """The program as it is, in its best order: searched for only once it is needed."""

    def __init__(self, search: Callable[[], Schedule], merging: Schedule | None) -> None:
        self._search = search
        #: What the library would merge.
        self.recipes = [] if merging is None else [*merging.recipes]
        if merging is not None and not self.recipes:
            # Where nothing is to be merged, its order is this one.
            self.schedule = merging
        #: Of the graph as it was, this says the same.
        self.known = self.schedule if merging is None else merging
        self.step_time = merging.order_alone if self.recipes else self.known.step_time

    @cached_property
    def schedule(self) -> Schedule:
        """The order."""
        return self._search()


@dataclass(frozen=True)
class Plan:
    """Rewrites to try: what is merged, and what is cut."""

    recipes: list[dict[str, Any]]
    cuts: Cuts = Cuts()

    def with_starts(self, names: Sequence[str]) -> Plan:
        """The same, with the beginnings of all regions by name."""
        if not self.cuts.reach_back:
            return self
        exposed = self.cuts.exposed.union(names)
        return replace(self, cuts=Cuts(exposed, self.cuts.pieces))

    def without(self, sets: Sequence[Sequence[str]]) -> Plan:
        """Less of it. Of these sets of collectives, what is merged becomes two halves, and what is
        cut is cut from its end alone, or not at all if it has one."""
        names = {name for members in sets for name in members}
        recipes = []
        for recipe in self.recipes:
            members = recipe["members"]
            halves = [members[: len(members) // 2], members[len(members) // 2 :]]
            kept = [members] if names.isdisjoint(members) else halves
            recipes += [{**recipe, "members": one} for one in kept if len(one) > 1]
        exposed = self.cuts.exposed
        ends = {members[1] for members in sets if len(members) == 2 and members[0] in exposed}
        return Plan(recipes, self.cuts._replace(exposed=(exposed - names) | ends))


def _cuts(exposed: list[str]) -> Iterator[Cuts]:
    """Cuts to try: of all exposed collectives, with the whole of the regions that they end, too,
    and, because pieces of all may not fit into memory or hide nothing, of those alone that matter
    most."""
    for pieces in PIECES:
        for part in PARTS:
            count = math.ceil(len(exposed) * part)
            if count and (part == 1.0 or count < len(exposed)):
                yield Cuts(frozenset(exposed[:count]), pieces)
        if exposed:
            yield Cuts(frozenset(exposed), pieces, reach_back=True)


@dataclass
class Attempt:
    """A rewritten program, and its order; None if there is none."""

    run: _Run
    plan: Plan
    found: Schedule | None
    program: Program | None = None
    text: bytes = b""
    rewrites: Rewrites = Rewrites()

    def better_than(self, time: float) -> Attempt | None:
        """Itself, if its step is shorter."""
        return self if self.found is not None and self.found.step_time < time else None

    def exposed(self) -> list[str]:
        """Collectives that compute still stalls on, those first that it does the longest."""
        return self.run._exposed(self.text, self.found)

    def decision(self) -> str:
        """What all ranks must do alike."""
        assert self.program is not None and self.found is not None
        return json.dumps([_issued(self.program, self.found.order), str(self.rewrites)])


def _issued(program: Program, order: list[str]) -> list[Any]:
    """The collectives of an order, as all ranks know them."""
    nodes = {node["name"]: node.get("collective") for node in program.nodes}
    numbers = {name: number for number, name in enumerate(program.groups)}
    return [
        [one["op"], numbers[one["group"]], one["group_size"], one["bytes"], name]
        for name in order
        if (one := nodes[name]) is not None
    ]


def deciding(asked: Asked) -> str:
    """A hash of all that decides besides the graph, for compile caches."""
    modelled = modelled_on(asked.options.device, asked.options.ranks_per_node)
    lies = topology(modelled.ranks_per_node)
    second = sorted(second_groups().items()) if asked.regroups else []
    text = f"{_halflap.__version__} {HANDOVER} {asked!r} {modelled!r} {lies} {second}"
    return hashlib.sha256(text.encode()).hexdigest()


def _fail(changed: Changed, problem: Exception, asked: Asked, needs_all: bool) -> None:
    """Records and reports why a graph stays as it is. Raises if other ranks may have changed it
    without an agreement."""
    changed.failure = f"{type(problem).__name__}: {problem}"
    changed.schedule = None
    is_everybodys = isinstance(problem, (Unsupported, _halflap.Error))
    if needs_all and not asked.agrees and not is_everybodys:
        raise RanksDiffer(
            f"halflap failed on this rank, perhaps on this one alone ({changed.failure}); the "
            "others may issue other collectives"
        ) from problem
    text = f"halflap leaves {changed.name} as it is: {changed.failure}"
    log.debug(text, exc_info=problem)
    warnings.warn(text, RuntimeWarning, stacklevel=5)


def _name() -> str:
    rank = dist.get_rank() if dist.is_initialized() else 0
    return f"rank{rank}_fx{len(done)}"


def _tell(changed: Changed) -> None:
    result = changed.schedule
    if result is None:
        return

    def summary() -> str:
        return f"{''.join(changed.rewrites.lines())}{result}"

    # It explains every collective, which takes as long as the pass: only for those who read it.
    if log.isEnabledFor(logging.DEBUG):
        text = summary()
        log.debug("halflap changed %s in %.3f s\n%s", changed.name, changed.seconds, text)
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": "halflap_fx_summary", "encoding": "string"},
        payload_fn=summary,
    )
