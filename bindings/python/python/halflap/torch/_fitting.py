"""Which rewrites of a graph to take back so that it fits into memory once Inductor has fused it.

Inductor's own order needs little memory. Wherever that order exceeds the limit, the rewrite whose
results occupy the most memory there is taken back, and more of them until what they occupy may make
up for the excess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

#: Where an FX node has the name of the rewrite that it was made by: that of the first collective
#: which was merged or cut.
REWRITE = "halflap_rewrite"

#: Without a rewrite the same values are there, once instead of in parts and as a whole.
GIVEN_BACK = 0.5


class _Moment(NamedTuple):
    """What is allocated while a node runs, in all and of each rewrite."""

    allocated: int
    by_rewrite: Mapping[str, int]


def to_take_back(graph: Mapping[str, Any], rewrites: Mapping[str, str], limit: int) -> list[str]:
    """Rewrites to take back from a graph in the library's format, whose nodes are in Inductor's
    order; ``rewrites`` has, by node, the one that it is part of."""
    taken: dict[str, None] = {}
    for moment in sorted(_excesses(graph, rewrites, limit), key=lambda one: -one.allocated):
        excess = moment.allocated - limit
        excess -= sum([GIVEN_BACK * moment.by_rewrite.get(one, 0) for one in taken])
        others = sorted(moment.by_rewrite.items(), key=lambda one: (-one[1], one[0]))
        for name, size in others:
            if excess <= 0:
                break
            if name not in taken and size > 0:
                taken[name] = None
                excess -= GIVEN_BACK * size
    return [*taken]


def _excesses(
    graph: Mapping[str, Any], rewrites: Mapping[str, str], limit: int
) -> Iterator[_Moment]:
    """The moments at which more is allocated than there may be."""
    places = {node["name"]: place for place, node in enumerate(graph["nodes"])}
    made = {name: node["name"] for node in graph["nodes"] for name in node["outputs"]}
    freed: dict[int, list[tuple[int, str | None]]] = {}
    gained: dict[str, list[tuple[int, str | None]]] = {}
    for one in graph["buffers"]:
        maker = made[one["name"]]
        of = rewrites.get(maker)
        gained.setdefault(maker, []).append((one["size_alloc"], of))
        if not one["output"]:
            last = max([places[user] for user in one["users"]], default=places[maker])
            freed.setdefault(last, []).append((one["size_free"], of))
    for one in graph["inputs"]:
        if not one["output"]:
            last = max([places[user] for user in one["users"]])
            freed.setdefault(last, []).append((one["size"], None))
    allocated, by_rewrite = sum([one["size"] for one in graph["inputs"]]), Counter[str]()
    for place, node in enumerate(graph["nodes"]):
        for size, of in gained.get(node["name"], ()):
            allocated += size
            by_rewrite.update({} if of is None else {of: size})
        if allocated > limit:
            yield _Moment(allocated, dict(by_rewrite))
        for size, of in freed.get(place, ()):
            allocated -= size
            by_rewrite.subtract({} if of is None else {of: size})
