"""Prints what Holistic Trace Analysis says of one trace: span, compute and idle in us, overlap in
%.

Runs under a Python that has HTA. HTA leaves out kernels that were launched outside of the
profiler's steps, and rounds begins and durations to microseconds apart from each other: give it a
trace that `level` has made, so that both count the same.
"""

import json
import logging
import sys
import tempfile
from pathlib import Path


def level(trace):
    """The trace without the profiler's step marks, and with begins and ends in whole
    microseconds."""
    events = []
    for event in trace["traceEvents"]:
        if str(event.get("name", "")).startswith("ProfilerStep"):
            continue
        if "ts" in event and "dur" in event:
            start, end = round(event["ts"]), round(event["ts"] + event["dur"])
            event = event | {"ts": start, "dur": end - start}
        events.append(event)
    return trace | {"traceEvents": events}


def figures(path):
    logging.disable(logging.CRITICAL)
    from hta.trace_analysis import TraceAnalysis

    with tempfile.TemporaryDirectory() as folder:
        analysis = TraceAnalysis(trace_files={0: str(Path(path).resolve())}, trace_dir=folder)
        overlap = analysis.get_comm_comp_overlap(visualize=False)
        breakdown = analysis.get_temporal_breakdown(visualize=False)
    return {
        "overlap": float(overlap["comp_comm_overlap_pctg"].iloc[0]),
        "compute": float(breakdown["compute_time(us)"].iloc[0]),
        "idle": float(breakdown["idle_time(us)"].iloc[0]),
        "span": float(breakdown["kernel_time(us)"].iloc[0]),
    }


if __name__ == "__main__":
    print(json.dumps(figures(sys.argv[1])))
