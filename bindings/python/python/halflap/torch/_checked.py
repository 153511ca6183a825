"""What users give as options, checked."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from .._halflap import BadInput
from ._collectives import read_collectives
from ._devices import described
from ._pass import Options, bytes_of, session, times_key
from ._profile import Profile, read_profile
from ._times import Times


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """One of the values that are known."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    return value


def checked_size(unbacked: int | None) -> int | None:
    """What sizes that depend on data are assumed to be."""
    if unbacked is None:
        return None
    if isinstance(unbacked, bool) or not isinstance(unbacked, int) or not 0 < unbacked < 1 << 31:
        right = f"a size from 1 to {(1 << 31) - 1}, such as 4096"
        raise ValueError(f"unbacked must be {right}, not {unbacked!r}")
    return unbacked


def checked_ranks(ranks: int | None) -> int | None:
    """How many ranks share a node."""
    if ranks is None:
        return None
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks < 2**32:
        right = f"an integer from 1 to {2**32 - 1}"
        raise ValueError(f"ranks_per_node must be {right}, not {ranks!r}")
    return ranks


def checked_budget(budget: float | str, name: str = "memory_budget") -> str:
    """A memory budget, as the command takes it."""
    if isinstance(budget, bool) or not isinstance(budget, (int, float, str)):
        right = "a multiple or a size, such as '1.2x' or '40GiB'"
        raise ValueError(f"{name} must be {right}, not {budget!r}")
    if not isinstance(budget, str):
        budget = f"{budget}x" if isinstance(budget, float) else f"{budget}B"
    try:
        size = bytes_of(budget)
    except (ValueError, BadInput) as problem:
        raise ValueError(str(problem).replace("memory_budget", name)) from None
    if (float(budget[:-1]) if size is None else size) == 0:
        raise ValueError(f"{name} must be above 0, such as '1.2x' or '40GiB', not {budget!r}")
    return budget


def checked_seconds(name: str, value: float, otherwise: str = "") -> float:
    """A time that ranks wait for each other."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ValueError(f"{name} must be {otherwise}a number of seconds above 0, not {value!r}")
    return float(value)


def options_of(caller: str, given: Mapping[str, Any]) -> Options:
    """The options of a public function, which takes them by name."""
    known = inspect.signature(read_options).parameters
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise TypeError(f"{caller} has no option {unknown!r}; it has: {', '.join(known)}")
    return read_options(**given)


def read_options(
    *,
    memory_budget: float | str = "1x",
    collective_order: str = "kept",
    effort: str = "quick",
    device: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    ranks_per_node: int | None = None,
    profile: Profile | None = None,
    estimate: Callable[[Any], float | None] | None = None,
    unbacked: int | None = None,
    collectives: Mapping[str, str | Mapping[str, Any]] | None = None,
) -> Options:
    """What decides an order; the run times that it names are those of this process from now on."""
    measured = read_profile(profile)
    options = Options(
        memory_budget=checked_budget(memory_budget),
        collective_order=one_of("collective_order", collective_order, ("auto", "kept", "free")),
        effort=one_of("effort", effort, ("quick", "default", "thorough")),
        device=described(device),
        ranks_per_node=checked_ranks(ranks_per_node),
        unbacked=checked_size(unbacked),
        times=times_key(measured.times, estimate),
        collectives=read_collectives(collectives),
        slowdown=measured.slowdown,
        comm_slowdown=measured.comm_slowdown,
    )
    session.times[options.times] = Times(measured.times, estimate)
    return options
