"""Pages of runs: what every rank really did."""

import json

import pytest
from command import ROOT, corpus, read_json, run
from pages import nanos

MODULE = ROOT / "tests" / "hlo" / "fsdp_shmap_L2.after_spmd_partitioning.txt.gz"


@pytest.fixture(scope="module")
def page_of_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "page.html"
    run(
        "run",
        MODULE,
        "--input-order",
        "--steps",
        2,
        "--emulate-link",
        "1GB/s,100us",
        "--report",
        path,
    )
    return path


def test_all_ranks_are_there(page_of_run, open_page):
    page = open_page(page_of_run)
    shown = page.page.inner_text("body")
    assert "the median step of every rank as measured; rank " in shown
    options = page.page.eval_on_selector_all(
        "#view-0 option", "all => all.map(one => one.textContent)"
    )
    assert options == [f"rank {rank}" for rank in range(8)]
    # It opens with the slowest.
    assert nanos(max(view["length"] for view in page.data["views"])) in shown


def test_another_rank_is_shown(page_of_run, open_page, screenshots):
    page = open_page(page_of_run)
    page.page.select_option("#view-1", "7")
    assert "rank 7" in page.page.inner_text("body")
    page.page.screenshot(path=screenshots / "run.png")


def test_it_fits_a_telephone(page_of_run, open_page):
    page = open_page(page_of_run, width=390)
    assert page.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_module_without_loops_stands_beside_its_simulation(tmp_path, open_page):
    module = ROOT / "tests" / "hlo" / "fsdp_shmap_L2.after_optimizations.txt.gz"
    path = tmp_path / "page.html"
    run("run", module, "--input-order", "--steps", 2, "--report", path)
    page = open_page(path)
    assert [view["name"] for view in page.data["views"]][:2] == ["simulated", "rank 0"]
    # Whichever rank was the slowest stands beside it.
    simulated, slowest = page.page.evaluate("halflap.state().shown")
    assert simulated == 0 and page.data["views"][slowest]["name"].startswith("rank ")
    [differences, _] = page.data["tables"]
    kinds = {row[1] for row in differences["rows"]}
    assert kinds == {"kernel", "transfer", "wait"}


def measured_step():
    """A corpus graph as two ranks might have run it, one after the other's kernels."""
    graph = read_json(corpus("ddp_mlp_4"))
    ranks = []
    for slower in (1.0, 1.5):
        now, ran, transfers = 1000.0, [], []
        for node in graph["nodes"]:
            lasts = slower * node["runtime_ns"] if node["kind"] == "compute" else 5000.0
            ran.append({"name": node["name"], "start_ns": now, "end_ns": now + lasts})
            now += lasts
            if node["kind"] == "collective":
                end = now + node["runtime_ns"]
                transfers.append({"name": node["name"], "start_ns": now, "end_ns": end})
        run_of_it = {"begin_ns": 1000.0, "end_ns": now, "ran": ran, "transfers": transfers}
        ranks.append({"step_ns": now + 2000.0, "graphs": [run_of_it]})
    order = [node["name"] for node in graph["nodes"]]
    graphs = [{"name": "forward", "graph": graph, "order": order}]
    return {"format": "halflap.timeline/1", "graphs": graphs, "ranks": ranks}


def test_a_measured_step_stands_above_its_simulation(tmp_path, open_page, screenshots):
    step = tmp_path / "step.json"
    step.write_text(json.dumps(measured_step()))
    out = tmp_path / "comparison.json"
    text = run("timeline", step, "--report", tmp_path / "page.html", "-o", out)
    comparison = read_json(out)
    assert nanos(comparison["measured"]["step"]) in text
    page = open_page(tmp_path / "page.html")
    names = [view["name"] for view in page.data["views"]]
    assert names == ["simulated", "rank 0", "rank 1"]
    # Whichever rank was the slowest stands beside it.
    simulated, slowest = page.page.evaluate("halflap.state().shown")
    assert simulated == 0 and page.data["views"][slowest]["name"].startswith("rank ")
    assert page.page.input_value("#view-1") == "1"
    shown = page.page.inner_text("body")
    assert nanos(comparison["simulated"]["step"]) in shown and "differences" in shown
    [differences, _] = page.data["tables"]
    assert len(differences["rows"]) == len(comparison["differences"])
    page.page.screenshot(path=screenshots / "timeline.png")
