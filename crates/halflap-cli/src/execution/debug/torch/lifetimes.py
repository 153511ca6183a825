"""Checks when the buffers of compiled graphs are born and die, in a program under `halflap debug`.

`halflap debug` puts this file as sitecustomize.py into a folder at the front of PYTHONPATH. When
the program imports torch, it switches on Inductor's own tracking
(`test_configs.track_memory_lifecycle`), which has no environment variable: generated code then
reports every buffer that it allocates (`track_tensor`) and, after every kernel, which buffers
should have been born and freed (`check_memory_step`).

Inductor's own check of these reports fails on correct programs: it expects graph inputs, which it
does not track, to be freed; it does not know views, memory that is reused, collectives that are
under way, or threads. This module checks the reports instead. It prints every deviation as a line
of JSON behind `halflap-lifetimes: ` on standard error and lets the program go on.
"""

import functools
import gc
import importlib.machinery
import importlib.util
import json
import linecache
import os
import re
import sys
import threading
import time

# Seconds for another thread to release memory, such as that of a process group.
PATIENCE = 2
# Namespaces of operators that come with torch: their results are what their schemas say.
OF_TORCH = {"aten", "prims", "prim", "inductor", "_c10d_functional", "c10d_functional", "c10d"}


def tell(**facts):
    os.write(2, f"halflap-lifetimes: {json.dumps(facts)}\n".encode())


def never_raises(function):
    """A failure of this module must not change the program: it is printed once."""
    has_failed = []

    @functools.wraps(function)
    def guarded(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if not has_failed:
                has_failed.append(True)
                tell(deviation="failed", message=repr(error))

    return guarded


class Variables:
    """The tensors in the variables of a function, by their memory. Looked up once, when needed."""

    def __init__(self, frame):
        self.frame = frame

    @functools.cached_property
    def by_storage(self):
        found = {}
        for name, value in self.all():
            for tensor in tensors_in(value):
                found.setdefault(storage_of(tensor), []).append(name)
        return found

    def all(self):
        variables = self.frame.f_locals
        pairs = list(variables.items())
        # Before Python 3.13 this is a copy, which would keep everything in it alive.
        if isinstance(variables, dict):
            variables.clear()
        return pairs

    def value(self, name):
        return dict(self.all()).get(name)

    def in_memory_of(self, memory):
        return self.by_storage.get(memory.reference.cdata, [])


def tensors_in(value):
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in tensors_in(one)]
    return [value] if is_tensor(value) else []


def is_tensor(value):
    return issubclass(type(value), sys.modules["torch"].Tensor)


def storage_of(tensor):
    """An address that names the memory of a tensor, or None if there is none."""
    if not is_tensor(tensor):
        return None
    try:
        return tensor.untyped_storage()._cdata
    except Exception:  # Subclasses of tensors raise what they like.
        return None


@never_raises
def holder(storage):
    """The global variable through which a tensor in some memory is kept, if there is one."""
    level = [one for one in gc.get_objects() if is_tensor(one) and storage_of(one) == storage]
    for _ in range(6):
        ids = {id(one) for one in level}
        above = gc.get_referrers(*level)
        for variables in above:
            if isinstance(variables, dict) and isinstance(variables.get("__name__"), str):
                for name, value in variables.items():
                    if id(value) in ids:
                        return f"{variables['__name__']}.{name}"
        # The list itself refers to what is in it, and frames are those of this module.
        level = [one for one in above if one is not level and type(one).__name__ != "frame"]
    return None


class Memory:
    """The memory of a buffer."""

    def __init__(self, tensor):
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        self.reference = StorageWeakRef(storage)
        self.bytes = storage.nbytes()
        self.type = f"{tensor.dtype}".replace("torch.", "") + f"{list(tensor.shape)}"

    def is_same(self, other):
        return self.reference.cdata == other.reference.cdata

    def is_gone(self):
        return self.reference.expired()

    def bytes_now(self):
        torch = sys.modules["torch"]
        pointer = torch.UntypedStorage._new_with_weak_ptr(self.reference.cdata)
        return self.bytes if pointer is None else pointer.nbytes()


class Run:
    """One run of a generated function: the buffers that it allocated and that live."""

    def __init__(self):
        self.line = 0
        self.alive = {}
        self.planned = set()
        self.due = set()

    def in_memory_of(self, memory):
        return [name for name, other in self.alive.items() if other.is_same(memory)]


class Runs(threading.local):
    """The runs that are under way in a thread, by function."""

    def __init__(self):
        self.of = {}

    def at(self, frame):
        run = self.of.get(frame.f_code)
        # Generated functions have no loops, so a line that comes again belongs to another run.
        if run is None or frame.f_lineno <= run.line:
            run = self.of[frame.f_code] = Run()
        run.line = frame.f_lineno
        return run


RUNS = Runs()
REPORTED = set()


def caller():
    """The frame of the generated code that called this module."""
    frame = sys._getframe(1)
    own = (frame.f_code.co_filename, sys.modules["torch._inductor.runtime.debug_utils"].__file__)
    while frame.f_code.co_filename in own:
        frame = frame.f_back
    return frame


def report(deviation, frame, name, memory, **more):
    """Prints a deviation, once for every buffer of a graph."""
    if not is_reported(frame, name):
        REPORTED.add((frame.f_code, name))
        where = {"file": frame.f_code.co_filename, "line": frame.f_lineno}
        what = {"buffer": name, "type": memory.type, "bytes": memory.bytes}
        tell(deviation=deviation, **what, **where, **more)


def is_reported(frame, name):
    return (frame.f_code, name) in REPORTED


@never_raises
def track_tensor(tensor, name):
    frame = caller()
    start(RUNS.at(frame), frame, tensor, name)


def start(run, frame, tensor, name):
    """Adds a buffer, unless a custom operator returned it in the memory of another."""
    if storage_of(tensor) is None:
        return
    memory = Memory(tensor)
    other = undeclared_alias(run, frame, name, memory)
    if other is not None:
        report("alias", frame, name, memory, other=other)
        run.alive.pop(other, None)
    elif memory.bytes > 0:
        run.alive[name] = memory


def undeclared_alias(run, frame, name, memory):
    """The buffer in whose memory a custom operator returned a result that it declares as new."""
    made = origin(frame.f_code, name)
    if made is None or not made.calls_it_new():
        return None
    shared = run.in_memory_of(memory) + Variables(frame).in_memory_of(memory)
    return next((other for other in shared if other not in made.names), None)


class Origin:
    """The operator that returned a buffer, and the names that its result has in the code."""

    def __init__(self, operator, names):
        self.operator = operator
        self.names = names

    def calls_it_new(self):
        """Whether it is a custom operator whose schema says that its results are new memory."""
        if self.operator[0] in OF_TORCH:
            return False
        operator = functools.reduce(getattr, self.operator, sys.modules["torch"].ops)
        return all(result.alias_info is None for result in operator._schema.returns)


@functools.lru_cache(None)
def origin(code, name):
    """What `buf1 = torch.ops.mine.op.default(buf0)`, perhaps followed by `buf2 = buf1[0]`, says of
    a buffer in a generated function; None if no operator returned it."""
    last = max(line for _, _, line in code.co_lines() if line)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno : last]
    names = set()
    while name not in names:
        names.add(name)
        value = rf"\s*{name} = (?:torch\.ops\.(\w+)\.(\w+)\.(\w+)\(|(\w+)(?:\[\d+\])*$)"
        match = next(filter(None, (re.match(value, line) for line in lines)), None)
        if match and match[1]:
            return Origin(match.groups()[:3], names)
        name = match[4] if match else name
    return None


@never_raises
def check_memory_step(allocated, freed, is_final_step=False):
    frame = caller()
    run = RUNS.at(frame)
    run.planned.update(allocated)
    run.due.update(freed)
    adopt(run, frame, allocated)
    variables = Variables(frame)
    for name, memory in list(run.alive.items()):
        # The plan leaves out buffers whose sizes are known at run time only.
        if name not in run.planned:
            continue
        if memory.is_gone():
            if name not in run.due:
                report("early", frame, name, memory)
        elif memory.bytes_now() != memory.bytes:
            report("resized", frame, name, memory, now=memory.bytes_now())
        elif name not in run.due or are_collectives_under_way():
            continue
        elif not variables.in_memory_of(memory):
            if not is_reported(frame, name) and not goes_soon(memory):
                report("kept", frame, name, memory, holder=holder(memory.reference.cdata))
        # In the last step results are listed, too; and other variables in the same memory are
        # views, which Inductor's plan does not know.
        elif variables.in_memory_of(memory) == [name] and not is_final_step:
            report("late", frame, name, memory)
        del run.alive[name]
    if is_final_step:
        del RUNS.of[frame.f_code]


def adopt(run, frame, allocated):
    """Adds the results that Inductor does not track: those of operators with several."""
    for name in allocated:
        if name not in run.alive and origin(frame.f_code, name) is not None:
            start(run, frame, Variables(frame).value(name), name)


def are_collectives_under_way():
    """Whether a collective may still need its buffers."""
    distributed = sys.modules.get("torch._C._distributed_c10d")
    count = getattr(distributed, "_get_work_registry_size", lambda: 0)
    return count() > 0


def goes_soon(memory):
    """Whether only another thread or a reference cycle held it for a moment."""
    if not goes_within(memory, PATIENCE / 100):
        gc.collect()
    return goes_within(memory, PATIENCE)


def goes_within(memory, seconds):
    end = time.monotonic() + seconds
    while not memory.is_gone() and time.monotonic() < end:
        time.sleep(0.001)
    return memory.is_gone()


def switch_on(config):
    """Has generated code report its buffers, and gives each of them memory of its own."""
    config.test_configs.track_memory_lifecycle = "log"
    config.allow_buffer_reuse = False
    config.inplace_buffers = False


def replace_check(module):
    """Replaces Inductor's own check."""
    module.track_tensor = track_tensor
    module.check_memory_step = check_memory_step


def leave_out_cpp(module):
    """C++ wrappers do not compile with Inductor's tracking."""
    insert = module.Scheduler.insert_memory_check_nodes

    def insert_memory_check_nodes(scheduler):
        if not module.V.graph.cpp_wrapper:
            insert(scheduler)

    module.Scheduler.insert_memory_check_nodes = insert_memory_check_nodes


class Watcher:
    """Changes modules of torch right after they are imported."""

    actions = {
        "torch._inductor.config": switch_on,
        "torch._inductor.runtime.debug_utils": replace_check,
        "torch._inductor.scheduler": leave_out_cpp,
    }

    @staticmethod
    def find_spec(name, path=None, target=None):
        action = Watcher.actions.get(name)
        spec = action and importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            never_raises(action)(module)

        spec.loader.exec_module = exec_module
        return spec


def run_theirs():
    """Runs the sitecustomize that this one hides."""
    own = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != own]
    spec = importlib.machinery.PathFinder.find_spec(__name__, others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules[__name__] = module
        spec.loader.exec_module(module)


sys.meta_path.insert(0, Watcher)
run_theirs()
