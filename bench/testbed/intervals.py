"""Medians with intervals that assume no distribution, and modes compared round by round."""

import math
import statistics
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Median:
    """A median, and an interval that holds the true one with this confidence."""

    value: float
    low: float
    high: float
    #: At least CONFIDENCE, unless there are too few values for it: below 6.
    confidence: float

    @classmethod
    def of(cls, values):
        """The interval lies between two of the values, as many places from either end: the
        narrowest that has the confidence."""
        ordered = sorted(values)
        count = len(ordered)
        trimmed = max(
            (cut for cut in range((count + 1) // 2) if _coverage(count, cut) >= CONFIDENCE),
            default=0,
        )
        return cls(
            statistics.median(ordered),
            ordered[trimmed],
            ordered[-1 - trimmed],
            max(_coverage(count, trimmed), 0.0),
        )


def _coverage(count, cut):
    """How often the true median lies between the values that remain when `cut` are left out at
    either end: it is outside if at most `cut` of all values, each with even odds, lie on one
    side of it."""
    return 1 - 2 * sum(math.comb(count, below) for below in range(cut + 1)) / 2**count


def turns(modes, round_number):
    """The order of modes in a round: each comes first, second and so on equally often."""
    shift = round_number % len(modes)
    turned = [*modes[shift:], *modes[:shift]]
    # In every other pass through all shifts, neighbours change sides, too.
    return turned[::-1] if round_number // len(modes) % 2 else turned


def summarize(rounds, reference):
    """For each mode the median of its rounds' medians, and of their ratios to the reference's in
    the same round. `rounds` has a dictionary for each round: the step times of every mode."""
    middles = [{mode: statistics.median(times) for mode, times in one.items()} for one in rounds]
    found = {}
    for mode in rounds[0]:
        own = Median.of([middle[mode] for middle in middles])
        ratio = Median.of([middle[mode] / middle[reference] for middle in middles])
        found[mode] = {"step": own, "ratio": ratio}
    return found
