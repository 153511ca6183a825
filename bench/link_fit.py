#!/usr/bin/env python3
"""Fits the model of links to published measurements, and states its errors in docs/costs.md.

    python3 bench/link_fit.py TABLE [--print]

TABLE is `default_collective_perf_table.txtpb` of XLA's repository, in xla/service/gpu/model. A row
of it has a collective and a throughput, which is the collective's bytes divided by its time.
Fits on every other size of every series of rows, and measures errors on the others. The fitted
parameters stand in crates/halflap/src/cost/link.rs as well; a test there compares them with the
document. --print shows what would be written.
"""

import argparse
import collections
import datetime
import math
import re
import statistics
import sys
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "costs.md"
BEGIN = "<!-- Written by bench/link_fit.py. -->"
END = "<!-- End of what bench/link_fit.py writes. -->"

# Links, the table's devices that each joins, and what the document calls them.
LINKS = {
    "nvlink4": (["sm_90"], "H100"),
    "nvlink5": (["sm_100_B200"], "B200"),
    "nvl72": (["sm_100_GB200", "sm_103"], "GB200, sm_103"),
    "xgmi4": (["gfx950"], "gfx950"),
}
WIDTHS = {"F32": 4, "BF16": 2, "F16": 2, "F8E4M3FN": 1, "F8E5M2": 1}

# What all links have in common; crates/halflap/src/cost/collectives.rs says why.
TREE_LEVEL = 3
PAIRWISE_BASE = 0.6
PAIRWISE_RAMP = 4

Row = collections.namedtuple("Row", "device series bytes micros op ranks")
# Microseconds, GB/s and a ratio: a link, as in crates/halflap/src/cost/link.rs.
Link = collections.namedtuple("Link", "base hop bandwidth pair ramp all_reduce")
# A pair of ranks has the whole of a link, or as one of a mesh a part of it: a search that begins
# with the one may not find the other.
STARTS = [
    Link(base=15, hop=1.5, bandwidth=500, pair=500 / peers, ramp=5, all_reduce=1.8)
    for peers in (1, 2, 8)
]


def micros(link, op, ranks, size):
    """The model: how long a collective takes among the ranks of a node."""
    around = ranks - 1
    base, ramp, peers, wire, hops = link.base, link.ramp, around, around / ranks, around
    if op == "all-reduce":
        wire = min(2 * wire, link.all_reduce)
        hops = min(2 * around, 2 * TREE_LEVEL * (ranks.bit_length() - 1))
    elif op == "all-to-all":
        hops = around / 2
    elif op == "collective-permute":
        base, ramp, peers, wire, hops = PAIRWISE_BASE * base, PAIRWISE_RAMP * ramp, 1, 1, 1
    transfer = size * wire / (min(link.bandwidth, link.pair * peers) * 1e3)
    return base + hops * link.hop + transfer + 2 * math.sqrt(ramp * transfer)


def messages(text):
    """A text proto as dictionaries of lists."""
    found = [{}]
    for name, value, close in re.findall(r'(\w+)\s*:?\s*({|"[^"]*"|[-\w.]+)|(})', text):
        if close:
            found.pop()
        elif value == "{":
            inner = {}
            found[-1].setdefault(name, []).append(inner)
            found.append(inner)
        else:
            found[-1].setdefault(name, []).append(value.strip('"'))
    return found[0]


def read(path):
    """The rows of the table that have a throughput."""
    text = re.sub(r"(?m)^\s*#.*$", "", Path(path).read_text())
    for device in messages(text)["entries"]:
        for entry in device["value"][0]["entries"]:
            if "network_throughput_bytes_per_sec" in entry:
                rate = int(entry["network_throughput_bytes_per_sec"][0])
                yield row_of(device["key"][0], entry["instruction"][0], rate)


def row_of(device, instruction, rate):
    op, shape = instruction["opcode"][0], instruction["shape"][0]
    size = math.prod(map(int, shape["dimensions"])) * WIDTHS[shape["element_type"][0]]
    if op == "collective-permute":
        pairs = [(int(pair.get("source", "0")[0]), int(pair.get("target", "0")[0]))
                 for pair in instruction["source_target_pairs"]]  # fmt: skip
        ranks, group = 2, tuple(pairs)
    else:
        devices = instruction["iota_collective_device_list"][0]
        ranks = int(devices["num_devices_per_group"][0])
        group = (ranks, int(devices["num_replica_groups"][0]))
    if op == "reduce-scatter":
        # Its shape is what comes out; its throughput counts what goes in.
        size *= ranks
    series = (op, shape["element_type"][0], group)
    return Row(device, series, size, size / rate * 1e6, op, ranks)


def halves(rows):
    """Every other size of every series, and the others."""
    series = collections.defaultdict(list)
    for row in sorted(rows):
        series[row.device, row.series].append(row)
    return [[row for rows in series.values() for row in rows[start::2]] for start in (0, 1)]


def error(link, row):
    return abs(micros(link, row.op, row.ranks, row.bytes) / row.micros - 1)


def fitted(rows):
    """The link of the least mean logarithmic error, to which outliers matter little: from each
    start one parameter after the other, by ever smaller steps."""

    def loss(link):
        off = (micros(link, row.op, row.ranks, row.bytes) / row.micros for row in rows)
        return sum(abs(math.log(ratio)) for ratio in off)

    return rounded(min((descended(loss, start) for start in STARTS), key=loss))


def descended(loss, link):
    least, step = loss(link), 0.5
    while step > 0.002:
        before = least
        for name in Link._fields:
            for factor in (1 + step, 1 / (1 + step)):
                moved = link._replace(**{name: getattr(link, name) * factor})
                if loss(moved) < least:
                    link, least = moved, loss(moved)
        if least > before - 1e-4:
            step /= 2
    return link


def rounded(link):
    """To what is worth writing down, and within what makes sense."""
    short = Link(*(float(f"{value:.3g}") if value > 0.005 else 0.0 for value in link))
    passes = min(max(short.all_reduce, 1.0), 2.0)
    return short._replace(pair=min(short.pair, short.bandwidth), all_reduce=passes)


def median(link, rows):
    return f"{100 * statistics.median(error(link, row) for row in rows):.0f} %" if rows else ""


def figure(number):
    return f"{number:g}"


def report(rows):
    """The section of the document."""
    fit, others = halves(rows)
    parameters = [
        "| link | fitted on | base, us | hop, us | bus, GB/s | pair, GB/s | ramp, us | all-reduce |",
        "| --- " * 8 + "|",
    ]
    errors = []
    decades = sorted({len(str(row.bytes)) - 1 for row in others})
    for name, (devices, shown) in LINKS.items():
        link = fitted([row for row in fit if row.device in devices])
        parameters.append(f"| `{name}` | {shown} | {' | '.join(map(figure, link))} |")
        for device in devices:
            mine = [row for row in others if row.device == device]
            seen = [row for row in fit if row.device == device]
            of = lambda decade: [row for row in mine if len(str(row.bytes)) - 1 == decade]
            cells = [median(link, seen), f"**{median(link, mine)}**"]
            cells += [median(link, of(decade)) for decade in decades]
            errors.append(f"| {device} | `{name}` | {len(mine)} | {' | '.join(cells)} |")
    heads = ["device", "link", "rows", "fitted half", "other half"]
    heads += [f"10^{decade} B" for decade in decades]
    table = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|", *errors]
    return "\n".join([*parameters, "", f"Median errors, {datetime.date.today()}:", "", *table])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", help="default_collective_perf_table.txtpb")
    parser.add_argument("--print", action="store_true", help="print, and write nothing")
    arguments = parser.parse_args()
    try:
        rows = list(read(arguments.table))
    except (OSError, KeyError, ValueError) as problem:
        sys.exit(f"{arguments.table}: not a table of collectives: {problem!r}")
    section = report(rows)
    if arguments.print:
        return print(section)
    before, rest = DOCUMENT.read_text().split(BEGIN)
    after = rest.split(END)[1]
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{section}\n\n{END}{after}")


if __name__ == "__main__":
    main()
