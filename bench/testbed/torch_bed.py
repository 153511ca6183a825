"""A torch program on gloo ranks, in several modes."""

import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path

from testbed import load, rounds, scratch
from testbed.counters import Counters
from testbed.network import CONTROL, DATA, Network
from testbed.ranks import Ranks, cores_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
#: Steps by which the time of a step on links without a limit is found.
UNLIMITED_STEPS = 5
#: How far values may be apart: kernels that are fused differently add up in another order.
CLOSE = 1e-4
PORT = 29500


@dataclass(frozen=True)
class Subject:
    """What is trained, and by which Python."""

    python: str
    #: A model of examples/models.py, with its size, or a file.
    name: str
    size: dict
    #: A profile's contents, instead of measured run times.
    profile: dict
    #: How long `tune` may try orders, where it is a mode.
    tune_seconds: float


def measure(plan, subject, say):
    """Measures one program; gives values that JSON has."""
    with scratch.folder() as folder, Network(plan.ranks) as network:
        environments = [environment(plan, subject, network, rank) for rank in range(plan.ranks)]
        command = [subject.python, str(HERE / "torch_rank.py")]
        with Counters(network) as counters, Ranks(command, network, environments, folder) as ranks:
            own = [os.getpid(), *ranks.pids]
            cores = cores_of(plan.ranks)
            bed = rounds.Bed(network, counters, cores, lambda: load.used_by(own), say)
            return rounds.measure(bed, plan, Program(plan, subject, ranks, say))


def environment(plan, subject, network, rank):
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.ranks),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": network.address(0, CONTROL),
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": DATA,
        "TESTBED_CORE": str(cores_of(plan.ranks)[rank]),
        "TESTBED_SUBJECT": json.dumps([subject.name, subject.size]),
        # Keeps kernels alone, by their source: whole graphs are not cached.
        "TORCHINDUCTOR_CACHE_DIR": str(ROOT / "target" / "testbed"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Program:
    """A program that all ranks have, as `rounds.measure` takes it."""

    def __init__(self, plan, subject, ranks, say):
        self.plan, self.subject, self.ranks, self.say = plan, subject, ranks, say
        self.compiled = {}
        self.figures = {}
        #: What `tune` chose, and what it saw.
        self.tuned = None
        #: Torch's default, if it is measured.
        self.reference = "default" if "default" in plan.modes else plan.modes[0]

    def ask(self, command, **arguments):
        return self.ranks.ask(command, self.plan.patience, **arguments)

    def compile(self, mode):
        self.say(f"compiling {Path(self.subject.name).name}, {mode}")
        self.compiled[mode] = self.ask("compile", mode=mode)
        for line in self.compiled[mode][0]["fx"]:
            self.say(line)

    def unlimited_step(self):
        self.compile("none")
        return statistics.median(self.steps("none", UNLIMITED_STEPS))

    @property
    def payload(self):
        return self.compiled["none"][0]["payload"]

    def prepare(self):
        """Compiles all modes, with run times for the link as it is now."""
        self.figures = self.ask("measure", profile=self.subject.profile)[0]
        if "tuned" in self.plan.modes:
            self.say("tuning")
            self.tuned = self.ask("tune", limit=self.subject.tune_seconds)[0]
        self.compiled.clear()
        for mode in ("none", *self.plan.modes):
            if mode not in self.compiled:
                self.compile(mode)

    def block(self, mode):
        # Merged all-reduces send other bytes.
        payloads = [self.plan.steps * self.compiled[mode][0]["payload"]] * self.plan.ranks
        return self.steps(mode, self.plan.steps), payloads

    def steps(self, mode, count):
        self.ask("rest")
        return [self.ranks.step(mode, self.plan.patience) for _ in range(count)]

    def findings(self):
        values = {mode: self.compared(mode) for mode in self.plan.modes}
        apart = {mode: one["largest_difference"] for mode, one in values.items()}
        simulated = {
            mode: self.ask("simulate", mode=mode)[0] for mode in ("none", *self.plan.modes)
        }
        plain = simulated["none"]
        worked = {mode: self.ask("work", mode=mode) for mode in self.plan.modes}
        return {
            "program": Path(self.subject.name).name,
            "size": self.subject.size,
            "backend": "gloo",
            "torch": self.ask("hello")[0]["torch"],
            "measured": self.figures,
            "tuned": self.tuned,
            "fx": {mode: self.compiled[mode][0]["fx"] for mode in self.plan.modes},
            "simulated": {mode: simulated[mode]["step"] for mode in self.plan.modes},
            "peak_bytes": {mode: simulated[mode]["peak"] for mode in self.plan.modes},
            "bound": plain["bound"],
            "compute": plain["compute"],
            "collectives": plain["collectives"],
            "latency": plain["latency"],
            "core_seconds": {
                mode: max(rank["seconds"] for rank in ranks) for mode, ranks in worked.items()
            },
            "values": values,
            "void": [
                f"parameters of {mode} are not those of none: they differ by {difference:.2g}"
                for mode, difference in apart.items()
                if not difference <= CLOSE
            ],
        }

    def compared(self, mode):
        """Whether the values of a mode are those without overlap."""
        pairs = zip(self.compiled[mode], self.compiled["none"])
        names = ("digest", "losses")
        if all(one[name] == plain[name] for one, plain in pairs for name in names):
            return {"equal_bits": True, "largest_difference": 0.0}
        found = self.ask("difference", mode=mode, reference="none")
        return {"equal_bits": False, "largest_difference": max(one["difference"] for one in found)}
