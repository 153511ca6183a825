"""Which torch this is; knows it before anything of it is imported that others do not have."""

from __future__ import annotations

import warnings

OLDEST = (2, 10)
NEWEST_TESTED = (2, 15)


class UnknownTorch(RuntimeError):
    """A torch that we cannot plug into."""


def check_version(version: str) -> None:
    """Rejects a torch that is too old, and warns if it is newer than those tested."""
    number = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if number < OLDEST:
        raise UnknownTorch(f"halflap.torch needs torch 2.10 or newer; this is {version}")
    if number > NEWEST_TESTED:
        warnings.warn(
            f"torch {version} is newer than those that halflap was tested with (2.10 and 2.15)",
            stacklevel=3,
        )
