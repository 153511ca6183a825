"""Which gathered parameters are kept for the backward pass, and which are gathered again.

Tags of the joint graph say it, and torch's partitioner carries it out. What each choice takes and
needs is found by trying it: both graphs are handed over and ordered.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _make_graph_module
from torch.utils.checkpoint import CheckpointPolicy

from ... import _halflap
from ..._api import Graph as Given
from ..._api import simulate
from .._checked import checked_budget, options_of
from .._handover import Unsupported
from .._pass import Options, bytes_of, limit_of
from .._ranks import RanksDiffer
from .._undisturbed import undisturbed
from .passes import WORTH, Asked, deciding
from .regions import GATHER, wait_of
from .search import hand_over, ordered, times_of_fx
from .sizes import Sizes
from .traits import traits_of, written_by
from .units import value_of

#: How often the number of kept parameters between two that were tried is tried.
TRIES = 5

#: The farthest that a parameter's own part may be from its all-gather, in nodes.
FAR = 16


class Gathered(NamedTuple):
    """An all-gather of a parameter."""

    name: str
    #: What makes it again: from the parameter's own part to the wait.
    nodes: tuple[str, ...]
    bytes: int


class Cost(NamedTuple):
    """What a step takes, simulated, in ns, and needs, in bytes."""

    step_time: float
    peak: int


@dataclass
class Kept:
    """What was decided for one pair of graphs."""

    name: str
    parameters: int = 0
    #: How many are kept, and how many were.
    kept: int = 0
    kept_before: int = 0
    before: Cost | None = None
    after: Cost | None = None
    #: Why torch's own choice stays.
    failure: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """In values that JSON has; times in ns, memory in bytes."""
        return {
            "name": self.name,
            "parameters": self.parameters,
            "kept": self.kept,
            "kept_before": self.kept_before,
            "before": None if self.before is None else self.before._asdict(),
            "after": None if self.after is None else self.after._asdict(),
            "failure": self.failure,
        }

    def __str__(self) -> str:
        if self.failure is not None:
            return f"{self.name}: as torch has it; {self.failure}"
        if self.before is None or self.after is None:
            return f"{self.name}: no gathered parameter is used in both directions"
        text = f"{self.name}: {self.kept} of {self.parameters} gathered parameters kept for"
        text += f" backward (were {self.kept_before}), simulated step time"
        text += f" {self.before.step_time / 1e3:.1f} us -> {self.after.step_time / 1e3:.1f} us"
        return f"{text}, peak {self.before.peak} B -> {self.after.peak} B"


#: What was done in this process, in sequence.
decided: list[Kept] = []


class Partitioner(CustomPartitionerFn):
    """Decides for each gathered parameter whether it is kept for the backward pass.

    For Inductor (``custom_partitioner_fn``; `enable` with ``keep`` sets it) and as ``partition_fn``
    of AOTAutograd. ``keep`` is the limit: the most memory that the forward or the backward graph
    may need, as a multiple (``"1.2x"``) of what the larger of both needs without this, or as a
    size. ``True`` is ``memory_budget`` if that is a size, else ``"1x"``. ``options`` are those of
    `reorder`. All ranks of a process group must compile the same graphs.
    """

    def __init__(self, keep: bool | float | str = True, **options: Any) -> None:
        self._take(options_of("halflap.torch.Partitioner", options), keep)

    @classmethod
    def _before_scheduler(cls, options: Options, keep: bool | float | str) -> Partitioner:
        """For `enable`, whose own passes order the two graphs."""
        made = cls.__new__(cls)
        made._take(times_of_fx(options), keep)
        return made

    def _take(self, options: Options, keep: bool | float | str) -> None:
        is_relative = options.memory_budget.endswith("x")
        least = "1x" if is_relative else options.memory_budget
        #: As `memory_budget`: of the larger of both graphs.
        self.limit = least if keep is True else checked_budget(keep, "keep")
        self.options = options
        #: What cuts a tagged joint graph in two.
        self.inner: Any = None

    def __call__(
        self, gm: GraphModule, joint_inputs: Sequence[object], **named: Any
    ) -> tuple[GraphModule, GraphModule]:
        inner = self.inner or min_cut_rematerialization_partition

        def partition(joint: GraphModule) -> tuple[GraphModule, GraphModule]:
            return inner(joint, joint_inputs, **named)

        kept = Kept(_name())
        decided.append(kept)
        try:
            chosen = _Choice(gm, partition, self).make(kept)
        except (Unsupported, _halflap.Error) as problem:
            # The same on all ranks.
            kept.failure = f"{type(problem).__name__}: {problem}"
            warnings.warn(
                f"halflap leaves {kept.name} as torch has it: {kept.failure}",
                RuntimeWarning,
                stacklevel=2,
            )
            return partition(gm)
        except Exception as problem:
            raise RanksDiffer(
                "halflap failed on this rank, perhaps on this one alone "
                f"({type(problem).__name__}: {problem}); the others may issue other collectives"
            ) from problem
        return chosen

    def uuid(self) -> str | None:
        """What compile caches know it by."""
        inner = "" if self.inner is None else self.inner.uuid()
        return None if inner is None else f"{deciding(Asked(self.options))} {self.limit} {inner}"


def _name() -> str:
    rank = dist.get_rank() if dist.is_initialized() else 0
    return f"rank{rank}_step{len(decided)}"


@dataclass
class Attempt:
    """A joint graph in two, and what that costs."""

    graphs: tuple[GraphModule, GraphModule]
    cost: Cost
    #: By the name of a collective of the backward graph: how long compute stands still for it.
    exposed: dict[str, float]


class _Choice:
    """What to keep of one joint graph."""

    def __init__(
        self,
        gm: GraphModule,
        partition: Callable[[GraphModule], tuple[GraphModule, GraphModule]],
        asked: Partitioner,
    ) -> None:
        self._gm, self._partition, self._asked = gm, partition, asked
        self._gathered = gathered_in(gm.graph)

    def make(self, kept: Kept) -> tuple[GraphModule, GraphModule]:
        """The two graphs; notes what was decided."""
        if not self._gathered:
            return self._partition(self._gm)
        plain = self._attempt(None)
        limit = self._limit(plain.cost.peak)
        again = [one for one in self._gathered if one.name in plain.exposed]
        kept.parameters = len(self._gathered)
        kept.kept = kept.kept_before = kept.parameters - len(again)
        kept.before = kept.after = plain.cost
        fits = plain.cost.peak <= limit
        if fits and not again:
            # All that can be kept is.
            return plain.graphs
        best, count = self._best(limit)
        is_shorter = best.cost.step_time < WORTH * plain.cost.step_time
        is_better = is_shorter if fits else best.cost.peak < plain.cost.peak
        if not is_better:
            return plain.graphs
        kept.kept, kept.after = count, best.cost
        return best.graphs

    def _best(self, limit: int) -> tuple[Attempt, int]:
        """The shortest step within the limit that was tried, and how many it keeps; if there is
        none, the one that keeps nothing."""
        best, count = self._attempt(frozenset()), 0
        if best.cost.peak > limit:
            return best, count
        ranked = _ranked(self._gathered, best.exposed)
        fits, number, too_many = 0, len(ranked), len(ranked) + 1
        for _ in range(TRIES):
            attempt = self._attempt(frozenset(ranked[:number]))
            if attempt.cost.peak <= limit:
                fits = number
                if attempt.cost.step_time < best.cost.step_time:
                    best, count = attempt, number
            else:
                too_many = number
            if too_many - fits <= 1:
                break
            number = (fits + too_many) // 2
        return best, count

    def _limit(self, peak: int) -> int:
        """In bytes, of a step whose larger graph has this peak."""
        limit = bytes_of(limit_of(self._asked.limit, peak))
        assert limit is not None
        return limit

    def _attempt(self, kept: frozenset[str] | None) -> Attempt:
        """Cuts a copy in two, with tags that say what is kept; with the program's own if None."""
        graph = copy.deepcopy(self._gm.graph)
        if kept is not None:
            _tag(graph, self._gathered, kept)
        joint = _make_graph_module(self._gm, graph)
        joint.meta = dict(self._gm.meta)
        try:
            graphs = self._partition(joint)
        except (AssertionError, LookupError, RuntimeError, TypeError, ValueError) as problem:
            if kept is None:
                raise
            # As it would on all ranks.
            raise Unsupported(f"torch does not partition the tagged graph: {problem}") from problem
        return undisturbed(self._tried, graphs)

    def _tried(self, graphs: tuple[GraphModule, GraphModule]) -> Attempt:
        """Orders both graphs, as the passes after this one will."""
        options = self._asked.options
        order = "kept" if options.collective_order == "kept" else "free"
        texts = [_halflap.to_json(hand_over(one.graph, options).graph()) for one in graphs]
        found = [ordered(text, options, order) for text in texts]
        ran = simulate(Given(texts[1]), found[1].order, collective_order=order).collectives
        exposed = {one["node"]: one["exposed"] for one in ran}
        step_time = sum(one.step_time for one in found)
        peak = max(one.peak_memory_before for one in found)
        return Attempt(graphs, Cost(step_time, peak), exposed)


def _ranked(gathered: Sequence[Gathered], exposed: dict[str, float]) -> list[str]:
    """Names, those first that save the most time by byte; of equal ones those that are kept for the
    shortest time: the backward pass begins with what was used last."""
    places = {one.name: place for place, one in enumerate(gathered)}

    def worth(one: Gathered) -> tuple[float, int]:
        return exposed.get(one.name, 0.0) / max(one.bytes, 1), places[one.name]

    return [one.name for one in sorted(gathered, key=worth, reverse=True)]


def _tag(graph: Graph, gathered: Iterable[Gathered], kept: frozenset[str]) -> None:
    """Says which are gathered again. Without a tag torch keeps what a collective gave."""
    nodes = {node.name: node for node in graph.nodes}
    for one in gathered:
        for name in one.nodes:
            meta = nodes[name].meta
            if one.name in kept:
                meta.pop("recompute", None)
            else:
                meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def gathered_in(graph: Graph) -> list[Gathered]:
    """The all-gathers of parameters that the backward pass needs, in sequence."""
    late = _after_tangents(graph)
    called = [node for node in graph.nodes if node.op == "call_function"]
    written = {one for node in called for one in written_by(node)}
    sizes, found = Sizes(), []
    for node in graph.nodes:
        if node.target is not GATHER or node in late:
            continue
        made_by, wait = _made_by(node, written), wait_of(node)
        if made_by is not None and wait is not None and _is_needed(wait, late):
            names = tuple(one.name for one in (*made_by, node, wait))
            found.append(Gathered(node.name, names, sizes.bytes_of(value_of(wait))))
    return found


def _after_tangents(graph: Graph) -> set[Node]:
    """What needs a gradient, and so is part of the backward graph."""
    late: set[Node] = set()
    for node in graph.nodes:
        is_tangent = node.op == "placeholder" and node.name.startswith("tangents")
        if is_tangent or any(one in late for one in node.all_input_nodes):
            late.add(node)
    return late


def _made_by(gather: Node, written: set[Node]) -> list[Node] | None:
    """What is between a parameter and its all-gather, if that can be made again."""
    found: list[Node] = []
    node = gather.args[0]
    while len(found) < FAR and isinstance(node, Node):
        if node.op == "placeholder":
            is_fixed = node not in written and not node.meta.get(
                "aot_runtime_epilogue_input_mutation", False
            )
            return found[::-1] if is_fixed and node.name.startswith("primals") else None
        needed = node.all_input_nodes
        if node.op != "call_function" or len(needed) != 1 or not traits_of(node).is_plain:
            return None
        found.append(node)
        node = needed[0]
    return None


def _is_needed(wait: Node, late: set[Node]) -> bool:
    """Whether the backward pass reads what was gathered, as it is, in another form or converted."""
    looked_at = [wait]
    for node in looked_at:
        for user in node.users:
            if user.op == "output":
                continue
            if user in late:
                return True
            if len(user.all_input_nodes) == 1 and len(looked_at) < FAR:
                looked_at.append(user)
    return False
