"""Run times of an FX graph's units, the same on every rank that has the same graph.

For each the first of these that has one: the user's callable, the profile, halflap's model of a
device. A profile is of what Inductor generated, which an FX graph does not know: what is not in it
by name takes as long as the profile's own kernels take for as many operations or bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from .._devices import Modelled
from .._rates import Link, Rates
from .._times import (
    Times,
    collective_signature,
    kind_or_name,
    model,
    nanoseconds,
    operator_signature,
)
from .program import Program
from .units import Unit, value_of


def fill(program: Program, times: Times, modelled: Modelled) -> None:
    """Gives every unit of a program its run time."""
    model(program, modelled)
    rates = times.rates
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
        fitted = rates.collective(Link(kind_or_name(op), size), collective["bytes"])
        return fitted if named is None else named
    if not node["bytes"] and not node.get("flops"):
        return None
    if len(unit.members) == 1 or node.get("flops"):
        named = profile.get(_signature(unit.leader))
        if named is not None:
            return named
    return rates.compute(node.get("flops", 0), node["bytes"])


def _signature(node: torch.fx.Node) -> str:
    """What a profile calls an operator that is called as it is."""
    if not isinstance(node.target, OpOverload):
        return ""
    values = [value_of(one) for one in node.all_input_nodes]
    shapes = [list(one.shape) for one in values if isinstance(one, torch.Tensor)]
    return operator_signature(node.target._overloadpacket.__name__, shapes)
