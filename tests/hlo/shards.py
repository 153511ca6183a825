#!/usr/bin/env python3
"""What tests/mpi/expected.py needs of modules that are all the same training step on the same
arrays.

    python3 tests/hlo/shards.py FOLDER

FOLDER has a folder for each module, with manifest.json (which part of which array each rank holds)
and ranks.npz (those parts). Writes shards.json: for every module the whole arrays that its ranks
take and give, and along which dimension each is cut; and for modules whose whole arrays are not
those of fsdp_L2 within 1e-7 the others, as NAME.whole.npz. Needs numpy.
"""

import json
import pathlib
import re
import sys

import numpy

HERE = pathlib.Path(__file__).resolve().parent
NAMES = ["fsdp_L2", "fsdp_L2_bf16", "fsdp_L2_scan", "fsdp_shmap_L2", "mix_L2", "tp_L2"]


def plain(path, layers):
    """A path of JAX's as 0/layers/1/w1; with * for an array that has all layers."""
    parts = re.findall(r"\[(?:'([^']*)'|(\d+))\]", path)
    parts = [name or number for name, number in parts]
    if "layers" in parts and not parts[parts.index("layers") + 1].isdigit():
        parts.insert(parts.index("layers") + 1, "*")
    assert parts.count("*") == 0 or layers
    return "/".join(parts)


def cut(entry):
    """The dimension along which ranks have equal parts in their sequence; nothing, where each has
    all."""
    parts = [[tuple(bounds) for bounds in index] for index in entry["index"]]
    full = [(0, length) for length in entry["shape"]]
    if all(part == full for part in parts):
        return None
    (dim,) = {dim for part in parts for dim, bounds in enumerate(part) if bounds != full[dim]}
    each = entry["shape"][dim] // len(parts)
    for rank, part in enumerate(parts):
        assert part == full[:dim] + [(rank * each, (rank + 1) * each)] + full[dim + 1 :]
    return dim


def read(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    ranks = numpy.load(folder / "ranks.npz")
    cuts, whole = {}, {}
    for kind in ["in", "out"]:
        cuts[kind] = []
        for number, entry in enumerate(manifest[f"{kind}puts"]):
            name, dim = plain(entry["path"], manifest["args"]["scan"]), cut(entry)
            parts = [
                ranks[f"{kind}_{number:03}_r{rank}"] for rank in range(manifest["num_partitions"])
            ]
            cuts[kind].append([name, dim])
            whole[f"{kind}/{name}"] = parts[0] if dim is None else numpy.concatenate(parts, dim)
    return cuts, whole


def main():
    shared = pathlib.Path(sys.argv[1])
    cuts, first = {}, None
    for name in NAMES:
        cuts[name], whole = read(shared / name)
        first = first or whole
        stacked = {key: first.get(key) for key in whole}
        for key in [key for key in whole if "*" in key]:
            layers = whole[key].shape[0]
            stacked[key] = numpy.stack(
                [first[key.replace("*", str(layer))] for layer in range(layers)]
            )
        same = lambda a, b: b is not None and a.shape == b.shape and numpy.allclose(a, b, 0, 1e-7)
        others = {key: array for key, array in whole.items() if not same(array, stacked[key])}
        if others:
            numpy.savez_compressed(HERE / f"{name}.whole.npz", **others)
        print(f"{name}: {len(others)} of {len(whole)} arrays of its own")
    lines = [
        f'"{name}": {json.dumps(entry, separators=(",", ":"))}' for name, entry in cuts.items()
    ]
    (HERE / "shards.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
