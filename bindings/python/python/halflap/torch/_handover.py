"""Inductor's scheduler nodes as a ``halflap.graph/1`` graph, and an order back as nodes.

What must not move is bound by edges of the graph, so that the one proof of an order covers it:

- nodes with side effects and random operations, one after the other;
- control flow and collectives whose partners we do not know (point to point, barriers), against every other
  collective: their bodies may communicate, and a receive above a send can wait for ever.

Such an edge goes through a buffer of no size that its first node makes besides its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch._inductor import ir
from torch._inductor import memory as inductor_memory
from torch._inductor.comms import is_gemm_like
from torch._inductor.dependencies import WeakDep
from torch._inductor.scheduler import BaseSchedulerNode, NopKernelSchedulerNode, SchedulerNode
from torch._inductor.utils import contains_collective, is_collective, is_wait
from torch._inductor.virtualized import V

#: Collectives that all ranks of a group take part in alike: these may pass each other where that is allowed.
SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")

CONTROL_FLOW = tuple(
    getattr(ir, name) for name in ("Conditional", "Switch", "WhileLoop", "InvokeSubgraph") if hasattr(ir, name)
)

TORCH = os.path.dirname(torch.__file__) + os.sep
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
        self._made = [[(made.get_name(), made) for made in snode.get_outputs()] for snode in snodes]
        self._maker = {name: index for index, buffers in enumerate(self._made) for name, _ in buffers}
        self._graph_outputs = set(V.graph.get_output_names())
        self._assign_sizes()
        self.buffers = [self._buffer(name, made) for buffers in self._made for name, made in buffers]
        self._sizes = Sizes(self.buffers, scheduler.mutation_real_name)
        self.groups: dict[str, list[int]] = {}
        self._traits = [merged([traits_of(part) for part in snode.get_nodes()]) for snode in snodes]
        self.nodes = [self._node(index) for index in range(len(snodes))]
        self._marks: dict[str, dict[str, Any]] = {}
        self._bind()

    def _assign_sizes(self) -> None:
        """Has Inductor work out sizes and users, where it has not yet."""
        sizes = (made.mpi_buffer for buffers in self._made for _, made in buffers)
        if not any(size.size_alloc or size.succ_nodes for size in sizes):
            inductor_memory.assign_memory_planning_info_for_scheduler_buffers(self.snodes, self.scheduler.name_to_buf)

    def graph(self) -> dict[str, Any]:
        """The whole of it."""
        return {
            "format": "halflap.graph/1",
            "groups": {name: {"ranks": ranks} for name, ranks in self.groups.items()},
            "nodes": self.nodes,
            "buffers": self.buffers,
            "inputs": self._inputs(),
        }

    def describe(self) -> None:
        """Adds what is for people alone: what was fused into each node, and where it comes from."""
        for snode, node in zip(self.snodes, self.nodes):
            origins = origins_of(snode)
            node["ops"] = [origin.name for origin in origins]
            source = next(filter(None, map(_source, origins)), None)
            if source is not None:
                node["source"] = source

    def ordered(self, names: list[str]) -> list[BaseSchedulerNode]:
        """The scheduler nodes in an order, checked against the dependencies that they really have."""
        by_name = dict(zip(self._names, self.snodes))
        ordered = [by_name[name] for name in names]
        if len(ordered) != len(self.snodes) or len(set(names)) != len(names):
            raise Unsupported("the order does not have every node once")
        done: set[int] = set()
        makers = self._maker
        for snode in ordered:
            index = self._index[snode]
            for dep in snode.unmet_dependencies:
                maker = makers.get(dep.name, index)
                if maker != index and maker not in done and self._kind_of(dep, index, maker) != "order":
                    raise Unsupported(f"{snode.get_name()} would run before {self._names[maker]}, which it needs")
            done.add(index)
        return ordered

    def _node(self, index: int) -> dict[str, Any]:
        snode, traits = self.snodes[index], self._traits[index]
        kind = _kind(traits)
        node: dict[str, Any] = {
            "name": self._names[index],
            "kind": kind,
            "runtime_ns": None,
            "outputs": [name for name, _ in self._made[index]],
            "deps": self._deps(index, snode),
        }
        if kind == "collective":
            node["collective"] = self._collective(index)
        elif kind == "compute":
            node["bytes"] = self._traffic(snode)
            if traits.is_heavy:
                node["flops"] = sum(flops_of(part) for part in snode.get_nodes() if traits_of(part).is_heavy)
            if traits.gemm_like:
                node["gemm_like"] = True
        return node

    def _traffic(self, snode: BaseSchedulerNode) -> int:
        """What it reads and writes, each buffer once. Of one that it looks things up in it reads no more than it
        has indices."""
        if isinstance(snode, NopKernelSchedulerNode):
            return 0
        accesses = snode.read_writes
        names = {dep.name for dep in accesses.reads}
        names.update(dep.name for dep in accesses.writes)
        sizes = self._sizes
        most = 4 * max(_elements(part) for part in snode.get_nodes())
        return sum(size if (size := sizes[name]) < most else most for name in names)

    def _deps(self, index: int, snode: BaseSchedulerNode) -> list[dict[str, Any]]:
        kinds: dict[str, set[str]] = {}
        makers = self._maker
        for dep in snode.unmet_dependencies:
            name = dep.name
            maker = makers.get(name)
            if maker is None:
                self._check_given(name, snode)
            elif maker != index:
                kinds.setdefault(name, set()).add(self._kind_of(dep, index, maker))
        return [
            {"buffer": name, "kinds": sorted(kinds[name])} for name in sorted(kinds, key=lambda name: (makers[name], name))
        ]

    def _kind_of(self, dep: Any, index: int, maker: int) -> str:
        """Why a node needs what another makes. Only what chains collectives may be broken; since torch 2.15 other
        dependencies are marked as fake, too: a mutation after the readers of what it overwrites, and side
        effects."""
        if not isinstance(dep, WeakDep):
            return "data"
        return "order" if dep.is_fake and self._is_chain(index, maker) else "weak"

    def _is_chain(self, index: int, maker: int) -> bool:
        """Whether nothing but their sequence binds a collective to another, or to its wait."""
        if _kind(self._traits[index]) != "collective" or _kind(self._traits[maker]) not in ("collective", "wait"):
            return False
        named = self.scheduler.mutation_real_name
        overwritten = {named.get(name, name) for _, made in self._made[index] for name in made.get_mutations()}
        return overwritten.isdisjoint(named.get(dep.name, dep.name) for dep in self.snodes[maker].read_writes.reads)

    def _check_given(self, name: str, snode: BaseSchedulerNode) -> None:
        given = (V.graph.graph_inputs, V.graph.constants, getattr(V.graph, "torchbind_constants", {}))
        if not any(name in names for names in given) and name in self.scheduler.name_to_buf:
            raise Unsupported(f"{snode.get_name()} needs {name}, which none of the nodes makes")

    def _buffer(self, name: str, made: Any) -> dict[str, Any]:
        sizes = made.mpi_buffer
        return {
            "name": name,
            "size_alloc": int(sizes.size_alloc),
            "size_free": int(sizes.size_free),
            "users": self._users(sizes.succ_nodes),
            "output": name in self._graph_outputs,
        }

    def _users(self, snodes: Iterable[BaseSchedulerNode]) -> list[str]:
        """The nodes of the graph that these are, or were fused into."""
        found = {self._index[snode] if snode in self._index else self._fused(snode) for snode in snodes}
        names = self._names
        return [names[index] for index in sorted(found)]

    def _fused(self, snode: BaseSchedulerNode) -> int:
        whole = self.scheduler.name_to_fused_node.get(snode.get_first_name(), snode)
        if whole not in self._index:
            raise Unsupported(f"{snode.get_name()} uses a buffer and is none of the nodes")
        return self._index[whole]

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

    def _collective(self, index: int) -> dict[str, Any]:
        kernel = next(part.node for part in self.snodes[index].get_nodes() if traits_of(part).is_collective)
        name = _group_name(kernel)
        if name not in self.groups:
            self.groups[name] = _group_ranks(name)
        received = sum(int(made.mpi_buffer.size_alloc) for _, made in self._made[index])
        return {
            "op": operation_of(kernel),
            "group": name,
            "group_size": len(self.groups[name]),
            "bytes": max(_bytes(kernel.inputs), received),
            # A group of nodes that issues and waits is done when it has run.
            "async": not self._traits[index].is_wait,
        }

    def _bind(self) -> None:
        """Binds what must not move."""
        last_pinned: int | None = None
        last_barrier: int | None = None
        since: list[int] = []
        for index, traits in enumerate(self._traits):
            collective = self.nodes[index].get("collective")
            if _is_barrier(traits, collective):
                for before in since or ([] if last_barrier is None else [last_barrier]):
                    self._after(index, before)
                last_barrier, since = index, []
            elif collective is not None:
                if last_barrier is not None:
                    self._after(index, last_barrier)
                since.append(index)
            if traits.is_pinned:
                if last_pinned is not None:
                    self._after(index, last_pinned)
                last_pinned = index

    def _after(self, index: int, before: int) -> None:
        """Has a node run after another in every order."""
        node, earlier = self.nodes[index], self.nodes[before]
        name = f"{earlier['name']}.done"
        mark = self._marks.get(name)
        if mark is None:
            mark = self._marks[name] = {"name": name, "size_alloc": 0, "size_free": 0, "users": [], "output": False}
            earlier["outputs"].append(name)
            self.buffers.append(mark)
        if node["name"] not in mark["users"]:
            mark["users"].append(node["name"])
            node["deps"].append({"buffer": name, "kinds": ["weak"]})


class Sizes(dict[str, int]):
    """The sizes in bytes of what nodes read and write, by name."""

    def __init__(self, buffers: list[dict[str, Any]], real_names: dict[str, str]) -> None:
        # What nobody outside of its maker sees is never in memory.
        super().__init__(
            (buffer["name"], buffer["size_free"] if buffer["users"] or buffer["output"] else 0) for buffer in buffers
        )
        self._real_names = real_names
        for name, real in real_names.items():
            if name in self:
                self[name] = self.get(real, 0) or self.__missing__(real)

    def __missing__(self, name: str) -> int:
        """Of an input of the graph, or what was mutated."""
        given = V.graph.graph_inputs.get(name)
        size = _bytes([given]) if given is not None and hasattr(given, "get_dtype") else 0
        self[name] = size
        return size


class Traits(NamedTuple):
    """What matters about a node, or a part of one."""

    is_collective: bool
    is_wait: bool
    is_multi_output: bool
    is_control_flow: bool
    #: Others may notice when it runs: it has side effects, or uses the state of random generators.
    is_pinned: bool
    gemm_like: bool
    #: Whether its floating-point operations count.
    is_heavy: bool


def traits_of(part: BaseSchedulerNode) -> Traits:
    """Classified once for each kind of kernel."""
    kernel = part.node
    overload = getattr(kernel, "op_overload", None)
    # Overloads live as long as torch does, and take long to hash.
    named = id(overload) if overload is not None else getattr(kernel, "python_kernel_name", None)
    key = (type(part), type(kernel), named)
    traits = _traits.get(key)
    if traits is None:
        traits = _traits[key] = _classify(part)
    if isinstance(part, SchedulerNode) and part.has_side_effects():
        return traits._replace(is_pinned=True)
    return traits


_traits: dict[Any, Traits] = {}


def _classify(part: BaseSchedulerNode) -> Traits:
    kernel = part.node
    communicates, waits = is_collective(kernel), is_wait(kernel)
    is_control_flow = isinstance(kernel, CONTROL_FLOW)
    effects = not isinstance(part, SchedulerNode) and part.has_side_effects()
    return Traits(
        is_collective=communicates,
        is_wait=waits,
        is_multi_output=isinstance(kernel, ir.MultiOutput),
        is_control_flow=is_control_flow,
        is_pinned=not (communicates or waits) and (effects or _is_random(kernel) or is_control_flow),
        gemm_like=is_gemm_like(kernel),
        is_heavy=not (communicates or waits) and (part.is_extern() or part.is_template()),
    )


def _is_random(kernel: Any) -> bool:
    if isinstance(kernel, ir.RandomSeeds):
        return True
    overload = getattr(kernel, "op_overload", None)
    return isinstance(overload, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in overload.tags


def has_collectives(snodes: list[BaseSchedulerNode]) -> bool:
    """Whether there is anything to order."""
    return any(contains_collective(snode) for snode in snodes)


def merged(parts: list[Traits]) -> Traits:
    """Of a whole node: what any of its parts is, but for a multi-output, which is one alone."""
    if len(parts) == 1:
        return parts[0]
    return Traits(*map(any, zip(*parts)))._replace(is_multi_output=False)


def _kind(traits: Traits) -> str:
    if traits.is_collective:
        return "collective"
    if traits.is_wait:
        return "wait"
    return "multi_output" if traits.is_multi_output else "compute"


#: Where the matrix that is summed over stands among the arguments.
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_scaled_mm": 0, "_int_mm": 0}


def flops_of(part: BaseSchedulerNode) -> int:
    """The floating-point operations of a kernel. Torch counts them by running a model of each operation, which
    takes a thousand times as long: only for those that are no plain product."""
    kernel = part.node
    origin = None if kernel is None else kernel.get_origin_node()
    packet = getattr(getattr(origin, "target", None), "_overloadpacket", None)
    if origin is None or packet is None:
        return 0
    name = packet.__name__
    if name in PRODUCTS:
        summed = origin.args[PRODUCTS[name]].meta["val"].shape[-1]
        return 2 * _whole(origin.meta["val"].numel() * summed)
    if "attention" in name:
        return _attention_flops(origin, is_backward="backward" in name)
    return int(part.estimate_flops() or 0) if "convolution" in name else 0


def _attention_flops(origin: torch.fx.Node, is_backward: bool) -> int:
    """Of every query with every key: products along a head, and along a value; backward three and two."""
    tensors = [value.meta["val"] for value in origin.args if isinstance(value, torch.fx.Node)]
    query, key, value = tensors[1:4] if is_backward else tensors[:3]
    pairs = query.shape[:-1].numel() * key.shape[-2]
    summed = 3 * query.shape[-1] + 2 * value.shape[-1] if is_backward else query.shape[-1] + value.shape[-1]
    return 2 * _whole(pairs * summed)


def _whole(size: Any) -> int:
    """A size as a number; of one that is not known, the one that it was traced with."""
    return size if isinstance(size, int) else int(hint(size.node.expr, fallback=0))


def _elements(part: BaseSchedulerNode) -> int:
    """How many elements a generated kernel goes through; any other may go through all that it reads."""
    if not isinstance(part, SchedulerNode):
        return 1 << 60
    return product(size for sizes in part.get_ranges() for size in sizes)


def product(sizes: Iterable[Any]) -> int:
    """Of sizes that are numbers or symbols."""
    elements = 1
    for size in sizes:
        elements *= int(size) if getattr(size, "is_Integer", True) else hint(size, fallback=1)
    return elements


def origins_of(snode: BaseSchedulerNode) -> list[torch.fx.Node]:
    """What was fused into a node, in a fixed sequence."""
    origins = {}
    for part in snode.get_nodes():
        if part.node is not None:
            for origin in part.node.get_origins():
                origins[origin.name] = origin
    return [origins[name] for name in sorted(origins)]


def _source(origin: torch.fx.Node) -> str | None:
    """The innermost line of the user's program, which is not torch's, that an operation comes from."""
    lines = SOURCE_LINE.findall(origin.meta.get("stack_trace") or "")
    own = [line for line in lines if not line[0].startswith(TORCH)]
    return ":".join((own or lines)[-1]) if lines else None


def operation_of(kernel: Any) -> str:
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
    return sum(product(value.get_size()) * value.get_dtype().itemsize for value in inputs)


def hint(size: Any, fallback: int) -> int:
    sizes = V.graph.sizevars
    # torch 2.10 has the one, later ones the other.
    return (getattr(sizes, "optimization_hint", None) or sizes.size_hint)(size, fallback=fallback)


def _is_barrier(traits: Traits, collective: dict[str, Any] | None) -> bool:
    if collective is not None:
        return not collective["op"].startswith(SYMMETRIC)
    return traits.is_control_flow
