"""A graph whose collectives are bound to a given sequence."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from .. import _halflap
from ._agree import collectives_of


def places(graph: dict[str, Any], order: Sequence[str]) -> tuple[int, ...]:
    """The collectives of an order, each by its place in the program's order."""
    numbers = {name: number for number, name in enumerate(collectives_of(graph))}
    return tuple(numbers[name] for name in order if name in numbers)


def in_sequence(
    graph: dict[str, Any], sequence: Sequence[int], order: Sequence[str]
) -> bytes | None:
    """The graph as text, without order-only edges, its nodes in an order that has collectives in
    the given sequence and is otherwise close to ``order``. None if dependencies forbid the
    sequence."""
    names = list(collectives_of(graph))
    if sorted(sequence) != list(range(len(names))):
        return None
    nodes = [_unchained(node) for node in graph["nodes"]]
    index = {node["name"]: number for number, node in enumerate(nodes)}
    chain = [index[names[place]] for place in sequence]
    rank = {index[name]: number for number, name in enumerate(order)}
    sorted_nodes = _sorted(nodes, chain, rank)
    if len(sorted_nodes) != len(nodes):
        return None
    return _halflap.to_json({**graph, "nodes": [nodes[number] for number in sorted_nodes]})


def _unchained(node: dict[str, Any]) -> dict[str, Any]:
    kinds = [[kind for kind in dep["kinds"] if kind != "order"] for dep in node["deps"]]
    deps = [{**dep, "kinds": real} for dep, real in zip(node["deps"], kinds) if real]
    return {**node, "deps": deps}


def _sorted(nodes: list[dict[str, Any]], chain: list[int], rank: dict[int, int]) -> list[int]:
    """A topological order, of what is ready always what ranks lowest."""
    maker = {buffer: number for number, node in enumerate(nodes) for buffer in node["outputs"]}
    after: list[list[int]] = [[] for _ in nodes]
    edges = {
        (maker[dep["buffer"]], number)
        for number, node in enumerate(nodes)
        for dep in node["deps"]
        if dep["buffer"] in maker
    }
    edges |= set(zip(chain, chain[1:]))
    waits_for = [0] * len(nodes)
    for before, number in sorted(edges):
        after[before].append(number)
        waits_for[number] += 1
    ready = [(rank[number], number) for number, count in enumerate(waits_for) if count == 0]
    heapq.heapify(ready)
    found = []
    while ready:
        _, number = heapq.heappop(ready)
        found.append(number)
        for later in after[number]:
            waits_for[later] -= 1
            if waits_for[later] == 0:
                heapq.heappush(ready, (rank[later], later))
    return found
