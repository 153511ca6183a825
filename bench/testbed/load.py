"""Whether something else used the ranks' cores while they were measured."""

import os
from dataclasses import dataclass
from pathlib import Path

#: Others may take this share of the ranks' cores before a round counts as disturbed.
TOLERATED = 0.03
TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Seconds that the ranks' cores spent on all programs, on the ranks themselves, and that the
    host of a virtual machine stole. Interrupts do not count: the ranks' packets cause most."""

    programs: float
    ranks: float
    stolen: float

    def __sub__(self, other):
        return Usage(
            self.programs - other.programs, self.ranks - other.ranks, self.stolen - other.stolen
        )


def usage(cores, ranks):
    """What has been used on these cores so far, and by ranks."""
    rows = core_rows(Path("/proc/stat").read_text())
    return Usage(sum(rows[core][0] for core in cores), ranks, sum(rows[core][1] for core in cores))


def used_by(processes):
    """Seconds of these processes so far, and of their children that have ended."""
    return sum(cpu_seconds(Path(f"/proc/{process}/stat").read_text()) for process in processes)


def core_rows(text):
    """Seconds of programs and stolen seconds by core, from /proc/stat."""
    rows = {}
    for line in text.splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _iowait, _irq, _softirq, stolen = map(int, ticks[:8])
            rows[int(name[3:])] = ((user + nice + system) * TICK, stolen * TICK)
    return rows


def cpu_seconds(text):
    """User and system time of a process and its ended children, from its stat file."""
    # The name, in parentheses, may have spaces.
    ticks = text.rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) * TICK


def foreign_share(used, seconds, cores):
    """Which share of the cores' time others took."""
    # Ticks are counted at different times for cores and for processes: a little below 0 is none.
    return max(0.0, used.programs - used.ranks + used.stolen) / (seconds * len(cores))


def is_disturbed(share):
    return share > TOLERATED
