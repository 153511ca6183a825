"""Starts ranks of real torch, and gives what they wrote."""

import json
import os
import pathlib
import socket
import subprocess
import time

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
PYTHON = os.environ.get("HALFLAP_TORCH_PYTHON")


def launch(task, folder, *, ranks=4, seconds=900):
    """Runs a task of worker.py on so many ranks; all must end well and in time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [start(task, folder, (rank, ranks, port)) for rank in range(ranks)]
    ends = time.monotonic() + seconds
    try:
        for rank, process in enumerate(processes):
            code = process.wait(timeout=max(1, ends - time.monotonic()))
            assert code == 0, f"rank {rank}: exit {code}: {log(folder, task, rank)[-3000:]}"
    finally:
        for process in processes:
            process.kill()
            process.wait()
    written = [folder / f"{task}{rank}.json" for rank in range(ranks)]
    return [json.loads(path.read_text()) if path.exists() else None for path in written]


def start(task, folder, place):
    rank, ranks, port = place
    environment = {
        **os.environ,
        # The models are those of the examples.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")])),
        "FOLDER": str(folder),
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        # One for each, as on machines of their own: whoever compiles first would decide for all.
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"cache{rank}"),
        # Kernels are compiled in the process: pools of workers for each rank would cost more than they gain.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with open(folder / f"{task}{rank}.log", "wb") as output:
        return subprocess.Popen([PYTHON, HERE / "worker.py", task], env=environment, stdout=output, stderr=output)


def log(folder, task, rank):
    return (folder / f"{task}{rank}.log").read_text()
