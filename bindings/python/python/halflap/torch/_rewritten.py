"""A graph's programs with different rewrites, side by side, to be measured.

While something is tuned, Inductor compiles every graph once as it is, and once for each rewrite
that is tried, from a copy of the FX graph. All take the same inputs and give the same outputs, so
what torch gets is a program that runs the one that is chosen; parameters and optimizer states are
there once. Each has its own variants (`_variants`): the orders that it is tried in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch._inductor import compile_fx
from torch.fx import Graph, GraphModule

from ._fx.passes import Changed, done
from ._fx.restore import copy_nodes
from ._judged import judged
from ._settings import COMPILE, Settings, plug_in, rewrite_first
from ._variants import Variants

#: The name of a graph's rewrite that stays as it is.
NONE = ""


@dataclass
class Rewriting:
    """A rewrite that is tried, within a memory limit, and the order that it is tried in."""

    graph_pass: Any
    variants: Variants
    #: Why it is not tried.
    failure: str | None = None
    #: What it did to each graph.
    done: list[Changed] = field(default_factory=list)

    def why_not(self) -> str | None:
        """Why it cannot be tried; it must have changed something."""
        if self.failure or any(any(one.rewrites) for one in self.done):
            return self.failure
        dropped = [f"rewritten, {one.dropped}" for one in self.done if one.dropped]
        return [*dropped, "there is nothing to rewrite"][0]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Has what is compiled in the block rewritten first."""
        settings = Settings()
        before = len(done)
        try:
            plug_in(settings, self.variants)
            rewrite_first(settings, self.graph_pass)
            with self.variants.installed():
                yield
        finally:
            settings.restore()
            self.done += done[before:]


@dataclass
class Rewritings:
    """All rewrites that are tried."""

    by_name: Mapping[str, Rewriting] = field(default_factory=dict)
    chosen: str = NONE

    def install(self, settings: Settings) -> None:
        """Has every graph that is compiled from now on compiled with each rewrite, too."""
        if self.by_name:
            settings.replace(compile_fx, COMPILE, self._compiling(vars(compile_fx)[COMPILE]))

    def _compiling(self, compile_one: Callable[..., Any]) -> Callable[..., Any]:
        def compile_all(gm: GraphModule, *given: Any, **named: Any) -> Any:
            # Compiling changes a graph.
            copies = {name: copy_of(gm) for name in self.by_name}
            first = compile_one(gm, *given, **named)
            calls = {NONE: first.current_callable}
            # As `enable` has it: within the limit of the graph as it was, or not at all.
            rewrite_one = judged(compile_one, copy_of)
            for name, rewriting in self.by_name.items():
                try:
                    with rewriting.installed():
                        other = rewrite_one(copies[name], *given, **named)
                    _check_alike(first, other)
                    calls[name] = other.current_callable
                except Exception as problem:
                    rewriting.failure = f"{type(problem).__name__}: {problem}"
            first.current_callable = self._choosing(calls)
            return first

        return compile_all

    def _choosing(self, calls: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
        def call(inputs: Any) -> Any:
            # A rewrite that failed for this graph leaves it as it is.
            return calls.get(self.chosen, calls[NONE])(inputs)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call


def copy_of(gm: GraphModule) -> GraphModule:
    """The same module, with a graph of its own."""
    graph = Graph()
    copy_nodes(gm.graph.nodes, graph)
    graph.set_codegen(gm.graph._codegen)
    copied = GraphModule(gm, graph)
    copied.meta.update(gm.meta)
    return copied


def _check_alike(first: Any, other: Any) -> None:
    """Refuses a program whose results lie in memory otherwise than the first one's: what is
    compiled later relies on those."""
    if first.output_strides != other.output_strides:
        raise RuntimeError("its results would have other strides")
    if first.mutated_input_idxs != other.mutated_input_idxs:
        raise RuntimeError("it would write to other inputs")
