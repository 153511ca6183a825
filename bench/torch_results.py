#!/usr/bin/env python3
"""halflap beside torch's own ways to hide communication: writes docs/torch-results.md.

    PY bench/torch_results.py [--only MODEL] [--patience SECONDS]

PY has torch 2.15 and the wheel (scripts/test makes such an environment). Each model is compiled in
every way by bench/compiling.py, in a process of its own.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "torch-results.md"

#: Kind, layers, width, heads, tokens of a rank, ranks.
MODELS = {
    "FSDP, 8 layers, 64 ranks": ("fsdp", 8, 4096, 32, 4096, 64),
    "tensor parallel, 8 layers, 8 ranks": ("tensor_parallel", 8, 8192, 64, 512, 8),
    "expert parallel, 8 layers, 8 ranks": ("expert_parallel", 8, 4096, 32, 4096, 8),
    "FSDP, 32 layers, 64 ranks": ("fsdp", 32, 4096, 32, 4096, 64),
}
WAYS = {
    "none": "no overlap",
    "simple_overlap": "torch's default, `simple_overlap`",
    "fx": "torch's FX-level scheduling",
    "fx merging": "torch's FX-level scheduling, merging",
    "halflap quick": "halflap, kept, quick",
    "halflap kept": "halflap, kept",
    "halflap free": "halflap, free",
    "fx, then halflap kept": "torch's FX-level scheduling, then halflap, kept",
    "fx, then halflap free": "torch's FX-level scheduling, then halflap, free",
    # Last, because it takes longest.
    "iterative": "torch's iterative passes",
}
TORCH = ("simple_overlap", "fx", "fx merging", "iterative")
OURS = {"halflap kept": "with the order of collectives kept", "halflap free": "with it free"}
#: A model whose backward graph has 5,000 nodes, for the time that handing over takes.
LARGE = ("fsdp", 148, 1024, 8, 256, 8)


def compiled(model, ways, patience):
    """What bench/compiling.py finds in each way; a way that it does not come to has nothing but a
    problem."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "figures.json"
        command = [sys.executable, HERE / "compiling.py", *map(str, model), *ways, "-o", output]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
            problem = done.stderr.strip().splitlines()[-1][:120] if done.returncode else None
        except subprocess.TimeoutExpired:
            problem = f"not done after {patience:.0f} s for all ways"
        found = json.loads(output.read_text()) if output.exists() else {}
        return {way: found.get(way, {"problem": problem}) for way in ways}


def table(name, rows):
    plain = rows["none"]
    lines = [
        f"## {name}",
        "",
        f"{sum(plain['nodes'])} nodes forward and backward, {plain['collectives']} collectives.",
        "",
        "| | step, simulated | of the bound | peak memory | compiling, CPU time |",
        "| --- | --- | --- | --- | --- |",
    ]
    for way, found in rows.items():
        if "problem" in found:
            lines.append(f"| {WAYS[way]} | {found['problem']} | | | |")
            continue
        step, bound, peak = found["step_time"], found["bound"], found["peak_memory"]
        lines.append(
            f"| {WAYS[way]} | {step / 1e6:.1f} ms ({step / plain['step_time']:.2f}x) | {step / bound:.3f}x "
            f"| {peak / 2**30:.2f} GiB ({peak / plain['peak_memory']:.2f}x) | {found['compile_seconds']:.1f} s |"
        )
    return [*lines, "", verdict(rows), ""]


def verdict(rows):
    """Who is faster, in a sentence."""
    done = {way: found["step_time"] for way, found in rows.items() if "problem" not in found}
    best = min((way for way in TORCH if way in done), key=done.get)

    def beside(way):
        longer = 100 * (done[way] / done[best] - 1)
        how = (
            "as long"
            if abs(longer) < 0.05
            else f"{abs(longer):.1f}% {'longer' if longer > 0 else 'shorter'}"
        )
        return f"{done[way] / 1e6:.1f} ms ({how})"

    ours = [f"{beside(way)} {order}" for way, order in OURS.items() if way in done]
    return f"The best of torch takes {done[best] / 1e6:.1f} ms ({WAYS[best]}), halflap {' and '.join(ours)}."


def overhead(found):
    lines = ["## The hand-over", ""]
    if "problem" in found:
        return [*lines, str(found["problem"]), ""]
    lines += [
        "The time that `halflap.torch` takes for each graph of an FSDP model with many layers, without and with the search, at quick effort.",
        "",
        "| nodes | handing over and back, CPU time, median of 5 | once in the pass, wall time | the whole pass, wall time |",
        "| --- | --- | --- | --- |",
    ]
    for nodes, handover, ran in zip(found["nodes"], found["handover"], found["passes"]):
        lines.append(
            f"| {nodes:,} | {1e3 * handover:.0f} ms | {1e3 * ran['handover']:.0f} ms | {ran['seconds']:.2f} s |"
        )
    return [*lines, "", AIM, ""]


AIM = """\
The target is 100 ms for handing over 5,000 nodes, and 0.6 s for the whole pass. Wall times include the effect of other work on the machine."""

INTRODUCTION = """\
# Compared with torch.compile

Made by `bench/torch_results.py` on {date}, with torch {torch}, on {cores} cores. Nothing was executed: larger versions of the models of examples/models.py are compiled up to code generation, with fake tensors and a fake process group. Each order that torch or halflap chose is handed over as in `halflap.torch.capture`, with run times from halflap's model of an H100 and its links, and simulated; forward and backward add up, and the peak is the larger of the two. The times come from halflap's model, not from a GPU: they compare orders.

Torch's iterative passes get the same run times, and its FX-level scheduling those of the model for nodes that are not fused yet. The latter runs with its default settings, and once more with merging of collectives. It may use up to 1 GB or 5% more memory, and adds dependencies that hold Inductor to its order. Such a dependency on a collective means that a node is launched after it, not that it waits for its end. The bound is that of the same program without these dependencies, which rule out most other orders. Its other settings did not help with 8 layers: more memory, more data in flight, a longer reach and other ways to merge changed nothing or gave longer steps; so did no additional memory, compute counted as half or twice as long, and estimates without fusion (`bench/compiling.py --fx` tries others).

`kept`: collectives are issued in torch's order. `free`: they may pass each other, as they do by default where all ranks agree. halflap stays within the memory that its input order needs. After torch's FX-level scheduling, the dependencies of the latter are left out. Compiling is Inductor's CPU time for both graphs up to code generation (which is the same for all), in one run.
"""


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--only", choices=MODELS)
    arguments.add_argument("--patience", type=float, default=1200)
    chosen = arguments.parse_args()
    import torch

    date = datetime.date.today().isoformat()
    text = [
        INTRODUCTION.format(date=date, torch=torch.__version__.split("+")[0], cores=os.cpu_count())
    ]
    for name, model in MODELS.items():
        if chosen.only in (None, name):
            rows = compiled(model, WAYS, chosen.patience)
            lines = table(name, rows)
            print("\n".join(lines), flush=True)
            text += lines
    if chosen.only is None:
        text += overhead(compiled(LARGE, ["halflap quick"], chosen.patience)["halflap quick"])
        beside = RESULTS.with_suffix(".tmp")
        beside.write_text("\n".join(text))
        os.replace(beside, RESULTS)


if __name__ == "__main__":
    main()
