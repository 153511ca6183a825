"""An HLO module on ranks of Open MPI, in several orders: `halflap run --backend mpi`."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from testbed import load, payload, rounds, scratch
from testbed.counters import Counters
from testbed.network import CONTROL, DATA, Network, Unavailable
from testbed.ranks import PR_SET_PDEATHSIG, RankFailed, cores_of

#: The module of bench/run.py: layers, rows and width.
LAYERS = (8, 1024, 256)
#: Arguments of halflap; all orders but the first are found with times measured in the first.
MODES = {
    "input": ["--input-order"],
    "kept": ["--collective-order", "kept"],
    "free": ["--collective-order", "free"],
}
#: The first step of a run warms up.
WARM_STEPS = 1
#: Runs a rank and writes the CPU time that it used, which mpirun does not hand on.
TIMED = ["sh", "-c", '"$@"; code=$?; times > "$USED.$OMPI_COMM_WORLD_RANK"; exit $code', "rank"]
SETTINGS = {
    # Messages go over the links that are measured, those of the launcher do not.
    "btl": "tcp,self",
    "btl_tcp_if_include": DATA,
    "pml": "ob1",
    "oob_tcp_if_include": CONTROL,
    # halflap's threads sleep between polls. One that yields instead loses a whole time slice.
    "mpi_yield_when_idle": "0",
}


def measure(plan, halflap, module, say):
    """Measures one module; gives values that JSON has."""
    for tool in ("mpirun", "nsenter", "unshare", "taskset"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is missing (Debian: apt-get install openmpi-bin util-linux)")
    if not Path(halflap).is_file():
        raise Unavailable(
            f"{halflap}: no such command; "
            "build it with cargo build --profile dist, or name it with --halflap BIN"
        )
    with scratch.folder() as folder, Network(plan.ranks) as network:
        launcher = Launcher(network, folder, plan.patience)
        program = Program(plan, launcher, halflap, module)
        with Counters(network) as counters:
            bed = rounds.Bed(network, counters, cores_of(plan.ranks), launcher.used, say)
            return rounds.measure(bed, plan, program)


class Program:
    """A module in several orders, as `rounds.measure` takes it."""

    def __init__(self, plan, launcher, halflap, module):
        self.plan, self.launcher, self.halflap, self.name = plan, launcher, halflap, module
        self.module, self.times = launcher.folder / "module.txt", launcher.folder / "times.json"
        text = layers(plan.ranks) if module == "layers" else Path(module).read_text()
        self.module.write_text(text)
        self.payload = payload.of_module(text, payload.Transport.MPI)
        self.outputs = payload.output_bytes(text)
        self.reference = plan.modes[0]
        #: How many times as long compute and communication take beside each other.
        self.contention = ["1", "1"]

    def unlimited_step(self):
        return self.run("input")["step_time"] / 1e9

    def prepare(self):
        self.run("input", "--profile-out", self.times)
        found = self.run("free", "--compare")["compared"]["contention"]
        self.contention = [str(max(1.0, found[name])) for name in ("slowdown", "comm_slowdown")]

    def block(self, mode):
        in_steps = (self.plan.steps + WARM_STEPS) * self.payload
        # In the end, rank 0 gets the outputs of all others.
        payloads = [in_steps] + [in_steps + self.outputs] * (self.plan.ranks - 1)
        return [time / 1e9 for time in self.run(mode)["step_times"]], payloads

    def run(self, mode, *more):
        """The summary of a run on all ranks."""
        command = [self.halflap, "run", self.module, "--backend", "mpi", "--json"]
        command += ["--threads-per-rank", "1", "--steps", self.plan.steps + WARM_STEPS]
        command += [*self.order(mode), *more]
        return json.loads(self.launcher.run(list(map(str, command))))

    def order(self, mode):
        name, _, budget = mode.partition("@")
        times = [] if name == "input" else ["--profile", self.times, *self.slower()]
        return MODES[name] + times + (["--memory-budget", budget] if budget else [])

    def slower(self):
        return [
            word
            for option, factor in zip(("--slowdown", "--comm-slowdown"), self.contention)
            for word in (option, factor)
        ]

    def findings(self):
        return {
            "program": Path(self.name).name,
            "size": {},
            "backend": "Open MPI",
            "measured": dict(zip(("slowdown", "comm_slowdown"), map(float, self.contention))),
            "simulated": {mode: self.simulated(mode) for mode in self.plan.modes},
            "values": {},
        }

    def simulated(self, mode):
        """Seconds of a step by halflap's simulator, with times measured in the input order."""
        order = ["simulate", "--profile", self.times, *self.slower()]
        if mode != "input":
            order = ["schedule", *self.order(mode)]
        command = [self.halflap, *order, self.module, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            shown = " ".join(map(str, command))
            raise RankFailed(f"{shown}: exit code {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)["step_time"] / 1e9


def layers(ranks):
    from run import layers

    return layers(*LAYERS, ranks)


class Launcher:
    """mpirun in the switch's namespace, which starts ranks in theirs."""

    def __init__(self, network, folder, patience):
        self.network, self.folder, self.patience = network, folder, patience
        self._used_by_ranks = 0.0
        self._agent = agent(network, folder)

    def used(self):
        """CPU seconds of all that was launched and of this process, so far."""
        return load.used_by([os.getpid()]) + self._used_by_ranks

    def run(self, command):
        """What rank 0 prints. All processes share a process namespace, and end with mpirun."""
        settings = {"plm_rsh_agent": str(self._agent), **SETTINGS}
        mpirun = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--leave-session-attached"]
        mpirun += [word for name, value in settings.items() for word in ("--mca", name, value)]
        with self.network.switch.entered():
            process = subprocess.Popen(
                ["unshare", "--pid", "--fork", "--kill-child", *mpirun, *self._ranks(command)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=self._environment(),
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        try:
            output, said = process.communicate(timeout=self.patience)
        except subprocess.TimeoutExpired:
            raise RankFailed(f"mpirun did not end within {self.patience:.0f} s") from None
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            raise RankFailed(f"mpirun: exit code {process.returncode}\n{said.strip()[-3000:]}")
        files = self.folder.glob("used.*")
        self._used_by_ranks += sum(children_seconds(path.read_text()) for path in files)
        return output

    def _ranks(self, command):
        """mpirun's arguments: each rank on a host and a core of its own."""
        words = []
        for rank, core in enumerate(cores_of(len(self.network.ranks))):
            host = self.network.address(rank, CONTROL)
            words += [":", "-n", "1", "--host", host, *TIMED, "taskset", "-c", str(core), *command]
        return words[1:]

    def _environment(self):
        # Open MPI names its files by process numbers, which are the same in every run here.
        files = tempfile.mkdtemp(prefix="", dir=self.folder)
        return {**os.environ, "TMPDIR": files, "USED": str(self.folder / "used")}


def agent(network, folder):
    """The program by which mpirun runs a command on a host: it enters that host's namespace."""
    spaces = {network.address(rank, CONTROL): one.path for rank, one in enumerate(network.ranks)}
    cases = "\n".join(f"{host}) namespace={path};;" for host, path in spaces.items())
    path = folder / "agent"
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


def children_seconds(times):
    """CPU seconds of a shell's children, from what its `times` prints."""
    parts = [part.removesuffix("s").split("m") for part in times.splitlines()[1].split()]
    return sum(60 * float(minutes) + float(seconds) for minutes, seconds in parts)


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
