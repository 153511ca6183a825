"""Every fault is found, and its kernel, collective or buffer named; what is right raises no alarm."""

import pytest
from cases import CASES, CORRECT
from command import HALFLAP
from walk import build, debug, wrong


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("faults"))


def each(cases):
    return [pytest.param(case, ranks, id=f"{case.name}-{ranks}") for case in cases for ranks in case.ranks]


def test_there_are_enough():
    assert len(CASES) >= 30 and len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case, ranks", each(CASES))
def test_fault_is_found(case, ranks, library):
    answer = debug(HALFLAP, case, ranks, library)
    assert wrong(case, answer) is None


@pytest.mark.parametrize("case, ranks", each(CORRECT))
def test_no_alarm(case, ranks, library):
    code, report, errors, _ = debug(HALFLAP, case, ranks, library)
    assert (code, report and report["finding"]) == (0, None), errors
