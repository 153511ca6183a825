"""Operators that communicate: those that torch knows, that users name, and that look like it."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.distributed import distributed_c10d

#: Collectives that all ranks of a group take part in alike: these may pass each other where that is
#: allowed.
SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")

#: The words in an operation's name that say what it does, in torch and NCCL; the first that fits.
KINDS = (*SYMMETRIC, "send_recv", "send", "recv", "reduce")

#: Kinds that combine what ranks give, and what torch and graph files call how they do.
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
REDUCTIONS = {"sum": "sum", "max": "max", "min": "min", "product": "product", "avg": "average"}

#: What Inductor itself takes for a collective.
NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")
KNOWN = {
    "_dtensor::shard_dim_alltoall",
    "torchrec::all_to_all_single",
    "torchrec::all_gather_into_tensor",
    "torchrec::reduce_scatter_tensor",
}

#: Namespaces whose operators never communicate, whatever they are called.
LOCAL = ("aten", "prims", "inductor", "prim")

#: Torch's own operators that communicate and compute at once: users need not name them.
SYMMETRIC_MEMORY = "symm_mem::"

LOOKS = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all")
NAME = re.compile(r"\w+::\w+")


class Opaque(NamedTuple):
    """An operator that communicates, and returns when it is done."""

    #: Such as ``vllm::all_reduce``.
    operator: str
    #: One of `SYMMETRIC`.
    kind: str
    #: The name or the description of a process group, where the user gave one.
    group: str | None = None


@functools.cache
def kind_of(operation: str) -> str | None:
    """``all_gather`` of ``all_gather_into_tensor``; none for an operation that is none of
    `KINDS`."""
    plain = operation.lower().replace("_", "")
    return next((kind for kind in KINDS if kind.replace("_", "") in plain), None)


def operator_name(target: Any) -> str | None:
    """``vllm::all_reduce`` of an operator or one of its overloads."""
    if isinstance(target, OpOverload):
        return target._schema.name
    return target._qualified_op_name if isinstance(target, OpOverloadPacket) else None


def is_known(name: str) -> bool:
    """Whether Inductor takes an operator for a collective."""
    namespace, _, operation = name.partition("::")
    return name in KNOWN or (namespace in NAMESPACES and not operation.startswith("wait_tensor"))


def looks_collective(name: str) -> bool:
    """Whether an undeclared operator probably communicates."""
    namespace, _, operation = name.partition("::")
    is_local = namespace in LOCAL or namespace in NAMESPACES or name in KNOWN
    return not is_local and LOOKS.search(operation) is not None


def group_of(opaque: Opaque, arguments: Iterable[Any]) -> str | None:
    """The name of its process group: the user's, one that is among its arguments, or all ranks.
    None where there are no process groups, or not the user's."""
    groups = _groups()
    named = arguments if opaque.group is None else [opaque.group]
    for wanted in [name for name in named if isinstance(name, str)]:
        if wanted in groups:
            return wanted
        described = [name for name, description in groups.items() if description == wanted]
        if described:
            return described[0]
    return None if opaque.group is not None else next(iter(groups), None)


def _groups() -> dict[str, str]:
    """Names and descriptions of this rank's process groups, that of all ranks first."""
    return {name: group.group_desc for group, name in distributed_c10d._world.pg_names.items()}


def read_collectives(given: Mapping[str, Any] | None) -> tuple[Opaque, ...]:
    """What ``enable(collectives=...)`` takes, checked and sorted."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ValueError(f"collectives must map operators to kinds, as {EXAMPLE}, not {given!r}")
    return tuple(sorted(_read(name, value) for name, value in given.items()))


EXAMPLE = "{'vllm::all_reduce': 'all_reduce'}"


def _read(name: Any, value: Any) -> Opaque:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"collectives: {name!r} must be a 'namespace::name', as in {EXAMPLE}")
    if is_known(name):
        raise ValueError(f"collectives: torch already knows {name} as a collective; leave it out")
    fields = value if isinstance(value, Mapping) else {"kind": value}
    kind, group = fields.get("kind"), fields.get("group")
    if kind not in SYMMETRIC or not fields.keys() <= {"kind", "group"}:
        raise ValueError(
            f"collectives: {name} must be one of {', '.join(SYMMETRIC)}, or have it as 'kind' "
            f"beside a 'group', not {value!r}"
        )
    _check_registered(name)
    return Opaque(name, kind, _read_group(name, group))


def _check_registered(name: str) -> None:
    namespace, _, operation = name.partition("::")
    if hasattr(getattr(torch.ops, namespace), operation):
        return
    known = {full.partition(".")[0] for full in torch._C._dispatch_get_all_op_names()}
    near = difflib.get_close_matches(name, sorted(known), 1, cutoff=0.8)
    hint = f". Did you mean '{near[0]}'?" if near else ""
    raise ValueError(
        f"collectives: no operator {name} is registered; import what registers it before this call"
        f"{hint}"
    )


def _read_group(operator: str, group: Any) -> str | None:
    name = getattr(group, "group_name", group)
    if name is None or isinstance(name, str):
        return name
    wanted = "a process group or its name"
    raise ValueError(f"collectives: the group of {operator} must be {wanted}, not {group!r}")
