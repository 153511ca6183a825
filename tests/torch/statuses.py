"""What `status` says of graphs that are compiled in every way; opaque collectives; the names of
captured graphs and of what is in them. One rank of a fake process group, and mostly products and
gathers, which need no C++ compiler."""

import json
import pathlib
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import halflap.torch
from halflap.torch import _watch
from halflap.torch._pass import session

FOLDER = pathlib.Path(sys.argv[1])
ON, PASSES = "reorder_for_compute_comm_overlap", "reorder_for_compute_comm_overlap_passes"
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
PAIR = dist.new_group([0, 1], group_desc="pair")


def gathered(x):
    return collectives.all_gather_tensor(x @ x, 0, dist.group.WORLD) @ x


def trained(x):
    """With a backward graph that has a reduce-scatter."""
    with torch.enable_grad():
        weight = x.clone().requires_grad_()
        return collectives.all_gather_tensor_autograd(x @ weight, 0, dist.group.WORLD)


@torch.library.custom_op("mine::all_reduce", mutates_args=())
def all_reduce(x: torch.Tensor, group: str) -> torch.Tensor:
    return x.clone()


@all_reduce.register_fake
def _(x, group):
    return torch.empty_like(x)


def hidden(x):
    return torch.ops.mine.all_reduce(torch.ops.mine.all_reduce(x @ x, "tp") @ x, "tp")


def among_others(x):
    """An opaque collective between two of torch's, of which the last could be first."""
    before = collectives.all_gather_tensor(x @ x, 0, dist.group.WORLD)
    reduced = torch.ops.mine.all_reduce(before @ x, "tp")
    after = collectives.all_gather_tensor(x[:4], 0, dist.group.WORLD)
    return reduced @ x @ x @ x, after @ x


def compiled(function, given=None, **options):
    """The graphs that were seen, and what was said, when a function was compiled and run."""
    torch._dynamo.reset()
    seen = len(halflap.torch.status().graphs)
    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        torch.compile(function, **options)(torch.ones(8, 8) if given is None else given)
    graphs = halflap.torch.status().to_dict()["graphs"][seen:]
    return graphs, [str(one.message) for one in told if "halflap" in str(one.message)]


def outcomes(graphs):
    fields = ("outcome", "reason", "setting", "collectives")
    return [tuple(graph[field] for field in fields) for graph in graphs]


def check_what_goes_past_us():
    """Each way once; the same reason again is not said again."""
    graphs, told = compiled(gathered)
    assert outcomes(graphs) == [("ordered", None, None, 1)] and told == []

    off = [("without", "setting", ON, 1)]
    graphs, told = compiled(gathered, options={ON: False})
    assert outcomes(graphs) == off and len(told) == 1
    assert "set in torch.compile's options" in told[0] and "leave it out there" in told[0]
    graphs, told = compiled(gathered, mode="lite")
    assert outcomes(graphs) == off and told == [] and "set by mode='lite'" in graphs[0]["what"]
    with config.patch({ON: False}):
        graphs, _ = compiled(gathered)
        assert f"{ON} is False and must be True" in str(halflap.torch.status())
    assert outcomes(graphs) == off and "after enable()" in graphs[0]["what"]

    for name, value in (("deterministic", True), (PASSES, ["raise_comms"])):
        with config.patch({name: value}):
            graphs, told = compiled(gathered)
        assert outcomes(graphs) == [("without", "setting", name, 1)]
        assert len(told) == 1 and name in told[0]


def check_other_backends():
    past = ("without", "backend", None, 1)
    graphs, told = compiled(trained, backend="aot_eager")
    assert outcomes(graphs) == [past, past] and "'aot_eager' does not use Inductor" in told[0]
    assert [graph["name"].split()[-1] for graph in graphs] == ["forward", "backward"]
    assert outcomes(compiled(gathered, backend="eager")[0]) == [past]
    assert compiled(torch.relu, backend="eager") == ([], [])

    # DTensor's collectives are in no graph of Dynamo's.
    mesh = init_device_mesh("cpu", (4,))
    sharded = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])

    def whole(x):
        return x.redistribute(mesh, [Replicate()]).to_local() @ torch.ones(8, 8)

    assert outcomes(compiled(whole, sharded, backend="aot_eager")[0]) == [past]


def check_what_comes_after_us():
    name = "aten_distributed_optimizations.enable_simple_overlap"
    if hasattr(config.aten_distributed_optimizations, "enable_simple_overlap"):
        with config.patch({name: True}):
            graphs, told = compiled(gathered)
        assert outcomes(graphs) == [("ordered", "disturbed", name, 1)]
        assert "torch reorders what halflap ordered" in told[0]


def check_caches():
    """From the cache of AOTAutograd, and from Inductor's."""
    # Not "auto", whose key changes with what ranks agree on.
    halflap.torch.enable(collective_order="kept")
    compiled(gathered)
    hits = {True: ("aot_autograd", "autograd_cache_hit"), False: ("inductor", "fxgraph_cache_hit")}
    for has_autograd_cache, (part, counter) in hits.items():
        with functorch_config.patch(enable_autograd_cache=has_autograd_cache):
            counters.clear()
            graphs, told = compiled(gathered)
            assert counters[part][counter] == 1, counters
            assert outcomes(graphs) == [("cached", None, None, 1)] and told == []
            with config.patch(deterministic=True):
                graphs, _ = compiled(gathered)
            assert outcomes(graphs) == [("without", "setting", "deterministic", 1)]
    halflap.torch.enable()


def check_ddp():
    """With a Python reducer and compiled autograd it has collectives in a graph."""

    def step(x):
        with torch.enable_grad():
            model(x).sum().backward()

    with torch._dynamo.config.patch(optimize_ddp="python_reducer", compiled_autograd=True):
        model = DistributedDataParallel(nn.Linear(8, 8, bias=False))
        graphs, _ = compiled(step)
    assert outcomes(graphs) == [("ordered", None, None, 1)], graphs


def check_opaque_collectives():
    graphs, told = compiled(hidden)
    assert graphs == [] and len(told) == 1
    assert "collectives={'mine::all_reduce': 'all_reduce'}" in told[0]
    assert halflap.torch.status().hidden == ["mine::all_reduce"]

    halflap.torch.enable(collectives={"mine::all_reduce": {"kind": "all_reduce", "group": "pair"}})
    assert halflap.torch.status().hidden == []
    graph = captured(hidden)
    issued = [node["collective"] for node in graph["nodes"] if node["kind"] == "collective"]
    place = {"group": PAIR.group_name, "group_size": 2}
    one = {"op": "all_reduce", **place, "bytes": 8 * 8 * 4, "async": False}
    one |= {"kind": "all_reduce", "dtype": "float32", "input_bytes": 8 * 8 * 4}
    assert len(issued) == 2 and all(one.items() <= found.items() for found in issued)

    # It stays in its place among the others, whatever they may do; and where it is not named, too.
    named = {"collectives": {"mine::all_reduce": "all_reduce"}}
    free = {"collective_order": "free"}
    for options in (named, {**named, **free}, free):
        halflap.torch.enable(**options)
        check_place(captured(among_others), "collective" if "collectives" in options else "compute")
    halflap.torch.enable()


def check_place(graph, kind):
    nodes = {node["name"]: node for node in graph["nodes"]}
    opaque = next(name for name, node in nodes.items() if node["ops"] == ["all_reduce"])
    assert nodes[opaque]["kind"] == kind
    assert kind == "compute" or nodes[opaque]["collective"]["group_size"] == 4
    others = {name for name, node in nodes.items() if node["kind"] == "collective"} - {opaque}
    orders = [[*nodes], halflap.torch.history()[-1].schedule.order]
    before = [others & {*order[: order.index(opaque)]} for order in orders]
    assert before[0] == before[1] and len(others) == 2


def captured(function):
    """The graph of a function, from a folder that has others."""
    torch._dynamo.reset()
    with halflap.torch.capture(FOLDER / "captured"), torch.no_grad():
        torch.compile(function)(torch.ones(8, 8))
    ran = halflap.torch.history()[-1]
    assert ran.failure is None, ran
    return json.loads((FOLDER / "captured" / f"{ran.name}.json").read_text())


def check_a_second_run_keeps_what_was_captured():
    def files():
        return {path.name: path.read_bytes() for path in (FOLDER / "captured").iterdir()}

    before = files()
    # As in a new process.
    session.graphs = 0
    captured(gathered)
    assert before and len(files()) == len(before) + 1 and before.items() <= files().items()


def check_refusals():
    name = "mine::all_reduce"
    for given, why in (
        ({name: "reduce"}, "must be one of all_reduce, all_gather"),
        ({name: {"kind": "all_reduce", "ranks": [0]}}, "or have it as 'kind' beside a 'group'"),
        ({name: {"kind": "all_reduce", "group": 3}}, "a process group or its name, not 3"),
        ({"mine::all_reduced": "all_reduce"}, "Did you mean 'mine::all_reduce'?"),
        ({"nothing::there": "all_reduce"}, "import what registers it before this call"),
        ({"all_reduce": "all_reduce"}, "must be a 'namespace::name'"),
        ({"_c10d_functional::all_reduce": "all_reduce"}, "torch already knows"),
        ([name], "must map operators to kinds"),
    ):
        try:
            halflap.torch.enable(collectives=given)
        except ValueError as problem:
            assert why in str(problem), problem
        else:
            raise AssertionError(f"{given} is taken")
    enabled = [halflap.torch.enable(collectives=one) for one in (None, {}, {name: "all_reduce"})]
    assert len({repr(one.overlap_pass) for one in enabled}) == 2
    halflap.torch.enable()


def gather(shard):
    return collectives.all_gather_tensor_autograd(shard.bfloat16(), 0, dist.group.WORLD)


class Gather(nn.Module):
    """A parameter of its shards, as SimpleFSDP has it."""

    def forward(self, shard):
        return gather(shard)


class Block(nn.Module):
    """Two parameters of shards: one by a parametrization, one by a function."""

    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(8, 2, bias=False)
        self.wo = nn.Parameter(torch.ones(2, 8))
        parametrize.register_parametrization(self.wq, "weight", Gather(), unsafe=True)

    def forward(self, x):
        return self.wq(x) @ gather(self.wo)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        # The second gathers again in its backward graph.
        return checkpoint(self.layers[1], self.layers[0](x), use_reentrant=False)


#: Of the model: its parameters, and the modules that gather them.
MODULES = {
    "layers.0.wq.weight": "layers.0.wq",
    "layers.0.wo": "layers.0",
    "layers.1.wq.weight": "layers.1.wq",
    "layers.1.wo": "layers.1",
}


def check_names():
    """Every collective of forward and backward names its parameter, and its module."""
    torch._dynamo.reset()
    with halflap.torch.capture(FOLDER / "named"):
        torch.compile(Model())(torch.ones(4, 8, dtype=torch.bfloat16)).sum().backward()
    for half, again in (("forward", 0), ("backward", 2)):
        (path,) = (FOLDER / "named").glob(f"*_{half}.json")
        nodes = json.loads(path.read_text())["nodes"]
        for kind in ("collective", "wait"):
            found = [node for node in nodes if node["kind"] == kind]
            assert {node["parameter"]: node["module"] for node in found} == MODULES, found
            # torch 2.10 keeps what it gathered.
            assert len(found) in (len(MODULES), len(MODULES) + again), found
        products = {node["module"] for node in nodes if node.get("gemm_like")}
        assert products == set(MODULES.values()), products


def check_that_looking_breaks_nothing():
    def broken(target):
        raise RuntimeError("broken on purpose")

    before, _watch.operator_name = _watch.operator_name, broken
    try:
        with config.patch(fx_graph_cache=False):
            compiled(gathered)
    finally:
        _watch.operator_name = before
    assert halflap.torch.history()[-1].failure is None


halflap.torch.enable()
check_what_goes_past_us()
check_other_backends()
check_what_comes_after_us()
check_caches()
check_ddp()
check_that_looking_breaks_nothing()
check_refusals()
check_opaque_collectives()
check_a_second_run_keeps_what_was_captured()
check_names()
text = str(halflap.torch.status())
assert "torch's settings are as halflap needs them" in text, text
assert "compiled without halflap; backend 'eager'" in text, text
json.dumps(halflap.torch.status().to_dict())
halflap.torch.disable()
assert "halflap is not enabled" in str(halflap.torch.status())
assert not halflap.torch.status().to_dict()["enabled"]
