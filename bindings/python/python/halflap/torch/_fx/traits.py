"""What an FX node is: a collective, a wait, a view, something that others may notice."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from .._collectives import is_known, looks_collective, operator_name

#: Called on numbers and tuples, without any effect.
PLAIN_MODULES = ("_operator", "math", "builtins", "torch.utils._sympy.functions")

#: Operators without a kernel of their own that generated code fuses with its neighbours, beside
#: those that have torch's pointwise tag.
FUSED = {
    "convert_element_type",
    "_to_copy",
    "clone",
    "where",
    "full",
    "full_like",
    "iota",
    "arange",
    "sum",
    "mean",
    "amax",
    "amin",
    "var",
    "var_mean",
    "_softmax",
    "_log_softmax",
    "prod",
    "any",
    "all",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "native_layer_norm",
    "_fused_rms_norm",
    "constant_pad_nd",
    "ones",
    "zeros",
    "empty_like",
    "zeros_like",
    "ones_like",
    "scalar_tensor",
    "fill",
    "masked_fill",
    "triu",
    "tril",
    "inductor_lookup_seed",
}

#: Higher-order operators that write to nothing they are given.
FUNCTIONAL = {
    "auto_functionalized",
    "auto_functionalized_v2",
    "triton_kernel_wrapper_functional",
    "flex_attention",
    "flex_attention_backward",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "graphsafe_run_with_rng_state",
    "with_effects",
    "associative_scan",
    "scan",
    "map_impl",
}

#: What other operators may be bound to in ways that the graph does not say.
NOT_OURS = {"control_deps", "subgraph_passes"}


class Traits(NamedTuple):
    """What matters about a node."""

    #: ``compute``, ``collective`` or ``wait``.
    kind: str
    #: Among collectives: it communicates, or may, in ways that we do not know.
    keeps_place: bool = False
    #: Others may notice when it runs: side effects, random generators, what is unknown.
    is_pinned: bool = False
    #: Shows the memory of others; runs nothing.
    is_view: bool = False
    #: Is fused with its neighbours in generated code.
    is_fused: bool = False
    #: Runs nothing on the device.
    is_idle: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether nothing binds it but what it reads."""
        return self.kind == "compute" and not (self.is_pinned or self.keeps_place)


def traits_of(node: Node) -> Traits:
    """Classified once for each operator; what depends on arguments is looked at."""
    target = node.target
    traits = _known.get(id(target))
    if traits is not None:
        return traits
    if isinstance(target, HigherOrderOperator):
        return _higher_order(node)
    traits = _classify(target)
    if isinstance(target, OpOverload):
        # Overloads live as long as torch does; other callables may not.
        _known[id(target)] = traits
    return traits


_known: dict[int, Traits] = {}


def _classify(target: Any) -> Traits:
    if not isinstance(target, OpOverload):
        return _callable(target)
    name = operator_name(target) or ""
    if name.startswith("_c10d_functional") and "::wait_tensor" in name:
        return Traits("wait")
    if is_known(name):
        return Traits("collective")
    short = target._overloadpacket.__name__
    if looks_collective(name) or name.startswith(("symm_mem::", "c10d::")):
        return Traits("compute", keeps_place=True, is_pinned=True)
    random = torch.Tag.nondeterministic_seeded in target.tags
    if random or _has_effects(target) or name.startswith("streams::"):
        return Traits("compute", is_pinned=True, is_idle=name.startswith("aten::_assert"))
    if is_view(target):
        return Traits("compute", is_view=True, is_idle=True)
    is_fused = torch.Tag.pointwise in target.tags or short in FUSED
    return Traits("compute", is_fused=is_fused and not target._schema.is_mutable)


def is_view(target: OpOverload) -> bool:
    """By its schema: it writes nothing, and all that it gives is what it was given."""
    schema = target._schema
    if schema.is_mutable or not schema.returns:
        return False
    return all(given.alias_info is not None for given in schema.returns)


def _has_effects(target: OpOverload) -> bool:
    """Whether others may notice that it runs, beside what its schema says that it writes."""
    try:
        from torch._higher_order_ops.effects import has_effects
    except ImportError:
        has_effects = None
    name = target._schema.name
    if name in _EFFECTS or not target._schema.returns:
        # What gives nothing and writes to its arguments is bound by these.
        return name in _EFFECTS or not target._schema.is_mutable
    return has_effects is not None and _asked(has_effects, target)


#: Operators with an effect on the host, or that read a random generator without torch's tag.
_EFFECTS = {
    "aten::_assert_async",
    "aten::_assert_scalar",
    "aten::_assert_tensor_metadata",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
    "aten::item",
    "aten::_local_scalar_dense",
    "aten::_print",
    "prims::inductor_seed",
    "prims::inductor_seeds",
    "aten::record_stream",
}


def _asked(has_effects: Any, target: OpOverload) -> bool:
    try:
        return bool(has_effects(target))
    except TypeError:
        # Before torch 2.12 it also wants the arguments.
        return False


def _callable(target: Any) -> Traits:
    """A function of Python: arithmetic of sizes and parts of tuples have no effect, others may."""
    module = getattr(target, "__module__", "") or ""
    name = getattr(target, "__name__", "")
    if target is operator.getitem:
        return Traits("compute", is_view=True, is_idle=True)
    if module in PLAIN_MODULES or (module == "torch" and name.startswith("sym_")):
        return Traits("compute", is_idle=True)
    return Traits("compute", keeps_place=True, is_pinned=True)


def _higher_order(node: Node) -> Traits:
    """What has a graph of its own may communicate in it."""
    has_body = any(one.op == "get_attr" and _is_graph(one) for one in node.all_input_nodes)
    names = [operator_name(one) or "" for one in node.args if isinstance(one, OpOverload)]
    communicates = any(is_known(name) or looks_collective(name) for name in names)
    is_flex = node.target._name.startswith("flex_attention")
    return Traits("compute", keeps_place=communicates or (has_body and not is_flex), is_pinned=True)


def _is_graph(node: Node) -> bool:
    owner: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        owner = getattr(owner, part, None)
    return isinstance(owner, torch.nn.Module) or owner is None


def written_by(node: Node) -> list[Node]:
    """The arguments that a node writes to."""
    target = node.target
    if isinstance(target, OpOverload):
        return _given(node, _shared(target).written)
    if isinstance(target, HigherOrderOperator):
        return [] if target._name in FUNCTIONAL else node.all_input_nodes
    return [] if _callable(target).is_plain else node.all_input_nodes


def aliased_by(node: Node) -> list[Node]:
    """The arguments whose memory a node's result may be."""
    target = node.target
    if isinstance(target, OpOverload):
        return _given(node, _shared(target).shown)
    if target is operator.getitem:
        return nodes_in(node.args[0])
    return [] if isinstance(target, HigherOrderOperator) else node.all_input_nodes


def _given(node: Node, places: tuple[tuple[int, str], ...]) -> list[Node]:
    """The nodes in some arguments of a call."""
    found = []
    for number, name in places:
        found += nodes_in(node.args[number] if number < len(node.args) else node.kwargs.get(name))
    return found


class _Shared(NamedTuple):
    """Places and names of arguments."""

    #: Those that an operator writes to.
    written: tuple[tuple[int, str], ...]
    #: Those whose memory it may give.
    shown: tuple[tuple[int, str], ...]


def _shared(target: OpOverload) -> _Shared:
    """Read once: torch makes new objects of a schema whenever it is asked."""
    known = _memory.get(id(target))
    if known is None:
        schema = target._schema
        named = [(number, one.name) for number, one in enumerate(schema.arguments)]
        pairs = [*zip(named, [one.alias_info for one in schema.arguments])]
        gives = any(given.alias_info is not None for given in schema.returns)
        shown = [place for place, alias in pairs if gives and alias is not None]
        if _classify(target).kind == "wait":
            shown = named[:1]
        written = [place for place, alias in pairs if alias is not None and alias.is_write]
        known = _memory[id(target)] = _Shared(tuple(written), tuple(shown))
    return known


#: By their identities, as `_known`.
_memory: dict[int, _Shared] = {}


def nodes_in(value: Any) -> list[Node]:
    """The nodes in an argument."""
    if isinstance(value, Node):
        return [value]
    if isinstance(value, (tuple, list)):
        return [node for one in value for node in nodes_in(one)]
    if isinstance(value, dict):
        return [node for one in value.values() for node in nodes_in(one)]
    return []
