"""Tries orders of a step on the machine that it runs on, and keeps the fastest.

All orders are in one compiled program (`_variants`), rewritten graphs beside it (`_rewritten`), and
run in turn, round by round, so that other load on the machine affects all of them. Those that can
no longer be the fastest drop out (`_race`), so that most of the time goes to close candidates.
Every rank sees the durations of all ranks, and makes the same choice.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch.distributed as dist

from ._fx.api import GraphPass
from ._measure import compile_variants, gathered, seconds_of
from ._pass import Options, OverlapPass, session, times_key
from ._profile import Measured, opened, read_profile, write_profile
from ._race import LEAST_ROUNDS, Round, in_the_race, is_clear, ratio
from ._rewritten import NONE, Rewriting, Rewritings
from ._settings import Settings
from ._times import Times
from ._variants import Described, Variants

FORMAT = "halflap.tuned/1"
#: What torch does without us. Everything else is compared with it.
DEFAULT = "default"
#: The maximum number of rounds.
MOST_ROUNDS = 201


class Candidate(NamedTuple):
    """A way to order graphs: `default`, `none`, `kept` or `free`, the last two within a budget and
    perhaps after a rewrite, as `enable` takes it."""

    order: str
    memory_budget: str = "1x"
    rewrite: str = NONE

    @property
    def name(self) -> str:
        parts = [self.order, *([self.memory_budget] if self.memory_budget != "1x" else [])]
        return " ".join([*parts, *([self.rewrite] if self.rewrite else [])])


@dataclass(frozen=True)
class Row:
    """How a candidate did: median seconds of a step, its ratio to torch's default with an interval
    that has the true one with a probability of 95%, and the rounds that it took part in."""

    candidate: Candidate
    seconds: float
    ratio: float
    low: float
    high: float
    rounds: int = 0


@dataclass(frozen=True)
class Tuned:
    """The fastest of what was tried. ``enable(tuned=...)`` takes it, or its file."""

    chosen: Candidate
    rows: tuple[Row, ...]
    rounds: int
    measured: Measured
    #: Of the search, as `enable` takes it.
    effort: str
    #: Why candidates were not tried, by name.
    left_out: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """As files have it."""
        rows = [{**asdict(row), "candidate": row.candidate._asdict()} for row in self.rows]
        found = {"chosen": self.chosen._asdict(), "rows": rows, "rounds": self.rounds}
        return {
            "format": FORMAT,
            **found,
            "effort": self.effort,
            "left_out": self.left_out,
            "measured": self.measured.to_dict(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that `enable(tuned=...)` takes."""
        write_profile(self.to_dict(), path)

    def __str__(self) -> str:
        width = max([12, *(len(row.candidate.name) for row in self.rows)])
        lines = [f"{'':{width}} {'step':>10} {'of default':>11}  {'95% interval':15} rounds"]
        for row in sorted(self.rows, key=lambda row: row.ratio):
            chosen = "  chosen" if row.candidate == self.chosen else ""
            lines.append(
                f"{row.candidate.name:{width}} {1e3 * row.seconds:7.1f} ms {row.ratio:10.3f}x  "
                f"{row.low:.3f} to {row.high:.3f}  {row.rounds:6}{chosen}"
            )
        lines += [f"{name:{width}} not tried: {why}" for name, why in self.left_out.items()]
        lines.append("ratios are taken within rounds; what is clearly slower drops out")
        if self.rounds < LEAST_ROUNDS:
            lines.append(f"fewer than {LEAST_ROUNDS} rounds: give it more seconds to choose")
        return "\n".join(lines)


def tune(step: Callable[[], Any], candidates: Sequence[Candidate], trial: Trial) -> Tuned:
    """Tries candidates; see `halflap.torch.tune`."""
    key = times_key(trial.measured.times, None)
    session.times[key] = Times(trial.measured.times, None)
    options = replace(trial.options, times=key)
    field = Field(candidates, options)
    with ExitStack() as stack:
        field.compile(stack, step)
        left_out = _unusable(field)
        tried = [one for one in candidates if one.name not in left_out]
        rounds = _rounds(step, field, [one.name for one in tried], trial.seconds)
    rows = tuple(row_of(one, rounds) for one in tried)
    return Tuned(choice(rows), rows, len(rounds), trial.measured, options.effort, left_out)


class Field:
    """All candidates of a step, compiled together."""

    def __init__(self, candidates: Sequence[Candidate], options: Options) -> None:
        self.candidates = {one.name: one for one in candidates}
        ways = {one.name: way_of(pass_of(one, options)) for one in candidates}
        rewritten = {one.name: ways.pop(one.name) for one in candidates if one.rewrite}
        self._plain = Variants(ways, is_marked=False)
        self._rewritings = Rewritings(
            {
                name: Rewriting(
                    _graph_pass(self.candidates[name], options),
                    Variants({name: way}, is_marked=False),
                )
                for name, way in rewritten.items()
            }
        )

    def compile(self, stack: ExitStack, step: Callable[[], Any]) -> None:
        """Has a step compiled in all ways, until the stack is closed."""
        settings = Settings()
        stack.callback(settings.restore)
        compile_variants(stack, self._plain)
        self._rewritings.install(settings)
        step()

    def choose(self, name: str) -> None:
        """Has the step run a candidate from now on."""
        self._variants(name).chosen = name
        self._rewritings.chosen = name if self.candidates[name].rewrite else NONE

    def described(self, name: str) -> Described:
        """A candidate in all graphs, for other ranks."""
        rewriting = self._rewritings.by_name.get(name)
        failure = None if rewriting is None else rewriting.why_not()
        return Described(failure, []) if failure else self._variants(name).described(name)

    def _variants(self, name: str) -> Variants:
        rewriting = self._rewritings.by_name.get(name)
        return self._plain if rewriting is None else rewriting.variants


def _graph_pass(candidate: Candidate, options: Options) -> GraphPass:
    """The pass that rewrites graphs before they are ordered freely."""
    budget = candidate.memory_budget
    given = replace(options, collective_order="free", memory_budget=budget)
    return GraphPass._before_scheduler(given, candidate.rewrite.split(","))


class Trial(NamedTuple):
    """What candidates are tried with, and how long."""

    options: Options
    measured: Measured
    seconds: float


def pass_of(candidate: Candidate, options: Options) -> OverlapPass:
    """The pass that orders graphs like a candidate."""
    if candidate.order not in ("kept", "free"):
        return OverlapPass(options, candidate.order)
    budget, order = candidate.memory_budget, candidate.order
    return OverlapPass(replace(options, collective_order=order, memory_budget=budget))


def way_of(overlap_pass: OverlapPass) -> Callable[[list[Any]], list[Any]]:
    """A pass that raises if it fails."""

    def ordered(snodes: list[Any]) -> list[Any]:
        found = overlap_pass(snodes)
        if session.is_kept_out():
            raise RuntimeError(session.history[-1].failure)
        return found

    return ordered


def _unusable(field: Field) -> dict[str, str]:
    """Candidates that a rank could not compile, or with which ranks would hang."""
    found: dict[str, str] = {}
    every = gathered({name: field.described(name) for name in field.candidates})
    for name, candidate in field.candidates.items():
        failures = [rank[name].failure for rank in every if rank[name].failure]
        sequences = [rank[name].collectives for rank in every]
        if failures:
            found[name] = failures[0]
        elif (candidate.order == "free" or candidate.rewrite) and any(
            one != sequences[0] for one in sequences
        ):
            found[name] = "ranks would issue collectives in different orders"
    return found


def _rounds(step: Callable[[], Any], field: Field, names: list[str], limit: float) -> list[Round]:
    """Seconds of each candidate in the race, as the slowest rank has it, in each round."""
    began, rounds = time.monotonic(), list[Round]()
    for name in names:
        # Loading on the first run is not part of any duration.
        field.choose(name)
        step()
    while len(rounds) < MOST_ROUNDS:
        turn = len(rounds) % len(names)
        own = {}
        for name in names[turn:] + names[:turn]:
            field.choose(name)
            own[name] = seconds_of(step)
        every = gathered((own, time.monotonic() - began))
        rounds.append({name: max(times[name] for times, _ in every) for name in names})
        passed = max(seconds for _, seconds in every)
        _show(len(rounds), passed, limit)
        names = in_the_race(names, DEFAULT, rounds)
        if passed > limit or is_clear(names, DEFAULT, rounds):
            break
    _show(len(rounds), 0.0, 0.0)
    return rounds


def row_of(candidate: Candidate, rounds: Sequence[Round]) -> Row:
    """How a candidate did."""
    name = candidate.name
    seconds = [times[name] for times in rounds if name in times]
    found = ratio(name, DEFAULT, rounds)
    return Row(candidate, statistics.median(seconds), *found, len(seconds))


def choice(rows: Sequence[Row]) -> Candidate:
    """The fastest, if it is faster than torch's default with confidence; else the default."""
    best = min(rows, key=lambda row: row.ratio)
    is_sure = best.rounds >= LEAST_ROUNDS and best.high < 1.0
    return best.candidate if is_sure else Candidate(DEFAULT)


def _show(rounds: int, passed: float, limit: float) -> None:
    """One line on a terminal, which vanishes at the end."""
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    if is_first and sys.stderr.isatty():
        text = f"halflap: round {rounds}, {passed:.0f} s of at most {limit:.0f} s" if limit else ""
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


class Choice(NamedTuple):
    """What was chosen, and what it was found with."""

    candidate: Candidate
    measured: Measured
    effort: str


def read_tuned(tuned: Tuned | str | os.PathLike[str]) -> Choice:
    """What `tune` gave, or a file of it."""
    if isinstance(tuned, Tuned):
        return Choice(tuned.chosen, tuned.measured, tuned.effort)
    if not isinstance(tuned, (str, os.PathLike)):
        raise TypeError(f"tuned must be what tune() gave, or a file, not {tuned!r}")
    name = os.fspath(tuned)
    with opened(tuned, "halflap.torch.tune(make_step, out=...)") as file:
        try:
            found = json.load(file)
        except ValueError as problem:
            raise ValueError(f"{name}: not JSON: {problem}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{name}: this is not a file of tune(), whose format is {FORMAT!r}")
    try:
        chosen = Candidate(**found["chosen"])
        choice = Choice(chosen, read_profile(found["measured"]), found["effort"])
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{name}: {problem}; run tune() again") from None
    if chosen.order not in ("default", "none", "kept", "free"):
        raise ValueError(f"{name}: 'chosen' has the order {chosen.order!r}; run tune() again")
    return choice
