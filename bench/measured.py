#!/usr/bin/env python3
"""Measured steps over limited links, of torch programs and of HLO modules on MPI: writes the
results in docs/measured.md.

    sudo python3 bench/measured.py --torch-python PY --jax PY [--only PART] [--rounds N]
    python3 bench/measured.py --render

The first PY has torch and halflap, the second jax (it makes modules). Runs bench/testbed for each
program at each ratio of communication to a step on links without a limit, one after the other,
which takes over an hour on a quiet machine. PART is torch, tune, rewrites, four or mpi. All figures
stay in target/measured; --render writes the tables from those again. A part without figures there
keeps the tables that it has.
"""

import argparse
import itertools
import json
import pathlib
import re
import subprocess
import sys

from testbed import intervals

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "measured.md"
MODELS = {"fsdp": "FSDP", "tp": "tensor parallel", "ep": "expert parallel"}
#: Of a step on links without a limit, in which gloo takes about 40% of the time. The one in the
#: middle comes first, so that a run that is cut short has it.
RATIOS = (0.6, 1.2, 0.3)
#: The most common case at one more rate.
TENTH = (0.9, "fsdp")
MODES = ("none", "default", "fx", "kept", "free")
#: Of the models that `tune` chooses for, and of those on four ranks: ten choices take their time.
FEW_LAYERS = 2
#: With more ranks than cores, apart from the others.
FOUR_RANKS, FOUR_RATIO, FOUR_MODES = 4, 0.6, ("none", "default", "kept", "free")
#: Whose kernels are those that were measured; FX-level scheduling has others fused.
SIMULATED = ("none", "default", "kept", "free")
#: Programs whose rewrites are measured, beside torch's own settings and our order alone.
REWRITTEN = {
    "small": ("FSDP, small parameters", HERE / "small_parameters.py"),
    "tp": (MODELS["tp"], "tp"),
    "ep": (MODELS["ep"], "ep"),
    "mixed": ("tensor and expert parallel", HERE / "mixed_parallel.py"),
}
REWRITTEN_RATIOS = (0.6, 1.2)
TORCH_BEST = ("default", "fx-merging", "fx-buckets", "fx-modules")
#: The last one has as much memory as torch's bucketing takes, which knows no limit.
REWRITES = ("merged", "split", "split@2x")
REWRITE_MODES = (*TORCH_BEST, "free", *REWRITES)
#: Between which `tune` chooses, and what it chose.
CANDIDATES = ("none", "default", "kept", "free")
TUNE_MODES = (*CANDIDATES, "tuned")
MPI_MODES = ("input", "kept", "free")
MARK = "## Results\n"
#: The testbed's exit code for a result that is void, which the table marks.
VOID = 1
#: All figures of the last run.
KEPT = HERE.parent / "target" / "measured"

HEAD = """
### torch over gloo

Made by `bench/measured.py` on {date}, with torch {torch}: {ranks} ranks on gloo, each with its own core, transformers of {layers} layers, width {width} and {tokens} tokens. Medians of {rounds} rounds of {steps} steps; all intervals are in target/measured. *Wire* is the time that a step's bytes take on the link, *compute* that of all kernels, *fx* torch's FX-level scheduling with measured rates. The *bound* is the lower bound over all orders with measured times and the measured contention between compute and communication. The *limit* is what no program that sends these bytes can beat: the time on the wire, or the work of a rank's only core in a step, gloo's included. *Recovered* is how much of the gap between torch's default and the bound, and between torch's default and the limit, the free order closes. It can be above 100% of the former, because times are measured with one collective at a time, and gloo, which works on two at a time, fills the link better.

| model | link | wire : compute | no overlap | default | fx | kept | free | free of default | bound | limit | recovered | simulated free |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

MPI_HEAD = """
### halflap run over Open MPI

Made by the same command on {date}: {ranks} ranks of Open MPI over TCP, each with its own core. `layers` are eight layers whose weights are gathered right before they are used, `transformer_WIDTH` are training steps from JAX with parameters sharded over both ranks (bench/jax_fsdp.py). *Own* is the module's own order, in which nothing overlaps. Times are measured in it, and contention in one run of ours (`run --compare`); orders and simulated steps are found with both. Medians of {rounds} rounds of 10 steps. Messages are handed to the socket whole, and the threads that communicate run as soon as they wake, so that the link stays busy while a kernel occupies the rank's only core; the work of the operating system and MPI for a message then slows compute down, which is the slowdown in the last column.

| module | link | own | kept | free | free of own | simulated own | simulated free | slowdown of compute, communication |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

TUNED_HEAD = """
### What `tune` chose

Made by the same command on {date}, with {layers} layers: what `halflap.torch.tune` chose and said of it, compiled and measured anew beside all of its candidates, in medians of six rounds or more of {steps} steps each.

| model | link | chosen | said of default | measured of default | best candidate | tuned of the best |
| --- | --- | --- | --- | --- | --- | --- |
"""


REWRITES_HEAD = """
### Merged and cut collectives

Made by the same command on {date}: {ranks} ranks, medians of {rounds} rounds of {steps} steps, models of {layers} layers (but for the small parameters, bench/small_parameters.py). Torch in four settings: its default, *fx-merging* its FX-level scheduling with bucketing, *fx-buckets* all collectives of a kind that may be merged in one bucket, *fx-modules* its manual bucketing with a bucket for each layer. Ours: *free* is the order alone, *merged* the same with `rewrite="exact"`, *split* with `rewrite=["merge", "split"]`, both at the memory of the graph as it was; `split@2x` may take twice as much. *Latency* is the part of the collectives' measured time that does not grow with their bytes. *Memory* is the larger peak of the two graphs of a step.

| model | link | latency | {modes} | merged of free | split of free | better one of torch's best | memory |
| --- | --- | --- | {lines} | --- | --- | --- | --- |
"""


FOUR_HEAD = """
### Four ranks on two cores

Made by the same command on {date}: {ranks} ranks on gloo that share two cores, {layers} layers, width {width}, {tokens} tokens, medians of {rounds} rounds. Two ranks take turns on a core, so that one rank's compute delays the other's communication; no model of a rank by itself has that, and these figures are apart from those above.

| model | link | no overlap | default | kept | free | free of default | simulated free |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def measured(args, name, ratio, program):
    """What bench/testbed found of a program, which stays in a file."""
    KEPT.mkdir(parents=True, exist_ok=True)
    output = KEPT / f"{name}_{ratio}.json"
    command = [sys.executable, HERE / "testbed", *program, "--ratio", ratio]
    command += ["--rounds", args.rounds, "-o", output]
    done = subprocess.run([str(word) for word in command], timeout=1800)
    if done.returncode not in (0, VOID):
        sys.exit(done.returncode)


def measure_torch(args):
    for ratio, model in [*itertools.product(RATIOS, MODELS), TENTH]:
        program = ["--torch-python", args.torch_python, "--models", model]
        program += ["--modes", ",".join(MODES), "--steps", args.steps]
        measured(args, f"torch_{model}", ratio, program)
        write()


def measure_tune(args):
    for ratio, model in [*itertools.product(RATIOS, MODELS), TENTH]:
        program = ["--torch-python", args.torch_python, "--models", model]
        program += ["--modes", ",".join(TUNE_MODES), "--steps", args.steps]
        program += ["--tune-seconds", args.tune_seconds, "--layers", FEW_LAYERS]
        measured(args, f"tune_{model}", ratio, program)
        write()


def measure_rewrites(args):
    for ratio, (name, (_, model)) in itertools.product(REWRITTEN_RATIOS, REWRITTEN.items()):
        program = ["--torch-python", args.torch_python, "--models", model]
        program += ["--modes", ",".join(REWRITE_MODES), "--steps", args.steps]
        program += ["--layers", FEW_LAYERS]
        measured(args, f"rewrites_{name}", ratio, program)
        write()


def measure_four(args):
    for model in MODELS:
        program = ["--torch-python", args.torch_python, "--models", model]
        program += ["--modes", ",".join(FOUR_MODES), "--steps", args.steps, "--ranks", FOUR_RANKS]
        program += ["--layers", FEW_LAYERS]
        measured(args, f"four_{model}", FOUR_RATIO, program)
        write()


def measure_mpi(args):
    subprocess.run([args.jax, HERE / "jax_fsdp.py", KEPT], check=True)
    modules = {"layers": "layers"}
    modules |= {path.stem: path for path in sorted(KEPT.glob("transformer_*.txt"))}
    for ratio in RATIOS:
        for name, module in modules.items():
            program = ["--mpi", "--halflap", args.halflap, "--modules", module]
            program += ["--modes", ",".join(MPI_MODES), "--steps", 10]
            measured(args, f"mpi_{name}", ratio, program)
            write()


def kept(prefix):
    """What was found so far, by program and link: names and results."""
    found = []
    for path in sorted(KEPT.glob(f"{prefix}_*.json")):
        document = json.loads(path.read_text())
        [result] = document["results"]
        name = path.stem.removeprefix(f"{prefix}_").rpartition("_")[0]
        found.append((name, {**result, "date": document["date"][:10]}))
    return sorted(found, key=lambda one: (order_of(one[0]), one[1]["communication"]))


def order_of(name):
    return [*MODELS].index(name) if name in MODELS else len(MODELS)


def row(model, result):
    step = {mode: result["modes"][mode]["step"]["value"] for mode in MODES}
    ratio = result["modes"]["free"]["ratio"]
    bound, wire = result["bound"], result["communication"]
    limit = max(wire, min(result["core_seconds"].values()))
    cells = [
        MODELS[model] + flaws(result),
        link(result),
        f"{wire / result['compute']:.2f}",
        *[milliseconds(step[mode]) for mode in MODES],
        interval(ratio),
        milliseconds(bound),
        milliseconds(limit),
        f"{recovered(step, bound)}, {recovered(step, limit)}",
        simulated_cell(result, "free"),
    ]
    return f"| {' | '.join(cells)} |"


def interval(ratio):
    return f"{ratio['value']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


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
        interval({**said, "value": said["ratio"]}),
        interval(fresh),
        best,
        f"{of_best(result):.3f}",
    ]
    return f"| {' | '.join(cells)} |"


def best_candidate(result):
    return min(CANDIDATES, key=lambda mode: result["modes"][mode]["ratio"]["value"])


def of_best(result):
    """What was chosen beside the best candidate, as ratios to torch's default in the same
    rounds."""
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


def simulated_apart(results, modes):
    """How far simulated steps are from measured ones, over all results."""
    apart = sorted(
        abs(result["simulated"][mode] / result["modes"][mode]["step"]["value"] - 1)
        for result in results
        for mode in modes
    )
    return 100 * apart[len(apart) // 2], 100 * apart[-1]


def write():
    """The sections that there are figures for; others stay as they are."""
    before, _, after = RESULTS.read_text().partition(MARK)
    old = dict(re.findall(r"(### .*\n)((?:(?!### ).*\n?)*)", after))
    for prefix, section in SECTIONS.items():
        if results := kept(prefix):
            title, _, text = section(results).strip("\n").partition("\n")
            old[f"{title}\n"] = f"{text}\n"
    text = "\n".join(title + body.rstrip("\n") + "\n" for title, body in old.items())
    RESULTS.write_text(f"{before}{MARK}\n{text}")


def torch_section(results):
    rows = "\n".join(row(*one) for one in results)
    return head(HEAD, results) + rows + foot([result for _, result in results], SIMULATED)


def tune_section(results):
    rows = "\n".join(tuned_row(*one) for one in results)
    return head(TUNED_HEAD, results) + rows + tuned_summary([result for _, result in results])


def head(text, results):
    first = results[0][1]
    told = {name: first[name] for name in ("date", "ranks", "rounds")}
    told["torch"] = first["torch"].partition("+")[0]
    return text.format(steps=len(first["steps"][0]["default"]), **told, **first["size"])


def foot(results, modes):
    median, worst = simulated_apart(results, modes)
    return (
        f"\n\nSimulated steps of {', '.join(modes)} are {median:.1f}% from the measured ones in the "
        f"median of all rows, and {worst:.1f}% at most.\n"
    )


def rewrites_section(results):
    first = results[-1][1]
    told = {name: first[name] for name in ("date", "ranks", "rounds")}
    told |= {"steps": len(first["steps"][0]["default"]), "layers": FEW_LAYERS}
    told |= {"modes": " | ".join(REWRITE_MODES), "lines": " | ".join(["---"] * len(REWRITE_MODES))}
    return REWRITES_HEAD.format(**told) + "\n".join(rewrites_row(*one) for one in results)


def rewrites_row(name, result):
    step = {mode: one["step"]["value"] for mode, one in result["modes"].items()}
    ours = min((mode for mode in REWRITES if mode in step), key=step.get)
    theirs = min((mode for mode in TORCH_BEST if mode in step), key=step.get)
    shown = [mode for mode in ("default", theirs, *REWRITES) if mode in step]
    peaks = [f"{mode} {result['peak_bytes'][mode] / 2**20:.1f}" for mode in dict.fromkeys(shown)]
    cells = [
        REWRITTEN[name][0] + flaws(result),
        link(result),
        f"{100 * result['latency'] / result['collectives']:.0f}%",
        *[milliseconds(step[mode]) if mode in step else "-" for mode in REWRITE_MODES],
        *[of_free(result, mode) for mode in ("merged", "split")],
        f"{ours}, of {theirs}: {interval(ratio_between(result, ours, theirs))}",
        ", ".join(peaks) + " MiB",
    ]
    return f"| {' | '.join(cells)} |"


def of_free(result, mode):
    """A rewrite beside our order alone, if it was measured."""
    return interval(ratio_between(result, mode, "free")) if mode in result["modes"] else "-"


def ratio_between(result, mode, reference):
    """The ratio of two modes, taken within rounds."""
    return vars(intervals.summarize(result["steps"], reference)[mode]["ratio"])


def four_section(results):
    return head(FOUR_HEAD, results) + "\n".join(four_row(*one) for one in results)


def four_row(model, result):
    cells = [
        MODELS[model] + flaws(result),
        link(result),
        *[milliseconds(result["modes"][mode]["step"]["value"]) for mode in FOUR_MODES],
        interval(result["modes"]["free"]["ratio"]),
        simulated_cell(result, "free"),
    ]
    return f"| {' | '.join(cells)} |"


def mpi_section(results):
    first = results[0][1]
    head = MPI_HEAD.format(**{name: first[name] for name in ("date", "ranks", "rounds")})
    rows = "\n".join(mpi_row(*one) for one in results)
    missing = len(RATIOS) * len({name for name, _ in results}) - len(results)
    cut = f"\nThe run was cut short: {missing} rows are missing.\n" if missing else ""
    return head + rows + foot([result for _, result in results], MPI_MODES) + cut


#: By the names that files of figures begin with, in the order in which they are shown.
SECTIONS = {
    "torch": torch_section,
    "tune": tune_section,
    "rewrites": rewrites_section,
    "four": four_section,
    "mpi": mpi_section,
}


def mpi_row(name, result):
    step = {mode: result["modes"][mode]["step"]["value"] for mode in MPI_MODES}
    ratio, slower = result["modes"]["free"]["ratio"], result["measured"]
    cells = [
        name + flaws(result),
        link(result),
        *[milliseconds(step[mode]) for mode in MPI_MODES],
        interval(ratio),
        *[simulated_cell(result, mode) for mode in ("input", "free")],
        f"{slower['slowdown']:.2f}, {slower['comm_slowdown']:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def simulated_cell(result, mode):
    simulated, step = result["simulated"][mode], result["modes"][mode]["step"]["value"]
    return f"{milliseconds(simulated)} ({100 * (simulated / step - 1):+.1f}%)"


def milliseconds(seconds):
    return f"{1e3 * seconds:.0f} ms" if seconds > 0.1 else f"{1e3 * seconds:.3g} ms"


def flaws(result):
    return (", DISTURBED" if result["rounds_disturbed"] else "") + (
        ", VOID" if result["void"] else ""
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", metavar="PY")
    parser.add_argument("--jax", metavar="PY")
    built = HERE.parent / "target" / "dist" / "halflap"
    parser.add_argument("--halflap", default=built, metavar="BIN")
    parser.add_argument("--only", choices=[*SECTIONS])
    parser.add_argument("--render", action="store_true", help="measure nothing")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tune-seconds", type=int, default=45, help="for each choice of tune")
    args = parser.parse_args()
    if args.render:
        write()
        return
    parts = {"torch": measure_torch, "tune": measure_tune}
    parts |= {"rewrites": measure_rewrites, "four": measure_four}
    for part, measure in parts.items():
        if args.only in (None, part):
            if args.torch_python is None:
                parser.error("--torch-python is missing, or say --only mpi")
            measure(args)
    if args.only in (None, "mpi"):
        if args.jax is None:
            parser.error("--jax is missing, or name another part with --only")
        measure_mpi(args)


if __name__ == "__main__":
    main()
