"""halflap for JAX.

>>> import halflap, halflap.jax
>>> module = halflap.jax.lower(train_step, parameters, batch)
>>> halflap.schedule(module, device="h100")
>>> module.run(parameters, batch).value

`lower` compiles a jitted function for the devices that its arguments are sharded over, and keeps
the program of one device as XLA has it: an HLO module, which all functions of `halflap` take.
`Module.run` computes it with halflap's own runtime, on as many ranks as there are devices, each a
thread of this process.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

try:
    import jax
except ImportError as missing:
    raise ImportError("halflap.jax needs jax, and jax is not installed") from missing

import numpy as np

from . import _halflap
from ._api import Graph, Order, ask, given_options, order_input, program_input
from ._halflap import BadInput

#: Partitioned and not yet optimised, which is what halflap schedules and runs best; or as XLA
#: compiles it.
Stage = Literal["partitioned", "optimized"]

#: The files that XLA dumps a stage to.
DUMPED = {
    "partitioned": re.compile(r"after_spmd-partitioning\..*txt$"),
    "optimized": re.compile(r"after_optimizations\.txt$"),
}


def lower(
    function: Callable[..., Any], *arguments: Any, stage: Stage = "partitioned", **keywords: Any
) -> Module:
    """The program of one device of a jitted function.

    ``arguments`` and ``keywords`` are those of the function, or `jax.ShapeDtypeStruct` in their
    places. A function that is not jitted yet is. ``stage="optimized"`` gives what XLA makes of it
    for the devices of this process; the partitioned program depends on them only by their number.
    """
    if stage not in DUMPED:
        raise ValueError(f"stage must be one of {', '.join(DUMPED)}, not {stage!r}")
    if not hasattr(function, "lower"):
        function = jax.jit(function)
    lowered = function.lower(*arguments, **keywords)
    with tempfile.TemporaryDirectory(prefix="halflap-") as folder:
        compiled = lowered.compile(
            {
                "xla_dump_to": folder,
                "xla_dump_hlo_as_text": True,
                "xla_dump_hlo_pass_re": "spmd-partitioning",
                # Without their values, constants cannot be executed.
                "xla_dump_large_constants": True,
            }
        )
        text = _dumped(folder, stage)
    return Module(text, compiled)


def _dumped(folder: str, stage: Stage) -> str:
    found = sorted(name for name in os.listdir(folder) if DUMPED[stage].search(name))
    if not found:
        raise BadInput(
            f"XLA wrote no {stage} module: a function on one device is not partitioned (take stage='optimized'), "
            "and one that comes from JAX's persistent compilation cache is not compiled"
        )
    with open(os.path.join(folder, found[-1]), encoding="utf-8") as file:
        return file.read()


class Module(Graph):
    """The program of one device, and where its inputs and outputs lie in the arrays of JAX."""

    def __init__(self, text: str, compiled: jax.stages.Compiled) -> None:
        super().__init__(text)
        #: The HLO module.
        self.text = text
        #: JAX's compiled object.
        self.compiled = compiled
        # Rank k is the device that the program calls partition k.
        self._devices = compiled.runtime_executable().local_devices()
        # None for arguments that the function does not use: JAX leaves them out of the program.
        self._inputs = compiled.in_tree.flatten_up_to(compiled.input_shardings)
        self._outputs = compiled.out_tree.flatten_up_to(compiled.output_shardings)

    @property
    def ranks(self) -> int:
        """How many devices it is partitioned for."""
        return len(self._devices)

    @property
    def name(self) -> str:
        """What messages call it."""
        return "<module>"

    def __repr__(self) -> str:
        return f"Module({self.text.split(',', 1)[0].split()[-1]}, {self.ranks} ranks)"

    def run(
        self,
        *arguments: Any,
        options: Mapping[str, Any] | None = None,
        order: Order | None = None,
        **keywords: Any,
    ) -> Run:
        """Computes it on all ranks, as threads of this process.

        ``arguments`` and ``keywords`` are those of the function, with values. ``order`` is what
        `halflap.schedule` gave; without one the best is looked for, unless ``options`` has
        ``input_order=True``. These are the options of ``halflap run``, such as ``{"steps": 3,
        "timeout": "10s"}``.
        """
        if any(map(_is_key, jax.tree.leaves(self.compiled.out_info))):
            raise BadInput(
                "the function gives a random key: have it give jax.random.key_data of it"
            )
        inputs = "<inputs>", self._archive((arguments, keywords))
        given = program_input(self), order_input(order), inputs, given_options(options or {})
        ran = ask(_halflap.run, *given)
        with np.load(io.BytesIO(ran.outputs)) as archive:
            ranks = [self._of_rank(archive, rank) for rank in range(self.ranks)]
        return Run(self, ranks, ran.text)

    def _archive(self, arguments: tuple[Sequence[Any], Mapping[str, Any]]) -> bytes:
        """The inputs of every rank, by their names in `halflap run`."""
        values, tree = jax.tree.flatten(arguments)
        if tree != self.compiled.in_tree:
            takes = f"the function takes {self.compiled.in_tree}, and was given {tree}"
            raise BadInput(f"{takes}; arguments that are static are left out")
        used = [
            (value, sharding)
            for value, sharding in zip(values, self._inputs)
            if sharding is not None
        ]
        arrays = {}
        for number, (value, sharding) in enumerate(used):
            whole = np.asarray(jax.random.key_data(value) if _is_key(value) else value)
            for rank, part in enumerate(self._parts(sharding, whole.shape)):
                arrays[f"in_{number:03}_r{rank}"] = whole[part]
        archive = io.BytesIO()
        np.savez(archive, **arrays)
        return archive.getvalue()

    def _parts(
        self, sharding: jax.sharding.Sharding, shape: tuple[int, ...]
    ) -> list[tuple[slice, ...]]:
        """Which part of an array each rank holds."""
        held = sharding.devices_indices_map(shape)
        return [held[device] for device in self._devices]

    def _of_rank(self, archive: Mapping[str, np.ndarray], rank: int) -> list[np.ndarray]:
        outputs = jax.tree.leaves(self.compiled.out_info)
        arrays = [archive[f"out_{number:03}_r{rank}"] for number in range(len(outputs))]
        # numpy has no bf16 of its own: it comes as two bytes.
        return [
            array.view(output.dtype) if array.dtype.kind == "V" else array
            for array, output in zip(arrays, outputs)
        ]


def _is_key(value: Any) -> bool:
    """Whether it is a random key: an array of bits to XLA, but not an array to numpy."""
    return hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


class Run:
    """The result of a run."""

    def __init__(self, module: Module, ranks: list[list[np.ndarray]], printed: str) -> None:
        #: For each rank its parts of the outputs, in the order of the function's leaves.
        self.ranks = ranks
        self._module = module
        self._printed = printed

    @property
    def value(self) -> Any:
        """The function's result, as whole numpy arrays."""
        infos = jax.tree.leaves(self._module.compiled.out_info)
        wholes = []
        for number, (info, sharding) in enumerate(zip(infos, self._module._outputs)):
            whole = np.empty(info.shape, info.dtype)
            for rank, part in enumerate(self._module._parts(sharding, info.shape)):
                whole[part] = self.ranks[rank][number]
            wholes.append(whole)
        return jax.tree.unflatten(self._module.compiled.out_tree, wholes)

    def __str__(self) -> str:
        return self._printed
