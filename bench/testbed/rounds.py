"""Modes measured in turns, round by round, with what the network carried and what else ran meanwhile."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from testbed import counters, intervals, load
from testbed.counters import Verdict


@dataclass
class Round:
    """What one round found, by mode."""

    #: Seconds of each step.
    steps: dict = field(default_factory=dict)
    #: What each rank sent in all steps together, and what is to be said of it.
    sent: dict = field(default_factory=dict)
    verdicts: dict = field(default_factory=dict)
    #: The share of the ranks' cores that others had.
    foreign: dict = field(default_factory=dict)

    @property
    def is_disturbed(self):
        return any(map(load.is_disturbed, self.foreign.values()))


@dataclass(frozen=True)
class Bed:
    """What a measurement stands on."""

    counters: counters.Counters
    #: One for each rank.
    cores: list
    #: Gives the seconds that ranks, and the testbed itself, have used of the processor so far.
    used: Callable[[], float]


def measure(bed, modes, count, block):
    """So many rounds, and as many more as were disturbed, but no more than twice as many. `block(mode)` runs some steps
    and gives their seconds, and for each rank the bytes that it had to send."""
    rounds = []
    while len(rounds) < 2 * count and sum(not one.is_disturbed for one in rounds) < count:
        rounds.append(Round())
        for mode in intervals.turns(modes, len(rounds) - 1):
            run_block(bed, rounds[-1], mode, block)
    return rounds


def run_block(bed, into, mode, block):
    cores = sorted(set(bed.cores))
    before, used, began = bed.counters.read(), load.usage(cores, bed.used()), time.monotonic()
    seconds, payloads = block(mode)
    spent = load.usage(cores, bed.used()) - used
    into.foreign[mode] = load.foreign_share(spent, time.monotonic() - began, cores)
    into.sent[mode] = counters.between(before, bed.counters.read())
    into.verdicts[mode] = list(map(counters.verdict, into.sent[mode], payloads))
    into.steps[mode] = seconds


def counted(rounds, wanted):
    """The rounds that results are made of: those without disturbance if there are enough, else all."""
    quiet = [one for one in rounds if not one.is_disturbed]
    return quiet[:wanted] if len(quiet) >= wanted else rounds


def summary(rounds, wanted, reference):
    """The result of all rounds, as values that JSON has."""
    used = counted(rounds, wanted)
    found = intervals.summarize([one.steps for one in used], reference)
    return {
        "modes": {mode: {name: vars(median) for name, median in both.items()} for mode, both in found.items()},
        "reference": reference,
        "rounds": len(used),
        "rounds_disturbed": sum(one.is_disturbed for one in used),
        "rounds_left_out": len(rounds) - len(used),
        "most_foreign_share": max(share for one in used for share in one.foreign.values()),
        "void": void(rounds),
        "steps": [one.steps for one in used],
        "foreign_shares": [one.foreign for one in used],
        "sent": [{mode: [vars(sent) for sent in ranks] for mode, ranks in one.sent.items()} for one in used],
    }


def void(rounds):
    """Why a result is void: what does not fit the bytes that had to travel, each with its places."""
    found = {}
    for number, one in enumerate(rounds):
        for mode, verdicts in one.verdicts.items():
            for rank, verdict in enumerate(verdicts):
                if verdict is not Verdict.MATCHES:
                    found.setdefault(verdict, []).append(f"round {number}, {mode}, rank {rank}")
    return [f"{verdict.value} ({places[0]}; {len(places)} in all)" for verdict, places in found.items()]
