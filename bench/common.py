"""What compare.py and differential.py share: running both sides, and comparing what they give."""

import json
import os
import subprocess
from pathlib import Path

TORCH_PASSES = Path(__file__).resolve().with_name("torch_passes.py")
ITERATIVE = {"reorder_communication_preserving_peak_memory", "sink_waits_iterative"}
COUNTS = ["moves", "grouped"]
TIMES = ["comm_time", "comp_time", "initial_exposed", "final_exposed"]
# Times are sums of many run times, and the order of summing may differ.
TIME_TOLERANCE_NS = 1.0


class Failure(Exception):
    """A program that was run did not do its work."""


def run(command, shown=None):
    """Run a command and give what it prints; `shown` is what to call it if it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip()
        raise Failure(f"{command_line(shown or command)}: exit code {done.returncode}\n{said}")
    return done.stdout


def command_line(command):
    return " ".join(str(c) for c in command)


def read_json(path):
    with open(path) as file:
        return json.load(file)


def setting_arguments(settings):
    """Settings as arguments that halflap and torch_passes.py both take."""
    arguments = []
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        arguments += ["--set", f"{name}={text}"]
    return arguments


def halflap_command(binary, graph, passes, settings, compat, output):
    command = [binary, "schedule", graph, "--passes", ",".join(passes)]
    command += setting_arguments(settings)
    if compat:
        command += ["--compat", compat]
    return command + ["-o", output]


def torch_command(python, graph, passes, settings, output):
    command = [python, TORCH_PASSES, graph, "--passes", ",".join(passes)]
    return command + setting_arguments(settings) + ["-o", output]


def torch_batch_command(python, jobs, output):
    return [python, TORCH_PASSES, "--batch", jobs, "-o", output]


def moves_of(stats):
    return sum(s["moves"] for s in stats.values())


def differences(torch_result, halflap_result):
    """How halflap's OUT.json differs from torch's result, in words; empty if it does not."""
    found = order_differences(torch_result["order"], halflap_result["order"])
    ours, theirs = halflap_result["peak_memory"], torch_result["peak_memory"]
    if ours != theirs:
        found.append(f"peak_memory: torch {theirs}, halflap {ours}")
    if torch_result["stats"] is not None:
        found += stats_differences(torch_result["stats"], last_iterative_stats(halflap_result))
    return found


def order_differences(theirs, ours):
    if theirs == ours:
        return []
    if len(theirs) != len(ours):
        return [f"order: torch has {len(theirs)} nodes, halflap {len(ours)}"]
    at = next(i for i, (a, b) in enumerate(zip(theirs, ours)) if a != b)
    return [f"order: first differs at position {at}: torch {theirs[at]}, halflap {ours[at]}"]


def last_iterative_stats(halflap_result):
    for done in reversed(halflap_result["passes"]):
        if done["name"] in ITERATIVE:
            return done["stats"]
    return {}


def stats_differences(theirs, ours):
    found = [f"stats: only torch has {n}" for n in theirs if n not in ours]
    found += [f"stats: only halflap has {n}" for n in ours if n not in theirs]
    for name in theirs:
        if name not in ours:
            continue
        for field in COUNTS + TIMES:
            a, b = theirs[name][field], ours[name][field]
            tolerance = TIME_TOLERANCE_NS if field in TIMES else 0
            if abs(a - b) > tolerance:
                found.append(f"stats: {name}.{field}: torch {a}, halflap {b}")
    return found


def processors():
    return os.cpu_count() or 1
