"""halflap debug on torch programs: the kernel, the values, the line; and no alarm where nothing is
wrong.

HALFLAP_TORCH_PYTHON names the Python that has torch."""

import json
import os
import pathlib
import subprocess

from command import HALFLAP

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
LIFETIMES = PROGRAMS.parents[2] / "crates/halflap-cli/src/execution/debug/torch/lifetimes.py"


def debug(folder, program, *arguments, timeout="600s", threads="1"):
    """The exit code and what was found. Torch's own pools of compilers take longer to start than
    these programs do."""
    python = os.environ["HALFLAP_TORCH_PYTHON"]
    program = program if program == "-m" else PROGRAMS / program
    options = ["--json", "--timeout", timeout, "--artifacts", folder / "kept"]
    command = [HALFLAP, "debug", *options, "--", python, program, *arguments]
    variables = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": threads}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=3000)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_model_that_makes_nan(tmp_path):
    """The guide's example for torch, which tests/guide leaves to this test."""
    code, report = debug(tmp_path, "makes_nan.py")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "nan"), report
    assert "log" in found["kernel"]
    assert any("in inner: return torch.log(x - 10.0)" in line for line in found["source"])
    [given], [made] = found["in"], found["out"]
    assert "nan" not in given["facts"]["max"] and "nan" in made["facts"]["max"]
    assert "AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT" in found["reproduce"]


def test_an_operator_that_writes_too_far(tmp_path):
    """It also leaves NaN behind: memory comes before values."""
    code, report = debug(tmp_path, "out_of_bounds.py", "1", "nan")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "out-of-bounds"), report
    assert "mine::shift" in found["kernel"]
    assert "writes right behind the end of a tensor of 4096 bytes" in found["what"]
    assert any("torch.ops.mine.shift(y)" in line for line in found["source"])
    assert [value["type"] for value in found["in"]] == ["float32[32, 32]"]


def test_an_operator_that_leaves_out_a_number(tmp_path):
    code, report = debug(tmp_path, "unwritten.py")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "uninitialised"), report
    assert "mine::most" in found["kernel"]


def test_a_program_that_exits_by_itself(tmp_path):
    code, report = debug(tmp_path, "exits.py")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "exception"), report
    assert "code 3 by itself; its last output: no shards in data/train" in found["what"]
    assert any("nothing was compiled" in note for note in report["notes"])


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


def test_an_operator_that_keeps_a_buffer(tmp_path):
    code, report = debug(tmp_path, "lifetimes.py", "keep")
    found = report["finding"]
    assert (code, found["kind"], found["buffer"]) == (1, "lifetime", "buf0"), report
    assert found["kernel"] == "torch.ops.mine.keep.default"
    assert "__main__.kept still holds buf0 (float32[8, 8], 256 bytes)" in found["what"]
    assert "should have been freed after extern_kernels.mm (generated code: " in found["what"]
    assert any("in model: z = operator(y)" in line for line in found["source"])
    assert [stage["name"] for stage in report["stages"]][-1] == "lifetimes"
    assert report["notes"] == []


def ranks(*words, program="ranks.py"):
    """A launcher that starts two of them, in sessions of their own."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return [*launcher, PROGRAMS / program, *words]


def test_lifetimes_on_two_ranks(tmp_path):
    """Every deviation of rank 1 is found, and none in correct graphs nor on rank 0. A program's own
    sitecustomize still runs."""
    hook, theirs = tmp_path / "hook", tmp_path / "theirs"
    hook.mkdir()
    theirs.mkdir()
    (hook / "sitecustomize.py").write_text(LIFETIMES.read_text())
    (theirs / "sitecustomize.py").write_text("print('theirs')")
    paths = {"PYTHONPATH": f"{hook}:{theirs}", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    faults = ["keep", "same", "swap", "grow"]
    launched = ranks("correct", *faults, program="lifetimes.py")
    command = [os.environ["HALFLAP_TORCH_PYTHON"], *launched]
    variables = os.environ | paths
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "theirs" in done.stdout, done.stderr
    lines = [line.split("halflap-lifetimes: ") for line in done.stderr.splitlines()]
    told = [json.loads(line[1]) for line in lines if len(line) == 2]
    # In branches Inductor itself frees late.
    graphs = {one["file"]: one for one in reversed(told) if one["deviation"] != "late"}
    found = [one["deviation"] for one in reversed(graphs.values())]
    assert found == ["kept", "alias", "early", "resized"], told
    assert all(one["file"] in graphs or one["deviation"] == "late" for one in told)
    assert {one["buffer"] for one in graphs.values()} == {"buf0", "buf1"}


def test_a_rank_that_sends_what_is_no_number_to_the_others(tmp_path):
    code, report = debug(tmp_path, *ranks("nan"))
    found = report["finding"]
    assert (code, found["kind"], found["rank"]) == (1, "nan", 1), report
    assert "log" in found["kernel"]
    assert any("mine = torch.log(x)" in line for line in found["source"])


def test_ranks_that_wait_for_each_other(tmp_path):
    code, report = debug(tmp_path, *ranks("apart", str(tmp_path)), timeout="60s")
    found = report["finding"]
    assert (code, found["kind"]) == (1, "hang"), report
    first, second = found["source"]
    assert first.startswith("rank 0: ") and "wait_tensor" in first, found
    assert second.startswith("rank 1: ") and "dist.broadcast(x, 0)" in second, found
    commands = [
        path.read_bytes()
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
        if path.parent.is_dir()
    ]
    assert not any(str(tmp_path).encode() in command for command in commands), (
        "ranks are left behind"
    )
