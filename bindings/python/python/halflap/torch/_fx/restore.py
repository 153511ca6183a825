"""A graph as it was, for when changing it went wrong half way."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Graph, Node


def copy_nodes(nodes: Iterable[Node], graph: Graph) -> None:
    """Adds copies of all nodes of a graph to another."""
    copies: dict[Node, Node] = {}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)


class Backup:
    """A copy of a graph's nodes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._copy = Graph()
        copy_nodes(graph.nodes, self._copy)
        self._changed = [*graph.nodes]

    def restore(self) -> None:
        """Makes the graph what it was, of new nodes if it has been changed."""
        graph = self._graph
        if [*graph.nodes] == self._changed:
            return
        for node in reversed([*graph.nodes]):
            graph.erase_node(node)
        graph._graph_namespace = type(graph._graph_namespace)()
        copy_nodes(self._copy.nodes, graph)
