#!/usr/bin/env python3
"""Runs halflap debug on every fault of tests/faults, several times each, and writes
docs/faults.md."""

import argparse
import concurrent.futures
import datetime
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "faults")]

from cases import CASES, CORRECT  # noqa: E402
from command import HALFLAP  # noqa: E402
from mixed import MIXED_CORRECT, MIXED_FAULTS  # noqa: E402
from optimised import OPTIMISED_CORRECT, OPTIMISED_FAULTS  # noqa: E402
from others import OTHER_CORRECT, OTHER_FAULTS  # noqa: E402
from paths import PATH_CORRECT, PATH_FAULTS  # noqa: E402
from spread import FAULTS, HARMLESS  # noqa: E402
from steps import STEP_CORRECT, STEP_FAULTS  # noqa: E402
from walk import alarm, build, debug, shows_as_said, wrong  # noqa: E402

HEAD = """# Faults

What `halflap debug` finds in the faulty modules of [cases.py](../tests/faults/cases.py), [spread.py](../tests/faults/spread.py), [steps.py](../tests/faults/steps.py), [others.py](../tests/faults/others.py), [mixed.py](../tests/faults/mixed.py), [paths.py](../tests/faults/paths.py) and [optimised.py](../tests/faults/optimised.py), each run {times} on one rank and on eight where that makes sense. `found` counts the reports with the right kind, kernel (or buffer) and rank (for an index out of range, the notes with the right words), `again` how often the report's command reproduced the fault, `said` how often the report was right about whether it would. `python3 bench/faults.py --times 3` regenerates this page; made on {date}.

| fault | what is wrong | blamed | found, 1 rank | found, 8 ranks | again | said |
| --- | --- | --- | --- | --- | --- | --- |
"""


def tried(case, ranks, times, library):
    """How often a fault was found, how often the report's command reproduced it, and how often the
    report was right about that."""
    counts = [0, 0, 0]
    for _ in range(times):
        answer = debug(HALFLAP, case, ranks, library)
        problem = wrong(case, answer)
        if problem:
            print(f"{case.name} on {ranks}: {problem}", file=sys.stderr)
        is_found = bool(answer[1] and answer[1]["finding"])
        said = is_found and shows_as_said(answer)
        shown = is_found and answer[1]["finding"]["shows_again"] and said
        counts = [count + bool(more) for count, more in zip(counts, (problem is None, shown, said))]
    return counts


def row(case, times, library):
    """A row of the table, and how many walks did not find the fault."""
    cells, shown, said, missed = [], 0, 0, 0
    for ranks in (1, 8):
        if ranks not in case.ranks:
            cells.append("")
            continue
        found, again, right = tried(case, ranks, times, library)
        cells.append(f"{found}/{times}")
        shown, said, missed = shown + again, said + right, missed + times - found
    tries = times * len(case.ranks)
    blamed = (
        f"`{case.kernel or case.buffer}`"
        if case.kernel or case.buffer
        else "a note"
        if case.note
        else "the input"
        if "wrong-input" in case.kinds or "input" in case.name
        else "the rank"
    )
    # A note has no command.
    commands = ["", ""] if case.note else [f"{shown}/{tries}", f"{said}/{tries}"]
    line = "| " + " | ".join([case.name, case.what, blamed, *cells, *commands]) + " |"
    return line, missed


def alarms(cases, times, library):
    """How many walks of correct modules raised a false alarm, and how many walks there were."""
    wrongly = runs = 0
    for case, ranks in (
        (case, ranks) for case in cases for ranks in case.ranks for _ in range(times)
    ):
        problem = alarm(debug(HALFLAP, case, ranks, library))
        if problem:
            print(f"{case.name} on {ranks}: {problem}", file=sys.stderr)
        wrongly, runs = wrongly + (problem is not None), runs + 1
    return wrongly, runs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="how many walks run at the same time")
    parser.add_argument(
        "--spread",
        action="store_true",
        help="only those of tests/faults/spread.py, steps.py, others.py and mixed.py",
    )
    parser.add_argument("-o", "--output", default=str(ROOT / "docs" / "faults.md"))
    args = parser.parse_args()
    cases = FAULTS + STEP_FAULTS + OTHER_FAULTS + MIXED_FAULTS + PATH_FAULTS + OPTIMISED_FAULTS
    correct = HARMLESS + STEP_CORRECT + OTHER_CORRECT + MIXED_CORRECT + PATH_CORRECT + OPTIMISED_CORRECT
    if not args.spread:
        cases, correct = CASES + cases, CORRECT + correct
    with tempfile.TemporaryDirectory() as folder:
        library = build(folder)
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            rows, missed = [], 0
            for line, more in pool.map(lambda case: row(case, args.times, library), cases):
                rows.append(line)
                missed += more
                print(line, flush=True)
        wrongly, runs = alarms(correct, args.times, library)
    foot = f"\nThe correct modules raised {wrongly} alarms in {runs} walks.\n"
    pathlib.Path(args.output).write_text(
        HEAD.format(
            times="once" if args.times == 1 else f"{args.times} times", date=datetime.date.today()
        )
        + "\n".join(rows)
        + "\n"
        + foot
    )
    walks = args.times * sum(len(case.ranks) for case in cases)
    print(
        f"{walks - missed} of {walks} walks found the fault; {wrongly} alarms in {runs} walks of correct modules"
    )
    return 1 if missed or wrongly else 0


if __name__ == "__main__":
    sys.exit(main())
