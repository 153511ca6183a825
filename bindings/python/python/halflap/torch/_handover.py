"""Inductor's scheduler nodes as a ``halflap.graph/1`` graph, and an order back as nodes.

What must not move is bound by edges of the graph, so that the one proof of an order covers it:

- nodes with side effects and random operations, one after the other;
- control flow, collectives whose partners we do not know (point to point, barriers) and operators
  of other libraries that communicate or look like it, against every other collective: their bodies
  may communicate, and a receive above a send can wait for ever.

Such an edge goes through a buffer of no size that its first node makes besides its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch._inductor import ir
from torch._inductor import memory as inductor_memory
from torch._inductor.comms import is_gemm_like
from torch._inductor.dependencies import WeakDep
from torch._inductor.scheduler import BaseSchedulerNode, NopKernelSchedulerNode, SchedulerNode
from torch._inductor.utils import contains_collective, is_collective, is_nonfreeable_buffers, is_wait
from torch._inductor.virtualized import V
from torch._ops import OpOverload

from ._collectives import SYMMETRIC, Opaque, group_of, looks_collective, operator_name
from ._derived import OrderEdge, drop_broken_edges, set_positions
from ._names import Names

CONTROL_FLOW = tuple(
    getattr(ir, name) for name in ("Conditional", "Switch", "WhileLoop", "InvokeSubgraph") if hasattr(ir, name)
)

TORCH = os.path.dirname(torch.__file__) + os.sep
SOURCE_LINE = re.compile(r'File "([^"]+)", line (\d+)')


class Unsupported(Exception):
    """What we do not know how to hand over; the input order is kept."""


class Program:
    """A graph, and the scheduler nodes that it was made of."""

    def __init__(self, snodes: list[BaseSchedulerNode], opaque: Iterable[Opaque] = ()) -> None:
        scheduler = snodes[0].scheduler
        if getattr(scheduler, "_multi_stream_nodes", False):
            raise Unsupported("the graph uses streams of its own")
        _assign_sizes(snodes)
        self.snodes = snodes
        self.scheduler = scheduler
        self._opaque = {one.operator: one for one in opaque}
        self.groups: dict[str, list[int]] = {}
        self.nodes: list[dict[str, Any]] = []
        self.buffers: list[dict[str, Any]] = []
        self._index = {snode: index for index, snode in enumerate(snodes)}
        self._names = [snode.get_name() for snode in snodes]
        self._graph_outputs = set(V.graph.get_output_names())
        self._maker: dict[str, int] = {}
        self._sizes = Sizes()
        self._input_users: dict[str, list[str]] = {name: [] for name in _freeable(V.graph.graph_inputs)}
        self._traits: list[Traits] = []
        #: What must run before each node.
        self._before: list[list[int]] = []
        self._order_edges: list[OrderEdge] = []
        for index, snode in enumerate(snodes):
            self._add(index, snode)
        self._marks: dict[str, dict[str, Any]] = {}
        self._bind()

    def graph(self) -> dict[str, Any]:
        """The whole of it."""
        return {
            "format": "halflap.graph/1",
            "groups": {name: {"ranks": ranks} for name, ranks in self.groups.items()},
            "nodes": self.nodes,
            "buffers": self.buffers,
            "inputs": [
                {"name": name, "size": self._sizes[name], "users": users, "output": name in self._graph_outputs}
                for name, users in self._input_users.items()
                if users
            ],
        }

    def describe(self) -> None:
        """Adds what is for people alone: what was fused into each node, and where it comes from."""
        names = Names()
        for snode, node in zip(self.snodes, self.nodes):
            origins = origins_of(snode)
            node["ops"] = [origin.name for origin in origins]
            source = next(filter(None, map(_source, origins)), None)
            if source is not None:
                node["source"] = source
            node.update(names.of(origins, node["kind"]))
        names.keep_saved()

    def ordered(self, names: list[str]) -> list[BaseSchedulerNode]:
        """The scheduler nodes in an order, checked against the dependencies that they really have, and with what
        Inductor derived from their old order put right."""
        index_of = {name: index for index, name in enumerate(self._names)}
        order = [index_of[name] for name in names]
        if len(order) != len(self.snodes) or len(set(order)) != len(order):
            raise Unsupported("the order does not have every node once")
        done = [False] * len(order)
        for index, name in zip(order, names):
            for before in self._before[index]:
                if not done[before]:
                    raise Unsupported(f"{name} would run before {self._names[before]}, which it needs")
            done[index] = True
        drop_broken_edges(self.snodes, order, self._order_edges, self._before)
        ordered = [self.snodes[index] for index in order]
        set_positions(ordered)
        return ordered

    def is_symmetric(self) -> bool:
        """Whether all ranks of a group take part alike in whatever communicates."""
        barriers = (_is_barrier(traits, node.get("collective")) for traits, node in zip(self._traits, self.nodes))
        return not any(barriers)

    def _add(self, index: int, snode: BaseSchedulerNode) -> None:
        """Takes a node over, all of it at once: torch's objects lie all over the memory, and to come back to each of
        thousands for one thing after the other would take longer than anything else here."""
        parts = snode.get_nodes()
        classify = self._traits_of if self._opaque else traits_of
        found = [classify(part) for part in parts]
        traits = found[0] if len(found) == 1 else merged(found)
        self._traits.append(traits)
        for name in snode.outputs_by_name:
            self._maker[name] = index
        made = [self._buffer(name, buffer) for name, buffer in snode.outputs_by_name.items()]
        self.buffers += made
        node: dict[str, Any] = {
            "name": self._names[index],
            "kind": traits.kind,
            "runtime_ns": None,
            "outputs": [*snode.outputs_by_name],
            "deps": self._deps(index, snode),
        }
        reads = self._reads(index, snode)
        if traits.kind == "compute":
            names = {*reads, *[dep.name for dep in members(snode.read_writes.writes)]}
            node["bytes"] = self._traffic(names, 4 * max([_elements(part) for part in parts]))
            if traits.is_heavy:
                node["flops"] = sum([flops_of(part) for part in parts if traits_of(part).is_heavy])
            if traits.gemm_like:
                node["gemm_like"] = True
        elif traits.kind == "collective":
            received = sum([buffer["size_alloc"] for buffer in made])
            node["collective"] = self._collective(parts, received)
        self.nodes.append(node)

    def _reads(self, index: int, snode: BaseSchedulerNode) -> list[str]:
        """What it reads, which keeps inputs alive."""
        all_reads = members(snode.read_writes.reads)
        reads = [dep.name for dep in all_reads if type(dep) is not WeakDep or not dep.is_fake]
        for name in reads:
            users = self._input_users.get(name)
            if users is not None and users[-1:] != [self._names[index]]:
                users.append(self._names[index])
        return reads

    def _traffic(self, names: set[str], most: int) -> int:
        """What is read and written, each buffer once. Of one that a node looks things up in it reads no more than it
        has indices."""
        sizes = self._sizes
        return sum([size if (size := sizes[name]) < most else most for name in names])

    def _deps(self, index: int, snode: BaseSchedulerNode) -> list[dict[str, Any]]:
        deps: dict[str, dict[str, Any]] = {}
        before: list[int] = []
        makers = self._maker
        for dep in members(snode.unmet_dependencies):
            name = dep.name
            maker = makers.get(name)
            if maker is None:
                self._check_given(name, index)
            elif maker != index:
                # Not `isinstance`: their classes are abstract, and it would take longer than all the rest.
                kind = "data" if type(dep) is not WeakDep else self._kind_of(dep, index, maker)
                if kind != "order":
                    before.append(maker)
                else:
                    self._order_edges.append(OrderEdge(maker, index, name))
                if name not in deps:
                    deps[name] = {"buffer": name, "kinds": [kind]}
                elif kind not in deps[name]["kinds"]:
                    deps[name]["kinds"] = sorted([*deps[name]["kinds"], kind])
        self._before.append(before)
        if len(deps) < 2:
            return [*deps.values()]
        return [deps[name] for name in sorted(sorted(deps), key=makers.__getitem__)]

    def _kind_of(self, dep: WeakDep, index: int, maker: int) -> str:
        """Why a node runs after another whose values it does not read. Only what chains collectives may be broken;
        since torch 2.15 other dependencies are marked as fake, too: a mutation after the readers of what it
        overwrites, and side effects.

        Nothing that generated code does after an asynchronous collective waits for its end, but for its wait, whose
        buffer takes the collective's name in all dependencies that come later. So a dependency that is still on the
        collective's own buffer (torch's FX-level scheduling makes such: start, then compute, then wait) only says
        what is launched first. A mutation of what a collective under way uses is safe only after its end."""
        if dep.is_fake and self._is_chain(index, maker):
            return "order"
        goes_on = self._traits[maker].kind in ("collective", "multi_output")
        return "issued" if goes_on and not self._overwrites(dep, index) else "weak"

    def _overwrites(self, dep: WeakDep, index: int) -> bool:
        """Whether a dependency is there because the node overwrites something: it then names the buffer that does. A
        wait is a mutation to torch, and overwrites nothing."""
        mutating = self.snodes[index].outputs_by_name.get(dep.mutating_buf)
        return mutating is not None and bool(mutating.get_mutations()) and self._traits[index].kind != "wait"

    def _is_chain(self, index: int, maker: int) -> bool:
        """Whether nothing but their sequence binds a collective to another, or to its wait."""
        if self._traits[index].kind != "collective" or self._traits[maker].kind not in ("collective", "wait"):
            return False
        named = self.scheduler.mutation_real_name
        made = self.snodes[index].get_outputs()
        overwritten = {named.get(name, name) for buffer in made for name in buffer.get_mutations()}
        reads = self.snodes[maker].read_writes.reads if overwritten else ()
        return overwritten.isdisjoint([named.get(dep.name, dep.name) for dep in reads])

    def _check_given(self, name: str, index: int) -> None:
        given = (V.graph.graph_inputs, V.graph.constants, getattr(V.graph, "torchbind_constants", {}))
        if not any(name in names for names in given) and name in self.scheduler.name_to_buf:
            raise Unsupported(f"{self._names[index]} needs {name}, which no node before it makes")

    def _buffer(self, name: str, made: Any) -> dict[str, Any]:
        sizes = made.mpi_buffer
        size, users, is_output = int(sizes.size_free), self._users(sizes.succ_nodes), name in self._graph_outputs
        real = self.scheduler.mutation_real_name.get(name)
        if real is not None:
            self._sizes[name] = self._sizes[real]
        else:
            # What nobody outside of its maker sees is never in memory.
            self._sizes[name] = size if users or is_output else 0
        alloc = int(sizes.size_alloc)
        return {"name": name, "size_alloc": alloc, "size_free": size, "users": users, "output": is_output}

    def _users(self, snodes: Iterable[BaseSchedulerNode]) -> list[str]:
        """The nodes of the graph that these are, or were fused into."""
        index_of, names = self._index, self._names
        found = [index_of[snode] if snode in index_of else self._fused(snode) for snode in members(snodes)]
        if len(found) > 1:
            found = sorted(set(found))
        return [names[index] for index in found]

    def _fused(self, snode: BaseSchedulerNode) -> int:
        whole = self.scheduler.name_to_fused_node.get(snode.get_first_name(), snode)
        if whole not in self._index:
            raise Unsupported(f"{snode.get_name()} uses a buffer and is none of the nodes")
        return self._index[whole]

    def _collective(self, parts: Sequence[BaseSchedulerNode], received: int) -> dict[str, Any]:
        kernel = next(part.node for part in parts if self._traits_of(part).is_collective)
        opaque = self._opaque_of(kernel)
        name = _group_name(kernel) if opaque is None else _opaque_group(opaque, kernel)
        if name not in self.groups:
            self.groups[name] = _group_ranks(name)
        return {
            "op": operation_of(kernel) if opaque is None else opaque.kind,
            "group": name,
            "group_size": len(self.groups[name]),
            "bytes": max(_bytes(_tensors(kernel)), received),
            # A group of nodes that issues and waits is done when it has run.
            "async": opaque is None and not any([traits_of(part).is_wait for part in parts]),
        }

    def _traits_of(self, part: BaseSchedulerNode) -> Traits:
        """What a part is, where the user may have said so."""
        traits = traits_of(part)
        if self._opaque_of(part.node) is None:
            return traits
        said = traits._replace(kind="collective", is_collective=True, keeps_place=True)
        return said._replace(is_heavy=False, gemm_like=False)

    def _opaque_of(self, kernel: Any) -> Opaque | None:
        return self._opaque.get(_operator(kernel)) if self._opaque else None

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
        """Has a node launched after another in every order."""
        node, earlier = self.nodes[index], self.nodes[before]
        name = f"{earlier['name']}.issued"
        mark = self._marks.get(name)
        if mark is None:
            mark = self._marks[name] = {"name": name, "size_alloc": 0, "size_free": 0, "users": [], "output": False}
            earlier["outputs"].append(name)
            self.buffers.append(mark)
        if node["name"] not in mark["users"]:
            mark["users"].append(node["name"])
            node["deps"].append({"buffer": name, "kinds": ["issued"]})


def _assign_sizes(snodes: list[BaseSchedulerNode]) -> None:
    """Has Inductor work out sizes and users, where it has not yet."""
    sizes = (made.mpi_buffer for snode in snodes for made in snode.get_outputs())
    if not any(size.size_alloc or size.succ_nodes for size in sizes):
        names = snodes[0].scheduler.name_to_buf
        inductor_memory.assign_memory_planning_info_for_scheduler_buffers(snodes, names)


def _freeable(inputs: Iterable[str]) -> list[str]:
    """The inputs of the graph that may be freed in it. Torch knows them by how their names begin, and is asked once
    of all that differ in a number."""
    known: dict[str, bool] = {}
    freeable = []
    for name in inputs:
        beginning = name.rstrip("0123456789")
        if beginning not in known:
            known[beginning] = not is_nonfreeable_buffers(SimpleNamespace(name=name))
        if known[beginning]:
            freeable.append(name)
    return freeable


def members(ordered: Any) -> Iterable[Any]:
    """What is in one of torch's ordered sets, whose own iterator is written in Python, and takes several times as
    long."""
    return getattr(ordered, "_dict", ordered)


class Sizes(dict[str, int]):
    """The sizes in bytes of what nodes read and write, by name."""

    def __missing__(self, name: str) -> int:
        """Of an input of the graph."""
        given = V.graph.graph_inputs_original.get(name)
        size = 0 if given is None else product(given.layout.size) * given.layout.dtype.itemsize
        self[name] = size
        return size


class Traits(NamedTuple):
    """What matters about a node, or a part of one."""

    kind: str
    is_collective: bool
    is_wait: bool
    #: Among collectives: it communicates, or may, in ways that we do not know.
    keeps_place: bool
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
    keeps_place = isinstance(kernel, CONTROL_FLOW) or looks_collective(_operator(kernel))
    effects = not isinstance(part, SchedulerNode) and part.has_side_effects()
    is_multi_output = isinstance(kernel, ir.MultiOutput)
    return Traits(
        kind=_kind(communicates, waits, is_multi_output),
        is_collective=communicates,
        is_wait=waits,
        keeps_place=keeps_place,
        is_pinned=not (communicates or waits) and (effects or _is_random(kernel) or keeps_place),
        gemm_like=is_gemm_like(kernel),
        is_heavy=not (communicates or waits) and (part.is_extern() or part.is_template()),
    )


def _is_random(kernel: Any) -> bool:
    if isinstance(kernel, ir.RandomSeeds):
        return True
    overload = getattr(kernel, "op_overload", None)
    return isinstance(overload, OpOverload) and torch.Tag.nondeterministic_seeded in overload.tags


def has_collectives(snodes: list[BaseSchedulerNode], opaque: Iterable[Opaque] = ()) -> bool:
    """Whether there is anything to order."""
    if any(contains_collective(snode) for snode in snodes):
        return True
    operators = {one.operator for one in opaque}
    if not operators:
        return False
    return any(_operator(part.node) in operators for snode in snodes for part in snode.get_nodes())


def merged(parts: list[Traits]) -> Traits:
    """Of a node of several parts: what any of them is, but for a multi-output, which is one alone."""
    whole = Traits("", *map(any, zip(*[part[1:] for part in parts])))
    return whole._replace(kind=_kind(whole.is_collective, whole.is_wait, False))


def _kind(communicates: bool, waits: bool, is_multi_output: bool) -> str:
    if communicates:
        return "collective"
    if waits:
        return "wait"
    return "multi_output" if is_multi_output else "compute"


#: Where the matrix that is summed over stands among the arguments.
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "_scaled_mm": 0, "_int_mm": 0}


def flops_of(part: BaseSchedulerNode) -> int:
    """The floating-point operations of a kernel. Torch counts them by running a model of each operation, which
    takes a thousand times as long: only for those that are no plain product."""
    for origin in _possible_origins(part.node):
        packet = getattr(origin.target, "_overloadpacket", None)
        name = "" if packet is None else packet.__name__
        if name in PRODUCTS:
            summed = origin.args[PRODUCTS[name]].meta["val"].shape[-1]
            return 2 * _whole(origin.meta["val"].numel() * summed)
        if "attention" in name:
            return _attention_flops(origin, is_backward="backward" in name)
        if "convolution" in name:
            return int(part.estimate_flops() or 0)
    return 0


def _possible_origins(kernel: Any) -> Iterable[torch.fx.Node]:
    """The operation that a kernel computes is one of these; the others are views of what it reads. It is not named
    where there are several outputs, and where torch's FX-level scheduling has put it into a graph of its own."""
    if kernel is None:
        return ()
    origin = kernel.get_origin_node()
    return (origin,) if origin is not None and type(origin.target) is OpOverload else kernel.get_origins()


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
    if isinstance(part, NopKernelSchedulerNode):
        return 0
    if not isinstance(part, SchedulerNode):
        return 1 << 60
    return product([size for sizes in part.get_ranges() for size in sizes])


def product(sizes: Iterable[Any]) -> int:
    """Of sizes that are numbers or symbols."""
    elements = 1
    for size in sizes:
        is_whole = getattr(size, "is_Integer", None)
        if is_whole is None:
            elements *= int(size)
        else:
            # What `int` of a whole number of sympy's comes to, after several calls.
            elements *= size.p if is_whole else hint(size, fallback=1)
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


#: Point to point, as others call it.
RENAMED = {"isend": "send", "irecv": "recv", "batch_p2p_ops": "send_recv"}


def operation_of(kernel: Any) -> str:
    """``all_gather_into_tensor`` of ``torch.ops._c10d_functional.all_gather_into_tensor.default``."""
    packet = getattr(getattr(kernel, "op_overload", None), "_overloadpacket", None)
    name = getattr(packet, "__name__", None) or str(kernel.python_kernel_name)
    return RENAMED.get(name, name)


def _operator(kernel: Any) -> str:
    """``vllm::all_reduce``, or nothing for what is not an operator's call."""
    return operator_name(getattr(kernel, "op_overload", None)) or ""


def _opaque_group(opaque: Opaque, kernel: Any) -> str:
    name = group_of(opaque, kernel.constant_args)
    if name is None and opaque.group is not None:
        raise Unsupported(
            f"this rank is in no process group {opaque.group!r}, which enable(collectives=...) "
            f"names for {opaque.operator}"
        )
    return name or "unknown"


def _group_name(kernel: Any) -> str:
    """The process group is the last argument of a functional collective: a name, or the group itself with torch's
    ``compile_on_one_rank``, where it is a constant or the result of another node."""
    given = [None, *kernel.constant_args, *[value for value in kernel.inputs if not _is_tensor(value)]]
    last = given[-1]
    group = getattr(last, "opaque_example_value", getattr(last, "value", last))
    name = getattr(group, "group_name", group)
    return name if isinstance(name, str) else "unknown"


def _tensors(kernel: Any) -> list[Any]:
    """What a kernel reads, without process groups."""
    return [value for value in kernel.inputs if _is_tensor(value)]


def _is_tensor(value: Any) -> bool:
    return value.maybe_get_size() is not None


def _group_ranks(name: str) -> list[int]:
    from torch.distributed import distributed_c10d

    if name == "unknown":
        is_alone = not torch.distributed.is_initialized()
        return [0] if is_alone else list(range(torch.distributed.get_world_size()))
    return distributed_c10d.get_process_group_ranks(distributed_c10d._resolve_process_group(name))


def _bytes(inputs: Iterable[Any]) -> int:
    return sum([product(value.get_size()) * value.get_dtype().itemsize for value in inputs])


def hint(size: Any, fallback: int) -> int:
    sizes = V.graph.sizevars
    # torch 2.10 has the one, later ones the other.
    return (getattr(sizes, "optimization_hint", None) or sizes.size_hint)(size, fallback=fallback)


def _is_barrier(traits: Traits, collective: dict[str, Any] | None) -> bool:
    if traits.keeps_place or collective is None:
        return traits.keeps_place
    return not collective["op"].startswith(SYMMETRIC)
