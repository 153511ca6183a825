"""A graph as it was, for when changing it went wrong half way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node


def copy_nodes(nodes: Iterable[Node], graph: Graph) -> None:
    """Adds copies of all nodes of a graph to another."""
    _add_again([_saved(node) for node in nodes], graph)


class _Saved(NamedTuple):
    """What may change of a node, or be gone from it once it is erased."""

    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    meta: dict[str, Any]


def _saved(node: Node) -> _Saved:
    return _Saved(node, node.args, node.kwargs, dict(node.meta))


def _add_again(saved: Iterable[_Saved], graph: Graph) -> None:
    copies: dict[Node, Node] = {}
    for one in saved:
        args, kwargs = torch.fx.map_arg((one.args, one.kwargs), copies.__getitem__)
        old = one.node
        node = graph.create_node(old.op, old.target, args, kwargs, old.name, old.type)
        node.meta = dict(one.meta)
        copies[old] = node


class Backup:
    """What a graph's nodes were: kept in a moment, made again only if that is needed."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._saved = [_saved(node) for node in graph.nodes]

    def restore(self) -> None:
        """Makes the graph what it was, of new nodes if it has been changed."""
        graph = self._graph
        if [*graph.nodes] == [one.node for one in self._saved]:
            return
        # A graph that was left half way is in no sequence: nodes let go of each other first.
        nodes = [*graph.nodes]
        for node in nodes:
            node.args, node.kwargs = (), {}
        for node in nodes:
            graph.erase_node(node)
        graph._graph_namespace = type(graph._graph_namespace)()
        _add_again(self._saved, graph)
