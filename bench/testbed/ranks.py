"""Ranks as processes: started in their namespaces, controlled through pipes, always ended."""

import contextlib
import json
import os
import selectors
import subprocess
import time
from pathlib import Path

#: How long ranks have to begin a step after they were asked, so that all begin at once.
NOTICE_SECONDS = 2e-3
#: Of prctl: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1


class RankFailed(Exception):
    """A rank ended, raised or did not answer in time; the message has what it wrote last."""


class Ranks:
    """A process for each rank, which answers every line of JSON with another. A context manager,
    which ends them all."""

    def __init__(self, command, network, environments, folder):
        self._all = contextlib.ExitStack()
        self.processes = []
        self._logs = []
        with contextlib.ExitStack() as undo:
            undo.push(self._all)
            for namespace, environment in zip(network.ranks, environments):
                self._start(command, namespace, environment, Path(folder))
            undo.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._all.close()

    @property
    def pids(self):
        return [process.pid for process in self.processes]

    def _start(self, command, namespace, environment, folder):
        path = folder / f"rank{len(self.processes)}.log"
        log = self._all.enter_context(open(path, "wb"))
        with namespace.entered():
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # A Ctrl-C is for this process alone, which ends the ranks.
                start_new_session=True,
            )
        self._all.callback(_end, process)
        self.processes.append(process)
        self._logs.append(path)

    def ask(self, command, seconds, **arguments):
        """What all ranks answer to a command."""
        line = json.dumps({"do": command, **arguments}).encode() + b"\n"
        for rank, process in enumerate(self.processes):
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                raise RankFailed(self._said(rank, "has ended")) from None
        return self._answers(time.monotonic() + seconds, command)

    def step(self, mode, seconds):
        """Seconds from when all ranks have begun a step to when the last has ended it."""
        answers = self.ask("step", seconds, mode=mode, at=time.monotonic() + NOTICE_SECONDS)
        return max(one["ended"] for one in answers) - max(one["began"] for one in answers)

    def _answers(self, deadline, command):
        answers = {}
        parts = {rank: b"" for rank in range(len(self.processes))}
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self.processes):
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while len(answers) < len(self.processes):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    late = next(rank for rank in parts if rank not in answers)
                    raise RankFailed(self._said(late, f"did not answer {command!r} in time"))
                for key, _ in ready:
                    rank = key.data
                    parts[rank] += os.read(key.fd, 1 << 20)
                    if not parts[rank].endswith(b"\n"):
                        self._check_alive(rank)
                        continue
                    answers[rank] = self._understood(rank, parts[rank])
        return [answers[rank] for rank in sorted(answers)]

    def _check_alive(self, rank):
        code = self.processes[rank].poll()
        if code is not None:
            raise RankFailed(self._said(rank, f"has ended with {code}"))

    def _understood(self, rank, line):
        answer = json.loads(line)
        if "problem" in answer:
            raise RankFailed(self._said(rank, answer["problem"]))
        return answer

    def _said(self, rank, what):
        said = self._logs[rank].read_text(errors="replace")[-3000:].strip()
        return f"rank {rank}: {what}\n{said}".strip()


def _end(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def cores_of(ranks):
    """A core for each rank, of those that this process may use; with too few, ranks share."""
    usable = sorted(os.sched_getaffinity(0))
    return [usable[rank % len(usable)] for rank in range(ranks)]
