"""Every fault is found, and its kernel, collective or buffer named; what is right raises no
alarm."""

import json
import subprocess

import pytest
from cases import CASES, CORRECT, CUSTOM, Case, loop, text
from command import HALFLAP, ROOT, run
from mixed import MIXED_CORRECT, MIXED_CORRECT_SAMPLE, MIXED_FAULTS, MIXED_SAMPLE
from optimised import OPTIMISED_CORRECT, OPTIMISED_CORRECT_SAMPLE, OPTIMISED_FAULTS, OPTIMISED_SAMPLE
from others import CORRECT_SAMPLE, OTHER_CORRECT, OTHER_FAULTS, SAMPLE
from paths import PATH_CORRECT, PATH_CORRECT_SAMPLE, PATH_FAULTS, PATH_SAMPLE
from spread import FAULTS, HARMLESS
from steps import STEP_CORRECT, STEP_FAULTS
from walk import alarm, build, debug, shows_as_said, wrong


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("faults"))


def each(cases):
    return [pytest.param(case, ranks, id=f"{case.name}-{ranks}") for case in cases for ranks in case.ranks]


def test_there_are_enough():
    faults = CASES + FAULTS + STEP_FAULTS + OTHER_FAULTS + MIXED_FAULTS + PATH_FAULTS + OPTIMISED_FAULTS
    correct = CORRECT + HARMLESS + STEP_CORRECT + OTHER_CORRECT + MIXED_CORRECT + PATH_CORRECT + OPTIMISED_CORRECT
    names = [case.name for case in faults + correct]
    assert len(CASES) >= 30 and len(set(names)) == len(names)
    assert len(STEP_FAULTS + OTHER_FAULTS) >= 60 and len(STEP_CORRECT + OTHER_CORRECT) >= 30
    assert SAMPLE | CORRECT_SAMPLE | MIXED_SAMPLE | MIXED_CORRECT_SAMPLE <= set(names)
    assert PATH_SAMPLE | PATH_CORRECT_SAMPLE <= set(names)
    assert OPTIMISED_SAMPLE | OPTIMISED_CORRECT_SAMPLE <= set(names)
    assert len(OPTIMISED_FAULTS) >= 25 and len(OPTIMISED_CORRECT) >= 15


def on_fewest(cases):
    return [pytest.param(case, case.ranks[0], id=f"{case.name}-{case.ranks[0]}") for case in cases]


def of_sample(cases, names):
    return on_fewest([case for case in cases if case.name in names])


@pytest.mark.parametrize("case, ranks", each(CASES + FAULTS) + on_fewest(STEP_FAULTS) + of_sample(OTHER_FAULTS, SAMPLE) + of_sample(MIXED_FAULTS, MIXED_SAMPLE) + of_sample(PATH_FAULTS, PATH_SAMPLE) + of_sample(OPTIMISED_FAULTS, OPTIMISED_SAMPLE))
def test_fault_is_found(case, ranks, library):
    answer = debug(HALFLAP, case, ranks, library)
    assert wrong(case, answer) is None
    assert shows_as_said(answer), answer[1]["finding"]["shows_again_words"]


@pytest.mark.parametrize("case, ranks", each(CORRECT + HARMLESS) + on_fewest(STEP_CORRECT) + of_sample(OTHER_CORRECT, CORRECT_SAMPLE) + of_sample(MIXED_CORRECT, MIXED_CORRECT_SAMPLE) + of_sample(PATH_CORRECT, PATH_CORRECT_SAMPLE) + of_sample(OPTIMISED_CORRECT, OPTIMISED_CORRECT_SAMPLE))
def test_no_alarm(case, ranks, library):
    answer = debug(HALFLAP, case, ranks, library)
    assert alarm(answer) is None
    assert not case.quiet or answer[1]["notes"] == []


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


def test_a_long_loop_is_not_run_between_guard_pages(tmp_path):
    turn = "  one = s32[] constant(1)\n  k = s32[] add(j, one)\n  y = f32[64] sine(x)"
    case = loop("long-loop", "", turn)
    module = tmp_path / "module.txt"
    module.write_text(text(case, 1).replace("constant(6)", "constant(100000)"))
    stages = json.loads(run("debug", module, "--json", "--artifacts", tmp_path / "kept"))["stages"]
    assert [stage["name"] for stage in stages][-1] == "guard pages", stages
    assert stages[-1]["result"].startswith("left out"), stages


def test_ranks_that_wait_are_listed_in_the_line_of_the_stage(tmp_path):
    case = Case("waits", "", "  result = f32[64] negate(before)")
    module = tmp_path / "module.txt"
    module.write_text(text(case, 2))
    options = ("--inject", "skip-collective=1:sum", "--timeout", "1s", "--artifacts", tmp_path / "kept")
    stages = json.loads(run("debug", module, "--json", *options, expect=1))["stages"]
    said = stages[0]["result"]
    assert "rank 0: " in said and "rank 1 has not come" in said, said


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


def test_memory_that_is_kept_is_noted(library):
    case = Case("leak", "", '  made = f32[64] custom-call(before), custom_call_target="leaks"\n  result = f32[64] add(made, q)', options=CUSTOM)
    _, report, errors, _ = debug(HALFLAP, case, 1, library)
    notes = report["notes"]
    assert report["finding"] is None and len(notes) == 1, errors
    assert notes[0].startswith("'made' on rank 0 keeps about 5") and "bytes of memory at each call" in notes[0]
    case = next(case for case in OTHER_CORRECT if case.name == "correct-cache")
    assert debug(HALFLAP, case, 1, library)[1]["notes"] == []


LINE = 'metadata={op_name="net/bad" source_file="train.py" source_line=42}'


@pytest.mark.parametrize("target", ["write_half_whole", "by_chance"])
def test_values_that_differ_come_with_their_line(target, library):
    element = "s32" if target == "write_half_whole" else "f32"
    bad = f'  bad = {element}[64] custom-call(before), custom_call_target="{target}", {LINE}'
    body = f"{bad}\n  result = {element}[64] add(bad, q)"
    _, report, errors, _ = debug(HALFLAP, Case("line", "", body, options=CUSTOM, element=element), 1, library)
    assert report["finding"]["source"] == ["net/bad train.py:42"], errors


def found(name, ranks, library):
    case = next(case for case in CASES + FAULTS + HARMLESS if case.name == name)
    return debug(HALFLAP, case, ranks, library)[1]


def test_nan_that_no_result_has_is_a_note(library):
    report = found("correct-guarded-log", 1, library)
    assert report["notes"] == ["'logs' on rank 0 makes NaN that reaches no result"]


def test_infinite_results_are_never_passed_over(library, tmp_path):
    report = found("correct-passed-infinity", 1, library)
    assert len(report["notes"]) == 1 and "input 'p' has them" in report["notes"][0]
    case = next(case for case in HARMLESS if case.name == "correct-passed-infinity")
    module, inputs = tmp_path / "module.txt", tmp_path / "inputs"
    module.write_text(text(case, 1))
    inputs.mkdir()
    for name, data in case.inputs(1).items():
        (inputs / f"{name}.npy").write_bytes(data)
    shown = run("debug", module, "--inputs", inputs, "--artifacts", tmp_path / "kept")
    assert "nothing wrong" not in shown and "results are not finite" in shown


def test_a_fault_in_a_loop_comes_with_its_iteration(library):
    finding = found("overflow-in-a-loop", 1, library)["finding"]
    assert (finding["iteration"], finding["computation"], finding["rank"]) == ([3], "turn", 0)
    assert finding["step"] is not None and finding["buffer"]
    assert "--only bad@3 " in finding["reproduce"] and finding["shows_again"]
    assert [value["operand"] for value in finding["in"]] == ["x", "bigs"]
    assert [value["operand"] for value in finding["out"]] == ["bad"]


def test_a_rank_that_diverges_comes_with_what_it_does_instead(library):
    finding = found("skips-collective", 8, library)["finding"]
    assert (finding["kernel"], finding["rank"], finding["stray"]["collective"]) == ("other", 1, "third")
    assert finding["computation"] == finding["stray"]["computation"] == "main"
    assert finding["step"] < finding["stray"]["step"]


def test_an_infinity_of_a_mask_is_a_note(library):
    case = next(case for case in STEP_CORRECT if case.name == "correct-logarithm-of-a-mask")
    notes = debug(HALFLAP, case, 1, library)[1]["notes"]
    assert len(notes) == 1 and "'logs' takes the logarithm of a mask" in notes[0], notes


UNPARTITIONED = """HloModule m, num_partitions=2

ENTRY e {
  p = f32[8] parameter(0), sharding={devices=[2]<=[2]}
  part = f32[4] custom-call(p), custom_call_target="SPMDFullToShardShape", sharding={manual}
  n = f32[4] negate(part)
  ROOT all = f32[8] custom-call(n), custom_call_target="SPMDShardToFullShape", sharding={devices=[2]<=[2]}
}
"""


@pytest.mark.parametrize("command", ["debug", "run"])
def test_text_from_before_the_partitioner_is_known_as_such(command, tmp_path):
    module = tmp_path / "module.txt"
    module.write_text(UNPARTITIONED)
    done = subprocess.run([HALFLAP, command, str(module)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done
    for words in ("line 5", "'part'", "before XLA's SPMD partitioner", "compile().as_text()", "spmd-partitioning"):
        assert words in done.stderr, done.stderr


CLAMPED = """HloModule m

ENTRY e {
  table = f32[10,4] parameter(0)
  ids = s32[3] constant({1, 12, 3})
  rows = f32[3,4] gather(table, ids), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}
  z = s32[] constant(0)
  far = s32[] constant(-2)
  part = f32[3,2] dynamic-slice(rows, z, far), dynamic_slice_sizes={3,2}
  eight = s32[] constant(8)
  up = f32[10,4] dynamic-update-slice(table, rows, eight, z)
  ROOT t = (f32[3,2], f32[10,4]) tuple(part, up)
}
"""


def test_indices_out_of_range_are_noted(tmp_path):
    module = tmp_path / "module.txt"
    module.write_text(CLAMPED)
    notes = json.loads(run("debug", module, "--json", "--artifacts", tmp_path / "kept"))["notes"]
    given = [("'rows'", "index 12", "0 to 9"), ("'part'", "index -2", "0 to 2"), ("'up'", "index 8", "0 to 7")]
    assert len(notes) == 3 and all(all(word in note for word in words) for note, words in zip(notes, given)), notes
    module.write_text(CLAMPED.replace("12", "2").replace("-2", "2").replace("constant(8)", "constant(7)"))
    assert json.loads(run("debug", module, "--json", "--artifacts", tmp_path / "more"))["notes"] == []
