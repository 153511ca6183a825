#!/usr/bin/env python3
"""Measure halflap beside torch's own passes, on the same machine and in the same run.

    python3 bench/compare.py [--venvs DIR] [--repeat N] [--slow] [-o docs/benchmarks.md]

Installs torch 2.10.0 and 2.15.0 in virtual environments (several GB the first time), builds
halflap, runs both on the same graphs, checks that the results are the same, and writes the
tables as markdown. Needs only the standard library. Ends with 1 if a result differs
or a run fails.
"""

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import common

ROOT = Path(__file__).resolve().parent.parent
REORDER = "reorder_communication_preserving_peak_memory"
PASSES = [
    "sink_waits",
    "raise_comms",
    "reorder_compute_for_overlap",
    REORDER,
    "sink_waits_iterative",
    "simple_overlap",
]
OLD, NEW = "2.10.0", "2.15.0"
COMPAT = "torch-2.10"
# Graph, then for each torch release how many times it runs.
SIDE_BY_SIDE = [("fsdp_llama_2", {OLD: 3, NEW: 3}), ("fsdp_llama_8", {NEW: 1})]
SLOW = {"fsdp_llama_8": {OLD: 1}}  # minutes
LARGE = "fsdp_llama_80"
RUNTIME_SETTINGS = {
    "reorder_iterative_use_runtime_estimations": True,
    "sink_iterative_use_runtime_estimations": True,
}

# Linux counts what a process was before its exec into its peak memory. Starting the measured
# program from a small fresh interpreter keeps this script's own memory out of the number.
MEASURE = """
import os, sys
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ,
                      file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


# --- getting ready ----------------------------------------------------------------------------


def torch_python(folder, version, pip_arguments):
    """The python of a virtual environment that has this torch; made if it is not there."""
    home = folder / f"torch-{version}"
    python = home / "bin" / "python"
    if not python.exists():
        print(f"making {home}", flush=True)
        venv.create(home, with_pip=True)
    if not has_torch(python, version):
        print(f"installing torch {version}", flush=True)
        install = [python, "-m", "pip", "install", "--quiet", *pip_arguments, f"torch=={version}"]
        subprocess.run(install, check=True)
    return python


def has_torch(python, version):
    code = "import importlib.metadata as m; print(m.version('torch'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.strip().split("+")[0] == version


def build_halflap():
    subprocess.run(["cargo", "build", "--profile", "dist"], cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    return ROOT / target / "dist" / "halflap"


# --- measuring --------------------------------------------------------------------------------


class Run:
    """Several runs of the same passes: the last result, and the seconds of each run."""

    def __init__(self, result, seconds, moves, extra=None):
        self.result = result
        self.seconds = seconds
        self.moves = moves
        self.extra = extra or {}

    @property
    def least(self):
        return min(self.seconds)

    @property
    def median(self):
        return statistics.median(self.seconds)


def run_torch(python, graph, passes, times, folder):
    output, seconds = folder / "torch.json", []
    for _ in range(times):
        common.run(common.torch_command(python, graph, passes, {}, output))
        result = common.read_json(output)
        seconds.append(sum(result["seconds"]))
    return Run(result, seconds, common.moves_of(result["stats"]))


def run_halflap(binary, graph, passes, settings, compat, times, folder):
    output = folder / "halflap.json"
    command = common.halflap_command(binary, graph, passes, settings, compat, output)
    seconds, read_seconds, resident = [], [], []
    for _ in range(times):
        resident.append(peak_resident(command))
        result = common.read_json(output)
        seconds.append(sum(p["seconds"] for p in result["passes"]))
        read_seconds.append(result.get("read_seconds"))
    moves = sum(p["moves"] for p in result["passes"])
    extra = {"resident": max(resident)}
    if None not in read_seconds:
        extra["read_seconds"] = min(read_seconds)
    return Run(result, seconds, moves, extra)


def peak_resident(command):
    """Run a command and give the peak resident memory of its process in bytes."""
    said = common.run([sys.executable, "-S", "-c", MEASURE, *command], shown=command)
    unit = 1 if sys.platform == "darwin" else 1024
    return int(said.split()[-1]) * unit


def compare_graph(args, name, releases, folder):
    """The rows of one graph in the first table, and what differs."""
    graph = args.graphs / f"{name}.graph.json.gz"
    torch_runs, ours = {}, []
    for version, times in releases.items():
        print(f"{name}: torch {version}", flush=True)
        torch_runs[version] = run_torch(args.pythons[version], graph, [REORDER], times, folder)
        # Ours right after each of theirs, so that both meet the machine in the same mood.
        print(f"{name}: halflap", flush=True)
        ours.append(run_halflap(args.halflap, graph, [REORDER], {}, COMPAT, args.repeat, folder))
    halflap = Run(ours[-1].result, [s for r in ours for s in r.seconds], ours[-1].moves)
    found = []
    for version, run in torch_runs.items():
        for sentence in common.differences(run.result, halflap.result):
            found.append(f"{name}, torch {version}: {sentence}")
    rows = [comparison_row(name, f"torch {v}", r, halflap) for v, r in torch_runs.items()]
    return rows + [comparison_row(name, "halflap", halflap, halflap)], found


def measure_large(args, folder):
    """The rows of the second table, and the runs that failed."""
    graph = args.graphs / f"{LARGE}.graph.json.gz"
    rows, failed = [], []
    for name in PASSES:
        for label, settings in [("defaults", {}), ("run-time estimates", RUNTIME_SETTINGS)]:
            for compat in [COMPAT, None]:
                print(f"{LARGE}: {name}, {label}, {compat or 'fixed'}", flush=True)
                try:
                    run = run_halflap(
                        args.halflap, graph, [name], settings, compat, args.repeat, folder
                    )
                except common.Failure as failure:
                    failed.append(str(failure))
                    continue
                rows.append(large_row(name, label, compat, run))
    return rows, failed


# --- writing ----------------------------------------------------------------------------------


def comparison_row(graph, program, run, halflap):
    return [
        graph,
        program,
        show_time(run.least),
        show_time(run.median),
        str(len(run.seconds)),
        f"{run.moves:,}",
        per_move(run),
        "" if run is halflap else ratio(run.least, halflap.least),
        "" if run is halflap else ratio(run.median, halflap.median),
    ]


COMPARISON_HEAD = [
    "graph",
    "program",
    "least time",
    "median time",
    "runs",
    "moves",
    "ns per move",
    "times halflap's least",
    "times halflap's median",
]


def large_row(name, label, compat, run):
    return [
        name,
        label,
        compat or "",
        show_time(run.least),
        show_time(run.median),
        f"{run.moves:,}",
        per_move(run),
        f"{run.extra['resident'] / 1e6:.1f}",
        show_time(run.extra.get("read_seconds")),
    ]


LARGE_HEAD = [
    "pass",
    "settings",
    "--compat",
    "least time",
    "median time",
    "moves",
    "ns per move",
    "peak resident MB",
    "time to read",
]


def show_time(seconds):
    if seconds is None:
        return ""
    for unit, factor in [("s", 1), ("ms", 1e3)]:
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}" if seconds < 100 else f"{seconds:.0f} s"
    return f"{seconds * 1e6:.3g} µs"


def per_move(run):
    return f"{run.least * 1e9 / run.moves:,.1f}" if run.moves else ""


def ratio(theirs, ours):
    return f"{theirs / ours:,.0f}" if ours > 0 else ""


def table(head, rows):
    # The first columns hold words, the rest numbers.
    words = 3 if head is LARGE_HEAD else 2
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def cpu_model():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def version_of(command):
    try:
        return common.run([*command, "--version"]).strip()
    except (common.Failure, OSError):
        return "unknown"


def shown_command(args):
    """What to type for the same measurement; where things lie makes no difference."""
    slow = " --slow" if args.slow else ""
    return f"python3 bench/compare.py --repeat {args.repeat}{slow}"


def torch_versions(args):
    """Release and python of every virtual environment."""
    return ", ".join(f"{v} on {version_of([p])}" for v, p in args.pythons.items())


def document(args, rows, large_rows, different, failed):
    now = datetime.datetime.now(datetime.timezone.utc)
    verdict = "**differ** (see below)" if different else "are the same"
    lines = [
        "# Benchmarks",
        "",
        f"Generated by `{shown_command(args)}`; do not edit.",
        "",
        f"- date: {now:%Y-%m-%d %H:%M} UTC",
        f"- cpu: {cpu_model()}, {common.processors()} cores; {platform.system()} {platform.machine()}",
        f"- halflap: {version_of([args.halflap])}, {version_of(['rustc'])}",
        f"- torch: {torch_versions(args)}",
        "",
        f"## `{REORDER}`, compared with torch",
        "",
        "At default settings. The time is that of the pass alone, for both: torch's own function",
        "on nodes that are already built, without logging, and the `seconds` that halflap reports",
        f"with `--compat {COMPAT}`. Order, peak memory and statistics {verdict}. The time of one",
        "move is computed from the minimum.",
        "",
        table(COMPARISON_HEAD, rows),
        "",
        f"## Every pass on {LARGE}, halflap alone",
        "",
        f"{args.repeat} runs each. `moves` counts swaps, so the list-scheduling passes have none.",
        "Peak resident memory is that of the whole process, with the graph.",
        "",
        table(LARGE_HEAD, large_rows),
    ]
    if different or failed:
        wrong = [f"- {' '.join(p.split())}" for p in different + failed]
        lines += ["", "## What went wrong", "", *wrong]
    return "\n".join(lines) + "\n"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--venvs", type=Path, default=ROOT / "target" / "bench")
    parser.add_argument("--repeat", type=int, default=9, help="runs of halflap, at least 5")
    parser.add_argument("--slow", action="store_true", help="torch 2.10 on fsdp_llama_8 as well")
    parser.add_argument("--graphs", type=Path, default=ROOT / "tests" / "corpus")
    parser.add_argument("--halflap", type=Path, help="a binary to use instead of building one")
    parser.add_argument(
        "--pip", action="append", default=[], metavar="ARGUMENT", help="passed to pip install"
    )
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "benchmarks.md")
    args = parser.parse_args()
    if args.repeat < 5:
        parser.error("--repeat must be at least 5")
    return args


def main():
    args = parse_arguments()
    args.halflap = (args.halflap or build_halflap()).resolve()
    args.pythons = {v: torch_python(args.venvs, v, args.pip) for v in (OLD, NEW)}
    rows, different = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for graph, releases in SIDE_BY_SIDE:
            if args.slow:
                releases = {**SLOW.get(graph, {}), **releases}
            more, found = compare_graph(args, graph, releases, folder)
            rows += more
            different += found
        large_rows, failed = measure_large(args, folder)
    text = document(args, rows, large_rows, different, failed)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(text)
    print(text)
    return 1 if different or failed else 0


if __name__ == "__main__":
    sys.exit(main())
