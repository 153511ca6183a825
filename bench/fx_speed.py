#!/usr/bin/env python3
"""How long the passes over FX graphs take: bench/fx_speed.py [--layers N...] [--profile]

Needs torch and halflap in its own Python. Traces forward and backward of a sharded transformer, on
64 ranks that do not exist, and has `reorder` and `optimize` change both with quick effort. Prints
seconds of the CPU and of the clock, from the FX graph to the changed one, for each number of
layers.
"""

import argparse
import cProfile
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import models  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._functorch.aot_autograd import make_boxed_func  # noqa: E402
from torch._functorch.partitioners import min_cut_rematerialization_partition  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

import halflap.torch  # noqa: E402


def measured(layers, change):
    """Nodes, CPU seconds and seconds of each graph of a model."""
    rows = []

    def compiler(gm, _):
        nodes = len(gm.graph.nodes)
        worked, began = time.process_time(), time.perf_counter()
        change(gm)
        rows.append((nodes, time.process_time() - worked, time.perf_counter() - began))
        return make_boxed_func(gm.forward)

    torch._dynamo.reset()
    size = models.Size(layers=layers, width=64, heads=4, tokens=32)
    backend = aot_autograd(
        fw_compiler=compiler, bw_compiler=compiler, partition_fn=min_cut_rematerialization_partition
    )
    run = torch.compile(models.build("fsdp", size), backend=backend, fullgraph=True)
    run(models.batch(0, size)).sum().backward()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 16, 64])
    parser.add_argument("--profile", action="store_true", help="where the time goes, in Python")
    args = parser.parse_args()
    torch._dynamo.config.cache_size_limit = 64
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    profiler = cProfile.Profile()
    for layers in args.layers:
        for change in (halflap.torch.reorder, halflap.torch.optimize):

            def timed(gm):
                if args.profile:
                    profiler.enable()
                change(gm, device="h100", memory_budget="1.1x")
                profiler.disable()

            for nodes, worked, seconds in measured(layers, timed):
                took = f"{worked:.2f} s of the CPU, {seconds:.2f} s"
                print(f"{change.__name__}, {nodes} nodes: {took}", flush=True)
    failures = [one for one in halflap.torch.status().fx if one.failure]
    print(*[str(one) for one in halflap.torch.status().fx], sep="\n")
    if args.profile:
        profiler.print_stats("cumulative")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
