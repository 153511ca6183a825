"""What rounds of measured steps say of the candidates that took part in them.

In a round every candidate that is still in the race runs once. Ratios are taken within a round, so
that a machine that becomes slower changes all candidates alike. The ratio of two durations of the
same kind of step is symmetric around its centre on a logarithmic scale, so the estimate is that of
Hodges and Lehmann (the median of the averages of all pairs) and its interval that of Wilcoxon's
signed ranks: about a fifth narrower than the median's, and as little moved by single slow steps.
Everything here is a function of the durations alone, so ranks that see the same ones agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

#: Seconds of each candidate that ran in a round, by name.
Round = Mapping[str, float]
#: The chance that an interval does not have the true ratio.
DOUBT = 0.05
#: With fewer rounds no interval has the confidence that is asked for.
LEAST_ROUNDS = 6
#: An interval that is at most this much to either side is narrow enough.
NARROW = 0.01


class Ratio(NamedTuple):
    """An estimate of a ratio, and the interval that it lies in with 95% confidence."""

    value: float
    low: float
    high: float


def ratio(name: str, other: str, rounds: Iterable[Round]) -> Ratio:
    """How long a candidate takes beside another one, from the rounds in which both ran."""
    shared = [one for one in rounds if name in one and other in one]
    logs = [math.log(one[name] / one[other]) for one in shared]
    averages = sorted((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])
    skipped = _outside(len(logs))
    found = statistics.median(averages), averages[skipped], averages[-1 - skipped]
    return Ratio(*map(math.exp, found))


def in_the_race(names: Sequence[str], reference: str, rounds: Sequence[Round]) -> list[str]:
    """Those that are worth another round: the reference, and what may still be the fastest."""
    if len(rounds) < LEAST_ROUNDS:
        return list(names)
    best = fastest(names, reference, rounds)
    return [
        name for name in names if name in (reference, best) or ratio(name, best, rounds).low <= 1.0
    ]


def fastest(names: Iterable[str], reference: str, rounds: Sequence[Round]) -> str:
    """The one with the smallest ratio to the reference."""
    return min(names, key=lambda name: ratio(name, reference, rounds).value)


def is_clear(names: Iterable[str], reference: str, rounds: Sequence[Round]) -> bool:
    """Whether the ratios of those that are left are known well enough."""
    if len(rounds) < LEAST_ROUNDS:
        return False
    found = (ratio(name, reference, rounds) for name in names)
    return all(one.high - one.low <= 2 * NARROW * one.value for one in found)


@cache
def _outside(count: int) -> int:
    """How many averages of `count` values lie outside an interval at either end: the largest sum
    of signed ranks that is still less likely to be undercut than half the doubt."""
    ways = [1]
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    below = 0
    for total, number in enumerate(ways):
        below += number
        if below > DOUBT / 2 * 2**count:
            return max(0, total - 1)
    return 0
