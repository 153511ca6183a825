#!/usr/bin/env python3
"""More memory or more effort never gives a slower step: schedules graphs and modules with several
budgets and efforts, with and without rewrites, and compares the step times.

    python bench/budgets.py [--halflap BIN] [--largest KILOBYTES] [--jobs N] [--efforts LIST]
        [FILE...]

A budget above 1x must not be slower than 1x with the same effort, and more effort must not be
slower than less with the same budget. Without files: all of tests/hlo and tests/corpus up to a
size. Ends with 1 if anything is slower.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = ("1x", "1.1x", "1.5x", "2x")
EFFORTS = ("quick", "default", "thorough")


def step_time(halflap, file, options):
    """A step in whole picoseconds, or why there is none."""
    command = [halflap, "schedule", file, "--json", "--no-advice", *options]
    # Of a graph's own times it is unknown which part is latency.
    if "--rewrite" in options and file.name.endswith(".graph.json.gz"):
        command += ["--device", "h100"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return round(json.loads(done.stdout)["step_time"] * 1e3)


def slower(times):
    """Pairs in which more gave a slower step, or which failed."""
    found = []
    for (effort, budget), time in times.items():
        less = [(effort, "1x")] if budget != "1x" else []
        lesser = EFFORTS[: EFFORTS.index(effort)]
        less += [(lesser, budget) for lesser in lesser if (lesser, budget) in times]
        if isinstance(time, str):
            found.append(f"{effort} {budget}: {time}")
            continue
        for key in less:
            if isinstance(times[key], int) and time > times[key]:
                by = time / times[key] - 1
                found.append(f"{effort} {budget} is {by:.3%} slower than {' '.join(key)}")
    return found


def checked(halflap, efforts, file, rewrite):
    """What is wrong with a file, and how many schedules were made."""
    change = ["--rewrite", rewrite] if rewrite else []
    times = {
        (effort, budget): step_time(
            halflap, file, ["--effort", effort, "--memory-budget", budget, *change]
        )
        for effort, budget in itertools.product(efforts, BUDGETS)
    }
    return slower(times), len(times)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--halflap", default=os.environ.get("HALFLAP"))
    parser.add_argument("--largest", type=int, default=60, help="in kilobytes, as packed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--efforts", default=",".join(EFFORTS))
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    halflap = options.halflap or str(ROOT / "target" / "release" / "halflap")
    files = options.files
    if not files:
        tests = ROOT / "tests"
        files = sorted([*tests.glob("hlo/*.txt.gz"), *tests.glob("corpus/*.graph.json.gz")])
        files = [file for file in files if file.stat().st_size <= options.largest * 1024]
    tasks = [(file, rewrite) for file in files for rewrite in (None, "all")]
    efforts = options.efforts.split(",")
    bad = made = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for (file, rewrite), (found, count) in zip(
            tasks, pool.map(lambda task: checked(halflap, efforts, *task), tasks)
        ):
            made, bad = made + count, bad + len(found)
            name = f"{file.name}{', rewritten' if rewrite else ''}"
            print(f"{name}: {'; '.join(found) or 'never slower'}", flush=True)
    print(f"{made} schedules of {len(files)} files: {bad} slower than with less")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
