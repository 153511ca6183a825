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
    """A table of modes, and what limits its worth."""
    return "\n".join([title(result), "", *table(result), "", *notes(result), ""])


def title(result):
    size = ", ".join(f"{value} {name}" for name, value in result["size"].items())
    share = result["communication"] / result["unlimited_step"]
    return (
        f"{result['program']} ({size}), {result['ranks']} ranks, {result['backend']}, links of {Rate(result['rate_bits'])}: "
        f"{result['payload_bytes'] / 1e6:.1f} MB take {milliseconds(result['communication'])} on the wire, {share:.2f} times a step without a limit "
        f"({milliseconds(result['unlimited_step'])})"
    )


def table(result):
    lines = [["mode", "step", "interval", f"of {result['reference']}", "interval", "simulated", "values"]]
    for mode, found in result["modes"].items():
        step, ratio = found["step"], found["ratio"]
        simulated = result["simulated"].get(mode)
        lines.append([
            mode, milliseconds(step["value"]), f"{milliseconds(step['low'])} to {milliseconds(step['high'])}",
            f"{ratio['value']:.3f}", f"{ratio['low']:.3f} to {ratio['high']:.3f}",
            milliseconds(simulated["step"]) if simulated else "", values(result["values"].get(mode)),
        ])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]


def notes(result):
    """What to know of a result before it is used."""
    step = next(iter(result["modes"].values()))["step"]
    lines = [f"Medians of {result['rounds']} rounds; intervals hold the true median with a confidence of {100 * step['confidence']:.0f}%."]
    if result["void"]:
        lines += [f"VOID: {why}" for why in result["void"]]
    if result["rounds_disturbed"]:
        lines.append(
            f"DISTURBED: in {result['rounds_disturbed']} of {result['rounds']} rounds other programs used the ranks' cores, up to "
            f"{100 * result['most_foreign_share']:.0f}% of their time: measure again when the machine is quiet."
        )
    if result["rounds_left_out"]:
        lines.append(f"{result['rounds_left_out']} more rounds were disturbed and are left out.")
    if result["is_oversubscribed"]:
        lines.append(f"OVERSUBSCRIBED: {result['ranks']} ranks share {len(set(result['cores']))} cores.")
    return lines


def values(found):
    if found is None:
        return ""
    return "equal bits" if found["equal_bits"] else f"within {found['largest_difference']:.1g}"


def milliseconds(seconds):
    return f"{1e3 * seconds:.4g} ms"
