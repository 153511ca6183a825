"""Judges a rewritten graph by the graph that it was, once Inductor has fused both.

A pass over FX graphs estimates what Inductor will fuse, and so how much memory a graph needs. Where
it rewrites a graph, the same graph is first lowered as it was, up to our pass over scheduler nodes:
its memory is what the limit is a multiple of, and its best order is what the rewritten one must
beat. If it does not, Inductor goes on with the graph as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.fx import GraphModule


class Reference(NamedTuple):
    """A graph as it was: what Inductor's own order needs, and how long the best one takes."""

    peak_memory: int
    step_time: float


class Ended(Exception):
    """All that was wanted of a compilation is known."""


class Stage(Enum):
    """What a graph is being compiled for."""

    #: To see whether it would be rewritten; if not, this is all.
    ASKING = auto()
    #: To look at it as it was.
    LOOKING = auto()
    REWRITING = auto()
    #: As it was, after all.
    DROPPED = auto()


class Comparison:
    """One graph that is compiled, and may be rewritten."""

    def __init__(self) -> None:
        self.stage = Stage.ASKING
        self.reference: Reference | None = None
        #: What the pass over FX graphs did.
        self.changed: Any = None
        #: Why the rewritten graph is not used.
        self.dropped: str | None = None

    @property
    def is_off(self) -> bool:
        """Whether the graph must not be rewritten now."""
        return self.stage in (Stage.LOOKING, Stage.DROPPED)

    def note_rewritten(self, changed: Any) -> bool:
        """Notes what was done to an FX graph; whether it is done for good."""
        self.changed = changed
        return self.stage is not Stage.ASKING

    def note(self, reference: Reference) -> None:
        """Ends the compilation of the graph as it was."""
        self.reference = reference
        raise Ended

    def drop(self, why: str) -> None:
        """Ends the compilation of the rewritten graph."""
        self.dropped = why
        raise Ended


class _Threads(threading.local):
    comparison: Comparison | None = None


_threads = _Threads()


def current_comparison() -> Comparison | None:
    """Of the graph that this thread compiles. Regions in it are graphs of their own, and are not
    rewritten."""
    comparison = _threads.comparison
    is_region = isinstance(V.graph, GraphLowering) and type(V.graph) is not GraphLowering
    return None if is_region else comparison


def judged(
    compile_one: Callable[..., Any], copy_of: Callable[[GraphModule], GraphModule]
) -> Callable[..., Any]:
    """Inductor's ``fx_codegen_and_compile``, which goes on with the graph as it was where the
    rewritten one is no better."""

    def compile_judged(gm: GraphModule, *given: Any, **named: Any) -> Any:
        if _threads.comparison is not None:
            return compile_one(gm, *given, **named)
        # Compiling changes a graph.
        as_it_was = copy_of(gm)
        comparison = _threads.comparison = Comparison()
        try:
            return _compared(
                comparison, gm, as_it_was, lambda one: compile_one(one, *given, **named)
            )
        finally:
            _threads.comparison = None

    def _compared(
        comparison: Comparison, gm: GraphModule, as_it_was: GraphModule, compiled: Any
    ) -> Any:
        try:
            return compiled(gm)
        except Exception:
            if comparison.changed is None:
                raise
        comparison.stage = Stage.LOOKING
        try:
            compiled(copy_of(as_it_was))
        except MemoryError:
            raise
        except Exception:
            # What was wanted is known. If it is not, on no rank, the FX pass's own limit counts.
            pass
        comparison.stage = Stage.REWRITING
        try:
            return compiled(copy_of(as_it_was))
        except Exception:
            if comparison.dropped is None:
                raise
        comparison.changed.drop(comparison.dropped)
        comparison.stage = Stage.DROPPED
        return compiled(as_it_was)

    return compile_judged
