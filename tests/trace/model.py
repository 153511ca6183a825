"""When everything runs and what is alive, worked out from docs/formats.md and docs/optimizer.md
alone: what the traces are compared with. Plain and slow on purpose."""


def streams(graph):
    """The stream of every process group: groups that share two ranks take turns."""
    names = list(graph["groups"])
    stream = {name: name for name in names}
    for a in names:
        for b in names:
            shared = set(graph["groups"][a]["ranks"]) & set(graph["groups"][b]["ranks"])
            if a != b and len(shared) > 1:
                old, new = stream[a], stream[b]
                stream = {name: new if of == old else of for name, of in stream.items()}
    return stream


def maker_of(graph):
    return {buffer: node["name"] for node in graph["nodes"] for buffer in node["outputs"]}


def needs(graph):
    """What each node must run after: the makers of what it reads or keeps alive."""
    maker = maker_of(graph)
    real = lambda dep: "data" in dep["kinds"] or "weak" in dep["kinds"]
    return {
        node["name"]: [
            maker[dep["buffer"]] for dep in node["deps"] if real(dep) and dep["buffer"] in maker
        ]
        for node in graph["nodes"]
    }


def simulate(graph, order):
    """Start and end of every node."""
    nodes = {node["name"]: node for node in graph["nodes"]}
    stream, before = streams(graph), needs(graph)
    now, free, times = 0.0, {}, {}
    for name in order:
        node = nodes[name]
        ready = max(
            [now]
            + [times[other][1] for other in before[name] if nodes[other]["kind"] == "collective"]
        )
        if node["kind"] != "collective":
            now = ready + node["runtime_ns"]
            times[name] = (ready, now)
            continue
        of = stream[node["collective"]["group"]]
        start = max([ready, free.get(of, 0.0)] + [times[other][1] for other in before[name]])
        free[of] = start + node["runtime_ns"]
        times[name] = (start, free[of])
        if not node["collective"]["async"]:
            now = free[of]
    return times


def waits(graph):
    """Pairs of a collective and a wait that reads its result."""
    nodes, maker = {node["name"]: node for node in graph["nodes"]}, maker_of(graph)
    pairs = set()
    for node in graph["nodes"]:
        if node["kind"] == "wait":
            made_by = {maker.get(dep["buffer"]) for dep in node["deps"] if "data" in dep["kinds"]}
            pairs |= {
                (other, node["name"])
                for other in made_by
                if other and nodes[other]["kind"] == "collective"
            }
    return pairs


def peak(graph, order):
    """The most that is ever alive."""
    place = {name: index for index, name in enumerate(order)}
    maker = maker_of(graph)
    alive = sum(buffer["size"] for buffer in graph["inputs"])
    made, freed = {name: 0 for name in order}, {name: 0 for name in order}
    for buffer in graph["buffers"]:
        made[maker[buffer["name"]]] += buffer["size_alloc"]
        if not buffer["output"]:
            last = max(buffer["users"], key=place.get, default=maker[buffer["name"]])
            freed[last] += buffer["size_free"]
    for buffer in graph["inputs"]:
        if not buffer["output"] and buffer["users"]:
            freed[max(buffer["users"], key=place.get)] += buffer["size"]
    most = 0
    for name in order:
        most = max(most, alive + made[name])
        alive += made[name] - freed[name]
    return most
