"""The figures of `halflap analyze`, computed another way: a plain sweep over all begins and ends.

No unions, no binary search: the begins and ends of all GPU events are sorted, and at every moment
in between it is counted what runs. In a trace without GPU events, each thread of the CPU is asked
at every moment what it computes. Shares no code and no method with the Rust side.
"""

import gzip
import json
from decimal import ROUND_HALF_UP, Decimal

GPU = {"kernel", "Kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
CALLS = ("c10d::", "_c10d_functional", "c10d_functional::")


def load(path):
    """A trace with its numbers as they stand there: doubles would round times since 1970."""
    opener = gzip.open if str(path).endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        return json.load(file, parse_float=Decimal)


def nanos(micros):
    return int((Decimal(micros) * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP))


def kind(event):
    if event["cat"] in {"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}:
        return "memory"
    nccl = event["name"].lower().startswith("nccl") or "Collective name" in event.get("args", {})
    return "communication" if nccl else "compute"


def gpu_events(trace):
    """(start, end, kind, name) of all GPU work, by start."""
    events = trace if isinstance(trace, list) else trace["traceEvents"]
    found = []
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in GPU:
            start = nanos(event["ts"])
            duration = nanos(event.get("dur", 0))
            if duration >= 0:
                found.append((start, start + duration, kind(event), event["name"]))
    return sorted(found, key=lambda e: (e[0], e[1]))


def work(trace):
    """All that counts, by start: that of the GPU or, without any, of the CPU."""
    return gpu_events(trace) or cpu_events(trace)


def cpu_events(trace):
    """Collectives of gloo, and what each thread computed when."""
    threads = {}
    for place, event in enumerate(trace if isinstance(trace, list) else trace["traceEvents"]):
        category, name = event.get("cat"), event.get("name", "")
        counts = category == "cpu_op" or category == "user_annotation" and name.startswith("gloo:")
        if event.get("ph") == "X" and counts and nanos(event.get("dur", 0)) >= 0:
            start = nanos(event["ts"])
            threads.setdefault(event["tid"], []).append(
                (start, -start - nanos(event.get("dur", 0)), place, name)
            )
    found = []
    for events in threads.values():
        gloo = [event for event in events if event[3].startswith("gloo:")]
        found += [(start, -end, "communication", name) for start, end, _, name in gloo]
        if not gloo or any(event[3].startswith(CALLS) for event in events):
            found += computed([event for event in events if not event[3].startswith("gloo:")])
    return sorted(found, key=lambda e: (e[0], e[1]))


def computed(events):
    """What a thread computed, asked at every begin and end."""
    events, found, last = sorted(events), [], None
    moments = sorted({moment for event in events for moment in (event[0], -event[1])})
    running, at = [], 0
    for moment, following in zip(moments, moments[1:]):
        while at < len(events) and events[at][0] <= moment:
            running.append(events[at])
            at += 1
        running = [event for event in running if -event[1] > moment]
        now = computing(running)
        if now and now == last and found[-1][1] == moment:
            found[-1] = (found[-1][0], following, "compute", now[3])
        elif now:
            found.append((moment, following, "compute", now[3]))
        last = now
    return found


def computing(running):
    """Of what runs on a thread, the outer first: that which computes."""
    if any(event[3].startswith(CALLS) for event in running):
        return None
    operators = [event for event in running if "::" in event[3] and " " not in event[3]]
    return operators[0] if operators else running[-1] if running else None


def spent(events):
    """Where the time went, by counting what runs between every two neighbouring moments."""
    changes = []
    for start, end, what, _ in events:
        changes += [(start, what, 1), (end, what, -1)]
    changes.sort(key=lambda change: change[0])
    running = {"compute": 0, "communication": 0, "memory": 0}
    sums = dict.fromkeys(
        [
            "span",
            "compute",
            "communication",
            "memory",
            "overlapped",
            "exposed",
            "exposed_beside_memory",
            "idle",
        ],
        0,
    )
    for (moment, what, step), (following, _, _) in zip(changes, changes[1:] + [changes[-1]]):
        running[what] += step
        length = following - moment
        compute, communication, memory = (
            running[k] > 0 for k in ("compute", "communication", "memory")
        )
        sums["span"] += length
        sums["compute"] += length * compute
        sums["communication"] += length * communication
        sums["memory"] += length * memory
        sums["overlapped"] += length * (communication and compute)
        sums["exposed"] += length * (communication and not compute)
        sums["exposed_beside_memory"] += length * (communication and not compute and memory)
        sums["idle"] += length * (not (compute or communication or memory))
    return sums


def totals(events):
    """How long all that has a name took."""
    sums = {}
    for start, end, _, name in events:
        sums[name] = sums.get(name, 0) + end - start
    return sums


def charges(events):
    """What every collective is charged with: each exposed moment goes to the one that began
    first."""
    collectives = [e for e in events if e[2] == "communication"]
    moments = sorted({m for e in events for m in e[:2]})
    starts = sorted(((e[0], i) for i, e in enumerate(collectives)))
    ends = [e[1] for e in collectives]
    computing = computing_at(events, moments)
    charged, active, at = [0] * len(collectives), [], 0
    for moment, following in zip(moments, moments[1:]):
        while at < len(starts) and starts[at][0] <= moment:
            active.append(starts[at][1])
            at += 1
        active = [i for i in active if ends[i] > moment]
        if active and moment not in computing:
            charged[active[0]] += following - moment
    return charged


def computing_at(events, moments):
    """The moments from which on something computes."""
    place = {moment: i for i, moment in enumerate(moments)}
    steps = [0] * (len(moments) + 1)
    for start, end, what, _ in events:
        if what == "compute" and end > start:
            steps[place[start]] += 1
            steps[place[end]] -= 1
    found, running = set(), 0
    for moment, step in zip(moments, steps):
        running += step
        if running:
            found.add(moment)
    return found
