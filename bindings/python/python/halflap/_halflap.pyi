"""What is written in Rust."""

from collections.abc import Sequence
from typing import Any

__version__: str

class Error(Exception):
    """What halflap cannot do, and why."""

class BadInput(Error):
    """The input or an option is at fault; the message names the place."""

class NotValid(Error):
    """An order was to be proved, and it is wrong."""

class RunFailed(Error):
    """What was run did not complete."""

class InternalError(Error):
    """A bug in halflap; the input is not at fault."""

#: What a request reads: the path of a file, or a name for messages and what is in memory.
Input = str | tuple[str, bytes]

class Held:
    """What a command found: rendered only when that is asked for, and never worked out again."""

    #: What it warned of.
    warnings: list[str]

    def json(self) -> str:
        """As JSON."""

    def text(self) -> str:
        """As the command prints it."""

    def page(self) -> str:
        """As a page to look at in a browser."""

    def figures(self) -> Figures:
        """The orders and their figures, of a schedule or a simulation."""

    def profile(self) -> dict[str, float]:
        """Measured times in nanoseconds by name, of an analysis."""

    def program(self) -> str:
        """The program again, as it was changed."""

class Figures:
    """Orders and their figures: nothing was rendered for them."""

    #: The names of nodes in their order, by computation; a graph's has no name.
    orders: list[tuple[str, list[str]]]
    step_time: float
    step_time_before: float
    exposed: float
    exposed_before: float
    peak_memory: int
    peak_memory_before: int
    bound: float | None

def schedule(program: Input, options: dict[str, Any]) -> Held:
    """The best order of a program, or what passes make of it."""

def simulate(program: Input, order: Input | None, options: dict[str, Any]) -> Held:
    """An order in time."""

def explain(program: Input, order: Input | None, options: dict[str, Any]) -> Held:
    """What holds collectives that are exposed."""

def what_if(program: Input, schedule: Input | None, options: dict[str, Any]) -> Held:
    """What more memory or a faster network would gain."""

def verify(program: Input, order: Input, options: dict[str, Any]) -> tuple[str, list[str]]:
    """Proves an order; gives what it needs, and warnings."""

class Ran:
    """What a run of a module gave."""

    #: The outputs of every rank: an archive of arrays named ``out_NNN_rK``.
    outputs: bytes
    #: The summary, as the command prints it.
    text: str
    #: What it warned of.
    warnings: list[str]

def run(module: Input, order: Input | None, inputs: Input, options: dict[str, Any]) -> Ran:
    """Runs a module on all its ranks, with an archive of arrays named ``in_NNN_rK``."""

def analyze(traces: Sequence[str]) -> Held:
    """What ran, from traces."""

def timeline(step: Input) -> Held:
    """A measured step beside its simulation."""

def main(arguments: Sequence[str]) -> int:
    """Is the ``halflap`` command; gives its exit code."""

def described_device(name: str, text: bytes | None = None) -> str:
    """What stands for a device: a preset's name, or the content of the file that ``name`` is or that ``text``
    would be in. Refuses what the command refuses, in the same words."""

def reported_device(name: str) -> str | None:
    """The preset for what a driver calls its device, such as ``"NVIDIA H100 PCIe"``."""

def ranks_per_node(device: str) -> tuple[int, bool]:
    """How many ranks share a node with a device as described, and whether a launcher knows better."""

def modelled_times(
    device: str,
    work: Sequence[tuple[float, int]],
    issued: Sequence[tuple[str, Sequence[int], int]],
    ranks_per_node: int | None = None,
) -> tuple[list[float], list[float]]:
    """The run times in nanoseconds of kernels (operations and bytes) and of collectives (kind, ranks and bytes)
    as the model of a device has them. A kernel that does nothing takes no time."""

def to_json(value: object) -> bytes:
    """Dictionaries, lists, text, numbers, truth values and None as JSON."""
