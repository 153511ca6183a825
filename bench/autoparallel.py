#!/usr/bin/env python3
"""Trains a small model that autoparallel shards, with and without halflap, and compares every bit.

    PY bench/autoparallel.py CHECKOUT [--layers N] [--steps N]

PY has torch, the wheel and autoparallel's requirements (pulp, filecheck); CHECKOUT is a clone of
autoparallel. Two ranks run on the CPU of this machine, over its loopback interface. Nothing is
downloaded. The exit code is 1 where a bit of a result or of a gradient differs.

autoparallel is written for GPUs; `run_on_cpu` has all that is changed for a CPU.
"""

import argparse
import pathlib
import socket
import sys
import tempfile

import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.tensor.placement_types import Shard

RANKS = 2
BATCH, TOKENS, WIDTH, HEADS = 4 * RANKS, 32, 64, 4


class Layer(nn.Module):
    """Attention and two products, each after what came before."""

    def __init__(self):
        super().__init__()
        linear = lambda taken, given: nn.Linear(taken, given, bias=False)
        self.query, self.key, self.value, self.out = (linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = lambda of: of(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(
            heads(self.query), heads(self.key), heads(self.value)
        )
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def init_weights(self):
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def run_on_cpu():
    """Costs are those of an H100, and torch's FX-level scheduling, which measures on a GPU, is left
    out: halflap orders and merges instead."""
    import autoparallel.compile

    torch.cuda.get_device_name = lambda device=None: "NVIDIA H100"
    autoparallel.compile._INDUCTOR_OVERLAP_PATCHES.clear()


def placed(options):
    """The model, sharded by autoparallel."""
    from autoparallel.api import AutoParallel

    mesh = distributed.device_mesh.init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    with torch.device("meta"):
        model = Model(options.layers)
    with AutoParallel(model, lambda: torch.rand(BATCH, TOKENS, WIDTH), mesh) as parallel:
        parallel.add_parameter_memory_constraint(low=None, high=None)
        parallel.add_input_constraints([(Shard(0),)])
        parallel.add_output_constraints([(Shard(0),)])
        model = parallel.apply_placement(parallel.optimize_placement())
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    model.init_weights()
    return model


def trained(model, steps):
    """The results of all steps, and the gradients."""
    from autoparallel.compile import autoparallel_backend

    compiled = torch.compile(model, backend=autoparallel_backend(enable_ac=False))
    torch.manual_seed(1 + distributed.get_rank())
    results = []
    for _ in range(steps):
        result = compiled(torch.rand(BATCH // RANKS, TOKENS, WIDTH))
        result.backward(torch.ones_like(result))
        results.append(result.detach())
    return results + [parameter.grad.to_local() for parameter in model.parameters()]


def run_rank(rank, port, options, way, kept):
    sys.path.insert(0, options.checkout)
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    run_on_cpu()
    model = placed(options)
    if way == "halflap":
        import halflap.torch

        halflap.torch.enable(rewrite="exact", memory_budget="1.5x")
    torch.save(trained(model, options.steps), kept / f"{way}-{rank}.pt")
    if way == "halflap" and rank == 0:
        print(halflap.torch.status())
    distributed.destroy_process_group()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = pathlib.Path(folder)
        for way in ("plain", "halflap"):
            multiprocessing.spawn(run_rank, (free_port(), options, way, kept), RANKS)
        read = lambda way, rank: torch.load(kept / f"{way}-{rank}.pt")
        pairs = [
            pair for rank in range(RANKS) for pair in zip(read("plain", rank), read("halflap", rank))
        ]
    differ = sum(not torch.equal(*pair) for pair in pairs)
    print(f"{len(pairs)} arrays compared, {differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
