"""Pages from the outside: a browser's page with what tests ask of it, and the data inside a
file."""

import json
import re

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DATA = re.compile(r'(<script type="application/json" id="data">)(.*?)(</script>)', re.DOTALL)


def embedded(path):
    """The data that a page was given for its first part."""
    return json.loads(DATA.search(path.read_text())[2])["parts"][0]


def with_data(path, *parts):
    """The page with other data, for each of its parts."""
    text = json.dumps({"format": "halflap.page/1", "halflap": "test", "parts": parts}).replace(
        "<", "\\u003c"
    )
    return DATA.sub(lambda found: found[1] + text + found[3], path.read_text(), count=1)


def three_digits(value):
    decimals = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:.{decimals}f}"


def nanos(value):
    """As units.rs writes a time."""
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if abs(value) >= scale:
            return f"{three_digits(value / scale)} {unit}"
    return f"{three_digits(value)} ns"


def moment(value):
    """A point in time, to the microsecond where three digits are less."""
    scale, unit = next(
        (pair for pair in ((1e9, "s"), (1e6, "ms"), (1e3, "us")) if abs(value) >= pair[0]),
        (1, "ns"),
    )
    exact = f"{value / scale:.{ {1e9: 6, 1e6: 3}.get(scale, 0) }f}"
    return f"{max(exact, three_digits(value / scale), key=len)} {unit}"


def size(value):
    """As units.rs writes a size."""
    if abs(value) < 1024:
        return f"{value:.0f} B"
    power = (int(abs(value)).bit_length() - 1) // 10
    return f"{three_digits(value / 1024**power)} {'KMGTPE'[power - 1]}iB"


class Page:
    """A page in a browser. Coordinates are those of the window."""

    def __init__(self, browser, path, window, scheme):
        self.address = path.resolve().as_uri()
        self.complaints, self.requests = [], []
        self.context = browser.new_context(
            viewport={"width": window[0], "height": window[1]}, color_scheme=scheme
        )
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(self.address)
        self.settle()
        self.data = embedded(path)

    def close(self):
        self.context.close()

    def settle(self):
        """Until everything asked for is drawn."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def state(self):
        self.settle()
        return self.page.evaluate("halflap.state()")

    def span(self):
        state = self.state()
        return state["to"] - state["from"]

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def place(self, view, op):
        return self.page.evaluate(f"[halflap.xOf({view}, {op}), halflap.yOf({view}, {op})]")

    def x_at(self, time):
        """Where a time is; all views share the axis."""
        return self.page.evaluate(f"halflap.xAt({time})")

    def hover(self, view, op):
        self.page.mouse.move(*self.place(view, op))
        self.settle()

    def click(self, view, op):
        self.page.mouse.click(*self.place(view, op))
        self.settle()

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def texts(self, selector):
        return self.page.locator(selector).all_inner_texts()

    def column(self, number):
        """The cells of a column of the first table, as far as they are drawn."""
        return self.texts(
            f"#tables section:first-child tbody tr[data-at] td:nth-child({number + 1})"
        )

    def focused(self):
        """What has the focus, in a few words."""
        return self.page.evaluate(
            "[document.activeElement].map(one => one.id || one.className || one.tagName)[0]"
        )

    def column_number(self, title):
        return [column["title"] for column in self.data["tables"][0]["columns"]].index(title)

    def longest_compute(self, view=1):
        """Its length, and the operation."""
        slices = self.data["views"][view]["slices"]
        rows = zip(slices["lane"], slices["start"], slices["end"], slices["op"])
        return max((end - start, op) for lane, start, end, op in rows if lane == 0)

    def exposed(self, view=1):
        """Operations that are exposed, the longest first."""
        slices = self.data["views"][view]["slices"]
        found = [(time, op) for time, op in zip(slices["exposed"], slices["op"]) if time > 0]
        return [op for _, op in sorted(found, key=lambda pair: (-pair[0], pair[1]))]
