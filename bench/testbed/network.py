"""A network of ranks on one machine: a network namespace for each rank, and links of a given rate.

Namespaces have no names: each exists while this process holds it open or a rank runs in it. When
the last of them ends, for whatever reason, the kernel removes the namespace and its interfaces. So
nothing is left behind, not even after a SIGKILL, and networks can exist side by side.

Every rank has two interfaces. `eth0` is the link that is measured, with the given rate in both
directions. `ctl0` has no limit and is for rendezvous and launchers, so that the link carries only
what a step sends.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass

CLONE_NEWNET = 0x40000000
#: The link that is measured, and the one for control.
DATA, CONTROL = "eth0", "ctl0"
SUBNETS = {DATA: "10.0.0", CONTROL: "10.0.1"}
#: A token bucket holds what passes in this time, and at least the largest packet that the kernel
#: hands to a link (64 KiB and the headers of all segments): cutting packets up takes CPU time.
BURST_SECONDS, LARGEST_PACKET = 1e-3, 72_000
#: How much a queue holds. No packet is ever dropped: senders have less than this in flight.
QUEUE_BYTES = 64 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """This machine or user cannot have such a network; the message says what to do."""


def check_available():
    """Raises `Unavailable` where namespaces cannot be made."""
    if os.geteuid() != 0:
        raise Unavailable(
            "network namespaces need root: run this with sudo, "
            "or in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN"
        )
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise Unavailable(
                f"{tool} is missing: install iproute2 (Debian: apt-get install iproute2)"
            )
    try:
        Namespace().close()
    except PermissionError as refused:
        raise Unavailable(
            f"the kernel refuses network namespaces ({refused}): "
            "run this outside of the container, or with CAP_SYS_ADMIN and CAP_NET_ADMIN"
        ) from None


@dataclass(frozen=True)
class Rate:
    """What a link carries in a second."""

    bits: float

    #: Bits in a second, by the units that `tc` knows as well.
    UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}

    @classmethod
    def parse(cls, text):
        """`1gbit`, `250mbit` and so on."""
        number, unit = text.strip().lower()[:-4], text.strip().lower()[-4:]
        try:
            rate = cls(float(number) * cls.UNITS[unit])
        except (KeyError, ValueError):
            raise ValueError(
                f"{text!r} is no rate; a rate is a number and kbit, mbit or gbit, such as 1gbit"
            ) from None
        if not 0 < rate.bits < float("inf"):
            raise ValueError(f"a rate must be above 0, not {text!r}")
        return rate

    @property
    def bytes(self):
        return self.bits / 8

    def __str__(self):
        unit = next(
            unit
            for unit in ("gbit", "mbit", "kbit")
            if self.bits >= self.UNITS[unit] or unit == "kbit"
        )
        return f"{self.bits / self.UNITS[unit]:.4g}{unit}"


class Namespace:
    """A network namespace without a name, open until `close`."""

    def __init__(self):
        with _left():
            _check(_libc.unshare(CLONE_NEWNET))
            self.fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def path(self):
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @contextlib.contextmanager
    def entered(self):
        """This thread is in the namespace meanwhile, and so is every process that it starts."""
        with _left():
            _check(_libc.setns(self.fd, CLONE_NEWNET))
            yield

    def run(self, *command):
        with self.entered():
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(
                f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}"
            )

    def close(self):
        os.close(self.fd)


@contextlib.contextmanager
def _left():
    """The thread comes back to the namespace that it is in now."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        _check(_libc.setns(home, CLONE_NEWNET))
        os.close(home)


def _check(result):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Network:
    """`ranks` namespaces, joined by a switch in a namespace of its own. A context manager."""

    def __init__(self, ranks):
        check_available()
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.push(self._open)
            #: Both bridges, one for each kind of link; the control network ends here, too.
            self.switch = self._namespace()
            self.ranks = [self._namespace() for _ in range(ranks)]
            for device in SUBNETS:
                self._connect(device)
            undo.pop_all()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._open.close()

    def address(self, rank, device=DATA):
        return f"{SUBNETS[device]}.{rank + 1}"

    @property
    def control_address(self):
        """Of the switch, where launchers run."""
        return f"{SUBNETS[CONTROL]}.254"

    def limit(self, rate):
        """Gives every link this rate in both directions; None takes the limit away."""
        for rank, namespace in enumerate(self.ranks):
            for place, device in ((namespace, DATA), (self.switch, f"{DATA}-{rank}")):
                shaped = (
                    ("root", "tbf", *_bucket(rate)) if rate else ("root", "pfifo", "limit", "10000")
                )
                place.run("tc", "qdisc", "replace", "dev", device, *shaped)

    def _namespace(self):
        namespace = Namespace()
        self._open.callback(namespace.close)
        namespace.run("ip", "link", "set", "lo", "up")
        return namespace

    def _connect(self, device):
        """Gives each rank an interface of this name; a bridge of the same name joins them."""
        self.switch.run("ip", "link", "add", "name", device, "type", "bridge")
        self.switch.run("ip", "link", "set", "dev", device, "up")
        if device == CONTROL:
            self.switch.run("ip", "address", "add", f"{self.control_address}/24", "dev", device)
        for rank, namespace in enumerate(self.ranks):
            port = f"{device}-{rank}"
            peer = ("peer", "name", device, "netns", namespace.path)
            self.switch.run("ip", "link", "add", "name", port, "type", "veth", *peer)
            self.switch.run("ip", "link", "set", "dev", port, "master", device, "up")
            namespace.run("ip", "address", "add", f"{self.address(rank, device)}/24", "dev", device)
            namespace.run("ip", "link", "set", "dev", device, "up")


def _bucket(rate):
    burst = max(LARGEST_PACKET, round(rate.bytes * BURST_SECONDS))
    return ("rate", f"{rate.bits:.0f}bit", "burst", str(burst), "limit", str(QUEUE_BYTES))
