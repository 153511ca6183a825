"""The command on a terminal: fitted, coloured, with bars and progress; on a pipe none of it."""

import fcntl
import gzip
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata

import pytest
from command import HALFLAP, corpus, run

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(*arguments, width=80, stderr_too=False, **environment):
    """What halflap writes to a terminal so many characters wide."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    settings = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "LC_ALL", "LC_CTYPE")
    }
    settings |= {"TERM": "xterm-256color", "LANG": "C.UTF-8"} | environment
    error = theirs if stderr_too else subprocess.DEVNULL
    process = subprocess.Popen(
        [HALFLAP, *map(str, arguments)], stdout=theirs, stderr=error, env=settings
    )
    os.close(theirs)
    written, deadline = b"", time.monotonic() + 120
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so when the other side is closed.
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert process.wait(timeout=10) == 0
    return written.decode()


@pytest.mark.parametrize("width", [40, 48, 60, 80, 100, 140, 200])
def test_tables_fit_the_terminal(width):
    text = ESCAPE.sub("", on_terminal("simulate", corpus("fsdp_tp_llama_4"), width=width))
    table = text.split("\r\n\r\n")[1].splitlines()
    assert max(map(len, text.splitlines())) <= width, text
    rows = [line for line in table if not line.startswith(("peak ", "  ", "..."))]
    assert len(rows) > 5
    assert max(map(len, rows)) <= width, text
    assert "held by" in rows[0] and "exposed" in rows[0]


def columns(line):
    """How many columns of a terminal a line takes."""
    wide = [unicodedata.east_asian_width(letter) in "WF" for letter in line]
    return len(line) + sum(wide) - sum(map(bool, map(unicodedata.combining, line)))


def test_help_is_readable_on_a_narrow_terminal():
    lines = ESCAPE.sub("", on_terminal("schedule", "-h", width=40)).splitlines()
    # A single word cannot be wrapped.
    about = [line for line in lines if line.startswith(" " * 10) and " " in line.strip()]
    assert max(map(len, about)) <= 40
    first = lines[lines.index("      --memory-budget <LIMIT>") + 1]
    assert len(first.split()) > 2, first


@pytest.mark.parametrize("width", [40, 80])
def test_wide_letters_take_two_columns(width, tmp_path):
    graph = json.loads(gzip.decompress(corpus("ddp_mlp_4").read_bytes()))
    for number, node in enumerate(graph["nodes"]):
        node["parameter"] = f"層{number}.注意.重み{number}"
    path = tmp_path / "層の図.json"
    path.write_text(json.dumps(graph))
    for arguments in (["simulate", path], ["schedule", path, "--effort", "quick"]):
        text = ESCAPE.sub("", on_terminal(*arguments, width=width, stderr_too=True))
        lines = [part for line in text.splitlines() for part in line.split("\r")]
        assert "注意" in text and max(map(columns, lines)) <= width, text


def test_steps_and_plans_are_broken_where_the_terminal_ends():
    module = corpus("ddp_mlp_4").parent.parent / "hlo" / "tp_L2.after_spmd_partitioning.txt.gz"
    for arguments in (
        ["schedule", corpus("ddp_mlp_4"), "--effort", "quick", "--no-advice", "--show"],
        ["plan", module],
    ):
        narrow = ESCAPE.sub("", on_terminal(*arguments, width=40))
        assert max(map(len, narrow.splitlines())) <= 40, narrow
        letters = lambda text: "".join(text.split("together")[0].split())
        assert letters(run(*arguments)) == letters(narrow)


def test_rows_become_records_where_columns_do_not_fit():
    arguments = ["what-if", corpus("ddp_mlp_4"), "--memory", "1x", "--bandwidth", "1x,2x"]
    narrow = on_terminal(*arguments, width=40)
    wide = on_terminal(*arguments, width=80)
    assert max(map(len, ESCAPE.sub("", narrow).splitlines())) <= 40, narrow
    numbers = lambda text: sorted(re.findall(r"\d+(?:\.\d+)?", ESCAPE.sub("", text)))
    assert numbers(narrow) == numbers(wide)


def test_a_wide_terminal_and_a_pipe_show_names_whole():
    piped = run("explain", corpus("fsdp_llama_2"))
    shown = ESCAPE.sub("", on_terminal("explain", corpus("fsdp_llama_2"), width=300)).replace(
        "\r\n", "\n"
    )
    held = lambda text: [line.rsplit("  ", 1)[-1] for line in text.splitlines()]
    assert held(piped) == held(shown)


def test_colour_and_bars_are_for_terminals_that_want_them():
    arguments = ["simulate", corpus("fsdp_llama_2")]
    assert ESCAPE.search(on_terminal(*arguments)) and "█" in on_terminal(*arguments)
    assert not ESCAPE.search(on_terminal(*arguments, NO_COLOR="1"))
    assert ESCAPE.search(on_terminal(*arguments, NO_COLOR=""))
    assert not ESCAPE.search(on_terminal(*arguments, TERM="dumb"))
    assert "#" in on_terminal(*arguments, LANG="C") and "█" not in on_terminal(*arguments, LANG="C")
    piped = run(*arguments)
    assert not ESCAPE.search(piped) and "█" not in piped and "#" not in piped


def test_long_work_shows_the_time_left_on_a_terminal_only():
    arguments = ["schedule", corpus("fsdp_llama_32"), "--effort", "default"]
    shown = on_terminal(*arguments, stderr_too=True)
    assert re.search(r"\roptimizing \[#* *\] +\d+%, \d+ s left", shown)
    piped = subprocess.run(
        [HALFLAP, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert piped.stderr == ""


@pytest.mark.parametrize("width", [20, 40, 80])
def test_progress_fits_the_terminal(width):
    shown = on_terminal(
        "schedule", corpus("fsdp_llama_32"), "--effort", "default", width=width, stderr_too=True
    )
    lines = [part for part in re.findall(r"\r([^\r\n]*)", shown) if part.startswith("optimizing")]
    assert lines and max(map(len, lines)) < width, lines


def test_reasons_are_whole_at_any_width():
    words = lambda text: re.findall(r"\w+", ESCAPE.sub("", text).split("held by")[1])
    wide = words(on_terminal("simulate", corpus("fsdp_llama_2"), width=200))
    assert wide.count("saved") > 5
    for width in (60, 80):
        narrow = words(on_terminal("simulate", corpus("fsdp_llama_2"), width=width))
        assert [narrow.count(word) for word in ("late", "saved")] == [
            wide.count(word) for word in ("late", "saved")
        ]


def interrupted(tmp_path, is_repeated):
    """Ends a long search as Ctrl-C does, once or until it has ended; gives the process, and what it
    said."""
    arguments = [
        "schedule",
        corpus("fsdp_llama_80"),
        "--effort",
        "thorough",
        "-o",
        tmp_path / "out.json",
    ]
    process = subprocess.Popen(
        [HALFLAP, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    # Two at once may arrive as one; and what was found is put out within a fraction of a second.
    while is_repeated and process.poll() is None:
        time.sleep(0.005)
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    return process, out, err


def test_an_interrupted_search_gives_the_best_so_far(tmp_path):
    process, out, err = interrupted(tmp_path, is_repeated=False)
    assert process.returncode == 4, err
    assert err == "interrupted: this is the best order so far, proved like any other\n"
    assert "step time" in out and f"wrote {tmp_path / 'out.json'} (" in out
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["optimizer"]["interrupted"] and found["step_time"] <= found["step_time_before"]
    assert run("verify", corpus("fsdp_llama_80"), tmp_path / "out.json").startswith("valid")


def test_a_second_interrupt_ends_at_once(tmp_path):
    process, out, _ = interrupted(tmp_path, is_repeated=True)
    assert process.returncode == -signal.SIGINT and out == ""
    assert not (tmp_path / "out.json").exists()


def test_a_long_run_shows_the_time_left(tmp_path):
    module = tmp_path / "m.txt"
    module.write_text(
        "HloModule m, num_partitions=2\nENTRY e { p = f32[4] parameter(0)\n"
        "  ROOT g = f32[8] all-gather(p), channel_id=1, replica_groups={}, dimensions={0}, use_global_device_ids=true }\n"
    )
    arguments = ["run", module, "--steps", "40", "--emulate-link", "1GB/s,50ms"]
    shown = on_terminal(*arguments, stderr_too=True)
    assert re.search(r"\rrunning \[#* *\] +\d+%, \d+ s left", shown)
    piped = subprocess.run(
        [HALFLAP, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert piped.stderr == "" and "the median of 39 steps" in piped.stdout


def test_a_checked_pass_shows_the_time_left():
    passes = ["--passes", "reorder_communication_preserving_peak_memory", "--check-memory"]
    shown = on_terminal("schedule", corpus("fsdp_tp_llama_16"), *passes, stderr_too=True)
    assert re.search(
        r"\rreorder_communication_preserving_peak_memory \[#* *\] +\d+%, (\d+|\?) s left", shown
    )
