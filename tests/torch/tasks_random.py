"""Random programs on real ranks: halflap in every order against torch alone, bit for bit."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import tempfile
import time
from contextlib import contextmanager

import random_programs
import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import _gather, _scatter
from random_programs import SIDE
from torch._inductor import config
from torch._inductor.utils import is_collective, is_wait
from torch.distributed import _functional_collectives as collectives

import halflap.torch
from halflap.torch import _agree


def slow_link(snode):
    """Milliseconds on a slow link, where collectives gain much by changing places."""
    if is_wait(snode.node):
        return 0.0
    return 0.3 if is_collective(snode.node) else 0.1


def compiled_step(program, compile_with=torch.compile):
    """The function that a program's text defines, compiled."""
    groups = {"first": dist.group.WORLD, "second": second_group()}
    names = {
        "torch": torch,
        "F": F,
        "SIDE": SIDE,
        "gather": lambda x, group: _gather(x, 0, group),
        "scatter": lambda x, group: _scatter(x, "sum", 0, group),
        "exchange": lambda x, group: collectives.all_to_all_single_autograd(x, None, None, group),
        "reduce": lambda x, group: collectives.all_reduce(x, "sum", group),
        **groups,
    }
    exec(compile(program.text, "<random program>", "exec"), names)
    return compile_with(names["step"], fullgraph=True, dynamic=False)


#: The same on all ranks, which take them in step.
NUMBERS = itertools.count()
_second = []


def second_group():
    if not _second:
        _second.append(dist.new_group(list(range(dist.get_world_size()))))
    return _second[0]


def results(program, seed):
    """What a program, compiled anew, leaves behind."""
    torch._dynamo.reset()
    return left_behind(compiled_step(program), program, seed)


def left_behind(step, program, seed):
    """Everything that two steps leave behind: what is returned, inputs, gradients."""
    torch.manual_seed(1000 * seed + dist.get_rank())
    inputs = [torch.randn(SIDE, SIDE) * 0.5 for _ in range(program.inputs)]
    if program.is_differentiated:
        inputs = [value.requires_grad_() for value in inputs]
    found = []
    for _ in range(2):
        returned = step(inputs)
        if program.is_differentiated:
            sum(value.square().mean() for value in returned).backward()
            found += [value.grad.clone() for value in inputs if value.grad is not None]
        found += [value.detach().clone() for value in (*returned, *inputs)]
    return found


@contextmanager
def ordered(order):
    """`kept`, `free`, `auto`, or `refused`: auto on ranks that do not agree."""
    before = _agree._all_agree
    if order == "refused":
        _agree._all_agree = lambda skeleton: False
    # As in another process group: what was decided for other programs does not count.
    _agree.decisions.world = None
    _agree.decisions.prefix = f"halflap/agree {next(NUMBERS)}"
    enabled = "auto" if order == "refused" else order
    try:
        with halflap.torch.enable(collective_order=enabled, estimate=slow_link):
            yield
    finally:
        _agree._all_agree = before


def compare(seed, orders, program=None):
    """What differs, as text; how often collectives changed places; what failed."""
    program = program or random_programs.program(seed)
    expected = results(program, seed)
    differences, moved = [], 0
    for order in orders:
        began = len(halflap.torch.history())
        with ordered(order):
            found = results(program, seed)
        ran = halflap.torch.history()[began:]
        moved += sum(one.collective_order == "either" for one in ran)
        differs = _on_any_rank(_differ(found, expected))
        if differs and _is_stable(program, seed, expected) and not _races(program, seed):
            differences.append(f"seed {seed}, {order}: values differ\n{program.text}")
        differences += [f"seed {seed}, {order}: {one.failure}" for one in ran if one.failure]
    return differences, moved


def _differ(found, expected):
    return len(found) != len(expected) or not all(map(torch.equal, found, expected))


def _on_any_rank(flag):
    told = torch.tensor(float(flag))
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return bool(told)


def _is_stable(program, seed, expected):
    """Whether torch alone gives the same results each time. It does not wait for a collective that
    reads an input before it changes that input in place."""
    return not any([_on_any_rank(_differ(results(program, seed), expected)) for _ in range(3)])


def _races(program, seed):
    """Whether something is overwritten, in torch's own order, while a collective may still read it:
    on a busy machine that shows now and then, whatever the order."""
    with tempfile.TemporaryDirectory() as folder:
        with halflap.torch.capture(folder):
            results(program, seed)
        graphs = [json.loads(path.read_text()) for path in pathlib.Path(folder).iterdir()]
    return any(_overwrites_under_way(graph) for graph in graphs)


def _overwrites_under_way(graph):
    collectives = [node for node in graph["nodes"] if node["kind"] == "collective"]
    under_way = {name for node in collectives for name in node["outputs"]}
    return any(
        dep["buffer"] in under_way and "weak" in dep["kinds"]
        for node in graph["nodes"]
        if node["kind"] == "compute"
        for dep in node["deps"]
    )


def fuse_little(little):
    """Kernels of one operation each are compiled once for all programs, which saves most time."""
    config.max_fusion_size = 1 if little else 64
    config.realize_opcount_threshold = 0 if little else 30
    config.realize_reads_threshold = 0 if little else 4


def overwritten():
    """A buffer that a free order reads later than what may overwrite it in place runs."""
    prepare("python")
    fuse_little(True)
    read_later = compare(0, ["free", "auto"], random_programs.READ_LATER)
    copied_before = compare(random_programs.COPIED_BEFORE, ["free"])
    part = compare(random_programs.PART_OF_ANOTHER, ["kept"])
    return {"differences": read_later[0] + copied_before[0] + part[0], "moved": read_later[1]}


def prepare(wrapper):
    config.cpp_wrapper = wrapper == "cpp"
    # One for all ranks: they compile the same kernels.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(os.environ["FOLDER"], "kernels")
    # Caches of graphs would hide what is compiled; those of kernels save most of the time.
    config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    config.cpp.simdlen = 1


#: A sweep in two orders of each program takes those that are two apart.
ORDERS = ("free", "auto", "kept", "refused")


def orders_of(seed, count):
    """All orders in turn, each after as many programs as any other."""
    if seed % 8 == 0:
        return ORDERS
    return [ORDERS[(seed + 2 * number) % len(ORDERS)] for number in range(count)]


def sweep():
    """The seeds of the environment: every eighth program in all orders, the rest in as many as
    ORDERS says."""
    first, count = int(os.environ["FIRST_SEED"]), int(os.environ["SEEDS"])
    prepare(os.environ.get("WRAPPER", "python"))
    differences, moved, began = [], 0, time.monotonic()
    for seed in range(first, first + count):
        fuse_little(seed % 8 != 0)
        found, times = compare(seed, orders_of(seed, int(os.environ["ORDERS"])))
        differences += found
        moved += times
    seconds = time.monotonic() - began
    return {"differences": differences, "moved": moved, "programs": count, "seconds": seconds}
