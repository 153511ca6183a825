"""Forks processes that have torch at once: importing it and compiling for the first time takes
longer than most tests.

A line of standard input asks for one, as JSON: the `task` of a rank, or a `script` and its
`arguments`; its `environment`; where its output goes (`log`), and where it is written how it ended
(`ended`). What is forked is a process of its own; nothing is left of it for the next.
"""

import json
import os
import runpy
import select
import signal
import sys
import traceback

import models  # noqa: F401
import torch
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache

import halflap.torch  # noqa: F401


def warm_up():
    """Has torch do what it does once in a process. No backward pass: threads that it starts would
    not be forked."""
    torch.set_num_threads(1)
    torch.compile(lambda x: torch.nn.functional.gelu(x @ x).softmax(-1))(torch.ones(64, 64))
    torch._dynamo.reset()
    PyCodeCache.cache_clear()
    counters.clear()
    assert len(os.listdir("/proc/self/task")) == 1, "threads do not survive a fork"


def start(job):
    """Forks a process; gives its number."""
    process = os.fork()
    if process == 0:
        try:
            become(job)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(1)
    return process


def become(job):
    output = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for taken, given in ((0, nothing), (1, output), (2, output)):
        os.dup2(given, taken)
    os.environ.clear()
    os.environ.update(job["environment"])
    # Torch makes new threads for those that were not forked, and fails if two threads have it do
    # that at once.
    torch.set_num_threads(1)
    if "script" in job:
        sys.argv = [job["script"], *job["arguments"]]
        runpy.run_path(job["script"], run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    # Reads its place from the environment.
    import worker

    worker.main(job["task"])


def reap(running):
    """Writes down how those ended that did."""
    for process in list(running):
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            path = running.pop(process)
            with open(f"{path}.new", "w") as file:
                file.write(str(os.waitstatus_to_exitcode(status)))
            os.replace(f"{path}.new", path)


def main():
    warm_up()
    running = {}
    # Without a buffer, in which lines would hide from `select`.
    asked_for = open(0, "rb", buffering=0)
    while True:
        is_asked, _, _ = select.select([asked_for], [], [], 0.02 if running else None)
        if is_asked:
            line = asked_for.readline()
            if not line:
                # The tests are over, whatever still runs.
                os.killpg(0, signal.SIGKILL)
            job = json.loads(line)
            running[start(job)] = job["ended"]
        reap(running)


main()
