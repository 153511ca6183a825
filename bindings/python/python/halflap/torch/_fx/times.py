"""Run times of an FX graph's units, the same on every rank that has the same graph.

For each the first of these that has one: the user's callable, the profile, halflap's model of a
device. A profile is of what Inductor generated, which an FX graph does not know: what is not in it
by name takes as long as the profile's own kernels take for as many operations or bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload

from .._devices import Modelled
from .._times import (
    COLLECTIVE,
    Times,
    collective_signature,
    model,
    nanoseconds,
    operator_signature,
)
from .program import Program
from .units import Unit, value_of

#: How a profile names generated kernels and products.
GENERATED = re.compile(r"fused_.*, (\d+) bytes")
PRODUCT = re.compile(r"(mm|bmm|addmm|baddbmm)((?: \[[\d, ]*\])+)")
SHAPE = re.compile(r"\[([\d, ]*)\]")


@dataclass
class Rates:
    """Nanoseconds by unit of work, over all that a profile has."""

    byte: float | None = None
    flop: float | None = None
    #: By kind and group size: latency, and nanoseconds by byte.
    links: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: Mapping[str, float]) -> Rates:
        """From a profile's kernels."""
        moved, computed = [], []
        sent: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for name, time in profile.items():
            if found := COLLECTIVE.fullmatch(name):
                key = (found[1], int(found[2]))
                sent.setdefault(key, []).append((float(found[3]), float(time)))
            elif found := GENERATED.fullmatch(name):
                moved.append((float(found[1]), float(time)))
            elif found := PRODUCT.fullmatch(name):
                shapes = [[int(one) for one in shape.split(",") if one.strip()]
                          for shape in SHAPE.findall(found[2])]
                computed.append((_product_flops(shapes), float(time)))
        links = {key: line for key, points in sent.items() if (line := _line(points))}
        return cls(_rate(moved), _rate(computed), links)


def _rate(points: list[tuple[float, float]]) -> float | None:
    work = sum([amount for amount, _ in points])
    return sum([time for _, time in points]) / work if work else None


def _product_flops(shapes: list[list[int]]) -> float:
    """Of the last two of its arguments."""
    if len(shapes) < 2 or len(shapes[-1]) < 2 or len(shapes[-2]) < 2:
        return 0.0
    rows = 1.0
    for size in shapes[-2]:
        rows *= size
    return 2.0 * rows * shapes[-1][-1]


def _line(points: list[tuple[float, float]]) -> tuple[float, float] | None:
    """Latency and time by byte that fit best; None if all are of about one size."""
    sizes = [size for size, _ in points]
    if len(points) < 2 or max(sizes) < 1.5 * min(sizes):
        return None
    mean_size, mean_time = sum(sizes) / len(points), sum(time for _, time in points) / len(points)
    spread = sum((size - mean_size) ** 2 for size in sizes)
    slope = sum((size - mean_size) * (time - mean_time) for size, time in points) / spread
    slope = max(slope, 0.0)
    latency = mean_time - slope * mean_size
    return (latency, slope) if latency >= 0 else (0.0, mean_time / mean_size)


def fill(program: Program, times: Times, modelled: Modelled) -> None:
    """Gives every unit of a program its run time."""
    model(program, modelled)
    rates = Rates.of(times.profile) if times.profile else None
    if rates is None and times.estimate is None:
        return
    for unit, node in zip(program.units.all, program.nodes):
        if node["kind"] not in ("compute", "collective"):
            continue
        milliseconds = None if times.estimate is None else times.estimate(unit.leader)
        if milliseconds is not None:
            node["runtime_ns"] = nanoseconds(milliseconds, node["name"])
        elif rates is not None:
            found = _profiled(unit, node, times.profile, rates)
            node["runtime_ns"] = node["runtime_ns"] if found is None else found


def _profiled(
    unit: Unit, node: dict[str, Any], profile: Mapping[str, float], rates: Rates
) -> float | None:
    """What a profile says of a unit, by its name or by what it does."""
    collective = node.get("collective")
    if collective is not None:
        size, op = collective["group_size"], collective["op"]
        named = profile.get(collective_signature(op, size, collective["bytes"]))
        line = rates.links.get((collective.get("kind") or op, size))
        fitted = None if line is None else line[0] + line[1] * collective["bytes"]
        return fitted if named is None else named
    if not node["bytes"] and not node.get("flops"):
        return None
    if len(unit.members) == 1 or node.get("flops"):
        named = profile.get(_signature(unit.leader))
        if named is not None:
            return named
    if node.get("flops"):
        return None if rates.flop is None else rates.flop * node["flops"]
    return None if rates.byte is None else rates.byte * node["bytes"]


def _signature(node: torch.fx.Node) -> str:
    """What a profile calls an operator that is called as it is."""
    if not isinstance(node.target, OpOverload):
        return ""
    values = [value_of(one) for one in node.all_input_nodes]
    shapes = [list(one.shape) for one in values if isinstance(one, torch.Tensor)]
    return operator_signature(node.target._overloadpacket.__name__, shapes)
