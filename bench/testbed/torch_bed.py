"""A torch program on gloo ranks, in several modes."""

import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from testbed import load, rounds
from testbed.counters import Counters
from testbed.network import CONTROL, DATA, Network, Rate
from testbed.ranks import Ranks, cores_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
#: Steps by which the time of a step on links without a limit is found.
UNLIMITED_STEPS = 5
#: Values of modes may differ by so much: kernels that are fused in another way add up in another order.
CLOSE = 1e-4
PORT = 29500


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    python: str
    subject: str
    size: dict
    ranks: int
    modes: list
    #: Either of both: the rate of links, or how long communication takes, as a multiple of the rest of a step.
    rate: Rate | None
    ratio: float | None
    rounds: int
    steps: int
    #: Times that come before those of the testbed's model, by name, in nanoseconds.
    profile: dict
    #: How long compiling or a step may take, in seconds.
    patience: float


def measure(plan, say):
    """Measures one program; gives values that JSON has."""
    cores = cores_of(plan.ranks)
    with tempfile.TemporaryDirectory(prefix="halflap-testbed-") as folder, Network(plan.ranks) as network:
        network.limit(None)
        environments = [environment(plan, network, rank, folder) for rank in range(plan.ranks)]
        command = [plan.python, str(HERE / "torch_rank.py")]
        with Counters(network) as counters, Ranks(command, network, environments, folder) as ranks:
            bed = rounds.Bed(counters, cores, lambda: load.used_by([os.getpid(), *ranks.pids]))
            return Measurement(plan, say, network, ranks).run(bed)


def environment(plan, network, rank, folder):
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.ranks),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": network.address(0, CONTROL),
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": DATA,
        "TESTBED_CORE": str(cores_of(plan.ranks)[rank]),
        "TESTBED_SUBJECT": json.dumps([plan.subject, plan.size]),
        # One for each, as on machines of their own.
        "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / f"cache{rank}"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Measurement:
    """One program, from its compilation to the last round."""

    def __init__(self, plan, say, network, ranks):
        self.plan, self.say, self.network, self.ranks = plan, say, network, ranks
        self.compiled = {}

    def run(self, bed):
        plan = self.plan
        torch = self.ask("hello")[0]["torch"]
        self.compile("none")
        payload = self.compiled["none"][0]["payload"]
        compute = statistics.median(self.steps("none", UNLIMITED_STEPS))
        rate = plan.rate or Rate(8 * payload / (plan.ratio * compute))
        self.say(f"a step takes {compute:.3f} s on links without a limit and sends {payload / 1e6:.1f} MB; links have {rate}")
        self.network.limit(rate)
        figures = self.calibrated()
        self.ask("estimate", figures=figures, profile=plan.profile)
        for mode in plan.modes:
            if mode not in self.compiled:
                self.compile(mode)
        found = rounds.measure(bed, plan.modes, plan.rounds, lambda mode: (self.steps(mode, plan.steps), [plan.steps * payload] * plan.ranks))
        values, void = self.compared()
        result = rounds.summary(found, plan.rounds, reference(plan.modes))
        result["void"] += void
        return {
            "program": Path(plan.subject).name, "size": plan.size, "backend": "gloo", "torch": torch, "ranks": plan.ranks,
            "cores": bed.cores, "is_oversubscribed": len(set(bed.cores)) < plan.ranks,
            "rate_bits": rate.bits, "payload_bytes": payload, "unlimited_step": compute,
            "communication": payload / rate.bytes, "calibration": figures, "values": values,
            "simulated": {mode: self.ask("simulate", mode=mode)[0] for mode in plan.modes if not mode.startswith("auto")},
            **result,
        }  # fmt: skip

    def ask(self, command, **arguments):
        return self.ranks.ask(command, self.plan.patience, **arguments)

    def compile(self, mode):
        self.say(f"compiling {self.plan.subject}, {mode}")
        self.compiled[mode] = self.ask("compile", mode=mode)

    def steps(self, mode, count):
        """Seconds of so many steps; one before them is not counted, as caches and connections are cold."""
        self.ask("rest")
        return [self.ranks.step(mode, self.plan.patience) for _ in range(count)]

    def calibrated(self):
        """What the slowest rank achieves: all ranks must have the same figures."""
        found = self.ask("calibrate")
        worst = {"latency": max}
        return {name: worst.get(name, min)(one[name] for one in found) for name in found[0]}

    def compared(self):
        """How values of each mode compare with those without overlap, and why the result is void if they differ."""
        values, void = {}, []
        for mode, answers in self.compiled.items():
            same = all(one["digest"] == plain["digest"] and one["losses"] == plain["losses"] for one, plain in zip(answers, self.compiled["none"]))
            apart = 0.0 if same else max(one["difference"] for one in self.ask("difference", mode=mode, reference="none"))
            values[mode] = {"equal_bits": same, "largest_difference": apart}
            if apart > CLOSE:
                void.append(f"{mode} gives other parameters than none: they are apart by {apart:.2g}")
        return values, void


def reference(modes):
    """What others are compared with: torch's default, if it is measured."""
    return "default" if "default" in modes else modes[0]
