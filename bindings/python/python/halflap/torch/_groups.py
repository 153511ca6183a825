"""Process groups as graphs describe them: their ranks, and which of them halflap made to share a
link with another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

#: By the process group that is up: names of groups, and of the second ones.
_made: dict[int, dict[str, str]] = {}


def second_groups() -> Mapping[str, str]:
    """The names of groups that have a second one, with its name."""
    return _made.get(_world(), {}) if dist.is_initialized() else {}


def has_second(names: Mapping[str, str]) -> None:
    """Takes in second groups that were made, by the names of the first ones."""
    _made.setdefault(_world(), {}).update(names)


def described(groups: Mapping[str, list[int]]) -> dict[str, dict[str, Any]]:
    """Groups and their ranks, in the library's format."""
    firsts = {second: first for first, second in second_groups().items()}
    found: dict[str, dict[str, Any]] = {}
    for name, ranks in groups.items():
        first = firsts.get(name)
        found[name] = {"ranks": ranks, **({"second_of": first} if first in groups else {})}
    return found


def _world() -> int:
    return id(dist.group.WORLD)
