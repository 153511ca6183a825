#!/usr/bin/env python3
"""torchtitan's Llama 3 at the widths of 8B with SimpleFSDP, on ranks that do not exist: what
torch's and halflap's orders and rewrites come to in the simulation.

    PY bench/titan_8b.py CHECKOUT [--layers N] [--tokens N] [--ranks N] [--ways NAME...] [-o FILE]

PY has torch, the wheel and torchtitan's requirements; CHECKOUT is a clone of torchtitan that has
experiments/graph_trainer. Nothing is downloaded and nothing is executed: tensors have only shapes.
Forward and backward are compiled by Inductor up to the generation of code, as bench/compiling.py
does it, with halflap's model of an H100's run times for everybody; all ways are those of that file.
"""

import argparse
import dataclasses
import functools
import pathlib
import sys
import tempfile

import compiling
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

WAYS = [
    "none",
    "simple_overlap",
    "fx",
    "fx merging",
    "halflap free",
    "halflap merged",
    "halflap split",
]


def on_cpu(checkout):
    """Has torchtitan use the CPU: it asks once, when it is imported, and assumes CUDA."""
    sys.path.insert(0, str(checkout))
    torch._utils._get_available_device_type = lambda: "cpu"


def model_of(layers, ranks):
    """Sharded as torchtitan shards it, in bfloat16 where it computes."""
    from torchtitan.config import TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.experiments.graph_trainer.common_utils import apply_simple_fsdp
    from torchtitan.experiments.graph_trainer.llama3 import model_registry

    # The default, flex attention, has no backward kernels for a CPU.
    config = model_registry("8B", attn_backend="sdpa").model
    config = dataclasses.replace(config, layers=config.layers[:layers])
    one = {name: 1 for name in ("dp_replicate", "cp", "tp", "pp", "ep")}
    dims = ParallelDims(dp_shard=ranks, world_size=ranks, spmd_backend="partial_dtensor", **one)
    with torch.device("meta"):
        model = config.build()
    return apply_simple_fsdp(model, parallel_dims=dims, training=TrainingConfig())


def loss_of(layers, tokens, ranks, backend):
    """A loss of all logits."""
    # Meshes of ranks are tensors with values.
    with unset_fake_temporarily():
        model = model_of(layers, ranks)
    model.to_empty(device="cpu")
    run = torch.compile(model, backend=backend, fullgraph=True)
    words = torch.zeros(tokens, dtype=torch.long)
    positions = torch.arange(tokens)
    made = run(words, positions=positions)
    return torch.nn.functional.cross_entropy(made.float().flatten(0, -2), words)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("checkout", type=lambda given: pathlib.Path(given).resolve())
    arguments.add_argument("--layers", type=int, default=8)
    arguments.add_argument("--tokens", type=int, default=8192, help="of one rank")
    arguments.add_argument("--ranks", type=int, default=64)
    arguments.add_argument("--ways", nargs="+", choices=compiling.WAYS, default=WAYS)
    arguments.add_argument("-o", "--output", type=pathlib.Path)
    arguments.add_argument(
        "--fx", action="append", default=[], type=compiling.setting, metavar="NAME=VALUE"
    )
    chosen = arguments.parse_args()
    if not (chosen.checkout / "torchtitan" / "experiments" / "graph_trainer").is_dir():
        arguments.error(f"no torchtitan with experiments/graph_trainer in {chosen.checkout}")
    compiling.CHANGED.update(chosen.fx)
    on_cpu(chosen.checkout)
    compiling.start(chosen.ranks)
    loss = functools.partial(loss_of, chosen.layers, chosen.tokens, chosen.ranks)
    with tempfile.TemporaryDirectory() as folder:
        output = chosen.output or pathlib.Path(folder) / "results.json"
        results = compiling.results_of(chosen.ways, loss, output)
    for way, found in results.items():
        step, peak = found["step_time"] / 1e6, found["peak_memory"] / 2**30
        nodes, sent = "+".join(map(str, found["nodes"])), found["collectives"]
        print(f"{way:20} {step:8.2f} ms  {peak:6.2f} GiB  {nodes} nodes, {sent} collectives")
        for text in found["rewrites"] if "merged" in way or "split" in way else ():
            print(f"    {text}")


if __name__ == "__main__":
    main()
