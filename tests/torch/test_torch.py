"""Real torch: gloo processes train small transformers, compiled with halflap and without.

HALFLAP_TORCH_PYTHON is a Python with torch and the wheel; scripts/test makes one.
"""

import json

import pytest
from command import run
from ranks import PYTHON, launch

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")

KINDS = ["fsdp", "tensor_parallel"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("torch")


@pytest.fixture(scope="session")
def trained(folder):
    return launch("train", folder, ranks=2)


@pytest.fixture(scope="session")
def again(folder, trained):
    """In another process, with the caches of the first."""
    return launch("again", folder, ranks=2)


@pytest.fixture(scope="session")
def differ(folder, trained):
    return launch("differ", folder, ranks=2)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_the_same_in_every_way(trained, kind):
    for rank in trained:
        eager, plain, ordered = rank[kind]["eager"], rank[kind]["plain"], rank[kind]["ordered"]
        assert plain["losses"] == pytest.approx(eager, rel=1e-4)
        # The same kernels, in another order.
        assert ordered["losses"] == plain["losses"]
        assert eager[-1] != eager[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_graph_with_collectives_is_ordered_forward_and_backward(trained, kind):
    for rank in trained:
        ran = rank[kind]["ordered"]["ran"]
        assert rank[kind]["plain"]["ran"] == []
        assert [name.split("_")[-1] for name, *_ in ran] == ["forward", "backward"]
        assert all(failure is None and collectives > 0 for _, collectives, failure, _ in ran)
        assert len(rank[kind]["ordered"]["sequences"]) == 2
        assert rank[kind]["ordered"]["sequences"] != rank[kind]["plain"]["sequences"]


def test_ranks_agree(trained):
    for kind in KINDS:
        orders = [[order for *_, order in rank[kind]["ordered"]["ran"]] for rank in trained]
        assert all(order == orders[0] for order in orders)


def test_every_graph_and_rank_has_a_report(trained, folder):
    named = {
        f"{name}.html"
        for rank in trained
        for kind in KINDS
        for name, *_ in rank[kind]["ordered"]["ran"]
    }
    assert {path.name for path in (folder / "reports").iterdir()} == named and len(named) == 8
    assert all("<html" in (folder / "reports" / name).read_text() for name in named)


def test_settings_are_restored(trained):
    for rank in trained:
        assert rank["settings"] == rank["settings_after"]
        orders = [rank[kind]["ordered"]["collective_orders"].values() for kind in KINDS]
        has_agreed = any("either" in kinds for kinds in orders)
        assert ("OverlapPass" in str(rank["settings_bound"])) == has_agreed


def test_a_second_run_hits_the_cache_and_has_our_order(trained, again):
    for first, second in zip(trained, again):
        assert (
            second["same"]["hits"] == 2
            and second["same"]["misses"] == 0
            and second["same"]["ran"] == []
        )
        assert second["same"]["sequences"] == first["fsdp"]["ordered"]["sequences"]
        assert second["same"]["losses"] == first["fsdp"]["ordered"]["losses"]


def test_a_changed_option_misses_the_cache(again):
    for rank in again:
        assert rank["changed"]["hits"] == 0 and len(rank["changed"]["ran"]) == 2


def test_captured_graphs_are_scheduled_alike_by_the_command(again, folder, tmp_path):
    for rank in again:
        assert len(rank["captured"]["ran"]) == 2
        for name, _, _, order in rank["captured"]["ran"]:
            out = tmp_path / f"{name}.json"
            kept = (
                ["--collective-order=kept"]
                if rank["captured"]["collective_orders"][name] == "kept"
                else []
            )
            run(
                "schedule", folder / "captured" / f"{name}.json", *kept, "--effort=quick", "-o", out
            )
            assert json.loads(out.read_text())["order"] == order


def test_captured_graphs_say_what_runs(again, folder):
    graph = json.loads(
        (folder / "captured" / f"{again[0]['captured']['ran'][0][0]}.json").read_text()
    )
    kinds = [node["kind"] for node in graph["nodes"]]
    # Each half of a layer gathers and scatters.
    assert kinds.count("collective") == kinds.count("wait") == 4
    assert [group["ranks"] for group in graph["groups"].values()] == [[0, 1]]
    products = [node["flops"] for node in graph["nodes"] if node.get("gemm_like")]
    # Of 2 * 32 tokens: two heads' queries, keys and values, what becomes of them, half of the
    # hidden width twice.
    assert sorted(products) == sorted(2 * 64 * 64 * out for out in (96, 32, 128, 128))
    issued = [node["collective"] for node in graph["nodes"] if node["kind"] == "collective"]
    assert all(collective["bytes"] == 64 * 64 * 4 for collective in issued)
    assert all(
        "models.py:" in node["source"] for node in graph["nodes"] if node["kind"] != "compute"
    )


def test_ranks_that_differ_are_told_on_every_rank(differ):
    for rank in differ:
        assert all(failure is None for _, _, failure, _ in rank["agreed"]["ran"])
        assert (
            "ranks 1 have other options or another version of halflap than rank 0" in rank["error"]
        )


def test_where_a_pass_fails_torchs_order_is_kept_and_said(trained, differ):
    for first, rank in zip(trained, differ):
        failing = rank["failing"]
        assert failing["losses"] == first["tensor_parallel"]["plain"]["losses"]
        failures = [failure for _, _, failure, _ in failing["ran"]]
        assert failures == ["InternalError: broken on purpose"] * 2
        assert len(failing["warnings"]) == 2
        for warning in failing["warnings"]:
            assert "keeps torch's own order" in warning and ".json has the graph" in warning


def test_what_a_pass_failed_on_is_not_cached(differ):
    for rank in differ:
        assert rank["mended"]["hits"] == 0
        assert [failure for _, _, failure, _ in rank["mended"]["ran"]] == [None, None]


def test_a_rank_does_not_go_its_own_way_alone(differ):
    for rank in differ:
        assert "another failure of halflap's, or none, than rank 0" in rank["alone"], rank["alone"]
        assert "rank 1: broken here" in rank["alone"]
        assert "perhaps on this one alone (MemoryError: broken everywhere)" in rank["free"]


def test_a_rank_that_died_is_not_waited_for(folder):
    survivor, dead = launch("died", folder, ranks=2, seconds=300)
    assert dead is None, (folder / "died1.log").read_text()
    assert "rank 1 did not say within 5 s what it would do" in survivor["error"]


def test_stages_of_a_pipeline_may_differ(folder):
    ranks = launch("stages", folder)
    assert [rank["ran"] for rank in ranks] == [[[1, None]], [[1, None]], [[2, None]], [[2, None]]]
    assert all(rank["same"] for rank in ranks)
