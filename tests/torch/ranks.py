"""Starts ranks of real torch, and gives what they wrote."""

import atexit
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
    """Runs a task of worker.py, or of tasks_AREA.py as `AREA.function`, on so many ranks, each a process of its own; all
    must end well and in time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = [(rank, ranks, port) for rank in range(ranks)]
    results = [folder / f"{task}{rank}.json" for rank in range(ranks)]
    for path in results:
        path.unlink(missing_ok=True)
    try:
        ended = [start(task, folder, place) for place in places]
        await_all(ended, time.monotonic() + seconds, lambda rank: log(folder, task, rank))
    except BaseException:
        # What they left behind, nobody knows.
        stop_servers()
        raise
    return [json.loads(path.read_text()) if path.exists() else None for path in results]


def start(task, folder, place):
    """Starts one rank; gives the file that will say how it ended."""
    rank, ranks, port = place
    environment = {
        **common_environment(),
        "FOLDER": str(folder),
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # One for each, as on machines of their own: whoever compiles first would decide for all.
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"cache{rank}"),
    }
    ended = folder / f"{task}{rank}.ended"
    ended.unlink(missing_ok=True)
    # Neighbours come from different servers: sets are in another order in each.
    Server.number(rank % 2).ask(
        {"task": task, "environment": environment, "log": str(folder / f"{task}{rank}.log"), "ended": str(ended)}
    )
    return ended


def await_all(ended, deadline, log_of):
    """Waits until all ranks have ended well, and else says how each stands: the first to fail need not be at fault."""
    while True:
        codes = [int(path.read_text()) if path.exists() else None for path in ended]
        if not any(codes) and None not in codes:
            return
        for rank in (rank for rank, code in enumerate(codes) if code is None):
            Server.number(rank % 2).check()
        if any(codes) or time.monotonic() > deadline:
            states = ["still runs" if code is None else f"exit {code}" for code in codes]
            said = [f"rank {rank}: {state}: {log_of(rank)[-2000:]}" for rank, state in enumerate(states)]
            raise AssertionError("\n".join(said))
        time.sleep(0.02)


def log(folder, task, rank):
    path = folder / f"{task}{rank}.log"
    return path.read_text() if path.exists() else "nothing was written"


def common_environment():
    return {
        **os.environ,
        # The models are those of the examples.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")])),
        "GLOO_SOCKET_IFNAME": "lo",
        # Kernels are compiled in the process: pools of workers for each rank would cost more than they gain.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Server:
    """A process of warm.py, from which ranks are forked; in a session of its own, with them."""

    running = {}

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="halflap-ranks-"))
        environment = {**common_environment(), "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "cache")}
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

    def ask(self, rank):
        self.process.stdin.write(f"{json.dumps(rank)}\n")
        self.process.stdin.flush()

    def check(self):
        code = self.process.poll()
        assert code is None, f"ranks cannot be started: exit {code}: {(self.folder / 'log').read_text()[-3000:]}"

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
