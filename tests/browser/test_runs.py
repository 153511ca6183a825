"""Pages of runs: what every rank really did."""

import pytest
from command import ROOT, run
from pages import nanos

MODULE = ROOT / "tests" / "hlo" / "fsdp_shmap_L2.after_spmd_partitioning.txt.gz"


@pytest.fixture(scope="module")
def page_of_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "page.html"
    run("run", MODULE, "--input-order", "--steps", 2, "--emulate-link", "1GB/s,100us", "--report", path)
    return path


def test_all_ranks_are_there(page_of_run, open_page):
    page = open_page(page_of_run)
    shown = page.page.inner_text("body")
    assert "the last step of every rank, as it was measured" in shown
    options = page.page.eval_on_selector_all("#view-0 option", "all => all.map(one => one.textContent)")
    assert options == [f"rank {rank}" for rank in range(8)]
    assert nanos(page.data["views"][0]["length"]) in shown


def test_another_rank_is_shown(page_of_run, open_page, screenshots):
    page = open_page(page_of_run)
    page.page.select_option("#view-1", "7")
    assert "rank 7" in page.page.inner_text("body")
    page.page.screenshot(path=screenshots / "run.png")


def test_it_fits_a_telephone(page_of_run, open_page):
    page = open_page(page_of_run, width=390)
    assert page.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
