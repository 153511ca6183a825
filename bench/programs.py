#!/usr/bin/env python3
"""Compile random programs with halflap, on two ranks, and compare them with torch, bit for bit.

    python3 bench/programs.py --torch-python PY [--programs N] [--seed S] [--wrapper python|cpp|fx]

PY has torch and halflap. A program has its own seed, `S` and up, so `--programs 1` repeats a single
one. Each is compiled by torch alone and in two of the four ways to order it (free, kept, auto, and
auto on ranks that do not agree), every eighth in all of them. With `--wrapper fx` there is no
Inductor: the passes over FX graphs change them (ordered, kept and agreed; merged), and they run
operator by operator. Exits with 1, and shows the programs, if results differ or an order was not
used. Needs only the standard library.
"""

import argparse
import os
import pathlib
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[1] / "tests" / "torch"
#: Programs per process: a compiler's memory grows.
BATCH = 20


def sweep(args, launch):
    """What differs, and how often collectives were moved."""
    differences, moved = [], 0
    for first in range(args.seed, args.seed + args.programs, BATCH):
        count = min(BATCH, args.seed + args.programs - first)
        os.environ.update(FIRST_SEED=str(first), SEEDS=str(count), ORDERS="2", WRAPPER=args.wrapper)
        with tempfile.TemporaryDirectory() as folder:
            task = "fx.random_sweep" if args.wrapper == "fx" else "random.sweep"
            ranks = launch(task, pathlib.Path(folder), ranks=2, seconds=3600)
        found = [one for rank in ranks for one in rank["differences"]]
        print(*found, sep="\n", end="\n" if found else "", flush=True)
        differences += found
        moved += ranks[0]["moved"]
        print(f"seeds {first} to {first + count - 1}: {len(differences)} differ", flush=True)
    return differences, moved


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wrapper", choices=("python", "cpp", "fx"), default="python")
    args = parser.parse_args()
    os.environ.setdefault("CXX", str(TESTS / "cxx"))
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    os.environ["HALFLAP_TORCH_PYTHON"] = args.torch_python
    sys.path.insert(0, str(TESTS))
    # It reads the environment when it is loaded.
    from ranks import launch

    began = time.monotonic()
    differences, moved = sweep(args, launch)
    minutes = (time.monotonic() - began) / 60
    print(
        f"{args.programs} programs, {args.wrapper} wrapper, {minutes:.0f} min: "
        f"{len(differences)} differ; collectives were moved in {moved} graphs"
    )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
