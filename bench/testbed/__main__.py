"""Measures programs on ranks of this machine, joined by links of a given rate; needs root (docs/measured.md).

    python3 bench/testbed --torch-python PY [--models fsdp,tp,ep] [--modes none,default,kept,free] [--rate 1gbit | --ratio 1.0]
    python3 bench/testbed --mpi [--halflap BIN] [--modules FILE.txt,...] [--rate 1gbit | --ratio 1.0]

Ends with 0 if all results hold; with 1 if one is void or a rank failed; with 2 if this machine or the arguments will not do.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from testbed import mpi_bed, report, torch_bed  # noqa: E402
from testbed.network import Rate, Unavailable, check_available  # noqa: E402
from testbed.ranks import RankFailed  # noqa: E402

MODELS = {"fsdp": "fsdp", "tp": "tensor_parallel", "ep": "expert_parallel"}
TORCH_MODES = ("none", "default", "kept", "free", "auto")
MPI_MODES = ("input", "kept", "free")


def arguments():
    parser = argparse.ArgumentParser(prog="bench/testbed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", metavar="PY", help="a Python that has torch and halflap: measures torch programs")
    parser.add_argument("--models", type=names, default=["fsdp"], help=f"{', '.join(MODELS)}, or files with build() and batch(step) [default: fsdp]")
    for name, usual in (("layers", 4), ("width", 512), ("heads", 8), ("tokens", 384)):
        parser.add_argument(f"--{name}", type=positive, default=usual, help=f"of a model [default: {usual}]")
    parser.add_argument("--profile", type=profile, default={}, metavar="FILE", help="measured run times for halflap, by name, in ns")
    parser.add_argument("--mpi", action="store_true", help="measures halflap run over Open MPI")
    parser.add_argument("--halflap", default=shutil.which("halflap") or str(HERE.parent.parent / "target/release/halflap"), metavar="BIN")
    parser.add_argument("--modules", type=names, default=["layers"], help="HLO modules, or layers: that of bench/run.py [default]")
    parser.add_argument("--modes", type=names, help="none, default, kept, free, auto, each also with a memory budget, as in free@1.5x; "
                        f"with --mpi {', '.join(MPI_MODES)} [default: {','.join(TORCH_MODES[:4])}; input,free]")  # fmt: skip
    parser.add_argument("--ranks", type=positive, default=2, help="[default: 2]")
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--rate", type=rate, help="of each link, in both directions [default: 1gbit]")
    speed.add_argument("--ratio", type=share, help="a rate at which communication takes so many times as long as a step on links without a limit")
    parser.add_argument("--rounds", type=positive, default=7, help="in each of which all modes run in turn [default: 7]")
    parser.add_argument("--steps", type=positive, default=5, help="of each mode in a round [default: 5]")
    parser.add_argument("--patience", type=share, default=900.0, metavar="SECONDS", help="for compiling, or for a step [default: 900]")
    parser.add_argument("--json", action="store_true", help="prints all figures, instead of tables")
    parser.add_argument("-o", "--output", metavar="FILE", help="where all figures are written, as JSON")
    chosen = parser.parse_args()
    check(parser, chosen)
    return chosen


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
        found = json.loads(Path(path).read_text())
        return {str(name): float(time) for name, time in found.items()}
    except (OSError, ValueError, AttributeError, TypeError) as problem:
        raise argparse.ArgumentTypeError(f"{path}: {problem}; it must be an object of names and nanoseconds") from None


def measured(chosen):
    """The result of each program."""
    say = progress()
    common = {name: getattr(chosen, name) for name in ("ranks", "modes", "rate", "ratio", "rounds", "steps", "patience")}
    if chosen.mpi:
        for module in chosen.modules:
            yield mpi_bed.measure(mpi_bed.Plan(halflap=chosen.halflap, module=module, **common), say)
        return
    size = {name: getattr(chosen, name) for name in ("layers", "width", "heads", "tokens")}
    for model in chosen.models:
        subject = MODELS.get(model) or str(Path(model).resolve())
        plan = torch_bed.Plan(python=chosen.torch_python, subject=subject, size=size, profile=chosen.profile, **common)
        yield torch_bed.measure(plan, say)


def progress():
    began = time.monotonic()
    return lambda text: print(f"[{time.monotonic() - began:5.0f} s] {text}", file=sys.stderr, flush=True)


def main():
    chosen = arguments()
    # As Ctrl-C: what was begun is ended on the way out.
    for number in (signal.SIGTERM, signal.SIGHUP):
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
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(1 if any(result["void"] for result in results) else 0)


if __name__ == "__main__":
    main()
