"""What torch does to FX graphs: its scheduling, its bucketing, and its buckets by module.

Its scheduling is given estimates that fit what was measured on this machine: on a CPU torch's own
are those of a GPU, or 0, so that it would order blindly.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.fx_utils import count_flops_fx


@dataclass(frozen=True)
class Rates:
    """Nanoseconds by unit of work, over all nodes of measured graphs."""

    flop: float
    byte: float
    #: Of each kind of collective.
    sent: dict

    @classmethod
    def of(cls, graphs):
        """From graphs whose nodes have measured run times."""
        spent, done = defaultdict(float), defaultdict(float)
        for graph in graphs:
            for node in graph["nodes"]:
                kind, amount = work(node)
                spent[kind] += node.get("runtime_ns", 0.0)
                done[kind] += amount
        rate = {kind: spent[kind] / done[kind] for kind in done if done[kind]}
        sent = {kind: rate[kind] for kind in rate if kind not in ("flops", "bytes")}
        return cls(rate.get("flops", 0.0), rate.get("bytes", 0.0), sent)

    def time(self, node, override_size=None):
        """Milliseconds of a node of an FX graph."""
        if not isinstance(node.target, torch._ops.OpOverload):
            return None
        made = size_of(node.meta.get("val"))
        read = sum(size_of(other.meta.get("val")) for other in node.all_input_nodes)
        if node.target.namespace == "_c10d_functional":
            size = max(read, made) if override_size is None else override_size
            return size * self.sent.get(kind_of(node.target._overloadpacket.__name__), 0.0) / 1e6
        if node.target.is_view:
            return 0.0
        flops = count_flops_fx(node) or 0
        return (flops * self.flop if flops else (read + made) * self.byte) / 1e6


def work(node):
    """What a node's run time grows with, and how much of it there is."""
    if "collective" in node:
        return kind_of(node["collective"]["op"]), node["collective"]["bytes"]
    return ("flops", node["flops"]) if node.get("flops") else ("bytes", node.get("bytes", 0))


def kind_of(operation):
    """Of a collective, whatever its variant."""
    kinds = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
    return next((kind for kind in kinds if kind in operation), operation)


def size_of(value):
    leaves = torch.utils._pytree.tree_leaves(value)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def scheduling(rates, merges):
    """Settings with which it is on, and may merge collectives."""
    settings = {
        "custom_runtime_estimation": rates.time,
        "enable_overlap_scheduling": True,
        "insert_overlap_deps": True,
        "collective_bucketing": merges,
        # The other estimator measures on a GPU.
        "compute_estimator": "analytical",
    }
    prefix = "aten_distributed_optimizations"
    return config.patch({f"{prefix}.{name}": value for name, value in settings.items()})


def bucketing():
    """Settings with which all collectives that may be merged are, before torch's default
    overlap."""
    kinds = ("all_gathers", "reduce_scatters", "all_reduces")
    return config.patch({f"bucket_{kind}_fx": "all" for kind in kinds})


def by_module(modules):
    """A bucket for each of these modules, which travels while the one before computes."""
    return config.patch(post_grad_custom_post_pass=ByModule([*modules]))


def paths_of(node):
    """The modules that a node is of, outermost first, as `named_modules` calls them: torch's own
    names for those of a compiled module are all the same."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    inner = [(path.partition(".")[2], kind) for path, kind in stack.values()]
    return [(path, kind) for path, kind in inner if path]


class ByModule(CustomGraphPass):
    """Torch's manual bucketing, as torchtitan uses it."""

    def __init__(self, modules):
        self.modules = modules

    def __call__(self, graph):
        from torch._inductor.fx_passes.overlap_manual_scheduling import manual_overlap_bucketing

        manual_overlap_bucketing(
            graph.owning_module, self.modules, insert_overlap_deps=True, module_stack_fn=paths_of
        )

    def uuid(self):
        return None
