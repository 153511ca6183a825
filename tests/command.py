"""What all tests of the command share: where it is, and the programs to try it on."""

import gzip
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
HALFLAP = os.environ.get("HALFLAP", str(ROOT / "target" / "release" / "halflap"))


def run(*arguments, expect=0):
    """Runs halflap; gives what it printed."""
    done = subprocess.run(
        [HALFLAP, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == expect, f"{arguments}: exit {done.returncode}: {done.stderr}"
    return done.stdout


def corpus(name):
    return ROOT / "tests" / "corpus" / f"{name}.graph.json.gz"


def read_json(path):
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "rb") as file:
        return json.load(file)
