"""halflap for torch.compile.

>>> import halflap.torch
>>> halflap.torch.enable()

has every graph with collectives that is compiled from then on, forward, backward and inference, put
into the order that hides the most communication within a memory limit. docs/torch.md says which
settings change, how caches stay correct and what is guaranteed.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

try:
    import torch
except ImportError as missing:
    raise ImportError(
        "halflap.torch needs torch 2.10 or newer, and torch is not installed"
    ) from missing

from ._version import UnknownTorch, check_version

check_version(torch.__version__)

from . import _agree  # noqa: E402
from ._checked import (  # noqa: E402
    checked_budget,
    checked_seconds,
    checked_size,
    one_of,
    read_options,
)
from ._collectives import read_collectives  # noqa: E402
from ._handover import Unsupported  # noqa: E402
from ._settings import (  # noqa: E402
    Settings,
    check_settings,
    compile_anew,
    compile_backward_at_once,
    generate_both,
    judge_rewrites,
    keep_failures_out,
    partition_with,
    plug_in,
    rewrite_first,
)
from ._pass import Options, OverlapPass, Ran, session, tell_half, times_key  # noqa: E402
from . import _measure, _timeline, _tune  # noqa: E402
from ._profile import (  # noqa: E402
    Measured,
    Profile,
    align_profiles,
    profile_from_trace,
    read_profile,
)
from ._ranks import PATIENCE, RanksDiffer  # noqa: E402
from ._rewritten import copy_of  # noqa: E402
from ._status import Status, status_of  # noqa: E402
from ._times import Times  # noqa: E402
from ._timeline import Looked, Timeline  # noqa: E402
from ._tune import Candidate, Trial, Tuned, pass_of, read_tuned  # noqa: E402
from ._watch import watch  # noqa: E402
from ._fx.api import GraphPass, optimize, read_rewrite, reorder  # noqa: E402
from ._fx.keep import Kept, Partitioner  # noqa: E402
from ._fx.passes import Changed  # noqa: E402

__all__ = [
    "Changed",
    "Enabled",
    "GraphPass",
    "Kept",
    "Measured",
    "OverlapPass",
    "Partitioner",
    "Ran",
    "RanksDiffer",
    "Status",
    "Timeline",
    "Tuned",
    "UnknownTorch",
    "Unsupported",
    "align_profiles",
    "capture",
    "disable",
    "enable",
    "history",
    "measure",
    "optimize",
    "profile_from_trace",
    "reorder",
    "status",
    "timeline",
    "tune",
]

_enabled: list[Enabled] = []
#: What stays on after `disable`.
_following = Settings()


class Waiting(NamedTuple):
    """How many seconds ranks wait for each other: to be compared, if they are, and to agree."""

    check_ranks: float | None
    agree_within: float


class Enabled:
    """What `enable` switched on. As a context manager, it is switched off at the end of the block,
    and what it was put in the place of is on again; backward graphs are compiled with their forward
    graphs, so that they are ordered, too."""

    def __init__(self, our_pass: OverlapPass, report_dir: str | None, waiting: Waiting) -> None:
        #: The pass that orders graphs.
        self.overlap_pass = our_pass
        #: The one that rewrites them before that, if any does.
        self.graph_pass: GraphPass | None = None
        #: The one that decides which gathered parameters are kept, if any does.
        self.partitioner: Partitioner | None = None
        self._report_dir = report_dir
        self._waiting = waiting
        self._settings = Settings()
        self._has_block = False
        self._sees_all = False
        self._before = _enabled[-1] if _enabled else None

    def __enter__(self) -> Enabled:
        self._has_block = True
        compile_backward_at_once(self._settings)
        return self

    def __exit__(self, *_: object) -> None:
        disable()
        if self._before is not None:
            self._before._switch_on()

    def _switch_on(self) -> None:
        _following.restore()
        session.report_dir, session.check_ranks = self._report_dir, self._waiting.check_ranks
        _agree.decisions.patience = self._waiting.agree_within
        plug_in(self._settings, self.overlap_pass)
        if self.graph_pass is not None:
            rewrite_first(self._settings, self.graph_pass)
            judge_rewrites(self._settings, copy_of)
        if self.partitioner is not None:
            partition_with(self._settings, self.partitioner)
        if self.overlap_pass.options.collective_order == "auto":
            generate_both(self._settings, tell_half)
        keep_failures_out(self._settings, session.is_kept_out)
        self._sees_all = watch(self._settings, self.overlap_pass)
        if self._waiting.check_ranks is not None:
            compile_anew(self._settings)
        if self._has_block:
            compile_backward_at_once(self._settings)
        _enabled.append(self)


def enable(
    *,
    memory_budget: float | str = "1x",
    collective_order: str = "auto",
    effort: str = "quick",
    device: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    ranks_per_node: int | None = None,
    profile: Profile | None = None,
    estimate: Callable[[Any], float | None] | None = None,
    unbacked: int | None = None,
    report_dir: str | os.PathLike[str] | None = None,
    check_ranks: bool | float = False,
    agree_within: float = _agree.PATIENCE,
    collectives: Mapping[str, str | Mapping[str, Any]] | None = None,
    tuned: Tuned | str | os.PathLike[str] | None = None,
    rewrite: str | Sequence[str] | None = None,
    keep: bool | float | str = False,
) -> Enabled:
    """Has halflap order every graph with collectives that is compiled from now on.

    ``memory_budget``: the most that an order may need, as `halflap.schedule` takes it; by default
    no more than Inductor's order. ``collective_order``: ``"kept"`` keeps collectives in the
    program's order, which is safe whatever other ranks run; ``"free"`` lets them pass each other,
    for programs whose ranks all compile the same graphs; ``"auto"`` compiles both, and ranks agree
    on one before they first run a graph. ``effort``: ``"quick"``, ``"default"`` or ``"thorough"``.

    Run times come from ``estimate`` (called with a scheduler node, returns milliseconds or None,
    like Inductor's ``estimate_op_runtime``), else ``profile`` (`measure`, `profile_from_trace`),
    else Inductor, else the model of ``device``: a preset's name, a file or a dictionary of figures
    (docs/costs.md); by default what this process runs on. ``ranks_per_node``: by default the
    launcher's count, else the device's. They must be the same on all ranks.

    ``unbacked``: what a size that depends on data, such as the tokens of an expert, is assumed to
    be; by default what Inductor assumes (``config.unbacked_symint_fallback``).

    ``report_dir``: a page for each graph that is compiled, and rank. ``check_ranks``: compare the
    orders of all ranks of a process group, waiting for at most 60 s or the given number of seconds,
    and raise `RanksDiffer` on all of them where they differ; compile caches are off meanwhile,
    because a rank that takes a graph from its cache decides nothing. ``agree_within``: with
    ``"auto"``, how many seconds a rank waits for the others before it first runs a graph; then
    collectives stay in the program's order.

    ``collectives``: operators of other libraries that communicate, such as
    ``{"vllm::all_reduce": "all_reduce"}`` or, with a process group that is not that of all ranks,
    ``{"vllm::all_reduce": {"kind": "all_reduce", "group": "tp"}}``; they must be registered.

    ``tuned``: what `tune` found, or its file; sets ``collective_order``, ``memory_budget``,
    ``effort``, ``profile`` and ``rewrite``.

    ``rewrite``: ``"exact"`` also merges collectives where that makes a step shorter, and keeps
    every bit; ``"all"`` also if the order of summation may change. ``"groups"``, in a list beside
    these, has all-gathers use a second process group; all ranks then call this. All ranks of a
    process group must then compile the same graphs.

    ``keep``: decides for each gathered parameter whether it is kept for the backward pass or
    gathered again, within a limit of its own: ``"1.2x"`` of what the larger of a step's two graphs
    needs without this, or a size; ``True`` is ``memory_budget`` if that is a size, else ``"1x"``.

    `status` says whether all of that took effect.
    """
    check_settings()
    torchs, is_free_faster = None, False
    if tuned is not None:
        own = {
            "memory_budget": memory_budget != "1x",
            "collective_order": collective_order != "auto",
            "effort": effort != "quick",
            "profile": profile is not None,
            "rewrite": rewrite is not None,
        }
        if any(own.values()):
            names = ", ".join(name for name, is_given in own.items() if is_given)
            raise ValueError(f"tuned sets {names}: leave it out, or leave out tuned")
        chosen, profile, effort = read_tuned(tuned)
        memory_budget = chosen.memory_budget
        rewrite = chosen.rewrite.split(",") if chosen.rewrite else None
        is_free_faster = chosen.order == "free"
        collective_order = "auto" if is_free_faster else "kept"
        torchs = chosen.order if chosen.order in ("default", "none") else None
    options = read_options(
        memory_budget=memory_budget,
        collective_order=collective_order,
        effort=effort,
        device=device,
        ranks_per_node=ranks_per_node,
        profile=profile,
        estimate=estimate,
        unbacked=unbacked,
        collectives=collectives,
    )
    options = replace(options, is_free_faster=is_free_faster)
    folder = None if report_dir is None else _folder("report_dir", report_dir)
    waiting = Waiting(_patience(check_ranks), checked_seconds("agree_within", agree_within))
    enabled = Enabled(OverlapPass(options, torchs), folder, waiting)
    if rewrite is not None:
        enabled.graph_pass = GraphPass._before_scheduler(options, rewrite)
    if keep is not False:
        enabled.partitioner = Partitioner._before_scheduler(options, keep)
    disable()
    enabled._switch_on()
    return enabled


def disable() -> None:
    """Switches it off and sets everything back; what is compiled stays as it is. Only where ranks
    have agreed on an order of collectives, graphs with the same collectives still get it, as long
    as the process group is up: other ranks may run what was compiled before."""
    session.report_dir = session.check_ranks = None
    _agree.decisions.patience = _agree.PATIENCE
    others_rely_on_it = bool(_agree.decisions.binding())
    if not others_rely_on_it:
        _following.restore()
    if not _enabled:
        return
    options = _enabled[-1].overlap_pass.options
    while _enabled:
        _enabled.pop()._settings.restore()
    if others_rely_on_it:
        plug_in(_following, OverlapPass(options, "default"))


def measure(
    step: Callable[[], Any],
    *,
    steps: int = _measure.STEPS,
    out: str | os.PathLike[str] | None = None,
    collectives: Mapping[str, str | Mapping[str, Any]] | None = None,
    unbacked: int | None = None,
) -> Measured:
    """Measures the times of a step's kernels and collectives, for ``enable(profile=...)``.

    All ranks call it, and get the same. ``step`` runs ``steps`` + 2 times. Its compiled functions
    are recompiled for this, in an order without overlap, and again when they are next called; they
    must be compiled by Inductor. On GPUs times are those of a trace of torch.profiler, and
    contention is not measured. ``out`` also writes the result to a file. ``collectives`` and
    ``unbacked`` are those of `enable`.
    """
    check_settings()
    _check_steps(steps)
    _check_callable("step", step)
    opaque = read_collectives(collectives)
    found = _measure.measure(step, steps=steps, collectives=opaque, unbacked=checked_size(unbacked))
    if not found.times:
        warnings.warn(
            "halflap: nothing to measure: this step compiled no graph with collectives",
            RuntimeWarning,
            stacklevel=2,
        )
    if out is not None:
        found.save(out)
    return found


def timeline(
    step: Callable[[], Any],
    *,
    order: str | None = None,
    profile: Profile | None = None,
    steps: int = _measure.STEPS,
    out: str | os.PathLike[str] | None = None,
) -> Timeline:
    """Shows where the time of a step goes: what ran when on each rank, compared with the
    simulation.

    All ranks call it, and get the same. ``order``: ``"default"`` (torch's own), ``"none"`` (no
    overlap), ``"kept"`` or ``"free"``; by default what is enabled, else torch's own. ``profile``:
    run times for the simulation; by default they are measured first (`measure`). The step is
    recompiled for this and runs ``steps`` + 2 times; the one with the median duration is shown. It
    must be compiled by Inductor with its Python wrapper, and run on a CPU with gloo. For GPUs,
    `halflap.analyze` shows what ran. ``out`` also writes a file for ``halflap timeline``.
    """
    check_settings()
    _check_steps(steps)
    _check_callable("step", step)
    enabled = _enabled[-1].overlap_pass if _enabled else None
    if order is None and enabled is not None:
        used = enabled.options.collective_order
        order = enabled.torchs or ("free" if used == "auto" else used)
    known = ("default", "none", "kept", "free")
    chosen = one_of("order", "default" if order is None else order, known)
    measured = read_profile(profile) if profile is not None else measure(step)
    options = enabled.options if enabled is not None else _plain_options("default", measured)
    key = times_key(measured.times, None)
    session.times[key] = Times(measured.times, None)
    options = replace(options, times=key)
    looked = Looked(pass_of(Candidate(chosen, options.memory_budget), options), measured)
    found = _timeline.timeline(step, looked, steps)
    if out is not None:
        found.save(out)
    return found


def tune(
    make_step: Callable[[], Callable[[], Any]],
    *,
    seconds: float = 300.0,
    memory_budgets: Sequence[float | str] = ("1x",),
    rewrites: Sequence[str | Sequence[str]] = (),
    profile: Profile | None = None,
    effort: str = "default",
    out: str | os.PathLike[str] | None = None,
) -> Tuned:
    """Tries orders of a training step on this machine, and returns the fastest.

    All ranks call it, and get the same. ``make_step`` returns a function that runs one step, and
    calls compiled functions. It is tried with torch's own default, without overlap, and in
    halflap's orders with collectives kept and free, each within ``memory_budgets``, and freely
    after each of ``rewrites`` (as `enable` takes one), in turns, until the differences are clear or
    ``seconds`` have passed. If nothing is faster with confidence, torch's default is chosen.
    ``profile``: known run times; by default they are measured first (`measure`). ``out`` also
    writes the result to a file. The model is trained meanwhile.
    """
    check_settings()
    limit = checked_seconds("seconds", seconds)
    if isinstance(memory_budgets, str) or not memory_budgets:
        raise ValueError(
            f"memory_budgets must be a list, such as ['1x', '1.5x'], not {memory_budgets!r}"
        )
    if isinstance(rewrites, str):
        raise ValueError(f"rewrites must be a list, such as ['exact'], not {rewrites!r}")
    _check_callable("make_step", make_step)
    budgets = [checked_budget(budget) for budget in memory_budgets]
    candidates = [Candidate("default"), Candidate("none")]
    candidates += [Candidate(order, one) for order in ("kept", "free") for one in budgets]
    candidates += [
        Candidate("free", one, read_rewrite(rewrite)) for rewrite in rewrites for one in budgets
    ]
    step = make_step()
    _check_callable("what make_step() gives", step)
    measured = read_profile(profile) if profile is not None else measure(step)
    options = _plain_options(one_of("effort", effort, ("quick", "default", "thorough")), measured)
    found = _tune.tune(step, candidates, Trial(options, measured, limit))
    if out is not None:
        found.save(out)
    return found


@contextlib.contextmanager
def capture(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Writes every graph that halflap orders in the block to a file of ``folder``, as
    ``halflap.graph/1``.

    If halflap is not enabled, it is in the block. Graphs that come from a compile cache are not
    scheduled, so caches are off in the block, and backward graphs are compiled with their forward
    graphs. A file has everything that decided the order: ``halflap schedule FILE``, with the
    options that were enabled, gives the same order. Files are called ``rank0_graph0_forward.json``
    and so on. Existing files stay: numbering continues after them.
    """
    folder = _folder("folder", folder)
    os.makedirs(folder, exist_ok=True)
    here = None if _enabled else enable()
    settings = Settings()
    compile_anew(settings)
    compile_backward_at_once(settings)
    session.capture_dirs.append(folder)
    try:
        yield
    finally:
        session.capture_dirs.remove(folder)
        settings.restore()
        if here is not None:
            disable()


def status() -> Status:
    """What is enabled, whether torch's settings let it work, and the outcome for each graph with
    collectives: ``print(halflap.torch.status())``."""
    if not _enabled:
        return status_of(None, {}, sees_all=True)
    enabled = _enabled[-1]
    extra = {"report_dir": enabled._report_dir, **enabled._waiting._asdict()}
    extra["rewrite"] = enabled.graph_pass and enabled.graph_pass.asked.rewrite
    extra["keep"] = enabled.partitioner and enabled.partitioner.limit
    return status_of(enabled.overlap_pass, extra, enabled._sees_all)


def history() -> list[Ran]:
    """What the pass did to each graph in this process, in order."""
    return session.history


def _plain_options(effort: str, measured: Measured) -> Options:
    """The options that decide an order, with defaults for the rest."""
    return Options(
        memory_budget="1x",
        collective_order="kept",
        effort=effort,
        device=None,
        ranks_per_node=None,
        unbacked=None,
        times="",
        slowdown=measured.slowdown,
        comm_slowdown=measured.comm_slowdown,
    )


def _check_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise ValueError(f"{name} must be a function without arguments, not {value!r}")


def _check_steps(steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be an integer of 1 or more, not {steps!r}")


def _patience(check_ranks: bool | float) -> float | None:
    """How long ranks wait for each other, where they are compared."""
    if isinstance(check_ranks, bool):
        return PATIENCE if check_ranks else None
    return checked_seconds("check_ranks", check_ranks, "True, False or ")


def _folder(name: str, value: str | os.PathLike[str]) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{name} must be the path of a folder, not {value!r}")
    return os.fspath(value)
