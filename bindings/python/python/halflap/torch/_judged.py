"""Judges a rewritten graph by the graph that it was, once Inductor has fused both.

A pass over FX graphs estimates what Inductor will fuse, and so how much memory a graph needs. Where
it rewrites a graph, the same graph is first lowered as it was, up to our pass over scheduler nodes:
its memory is what the limit is a multiple of, and its best order is what the rewritten one must
beat. If the rewritten graph does not fit, it is tried again with fewer rewrites. If it is no better
either, Inductor goes on with the graph as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, NoReturn

from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.fx import GraphModule


class Reference(NamedTuple):
    """A graph as it was: what may be allocated, and how long its best order takes."""

    memory_limit: int
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


#: How often fewer rewrites are tried where all of them do not fit. Each lowers the graph again.
RETRIES = 4


class Comparison:
    """One graph that is compiled, and may be rewritten."""

    def __init__(self) -> None:
        self.stage = Stage.ASKING
        self.reference: Reference | None = None
        #: What a pass over FX graphs did, and what it was asked for.
        self.changed: Any = None
        self._asked: Any = None
        #: What it is to do now.
        self.planned: Any = None
        #: Why the rewritten graph is not used.
        self.dropped: str | None = None
        self._retries = 0

    @property
    def is_off(self) -> bool:
        """Whether the graph must not be rewritten now."""
        return self.stage in (Stage.LOOKING, Stage.DROPPED)

    def planned_by(self, asked: Any) -> Any:
        """What a pass over FX graphs is to do, if it has seen the graph before."""
        return self.planned if self._asked == asked else None

    def note_rewritten(self, asked: Any, changed: Any) -> None:
        """Notes what was done to an FX graph, and what was asked for."""
        self.changed, self._asked = changed, asked

    def note(self, reference: Reference) -> NoReturn:
        """Ends the compilation of the graph as it was."""
        self.reference = reference
        raise Ended

    def rewrite(self) -> None:
        """Has the graph rewritten as it was before."""
        self.stage, self.planned = Stage.REWRITING, self.changed

    def drop(self, why: str) -> NoReturn:
        """Ends the compilation of the rewritten graph."""
        self.dropped, self.planned = why, None
        raise Ended

    def retry(self, why: str, taken_back: Sequence[str]) -> NoReturn:
        """The same, to begin again without some of the rewrites, if any others are left."""
        self._retries += 1
        left = self.changed.without(taken_back) if self._retries <= RETRIES else None
        self.dropped, self.planned = why, left
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
        comparison.rewrite()
        while comparison.planned is not None:
            comparison.dropped = None
            try:
                return compiled(copy_of(as_it_was))
            except Exception:
                if comparison.dropped is None:
                    raise
        comparison.changed.drop(comparison.dropped)
        comparison.stage = Stage.DROPPED
        return compiled(as_it_was)

    return compile_judged
