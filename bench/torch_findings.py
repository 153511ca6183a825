#!/usr/bin/env python3
"""How long `halflap debug -- python PROGRAM` takes to find what is wrong with torch programs.

    python3 bench/torch_findings.py [--halflap BIN] [--before BIN] [NAME...]

HALFLAP_TORCH_PYTHON names the Python that has torch. Each program runs once beforehand, as its user
would have run it: torch's caches have its kernels then. With --before, an older command takes turns
with this one. Writes docs/torch-findings.md.
"""

import argparse
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compare import build_halflap, cpu_model

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "torch" / "programs"
RANKS = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
CASES = {
    "NaN of a logarithm": ["makes_nan.py"],
    "NaN of a division, in training": ["trains.py", "nan"],
    "training, correct": ["trains.py"],
    "an operator writes behind a tensor": ["out_of_bounds.py", "1"],
    "an operator writes before a tensor": ["out_of_bounds.py", "-1"],
    "an operator leaves memory unwritten": ["unwritten.py"],
    "an operator keeps a buffer": ["lifetimes.py", "keep"],
    "a wrong shape": ["wrong_shape.py"],
    "it exits by itself": ["exits.py"],
    "correct": ["correct.py"],
    "one of two ranks sends NaN": [*RANKS, "ranks.py", "nan"],
}
HEAD = """# How long findings in torch programs take

Written by `bench/torch_findings.py` on {date}: {cpu}, {cores} cores, torch {torch}. Seconds of `halflap debug -- python \
PROGRAM`, and in brackets those of processors, which other work on the machine changes less, once each{turns}; *once* is the program alone, with the kernels of an earlier run in torch's cache, which \
`debug` uses, too. Programs are in tests/torch/programs.

"""


def words(python, arguments):
    return [python, *(str(PROGRAMS / word) if word.endswith(".py") else word for word in arguments)]


def processor_time():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds(command, variables):
    """Wall time and processor time, as text, and what was printed."""
    began, used = time.monotonic(), processor_time()
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=1800)
    return f"{time.monotonic() - began:.0f} ({processor_time() - used:.0f})", done


def debug(halflap, command, variables):
    """How long it takes, and what it says."""
    with tempfile.TemporaryDirectory() as folder:
        kept = str(Path(folder) / "kept")
        options = ["--json", "--timeout", "600s", "--artifacts", kept]
        took, done = seconds([halflap, "debug", *options, "--", *command], variables)
        if not done.stdout:
            return took, "error", ""
        report = json.loads(done.stdout)
        found = report["finding"]
        stages = ", ".join(f"{stage['name']} {stage['seconds']:.0f}" for stage in report["stages"])
        return took, found["kind"] if found else "nothing", stages


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--halflap")
    parser.add_argument("--before", help="an older command")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    python = os.environ["HALFLAP_TORCH_PYTHON"]
    halflap = args.halflap or os.environ.get("HALFLAP") or build_halflap()
    variables = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    torch = subprocess.run(
        [python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True
    ).stdout.strip()
    columns = ["program", "finding", "once", *(["before"] if args.before else []), "debug", "stages"]
    rows = []
    for name, arguments in CASES.items():
        if args.names and not any(word in name for word in args.names):
            continue
        command = words(python, arguments)
        seconds(command, variables)
        once, _ = seconds(command, variables)
        cells = [name]
        old = [debug(args.before, command, variables)[0]] if args.before else []
        took, kind, stages = debug(halflap, command, variables)
        cells += [kind, once, *old, took, stages]
        rows.append("| " + " | ".join(cells) + " |")
        print(rows[-1], file=sys.stderr, flush=True)
    turns = ", *before* with an older command" if args.before else ""
    head = HEAD.format(
        date=datetime.date.today(), cpu=cpu_model(), cores=os.cpu_count(), torch=torch, turns=turns
    )
    table = ["| " + " | ".join(columns) + " |", "| " + " | ".join(["---"] * len(columns)) + " |"]
    (ROOT / "docs" / "torch-findings.md").write_text(head + "\n".join([*table, *rows]) + "\n")


if __name__ == "__main__":
    main()
