#!/usr/bin/env python3
"""Running modules: whether measured overlap is the simulated one, and what a step of a plan costs.

    python3 bench/run.py [--halflap BIN] [--repeats 9] [--steps 21]

Writes docs/run-results.md anew. Needs only the standard library; with Open MPI's mpirun it measures on MPI ranks, too. Ends
with 1 if the ratio of step times on emulated links is more than 10% from the simulated one, or a step of a plan costs 2 us.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from compare import build_halflap, cpu_model, version_of
import common

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "run-results.md"
MODULES = ["fsdp_L2", "fsdp_shmap_L2", "tp_L2", "mix_L2", "fsdp_L2_scan"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"]


def chain(count):
    """A module of small kernels, each on what the last one made."""
    lines = [f"  x{i + 1} = f32[8] add(x{i}, y)" for i in range(count)]
    lines[-1] = lines[-1].replace("  x", "  ROOT x", 1)
    head = ["HloModule chain", "ENTRY e {", "  x0 = f32[8] parameter(0)", "  y = f32[8] parameter(1)"]
    return "\n".join(head + lines + ["}"]) + "\n"


def layers(count, size, ranks=2):
    """Layers whose weights are gathered when they are needed: nothing is hidden in this order."""
    lines = [f"HloModule layers, num_partitions={ranks}", "ENTRY e {", f"  x0 = f32[{size},{size}] parameter(0)"]
    lines += [f"  w{i} = f32[{size // ranks},{size}] parameter({i + 1})" for i in range(count)]
    for i in range(count):
        groups = f"channel_id={i + 1}, replica_groups=[1,{ranks}]<=[{ranks}], dimensions={{0}}, use_global_device_ids=true"
        lines.append(f"  g{i} = f32[{size},{size}] all-gather(w{i}), {groups}")
        lines.append(f"  d{i} = f32[{size},{size}] dot(x{i}, g{i}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}")
        lines.append(f"  x{i + 1} = f32[{size},{size}] tanh(d{i})")
    lines[-1] = lines[-1].replace("  x", "  ROOT x", 1)
    return "\n".join(lines + ["}"]) + "\n"


def compared(text):
    """The figures of run --compare: step times and ratios, measured and simulated."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = {line.split("  ")[0].strip(): re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if "  " in line}
    own, ours, ratio = rows["the module's own"], rows["ours"], rows["ours over own"]
    return {
        "own": (own[1], own[2]),
        "ours": (ours[1], ours[2]),
        "ratio": (float(ratio[1]), float(ratio[2])),
    }


def repeated(command, repeats):
    runs = [compared(common.run(command)) for _ in range(repeats)]
    apart = [run["ratio"][0] / run["ratio"][1] - 1 for run in runs]
    middle = sorted(runs, key=lambda run: run["ratio"][0] / run["ratio"][1])[len(runs) // 2]
    return middle, statistics.median(apart), (min(apart), max(apart))


def row(name, result):
    middle, apart, (least, most) = result
    measured, simulated = middle["ratio"]
    cells = [name, *middle["own"], *middle["ours"], f"{measured:.3f}", f"{simulated:.3f}"]
    return cells + [f"{100 * apart:+.1f}%", f"{100 * least:+.1f}% to {100 * most:+.1f}%"]


def table(head, rows):
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)] + rows
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def overhead(halflap, folder, steps):
    """What a step of a plan costs, with its kernel, in nanoseconds."""
    path = folder / "chain.txt"
    path.write_text(chain(3000))
    plan = common.run([halflap, "plan", path, "--input-order"])
    count = int(re.search(r"(\d+) steps", plan)[1])
    times = folder / "chain.json"
    shown = common.run([halflap, "run", path, "--input-order", "--steps", 10 * steps, "--profile-out", times])
    value, unit = re.search(r"step time\s+([\d.]+) (\w+),", re.sub(r"\x1b\[[0-9;]*m", "", shown)).groups()
    whole = float(value) * {"us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    kernel = statistics.median(json.loads(times.read_text()).values())
    return whole / count, kernel, count


def balanced(halflap, path, folder):
    """A link on which communication takes as long as compute."""
    times = folder / "times.json"
    common.run([halflap, "run", path, "--input-order", "--steps", 11, "--profile-out", times])
    measured = json.loads(times.read_text())
    compute = sum(time for name, time in measured.items() if name[0] in "dx")
    gathers = sum(name[0] == "g" for name in measured)
    latency = 20e3
    # Half of every gathered array comes from the other rank.
    rate = 512 * 512 * 4 / 2 / (compute / gathers - latency)
    return f"{rate:.4f}GB/s,20us"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--halflap")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, default=21)
    args = parser.parse_args()
    halflap = Path(args.halflap) if args.halflap else build_halflap()
    head = ["program", "own, measured", "simulated", "ours, measured", "simulated", "ratio, measured", "simulated"]
    head += ["apart (median)", "of all repeats"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "layers.txt"
        path.write_text(layers(8, 512))
        link = balanced(halflap, path, folder)
        command = [halflap, "run", path, "--compare", "--steps", args.steps, "--memory-budget", "2x"]
        emulated = repeated([*command, "--emulate-link", link], args.repeats)
        rows = [row(f"threads, link {link}", emulated)]
        on_mpi = shutil.which("mpirun") is not None
        if on_mpi:
            rows.append(row("MPI", repeated([*MPIRUN, "2", *command, "--backend", "mpi"], args.repeats)))
        real = []
        for module in MODULES:
            text = ROOT / "tests" / "hlo" / f"{module}.after_spmd_partitioning.txt.gz"
            command = [halflap, "run", text, "--compare", "--steps", args.steps, "--effort", "quick"]
            real.append(row(f"{module}, threads", repeated([*command, "--emulate-link", "1GB/s,500us"], 3)))
            if on_mpi:
                real.append(row(f"{module}, MPI", repeated([*MPIRUN, "8", *command, "--backend", "mpi"], 3)))
        cost, kernel, count = overhead(halflap, folder, args.steps)
    today = datetime.date.today().isoformat()
    DOCUMENT.write_text(f"""# Running modules, measured

Written by bench/run.py on {today}: {version_of(halflap)}, {cpu_model()}, {os.cpu_count()} cores.

## Is overlap real?

A self-test of the model, not a measurement of a machine: two ranks, eight layers whose weights are gathered right before they are used. On threads collectives take as long as on a link that was chosen so that communication takes as long as compute; on MPI they take as long as they take. The simulated times are those of the simulator with the medians that were measured in each order. {args.repeats} repeats of {args.steps - 1} steps; times and ratios are those of the repeat in the middle.

{table(head, rows)}

## Modules from JAX

Eight ranks on {os.cpu_count()} cores: ranks wait for cores, which the simulator knows nothing of, so that absolute times are far apart. 3 repeats; the link is 1GB/s,500us.

{table(head, real)}

## A step of a plan

{cost:.0f} ns, in a chain of {count} steps that are kernels on eight numbers, of which the kernel itself takes {kernel:.0f} ns and the rest is issuing, queueing and noting times.
""")
    failed = abs(emulated[1]) > 0.1 or cost >= 2000
    print(DOCUMENT.read_text())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
