"""Numpy's archives without numpy: what the tests compare."""

import array
import ast
import zipfile

CODES = {"<f4": "f", "<f8": "d", "<i4": "i", "<u4": "I", "|b1": "B", "|V2": "H", "<V2": "H"}


def read(path):
    """The arrays of an archive by name: type, shape and elements."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            long = data[6] > 1
            start = 12 if long else 10
            length = int.from_bytes(data[8:start], "little")
            header = ast.literal_eval(data[start : start + length].decode())
            values = array.array(CODES[header["descr"]])
            values.frombytes(data[start + length :])
            arrays[name.removesuffix(".npy")] = (header["descr"], header["shape"], values)
    return arrays


def floats(kind, values):
    """Elements as numbers; two bytes without a meaning are bf16."""
    if not kind.endswith("V2"):
        return values
    wide = array.array("I", (value << 16 for value in values))
    return array.array("f", wide.tobytes())


def worst(ours, expected, relative, absolute):
    """How far outputs are apart, as a share of what they may be."""
    names = [name for name in expected if name.startswith("out_")]
    assert names and all(ours[name][:2] == expected[name][:2] for name in names)
    share = 0.0
    for name in names:
        kind = ours[name][0]
        pairs = zip(floats(kind, ours[name][2]), floats(kind, expected[name][2]))
        share = max([share] + [abs(a - b) / (absolute + relative * abs(b)) for a, b in pairs])
    return share
