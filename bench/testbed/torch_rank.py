"""One rank of a torch program: compiles it in every mode, and runs steps when it is asked to.

torch_bed.py starts it. It reads a command from each line of its input and answers each with a line
of its output, both JSON. What torch prints goes to standard error.
"""

import ctypes
import os
import signal
import sys

# Before torch starts threads: all of them stay on the core, and end when the testbed does.
os.sched_setaffinity(0, {int(os.environ["TESTBED_CORE"])})
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import contextlib  # noqa: E402
import gc  # noqa: E402
import hashlib  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
from collections import defaultdict  # noqa: E402
from pathlib import Path  # noqa: E402
from unittest import mock  # noqa: E402

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "examples")]

import models  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._inductor import compile_fx, config, scheduler  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402

import halflap.torch  # noqa: E402
from halflap.torch._agree import decisions  # noqa: E402
from halflap.torch._devices import Modelled  # noqa: E402
from halflap.torch._handover import Program  # noqa: E402
from halflap.torch._profile import Measured, read_profile  # noqa: E402
from halflap.torch._rates import Link, Rates  # noqa: E402
from halflap.torch._times import Times, kind_or_name  # noqa: E402
from testbed import fx_level, payload  # noqa: E402

#: Steps of a mode before anything is measured: the first compiles. Values are compared after them.
WARM_STEPS = 3
GLOO = payload.Transport.GLOO
#: What may be rewritten, in a free order.
REWRITING = {"merged": "exact", "split": ["merge", "split"]}
ORDERS = ("kept", "free", "auto", *REWRITING)
FX_MODES = {"fx": False, "fx-merging": True}


def without_overlap():
    if not hasattr(config.aten_distributed_optimizations, "enable_simple_overlap"):
        # torch 2.10 overlaps nothing by default.
        return contextlib.nullcontext()
    return config.patch({"aten_distributed_optimizations.enable_simple_overlap": False})


class Subject:
    """What is trained: a model of examples/models.py, or a file that has `build()`, `batch(step)`
    and, if the loss is not the mean square, `loss(output)`."""

    def __init__(self, name, size):
        if name in models.BLOCKS:
            self.build = lambda: models.build(name, models.Size(**size))
            self.batch = models.batch(0, models.Size(**size))
            self.loss = mean_square
            return
        spec = importlib.util.spec_from_file_location("subject", name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.build, self.batch = module.build, module.batch(0)
        self.loss = getattr(module, "loss", mean_square)


def mean_square(output):
    return output.square().mean()


class Trained:
    """A model compiled in one mode; all modes begin with the same parameters."""

    def __init__(self, subject):
        self.subject = subject
        self.model = subject.build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

        def inductor(module, inputs):
            return compile_fx.compile_fx(module, inputs)

        # A new function for each mode: with an equal backend, Dynamo would reuse the code that it
        # compiled in another mode.
        self.run = torch.compile(self.model, backend=inductor, fullgraph=True)

    def warm_up(self):
        """Compiles, and runs some steps; gives their losses."""
        losses = [self.step().item() for _ in range(WARM_STEPS)]
        #: Parameters after as many steps in every mode.
        self.warm = [parameter.detach().clone() for parameter in self.model.parameters()]
        return losses

    def step(self):
        loss = self.subject.loss(self.run(self.subject.batch))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


class Rank:
    """What the testbed can ask for."""

    def __init__(self, subject, size):
        self.subject = Subject(subject, size)
        self.trained = {}
        #: What was compiled in each mode: graphs and their orders.
        self.graphs = {}
        #: The run times that halflap works with.
        self.measured = Measured()
        #: What `tune` chose, if it was asked.
        self.tuned = None
        #: CPU seconds of each step, of all threads, by mode.
        self.worked = defaultdict(list)

    def hello(self):
        return {"torch": torch.__version__}

    def compile(self, mode):
        """Compiles a mode; gives the bytes of a step, and losses and a digest of parameters."""
        before, rewritten = len(halflap.torch.history()), len(halflap.torch.status().fx)
        with scheduled(self.measured) as programs, self.ordered_by(mode):
            trained = self.trained[mode] = Trained(self.subject)
            losses = trained.warm_up()
        graphs = self.graphs[mode] = [*programs.values()]
        check_rewritten(halflap.torch.status().fx[rewritten:])
        check_ordered(mode, halflap.torch.history()[before:])
        return {
            "payload": sum(payload.of_graph(graph, GLOO) for graph, _ in graphs),
            "nodes": [len(graph["nodes"]) for graph, _ in graphs],
            "fx": [str(one) for one in halflap.torch.status().fx[rewritten:]],
            "losses": losses,
            "digest": digest(trained.warm),
        }

    def ordered_by(self, mode):
        """What is on while a mode is compiled. `kept@1.5x` has a memory budget."""
        name, _, budget = mode.partition("@")
        if name == "tuned":
            return halflap.torch.enable(tuned=self.tuned)
        if name in ORDERS:
            given = {"memory_budget": budget} if budget else {}
            given |= {"effort": "default", "profile": self.measured}
            if name in REWRITING:
                given |= {"rewrite": REWRITING[name]}
                name = "free"
            return halflap.torch.enable(collective_order=name, **given)
        if name in FX_MODES:
            rates = fx_level.Rates.of([graph for graph, _ in self.graphs.get("none", [])])
            return fx_level.scheduling(rates, merges=FX_MODES[name])
        if name == "fx-modules":
            return fx_level.by_module(name for name, _ in self.subject.build().named_children())
        plain = {"none": without_overlap, "default": contextlib.nullcontext}
        return {**plain, "fx-buckets": fx_level.bucketing}[name]()

    def simulate(self, mode):
        """Seconds of a step by halflap's simulator, with the run times that orders are based on."""
        slower = {"slowdown": self.measured.slowdown, "comm_slowdown": self.measured.comm_slowdown}
        graphs = self.graphs[mode]
        found = [halflap.simulate(graph, order, **slower) for graph, order in graphs]
        outside = self.measured.outside_ns
        return {
            "step": (outside + sum(one.step_time for one in found)) / 1e9,
            "bound": (outside + sum(one.bound for one in found)) / 1e9,
            "compute": sum(time_of("compute", graph) for graph, _ in graphs) / 1e9,
            "collectives": sum(time_of("collective", graph) for graph, _ in graphs) / 1e9,
            "latency": sum(self.latency_of(graph) for graph, _ in graphs) / 1e9,
            "peak": max(one.peak_memory for one in found),
        }

    def latency_of(self, graph):
        """Nanoseconds of all collectives that do not grow with their bytes."""
        links = Rates.of(self.measured.times).links
        issued = [node["collective"] for node in graph["nodes"] if "collective" in node]
        lines = [links.get(Link(kind_or_name(one["op"]), one["group_size"])) for one in issued]
        return sum(line.latency for line in lines if line is not None)

    def measure(self, profile):
        """Sets the run times that halflap works with: those of a profile, or measured ones."""
        if profile:
            self.measured = read_profile(profile)
        else:
            # What was compiled before is forgotten by that.
            self.trained.clear()
            self.measured = halflap.torch.measure(Trained(self.subject).step)
        return {name: value for name, value in vars(self.measured).items() if name != "times"}

    def tune(self, limit):
        """Has `tune` choose, by the run times that are known; gives what it found."""
        self.trained.clear()
        self.tuned = halflap.torch.tune(
            lambda: Trained(self.subject).step, seconds=limit, profile=self.measured
        )
        found = self.tuned.to_dict()
        return {name: found[name] for name in ("chosen", "rows", "rounds", "left_out")}

    def step(self, mode, at):
        """One step, from the given time on."""
        trained = self.trained[mode]
        while (began := time.monotonic()) < at:
            pass
        worked = time.process_time()
        trained.step()
        ended = time.monotonic()
        self.worked[mode].append(time.process_time() - worked)
        return {"began": began, "ended": ended}

    def work(self, mode):
        """CPU seconds of a step of a mode: gloo's threads share the core with compute."""
        return {"seconds": statistics.median(self.worked[mode])}

    def rest(self):
        """Between measurements: garbage is collected now, and not in a step."""
        gc.collect()
        gc.disable()
        return {}

    def difference(self, mode, reference):
        """How far a mode's parameters are from another's, relative to each tensor's largest."""
        pairs = zip(self.trained[mode].warm, self.trained[reference].warm)
        return {"difference": max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)}


@contextlib.contextmanager
def scheduled(measured):
    """Collects every graph with collectives that Inductor generates code for, with the names of its
    nodes in their final order. Of a graph that has two programs, the second one, the free order, is
    what runs once ranks agree."""
    #: By lowered graph.
    programs = {}
    generate = scheduler.Scheduler.codegen

    def codegen(self):
        order = [node.get_name() for node in self.nodes]
        # Passes may break the dependencies that chain collectives; a graph must satisfy all.
        graph = handed_over(self.topological_sort_schedule(list(self.nodes)), measured)
        if any("collective" in node for node in graph["nodes"]):
            programs[V.graph] = (graph, order)
        return generate(self)

    with mock.patch.object(scheduler.Scheduler, "codegen", codegen):
        yield programs


def handed_over(nodes, measured):
    """Scheduler nodes as a graph, with measured run times where there are any."""
    program = Program(nodes)
    Times(measured.times, None).fill(program, Modelled("cpu", 1))
    return program.graph()


def time_of(kind, graph):
    """Nanoseconds of all nodes of a kind."""
    return sum(node["runtime_ns"] for node in graph["nodes"] if node["kind"] == kind)


def check_ordered(mode, history):
    """Raises where halflap should have ordered graphs and did not."""
    failures = [ran.failure for ran in history if ran.failure]
    if failures:
        raise RuntimeError(f"halflap failed in mode {mode}: {failures[0]}")
    kept = [
        ran.name for ran in history if ran.skeleton and decisions.outcome(ran.skeleton) != "free"
    ]
    if kept:
        raise RuntimeError(
            f"ranks did not agree on a free order of {', '.join(kept)} in mode {mode}"
        )
    if mode.partition("@")[0] in ORDERS and not history:
        raise RuntimeError(f"halflap ordered no graph in mode {mode}: {halflap.torch.status()}")


def check_rewritten(changed):
    """Raises where a pass over FX graphs failed."""
    failures = [one.failure for one in changed if one.failure]
    if failures:
        raise RuntimeError(f"halflap's FX pass failed: {failures[0]}")


def digest(tensors):
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(tensor.numpy().tobytes())
    return content.hexdigest()


def main():
    torch.set_num_threads(1)
    config.fx_graph_cache = False
    # A model is compiled once for each mode.
    torch._dynamo.config.recompile_limit = 64
    dist.init_process_group("gloo")
    rank = Rank(*json.loads(os.environ["TESTBED_SUBJECT"]))
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = getattr(rank, asked.pop("do"))(**asked)
        except Exception as problem:
            traceback.print_exc()
            answer = {"problem": f"{type(problem).__name__}: {problem}"}
        ANSWERS.write(json.dumps(answer) + "\n")
        ANSWERS.flush()


if __name__ == "__main__":
    main()
