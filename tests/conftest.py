"""What all tests share: how torch compiles kernels in them, and how they are spread over several
processes."""

import os
import pathlib

import pytest

# Kernels are compiled once, and what the processor can do is not tried out in every process.
os.environ.setdefault("CXX", str(pathlib.Path(__file__).parent / "torch" / "cxx"))
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# With it torch turns some of its warnings into errors, which a user's run would not meet.
os.environ.pop("CI", None)

#: Their tests are long and share nothing: each may run anywhere. All others stay with those of
#: their folder, which share what takes long to make, or look for what others leave behind.
APART = {"test_debug.py", "test_examples.py", "test_faults.py", "test_guide.py"}


def pytest_collection_modifyitems(items):
    """For `scripts/test`, which runs tests side by side: groups that stay together, and what takes
    longest first."""
    items.sort(key=starts)
    for item in items:
        if item.path.name not in APART:
            item.add_marker(pytest.mark.xdist_group(item.path.parent.name))


def starts(item):
    """Torch first, the group before what can fill gaps."""
    return "torch" not in item.nodeid, item.path.name in APART
