"""What the page answers: what can be done, where any operation is, what lies in a range, who holds
the memory."""

import json
import re
import urllib.parse

import pytest
from command import ROOT, corpus, read_json, run
from pages import DATA, nanos, size

HELD = 80_000_000


def named_graph(folder):
    """A graph of two layers whose gathers wait for each other, with names as torch gives them."""
    nodes, buffers = [], []

    def node(name, kind, time, deps, **more):
        deps = [{"buffer": f"b_{dep}", "kinds": ["data"]} for dep in deps]
        nodes.append(
            {
                "name": name,
                "kind": kind,
                "runtime_ns": time,
                "outputs": [f"b_{name}"],
                "deps": deps,
                **more,
            }
        )
        buffers.append(
            {
                "name": f"b_{name}",
                "size_alloc": HELD,
                "size_free": HELD,
                "users": [],
                "output": False,
            }
        )

    for layer in range(6):
        before = [f"mm{layer - 1}"] if layer else []
        gather = {"op": "all_gather", "group": "0", "async": True, "bytes": HELD, "group_size": 8}
        weight = f"layers.{layer}.attention.wq.weight"
        node(f"g{layer}", "collective", 50_000.0, before, collective=gather, parameter=weight)
        node(f"w{layer}", "wait", 0.0, [f"g{layer}"], parameter=weight)
        node(
            f"mm{layer}",
            "compute",
            60_000.0,
            [f"w{layer}", *before],
            module=f"layers.{layer}.attention.wq",
        )
    for one in nodes:
        for dep in one["deps"]:
            next(b for b in buffers if b["name"] == dep["buffer"])["users"].append(one["name"])
    graph = {"format": "halflap.graph/1", "groups": {"0": {"ranks": list(range(8))}}, "inputs": []}
    path = folder / "named.json"
    path.write_text(json.dumps(graph | {"nodes": nodes, "buffers": buffers}))
    return path


@pytest.mark.parametrize("command", ["schedule", "explain"])
def test_advice_is_the_same_in_terminal_page_and_json(command, report, open_page, tmp_path):
    page, out = report(command, "moe_ep_6")
    shown = open_page(page).texts("#advice li")
    options = ["--effort", "quick"] if command == "schedule" else []
    text = run(command, corpus("moe_ep_6"), *options)
    assert text.startswith("What you can do\n")
    assert 1 <= len(out["advice"]) <= 3
    for number, (line, advice) in enumerate(zip(shown, out["advice"], strict=True), 1):
        assert f"  {number}. {advice['text']}\n" in text
        assert advice["text"] in line and advice["action"] in line
        assert (
            f"{100 * advice['saves'] / (advice['saves'] + advice['step_time']):.1f}%"
            in advice["text"]
        )


def test_the_new_order_is_the_first_thing_to_do(report, open_page):
    """What it saves and how it is used, in terminal and page, before what goes beyond it."""
    page, out = report("schedule", "fsdp_llama_2")
    saved = 100 * (1 - out["step_time"] / out["step_time_before"])
    both = f"{nanos(out['step_time_before'])} -> {nanos(out['step_time'])}"
    lead = open_page(page).text("#advice-lead")
    text = " ".join(run("schedule", corpus("fsdp_llama_2"), "--effort", "quick").split())
    for shown in (" ".join(lead.split()).replace("\u2192 ", ""), text):
        assert f"Use the new order: it saves {saved:.1f}% ({both}, simulated)" in shown
        assert "halflap.torch.enable()" in shown and shown.index(
            "halflap.torch.enable()"
        ) < shown.index("Beyond that:")
    # An order that was not searched for is nobody's to use; nor is one that saves nothing.
    assert open_page(report("explain", "fsdp_llama_2")[0]).page.locator("#advice-lead").is_hidden()


def test_exposed_is_one_number(report, open_page):
    for name in ["ddp_mlp_4", "fsdp_llama_2"]:
        page, out = report("schedule", name)
        text = run("schedule", corpus(name), "--effort", "quick", "--no-advice")
        both = f"{nanos(out['exposed_before'])} -> {nanos(out['exposed'])}"
        assert re.search(rf"^exposed +{re.escape(both)}$", text, re.M), text
        assert out["exposed"] == out["simulated_exposed"]
        card = open_page(page).texts(".card")[1]
        assert both.replace("->", "→") in card


def test_any_operation_is_found(schedule):
    schedule.press("/")
    assert schedule.focused() == "find"
    schedule.page.keyboard.type("op83")
    assert "op83" in schedule.texts("#found [role=option]")[0]
    schedule.press("Enter")
    selected = schedule.state()["selected"]
    assert schedule.data["ops"]["name"][selected] == "op83"
    schedule.press("/")
    schedule.page.keyboard.type("no such thing")
    assert schedule.texts("#found li") == ["Nothing found."]
    schedule.press("Escape")
    assert not schedule.page.locator("#found").is_visible()


def drag_range(page, view, start, end):
    box = page.page.locator("#stage").bounding_box()
    y = page.place(view, page.longest_compute(view)[1])[1]
    page.page.keyboard.down("Shift")
    page.page.mouse.move(page.x_at(start), y)
    page.page.mouse.down()
    page.page.mouse.move(page.x_at((start + end) / 2), y, steps=3)
    page.page.mouse.move(page.x_at(end), y, steps=3)
    page.page.mouse.up()
    page.page.keyboard.up("Shift")
    assert box["x"] < page.x_at(start)
    page.settle()


def test_a_range_adds_up(schedule):
    view = schedule.data["views"][1]
    whole = schedule.span()
    drag_range(schedule, 1, 1e6, 3e6)
    start, end = schedule.state()["range"]
    assert start == pytest.approx(1e6, abs=view["length"] / 500) and end == pytest.approx(
        3e6, abs=view["length"] / 500
    )
    assert schedule.span() == whole, "a range is selected, and nothing pans"
    stalls = zip(view["stalls"]["start"], view["stalls"]["end"])
    exposed = sum(max(0, min(end, to) - max(start, since)) for since, to in stalls)
    slices = view["slices"]
    of_lane = [row for row in zip(slices["lane"], slices["start"], slices["end"]) if row[0] == 0]
    compute = sum(max(0, min(end, to) - max(start, since)) for _, since, to in of_lane)
    text = schedule.text("#details")
    assert re.search(rf"exposed\s+{re.escape(nanos(exposed))}", text), text
    assert re.search(rf"compute\s+{re.escape(nanos(compute))}", text), text
    schedule.press("Escape")
    assert schedule.state()["range"] is None


def test_the_address_leads_to_the_same_view(report, open_page, browser):
    path, _ = report("schedule", "fsdp_llama_2")
    page = open_page(path)
    page.press("v", "e", "+", "+")
    page.page.wait_for_timeout(300)
    was, address = page.state(), page.page.url
    fields = urllib.parse.parse_qs(urllib.parse.urlparse(address).fragment)
    assert set(fields) == {"views", "from", "to", "op"}
    other = browser.new_page()
    other.goto(address)
    now = other.evaluate("halflap.state()")
    other.close()
    assert (now["shown"], now["selected"]) == (was["shown"], was["selected"])
    assert now["from"] == pytest.approx(was["from"], abs=2) and now["to"] == pytest.approx(
        was["to"], abs=2
    )


def test_a_broken_address_shows_the_page(report, browser):
    path, _ = report("schedule", "fsdp_llama_2")
    for fragment in ["part=9&op=99999&from=5&to=1&views=7", "range=a,b", "%%%", "op=-3"]:
        page = browser.new_page()
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(path.resolve().as_uri() + "#" + fragment)
        assert page.evaluate("halflap.state().shown") == [0, 1]
        page.close()
        assert problems == []


def test_buffers_are_bands_of_the_memory_curve(report, open_page):
    page = open_page(report("schedule", "fsdp_llama_2")[0])
    classes = page.data["buffers"]["class"]
    assert {0, 1, 2, 3} >= set(classes) and 1 in classes and 3 in classes
    # The largest buffer at the peak begins at the bottom or above others of its kind: somewhere
    # there is a band.
    found = page.page.evaluate(
        """() => {
            const box = document.getElementById('stage').getBoundingClientRect();
            return [box.left, box.top, box.width, box.height];
        }"""
    )
    x = page.x_at(page.data["views"][1]["length"] / 2)
    page.page.mouse.move(x, found[1] + found[3] - 8)
    page.settle()
    tip = page.text("#tip")
    assert "last used by" in tip and "alive" in tip, tip
    page.page.mouse.click(x, found[1] + found[3] - 8)
    page.settle()
    panel = page.text("#memory")
    assert "made by" in panel and "last used by" in panel
    page.press("Escape")


def test_memory_at_the_peak_is_compared_by_class(report, open_page):
    page = open_page(report("schedule", "fsdp_llama_2")[0])
    rows = page.texts(".classes tbody tr")
    out = report("schedule", "fsdp_llama_2")[1]
    assert any("gathered" in row for row in rows)
    heads = page.texts(".classes th")
    assert heads[1:] == ["before", "after", "change"]
    sums = page.page.evaluate("[...document.querySelectorAll('.classes tbody tr')].length")
    assert sums == len(rows) and size(out["peak_memory"])


def test_names_are_those_of_the_model(open_page, tmp_path):
    path = tmp_path / "page.html"
    text = run(
        "schedule",
        named_graph(tmp_path),
        "--effort",
        "quick",
        "--report",
        path,
        "-o",
        tmp_path / "out.json",
    )
    assert "layers.0.attention.wq.weight" in text
    page = open_page(path)
    assert "layers.0.attention.wq.weight" in page.column(0)[0] + "".join(page.column(0))
    op = page.data["ops"]["name"].index("g1")
    page.hover(1, op)
    tip = page.text("#tip")
    assert tip.startswith("layers.1.attention.wq.weight") and "g1" in tip
    page.press("/")
    page.page.keyboard.type("layers.3 attention all_gather")
    assert "layers.3.attention.wq.weight" in page.texts("#found [role=option]")[0]
    page.press("Escape")
    sections = page.page.evaluate("halflap.sections(1)")
    assert [section for section in sections if "layers.3" in section]


def test_dark_is_remembered(report, open_page):
    page = open_page(report("schedule", "fsdp_llama_2")[0])
    page.page.click("#theme")
    page.page.reload()
    assert page.page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.requests.clear()
    page.requests.append(page.address)


def test_heads_explain_themselves(schedule):
    for title in ["held by", "was", "exposed"]:
        button = schedule.page.locator("#tables th button", has_text=re.compile(f"^{title}$")).first
        assert len(button.get_attribute("title")) > 20
    assert schedule.page.locator("#facts dt[title]").count() >= 1
    # New readers asked what times these are, and how an order gets into a program.
    assert "simulated" in schedule.text(
        "#advice-lead"
    ) and "halflap.torch.enable()" in schedule.text("#advice-lead")


def test_the_panel_stays_in_view(schedule):
    schedule.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    at = schedule.page.evaluate("scrollY")
    schedule.page.locator("#tables table").first.locator("tr[data-at]").last.click()
    schedule.settle()
    assert schedule.page.evaluate("scrollY") == at, "a click low on the page does not jump"
    box = schedule.page.locator(".panel").bounding_box()
    assert box["y"] < 900 and box["y"] + box["height"] > 0
    assert schedule.state()["selected"] is not None


def test_the_tooltip_goes_when_keys_select(schedule):
    schedule.hover(1, schedule.exposed()[0])
    assert schedule.page.locator("#tip").is_visible()
    schedule.press("e")
    assert not schedule.page.locator("#tip").is_visible()


def test_what_if_answers_in_a_sentence(open_page, tmp_path):
    page, out = tmp_path / "w.html", tmp_path / "w.json"
    options = ["--bandwidth", "1x", "--report", page, "-o", out]
    text = run("what-if", corpus("fsdp_backward"), *options)
    answer = read_json(out)["answer"]
    assert answer in " ".join(text.split())
    assert answer in open_page(page).text("#advice")
    points = read_json(out)["points"]
    assert all(point["step_time"] is not None for point in points), "infeasible points are left out"


def test_the_band_tells_forward_from_backward_where_a_step_comes_back_to_its_last_layer(
    tmp_path, open_page
):
    """Two layers forward, the head, and backward through both."""
    graph = json.loads(named_graph(tmp_path).read_text())
    computes = [node for node in graph["nodes"] if node["kind"] == "compute"]
    for node in graph["nodes"]:
        node.pop("parameter", None)
    for node, module in zip(
        computes,
        ["layers.0.mlp", "layers.1.mlp", "output", "layers.1.mlp", "layers.0.mlp", "layers.0.mlp"],
    ):
        node["module"] = module
    for name, expected in [
        (
            "step",
            [
                "forward layers.0",
                "forward layers.1",
                "forward",
                "backward layers.1",
                "backward layers.0",
            ],
        ),
        (
            "rank0_graph1_backward",
            ["backward layers.0", "backward layers.1", "backward layers.1", "backward layers.0"],
        ),
    ]:
        path, page = tmp_path / f"{name}.json", tmp_path / f"{name}.html"
        path.write_text(json.dumps(graph))
        run("explain", path, "--report", page, "--no-advice")
        band = open_page(page).page.evaluate("halflap.sections(0)")
        assert band == [one for one, before in zip(expected, [None, *expected]) if one != before]


def test_a_module_begins_with_the_whole_step_and_says_where_collectives_come_from(
    tmp_path, open_page
):
    module = ROOT / "tests" / "hlo" / "fsdp_L2_scan.after_optimizations.txt.gz"
    path = tmp_path / "page.html"
    run("explain", module, "--report", path, "--no-advice")
    page = open_page(path)
    assert len(page.texts("#part option")) > 1
    facts = dict(page.data["facts"])
    assert facts["computation"].endswith(", the entry")
    columns = [column["title"] for column in page.data["tables"][0]["columns"]]
    assert "source" in columns
    # Names of buffers are cut so that no two of them look the same.
    names = page.texts("#memory .owners tbody tr:not(:last-child) td:first-child")
    assert len(set(names)) == len(names) > 3


def test_the_whole_step_counts_what_loops_expose(tmp_path, open_page):
    """The first page of a module has the module's figures, as the terminal has."""
    module = ROOT / "tests" / "hlo" / "fsdp_L2_scan.after_optimizations.txt.gz"
    path, out = tmp_path / "page.html", tmp_path / "out.json"
    options = ["--device", "h100", "--effort", "quick", "--no-advice"]
    text = run("schedule", module, *options, "--report", path, "-o", out)
    page, figures = open_page(path), read_json(out)
    both = f"{nanos(figures['exposed_before'])} -> {nanos(figures['exposed'])}"
    assert re.search(rf"^exposed +{re.escape(both)}$", text, re.M), text
    assert both.replace("->", "\u2192") in page.texts(".card")[1]
    bars = page.texts("#budget .line")
    for bar, suffix in zip(bars, ["_before", ""], strict=True):
        assert f"exposed {nanos(figures['exposed' + suffix])}" in bar
        assert (
            f"compute {nanos(figures['step_time' + suffix] - figures['exposed' + suffix])}" in bar
        )
    # A computation that it runs has its own.
    [_, loop, *_] = json.loads(DATA.search(path.read_text())[2])["parts"]
    assert loop["views"][1]["headline"][1]["value"] < figures["exposed"]


def test_bands_of_a_module_begin_with_forward(tmp_path, open_page):
    """Constants of backward that stand at the start of a step do not make a phase."""
    for name in ["fsdp_L2", "mix_L2"]:
        path = tmp_path / f"{name}.html"
        module = ROOT / "tests" / "hlo" / f"{name}.after_optimizations.txt.gz"
        run(
            "schedule",
            module,
            "--device",
            "h100",
            "--effort",
            "quick",
            "--no-advice",
            "--report",
            path,
        )
        page = open_page(path)
        for view in (0, 1):
            band = page.page.evaluate(f"halflap.sections({view})")
            phases = [section.split()[0] for section in band]
            phases = [one for one, before in zip(phases, [None, *phases]) if one != before]
            assert phases in (["forward", "backward"], ["forward", "backward", "optimizer"]), (
                name,
                band,
            )


def test_no_column_is_cut_off(report, open_page):
    for width in (1440, 1280, 1190, 1100, 1000):
        page = open_page(report("schedule", "fsdp_llama_2")[0], width=width)
        fits = "[...document.querySelectorAll('.rows-scroll')].map((one) => one.scrollWidth <= one.clientWidth)"
        assert all(page.page.evaluate(fits)), width
        more = page.page.locator(".more-columns").first
        if width == 1280:
            # What is left out can be had.
            hidden = len(
                [
                    head
                    for head in page.page.locator("#tables section:first-child th").all()
                    if head.is_hidden()
                ]
            )
            assert more.inner_text() == f"+{hidden} columns"
            more.click()
            assert not [
                head
                for head in page.page.locator("#tables section:first-child th").all()
                if head.is_hidden()
            ]
