"""What is written in Rust."""

from collections.abc import Sequence

__version__: str

class Error(Exception):
    """What halflap cannot do, and why."""

class BadInput(Error):
    """The input or an option is at fault; the message names the place."""

class NotValid(Error):
    """An order was to be proved, and it is wrong."""

class RunFailed(Error):
    """What was run did not come to its end."""

class InternalError(Error):
    """A bug in halflap; the input is not at fault."""

def call(arguments: Sequence[str], given: dict[str, bytes]) -> tuple[dict[str, bytes], str, list[str]]:
    """Runs a command on data in memory.

    Names in angle brackets are read from ``given``, and what is written to such names is given back, with
    what was printed and what was warned of. Other threads run meanwhile, and Ctrl-C ends it.
    """

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

def find(arguments: Sequence[str], given: dict[str, bytes]) -> Held:
    """Runs ``schedule``, ``simulate``, ``explain`` or ``what-if`` on data in memory, as `call` does; nothing
    is rendered."""

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
