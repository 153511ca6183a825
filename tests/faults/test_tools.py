"""What debug is made of, each on its own: diff, run --only, --artifacts, HALFLAP_LOG."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import time
import zipfile

import pytest
from cases import CASES, CORRECT, RANK, Case, text
from command import HALFLAP, run

BODY = """  x = f32[64] exponential(before)
  y = f32[64] multiply(x, q)
  result = f32[64] add(y, x)"""
MODULE = Case("tools", "", BODY)


def saved(folder, name, body, *options, ranks=1):
    """A run whose values are saved."""
    module = folder / f"{name}.txt"
    module.write_text(text(dataclasses.replace(MODULE, body=body), ranks))
    values = folder / name
    run("run", module, "--no-fuse", "--input-order", "--debug-values", 1, "--values-dir", values, *options)
    return module, values


def test_diff_names_the_first_that_differs(tmp_path):
    _, a = saved(tmp_path, "a", BODY)
    _, b = saved(tmp_path, "b", BODY.replace("multiply(x, q)", "subtract(x, q)"))
    found = json.loads(run("diff", a, b, "--json", expect=1))
    assert (found["first"]["kernel"], found["inputs_agree"]) == ("y", True)
    assert {pair["kernel"] for pair in found["differ"]} >= {"y", "result", "after"}
    assert json.loads(run("diff", a, a, "--json"))["equal"]
    assert "the runs agree" in run("diff", a, b, "--atol", 10)


def test_diff_of_another_order_agrees(tmp_path):
    body = BODY.replace("add(y, x)", "add(z, y)").replace("  result", "  z = f32[64] multiply(p, q)\n  result")
    other = body.replace("  x = f32[64] exponential(before)\n", "").replace("  y =", "  x = f32[64] exponential(before)\n  y =")
    lines = other.splitlines()
    lines.sort(key=lambda line: 0 if " z =" in line else 1)
    _, a = saved(tmp_path, "a", body)
    _, b = saved(tmp_path, "b", "\n".join(lines))
    assert json.loads(run("diff", a, b, "--json"))["equal"]


def test_diff_of_ranks_and_of_what_is_missing(tmp_path):
    body = RANK + "\n  low = f32[64] negate(before)\n  mine = f32[64] select(mask, low, before)\n  result = f32[64] add(mine, q)"
    _, a = saved(tmp_path, "a", body, ranks=8)
    assert json.loads(run("diff", a / "rank_0", a / "rank_1", "--json", expect=1))["first"]["kernel"] in ("id", "is_three")
    _, one = saved(tmp_path, "one", BODY)
    done = subprocess.run([HALFLAP, "diff", str(a), str(one)], capture_output=True, text=True)
    assert done.returncode == 2 and "rank_0" in done.stderr
    _, less = saved(tmp_path, "less", BODY, "--filter-kernels", "x,y")
    found = json.loads(run("diff", one, less, "--json", expect=1))
    assert found["first"] is None and "before" in found["only_a"] and found["only_b"] == []


@pytest.mark.parametrize("kernel", ["x", "y", "sum"])
def test_a_kernel_alone_gives_the_same_bits(kernel, tmp_path):
    module, values = saved(tmp_path, "a", BODY, ranks=8)
    given = values if kernel == "sum" else values / "rank_3"
    rank = 3 if kernel == "sum" else 0
    out = tmp_path / "out.npz"
    run("run", module, "--only", kernel, "--inputs", given, "-o", out)
    index = json.loads((values / "rank_3" / "index.json").read_text())
    [entry] = [entry for entry in index["entries"] if entry["kernel"] == kernel and entry["when"] == "after"]
    expected = (values / "rank_3" / entry["file"]).read_bytes()
    assert zipfile.ZipFile(out).read(f"out_000_r{rank}.npy")[-256:] == expected[-256:]


def test_a_kernel_that_is_not_there(tmp_path):
    module, values = saved(tmp_path, "a", BODY)
    done = subprocess.run([HALFLAP, "run", str(module), "--only", "nobody", "--inputs", str(values)], capture_output=True, text=True)
    assert done.returncode == 2 and "'nobody'" in done.stderr


def test_artifacts_are_listed_and_never_lost(tmp_path):
    module, _ = saved(tmp_path, "a", BODY)
    kept = tmp_path / "kept"
    run("run", module, "--artifacts", kept, "--debug-values", 1)
    page = (kept / "index.html").read_text()
    for name in ("plan.txt", "order.json", "report.html", "trace.json", "times.json", "out.npz", "values"):
        assert (kept / name).exists() and f'href="{name}"' in page
    for said in (f"--artifacts {kept} --debug-values 1</code>", f"<code>{module}</code>", "<code>halflap 0.", "All went well."):
        assert said in page
    assert re.findall(r"<tr><td>(\w+)</td><td>(\w+)</td><td>[\d.]+ s</td>", page) == [("plan", "done"), ("run", "done")]
    run("run", module, "--artifacts", kept, expect=2)
    run("run", module, "--artifacts", kept, "--overwrite")
    assert not (kept / "values").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    run("run", module, "--artifacts", mine, "--overwrite", expect=2)
    assert (mine / "thesis.txt").exists()
    run("schedule", module, "--artifacts", tmp_path / "scheduled")
    assert json.loads((tmp_path / "scheduled" / "schedule.json").read_text())


def test_the_log_is_filtered_by_part(tmp_path):
    module, _ = saved(tmp_path, "a", BODY)

    def said(filter, expect=0):
        done = subprocess.run([HALFLAP, "run", str(module)], env={**os.environ, "HALFLAP_LOG": filter}, capture_output=True, text=True)
        assert done.returncode == expect
        return done.stderr

    assert said("") == ""
    assert "exec: " in said("exec=info") and "plan: " not in said("exec=info")
    assert "plan: " in said("plan=debug") and "plan: " not in said("plan=info")
    assert "a part is" in said("exce=info", expect=2)


def test_settings_in_the_environment_are_not_the_childrens(tmp_path):
    case = CORRECT[0]
    module = tmp_path / "module.txt"
    module.write_text(text(case, 1))
    settings = {**os.environ, "HALFLAP_ARTIFACTS": str(tmp_path / "kept"), "HALFLAP_NAN_ASSERTS": "inf"}
    done = subprocess.run([HALFLAP, "debug", "-"], stdin=module.open(), env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "kept" / "debug.json").read_text())["verdict"] == "clean"


def test_what_cannot_be_read_is_bad_input(tmp_path):
    assert "cannot be read" in subprocess.run([HALFLAP, "debug", str(tmp_path / "none.txt")], capture_output=True, text=True).stderr
    run("debug", tmp_path / "none.txt", expect=2)
    run("debug", expect=2)
    library = next(case for case in CASES if case.name == "leaves")
    module = tmp_path / "module.txt"
    module.write_text(text(library, 1))
    done = subprocess.run([HALFLAP, "debug", str(module)], capture_output=True, text=True)
    assert done.returncode == 2 and "leaves" in done.stderr


def until(holds, seconds=60):
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_who_ends_debug_ends_what_it_runs(tmp_path, how):
    mine = tmp_path / "pid"
    command = ["sh", "-c", f"echo $$ > {mine}.new; mv {mine}.new {mine}; exec sleep 600"]
    debug = subprocess.Popen([HALFLAP, "debug", "--artifacts", tmp_path / "kept", "--", *command])
    until(mine.exists)
    os.kill(debug.pid, how)
    assert debug.wait(60) == -how
    until(lambda: not is_running(int(mine.read_text())))


def is_running(process):
    """Whoever adopts a process may be slow to take note of its end: then it is a zombie."""
    try:
        state = open(f"/proc/{process}/stat").read().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
