"""Runs halflap debug on a case."""

import json
import pathlib
import subprocess
import tempfile

from cases import LIBRARY

HERE = pathlib.Path(__file__).resolve().parent


def build(folder):
    """The custom calls, compiled."""
    library = pathlib.Path(folder) / "faults.so"
    command = ["cc", "-O0", "-w", "-shared", "-fPIC", "-pthread", str(HERE / "faults.c"), "-o", str(library), "-lm"]
    subprocess.run(command, check=True)
    return library


def debug(halflap, case, ranks, library):
    """What halflap debug says of a case: its exit code, its JSON, and what it printed to standard
    error."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        module = folder / "module.txt"
        module.write_text(case.text(ranks))
        options = [str(library) if option == LIBRARY else option for option in case.options]
        if case.inputs:
            given = folder / "inputs"
            given.mkdir()
            for name, data in case.inputs(ranks).items():
                (given / f"{name}.npy").write_bytes(data)
            options += ["--inputs", str(given)]
        if "--timeout" not in options:
            options += ["--timeout", "5s"]
        command = [halflap, "debug", str(module), "--json", "--artifacts", str(folder / "kept"), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        report = json.loads(done.stdout) if done.stdout else None
        found = report and report["finding"]
        shown = reproduce(halflap, found["reproduce"]) if found else None
        return done.returncode, report, done.stderr, shown


def reproduce(halflap, command):
    """The exit code of the command that shows a fault again."""
    words = command.replace("halflap run", f"{halflap} run", 1)
    return subprocess.run(words, shell=True, capture_output=True, text=True, timeout=300).returncode


def wrong(case, answer):
    """What is wrong with an answer, or nothing."""
    code, report, errors, _ = answer
    if case.note and report:
        return None if code == 0 and has_note(case, report) else f"notes are {report['notes']}"
    if code != 1 or not report:
        return f"exit {code}: {errors or report}"
    found = report["finding"]
    for name, expected in (("kernel", case.kernel), ("instruction", case.instruction), ("rank", case.rank), ("buffer", case.buffer)):
        if expected is not None and found[name] != expected:
            return f"{name} is {found[name]}, not {expected}: {found['what']}"
    if case.iteration is not None and found["iteration"] != list(case.iteration):
        return f"iteration is {found['iteration']}, not {case.iteration}: {found['what']}"
    missing = [words for words in case.says if words not in found["what"]]
    if missing:
        return f"it does not say {missing}: {found['what']}"
    if found["kind"] not in case.kinds:
        return f"kind is {found['kind']}, not {' or '.join(case.kinds)}: {found['what']}"
    return None


def has_note(case, report):
    return any(all(word in note for word in case.note) for note in report["notes"])


def alarm(answer):
    """What is wrong with the answer for a correct program, or nothing."""
    code, report, errors, _ = answer
    if code or not report:
        return report["finding"]["what"] if report else errors
    if report["finding"]:
        return report["finding"]["what"]
    return next((note for note in report["notes"] if "is given index" in note), None)


def shows_as_said(answer):
    """Whether the command of the report does what the report says of it. A wrong input is refused,
    with code 2; a note has no command."""
    _, report, _, shown = answer
    if not report["finding"]:
        return True
    refused = shown == 2 and report["finding"]["kind"] != "wrong-input"
    return report["finding"]["shows_again"] == (shown != 0 and not refused)
