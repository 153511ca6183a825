"""An FX graph handed over to the library, and an order of it searched for."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from torch.fx import Graph

from ..._api import Graph as Given
from ..._api import Schedule, schedule
from .._devices import modelled_on
from .._pass import Options, session, threads, times_key
from .._times import Times
from .program import Program
from .times import fill


def times_of_fx(options: Options) -> Options:
    """Options of a pass over scheduler nodes, for one over FX graphs: what the user has to say of
    run times is said of scheduler nodes, and is left out."""
    times = session.times[options.times]
    key = times_key(dict(times.profile), None)
    session.times[key] = Times(times.profile, None)
    return replace(options, times=key)


def hand_over(graph: Graph, options: Options) -> Program:
    """A graph with run times."""
    times = session.times.get(options.times)
    if times is None:
        raise RuntimeError("the profile that run times come from is not in this process")
    program = Program(graph, options.collectives, options.unbacked)
    fill(program, times, modelled_on(options.device, options.ranks_per_node))
    return program


def ordered(text: bytes, options: Options, collective_order: str, **more: Any) -> Schedule:
    """The best order of a graph in the library's format."""
    if collective_order == "kept":
        more["order_collectives"] = "all"
    given = {"memory_budget": options.memory_budget, "effort": options.effort, **more}
    with warnings.catch_warnings():
        # Of the graph: they are for those who made it, and that was us.
        warnings.simplefilter("ignore")
        return schedule(
            Given(text),
            collective_order=collective_order,
            threads=threads(),
            slowdown=options.slowdown,
            comm_slowdown=options.comm_slowdown,
            **given,
        )
