"""Profiles: measured run times by the names that nodes have in them (`_times.signature`)."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from .._api import analyze
from ._times import FUSED, collective_signature, operator_signature


def read_profile(profile: str | os.PathLike[str] | Mapping[str, float] | None) -> dict[str, float]:
    """A profile from a file, or as it is."""
    if profile is None:
        return {}
    if isinstance(profile, Mapping):
        return dict(profile)
    with open(profile, "rb") as file:
        content = file.read()
    try:
        times = json.loads(_unzipped(content))
    except ValueError as problem:
        raise ValueError(f"{os.fspath(profile)}: not JSON: {problem}") from None
    if not isinstance(times, dict) or not all(isinstance(time, (int, float)) for time in times.values()):
        raise ValueError(f"{os.fspath(profile)}: a profile is an object of names and nanoseconds")
    return times


def profile_from_trace(*traces: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> dict[str, float]:
    """Run times out of traces of torch.profiler, as ``enable(profile=...)`` takes them.

    A collective has the median time of those with its kind, group size and bytes; what it waited for peers is
    not part of it where the traces of several ranks are given. A kernel that Inductor wrote has the median
    under what was fused into it, an operator of ATen that under its name and shapes (record the trace with
    ``record_shapes=True``). ``out`` also writes it to a file. All ranks must be given the same profile: make
    it once, or `align_profiles`.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for rank in analyze(*traces).ranks:
        for collective in rank["collectives"]:
            size = rank["groups"][collective["group"]]["size"]
            if size and collective["bytes"]:
                name = collective_signature(collective["operation"], size, collective["bytes"])
                times[name].append(collective["duration"] - (collective["waiting"] or 0))
    for trace in traces:
        with open(trace, "rb") as file:
            _add_kernels(json.loads(_unzipped(file.read())).get("traceEvents", []), times)
    profile = {name: median(measured) for name, measured in sorted(times.items())}
    if out is not None:
        write_profile(profile, out)
    return profile


def _add_kernels(events: list[dict[str, Any]], times: dict[str, list[float]]) -> None:
    operators = {
        event["args"]["External id"]: event
        for event in events
        if event.get("cat") == "cpu_op" and "External id" in event.get("args", {})
    }
    launched: dict[Any, float] = defaultdict(float)
    for event in events:
        if event.get("cat") != "kernel":
            continue
        fused = FUSED.match(event["name"])
        if fused:
            times[fused[1]].append(event["dur"] * 1e3)
        else:
            launched[event.get("args", {}).get("External id")] += event["dur"] * 1e3
    for external, time in launched.items():
        operator = operators.get(external)
        if operator is not None and operator["name"].startswith("aten::"):
            shapes = [shape for shape in operator["args"].get("Input Dims", []) if shape]
            times[operator_signature(operator["name"][len("aten::") :], shapes)].append(time)


def align_profiles(
    profile: str | os.PathLike[str] | Mapping[str, float],
    *,
    out: str | os.PathLike[str] | None = None,
    group: Any = None,
) -> dict[str, float]:
    """One profile of those that all ranks of a group have: the lower median of each time.

    Every rank of the group must call it, outside of anything that compiles; all get the same back. Names that
    not all ranks have are left out. ``out`` also writes it to a file, on every rank.
    """
    import torch.distributed as dist

    own = read_profile(profile)
    every: list[dict[str, float]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(every, own, group=group)
    common = sorted(set.intersection(*(set(times) for times in every)))
    aligned = {name: median(times[name] for times in every) for name in common}
    if out is not None:
        write_profile(aligned, out)
    return aligned


def median(values: Iterable[float]) -> float:
    """The lower median: a value that is really there."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def write_profile(profile: Mapping[str, float], path: str | os.PathLike[str]) -> None:
    """Writes it beside its place, then renames it."""
    beside = f"{os.fspath(path)}.{os.getpid()}.tmp"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(profile, file, indent=1)
    os.replace(beside, path)


def _unzipped(content: bytes) -> bytes:
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
