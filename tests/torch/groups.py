"""Process groups that are no names but objects in the graph. Nothing communicates, and no kernel is
compiled."""

import json
import pathlib
import tempfile

import torch
import torch.distributed as dist
from torch._inductor import scheduler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import halflap.torch


class Scheduled(Exception):
    """The order is there."""


def stop(_):
    raise Scheduled


def captured(weights):
    """The graphs of a function that gathers each of its weights before it uses it."""

    def loss(x):
        for weight in weights:
            whole = weight.redistribute(placements=[Replicate()])
            x = torch.relu(x @ whole.to_local(grad_placements=[Partial()]))
        return x.sum()

    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder:
        with halflap.torch.capture(folder):
            try:
                torch.compile(loss, fullgraph=True)(torch.ones(4, 8)).backward()
            except Exception as problem:
                assert "Scheduled" in str(problem), problem
        return [json.loads(path.read_text()) for path in pathlib.Path(folder).glob("*.json")]


def check_compile_on_one_rank(weights):
    """With `compile_on_one_rank` the groups are known, and messages are as large as without."""
    names = captured(weights)
    torch.compiler.config.compile_on_one_rank = True
    objects = captured(weights)
    torch.compiler.config.compile_on_one_rank = False
    assert names and len(names) == len(objects)
    for named, graph in zip(names, objects):
        assert graph["groups"] == named["groups"] and "unknown" not in graph["groups"]
        # What is sent has the group object's name in it.
        found, expected = [
            [
                {**node["collective"], "content": None}
                for node in one["nodes"]
                if "collective" in node
            ]
            for one in (graph, named)
        ]
        assert found == expected and len(found) == len(weights)
    assert all(ran.failure is None for ran in halflap.torch.history()), halflap.torch.history()
    # Other ranks run this program: it must not ask with the names of this rank's groups.
    assert halflap.torch.history()[-1].collective_order == "kept"


if hasattr(torch.compiler.config, "compile_on_one_rank"):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    scheduler.Scheduler.codegen = stop
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    whole = [torch.ones(8, 8), torch.ones(8, 8)]
    check_compile_on_one_rank(
        [torch.nn.Parameter(distribute_tensor(one, mesh["model"], [Shard(0)])) for one in whole]
    )
    dist.destroy_process_group()
