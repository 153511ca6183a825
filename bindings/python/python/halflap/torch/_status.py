"""What is enabled, the outcome for each compiled graph, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .._api import Schedule
from ._agree import KEPT, decisions
from ._fx.keep import Kept, decided
from ._fx.passes import Changed, done
from ._pass import OverlapPass, Ran, session
from ._settings import Needed, is_as_needed, needed, needed_by_rewrites, shown, torchs_own
from ._watch import Compiled, Outcome, outcome_of, watched

#: The text has as many lines on graphs of each outcome; the dictionary has all graphs.
MOST_SHOWN = 20


@dataclass(frozen=True)
class Status:
    """What halflap does in this process, as text (`str`) and as a dictionary (`to_dict`)."""

    #: What was enabled, or None.
    options: Mapping[str, Any] | None
    #: Torch's settings: what halflap needs, and what the calling thread saw.
    settings: list[dict[str, Any]]
    #: The graphs with collectives that were compiled while halflap was enabled.
    graphs: list[Compiled]
    #: How many others were.
    graphs_without_collectives: int
    #: Operators that look like collectives and were not named in ``enable(collectives=...)``.
    hidden: list[str]
    #: With ``collective_order="auto"``, how often ranks agreed on a free order, and on a kept one.
    agreed: dict[str, int]
    #: What passes over FX graphs did, with ``enable(rewrite=...)`` or called by themselves.
    fx: list[Changed]
    #: Which gathered parameters were kept for backward, with ``enable(keep=...)`` or a
    #: `Partitioner`.
    partitions: list[Kept]
    #: Torch's own merging and FX-level scheduling, as far as they are on, by their settings.
    torchs_own: Mapping[str, Any]
    #: Whether this torch lets us see all that it compiles, and not only what our pass is given.
    sees_all: bool

    @property
    def is_enabled(self) -> bool:
        """Whether `enable` is in effect; torch's settings may still prevent it from working."""
        return self.options is not None

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON-compatible values."""
        return {
            "enabled": self.is_enabled,
            "options": None if self.options is None else dict(self.options),
            "settings": self.settings,
            "graphs": [_graph_dict(graph) for graph in self.graphs],
            "graphs_without_collectives": self.graphs_without_collectives,
            "hidden": self.hidden,
            "agreed": self.agreed,
            "fx": [one.to_dict() for one in self.fx],
            "partitions": [one.to_dict() for one in self.partitions],
            "torchs_own": dict(self.torchs_own),
            "sees_all": self.sees_all,
        }

    def __str__(self) -> str:
        lines = [*self._enabled_text(), *self._settings_text(), *self._graphs_text()]
        lines += _listed("joint graphs, before they are cut in two:", self.partitions)
        lines += _listed("FX graphs, before Inductor's scheduler:", self.fx)
        if any(self.agreed.values()):
            counts = [f"{count} {order}" for order, count in self.agreed.items()]
            lines.append(f"sequences of collectives that ranks agreed on: {', '.join(counts)}")
        if self.hidden:
            lines.append(
                f"{', '.join(self.hidden)}: looks like a collective; if it communicates, name it: "
                f"enable(collectives={{{self.hidden[0]!r}: 'all_reduce'}})"
            )
        if not self.sees_all:
            lines.append("this torch does not show halflap what is compiled without it")
        return "\n".join(lines)

    def _enabled_text(self) -> list[str]:
        if self.options is None:
            lines = ["halflap is not enabled: call halflap.torch.enable()"]
            if self.agreed["free"]:
                lines.append(
                    "graphs with collectives that ranks have agreed on still get the agreed order, "
                    "because other ranks may run what was compiled before"
                )
            return lines
        if self.options["torchs_order"] is not None:
            order = self.options["torchs_order"]
            return [f"halflap is enabled, with torch's own order ({order}), which tune chose"]
        given = {
            name: value for name, value in self.options.items() if value not in (None, [], False)
        }
        texts = [f"{name}={value!r}" for name, value in given.items()]
        return [f"halflap is enabled: {', '.join(texts)}"]

    def _settings_text(self) -> list[str]:
        wrong = [one for one in self.settings if not one["as_needed"]]
        if not wrong:
            fine = ["torch's settings are as halflap needs them"] if self.is_enabled else []
            return [*fine, *self._torchs_text()]
        return ["torch's settings are not as halflap needs them:"] + [
            f"  {one['name']} is {one['value']} and must be {one['needed']}: {one['otherwise']}"
            for one in wrong
        ]

    def _torchs_text(self) -> list[str]:
        """What torch does before us, if that does not interfere."""
        if not (self.is_enabled and self.torchs_own):
            return []
        texts = [f"{name}={value!r}" for name, value in self.torchs_own.items()]
        return [f"torch merges or orders FX graphs first, as set: {', '.join(texts)}"]

    def _graphs_text(self) -> list[str]:
        counts = Counter(graph.outcome for graph in self.graphs)
        if not counts:
            others = self.graphs_without_collectives
            found = f"no graph with collectives was compiled since enable(), {others} without"
            return [f"{found}; what was compiled before stays as it is"]
        counted = [f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome]]
        lines = [f"graphs with collectives: {', '.join(counted)}"]
        for outcome in Outcome:
            told = _grouped([graph for graph in self.graphs if graph.outcome is outcome])
            lines += [f"  {line}" for line in told[:MOST_SHOWN]]
            if len(told) > MOST_SHOWN:
                lines.append(f"  and {len(told) - MOST_SHOWN} more {outcome.value}")
        return lines


def _listed(title: str, all_of_them: list[Any]) -> list[str]:
    lines = [f"  {one}" for one in all_of_them[:MOST_SHOWN]]
    if len(all_of_them) > MOST_SHOWN:
        lines.append(f"  and {len(all_of_them) - MOST_SHOWN} more")
    return [title, *lines] if lines else []


def _grouped(graphs: list[Compiled]) -> list[str]:
    """Each graph with its outcome; graphs with the same outcome are listed together."""
    names: dict[str, list[str]] = {}
    for graph in graphs:
        names.setdefault(_graph_text(graph), []).append(graph.name)
    return [f"{', '.join(same)}: {text}" for text, same in names.items()]


def _graph_text(graph: Compiled) -> str:
    text = graph.outcome.value
    ran = graph.ran
    if ran is not None and ran.schedule is not None:
        runs = _running(ran)
        before, after = runs.step_time_before / 1e3, runs.step_time / 1e3
        text += f", collectives {ran.collective_order}"
        if ran.skeleton is not None:
            text += f" ({decisions.outcome(ran.skeleton)})"
        text += f", simulated step time {before:.1f} us -> {after:.1f} us"
        text += f", peak {runs.peak_memory_before} B -> {runs.peak_memory} B"
        if ran.assumed_sizes:
            count = len(ran.assumed_sizes)
            text += f", {count} {'size' if count == 1 else 'sizes'} assumed that depend on data"
    return text if graph.cause is None else f"{text}; {graph.cause}"


def _running(ran: Ran) -> Schedule:
    """The order of the program that runs, or will as far as is known."""
    is_kept = ran.skeleton is not None and decisions.outcome(ran.skeleton) == KEPT
    return ran.kept if is_kept else ran.schedule


def _graph_dict(graph: Compiled) -> dict[str, Any]:
    cause, ran = graph.cause, graph.ran
    result = None if ran is None or ran.schedule is None else _running(ran)
    decided = None if ran is None or ran.skeleton is None else decisions.outcome(ran.skeleton)
    return {
        "name": graph.name,
        "outcome": graph.outcome.name.lower(),
        "collectives": graph.collectives,
        "reason": None if cause is None else cause.reason.value,
        "setting": None if cause is None else cause.setting,
        "what": None if cause is None else cause.what,
        "to_do": None if cause is None else cause.to_do or None,
        "collective_order": None if ran is None or result is None else ran.collective_order,
        "decided": decided,
        "step_time_before": None if result is None else result.step_time_before,
        "step_time": None if result is None else result.step_time,
        "peak_memory_before": None if result is None else result.peak_memory_before,
        "peak_memory": None if result is None else result.peak_memory,
    }


def status_of(our_pass: OverlapPass | None, extra: Mapping[str, Any], sees_all: bool) -> Status:
    """What there is to say of a pass, if one is enabled, and of all that was compiled so far."""
    named = () if our_pass is None else our_pass.options.collectives
    operators = {one.operator for one in named}
    orders = decisions.current().orders.values()
    kept = sum(order is None for order in orders)
    history = [outcome_of(ran, []) for ran in session.history]
    return Status(
        options=None if our_pass is None else {**_options(our_pass), **extra},
        settings=[] if our_pass is None else _settings(our_pass, bool(extra.get("rewrite"))),
        graphs=[*watched.graphs] if sees_all else history,
        graphs_without_collectives=watched.without_collectives,
        hidden=[operator for operator in watched.hidden if operator not in operators],
        agreed={"free": len(orders) - kept, "kept": kept},
        fx=[*done],
        partitions=[*decided],
        torchs_own=torchs_own(),
        sees_all=sees_all,
    )


def _options(our_pass: OverlapPass) -> dict[str, Any]:
    options = asdict(our_pass.options)
    # A hash, for caches.
    times = session.times.get(options.pop("times"))
    if times is not None:
        options["profile"] = f"{len(times.profile)} run times" if times.profile else None
        options["estimate"] = getattr(times.estimate, "__name__", times.estimate)
    options["torchs_order"] = our_pass.torchs
    options["collectives"] = [one._asdict() for one in our_pass.options.collectives]
    return options


def _settings(our_pass: OverlapPass, rewrites: bool) -> list[dict[str, Any]]:
    wanted = [*needed(our_pass), *(needed_by_rewrites() if rewrites else ())]
    return [_setting(one, is_as_needed(one)) for one in wanted]


def _setting(one: Needed, as_needed: bool) -> dict[str, Any]:
    values = {"value": shown(one.now()), "needed": shown(one.value)}
    return {"name": one.name, **values, "as_needed": as_needed, "otherwise": one.otherwise}
