"""What the torch examples share: ranks as processes on this machine, and the command line."""

from __future__ import annotations

import argparse
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import models

RANKS = 4


def main(kind: str, about: str) -> None:
    """Trains a model on four ranks, and prints the result."""
    arguments = argparse.ArgumentParser(description=about)
    arguments.add_argument(
        "--halflap", action="store_true", help="have halflap order the compiled graphs"
    )
    arguments.add_argument("--eager", action="store_true", help="do not compile")
    arguments.add_argument("--steps", type=int, default=5)
    arguments.add_argument(
        "--report-dir", default="halflap-report", help="where halflap's pages go"
    )
    chosen = arguments.parse_args()
    if chosen.halflap and chosen.eager:
        arguments.error("--halflap orders compiled graphs: there are none with --eager")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(rank, args=(port, kind, chosen), nprocs=RANKS)


def rank(number: int, port: int, kind: str, chosen: argparse.Namespace) -> None:
    """One rank; the first one prints."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS)
    rendezvous = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(
        "gloo",
        init_method=rendezvous,
        rank=number,
        world_size=RANKS,
        timeout=timedelta(seconds=120),
    )
    if chosen.halflap:
        import halflap.torch

        halflap.torch.enable(report_dir=chosen.report_dir)
    seconds: list[float] = []
    losses = models.train(
        models.build(kind), chosen.steps, compiled=not chosen.eager, seconds=seconds
    )
    if number == 0:
        print("losses    " + " ".join(f"{loss:.6f}" for loss in losses))
        print(f"step time {1e3 * min(seconds):.1f} ms, the first {1e3 * seconds[0]:.0f} ms")
        if chosen.halflap:
            tell(chosen.report_dir)
    # A rank whose peers are gone may abort.
    dist.barrier()
    dist.destroy_process_group()


def tell(folder: str) -> None:
    """What halflap did on this rank."""
    import halflap.torch

    for ran in halflap.torch.history():
        if ran.schedule is not None:
            before, after = ran.schedule.step_time_before / 1e3, ran.schedule.step_time / 1e3
            print(
                f"halflap   {ran.name}: {before:.1f} us -> {after:.1f} us in the simulation, {folder}/{ran.name}.html"
            )
