"""What torch's dependencies become, on one rank of a group that does nothing."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch._inductor import config
from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._ordered_set import OrderedSet

import halflap
import halflap.torch

FOLDER = pathlib.Path(sys.argv[1]) / "captured"


class Captured:
    """The graph of a program."""

    def __init__(self, program, *inputs, **settings):
        folder = FOLDER / program.__name__
        with halflap.torch.capture(folder), config.patch(settings):
            torch.compile(program, fullgraph=True)(*inputs)
        [path] = folder.iterdir()
        self.graph = json.loads(path.read_text())
        self.nodes = self.graph["nodes"]
        self.maker = {buffer: node for node in self.nodes for buffer in node["outputs"]}

    def one(self, kind):
        [node] = [node for node in self.nodes if node["kind"] == kind]
        return node

    def behind(self, node):
        """Who depends on a node, and how."""
        return {
            other["name"]: dep["kinds"]
            for other in self.nodes
            for dep in other["deps"]
            if self.maker[dep["buffer"]] is node
        }


def reduced_in_place(a):
    b = a @ a
    c = torch.relu(b)
    gathered = collectives.all_gather_tensor(b, 0, dist.group.WORLD)
    d = c @ c
    summed = collectives.all_reduce(b, "sum", dist.group.WORLD)
    return d @ summed, gathered


def check_readers_come_before_who_overwrites():
    """Torch 2.15 marks that as fake. Without locality the all-reduce is done in place, after its
    readers."""
    found = Captured(reduced_in_place, torch.ones(4, 4), reorder_for_locality=False)
    [reduce] = [
        node
        for node in found.nodes
        if node.get("collective", {}).get("op", "").startswith("all_reduce")
    ]
    binding = [found.maker[dep["buffer"]] for dep in reduce["deps"] if dep["kinds"] != ["order"]]
    # What it overwrites was made by a product; a relu reads it, and an all-gather until it is
    # waited for.
    assert {node["kind"] for node in binding} == {"compute", "wait"}, binding
    assert any("relu" in name for node in binding for name in node["ops"]), binding


def gathered_again(a, b):
    def gathered(*all_sent):
        return [collectives.all_gather_tensor(one, 0, dist.group.WORLD) for one in all_sent]

    whole = gathered(a, b, a[:2], a[2:])
    b.add_(1)
    return whole, gathered(a, b)


def check_content_is_equal_only_if_the_same_is_sent():
    """Of an input, of its parts, and of another one before and after it is overwritten."""
    found = Captured(gathered_again, torch.ones(4, 4), torch.zeros(4, 4))
    sent = [node["collective"]["content"] for node in found.nodes if "collective" in node]
    assert len(sent) == 6 and len(set(sent)) == 5, sent


def overlapped(a, b):
    gathered = collectives.all_gather_tensor(a, 0, dist.group.WORLD)
    return b @ a, gathered @ a


def hide(graph):
    """As torch's FX-level scheduling does it: the gather, the first product, the wait. It wants a
    GPU itself."""
    named = {
        getattr(node.target, "__name__", "").split(".")[0]: node for node in reversed(graph.nodes)
    }
    gather, product, wait = named["all_gather_into_tensor"], named["mm"], named["wait_tensor"]
    preserve_node_ordering(graph, {product: OrderedSet([gather]), wait: OrderedSet([product])})


def check_what_is_launched_behind_a_collective_runs_beside_it():
    found = Captured(
        overlapped, torch.ones(64, 64), torch.ones(64, 64), post_grad_custom_post_pass=hide
    )
    gather, wait = found.one("collective"), found.one("wait")
    behind = found.behind(gather)
    assert behind.pop(wait["name"]) == ["data"], behind
    [(product, kinds)] = behind.items()
    assert kinds == ["issued"], kinds
    assert wait["name"] in found.behind(
        next(node for node in found.nodes if node["name"] == product)
    )
    for node in found.nodes:
        node["runtime_ns"] = 1000 if node["name"] in (gather["name"], product) else 0
    assert halflap.simulate(found.graph).step_time == 1000


def overwritten(a):
    gathered = torch.ops._c10d_functional.all_gather_into_tensor(a, 2, dist.group.WORLD.group_name)
    a.add_(1)
    return gathered


def check_what_a_collective_reads_is_overwritten_after_its_end():
    found = Captured(overwritten, torch.ones(64, 64))
    assert [*found.behind(found.one("collective")).values()] == [["weak"]], found.nodes


dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
check_readers_come_before_who_overwrites()
check_content_is_equal_only_if_the_same_is_sent()
check_what_is_launched_behind_a_collective_runs_beside_it()
check_what_a_collective_reads_is_overwritten_after_its_end()
