"""The wheel: what its functions give is what the command gives, errors included. Needs the wheel;
not torch."""

import gzip
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from command import HALFLAP, ROOT, corpus, read_json, run

halflap = pytest.importorskip("halflap")

NAME = "fsdp_llama_2"
MODULE = ROOT / "tests" / "hlo" / "mix_L2.after_spmd_partitioning.txt.gz"
#: What differs from run to run.
#: Differ from run to run.
TIMES = ("read_seconds", "seconds")
#: In Python it is in texts and pages: its probes would slow every compilation of torch. It names
#: what it is of, too.
ADVICE = "advice"


def told(*arguments):
    """What the command says is wrong."""
    done = subprocess.run(
        [HALFLAP, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode in (1, 2), done
    return done.stderr.removeprefix("error: ").strip() or done.stdout.strip()


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if key not in (*TIMES, ADVICE)}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def by_command(tmp_path, *arguments):
    out = tmp_path / "out.json"
    run(*arguments, "-o", out)
    return timeless(json.loads(out.read_text()))


@pytest.fixture(scope="module")
def graph():
    return read_json(corpus(NAME))


@pytest.fixture(scope="module")
def scheduled(graph):
    return halflap.schedule(graph, effort="quick", memory_budget=1.1)


def test_a_graph_may_come_in_any_form(graph, scheduled, tmp_path):
    options = {"effort": "quick", "memory_budget": "1.1x"}
    expected = by_command(
        tmp_path, "schedule", corpus(NAME), "--effort=quick", "--memory-budget=1.1x"
    )
    forms = [
        corpus(NAME),
        str(corpus(NAME)),
        json.dumps(graph),
        json.dumps(graph).encode(),
        halflap.Graph(graph),
    ]
    for form in forms:
        assert timeless(halflap.schedule(form, **options).to_dict()) == expected
    assert timeless(scheduled.to_dict()) == expected
    assert scheduled.order == expected["order"] and scheduled.step_time == expected["step_time"]


def test_figures_need_nothing_rendered(graph):
    """Neither text nor JSON: a compilation of torch takes the order and these alone."""
    result = halflap.schedule(graph, effort="quick", memory_budget=1.1)
    names = ("step_time", "step_time_before", "peak_memory", "peak_memory_before", "bound", "order")
    figures = {name: getattr(result, name) for name in names}
    exposed = (result.exposed, result.exposed_before)
    assert "_fields" not in vars(result)
    fields = result.to_dict()
    assert figures == {name: fields[name] for name in names}
    assert exposed == (fields["simulated_exposed"], fields["simulated_exposed_before"])
    simulated = halflap.simulate(graph, result)
    figures = (simulated.step_time, simulated.peak_memory, simulated.bound)
    assert "_fields" not in vars(simulated)
    assert figures == tuple(
        simulated.to_dict()[name] for name in ("step_time", "peak_memory", "bound")
    )


def test_every_option_means_what_it_means_to_the_command(graph, tmp_path):
    passes = ["reorder_communication_preserving_peak_memory", "sink_waits_iterative"]
    ours = halflap.schedule(
        graph,
        passes=passes,
        settings={"sink_iterative_peak_memory_budget": 0.1},
        slowdown=1.2,
        launch="4us",
    )
    expected = by_command(
        tmp_path, "schedule", corpus(NAME), f"--passes={','.join(passes)}",
        "--set=sink_iterative_peak_memory_budget=0.1", "--slowdown=1.2", "--launch=4us",
    )  # fmt: skip
    assert timeless(ours.to_dict()) == expected
    typed = halflap.schedule(
        graph, passes=", ".join(passes), settings={"sink_iterative_peak_memory_budget": 0.1}
    )
    assert typed.order == ours.order


def test_simulate_explain_and_what_if(graph, scheduled, tmp_path):
    order, schedule = tmp_path / "order.json", tmp_path / "schedule.json"
    order.write_text(json.dumps(scheduled.order))
    schedule.write_text(json.dumps(scheduled.to_dict()))
    forms = {order: (scheduled.order, order), schedule: (scheduled, scheduled.to_dict(), schedule)}
    for function, command in ((halflap.simulate, "simulate"), (halflap.explain, "explain")):
        for file, same in forms.items():
            expected = by_command(tmp_path, command, corpus(NAME), file, "--comm-streams=one")
            for given in same:
                assert timeless(function(graph, given, comm_streams="one").to_dict()) == expected
    sweep = halflap.what_if(graph, memory=[1.0, "1.2x"], bandwidth=[2])
    assert timeless(sweep.to_dict()) == by_command(
        tmp_path, "what-if", corpus(NAME), "--memory=1.0x,1.2x", "--bandwidth=2"
    )
    assert len(sweep.points) == 2


def held_by(explained):
    """What holds the collectives that are exposed."""
    return {
        collective["held_by"]["kind"]
        for collective in explained.collectives
        if collective["held_by"]
    }


def test_a_schedules_options_are_used_again():
    backward = corpus("fsdp_backward")
    kept = halflap.schedule(backward, effort="quick", collective_order="kept")
    assert kept.to_dict()["collective_order"] == "kept"
    assert "kept_order" in held_by(halflap.explain(backward, kept))
    free = halflap.explain(backward, kept, collective_order="free")
    assert "kept_order" not in held_by(free) and "misplaced" in held_by(free)
    assert halflap.simulate(backward, kept).bound == kept.bound > free.bound
    assert halflap.simulate(backward, kept, collective_order="free").bound == free.bound
    assert halflap.simulate(backward, kept.order, collective_order="kept").bound == kept.bound
    chained = halflap.simulate(backward, order_collectives="all")
    assert chained.to_dict()["collective_order"] == "kept"
    sweep = halflap.what_if(backward, kept, memory=[1.0], bandwidth=[1], threads=1)
    assert (sweep.to_dict()["collective_order"], sweep.to_dict()["effort"]) == ("kept", "quick")
    assert (
        sweep.points[0]["bound"] == kept.bound and sweep.points[0]["step_time"] < kept.step_time + 1
    )
    page = "keeps its place among collectives"
    assert page in kept.report().html and page not in halflap.report(backward, kept.order).html


def test_profiles_and_devices_as_dictionaries(graph, tmp_path):
    times = {node["name"]: 1000.0 for node in graph["nodes"]}
    device = {
        "peak_tflops": 98.9, "memory_gb_per_s": 1, "ranks_per_node": 8, "nvlink_gb_per_s": 370, "network_gb_per_s": 1,
    }  # fmt: skip
    for option, value in (("profile", times), ("device", device)):
        path = tmp_path / f"{option}.json"
        path.write_text(json.dumps(value))
        expected = by_command(tmp_path, "simulate", corpus(NAME), f"--{option}={path}")
        assert halflap.simulate(graph, **{option: value}).to_dict() == expected
        assert halflap.simulate(graph, **{option: str(path)}).to_dict() == expected
        assert halflap.simulate(graph, **{option: path}).to_dict() == expected
    expected = by_command(
        tmp_path, "simulate", corpus(NAME), f"--device={path}", "--ranks-per-node=2"
    )
    assert halflap.simulate(graph, device=device, ranks_per_node=2).to_dict() == expected


def test_modules_are_scheduled_and_written_again(tmp_path):
    ours = halflap.schedule(MODULE, effort="quick")
    assert timeless(ours.to_dict()) == by_command(tmp_path, "schedule", MODULE, "--effort=quick")
    assert ours.order == list(ours.orders.values())[-1]
    fields = ours.to_dict()
    assert ours.orders == {part["computation"]: part["order"] for part in fields["computations"]}
    assert (ours.step_time, ours.exposed, ours.peak_memory) == tuple(
        fields[name] for name in ("step_time", "exposed", "peak_memory")
    )
    assert ours.bound == fields["computations"][-1]["bound"]
    assert halflap.emit_hlo(MODULE, effort="quick") == run(
        "schedule", MODULE, "--effort=quick", "--emit=hlo"
    )
    assert ours.report().html.startswith("<!DOCTYPE html>")


def test_programs_are_rewritten_where_that_pays(graph):
    latent = json.loads(gzip.decompress(pathlib.Path(corpus(NAME)).read_bytes()))
    for node in latent["nodes"]:
        if node["kind"] == "collective":
            node["runtime_ns"] += 1e6
    options = {"memory_budget": 2.0, "effort": "quick"}
    ours = halflap.schedule(latent, rewrite=True, **options)
    assert ours.step_time < 0.5 * halflap.schedule(latent, **options).step_time
    assert [recipe["kind"] for recipe in ours.recipes] == ["merge"] * len(
        ours.recipes
    ) and ours.recipes
    changed = halflap.emit_graph(latent, rewrite="exact", **options)
    assert halflap.simulate(changed, ours).step_time == ours.step_time
    assert len(
        halflap.schedule(latent, rewrite=["merge"], without=["merge:1"], **options).recipes
    ) < len(ours.recipes)
    assert halflap.schedule(graph, rewrite=True, effort="quick").recipes == []


def test_verify_proves_or_says_what_is_wrong(graph, scheduled, tmp_path):
    assert halflap.verify(graph, scheduled, memory_budget=1.1).startswith(
        "valid: 255 nodes, peak memory "
    )
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(scheduled.order[::-1]))
    with pytest.raises(halflap.NotValid) as raised:
        halflap.verify(graph, scheduled.order[::-1])
    assert str(raised.value) == told("verify", corpus(NAME), wrong)


@pytest.mark.parametrize(
    ("options", "typed"),
    [
        ({"effort": "fast"}, "--effort=fast"),
        ({"memory_budgt": "1x"}, "--memory-budgt=1x"),
        ({"memory_budget": "1GiB"}, "--memory-budget=1GiB"),
        ({"device": "h10"}, "--device=h10"),
        ({"ranks_per_node": 4}, "--ranks-per-node=4"),
        ({"passes": ["sink_wait"]}, "--passes=sink_wait"),
    ],
)
def test_errors_are_those_of_the_command(options, typed):
    with pytest.raises(halflap.BadInput) as raised:
        halflap.schedule(corpus(NAME), **options)
    by_command = halflap._api.of_arguments(told("schedule", corpus(NAME), typed))
    assert by_command.startswith(str(raised.value))
    assert "--" not in str(raised.value)


def test_a_graph_that_is_wrong_says_where(graph):
    broken = {**graph, "nodes": [{**graph["nodes"][0], "runtime_ns": "soon"}, *graph["nodes"][1:]]}
    with pytest.raises(halflap.BadInput, match="^<graph>: node 'op0', field 'runtime_ns': "):
        halflap.Graph(broken).check()
    with pytest.raises(halflap.BadInput, match="^invalid value 'much' for memory_budget: "):
        halflap.schedule(corpus(NAME), memory_budget="much")
    with pytest.raises(halflap.BadInput, match="^unexpected argument speed found$"):
        halflap.schedule(corpus(NAME), speed=2)
    with pytest.raises(halflap.BadInput, match="^node: 'op' is not a node of the graph"):
        halflap.explain(corpus(NAME), node="op")
    with pytest.raises(halflap.BadInput, match="^nothing-there.json: cannot be read"):
        halflap.schedule("nothing-there.json")


def test_warnings_are_warnings_of_python():
    """What a collective reads is gone before its wait."""

    def node(name, kind, reads, **more):
        deps = [{"buffer": buffer, "kinds": ["data"]} for buffer in reads]
        return {
            "name": name,
            "kind": kind,
            "runtime_ns": 1,
            "outputs": [f"of_{name}"],
            "deps": deps,
            **more,
        }

    def buffer(name, users):
        return {"name": name, "size_alloc": 8, "size_free": 8, "users": users, "output": False}

    collective = {"op": "all_reduce", "group": "g", "group_size": 2, "bytes": 8, "async": True}
    graph = {
        "format": "halflap.graph/1",
        "groups": {"g": {"ranks": [0, 1]}},
        "nodes": [
            node("make", "compute", []),
            node("reduce", "collective", ["of_make"], collective=collective),
            node("wait", "wait", ["of_reduce"]),
        ],
        "buffers": [
            buffer("of_make", ["reduce"]),
            buffer("of_reduce", ["wait"]),
            buffer("of_wait", []),
        ],
        "inputs": [],
    }
    with pytest.warns(UserWarning, match="^<graph>: .*reduce"):
        halflap.simulate(graph)


def test_a_notebook_shows_reports(tmp_path):
    page = tmp_path / "page.html"
    run("schedule", corpus(NAME), f"--report={page}", "--effort=quick", "--memory-budget=1.1x")
    report = halflap.schedule(corpus(NAME), effort="quick", memory_budget=1.1).report()
    assert report.html == page.read_text()
    assert report._repr_html_().startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    report.save(tmp_path / "saved.html")
    assert (tmp_path / "saved.html").read_text() == report.html


def test_other_threads_run_meanwhile(graph):
    rounds = 0
    done = threading.Event()

    def count():
        nonlocal rounds
        while not done.wait(0.001):
            rounds += 1

    other = threading.Thread(target=count)
    other.start()
    halflap.schedule(graph)
    done.set()
    other.join()
    # Without the interpreter it would not come to its second round before the search ends.
    assert rounds > 20


def test_ctrl_c_is_heard(tmp_path):
    ready = tmp_path / "ready"
    program = f"""
import pathlib, halflap
pathlib.Path({str(ready)!r}).touch()
try:
    for _ in range(1000):
        halflap.schedule({str(corpus(NAME))!r}, effort="thorough")
except KeyboardInterrupt:
    print("heard")
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        while not ready.exists() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "heard\n" and process.returncode == 0
    finally:
        process.kill()


def test_the_command_comes_with_the_wheel(tmp_path):
    halflap_of_wheel = pathlib.Path(sys.executable).with_name("halflap")
    for arguments in (["simulate", corpus(NAME)], ["--version"], ["plan", MODULE, "--input-order"]):
        command = [str(argument) for argument in arguments]
        assert subprocess.check_output([halflap_of_wheel, *command], text=True) == run(*command)
    done = subprocess.run([halflap_of_wheel, "simulate", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: nothing: cannot be read")
    ran = subprocess.run(
        [halflap_of_wheel, "run", MODULE, "-o", tmp_path / "out.npz"],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0 and (tmp_path / "out.npz").exists(), ran.stderr


def test_the_command_of_the_wheel_starts_itself(tmp_path):
    """It is a process of Python, and need not be where commands are looked for."""
    halflap_of_wheel = pathlib.Path(sys.executable).with_name("halflap")
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [halflap_of_wheel, "debug", MODULE], env=bare, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "nothing wrong was found" in done.stdout, (
        done.stdout + done.stderr
    )
    ranks = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "8"]
    command = [*ranks, halflap_of_wheel, "run", MODULE, "--backend=mpi", "-o", tmp_path / "out.npz"]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and (tmp_path / "out.npz").exists(), done.stderr


def test_without_torch_it_is_said():
    program = "import sys; sys.modules['torch'] = None; import halflap.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "halflap.torch needs torch 2.10 or newer, and torch is not installed" in done.stderr


@pytest.mark.parametrize("version", ["2.9.1+cpu", "1.13.0"])
def test_a_torch_that_is_too_old_is_refused(version):
    fake = (
        f"import sys, types; sys.modules['torch'] = types.SimpleNamespace(__version__={version!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{fake}; import halflap.torch"], capture_output=True, text=True
    )
    assert f"halflap.torch needs torch 2.10 or newer; this is {version}" in done.stderr


def test_it_is_typed():
    folder = pathlib.Path(halflap.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_halflap.pyi").exists()
    assert halflap.__version__ == run("--version").split()[1]


def test_the_example_in_the_documentation_runs(tmp_path):
    page = (ROOT / "docs" / "python.md").read_text()
    program = (
        page.split("```python\n")[1]
        .split("```")[0]
        .replace("tests/corpus", str(ROOT / "tests" / "corpus"))
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and "255 nodes, 60 collectives" in done.stdout, done.stderr
    assert "<html" in (tmp_path / "report.html").read_text()
