"""Inductor's scheduler nodes as a ``halflap.graph/1`` graph, and an order back as nodes.

What must not move is bound by edges of the graph, so that the one proof of an order covers it:

- nodes with side effects and random operations, one after the other;
- control flow and collectives whose partners we do not know (point to point, barriers), against every other
  collective: their bodies may communicate, and a receive above a send can wait for ever.

Such an edge goes through a buffer of no size that its first node makes besides its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor import memory as inductor_memory
from torch._inductor.comms import is_gemm_like
from torch._inductor.dependencies import WeakDep
from torch._inductor.scheduler import BaseSchedulerNode, NopKernelSchedulerNode
from torch._inductor.utils import contains_collective, contains_wait, is_collective, is_wait
from torch._inductor.virtualized import V

#: Collectives that all ranks of a group take part in alike: these may pass each other where that is allowed.
SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")

CONTROL_FLOW = tuple(
    getattr(ir, name) for name in ("Conditional", "Switch", "WhileLoop", "InvokeSubgraph") if hasattr(ir, name)
)

SOURCE_LINE = re.compile(r'File "([^"]+)", line (\d+)')


class Unsupported(Exception):
    """What we do not know how to hand over; the input order is kept."""


class Program:
    """A graph, and the scheduler nodes that it was made of."""

    def __init__(self, snodes: list[BaseSchedulerNode]) -> None:
        scheduler = snodes[0].scheduler
        if getattr(scheduler, "_multi_stream_nodes", False):
            raise Unsupported("the graph uses streams of its own")
        self.snodes = snodes
        self.scheduler = scheduler
        self._index = {snode: index for index, snode in enumerate(snodes)}
        self._names = [snode.get_name() for snode in snodes]
        self._graph_outputs = set(V.graph.get_output_names())
        _assign_sizes(snodes, scheduler)
        self._maker = {buffer.get_name(): index for index, snode in enumerate(snodes) for buffer in snode.get_outputs()}
        self.groups: dict[str, list[int]] = {}
        self.nodes = [self._node(index, snode) for index, snode in enumerate(snodes)]
        self.buffers = [self._buffer(buffer) for snode in snodes for buffer in snode.get_outputs()]
        self._bind()

    def graph(self) -> dict[str, Any]:
        """The whole of it."""
        return {
            "format": "halflap.graph/1",
            "groups": {name: {"ranks": ranks} for name, ranks in self.groups.items()},
            "nodes": self.nodes,
            "buffers": self.buffers,
            "inputs": self._inputs(),
        }

    def ordered(self, names: list[str]) -> list[BaseSchedulerNode]:
        """The scheduler nodes in an order, checked against the dependencies that they really have."""
        by_name = dict(zip(self._names, self.snodes))
        ordered = [by_name[name] for name in names]
        if len(ordered) != len(self.snodes) or len(set(names)) != len(names):
            raise Unsupported("the order does not have every node once")
        done: set[int] = set()
        for snode in ordered:
            index = self._index[snode]
            for dep in snode.unmet_dependencies:
                maker = self._maker.get(dep.name, index)
                if maker != index and maker not in done and not _is_fake(dep):
                    raise Unsupported(f"{snode.get_name()} would run before {self._names[maker]}, which it needs")
            done.add(index)
        return ordered

    def _node(self, index: int, snode: BaseSchedulerNode) -> dict[str, Any]:
        node: dict[str, Any] = {
            "name": self._names[index],
            "kind": _kind(snode),
            "runtime_ns": None,
            "outputs": [buffer.get_name() for buffer in snode.get_outputs()],
            "deps": self._deps(index, snode),
        }
        if node["kind"] == "collective":
            node["collective"] = self._collective(snode)
        elif node["kind"] == "compute":
            node.update(_work(snode))
        origins = _origins(snode)
        node["ops"] = [origin.name for origin in origins]
        source = next(filter(None, map(_source, origins)), None)
        if source is not None:
            node["source"] = source
        return node

    def _deps(self, index: int, snode: BaseSchedulerNode) -> list[dict[str, Any]]:
        kinds: dict[str, set[str]] = {}
        for dep in snode.unmet_dependencies:
            maker = self._maker.get(dep.name)
            if maker is None:
                self._check_given(dep.name, snode)
            elif maker != index:
                kind = "order" if _is_fake(dep) else "weak" if isinstance(dep, WeakDep) else "data"
                kinds.setdefault(dep.name, set()).add(kind)
        return [{"buffer": name, "kinds": sorted(kinds[name])} for name in sorted(kinds, key=self._maker_of)]

    def _maker_of(self, name: str) -> tuple[int, str]:
        return self._maker[name], name

    def _check_given(self, name: str, snode: BaseSchedulerNode) -> None:
        given = (V.graph.graph_inputs, V.graph.constants, getattr(V.graph, "torchbind_constants", {}))
        if not any(name in names for names in given) and name in self.scheduler.name_to_buf:
            raise Unsupported(f"{snode.get_name()} needs {name}, which none of the nodes makes")

    def _buffer(self, buffer: Any) -> dict[str, Any]:
        sizes = buffer.mpi_buffer
        return {
            "name": buffer.get_name(),
            "size_alloc": int(sizes.size_alloc),
            "size_free": int(sizes.size_free),
            "users": self._users(sizes.succ_nodes),
            "output": buffer.get_name() in self._graph_outputs,
        }

    def _users(self, snodes: Iterable[BaseSchedulerNode]) -> list[str]:
        """The nodes of the graph that these are, or were fused into."""
        found = set()
        for snode in snodes:
            if snode not in self._index:
                snode = self.scheduler.name_to_fused_node.get(snode.get_first_name(), snode)
            if snode not in self._index:
                raise Unsupported(f"{snode.get_name()} uses a buffer and is none of the nodes")
            found.add(self._index[snode])
        return [self._names[index] for index in sorted(found)]

    def _inputs(self) -> list[dict[str, Any]]:
        freeable = inductor_memory.get_freeable_input_buf(self.snodes, V.graph.graph_inputs.keys())
        return [
            {
                "name": name,
                "size": int(buffer.mpi_buffer.size_free),
                "users": self._users(buffer.mpi_buffer.succ_nodes),
                "output": name in self._graph_outputs,
            }
            for name, buffer in freeable.items()
        ]

    def _collective(self, snode: BaseSchedulerNode) -> dict[str, Any]:
        kernel = next(part.node for part in snode.get_nodes() if is_collective(part.node))
        name = _group_name(kernel)
        if name not in self.groups:
            self.groups[name] = _group_ranks(name)
        received = sum(int(buffer.mpi_buffer.size_alloc) for buffer in snode.get_outputs())
        return {
            "op": _operation(kernel),
            "group": name,
            "group_size": len(self.groups[name]),
            "bytes": max(_bytes(kernel.inputs), received),
            # A group of nodes that issues and waits is done when it has run.
            "async": not contains_wait(snode),
        }

    def _bind(self) -> None:
        """Binds what must not move."""
        last_pinned: int | None = None
        last_barrier: int | None = None
        since: list[int] = []
        for index, snode in enumerate(self.snodes):
            collective = self.nodes[index].get("collective")
            if _is_barrier(snode, collective):
                for before in since or ([] if last_barrier is None else [last_barrier]):
                    self._after(index, before)
                last_barrier, since = index, []
            elif collective is not None:
                if last_barrier is not None:
                    self._after(index, last_barrier)
                since.append(index)
            if _is_pinned(snode):
                if last_pinned is not None:
                    self._after(index, last_pinned)
                last_pinned = index

    def _after(self, index: int, before: int) -> None:
        """Has a node run after another in every order."""
        node, earlier = self.nodes[index], self.nodes[before]
        mark = f"{earlier['name']}.done"
        if mark not in self._maker:
            self._maker[mark] = before
            earlier["outputs"].append(mark)
            self.buffers.append({"name": mark, "size_alloc": 0, "size_free": 0, "users": [], "output": False})
        if all(dep["buffer"] != mark for dep in node["deps"]):
            node["deps"].append({"buffer": mark, "kinds": ["weak"]})


def has_collectives(snodes: list[BaseSchedulerNode]) -> bool:
    """Whether there is anything to order."""
    return any(contains_collective(snode) for snode in snodes)


def _assign_sizes(snodes: list[BaseSchedulerNode], scheduler: Any) -> None:
    """Has Inductor work out sizes and users, where it has not yet."""
    sizes = [buffer.mpi_buffer for snode in snodes for buffer in snode.get_outputs()]
    if not any(size.size_alloc or size.succ_nodes for size in sizes):
        inductor_memory.assign_memory_planning_info_for_scheduler_buffers(snodes, scheduler.name_to_buf)


def _is_fake(dep: Any) -> bool:
    return isinstance(dep, WeakDep) and dep.is_fake


def _kind(snode: BaseSchedulerNode) -> str:
    if contains_collective(snode):
        return "collective"
    if contains_wait(snode):
        return "wait"
    return "multi_output" if isinstance(snode.node, ir.MultiOutput) else "compute"


def _work(snode: BaseSchedulerNode) -> dict[str, Any]:
    work: dict[str, Any] = {"bytes": 0}
    if not isinstance(snode, NopKernelSchedulerNode):
        work["bytes"] = int(snode.get_read_write_buffers_sizes())
        flops = snode.estimate_flops()
        if flops:
            work["flops"] = int(flops)
    if any(is_gemm_like(part.node) for part in snode.get_nodes()):
        work["gemm_like"] = True
    return work


def _origins(snode: BaseSchedulerNode) -> list[torch.fx.Node]:
    """What was fused into a node, in a fixed sequence."""
    origins = {}
    for part in snode.get_nodes():
        if part.node is not None:
            for origin in part.node.get_origins():
                origins[origin.name] = origin
    return [origins[name] for name in sorted(origins)]


def _source(origin: torch.fx.Node) -> str | None:
    """The innermost line of the user's program that an operation comes from."""
    lines = SOURCE_LINE.findall(origin.meta.get("stack_trace") or "")
    return f"{lines[-1][0]}:{lines[-1][1]}" if lines else None


def _operation(kernel: Any) -> str:
    """``all_gather_into_tensor`` of ``torch.ops._c10d_functional.all_gather_into_tensor.default``."""
    packet = getattr(getattr(kernel, "op_overload", None), "_overloadpacket", None)
    name = getattr(packet, "__name__", None) or str(kernel.python_kernel_name)
    return {"isend": "send", "irecv": "recv", "batch_p2p_ops": "send_recv"}.get(name, name)


def _group_name(kernel: Any) -> str:
    """The process group is the last constant argument of a functional collective."""
    last = kernel.constant_args[-1] if kernel.constant_args else None
    return last if isinstance(last, str) else "unknown"


def _group_ranks(name: str) -> list[int]:
    from torch.distributed import distributed_c10d

    if name == "unknown":
        return list(range(torch.distributed.get_world_size()))
    return distributed_c10d.get_process_group_ranks(distributed_c10d._resolve_process_group(name))


def _bytes(inputs: Iterable[Any]) -> int:
    total = 0
    for value in inputs:
        total += int(_hint(value.get_numel(), fallback=0)) * value.get_dtype().itemsize
    return total


def _hint(size: Any, fallback: int) -> int:
    sizes = V.graph.sizevars
    # torch 2.10 has the one, later ones the other.
    return (getattr(sizes, "optimization_hint", None) or sizes.size_hint)(size, fallback=fallback)


def _is_barrier(snode: BaseSchedulerNode, collective: dict[str, Any] | None) -> bool:
    if collective is not None:
        return not collective["op"].startswith(SYMMETRIC)
    return any(isinstance(part.node, CONTROL_FLOW) for part in snode.get_nodes())


def _is_pinned(snode: BaseSchedulerNode) -> bool:
    """Whether others may notice when it runs: side effects and the state of random generators."""
    return any(
        not is_collective(part.node)
        and not is_wait(part.node)
        and (part.has_side_effects() or _is_random(part.node) or isinstance(part.node, CONTROL_FLOW))
        for part in snode.get_nodes()
    )


def _is_random(node: Any) -> bool:
    if isinstance(node, ir.RandomSeeds):
        return True
    overload = getattr(node, "op_overload", None)
    return isinstance(overload, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in overload.tags
