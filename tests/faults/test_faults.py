"""Every fault is found, and its kernel, collective or buffer named; what is right raises no alarm."""

import json
import subprocess

import pytest
from cases import CASES, CORRECT, CUSTOM, Case, text
from command import HALFLAP, ROOT, run
from spread import FAULTS, HARMLESS
from walk import build, debug, shows_as_said, wrong


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("faults"))


def each(cases):
    return [pytest.param(case, ranks, id=f"{case.name}-{ranks}") for case in cases for ranks in case.ranks]


def test_there_are_enough():
    names = [case.name for case in CASES + FAULTS + CORRECT + HARMLESS]
    assert len(CASES) >= 30 and len(FAULTS) >= 30 and len(HARMLESS) >= 15 and len(set(names)) == len(names)


@pytest.mark.parametrize("case, ranks", each(CASES + FAULTS))
def test_fault_is_found(case, ranks, library):
    answer = debug(HALFLAP, case, ranks, library)
    assert wrong(case, answer) is None
    assert shows_as_said(answer), answer[1]["finding"]["shows_again_words"]


@pytest.mark.parametrize("case, ranks", each(CORRECT + HARMLESS))
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


def test_no_alarm_where_a_loop_changes_its_state(library, tmp_path):
    module = ROOT / "tests" / "hlo" / "fsdp_L2_scan.after_optimizations.txt.gz"
    kept = tmp_path / "kept"
    report = json.loads(run("debug", module, "--json", "--artifacts", kept, "--custom-calls", library))
    assert report["finding"] is None, report


def test_no_alarm_where_constants_are_no_numbers(tmp_path):
    programs = ROOT / "tests" / "programs"
    module, inputs = programs / "linear_algebra.after_spmd.txt.gz", programs / "linear_algebra.npz"
    report = json.loads(run("debug", module, "--inputs", inputs, "--json", "--artifacts", tmp_path / "kept"))
    assert report["finding"] is None, report


@pytest.mark.parametrize("data", [None, b"", b"no archive"], ids=["missing", "empty", "garbage"])
def test_inputs_that_cannot_be_read_are_no_finding(data, tmp_path):
    inputs = tmp_path / "inputs.npz"
    if data is not None:
        inputs.write_bytes(data)
    assert run("debug", ROOT / "tests" / "guide" / "correct.txt", "--inputs", inputs, expect=2) == ""


LINE = 'metadata={op_name="net/bad" source_file="train.py" source_line=42}'


@pytest.mark.parametrize("target", ["write_half_whole", "by_chance"])
def test_values_that_differ_come_with_their_line(target, library):
    element = "s32" if target == "write_half_whole" else "f32"
    bad = f'  bad = {element}[64] custom-call(before), custom_call_target="{target}", {LINE}'
    body = f"{bad}\n  result = {element}[64] add(bad, q)"
    _, report, errors, _ = debug(HALFLAP, Case("line", "", body, options=CUSTOM, element=element), 1, library)
    assert report["finding"]["source"] == ["net/bad train.py:42"], errors
