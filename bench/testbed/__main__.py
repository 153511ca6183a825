"""Measures steps on ranks of this machine, joined by links of a given rate (docs/measured.md).

    python3 bench/testbed --torch-python PY [--models fsdp,tp,ep] [--modes none,default,kept,free]
    python3 bench/testbed --mpi [--halflap BIN] [--modules layers,FILE] [--modes input,free]

Needs root. Exit code 0: all results are valid; 1: one is void, or a rank failed; 2: the arguments
are wrong, or this machine lacks something.
"""

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from testbed import mpi_bed, report, rounds, torch_bed  # noqa: E402
from testbed.network import Rate, Unavailable, check_available  # noqa: E402
from testbed.ranks import RankFailed  # noqa: E402

MODELS = {"fsdp": "fsdp", "tp": "tensor_parallel", "ep": "expert_parallel"}
#: Of the models, with what they are by default.
SIZES = {"layers": 4, "width": 512, "heads": 8, "tokens": 384}
FX_MODES = ("fx", "fx-merging", "fx-buckets", "fx-modules")
TORCH_MODES = ("none", "default", "kept", "free", "auto", *FX_MODES, "merged", "split", "tuned")
MPI_MODES = ("input", "kept", "free")


def arguments():
    parser = argparse.ArgumentParser(
        prog="bench/testbed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_programs(parser)
    add_measurement(parser)
    chosen = parser.parse_args()
    check(parser, chosen)
    return chosen


def add_programs(parser):
    add = parser.add_argument
    add("--torch-python", metavar="PY", help="measure torch programs: a Python with torch, halflap")
    known = ", ".join(MODELS)
    add("--models", type=names, default=["fsdp"], help=f"{known}, or FILE.py [default: fsdp]")
    for name, usual in SIZES.items():
        add(f"--{name}", type=positive, default=usual, help=f"of a model [default: {usual}]")
    add("--profile", type=profile, default={}, metavar="FILE", help="run times, measured before")
    trying = "for mode tuned: how long halflap.torch.tune may try orders [default: 60]"
    add("--tune-seconds", type=share, default=60.0, metavar="SECONDS", help=trying)
    add("--mpi", action="store_true", help="measure HLO modules: halflap run over Open MPI")
    built = str(HERE.parent.parent / "target" / "dist" / "halflap")
    add("--halflap", default=built, metavar="BIN", help="[default: target/dist/halflap]")
    add("--modules", type=names, default=["layers"], help="layers [default], or FILE")


def add_measurement(parser):
    add = parser.add_argument
    modes = f"{', '.join(TORCH_MODES)}; with --mpi {', '.join(MPI_MODES)}"
    add("--modes", type=names, help=f"{modes}; free@1.5x has a memory budget")
    add("--ranks", type=positive, default=2, help="[default: 2]")
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--rate", type=rate, help="of a link, each direction [default: 1gbit]")
    ratio = "instead of a rate: how long communication takes, relative to an unlimited step"
    speed.add_argument("--ratio", type=share, help=ratio)
    add("--rounds", type=positive, default=7, help="all modes run in each [default: 7]")
    add("--steps", type=positive, default=5, help="of each mode in a round [default: 5]")
    patience = "for compiling, or for a step [default: 900]"
    add("--patience", type=share, default=900.0, metavar="SECONDS", help=patience)
    add("--json", action="store_true", help="print all figures instead of tables")
    add("-o", "--output", metavar="FILE", help="write all figures to a file, as JSON")


def check(parser, chosen):
    """What arguments must be together."""
    if chosen.mpi == bool(chosen.torch_python):
        parser.error("say either --torch-python PY or --mpi")
    known = MPI_MODES if chosen.mpi else TORCH_MODES
    chosen.modes = chosen.modes or list(("input", "free") if chosen.mpi else TORCH_MODES[:4])
    for mode in chosen.modes:
        if mode.partition("@")[0] not in known:
            parser.error(f"--modes: there is no mode {mode!r}; there are {', '.join(known)}")
    if len(set(chosen.modes)) < len(chosen.modes):
        parser.error("--modes: a mode is named twice")
    for model in chosen.models:
        if model not in MODELS and not Path(model).is_file():
            parser.error(f"--models: {model!r} is neither {', '.join(MODELS)} nor a file")
    if chosen.ranks < 2:
        parser.error("--ranks: there must be two or more")
    chosen.rate = chosen.rate or (None if chosen.ratio else Rate.parse("1gbit"))


def names(text):
    return [name for name in text.split(",") if name]


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"it must be 1 or more, not {text}")
    return number


def share(text):
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"it must be above 0, not {text}")
    return number


def rate(text):
    try:
        return Rate.parse(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def profile(path):
    try:
        return dict(json.loads(Path(path).read_text()))
    except (OSError, ValueError, TypeError) as problem:
        raise argparse.ArgumentTypeError(
            f"{path}: {problem}; it must be a file that halflap.torch.measure wrote"
        ) from None


def measured(chosen):
    """The result of each program."""
    say = progress()
    shared = [field.name for field in dataclasses.fields(rounds.Plan)]
    plan = rounds.Plan(**{name: getattr(chosen, name) for name in shared})
    if chosen.mpi:
        for module in chosen.modules:
            yield mpi_bed.measure(plan, chosen.halflap, module, say)
        return
    size = {name: getattr(chosen, name) for name in SIZES}
    for model in chosen.models:
        name = MODELS.get(model) or str(Path(model).resolve())
        size_of_it = size if model in MODELS else {}
        given = (chosen.profile, chosen.tune_seconds)
        subject = torch_bed.Subject(chosen.torch_python, name, size_of_it, *given)
        yield torch_bed.measure(plan, subject, say)


def progress():
    began = time.monotonic()
    return lambda text: print(
        f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True
    )


def main():
    chosen = arguments()
    # Whatever was begun is ended on the way out.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        check_available()
        results = []
        for result in measured(chosen):
            results.append(result)
            if not chosen.json:
                print(report.text(result), flush=True)
            if chosen.output:
                beside = Path(f"{chosen.output}.tmp")
                beside.write_text(json.dumps(report.document(results)))
                os.replace(beside, chosen.output)
        if chosen.json:
            print(json.dumps(report.document(results)))
    except (Unavailable, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
    except RankFailed as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(1)
    sys.exit(1 if any(result["void"] for result in results) else 0)


if __name__ == "__main__":
    main()
