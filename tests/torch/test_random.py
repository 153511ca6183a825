"""Random programs on two ranks, bit for bit against torch alone; scripts/nightly has more."""

import pytest
from ranks import PYTHON, launch

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


@pytest.mark.parametrize("wrapper,seeds", [("python", (0, 10)), ("cpp", (200, 1))])
def test_values_are_those_of_torch(tmp_path, monkeypatch, wrapper, seeds):
    first, count = seeds
    monkeypatch.setenv("FIRST_SEED", str(first))
    monkeypatch.setenv("SEEDS", str(count))
    monkeypatch.setenv("ORDERS", "1")
    monkeypatch.setenv("WRAPPER", wrapper)
    for rank in launch("random.sweep", tmp_path, ranks=2):
        assert rank["differences"] == []
        # Orders that change nothing would show nothing.
        assert rank["moved"] > 0


def test_a_buffer_that_is_read_later_is_not_overwritten(tmp_path):
    for rank in launch("random.overwritten", tmp_path, ranks=2):
        assert rank["differences"] == [] and rank["moved"] == 1
