"""Profiles: measured run times by the names that nodes have in them (`_times.signature`)."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from .._api import analyze
from ._times import FUSED, collective_signature, operator_signature


FORMAT = "halflap.profile/1"


@dataclass(frozen=True)
class Measured:
    """What kernels and collectives take, and how they slow each other."""

    #: Nanoseconds by the names that nodes have in profiles.
    times: dict[str, float] = field(default_factory=dict)
    #: How many times as long compute takes beside communication, and communication beside compute.
    slowdown: float = 1.0
    comm_slowdown: float = 1.0
    #: Nanoseconds of a step that no order changes: what lies outside of its graphs with
    #: collectives, and what issuing these takes.
    outside_ns: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As files have it."""
        return {"format": FORMAT, **asdict(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that `enable(profile=...)` takes."""
        write_profile(self.to_dict(), path)


Profile = str | os.PathLike[str] | Mapping[str, Any] | Measured


def read_profile(profile: Profile | None) -> Measured:
    """A profile: a file, the contents of one, nanoseconds by name, or as it is."""
    if profile is None:
        return Measured()
    if isinstance(profile, Measured):
        return profile
    if isinstance(profile, Mapping):
        return _checked("profile", dict(profile))
    if not isinstance(profile, (str, os.PathLike)):
        raise TypeError(f"profile must be a path, or names and nanoseconds, not {profile!r}")
    try:
        with opened(profile, "halflap.torch.measure(step, out=...)") as file:
            found = json.load(file)
    except ValueError as problem:
        raise ValueError(f"{os.fspath(profile)}: not JSON: {problem}") from None
    return _checked(os.fspath(profile), found)


def _checked(name: str, found: Any) -> Measured:
    if not isinstance(found, dict):
        raise ValueError(f"{name}: a profile is an object of names and nanoseconds")
    if "format" not in found:
        return Measured(_checked_times(name, found))
    if found["format"] != FORMAT:
        raise ValueError(f"{name}: the format is {found['format']!r}; it must be {FORMAT!r}")
    if not isinstance(found.get("times"), dict):
        raise ValueError(f"{name}: 'times' must be an object of names and nanoseconds")
    figures = {one: _figure(name, found, one) for one in ("slowdown", "comm_slowdown")}
    figures["outside_ns"] = _figure(name, found, "outside_ns")
    return Measured(_checked_times(name, found["times"]), **figures)


def _figure(name: str, found: Mapping[str, Any], key: str) -> float:
    """One of the numbers of a profile."""
    least = 0.0 if key == "outside_ns" else 1.0
    value = found.get(key, least)
    if not isinstance(value, (int, float)) or not least <= value < math.inf:
        raise ValueError(f"{name}: {key!r} is {value!r}; it must be a number from {least:g} on")
    return float(value)


def _checked_times(name: str, times: dict[str, Any]) -> dict[str, float]:
    for kernel, time in times.items():
        if not isinstance(time, (int, float)) or not 0 <= time < math.inf:
            raise ValueError(
                f"{name}: {kernel!r} takes {time!r}, not a number of nanoseconds from 0 on"
            )
    return times


def profile_from_trace(
    *traces: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> dict[str, float]:
    """Run times out of traces of torch.profiler, as ``enable(profile=...)`` takes them.

    A collective has the median time of those with its kind, group size and bytes; what it waited
    for peers is not part of it where the traces of several ranks are given. A kernel that Inductor
    wrote has the median under what was fused into it, an operator of ATen that under its name and
    shapes (record the trace with ``record_shapes=True``). ``out`` also writes it to a file. All
    ranks must be given the same profile: make it once, or `align_profiles`.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for rank in analyze(*traces).ranks:
        for collective in rank["collectives"]:
            size = rank["groups"][collective["group"]]["size"]
            if size and collective["bytes"]:
                name = collective_signature(collective["operation"], size, collective["bytes"])
                times[name].append(collective["duration"] - (collective["waiting"] or 0))
    for trace in traces:
        _add_kernels(_events(trace), times)
    profile = {name: median(measured) for name, measured in sorted(times.items())}
    if out is not None:
        write_profile(profile, out)
    return profile


def _add_kernels(events: Iterable[dict[str, Any]], times: dict[str, list[float]]) -> None:
    operators: dict[Any, str] = {}
    launched: dict[Any, float] = defaultdict(float)
    for event in events:
        kind, given = event.get("cat"), event.get("args", {})
        if kind == "cpu_op" and "External id" in given and event["name"].startswith("aten::"):
            shapes = [shape for shape in given.get("Input Dims", []) if shape]
            operators[given["External id"]] = operator_signature(
                event["name"][len("aten::") :], shapes
            )
        elif kind == "kernel":
            fused = FUSED.match(event["name"])
            if fused:
                times[fused[1]].append(event["dur"] * 1e3)
            else:
                launched[given.get("External id")] += event["dur"] * 1e3
    for external, time in launched.items():
        if external in operators:
            times[operators[external]].append(time)


#: How much of a trace is looked at at once; whole ones may be larger than the memory.
PIECE = 1 << 20


def _events(trace: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The events of a trace, one after the other."""
    decoder = json.JSONDecoder()
    with opened(trace, "torch.profiler") as file:
        text = file.read(PIECE)
        while not (start := EVENTS.search(text)):
            more = file.read(PIECE)
            if not more:
                return
            text = text[-len('"traceEvents": [') :] + more
        text, at = text[start.end() :], 0
        while True:
            at = BETWEEN.match(text, at).end()
            try:
                event, at = decoder.raw_decode(text, at)
            except ValueError:
                more = file.read(PIECE)
                # What ends the list is no event, and neither is what the end of a file cut off:
                # `analyze` has said so.
                if not more or text[at : at + 1] == "]":
                    return
                text, at = text[at:] + more, 0
            else:
                yield event


#: What stands before the first event, and between two.
EVENTS = re.compile(r'"traceEvents"\s*:\s*\[|\A\s*\[')
BETWEEN = re.compile(r"[\s,]*")


def opened(path: str | os.PathLike[str], maker: str) -> TextIO:
    """A file of text, gzipped or not, such as ``maker`` writes."""
    try:
        with open(path, "rb") as file:
            is_zipped = file.read(2) == b"\x1f\x8b"
    except FileNotFoundError:
        name = os.fspath(path)
        raise FileNotFoundError(f"there is no file {name!r}; {maker} writes one") from None
    return gzip.open(path, "rt", encoding="utf-8") if is_zipped else open(path, encoding="utf-8")


def align_profiles(
    profile: str | os.PathLike[str] | Mapping[str, float],
    *,
    out: str | os.PathLike[str] | None = None,
    group: Any = None,
) -> dict[str, float]:
    """One profile of those that all ranks of a group have: the lower median of each time.

    Every rank of the group must call it, outside of anything that compiles; all get the same back.
    Names that not all ranks have are left out. ``out`` also writes it to a file, on every rank.
    """
    import torch.distributed as dist

    own: dict[str, float] | Exception
    try:
        own = read_profile(profile).times
    except Exception as problem:
        # The others wait for this rank, whatever it has.
        own = problem
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, own, group=group)
    for rank, other in enumerate(every):
        if isinstance(other, Exception):
            raise ValueError(f"rank {rank} of the group has no profile: {other}") from other
    common = sorted(set.intersection(*(set(times) for times in every)))
    aligned = {name: median(times[name] for times in every) for name in common}
    if out is not None:
        write_profile(aligned, out)
    return aligned


def median(values: Iterable[float]) -> float:
    """The lower median: a value that is really there."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def write_profile(profile: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes it beside its place, then renames it."""
    beside = f"{os.fspath(path)}.{os.getpid()}.tmp"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(profile, file, indent=1)
    os.replace(beside, path)
