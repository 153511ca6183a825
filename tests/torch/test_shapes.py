"""Dynamic shapes stay dynamic; what kernels, data-dependent sizes and views count as."""

import os
import subprocess

import pytest
from ranks import HERE, PYTHON

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


def test_sizes_are_read_without_guards_and_counted(tmp_path):
    own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [PYTHON, HERE / "shapes.py"]
    environment = {**os.environ, **own}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
