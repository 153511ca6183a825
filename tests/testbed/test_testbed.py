"""bench/testbed: its statistics and verdicts, and on machines where we are root, its networks."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

from testbed import counters, intervals, load, payload, report, rounds, scratch  # noqa: E402
from testbed.counters import Counters, Sent, Verdict  # noqa: E402
from testbed.network import Namespace, Network, Rate, Unavailable, check_available  # noqa: E402


def can_have_networks():
    try:
        check_available()
    except Unavailable:
        return False
    return True


needs_networks = pytest.mark.skipif(not can_have_networks(), reason="needs root, ip and tc")


def test_intervals_of_medians():
    # Of 6 values all are needed: the median is outside in 2 of 2**6 cases.
    six = intervals.Median.of([6, 1, 5, 2, 4, 3])
    assert (six.value, six.low, six.high, six.confidence) == (3.5, 1, 6, 1 - 2 / 64)
    # Of 9 the outermost can go: 1 - 2 (1 + 9) / 512.
    nine = intervals.Median.of(range(1, 10))
    assert (nine.value, nine.low, nine.high, nine.confidence) == (5, 2, 8, 1 - 20 / 512)
    few = intervals.Median.of([1, 2, 3])
    assert (few.low, few.high, few.confidence) == (1, 3, 0.75)
    assert intervals.Median.of([4]).confidence == 0


def test_modes_are_compared_within_rounds():
    # The machine is twice as slow in every other round, which ratios do not see.
    slow = [1 + number % 2 for number in range(6)]
    found = intervals.summarize(
        [{"a": [2 * s, 2 * s, 9], "b": [1 * s, 1 * s, 1 * s]} for s in slow], "a"
    )
    assert found["a"]["ratio"].value == found["a"]["ratio"].low == 1
    assert (found["b"]["ratio"].low, found["b"]["ratio"].high) == (0.5, 0.5)
    assert (found["b"]["step"].low, found["b"]["step"].high) == (1, 2)


def test_every_mode_has_every_turn():
    modes = ["a", "b", "c"]
    played = [intervals.turns(modes, number) for number in range(6)]
    for place in range(3):
        assert sorted(one[place] for one in played) == sorted(2 * modes)
    # Each also comes before and after each other one.
    follows = {(one[i], one[i + 1]) for one in played for i in range(2)}
    assert len(follows) == 6


@pytest.mark.parametrize(
    "sent, verdict",
    [
        (Sent(1_044_000, 300), Verdict.MATCHES),
        (Sent(500_000, 300), Verdict.TOO_FEW),
        (Sent(1_400_000, 300), Verdict.TOO_MANY),
        (Sent(5_000, 1_000_000), Verdict.PAST),
        (Sent(1_044_000, 2_000_000), Verdict.PAST),
    ],
)
def test_bytes_are_judged(sent, verdict):
    assert counters.verdict(sent, 1_000_000) is verdict


def test_interface_table():
    table = "Inter-|   Receive   |  Transmit\n face |bytes ...\n"
    table += "  eth0: 11 2 0 0 0 0 0 0 4321 5 0 0 0 0 0 0\n"
    assert counters.parse(table) == {"eth0": 4321}


def test_what_others_used():
    before = (
        "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 0 100 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nctxt 1\n"
    )
    after = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 150 10 120 0 0 99 99 5 0 0\ncpu1 7 7 7 7 7 7 7 7\n"
    rows = [load.core_rows(text)[0] for text in (before, after)]
    used = load.Usage(rows[1][0], 0.6, rows[1][1]) - load.Usage(rows[0][0], 0.0, rows[0][1])
    # 0.8 s of programs, of which ranks had 0.6, and 0.05 stolen.
    assert load.foreign_share(used, 1.0, [0]) == pytest.approx(100 * load.TICK * 0.25)
    stat = "12 (a) b) R 1 1 1 0 -1 0 0 0 0 0 3 4 5 6 20 0"
    assert load.cpu_seconds(stat) == pytest.approx(18 * load.TICK)


def test_payloads():
    gloo, mpi = payload.Transport
    assert payload.sent("all_gather_into_tensor", 800, 4, gloo) == 600
    assert payload.sent("reduce_scatter_tensor", 800, 4, gloo) == 1200
    assert payload.sent("reduce-scatter", 800, 4, mpi) == 600
    with pytest.raises(ValueError, match="send"):
        payload.sent("send", 8, 2, gloo)
    from run import layers

    module = layers(8, 1024, 256)
    assert payload.of_module(module, mpi) == 8 * 256 * 256 * 4 / 2
    assert payload.output_bytes(module) == 1024 * 256 * 4
    started = "  a = (f32[4]{0}, f32[8]) all-gather-start(f32[4] %p), replica_groups={{0,1}}\n"
    assert payload.of_module("ENTRY e {\n  p = f32[4] parameter(0)\n" + started, mpi) == 16
    assert payload.group_size("replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}") == 4
    assert payload.group_size("replica_groups=[2,3]<=[6]") == 3
    with pytest.raises(ValueError, match="while"):
        payload.of_module("  w = f32[4] while(p), condition=c, body=b\n", mpi)


def test_rates():
    assert Rate.parse("1gbit").bytes == 125e6
    assert str(Rate.parse("62.5Mbit")) == "62.5mbit"
    for wrong in ("1", "gbit", "-1gbit", "1gb/s", "nangbit"):
        with pytest.raises(ValueError, match="rate"):
            Rate.parse(wrong)


def made_up_round(foreign, verdict=Verdict.MATCHES):
    one = rounds.Round()
    for mode in ("none", "default"):
        one.steps[mode], one.foreign[mode] = [1.0, 1.0], foreign
        one.sent[mode], one.verdicts[mode] = [Sent(10, 0)], [verdict]
    return one


def test_disturbed_rounds_are_left_out_or_told():
    quiet, loud = made_up_round(0.01), made_up_round(0.5)
    enough = rounds.summary([quiet, loud, quiet], 2, "default")
    assert (enough["rounds"], enough["rounds_disturbed"], enough["rounds_left_out"]) == (2, 0, 1)
    too_few = rounds.summary([quiet, loud, loud, loud], 2, "default")
    assert (too_few["rounds"], too_few["rounds_disturbed"], too_few["most_foreign_share"]) == (
        4,
        3,
        0.5,
    )
    shown = {"is_oversubscribed": False, "ranks": 2, "cores": [0, 1], **too_few}
    assert any(line.startswith("DISTURBED: in 3 of 4") for line in report.notes(shown))


def test_results_are_void_without_their_bytes():
    found = rounds.summary([made_up_round(0.0), made_up_round(0.0, Verdict.TOO_FEW)], 2, "none")
    assert len(found["void"]) == 1
    assert "did not all go over the link (round 1, none, rank 0; 2 in all)" in found["void"][0]


def test_abandoned_folders_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned = tmp_path / f"{scratch.PREFIX}old"
    abandoned.mkdir()
    (abandoned / scratch.LOCK).touch()
    with scratch.folder() as first, scratch.folder() as second:
        assert first.is_dir() and second.is_dir() and not abandoned.exists()
    assert not list(tmp_path.iterdir())


def command(*arguments, **options):
    run = [sys.executable, BENCH / "testbed", *arguments]
    return subprocess.run(run, capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize(
    "arguments, told",
    [
        ([], "--torch-python"),
        (["--mpi", "--modes", "default"], "no mode 'default'; there are input, kept, free"),
        (["--torch-python", "x", "--rate", "1GB/s"], "1gbit"),
        (["--torch-python", "x", "--models", "nothing.py"], "'nothing.py' is neither"),
        (["--torch-python", "x", "--ranks", "1"], "two or more"),
    ],
)
def test_wrong_arguments(arguments, told):
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_needs_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="need root: run this with sudo"):
        check_available()


@needs_networks
def test_tools_that_are_missing(tmp_path):
    (tmp_path / "ip").symlink_to(shutil.which("ip"))
    done = command("--mpi", env={**os.environ, "PATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr.startswith("error: tc is missing: install iproute2")


LISTENS = """
import socket
with socket.create_server(("10.0.0.1", 5000)) as server:
    print("listening", flush=True)
    connection = server.accept()[0]
    while connection.recv(1 << 20):
        pass
"""
SENDS = """
import socket, sys
with socket.create_connection(("10.0.0.1", 5000), timeout=10) as connection:
    connection.sendall(bytes(int(sys.argv[1])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
"""


@needs_networks
def test_links_count_and_limit():
    """Of two networks side by side, the one that is used counts bytes, and limits them."""
    size = 4_000_000
    with (
        Network(2) as network,
        Network(2) as other,
        Counters(network) as ours,
        Counters(other) as theirs,
    ):
        network.limit(Rate.parse("80mbit"))
        before, theirs_before = ours.read(), theirs.read()
        with network.ranks[0].entered():
            server = subprocess.Popen([sys.executable, "-c", LISTENS], stdout=subprocess.PIPE)
        server.stdout.readline()
        began = time.monotonic()
        with network.ranks[1].entered():
            subprocess.run([sys.executable, "-c", SENDS, str(size)], check=True, timeout=30)
        seconds = time.monotonic() - began
        server.wait()
        server.stdout.close()
        sent = counters.between(before, ours.read())
        assert counters.verdict(sent[1], size) is Verdict.MATCHES
        assert counters.verdict(sent[0], size) is Verdict.TOO_FEW
        assert max(one.data for one in counters.between(theirs_before, theirs.read())) < 10_000
        # 0.4 s on the wire, a hundredth of it without a limit. A busy machine may take longer.
        assert seconds > 0.35


HOLDS = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from testbed.network import Network
from testbed.ranks import Ranks
RANK = '''
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
for line in sys.stdin:
    print("{}", flush=True)
'''
RANK = [sys.executable, "-c", RANK]
with Network(2) as network, Ranks(RANK, network, [None, None], sys.argv[2]) as ranks:
    ranks.ask("hello", 30)
    print(*ranks.pids, flush=True)
    time.sleep(60)
"""


def namespace_of(pid):
    return os.stat(f"/proc/{pid}/ns/net").st_ino


def namespaces():
    """Of all processes."""
    found = set()
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(namespace_of(entry.name))
            except OSError:
                pass
    return found


@needs_networks
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left(number, tmp_path):
    """However a testbed ends, its ranks end, and so do their namespaces."""
    links = pathlib.Path("/proc/net/dev").read_text().count(":")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, BENCH, tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pids = list(map(int, holder.stdout.readline().split()))
    made = {namespace_of(pid) for pid in pids}
    assert len(made) == 2 and namespace_of(os.getpid()) not in made
    assert pathlib.Path("/proc/net/dev").read_text().count(":") == links
    os.kill(holder.pid, number)
    holder.wait(timeout=20)
    holder.stdout.close()
    deadline = time.monotonic() + 10
    while made & namespaces() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not made & namespaces()


@needs_networks
def test_a_rank_that_fails_is_told(tmp_path):
    from testbed.ranks import RankFailed, Ranks

    dies = "import sys; sys.stdin.readline(); print('no more', file=sys.stderr); sys.exit(3)"
    waits = "import sys; sys.stdin.readline(); sys.stdin.readline()"
    with Network(1) as network:
        for program, told in (
            (dies, "rank 0: has ended with 3\nno more"),
            (waits, "rank 0: did not answer 'hello' in time"),
        ):
            with Ranks([sys.executable, "-c", program], network, [None], tmp_path) as ranks:
                with pytest.raises(RankFailed, match=told):
                    ranks.ask("hello", 1.0)


@needs_networks
def test_a_thread_comes_back_from_a_namespace():
    home = namespace_of("thread-self")
    namespace = Namespace()
    with pytest.raises(KeyError), namespace.entered():
        assert namespace_of("thread-self") != home
        raise KeyError
    namespace.close()
    assert namespace_of("thread-self") == home
