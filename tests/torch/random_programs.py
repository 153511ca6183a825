"""Random programs with collectives, as Python text.

They have in-place candidates, views, mutations, reductions and extern kernels. Every value is a
matrix of `SIDE` x `SIDE`; operations keep numbers small, so nothing overflows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SIDE = 32

UNARY = [
    "torch.tanh({a})",
    "torch.sigmoid({a}) - 0.5",
    "torch.relu({a}) * 0.5",
    "{a} * 0.75 + 0.125",
    # Views.
    "{a}.t()",
    "{a}.reshape(SIDE // 2, 2 * SIDE).view(SIDE, SIDE)",
    "{a}.t().contiguous()",
    "torch.cat([{a}[:, SIDE // 2 :], {a}[:, : SIDE // 2]], 1)",
    "{a}.flip(0)",
    # Reductions.
    "{a} - {a}.mean(0, keepdim=True)",
    "F.softmax({a}, -1)",
    "F.layer_norm({a}, (SIDE,)) * 0.3",
    "{a}.sum() * 0.001 + {a}",
    # Extern kernels.
    "torch.cumsum({a}, 0) * 0.05",
    "torch.sort({a}, 1).values",
]

BINARY = [
    "{a} + {b} * 0.5",
    "{a} * {b}",
    "torch.where({a} > {b}, {a}, {b} * 0.5)",
    "torch.maximum({a}, {b})",
    "({a} @ {b}) * 0.05",
    "({a} @ {b}) * 0.05",
    "({a} @ {b}.t()) * 0.05",
    "torch.addmm({a}, {b}, {a}) * 0.05",
    "torch.bmm({a}[None], {b}[None])[0] * 0.05",
    "{a} - {b}.amax(1, keepdim=True) * 0.1",
]

#: Where nothing is differentiated; on a copy, or on an input, whose change others see.
MUTATIONS = [
    "{a}.mul_(0.5).add_({b})",
    "{a}.copy_({b} * 0.5)",
    "{a}[: SIDE // 2].add_({b}[SIDE // 2 :] * 0.25)",
    "{a}.t().mul_({b})",
]

COLLECTIVES = {
    "all_gather": ("gather({a}, {group})", "{c}[:SIDE] * 0.5 - {c}[SIDE:] * 0.25"),
    "reduce_scatter": ("scatter(torch.cat([{a}, {b}]), {group})", "{c} * 0.5"),
    "all_to_all": ("exchange({a}, {group})", "{c} + 0.125"),
    "all_reduce": ("reduce({a}, {group})", "{c} * 0.5"),
}


@dataclass(frozen=True)
class Program:
    """A function `step(inputs)` as text, and how it is run."""

    text: str
    inputs: int
    is_differentiated: bool


#: Through the order-only edge between two collectives `late` is an ancestor of `early`. If it had
#: run, `early` could overwrite `shared` in place; in a free order it has not.
READ_LATER = Program(
    """def step(inputs):
    a, w, z = inputs
    shared = torch.tanh(a)
    slow = w
    for _ in range(8):
        slow = (slow @ w) * 0.05
    late = shared @ slow
    c0 = reduce(late, first)
    c1 = reduce(z, first)
    early = shared * c1
    value = reduce(early, first)
    for _ in range(4):
        value = (value @ w) * 0.05
    return value + c0, early + 0.0
""",
    3,
    False,
)


#: The seed of a program in which an all-reduce in place comes after a copy of what it reduces, made
#: for another all-reduce. Torch binds it to the copy by way of the other one's wait alone.
COPIED_BEFORE = 1044
#: Of one whose kept order overwrites a part of a concatenation in place after the last reader of
#: the whole, which is then freed.
PART_OF_ANOTHER = 1122


def program(seed: int) -> Program:
    """The program of a seed."""
    return _Writer(random.Random(seed)).write()


class _Writer:
    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.is_differentiated = choose.random() < 0.4
        self.inputs = choose.randint(2, 4)
        self.lines: list[str] = []
        self.values = [f"x{number}" for number in range(self.inputs)]
        #: Collectives whose results are not used yet, each with how to use it.
        self.pending: list[tuple[str, str]] = []

    def write(self) -> Program:
        for _ in range(self.choose.randint(8, 20)):
            self._line()
        while self.pending:
            self._use()
        returned = ", ".join(self.values[self.inputs :][-6:])
        names = ", ".join(self.values[: self.inputs])
        lines = [f"{names}, = inputs", *self.lines, f"return {returned},"]
        body = "\n".join(f"    {line}" for line in lines)
        return Program(f"def step(inputs):\n{body}\n", self.inputs, self.is_differentiated)

    def _line(self) -> None:
        kind = self.choose.random()
        if kind < 0.28:
            self._issue()
        elif kind < 0.46 and self.pending:
            self._use()
        elif kind < 0.56 and not self.is_differentiated:
            a, b = self._some(), self._some()
            b = f"({b} + 0.0)" if a == b else b
            self.lines.append(self.choose.choice(MUTATIONS).format(a=a, b=b))
        else:
            self._new(self.choose.choice(UNARY + 2 * BINARY).format(a=self._some(), b=self._some()))

    def _some(self) -> str:
        """A value, rather one of the last."""
        return self.values[-1 - min(int(self.choose.expovariate(0.35)), len(self.values) - 1)]

    def _new(self, expression: str) -> None:
        name = f"v{len(self.values)}"
        self.lines.append(f"{name} = {expression}")
        self.values.append(name)

    def _issue(self) -> None:
        kinds = [kind for kind in COLLECTIVES if kind != "all_reduce" or not self.is_differentiated]
        issue, use = COLLECTIVES[self.choose.choice(kinds)]
        name = f"c{len(self.lines)}"
        group = self.choose.choice(["first", "first", "second"])
        self.lines.append(f"{name} = {issue.format(a=self._some(), b=self._some(), group=group)}")
        self.pending.append((name, use))

    def _use(self) -> None:
        name, use = self.pending.pop(self.choose.randrange(len(self.pending)))
        self._new(use.format(c=name))
