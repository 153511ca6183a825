"""Results for people, and for programs."""

import datetime
import os
import platform

from testbed.network import Rate


def document(results):
    return {
        "format": "halflap.testbed/1",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.release()}, {os.cpu_count()} cores",
        "results": results,
    }


def text(result):
    """A table of modes, and what to know about it."""
    return "\n".join([*title(result), "", *table(result), "", *notes(result), ""])


def title(result):
    size = ", ".join(f"{value} {name}" for name, value in result["size"].items())
    program = f"{result['program']} ({size})" if size else result["program"]
    wire, unlimited = result["communication"], result["unlimited_step"]
    return [
        f"{program}, {result['ranks']} ranks on {result['backend']}, "
        f"links of {Rate(result['rate_bits'])}",
        f"a step sends {result['payload_bytes'] / 1e6:.1f} MB from each rank, "
        f"{milliseconds(wire)} on the wire: {wire / unlimited:.2f} times a step on links "
        f"without a limit ({milliseconds(unlimited)})",
    ]


def table(result):
    reference = f"of {result['reference']}"
    lines = [["mode", "step", "interval", reference, "interval", "simulated", "values"]]
    lines += [row(result, mode) for mode in result["modes"]]
    widths = [max(map(len, column)) for column in zip(*lines)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in lines]
    return ["  ".join(line).rstrip() for line in padded]


def row(result, mode):
    step, ratio = (result["modes"][mode][name] for name in ("step", "ratio"))
    simulated = result["simulated"].get(mode)
    return [
        mode,
        milliseconds(step["value"]),
        f"{milliseconds(step['low'])} to {milliseconds(step['high'])}",
        f"{ratio['value']:.3f}",
        f"{ratio['low']:.3f} to {ratio['high']:.3f}",
        milliseconds(simulated) if simulated else "",
        values(result["values"].get(mode)),
    ]


def notes(result):
    """What to know about a result before using it."""
    count, bound = result["rounds"], result.get("bound")
    confidence = next(iter(result["modes"].values()))["step"]["confidence"]
    lines = [f"Medians of {count} rounds, with intervals of {100 * confidence:.0f}% confidence."]
    if bound:
        lines.append(
            f"No order takes less than {milliseconds(bound)} by measured times and contention."
        )
    if worked := result.get("core_seconds"):
        least = min(worked.values())
        lines.append(
            f"A rank keeps its core busy for {milliseconds(least)} of a step or more, gloo's "
            "threads included: with a core for each rank, no step takes less."
        )
    if tuned := result.get("tuned"):
        lines.append(f"tune chose {tuned['chosen']['order']} after {tuned['rounds']} rounds.")
    lines += [f"VOID: {why}" for why in result["void"]]
    if result["rounds_disturbed"]:
        share = 100 * result["most_foreign_share"]
        lines.append(
            f"DISTURBED: in {result['rounds_disturbed']} of {count} rounds other programs used "
            f"the ranks' cores, for up to {share:.0f}% of the time; measure again when it is quiet."
        )
    if result["rounds_left_out"]:
        lines.append(f"{result['rounds_left_out']} more rounds were disturbed and do not count.")
    if result["is_oversubscribed"]:
        cores = len(set(result["cores"]))
        lines.append(f"OVERSUBSCRIBED: {result['ranks']} ranks share {cores} cores.")
    return lines


def values(found):
    if found is None:
        return ""
    return "equal bits" if found["equal_bits"] else f"within {found['largest_difference']:.1g}"


def milliseconds(seconds):
    return f"{1e3 * seconds:.4g} ms"
