"""The page as its reader meets it: what it shows, and what mouse, wheel and keys do."""

import json
import math

import pytest
from pages import Page, embedded, moment, nanos, size, with_data

SIZES = [(1440, 900), (800, 600), (420, 800)]


def test_shows_the_numbers_of_the_schedule(report, schedule):
    _, out = report("schedule", "fsdp_llama_2")
    cards = schedule.texts(".card")
    before, after = schedule.data["views"]
    exposed = [view["headline"][1]["value"] for view in (before, after)]
    for card, was, now in zip(
        cards,
        (nanos(out["step_time_before"]), nanos(exposed[0]), size(out["peak_memory_before"])),
        (nanos(out["step_time"]), nanos(exposed[1]), size(out["peak_memory"])),
    ):
        assert f"{was} → {now}" in card
    saved = 100 * (1 - out["step_time"] / out["step_time_before"])
    assert f"{saved:.1f}% less" in cards[0]
    assert (
        f"within {math.ceil(1e4 * (out['step_time'] / out['bound'] - 1)) / 100:.2f}% of optimal, proved"
        in cards[0]
    )
    assert schedule.text("#title") == "fsdp_llama_2.graph.json.gz"


def test_the_stalls_sum_up_to_the_headline(schedule):
    for view, line in zip(schedule.data["views"], schedule.texts(".budget .parts")):
        stalls = view["stalls"]
        total = sum(end - start for start, end in zip(stalls["start"], stalls["end"]))
        assert nanos(total) == nanos(view["headline"][1]["value"])
        assert f"exposed {nanos(total)}" in line


def test_units_are_those_of_the_command(schedule):
    times = [
        0,
        27,
        999,
        999.5,
        1000,
        1125,
        1234,
        12_345,
        12_250,
        100_500,
        101_500,
        3_456_789,
        2e9,
        1.125e12,
    ]
    sizes = [0, 1023, 1024, 1152, 1_451_792_392, -4096, 1024**5, 1024**6]
    assert schedule.page.evaluate(f"{json.dumps(times)}.map(halflap.formatNanos)") == [
        nanos(time) for time in times
    ]
    assert schedule.page.evaluate(f"{json.dumps(sizes)}.map(halflap.formatBytes)") == [
        size(value) for value in sizes
    ]


@pytest.mark.parametrize("command", ["simulate", "explain"])
def test_one_order(command, report, open_page):
    page = open_page(report(command, "fsdp_llama_2")[0])
    view = page.data["views"][0]
    assert nanos(view["headline"][0]["value"]) in page.texts(".card")[0]
    assert page.page.locator("#switch button").count() == 0
    page.press("e")
    assert page.state()["selected"] in page.exposed(0)


def test_wheel_zooms_at_the_cursor_and_pans(schedule):
    x, y = schedule.place(1, schedule.exposed()[0])
    whole = schedule.span()
    schedule.page.mouse.move(x, y)
    schedule.settle()
    under = schedule.state()["cursor"]
    schedule.page.mouse.wheel(0, -300)
    close = schedule.state()
    assert close["to"] - close["from"] < 0.7 * whole
    schedule.page.mouse.move(x, y + 1)
    assert schedule.state()["cursor"] == pytest.approx(under, abs=whole / 500)
    schedule.page.keyboard.down("Control")
    schedule.page.mouse.wheel(0, -50)
    schedule.page.keyboard.up("Control")
    closer = schedule.state()
    assert closer["to"] - closer["from"] < close["to"] - close["from"]
    schedule.page.mouse.wheel(200, 0)
    aside = schedule.state()
    assert aside["from"] > closer["from"]
    assert aside["to"] - aside["from"] == pytest.approx(closer["to"] - closer["from"])
    schedule.page.keyboard.down("Shift")
    schedule.page.mouse.wheel(0, -100)
    schedule.page.keyboard.up("Shift")
    assert schedule.state()["from"] < aside["from"]
    schedule.page.mouse.wheel(0, 4000)
    schedule.page.mouse.wheel(0, 4000)
    schedule.page.mouse.wheel(0, 4000)
    assert schedule.span() == pytest.approx(whole)


def test_buttons_zoom(schedule):
    whole = schedule.span()
    schedule.page.click("#zoom-in")
    schedule.page.click("#zoom-in")
    close = schedule.span()
    assert close < whole / 2
    schedule.page.click("#zoom-out")
    assert close < schedule.span() < whole
    schedule.page.click("#fit")
    assert schedule.span() == pytest.approx(whole)


def test_drag_pans_without_selecting(schedule):
    schedule.press("+", "+", "+")
    box = schedule.page.locator("#stage").bounding_box()
    before = schedule.state()
    schedule.page.mouse.move(box["x"] + 600, box["y"] + 60)
    schedule.page.mouse.down()
    schedule.page.mouse.move(box["x"] + 450, box["y"] + 60, steps=5)
    schedule.page.mouse.up()
    after = schedule.state()
    assert after["from"] > before["from"]
    assert after["to"] - after["from"] == pytest.approx(before["to"] - before["from"])
    assert after["selected"] is None


def test_double_click_zooms_to_a_slice(schedule):
    op = schedule.exposed()[0]
    slices = schedule.data["views"][1]["slices"]
    at = slices["op"].index(op)
    schedule.page.mouse.dblclick(*schedule.place(1, op))
    state = schedule.state()
    assert state["from"] <= slices["start"][at] and slices["end"][at] <= state["to"]
    assert state["to"] - state["from"] < 2 * (slices["end"][at] - slices["start"][at])


def test_touch_pans_and_pinches(schedule):
    whole = schedule.span()
    box = schedule.page.locator("#stage").bounding_box()
    schedule.page.evaluate(
        """([x, y]) => {
            const stage = document.getElementById('stage');
            stage.setPointerCapture = () => {};
            const send = (type, id, at) => stage.dispatchEvent(new PointerEvent(type,
                { pointerId: id, pointerType: 'touch', clientX: x + at, clientY: y + 60, bubbles: true }));
            send('pointerdown', 11, 400); send('pointerdown', 12, 500);
            send('pointermove', 11, 300); send('pointermove', 12, 600);
            send('pointerup', 11, 300); send('pointerup', 12, 600);
        }""",
        [box["x"], box["y"]],
    )
    assert schedule.span() == pytest.approx(whole / 3, rel=0.05)


def test_hover_tells_what_is_there(schedule):
    op = schedule.exposed()[0]
    schedule.hover(1, op)
    data = schedule.data
    slices = data["views"][1]["slices"]
    at = slices["op"].index(op)
    assert schedule.state()["hovered"] == op
    tip = schedule.text("#tip")
    for text in (
        data["ops"]["name"][op],
        data["ops"]["what"][op],
        "collective",
        moment(slices["start"][at]),
        nanos(slices["end"][at] - slices["start"][at]),
        nanos(slices["exposed"][at]),
        size(data["ops"]["bytes"][op]),
        data["groups"][data["ops"]["group"][op]]["ranks"],
    ):
        assert text in tip
    schedule.page.mouse.move(5, 5)
    schedule.settle()
    assert schedule.page.locator("#tip").is_hidden()
    assert schedule.state()["hovered"] is None


def test_a_click_selects_and_explains(schedule):
    op = schedule.exposed()[0]
    schedule.click(1, op)
    data = schedule.data
    details = schedule.text("#details")
    row = data["tables"][0]["op"].index(op)
    held = data["tables"][0]["rows"][row][schedule.column_number("held by")]
    wait = data["ops"]["waits"][op][0]
    place = [view["memory"]["order"].index(op) for view in data["views"]]
    assert schedule.state()["selected"] == op
    for text in (
        data["ops"]["name"][op],
        held,
        data["ops"]["name"][wait],
        f"{place[0] + 1} of",
        f"{place[1] + 1} of",
    ):
        assert text in details
    moved = place[1] - place[0]
    assert f"{abs(moved)} place" in details and ("earlier" if moved < 0 else "later") in details
    assert data["ops"]["name"][op] in schedule.text("#live")
    schedule.press("Escape")
    assert schedule.state()["selected"] is None
    assert "Exposed communication" in schedule.text("#details")


def test_dependencies_lead_on(schedule):
    ops = schedule.data["ops"]
    op = next(op for op in schedule.exposed() if ops["deps"][op])
    schedule.click(1, op)
    schedule.page.locator("#details dt:text-is('needs') + dd button").first.click()
    assert schedule.state()["selected"] == ops["deps"][op][0]
    assert (
        schedule.page.evaluate("document.activeElement.textContent")
        == ops["name"][ops["deps"][op][0]]
    )
    schedule.page.get_by_role("button", name="Clear the selection").click()
    assert schedule.state()["selected"] is None and schedule.focused() == "stage"


def test_compute_has_details_too(schedule):
    length, op = schedule.longest_compute()
    schedule.click(1, op)
    assert schedule.state()["selected"] == op
    details = schedule.text("#details")
    assert "compute" in details and nanos(length) in details and "needed by" in details


def test_a_stall_leads_to_its_collective(schedule):
    view = schedule.data["views"][0]
    stalls = view["stalls"]
    at = max(
        range(len(stalls["of"])), key=lambda stall: stalls["end"][stall] - stalls["start"][stall]
    )
    x = schedule.x_at((stalls["start"][at] + stalls["end"][at]) / 2)
    _, y = schedule.place(0, view["slices"]["op"][0])
    schedule.page.mouse.move(x, y)
    schedule.settle()
    assert "compute stands still" in schedule.text("#tip")
    schedule.page.mouse.click(x, y)
    assert schedule.state()["selected"] == stalls["of"][at]


def test_rows_and_timeline_select_each_other(schedule):
    table = schedule.data["tables"][0]
    schedule.press("+", "+", "+", "+", "+", "+")
    schedule.page.locator("#tables tbody tr[data-at]").nth(1).click()
    state = schedule.state()
    name = schedule.data["ops"]["name"][state["selected"]]
    assert schedule.text("#tables tr.chosen td:first-child") == name
    slices = schedule.data["views"][1]["slices"]
    at = slices["op"].index(state["selected"])
    assert state["from"] < slices["end"][at] and slices["start"][at] < state["to"], (
        "brought into sight"
    )
    # The other way: one that is far down the table.
    hidden = [op for op in reversed(table["op"]) if slices["exposed"][slices["op"].index(op)] == 0]
    at = {op: number for number, op in enumerate(slices["op"])}
    longest = max(hidden, key=lambda op: slices["end"][at[op]] - slices["start"][at[op]])
    schedule.page.click("#fit")
    schedule.settle()
    schedule.click(1, longest)
    assert (
        schedule.text("#tables tr.chosen td:first-child") == schedule.data["ops"]["name"][longest]
    )
    chosen = schedule.page.locator("#tables tr.chosen")
    assert chosen.count() == 1 and chosen.is_visible()
    box, frame = chosen.bounding_box(), schedule.page.locator(".rows-scroll").first.bounding_box()
    assert frame["y"] <= box["y"] and box["y"] + box["height"] <= frame["y"] + frame["height"] + 1


def test_tables_sort(schedule):
    number = schedule.column_number("time")
    rows = schedule.data["tables"][0]["rows"]
    head = schedule.page.locator("#tables section:first-child th").nth(number)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    expected = [nanos(row[number]) for row in sorted(rows, key=lambda row: -row[number])]
    drawn = schedule.column(number)
    assert drawn == expected[: len(drawn)]
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    drawn = schedule.column(number)
    assert drawn == list(reversed(expected))[: len(drawn)]
    first = schedule.page.locator("#tables section:first-child th").first
    first.locator("button").click()
    assert (
        first.get_attribute("aria-sort") == "ascending"
        and head.get_attribute("aria-sort") == "none"
    )
    assert schedule.column(0)[:3] == ["op0", "op1", "op2"], "names sort by their numbers"


def test_tables_begin_with_the_most_exposed(schedule):
    number = schedule.column_number("exposed")
    rows = schedule.data["tables"][0]["rows"]
    assert schedule.column(number)[0] == nanos(max(row[number] for row in rows))


def test_tables_search(schedule):
    schedule.press("t")
    assert schedule.focused() == "search"
    schedule.page.keyboard.type("Reduce_Scatter")
    schedule.settle()
    rows = schedule.data["tables"][0]["rows"]
    operation = schedule.column_number("operation")
    expected = sum("reduce_scatter" in row[operation] for row in rows)
    assert set(schedule.column(operation)) == {"reduce_scatter"}
    assert (
        schedule.page.locator("#tables .count").first.inner_text() == f"{expected} of {len(rows)}"
    )
    heads = "[...document.querySelectorAll('#tables section:first-child th')].map(one => one.getBoundingClientRect().x)"
    before = schedule.page.evaluate(heads)
    schedule.page.keyboard.type(" nothing has this")
    schedule.settle()
    assert schedule.column(0) == [] and "Nothing found" in schedule.text("#tables")
    assert schedule.page.evaluate(heads) == pytest.approx(before, abs=1), (
        "columns stay where they are"
    )
    schedule.press("Escape")
    assert schedule.page.locator("#tables .count").first.inner_text() == str(len(rows))


def test_tables_search_what_cells_show(schedule):
    rows = schedule.data["tables"][0]["rows"]
    number = {
        title: schedule.column_number(title) for title in ("operation", "size", "time", "moved")
    }
    row = next(
        row
        for row in rows
        if row[number["moved"]] > 0 and "reduce_scatter" in row[number["operation"]]
    )
    exact = (
        f"{size(row[number['size']])} {row[number['moved']]:.0f} later {nanos(row[number['time']])}"
    )
    for words in (exact, f"reduce_scatter {size(row[number['size']])}", f"{row[0]} reduce_"):
        schedule.press("t")
        schedule.page.keyboard.type(words)
        schedule.settle()
        assert row[0] in schedule.column(0), words
        schedule.press("Escape")


def test_waiting_for_the_host_is_not_exposed(edited, open_page):
    host = {}

    def late(data):
        stalls = data["views"][0]["stalls"]
        at = max(
            range(len(stalls["of"])),
            key=lambda stall: stalls["end"][stall] - stalls["start"][stall],
        )
        stalls["cause"][at] = 2
        lengths = [end - start for start, end in zip(stalls["start"], stalls["end"])]
        host["time"], host["rest"] = lengths[at], sum(lengths) - lengths[at]

    page = open_page(edited("simulate", "fsdp_llama_2", late))
    assert "waiting for the host" in page.text("#legend")
    budget = page.text(".budget .parts")
    assert (
        f"waiting for the host {nanos(host['time'])}" in budget
        and f"exposed {nanos(host['rest'])}" in budget
    )
    assert "waiting for the host" not in page.text("#details")


def test_no_legend_for_what_is_not_there(schedule):
    assert "waiting for the host" not in schedule.text("#legend")


def test_narrow_windows_show_what_matters_first(report, open_page):
    page = open_page(report("schedule", "fsdp_llama_2")[0], 420, 800)
    heads = [text.strip("\u2191\u2193 ") for text in page.texts("#tables section:first-child th")]
    assert heads[:4] == ["collective", "exposed", "was", "held by"]
    box = page.page.locator("#tables section:first-child th").nth(2).bounding_box()
    assert box["x"] + box["width"] <= 420


def test_system_colours_keep_bars_and_swatches(report, open_page):
    page = open_page(report("schedule", "fsdp_llama_2")[0])
    page.page.emulate_media(forced_colors="active")
    for part in (".part.compute", ".key.comm"):
        colour = page.page.locator(part).first.evaluate(
            "one => getComputedStyle(one).backgroundColor"
        )
        assert colour not in ("rgb(255, 255, 255)", "rgb(0, 0, 0)", "rgba(0, 0, 0, 0)"), part


def test_large_tables_draw_what_is_in_sight(report, open_page):
    page = open_page(report("schedule", "fsdp_llama_80")[0])
    assert len(page.data["tables"][0]["rows"]) > 2000
    assert page.page.locator("#tables tbody tr").count() < 60
    page.page.locator("#tables tbody tr[data-at]").first.focus()
    page.press("End")
    last = page.page.locator("#tables tbody tr:focus")
    assert last.get_attribute("aria-rowindex") == str(len(page.data["tables"][0]["rows"]) + 1)
    assert page.page.locator("#tables tbody tr").count() < 60
    page.press("Enter")
    assert page.state()["selected"] is not None


def test_views_switch(schedule):
    assert schedule.state()["shown"] == [0, 1]
    both = schedule.page.locator("#stage").bounding_box()["height"]
    schedule.page.get_by_role("button", name="After", exact=True).click()
    assert schedule.state()["shown"] == [1]
    assert schedule.page.locator("#stage").bounding_box()["height"] < 0.7 * both
    assert (
        schedule.page.get_by_role("button", name="After", exact=True).get_attribute("aria-pressed")
        == "true"
    )
    schedule.page.get_by_role("button", name="Before", exact=True).click()
    assert schedule.state()["shown"] == [0]
    schedule.press("v", "v")
    assert schedule.state()["shown"] == [0, 1]


def test_selection_is_marked_in_both_views(schedule):
    """The upper canvas has an outline at the operation's beginning in both views."""
    op = schedule.exposed()[0]
    schedule.click(1, op)
    schedule.page.mouse.move(5, 5)
    schedule.settle()
    for view in (0, 1):
        slices = schedule.data["views"][view]["slices"]
        x, y = schedule.x_at(slices["start"][slices["op"].index(op)]), schedule.place(view, op)[1]
        assert schedule.page.evaluate(
            """([x, y]) => {
                const canvas = document.getElementById('marks');
                const box = canvas.getBoundingClientRect();
                const ratio = canvas.width / box.width;
                const copy = new OffscreenCanvas(6 * ratio, 8 * ratio).getContext('2d', { willReadFrequently: true });
                copy.drawImage(canvas, (3 + box.left - x) * ratio, (4 + box.top - y) * ratio);
                const { data } = copy.getImageData(0, 0, 6 * ratio, 8 * ratio);
                return data.some((value, at) => at % 4 === 3 && value > 200);
            }""",
            [x, y],
        )


def test_memory_at_the_cursor(schedule):
    view = schedule.data["views"][1]
    memory = view["memory"]
    peak = max(memory["bytes"])
    assert "Peak memory" in schedule.text("#memory") and size(peak) in schedule.text("#memory")
    _, op = schedule.longest_compute()
    schedule.hover(1, op)
    place = memory["order"].index(op)
    expected = memory["bytes"][2 * place]
    text = schedule.text("#memory")
    assert (
        "Peak" not in text and size(expected) in text and schedule.data["ops"]["name"][op] in text
    )
    # Who is alive, from the definition.
    position = {other: at for at, other in enumerate(memory["order"])}
    buffers = schedule.data["buffers"]
    alive = [
        size_
        for size_, maker, last in zip(buffers["size"], buffers["maker"], memory["freed_by"])
        if (maker < 0 or position[maker] <= place) and (last < 0 or position[last] >= place)
    ]
    shown = [cells.split("\t")[2] for cells in schedule.texts("#memory tbody tr:not(:has(.rest))")]
    assert shown == [size(value) for value in sorted(alive, reverse=True)[: len(shown)]]
    assert sum(alive) == expected


def test_memory_by_keyboard(schedule):
    schedule.page.focus("#stage")
    schedule.press(".")
    first = schedule.state()["cursor"]
    schedule.press(".", ".")
    assert schedule.state()["cursor"] > first
    assert "Peak" not in schedule.text("#memory h2")
    schedule.press(",", ",")
    assert schedule.state()["cursor"] == pytest.approx(first, rel=0.01)
    schedule.press(">")
    assert "alive" in schedule.text("#live")


def test_keyboard_alone(schedule):
    """From the address bar to an explained collective and back, without a mouse."""
    reached = []
    for _ in range(20):
        schedule.press("Tab")
        reached.append(schedule.focused())
        if reached[-1] == "stage":
            break
    assert {"theme", "help", "zoom-in", "fit", "stage"} <= set(reached)
    whole = schedule.span()
    schedule.press("+", "w")
    close = schedule.state()
    assert close["to"] - close["from"] < whole / 2
    schedule.press("ArrowRight", "d")
    assert schedule.state()["from"] > close["from"]
    schedule.press("ArrowLeft", "a")
    assert schedule.state()["from"] == pytest.approx(close["from"], abs=whole / 1e6)
    schedule.press("-", "s")
    schedule.press("Home")
    assert schedule.span() == pytest.approx(whole)
    kinds = schedule.data["ops"]["kind"]
    schedule.press("n")
    first = schedule.state()["selected"]
    schedule.press("n")
    second = schedule.state()["selected"]
    assert first != second and kinds[first] in (1, 2) and kinds[second] in (1, 2)
    schedule.press("p")
    assert schedule.state()["selected"] == first
    schedule.press("e")
    assert schedule.state()["selected"] in schedule.exposed()
    schedule.press("Escape")
    assert schedule.state()["selected"] is None
    schedule.press("Home", "ArrowUp", "ArrowDown", "ArrowDown", ".", "Enter")
    assert schedule.state()["selected"] is not None
    schedule.press("?")
    assert schedule.page.locator("#keys").is_visible()
    schedule.press("Escape")
    assert schedule.page.locator("#keys").is_hidden()


def test_a_row_by_keyboard(schedule):
    schedule.press("t", "ArrowDown", "ArrowDown", "Enter")
    name = schedule.data["ops"]["name"][schedule.state()["selected"]]
    assert schedule.column(0)[1] == name


def test_ranks_are_chosen_and_put_below_each_other(edited, open_page):
    def as_ranks(data):
        data["compare"] = False
        data["command"] = "analyze"
        for number, view in enumerate(data["views"]):
            view["name"], view["memory"], view["bound"] = f"rank {number}", None, None
        table = data["tables"][0]
        data["tables"] = [
            dict(table, title=f"collectives of rank {number}", view=number) for number in (0, 1)
        ]
        data["buffers"] = {"name": [], "size": [], "maker": []}

    page = open_page(edited("schedule", "fsdp_llama_2", as_ranks))
    assert page.state()["shown"] == [0]
    assert page.texts("#tables h2") == ["collectives of rank 0"]
    page.page.select_option("#view-0", "1")
    assert page.state()["shown"] == [1]
    assert page.texts("#tables h2") == ["collectives of rank 1"]
    page.page.select_option("#view-1", "0")
    assert page.state()["shown"] == [1, 0]
    assert len(page.texts("#tables h2")) == 2
    assert page.page.locator("#memory").is_hidden()
    page.page.locator("#tables section").nth(1).locator("tbody tr[data-at]").first.click()
    assert page.state()["selected"] is not None


def test_a_row_of_another_rank_shows_that_rank(edited, open_page):
    only = {}

    def as_ranks(data):
        data["compare"] = False
        op = only["op"] = data["tables"][0]["op"][0]
        slices = data["views"][0]["slices"]
        at = slices["op"].index(op)
        for column in slices.values():
            del column[at]
        data["views"][0]["memory"] = data["views"][1]["memory"] = None
        only["name"] = data["tables"][0]["rows"][0][0]

    page = open_page(edited("schedule", "fsdp_llama_2", as_ranks))
    assert page.state()["shown"] == [0]
    page.page.locator("#tables tbody tr[data-at]").filter(has_text=only["name"]).first.click()
    state = page.state()
    assert state["shown"] == [1] and state["selected"] == only["op"]


def test_many_launches_of_one_kernel(edited, open_page):
    """A trace: few operations, tens of thousands of slices."""

    def as_trace(data):
        data.update(compare=False, views=data["views"][:1])
        view = data["views"][0]
        count, length = 60_000, 1e9
        starts = [length / count * at for at in range(count)]
        view.update(length=length, bound=None, memory=None)
        view["slices"] = {
            "lane": [0] * count,
            "op": [at % 7 for at in range(count)],
            "start": starts,
            "end": [start + 0.8 * length / count for start in starts],
            "exposed": [0.0] * count,
        }
        view["stalls"] = {"start": [], "end": [], "of": [], "at": [], "cause": []}

    page = open_page(edited("schedule", "fsdp_llama_2", as_trace))
    page.press("]")
    assert page.state()["selected"] == 0
    assert "8572" in page.text("#details"), "its launches are counted"
    page.press("z")
    assert page.span() < 1e5
    print(f"\nframe with 60,000 slices: {page.state()['frame']:.1f} ms")


def empty(data):
    """A program without operations."""
    data["ops"] = {column: [] for column in data["ops"]}
    data["buffers"] = {column: [] for column in data["buffers"]}
    data["tables"][0].update(rows=[], op=[], details=[])
    for view in data["views"]:
        view.update(length=0, bound=0, memory=None)
        for part in ("slices", "stalls"):
            view[part] = {column: [] for column in view[part]}


def without_lanes(data):
    empty(data)
    data.update(tables=[], facts=[], groups=[], compare=False)
    for view in data["views"]:
        view["lanes"] = []


@pytest.mark.parametrize("change", [empty, without_lanes])
def test_nothing_to_show_is_no_error(change, edited, open_page):
    page = open_page(edited("schedule", "ddp_mlp_4", change))
    page.press(*"+ - n p e E ] [ z . , < > v / Escape ArrowUp ArrowDown Enter Home".split())
    box = page.page.locator("#stage").bounding_box()
    page.page.mouse.click(box["x"] + 300, box["y"] + 40)
    page.page.mouse.dblclick(box["x"] + 300, box["y"] + 40)
    page.page.mouse.wheel(0, -200)
    assert page.state()["selected"] is None


def test_parts_of_a_program_are_chosen(report, tmp_path, browser):
    """The computations of a module: one at a time, each with its own numbers."""
    pages = [report("schedule", program)[0] for program in ("fsdp_llama_2", "moe_ep_6")]
    parts = [embedded(page) | {"part": name} for page, name in zip(pages, ("main", "<b>body"))]
    path = tmp_path / "parts.html"
    path.write_text(with_data(pages[0], *parts))
    page = Page(browser, path, (1440, 900), "light")
    assert page.page.locator("#part option").all_text_contents() == ["main", "<b>body"]
    for place, part in reversed(list(enumerate(parts))):
        with page.page.expect_event("load"):
            page.page.select_option("#part", str(place))
        page.settle()
        assert nanos(part["views"][0]["headline"][0]["value"]) in page.texts(".card")[0]
        assert page.page.input_value("#part") == str(place)
    assert page.complaints == [] and {request.split("#")[0] for request in page.requests} == {
        page.address
    }
    page.close()


def test_one_part_needs_no_choice(schedule):
    assert schedule.page.locator("#part").is_hidden()


def test_sweep(report, open_page):
    path, out = report("what-if", "fsdp_llama_2")
    page = open_page(path)
    points = out["points"]
    missed = [point for point in points if point["step_time"] is None]
    limits = {point["memory_limit"] for point in missed}
    # One cross for a limit, whatever the bandwidth.
    assert page.page.locator("#sweep .infeasible").count() == len(limits) > 0
    assert page.page.locator("#sweep .point").count() == len(points) - len(missed) + len(limits)
    assert "no order fits" not in page.text("#sweep") and "at least" not in page.text("#sweep")
    assert f"reached {size(missed[0]['smallest_peak'])}" in page.text("#sweep-table")
    spoken = page.page.locator("#sweep .point").evaluate_all(
        "all => all.map(one => one.getAttribute('aria-label'))"
    )
    table = page.text("#sweep-table")
    for point in points:
        if point["step_time"] is not None:
            assert any(
                nanos(point["step_time"]) in text and size(point["memory_limit"]) in text
                for text in spoken
            )
            assert nanos(point["step_time"]) in table
    reached = page.page.locator("#sweep .point:not(:has(.infeasible))").first
    reached.focus()
    assert "step time" in page.text("#tip")
    page.page.keyboard.press("Tab")
    dashes = [
        step.get_attribute("stroke-dasharray") for step in page.page.locator("#sweep .step").all()
    ]
    assert len(set(dashes)) == len(dashes) == 3
    assert page.texts("#sweep text.name") and page.page.locator("#sweep line.bound").count() == 3
    assert page.page.locator("#sweep").is_visible()


@pytest.mark.parametrize("width,height", SIZES)
@pytest.mark.parametrize("command", ["schedule", "what-if"])
def test_nothing_is_wider_than_the_window(command, width, height, report, open_page):
    page = open_page(report(command, "fsdp_llama_2")[0], width, height)
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.page.evaluate(fits)
    page.press("e")
    assert page.page.evaluate(fits)
    page.page.set_viewport_size({"width": height, "height": width})
    page.settle()
    assert page.page.evaluate(fits)


def test_the_largest_page(report, open_page):
    page = open_page(report("schedule", "fsdp_llama_80")[0])
    frames = []
    for key in ["+"] * 12 + ["ArrowRight"] * 6 + ["-"] * 12:
        page.press(key)
        frames.append(page.state()["frame"])
    print(
        f"\nframes with 9,224 nodes: {max(frames):.1f} ms at most, {sorted(frames)[len(frames) // 2]:.1f} ms median"
    )
    x, y = page.place(1, page.exposed()[0])
    page.page.mouse.click(x, y)
    assert page.state()["selected"] is not None
