"""Passes over FX graphs on real ranks; tasks_fx.py has what they do. scripts/nightly has more."""

import pytest
from ranks import PYTHON, launch

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return launch("fx.trained", tmp_path_factory.mktemp("trained"), ranks=2)


def test_models_compute_the_same(trained):
    for rank in trained:
        for case, found in rank.items():
            assert found["same"] and found["failures"] == [], (case, found)
            # Forward and backward.
            assert found["graphs"] == 2 and found["faster"], (case, found)
        assert rank["fsdp merged"]["merged"] >= 8, rank["fsdp merged"]


def test_every_kind_is_merged_bit_for_bit(tmp_path):
    gather, scatter = "all_gather_into_tensor", "reduce_scatter_tensor"
    for rank in launch("fx.merged_kinds", tmp_path, ranks=4):
        for case, found in rank.items():
            assert found["close"], (case, found)
            assert found["same"] or case == "odd all", (case, found)
        # All-reduces are a reduce-scatter and an all-gather, if ranks can share them.
        assert rank["even exact"]["calls"] == [gather, gather, scatter, scatter]
        assert rank["odd exact"]["calls"] == [gather, *3 * ["all_reduce"], scatter]
        assert rank["odd all"]["calls"] == [gather, "all_reduce", scatter]


def test_every_region_is_cut_bit_for_bit(tmp_path):
    for rank in launch("fx.cut", tmp_path, ranks=4):
        for case, found in rank["all"].items():
            name, pieces = case.split()
            one = name in ("gathered", "scattered", "gated", "heads")
            # On more than two ranks a piece of an all-reduce is added up in another sequence.
            cut = 0 if name in ("reduced_product", "squared", "contracted") else 1 if one else 2
            assert found["same"] and found["cut"] == cut, (case, found)
            assert found["calls"] == (int(pieces) * cut or 1), (case, found)
        # A region whose last collective is exposed is cut from there back, or as a whole.
        for case, found in rank["from the end"].items():
            assert found[0][0] <= 1 and found == [[found[0][0], False], [2, True]], (case, found)


def test_models_are_cut_where_nothing_else_hides_them(trained):
    for rank in trained:
        for kind in ("tensor_parallel", "expert_parallel"):
            found = rank[f"{kind} cut"]
            assert found["pieces"] > 0 and found["shorter"], (kind, found)


def test_recipes(tmp_path):
    for rank in launch("fx.recipes", tmp_path, ranks=2):
        for case, found in rank.items():
            assert found["same"] and found["failures"] == [], (case, found)
        assert rank["inference"]["pieces"] == 1, rank["inference"]
        assert rank["data parallel"]["merged"] > 0, rank["data parallel"]
        assert rank["two waits"]["merged"] > 0, rank["two waits"]
        assert rank["odd sizes"]["merged"] == 3, rank["odd sizes"]


def test_ranks_agree_or_change_nothing(tmp_path):
    first, second = launch("fx.apart", tmp_path, ranks=2)
    for rank in (first, second):
        assert all(found["same"] for found in rank.values()), rank
        assert rank["agreed"]["merged"] == 4
        assert all(rank[case]["merged"] == 0 for case in ("failure", "hasty", "absent")), rank
    assert second["failure"]["failures"] == ["MemoryError: broken on purpose"]
    assert len(second["failure"]["told"]) == 1
    assert first["failure"]["failures"] == [] and "did not come" in first["absent"]["told"][0]
    assert "did not come to the same graph within 4 s" in first["hasty"]["told"][0]
    assert "other ranks would not do the same, so not rewritten" in first["failure"]["status"]


def test_inductor_keeps_caches_and_values(tmp_path):
    for rank in launch("fx.inductor", tmp_path, ranks=2):
        for case, found in rank.items():
            assert found["same"] and found["failures"] == [], (case, found)
        assert rank["merged"]["graphs"] == 2 and rank["merged"]["merged"] > 0
        # What is in the cache is what the pass would do again, with the same options only.
        assert rank["again"]["graphs"] == 0 and rank["other"]["graphs"] == 2
        assert "collectives merged into" in rank["both levels"]["status"]


def test_rewritten_graphs_stay_within_the_limit_of_what_they_were(tmp_path):
    for rank in launch("fx.one_limit", tmp_path, ranks=2):
        dropped = rank.pop("dropped")
        for budget, found in rank.items():
            # Forward and backward, each ordered once.
            assert len(found["peaks"]) == len(found["limits"]) == 2, (budget, found)
            assert all(map(int.__le__, found["peaks"], found["limits"])), (budget, found)
            assert found["failures"] == [], (budget, found)
            for number, is_rewritten in enumerate(found["rewritten"]):
                shorter = found["steps_now"][number] < found["steps"][number]
                assert shorter or not is_rewritten, (budget, found)
        assert any(rank["2.0"]["rewritten"]) and any(rank["bytes"]["rewritten"]), rank
        assert dropped["as_before"] and any(dropped["dropped"]), dropped


def test_what_fits_stays_cut(tmp_path):
    first, *others = launch("fx.fewer_cuts", tmp_path, ranks=4)
    assert first["same"] and first["failures"] == [], first
    # A part of a graph's cuts fits, and all ranks take back the same.
    assert any(cut and taken for cut, taken in zip(first["cut"], first["taken_back"])), first
    assert all(rank == first for rank in others)


def test_less_of_a_plan(tmp_path):
    (rank,) = launch("fx.taken_back", tmp_path, ranks=1)
    assert rank == dict.fromkeys(rank, True)


def test_what_is_concatenated_counts_once(tmp_path):
    (rank,) = launch("fx.joined", tmp_path, ranks=1)
    assert rank == dict.fromkeys(rank, True)


def test_parameters_are_kept_or_gathered_again(tmp_path):
    for rank in launch("keep.both_directions", tmp_path, ranks=2):
        forward, backward = rank.pop("plain")["gathers"]
        # What the first layer is given needs no gradient: one weight is not used in backward.
        assert forward == backward + 1 > 1
        for case, found in rank.items():
            assert found["same"] and (found["failure"] is None) == (case != "failed"), (case, found)
            assert found["gathers"] == [forward, backward - found["kept"]], (case, found)
        kept, some, again = rank["kept"], rank["some"], rank["again"]
        assert kept["kept"] == kept["parameters"] == backward and kept["kept_before"] == 0
        assert kept["after"]["step_time"] < kept["before"]["step_time"]
        # Never more than the limit.
        limit = (kept["before"]["peak"] + kept["after"]["peak"]) // 2
        assert 0 < some["kept"] < backward and some["after"]["peak"] <= limit
        assert rank["within"]["after"]["peak"] <= rank["within"]["before"]["peak"]
        assert again["kept"] == 0 and again["kept_before"] == backward
        assert again["after"]["peak"] < again["before"]["peak"]
        assert rank["kept as before"]["kept"] == backward and rank["failed"]["told"] == 1


def test_second_groups(tmp_path):
    for rank in launch("keep.second_groups", tmp_path, ranks=2):
        assert all(found["same"] for found in rank.values()), rank
        assert {case: found["regrouped"] for case, found in rank.items()} == {
            "broken": 0,
            "compiled": 1,
            "both": 1,
            "alone": 0,
        }
        assert "rank 0: RuntimeError: no group" in rank["broken"]["told"][0]
        # The library is told which group's link a second one shares.
        assert [len(rank[case]["shared"]) for case in ("broken", "both", "alone")] == [0, 1, 0]


def test_inductor_keeps_parameters_in_second_groups(tmp_path):
    first, second = launch("keep.inductor", tmp_path, ranks=2)
    assert first["first"]["second"] == second["first"]["second"] != []
    for rank in (first, second):
        for case, found in rank.items():
            assert found["same"] and found["failures"] == [], (case, found)
        assert rank["first"]["decided"] == 1 and rank["first"]["regrouped"] > 0
        assert "gathered parameters kept for backward" in rank["first"]["status"]
        # Both are in what compile caches know a graph by.
        assert rank["cached"]["decided"] == 0 and rank["cached"]["graphs"] == 0
        assert rank["cached"]["second"] == rank["first"]["second"]


def test_random_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("FIRST_SEED", "0")
    monkeypatch.setenv("SEEDS", "6")
    for rank in launch("fx.random_sweep", tmp_path, ranks=2):
        assert rank["differences"] == []
        # Cuts are rare among them, and have tests of their own.
        assert rank["merged"] > 0 and rank["graphs"] >= 24


def test_what_must_not_move_does_not(tmp_path):
    (rank,) = launch("fx.bound", tmp_path, ranks=1)
    assert rank == dict.fromkeys(rank, True)
