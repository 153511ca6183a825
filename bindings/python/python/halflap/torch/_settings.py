"""Inductor's settings: what we switch, and how it was."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch._functorch import config as functorch_config
from torch._inductor import comms, compile_fx, config, config_comms
from torch._inductor.codecache import FxGraphCache
from torch._inductor.graph import GraphLowering

from ._both import generates_both
from ._judged import judged
from ._version import UnknownTorch


def check_settings() -> None:
    """Refuses a torch that has no place for our pass."""
    if not torch.distributed.is_available():
        raise UnknownTorch(
            "this torch was built without torch.distributed: there are no collectives to hide"
        )
    needed = ("reorder_for_compute_comm_overlap", "reorder_for_compute_comm_overlap_passes")
    missing = [name for name in needed if not hasattr(config, name)]
    if missing:
        raise UnknownTorch(
            f"torch {torch.__version__} has no setting {missing[0]}: halflap cannot plug into it"
        )


class Settings:
    """Settings that were changed, to be restored."""

    def __init__(self) -> None:
        self._undo: list[Any] = []

    def set(self, module: Any, name: str, value: Any) -> None:
        """Changes a setting for all threads; one that this torch does not have is as it should
        be."""
        if not _has(module, name):
            return
        before = _get(module, name)
        self._undo.append(lambda: _set(module, name, before))
        _set(module, name, value)
        entry = getattr(module, "_config", {}).get(name)
        # Since some version what is set is seen by this thread alone, and GPUs' backward graphs
        # compile on another: what others see is the default.
        if entry is not None and isinstance(entry.user_override, ContextVar):
            default = entry.default
            self._undo.append(lambda: setattr(entry, "default", default))
            entry.default = value

    def replace(self, module: types.ModuleType | type, name: str, function: Any) -> None:
        """Puts a function of a module or a class in the place of another."""
        before = vars(module)[name]
        self._undo.append(lambda: setattr(module, name, before))
        setattr(module, name, function)

    def restore(self) -> None:
        """Sets everything back, the last change first."""
        while self._undo:
            self._undo.pop()()


def _has(module: Any, name: str) -> bool:
    try:
        _get(module, name)
    except AttributeError:
        return False
    return True


def _get(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def _set(module: Any, name: str, value: Any) -> None:
    *path, last = name.split(".")
    for part in path:
        module = getattr(module, part)
    setattr(module, last, value)


ON = "reorder_for_compute_comm_overlap"
PASSES = "reorder_for_compute_comm_overlap_passes"
DETERMINISTIC = "deterministic"
SIMPLE = "aten_distributed_optimizations.enable_simple_overlap"


class Needed(NamedTuple):
    """A setting, the value that we need, and what happens with another."""

    module: types.ModuleType
    name: str
    value: Any
    otherwise: str
    #: Whether our pass does not run at all with another value.
    stops: bool = False

    def now(self) -> Any:
        """Its value, as this thread sees it; ours where this torch has no such setting."""
        return _get(self.module, self.name) if _has(self.module, self.name) else self.value


def needed(our_pass: Any) -> list[Needed]:
    """Every setting that decides whether and how our pass runs."""
    own = "aten_distributed_optimizations"
    align = "runtime_estimations_align_across_all_distributed_ranks"
    reorders = "torch reorders what halflap ordered"
    binds = "torch binds nodes to the order that it found"
    hangs = "torch communicates while compiling, and hangs where one rank's cache has the graph"
    return [
        Needed(config, ON, True, "torch runs no passes, halflap's included", stops=True),
        Needed(
            config, PASSES, [our_pass], "halflap's pass is not there, or not the last", stops=True
        ),
        Needed(config, DETERMINISTIC, False, "torch skips all passes", stops=True),
        Needed(config, SIMPLE, False, reorders),
        Needed(config, "triton.reorder_for_reducing_graph_partitions", False, reorders),
        Needed(config, f"{own}.insert_overlap_deps", False, binds),
        Needed(config, f"{own}.spmd_check", False, hangs),
        Needed(config_comms, align, False, hangs),
    ]


def shown(value: Any) -> Any:
    """A setting's value for people: passes by their names, because in words they are very long."""
    if not isinstance(value, (list, tuple)):
        return value
    names = [getattr(one, "__name__", type(one).__name__) for one in value]
    return [one if isinstance(one, str) else name for one, name in zip(value, names)]


def differing(our_pass: Any) -> list[Needed]:
    """The settings that are not as we need them, as this thread sees them now."""
    return [one for one in needed(our_pass) if not is_as_needed(one)]


def is_as_needed(one: Needed) -> bool:
    """Whether a setting is, as this thread sees it now."""
    if one.name == PASSES:
        # Passes before ours do no harm. By their words: other threads see a copy of ours.
        return repr([*one.now()][-1:]) == repr(one.value)
    return one.now() == one.value


#: The passes that torch runs without us, in sequence, as they were when we were last plugged in.
_torchs: list[Any] = []


def torch_default(snodes: list[Any]) -> list[Any]:
    """What torch makes of nodes without us."""
    return _run(_torchs, snodes)


def _note_default() -> None:
    """Notes what torch would do, unless we are plugged in."""
    passes = [*getattr(config, PASSES)] if getattr(config, ON) else []
    if any(hasattr(one, "is_halflaps") for one in passes):
        return
    if _has(config, SIMPLE) and _get(config, SIMPLE):
        passes.append("simple_overlap")
    _torchs[:] = passes


def plug_in(settings: Settings, our_pass: Any) -> None:
    """Has our pass order every graph, and switches off what would undo that."""
    _note_default()
    for one in needed(our_pass):
        # A user who wants deterministic results gets them, and a warning.
        if one.name != DETERMINISTIC:
            settings.set(one.module, one.name, one.value)
    if "get_rank" in comms.reorder_compute_and_comm_for_overlap.__code__.co_names:
        settings.replace(comms, "reorder_compute_and_comm_for_overlap", run_passes)
    if config.deterministic:
        warnings.warn("torch skips halflap's pass while config.deterministic is set", stacklevel=4)


#: Torch's own merging and FX-level scheduling, which come after our pass over FX graphs and before
#: the one over scheduler nodes.
MERGING = ("bucket_all_gathers_fx", "bucket_reduce_scatters_fx", "bucket_all_reduces_fx")
SCHEDULING = "aten_distributed_optimizations.enable_overlap_scheduling"
POST_GRAD = "post_grad_custom_post_pass"


def needed_by_rewrites() -> list[Needed]:
    """What must be off so that halflap alone decides what is merged."""
    merges = "torch merges what halflap left apart"
    scheduling = Needed(config, SCHEDULING, False, "torch orders and merges after halflap merged")
    return [*[Needed(config, name, "none", merges) for name in MERGING], scheduling]


def torchs_own() -> dict[str, Any]:
    """Torch's own merging and FX-level scheduling, as far as they are on."""
    return {one.name: one.now() for one in needed_by_rewrites() if one.now() != one.value}


def rewrite_first(settings: Settings, graph_pass: Any) -> None:
    """Has FX graphs rewritten before they are lowered, after what the user has there; torch's own
    merging and FX-level scheduling are off."""
    own = getattr(config, POST_GRAD)
    settings.set(config, POST_GRAD, graph_pass if own is None else graph_pass.after(own))
    for one in needed_by_rewrites():
        settings.set(one.module, one.name, one.value)


COMPILE = "fx_codegen_and_compile"


def judge_rewrites(settings: Settings, copy_of: Callable[[Any], Any]) -> None:
    """Has what was rewritten compared with what it was once both are fused."""
    compile_one = vars(compile_fx)[COMPILE]
    settings.replace(compile_fx, COMPILE, judged(compile_one, copy_of))


PARTITIONER = "custom_partitioner_fn"


def partition_with(settings: Settings, partitioner: Any) -> None:
    """Has joint graphs cut in two by ours, which calls the user's if there is one."""
    if not hasattr(config, PARTITIONER):
        raise UnknownTorch(f"torch {torch.__version__} has no setting {PARTITIONER}: keep needs it")
    partitioner.inner = getattr(config, PARTITIONER)
    settings.set(config, PARTITIONER, partitioner)


def keep_failures_out(settings: Settings, is_kept_out: Callable[[], bool]) -> None:
    """Has a graph that our pass failed on compiled again the next time: in a compile cache it would
    stand for what our pass gives."""
    cache = vars(FxGraphCache).get("_save_graph")
    if not isinstance(cache, staticmethod):
        return

    def save_graph(*given: Any, **named: Any) -> None:
        if not is_kept_out():
            cache(*given, **named)

    settings.replace(FxGraphCache, "_save_graph", staticmethod(save_graph))


def generate_both(settings: Settings, on_failure: Callable[[Any, Exception], None]) -> None:
    """Has programs generated in both orders of collectives, where our pass asks for that."""
    generate = vars(GraphLowering)["codegen"]
    settings.replace(GraphLowering, "codegen", generates_both(generate, on_failure))


def run_passes(snodes: list[Any]) -> list[Any]:
    """Runs the passes. torch 2.10's own also asks for a rank, which fails without a process group,
    and prints."""
    return _run(getattr(config, PASSES), snodes)


def _run(passes: list[Any], snodes: list[Any]) -> list[Any]:
    for named in passes:
        snodes = (getattr(comms, named) if isinstance(named, str) else named)(snodes)
    return snodes


def compile_anew(settings: Settings) -> None:
    """Switches compile caches off."""
    settings.set(config, "fx_graph_cache", False)
    settings.set(config, "fx_graph_remote_cache", False)
    settings.set(functorch_config, "enable_autograd_cache", False)
    settings.set(functorch_config, "enable_remote_autograd_cache", False)


def compile_backward_at_once(settings: Settings) -> None:
    """Has backward graphs compiled with their forward graphs, and not when they are first run."""
    settings.set(functorch_config, "force_non_lazy_backward_lowering", True)
