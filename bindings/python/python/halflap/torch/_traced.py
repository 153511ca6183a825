"""Run times of a step on GPUs, whose kernels run after the host has issued them: from a trace of
torch.profiler, recorded while every collective is waited for at once.

A collective's kernel runs on every rank until the last rank has arrived: it is shortest on that
rank, which waits for no other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ._profile import median, profile_from_trace
from ._rates import COLLECTIVE


def traced(run: Callable[[], Any]) -> dict[str, float]:
    """The times of kernels and collectives on this rank's GPU; empty if it ran none."""
    with tempfile.TemporaryDirectory(prefix="halflap") as folder:
        path = Path(folder) / "trace.json"
        with torch.profiler.profile(record_shapes=True) as recorded:
            run()
        recorded.export_chrome_trace(str(path))
        return profile_from_trace(path)


def together(every: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One profile from all ranks: for a collective the shortest time, for a kernel the lower
    median."""
    found = {}
    for name in sorted(set().union(*every)):
        times = [profile[name] for profile in every if name in profile]
        found[name] = min(times) if COLLECTIVE.fullmatch(name) else median(times)
    return found
