"""Starts ranks of real torch, and gives what they wrote."""

import atexit
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
PYTHON = os.environ.get("HALFLAP_TORCH_PYTHON")


def launch(task, folder, *, ranks=4, seconds=900):
    """Runs a task of worker.py, or of tasks_AREA.py as `AREA.function`, on so many ranks, each a
    process of its own; all must end well and in time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = [folder / f"{task}{rank}.json" for rank in range(ranks)]
    for path in results:
        path.unlink(missing_ok=True)
    jobs = [Job.of_rank(task, folder, (rank, ranks, port)) for rank in range(ranks)]
    run_all(jobs, seconds)
    return [json.loads(path.read_text()) if path.exists() else None for path in results]


def run_script(name, folder, *arguments, seconds=600):
    """Runs a script of this folder in a process of its own, which must end well. `folder` is its
    first argument, and has its compile cache."""
    environment = {**common_environment(), "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    asked_for = {"script": str(HERE / f"{name}.py"), "arguments": [*map(str, (folder, *arguments))]}
    run_all([Job(folder / name, environment, asked_for)], seconds)


@dataclasses.dataclass
class Job:
    """What a process is forked for; `files` begins the names of what it writes."""

    files: pathlib.Path
    environment: dict
    asked_for: dict

    @classmethod
    def of_rank(cls, task, folder, place):
        rank, ranks, port = place
        environment = {
            **common_environment(),
            "FOLDER": str(folder),
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            # One for each, as on machines of their own: the first to compile would decide for all.
            "TORCHINDUCTOR_CACHE_DIR": str(folder / f"cache{rank}"),
        }
        return cls(folder / f"{task}{rank}", environment, {"task": task})

    @property
    def ended(self):
        """The file that will say how it ended."""
        return self.files.with_name(f"{self.files.name}.ended")

    @property
    def log(self):
        return self.files.with_name(f"{self.files.name}.log")

    def said(self):
        return self.log.read_text() if self.log.exists() else "nothing was written"


def run_all(jobs, seconds):
    """Forks processes, and waits until all have ended well."""
    try:
        for number, job in enumerate(jobs):
            job.ended.unlink(missing_ok=True)
            places = {"log": str(job.log), "ended": str(job.ended)}
            # Neighbours come from different servers: sets are in another order in each.
            Server.number(number % 2).ask(
                {"environment": job.environment, **places, **job.asked_for}
            )
        await_all(jobs, time.monotonic() + seconds)
    except BaseException:
        # What they left behind, nobody knows.
        stop_servers()
        raise


def await_all(jobs, deadline):
    """Waits until all have ended well, and else says how each stands: the first to fail need not be
    at fault."""
    while True:
        codes = [int(job.ended.read_text()) if job.ended.exists() else None for job in jobs]
        if not any(codes) and None not in codes:
            return
        for number in (number for number, code in enumerate(codes) if code is None):
            Server.number(number % 2).check()
        if any(codes) or time.monotonic() > deadline:
            states = ["still runs" if code is None else f"exit {code}" for code in codes]
            said = [
                f"{job.files.name}: {state}: {job.said()[-2000:]}"
                for job, state in zip(jobs, states)
            ]
            raise AssertionError("\n".join(said))
        time.sleep(0.02)


def common_environment():
    return {
        **os.environ,
        # The models are those of the examples.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")])),
        "GLOO_SOCKET_IFNAME": "lo",
        # Kernels are compiled in the process: pools of workers for each rank would cost more than
        # they gain.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Server:
    """A process of warm.py, from which ranks are forked; in a session of its own, with them."""

    running = {}

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="halflap-ranks-"))
        environment = {
            **common_environment(),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "cache"),
        }
        with open(self.folder / "log", "wb") as output:
            self.process = subprocess.Popen(
                [PYTHON, HERE / "warm.py"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
            )

    @classmethod
    def number(cls, number):
        """One of those that run, which is started if it does not yet."""
        if number not in cls.running:
            cls.running[number] = cls()
        return cls.running[number]

    def ask(self, job):
        self.process.stdin.write(f"{json.dumps(job)}\n")
        self.process.stdin.flush()

    def check(self):
        code = self.process.poll()
        assert code is None, (
            f"ranks cannot be started: exit {code}: {(self.folder / 'log').read_text()[-3000:]}"
        )

    def stop(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@atexit.register
def stop_servers():
    """Ends all of them, with what they started."""
    while Server.running:
        Server.running.popitem()[1].stop()
