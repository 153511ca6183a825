"""Sizes that are symbols, and what kernels count as. Compiles up to the generation of code, and
runs graphs as they are. Nothing communicates."""

import functools
import logging
import pickle
import types
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch._inductor import compile_fx, config, scheduler
from torch._inductor.virtualized import V
from torch.distributed import _functional_collectives as collectives
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.distributed.fake_pg import FakeStore

import halflap.torch
from halflap.torch._flops import Call, causal_pairs, operation_of
from halflap.torch._pass import OverlapPass

torch.manual_seed(0)
torch.set_num_threads(1)
warnings.simplefilter("error", RuntimeWarning)
# Profiles here are there to have names looked up, and need not fit.
warnings.filterwarnings("ignore", "halflap: none of the", RuntimeWarning)
logging.getLogger("torch").setLevel(logging.CRITICAL)
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
config.fx_graph_cache = False
ATEN = torch.ops.aten
WIDTH = 64


class Scheduled(Exception):
    """Raised in the place of the generation of code."""


def stop(_):
    raise Scheduled


def inner(module, inputs, **options):
    try:
        compile_fx.compile_fx_inner(module, inputs, **options)
    except Exception as problem:
        if not isinstance(getattr(problem, "inner_exception", problem), Scheduled):
            raise
    run = lambda values: module(*values)  # noqa: E731
    run._boxed_call = True
    return run


scheduler.Scheduler.codegen = stop
BACKEND = functools.partial(compile_fx.compile_fx, inner_compile=inner)

#: The graphs that were handed over, and all symbols that there were.
programs, environments = [], []


def recorded(self, snodes):
    given = handing_over(self, snodes)
    programs.append(given[0])
    return given


handing_over, OverlapPass.hand_over = OverlapPass.hand_over, recorded


def initialised(self, *args, **kwargs):
    initialise(self, *args, **kwargs)
    environments.append(self)


initialise, ShapeEnv.__init__ = ShapeEnv.__init__, initialised


def handed_over(function, *inputs, **options):
    """The programs of a function, forward and backward, with halflap's `options`."""
    torch._dynamo.reset()
    programs.clear()
    with halflap.torch.enable(**options):
        result = torch.compile(function, backend=BACKEND, fullgraph=True)(*inputs)
        if result.requires_grad:
            result.backward()
    assert halflap.torch.history()[-1].failure is None, halflap.torch.history()[-1].failure
    return list(programs)


def nodes_of(programs, overload):
    """The nodes of an operation."""
    return [
        node
        for program in programs
        for snode, node in zip(program.snodes, program.nodes)
        if getattr(snode.get_nodes()[0].node, "op_overload", None) is overload
    ]


# Dynamic shapes: the same guards, and no more graphs, with halflap as without.


def everything(x):
    """Every kind of kernel whose operations are counted."""
    exchanged = collectives.all_to_all_single_autograd(x @ WEIGHT, None, None, dist.group.WORLD)
    heads = torch.addmm(BIAS, x, WEIGHT).view(1, -1, 4, WIDTH // 4).transpose(1, 2)
    seen = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    scores = torch.bmm(seen[0], seen[0].transpose(1, 2)).mean()
    picture = F.conv2d(x.view(1, 4, -1, WIDTH // 4), FILTER, padding=(1, 2))
    return picture.sum() + scores + exchanged.square().sum()


WEIGHT, BIAS = torch.randn(WIDTH, WIDTH), torch.randn(WIDTH)
FILTER = torch.randn(8, 4, 3, 5)
for parameter in (WEIGHT, BIAS, FILTER):
    torch._dynamo.mark_static(parameter)


def meddling(snode):
    """An estimate that makes numbers of symbols, and asks Inductor to do so."""
    for part in snode.get_nodes():
        for origin in part.node.get_origins() if part.node is not None else ():
            value = origin.meta.get("val")
            if isinstance(value, torch.Tensor):
                value.shape.numel()
                assert value.numel() > 0
        if part.node is not None and part.is_extern():
            part.estimate_flops()
    for buffer in snode.get_outputs():
        if hasattr(buffer.node.layout, "size"):
            V.graph.sizevars.guard_int_seq(buffer.node.layout.size)
    return None


def traced(mark, dynamic):
    """What torch guards, and how many graphs it compiles, for several lengths."""
    torch._dynamo.reset()
    counters.clear()
    environments.clear()
    compiled = torch.compile(everything, backend=BACKEND, dynamic=dynamic)
    for length in (24, 32, 40):
        x = torch.randn(length, WIDTH, requires_grad=True)
        torch._dynamo.mark_static(x, 1)
        if mark:
            torch._dynamo.mark_dynamic(x, 0)
        compiled(x).backward()
    return [facts(one) for one in environments], counters["stats"]["unique_graphs"]


def facts(environment):
    """All that a guard changes."""
    asserts = environment.deferred_runtime_asserts
    return (
        [str(guard.expr) for guard in environment.guards],
        sorted((str(symbol), str(to)) for symbol, to in environment.replacements.items()),
        sorted((str(symbol), str([one.expr for one in asserts[symbol]])) for symbol in asserts),
        sorted((str(symbol), str(to)) for symbol, to in environment.var_to_range.items()),
        environment.counter["ignored_backward_guard"],
    )


for mark, dynamic, graphs in ((True, None, 1), (False, None, 2), (False, True, 1)):
    plain = traced(mark, dynamic)
    assert plain[1] == graphs, plain
    assert any(guards for guards, *_ in plain[0]), "without guards there is nothing to compare"
    for estimate in (None, meddling) if mark else (None,):
        before = len(halflap.torch.history())
        halflap.torch.enable(estimate=estimate, profile={"mm": 1.0})
        ordered = traced(mark, dynamic)
        halflap.torch.disable()
        assert ordered == plain, (mark, dynamic, estimate, ordered, plain)
        ran = halflap.torch.history()[before:]
        assert len(ran) >= 2 * graphs, ran
        assert not any(one.failure or one.assumed_sizes for one in ran), ran


# The operations of each kind of kernel, forward and backward.

x = torch.randn(32, WIDTH, requires_grad=True)
both = handed_over(everything, x)
attention_forward = ATEN._scaled_dot_product_flash_attention_for_cpu.default
attention_backward = ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default
overloads = (
    ATEN.mm.out,
    ATEN.addmm.out,
    ATEN.bmm.out,
    ATEN.convolution.default,
    ATEN.convolution_backward.default,
    attention_forward,
    attention_backward,
)
counted = {one: [node["flops"] for node in nodes_of(both, one)] for one in overloads}
product, heads = 2 * 32 * WIDTH * WIDTH, 4 * causal_pairs(32, 32) * WIDTH // 4
assert counted[ATEN.mm.out] and set(counted[ATEN.mm.out]) == {product}, counted
assert set(counted[ATEN.addmm.out]) == {product}, counted
assert counted[ATEN.bmm.out] and set(counted[ATEN.bmm.out]) == {2 * 32 * 32 * WIDTH}, counted
convolved = 2 * (8 * 32 * WIDTH // 4) * (4 * 3 * 5)
assert counted[ATEN.convolution.default] == [convolved], counted
# The weights need no gradient.
assert counted[ATEN.convolution_backward.default] == [convolved], counted
assert counted[attention_forward] == [2 * 2 * heads], counted
assert counted[attention_backward] == [2 * 5 * heads], counted


class Numbers:
    """Hints of sizes that are numbers."""

    @staticmethod
    def number(size):
        return size

    @staticmethod
    def product(sizes):
        return functools.reduce(int.__mul__, sizes, 1)


def tensor(*sizes):
    return types.SimpleNamespace(get_size=lambda: sizes)


def attention(overload, query, key, **arguments):
    """The operations of attention with heads of 16 and values of 8; arguments by their names."""
    tensors = {"query": tensor(*query, 16), "key": tensor(*key, 16), "value": tensor(*key, 8)}
    given = {**tensors, **arguments}
    args = [given.get(one.name) for one in overload._schema.arguments]
    return Call(operation_of(overload), args, {}).flops(None, Numbers)


# Three queries and five keys: from the upper left 1 + 2 + 3 pairs, from the lower right 3 + 4 + 5.
assert [causal_pairs(3, 5), causal_pairs(5, 3), causal_pairs(4, 4)] == [6, 12, 10]
batch, forward, backward = 2 * 7, 2 * (16 + 8), 2 * (3 * 16 + 2 * 8)
kinds = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
for kind in (*kinds, "fused_attention_overrideable"):
    for suffix, summed in (("", forward), ("_backward", backward)):
        overload = getattr(ATEN, f"_scaled_dot_product_{kind}{suffix}").default
        for causal, pairs in ((False, 3 * 5), (True, 6)):
            found = attention(overload, (2, 7, 3), (2, 7, 5), is_causal=causal)
            assert found == batch * pairs * summed, (overload, causal, found)
# Sequences come before heads, and the last query sees all keys.
flash, efficient = ATEN._flash_attention_forward.default, ATEN._efficient_attention_forward.default
assert attention(flash, (2, 3, 7), (2, 5, 7), is_causal=False) == batch * 15 * forward
assert attention(flash, (2, 3, 7), (2, 5, 7), is_causal=True) == batch * 12 * forward
assert attention(efficient, (2, 3, 7), (2, 5, 7), custom_mask_type=1) == batch * 12 * forward
# Two sequences of up to 4 in a row.
assert attention(flash, (8, 7), (8, 7), max_q=4, max_k=4, is_causal=True) == batch * 10 * forward


def grouped(first, second):
    args = [tensor(*first), tensor(*second)]
    return Call(operation_of(ATEN._grouped_mm.default), args, {}).flops(None, Numbers)


# Groups share the rows of the first, the columns of the second, or what is summed over.
assert grouped((40, 16), (3, 16, 8)) == grouped((16, 40), (40, 8)) == 2 * 40 * 16 * 8
assert grouped((3, 16, 8), (8, 40)) == 2 * 16 * 8 * 40


# Sizes that depend on data.


def experts(x, counts, up, down):
    """Tokens go to experts on other ranks, as many as there are, and back."""
    sent, received = counts.tolist(), (counts + 0).tolist()
    tokens = collectives.all_to_all_single(x, received, sent, dist.group.WORLD)
    done = F.gelu(collectives.wait_tensor(tokens) @ up) @ down
    back = collectives.all_to_all_single(done, sent, received, dist.group.WORLD)
    return collectives.wait_tensor(back).sum()


torch._dynamo.config.capture_scalar_outputs = True
torch._dynamo.config.capture_dynamic_output_shape_ops = True
weights = torch.randn(WIDTH, 128), torch.randn(128, WIDTH)
given = (torch.randn(32, WIDTH), torch.tensor([16, 16]), *weights)
for unbacked, each in ((None, config.unbacked_symint_fallback), (100, 100)):
    [program] = handed_over(experts, *given, unbacked=unbacked)
    # From each of both ranks.
    tokens = 2 * each
    flops = [node["flops"] for node in nodes_of([program], ATEN.mm.out)]
    assert flops == 2 * [2 * tokens * WIDTH * 128], flops
    received = [node for node in program.nodes if "collective" in node][0]
    [buffer] = [one for one in program.buffers if one["name"] == received["outputs"][0]]
    assert received["collective"]["bytes"] == 4 * tokens * WIDTH
    assert buffer["size_alloc"] == buffer["size_free"] == 4 * tokens * WIDTH
    ran = halflap.torch.history()[-1]
    assert len(ran.assumed_sizes) == 4, ran
    assert set(ran.assumed_sizes.values()) == {each}, ran.assumed_sizes
keys = [pickle.dumps(halflap.torch.enable(unbacked=size).overlap_pass) for size in (None, 100, 200)]
halflap.torch.disable()
assert len(set(keys)) == 3
# A profile has the times of all sizes that occurred.
profile = {f"mm [{rows}, 64] [64, 128]": 1e3 * rows for rows in (10, 20, 90)}
profile |= {"all_to_all of 2, 512 bytes": 77.0, "mm [20, 64] [64, 64]": 5.0}
[program] = handed_over(experts, *given, profile=profile)
assert nodes_of([program], ATEN.mm.out)[0]["kernel"] == "mm [?, 64] [64, 128]"
assert nodes_of([program], ATEN.mm.out)[0]["runtime_ns"] == 20e3
assert {node["runtime_ns"] for node in program.nodes if "collective" in node} == {77.0}


def chosen(x, mask):
    """No more than there are to choose from."""
    reduced = collectives.all_reduce(x @ WEIGHT, "sum", dist.group.WORLD)
    return (x[mask.nonzero()[:, 0]] @ WEIGHT).sum() + collectives.wait_tensor(reduced).sum()


[program] = handed_over(chosen, x.detach(), torch.rand(32) > 0.5)
# One of them is reduced in place by a collective, which is then another of its origins.
assert {node["flops"] for node in nodes_of([program], ATEN.mm.out)} == {product}
assert list(halflap.torch.history()[-1].assumed_sizes.values()) == [32]


# Views move nothing, take no memory, and keep alive what they show.


def rotated(x, turns):
    reduced = collectives.all_reduce(x @ WEIGHT, "sum", dist.group.WORLD)
    numbers = torch.view_as_complex((x * 2).reshape(32, -1, 2)) * turns
    conjugated = torch.view_as_real(numbers * torch.conj(numbers))
    turned = torch.view_as_real(numbers).flatten(1) @ WEIGHT
    return turned + collectives.wait_tensor(reduced) + conjugated.sum()


[program] = handed_over(rotated, x.detach(), torch.randn(32, 32, dtype=torch.complex64))
views = nodes_of([program], ATEN.view_as_real.default)
views += nodes_of([program], ATEN.view_as_complex.default)
assert len(views) == 3 and all(node["bytes"] == node["runtime_ns"] == 0 for node in views), views
buffers = {buffer["name"]: buffer for buffer in program.buffers}
for view in views:
    own = buffers[view["outputs"][0]]
    [shown] = [buffers[dep["buffer"]] for dep in view["deps"] if dep["kinds"] == ["data"]]
    assert own["size_alloc"] == own["size_free"] == 0, own
    assert own["users"] and set(own["users"]) <= set(shown["users"]), (own, shown)
# What reads a view reads all that it shows.
multiplied = nodes_of([program], ATEN.mul.Tensor)
assert multiplied and all(node["bytes"] >= 2 * 4 * 32 * WIDTH for node in multiplied), multiplied
assert all(node["runtime_ns"] > 0 for node in multiplied), multiplied
