"""Which module a node comes from, and which parameter a collective gathers or reduces.

Torch notes on every operation the module of the user's program (``nn_module_stack``), and on
every input and output of a graph what it stands for (``desc``). Dynamo's inputs have the
parameters' names. A collective belongs to the parameters that it is made of, or to those whose
gradients are made of it, through operations that only reshape, cast or scale.
"""

from __future__ import annotations

import itertools
import logging
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._guards import CompileContext
from torch._ops import OpOverload

from ._collectives import NAMESPACES, looks_collective, operator_name

log = logging.getLogger(__name__)

#: What a parameter goes through on its way to a collective, and a gradient from one, besides
#: pointwise operations.
RESHAPES = {
    *("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "squeeze", "unsqueeze"),
    *("expand", "slice", "select", "split", "split_with_sizes", "unbind", "cat", "as_strided"),
    *("constant_pad_nd", "clone", "alias", "detach", "contiguous", "_to_copy"),
    "convert_element_type",
}

#: How far that way is followed.
FARTHEST = 1000

#: Modules that wrap one of the user's, which has another name without them.
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")

#: More parameters than this are counted, not named.
MOST_NAMES = 8

#: By compilation, the parameters that are inputs of its graph, and those that the tensors which it
#: saves for backward are made of.
_inputs: dict[str, list[str | None]] = {}
_saved: dict[str, dict[str, list[str]]] = {}


def keep_inputs(graph: torch.fx.GraphModule) -> None:
    """Keeps the names of the inputs of Dynamo's graph, which the graphs that become of it lack."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    _inputs[_compilation()] = [parameter_of_source(_source_name(node)) for node in placeholders]


def _source_name(placeholder: torch.fx.Node) -> str:
    source = getattr(placeholder.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    # A method before torch 2.10.
    return name() if callable(name) else name


def parameter_of_source(source: str) -> str | None:
    """``wq.weight`` of ``L['self']._modules['wq']._parameters['weight']``."""
    if "._parameters[" not in source:
        return None
    return plain(".".join(re.findall(r"\._(?:modules|parameters)\['([^']*)'\]", source)))


def plain(name: str) -> str:
    """A parameter's name without what wraps its module, or computes it from another."""
    module, computed = split_off_parametrization(name)
    return computed or module


def split_off_parametrization(name: str) -> tuple[str, str | None]:
    """``layers.0.wq`` and ``layers.0.wq.weight`` of ``layers.0.wq.parametrizations.weight.0``."""
    kept = [part for part in name.split(".") if part not in WRAPPERS]
    if "parametrizations" not in kept[:-1]:
        return ".".join(kept), None
    at = kept.index("parametrizations")
    return ".".join(kept[:at]), ".".join([*kept[:at], kept[at + 1]])


def module_of(node: torch.fx.Node) -> tuple[str, str | None]:
    """The path of the innermost module that an operation is part of, empty if there is none; and
    the parameter that it computes, if it is part of that parameter's parametrization."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = str([*stack.values()][-1][0]) if stack else ""
    path = re.sub(r"^[LG]\['[^']*'\]", "", path)
    # Indices and dictionaries of modules, as parts of a path.
    path = re.sub(r"(?:\._modules)?\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", path)
    return split_off_parametrization(path.strip("."))


def common(paths: Iterable[str]) -> str:
    """The module that all of these are parts of."""
    split = [path.split(".") for path in paths if path]
    same = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*split))
    return ".".join(parts[0] for parts in same)


class Names:
    """The names of one graph."""

    def __init__(self) -> None:
        self._compilation = _compilation()
        self._graph: torch.fx.Graph | None = None

    def of(self, origins: list[torch.fx.Node], kind: str) -> dict[str, str]:
        """The fields of a node that name its module and its parameters, as far as they are known.
        No order depends on them, so it must not matter if torch notes things differently."""
        try:
            return self._fields(origins, kind)
        except Exception as problem:
            log.debug("halflap cannot read where %s comes from: %s", origins, problem)
            return {}

    def _fields(self, origins: list[torch.fx.Node], kind: str) -> dict[str, str]:
        found = [module_of(origin) for origin in origins]
        module = common(path for path, _ in found)
        fields = {"module": module} if module else {}
        if kind in ("collective", "wait"):
            self._graph = origins[0].graph if origins else None
            parameters = self._parameters(origins) or sorted({name for _, name in found if name})
            if parameters:
                fields["parameter"] = listed(parameters)
        return fields

    def keep_saved(self) -> None:
        """Keeps what the outputs of a forward graph are made of: its backward graph reads some."""
        try:
            self._keep_saved()
        except Exception as problem:
            log.debug("halflap cannot read what is saved for backward: %s", problem)

    def _keep_saved(self) -> None:
        if self._graph is None:
            return
        outputs = self._graph.output_node().all_input_nodes
        made_of = {node.name: self._made_of(node) for node in outputs if node.op != "placeholder"}
        _saved[self._compilation] = {name: found for name, found in made_of.items() if found}

    def _parameters(self, origins: list[torch.fx.Node]) -> list[str]:
        for origin in filter(_communicates, origins):
            found = self._made_of(origin) or self._gradients_of(origin)
            if found:
                return found
        return []

    def _made_of(self, node: torch.fx.Node) -> list[str]:
        """The parameters that it is made of, if it is made of nothing else."""
        return self._reached(node, lambda reached: reached.all_input_nodes, self._of_input)

    def _gradients_of(self, node: torch.fx.Node) -> list[str]:
        """The parameters whose gradients are made of it, if nothing else is."""
        return self._reached(node, lambda reached: [*reached.users], self._of_output)

    def _reached(
        self,
        start: torch.fx.Node,
        next_of: Callable[[torch.fx.Node], Iterable[torch.fx.Node]],
        named: Callable[[torch.fx.Node, torch.fx.Node], list[str] | None],
    ) -> list[str]:
        """Follows a value in one direction to where all ways end; nothing if one of them ends in
        what has no parameter's name, or leads through real work."""
        found: dict[str, None] = {}
        seen, open_ends = {start}, [start]
        while open_ends:
            node = open_ends.pop()
            for reached in next_of(node):
                parameters = named(reached, node)
                if parameters is not None:
                    found.update(dict.fromkeys(parameters))
                elif not _is_light(reached) or len(seen) > FARTHEST:
                    return []
                elif reached not in seen:
                    seen.add(reached)
                    open_ends.append(reached)
        return sorted(found)

    def _of_input(self, node: torch.fx.Node, _: torch.fx.Node) -> list[str] | None:
        if node.op != "placeholder":
            return None
        parameter = self._described(node.meta.get("desc"))
        if parameter is not None:
            return [parameter]
        return _saved.get(self._compilation, {}).get(node.name)

    def _of_output(self, node: torch.fx.Node, value: torch.fx.Node) -> list[str] | None:
        if node.op != "output":
            return None
        outputs = zip(node.args[0], node.meta.get("desc") or ())
        descs = [desc for output, desc in outputs if output is value]
        names = [self._described(getattr(desc, "grad_of", None)) for desc in descs]
        return [name for name in names if name] if names and all(names) else None

    def _described(self, desc: Any) -> str | None:
        """The parameter that torch's description of an input means."""
        while desc is not None and not hasattr(desc, "target") and not hasattr(desc, "idx"):
            # Of a tensor in a subclass, or of the tensor that it is a view of.
            desc = getattr(desc, "base", None) or getattr(desc, "base_of", None)
        if hasattr(desc, "target"):
            return plain(desc.target) if desc.is_param() else None
        if type(desc).__name__ != "PlainAOTInput":
            return None
        inputs = _inputs.get(self._compilation, [])
        return inputs[desc.idx] if desc.idx < len(inputs) else None


def listed(parameters: list[str]) -> str:
    """The names of a few, and how many more there are."""
    left_out = len(parameters) - MOST_NAMES
    shown = ", ".join(parameters[:MOST_NAMES])
    return f"{shown} and {left_out} more" if left_out > 0 else shown


def _communicates(node: torch.fx.Node) -> bool:
    name = operator_name(node.target) or ""
    return name.startswith(NAMESPACES) or looks_collective(name)


def _is_light(node: torch.fx.Node) -> bool:
    """Whether an operation only reshapes, casts or scales; or is another step of communication."""
    if node.target is operator.getitem or _communicates(node):
        return True
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    namespace, _, name = target._schema.name.partition("::")
    return torch.Tag.pointwise in target.tags or name in RESHAPES or namespace == "bucketing"


def _compilation() -> str:
    """What is compiled here: the same for a graph of Dynamo's and all that becomes of it."""
    return str(CompileContext.current_compile_id())
