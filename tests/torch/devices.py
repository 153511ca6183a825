"""Which device run times are modelled on, and how ranks share nodes. Nothing communicates."""

import json
import os
import pathlib
import pickle
import tempfile
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.testing._internal.distributed.fake_pg import FakeStore

import halflap
import halflap.torch
from halflap import _halflap
from halflap.torch import _devices

OWN = {
    "name": "mine",
    "peak_tflops": 45,
    "memory_gb_per_s": 260,
    "ranks_per_node": 4,
    "nvlink_gb_per_s": 33,
    "network_gb_per_s": 5,
}
GRAPH = {"format": "halflap.graph/1", "groups": {}, "nodes": [], "buffers": [], "inputs": []}


def gpu(name):
    """Has torch report a GPU."""
    named = name if callable(name) else lambda: name
    return mock.patch.multiple(torch.cuda, is_available=lambda: True, get_device_name=named)


def launched(**variables):
    """An environment with what a launcher says, and nothing that another one said."""
    names = {name for launcher in _devices.LAUNCHERS for name in launcher if name}
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return mock.patch.dict(os.environ, {**kept, **variables}, clear=True)


def modelled(**options):
    return str(halflap.torch.enable(**options).overlap_pass.modelled_on())


def key(**options):
    return pickle.dumps(halflap.torch.enable(**options).overlap_pass)


def refused(call, **options):
    try:
        call(**options)
    except (TypeError, ValueError, halflap.BadInput) as problem:
        return str(problem)
    raise AssertionError(f"{options} are taken")


def check_devices():
    """The process's device, unless another is named."""
    assert modelled() == "cpu, 2 ranks per node"
    for name, device in {
        "NVIDIA L40S": "l40s, 8",
        "NVIDIA H100 PCIe": "h100_pcie, 8",
        "NVIDIA H100 80GB HBM3": "h100, 8",
        "NVIDIA GB200": "gb200, 72",
        "AMD Instinct MI325X": "mi325x, 8",
        "NVIDIA GeForce RTX 4090 Laptop GPU": "h100, 8",
    }.items():
        with gpu(name):
            assert modelled() == f"{device} ranks per node", (name, modelled())
            assert modelled(device="A10G") == "a10g, 4 ranks per node"
    keys = []
    for name in ("NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3", "NVIDIA H200"):
        with gpu(name):
            keys.append(key())
    assert len({*keys, key()}) == 4


def check_warnings():
    """An unknown GPU is named once, and one whose driver fails does no harm."""

    def told():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            _devices.warn_of_unknown_gpu()
        return [str(warning.message) for warning in seen]

    def broken():
        raise RuntimeError("driver in trouble")

    assert told() == []
    with gpu("NVIDIA L40S"):
        assert told() == []
    with gpu("AMD Radeon Graphics"):
        [said] = told()
        assert told() == []
    assert (
        "AMD Radeon Graphics" in said and "on h100 instead" in said and "enable(device=...)" in said
    )
    with gpu(broken):
        assert modelled() == "h100, 8 ranks per node"
        assert len(told()) == 1


def check_own_devices(folder):
    """A file and a dictionary are what they are for the command."""
    path = pathlib.Path(folder, "mine.json")
    path.write_text(json.dumps(OWN, indent=4))
    assert modelled(device=OWN) == modelled(device=path) == "mine, 4 ranks per node"
    backwards = dict(reversed(OWN.items()))
    assert key(device=OWN) == key(device=str(path)) == key(device=backwards)
    assert key(device=OWN) != key(device={**OWN, "network_gb_per_s": 6})
    unnamed = {name: value for name, value in OWN.items() if name != "name"}
    assert modelled(device=unnamed) == "a device of your own, 4 ranks per node"
    path.write_text('{"peak_tflops": 1}')
    slips = (
        "h10",
        path,
        folder + "/nothing.json",
        {**OWN, "peak_tflops": 0},
        {**OWN, "peek": 1},
        {},
    )
    for slip in slips:
        said = refused(lambda device: halflap.simulate(GRAPH, device=device), device=slip)
        assert refused(halflap.torch.enable, device=slip) == said, said
    assert "a preset's name, a file or a dictionary, not 3" in refused(
        halflap.torch.enable, device=3
    )
    for wrong in (0, -1, 1.5, True, "8"):
        assert "an integer from 1" in refused(halflap.torch.enable, ranks_per_node=wrong)


def check_launchers():
    """Ranks per node as the launcher says, where all ranks are sure to read the same."""

    def per_host(world, **variables):
        return _devices.launched_per_host(variables, world)

    assert per_host(16, LOCAL_WORLD_SIZE="4", WORLD_SIZE="16") == 4
    assert per_host(16, LOCAL_WORLD_SIZE="4", WORLD_SIZE="16", GROUP_WORLD_SIZE="4") == 4
    # Hosts of 8, 4 and 4 ranks; other processes than the ranks; nonsense.
    assert per_host(16, LOCAL_WORLD_SIZE="8", WORLD_SIZE="16", GROUP_WORLD_SIZE="3") is None
    assert per_host(16, LOCAL_WORLD_SIZE="4", WORLD_SIZE="16", GROUP_WORLD_SIZE="3") is None
    assert per_host(12, LOCAL_WORLD_SIZE="8", WORLD_SIZE="12") is None
    assert per_host(16, LOCAL_WORLD_SIZE="1", WORLD_SIZE="2") is None
    assert per_host(None, LOCAL_WORLD_SIZE="1", WORLD_SIZE="2") is None
    for nonsense in ("", "0", "-4", "four", "4(x", "4.0", "²"):
        assert per_host(16, LOCAL_WORLD_SIZE=nonsense, WORLD_SIZE="16") is None, nonsense
    assert per_host(16, OMPI_COMM_WORLD_LOCAL_SIZE="2", OMPI_COMM_WORLD_SIZE="16") == 2
    assert per_host(16, MPI_LOCALNRANKS="2", PMI_SIZE="16") == 2
    assert per_host(16, SLURM_NTASKS_PER_NODE="4", SLURM_NTASKS="16") == 4
    for tasks, ranks in {
        "4(x4)": 4,
        "16": 16,
        "6(x2),4": 6,
        "10,6": 10,
        "4,6(x2)": None,
        "4(x3)": None,
    }.items():
        said = per_host(16, SLURM_STEP_TASKS_PER_NODE=tasks, SLURM_STEP_NUM_TASKS="16")
        assert said == ranks, (tasks, said)
    # torchrun in a job of one task to a node.
    slurm = {"SLURM_NTASKS_PER_NODE": "1", "SLURM_NTASKS": "2"}
    assert per_host(16, LOCAL_WORLD_SIZE="8", WORLD_SIZE="16", **slurm) == 8
    assert per_host(16, **slurm) is None


def check_nodes():
    """The user comes before the launcher, and that before the preset, except in a rack."""
    keys = [key()]
    with launched(LOCAL_WORLD_SIZE="4", WORLD_SIZE="16"):
        assert modelled() == "cpu, 4 ranks per node"
        assert modelled(ranks_per_node=8) == "cpu, 8 ranks per node"
        assert modelled(device=OWN) == "mine, 4 ranks per node"
        assert modelled(device={**OWN, "ranks_per_node": 1}) == "mine, 1 rank per node"
        assert modelled(device="gb200") == "gb200, 72 ranks per node"
        assert modelled(device="gb200", ranks_per_node=36) == "gb200, 36 ranks per node"
        assert modelled(device="h100") == "h100, 4 ranks per node"
        keys.append(key())
        assert key(ranks_per_node=8) != key()
    assert len(set(keys)) == 2
    with launched(LOCAL_WORLD_SIZE="lots", WORLD_SIZE="16"):
        assert modelled() == "cpu, 2 ranks per node"


def check_compiled(folder):
    """Graphs have the times of that device and those nodes, and say so."""
    group = dist.new_group(range(8))

    def step(x):
        return functional.wait_tensor(functional.all_reduce(x @ x, "sum", group)) + 1

    with launched(LOCAL_WORLD_SIZE="4", WORLD_SIZE="16"):
        halflap.torch.enable()
        with halflap.torch.capture(folder):
            torch.compile(step)(torch.ones(64, 64))
    ran = halflap.torch.history()[-1]
    assert ran.failure is None and ran.modelled_on == "cpu, 4 ranks per node", ran
    [path] = pathlib.Path(folder).glob("*.json")
    nodes = json.loads(path.read_text())["nodes"]
    [reduced] = [node["runtime_ns"] for node in nodes if node["kind"] == "collective"]
    issued = [("all_reduce", list(range(8)), 64 * 64 * 4)]
    assert [reduced] == _halflap.modelled_times("cpu", [], issued, 4)[1]
    assert [reduced] != _halflap.modelled_times("cpu", [], issued, 8)[1]
    # A CPU's, and not a GPU's: a network of 25 Gbit/s between two hosts.
    assert reduced > _halflap.modelled_times("h100", [], issued, 4)[1][0]


with launched():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=16)
    with tempfile.TemporaryDirectory() as folder:
        check_devices()
        check_warnings()
        check_own_devices(folder)
        check_launchers()
        check_nodes()
        check_compiled(folder + "/graphs")
    halflap.torch.disable()
    dist.destroy_process_group()
