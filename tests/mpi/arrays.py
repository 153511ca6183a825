"""Numpy's archives without numpy: what the tests compare."""

import array
import ast
import math
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


def write(path, arrays):
    """Writes an archive of such arrays."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, (kind, shape, values) in arrays.items():
            header = str({"descr": kind, "fortran_order": False, "shape": shape}).encode()
            header += b" " * (-(len(header) + 11) % 64) + b"\n"
            data = (
                b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + values.tobytes()
            )
            archive.writestr(f"{name}.npy", data)


def floats(kind, values):
    """Elements as numbers; two bytes without a meaning are bf16."""
    if not kind.endswith("V2"):
        return values
    wide = array.array("I", (value << 16 for value in values))
    return array.array("f", wide.tobytes())


def worst(ours, expected, relative, absolute):
    """How far outputs are apart, as a share of what they may be."""
    expected = {name: array for name, array in expected.items() if name.startswith("out_")}
    assert expected and {name: array[:2] for name, array in ours.items()} == {
        name: array[:2] for name, array in expected.items()
    }
    share = 0.0
    for name, (kind, _, values) in expected.items():
        pairs = zip(floats(kind, ours[name][2]), floats(kind, values))
        apart = [abs(a - b) / (absolute + relative * abs(b)) for a, b in pairs]
        # What is not a number is as far away as can be.
        share = max(share, *(math.inf if math.isnan(each) else each for each in apart))
    return share
