"""What every rank of a module takes and must give, from whole arrays: the modules of tests/hlo with
expected outputs are one training step, cut in several ways. tests/hlo/shards.py wrote what is read
here."""

import functools
import json
import math

from arrays import read, write
from command import ROOT

HLO = ROOT / "tests" / "hlo"
SHARDS = json.loads((HLO / "shards.json").read_text())
NAMES = sorted(SHARDS)
RANKS = 8


def cut(array, dim, count):
    """An array's equal parts along a dimension."""
    kind, shape, values = array
    rows = math.prod(shape[:dim])
    row = len(values) // rows
    each = row // count
    shape = (*shape[:dim], shape[dim] // count, *shape[dim + 1 :])
    parts = []
    for part in range(count):
        taken = values[:0]
        for first in range(part * each, len(values), row):
            taken += values[first : first + each]
        parts.append((kind, shape, taken))
    return parts


def joined(parts, dim):
    """The whole of which these are the parts."""
    kind, shape, values = parts[0]
    row = len(values) // math.prod(shape[:dim])
    whole = values[:0]
    for first in range(0, len(values), row):
        for part in parts:
            whole += part[2][first : first + row]
    return kind, (*shape[:dim], shape[dim] * len(parts), *shape[dim + 1 :]), whole


@functools.cache
def first_whole():
    """The whole arrays of fsdp_L2, by kind and name."""
    ranks = read(HLO / "fsdp_L2.ranks.npz")
    whole = {}
    for kind in ["in", "out"]:
        for number, (name, dim) in enumerate(SHARDS["fsdp_L2"][kind]):
            parts = [ranks[f"{kind}_{number:03}_r{rank}"] for rank in range(RANKS)]
            whole[f"{kind}/{name}"] = parts[0] if dim is None else joined(parts, dim)
    return whole


def stacked(arrays):
    kind, shape, _ = arrays[0]
    values = arrays[0][2][:0]
    for array in arrays:
        values += array[2]
    return kind, (len(arrays), *shape), values


def array_of(name, key):
    own = HLO / f"{name}.whole.npz"
    arrays = own_arrays(own) if own.exists() else {}
    if key in arrays:
        return arrays[key]
    if "*" in key:
        return stacked([first_whole()[key.replace("*", str(layer))] for layer in range(2)])
    return first_whole()[key]


@functools.cache
def own_arrays(path):
    return read(path)


def write_ranks(name, path):
    """Writes an archive of what every rank takes and must give; gives its arrays."""
    arrays = {}
    for kind in ["in", "out"]:
        for number, (key, dim) in enumerate(SHARDS[name][kind]):
            whole = array_of(name, f"{kind}/{key}")
            parts = [whole] * RANKS if dim is None else cut(whole, dim, RANKS)
            arrays |= {f"{kind}_{number:03}_r{rank}": part for rank, part in enumerate(parts)}
    write(path, arrays)
    return arrays
