"""The ``halflap`` command."""

import os
import signal
import sys

from . import _halflap


def main() -> None:
    """Runs the command."""
    # Python would handle Ctrl-C only after the command has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # By the whole name, because it starts itself again, and this process is Python.
    sys.exit(_halflap.main([os.path.abspath(sys.argv[0]), *sys.argv[1:]]))
