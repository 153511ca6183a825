#!/usr/bin/env python3
"""What it costs to generate a program in both orders of collectives, as `"auto"` does.

    PY bench/both_programs.py [--layers N] [--rounds N]

PY has torch 2.15 and halflap. Compiles the training step of an FSDP transformer
(examples/models.py) with torch alone and in each order, in turns, and prints medians of the
processor's time, without compiling kernels, and the size of the generated text. Nothing
communicates.
"""

import argparse
import contextlib
import logging
import pathlib
import statistics
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

import models
import torch
import torch.distributed as dist
from torch._inductor import compile_fx, config
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import halflap.torch

WAYS = {
    "torch alone": contextlib.nullcontext,
    "halflap, kept": lambda: halflap.torch.enable(collective_order="kept"),
    "halflap, free": lambda: halflap.torch.enable(collective_order="free"),
    "halflap, auto": lambda: halflap.torch.enable(collective_order="auto"),
}


class Generated(Exception):
    """Raised once a program's text exists, so that it is not compiled."""


def compiled(size):
    """Seconds of the processor, and the bytes of both graphs' texts."""
    found = {"seconds": 0.0, "bytes": 0}

    def stop(graph):
        text, *_ = graph.codegen()
        found["bytes"] += len(text.value)
        raise Generated

    def inner(module, inputs, **options):
        started = time.process_time()
        with contextlib.suppress(Exception):
            compile_fx.compile_fx_inner(module, inputs, **options)
        found["seconds"] += time.process_time() - started
        run = lambda values: module(*values)  # noqa: E731
        run._boxed_call = True
        return run

    def backend(module, inputs):
        return compile_fx.compile_fx(module, inputs, inner_compile=inner)

    torch._dynamo.reset()
    whole = GraphLowering.compile_to_module
    GraphLowering.compile_to_module = stop
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = torch.compile(models.build("fsdp", size), backend=backend, fullgraph=True)
            model(models.batch(0, size)).square().mean().backward()
    finally:
        GraphLowering.compile_to_module = whole
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    config.fx_graph_cache = False
    size = models.Size(args.layers, 4096, 32, 4096)
    # What is loaded once is not on anybody's time.
    compiled(models.Size(1, 4096, 32, 4096))
    rounds = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way, enabled in WAYS.items():
            with enabled():
                rounds[way].append(compiled(size))
    print("| | up to the programs' text, CPU time | text |\n| --- | --- | --- |")
    for way, found in rounds.items():
        seconds = statistics.median(one["seconds"] for one in found)
        print(f"| {way} | {seconds:.2f} s | {found[0]['bytes'] / 1000:.0f} kB |")


if __name__ == "__main__":
    main()
