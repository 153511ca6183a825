"""Switches halflap on and off, and looks at torch's settings from this thread and another. Nothing
communicates."""

import pickle
import threading

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config

import halflap
import halflap.torch


def settings():
    own = config.aten_distributed_optimizations
    overlap = [
        getattr(own, name, None) for name in ("enable_simple_overlap", "insert_overlap_deps")
    ]
    partitions = config.triton.reorder_for_reducing_graph_partitions
    passes = repr(config.reorder_for_compute_comm_overlap_passes)
    return (
        config.reorder_for_compute_comm_overlap,
        passes,
        overlap,
        partitions,
        functorch_config.force_non_lazy_backward_lowering,
    )


def seen_by_all():
    """The settings, which all threads must see alike."""
    seen = []
    other = threading.Thread(target=lambda: seen.append(settings()))
    other.start()
    other.join()
    assert seen == [settings()], (seen, settings())
    return seen[0]


def refused(**options):
    try:
        halflap.torch.enable(**options)
    except (TypeError, ValueError, OSError, halflap.BadInput) as problem:
        return str(problem)
    raise AssertionError(f"{options} are taken")


def key(**options):
    return pickle.dumps(halflap.torch.enable(**options).overlap_pass)


before = seen_by_all()
halflap.torch.enable(memory_budget=1.25)
reorders, passes, overlap, partitions, _ = seen_by_all()
assert reorders and "memory_budget='1.25x'" in passes and not any(overlap) and not partitions
# Also where there is no process group.
assert torch.compile(lambda x: x.relu() + 1)(torch.ones(3)).tolist() == [2, 2, 2]
assert halflap.torch.history() == []
halflap.torch.disable()
assert seen_by_all() == before
with halflap.torch.enable():
    assert seen_by_all()[-1]
assert seen_by_all() == before

# A block in a block, and one with options that are refused: afterwards all is as it was.
halflap.torch.enable(memory_budget=1.5)
outside = seen_by_all()
with halflap.torch.enable(memory_budget=1.25):
    inside = seen_by_all()
    with halflap.torch.enable(memory_budget=1.75):
        assert "memory_budget='1.75x'" in seen_by_all()[1]
    assert seen_by_all() == inside != outside
assert seen_by_all() == outside
refused(effort="fast")
assert seen_by_all() == outside
halflap.torch.disable()
assert seen_by_all() == before

# Torch's own merging comes first, or is off, and the status says so.
with config.patch(bucket_all_gathers_fx="all"):
    with halflap.torch.enable():
        status = halflap.torch.status()
        assert "torch merges or orders FX graphs first, as set: bucket_all_gathers_fx='all'" in str(
            status
        )
    with halflap.torch.enable(rewrite="exact", keep="1.5x"):
        status = halflap.torch.status()
        assert status.torchs_own == {} and "settings are as halflap needs them" in str(status)
        assert status.options["keep"] == "1.5x" and config.custom_partitioner_fn is not None
        with config.patch(bucket_all_gathers_fx="all"):
            text = str(halflap.torch.status())
            assert "must be none: torch merges what halflap left apart" in text, text
assert config.custom_partitioner_fn is None and seen_by_all() == before

assert key() == key(report_dir="anywhere") == pickle.dumps(pickle.loads(key()))
assert (
    len(
        {
            key(),
            key(effort="default"),
            key(collective_order="free"),
            key(device="a100"),
            key(profile={"a": 1}),
        }
    )
    == 5
)

assert "must be one of quick, default, thorough" in refused(effort="fast")
assert "it must be a multiple such as 1.2x" in refused(memory_budget="much")
assert "did you mean 'h100'?" in refused(device="h10")
assert "without a closure" in refused(estimate=lambda snode: 1.0)
assert "nothing-there.json" in refused(profile="nothing-there.json")
assert "'40GiB', not None" in refused(memory_budget=None)
assert "keep must be a multiple or a size" in refused(keep=None)
assert "invalid value 'abc' for keep: " in refused(keep="abc")
assert "with 'groups' in a list" in refused(rewrite=["exact", "split"])
assert "call torch.distributed.init_process_group first" in refused(rewrite="groups")
assert "report_dir must be the path of a folder, not 5" in refused(report_dir=5)
for patience in ("yes", -5, 0, float("inf")):
    assert "True, False or a number of seconds above 0" in refused(check_ranks=patience)
assert "'mm' takes 'fast', not a number of nanoseconds" in refused(profile={"mm": "fast"})
assert "must be a function of a node, not 3" in refused(estimate=3)
for size in (0, -1, 1.5, True, "many", 1 << 31):
    assert "unbacked must be a size from 1 to 2147483647, such as 4096" in refused(unbacked=size)
