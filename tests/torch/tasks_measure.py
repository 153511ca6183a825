"""`measure` and `tune` on real ranks. Nothing here depends on how long anything takes."""

from __future__ import annotations

import os
import pathlib
import warnings

import models
import torch
import torch.distributed as dist
from sizes import TINY

import halflap.torch
from halflap.torch import _pass, _tune

FOLDER = pathlib.Path(os.environ["FOLDER"])


def make_step():
    """A training step of a small model, and what it leaves behind."""
    torch.manual_seed(0)
    model = models.build("fsdp", TINY)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = torch.compile(model, fullgraph=True)
    batch = models.batch(0, TINY)

    def step():
        loss = run(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step.model = model
    return step


def left_by(step):
    return [parameter.detach().clone() for parameter in step.model.parameters()]


def profile():
    """What `measure` gives, and what it changes."""
    plain = make_step()
    for _ in range(7):
        plain()
    expected = left_by(plain)
    torch._dynamo.reset()
    step = make_step()
    path = FOLDER / f"profile{dist.get_rank()}.json"
    measured = halflap.torch.measure(step, steps=2, out=path)
    # It has compiled in an order of its own, and this is compiled again.
    with halflap.torch.capture(FOLDER / f"graphs{dist.get_rank()}"):
        halflap.torch.enable(profile=path)
        for _ in range(2):
            step()
    halflap.torch.disable()
    # And without the profile, like graphs that were captured before anything was measured.
    torch._dynamo.reset()
    with halflap.torch.capture(FOLDER / f"plain{dist.get_rank()}"):
        step()
    return {
        "with": simulated("graphs", profile=path),
        "later": simulated("plain", profile=path),
        "never": simulated("plain"),
        "times": measured.times,
        "figures": [measured.slowdown, measured.comm_slowdown, measured.outside_ns],
        "is_equal": all(map(torch.equal, left_by(step), expected)),
        "settings": str(halflap.torch.status()),
    }


def simulated(folder, **options):
    """The last forward and backward graph that were captured, as `halflap simulate` has them."""
    captured = sorted((FOLDER / f"{folder}{dist.get_rank()}").iterdir())
    kinds = {path.stem.rpartition("_")[2]: path for path in captured}
    return {kind: halflap.simulate(path, **options).to_dict() for kind, path in kinds.items()}


def tuned():
    """What `tune` gives on ranks that are alike."""
    path = FOLDER / f"tuned{dist.get_rank()}.json"
    found = halflap.torch.tune(make_step, seconds=1.0, memory_budgets=["1x", "1.5x"], out=path)
    uses = {}
    for order in ("default", "none", "kept", "free"):
        torch._dynamo.reset()
        began = len(halflap.torch.history())
        chosen = _tune.Tuned(_tune.Candidate(order), (), 0, found.measured, "quick", {})
        with halflap.torch.enable(tuned=chosen) as enabled:
            step = make_step()
            step()
            status = halflap.torch.status()
        ran = [ran.collective_order for ran in halflap.torch.history()[began:]]
        uses[order] = {"ran": ran, "option": enabled.overlap_pass.options.collective_order}
        uses[order]["status"] = str(status).splitlines()[0]
        uses[order]["last"] = status.to_dict()["graphs"][-1]
    return {"tuned": found.to_dict(), "text": str(found), "uses": uses}


def rewritten():
    """Candidates of `tune` with merged collectives, from one set of parameters each."""
    measured = halflap.torch.measure(make_step(), steps=1)
    # Nothing but latency, so that merging pays.
    times = {name: 1e7 if " of 2, " in name else time for name, time in measured.times.items()}
    left = {}

    def compared(step, field, names, limit):
        start = left_by(step)
        for name in names:
            with torch.no_grad():
                for parameter, value in zip(step.model.parameters(), start):
                    parameter.copy_(value)
            field.choose(name)
            step()
            left[name] = left_by(step)
        return [dict.fromkeys(names, 1.0)] * 6

    rounds, _tune._rounds = _tune._rounds, compared
    given = {"memory_budgets": ["2x"], "rewrites": ["exact"], "profile": times}
    found = halflap.torch.tune(make_step, **given)
    _tune._rounds = rounds
    best = _tune.Candidate("free", "2x", "exact")
    chosen = _tune.Tuned(best, (), 0, found.measured, "quick", {})
    chosen.save(FOLDER / f"chosen{dist.get_rank()}.json")
    with halflap.torch.enable(tuned=FOLDER / f"chosen{dist.get_rank()}.json"):
        status = str(halflap.torch.status()).splitlines()[0]
    return {
        "tried": [row.candidate.name for row in found.rows],
        "is_equal": {
            name: all(map(torch.equal, own, left["default"])) for name, own in left.items()
        },
        "status": status,
    }


def left_out():
    """Ways that fail on one rank, and ranks that have different programs."""
    find = _pass.OverlapPass.find

    def failing(self, *given):
        if self.options.collective_order == "kept" and dist.get_rank() == 1:
            raise MemoryError("no room")
        return find(self, *given)

    _pass.OverlapPass.find = failing
    one_fails = halflap.torch.tune(make_step, seconds=1.0, profile={})
    _pass.OverlapPass.find = find
    torch._dynamo.reset()

    described = _tune.Variants.described

    def different(self, way):
        # As if each rank had another program.
        return described(self, way)._replace(collectives=[[f"op{dist.get_rank()}"]])

    _tune.Variants.described = different
    differ = halflap.torch.tune(make_step, seconds=1.0, profile={})
    _tune.Variants.described = described
    return {"one_fails": one_fails.left_out, "differ": differ.left_out}


def timeline():
    """A step as it ran, in torch's order and in a free one."""
    plain = make_step()
    for _ in range(4):
        plain()
    expected = left_by(plain)
    found = {}
    for order in ("default", "free"):
        torch._dynamo.reset()
        step = make_step()
        path = FOLDER / f"{order}{dist.get_rank()}.json"
        with warnings.catch_warnings(record=True) as told, halflap.torch.enable():
            warnings.simplefilter("always")
            known = len(halflap.torch.status().graphs)
            ran = halflap.torch.timeline(step, order=order, profile={}, steps=2, out=path)
            past = halflap.torch.status().graphs[known:]
        found[order] = {
            "past": [graph.name for graph in past],
            "told": [str(one.message) for one in told if "without halflap" in str(one.message)],
            "comparison": ran.comparison.to_dict(),
            "text": str(ran),
            "page": len(ran.report().html),
            "is_equal": all(map(torch.equal, left_by(step), expected)),
        }
    return found
