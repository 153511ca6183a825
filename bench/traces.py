"""Checks `halflap analyze` on real traces against a plain sweep, and beside Holistic Trace
Analysis.

    python3 bench/traces.py [DIR] [--halflap BIN] [--hta-python PY]

DIR holds traces (*.json, *.json.gz; ../shared/traces beside the repository if not given). The sweep
(tests/analyze/sweep.py) must agree to the nanosecond. HTA runs under a Python that has it (pip
install -r tests/requirements-hta.txt, 500 MB), if one is named, and must agree on the same events
in whole microseconds.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/analyze"))

import hta_figures  # noqa: E402
import sweep  # noqa: E402

FIGURES = [
    "span",
    "compute",
    "communication",
    "memory",
    "overlapped",
    "exposed",
    "exposed_beside_memory",
    "idle",
]
HTA = str(ROOT / "tests/analyze/hta_figures.py")


def analyze(binary, path):
    done = subprocess.run([binary, "analyze", str(path), "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{path}: exit code {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)["ranks"][0]


def check(binary, path):
    """In words, what differs from the sweep."""
    ours, events = analyze(binary, path), sweep.work(sweep.load(path))
    truth = sweep.spent(events)
    found = [
        f"{name}: sweep {truth[name]}, halflap {ours[name]}"
        for name in FIGURES
        if truth[name] != ours[name]
    ]
    charges = [c["exposed"] for c in ours["collectives"]]
    if charges != sweep.charges(events):
        found.append("exposed time by collective differs")
    if sum(charges) != truth["exposed"]:
        found.append("exposed time by collective does not add up")
    return found, truth, len(charges)


def beside_hta(binary, python, path):
    """Whether HTA gives the same for the same events: those of the trace, in whole microseconds."""
    if not python:
        return "-"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(hta_figures.level(sweep.load(path)), file, default=float)
        file.flush()
        done = subprocess.run([python, HTA, file.name], capture_output=True, text=True)
        if done.returncode != 0:
            return "failed: " + done.stderr.strip().splitlines()[-1][:80]
        theirs, ours = json.loads(done.stdout.splitlines()[-1]), analyze(binary, file.name)
    overlap = 100.0 * ours["overlapped"] / max(ours["communication"], 1)
    same = all(theirs[name] * 1e3 == ours[name] for name in ("span", "compute", "idle"))
    same &= abs(theirs["overlap"] - overlap) < 0.0051
    return (
        "equal"
        if same
        else f"HTA {theirs}, halflap { ({n: ours[n] for n in ('span', 'compute', 'idle')}) } {overlap}"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", default=str(ROOT.parent / "shared/traces"))
    parser.add_argument("--halflap", default=str(ROOT / "target/dist/halflap"))
    parser.add_argument("--hta-python", help="a Python that has HolisticTraceAnalysis")
    args = parser.parse_args()
    paths = sorted(p for p in Path(args.folder).glob("*") if p.name.endswith((".json", ".json.gz")))
    if not paths:
        sys.exit(f"{args.folder}: no traces there; name a folder that has some")
    failed = False
    print(
        "| trace | GPU span | exposed | collectives | sweep | HTA |\n| --- | --- | --- | --- | --- | --- |"
    )
    for path in paths:
        found, truth, collectives = check(args.halflap, path)
        failed |= bool(found)
        verdict = "; ".join(found) or "equal"
        hta = beside_hta(args.halflap, args.hta_python, path)
        failed |= hta not in ("equal", "-")
        cells = [
            path.name,
            f"{truth['span'] / 1e6:.3f} ms",
            f"{truth['exposed'] / 1e6:.3f} ms",
            collectives,
            verdict,
            hta,
        ]
        print("| " + " | ".join(str(cell) for cell in cells) + " |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
