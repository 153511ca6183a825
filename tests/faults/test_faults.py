"""Every fault is found, and its kernel, collective or buffer named; what is right raises no alarm."""

import json
import subprocess

import pytest
from cases import CASES, CORRECT, text
from command import HALFLAP, ROOT, run
from walk import build, debug, shows_as_said, wrong


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
    assert shows_as_said(answer), answer[1]["finding"]["shows_again_words"]


@pytest.mark.parametrize("case, ranks", each(CORRECT))
def test_no_alarm(case, ranks, library):
    code, report, errors, _ = debug(HALFLAP, case, ranks, library)
    assert (code, report and report["finding"]) == (0, None), errors


def last_words(case, library, folder, *options):
    module = folder / "module.txt"
    module.write_text(text(case, 1))
    command = [HALFLAP, "run", str(module), "--custom-calls", str(library), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stderr.splitlines()[-1]


HINT = "to see which buffer is at fault"


@pytest.mark.parametrize("name, words", [("ends-its-thread", "an exception or pthread_exit that left it"), ("gives-up", "was stopped by SIGABRT"), ("leaves-quietly", "a call of exit")])
def test_what_happened_to_the_kernel_itself(name, words, library, tmp_path):
    case = next(case for case in CASES if case.name == name)
    said = last_words(case, library, tmp_path)
    assert "rank 0: kernel 'bad'" in said and words in said and HINT not in said, said


def test_a_hint_where_it_helps(library, tmp_path):
    case = next(case for case in CASES if case.name == "wild-pointer")
    assert HINT in last_words(case, library, tmp_path)
    assert HINT not in last_words(case, library, tmp_path, "--no-memory-caching")


REAL = [
    "fsdp_L2.after_spmd_partitioning",
    "fsdp_L2_bf16.after_optimizations",
    "fsdp_L2_scan.after_optimizations",
    "mix_L2.after_optimizations",
    "tp_L2.after_optimizations",
]


@pytest.mark.parametrize("order", [(), ("--input-order",)], ids=["ours", "own"])
@pytest.mark.parametrize("name", REAL)
def test_no_alarm_on_real_modules(name, order, tmp_path):
    module = ROOT / "tests" / "hlo" / f"{name}.txt.gz"
    report = json.loads(run("debug", module, "--json", "--artifacts", tmp_path / "kept", *order))
    assert report["finding"] is None, report
