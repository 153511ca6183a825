"""Compiled graphs whose custom operators are named on the command line: `keep` keeps a reference
to its argument, `same` returns its argument's memory, `swap` exchanges it, `grow` resizes it.
`correct` stands for graphs in which nothing is wrong. On several ranks only rank 1 is at fault."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

kept = []
library = torch.library.Library("mine", "DEF")
has_ranks = int(os.environ.get("WORLD_SIZE", "1")) > 1
if has_ranks:
    dist.init_process_group("gloo")
is_at_fault = not has_ranks or dist.get_rank() == 1


def define(name, function, count=1):
    results = ", ".join(["Tensor"] * count)
    library.define(f"{name}(Tensor x) -> ({results})")
    library.impl(name, function, "CompositeExplicitAutograd")
    made = (lambda x: torch.empty_like(x)) if count == 1 else (lambda x: (x + 1, x * 2))
    torch.library.register_fake(f"mine::{name}", made, lib=library)


def faulty(change):
    def function(x):
        result = x + 1
        if is_at_fault:
            change(x)
        return result

    return function


define("keep", faulty(kept.append))
define("same", lambda x: x.view(x.shape) if is_at_fault else x.clone())
define("swap", faulty(lambda x: x.set_(x.clone())))
define("grow", faulty(lambda x: x.untyped_storage().resize_(2 * x.untyped_storage().nbytes())))
define("two", lambda x: (x + 1, x * 2), count=2)


def graph(operator):
    def model(x):
        y = torch.sin(x) + 1
        z = operator(y)
        if has_ranks:
            z = collectives.all_reduce(z, "sum", dist.group.WORLD)
        return torch.cos(z) @ y

    return model


def features(x):
    """Views, mutations, several results, sizes that data decides, operators that are not compiled,
    and a branch."""
    values, places = torch.topk(x @ x, 3)
    pairs = torch.view_as_real(torch.view_as_complex((x @ x).reshape(8, 4, 2)) * 1j)
    one, two = torch.ops.mine.two(x.sin())
    hits = (torch.nonzero(x > 0).sin() @ torch.ones(2, 3)).cos() @ torch.ones(3, 3)
    x.add_(1)
    total = torch.zeros(8, 8)
    total[2:4].copy_(one[2:4] @ two)
    branch = torch.cond(x.sum() > 0, lambda x: (x @ x).sin(), lambda x: (x @ x).cos(), (x @ x,))
    return values + 1, places, pairs, hits, total @ branch


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def correct():
    compiled = torch.compile(features)
    for _ in range(2):
        compiled(torch.randn(8, 8))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    compiled = torch.compile(model, dynamic=True)
    for rows in (3, 5):
        compiled(torch.randn(rows, 8)).square().mean().backward()


for fault in sys.argv[1:]:
    if fault == "correct":
        correct()
        continue
    compiled = torch.compile(graph(getattr(torch.ops.mine, fault)))
    for _ in range(2):
        compiled(torch.ones(8, 8))
    print("done", fault)
if has_ranks:
    dist.destroy_process_group()
