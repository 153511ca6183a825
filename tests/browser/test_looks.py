"""Colours, names of controls, and pictures of the main views."""

import pytest

TEXT_ON_GROUND = [
    ("ink", "paper"),
    ("soft", "paper"),
    ("link", "paper"),
    ("good", "paper"),
    ("bad", "paper"),
    ("bound", "paper"),
    ("accent", "paper"),
    ("ink", "raised"),
    ("soft", "raised"),
    ("ink", "chosen"),
    ("soft", "chosen"),
    ("ink", "beyond"),
    ("soft", "beyond"),
    ("on-comm", "comm"),
    ("on-compute", "compute"),
    ("on-compute", "wait"),
    ("on-compute", "copy"),
    ("on-compute", "several"),
]
# Marks need less than text, but must stand out from what they lie on (WCAG 1.4.11).
MARK_ON_GROUND = [
    ("comm", "paper"),
    ("exposed", "paper"),
    ("exposed", "exposed-soft"),
    ("memory", "memory-soft"),
    ("accent", "exposed-soft"),
    ("host", "host-soft"),
]


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def colours(page):
    names = {name for pair in TEXT_ON_GROUND + MARK_ON_GROUND for name in pair}
    read = "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim()"
    return {name: page.page.evaluate(read, name) for name in names}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme, report, open_page):
    values = colours(open_page(report("schedule", "fsdp_llama_2")[0], scheme=scheme))
    too_weak = {
        (text, ground): round(contrast(values[text], values[ground]), 2)
        for pairs, least in ((TEXT_ON_GROUND, 4.5), (MARK_ON_GROUND, 3))
        for text, ground in pairs
        if contrast(values[text], values[ground]) < least
    }
    assert too_weak == {}


def ground(page):
    return page.page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_colours_follow_the_system_and_the_button(report, open_page):
    path, _ = report("schedule", "fsdp_llama_2")
    light, dark = open_page(path), open_page(path, scheme="dark")
    assert ground(light) != ground(dark)
    light.page.click("#theme")
    assert ground(light) == ground(dark)
    assert light.page.locator("#theme").get_attribute("aria-pressed") == "true"
    light.page.click("#theme")
    assert ground(light) != ground(dark)
    light.page.emulate_media(color_scheme="dark")
    light.page.wait_for_selector("html[data-theme=dark]")
    assert ground(light) == ground(dark)


def nameless(page):
    """Controls without a name, by the rules that screen readers go by."""
    return page.page.evaluate(
        """() => [...document.querySelectorAll(
                'button, input, select, summary, a[href], [tabindex="0"]:not(tr), [role=group], [role=img], [role=application]')]
            .filter(one => !one.closest('[hidden]'))
            .filter(one => !(one.getAttribute('aria-label') || one.textContent).trim())
            .map(one => one.outerHTML.slice(0, 120))"""
    )


@pytest.mark.parametrize("command", ["schedule", "simulate", "what-if"])
def test_every_control_has_a_name(command, report, open_page):
    page = open_page(report(command, "fsdp_llama_2")[0])
    assert nameless(page) == []
    page.press("e")
    assert nameless(page) == []
    assert page.page.locator("#live").get_attribute("aria-live") == "polite"
    assert page.page.evaluate("document.documentElement.lang") == "en"
    assert page.page.locator("h1").count() == 1
    ids = page.page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
    for reference in ("aria-labelledby", "aria-describedby"):
        described = [
            one.get_attribute(reference) for one in page.page.locator(f"[{reference}]").all()
        ]
        assert set(described) <= set(ids)


def test_focus_is_seen(report, open_page):
    page = open_page(report("schedule", "fsdp_llama_2")[0])
    for _ in range(12):
        page.press("Tab")
        style = page.page.evaluate(
            "[getComputedStyle(document.activeElement)].map(style => style.outlineStyle + style.outlineWidth)[0]"
        )
        assert style == "solid2px"


TO_THIRD_ROW = ["t", "ArrowDown", "ArrowDown", "ArrowDown", "Enter"]
VIEWS = {
    "schedule": ("schedule", "fsdp_llama_2", []),
    "schedule-selected": ("schedule", "fsdp_tp_llama_4", TO_THIRD_ROW + ["z", "-", "-", "-"]),
    "schedule-largest": ("schedule", "fsdp_llama_80", []),
    "explain": ("explain", "fsdp_llama_2", []),
    "what-if": ("what-if", "fsdp_llama_2", []),
}


@pytest.mark.parametrize("width,height", [(1440, 900), (800, 600)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_pictures(view, scheme, width, height, report, open_page, screenshots):
    command, program, keys = VIEWS[view]
    page = open_page(report(command, program)[0], width, height, scheme)
    page.press(*keys)
    path = screenshots / f"{view}-{width}x{height}-{scheme}.png"
    page.page.screenshot(path=path)
    assert path.stat().st_size > 10_000
