"""Measured profiles, and the choice of the fastest order."""

import json
import subprocess

import pytest
from ranks import HERE, PYTHON, launch

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


def test_a_profile_is_measured_and_used(tmp_path):
    first, second = launch("measure.profile", tmp_path, ranks=2)
    assert first["times"] == second["times"] and first["figures"] == second["figures"]
    assert first["is_equal"] and second["is_equal"], "measuring changes no values"
    assert "halflap is not enabled" in first["settings"], first["settings"]
    slowdown, comm_slowdown, outside = first["figures"]
    assert slowdown >= 1 and comm_slowdown >= 1 and outside > 0
    for path in (tmp_path / "graphs0").iterdir():
        nodes = json.loads(path.read_text())["nodes"]
        timed = [node for node in nodes if node["kind"] in ("compute", "collective")]
        kinds = {node["kind"] for node in timed}
        assert kinds == {"compute", "collective"}
        for node in timed:
            assert node["runtime_ns"] == first["times"][node["kernel"]], node
    assert all(time > 0 for name, time in first["times"].items() if " of 2, " in name)


def test_the_fastest_order_is_chosen(tmp_path):
    first, second = launch("measure.tuned", tmp_path, ranks=2)
    assert first["tuned"] == second["tuned"]
    assert first["tuned"] == json.loads((tmp_path / "tuned0.json").read_text())
    rows = {tuple(one["candidate"].values()): one for one in first["tuned"]["rows"]}
    orders = [("kept", "1x"), ("kept", "1.5x"), ("free", "1x"), ("free", "1.5x")]
    assert [*rows] == [("default", "1x"), ("none", "1x"), *orders]
    assert rows["default", "1x"]["ratio"] == 1
    assert first["text"].count("chosen") == 1
    uses = first["uses"]
    # Torch's own orders are not ours to search for; a free one needs the ranks' agreement. Whether
    # it moves anything depends on measured times.
    assert uses["default"]["ran"] == uses["none"]["ran"] == []
    assert set(uses["kept"]["ran"]) == {"kept"} and uses["kept"]["option"] == "kept"
    assert uses["free"]["ran"] and uses["free"]["option"] == "auto"


def test_what_cannot_run_everywhere_is_left_out(tmp_path):
    first, second = launch("measure.left_out", tmp_path, ranks=2)
    assert first == second
    assert "no room" in first["one_fails"]["kept"]
    assert first["differ"] == {"free": "ranks would issue collectives in different orders"}


def test_intervals_clocks_and_files(tmp_path):
    command = [PYTHON, HERE / "measured.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
