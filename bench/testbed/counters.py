"""What interfaces carried, and whether that is what had to travel."""

import contextlib
import enum
import os
from dataclasses import dataclass

from testbed.network import CONTROL, DATA

#: What an interface sends for each byte of payload, with headers and acknowledgements.
LEAST, MOST = 0.9, 1.3
#: The control network may carry this share of the payload, and these bytes in any case.
CONTROL_SHARE, CONTROL_BYTES = 0.02, 1 << 20


class Verdict(enum.Enum):
    """Why bytes are as they had to be, or are not."""

    MATCHES = "matches"
    TOO_FEW = "fewer bytes than the step had to send: they did not all go over the link"
    TOO_MANY = "more bytes than the step had to send: something else used the link, or sent again"
    PAST = "the control network carried data: the step did not all go over the link"


@dataclass(frozen=True)
class Sent:
    """Bytes that one rank sent over its link and over the control network."""

    data: int
    control: int

    def __sub__(self, other):
        return Sent(self.data - other.data, self.control - other.control)


def verdict(sent, payload):
    """Judges what one rank sent against the bytes that it had to send."""
    if sent.data < LEAST * payload:
        return Verdict.PAST if sent.control > LEAST * payload - sent.data else Verdict.TOO_FEW
    if sent.data > MOST * payload:
        return Verdict.TOO_MANY
    return (
        Verdict.PAST if sent.control > CONTROL_BYTES + CONTROL_SHARE * payload else Verdict.MATCHES
    )


def parse(table):
    """Bytes that each interface sent, from the text of /proc/net/dev."""
    rows = (line.split(":", 1) for line in table.splitlines() if ":" in line)
    return {name.strip(): int(figures.split()[8]) for name, figures in rows}


class Counters:
    """The counters of all ranks' interfaces. A context manager."""

    def __init__(self, network):
        with contextlib.ExitStack() as undo:
            self._tables = []
            for namespace in network.ranks:
                # The file stays one of the namespace that it was opened in.
                with namespace.entered():
                    table = os.open("/proc/thread-self/net/dev", os.O_RDONLY | os.O_CLOEXEC)
                undo.callback(os.close, table)
                self._tables.append(table)
            self._open = undo.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._open.close()

    def read(self):
        """What each rank has sent since the network was made."""
        tables = [parse(_whole(table)) for table in self._tables]
        return [Sent(table[DATA], table[CONTROL]) for table in tables]


def _whole(file):
    """A file in /proc, from its start; it is a page at most."""
    return os.pread(file, 1 << 16, 0).decode()


def between(before, after):
    """What each rank sent between two readings."""
    return [end - start for start, end in zip(before, after)]
