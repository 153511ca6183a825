"""The public functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch._inductor import custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule

from .._agree import waiting
from .._checked import checked_seconds, options_of
from .._groups import second_groups
from .._judged import Ended, Stage, current_comparison
from .._pass import Options
from .._undisturbed import undisturbed
from .groups import make_second_groups
from .passes import Asked, deciding, forget, run
from .search import times_of_fx

#: Whether Inductor's setting may be a list of passes.
HAS_LISTS = hasattr(custom_graph_pass, "get_custom_graph_passes")


def reorder(gm: GraphModule, example_inputs: Any = None, **options: Any) -> GraphModule:
    """Orders an FX graph with functional collectives so that they hide behind compute.

    Changes ``gm`` and gives it back. The graph is one of AOTAutograd's, `make_fx`'s or
    `torch.export`'s, with fake tensors in ``node.meta["val"]``; where it has no collectives, or
    anything goes wrong, it stays as it is, and in the latter case a warning says why.

    ``options`` are those of `enable` (``memory_budget``, ``effort``, ``device``,
    ``ranks_per_node``, ``profile``, ``unbacked``, ``collectives``), and ``estimate``, which is
    called with an FX node. ``collective_order`` is ``"kept"`` by default; with ``"auto"`` all ranks
    must call this, and collectives pass each other if all would do the same; ``"free"`` does not
    ask. ``agree_within``: the seconds that a rank waits for the others, by default 120, and never
    longer than half of the process group's timeout. ``example_inputs`` is ignored: compilers pass
    them to every pass.
    """
    _change(gm, None, options)
    return gm


def optimize(
    gm: GraphModule,
    example_inputs: Any = None,
    *,
    rewrite: str | Sequence[str] = "exact",
    **options: Any,
) -> GraphModule:
    """Orders a graph as `reorder` does, and rewrites it where that makes a step shorter.

    ``rewrite``: ``"exact"`` merges collectives so that every bit of the results stays;
    ``["merge", "split"]`` also cuts exposed ones, with the products beside them, into pieces, which
    keeps bits if a product's rows do not depend on how many there are; ``"all"`` also merges and
    cuts all-reduces that may then be added up in another sequence. ``"groups"``, in a list beside
    any of these, moves all-gathers to a second process group, which the first call with it makes.
    All ranks that communicate in the graph must call this: they agree on what is done, and else
    only nodes are moved.
    """
    _change(gm, read_rewrite(rewrite), options)
    return gm


def read_rewrite(rewrite: str | Sequence[str]) -> str:
    """``exact`` or ``all``, or kinds by name; with ``groups`` or without."""
    is_list = isinstance(rewrite, (list, tuple, set, frozenset))
    named = {one for one in rewrite if isinstance(one, str)} if is_list else {rewrite}
    rest = named - {"groups"}
    is_read = is_list or isinstance(rewrite, str)
    if is_read and named and (rest in ({"exact"}, {"all"}) or rest <= {"merge", "split"}):
        return ",".join(sorted(named))
    raise ValueError(
        "rewrite must be 'exact', 'all', or a list of merge, split; with 'groups' in a list beside "
        f"any of these, or alone; not {rewrite!r}"
    )


def _change(gm: GraphModule, rewrite: str | None, options: dict[str, Any]) -> None:
    caller = "reorder" if rewrite is None else "optimize"
    options, within = dict(options), None
    if "agree_within" in options:
        within = checked_seconds("agree_within", options.pop("agree_within"))
    if not isinstance(gm, GraphModule):
        raise TypeError(f"{caller} takes a torch.fx.GraphModule, not {type(gm).__name__}")
    read = options_of(f"halflap.torch.{caller}", options)
    asked = Asked(read, rewrite, agrees=read.collective_order != "free")
    if asked.regroups and not second_groups():
        make_second_groups()
    with waiting(within):
        run(gm.graph, asked)
    undisturbed(gm.recompile)


class GraphPass(CustomGraphPass):
    """`reorder` or, with ``rewrite``, `optimize` for Inductor's ``post_grad_custom_post_pass``.

    Compile caches stay on: `uuid` has all that decides. So ranks do not ask each other, because one
    that finds a graph in its cache could not answer: with ``rewrite``, or another
    ``collective_order`` than ``"kept"``, all ranks must compile the same graphs.
    """

    def __init__(self, *, rewrite: str | Sequence[str] | None = None, **options: Any) -> None:
        chosen = None if rewrite is None else read_rewrite(rewrite)
        self.asked = Asked(options_of("halflap.torch.GraphPass", options), chosen)
        if self.asked.regroups:
            make_second_groups()
        if self.asked.options.collective_order == "auto":
            raise ValueError(
                "collective_order must be kept or free: ranks cannot agree while some of them take "
                "graphs from their compile caches"
            )

    @classmethod
    def _before_scheduler(cls, options: Options, rewrite: str | Sequence[str]) -> GraphPass:
        """For `enable`, whose own pass orders the result: leaves alone what it does not rewrite."""
        made = cls(rewrite=rewrite)
        order = "kept" if options.collective_order == "kept" else "free"
        given = replace(times_of_fx(options), collective_order=order)
        made.asked = Asked(given, made.asked.rewrite, orders=False)
        return made

    def after(self, first: Any) -> GraphPass | list[Any]:
        """This pass after another, or a list of them."""
        passes = [*first] if isinstance(first, (list, tuple)) else [first]
        return [*passes, self] if HAS_LISTS else _Chain(passes, self)

    def __call__(self, graph: Graph) -> None:
        comparison = current_comparison()
        if comparison is not None and comparison.is_off:
            return
        if comparison is None:
            run(graph, self.asked)
            return
        planned = comparison.planned_by(self.asked)
        if planned is not None:
            forget(comparison.changed)
        changed = run(graph, self.asked, planned)
        if planned is not None and not any(changed.rewrites) and changed.failure is None:
            comparison.note_rewritten(self.asked, changed)
            comparison.drop("what is left of it cannot be rewritten")
        if any(changed.rewrites):
            comparison.note_rewritten(self.asked, changed)
            if comparison.stage is Stage.ASKING:
                # It will be done again, once it is known what it must be better than.
                forget(changed)
                raise Ended

    def uuid(self) -> str | None:
        """What compile caches know it by."""
        return deciding(self.asked)


class _Chain(GraphPass):
    """Passes of the user's before ours, for a torch that takes no lists."""

    def __init__(self, first: list[Any], last: GraphPass) -> None:
        self.asked, self._first = last.asked, first

    def __call__(self, graph: Graph) -> None:
        for one in self._first:
            one(graph)
        super().__call__(graph)

    def uuid(self) -> str | None:
        """Nothing is cached if a pass of the user has no uuid."""
        known = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self._first]
        return None if None in known else f"{known} {super().uuid()}"
