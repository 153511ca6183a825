"""Who overwrites a buffer comes after those that read it, in every order: torch 2.15 marks that as fake."""

import json
import os
import subprocess

import pytest
from ranks import HERE, PYTHON

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


def test_readers_come_before_who_overwrites(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [PYTHON, HERE / "overwriting.py", tmp_path / "captured"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    [path] = (tmp_path / "captured").iterdir()
    graph = json.loads(path.read_text())
    maker = {buffer: node for node in graph["nodes"] for buffer in node["outputs"]}
    [reduce] = [node for node in graph["nodes"] if node.get("collective", {}).get("op", "").startswith("all_reduce")]
    binding = [maker[dep["buffer"]] for dep in reduce["deps"] if dep["kinds"] != ["order"]]
    # What it overwrites was made by a product; a relu reads it, and an all-gather until it is waited for.
    assert {node["kind"] for node in binding} == {"compute", "wait"}
    assert any("relu" in name for node in binding for name in node["ops"])
