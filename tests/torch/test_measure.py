"""Measured profiles, and the choice of the fastest order."""

import json

import pytest
from ranks import PYTHON, launch

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
    # The profile gives graphs that were captured without it the same times.
    assert set(first["with"]) == {"forward", "backward"}
    assert first["with"] == first["later"] != first["never"]


def test_the_fastest_order_is_chosen(tmp_path):
    first, second = launch("measure.tuned", tmp_path, ranks=2)
    assert first["tuned"] == second["tuned"]
    assert first["tuned"] == json.loads((tmp_path / "tuned0.json").read_text())
    rows = {tuple(one["candidate"].values())[:2]: one for one in first["tuned"]["rows"]}
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
    assert "torch's own order (default)" in uses["default"]["status"]
    last = uses["none"]["last"]
    assert (last["outcome"], last["reason"]) == ("torchs_order", "tuned")
    assert uses["kept"]["last"]["outcome"] == "ordered"


def test_rewritten_steps_are_tried_with_the_same_values(tmp_path):
    first, second = launch("measure.rewritten", tmp_path, ranks=2)
    assert first == second
    assert first["tried"] == ["default", "none", "kept 2x", "free 2x", "free 2x exact"]
    assert all(first["is_equal"].values()), first["is_equal"]
    assert "rewrite='exact'" in first["status"], first["status"]


def test_what_cannot_run_everywhere_is_left_out(tmp_path):
    first, second = launch("measure.left_out", tmp_path, ranks=2)
    assert first == second
    assert "no room" in first["one_fails"]["kept"]
    assert first["differ"] == {"free": "ranks would issue collectives in different orders"}


def test_a_step_is_shown_beside_its_simulation(tmp_path):
    first, second = launch("measure.timeline", tmp_path, ranks=2)
    assert first == second
    for order in ("default", "free"):
        assert first[order]["is_equal"], "looking changes no values"
        assert first[order]["past"] == first[order]["told"] == []
        assert "spent on" in first[order]["text"] and first[order]["page"] > 10000
        document = json.loads((tmp_path / f"{order}0.json").read_text())
        assert [graph["name"] for graph in document["graphs"]] == ["forward", "backward"]
        comparison = first[order]["comparison"]
        parts = ("compute", "waiting", "issuing", "outside")
        measured = comparison["measured"]
        assert measured["step"] == pytest.approx(sum(measured[part] for part in parts))
        steps = [rank["step_ns"] for rank in document["ranks"]]
        assert measured["step"] == pytest.approx(sum(steps) / 2)
        for rank in document["ranks"]:
            for graph, run in zip(document["graphs"], rank["graphs"]):
                check_run(graph, run)


def check_run(graph, run):
    """Everything ran in the order that is told, and gloo was done before a wait for it ended."""
    kinds = {node["name"]: node["kind"] for node in graph["graph"]["nodes"]}
    assert sorted(kinds) == sorted(graph["order"])
    ran = [span["name"] for span in run["ran"]]
    assert ran == [name for name in graph["order"] if name in ran]
    ends = [run["begin_ns"], *(span["end_ns"] for span in run["ran"]), run["end_ns"]]
    assert ends == sorted(ends)
    sent = {span["name"]: span for span in run["transfers"]}
    collectives = [name for name, kind in kinds.items() if kind == "collective"]
    assert sorted(sent) == sorted(collectives) and collectives
    makers = {
        output: node["name"] for node in graph["graph"]["nodes"] for output in node["outputs"]
    }
    waited = {span["name"]: span["end_ns"] for span in run["ran"]}
    for node in graph["graph"]["nodes"]:
        for dep in node["deps"] if node["kind"] == "wait" else ():
            if makers.get(dep["buffer"]) in sent:
                # On another clock, which is put on this one by a mark.
                done = sent[makers[dep["buffer"]]]["end_ns"]
                assert done <= waited[node["name"]] + 1e6, (node["name"], done)
