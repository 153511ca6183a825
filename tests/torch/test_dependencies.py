"""What torch's dependencies become: who overwrites a buffer, who is launched behind a collective."""

import os
import subprocess

import pytest
from ranks import HERE, PYTHON

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


def test_dependencies_are_handed_over_for_what_they_mean(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [PYTHON, HERE / "dependencies.py", tmp_path / "captured"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
