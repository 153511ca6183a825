"""A graph as it was, for when changing it went wrong half way."""

from __future__ import annotations

from torch.fx import Graph, Node


class Backup:
    """A copy of a graph's nodes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._copy = Graph()
        self._copies: dict[Node, Node] = {}
        for node in graph.nodes:
            self._copies[node] = self._copy.node_copy(node, lambda one: self._copies[one])
        self._changed = [*graph.nodes]

    def restore(self) -> None:
        """Makes the graph what it was, of new nodes if it has been changed."""
        graph = self._graph
        if [*graph.nodes] == self._changed:
            return
        for node in reversed([*graph.nodes]):
            graph.erase_node(node)
        graph._graph_namespace = type(graph._graph_namespace)()
        made: dict[Node, Node] = {}
        for node in self._copy.nodes:
            made[node] = graph.node_copy(node, lambda one: made[one])
