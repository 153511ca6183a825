"""halflap debug on torch programs: the kernel, the values, the line; and no alarm where nothing is wrong.

HALFLAP_TORCH_PYTHON names the Python that has torch."""

import json
import os
import pathlib
import subprocess

from command import HALFLAP

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"


def debug(folder, program, *arguments, timeout="600s"):
    """The exit code and what was found."""
    python = os.environ["HALFLAP_TORCH_PYTHON"]
    program = program if program == "-m" else PROGRAMS / program
    options = ["--json", "--timeout", timeout, "--artifacts", folder / "kept"]
    command = [HALFLAP, "debug", *options, "--", python, program, *arguments]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=3000)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_model_that_makes_nan(tmp_path):
    code, report = debug(tmp_path, "makes_nan.py")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "nan"), report
    assert "log" in found["kernel"]
    assert any("in inner: return torch.log(x - 10.0)" in line for line in found["source"])
    [given], [made] = found["in"], found["out"]
    assert "nan" not in given["facts"]["max"] and "nan" in made["facts"]["max"]
    assert "AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT" in found["reproduce"]


def test_an_operator_that_writes_too_far(tmp_path):
    code, report = debug(tmp_path, "out_of_bounds.py", "1")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "out-of-bounds"), report
    assert "mine::shift" in found["kernel"]
    assert "writes right behind the end of a tensor of 4096 bytes" in found["what"]
    assert any("torch.ops.mine.shift(y)" in line for line in found["source"])
    assert [value["type"] for value in found["in"]] == ["float32[32, 32]"]


def test_memory_comes_before_what_is_no_number(tmp_path):
    code, report = debug(tmp_path, "out_of_bounds.py", "1", "nan")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "out-of-bounds"), report
    assert "mine::shift" in found["kernel"]


def test_an_operator_that_leaves_out_a_number(tmp_path):
    code, report = debug(tmp_path, "unwritten.py")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "uninitialised"), report
    assert "mine::most" in found["kernel"]


def test_an_operator_that_writes_too_early(tmp_path):
    code, report = debug(tmp_path, "out_of_bounds.py", "-1")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "out-of-bounds"), report
    assert "4 bytes before the start" in found["what"] and "mine::shift" in found["kernel"]


def test_an_input_of_another_shape(tmp_path):
    code, report = debug(tmp_path, "wrong_shape.py")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "wrong-input"), report
    assert any("wrong_shape.py" in line for line in found["source"])


def test_a_correct_program_raises_no_alarm(tmp_path):
    code, report = debug(tmp_path, "correct.py")
    assert (code, report["verdict"]) == (0, "clean"), report


def ranks(*words):
    """A launcher that starts two of them, in sessions of their own."""
    return ["-m", "torch.distributed.run", "--nproc-per-node", "2", PROGRAMS / "ranks.py", *words]


def test_a_rank_that_sends_what_is_no_number_to_the_others(tmp_path):
    code, report = debug(tmp_path, *ranks("nan"))
    found = report["finding"]
    assert (code, found["kind"], found["rank"]) == (1, "nan", 1), report
    assert "log" in found["kernel"]
    assert any("mine = torch.log(x)" in line for line in found["source"])


def test_ranks_that_wait_for_each_other(tmp_path):
    code, report = debug(tmp_path, *ranks("apart", str(tmp_path)), timeout="30s")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "hang"), report
    first, second = found["source"]
    assert first.startswith("rank 0: ") and "wait_tensor" in first, found
    assert second.startswith("rank 1: ") and "dist.broadcast(x, 0)" in second, found
    commands = [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if path.parent.is_dir()]
    assert not any(str(tmp_path).encode() in command for command in commands), "ranks are left behind"
