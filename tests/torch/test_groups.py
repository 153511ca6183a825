"""Process groups that are objects, and collectives in nested regions."""

import os
import subprocess

import pytest
from ranks import HERE, PYTHON

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


@pytest.mark.parametrize("script", ["groups", "regions"])
def test_torch_alone(script, tmp_path):
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [PYTHON, HERE / f"{script}.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
