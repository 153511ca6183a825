#!/usr/bin/env python3
"""Runs halflap debug on every fault of tests/faults, so many times each, and writes docs/faults.md."""

import argparse
import concurrent.futures
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "faults")]

from cases import CASES, CORRECT  # noqa: E402
from command import HALFLAP  # noqa: E402
from walk import build, debug, wrong  # noqa: E402

HEAD = """# Faults

What `halflap debug` finds in the faulty modules of [tests/faults](../tests/faults/cases.py), each run {times} times on one rank and on eight where that makes sense: `found` is how often kind, kernel (or buffer) and rank were the right ones, `alone` how often the command of the report showed the fault again with the kernel alone. `python3 bench/faults.py` makes this page again.

| fault | what is wrong | blamed | found, 1 rank | found, 8 ranks | alone |
| --- | --- | --- | --- | --- | --- |
"""


def tried(case, ranks, times, library):
    """How often a fault was found, and how often the kernel alone showed it, of how many times."""
    found = shown = tries = 0
    for _ in range(times):
        answer = debug(HALFLAP, case, ranks, library)
        problem = wrong(case, answer)
        if problem:
            print(f"{case.name} on {ranks}: {problem}", file=sys.stderr)
        found += problem is None
        tries += answer[3] is not None
        shown += answer[3] not in (None, 0, 2)
    return found, shown, tries


def row(case, times, library):
    cells, shown, tries = [], 0, 0
    for ranks in (1, 8):
        if ranks not in case.ranks:
            cells.append("")
            continue
        found, again, tried_alone = tried(case, ranks, times, library)
        cells.append(f"{found}/{times}")
        shown, tries = shown + again, tries + tried_alone
    blamed = f"`{case.kernel or case.buffer}`" if case.kernel or case.buffer else "the input" if "input" in case.name else "the rank"
    alone = f"{shown}/{tries}" if tries else ""
    return f"| {case.name} | {case.what} | {blamed} | {cells[0]} | {cells[1]} | {alone} |"


def alarms(times, library):
    """How often something right was called wrong, of how many times."""
    answers = [debug(HALFLAP, case, ranks, library)[0] for case in CORRECT for ranks in case.ranks for _ in range(times)]
    return sum(code != 0 for code in answers), len(answers)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="how many walks run at the same time")
    parser.add_argument("-o", "--output", default=str(ROOT / "docs" / "faults.md"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = build(folder)
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            rows = []
            for made in pool.map(lambda case: row(case, args.times, library), CASES):
                rows.append(made)
                print(made, flush=True)
        wrongly, runs = alarms(args.times, library)
    foot = f"\nThe correct modules beside them raised {wrongly} alarms in {runs} walks.\n"
    pathlib.Path(args.output).write_text(HEAD.format(times=args.times) + "\n".join(rows) + "\n" + foot)


if __name__ == "__main__":
    main()
