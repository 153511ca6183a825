"""What work takes that a profile does not have by name: as long as what it has takes for as much.

Rewritten graphs have collectives and kernels of sizes that were never measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: How a profile names collectives (kind, ranks and bytes), generated kernels and products.
COLLECTIVE = re.compile(r"(\w+) of (\d+), (\d+) bytes")
GENERATED = re.compile(r"fused_.*, (\d+) bytes")
PRODUCT = re.compile(r"(mm|bmm|addmm|baddbmm)((?: \[[\d, ]*\])+)")
SHAPE = re.compile(r"\[([\d, ]*)\]")

#: Sizes that are less than so many times apart say nothing about latency.
APART = 1.5


class Point(NamedTuple):
    """An amount of work, and the nanoseconds that it took."""

    amount: float
    time: float


class Line(NamedTuple):
    """Nanoseconds of a collective: a latency, and some for each byte."""

    latency: float
    byte: float

    def at(self, size: float) -> float:
        """Those of a size."""
        return self.latency + self.byte * size


class Link(NamedTuple):
    """Collectives that take the same time for the same size."""

    kind: str
    ranks: int


@dataclass
class Rates:
    """Nanoseconds by unit of work, over all that a profile has."""

    byte: float | None = None
    flop: float | None = None
    links: dict[Link, Line] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: Mapping[str, float]) -> Rates:
        """From a profile's kernels."""
        moved, computed = [], []
        sent: dict[Link, list[Point]] = {}
        for name, time in profile.items():
            if found := COLLECTIVE.fullmatch(name):
                link = Link(found[1], int(found[2]))
                sent.setdefault(link, []).append(Point(float(found[3]), float(time)))
            elif found := GENERATED.fullmatch(name):
                moved.append(Point(float(found[1]), float(time)))
            elif found := PRODUCT.fullmatch(name):
                computed.append(Point(_product_flops(found[2]), float(time)))
        return cls(_rate(moved), _rate(computed), _lines(sent))

    def collective(self, link: Link, size: float) -> float | None:
        """Of a collective of any size."""
        return self.links[link].at(size) if link in self.links else None

    def compute(self, flops: float, moved: float) -> float | None:
        """Of a kernel: by its operations if it is known to have any, else by what it reads and
        writes."""
        rate, amount = (self.flop, flops) if flops else (self.byte, moved)
        return None if rate is None else rate * amount


def _rate(points: list[Point]) -> float | None:
    work = sum([point.amount for point in points])
    return sum([point.time for point in points]) / work if work else None


def _product_flops(shapes: str) -> float:
    """Of the last two of its arguments."""
    sizes = [
        [int(one) for one in shape.split(",") if one.strip()] for shape in SHAPE.findall(shapes)
    ]
    if len(sizes) < 2 or len(sizes[-1]) < 2 or len(sizes[-2]) < 2:
        return 0.0
    rows = 1.0
    for size in sizes[-2]:
        rows *= size
    return 2.0 * rows * sizes[-1][-1]


def _lines(sent: Mapping[Link, list[Point]]) -> dict[Link, Line]:
    """The line of each link. One that was measured at one size only has the latency of the others
    among as many ranks, as far as its own times allow that."""
    lines = {link: line for link, points in sent.items() if (line := _line(points))}
    fitted = dict(lines)
    for link, points in sent.items():
        if link not in lines:
            known = [line.latency for other, line in fitted.items() if other.ranks == link.ranks]
            lines[link] = _through(points, min(known, default=0.0))
    return lines


def _through(points: list[Point], latency: float) -> Line:
    """A line with a given latency, if that is less than what the points took."""
    latency = min([latency, *[point.time for point in points]])
    rest = [Point(point.amount, point.time - latency) for point in points]
    return Line(latency, _rate(rest) or 0.0)


def _line(points: list[Point]) -> Line | None:
    """Latency and time by byte that fit best; None if all are of about one size."""
    sizes = [point.amount for point in points]
    if len(points) < 2 or max(sizes) < APART * min(sizes):
        return None
    size, time = sum(sizes) / len(points), sum(point.time for point in points) / len(points)
    spread = sum((one - size) ** 2 for one in sizes)
    slope = sum((point.amount - size) * (point.time - time) for point in points) / spread
    slope = max(slope, 0.0)
    latency = time - slope * size
    return Line(latency, slope) if latency >= 0 else Line(0.0, time / size)
