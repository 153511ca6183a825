"""What a single process of real torch shows, mostly as one rank of a group that does nothing. Each
script says what it is about, and checks it itself."""

import pytest
from ranks import PYTHON, run_script

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")

SCRIPTS = [
    "dependencies",
    "devices",
    "followed",
    "groups",
    "measured",
    "regions",
    "shapes",
    "statuses",
    "switches",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_alone(script, tmp_path):
    run_script(script, tmp_path)
