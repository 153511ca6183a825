#!/usr/bin/env python3
"""What splits gain in tensor-parallel modules.

    python3 bench/products.py [--halflap BIN]

Writes modules of four layers, each with two products of matrices and an all-reduce, and schedules
them as they are and with `--rewrite split`. Prints a table for docs/rewrite.md.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from compare import table

ROOT = Path(__file__).resolve().parent.parent
ROWS, LAYERS, RANKS = 8192, 4, 8
#: Widths of the model, and of a rank's part between its two products.
WIDTHS = [(4096, 1792), (8192, 3584), (16384, 6656)]
DIMS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
GROUP = "replica_groups={{" + ",".join(map(str, range(RANKS))) + "}}, use_global_device_ids=true"
HEAD = """HloModule layers, num_partitions=8

add {
  a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT c = bf16[] add(a, b)
}

ENTRY main {"""


def module(width, inner):
    whole, part = f"bf16[{ROWS},{width}]{{1,0}}", f"bf16[{ROWS},{inner}]{{1,0}}"
    lines = [HEAD, f"  x0 = {whole} parameter(0)"]
    for layer in range(LAYERS):
        lines.append(f"  up{layer} = bf16[{width},{inner}]{{1,0}} parameter({2 * layer + 1})")
        lines.append(f"  down{layer} = bf16[{inner},{width}]{{1,0}} parameter({2 * layer + 2})")
    for layer in range(LAYERS):
        root = "ROOT " if layer == LAYERS - 1 else ""
        lines += [
            f"  h{layer} = {part} dot(x{layer}, up{layer}), {DIMS}",
            f"  t{layer} = {part} tanh(h{layer})",
            f"  y{layer} = {whole} dot(t{layer}, down{layer}), {DIMS}",
            f"  r{layer} = {whole} all-reduce(y{layer}), channel_id={layer + 1}, {GROUP}, "
            "to_apply=add",
            f"  {root}x{layer + 1} = {whole} tanh(r{layer})",
        ]
    return "\n".join([*lines, "}", ""])


def schedule(halflap, path, *more):
    command = [halflap, "schedule", path, "--device", "h100", "--json", *more]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--halflap", type=Path, default=ROOT / "target" / "release" / "halflap")
    args = parser.parse_args()
    rows = []
    for width, inner in WIDTHS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "module.txt")
            path.write_text(module(width, inner))
            alone = schedule(args.halflap, path)
            split = schedule(args.halflap, path, "--rewrite", "split")
        pieces = 1
        if split["recipes"]:
            first = split["recipes"][0]
            pieces = len(first["into"].split(",")) // len(first["members"])
        before, after = alone["step_time"], split["step_time"]
        rows.append(
            [
                f"{width:,}, {inner:,}",
                f"{before / 1e6:.2f} ms",
                f"{alone['exposed'] / 1e6:.2f} ms",
                str(pieces),
                f"{after / 1e6:.2f} ms",
                f"{split['exposed'] / 1e6:.2f} ms",
                f"{after / before:.3f}",
            ]
        )
    head = ["widths", "order alone", "exposed", "pieces", "split", "exposed", "of order alone"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
