"""The bytes that collectives have to send."""

import enum
import math
import re


class Transport(enum.Enum):
    GLOO = "gloo"
    MPI = "mpi"


def sent(collective, size, ranks, transport):
    """Bytes that each rank sends; `size` is the larger of what a collective takes and gives."""
    share = (ranks - 1) / ranks * size
    kind = collective.replace("-", "_")
    if kind.startswith("all_reduce"):
        return 2 * share
    if kind.startswith("reduce_scatter"):
        # Gloo reduces everything on every rank, of which each then takes its part.
        return 2 * share if transport is Transport.GLOO else share
    if kind.startswith(("all_gather", "all_to_all")):
        return share
    raise ValueError(
        f"it is not known how much a rank sends in {collective}: give testbed/payload.py its rule"
    )


def of_graph(graph, transport):
    """Bytes that each rank sends in a step of a halflap.graph/1."""
    collectives = [node["collective"] for node in graph["nodes"] if "collective" in node]
    groups = {name: len(group["ranks"]) for name, group in graph["groups"].items()}
    return sum(
        sent(one["op"], one["bytes"], groups[one["group"]], transport) for one in collectives
    )


#: `name = shape operation(operands), attributes`, as HLO has it.
DEFINITION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(.*)$")
SHAPE = re.compile(r"(pred|[a-z]+\d+)\[([\d,]*)\]")
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "reduce-scatter")


def of_module(text, transport):
    """Bytes that each rank sends in a step of an HLO module without loops."""
    sizes, total = {}, 0.0
    for line in text.splitlines():
        found = DEFINITION.match(line)
        if found is None:
            continue
        name, shape, operation, operands, attributes = found.groups()
        if operation in ("while", "conditional"):
            raise ValueError(
                f"'{name}' is a {operation}: bytes are known only without loops and branches"
            )
        sizes[name] = shape_bytes(shape)
        kind = operation.removesuffix("-start")
        if kind in COLLECTIVES:
            taken = sum(
                sizes[operand]
                for operand in re.findall(r"%?([\w.-]+)(?:,|$)", operands)
                if operand in sizes
            )
            given = sizes[name] - (taken if kind != operation else 0)
            total += sent(kind, max(taken, given), group_size(attributes), transport)
    return total


def output_bytes(text):
    """What a module gives on each rank."""
    entry = text[text.index("ENTRY ") :].splitlines()
    return next(
        shape_bytes(found[2])
        for line in entry
        if "ROOT " in line and (found := DEFINITION.match(line))
    )


def shape_bytes(shape):
    """Of an array or of all arrays of a tuple."""
    return sum(
        element_bytes(kind) * math.prod(map(int, filter(None, sides.split(","))))
        for kind, sides in SHAPE.findall(shape)
    )


def element_bytes(kind):
    return 1 if kind == "pred" else int(re.search(r"\d+", kind)[0]) // 8


def group_size(attributes):
    """Of `replica_groups={{0,1},{2,3}}`, `replica_groups=[2,2]<=[4]`, or the axes of a mesh,
    `replica_groups=mesh['a'=2,'b'=4] {'b'}`."""
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", attributes):
        sizes = dict(re.findall(r"('[^']+')=(\d+)", mesh[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'[^']+'", mesh[2]))
    if counted := re.search(r"replica_groups=\[\d+,(\d+)\]", attributes):
        return int(counted[1])
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", attributes)
    if listed is None:
        raise ValueError(f"no replica_groups are given: {attributes.strip(', ')}")
    return len(listed[1].split(","))
