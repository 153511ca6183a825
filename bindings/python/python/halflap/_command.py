"""The ``halflap`` command."""

import signal
import sys

from . import _halflap


def main() -> None:
    """Is the command."""
    # Python would hear Ctrl-C only after the command has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_halflap.main(["halflap", *sys.argv[1:]]))
