"""Run times: out of a trace into the graphs that are scheduled, and one profile of all ranks'."""

import json
import subprocess

import pytest
from ranks import HERE, PYTHON, launch

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


def kernel(name, at, duration, **args):
    stream = args.get("stream", 7)
    place = {"pid": 0, "tid": stream, "ts": at, "dur": duration}
    return {"ph": "X", "cat": "kernel", "name": name, **place, "args": {"device": 0, "stream": stream, **args}}


EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5,
     "args": {"External id": 7, "Input Dims": [[8, 8], [8, 8]]}},
    kernel("ampere_sgemm_128x64", 10, 40, **{"External id": 7}),
    kernel("triton_poi_fused_add_relu_3", 60, 11),
    kernel("triton_poi_fused_add_relu_5", 80, 13),
    kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20, 30, stream=20, **{
        "Collective name": "_allgather_base", "In msg nelems": 64, "Out msg nelems": 256, "Group size": 4,
        "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]"}),
]  # fmt: skip


def test_times_of_a_trace_reach_the_graph(tmp_path):
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": EVENTS, "distributedInfo": {"rank": 0, "world_size": 4}}))
    done = subprocess.run([PYTHON, HERE / "profiled.py", tmp_path, trace], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert profile == {
        "all_gather of 4, 1024 bytes": 30e3,
        # The lower median.
        "fused_add_relu": 11e3,
        "mm [8, 8] [8, 8]": 40e3,
    }
    times = {}
    for way in ("profile", "model"):
        [path] = (tmp_path / way).iterdir()
        nodes = json.loads(path.read_text())["nodes"]
        times[way] = sorted(node["runtime_ns"] for node in nodes if node["kind"] != "wait")
    assert times["profile"] == [30e3, 40e3, 40e3]
    assert len(times["model"]) == 3 and not set(times["model"]) & {0.0, 30e3, 40e3}


def test_one_profile_of_all_ranks(tmp_path):
    for rank in launch("align", tmp_path, ranks=2):
        assert rank == {"aligned": {"both": 1.0}, "written": {"both": 1.0}}
