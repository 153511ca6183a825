#!/usr/bin/env python3
"""halflap beside torch's own ways to hide communication: writes docs/torch-results.md.

    PY bench/torch_results.py [--only MODEL] [--patience SECONDS]

PY has torch 2.15 and the wheel (scripts/test makes such an environment). Each model is compiled in every way by
bench/compiling.py, in a process of its own.
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
    "halflap quick": "halflap, quick",
    "halflap": "halflap",
    "halflap free": "halflap, collectives may pass each other",
    "fx, then halflap": "torch's FX-level scheduling, then halflap",
    # Last, because it takes longest.
    "iterative": "torch's iterative passes",
}
#: A model whose backward graph has 5,000 nodes, for the time that handing over takes.
LARGE = ("fsdp", 148, 1024, 8, 256, 8)


def compiled(model, ways, patience):
    """What bench/compiling.py finds in each way; a way that it does not come to has nothing but a problem."""
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
        "| | step, simulated | of its bound | peak memory | compiling, CPU time |",
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
    return [*lines, ""]


def overhead(found):
    lines = ["## Handing over", ""]
    if "problem" in found:
        return [*lines, str(found["problem"]), ""]
    lines += [
        "What `halflap.torch` takes for each graph of an FSDP model with many layers, beside the search and with it, at the quick effort.",
        "",
        "| nodes | handing over and back, CPU time, median of 5 | once in the pass, wall time | the whole pass, wall time |",
        "| --- | --- | --- | --- |",
    ]
    for nodes, handover, ran in zip(found["nodes"], found["handover"], found["passes"]):
        lines.append(f"| {nodes:,} | {1e3 * handover:.0f} ms | {1e3 * ran['handover']:.0f} ms | {ran['seconds']:.2f} s |")
    return [*lines, ""]


INTRODUCTION = """\
# Beside torch.compile

Made by `bench/torch_results.py` on {date}, with torch {torch}, on {cores} cores. Nothing was computed: the models of examples/models.py, larger, are compiled up to the generation of code, with shapes alone and a process group that does nothing. Each order that torch or halflap came to is handed over as `halflap.torch.capture` does, with halflap's model of an H100 and its links for run times, and simulated; forward and backward add up, and the peak is the larger one's. The times are halflap's model, not a GPU's: they compare orders.

Torch's iterative passes are given the same run times, and its FX-level scheduling those that the model has of nodes that are not fused yet. The latter may merge collectives, with up to 1 GB or 5% more memory allowed, and binds nodes to its order; both change the graph, and so its bound. Where halflap comes after it, as it does wherever both are on, it has what was merged, and is not bound. Compiling is what Inductor takes for both graphs up to the generation of code, which is the same for all: time of the processor, of one run.
"""


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--only", choices=MODELS)
    arguments.add_argument("--patience", type=float, default=1200)
    chosen = arguments.parse_args()
    import torch

    date = datetime.date.today().isoformat()
    text = [INTRODUCTION.format(date=date, torch=torch.__version__.split("+")[0], cores=os.cpu_count())]
    for name, model in MODELS.items():
        if chosen.only in (None, name):
            rows = compiled(model, WAYS, chosen.patience)
            text += table(name, rows)
            print("\n".join(text[-len(rows) - 6 :]), flush=True)
    if chosen.only is None:
        text += overhead(compiled(LARGE, ["halflap quick"], chosen.patience)["halflap quick"])
        beside = RESULTS.with_suffix(".tmp")
        beside.write_text("\n".join(text))
        os.replace(beside, RESULTS)


if __name__ == "__main__":
    main()
