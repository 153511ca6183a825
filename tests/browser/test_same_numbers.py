"""One meaning for every number: terminal, page and JSON of every command show the same ones."""

import json
import re

import pytest
from command import ROOT, corpus, read_json, run
from pages import embedded, nanos, size, three_digits
from test_runs import measured_step

MODULE = ROOT / "tests" / "hlo" / "fsdp_shmap_L2.after_optimizations.txt.gz"
TRACES = [ROOT / "tests" / "analyze" / f"fsdp_gloo_{rank}.json.gz" for rank in (0, 1)]


def table(page, title="collectives", view=None):
    """The rows of a page's table, each by its columns."""
    of = [one for one in page["tables"] if one["title"] == title and one["view"] in (None, view)]
    titles = [column["title"] for column in of[0]["columns"]]
    return [dict(zip(titles, row, strict=True)) for row in of[0]["rows"]]


def headline(view):
    return {figure["label"]: figure["value"] for figure in view["headline"]}


def rate(value, unit):
    """As units.rs writes a rate."""
    power = next((power for power in range(6, 0, -1) if value >= 1000**power), 0)
    return f"{three_digits(value / 1000**power)} {' kMGTPE'[power].strip()}{unit}"


def line(text, label):
    """What stands behind a label of the summary."""
    return re.search(rf"^{label} +(.*)$", text, re.M)[1]


def commands(tmp_path, command, *args):
    """What a command prints, writes and draws."""
    page, out = tmp_path / "page.html", tmp_path / "out.json"
    text = run(command, *args, "--report", page, "-o", out)
    return text, read_json(out), page


def shows(open_page, path, figures):
    """That a reader of the page sees all of these."""
    body = open_page(path).page.inner_text("body")
    for figure in figures:
        assert figure in body, figure


def test_schedule(tmp_path, open_page):
    options = ["--effort", "quick", "--no-advice"]
    text, out, path = commands(tmp_path, "schedule", corpus("ddp_mlp_4"), *options)
    page = embedded(path)
    for number, suffix in enumerate(["_before", ""]):
        figures = headline(page["views"][number])
        assert figures["step time"] == pytest.approx(out["step_time" + suffix], abs=0.1)
        assert figures["exposed communication"] == pytest.approx(out["exposed" + suffix], abs=0.1)
        assert figures["peak memory"] == out["peak_memory" + suffix]
        exposed = sum(row["exposed"] for row in table(page, view=number))
        assert exposed == pytest.approx(out["exposed" + suffix], abs=1)
    both = lambda field, unit: f"{unit(out[field + '_before'])} -> {unit(out[field])}"
    assert line(text, "step time").startswith(both("step_time", nanos))
    assert line(text, "exposed") == both("exposed", nanos)
    assert line(text, "peak memory").startswith(both("peak_memory", size))
    shows(
        open_page, path, [nanos(out["step_time"]), nanos(out["exposed"]), size(out["peak_memory"])]
    )


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_simulate_and_explain(command, tmp_path, open_page):
    text, out, path = commands(tmp_path, command, corpus("fsdp_llama_2"), "--device", "h100")
    page = embedded(path)
    figures = headline(page["views"][0])
    assert figures["step time"] == pytest.approx(out["step_time"], abs=0.1)
    assert line(text, "step time").startswith(nanos(out["step_time"]) + ",")
    assert line(text, "peak memory") == size(out["peak_memory"])
    shown = {row["collective"]: row for row in table(page)}
    assert len(shown) == len(out["collectives"])
    is_bound = [one["latency_bound"] for one in out["collectives"]]
    assert any(is_bound) and not all(is_bound)
    for one in out["collectives"]:
        row = shown[one["called"]]
        assert row["exposed"] == pytest.approx(one["exposed"], abs=0.1)
        assert row["bus rate"] == pytest.approx(one["bus_bandwidth"])
        share = "latency" if one["latency_bound"] else f"{100 * one['of_best']:.1f}%"
        assert row["of best"] == (
            "latency" if one["latency_bound"] else pytest.approx(100 * one["of_best"])
        )
        # Only explain lists every one that is exposed.
        found = re.search(rf"^{re.escape(one['called'])} .*$", text, re.M)
        assert found or one["exposed"] == 0 or command == "simulate"
        if found and one["exposed"] > 0:
            printed = found[0]
            assert nanos(one["exposed"]) in printed
            assert printed.endswith(f"{rate(one['bus_bandwidth'], 'B/s')}  {share:>7}"), printed
    kernels = {row["kernel"]: row for row in table(page, "kernels")}
    for number, one in enumerate(out["kernels"]):
        row = kernels[one["node"]]
        assert row["FLOP/s"] == pytest.approx(one["flop_rate"]) and row[
            "of bf16 peak"
        ] == pytest.approx(100 * one["of_peak"])
        if command == "explain" and number < 8:
            assert re.search(
                rf"^{one['node']} .* {rate(one['flop_rate'], 'FLOP/s')} +{100 * one['of_peak']:.1f}%",
                text,
                re.M,
            )
    shows(open_page, path, [nanos(out["step_time"]), size(out["peak_memory"])])


def test_what_if(tmp_path, open_page):
    options = ["--effort", "quick", "--memory", "1x,1.5x", "--bandwidth", "1x"]
    text, out, path = commands(tmp_path, "what-if", corpus("ddp_mlp_4"), *options)
    page = embedded(path)
    assert headline(page["views"][0])["step time"] == pytest.approx(out["input_step_time"], abs=0.1)
    drawn = [point for curve in page["sweep"]["curves"] for point in curve["points"]]
    for point, shown in zip(out["points"], drawn, strict=True):
        assert shown["limit"] == point["memory_limit"]
        assert shown["step_time"] == pytest.approx(point["step_time"], abs=0.1)
        assert nanos(point["step_time"]) in text
    assert out["answer"] in text
    shows(open_page, path, [out["answer"]])


def test_analyze(tmp_path, open_page):
    text, out, path = commands(tmp_path, "analyze", *TRACES)
    page = embedded(path)
    rows = {row["rank"]: row for row in table(page, "ranks")}
    for rank, view in zip(out["ranks"], page["views"], strict=True):
        figures = headline(view)
        row = rows[str(rank["rank"])]
        for label, field in [
            ("span", "span"),
            ("exposed communication", "exposed"),
            ("idle", "idle"),
        ]:
            assert figures[label] == rank[field]
        for field in ["span", "compute", "communication", "exposed", "memory", "idle"]:
            assert row[field] == rank[field]
        printed = re.search(rf"^ +{rank['rank']} .*$", text, re.M)[0]
        for field in ["span", "compute", "communication", "exposed", "idle"]:
            assert nanos(rank[field]) in printed
        drawn = [row for row in table(page) if row["rank"] == str(rank["rank"])]
        for column, field in [("exposed", "exposed"), ("bus rate", "bus_bandwidth")]:
            ours = sorted(one[field] or 0 for one in rank["collectives"])
            assert sorted(row[column] or 0 for row in drawn) == pytest.approx(ours)
        assert sum(row["exposed"] for row in drawn) == pytest.approx(rank["exposed"])
    shows(open_page, path, [nanos(out["ranks"][0]["span"]), nanos(out["ranks"][0]["exposed"])])


def waited(figures):
    return figures["queued"] + figures["transfer"] + figures["wake_up"]


def test_run(tmp_path, open_page):
    path = tmp_path / "page.html"
    options = ["--input-order", "--steps", 5, "--emulate-link", "0.2GB/s,200us", "--report", path]
    out = json.loads(run("run", MODULE, *options, "--json"))
    page = embedded(path)
    name = f"rank {out['slowest_rank']}"
    view = next(view for view in page["views"] if view["name"] == name)
    figures = headline(view)
    assert (
        figures["step time"]
        == out["step_time"]
        == sorted(out["step_times"])[(len(out["step_times"]) - 1) // 2]
    )
    assert figures["exposed communication"] == pytest.approx(out["exposed"], abs=1)
    assert figures["compute"] == pytest.approx(out["compute"], rel=1e-6)
    assert waited(out) == pytest.approx(out["exposed"], abs=1) and out["transfer"] > 0
    rows = [row for row in table(page) if row["rank"] == name]
    for column in ["exposed", "queued", "transfer", "wake-up"]:
        assert sum(row[column] for row in rows) == pytest.approx(
            out[column.replace("-", "_")], abs=len(rows)
        )
    stalls = view["stalls"]
    summed = sum(end - start for start, end in zip(stalls["start"], stalls["end"]))
    assert summed == pytest.approx(out["exposed"], abs=len(stalls["start"]))
    text = run("run", MODULE, *options)
    view = next(
        view
        for view in embedded(path)["views"]
        if line(text, "exposed").split("; ")[1].startswith(view["name"] + ",")
    )
    figures = headline(view)
    assert line(text, "step time").startswith(nanos(figures["step time"]) + ",")
    assert line(text, "exposed").startswith(
        nanos(figures["exposed communication"]) + " of it: queued "
    )
    # The page opens with the rank that the terminal has.
    shows(
        open_page,
        path,
        ["queued", "wake-up", nanos(figures["step time"]), nanos(figures["exposed communication"])],
    )


def test_timeline(tmp_path, open_page):
    step = tmp_path / "step.json"
    step.write_text(json.dumps(measured_step()))
    text, out, path = commands(tmp_path, "timeline", step)
    page = embedded(path)
    [simulated, *ranks] = [headline(view) for view in page["views"]]
    assert simulated["step time"] == pytest.approx(out["simulated"]["step"], abs=0.1)
    mean = lambda label: sum(figures[label] for figures in ranks) / len(ranks)
    assert mean("step time") == pytest.approx(out["measured"]["step"], abs=0.1)
    assert mean("exposed communication") == pytest.approx(out["measured"]["waiting"], abs=0.1)
    assert nanos(out["measured"]["step"]) in text and nanos(out["simulated"]["step"]) in text
    shows(open_page, path, [nanos(out["simulated"]["step"])])
