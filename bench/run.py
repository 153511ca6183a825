#!/usr/bin/env python3
"""Running modules: whether measured overlap is the simulated one, and what a step of a plan costs.

    python3 bench/run.py [--halflap BIN] [--repeats 9] [--steps 21] [--jax PYTHON]

Writes docs/run-results.md anew, in some minutes. Needs only the standard library; with Open MPI's
mpirun it measures on MPI ranks, too, and with a Python that has jax on transformers
(bench/jax_fsdp.py). Ends with 1 if the ratio of step times on emulated links is more than 10% from
the simulated one, or a step of a plan costs 2 us. Other work on the machine spoils it: for as much
as the system allows, what is measured goes before others.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from compare import build_halflap, cpu_model, version_of
import common

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "run-results.md"
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"]
HEAD = [
    "program",
    "own, measured",
    "simulated",
    "ours, measured",
    "simulated",
    "ratio, measured",
    "simulated",
]
HEAD += ["apart (median)", "of all repeats"]


def chain(count):
    """A module of small kernels, each on what the last one made."""
    lines = [f"  x{i + 1} = f32[8] add(x{i}, y)" for i in range(count)]
    lines[-1] = lines[-1].replace("  x", "  ROOT x", 1)
    head = [
        "HloModule chain",
        "ENTRY e {",
        "  x0 = f32[8] parameter(0)",
        "  y = f32[8] parameter(1)",
    ]
    return "\n".join(head + lines + ["}"]) + "\n"


def layers(count, rows, width, ranks=2):
    """Layers whose weights are gathered when they are needed: nothing is hidden in this order."""
    weight, data = f"f32[{width},{width}]", f"f32[{rows},{width}]"
    lines = [
        f"HloModule layers, num_partitions={ranks}",
        "ENTRY e {",
        f"  x0 = {data} parameter(0)",
    ]
    lines += [f"  w{i} = f32[{width // ranks},{width}] parameter({i + 1})" for i in range(count)]
    for i in range(count):
        groups = f"channel_id={i + 1}, replica_groups=[1,{ranks}]<=[{ranks}], dimensions={{0}}, use_global_device_ids=true"
        lines.append(f"  g{i} = {weight} all-gather(w{i}), {groups}")
        lines.append(
            f"  d{i} = {data} dot(x{i}, g{i}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        )
        lines.append(f"  x{i + 1} = {data} tanh(d{i})")
    lines[-1] = lines[-1].replace("  x", "  ROOT x", 1)
    return "\n".join(lines + ["}"]) + "\n"


def go_first():
    """In a session of its own, whose processes come before all others where that is allowed."""
    os.setsid()
    try:
        Path("/proc/self/autogroup").write_text("-20")
    except OSError:
        pass


def measured(command):
    """The figures of a run, as JSON."""
    command = [str(part) for part in [*command, "--json"]]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=go_first)
    if done.returncode != 0:
        raise common.Failure(
            f"{common.command_line(command)}: exit code {done.returncode}\n{done.stderr.strip()}"
        )
    return json.loads(done.stdout)


def ratios(compared):
    """Our step time over that of the module's own order: measured, and simulated."""
    own, ours = compared["input_order"], compared["ours"]
    return ours["step_time"] / own["step_time"], ours["simulated_step_time"] / own[
        "simulated_step_time"
    ]


def apart(compared):
    measured_ratio, simulated_ratio = ratios(compared)
    return measured_ratio / simulated_ratio - 1


def repeated(command, repeats):
    """Comparisons of both orders, sorted by how far measured and simulated ratios are apart."""
    return sorted((measured(command)["compared"] for _ in range(repeats)), key=apart)


def time(nanoseconds):
    return f"{nanoseconds / 1e6:.3g} ms"


def row(name, runs):
    middle = runs[len(runs) // 2]
    cells = [name]
    for order in [middle["input_order"], middle["ours"]]:
        cells += [time(order["step_time"]), time(order["simulated_step_time"])]
    cells += [f"{ratio:.3f}" for ratio in ratios(middle)]
    return cells + [
        f"{100 * apart(middle):+.1f}%",
        f"{100 * apart(runs[0]):+.1f}% to {100 * apart(runs[-1]):+.1f}%",
    ]


def table(head, rows):
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)] + rows
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def balanced(halflap, path):
    """A link on which communication takes as long as compute."""
    slow = 0.05
    command = [
        halflap,
        "run",
        path,
        "--input-order",
        "--steps",
        11,
        "--emulate-link",
        f"{slow}GB/s,0us",
    ]
    found = measured(command)
    return f"{slow * found['communication'] / found['compute']:.4f}GB/s,0us"


def both(halflap, path, options):
    """A module on threads with a link that balances it, and on MPI; gives rows, and how far the
    first is off."""
    link = balanced(halflap, path)
    command = [halflap, "run", path, "--compare", "--steps", options.steps, "--memory-budget", "2x"]
    runs = repeated([*command, "--emulate-link", link], options.repeats)
    rows = [row(f"{path.stem}, threads, {link}", runs)]
    if shutil.which("mpirun"):
        on_mpi = repeated([*MPIRUN, "2", *command, "--backend", "mpi"], options.repeats)
        rows.append(row(f"{path.stem}, MPI", on_mpi))
    for cells in rows:
        print(*cells, sep="  ", file=sys.stderr, flush=True)
    return rows, apart(runs[len(runs) // 2])


def overhead(halflap, folder, steps):
    """What a step of a plan costs, with its kernel, in nanoseconds."""
    path = folder / "chain.txt"
    path.write_text(chain(3000))
    plan = common.run([halflap, "plan", path, "--input-order", "--no-fuse"])
    count = int(re.search(r"(\d+) steps", plan)[1])
    found = measured([halflap, "run", path, "--input-order", "--no-fuse", "--steps", 10 * steps])
    return statistics.median(found["step_times"]) / count, found["compute"] / count, count


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--halflap")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--jax", metavar="PYTHON", help="a Python that has jax")
    options = parser.parse_args()
    halflap = Path(options.halflap) if options.halflap else build_halflap()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "layers.txt"
        path.write_text(layers(8, 1024, 256))
        rows, off = both(halflap, path, options)
        if options.jax:
            common.run([options.jax, ROOT / "bench" / "jax_fsdp.py", folder])
        for path in sorted(folder.glob("transformer_*.txt")):
            rows += both(halflap, path, options)[0]
        cost, kernel, count = overhead(halflap, folder, options.steps)
    load = os.getloadavg()[1]
    DOCUMENT.write_text(f"""# Running modules, measured

Written by bench/run.py on {datetime.date.today().isoformat()}: {version_of([halflap])}, {cpu_model()}, {os.cpu_count()} cores, with a load of {load:.1f} in the last five minutes: above {os.cpu_count()}, other work interfered.

## Is overlap real?

A self-test of the model, not a measurement of a machine. Two ranks. `layers` are eight layers whose weights are gathered right before they are used; `transformer_WIDTH` is a training step from JAX with parameters sharded over both ranks (bench/jax_fsdp.py). On threads, collectives take as long as on an emulated link chosen so that communication takes as long as compute. On MPI they take their real time, and with two ranks on {os.cpu_count()} cores MPI's own work slows compute down, which the simulator does not model. The simulator uses the medians measured in each order; our order is found with those of the module's own order, within twice its memory. {options.repeats} repeats of {options.steps - 1} steps; times and ratios are those of the median repeat.

{table(HEAD, rows)}

## A step of a plan

{cost:.0f} ns, in a chain of {count} steps, each a kernel on eight numbers: kernels take {kernel:.0f} ns, the rest is issuing, queueing and recording times.
""")
    print(DOCUMENT.read_text())
    sys.exit(1 if abs(off) > 0.1 or cost >= 2000 else 0)


if __name__ == "__main__":
    main()
