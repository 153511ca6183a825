#!/usr/bin/env python3
"""How fast the page is: the time to open it, and frame times while zooming, panning and pointing,
on large pages.

    PY bench/page.py [--halflap BIN] [--width 1440] [--height 900] [--opens 5]

PY is a python with tests/requirements.txt, such as scripts/test makes below target/. Measured are
the schedule of fsdp_llama_80 (9,224 nodes, two views), the schedule of a made graph of 50,001 nodes
with 16,667 exposed collectives, and the first page with two traces of 60,000 slices each. `opened`
is the time from the request until the second frame after loading is shown, in a new window each
time; `script` is the time that the page's own drawing takes in a frame, `interval` the time from
one frame to the next, in milliseconds; a browser shows a frame every 16.7 ms at best.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "browser"))
from pages import FLAGS, embedded, with_data  # noqa: E402

MEASURE = """async ([event, steps]) => {
    const stage = document.getElementById('stage'), box = stage.getBoundingClientRect();
    const frame = () => new Promise(done => requestAnimationFrame(done));
    const script = [], interval = [];
    for (let step = 0; step < steps; step += 1) {
        const by = step < steps / 2 ? -60 : 60;
        const aside = event === 'point' ? 200 + step * 5 % (box.width - 250) : 500;
        const at = { clientX: box.left + aside, clientY: box.top + 60, bubbles: true, cancelable: true };
        const began = performance.now();
        if (event === 'point') stage.dispatchEvent(new PointerEvent('pointermove', at));
        else stage.dispatchEvent(new WheelEvent('wheel', event === 'pan' ? { ...at, deltaX: -by } : { ...at, deltaY: by }));
        await frame();
        await frame();
        script.push(halflap.state().frame);
        interval.push((performance.now() - began) / 2);
    }
    return { script, interval };
}"""

OPENED = """window.opened = new Promise(done => window.addEventListener('load', () => {
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now())));
}));"""


def long_graph(path, layers=16_667):
    """A chain of layers, each of which gathers its weight just before use, and memory for one
    weight at a time: every gather is exposed."""
    nodes, buffers = [], []

    def node(name, kind, runtime, deps, **more):
        reads = [{"buffer": f"b_{dep}", "kinds": ["data"]} for dep in deps]
        nodes.append(
            {
                "name": name,
                "kind": kind,
                "runtime_ns": runtime,
                "outputs": [f"b_{name}"],
                "deps": reads,
                **more,
            }
        )

    gather = {"op": "all_gather", "group": "0", "async": True, "bytes": 8_000_000, "group_size": 8}
    for layer in range(layers):
        before = [f"mm{layer - 1}"] if layer else []
        node(f"gather{layer}", "collective", 30_000.0 + layer % 7 * 5_000, [], collective=gather)
        node(f"wait{layer}", "wait", 0.0, [f"gather{layer}"])
        node(f"mm{layer}", "compute", 40_000.0 + layer % 5 * 3_000, [f"wait{layer}", *before])
    users = {one["outputs"][0]: [] for one in nodes}
    for one in nodes:
        for dep in one["deps"]:
            users[dep["buffer"]].append(one["name"])
    for name, used in users.items():
        size = 8_000_000 if "gather" in name else 1_000_000
        buffers.append(
            {"name": name, "size_alloc": size, "size_free": size, "users": used, "output": not used}
        )
    graph = {"format": "halflap.graph/1", "groups": {"0": {"ranks": list(range(8))}}, "inputs": []}
    path.write_text(json.dumps(graph | {"nodes": nodes, "buffers": buffers}))


def as_traces(data, slices=60_000):
    """Two ranks with many launches of few kernels."""
    chance = random.Random(1)
    kinds = data["ops"]["kind"]
    compute = [op for op, kind in enumerate(kinds) if kind == 0][:300]
    collectives = [op for op, kind in enumerate(kinds) if kind == 1][:20]
    data.update(compare=False, buffers={"name": [], "size": [], "maker": []}, tables=[])
    for number, view in enumerate(data["views"]):
        columns = {"lane": [], "op": [], "start": [], "end": [], "exposed": []}
        now = 0.0
        for lane, ops, count in ((0, compute, slices - 2000), (1, collectives, 2000)):
            step = 1e9 / count
            for at in range(count):
                now = at * step
                length = step * chance.uniform(0.3, 1)
                exposed = length / 2 if lane and chance.random() < 0.2 else 0.0
                row = (lane, chance.choice(ops), now, now + length, exposed)
                for column, value in zip(columns.values(), row):
                    column.append(value)
        view.update(
            name=f"rank {number}",
            length=1e9,
            bound=None,
            memory=None,
            slices=columns,
            lanes=view["lanes"][:2],
        )
        view["stalls"] = {"start": [], "end": [], "of": [], "at": [], "cause": []}


def line(what, values):
    values = sorted(values)
    middle, high = statistics.median(values), values[int(0.95 * len(values))]
    return f"{what} {middle:5.1f} median {high:5.1f} p95 {values[-1]:5.1f} max"


def opened(browser, path, args):
    """A page, and how long it took until it was there."""
    page = browser.new_page(viewport={"width": args.width, "height": args.height})
    page.add_init_script(OPENED)
    page.goto(path.as_uri())
    return page, page.evaluate("window.opened")


def measure(browser, path, title, args):
    times = []
    for _ in range(args.opens):
        page, took = opened(browser, path, args)
        times.append(took)
        page.close()
    print(f"{title}: {path.stat().st_size / 2**20:.1f} MiB")
    print(f"  opened {statistics.median(times):5.0f} median {max(times):5.0f} max of {len(times)}")
    page, _ = opened(browser, path, args)
    if page.locator("#view-1").count():
        page.select_option("#view-1", "1")
    for event in ("zoom", "pan", "point"):
        if event == "pan":
            page.evaluate("document.getElementById('fit').click()")
            page.evaluate("document.getElementById('zoom-in').click()")
        found = page.evaluate(MEASURE, [event, 120])
        print(
            f"  {event:5}  {line('script', found['script'])}   {line('interval', found['interval'])}"
        )
    page.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--halflap", default=ROOT / "target" / "dist" / "halflap")
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--opens", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        schedule, traces, longest = (
            Path(folder) / f"{name}.html" for name in ("schedule", "traces", "longest")
        )
        graph = Path(folder) / "long.json"
        long_graph(graph)
        made(args.halflap, ROOT / "tests" / "corpus" / "fsdp_llama_80.graph.json.gz", schedule)
        made(args.halflap, graph, longest)
        data = embedded(schedule)
        as_traces(data)
        traces.write_text(with_data(schedule, data))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        measure(browser, schedule, "9,224 nodes, two views", args)
        measure(browser, longest, "50,001 nodes, two views", args)
        measure(browser, traces, "60,000 slices, two views", args)
        browser.close()


def made(halflap, graph, page):
    """The page of a schedule; says how long the command took, from reading to writing."""
    began = time.monotonic()
    command = [halflap, "schedule", graph, "--effort", "quick", "--report", page]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(
        f"{graph.name}: halflap schedule --effort quick --report took {time.monotonic() - began:.1f} s"
    )


if __name__ == "__main__":
    main()
