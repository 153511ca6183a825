"""Saved values, read back with numpy: bit for bit what went in and came out."""

import json

import ml_dtypes
import numpy as np
import pytest
from command import run

TYPES = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "s8": np.int8,
    "s32": np.int32,
    "s64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u64": np.uint64,
    "pred": np.bool_,
    "c64": np.complex64,
    "c128": np.complex128,
}


def bits(array):
    """The bytes of an array, whatever numpy makes of its type."""
    return np.ascontiguousarray(array).tobytes()


def saved(folder, **wanted):
    """The only saved array of which this is known, as numpy reads it, and what the index says of
    it."""
    rank = folder / "values" / f"rank_{wanted.pop('rank', 0)}"
    index = json.loads((rank / "index.json").read_text())
    assert index["format"] == "halflap.values/1"
    found = [
        entry
        for entry in index["entries"]
        if all(entry[key] == value for key, value in wanted.items())
    ]
    assert len(found) == 1, (wanted, found)
    return np.load(rank / found[0]["file"]), found[0]


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5, 3)], ids=["scalar", "row", "block"])
def test_bit_for_bit(name, shape, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dims = ",".join(map(str, shape))
    order = ",".join(map(str, reversed(range(len(shape)))))
    (tmp_path / "m.txt").write_text(
        f"HloModule m\nENTRY e {{\n p = {name}[{dims}] parameter(0)\n"
        f" ROOT t = {name}[{','.join(map(str, reversed(shape)))}] transpose(p), dimensions={{{order}}}\n}}\n"
    )
    dtype = np.dtype(TYPES[name])
    random = np.random.default_rng(len(shape))
    # Any bits, so that there are NaN of every kind; truth values are 0 or 1.
    raw = random.integers(0, 2 if name == "pred" else 256, (*shape, dtype.itemsize), dtype=np.uint8)
    given = np.frombuffer(raw.tobytes(), dtype).reshape(shape)
    np.savez(tmp_path / "in.npz", in_000_r0=given)
    run("run", "m.txt", "--inputs", "in.npz", "--debug-values", "1")
    taken, entry = saved(tmp_path, when="input")
    assert taken.shape == shape and bits(taken) == bits(given)
    assert (entry["dtype"], entry["shape"]) == (name, list(shape))
    made, entry = saved(tmp_path, when="after", kernel="t")
    assert made.shape == shape[::-1] and bits(made) == bits(given.T)
    if name == "bf16":
        assert bits(made.view(np.uint16)) == bits(made.view(ml_dtypes.bfloat16))


def test_statistics_are_numpy_s(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.txt").write_text(
        "HloModule m, num_partitions=2\nENTRY e {\n p = f32[7,9] parameter(0)\n ROOT n = f32[7,9] exponential(p)\n}\n"
    )
    arrays = {
        f"in_000_r{rank}": np.random.default_rng(rank).standard_normal((7, 9), np.float32)
        for rank in range(2)
    }
    arrays["in_000_r1"][3, 4] = 1e9
    np.savez(tmp_path / "in.npz", **arrays)
    run("run", "m.txt", "--inputs", "in.npz", "--debug-values", "1")
    for rank in range(2):
        made, entry = saved(tmp_path, rank=rank, when="after", kernel="n")
        stats = {name: float(value) for name, value in entry["stats"].items()}
        exact = made.astype(np.float64)
        with np.errstate(invalid="ignore"):
            expected = [exact.size, exact.mean(), exact.min(), exact.max(), exact.std(ddof=1)]
        ours = [stats[name] for name in ("count", "mean", "min", "max", "std")]
        np.testing.assert_allclose(ours, expected, rtol=1e-12, equal_nan=True)
        assert (stats["nans"], stats["infinities"]) == (np.isnan(made).sum(), np.isinf(made).sum())
