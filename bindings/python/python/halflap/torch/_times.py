"""Run times of scheduler nodes, the same on every rank that has the same graph.

For each node the first of these that has one: the user's callable; the profile; Inductor's
estimate, for compute on a GPU; measured times of the same kind, scaled by the work; halflap's model
of a device. Nothing is measured here: what a rank measures for itself differs between ranks, and
ranks that decide differently hang. Measured times come through a profile, which all ranks share.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch._inductor import config, config_comms
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.utils import get_fused_kernel_name

from .. import _halflap
from ._collectives import kind_of
from ._devices import Modelled
from ._handover import Program
from ._hints import Hints
from ._rates import Link, Rates


class Nodes(Protocol):
    """A program, as far as the model looks at it."""

    nodes: list[dict[str, Any]]
    groups: dict[str, list[int]]


class Times:
    """Where run times come from."""

    def __init__(
        self, profile: Mapping[str, float], estimate: Callable[[Any], float | None] | None
    ) -> None:
        self.profile = profile
        self.estimate = estimate
        #: Of what the profile does not have by name.
        self.rates = Rates.of(profile) if profile else None
        #: Elsewhere Inductor has no estimates.
        self.on_gpu = may_be_on_gpu()

    def fill(self, program: Program, modelled: Modelled) -> None:
        """Gives every node of a program its run time."""
        model(program, modelled)
        if self.profile or self.estimate is not None or self.on_gpu:
            profiled = [
                self._correct(program, snode, node)
                for snode, node in zip(program.snodes, program.nodes)
                if node["kind"] in ("compute", "collective")
            ]
            if self.profile and self.estimate is None and not any(profiled):
                warnings.warn(
                    f"halflap: none of the {len(self.profile)} run times in the profile is of this "
                    "graph: was it measured on another model?",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _correct(self, program: Program, snode: BaseSchedulerNode, node: dict[str, Any]) -> bool:
        """Replaces modelled times by better ones; returns whether the profile has one."""
        is_assumed = node["name"] in program.assuming
        profiled = None
        if self.profile:
            node["kernel"] = measured_signature(program, snode, node)
            if node["kernel"] not in self.profile:
                node["kernel"] = signature(program, snode, node)
            profiled = self._profiled(node["kernel"])
        milliseconds = None if self.estimate is None else self.estimate(snode)
        if milliseconds is not None:
            node["runtime_ns"] = nanoseconds(milliseconds, node["name"])
        elif profiled is not None:
            node["runtime_ns"] = profiled
        elif self.on_gpu and node["kind"] == "compute" and not is_assumed and not _measures():
            given = float(snode.get_estimated_runtime()) * 1e6
            # Inductor has a time for the memory that a view shows.
            if given > 0 and (node["bytes"] or node.get("flops")):
                node["runtime_ns"] = given
        elif not is_assumed and (rated := self._rated(node)) is not None:
            node["runtime_ns"] = rated
        return profiled is not None

    def _rated(self, node: Mapping[str, Any]) -> float | None:
        """Times scaled from the profile's own kernels and collectives by the work."""
        if self.rates is None:
            return None
        collective = node.get("collective")
        if collective is None:
            return self.rates.compute(node.get("flops", 0), node["bytes"])
        link = Link(kind_or_name(collective["op"]), collective["group_size"])
        return self.rates.collective(link, collective["bytes"])

    def _profiled(self, kernel: str) -> float | None:
        """The measured time of a kernel; if its sizes depend on data, the median of all sizes."""
        if kernel in self.profile:
            return float(self.profile[kernel])
        if ANY not in kernel:
            return None
        pattern = re.compile(re.escape(kernel).replace(re.escape(ANY), r"\d+"))
        measured = sorted(time for name, time in self.profile.items() if pattern.fullmatch(name))
        return float(measured[(len(measured) - 1) // 2]) if measured else None


def may_be_on_gpu() -> bool:
    """Whether steps of this process may run on a GPU."""
    return torch.cuda.is_available() or torch.xpu.is_available()


def model(program: Nodes, modelled: Modelled) -> None:
    """Gives every node the run time that the model has of it: none where nothing is launched. Equal
    nodes are modelled once."""
    kernels: dict[tuple[float, int], list[dict[str, Any]]] = {}
    issued: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for node in program.nodes:
        node["runtime_ns"] = 0.0
        if node["kind"] == "compute":
            kernels.setdefault((node.get("flops", 0), node["bytes"]), []).append(node)
        elif node["kind"] == "collective":
            one = node["collective"]
            issued.setdefault((one["op"], one["group"], one["bytes"]), []).append(node)
    collectives = [(op, program.groups[group], size) for op, group, size in issued]
    ranks_per_node = modelled.ranks_per_node
    times = _halflap.modelled_times(modelled.device, [*kernels], collectives, ranks_per_node)
    for alike, taken in zip((kernels.values(), issued.values()), times):
        for nodes, time in zip(alike, taken):
            for node in nodes:
                node["runtime_ns"] = time


def nanoseconds(milliseconds: float, node: str) -> float:
    """What the user's callable gave, if it is a time."""
    if not 0 <= float(milliseconds) < math.inf:
        raise ValueError(
            f"estimate gave {milliseconds!r} for {node}; it must be milliseconds, zero or more, or None"
        )
    return float(milliseconds) * 1e6


def _measures() -> bool:
    """Whether Inductor's estimates are, or may be, measured by each rank for itself."""
    return (
        config.estimate_op_runtime != "default"
        or config.runtime_estimations_mms_benchmark
        or config_comms.runtime_estimations_use_nccl_lib_estimations
    )


#: What a size that depends on data is in the name of a kernel.
ANY = "?"


def signature(program: Program, snode: BaseSchedulerNode, node: Mapping[str, Any]) -> str:
    """What a profile calls a node: the same for nodes that take the same time."""
    collective = node.get("collective")
    if collective is not None:
        size = ANY if node["name"] in program.assuming else collective["bytes"]
        return collective_signature(collective["op"], collective["group_size"], size)
    kernel = snode.get_nodes()[0].node
    overload = getattr(kernel, "op_overload", None)
    if len(snode.get_nodes()) == 1 and isinstance(overload, torch._ops.OpOverload):
        # Others have none: a process group may be an object of the graph.
        sized = [value for value in kernel.inputs if value.maybe_get_size() is not None]
        shapes = [_shape(value, program.hints) for value in sized]
        return operator_signature(overload._overloadpacket.__name__, shapes)
    return get_fused_kernel_name(
        snode.get_nodes(), config.triton.descriptive_names or "original_aten"
    )


def measured_signature(program: Program, snode: BaseSchedulerNode, node: Mapping[str, Any]) -> str:
    """What a measured profile calls a node: fused kernels with the bytes that they read and write,
    because many of different sizes have the same name."""
    name = signature(program, snode, node)
    if node["kind"] != "compute" or "[" in name or node["name"] in program.assuming:
        return name
    return f"{name}, {node['bytes']} bytes"


def name_kernels(program: Program) -> None:
    """Gives every node the name that profiles have for it, so that they fit the graph when it is
    looked at later."""
    for snode, node in zip(program.snodes, program.nodes):
        if node["kind"] in ("compute", "collective"):
            node.setdefault("kernel", measured_signature(program, snode, node))


def _shape(value: Any, hints: Hints) -> list[int | str]:
    return [ANY if hints.is_assumed(size) else hints.product([size]) for size in value.get_size()]


def collective_signature(operation: str, group_size: int, size: int | str) -> str:
    """Such as ``all_gather of 8, 1048576 bytes``: torch's names and NCCL's for one thing are
    one."""
    return f"{kind_or_name(operation)} of {group_size}, {size} bytes"


def kind_or_name(operation: str) -> str:
    """What profiles call a collective, whatever its size."""
    return kind_of(operation) or operation


def operator_signature(name: str, shapes: Sequence[Sequence[int | str]]) -> str:
    """Such as ``mm [16, 32] [32, 64]``."""
    return " ".join([name, *(f"[{', '.join(map(str, shape))}]" for shape in shapes)])


#: The name of a kernel that Inductor wrote, without the kind before it and the number after it.
FUSED = re.compile(r"^(?:triton|cpp)_(?:[a-z]+_)?(fused_.*?)(?:_\d+)?$")
