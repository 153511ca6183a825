"""Folders for the files of a run, gone after it."""

import contextlib
import fcntl
import shutil
import tempfile
from pathlib import Path

PREFIX = "hl-testbed-"
LOCK = "lock"


@contextlib.contextmanager
def folder():
    """A new folder, removed in the end. What killed runs have left is removed as well."""
    remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, open(Path(name) / LOCK, "w") as lock:
        # Held until this process ends, however it ends.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def remove_abandoned(parent):
    """Removes folders whose lock nobody holds. One without a lock is just being made."""
    for path in parent.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), open(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
