"""Every command of docs/debugging-guide.md does what the document says."""

import os
import re
import subprocess

import pytest
from command import HALFLAP, ROOT

GUIDE = (ROOT / "docs" / "debugging-guide.md").read_text()
SECTIONS = [
    [line for block in re.findall(r"```sh\n(.*?)```", part, re.S) for line in block.splitlines()]
    for part in re.split(r"^##+ ", GUIDE, flags=re.M)
]
COMMANDS = [lines for lines in SECTIONS if lines]
#: Of the section for torch; tests/torch/test_debug.py runs it.
TORCH = ["halflap debug -- python tests/torch/programs/makes_nan.py  # exit 1"]


def environment(folder):
    """halflap is what its name says."""
    binaries = folder / "bin"
    binaries.mkdir()
    (binaries / "halflap").symlink_to(HALFLAP)
    return {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"}


def check(lines, folder):
    (folder / "tests").symlink_to(ROOT / "tests")
    variables = environment(folder)
    for line in lines:
        command, _, expected = line.partition("# exit ")
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=3000,
        )
        assert done.returncode == int(expected or 0), (
            f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        )


def test_the_guide_has_commands():
    assert sum(map(len, COMMANDS)) >= 20


@pytest.mark.parametrize(
    "lines", [lines for lines in COMMANDS if lines != TORCH], ids=lambda lines: lines[0]
)
def test_commands(lines, tmp_path):
    check(lines, tmp_path)


def test_commands_with_torch():
    """There is one, which takes long."""
    assert TORCH in COMMANDS
