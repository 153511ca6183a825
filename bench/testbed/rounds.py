"""Modes measured in turns, round by round, with what links carried and what else ran."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from testbed import counters, intervals, load
from testbed.counters import Verdict
from testbed.network import Network, Rate


@dataclass(frozen=True)
class Plan:
    """How any program is measured."""

    ranks: int
    modes: list
    #: One of both: the rate of links, or the time of communication as a multiple of the time
    #: that a step takes on links without a limit.
    rate: Rate | None
    ratio: float | None
    rounds: int
    #: Of each mode in a round.
    steps: int
    #: How long compiling or a step may take, in seconds.
    patience: float


@dataclass(frozen=True)
class Bed:
    """What a measurement stands on."""

    network: Network
    counters: counters.Counters
    #: One for each rank.
    cores: list
    #: Gives the CPU seconds that ranks and the testbed itself have used so far.
    used: Callable[[], float]
    #: Tells the user how far things are.
    say: Callable[[str], None]


@dataclass
class Round:
    """What one round found, by mode."""

    #: Seconds of each step.
    steps: dict = field(default_factory=dict)
    #: What each rank sent in all steps together, and the verdict on it.
    sent: dict = field(default_factory=dict)
    verdicts: dict = field(default_factory=dict)
    #: The share of the ranks' cores that others had.
    foreign: dict = field(default_factory=dict)

    @property
    def is_disturbed(self):
        return any(map(load.is_disturbed, self.foreign.values()))


def measure(bed, plan, program):
    """Measures a program; gives values that JSON has. A program has

    - `payload`, the bytes that a rank sends in a step,
    - `unlimited_step()`, the seconds of a step without overlap before links have a limit,
    - `prepare()`, called once when they have it,
    - `block(mode)`: runs some steps; gives the seconds of each, and the bytes that each rank had
      to send in all of them,
    - `reference`, the mode that others are compared with,
    - `findings()`: what else there is to say; `void` are further reasons why results are void.
    """
    bed.network.limit(None)
    compute = program.unlimited_step()
    payload = program.payload
    rate = plan.rate or Rate(8 * payload / (plan.ratio * compute))
    bed.say(f"{compute:.3f} s without a limit; {payload / 1e6:.1f} MB over links of {rate}")
    bed.network.limit(rate)
    program.prepare()
    found = measured_rounds(bed, plan, program)
    result = summary(found, plan.rounds, program.reference)
    findings = program.findings()
    return {
        "ranks": plan.ranks,
        "cores": bed.cores,
        "is_oversubscribed": len(set(bed.cores)) < plan.ranks,
        "rate_bits": rate.bits,
        "payload_bytes": payload,
        "unlimited_step": compute,
        "communication": payload / rate.bytes,
        **result,
        **findings,
        "void": result["void"] + findings.get("void", []),
    }


def measured_rounds(bed, plan, program):
    """As many rounds as planned, and one more for each that was disturbed, up to twice as many."""
    rounds = []
    while len(rounds) < 2 * plan.rounds and len(undisturbed(rounds)) < plan.rounds:
        rounds.append(Round())
        for mode in intervals.turns(plan.modes, len(rounds) - 1):
            run_block(bed, rounds[-1], mode, program)
        quiet = f"{len(undisturbed(rounds))} of {plan.rounds} undisturbed"
        bed.say(f"round {len(rounds)}: {quiet}")
    return rounds


def undisturbed(rounds):
    return [one for one in rounds if not one.is_disturbed]


def run_block(bed, into, mode, program):
    cores = sorted(set(bed.cores))
    before, used, began = bed.counters.read(), load.usage(cores, bed.used()), time.monotonic()
    into.steps[mode], payloads = program.block(mode)
    spent = load.usage(cores, bed.used()) - used
    into.foreign[mode] = load.foreign_share(spent, time.monotonic() - began, cores)
    into.sent[mode] = counters.between(before, bed.counters.read())
    into.verdicts[mode] = list(map(counters.verdict, into.sent[mode], payloads))


def summary(rounds, wanted, reference):
    """The result of all rounds: of the undisturbed ones if there are enough, else of all."""
    quiet = undisturbed(rounds)
    used = quiet[:wanted] if len(quiet) >= wanted else rounds
    found = intervals.summarize([one.steps for one in used], reference)
    return {
        "modes": {
            mode: {name: vars(median) for name, median in both.items()}
            for mode, both in found.items()
        },
        "reference": reference,
        "rounds": len(used),
        "rounds_disturbed": sum(one.is_disturbed for one in used),
        "rounds_left_out": len(rounds) - len(used),
        "most_foreign_share": max(share for one in used for share in one.foreign.values()),
        "void": void(rounds),
        "steps": [one.steps for one in used],
        "foreign_shares": [one.foreign for one in used],
        "sent": [
            {mode: [vars(sent) for sent in ranks] for mode, ranks in one.sent.items()}
            for one in used
        ],
    }


def void(rounds):
    """Why a result is void: each verdict on bytes that do not match, and where it was given."""
    found = {}
    for number, one in enumerate(rounds):
        for mode, verdicts in one.verdicts.items():
            for rank, verdict in enumerate(verdicts):
                if verdict is not Verdict.MATCHES:
                    found.setdefault(verdict, []).append(f"round {number}, {mode}, rank {rank}")
    return [f"{why.value} ({at[0]}; {len(at)} in all)" for why, at in found.items()]
