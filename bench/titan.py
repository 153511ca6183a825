#!/usr/bin/env python3
"""Trains torchtitan's Llama 3 debug model with and without halflap, and compares the losses.

    PY bench/titan.py CHECKOUT [--ways NAME...] [--steps N] [--collective-order free] [--keep DIR]

PY has torch, the wheel and torchtitan's requirements; CHECKOUT is a clone of torchtitan that has
experiments/graph_trainer. Two ranks run torchtitan's own trainer on the CPU of this machine, over
its loopback interface. Nothing is downloaded: the data are random. The exit code is 1 where a bit
of a loss, of a gradient norm or of a parameter differs.

torchtitan is written for GPUs; `run_on_cpu` and `configured` have all that is changed for a CPU.
"""

import argparse
import functools
import hashlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import warnings

RANKS = 2
TOKENS = 128
#: Data come from the first so many words of the vocabulary, so that there is something to learn.
WORDS = 50

JIT = {"mode": "jit", "backend": "inductor"}
#: Compile options of torchtitan.
WAYS = {
    # torch.compile of the model with SimpleFSDP.
    "simple_fsdp": JIT,
    # The same with torch's FX-level scheduling.
    "auto_bucketing": {**JIT, "passes": ["auto_bucketing"]},
    "block_bucketing": {**JIT, "passes": ["transformer_block_bucketing"]},
    # SimpleFSDP, with forward, loss and backward traced into one graph, which Inductor compiles.
    "graph_trainer": {"mode": "aot_fx_trace", "inductor_compilation": "full"},
    # The same graph, interpreted but for regions; halflap's pass is in torchtitan's own list.
    "pass_list": {
        "mode": "aot_fx_trace",
        "inductor_compilation": "regional",
        "pass_pipeline": "halflap",
    },
}
#: What halflap does instead, and what only a GPU has.
LEFT_OUT = ["joint_transformer_block_bucketing_reordering_pass", "cudagraph_pass"]


# --- one rank ---------------------------------------------------------------------------------


def run_on_cpu():
    """Has torchtitan use the CPU, and leaves out what only a GPU has."""
    import torch

    # torchtitan asks this once, when it is imported; without a GPU it assumes CUDA.
    torch._utils._get_available_device_type = lambda: "cpu"
    from torchtitan.components import metrics
    from torchtitan.distributed import utils
    from torchtitan.experiments.graph_trainer import inductor_passes

    class NoMonitor:
        device_name = "CPU"
        peak = metrics.DeviceMemStats(*[0] * len(metrics.DeviceMemStats._fields))

        def get_peak_stats(self):
            return self.peak

        def reset_peak_stats(self):
            pass

    metrics.build_device_memory_monitor = NoMonitor
    # Shortens timeouts after the first step, with a barrier on a numbered device.
    utils.set_pg_timeouts = lambda **_: None
    # Constants are moved to the GPU for CUDA graphs.
    inductor_passes._migrate_cpu_get_attrs_to_cuda = lambda _: None


def data_loader():
    """A loader of random data; each rank and step has its own."""
    from dataclasses import dataclass

    import torch
    from torchtitan.components.data.loader import BaseDataLoader

    class RandomData(BaseDataLoader):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config, *, dp_rank, num_tokens_per_batch, **_):
            self.random = torch.Generator().manual_seed(dp_rank)
            self.tokens = num_tokens_per_batch

        def __iter__(self):
            while True:
                words = torch.randint(WORDS, (self.tokens + 1,), generator=self.random)
                positions = torch.arange(self.tokens)
                yield {"input": words[:-1], "positions": positions}, words[1:]

        def state_dict(self):
            return {}

        def load_state_dict(self, state_dict):
            pass

    return RandomData


def configured(chosen):
    """torchtitan's own configuration of the debug model, with what a CPU needs."""
    from torchtitan.experiments.graph_trainer.configs import GraphTrainerCompileConfig
    from torchtitan.experiments.graph_trainer.llama3 import config_registry

    # The default, flex attention, has no backward kernels for a CPU.
    config = config_registry.graph_trainer_llama3_debugmodel_sdpa_cross_entropy_loss()
    config.hf_assets_path = str(chosen.checkout / "tests" / "assets" / "tokenizer")
    config.dump_folder = str(chosen.keep)
    config.dataloader = data_loader().Config()
    config.training.steps = chosen.steps
    config.training.num_tokens_per_microbatch_per_dp_rank = TOKENS
    config.training.max_context_length = TOKENS
    config.training.disable_cuda_graphs = True
    config.debug.seed = 0
    config.checkpoint.enable = False
    config.metrics.log_freq = 1
    way = WAYS[chosen.ways[0]]
    left_out = LEFT_OUT if "pass_pipeline" in way else LEFT_OUT[1:]
    config.compile = GraphTrainerCompileConfig(enable=True, disable_passes=left_out, **way)
    return config


def add_to_passes(change):
    """The recipe of docs/fx.md: a list of passes with halflap before what compiles regions."""
    from torchtitan.experiments.graph_trainer.passes import construct_default_graph_passes
    from torchtitan.experiments.graph_trainer.registry import register_pass_pipeline

    @register_pass_pipeline("halflap")
    def with_halflap(*given, **named):
        passes = construct_default_graph_passes(*given, **named)
        names = [getattr(one, "func", one).__name__ for one in passes]
        place = next((at for at, name in enumerate(names) if "regional_inductor" in name), None)
        assert place is not None, names
        return [*passes[:place], *change, *passes[place:]]


def rank(chosen):
    """Trains, and writes what came of it."""
    import torch

    sys.path.insert(0, str(chosen.checkout))
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_on_cpu()
        is_listed = "pass_pipeline" in WAYS[chosen.ways[0]]
        change = []
        if chosen.halflap:
            import halflap.torch

            if is_listed:
                given = {"memory_budget": "1.2x", "collective_order": chosen.collective_order}
                change = [functools.partial(halflap.torch.optimize, **given)]
            else:
                halflap.torch.enable(collective_order=chosen.collective_order)
        if is_listed:
            add_to_passes(change)
        trainer = configured(chosen).build()
        steps = []
        trainer.metrics_processor.log = lambda step, mean, most, norm, **_: steps.append(
            [float(value).hex() for value in (mean, most, norm)]
        )
        trainer.train()
    found = {
        "steps": steps,
        "parameters": digest(trainer.model_parts),
        "warnings": sorted({str(one.message) for one in caught if "halflap" in str(one.message)}),
        "graphs": graphs() if chosen.halflap else [],
    }
    (chosen.keep / f"rank{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
    trainer.close()
    torch.distributed.destroy_process_group()


def digest(modules):
    """What tells these parameters from others, bit for bit."""
    import torch

    content = hashlib.sha256()
    for module in modules:
        for value in module.parameters():
            local = value.to_local() if hasattr(value, "to_local") else value
            content.update(local.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def graphs():
    """What halflap did to each graph."""
    import halflap.torch

    changed = halflap.torch.status().fx
    return [
        {
            "name": ran.name,
            "nodes": ran.nodes,
            "collectives": ran.collectives,
            "result": str(ran) if ran in changed else result_of(ran),
        }
        for ran in [*changed, *halflap.torch.history()]
    ]


def result_of(ran):
    if ran.schedule is None:
        return f"torch's own order: {ran.failure}"
    before, after = ran.schedule.step_time_before / 1e3, ran.schedule.step_time / 1e3
    return f"{before:.1f} us -> {after:.1f} us in the simulation"


# --- all ranks --------------------------------------------------------------------------------


def trained(chosen, way, halflap):
    """What the ranks wrote, trained in one way; None where they failed."""
    folder = chosen.keep / f"{way}-{'halflap' if halflap else 'plain'}"
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, str(chosen.checkout), "--ways", way, "--keep", str(folder)]
    command += ["--steps", str(chosen.steps), "--collective-order", chosen.collective_order]
    command += ["--rank", *(["--halflap"] if halflap else [])]
    processes = [start(command, folder, number, port) for number in range(RANKS)]
    try:
        codes = ended(processes, chosen.seconds)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(code != 0 for code in codes):
        for number, code in enumerate(codes):
            log = folder / f"rank{number}.log"
            print(f"  rank {number}: {'no end' if code is None else f'exit {code}'}, {log}")
            print("    " + "\n    ".join(log.read_text().splitlines()[-5:]))
        return None
    return [json.loads((folder / f"rank{number}.json").read_text()) for number in range(RANKS)]


def ended(processes, seconds):
    """How the ranks ended: None for those that had not when one failed, or time was up."""
    ends = time.monotonic() + seconds
    while True:
        codes = [process.poll() for process in processes]
        if None not in codes or any(codes) or time.monotonic() > ends:
            return codes
        time.sleep(0.5)


def start(command, folder, number, port):
    environment = {
        # On virtual machines oneDNN may choose instructions that the host does not let them use.
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        **os.environ,
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        # All share compiled kernels, and none takes a graph from a cache.
        "TORCHINDUCTOR_CACHE_DIR": str(folder.parent / "kernels"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    with open(folder / f"rank{number}.log", "wb") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


def compared(chosen, way):
    """Trains in one way without and with halflap, prints what came of it; whether all is equal."""
    print(way)
    plain, ordered = trained(chosen, way, False), trained(chosen, way, True)
    if plain is None or ordered is None:
        return False
    for name, found in (("plain", plain), ("halflap", ordered)):
        losses = [float.fromhex(step[0]) for step in found[0]["steps"]]
        print(f"  {name:8}" + " ".join(f"{loss:.6f}" for loss in losses))
    for graph in ordered[0]["graphs"]:
        print("  {name}: {nodes} nodes, {collectives} collectives, {result}".format_map(graph))
    for text in sorted({text for found in ordered for text in found["warnings"]}):
        print(f"  warning: {text}")
    if not ordered[0]["graphs"]:
        print("  halflap ordered no graph")
    values = [[(one["steps"], one["parameters"]) for one in found] for found in (plain, ordered)]
    same = values[0] == values[1]
    print(f"  {len(plain[0]['steps'])} steps, bit for bit {'equal' if same else 'NOT EQUAL'}")
    return same


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("checkout", type=lambda given: pathlib.Path(given).resolve())
    usual = ["simple_fsdp", "graph_trainer", "pass_list"]
    arguments.add_argument("--ways", nargs="+", choices=WAYS, default=usual)
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--collective-order", default="auto")
    arguments.add_argument("--keep", type=pathlib.Path, help="where logs and compiled kernels stay")
    arguments.add_argument("--seconds", type=float, default=1800, help="for a training run")
    arguments.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments.add_argument("--halflap", action="store_true", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if not (chosen.checkout / "torchtitan" / "experiments" / "graph_trainer").is_dir():
        arguments.error(f"no torchtitan with experiments/graph_trainer in {chosen.checkout}")
    if chosen.rank:
        rank(chosen)
        return
    with tempfile.TemporaryDirectory() as folder:
        chosen.keep = (chosen.keep or pathlib.Path(folder)).resolve()
        same = [compared(chosen, way) for way in chosen.ways]
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    main()
