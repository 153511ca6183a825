"""A browser for all tests, pages as the command makes them, and a watch on everything a page says
or asks for."""

import os
import pathlib
import shutil

import pytest
from command import ROOT, corpus, read_json, run
from pages import FLAGS, Page, embedded, with_data
from playwright.sync_api import sync_playwright

SWEEP = ["--memory", "0.6x,1x,1.2x", "--bandwidth", "0.5x,1x,2x"]
EFFORT = ["--effort", "quick"]


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """Makes a page of a program, once: gives its path, and what -o wrote."""
    folder = tmp_path_factory.mktemp("pages")
    made = {}

    def make(command, program):
        key = (command, str(program))
        if key not in made:
            page, out = folder / f"{len(made)}.html", folder / f"{len(made)}.json"
            path = program if isinstance(program, pathlib.Path) else corpus(program)
            options = {"schedule": EFFORT, "what-if": EFFORT + SWEEP}.get(command, [])
            run(command, path, *options, "--report", page, "-o", out)
            made[key] = (page, read_json(out))
        return made[key]

    return make


@pytest.fixture(scope="session")
def screenshots():
    folder = pathlib.Path(os.environ.get("HALFLAP_SCREENSHOTS", ROOT / "target" / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def open_page(browser):
    """Opens a file; at the end no page may have complained or asked for anything but itself."""
    opened = []

    def open_file(path, width=1440, height=900, scheme="light"):
        opened.append(Page(browser, path, (width, height), scheme))
        return opened[-1]

    yield open_file
    for page in opened:
        page.close()
        assert page.complaints == []
        assert page.requests == [page.address]


@pytest.fixture
def schedule(report, open_page):
    return open_page(report("schedule", "fsdp_llama_2")[0])


@pytest.fixture
def edited(report, tmp_path):
    """A page of the command with other data, for what the command cannot be made to give."""

    def make(command, program, change):
        page, _ = report(command, program)
        data = embedded(page)
        change(data)
        path = tmp_path / "edited.html"
        path.write_text(with_data(page, data))
        return path

    return make
