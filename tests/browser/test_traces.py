"""Pages of traces: what several ranks did, on one clock."""

import json

import pytest
from command import run
from pages import nanos

BASE = 1_700_000_000_000_000


def kernel(name, stream, start, time, **more):
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": BASE + start,
        "dur": time,
    }
    return event | {"args": {"device": 0, "stream": stream, **more}}


def all_reduce(start, time, ranks=2):
    group = {
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(ranks))),
        "Group size": ranks,
    }
    return kernel(
        "ncclDevKernel_AllReduce(x)", 20, start, time, **{"Collective name": "allreduce", **group}
    )


@pytest.fixture
def analyzed(tmp_path, open_page):
    """The page of traces, one for each list of events."""

    def make(*traces, width=1440):
        paths = []
        for rank, events in enumerate(traces):
            paths.append(tmp_path / f"{rank}.json")
            info = {"rank": rank, "world_size": len(traces)}
            paths[-1].write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
        run("analyze", *paths, "--report", tmp_path / "page.html")
        return open_page(tmp_path / "page.html", width)

    return make


def steps(first):
    """Four steps; the first kernel begins at another time."""
    events = [kernel("gemm", 7, first, 100)]
    for step in range(4):
        events += [kernel("gemm", 7, 1300 + 1000 * step, 300), all_reduce(2100 + 1000 * step, 200)]
    return events


def test_ranks_share_one_time_axis(analyzed):
    page = analyzed(steps(1000), steps(500))
    page.page.select_option("#view-1", "1")
    op = page.data["ops"]["name"].index("all_reduce 1")
    assert page.place(0, op)[0] == pytest.approx(page.place(1, op)[0], abs=1)
    begins = [view["begin"] for view in page.data["views"]]
    assert begins == [500_000, 0] and page.state()["longest"] == 4_800_000
    start = page.column_number("start")
    assert {row[start] for row in page.data["tables"][0]["rows"] if row[0] == "all_reduce 1"} == {
        1_600_000
    }


def test_ranks_without_a_connection_begin_at_their_own_start(analyzed):
    page = analyzed(
        [kernel("gemm", 7, 0, 100), all_reduce(100, 50)], [kernel("gemm", 7, 900_000, 100)]
    )
    assert [view["begin"] for view in page.data["views"]] == [0, 0]
    assert "no collective relates its clock" in page.text("#facts")
    assert "?" in page.texts(".card")[-1]


@pytest.mark.parametrize("width", [1280, 1440])
def test_where_the_time_goes_adds_up(width, analyzed):
    copy = dict(kernel("Memcpy DtoD", 9, 200, 70), cat="gpu_memcpy")
    page = analyzed([kernel("gemm", 7, 0, 100), copy, all_reduce(300, 50)], steps(0), width=width)
    page.page.select_option("#view-1", "1")
    first = page.texts(".budget .parts")[0]
    for part, time in (("compute", 100e3), ("exposed", 50e3), ("copies", 70e3), ("idle", 130e3)):
        assert f"{part} {nanos(time)}" in first
    assert nanos(130e3) in page.texts(".card")[2]
    for name, track in zip(
        page.page.locator(".budget .of").all(), page.page.locator(".track").all()
    ):
        assert name.bounding_box()["width"] > 30 and track.bounding_box()["width"] > 200
    parts = page.page.locator(".budget .parts").first.bounding_box()
    assert parts["x"] + parts["width"] <= width - 20


def test_names_are_unique(analyzed):
    page = analyzed(steps(0), [all_reduce(700, 10)] + steps(0) + [kernel("gemm", 7, 1400, 300)])
    names = page.data["ops"]["name"]
    assert len(names) == len(set(names)) and any("alone" in name for name in names)
    lanes = [lane["name"] for lane in page.data["views"][1]["lanes"]]
    assert len(lanes) == len(set(lanes)) == 3


def test_rows_that_were_left_out_are_counted(analyzed):
    page = analyzed([all_reduce(100 * at, 50, 1) for at in range(2500)])
    assert page.texts("#tables .count")[0] == "2,000 of 2,500, the most exposed"
    page.press("t")
    page.page.keyboard.type("all_reduce 77")
    page.settle()
    assert page.texts("#tables .count")[0].endswith(" found among 2,000 of 2,500, the most exposed")


def test_long_names_stay_apart(analyzed):
    middle = ["<" + "x" * 60 + f"{at}" + "y" * 60 + ">" for at in range(5)]
    page = analyzed(
        [
            kernel("void at::native::kernel" + name, 7, 100 * at, 50)
            for at, name in enumerate(middle)
        ]
    )
    shown = page.texts("#tables section:last-child tbody td:first-child")
    assert len(set(shown)) == 5 and all(len(name) < 60 for name in shown)
    page.page.locator("#tables section:last-child tbody tr[data-at]").first.click()
    assert middle[0] in page.text("#details h2")


def test_kernels_of_many_ranks_are_one_row(analyzed):
    page = analyzed(*[steps(100 * rank) for rank in range(12)])
    rows = page.data["tables"][2]["rows"]
    assert sorted(row[0] for row in rows) == ["gemm", "ncclDevKernel_AllReduce(x)"]
    page.page.locator("#tables section:last-child tbody tr", has_text="gemm").click()
    details = page.text("#details")
    assert "rank 0: 1.30 ms" in details and "and 4 more ranks" in details


def test_kernels_have_short_names_that_stay_apart(analyzed):
    names = [
        "void ns::embedding_kernel<float, 32>(float*)",
        "void copy<float>(float*)",
        "void copy<int>(int*)",
    ]
    page = analyzed([kernel(name, 7, 10 * at, 5) for at, name in enumerate(names)])
    shown = page.texts("#tables section:last-child tbody tr[data-at] td:first-child")
    assert sorted(shown) == sorted(["ns::embedding_kernel", *names[1:]])


def test_the_headline_is_of_all_ranks(analyzed):
    page = analyzed(
        [kernel("gemm", 7, 0, 100), all_reduce(100, 50)],
        [kernel("gemm", 7, 0, 100), all_reduce(150, 70)],
    )
    facts = dict(page.data["facts"])
    assert facts["all ranks"].startswith(
        "2 ranks, on average: span 185 us (150 us to 220 us), compute 100 us (100 us to 100 us)"
    )
    assert "all ranks: 50 us to 70 us" in page.texts(".card")[1]
