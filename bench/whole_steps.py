#!/usr/bin/env python3
"""Captures whole training steps of other programs than those of tests/corpus.

    PY bench/whole_steps.py FOLDER [--only NAME]...

PY has torch and the wheel. A step is the forward and the backward pass and plain gradient descent
of one of examples/models.py, traced as one graph, which Inductor schedules; nothing is executed:
tensors have only shapes, and the process group does nothing. Writes NAME.graph.json.gz, with run
times modelled on h100s with 8 ranks in a node.
"""

import argparse
import dataclasses
import gzip
import json
import pathlib

import compiling
import models
import torch
import torch.distributed as dist
from torch import nn
from torch._inductor import compile_fx, config, scheduler
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.func import functional_call
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint



@dataclasses.dataclass(frozen=True)
class Step:
    kind: str
    ranks: int
    size: models.Size
    #: Whether the backward pass computes blocks again, and gathers their parameters again.
    recomputes: bool = False


STEPS = {
    "fsdp_4x4096": Step("fsdp", 64, models.Size(4, 4096, 32, 4096), recomputes=True),
    "fsdp_12x2048": Step("fsdp", 8, models.Size(12, 2048, 16, 2048), recomputes=True),
    "tp_4x8192": Step("tensor_parallel", 8, models.Size(4, 8192, 64, 1024)),
    "tp_8x4096": Step("tensor_parallel", 8, models.Size(8, 4096, 32, 512), recomputes=True),
    "experts_4x4096": Step("expert_parallel", 8, models.Size(4, 4096, 32, 4096)),
    "experts_8x2048": Step("expert_parallel", 16, models.Size(8, 2048, 16, 4096), recomputes=True),
}
RATE = 0.01


class Recomputed(nn.Module):
    """A block that is computed again in the backward pass."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def traced(of):
    """A whole step as a graph of operators, and what it is given."""
    torch.set_default_dtype(torch.bfloat16)
    model, tokens = models.build(of.kind, of.size), models.batch(0, of.size)
    torch.set_default_dtype(torch.float32)
    if of.recomputes:
        model = nn.Sequential(*map(Recomputed, model))
    names = [name for name, _ in model.named_parameters()]
    given = [*model.parameters(), tokens]

    def step(*values):
        parameters = [value.detach().requires_grad_() for value in values[:-1]]
        result = functional_call(model, dict(zip(names, parameters)), values[-1])
        gradients = torch.autograd.grad(result.float().square().mean(), parameters)
        return [one - RATE * gradient for one, gradient in zip(values, gradients)]

    return make_fx(step, select_decomp_table())(*given), given


def captured(of):
    """The graph that Inductor schedules."""
    found = {}

    def stop(scheduled):
        program = compiling.handed_over(compiling.in_order(scheduled.nodes))
        program.describe()
        found["graph"] = program.graph()
        raise compiling.Scheduled

    scheduler.Scheduler.codegen = stop
    plain = config.patch({compiling.SIMPLE: False})
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, plain:
        module, given = traced(of)
        given = [mode.from_tensor(one) for one in given]
        try:
            compile_fx.compile_fx_inner(module, given)
        except Exception:
            if not found:
                raise
    return found["graph"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", metavar="NAME", action="append", choices=STEPS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    config.fx_graph_cache = False
    for name in args.only or STEPS:
        step = STEPS[name]
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=step.ranks)
        graph = {**captured(step), "source": {"torch": torch.__version__, "program": name}}
        dist.destroy_process_group()
        data = gzip.compress(json.dumps(graph).encode(), mtime=0)
        (args.folder / f"{name}.graph.json.gz").write_bytes(data)
        print(f"{name}: {len(graph['nodes'])} nodes", flush=True)


if __name__ == "__main__":
    main()
