"""The examples for torch run as they are, and compute the same in every way."""

import os
import re
import subprocess

import pytest
from ranks import EXAMPLES, PYTHON

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


def losses(example, folder, *options):
    """What an example printed, and the losses in it."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [PYTHON, EXAMPLES / f"{example}.py", "--steps", "3", *options]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"^losses +(.*)$", done.stdout, re.MULTILINE)
    return done.stdout, [float(loss) for loss in found[1].split()]


@pytest.mark.parametrize("example", ["torch_fsdp", "torch_tp"])
def test_an_example_runs_with_halflap_and_without(example, tmp_path):
    printed, ordered = losses(example, tmp_path, "--halflap")
    _, eager = losses(example, tmp_path, "--eager")
    assert ordered == pytest.approx(eager, rel=1e-4) and len(eager) == 3
    pages = re.findall(r"(halflap-report/\S+\.html)$", printed, re.MULTILINE)
    assert [page.split("_")[-1] for page in pages] == ["forward.html", "backward.html"]
    assert all("<html" in (tmp_path / page).read_text() for page in pages)
