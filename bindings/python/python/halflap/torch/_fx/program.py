"""An FX graph as ``halflap.graph/1``.

Every unit is a node. What binds units besides the values that they read is an edge, too, so that
the proof of an order covers it: a write after all that read or wrote the same memory before it, a
read after the write before it, effects and random generators one after the other, and what may
communicate in unknown ways against every collective.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from .._bonds import Bonds, is_barrier
from .._collectives import REDUCING, REDUCTIONS, Opaque, group_of, is_known, kind_of, operator_name
from .._flops import flops_of_node
from .._groups import described
from .._handover import RENAMED, Unsupported, group_ranks
from .sizes import Sizes
from .traits import NOT_OURS, nodes_in
from .units import Unit, is_part, units_of, value_of, values_read

#: How AOTAutograd's names of inputs begin that their owner keeps.
HELD = ("primals_", "arg", "fwd_rng_state", "bwd_rng_state", "tangents")

#: The argument of a functional collective that names its process group is its last one.
UNKNOWN = "unknown"


class Program:
    """A graph, and the units that it was made of."""

    def __init__(
        self, graph: Graph, opaque: tuple[Opaque, ...] = (), unbacked: int | None = None
    ) -> None:
        _check(graph)
        self.fx = graph
        self.sizes = Sizes(unbacked)
        self._bytes: dict[Node, int] = {}
        self._opaque = {one.operator: one for one in opaque}
        self.units = units_of(graph)
        for unit in self.units.all:
            if self._opaque_of(unit.leader) is not None:
                unit.traits = unit.traits._replace(
                    kind="collective", keeps_place=True, is_pinned=True, is_fused=False
                )
        self.groups: dict[str, list[int]] = {}
        self.nodes: list[dict[str, Any]] = []
        self.buffers: list[dict[str, Any]] = []
        #: By the node that made it: a buffer, or an input that may be freed.
        self._memory: dict[Node, dict[str, Any]] = {}
        #: By node: the buffer by which others depend on it.
        self._results: dict[Node, dict[str, Any]] = {}
        self._outputs = set(nodes_in(_output(graph).args))
        self._inputs = self._freeable_inputs()
        for unit in self.units.all:
            self._add(unit)
        self._bonds = Bonds(self.nodes, self.buffers)
        self._bind_memory()
        self._bind_waits()
        traits = [unit.traits for unit in self.units.all]
        self._bonds.bind(traits)
        pairs = zip(traits, self.nodes)
        #: Whether all ranks of a group take part alike in whatever communicates.
        self.is_symmetric = not any(is_barrier(one, node.get("collective")) for one, node in pairs)

    def graph(self) -> dict[str, Any]:
        """The whole of it."""
        return {
            "format": "halflap.graph/1",
            "groups": described(self.groups),
            "nodes": self.nodes,
            "buffers": self.buffers,
            "inputs": [one for one in self._inputs if one["users"]],
        }

    def _size(self, node: Node) -> int:
        """The bytes of what a node gives, counted once: many read it."""
        size = self._bytes.get(node)
        if size is None:
            size = self._bytes[node] = self.sizes.bytes_of(value_of(node))
        return size

    def _freeable_inputs(self) -> list[dict[str, Any]]:
        """Inputs of a backward graph that nothing else holds: saved activations."""
        given = [node for node in self.fx.nodes if node.op == "placeholder"]
        is_backward = any(node.name.startswith("tangents") for node in given)
        found = []
        for node in given:
            is_free = is_backward and not node.name.startswith(HELD)
            size = self._size(node) if is_free else 0
            if size:
                one = {"name": node.name, "size": size, "users": [], "output": False}
                one["output"] = node in self._outputs
                self._memory[node] = one
                found.append(one)
        return found

    def _add(self, unit: Unit) -> None:
        name = unit.leader.name
        node: dict[str, Any] = {"name": name, "kind": unit.traits.kind, "runtime_ns": None}
        read = values_read(unit)
        node["outputs"] = []
        node["deps"] = self._deps(name, read)
        self.nodes.append(node)
        for one in unit.members:
            self._make(unit, one, node)
        for root in self._kept_alive(unit, read):
            self._use(root, name)
        if unit.traits.kind == "compute":
            node["bytes"] = 0 if unit.traits.is_idle else self._traffic(unit, read)
            flops = sum([flops_of_node(one, self.sizes) for one in unit.members])
            if flops:
                node["flops"], node["gemm_like"] = flops, True
        elif unit.traits.kind == "collective":
            node["collective"] = self._collective(unit)

    def _deps(self, name: str, read: list[Node]) -> list[dict[str, Any]]:
        deps = []
        for one in read:
            buffer = self._results.get(one)
            if buffer is not None:
                if not buffer["users"] or buffer["users"][-1] != name:
                    buffer["users"].append(name)
                deps.append({"buffer": buffer["name"], "kinds": ["data"]})
        return deps

    def _make(self, unit: Unit, one: Node, node: dict[str, Any]) -> None:
        """Takes over what a member gives, if anybody else may use it."""
        units = self.units.of
        is_output = one in self._outputs
        if not is_output and all(units.get(user) is unit for user in one.users):
            if unit.traits.kind != "collective" or one is not unit.leader:
                return
        is_new = self.units.roots[one] == (one,)
        size = self._size(one) if is_new else 0
        buffer = {"name": one.name, "size_alloc": size, "size_free": size, "users": []}
        buffer["output"] = is_output
        self._results[one] = buffer
        self.buffers.append(buffer)
        node["outputs"].append(one.name)
        if is_new:
            self._memory[one] = buffer
        for root in () if is_new else self.units.roots[one]:
            memory = self._memory_of(root)
            if memory is not None:
                memory["output"] |= is_output

    def _kept_alive(self, unit: Unit, read: list[Node]) -> list[Node]:
        """The memory that a unit uses: what it reads, under whatever name, and of a wait also what
        its collective reads."""
        roots = [root for one in read for root in self.units.roots[one]]
        if unit.traits.kind == "wait":
            started = [root for root in roots if root in self.units.of]
            for one in started:
                inputs = values_read(self.units.of[one])
                roots += [root for given in inputs for root in self.units.roots[given]]
        return list(dict.fromkeys(roots))

    def _use(self, root: Node, name: str) -> None:
        memory = self._memory_of(root)
        if memory is not None and name not in memory["users"][-8:]:
            memory["users"].append(name)

    def _memory_of(self, root: Node) -> dict[str, Any] | None:
        """The buffer that a node made, also if others see it only through views in its unit."""
        memory = self._memory.get(root)
        if memory is not None or root not in self.units.of:
            return memory
        size = self._size(root)
        unit = self.units.of[root]
        if not size or unit.index >= len(self.nodes):
            return None
        buffer = {"name": root.name, "size_alloc": size, "size_free": size, "users": []}
        buffer["output"] = False
        self._memory[root] = self._results[root] = buffer
        self.buffers.append(buffer)
        self.nodes[unit.index]["outputs"].append(root.name)
        return buffer

    def _traffic(self, unit: Unit, read: list[Node]) -> int:
        """What is read from memory and written to it: not what stays inside of the unit."""
        read_bytes = [self._size(one) for one in read]
        made = [one for one in unit.members if one in self._results or len(unit.members) == 1]
        written = [self._size(one) for one in made if not is_part(one)]
        return sum(read_bytes) + sum(written)

    def _opaque_of(self, node: Node) -> Opaque | None:
        return self._opaque.get(operator_name(node.target) or "") if self._opaque else None

    def _collective(self, unit: Unit) -> dict[str, Any]:
        node = unit.leader
        opaque = self._opaque_of(node)
        group = self._group(node, opaque)
        if group not in self.groups:
            self.groups[group] = group_ranks(group)
        tensors = [one for one in node.all_input_nodes if isinstance(value_of(one), torch.Tensor)]
        # Torch's bucketing names the memory for a result.
        given = [one for one in tensors if one is not node.kwargs.get("out")]
        sent = sum([self._size(one) for one in given])
        received = self._size(node)
        name = (operator_name(node.target) or "").partition("::")[2]
        operation = RENAMED.get(name, name) if opaque is None else opaque.kind
        collective: dict[str, Any] = {
            "op": operation,
            "group": group,
            "group_size": len(self.groups[group]),
            "bytes": max(sent, received),
            "async": opaque is None,
            "input_bytes": sent,
        }
        if received:
            collective["output_bytes"] = received
        types = {str(value_of(one).dtype).removeprefix("torch.") for one in given}
        known = {"kind": kind_of(operation), "dtype": types.pop() if len(types) == 1 else None}
        if opaque is None and known["kind"] in REDUCING:
            word = next((one for one in node.args if isinstance(one, str)), None)
            known["reduction"] = word and REDUCTIONS.get(word.lower(), "other")
        return collective | {name: value for name, value in known.items() if value is not None}

    def _group(self, node: Node, opaque: Opaque | None) -> str:
        if opaque is not None:
            return group_of(opaque, node.args) or UNKNOWN
        names = [one for one in (*node.args, *node.kwargs.values()) if isinstance(one, str)]
        return names[-1] if names else UNKNOWN

    def _bind_waits(self) -> None:
        """Keeps several waits for one collective in their sequence: Inductor lets the users of all
        read the first that was made, wherever that is by then."""
        last: dict[tuple[Node, ...], int] = {}
        for unit in self.units.all:
            if unit.traits.kind == "wait":
                awaited = tuple(self.units.roots[unit.leader])
                if awaited in last:
                    self._bonds.after(unit.index, last[awaited])
                last[awaited] = unit.index

    def _bind_memory(self) -> None:
        """Keeps reads and writes of memory that is written to in the program's sequence."""
        written = {root for roots in self.units.writes.values() for root in roots}
        if not written:
            return
        last_write: dict[Node, int] = {}
        reads: dict[Node, list[int]] = {}
        for unit in self.units.all:
            writes = {root for one in unit.members for root in self.units.writes.get(one, ())}
            used = self._kept_alive(unit, values_read(unit))
            for root in used:
                if root not in written:
                    continue
                if root in last_write:
                    self._bonds.after(unit.index, last_write[root])
                if root in writes:
                    for before in reads.pop(root, []):
                        self._bonds.after(unit.index, before)
                    last_write[root] = unit.index
                elif not unit.traits.is_view:
                    reads.setdefault(root, []).append(unit.index)


def communicates(graph: Graph, opaque: tuple[Opaque, ...]) -> bool:
    """Whether a graph has collectives, so that there is anything to order."""
    named = {one.operator for one in opaque}
    for node in graph.nodes:
        name = operator_name(node.target) if node.op == "call_function" else None
        if name is not None and (is_known(name) or name in named):
            return True
    return False


def _check(graph: Graph) -> None:
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr", "call_function", "output"):
            raise Unsupported(f"{node.name} is a {node.op}: the graph is not a functional one")
        if getattr(node.target, "_name", None) in NOT_OURS:
            raise Unsupported(f"{node.name} binds nodes to an order of torch's own")
        is_operator = value_of(node) is None and isinstance(node.target, OpOverload)
        if is_operator and node.target._schema.returns:
            raise Unsupported(f"{node.name} has no fake tensor in node.meta['val']")
        if "stream" in str(node.meta.get("custom", "")) and "stream_id" in node.meta["custom"]:
            raise Unsupported("the graph uses streams of its own")


def _output(graph: Graph) -> Node:
    return next(node for node in reversed(graph.nodes) if node.op == "output")
