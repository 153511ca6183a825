"""What run times are modelled on: a device, and how ranks share nodes."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .. import _halflap
from .._api import of_arguments

#: What models a GPU that has no preset.
ASSUMED = "h100"

#: What launchers say: the ranks of a host, all ranks, and, of some, how many hosts there are.
LAUNCHERS = (
    ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE", None),  # Open MPI
    ("MPI_LOCALNRANKS", "PMI_SIZE", None),  # MPICH and Intel MPI
    ("MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_SIZE", None),  # MVAPICH
    ("SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", None),
    ("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS", None),
)

#: GPUs that a warning was given for.
_warned: set[str] = set()


class Modelled(NamedTuple):
    """A device, as `described`, and how many ranks share a node."""

    device: str
    ranks_per_node: int

    def __str__(self) -> str:
        own = json.loads(self.device) if self.device.startswith("{") else {"name": self.device}
        ranks = "1 rank" if self.ranks_per_node == 1 else f"{self.ranks_per_node} ranks"
        return f"{own.get('name', 'a device of your own')}, {ranks} per node"


def described(device: Any) -> str | None:
    """What stands for a device that a user gave: a preset's name, or the content of a file or a
    dictionary."""
    if device is None:
        return None
    if isinstance(device, Mapping):
        return _described("<device.json>", json.dumps(device).encode())
    if not isinstance(device, (str, os.PathLike)):
        raise TypeError(f"device must be a preset's name, a file or a dictionary, not {device!r}")
    return _described(os.fspath(device))


def _described(name: str, content: bytes | None = None) -> str:
    try:
        return _halflap.described_device(name, content)
    except _halflap.BadInput as problem:
        raise _halflap.BadInput(of_arguments(str(problem))) from None


def modelled_on(device: str | None, ranks_per_node: int | None) -> Modelled:
    """The device that was described, or else that of this process. Ranks per node are the user's
    (as an option or in a description), else the launcher's, else the preset's."""
    device = device or device_here()
    ranks, is_usual = _halflap.ranks_per_node(device)
    launched = launched_per_host(os.environ, _world()) if is_usual else None
    return Modelled(device, ranks_per_node or launched or ranks)


def device_here() -> str:
    """The preset of this process's GPU, or of a CPU where there is none."""
    name = reported_name()
    return "cpu" if name is None else _halflap.reported_device(name) or ASSUMED


def reported_name() -> str | None:
    """What torch calls the GPU of this process, if it has one."""
    for kind in (torch.cuda, torch.xpu):
        if kind.is_available():
            try:
                return kind.get_device_name()
            except Exception:  # A broken driver must not make us fail.
                return "without a name"
    return None


def warn_of_unknown_gpu() -> None:
    """Says once which GPU has no preset, and what to do about it."""
    name = reported_name()
    if name is None or name in _warned or _halflap.reported_device(name) is not None:
        return
    _warned.add(name)
    warnings.warn(
        f"halflap does not know this GPU ({name}) and models run times on {ASSUMED} instead: say "
        "halflap.torch.enable(device=...) with the name of a similar device, or with a file or a "
        "dictionary of its figures (docs/costs.md)",
        RuntimeWarning,
        stacklevel=3,
    )


def _world() -> int | None:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else None


def launched_per_host(environment: Mapping[str, str], world: int | None) -> int | None:
    """How many ranks the launcher put on each host. None where it does not say, where it started
    other processes than the ``world`` ranks, and where it filled hosts unevenly, because ranks of
    different hosts would then decide differently."""
    for of_host, of_all, hosts in LAUNCHERS:
        runs = _counts(environment.get(of_host, ""))
        if not runs or world is None or environment.get(of_all) != str(world):
            continue
        ranks = runs[0][0]
        total = sum(count * times for count, times in runs)
        # A list has every host; a number stands for all of them. The last host may have fewer.
        is_even = len(runs) <= 2 and all(count < ranks and times == 1 for count, times in runs[1:])
        fits = total == world if len(runs) > 1 or runs[0][1] > 1 else world % ranks == 0
        if is_even and fits and (hosts is None or _agrees(environment.get(hosts), world // ranks)):
            return ranks
    return None


def _agrees(said: str | None, hosts: int) -> bool:
    return said is None or said == str(hosts)


def _counts(text: str) -> list[tuple[int, int]]:
    """Slurm's ``8(x3),4`` as [(8, 3), (4, 1)], and ``8`` as [(8, 1)]; nothing where it is
    neither."""
    if re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", text.strip()) is None:
        return []
    runs = [
        (int(count), int(times or 1)) for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    ]
    return runs if all(count > 0 and times > 0 for count, times in runs) else []
