"""Gathered parameters that are kept or gathered again, and second process groups, on real ranks."""

from __future__ import annotations

import os
import warnings
from unittest import mock

import models
import torch
import torch.distributed as dist
from sizes import TINY
from tasks_fx import compiled_steps, far_away, same, steps, told
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.distributed import _functional_collectives as collectives
from torch.fx.experimental.proxy_tensor import make_fx

import halflap.torch
from halflap.torch._fx import groups, keep, passes
from halflap.torch._fx.program import Program

RANK = int(os.environ["RANK"])


def trained(partition):
    """Two steps in AOTAutograd's eager backend, and the all-gathers of each graph."""
    gathers = []

    def compiler(gm, _):
        names = [str(node.target) for node in gm.graph.nodes]
        gathers.append(sum("all_gather_into_tensor" in name for name in names))
        return make_boxed_func(gm.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition)
    model = models.build("fsdp", TINY)
    found = steps(model, torch.compile(model, backend=backend, fullgraph=True), TINY)
    return found, gathers


def tried(limit, plain):
    """What a limit leads to."""
    partitioner = halflap.torch.Partitioner(limit, estimate=far_away)
    found, gathers = trained(partitioner)
    return {"same": same(found, plain), "gathers": gathers, **keep.decided[-1].to_dict()}


def called(function, *given, use_reentrant):
    """In the place of `checkpoint`: what was gathered is not gathered again."""
    return function(*given)


def both_directions():
    """A program that gathers again, and one that keeps; limits that let the other be done, and
    some of it."""
    result = {}
    plain, gathers = trained(min_cut_rematerialization_partition)
    result["plain"] = {"gathers": gathers}
    result["kept"] = tried("8x", plain)
    result["within"] = tried(True, plain)
    before, after = result["kept"]["before"]["peak"], result["kept"]["after"]["peak"]
    result["some"] = tried(f"{(before + after) // 2}B", plain)
    with mock.patch.object(models, "checkpoint", called):
        result["again"] = tried("0.1x", plain)
        result["kept as before"] = tried(True, plain)
    result["failed"] = failed(plain)
    return result


def failed(plain):
    """A graph that cannot be handed over is cut in two as torch does it."""
    with mock.patch.object(keep, "hand_over", side_effect=keep.Unsupported("on purpose")):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = tried("8x", plain)
    texts = [str(one.message) for one in warned if "on purpose" in str(one.message)]
    return {**found, "told": len(texts)}


def inductor():
    """Both with Inductor; again, from its cache."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(os.environ["FOLDER"], "kernels")
    plain = compiled_steps()
    result = {}
    for name in ("first", "cached"):
        before, decided = len(passes.done), len(keep.decided)
        with halflap.torch.enable(
            rewrite=["exact", "groups"], memory_budget="4x", keep="1.2x", collective_order="free"
        ):
            found = compiled_steps()
            shown = str(halflap.torch.status())
        done = passes.done[before:]
        result[name] = {
            "same": same(found, plain),
            "decided": len(keep.decided) - decided,
            "status": shown,
            "regrouped": sum(len(one.rewrites.regrouped) for one in done),
            "second": sorted(groups.second_groups().values()),
            **told(done),
        }
    return result


def groups_made_while_compiling(function, given):
    """In a backend of one's own, where a compiler traces with fake tensors."""

    def compiler(gm, inputs):
        optimized = halflap.torch.optimize(gm, rewrite="groups", collective_order="auto")
        return make_boxed_func(optimized.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler)
    found = torch.compile(function, backend=backend, fullgraph=True)(*given)
    return all(map(torch.equal, found, function(*given)))


def second_groups():
    """All-gathers beside reduce-scatters move; alone they stay. Ranks that cannot make groups say
    so, and stay with those they have."""
    world = dist.group.WORLD

    def both(a, b):
        gathered = collectives.all_gather_tensor(a, 0, world)
        return gathered @ b, collectives.reduce_scatter_tensor(b @ b, "sum", 0, world)

    def alone(a, b):
        return (collectives.all_gather_tensor(a, 0, world) @ b,)

    torch.manual_seed(RANK)
    given = torch.randn(4, 8), torch.randn(8, 8)
    result = {}
    for case in ("broken", "compiled", "both", "alone"):
        function = alone if case == "alone" else both
        if case == "compiled":
            found = groups_made_while_compiling(function, given)
            regrouped = len(passes.done[-1].rewrites.regrouped)
            result[case] = {"same": found, "regrouped": regrouped, "told": []}
            continue
        gm = make_fx(function, tracing_mode="fake")(*given)
        broken = mock.Mock(side_effect=RuntimeError("no group"))
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            make = broken if case == "broken" else dist.new_group
            with mock.patch.object(dist, "new_group", make):
                halflap.torch.optimize(gm, rewrite="groups", collective_order="auto")
        result[case] = {
            "same": all(map(torch.equal, gm(*given), function(*given))),
            "regrouped": len(passes.done[-1].rewrites.regrouped),
            "told": [str(one.message) for one in warned if "second process" in str(one.message)],
            "shared": [
                group["second_of"]
                for group in Program(gm.graph).graph()["groups"].values()
                if "second_of" in group
            ],
        }
    return result
