"""`collective_order="auto"`: all ranks run the same order, whatever becomes of some of them."""

import shutil

import pytest
from ranks import PYTHON, launch

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    return launch("agree.cells", tmp_path_factory.mktemp("cells"), seconds=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("agree")


@pytest.fixture(scope="module")
def mixes(folder):
    return launch("agree.mixes", folder, ranks=2)


@pytest.mark.parametrize(
    "name",
    ["all the same", "a mesh", "over rows", "over the first of two", "the same again", "apart"],
)
def test_ranks_that_agree_run_free(cells, name):
    assert [rank[name] for rank in cells[:3]] == [True] * 3


@pytest.mark.parametrize(
    "name",
    [
        "another order",
        "groups numbered otherwise",
        "over rows, then columns",
        "over one of two groups with the same ranks",
        "a rank failed",
        "a late rank in a mesh",
        "the same, another order",
        "a dead rank",
    ],
)
def test_where_one_does_not_agree_all_keep(cells, name):
    assert [rank[name] for rank in cells[:3]] == [False] * 3


def test_a_graph_apart_does_not_run_where_others_do_not_come(cells):
    assert [rank["alone"] for rank in cells[:3]] == [True] * 3


def test_ranks_in_different_graphs_do_not_wait_for_each_other(cells):
    stages = [rank[f"graph of stage {number // 2}"] for number, rank in enumerate(cells[:3])]
    assert stages == [False] * 3


def test_values_are_right_in_every_mix(mixes):
    for rank in mixes:
        assert {name: one["right"] for name, one in rank.items()} == dict.fromkeys(rank, True)


def test_ranks_decide_alike_in_every_mix(mixes):
    for name in mixes[0]:
        assert [any(rank[name]["free"]) for rank in mixes] in ([True, True], [False, False]), name


def test_all_ranks_alike_run_free(mixes):
    for rank in mixes:
        assert rank["the same"]["orders"] == ["either"] and rank["the same"]["free"] == [True]


def test_a_later_variant_follows_what_was_decided(mixes):
    for rank in mixes:
        assert rank["both again"]["free"] == [True]
        assert "kept" not in rank["another length later"]["orders"] + rank["both again"]["orders"]


@pytest.mark.parametrize(
    "name",
    ["an estimate fails", "a pass fails", "a second program fails", "not enabled", "no store"],
)
def test_ranks_that_are_not_alike_keep_the_order(mixes, name):
    assert [any(rank[name]["free"]) for rank in mixes] == [False, False]


def test_failures_are_recorded(mixes):
    for name in ("an estimate fails", "a pass fails", "a second program fails"):
        assert "broken here" in mixes[1][name]["failures"][0]
    assert mixes[0]["a pass fails"]["failures"] == [None]


def test_what_was_agreed_on_binds_whatever_comes_later(tmp_path):
    ranks = launch("agree.afterwards", tmp_path, ranks=2)
    assert [ranks[1][name]["outcome"] for name in ("kept", "free")] == 2 * ["AGREED"]
    for rank in ranks:
        assert {name: one["right"] for name, one in rank.items()} == dict.fromkeys(rank, True)
        assert all(one["free"] == [True] for name, one in rank.items() if name != "apart"), rank
        assert len(rank["apart"]["free"]) == 2


def test_warm_and_cold_caches_mix(mixes, folder):
    shutil.rmtree(folder / "cache1")
    mixed = launch("agree.cached", folder, ranks=2)
    assert [rank["hits"] for rank in mixed] == [1, 0]
    assert all(rank["right"] and rank["free"] == [True] for rank in mixed)
    warm = launch("agree.cached", folder, ranks=2)
    assert [rank["hits"] for rank in warm] == [1, 1]
    assert all(rank["right"] and rank["free"] == [True] for rank in warm)


def test_kept_programs_have_the_constants_of_their_graphs(tmp_path):
    for rank in launch("agree.constants", tmp_path, ranks=2):
        assert rank["orders"] == ["either", "either"]
        assert rank["right"] == [True, True]
        assert "collectives either (kept)" in rank["status"], rank["status"]


def test_another_process_group_is_asked_again(tmp_path):
    for rank in launch("agree.anew", tmp_path, ranks=2):
        assert rank["free before"] == [True]
        assert rank["right"]
