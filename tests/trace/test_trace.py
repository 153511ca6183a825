"""Traces, decoded with Perfetto's published schema, against an independent account of the same
orders."""

import collections
import json

import pytest
from command import corpus, read_json, run
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

import model

PROGRAMS = ["fsdp_llama_2", "ddp_mlp_4", "moe_ep_6", "fsdp_tp_llama_4"]

Slice = collections.namedtuple("Slice", "process track name start end leads_to comes_from notes")


def half_up(time):
    """As Rust rounds; Python's own rounding goes to even."""
    return int(time + 0.5)


class Decoded:
    """What a trace in Perfetto's form holds. Fails on anything that does not nest."""

    def __init__(self, path):
        trace = perfetto.Trace()
        trace.ParseFromString(path.read_bytes())
        self.tracks, self.slices, self.counters = {}, [], collections.defaultdict(list)
        open_slices = collections.defaultdict(list)
        # Viewers sort by time, and keep the sequence of what happens at once.
        events = []
        for packet in trace.packet:
            assert packet.trusted_packet_sequence_id == 1
            if packet.HasField("track_descriptor"):
                assert packet.track_descriptor.uuid not in self.tracks
                self.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
            else:
                assert packet.HasField("timestamp") and packet.HasField("track_event")
                events.append(packet)
        for packet in sorted(events, key=lambda packet: packet.timestamp):
            self.event(packet, open_slices[packet.track_event.track_uuid])
        assert not any(open_slices.values()), "every slice ends"

    def event(self, packet, is_open):
        event = packet.track_event
        if event.type == perfetto.TrackEvent.TYPE_SLICE_BEGIN:
            assert not is_open, "slices of one track do not overlap"
            is_open.append(packet)
        elif event.type == perfetto.TrackEvent.TYPE_SLICE_END:
            begin = is_open.pop()
            of = begin.track_event
            notes = {
                note.name: note.string_value or note.uint_value for note in of.debug_annotations
            }
            self.slices.append(
                Slice(
                    self.process(event.track_uuid),
                    self.tracks[event.track_uuid].name,
                    of.name,
                    begin.timestamp,
                    packet.timestamp,
                    set(of.flow_ids),
                    set(of.terminating_flow_ids),
                    notes,
                )
            )
        else:
            assert event.type == perfetto.TrackEvent.TYPE_COUNTER
            self.counters[self.process(event.track_uuid)].append(
                (packet.timestamp, event.counter_value)
            )

    def process(self, uuid):
        parent = self.tracks[self.tracks[uuid].parent_uuid]
        assert parent.HasField("process")
        return parent.process.process_name

    def of(self, process):
        return [
            of for of in self.slices if of.process == process and of.track != "compute stands still"
        ]


@pytest.fixture(scope="module", params=PROGRAMS)
def scheduled(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    paths = [folder / "trace.pftrace", folder / "order.json"]
    run("schedule", corpus(request.param), "--effort", "quick", "--trace", paths[0], "-o", paths[1])
    graph = read_json(corpus(request.param))
    orders = {
        "before": [node["name"] for node in graph["nodes"]],
        "after": read_json(paths[1])["order"],
    }
    return graph, orders, Decoded(paths[0])


@pytest.mark.parametrize("process", ["before", "after"])
def test_slices_have_the_times_of_an_independent_simulation(scheduled, process):
    graph, orders, trace = scheduled
    times = model.simulate(graph, orders[process])
    slices = trace.of(process)
    assert sorted(of.name for of in slices) == sorted(times)
    for of in slices:
        start, end = times[of.name]
        assert (of.start, of.end) == (half_up(start), half_up(end)), of.name


@pytest.mark.parametrize("process", ["before", "after"])
def test_each_stream_has_a_track_of_its_own(scheduled, process):
    graph, _, trace = scheduled
    stream = model.streams(graph)
    kinds = {node["name"]: node for node in graph["nodes"]}
    expected = collections.Counter(
        stream[kinds[of.name]["collective"]["group"]]
        if kinds[of.name]["kind"] == "collective"
        else "compute"
        for of in trace.of(process)
    )
    found = collections.Counter(of.track for of in trace.of(process))
    assert sorted(found.values()) == sorted(expected.values())
    assert "compute" in found and all(
        name == "compute" or name.startswith("stream ") for name in found
    )


@pytest.mark.parametrize("process", ["before", "after"])
def test_arrows_lead_from_every_collective_to_its_waits(scheduled, process):
    graph, _, trace = scheduled
    ends = {flow: of.name for of in trace.of(process) for flow in of.comes_from}
    arrows = [(of.name, ends[flow]) for of in trace.of(process) for flow in of.leads_to]
    assert len(arrows) == len(set(arrows)) == len(ends)
    assert set(arrows) == model.waits(graph)


def test_arrows_of_two_orders_are_not_mixed_up(scheduled):
    _, _, trace = scheduled
    flows = {
        process: {flow for of in trace.of(process) for flow in of.leads_to}
        for process in ("before", "after")
    }
    assert flows["before"] and not flows["before"] & flows["after"]


@pytest.mark.parametrize("process", ["before", "after"])
def test_the_memory_counter_has_the_true_peak(scheduled, process):
    graph, orders, trace = scheduled
    levels = trace.counters[process]
    assert max(value for _, value in levels) == model.peak(graph, orders[process])
    assert [time for time, _ in levels] == sorted(time for time, _ in levels)


@pytest.mark.parametrize("process", ["before", "after"])
def test_time_that_compute_stands_still_is_what_nothing_fills(scheduled, process):
    graph, orders, trace = scheduled
    times = model.simulate(graph, orders[process])
    kinds = {node["name"]: node["kind"] for node in graph["nodes"]}
    step = max(end for _, end in times.values())
    busy = sum(end - start for name, (start, end) in times.items() if kinds[name] != "collective")
    stalls = [
        of for of in trace.slices if of.process == process and of.track == "compute stands still"
    ]
    assert sum(of.end - of.start for of in stalls) == pytest.approx(
        step - busy, abs=len(stalls) + 1
    )


def test_notes_say_what_a_collective_is(scheduled):
    graph, _, trace = scheduled
    collectives = {
        node["name"]: node["collective"] for node in graph["nodes"] if node["kind"] == "collective"
    }
    for of in trace.of("after"):
        if of.name in collectives:
            assert of.notes["operation"] == collectives[of.name]["op"]
            assert of.notes["bytes"] == collectives[of.name]["bytes"]


def test_json_is_of_the_trace_event_format(tmp_path):
    """The same slices, arrows and levels; every event has what the format asks of its phase."""
    binary, text = tmp_path / "t.pftrace", tmp_path / "t.json"
    for path in (binary, text):
        run("simulate", corpus("moe_ep_6"), "--trace", path)
    events = json.loads(text.read_text())["traceEvents"]
    required = {
        "M": {"args"},
        "X": {"ts", "dur", "cat"},
        "s": {"ts", "id", "cat"},
        "f": {"ts", "id", "cat", "bp"},
        "C": {"ts", "args"},
    }
    for event in events:
        assert {"ph", "name", "pid", "tid"} | required[event["ph"]] <= set(event), event
    trace = Decoded(binary)
    phase = lambda ph: [event for event in events if event["ph"] == ph]
    assert sorted(
        (e["name"], round(e["ts"] * 1e3), round((e["ts"] + e["dur"]) * 1e3)) for e in phase("X")
    ) == sorted((of.name, of.start, of.end) for of in trace.slices)
    assert (
        {e["id"] for e in phase("s")}
        == {e["id"] for e in phase("f")}
        == {f for of in trace.slices for f in of.leads_to}
    )
    assert [(round(e["ts"] * 1e3), e["args"]["bytes"]) for e in phase("C")] == trace.counters[
        "input order"
    ]
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in phase("M") if e["name"] == "thread_name"
    }
    assert set(names.values()) == {of.track for of in trace.slices}
    by_track = collections.defaultdict(list)
    for event in phase("X"):
        by_track[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in by_track.values():
        slices.sort()
        assert all(end <= start + 1e-6 for (_, end), (start, _) in zip(slices, slices[1:])), (
            "slices do not overlap"
        )


def test_hostile_names_give_a_valid_trace(tmp_path):
    graph = read_json(corpus("ddp_mlp_4"))
    hostile = [
        "</script><b>",
        'q"u\'o\\te',
        "line\nbreak\r\t",
        "\u0000\u001b[31m\u0007",
        "\u202eright to left",
        "x" * 10_000_000,
    ]
    renamed = {node["name"]: hostile[i] for i, node in enumerate(graph["nodes"][: len(hostile)])}
    for node in graph["nodes"]:
        node["name"] = renamed.get(node["name"], node["name"])
    for buffer in graph["buffers"] + graph["inputs"]:
        buffer["users"] = [renamed.get(user, user) for user in buffer["users"]]
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps(graph))
    for name in ("t.pftrace", "t.json"):
        out = run("simulate", path, "--trace", tmp_path / name)
        assert len(out) < 20_000 and "\x1b" not in out and "\u202e" not in out
        assert (tmp_path / name).stat().st_size < 200_000
    assert len(Decoded(tmp_path / "t.pftrace").of("input order")) == len(graph["nodes"])
    json.loads((tmp_path / "t.json").read_text())
