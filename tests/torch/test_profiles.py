"""Run times: out of a trace into the graphs that are scheduled, and one profile of all ranks'."""

import json

import pytest
from ranks import PYTHON, launch, run_script

pytestmark = pytest.mark.skipif(PYTHON is None, reason="HALFLAP_TORCH_PYTHON is not set")


def kernel(name, at, duration, **args):
    stream = args.get("stream", 7)
    place = {"pid": 0, "tid": stream, "ts": at, "dur": duration}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        **place,
        "args": {"device": 0, "stream": stream, **args},
    }


EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 5,
     "args": {"External id": 7, "Input Dims": [[32, 32], [32, 32]]}},
    kernel("ampere_sgemm_128x64", 10, 40, **{"External id": 7}),
    kernel("triton_poi_fused_add_relu_3", 60, 11),
    kernel("triton_poi_fused_add_relu_5", 80, 13),
    kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20, 30, stream=20, **{
        "Collective name": "_allgather_base", "In msg nelems": 1024, "Out msg nelems": 4096, "Group size": 4,
        "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]"}),
]  # fmt: skip


@pytest.fixture(scope="session")
def captured(tmp_path_factory):
    """The profile of a trace, and one program with run times of several origins."""
    folder = tmp_path_factory.mktemp("profiled")
    trace = folder / "trace.json"
    trace.write_text(
        json.dumps({"traceEvents": EVENTS, "distributedInfo": {"rank": 0, "world_size": 4}})
    )
    run_script("profiled", folder, trace)
    return folder


def nodes(folder):
    """Of the one graph that is there, what takes time."""
    [path] = folder.iterdir()
    return [node for node in json.loads(path.read_text())["nodes"] if node["runtime_ns"] > 0]


def times(folder):
    return sorted(node["runtime_ns"] for node in nodes(folder))


def test_times_of_a_trace_reach_the_graph(captured):
    profile = json.loads((captured / "profile.json").read_text())
    assert profile == {
        "all_gather of 4, 16384 bytes": 30e3,
        # The lower median.
        "fused_add_relu": 11e3,
        "mm [32, 32] [32, 32]": 40e3,
    }
    assert times(captured / "profile")[1:] == [30e3, 40e3, 40e3]
    assert len(times(captured / "model")) == 4 and not set(times(captured / "model")) & {30e3, 40e3}


def test_times_of_a_function_reach_the_graph(captured):
    modelled = times(captured / "model")
    # Of what it gives no time for, the model's.
    estimated = times(captured / "estimate")
    assert estimated[-2:] == [5e5, 5e5] and set(estimated[:2]) <= set(modelled)


def test_work_is_counted_also_after_torchs_own_scheduling(captured):
    """It puts operations into graphs of their own."""
    # Four heads of eight queries, with as many keys of 32; and products.
    expected = [2 * 4 * 8 * 8 * (32 + 32), 2 * 32**3, 2 * 32**3]
    for way in ("model", "fx"):
        if (captured / way).exists():
            assert (
                sorted(node["flops"] for node in nodes(captured / way) if "flops" in node)
                == expected
            )
    assert (captured / "model").exists()


def test_one_profile_of_all_ranks(tmp_path):
    for rank in launch("align", tmp_path, ranks=2):
        assert rank == {"aligned": {"both": 1.0}, "written": {"both": 1.0}}
