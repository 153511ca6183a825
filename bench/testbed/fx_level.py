"""Torch's FX-level scheduling, given estimates that fit what was measured on this machine.

On a CPU torch's own estimates are those of a GPU, or 0, so that it would order blindly.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch._inductor import config
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
