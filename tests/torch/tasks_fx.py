"""FX graphs on real ranks: ordered and rewritten in every way to compile, bit for bit."""

from __future__ import annotations

import copy
import functools
import json
import os
import time
import warnings
from contextlib import contextmanager
from datetime import timedelta
from unittest import mock

import models
import random_programs
import tasks_random
import torch
import torch.distributed as dist
from sizes import TINY
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import compile_fx, config, scheduler
from torch.distributed import _functional_collectives as collectives
from torch.fx.experimental.proxy_tensor import make_fx

import halflap.torch
from halflap.torch._fitting import to_take_back
from halflap.torch._fx import passes
from halflap.torch._fx.check import sequence_of
from halflap.torch._fx.merge import merge_all
from halflap.torch._fx.regions import Cuts, reaches_back
from halflap.torch._fx.restore import Backup
from halflap.torch._fx.split import split_all

RANK = int(os.environ["RANK"])

#: A machine on which communication takes about as long as compute.
SLOW = {"peak_tflops": 0.04, "memory_gb_per_s": 6, "ranks_per_node": 1, "launch_us": 0.1}
SLOW |= {"nvlink_gb_per_s": 0.15, "network_gb_per_s": 0.15}
SLOW |= {"network_base_us": 1, "network_hop_us": 1, "network_ramp_us": 0}
aten, functional = torch.ops.aten, torch.ops._c10d_functional


def far_away(node):
    """Milliseconds over a link with a large latency, where merging gains much."""
    name = str(node.target)
    if "wait_tensor" in name:
        return 0.0
    if "c10d_functional" in name:
        sent = node.meta["val"].numel() + node.args[0].meta["val"].numel()
        return 1.0 + 1e-6 * sent
    return 0.2 if ".mm" in name else 0.01


def by_size(node):
    """Milliseconds by size alone: nothing is gained by merging, and much by cutting."""
    value = node.meta["val"]
    if "wait_tensor" in str(node.target) or not isinstance(value, torch.Tensor):
        return 0.0
    sent = max(value.nbytes, node.args[0].meta["val"].nbytes) if "c10d" in str(node.target) else 0
    return 2.5e-4 * sent if sent else 5e-4 * value.numel() if "mm" in str(node.target) else 1e-6


def unchanged(gm, inputs):
    return gm


class Variants:
    """What AOTAutograd traces, once, as it is and after each of several changes: tracing takes
    longer than all changes. One of them runs at a time."""

    def __init__(self, changes):
        self.changes = {"unchanged": unchanged, **changes}
        self.running = "unchanged"
        #: What passes did for each.
        self.done = {name: [] for name in self.changes}
        self.backend = aot_autograd(
            fw_compiler=self.compiler,
            bw_compiler=self.compiler,
            partition_fn=min_cut_rematerialization_partition,
        )

    def compiler(self, gm, inputs):
        compiled = {}
        for name, change in self.changes.items():
            before = len(passes.done)
            compiled[name] = change(copy.deepcopy(gm), inputs).forward
            self.done[name] += passes.done[before:]
        return make_boxed_func(lambda *given: compiled[self.running](*given))

    def compile(self, function, **options):
        return torch.compile(function, backend=self.backend, **options)


def steps(model, run, size=models.SMALL):
    """Losses, and all parameters after some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(2):
        loss = run(models.batch(step, size)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def compiled_steps(kind="fsdp", size=TINY):
    """The same of a model with sharded parameters, compiled by Inductor."""
    torch._dynamo.reset()
    model = models.build(kind, size)
    return steps(model, torch.compile(model, fullgraph=True), size)


def same(found, expected):
    return found[0] == expected[0] and all(map(torch.equal, found[1], expected[1]))


def told(ran):
    """What passes did: merged collectives, failures, whether anything was gained."""
    return {
        "graphs": len(ran),
        "merged": sum(len(one.members) for ran_one in ran for one in ran_one.rewrites.merged),
        "moved": sum(one.is_moved for one in ran),
        "pieces": sum(len(one.rewrites.split) for one in ran),
        "failures": [one.failure for one in ran if one.failure],
        "faster": all(
            one.schedule.step_time <= one.step_time_before for one in ran if one.schedule
        ),
        "shorter": all(
            one.schedule.step_time < one.order_alone for one in ran if one.rewrites.split
        ),
    }


CHANGES = {
    "kept": functools.partial(halflap.torch.reorder, estimate=far_away),
    "auto": functools.partial(halflap.torch.reorder, estimate=far_away, collective_order="auto"),
    "merged": functools.partial(
        halflap.torch.optimize, estimate=far_away, collective_order="auto", memory_budget="4x"
    ),
    "cut": functools.partial(
        halflap.torch.optimize, rewrite=["merge", "split"], estimate=by_size, memory_budget="4x"
    ),
}


def trained():
    """The examples' models in AOTAutograd's eager backend, plain and with each change."""
    result = {}
    for kind in models.BLOCKS:
        torch._dynamo.reset()
        model, variants = models.build(kind), Variants(CHANGES)
        start = [parameter.detach().clone() for parameter in model.parameters()]
        run = variants.compile(model, fullgraph=True)
        plain = steps(model, run)
        for name in CHANGES:
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), start):
                    parameter.copy_(value)
            variants.running = name
            found = steps(model, run)
            result[f"{kind} {name}"] = {"same": same(found, plain), **told(variants.done[name])}
    return result


def inductor():
    """The same with Inductor, as its custom pass; twice, the second time from the cache."""
    folder = os.path.join(os.environ["FOLDER"], "kernels")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    result = {}
    plain = compiled_steps()
    ours = {"estimate": far_away, "memory_budget": "4x", "collective_order": "free"}
    cases = {"merged": ours, "again": ours, "other": {**ours, "effort": "default"}}
    for name, given in cases.items():
        before = len(passes.done)
        graph_pass = halflap.torch.GraphPass(rewrite="exact", **given)
        with config.patch(post_grad_custom_post_pass=graph_pass):
            with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
                found = compiled_steps()
        result[name] = {"same": same(found, plain), **told(passes.done[before:])}
    before = len(passes.done)
    with halflap.torch.enable(rewrite="exact", memory_budget="4x"):
        found = compiled_steps()
        shown = str(halflap.torch.status())
    did = told(passes.done[before:])
    result["both levels"] = {"same": same(found, plain), "status": shown, **did}
    return result


def one_limit():
    """What rewritten graphs need after fusion, and what the same graphs need as they were; nothing
    is compiled beyond the order."""
    result = {}
    for budget in (1.0, 2.0):
        given = {"memory_budget": budget, "collective_order": "free", "device": "h100"}
        with halflap.torch.enable(**given):
            alone = ordered_graphs()
        before = len(passes.done)
        with halflap.torch.enable(rewrite=["merge", "split"], **given):
            rewritten = ordered_graphs()
        done = passes.done[before:]
        result[str(budget)] = {
            "limits": [int(budget * one.peak_memory_before) for one in alone],
            "peaks": [one.peak_memory for one in rewritten],
            "steps": [one.step_time for one in alone],
            "steps_now": [one.step_time for one in rewritten],
            "rewritten": [any(one.rewrites) for one in done],
            "dropped": [one.dropped for one in done],
            **told(done),
        }
    result["bytes"] = one_size()
    # What the pass over FX graphs gives is no better: the graph stays as it was.
    before, worth = len(passes.done), halflap.torch._pass.WORTH
    halflap.torch._pass.WORTH = 0.0
    try:
        with halflap.torch.enable(rewrite=["merge", "split"], **given):
            kept = ordered_graphs()
    finally:
        halflap.torch._pass.WORTH = worth
    result["dropped"] = {
        "as_before": [one.order for one in kept] == [one.order for one in alone],
        "dropped": [one.dropped for one in passes.done[before:]],
    }
    return result


def one_size():
    """Graphs that may all need what the largest needs. Before fusion that is estimated to need
    more, which must not keep the others from being rewritten."""
    given = {"collective_order": "free", "device": SLOW}
    with halflap.torch.enable(**given):
        alone = ordered_graphs("expert_parallel")
    largest = max(one.peak_memory_before for one in alone)
    before = len(passes.done)
    with halflap.torch.enable(rewrite=["merge", "split"], memory_budget=largest, **given):
        rewritten = ordered_graphs("expert_parallel")
    done = passes.done[before:]
    return {
        "limits": [largest] * len(alone),
        "peaks": [one.peak_memory for one in rewritten],
        "steps": [one.step_time for one in alone],
        "steps_now": [one.step_time for one in rewritten],
        "rewritten": [any(one.rewrites) for one in done],
        **told(done),
    }


def fewer_cuts():
    """Cuts of which only a part fits into memory once all is fused."""
    size = models.Size(layers=2, width=128, heads=8, tokens=128)
    plain = compiled_steps("tensor_parallel", size)
    before, ordered = len(passes.done), len(halflap.torch.history())
    given = {"rewrite": ["merge", "split"], "device": SLOW, "collective_order": "free"}
    with halflap.torch.enable(memory_budget=1.0, **given):
        found = compiled_steps("tensor_parallel", size)
    done = passes.done[before:]
    return {
        "same": same(found, plain),
        "cut": [[cut.to_dict() for cut in one.rewrites.split] for one in done],
        "taken_back": [one.taken_back for one in done],
        "failures": [one.failure for one in done if one.failure],
        "ordered": [one.schedule.order for one in halflap.torch.history()[ordered:]],
    }


def taken_back():
    """Which rewrites are taken back, and what is left of a plan."""
    buffers = {"a": 100, "b": 40, "c": 60, "d": 10}
    graph = {
        "nodes": [{"name": name.upper(), "outputs": [name]} for name in buffers],
        "buffers": [
            {"name": name, "size_alloc": size, "size_free": size, "users": ["D"], "output": False}
            for name, size in buffers.items()
        ],
        "inputs": [{"name": "x", "size": 50, "users": ["A"], "output": False}],
    }
    of = {"A": "first", "B": "second", "C": "second"}
    # The last node has 210 bytes beside it, the third one 200.
    limits = {limit: to_take_back(graph, of, limit) for limit in (210, 200, 170, 120)}
    merge = {"kind": "merge", "members": ["m1", "m2", "m3", "m4", "m5"]}
    plan = passes.Plan([merge], Cuts(frozenset({"s1", "s2", "s3"}), 4))
    less = plan.without([merge["members"], ("s1", "e1"), ("s3",)])
    least = less.without([("m1", "m2"), ("m3", "m4", "m5"), ("e1",), ("s2",)])
    return {
        "restored": restored_from_half_way(),
        "limits": [*limits.values()] == [[], ["first"], ["first"], ["first", "second"]],
        "halves": [one["members"] for one in less.recipes] == [["m1", "m2"], ["m3", "m4", "m5"]],
        "ends": less.cuts.exposed == {"e1", "s2"},
        "least": [one["members"] for one in least.recipes] == [["m4", "m5"]],
        "nothing is cut": not least.cuts.exposed,
    }


def restored_from_half_way():
    """Whether a graph is as it was after a change that left users before what they use."""
    gm = torch.fx.symbolic_trace(lambda x: torch.relu(x + 1) * 2)
    backup, (_, added, relu, doubled, _) = Backup(gm.graph), gm.graph.nodes
    with gm.graph.inserting_after(doubled):
        late = gm.graph.call_function(torch.neg, (added,))
    relu.args = (late,)
    backup.restore()
    gm.graph.lint()
    gm.recompile()
    return torch.equal(gm(torch.ones(2)), torch.full((2,), 4.0)) and len(gm.graph.nodes) == 5


def joined():
    """What is concatenated counts once, from its first part on."""
    folder = os.path.join(os.environ["FOLDER"], "joined")

    def function(x, y):
        gathered = collectives.all_gather_tensor(x, 0, dist.group.WORLD)
        whole = torch.cat([gathered + 1, y * 2, y @ y])
        return whole.T @ whole

    with halflap.torch.capture(folder):
        torch.compile(function, fullgraph=True)(torch.ones(64, 64), torch.ones(64, 64))
    with open(os.path.join(folder, f"rank{RANK}_graph0_inference.json")) as file:
        graph = json.load(file)
    place = {node["name"]: number for number, node in enumerate(graph["nodes"])}
    makers = {name: node for node in graph["nodes"] for name in node["outputs"]}
    size = 4 * 64 * 64
    (first,) = [one for one in graph["buffers"] if one["size_alloc"] == 3 * size]
    late = [node["name"] for node in graph["nodes"] if node.get("gemm_like")][-1]
    others = makers[f"{makers[first['name']]['name']}.issued"]
    return {
        "kept": late in first["users"],
        "first": others is makers[first["name"]],
        "once": sum(one["size_alloc"] for one in graph["buffers"]) < 8 * size,
        "before": place[others["name"]] < place[late],
    }


def ordered_graphs(kind="fsdp"):
    """The orders of a model's graphs; no code is generated."""
    torch._dynamo.reset()
    before = len(halflap.torch.history())

    def inner(gm, inputs, **options):
        try:
            compile_fx.compile_fx_inner(copy.deepcopy(gm), inputs, **options)
        except Exception as problem:
            if "nothing to generate" not in str(problem):
                raise
        return make_boxed_func(gm.forward)

    def codegen(self):
        raise RuntimeError("nothing to generate")

    backend = functools.partial(compile_fx.compile_fx, inner_compile=inner)
    with mock.patch.object(scheduler.Scheduler, "codegen", codegen):
        run = torch.compile(models.build(kind, TINY), backend=backend, fullgraph=True)
        run(models.batch(0, TINY)).square().mean().backward()
    return [ran.schedule for ran in halflap.torch.history()[before:]]


def merged_kinds():
    """Every kind of collective merged, with sizes that ranks can and cannot share evenly."""
    ranks, group = dist.get_world_size(), dist.group.WORLD

    def exchange(*given):
        gathered = [collectives.all_gather_tensor(one, 0, group) for one in given[:3]]
        wide = [one.repeat(ranks, 1) for one in given[:3]]
        scattered = [collectives.reduce_scatter_tensor(one, "sum", 0, group) for one in wide]
        reduced = [collectives.all_reduce(one, "sum", group) for one in given[3:]]
        return [one * 2 for one in (*gathered, *scattered, *reduced)]

    torch.manual_seed(RANK)
    even = [torch.randn(4, 3), torch.randn(8, 5), torch.randn(12, 7)]
    shared = [torch.randn(4, 6), torch.randn(8, 9), torch.randn(16, 1)]
    odd = [torch.randn(3, 5), torch.randn(7), torch.randn(9)]
    result = {}
    for name, given in {"even": [*even, *shared], "odd": [*even, *odd]}.items():
        expected = exchange(*given)
        for exact in (True, False):
            gm = make_fx(exchange, tracing_mode="fake")(*given)
            merge_all(gm.graph, all_of_each_kind(gm.graph), exact)
            gm.graph.lint()
            gm.recompile()
            found = gm(*given)
            result[f"{name} {'exact' if exact else 'all'}"] = {
                "same": all(map(torch.equal, found, expected)),
                "close": all(torch.allclose(*pair, atol=1e-5) for pair in zip(found, expected)),
                "calls": sorted(kind for kind, _ in started(gm.graph)),
            }
    return result


def started(graph):
    """Collectives: their kind and name."""
    nodes = [node for node in graph.nodes if "c10d_functional" in str(node.target)]
    named = [(str(node.target).split(".")[1], node.name) for node in nodes]
    return [(kind, name) for kind, name in named if kind != "wait_tensor"]


def all_of_each_kind(graph):
    """Recipes that merge whatever may be."""
    names = started(graph)
    kinds = dict.fromkeys(kind for kind, _ in names)
    return [
        {"kind": "merge", "members": [name for kind, name in names if kind == wanted]}
        for wanted in kinds
    ]


def cut():
    """Every region that can be cut, into two and four pieces, against the whole."""
    group = dist.group.WORLD

    def tensor_parallel(x, up, down, bias):
        gathered = collectives.all_gather_tensor(x, 0, group)
        hidden = torch.nn.functional.gelu(gathered @ up)
        made = torch.addmm(bias, hidden, down)
        # What was gathered is used elsewhere, too, as a whole.
        return collectives.reduce_scatter_tensor(made, "sum", 0, group) + 1, gathered.sum(0)

    def gradient(x, up, down, bias):
        # What was saved has the same rows and is cut, too; sums over rows need all of them.
        saved = torch.sigmoid(x.repeat(ranks, 1) @ up)
        gathered = collectives.all_gather_tensor(x, 0, group)
        hidden = (gathered @ up) * saved * saved.sum(1, keepdim=True)
        made = collectives.reduce_scatter_tensor(hidden @ down, "sum", 0, group)
        return made, hidden.t() @ gathered

    def experts(x, up, down, bias):
        sent = collectives.all_to_all_single(x, None, None, group)
        hidden = torch.relu(sent @ up) * 0.5
        return (collectives.all_to_all_single(hidden @ down, None, None, group) * 2,)

    def gathered(x, up, down, bias):
        return (collectives.all_gather_tensor(x, 0, group) @ up,)

    def scattered(x, up, down, bias):
        return (collectives.reduce_scatter_tensor(torch.tanh(x @ up), "sum", 0, group),)

    def squared(x, up, down, bias):
        square = x[:16]
        return (collectives.reduce_scatter_tensor(square @ square, "sum", 0, group),)

    def reduced_product(x, up, down, bias):
        return (collectives.all_reduce(x @ up, "sum", group),)

    def along_sequence(x, up, down, bias):
        # What DTensor does for activations [batch, sequence, width] that are sharded by sequence.
        tokens = x.view(2, -1, 16)
        gathered = collectives.all_gather_tensor(tokens, 1, group)
        hidden = torch.nn.functional.silu(gathered @ up) * (gathered @ up.sin())
        made = torch.nn.functional.linear(hidden, down.t().contiguous(), bias)
        return (collectives.reduce_scatter_tensor(made, "sum", 1, group) + tokens,)

    def one_sequence(x, up, down, bias):
        gathered = collectives.all_gather_tensor(x[None], 1, group)
        return (collectives.reduce_scatter_tensor(gathered @ up @ down, "sum", 1, group),)

    def local_experts(x, up, down, bias):
        # Every rank has two experts; what each gets of all ranks is brought together.
        sent = collectives.all_to_all_single(x, None, None, group)
        mine = sent.view(ranks, 2, -1, 16).transpose(0, 1).reshape(2, -1, 16)
        hidden = torch.relu(torch.bmm(mine, torch.stack([up, up.cos()])))
        made = torch.bmm(hidden, torch.stack([down, down.sin()]))
        back = made.view(2, ranks, -1, 16).transpose(0, 1).reshape(-1, 16)
        return (collectives.all_to_all_single(back, None, None, group) * 2,)

    def gated(x, up, down, bias):
        hidden = torch.sigmoid(x @ up) * (x @ up.cos())
        return (collectives.reduce_scatter_tensor(hidden.view(-1, 24), "sum", 0, group),)

    def heads(x, up, down, bias):
        # What is made of a product for others, who rely on its strides.
        made = collectives.all_gather_tensor(x, 0, group) @ up
        return (torch.ops.aten.view(made.view(-1, 2, 12).transpose(0, 1).transpose(0, 1), [-1]),)

    def chained(x, up, down, bias):
        # The second region reads the whole of what the first one makes.
        first = torch.tanh(x @ up)
        second = torch.tanh(first @ down)
        sums = [collectives.reduce_scatter_tensor(one, "sum", 0, group) for one in (first, second)]
        return *sums, first.sum(0), second.sum(0)

    def contracted(x, up, down, bias):
        # Rows of what is gathered are what the product adds up over.
        gathered = collectives.all_gather_tensor(x, 0, group)
        return (up.t() @ gathered.view(16, -1),)

    torch.manual_seed(RANK)
    ranks = dist.get_world_size()
    given = torch.randn(32 * ranks, 16), torch.randn(16, 24), torch.randn(24, 16), torch.randn(16)
    result = {}
    both = (tensor_parallel, gradient, experts, along_sequence, one_sequence, local_experts)
    others = (gathered, scattered, squared, reduced_product, gated, heads, chained, contracted)
    for function in (*both, *others):
        expected = function(*given)
        for pieces in (2, 4):
            gm = make_fx(function, tracing_mode="fake")(*given)
            names = {name for _, name in started(gm.graph)}
            done = split_all(gm.graph, Cuts(names, pieces), exact=True)
            gm.graph.lint()
            gm.recompile()
            result[f"{function.__name__} {pieces}"] = {
                "same": all(map(torch.equal, gm(*given), expected)),
                "cut": sum(len(one.collectives) for one in done),
                "calls": len(started(gm.graph)),
            }
    return {"all": result, "from the end": from_the_end(both, given)}


def from_the_end(functions, given):
    """How many collectives of a region are cut if compute stalls on the last alone."""
    result = {}
    for function in functions:
        expected, found = function(*given), []
        for reach_back in (False, True):
            gm = make_fx(function, tracing_mode="fake")(*given)
            cuts = Cuts(frozenset([started(gm.graph)[-1][1]]), 2, reach_back)
            reaches = reaches_back(gm.graph, cuts)
            done = split_all(gm.graph, cuts, exact=True)
            gm.graph.lint()
            gm.recompile()
            assert all(map(torch.equal, gm(*given), expected)), (function, cuts)
            found.append([sum(len(one.collectives) for one in done), reaches])
        result[function.__name__] = found
    return result


def recipes():
    """Those of docs/fx.md: inference with all-reduces, and gradients of data-parallel ranks."""
    return {
        "inference": inference(),
        "data parallel": data_parallel(),
        "two waits": two_waits(),
        "odd sizes": odd_sizes(),
    }


def two_waits():
    """The gradient of a maximum waits for its all-reduce once more, in a graph with merges."""
    world = dist.group.WORLD

    def model(x, a, b):
        first = collectives.all_gather_tensor(a, 0, world)
        second = collectives.all_gather_tensor(b, 0, world)
        rows = torch.relu(x @ first) @ second
        return rows, collectives.all_reduce(rows.max(1).values, "max", world)

    def step():
        torch._dynamo.reset()
        torch.manual_seed(RANK)
        x, a, b = torch.randn(16, 32), torch.randn(16, 32), torch.randn(16, 32)
        given = [one.requires_grad_() for one in (a, b)]
        rows, largest = torch.compile(model)(x, *given)
        rows.sum().backward()
        return [rows, largest, *[one.grad for one in given]]

    plain, before = step(), len(passes.done)
    with halflap.torch.enable(rewrite="exact", memory_budget="4x"):
        found = step()
    return {"same": all(map(torch.equal, found, plain)), **told(passes.done[before:])}


def odd_sizes():
    """Gradients of which two ranks cannot share one evenly, traced with real tensors, which gives
    each node a fake mode of its own."""

    def model(*given):
        return [collectives.all_reduce(one + 1, "sum", dist.group.WORLD) for one in given]

    torch.manual_seed(RANK)
    given = [torch.randn(size) for size in (64, 65, 62, 66)]
    gm, before = make_fx(model)(*given), len(passes.done)
    options = {"estimate": far_away, "memory_budget": "4x", "collective_order": "free"}
    found = halflap.torch.optimize(gm, rewrite="exact", **options)(*given)
    return {"same": all(map(torch.equal, found, model(*given))), **told(passes.done[before:])}


def inference():
    """Products and all-reduces are cut into pieces that hide each other."""
    torch._dynamo.reset()
    # Next to nothing else to compute.
    model, x, y = Parallel(), torch.randn(32, 16), torch.randn(1, 16)
    change = functools.partial(
        halflap.torch.optimize, rewrite="all", estimate=by_size, memory_budget="4x"
    )
    variants = Variants({"changed": change})
    variants.running = "changed"
    with torch.no_grad():
        found = variants.compile(model, fullgraph=True)(x, y)
        expected = model(x, y)
    return {"same": all(map(torch.equal, found, expected)), **told(variants.done["changed"])}


def data_parallel():
    """DistributedDataParallel with compiled autograd: all-reduces of all parameters, merged."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(os.environ["FOLDER"], "kernels")
    plain = data_parallel_steps()
    before = len(passes.done)
    with halflap.torch.enable(rewrite="exact", memory_budget="4x"):
        found = data_parallel_steps()
    return {"same": all(map(torch.equal, found, plain)), **told(passes.done[before:])}


def data_parallel_steps():
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 16) for _ in range(4)]
    x = torch.randn(8, 16) + RANK
    with torch._dynamo.config.patch(optimize_ddp="python_reducer", compiled_autograd=True):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
        # One all-reduce for each parameter: halflap decides what is merged.
        with config.patch(_fuse_ddp_communication=False):

            @torch.compile
            def step():
                model(x).square().mean().backward()

            for _ in range(2):
                step()
    return [parameter.grad.clone() for parameter in model.parameters()]


def apart():
    """Ranks that do not do the same: one has other options, one fails, one does not come, though
    its process group would not wait as long as halflap does."""
    hasty = dist.new_group([0, 1], timeout=timedelta(seconds=8))

    def exchange(*given):
        group = hasty if case == "hasty" else dist.group.WORLD
        return [collectives.all_gather_tensor(one, 0, group) for one in given]

    given = [torch.full((2, 2), float(RANK))] * 4
    options = {"memory_budget": "8x", "collective_order": "auto", "estimate": far_away}
    case = "expected"
    expected = exchange(*given)
    result = {}
    for case in ("agreed", "options", "failure", "hasty", "absent"):
        halflap.torch._agree.decisions.silent.clear()
        gm = make_fx(exchange, tracing_mode="fake")(*given)
        before = len(passes.done)
        own = dict(options, effort="default") if case == "options" and RANK == 1 else options
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with broken() if case == "failure" and RANK == 1 else steady():
                if case not in ("absent", "hasty") or RANK == 0:
                    within = {} if case == "hasty" else {"agree_within": 3.0}
                    halflap.torch.optimize(gm, **own, **within)
        found = gm(*given)
        texts = [str(one.message) for one in warned if "halflap" in str(one.message)]
        is_same = all(map(torch.equal, found, expected))
        shown = [str(one) for one in passes.done[before:]]
        result[case] = {"same": is_same, "told": texts, **told(passes.done[before:])}
        result[case]["status"] = "".join(shown)
        dist.barrier()
    return result


@contextmanager
def steady():
    yield


@contextmanager
def broken():
    """Merging that fails half way."""
    before = passes.apply

    def raises(*_):
        raise MemoryError("broken on purpose")

    passes.apply = raises
    try:
        yield
    finally:
        passes.apply = before


def random_sweep():
    """Random programs in AOTAutograd's eager backend: every change against none."""
    first, count = int(os.environ["FIRST_SEED"]), int(os.environ["SEEDS"])
    began, before = time.monotonic(), len(passes.done)
    differences = []
    for seed in range(first, first + count):
        differences += differences_of(random_programs.program(seed), seed)
    found = told(passes.done[before:])
    differences += found["failures"]
    return {**found, "differences": differences, "seconds": time.monotonic() - began}


def differences_of(program, seed):
    """Changes of a program with which it computes something else."""
    torch._dynamo.reset()
    variants = Variants(CHANGES)
    step = tasks_random.compiled_step(program, variants.compile)

    def differs(name):
        variants.running = name
        found = tasks_random.left_behind(step, program, seed)
        return tasks_random._on_any_rank(tasks_random._differ(found, expected))

    expected = tasks_random.left_behind(step, program, seed)
    different = [name for name in CHANGES if differs(name)]
    # It may differ each time without any change.
    if different and any([differs("unchanged") for _ in range(3)]):
        return []
    return [f"seed {seed}, {name}: values differ\n{program.text}" for name in different]


def bound():
    """What binds nodes besides the values that they read; each case a graph that has reason to move
    them. The check of a moved graph finds each of them by itself, too."""
    return {name: case() for name, case in BOUND.items()}


def moved(function, *given, **options):
    """A function's graph before and after it was ordered, as names of its calls."""
    gm = make_fx(function, tracing_mode="fake")(*given)
    before = [node.name for node in gm.graph.nodes]
    seed = torch.get_rng_state()
    expected = function(*[one.clone() for one in given])
    after_it = torch.get_rng_state()
    chosen = {"estimate": far_away, "collective_order": "auto", "memory_budget": "8x", **options}
    halflap.torch.reorder(gm, **chosen)
    torch.set_rng_state(seed)
    found = gm(*[one.clone() for one in given])
    same = all(map(torch.equal, found, expected)) and torch.equal(torch.get_rng_state(), after_it)
    return before, [node.name for node in gm.graph.nodes], same


def reduced(x):
    return collectives.all_reduce(x, "sum", dist.group.WORLD)


def collectives_start_early():
    def function(a, b):
        for _ in range(4):
            a = a @ a * 0.1
        return a, reduced(b).add(1)

    before, after, same = moved(function, torch.randn(8, 8), torch.randn(8, 8))
    return (
        same
        and before.index("all_reduce") > before.index("mm_3")
        and (after.index("all_reduce") < after.index("mm") < after.index("wait_tensor"))
    )


def random_numbers_keep_their_sequence():
    def function(a, b):
        first = torch.rand_like(a)
        second = reduced(torch.rand_like(b))
        third = torch.rand_like(a)
        return first @ a, second + third

    before, after, same = moved(function, torch.randn(8, 8), torch.randn(8, 8))
    sequence = [name for name in after if name.startswith("rand")]
    return same and sequence == [name for name in before if name.startswith("rand")]


def writes_keep_their_sequence():
    def function(a, b):
        early = a @ a
        seen = reduced(b)
        shown = b.t()
        b.mul_(2.0)
        late = shown @ a
        b.add_(1.0)
        return early, seen + late, b @ b

    _, after, same = moved(function, torch.randn(8, 8), torch.randn(8, 8))
    return same and after.index("mul_") < after.index("mm_1") < after.index("add_")


def waits_for_one_collective_keep_their_sequence():
    def function(a, b):
        started = functional.all_reduce(b, "sum", dist.group.WORLD.group_name)
        late, early = functional.wait_tensor(started), functional.wait_tensor(started)
        soon = early + 1
        for _ in range(4):
            a = a @ a * 0.1
        return a + late, soon

    _, after, same = moved(function, torch.randn(8, 8), torch.randn(8, 8))
    return same and after.index("wait_tensor") < after.index("wait_tensor_1")


def unknown_operators_keep_their_place():
    def function(a, b):
        first = reduced(a)
        between = torch.ops.fx_tests.all_reduce_of_others(b)
        second = reduced(b)
        return first + 1, between, second + 1

    _, after, same = moved(function, torch.randn(4, 4), torch.randn(4, 4))
    names = ["all_reduce", "all_reduce_of_others", "all_reduce_1"]
    return same and [name for name in after if name in names] == names


@torch.library.custom_op("fx_tests::all_reduce_of_others", mutates_args=())
def all_reduce_of_others(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@all_reduce_of_others.register_fake
def _(x):
    return torch.empty_like(x)


def a_check_finds_what_was_moved():
    """Orders that no search gives: the check refuses each."""
    from halflap.torch._fx.check import check_same, fixed_of
    from halflap.torch._fx.order import arrange
    from halflap.torch._handover import Unsupported

    def function(a, b):
        a.add_(1.0)
        first = torch.rand_like(a)
        second = torch.rand_like(b)
        return first @ a, second, reduced(a), reduced(b)

    gm = make_fx(function, tracing_mode="fake")(torch.randn(4, 4), torch.randn(4, 4))
    nodes = {node.name: node for node in gm.graph.nodes}
    fixed = fixed_of([*gm.graph.nodes])
    refused = 0
    for one, other in (
        ("rand_like", "rand_like_1"),
        ("all_reduce", "all_reduce_1"),
        ("add_", "mm"),
        ("mm", "rand_like"),
    ):
        order = [*gm.graph.nodes]
        order.remove(nodes[other])
        order.insert(order.index(nodes[one]), nodes[other])
        before = [*gm.graph.nodes]
        try:
            arrange(gm.graph, order)
            check_same(fixed, gm.graph, keeps_collectives=True)
        except (Unsupported, RuntimeError):
            refused += 1
        arrange(gm.graph, before)
    return refused == 4


class Parallel(torch.nn.Module):
    """A block whose ranks add up their parts, as in tensor-parallel inference."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(RANK)
        self.up = torch.nn.Parameter(torch.randn(16, 24))
        self.down = torch.nn.Parameter(torch.randn(24, 16))

    def forward(self, x, y):
        for _ in range(3):
            y = torch.relu(y @ self.up) @ self.down * 0.01
        return reduced(torch.relu(x @ self.up) @ self.down).add(1), y


def exported_graphs_are_ordered():
    given = torch.randn(8, 16), torch.randn(8, 16)
    model = Parallel()
    exported = torch.export.export(model, given)
    before = len(passes.done)
    gm = exported.graph_module
    names = [node.name for node in gm.graph.nodes]
    halflap.torch.reorder(gm, estimate=far_away, memory_budget="8x")
    found = exported.module()(*given)
    same = all(map(torch.equal, found, model(*given)))
    return (
        same
        and told(passes.done[before:])["failures"] == []
        and names != [n.name for n in gm.graph.nodes]
    )


def sizes_that_vary_are_not_guarded():
    """A graph of any number of rows runs with another number after it was ordered."""
    model = Parallel()
    rows = [torch.randn(8, 16), torch.randn(8, 16)]
    function = lambda x, y: model(x, y)  # noqa: E731
    gm = make_fx(function, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*rows)
    before = len(passes.done)
    names = [node.name for node in gm.graph.nodes]
    options = {"estimate": far_away, "memory_budget": "8x", "collective_order": "auto"}
    halflap.torch.optimize(gm, rewrite="all", **options)
    others = torch.randn(5, 16), torch.randn(7, 16)
    same = all(map(torch.equal, gm(*others), model(*others)))
    is_moved = names != [node.name for node in gm.graph.nodes]
    return same and is_moved and told(passes.done[before:])["failures"] == []


def a_graph_that_is_not_functional_stays():
    """One of a program's own calls and modules, without sizes; and one without collectives."""

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x):
            return torch.ops._c10d_functional.all_reduce(self.inner(x), "sum", "0")

    module = torch.fx.symbolic_trace(Module())
    plain = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        before = [[node.name for node in one.graph.nodes] for one in (module, plain)]
        halflap.torch.reorder(module)
        halflap.torch.reorder(plain)
    after = [[node.name for node in one.graph.nodes] for one in (module, plain)]
    return before == after and len(warned) == 1 and "not a functional one" in str(warned[0].message)


def conversions_come_before_gathers():
    """Half of the bytes, and the same values."""

    def function(a, b):
        gathered = collectives.all_gather_tensor(a, 0, dist.group.WORLD)
        narrow = torch.ops.prims.convert_element_type(gathered, torch.bfloat16)
        # Another one is also used as it is.
        other = collectives.all_gather_tensor(b, 0, dist.group.WORLD)
        return narrow @ narrow, torch.ops.prims.convert_element_type(other, torch.bfloat16), other

    given = torch.randn(8, 8), torch.randn(8, 8)
    gm = make_fx(function, tracing_mode="fake")(*given)
    halflap.torch.optimize(gm, estimate=by_size, memory_budget="8x", collective_order="auto")
    types = [node.meta["val"].dtype for node in gm.graph.nodes if "all_gather" in str(node.target)]
    same = all(map(torch.equal, gm(*given), function(*given)))
    narrowed = passes.done[-1].rewrites.narrowed
    return (
        same
        and len(narrowed) == 1
        and sorted(map(str, types)) == ["torch.bfloat16", "torch.float32"]
    )


def merges_that_change_more_are_found():
    """Merged, the first gather would read what was written after it; what waits for it would draw
    random numbers later than the second. A merge of gathers of nothing else changes neither."""

    def writes(a, b):
        first = collectives.all_gather_tensor(a, 0, dist.group.WORLD).add(0)
        a.mul_(2.0)
        return first, collectives.all_gather_tensor(b, 0, dist.group.WORLD).add(0)

    def draws(a, b):
        first = collectives.all_gather_tensor(a, 0, dist.group.WORLD)
        drawn = torch.bernoulli(torch.sigmoid(first))
        other = torch.rand_like(b)
        return drawn, collectives.all_gather_tensor(b + other, 0, dist.group.WORLD)

    def neither(a, b):
        first = collectives.all_gather_tensor(a, 0, dist.group.WORLD)
        return torch.rand_like(b), first, collectives.all_gather_tensor(b, 0, dist.group.WORLD)

    found = []
    for function in (writes, draws, neither):
        gm = make_fx(function, tracing_mode="fake")(torch.randn(8, 8), torch.randn(8, 8))
        before = sequence_of([*gm.graph.nodes])
        merged = merge_all(gm.graph, all_of_each_kind(gm.graph), exact=True)
        found.append((len(merged), sequence_of([*gm.graph.nodes]) == before))
    return found == [(1, False), (1, False), (1, True)]


def sets_that_need_each_other_are_not_both_merged():
    """Each set is independent within, and a member of each needs one of the other."""
    ranks = dist.get_world_size()

    def function(a, b):
        first = collectives.all_gather_tensor(a, 0, dist.group.WORLD)
        reduced = collectives.reduce_scatter_tensor(first * 2, "sum", 0, dist.group.WORLD)
        other = collectives.reduce_scatter_tensor(b, "sum", 0, dist.group.WORLD)
        return reduced + 0, collectives.all_gather_tensor(other + 1, 0, dist.group.WORLD) + 0

    given = torch.randn(8, 8), torch.randn(8 * ranks, 8)
    gm = make_fx(function, tracing_mode="fake")(*given)
    merged = merge_all(gm.graph, all_of_each_kind(gm.graph), exact=True)
    gm.graph.lint()
    gm.recompile()
    same = all(map(torch.equal, gm(*given), function(*given)))
    return same and [one.kind for one in merged] == ["all_gather"]


BOUND = {
    function.__name__: function
    for function in (
        collectives_start_early,
        random_numbers_keep_their_sequence,
        writes_keep_their_sequence,
        unknown_operators_keep_their_place,
        waits_for_one_collective_keep_their_sequence,
        a_check_finds_what_was_moved,
        conversions_come_before_gathers,
        merges_that_change_more_are_found,
        sets_that_need_each_other_are_not_both_merged,
        exported_graphs_are_ordered,
        sizes_that_vary_are_not_guarded,
        a_graph_that_is_not_functional_stays,
    )
}
