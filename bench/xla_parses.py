"""Schedules HLO modules with halflap and has XLA itself read what it wrote.

    python3 bench/xla_parses.py [MODULE.txt[.gz] ...]

Without arguments, all modules in tests/hlo. Needs jaxlib (pip install jaxlib), which is not part of
the test command. For each module XLA must read the text, and count the same instructions by opcode,
but for the collectives that are asynchronous now.
"""

import collections
import glob
import gzip
import re
import subprocess
import sys
from pathlib import Path

from jaxlib import _hlo

ROOT = Path(__file__).resolve().parent.parent
HALFLAP = ROOT / "target/dist/halflap"
COLLECTIVES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|collective-broadcast|ragged-all-to-all"


def read(path):
    opened = gzip.open(path, "rt") if str(path).endswith(".gz") else open(path)
    with opened as file:
        return file.read()


def opcodes(text):
    """How many instructions XLA finds of each opcode, with starts and ends counted as one
    collective."""
    printed = _hlo.hlo_module_from_text(text).to_string()
    found = collections.Counter(
        re.findall(r"^ .*? = (?:\(.*?\)|\S+) ([a-z][a-z0-9-]*)\(", printed, re.M)
    )
    for opcode in list(found):
        pair = re.fullmatch(f"({COLLECTIVES})-(start|done)", opcode)
        if pair:
            count = found.pop(opcode)
            if pair[2] == "start":
                found[pair[1]] += count
    return found


def main():
    paths = sys.argv[1:] or sorted(glob.glob(str(ROOT / "tests/hlo/*.txt.gz")))
    failed = 0
    for path in paths:
        command = [HALFLAP, "schedule", path, "--emit", "hlo", "--effort", "quick"]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            problem = ran.stderr.strip()
        else:
            try:
                before, after = opcodes(read(path)), opcodes(ran.stdout)
                problem = (
                    ""
                    if before == after
                    else f"opcodes differ: {before - after} missing, {after - before} added"
                )
            except Exception as error:  # XLA's own exceptions have no common class.
                problem = str(error)[:500]
        failed += bool(problem)
        print(f"{Path(path).name}: {problem or 'ok'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
