"""`status`, opaque collectives, and the names in captured graphs, with real torch in one process."""

import subprocess

import pytest
from ranks import HERE, PYTHON, common_environment

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


def test_status_says_what_ran_and_what_did_not(tmp_path):
    environment = {**common_environment(), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [PYTHON, HERE / "statuses.py", tmp_path]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
