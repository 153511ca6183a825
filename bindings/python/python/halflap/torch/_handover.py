"""Inductor's scheduler nodes as a ``halflap.graph/1`` graph, and an order back as nodes.

What must not move is bound by edges of the graph, so that the one proof of an order covers it:

- nodes with side effects and random operations, one after the other;
- control flow, collectives whose partners we do not know (point to point, barriers) and operators
  of other libraries that communicate or look like it, against every other collective: their bodies
  may communicate, and a receive above a send can wait for ever.

Such an edge goes through a buffer of no size that its first node makes besides its own.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Sequence
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch._inductor import ir
from torch._inductor.comms import is_gemm_like
from torch._inductor.dependencies import WeakDep
from torch._inductor.scheduler import BaseSchedulerNode, NopKernelSchedulerNode, SchedulerNode
from torch._inductor.utils import (
    contains_collective,
    is_collective,
    is_nonfreeable_buffers,
    is_wait,
)
from torch._inductor.virtualized import V
from torch._ops import OpOverload

from ._bonds import Bonds, is_barrier
from ._collectives import (
    REDUCING,
    REDUCTIONS,
    Opaque,
    group_of,
    kind_of,
    looks_collective,
    operator_name,
)
from ._derived import OrderEdge, drop_broken_edges, keep_parts_apart, set_positions
from ._flops import flops_of
from ._groups import described
from ._hints import Hints
from ._names import Names

#: Of a dependency of one kind; one list for all of them.
KINDS = {kind: [kind] for kind in ("data", "weak", "issued", "order")}

CONTROL_FLOW = tuple(
    getattr(ir, name)
    for name in ("Conditional", "Switch", "WhileLoop", "InvokeSubgraph")
    if hasattr(ir, name)
)

TORCH = os.path.dirname(torch.__file__) + os.sep
SOURCE_LINE = re.compile(r'File "([^"]+)", line (\d+)')


class Unsupported(Exception):
    """What we do not know how to hand over; the input order is kept."""


class Program:
    """A graph, and the scheduler nodes that it was made of."""

    def __init__(
        self,
        snodes: list[BaseSchedulerNode],
        opaque: Iterable[Opaque] = (),
        unbacked: int | None = None,
    ) -> None:
        scheduler = snodes[0].scheduler
        if getattr(scheduler, "_multi_stream_nodes", False):
            raise Unsupported("the graph uses streams of its own")
        self.snodes = snodes
        self.scheduler = scheduler
        self.hints = Hints(unbacked)
        self._opaque = {one.operator: one for one in opaque}
        self.groups: dict[str, list[int]] = {}
        self.nodes: list[dict[str, Any]] = []
        self.buffers: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._graph_outputs = set(V.graph.get_output_names())
        self._inputs = {name: self._input(name) for name in _freeable(V.graph.graph_inputs)}
        #: The buffers that were made, with their makers.
        self._made: dict[str, tuple[int, dict[str, Any]]] = {}
        self._sizes = Sizes(self.hints)
        #: What buffers allocate and free, if Inductor has not counted it all.
        self._counted = self._count()
        self._traits: list[Traits] = []
        #: What must run before each node.
        self._before: list[list[int]] = []
        self._order_edges: list[OrderEdge] = []
        #: Collectives that overwrite what others read, and are bound to these by chains alone.
        self._overwriting: list[int] = []
        #: What each node reads.
        self._reads: list[list[str]] = []
        for index, snode in enumerate(snodes):
            self._add(index, snode)
        self._share_memory()
        self._add_readers()
        self._add_work()
        bonds = Bonds(self.nodes, self.buffers)
        self._join_parts(bonds)
        bonds.bind(self._traits)
        #: The names of nodes whose work depends on sizes that were assumed.
        self.assuming = self._assuming() if self.hints.has_unbacked else set()

    def graph(self) -> dict[str, Any]:
        """The whole of it."""
        return {
            "format": "halflap.graph/1",
            "groups": described(self.groups),
            "nodes": self.nodes,
            "buffers": self.buffers,
            "inputs": [
                {**given, "size": self._sizes[name]}
                for name, given in self._inputs.items()
                if given["users"]
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
        """The scheduler nodes in an order, checked against the dependencies that they really have,
        and with what Inductor derived from their old order updated."""
        index_of = {name: index for index, name in enumerate(self._names)}
        order = [index_of[name] for name in names]
        if len(order) != len(self.snodes) or len(set(order)) != len(order):
            raise Unsupported("the order does not have every node once")
        done = [False] * len(order)
        for index, name in zip(order, names):
            for before in self._before[index]:
                if not done[before]:
                    raise Unsupported(
                        f"{name} would run before {self._names[before]}, which it needs"
                    )
            done[index] = True
        drop_broken_edges(self.snodes, order, self._order_edges, self._before)
        ordered = [self.snodes[index] for index in order]
        set_positions(ordered)
        keep_parts_apart(ordered)
        return ordered

    def is_symmetric(self) -> bool:
        """Whether all ranks of a group take part alike in whatever communicates."""
        barriers = (
            is_barrier(traits, node.get("collective"))
            for traits, node in zip(self._traits, self.nodes)
        )
        return not any(barriers)

    def _add(self, index: int, snode: BaseSchedulerNode) -> None:
        """Takes over what a node is, makes and needs. Torch's objects lie all over the memory, and
        most of the time here is spent waiting for it, so this looks at no more than it must."""
        parts = snode.get_nodes()
        classify = self._traits_of if self._opaque else traits_of
        found = [classify(part) for part in parts]
        traits = found[0] if len(found) == 1 else merged(found)
        name = copied(snode.get_name())
        self._traits.append(traits)
        self._names.append(name)
        outputs, deps = self._make(index, snode), self._deps(index, snode)
        node: dict[str, Any] = {
            "name": name,
            "kind": traits.kind,
            "runtime_ns": None,
            "outputs": outputs,
            "deps": deps,
        }
        self.nodes.append(node)
        if traits.kind == "compute":
            node["bytes"] = 0 if traits.is_idle or len(parts) > 1 else self._traffic(index, parts)
        elif traits.kind == "collective":
            node["collective"] = self._collective(index, parts)

    def _add_work(self) -> None:
        """Adds floating-point operations, and the traffic of fused nodes, for which all users must
        be known."""
        for index, traits in enumerate(self._traits):
            if traits.kind == "compute" and not traits.is_idle:
                node, parts = self.nodes[index], self.snodes[index].get_nodes()
                if len(parts) > 1:
                    node["bytes"] = self._traffic(index, parts)
                if traits.is_heavy:
                    heavy = parts
                    if len(parts) > 1:
                        heavy = [part for part in parts if self._traits_of(part).is_heavy]
                    node["flops"] = sum([flops_of(part.node, self.hints) for part in heavy])
                if traits.gemm_like:
                    node["gemm_like"] = True

    def _traffic(self, index: int, parts: Sequence[BaseSchedulerNode]) -> int:
        """What is read and written, each buffer once."""
        outputs = self.nodes[index]["outputs"]
        sizes, names = self._sizes, {*self._reads[index], *outputs}
        if not self._traits[index].is_generated:
            return sum([sizes[name] for name in names])
        if len(parts) > 1:
            names.difference_update([name for name in outputs if self._is_inner(name)])
        # Of a buffer that it looks things up in it reads no more than it has indices.
        most = 4 * max([self._elements(part) for part in parts])
        return sum([size if (size := sizes[name]) < most else most for name in names])

    def _is_inner(self, name: str) -> bool:
        """A value that is used only within its producer is never in memory."""
        _, buffer = self._made[name]
        is_renamed = name in self.scheduler.mutation_real_name
        return not (buffer["users"] or buffer["output"] or is_renamed)

    def _deps(self, index: int, snode: BaseSchedulerNode) -> list[dict[str, Any]]:
        """What it must run after; and what it reads, which it keeps alive."""
        deps: dict[str, dict[str, Any]] = {}
        before: list[int] = []
        reads: list[str] = []
        made, user = self._made, self._names[index]
        unmet = members(snode.unmet_dependencies)
        for dep in unmet:
            name = dep.name
            if name not in made:
                self._check_given(name, index)
                continue
            maker, buffer = made[name]
            # Not `isinstance`: the classes are abstract, and it would take longer than the rest.
            kind = "data" if type(dep) is not WeakDep else self._kind_of(dep, index, maker)
            if kind == "data" or not dep.is_fake:
                reads.append(name)
                users = buffer["users"]
                if not users or users[-1] != user:
                    users.append(user)
            if maker == index:
                continue
            if kind != "order":
                before.append(maker)
            else:
                self._order_edges.append(OrderEdge(maker, index, name))
            if name not in deps:
                deps[name] = {"buffer": buffer["name"], "kinds": KINDS[kind]}
            elif kind not in deps[name]["kinds"]:
                deps[name]["kinds"] = sorted([*deps[name]["kinds"], kind])
        all_reads = members(snode.read_writes.reads)
        if len(all_reads) != len(unmet):
            reads = self._with_inputs(user, all_reads)
        self._reads.append(reads)
        self._before.append(before)
        if len(deps) < 2:
            return [*deps.values()]
        return [deps[name] for name in sorted(deps, key=lambda name: (made[name][0], name))]

    def _with_inputs(self, user: str, deps: Iterable[Any]) -> list[str]:
        """What a node reads, if it is not only what others make: inputs are kept alive, too."""
        inputs = self._inputs
        reads = [dep.name for dep in deps if type(dep) is not WeakDep or not dep.is_fake]
        for name in reads:
            if name in inputs:
                users = inputs[name]["users"]
                if not users or users[-1] != user:
                    users.append(user)
        return reads

    def _kind_of(self, dep: WeakDep, index: int, maker: int) -> str:
        """Why a node runs after another whose values it does not read. Only what chains collectives
        may be broken; since torch 2.15 other dependencies are marked as fake, too: a mutation after
        the readers of what it overwrites, and side effects.

        Nothing that generated code does after an asynchronous collective waits for its end, but for
        its wait, whose buffer takes the collective's name in all dependencies that come later. So a
        dependency that is still on the collective's own buffer (torch's FX-level scheduling makes
        such: start, then compute, then wait) only says what is launched first. A mutation of what a
        collective under way uses is safe only after its end."""
        if dep.is_fake and self._is_chain(index, maker):
            if self._overwrites(dep, index) and self._overwriting[-1:] != [index]:
                self._overwriting.append(index)
            return "order"
        goes_on = self._traits[maker].kind in ("collective", "multi_output")
        return "issued" if goes_on and not self._overwrites(dep, index) else "weak"

    def _overwrites(self, dep: WeakDep, index: int) -> bool:
        """Whether a dependency is there because the node overwrites something: it then names the
        buffer that does. A wait is a mutation to torch, and overwrites nothing."""
        mutating = self.snodes[index].outputs_by_name.get(dep.mutating_buf)
        return (
            mutating is not None
            and bool(mutating.get_mutations())
            and self._traits[index].kind != "wait"
        )

    def _is_chain(self, index: int, maker: int) -> bool:
        """Whether nothing but their sequence binds a collective to another, or to its wait."""
        if self._traits[index].kind != "collective" or self._traits[maker].kind not in (
            "collective",
            "wait",
        ):
            return False
        named = self.scheduler.mutation_real_name
        made = self.snodes[index].get_outputs()
        overwritten = {named.get(name, name) for buffer in made for name in buffer.get_mutations()}
        reads = self.snodes[maker].read_writes.reads if overwritten else ()
        return overwritten.isdisjoint([named.get(dep.name, dep.name) for dep in reads])

    def _add_readers(self) -> None:
        """Binds a collective that overwrites a buffer to all earlier readers of it. Torch says that
        by the last name of what a reader made, which may be that of a wait for another collective:
        if such a dependency is broken like a chain, the reader itself must still come first."""
        indices = (
            {name: index for index, name in enumerate(self._names)} if self._overwriting else {}
        )
        for index in self._overwriting:
            readers = {indices[user] for user in self._users_of_overwritten(index)}
            missing = sorted(one for one in readers - {*self._before[index]} if one < index)
            node = self.nodes[index]
            for reader in missing:
                self._before[index].append(reader)
                node["deps"].append({"buffer": self.nodes[reader]["outputs"][0], "kinds": ["weak"]})
            node["deps"].sort(key=lambda dep: (self._made[dep["buffer"]][0], dep["buffer"]))

    def _users_of_overwritten(self, index: int) -> list[str]:
        """All that read a buffer that a node overwrites, by whatever name."""
        named = self.scheduler.mutation_real_name
        made = self.snodes[index].get_outputs()
        same = {named.get(name, name) for buffer in made for name in buffer.get_mutations()}
        users = [
            user for name in same if name in self._inputs for user in self._inputs[name]["users"]
        ]
        # In the order of nodes, so that views of views are found, too.
        for snode in self.snodes[:index]:
            for buffer in snode.get_outputs():
                name = buffer.get_name()
                shown = [named.get(alias, alias) for alias in buffer.get_aliases()]
                if named.get(name, name) in same or not same.isdisjoint(shown):
                    same.add(name)
                    users += self._made[name][1]["users"]
        return users

    def _check_given(self, name: str, index: int) -> None:
        given = (
            V.graph.graph_inputs,
            V.graph.constants,
            getattr(V.graph, "torchbind_constants", {}),
        )
        if not any(name in names for names in given) and name in self.scheduler.name_to_buf:
            raise Unsupported(f"{self._names[index]} needs {name}, which no node before it makes")

    def _input(self, name: str) -> dict[str, Any]:
        return {"name": name, "size": 0, "users": [], "output": name in self._graph_outputs}

    def _count(self) -> dict[str, tuple[int, int]]:
        outputs = (made for snode in self.snodes for made in snode.get_outputs())
        has_sizes = any(made.mpi_buffer.size_alloc for made in outputs)
        if has_sizes and not self.hints.has_unbacked:
            return {}
        return self.hints.buffers(self.scheduler.name_to_buf)

    def _assuming(self) -> set[str]:
        least = Hints(1).buffers(self.scheduler.name_to_buf)
        assumed = {name for name, size in self._counted.items() if size != least[name]}
        for name, given in V.graph.graph_inputs_original.items():
            if any(map(self.hints.is_assumed, given.layout.size)):
                assumed.add(name)
        return {
            node["name"]
            for node, reads in zip(self.nodes, self._reads)
            if not assumed.isdisjoint([*reads, *node["outputs"]])
        }

    def _make(self, index: int, snode: BaseSchedulerNode) -> list[str]:
        """Takes over the buffers that a node makes; their names."""
        counted, sizes, outputs = self._counted, self._sizes, self._graph_outputs
        renamed = self.scheduler.mutation_real_name
        names = []
        for name, made in snode.outputs_by_name.items():
            if name in renamed:
                alloc = free = 0
                sizes[name] = sizes[renamed[name]]
            else:
                planned = made.mpi_buffer
                alloc, free = counted[name] if counted else (planned.size_alloc, planned.size_free)
                sizes[name] = alloc if alloc > free else free
            own = copied(name)
            buffer = {
                "name": own,
                "size_alloc": alloc,
                "size_free": free,
                "users": [],
                "output": name in outputs,
            }
            self._made[name] = index, buffer
            self.buffers.append(buffer)
            names.append(own)
        return names

    def _share_memory(self) -> None:
        """Has what is used under another name stay alive for those users."""
        made = self._made
        # Backwards, so that it passes from one name to the next.
        for name, real in reversed(self.scheduler.mutation_real_name.items()):
            if name in made and real in made:
                _add_users(made[real][1], made[name][1]["users"])
        views = [index for index, traits in enumerate(self._traits) if traits.is_view]
        for index in reversed(views):
            shown = self.snodes[index].node.get_inputs_that_alias_output()
            owners = [made[name][1] if name in made else self._inputs.get(name) for name in shown]
            for view in [made[name][1] for name in self.nodes[index]["outputs"]]:
                view["size_alloc"] = view["size_free"] = 0
                for owner in filter(None, owners):
                    _add_users(owner, view["users"])
                    owner["output"] |= view["output"]

    def _join_parts(self, bonds: Bonds) -> None:
        """Counts what is concatenated once: Inductor allocates the whole with the part that is
        written first. That part stays the first, so that this holds in every order."""
        joins = [index for index, traits in enumerate(self._traits) if traits.is_join]
        inner = {name for index in joins for name in self._reads[index]}
        for name in [name for index in joins for name in self.snodes[index].outputs_by_name]:
            written = [] if name in inner else self._written_into(name)
            if not written:
                continue
            first, owner = min([self._made[one] for one in written], key=itemgetter(0))
            whole = self._made[name][1]
            sizes = whole["size_alloc"], whole["size_free"]
            for maker, one in [self._made[one] for one in written]:
                one["size_alloc"] = one["size_free"] = 0
                if one is not owner:
                    _add_users(owner, one["users"])
                    owner["output"] |= one["output"]
                if maker != first:
                    self._before[maker].append(first)
                    bonds.after(maker, first)
            owner["size_alloc"], owner["size_free"] = sizes

    def _written_into(self, name: str) -> list[str]:
        """A buffer, and what is written into it part by part; nothing if a part has memory of its
        own."""
        index, _ = self._made[name]
        found = [name]
        for part in self._reads[index] if self._traits[index].is_join else ():
            is_known = part in self._made and part not in self.scheduler.mutation_real_name
            layout = self.scheduler.name_to_buf[part].node.layout if is_known else None
            inside = self._written_into(part) if isinstance(layout, ir.NonOwningLayout) else []
            if not inside:
                return []
            found += inside
        return found

    def _collective(self, index: int, parts: Sequence[BaseSchedulerNode]) -> dict[str, Any]:
        part = parts[0] if len(parts) == 1 else next(filter(self._is_collective, parts))
        kernel = part.node
        opaque = self._opaque_of(kernel)
        tensors, others = _split(kernel.inputs)
        name = _group_name(kernel, others) if opaque is None else _opaque_group(opaque, kernel)
        if name not in self.groups:
            self.groups[name] = group_ranks(name)
        operation = operation_of(kernel) if opaque is None else opaque.kind
        kind = kind_of(operation)
        layouts = [value.get_layout() for value in tensors]
        # The last input of torch's ``..._out``, which its bucketing uses, is memory for the result.
        given = layouts[:-1] if operation.endswith("_out") else layouts
        sent, received = self._bytes(given), 0
        for output in self.nodes[index]["outputs"]:
            received += self._made[output][1]["size_alloc"]
        if not received and given is not layouts:
            received = self._bytes(layouts[-1:])
        collective: dict[str, Any] = {
            "op": operation,
            "group": name,
            "group_size": len(self.groups[name]),
            "bytes": sent if sent > received else received,
            # A group of nodes that issues and waits is done when it has run.
            "async": opaque is None and not self._traits[index].is_wait,
            "input_bytes": sent,
        }
        # What works in place makes nothing, and what hands its results out does not say how large
        # they are.
        if received:
            collective["output_bytes"] = received
        if kind is not None:
            collective["kind"] = kind
        if (dtype := _dtype(given)) is not None:
            collective["dtype"] = dtype
        if kind == "all_gather" and len(given) == 1 and given is layouts and len(parts) == 1:
            collective["content"] = self._content(index, given[0])
        if opaque is None and (reduction := _reduction(kind, kernel)) is not None:
            collective["reduction"] = reduction
        return collective

    def _content(self, index: int, layout: ir.Layout) -> str:
        """A name for what a node sends: what it reads (an input or buffer that was written to has
        another name), and which part of that."""
        part = (layout.offset, layout.size, layout.stride, layout.dtype)
        return " ".join([*sorted(self._reads[index]), *map(str, part)])

    def _is_collective(self, part: BaseSchedulerNode) -> bool:
        return self._traits_of(part).is_collective

    def _traits_of(self, part: BaseSchedulerNode) -> Traits:
        """What a part is, where the user may have said so."""
        traits = traits_of(part)
        if self._opaque_of(part.node) is None:
            return traits
        said = traits._replace(kind="collective", is_collective=True, keeps_place=True)
        return said._replace(is_heavy=False, gemm_like=False, is_view=False)

    def _opaque_of(self, kernel: Any) -> Opaque | None:
        return self._opaque.get(_operator(kernel)) if self._opaque else None

    def _bytes(self, layouts: Iterable[ir.Layout]) -> int:
        return sum([self.hints.product(layout.size) * layout.dtype.itemsize for layout in layouts])

    def _elements(self, part: BaseSchedulerNode) -> int:
        """How much a generated kernel goes through; others may go through all that they read."""
        if isinstance(part, SchedulerNode):
            return self.hints.product([size for sizes in part.get_ranges() for size in sizes])
        return 0 if isinstance(part, NopKernelSchedulerNode) else 1 << 60


def _split(inputs: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Tensors, and what else there may be: process groups."""
    tensors, others = [], []
    for value in inputs:
        (tensors if value.maybe_get_size() is not None else others).append(value)
    return tensors, others


def _add_users(buffer: dict[str, Any], users: list[str]) -> None:
    for user in users:
        if user not in buffer["users"]:
            buffer["users"].append(user)


def _freeable(inputs: Iterable[str]) -> list[str]:
    """The inputs of the graph that may be freed in it. Torch knows them by how their names begin,
    and is asked once of all that differ in a number."""
    known: dict[str, bool] = {}
    freeable = []
    for name in inputs:
        beginning = name.rstrip("0123456789")
        if beginning not in known:
            known[beginning] = not is_nonfreeable_buffers(SimpleNamespace(name=name))
        if known[beginning]:
            freeable.append(name)
    return freeable


def copied(name: str) -> str:
    """A name that lies beside the others that were copied, and not somewhere in torch's memory."""
    return name[:1] + name[1:]


def members(ordered: Any) -> Iterable[Any]:
    """What is in one of torch's ordered sets, whose own iterator is written in Python, and takes
    several times as long."""
    return getattr(ordered, "_dict", ordered)


class Sizes(dict[str, int]):
    """The sizes in bytes of what nodes read and write, by name."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints

    def __missing__(self, name: str) -> int:
        """Of an input of the graph."""
        given = V.graph.graph_inputs_original.get(name)
        elements = 0 if given is None else self._hints.product(given.layout.size)
        size = self[name] = elements * given.layout.dtype.itemsize if elements else 0
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
    #: Inductor writes it, so it is known how much of its inputs it goes through.
    is_generated: bool
    #: Runs nothing on the device.
    is_idle: bool
    #: Shows the memory of others in another form.
    is_view: bool
    #: Stands for what others write into one buffer.
    is_join: bool


def traits_of(part: BaseSchedulerNode) -> Traits:
    """Classified once for each kind of kernel."""
    kernel = part.node
    if isinstance(part, SchedulerNode):
        named, is_pinned = None, part.has_side_effects()
    else:
        overload = getattr(kernel, "op_overload", None)
        # Overloads live as long as torch does, and take long to hash.
        named = id(overload)
        if overload is None:
            named = getattr(kernel, "python_kernel_name", None)
        is_pinned = False
    key = (type(part), type(kernel), named)
    traits = _traits.get(key)
    if traits is None:
        traits = _traits[key] = _classify(part)
    return traits._replace(is_pinned=True) if is_pinned else traits


_traits: dict[Any, Traits] = {}


def _classify(part: BaseSchedulerNode) -> Traits:
    kernel = part.node
    communicates, waits = is_collective(kernel), is_wait(kernel)
    keeps_place = isinstance(kernel, CONTROL_FLOW) or looks_collective(_operator(kernel))
    effects = not isinstance(part, SchedulerNode) and part.has_side_effects()
    is_multi_output = isinstance(kernel, ir.MultiOutput)
    is_view = not (communicates or waits) and _is_view(kernel)
    is_assertion = isinstance(kernel, ir.AssertScalar)
    return Traits(
        kind=_kind(communicates, waits, is_multi_output),
        is_collective=communicates,
        is_wait=waits,
        keeps_place=keeps_place,
        is_pinned=not (communicates or waits) and (effects or _is_random(kernel) or keeps_place),
        gemm_like=is_gemm_like(kernel),
        is_heavy=not (communicates or waits) and (part.is_extern() or part.is_template()),
        is_generated=isinstance(part, SchedulerNode),
        is_idle=is_view or isinstance(part, NopKernelSchedulerNode) or is_assertion,
        is_view=is_view,
        is_join=isinstance(kernel, ir.ConcatKernel),
    )


def _is_view(kernel: Any) -> bool:
    """By its schema: it writes nothing, and all that it gives is what it was given."""
    overload = getattr(kernel, "op_overload", None)
    if not isinstance(overload, OpOverload) or not overload.is_view:
        return False
    return all(given.alias_info is not None for given in overload._schema.returns)


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
    """Of a node of several parts: what any of them is, but for a multi-output, which is one
    alone."""
    whole = Traits("", *map(any, zip(*[part[1:] for part in parts])))
    kind = _kind(whole.is_collective, whole.is_wait, False)
    is_idle = all(part.is_idle for part in parts)
    return whole._replace(kind=kind, is_idle=is_idle, is_view=False, is_join=False)


def _kind(communicates: bool, waits: bool, is_multi_output: bool) -> str:
    if communicates:
        return "collective"
    if waits:
        return "wait"
    return "multi_output" if is_multi_output else "compute"


def origins_of(snode: BaseSchedulerNode) -> list[torch.fx.Node]:
    """What was fused into a node, in a fixed sequence."""
    origins = {}
    for part in snode.get_nodes():
        if part.node is not None:
            for origin in part.node.get_origins():
                origins[origin.name] = origin
    return [origins[name] for name in sorted(origins)]


def _source(origin: torch.fx.Node) -> str | None:
    """The innermost line of the user's program, which is not torch's, that an operation comes
    from."""
    lines = SOURCE_LINE.findall(origin.meta.get("stack_trace") or "")
    own = [line for line in lines if not line[0].startswith(TORCH)]
    return ":".join((own or lines)[-1]) if lines else None


#: Point to point, as others call it.
RENAMED = {"isend": "send", "irecv": "recv", "batch_p2p_ops": "send_recv"}


def operation_of(kernel: Any) -> str:
    """``all_gather_into_tensor`` of
    ``torch.ops._c10d_functional.all_gather_into_tensor.default``."""
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


def _group_name(kernel: Any, others: list[Any]) -> str:
    """The process group is the last argument of a functional collective: a name, or the group
    itself with torch's ``compile_on_one_rank``, where it is a constant or the result of another
    node."""
    last = (others or kernel.constant_args or [None])[-1]
    if isinstance(last, str):
        return last
    group = getattr(last, "opaque_example_value", getattr(last, "value", last))
    name = getattr(group, "group_name", group)
    return name if isinstance(name, str) else "unknown"


def group_ranks(name: str) -> list[int]:
    """The ranks of a process group, or all where it is not known."""
    from torch.distributed import distributed_c10d

    if name == "unknown":
        is_alone = not torch.distributed.is_initialized()
        return [0] if is_alone else list(range(torch.distributed.get_world_size()))
    return distributed_c10d.get_process_group_ranks(distributed_c10d._resolve_process_group(name))


def _dtype(layouts: Iterable[ir.Layout]) -> str | None:
    """The type of what goes in, where all of it has the same."""
    types = {layout.dtype for layout in layouts}
    return _dtype_name(types.pop()) if len(types) == 1 else None


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _reduction(kind: str | None, kernel: Any) -> str | None:
    """How a functional collective combines: the first name among its arguments."""
    if kind not in REDUCING:
        return None
    word = next((value for value in kernel.constant_args if isinstance(value, str)), None)
    return None if word is None else REDUCTIONS.get(word.lower(), "other")
