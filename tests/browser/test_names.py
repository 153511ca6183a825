"""Names are data, whatever they hold."""

import json

import pytest

ATTACKS = [
    "<script>window.harmed = 1</script>",
    "</script><script>window.harmed = 1</script>",
    "<img src=x onerror=\"window.harmed = 1\">",
    "\"'`${window.harmed = 1}",
    "javascript:window.harmed=1",
    "two\nlines\tand\rmore",
    "\u202eright to left\u202c\u2066\u2069",
    "\u0000\u0007\u001b[31m",
    "__proto__",
    "constructor",
    "/*DATA*/ /*SCRIPT*/ <!--",
    "漢字 🚀",
    "long" * 100_000,
]


def program():
    """A collective with its wait between compute, all under bad names; each step waits for the one
    before."""
    nodes, buffers = [], []

    def add(kind, number, deps, **more):
        name, buffer = (
            f"{ATTACKS[number % len(ATTACKS)]} {number}",
            f"{ATTACKS[(number + 1) % len(ATTACKS)]} b{number}",
        )
        nodes.append(
            {
                "name": name,
                "kind": kind,
                "runtime_ns": 1000.0 + number,
                "outputs": [buffer],
                "deps": [{"buffer": dep, "kinds": ["data"]} for dep in deps],
                "ops": [ATTACKS[(number + 2) % len(ATTACKS)]],
                **more,
            }
        )
        buffers.append(
            {"name": buffer, "size_alloc": 1024, "size_free": 1024, "users": [], "output": False}
        )
        for dep in deps:
            next(b for b in buffers if b["name"] == dep)["users"].append(name)
        return buffer

    last = add("compute", 0, [])
    for step in range(1, 40, 3):
        attack = ATTACKS[step % len(ATTACKS)]
        collective = {
            "op": attack,
            "group": ATTACKS[2],
            "group_size": 2,
            "bytes": 1024,
            "async": True,
        }
        sent = add("collective", step, [last], collective=collective)
        last = add("wait", step + 1, [sent])
        last = add("compute", step + 2, [last])
    groups = {ATTACKS[2]: {"ranks": [0, 1]}}
    return {
        "format": "halflap.graph/1",
        "groups": groups,
        "nodes": nodes,
        "buffers": buffers,
        "inputs": [],
    }


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "a<b>&'.json"
    path.write_text(json.dumps(program()))
    return path


def explore(page):
    """Brings every name into sight: tooltips, panel, table, memory."""
    for key in ["e", "n", "n", "n", "n", "z", "]", "]", "[", ".", ".", "Enter", "0"]:
        page.press(key)
    box = page.page.locator("#stage").bounding_box()
    for x in range(130, int(box["width"]), 60):
        page.page.mouse.move(box["x"] + x, box["y"] + 70)
    page.press("t")
    page.page.keyboard.type("<script>")
    page.settle()


def assert_unharmed(page):
    assert page.page.evaluate("window.harmed") is None
    assert page.page.locator("img").count() == 0
    assert page.page.locator("script").count() == 2
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shown = page.page.evaluate("document.body.innerText")
    assert not any(mark in shown for mark in "\u202e\u2066\u001b\u0007")
    # The data is inside its script element; everything else is bounded.
    assert len(shown) < 60_000


def test_hostile_names_stay_text(report, open_page, hostile):
    page = open_page(report("schedule", hostile)[0])
    explore(page)
    assert_unharmed(page)


def test_names_that_were_not_cut_before(edited, open_page):
    """The page's own bounds, with everything that the command would have cut or escaped."""

    def spoil(data):
        bad = lambda number: ATTACKS[number % len(ATTACKS)]
        for field in ("name", "what", "source"):
            data["ops"][field] = [bad(number) for number in range(len(data["ops"][field]))]
        data["buffers"]["name"] = [bad(number) for number in range(len(data["buffers"]["name"]))]
        data["title"] = data["command"] = bad(0)
        data["facts"] = [[bad(number), bad(number + 1)] for number in range(len(ATTACKS))]
        data["groups"] = [{"name": bad(12), "ranks": bad(12)} for _ in data["groups"]]
        for view in data["views"]:
            view["name"] = bad(1)
            for number, lane in enumerate(view["lanes"]):
                lane["name"], lane["note"] = bad(number), bad(12)
            for card in view["headline"]:
                card["label"], card["note"] = bad(2), bad(12)
        table = data["tables"][0]
        table["title"] = bad(0)
        for number, row in enumerate(table["rows"]):
            row[0] = row[-1] = bad(number)
        table["details"] = [
            [[bad(number), bad(number + 1)]] for number in range(len(table["rows"]))
        ]

    page = open_page(edited("schedule", "ddp_mlp_4", spoil))
    explore(page)
    assert_unharmed(page)
