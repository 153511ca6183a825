#!/usr/bin/env python3
"""Measured steps of torch programs over limited links: writes the results in docs/measured.md.

    sudo python3 bench/measured.py --torch-python PY [--rounds N]

PY has torch and halflap. Runs bench/testbed for each model at each ratio of communication to a step
on links without a limit, one after the other, which takes about 40 minutes on a quiet machine.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "measured.md"
MODELS = {"fsdp": "FSDP", "tp": "tensor parallel", "ep": "expert parallel"}
#: Of a step on links without a limit, in which gloo takes about 40% of the time. The one in the
#: middle comes first, so that a run that is cut short has it.
RATIOS = (0.6, 1.2, 0.3)
MODES = ("none", "default", "fx", "kept", "free", "tuned")
#: Of which there is one compiled order, so that it can be simulated.
SIMULATED = MODES[:-1]
#: Between which `tune` chooses.
CANDIDATES = ("none", "default", "kept", "free")
MARK = "## Results\n"

HEAD = """
Made by `bench/measured.py` on {date}, with torch {torch}: {ranks} ranks on gloo, each with a core of its own, transformers of {layers} layers, width {width} and {tokens} tokens. Medians of {rounds} rounds of {steps} steps; intervals in the files that `bench/testbed -o` writes. *Wire* is the time that a step's bytes take on the link, *compute* that of all kernels, *fx* torch's FX-level scheduling with measured rates, *tuned* what `halflap.torch.tune` chose within {tune} s, compiled and measured anew with all others. The *bound* is that of all orders by measured times, with the measured contention between compute and communication; the *core* is what a rank's only core has to do in a step, gloo's work included. *Recovered* is the part of what lies between torch's default and the bound, or the larger of bound and core, that the free order gains.

| model | link | wire : compute | no overlap | default | fx | kept | free | tuned | free of default | bound | core | recovered | simulated free |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

TUNED_HEAD = """
What `tune` chose, beside a fresh measurement of the same candidates:

| model | link | chosen | said of default | measured of default | best candidate | tuned of the best |
| --- | --- | --- | --- | --- | --- | --- |
"""


def measured(args, model, ratio):
    """What bench/testbed found."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "result.json"
        command = [sys.executable, HERE / "testbed", "--torch-python", args.torch_python]
        command += ["--models", model, "--ratio", ratio, "--modes", ",".join(MODES)]
        command += ["--rounds", args.rounds, "--steps", args.steps, "-o", output]
        command += ["--tune-seconds", args.tune_seconds]
        subprocess.run([str(word) for word in command], check=True, timeout=1800)
        [result] = json.loads(output.read_text())["results"]
        return result


def row(model, result):
    step = {mode: result["modes"][mode]["step"]["value"] for mode in MODES}
    ratio = result["modes"]["free"]["ratio"]
    bound, wire = result["bound"], result["communication"]
    core = min(result["core_seconds"].values())
    simulated = result["simulated"]["free"]
    cells = [
        MODELS[model],
        link(result),
        f"{wire / result['compute']:.2f}",
        *[f"{1e3 * step[mode]:.0f} ms" for mode in MODES],
        f"{ratio['value']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})",
        f"{1e3 * bound:.0f} ms",
        f"{1e3 * core:.0f} ms",
        f"{recovered(step, bound)}, {recovered(step, max(bound, core))}",
        f"{1e3 * simulated:.0f} ms ({100 * (simulated / step['free'] - 1):+.1f}%)",
    ]
    if result["rounds_disturbed"]:
        cells[0] += ", DISTURBED"
    if result["void"]:
        cells[0] += ", VOID"
    return f"| {' | '.join(cells)} |"


def link(result):
    return f"{result['rate_bits'] / 1e9:.2f} Gbit/s"


def tuned_row(model, result):
    tuned, modes = result["tuned"], result["modes"]
    chosen = tuned["chosen"]["order"]
    [said] = [row for row in tuned["rows"] if row["candidate"] == tuned["chosen"]]
    fresh = modes["tuned"]["ratio"]
    best = best_candidate(result)
    cells = [
        MODELS[model],
        link(result),
        chosen,
        f"{said['ratio']:.3f} ({said['low']:.3f} to {said['high']:.3f})",
        f"{fresh['value']:.3f} ({fresh['low']:.3f} to {fresh['high']:.3f})",
        best,
        f"{of_best(result):.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def best_candidate(result):
    return min(CANDIDATES, key=lambda mode: result["modes"][mode]["ratio"]["value"])


def of_best(result):
    """What was chosen beside the best candidate, as ratios to torch's default in the same rounds."""
    ratios = {mode: one["ratio"]["value"] for mode, one in result["modes"].items()}
    return ratios["tuned"] / ratios[best_candidate(result)]


def tuned_summary(results):
    slower = sum(result["modes"]["tuned"]["ratio"]["low"] > 1.0 for result in results)
    near = sum(of_best(result) <= 1.02 for result in results)
    return (
        f"\n\nOf {len(results)} choices {slower} are slower than torch's default beyond the interval "
        f"of the fresh measurement, and {near} are within 2% of the best candidate.\n"
    )


def recovered(step, limit):
    """The part of what torch's default takes beyond a limit that the free order gains."""
    beyond = step["default"] - limit
    gained = step["default"] - step["free"]
    # Where there is next to nothing to gain, a share of it says nothing.
    return f"{100 * gained / beyond:.0f}%" if beyond > 0.02 * step["default"] else "-"


def simulated_apart(results):
    """How far simulated steps are from measured ones, over all modes and results."""
    apart = sorted(
        abs(result["simulated"][mode] / result["modes"][mode]["step"]["value"] - 1)
        for result in results
        for mode in SIMULATED
    )
    return 100 * apart[len(apart) // 2], 100 * apart[-1]


def write(results, args):
    first = results[0][1]
    by_model = sorted(results, key=lambda one: [*MODELS].index(one[0]))
    rows = [row(model, result) for model, result in by_model]
    median, worst = simulated_apart([result for _, result in results])
    told = {**first["size"], "torch": first["torch"], "ranks": first["ranks"]}
    head = HEAD.format(
        date=datetime.date.today(),
        rounds=args.rounds,
        steps=args.steps,
        tune=args.tune_seconds,
        **told,
    )
    tuned = TUNED_HEAD + "\n".join(tuned_row(*one) for one in by_model)
    tuned += tuned_summary([result for _, result in results])
    foot = (
        f"\n\nSimulated steps, over all modes and rows, are {median:.1f}% from the measured ones in "
        f"the median, and {worst:.1f}% at most.\n"
    )
    before = RESULTS.read_text().split(MARK)[0].rstrip("\n")
    RESULTS.write_text(f"{before}\n\n{MARK}{head}" + "\n".join(rows) + foot + tuned)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tune-seconds", type=int, default=45, help="for each choice of tune")
    args = parser.parse_args()
    results = []
    for ratio in RATIOS:
        for model in MODELS:
            results.append((model, measured(args, model, ratio)))
            write(results, args)


if __name__ == "__main__":
    main()
