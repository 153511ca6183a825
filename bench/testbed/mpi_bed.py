"""An HLO module on ranks of Open MPI, in several orders: `halflap run --backend mpi`."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from testbed import load, payload, rounds
from testbed.counters import Counters
from testbed.network import CONTROL, DATA, Network, Rate, Unavailable
from testbed.ranks import RankFailed, cores_of

#: The module of bench/run.py: layers, rows and width.
LAYERS = (8, 1024, 256)
#: Arguments of halflap in each mode; all but the first go by times that were measured in the first.
MODES = {"input": ["--input-order"], "kept": ["--collective-order", "kept"], "free": ["--collective-order", "free"]}
#: Runs a rank, and writes what it used of the processor: mpirun ends before it could be asked.
TIMED = ["sh", "-c", '"$@"; code=$?; times > "$TESTBED_USED.$OMPI_COMM_WORLD_RANK"; exit $code', "rank"]
#: The first step of a run warms up.
WARM_STEPS = 1


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    halflap: str
    module: str
    ranks: int
    modes: list
    #: Either of both, as in torch_bed.
    rate: Rate | None
    ratio: float | None
    rounds: int
    steps: int
    patience: float


def measure(plan, say):
    """Measures one module; gives values that JSON has."""
    for tool in ("mpirun", "nsenter", "unshare", "taskset"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is missing (Debian: apt-get install openmpi-bin util-linux)")
    if not Path(plan.halflap).is_file():
        raise Unavailable(f"{plan.halflap}: there is no such command; build it with cargo build --release, or say --halflap BIN")
    with tempfile.TemporaryDirectory(prefix="halflap-testbed-") as folder, Network(plan.ranks) as network:
        network.limit(None)
        with Counters(network) as counters:
            measurement = Measurement(plan, network, Path(folder))
            return measurement.run(rounds.Bed(counters, cores_of(plan.ranks), measurement.used), say)


class Measurement:
    """One module, from its first run to the last round."""

    def __init__(self, plan, network, folder):
        self.plan, self.network, self.folder = plan, network, folder
        self.module = self.folder / "module.txt"
        self.module.write_text(text_of(plan))
        self.times = folder / "times.json"
        self.agent = agent(network, folder)
        self.used_by_ranks = 0.0

    def used(self):
        return load.used_by([os.getpid()]) + self.used_by_ranks

    def run(self, bed, say):
        plan = self.plan
        text = self.module.read_text()
        sent = payload.of_module(text, payload.Transport.MPI)
        in_steps = (plan.steps + WARM_STEPS) * sent
        # In the end, rank 0 gets what all others have computed.
        payloads = [in_steps] + [in_steps + payload.output_bytes(text)] * (plan.ranks - 1)
        compute = self.halflap("input")["step_time"] / 1e9
        rate = plan.rate or Rate(8 * sent / (plan.ratio * compute))
        say(f"a step takes {compute:.3f} s on links without a limit and sends {sent / 1e6:.1f} MB; links have {rate}")
        self.network.limit(rate)
        self.halflap("input", "--profile-out", self.times)

        def block(mode):
            return [time / 1e9 for time in self.halflap(mode)["step_times"]], payloads

        found = rounds.measure(bed, plan.modes, plan.rounds, block)
        result = rounds.summary(found, plan.rounds, plan.modes[0])
        return {
            "program": Path(plan.module).name, "size": {}, "backend": "Open MPI", "ranks": plan.ranks,
            "cores": bed.cores, "is_oversubscribed": len(set(bed.cores)) < plan.ranks,
            "rate_bits": rate.bits, "payload_bytes": sent, "unlimited_step": compute,
            "communication": sent / rate.bytes, "values": {}, "simulated": self.simulated(),
            **result,
        }  # fmt: skip

    def halflap(self, mode, *more):
        """The summary of a run on all ranks."""
        name, _, budget = mode.partition("@")
        command = [self.plan.halflap, "run", self.module, "--backend", "mpi", "--json", "--threads-per-rank", 1]
        command += ["--steps", self.plan.steps + WARM_STEPS, *MODES[name], *more]
        command += ["--memory-budget", budget] if budget else []
        command += ["--profile", self.times] if name != "input" else []
        return json.loads(self.launched(list(map(str, command))))

    def launched(self, command):
        """What rank 0 prints. All processes are in a namespace of their own, and end with the first of them."""
        # Every launcher and daemon has files of its own: by process numbers and names alone, they would share them.
        files = tempfile.mkdtemp(prefix="", dir=self.folder)
        contexts = []
        for rank, core in enumerate(cores_of(self.plan.ranks)):
            contexts += [":"] if contexts else []
            contexts += ["-n", "1", "--host", self.network.address(rank, CONTROL), *TIMED, "taskset", "-c", str(core), *command]
        with self.network.switch.entered():
            process = subprocess.Popen(
                ["unshare", "--pid", "--fork", "--kill-child", *mpirun(self.agent), *contexts],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "TMPDIR": files, "TESTBED_USED": str(self.folder / "used")}, start_new_session=True, preexec_fn=end_with_parent,
            )  # fmt: skip
        try:
            output, said = process.communicate(timeout=self.plan.patience)
        except subprocess.TimeoutExpired:
            raise RankFailed(f"mpirun did not end within {self.plan.patience:.0f} s") from None
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            raise RankFailed(f"mpirun: exit code {process.returncode}\n{said.strip()[-3000:]}")
        self.used_by_ranks += sum(children_seconds(path.read_text()) for path in self.folder.glob("used.*"))
        return output

    def simulated(self):
        """Seconds of a step by halflap's simulator, with the times that were measured in the input order."""
        found = {}
        for mode in self.plan.modes:
            name, _, budget = mode.partition("@")
            command = [self.plan.halflap, "simulate" if name == "input" else "schedule", self.module, "--json", "--profile", self.times]
            command += MODES[name] if name != "input" else []
            command += ["--memory-budget", budget] if budget else []
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise RankFailed(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
            found[mode] = {"step": json.loads(done.stdout)["step_time"] / 1e9}
        return found


def text_of(plan):
    if plan.module != "layers":
        return Path(plan.module).read_text()
    from run import layers

    return layers(*LAYERS, plan.ranks)


def agent(network, folder):
    """What mpirun runs a command on a host with: it enters the host's namespace, with a host name of its own."""
    path = folder / "agent"
    cases = "\n".join(f"{network.address(rank, CONTROL)}) namespace={space.path};;" for rank, space in enumerate(network.ranks))
    path.write_text(f"""#!/bin/sh
host=$1; shift
case $host in
{cases}
esac
export TMPDIR="$TMPDIR/$host"
mkdir "$TMPDIR"
exec nsenter --net="$namespace" unshare --uts sh -c "hostname rank-$host; exec $*"
""")
    path.chmod(0o755)
    return path


def mpirun(agent):
    settings = {
        "plm_rsh_agent": agent,
        # Messages go over the links that are measured, those of the launcher do not.
        "btl": "tcp,self",
        "btl_tcp_if_include": DATA,
        "pml": "ob1",
        "oob_tcp_if_include": CONTROL,
        "mpi_yield_when_idle": 1,
    }
    command = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--leave-session-attached"]
    return command + [str(word) for name, value in settings.items() for word in ("--mca", name, value)]


def children_seconds(times):
    """Of the children of a shell, from what its `times` prints."""
    minutes = [part.removesuffix("s").split("m") for part in times.splitlines()[1].split()]
    return sum(60 * float(whole) + float(rest) for whole, rest in minutes)


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
